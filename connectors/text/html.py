"""A form as the HTML that Telegram reads (Bot API, "HTML style"), and what is left of it when read. Pure.

What Telegram does with it was checked against its own parser (TDLib's ``parseTextEntities``): a link whose
host has no dot loses its address, ``mailto:`` becomes a web address, ``pre`` may stand in ``blockquote``,
of the named entities only ``lt``, ``gt``, ``amp`` and ``quot`` exist.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from connectors.text.form import Form, Mark, Span, Spans, Style
from connectors.text.layout import (
    ZERO_WIDTH_SPACE,
    Piece,
    address,
    goes_to,
    joined,
    lay_out,
    nested,
    prefixed,
    with_address,
)
from connectors.text.split import utf16_units

_SCHEMES = frozenset({"http", "https", "tg"})
_DOTTED_HOST = re.compile(r"https?://[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+(:\d{1,5})?([/?#]|\Z)", re.IGNORECASE)
_MENTION = re.compile(r"\B@(?=\w{3})", re.ASCII)
"""What Telegram makes a mention of by itself, which notifies that person: it has no setting against that. Not within
code and links, where it looks for none."""
_TAGS = {Style.BOLD: "b", Style.ITALIC: "i", Style.STRIKE: "s", Style.CODE: "code"}

_TAG = re.compile(r"<[^>]*>")
_LINKED = re.compile(r'<a href="(?P<url>[^"]*)">(?P<text>.*?)</a>', re.DOTALL)
_ENTITY = re.compile(r"&(lt|gt|amp|quot);")
_CHARACTERS = {"lt": "<", "gt": ">", "amp": "&", "quot": '"'}


def render(form: Form) -> str:
    """*form* in Telegram's tags: b, i, s, code, pre, a, blockquote."""
    return lay_out(form, _Html())


def seen(html: str) -> str:
    """The text that Telegram shows of what `render` gave, without its formatting."""
    return _ENTITY.sub(lambda entity: _CHARACTERS[entity[1]], _TAG.sub("", html))


def seen_with_addresses(html: str) -> str:
    """As `seen`, with the addresses of links behind their texts."""
    return seen(_LINKED.sub(r"\g<text> (\g<url>)", html))


def size(html: str) -> int:
    """UTF-16 code units "after entities parsing", in which Telegram's limit counts."""
    return utf16_units(seen(html))


class _Html:
    bullet = "•"

    def paragraph(self, spans: Spans) -> str:
        return nested(spans, _leaf, _wrapped)

    def heading(self, level: int, spans: Spans) -> str:
        return self.paragraph(tuple(replace(span, marks=span.marks | {Style.BOLD}) for span in spans))

    def code(self, text: str, language: str) -> Piece:
        body = _escaped(text)
        if language:
            body = f'<code class="language-{_escaped(language)}">{body}</code>'
        return Piece(f"<pre>{body}</pre>", verbatim=True)

    def rule(self) -> str:
        return "———"

    def quote(self, pieces: Sequence[Piece], depth: int) -> list[Piece]:
        if depth == 0:
            return [Piece(f"<blockquote>{joined(pieces)}</blockquote>", verbatim=True)]
        # Telegram's quotes do not nest.
        return [piece if piece.verbatim else replace(piece, text=prefixed(piece.text, "&gt; ")) for piece in pieces]


def _wrapped(mark: Mark, inner: str, before: str, after: str) -> str:
    tag = _TAGS[mark] if isinstance(mark, Style) else ""
    return f"<{tag}>{inner}</{tag}>"


def _leaf(span: Span) -> str:
    url = address(span)
    if url is not None and not _may_link(url):
        span, url = replace(span, text=with_address(span)), None
    text = _escaped(span.text)
    if Style.CODE in span.marks:
        text = f"<code>{text}</code>"
    elif url is None:
        text = _MENTION.sub("@" + ZERO_WIDTH_SPACE, text)
    return text if url is None else f'<a href="{_escaped(url)}">{text}</a>'


def _may_link(url: str) -> bool:
    """Whether Telegram makes a link of it that leads there and notifies nobody."""
    if url.lower().startswith("tg:"):
        return not url.lower().startswith("tg://user")
    return goes_to(url, _SCHEMES) and _DOTTED_HOST.match(url) is not None


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
