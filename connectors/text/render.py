"""Layout that all renderers share: the order of blocks, the nesting of marks, and tables as grids. Pure."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Protocol

from connectors.text.parse import (
    Block,
    Code,
    Heading,
    Item,
    Link,
    Mark,
    Paragraph,
    ParsedMarkdown,
    Quote,
    Span,
    Spans,
    Style,
    Table,
)
from connectors.text.split import utf16_units

PADDED_COLUMNS = 40
"""A cell is padded to at most this many columns, so that one long cell does not widen every row."""

ZERO_WIDTH_SPACE = "\u200b"

_NESTABLE_STYLES = (Style.BOLD, Style.ITALIC, Style.STRIKE)


@dataclass(frozen=True, slots=True)
class RenderedBlock:
    """A rendered block. The lines of a ``verbatim`` one must not be indented or prefixed."""

    text: str
    tight: bool = False
    verbatim: bool = False


class Dialect(Protocol):
    """How a platform writes each kind of block."""

    @property
    def bullet(self) -> str: ...

    def paragraph(self, spans: Spans) -> str: ...

    def heading(self, level: int, spans: Spans) -> str: ...

    def code(self, text: str, language: str) -> RenderedBlock: ...

    def rule(self) -> str: ...

    def quote(self, pieces: Sequence[RenderedBlock], depth: int) -> list[RenderedBlock]:
        """Render *pieces* as a quote that *depth* other quotes contain."""


def lay_out(form: ParsedMarkdown, dialect: Dialect) -> str:
    """Render *form* in *dialect*."""
    return join_pieces(_pieces(form, dialect, 0, 0))


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
            return RenderedBlock(dialect.rule(), block.tight)


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


Wrap = Callable[[Mark, str, str, str], str]
"""(mark, inner text, text before, character after) → the inner text with its mark."""


def nest_marks(
    spans: Sequence[Span], leaf: Callable[[Span], str], wrap: Wrap, open_marks: frozenset[Mark] = frozenset()
) -> str:
    """Render the spans so that marks nest and never cross: each mark wraps the longest run of spans that share it.

    *leaf* renders each span with all its marks, and so handles links and code; *wrap* adds the other marks.
    """
    out = ""
    position = 0
    while position < len(spans):
        runs = [
            (_run(spans, position, mark), mark)
            for mark in _NESTABLE_STYLES
            if mark in spans[position].marks and mark not in open_marks
        ]
        if not runs:
            out += leaf(spans[position])
            position += 1
            continue
        length, mark = max(runs, key=lambda run: run[0])
        inner = nest_marks(spans[position : position + length], leaf, wrap, open_marks | {mark})
        position += length
        after = spans[position].text[:1] if position < len(spans) else ""
        out += wrap(mark, inner, out[-1:], after)
    return out


def _run(spans: Sequence[Span], start: int, mark: Mark) -> int:
    end = start
    while end < len(spans) and mark in spans[end].marks:
        end += 1
    return end - start


def wrap_text(opening: str, inner: str, closing: str) -> str:
    """Put *inner* between marks that must touch text. White space at its edges stays outside the marks."""
    core = inner.strip()
    if not core:
        return inner
    start = inner.index(core)
    return inner[:start] + opening + core + closing + inner[start + len(core) :]


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


# ---- html ----
#
# Render parsed Markdown as Telegram's HTML (Bot API, "HTML style"), and extract the text that a reader sees. Pure.
#
# Checked against Telegram's own parser (TDLib's ``parseTextEntities``): a link whose host has no dot loses its URL,
# ``mailto:`` becomes a web address, ``pre`` may be inside ``blockquote``, and only the named entities ``lt``, ``gt``,
# ``amp`` and ``quot`` exist.


_SCHEMES = frozenset({"http", "https", "tg"})
_DOTTED_HOST = re.compile(r"https?://[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+(:\d{1,5})?([/?#]|\Z)", re.IGNORECASE)
_MENTION = re.compile(r"\B@(?=\w{3})", re.ASCII)
"""Text that Telegram turns into a mention, which notifies the person; no setting prevents it. Telegram finds no
mentions in code and links."""
_TAGS = {Style.BOLD: "b", Style.ITALIC: "i", Style.STRIKE: "s", Style.CODE: "code"}

_TAG = re.compile(r"<[^>]*>")
_LINK_ELEMENT = re.compile(r'<a href="(?P<url>[^"]*)">(?P<text>.*?)</a>', re.DOTALL)
_ENTITY = re.compile(r"&(lt|gt|amp|quot);")
_CHARACTERS = {"lt": "<", "gt": ">", "amp": "&", "quot": '"'}


def render(form: ParsedMarkdown) -> str:
    """Render *form* in Telegram's tags: b, i, s, code, pre, a, blockquote."""
    return lay_out(form, _Html())


