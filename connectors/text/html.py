"""Render parsed Markdown as Telegram's HTML (Bot API, "HTML style"), and extract the text that a reader sees. Pure.

Checked against Telegram's own parser (TDLib's ``parseTextEntities``): a link whose host has no dot loses its URL,
``mailto:`` becomes a web address, ``pre`` may be inside ``blockquote``, and only the named entities ``lt``, ``gt``,
``amp`` and ``quot`` exist.
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
"""Text that Telegram turns into a mention, which notifies the person; no setting prevents it. Telegram finds no
mentions in code and links."""
_TAGS = {Style.BOLD: "b", Style.ITALIC: "i", Style.STRIKE: "s", Style.CODE: "code"}

_TAG = re.compile(r"<[^>]*>")
_LINK_ELEMENT = re.compile(r'<a href="(?P<url>[^"]*)">(?P<text>.*?)</a>', re.DOTALL)
_ENTITY = re.compile(r"&(lt|gt|amp|quot);")
_CHARACTERS = {"lt": "<", "gt": ">", "amp": "&", "quot": '"'}


def render(form: Form) -> str:
    """Render *form* in Telegram's tags: b, i, s, code, pre, a, blockquote."""
    return lay_out(form, _Html())


def seen(html: str) -> str:
    """Return the text that Telegram shows for HTML from `render`, without formatting."""
    return _ENTITY.sub(lambda entity: _CHARACTERS[entity[1]], _TAG.sub("", html))


def seen_with_addresses(html: str) -> str:
    """Return the same text as `seen`, with the URL of each link in brackets after its text."""
    return seen(_LINK_ELEMENT.sub(r"\g<text> (\g<url>)", html))


def size(html: str) -> int:
    """Return the size in UTF-16 code units "after entities parsing", the unit of Telegram's limit."""
    return utf16_units(seen(html))


class _Html:
    bullet = "•"

    def paragraph(self, spans: Spans) -> str:
        return nested(spans, _leaf, _wrap)

    def heading(self, level: int, spans: Spans) -> str:
        return self.paragraph(tuple(replace(span, marks=span.marks | {Style.BOLD}) for span in spans))

    def code(self, text: str, language: str) -> Piece:
        body = _escape(text)
        if language:
            body = f'<code class="language-{_escape(language)}">{body}</code>'
        return Piece(f"<pre>{body}</pre>", verbatim=True)

    def rule(self) -> str:
        return "———"

    def quote(self, pieces: Sequence[Piece], depth: int) -> list[Piece]:
        if depth == 0:
            return [Piece(f"<blockquote>{joined(pieces)}</blockquote>", verbatim=True)]
        # Telegram's quotes do not nest.
        return [piece if piece.verbatim else replace(piece, text=prefixed(piece.text, "&gt; ")) for piece in pieces]


def _wrap(mark: Mark, inner: str, before: str, after: str) -> str:
    tag = _TAGS[mark] if isinstance(mark, Style) else ""
    return f"<{tag}>{inner}</{tag}>"


def _leaf(span: Span) -> str:
    url = address(span)
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
    return goes_to(url, _SCHEMES) and _DOTTED_HOST.match(url) is not None


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
