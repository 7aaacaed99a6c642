"""What people set in bold, as code, as a link…, as Markdown. Pure. (The other way is `connectors.text.html`.)

The offsets of Telegram's entities count UTF-16 code units (Bot API, "MessageEntity").
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from aiogram.types import MessageEntity

_AROUND = {"bold": "**", "italic": "_", "strikethrough": "~~"}
_QUOTES = frozenset({"blockquote", "expandable_blockquote"})
_CALLS = frozenset({"mention", "text_mention", "bot_command"})
_CLOSES, _OPENS = 0, 1

Insertion = tuple[int, int, int, int, str]
"""Where (in units), whether it closes or opens, its rank among those (the inner closes first, the outer opens
first; of two of one size the first is the outer), and what."""


def to_markdown(text: str, entities: Sequence[MessageEntity]) -> tuple[str, list[MessageEntity]]:
    """*text* with Markdown's marks for what its *entities* set, and the other entities where they stand then.

    Every character of *text* stays, in its order. A name or a command that is called is not marked.
    """
    called = [(one.offset, one.offset + one.length) for one in entities if one.type in _CALLS]
    command = next((one.length for one in entities if one.type == "bot_command" and one.offset == 0), 0)
    units = text.encode("utf-16-le", "surrogatepass")
    insertions: list[Insertion] = []
    others = []
    for number, entity in enumerate(entities):
        made = list(_insertions(units, entity, number))
        if not made:
            others.append(entity)
        elif (entity.offset, entity.offset + entity.length) not in called and entity.offset >= command:
            insertions += made
    if not insertions:
        return text, others
    insertions.sort()
    return _with(units, insertions), [_moved(entity, insertions) for entity in others]


def _insertions(units: bytes, entity: MessageEntity, number: int) -> Iterator[Insertion]:
    start, end = _without_space(units, entity.offset, entity.offset + entity.length)
    if start >= end:
        return
    shown = _decode(units[2 * start : 2 * end])
    if entity.type in _AROUND:
        yield from _pair(start, end, number, _AROUND[entity.type], _AROUND[entity.type])
    elif entity.type == "code":
        mark = "`" if "`" not in shown else "``"
        yield from _pair(start, end, number, mark, mark)
    elif entity.type == "pre":
        fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", shown)), 0)
        before = "" if start == 0 or _decode(units[2 * start - 2 : 2 * start]) == "\n" else "\n"
        after = "" if _decode(units[2 * end : 2 * end + 2]) in ("", "\n") else "\n"
        yield from _pair(start, end, number, f"{before}{fence}{entity.language or ''}\n", f"\n{fence}{after}")
    elif entity.type == "text_link" and entity.url and entity.url.rstrip("/") != shown.rstrip("/"):
        address = f"<{entity.url}>" if re.search(r"[\s()]", entity.url) else entity.url
        yield from _pair(start, end, number, "[", f"]({address})")
    elif entity.type in _QUOTES:
        lines = [at for at in range(start + 1, end) if units[2 * at - 2 : 2 * at] == b"\n\0"]
        yield from ((at, _OPENS, start - end, number, "> ") for at in (start, *lines))


def _pair(start: int, end: int, number: int, before: str, after: str) -> Iterator[Insertion]:
    yield start, _OPENS, start - end, number, before
    yield end, _CLOSES, end - start, -number, after


def _without_space(units: bytes, start: int, end: int) -> tuple[int, int]:
    """The range without white space at its ends: Markdown's marks do not hold beside it."""
    shown = _decode(units[2 * start : 2 * end])
    lead = len(shown) - len(shown.lstrip())
    return start + lead, start + max(lead, _size(shown.rstrip()))


def _with(units: bytes, insertions: Iterable[Insertion]) -> str:
    pieces, done = [], 0
    for at, *_, what in insertions:
        pieces += [_decode(units[2 * done : 2 * at]), what]
        done = at
    return "".join([*pieces, _decode(units[2 * done :])])


def _moved(entity: MessageEntity, insertions: Iterable[Insertion]) -> MessageEntity:
    before = sum(_size(what) for at, *_, what in insertions if at <= entity.offset)
    within = sum(_size(what) for at, *_, what in insertions if entity.offset < at < entity.offset + entity.length)
    return entity.model_copy(update={"offset": entity.offset + before, "length": entity.length + within})


def _size(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _decode(units: bytes) -> str:
    return units.decode("utf-16-le", "surrogatepass")