def visible_text(html: str) -> str:
    """Return the text that Telegram shows for HTML from `render`, without formatting."""
    return _ENTITY.sub(lambda entity: _CHARACTERS[entity[1]], _TAG.sub("", html))


def visible_text_with_urls(html: str) -> str:
    """Return the same text as `seen`, with the URL of each link in brackets after its text."""
    return visible_text(_LINK_ELEMENT.sub(r"\g<text> (\g<url>)", html))


def size(html: str) -> int:
    """Return the size in UTF-16 code units "after entities parsing", the unit of Telegram's limit."""
    return utf16_units(visible_text(html))


class _Html:
    bullet = "•"

    def paragraph(self, spans: Spans) -> str:
        return nest_marks(spans, _leaf, _wrap)

    def heading(self, level: int, spans: Spans) -> str:
        return self.paragraph(tuple(replace(span, marks=span.marks | {Style.BOLD}) for span in spans))

    def code(self, text: str, language: str) -> RenderedBlock:
        body = _escape(text)
        if language:
            body = f'<code class="language-{_escape(language)}">{body}</code>'
        return RenderedBlock(f"<pre>{body}</pre>", verbatim=True)

    def rule(self) -> str:
        return "———"

    def quote(self, pieces: Sequence[RenderedBlock], depth: int) -> list[RenderedBlock]:
        if depth == 0:
            return [RenderedBlock(f"<blockquote>{join_pieces(pieces)}</blockquote>", verbatim=True)]
        # Telegram's quotes do not nest.
        return [piece if piece.verbatim else replace(piece, text=prefix_lines(piece.text, "&gt; ")) for piece in pieces]


def _wrap(mark: Mark, inner: str, before: str, after: str) -> str:
    tag = _TAGS[mark] if isinstance(mark, Style) else ""
    return f"<{tag}>{inner}</{tag}>"


def _leaf(span: Span) -> str:
    url = link_url(span)
    if url is not None and not _may_link(url):
        span, url = replace(span, text=with_address(span)), None
    text = _escape(span.text)
    if Style.CODE in span.marks:
        text = f"<code>{text}</code>"
    elif url is None:
        text = _MENTION.sub("@" + ZERO_WIDTH_SPACE, text)
    return text if url is None else f'<a href="{_escape(url)}">{text}</a>'


def _may_link(url: str) -> bool:
    """Return whether Telegram would keep *url* as a link that notifies nobody."""
    if url.lower().startswith("tg:"):
        return not url.lower().startswith("tg://user")
    return has_scheme(url, _SCHEMES) and _DOTTED_HOST.match(url) is not None


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


# ---- mrkdwn ----
#
# Render parsed Markdown as Slack's mrkdwn ("Formatting text for app surfaces"). Pure.
#
# mrkdwn has no escape for its marks, and marks work only at the edges of words. A zero-width space after a mark
# disables it; a zero-width space between a mark and a letter enables it.


_MRKDWN_SCHEMES = frozenset({"http", "https", "mailto"})
_MARKS = {Style.BOLD: "*", Style.ITALIC: "_", Style.STRIKE: "~"}
_LITERAL_MARK = re.compile(r"(?<!\w)([*_~`])(?=\S)")
_BACKTICKS = re.compile(r"`(?=`)")
_MASS_MENTION = re.compile(r"@(?=(?:here|channel|everyone)\b)", re.IGNORECASE)


