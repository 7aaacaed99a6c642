"""Render parsed Markdown in a platform's dialect: Telegram's HTML, Slack's mrkdwn or Discord's Markdown. Pure.

A `Dialect` writes single blocks and marks. The functions below the dialects are the layout that they share: the order
of blocks, the nesting of marks, and tables as grids.
"""

from __future__ import annotations

import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import ClassVar

from connectors.text.edges import utf16_units
from connectors.text.markdown import (
    Block,
    Code,
    Heading,
    Item,
    Link,
    Paragraph,
    ParsedMarkdown,
    Quote,
    Span,
    Spans,
    Style,
    Table,
)

PADDED_COLUMNS = 40
"""A table cell is padded to at most this many columns, so that one long cell does not widen every row."""

ZERO_WIDTH_SPACE = "\u200b"

_RULE = "———"
_NESTABLE_STYLES = (Style.BOLD, Style.ITALIC, Style.STRIKE)


@dataclass(frozen=True, slots=True)
class RenderedBlock:
    """A rendered block. The lines of a ``verbatim`` one must not be indented or prefixed."""

    text: str
    tight: bool = False
    verbatim: bool = False


class Dialect(ABC):
    """How a platform writes each kind of block, and how it measures a text."""

    bullet = "•"

    def render(self, form: ParsedMarkdown) -> str:
        """Render *form*."""
        return join_pieces(_pieces(form, self, 0, 0))

    def size(self, text: str) -> int:
        """Return the size of a rendered *text* in the platform's units."""
        return len(text)

    def visible_text(self, text: str) -> str:
        """Return what people see of a rendered *text*."""
        return text

    @abstractmethod
    def leaf(self, span: Span) -> str:
        """Render one span, with its link or as code if it is one."""

    @abstractmethod
    def wrap(self, style: Style, inner: str, before: str, after: str) -> str:
        """Add the mark of *style* to *inner*. *before* and *after* are the characters around it, or empty."""

    def paragraph(self, spans: Spans) -> str:
        return nest_marks(spans, self)

    def heading(self, level: int, spans: Spans) -> str:
        """Render a heading, in bold unless the platform has headings."""
        return self.paragraph(tuple(replace(span, marks=span.marks | {Style.BOLD}) for span in spans))

    @abstractmethod
    def code(self, text: str, language: str) -> RenderedBlock: ...

    def quote(self, pieces: Sequence[RenderedBlock], depth: int) -> list[RenderedBlock]:
        """Render *pieces* as a quote that *depth* other quotes contain."""
        return [replace(piece, text=prefix_lines(piece.text, "> "), verbatim=False) for piece in pieces]


