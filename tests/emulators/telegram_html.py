"""Telegram's HTML, read as strictly as Telegram reads it.

Written after the Bot API's "HTML style" and checked against the answers of TDLib's ``parseTextEntities``
(tdjson 1.8.69): which tags there are, its error texts, which entities it knows, which links it drops.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

TAGS = {
    "b": "bold",
    "strong": "bold",
    "i": "italic",
    "em": "italic",
    "u": "underline",
    "ins": "underline",
    "s": "strikethrough",
    "strike": "strikethrough",
    "del": "strikethrough",
    "code": "code",
    "pre": "pre",
    "a": "text_link",
    "blockquote": "blockquote",
    "tg-spoiler": "spoiler",
}
_ENTITY = re.compile(r"&(?:#(?P<decimal>\d{1,7})|#x(?P<hex>[0-9A-Fa-f]{1,6})|(?P<name>lt|gt|amp|quot));?")
_NAMED = {"lt": "<", "gt": ">", "amp": "&", "quot": '"'}
_TAG = re.compile(r"<(?P<end>/?)(?P<name>[^\s<>/]*)(?P<attributes>[^<>]*)>")
_ATTRIBUTE = re.compile(r"""(?P<name>[a-z-]+)\s*=\s*(?:"(?P<double>[^"]*)"|'(?P<single>[^']*)')""")
_EXPANDABLE = "expandable"
_WEB = re.compile(r"https?://[\w-]+(\.[\w-]+)+(:\d+)?([/?#]|$)", re.IGNORECASE)


class CannotParse(Exception):
    """Telegram's words for what is wrong with the text."""


@dataclass(frozen=True)
class Entity:
    """``offset`` and ``length`` in UTF-16 code units; ``detail``: a link's address or a code block's language."""

    kind: str
    offset: int
    length: int
    detail: str = ""

    def of(self, text: str) -> str:
        """The part of *text* that it covers."""
        units = text.encode("utf-16-le")
        return units[2 * self.offset : 2 * (self.offset + self.length)].decode("utf-16-le")


@dataclass
class _Open:
    name: str
    at: int
    detail: str


def parse_html(html: str) -> tuple[str, tuple[Entity, ...]]:
    """The text that people see and its entities, outermost first. Raises `CannotParse`."""
    text: list[str] = []
    entities: list[Entity] = []
    stack: list[_Open] = []
    size = position = 0
    while position < len(html):
        if html[position] == "<":
            tag = _TAG.match(html, position)
            offset = len(html[:position].encode())
            if tag is None or (not tag["end"] and tag["name"].lower() not in TAGS):
                raise CannotParse(f'Unsupported start tag "{tag["name"] if tag else ""}" at byte offset {offset}')
            if tag["end"]:
                _close(tag["name"].lower(), stack, entities, size, offset)
            else:
                name = tag["name"].lower()
                stack.append(_Open(name, size, _detail(name, tag["attributes"], offset)))
            position = tag.end()
            continue
        entity = _ENTITY.match(html, position) if html[position] == "&" else None
        shown = _decoded(entity) if entity else html[position]
        position = entity.end() if entity else position + 1
        text.append(shown)
        size += len(shown.encode("utf-16-le")) // 2
    if stack:
        raise CannotParse(f'Can\'t find end tag corresponding to start tag "{stack[-1].name}"')
    return "".join(text), tuple(sorted(entities, key=lambda e: (e.offset, -e.length)))


def _close(name: str, stack: list[_Open], entities: list[Entity], size: int, offset: int) -> None:
    if not stack:
        raise CannotParse(f"Unexpected end tag at byte offset {offset}")
    opened = stack.pop()
    if name and name != opened.name:
        raise CannotParse(f'Unmatched end tag at byte offset {offset}, expected "</{opened.name}>", found "</{name}>"')
    if size == opened.at or (opened.name == "a" and not opened.detail):
        return
    kind = "expandable_blockquote" if opened.detail == _EXPANDABLE else TAGS[opened.name]
    found = Entity(kind, opened.at, size - opened.at, "" if opened.detail == _EXPANDABLE else opened.detail)
    if opened.name == "code" and stack and stack[-1].name == "pre" and stack[-1].at == opened.at:
        stack[-1].detail = opened.detail
        return
    entities.append(found)


def _detail(name: str, attributes: str, offset: int) -> str:
    if name == "blockquote" and attributes.strip() == "expandable":
        return _EXPANDABLE
    values = {m["name"]: m["double"] or m["single"] or "" for m in _ATTRIBUTE.finditer(attributes)}
    if _ATTRIBUTE.sub("", attributes).strip():
        raise CannotParse(f"Expected equal sign in declaration of an attribute of the tag at byte offset {offset}")
    if name == "a":
        url = _ENTITY.sub(_decoded, values.get("href", ""))
        return url if _WEB.match(url) or url.startswith("tg://") else ""
    return values.get("class", "").removeprefix("language-") if name == "code" else ""


def _decoded(entity: re.Match[str]) -> str:
    if entity["name"]:
        return _NAMED[entity["name"]] if entity[0].endswith(";") else entity[0]
    code = int(entity["decimal"] or entity["hex"], 10 if entity["decimal"] else 16)
    return chr(code) if 0 < code < 0x110000 and not 0xD800 <= code < 0xE000 else entity[0]