def mrkdwn_render(form: ParsedMarkdown) -> str:
    """Render *form* as mrkdwn. ``&``, ``<`` and ``>`` are escaped, so the text mentions nobody."""
    return lay_out(form, _Mrkdwn())


def escape(text: str) -> str:
    """Replace Slack's three control characters in *text* with entities."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class _Mrkdwn:
    bullet = "•"

    def paragraph(self, spans: Spans) -> str:
        return "\n".join(_line(line) for line in by_line(spans))

    def heading(self, level: int, spans: Spans) -> str:
        return self.paragraph(tuple(replace(span, marks=span.marks | {Style.BOLD}) for span in spans))

    def code(self, text: str, language: str) -> RenderedBlock:
        return RenderedBlock(f"```\n{escape(_break_backtick_runs(text))}\n```", verbatim=True)

    def rule(self) -> str:
        return "———"

    def quote(self, pieces: Sequence[RenderedBlock], depth: int) -> list[RenderedBlock]:
        # mrkdwn has no code blocks inside quotes.
        return [piece if piece.verbatim else replace(piece, text=prefix_lines(piece.text, "> ")) for piece in pieces]


def _break_backtick_runs(code: str) -> str:
    """Put zero-width spaces into runs of three or more backticks, which would end the code block."""
    return re.sub(r"`{3,}", lambda run: ZERO_WIDTH_SPACE.join(run[0]), code)


def _line(spans: Spans) -> str:
    text = nest_marks(spans, _mrkdwn_leaf, _mrkdwn_wrap)
    return ZERO_WIDTH_SPACE + text if text.startswith("&gt;") else text


def _mrkdwn_wrap(mark: Mark, inner: str, before: str, after: str) -> str:
    sign = _MARKS[mark] if isinstance(mark, Style) else ""
    text = wrap_text(sign, inner, sign)
    left = ZERO_WIDTH_SPACE if _needs_separator(before) and text.startswith(sign) else ""
    right = ZERO_WIDTH_SPACE if _needs_separator(after) and text.endswith(sign) else ""
    return left + text + right


def _needs_separator(character: str) -> bool:
    return character.isalnum() or character in {*_MARKS.values(), "`"} - {""}


def _mrkdwn_leaf(span: Span) -> str:
    url = link_url(span)
    if url is not None and has_scheme(url, _MRKDWN_SCHEMES):
        label = _literal(span.text).replace("|", "\u2502")
        return f"<{escape(url.replace('|', '%7C').replace('>', '%3E'))}|{label}>"
    if Style.CODE in span.marks and "`" not in span.text and span.text.strip():
        return wrap_text("`", escape(span.text), "`")
    return _literal(with_address(span))


def _literal(text: str) -> str:
    text = _BACKTICKS.sub("`" + ZERO_WIDTH_SPACE, text)
    text = _LITERAL_MARK.sub(r"\1" + ZERO_WIDTH_SPACE, text)
    return escape(_MASS_MENTION.sub("@" + ZERO_WIDTH_SPACE, text))


# ---- discord markdown ----
#
# Render parsed Markdown as the Markdown that Discord's apps show ("Markdown Text 101"). Pure.


_DISCORD_MARKDOWN_SCHEMES = frozenset({"http", "https"})
_LARGEST_HEADING = 3
_URL = re.compile(r"(https?://[^\s<>]+)")
_SPECIAL = re.compile(r"[\\*_~`|<]|\](?=\()")
_LINE_START = re.compile(r"\A(\s*)(#{1,3}|>{1,3}|-#?|\+|\d+(?=\.))(?=[\s.]|\Z)")
_DISCORD_MARKDOWN_MASS_MENTION = re.compile(r"@(?=everyone\b|here\b)", re.IGNORECASE)


def discord_markdown_render(form: ParsedMarkdown) -> str:
    """Render *form* for Discord. It mentions nobody, and tables become code blocks."""
    return lay_out(form, _Discord())


class _Discord:
    bullet = "-"

    def paragraph(self, spans: Spans) -> str:
        return "\n".join(_discord_markdown_line(line) for line in by_line(spans))

    def heading(self, level: int, spans: Spans) -> str:
        line = nest_marks(spans, _discord_markdown_leaf, _discord_markdown_wrap)
        if level > _LARGEST_HEADING or not line.strip():
            return self.paragraph(tuple(replace(span, marks=span.marks | {Style.BOLD}) for span in spans))
        return f"{'#' * level} {line}"

    def code(self, text: str, language: str) -> RenderedBlock:
        return RenderedBlock(f"```{language}\n{_discord_markdown_break_backtick_runs(text)}\n```", verbatim=True)

    def rule(self) -> str:
        return "———"

    def quote(self, pieces: Sequence[RenderedBlock], depth: int) -> list[RenderedBlock]:
        return [replace(piece, text=prefix_lines(piece.text, "> "), verbatim=False) for piece in pieces]


def _discord_markdown_break_backtick_runs(code: str) -> str:
    """Put zero-width spaces into runs of three or more backticks, which would end the code block."""
    return re.sub(r"`{3,}", lambda run: ZERO_WIDTH_SPACE.join(run[0]), code)


def _discord_markdown_line(spans: Spans) -> str:
    return _LINE_START.sub(_escape_line_start, nest_marks(spans, _discord_markdown_leaf, _discord_markdown_wrap))


def _escape_line_start(start: re.Match[str]) -> str:
    sign = start[2]
    return start[1] + (sign + "\\" if sign.isdigit() else "\\" + sign)


def _discord_markdown_wrap(mark: Mark, inner: str, before: str, after: str) -> str:
    if mark is Style.BOLD:
        return wrap_text("**", inner, "**")
    if mark is Style.STRIKE:
        return wrap_text("~~", inner, "~~")
    # "_" cannot be confused with the "**" of bold, but it does not work inside a word.
    sign = "*" if _is_word(before) or _is_word(after) else "_"
    return wrap_text(sign, inner, sign)


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def _discord_markdown_leaf(span: Span) -> str:
    url = link_url(span)
    if url is not None and has_scheme(url, _DISCORD_MARKDOWN_SCHEMES) and not is_own_url(span.text, url):
        target = url.replace("|", "%7C").replace(">", "%3E").replace("<", "%3C")
        return f"[{_discord_markdown_literal(span.text)}](<{target}>)"
    if Style.CODE in span.marks and span.text.strip():
        return _code(span.text)
    return _discord_markdown_literal(with_address(span))


def _code(text: str) -> str:
    """Return *text* as inline code, between longer backtick runs than it contains."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    if longest > 1:
        text = re.sub(r"`(?=`)", "`" + ZERO_WIDTH_SPACE, text)
    fence = "``" if longest else "`"
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{space}{text}{space}{fence}"