class TelegramHtml(Dialect):
    """Telegram's HTML (Bot API, "HTML style"): b, i, s, code, pre, a, blockquote.

    Checked against Telegram's own parser (TDLib's ``parseTextEntities``): a link whose host has no dot loses its URL,
    ``mailto:`` becomes a web address, ``pre`` may be inside ``blockquote``, and only the named entities ``lt``, ``gt``,
    ``amp`` and ``quot`` exist.
    """

    _SCHEMES = frozenset({"http", "https", "tg"})
    _DOTTED_HOST = re.compile(r"https?://[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+(:\d{1,5})?([/?#]|\Z)", re.IGNORECASE)
    _MENTION = re.compile(r"\B@(?=\w{3})", re.ASCII)
    """Text that Telegram turns into a mention, which notifies the person; no setting prevents it. Telegram finds no
    mentions in code and links."""
    _TAG_NAMES: ClassVar = {Style.BOLD: "b", Style.ITALIC: "i", Style.STRIKE: "s"}
    _TAG = re.compile(r"<[^>]*>")
    _LINK = re.compile(r'<a href="(?P<url>[^"]*)">(?P<text>.*?)</a>', re.DOTALL)
    _ENTITY = re.compile(r"&(lt|gt|amp|quot);")
    _CHARACTERS: ClassVar = {"lt": "<", "gt": ">", "amp": "&", "quot": '"'}

    def size(self, text: str) -> int:
        """Return the size in UTF-16 code units "after entities parsing", the unit of Telegram's limit."""
        return utf16_units(self.visible_text(text))

    def visible_text(self, text: str) -> str:
        return self._ENTITY.sub(lambda entity: self._CHARACTERS[entity[1]], self._TAG.sub("", text))

    def visible_text_with_urls(self, text: str) -> str:
        """Return the visible text, with the URL of each link in brackets after its text."""
        return self.visible_text(self._LINK.sub(r"\g<text> (\g<url>)", text))

    def code(self, text: str, language: str) -> RenderedBlock:
        body = self._escape(text)
        if language:
            body = f'<code class="language-{self._escape(language)}">{body}</code>'
        return RenderedBlock(f"<pre>{body}</pre>", verbatim=True)

    def quote(self, pieces: Sequence[RenderedBlock], depth: int) -> list[RenderedBlock]:
        if depth == 0:
            return [RenderedBlock(f"<blockquote>{join_pieces(pieces)}</blockquote>", verbatim=True)]
        # Telegram's quotes do not nest.
        return [piece if piece.verbatim else replace(piece, text=prefix_lines(piece.text, "&gt; ")) for piece in pieces]

    def wrap(self, style: Style, inner: str, before: str, after: str) -> str:
        tag = self._TAG_NAMES[style]
        return f"<{tag}>{inner}</{tag}>"

    def leaf(self, span: Span) -> str:
        url = link_url(span)
        if url is not None and not self._may_link(url):
            span, url = replace(span, text=with_address(span)), None
        text = self._escape(span.text)
        if Style.CODE in span.marks:
            text = f"<code>{text}</code>"
        elif url is None:
            text = self._MENTION.sub("@" + ZERO_WIDTH_SPACE, text)
        return text if url is None else f'<a href="{self._escape(url)}">{text}</a>'

    def _may_link(self, url: str) -> bool:
        """Return whether Telegram would keep *url* as a link that notifies nobody."""
        if url.lower().startswith("tg:"):
            return not url.lower().startswith("tg://user")
        return has_scheme(url, self._SCHEMES) and self._DOTTED_HOST.match(url) is not None

    def _escape(self, text: str) -> str:
        return escape_mrkdwn(text).replace('"', "&quot;")


class SlackMrkdwn(Dialect):
    """Slack's mrkdwn ("Formatting text for app surfaces"). ``&``, ``<`` and ``>`` are escaped, so it mentions nobody.

    mrkdwn has no escape for its marks, and marks work only at the edges of words. A zero-width space after a mark
    disables it; a zero-width space between a mark and a letter enables it.
    """

    _SCHEMES = frozenset({"http", "https", "mailto"})
    _MARKS: ClassVar = {Style.BOLD: "*", Style.ITALIC: "_", Style.STRIKE: "~"}
    _LITERAL_MARK = re.compile(r"(?<!\w)([*_~`])(?=\S)")
    _BACKTICKS = re.compile(r"`(?=`)")
    _MASS_MENTION = re.compile(r"@(?=(?:here|channel|everyone)\b)", re.IGNORECASE)

    def paragraph(self, spans: Spans) -> str:
        return "\n".join(map(self._line, by_line(spans)))

    def code(self, text: str, language: str) -> RenderedBlock:
        return RenderedBlock(f"```\n{escape_mrkdwn(break_backtick_runs(text))}\n```", verbatim=True)

    def quote(self, pieces: Sequence[RenderedBlock], depth: int) -> list[RenderedBlock]:
        # mrkdwn has no code blocks inside quotes.
        return [piece if piece.verbatim else replace(piece, text=prefix_lines(piece.text, "> ")) for piece in pieces]

    def _line(self, spans: Spans) -> str:
        text = nest_marks(spans, self)
        return ZERO_WIDTH_SPACE + text if text.startswith("&gt;") else text

    def wrap(self, style: Style, inner: str, before: str, after: str) -> str:
        sign = self._MARKS[style]
        text = wrap_text(sign, inner, sign)
        left = ZERO_WIDTH_SPACE if self._needs_separator(before) and text.startswith(sign) else ""
        right = ZERO_WIDTH_SPACE if self._needs_separator(after) and text.endswith(sign) else ""
        return left + text + right

    def _needs_separator(self, character: str) -> bool:
        return character.isalnum() or character in {"*", "_", "~", "`"}

    def leaf(self, span: Span) -> str:
        url = link_url(span)
        if url is not None and has_scheme(url, self._SCHEMES):
            label = self._literal(span.text).replace("|", "\u2502")
            return f"<{escape_mrkdwn(url.replace('|', '%7C').replace('>', '%3E'))}|{label}>"
        if Style.CODE in span.marks and "`" not in span.text and span.text.strip():
            return wrap_text("`", escape_mrkdwn(span.text), "`")
        return self._literal(with_address(span))

    def _literal(self, text: str) -> str:
        text = self._BACKTICKS.sub("`" + ZERO_WIDTH_SPACE, text)
        text = self._LITERAL_MARK.sub(r"\1" + ZERO_WIDTH_SPACE, text)
        return escape_mrkdwn(self._MASS_MENTION.sub("@" + ZERO_WIDTH_SPACE, text))


