"""Put turns that are in the Markdown log but not in Redis back at their place. Pure, except for `read_log`."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from pathlib import Path

from connectors.message import ConversationKey
from grounding.transcript import markdown
from grounding.transcript.entry import Entry

EntryId = tuple[int, int]
"""The id of an entry in Redis: milliseconds since the epoch, and a number within the millisecond."""


class UnreadableLog(Exception):
    """The file is no chat log of this conversation; the text says why."""


@dataclass(frozen=True, slots=True)
class Merged:
    """A conversation's restored log, and how many turns and entries were missing."""

    entries: list[tuple[EntryId, Entry]]
    turns: int
    restored: int


def merge(stored: Sequence[tuple[EntryId, Entry]], logged: Sequence[Entry], now_ms: int) -> Merged:
    """Return *stored*, the log in Redis, together with the turns of *logged*, the file, that it lacks.

    Stored entries keep their ids and their order. A restored entry stands between its neighbours in the file, with its
    own time if that fits between theirs. A turn that is partly stored is left as it is.
    """
    left = Counter(entry.turn_id for _, entry in stored)
    known = frozenset(left)
    merged: list[tuple[EntryId, Entry]] = []
    waiting = deque(stored)
    turns = restored = 0
    for turn_id, group in groupby(logged, key=lambda entry: entry.turn_id):
        if turn_id in known:
            while left[turn_id]:
                merged.append(waiting.popleft())
                left[merged[-1][1].turn_id] -= 1
            continue
        placed = _placed([entry for entry in group if entry.text.strip()], merged, waiting, now_ms)
        merged += placed
        restored += len(placed)
        turns += bool(placed)
    return Merged([*merged, *waiting], turns, restored)


def _placed(
    entries: Sequence[Entry],
    before: Sequence[tuple[EntryId, Entry]],
    after: Sequence[tuple[EntryId, Entry]],
    now_ms: int,
) -> list[tuple[EntryId, Entry]]:
    """Return *entries* with ids between those of *before* and *after*; none if there are too few ids for all."""
    last = before[-1][0] if before else (0, 0)
    limit = after[0][0] if after else (now_ms + 1, 0)
    placed: list[tuple[EntryId, Entry]] = []
    for entry in entries:
        at = (_milliseconds(entry.at, now_ms), 0)
        last = at if last < at < limit else (last[0], last[1] + 1)
        placed.append((last, entry))
    return placed if last < limit else []


def _milliseconds(at: str, now_ms: int) -> int:
    """Return when a message was written, but never a future time, because nothing could be appended after it."""
    try:
        return max(0, min(round(datetime.fromisoformat(at).timestamp() * 1000), now_ms))
    except (ValueError, OverflowError):
        return 0


def read_log(data_dir: Path, file: Path, workspace_id: str) -> tuple[ConversationKey, list[Entry]]:
    """Return the conversation of the log *file* and its entries. Blocking.

    An entry that an interrupted write left incomplete at the end is dropped. Raises `UnreadableLog` and `OSError`.
    Symbolic links are not followed, and a file that was moved or copied is refused: its path must be that of its
    conversation.
    """
    with os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW), "rb") as opened:
        raw = opened.read()
    try:
        text = raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise UnreadableLog(f"it is not UTF-8 at byte {error.start}") from error
    key = markdown.key_of(text, workspace_id)
    if key is None:
        raise UnreadableLog("it does not begin as a chat log does")
    if data_dir / markdown.path(key) != file:
        raise UnreadableLog(f"it is the log of {key.context_id}, and has the name of another")
    try:
        entries = markdown.read(text)
    except ValueError as error:
        raise UnreadableLog(str(error)) from error
    return key, entries if text.endswith("\n") else entries[:-1]