def _discord_markdown_literal(text: str) -> str:
    """Escape everything in *text* that Discord would read as a mark or a mention. Bare URLs stay unchanged."""
    return "".join(part if index % 2 else _discord_markdown_escape(part) for index, part in enumerate(_URL.split(text)))


def _discord_markdown_escape(text: str) -> str:
    # After a URL, a backslash before "<" would become part of the URL and escape nothing.
    start = "<" + ZERO_WIDTH_SPACE if text.startswith("<") else ""
    rest = _SPECIAL.sub(r"\\\g<0>", text.removeprefix("<") if start else text)
    return start + _DISCORD_MARKDOWN_MASS_MENTION.sub("@" + ZERO_WIDTH_SPACE, rest)


# ---- plain ----
#
# Render parsed Markdown as plain text, for platforms without formatting. Pure.


def plain_render(form: ParsedMarkdown) -> str:
    """Render *form* without marks. The URL of a link follows in brackets; code stays unchanged."""
    return lay_out(form, _Plain())


class _Plain:
    bullet = "•"

    def paragraph(self, spans: Spans) -> str:
        return "".join(map(with_address, spans))

    def heading(self, level: int, spans: Spans) -> str:
        return self.paragraph(spans)

    def code(self, text: str, language: str) -> RenderedBlock:
        return RenderedBlock(text, verbatim=True)

    def rule(self) -> str:
        return "———"

    def quote(self, pieces: Sequence[RenderedBlock], depth: int) -> list[RenderedBlock]:
        return [replace(piece, text=prefix_lines(piece.text, "> "), verbatim=False) for piece in pieces]