def escape_mrkdwn(text: str) -> str:
    """Replace Slack's three control characters in *text* with entities."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class DiscordMarkdown(Dialect):
    """The Markdown that Discord's apps show ("Markdown Text 101"). It mentions nobody; tables become code blocks."""

    bullet = "-"

    _SCHEMES = frozenset({"http", "https"})
    _LARGEST_HEADING = 3
    _URL = re.compile(r"(https?://[^\s<>]+)")
    _SPECIAL = re.compile(r"[\\*_~`|<]|\](?=\()")
    _LINE_START = re.compile(r"\A(\s*)(#{1,3}|>{1,3}|-#?|\+|\d+(?=\.))(?=[\s.]|\Z)")
    _MASS_MENTION = re.compile(r"@(?=everyone\b|here\b)", re.IGNORECASE)

    def size(self, text: str) -> int:
        """Return the size in UTF-16 code units."""
        return utf16_units(text)

    def paragraph(self, spans: Spans) -> str:
        return "\n".join(map(self._line, by_line(spans)))

    def heading(self, level: int, spans: Spans) -> str:
        line = nest_marks(spans, self)
        if level > self._LARGEST_HEADING or not line.strip():
            return super().heading(level, spans)
        return f"{'#' * level} {line}"

    def code(self, text: str, language: str) -> RenderedBlock:
        return RenderedBlock(f"```{language}\n{break_backtick_runs(text)}\n```", verbatim=True)

    def _line(self, spans: Spans) -> str:
        return self._LINE_START.sub(self._escape_line_start, nest_marks(spans, self))

    def _escape_line_start(self, start: re.Match[str]) -> str:
        sign = start[2]
        return start[1] + (sign + "\\" if sign.isdigit() else "\\" + sign)

    def wrap(self, style: Style, inner: str, before: str, after: str) -> str:
        if style is Style.BOLD:
            return wrap_text("**", inner, "**")
        if style is Style.STRIKE:
            return wrap_text("~~", inner, "~~")
        # "_" cannot be confused with the "**" of bold, but it does not work inside a word.
        sign = "*" if self._is_word(before) or self._is_word(after) else "_"
        return wrap_text(sign, inner, sign)

    def _is_word(self, character: str) -> bool:
        return character.isalnum() or character == "_"

    def leaf(self, span: Span) -> str:
        url = link_url(span)
        if url is not None and has_scheme(url, self._SCHEMES) and not is_own_url(span.text, url):
            target = url.replace("|", "%7C").replace(">", "%3E").replace("<", "%3C")
            return f"[{self._literal(span.text)}](<{target}>)"
        if Style.CODE in span.marks and span.text.strip():
            return self._inline_code(span.text)
        return self._literal(with_address(span))

    def _inline_code(self, text: str) -> str:
        """Put *text* between longer backtick runs than it contains."""
        longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
        if longest > 1:
            text = re.sub(r"`(?=`)", "`" + ZERO_WIDTH_SPACE, text)
        fence = "``" if longest else "`"
        space = " " if text.startswith("`") or text.endswith("`") else ""
        return f"{fence}{space}{text}{space}{fence}"

    def _literal(self, text: str) -> str:
        """Escape everything in *text* that Discord would read as a mark or a mention. Bare URLs stay unchanged."""
        return "".join(part if index % 2 else self._escape(part) for index, part in enumerate(self._URL.split(text)))

    def _escape(self, text: str) -> str:
        # After a URL, a backslash before "<" would become part of the URL and escape nothing.
        start = "<" + ZERO_WIDTH_SPACE if text.startswith("<") else ""
        rest = self._SPECIAL.sub(r"\\\g<0>", text.removeprefix("<") if start else text)
        return start + self._MASS_MENTION.sub("@" + ZERO_WIDTH_SPACE, rest)


TELEGRAM_HTML = TelegramHtml()
SLACK_MRKDWN = SlackMrkdwn()
DISCORD_MARKDOWN = DiscordMarkdown()


# Layout


def join_pieces(pieces: Iterable[RenderedBlock]) -> str:
    """Join the pieces with a blank line before each, or a single line end before a tight one."""
    texts: list[str] = []
    for piece in pieces:
        if texts:
            texts.append("\n" if piece.tight else "\n\n")
        texts.append(piece.text)
    return "".join(texts)


def _pieces(blocks: Sequence[Block], dialect: Dialect, depth: int, quotes: int) -> list[RenderedBlock]:
    """Render blocks that share their *depth* outermost containers, *quotes* of which are quotes."""
    pieces: list[RenderedBlock] = []
    for ident, group in groupby(blocks, key=lambda block: _container_ident(block, depth)):
        same = list(group)
        if ident is None:
            pieces += [_piece(block, dialect) for block in same]
            continue
        container = same[0].within[depth]
        if isinstance(container, Quote):
            inner = dialect.quote(_pieces(same, dialect, depth + 1, quotes + 1), quotes)
        else:
            inner = _item(_pieces(same, dialect, depth + 1, quotes), container, dialect)
        pieces += [replace(inner[0], tight=same[0].tight), *inner[1:]]
    return pieces


def _container_ident(block: Block, depth: int) -> int | None:
    return block.within[depth].ident if depth < len(block.within) else None


def _piece(block: Block, dialect: Dialect) -> RenderedBlock:
    match block.content:
        case Paragraph(spans):
            return RenderedBlock(dialect.paragraph(spans), block.tight)
        case Heading(level, spans):
            return RenderedBlock(dialect.heading(level, spans), block.tight)
        case Code(text, language):
            return replace(dialect.code(text, language), tight=block.tight)
        case Table() as table:
            return replace(dialect.code(grid(table), ""), tight=block.tight)
        case _:
            return RenderedBlock(_RULE, block.tight)


def _item(pieces: list[RenderedBlock], item: Item, dialect: Dialect) -> list[RenderedBlock]:
    marker = item.marker or dialect.bullet
    indent = " " * (len(marker) + 1)
    indented = [piece if piece.verbatim else replace(piece, text=prefix_lines(piece.text, indent)) for piece in pieces]
    first = indented[0]
    if not item.opens:
        return indented
    if first.verbatim:
        return [RenderedBlock(marker, first.tight), replace(first, tight=True), *indented[1:]]
    return [replace(first, text=f"{marker} {first.text[len(indent) :]}".rstrip(" ")), *indented[1:]]


def prefix_lines(text: str, prefix: str) -> str:
    """Put *prefix* before each line of *text*."""
    return prefix + text.replace("\n", "\n" + prefix)


def grid(table: Table) -> str:
    """Render *table* as lines of aligned cells for a monospaced font, with a line under the header."""
    rows = [[to_one_line(cell) for cell in row] for row in table.rows]
    widths = [
        min(PADDED_COLUMNS, max((columns(row[index]) for row in rows if index < len(row)), default=0))
        for index in range(max(map(len, rows), default=0))
    ]
    aligns = (*table.aligns, *[""] * len(widths))
    lines = [" │ ".join(map(_align, row, widths, aligns)).rstrip() for row in rows]
    if not table.headless:
        lines.insert(1, "─┼─".join("─" * width for width in widths))
    return "\n".join(lines)


def to_one_line(spans: Spans) -> str:
    """Return the spans' text on one line, with the URLs of links whose text does not show them."""
    return "".join(with_address(span) for span in spans).replace("\n", " ")


def with_address(span: Span) -> str:
    """Return the span's text, followed by its URL in brackets if it is a link whose text does not show it."""
    url = link_url(span)
    return span.text if url is None or is_own_url(span.text, url) else f"{span.text} ({url})"


def link_url(span: Span) -> str | None:
    """Return the URL of a span that is a link, else None."""
    return next((mark.url for mark in span.marks if isinstance(mark, Link)), None)


def is_own_url(text: str, url: str) -> bool:
    """Return whether *text* is itself the URL."""
    return text in {url, url.removeprefix("mailto:")}


def columns(text: str) -> int:
    """Return how many terminal columns *text* takes (Unicode Standard Annex #11; combining marks take none)."""
    return sum(
        0 if unicodedata.category(character) in {"Mn", "Me", "Cf"} else 2 if _is_wide(character) else 1
        for character in text
    )


def _is_wide(character: str) -> bool:
    return unicodedata.east_asian_width(character) in {"W", "F"}


def _align(text: str, width: int, align: str) -> str:
    room = max(0, width - columns(text))
    before = room if align == "right" else room // 2 if align == "center" else 0
    return " " * before + text + " " * (room - before)


def nest_marks(spans: Sequence[Span], dialect: Dialect, open_styles: frozenset[Style] = frozenset()) -> str:
    """Render the spans so that marks nest and never cross: each mark wraps the longest run of spans that share it."""
    out = ""
    position = 0
    while position < len(spans):
        runs = [
            (_run(spans, position, style), style)
            for style in _NESTABLE_STYLES
            if style in spans[position].marks and style not in open_styles
        ]
        if not runs:
            out += dialect.leaf(spans[position])
            position += 1
            continue
        length, style = max(runs, key=lambda run: run[0])
        inner = nest_marks(spans[position : position + length], dialect, open_styles | {style})
        position += length
        after = spans[position].text[:1] if position < len(spans) else ""
        out += dialect.wrap(style, inner, out[-1:], after)
    return out


def _run(spans: Sequence[Span], start: int, style: Style) -> int:
    end = start
    while end < len(spans) and style in spans[end].marks:
        end += 1
    return end - start


def wrap_text(opening: str, inner: str, closing: str) -> str:
    """Put *inner* between marks that must touch text. White space at its edges stays outside the marks."""
    core = inner.strip()
    if not core:
        return inner
    start = inner.index(core)
    return inner[:start] + opening + core + closing + inner[start + len(core) :]


def break_backtick_runs(code: str) -> str:
    """Put zero-width spaces into runs of three or more backticks, which would end the code block."""
    return re.sub(r"`{3,}", lambda run: ZERO_WIDTH_SPACE.join(run[0]), code)


def by_line(spans: Spans) -> list[Spans]:
    """Return the spans of each line, for platforms whose marks end at the line's end."""
    lines: list[list[Span]] = [[]]
    for span in spans:
        first, *others = span.text.split("\n")
        lines[-1].append(replace(span, text=first))
        lines.extend([replace(span, text=text)] for text in others)
    return [tuple(span for span in line if span.text) for line in lines]


_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?://(?:[^/?#@]*@)?(?P<host>\[[^\]]*\]|[^/?#:]*))?")


def has_scheme(url: str, schemes: frozenset[str]) -> bool:
    """Return whether *url* is absolute and of one of the *schemes*, and for http and https also names a host."""
    match = _SCHEME.match(url)
    if match is None or match["scheme"].lower() not in schemes:
        return False
    return match["scheme"].lower() not in {"http", "https"} or bool(match["host"])
