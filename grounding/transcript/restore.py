"""Puts turns that the Markdown log holds and Redis does not back where they were said. Pure, but for `read_log`."""

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
"""Of an entry in Redis: milliseconds since the epoch, and a number within them."""


class UnreadableLog(Exception):
    """A file that is no chat log of this place; the text says why."""


@dataclass(frozen=True, slots=True)
class Merged:
    """A conversation's log as it should be, and what of it was not there."""

    entries: list[tuple[EntryId, Entry]]
    turns: int
    restored: int


def merge(stored: Sequence[tuple[EntryId, Entry]], logged: Sequence[Entry], now_ms: int) -> Merged:
    """*stored*, what Redis has, with the turns of *logged*, the file, that are missing in it.

    What is stored keeps its id and its order; what comes back stands between its neighbours in the file, with the time
    at which it was said where that fits. A turn of which something is stored is left as it is.
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
    """*entries* with ids between those of *before* and *after*; none where there is no room for all of them."""
    last = before[-1][0] if before else (0, 0)
    limit = after[0][0] if after else (now_ms + 1, 0)
    placed: list[tuple[EntryId, Entry]] = []
    for entry in entries:
        at = (_milliseconds(entry.at, now_ms), 0)
        last = at if last < at < limit else (last[0], last[1] + 1)
        placed.append((last, entry))
    return placed if last < limit else []


def _milliseconds(at: str, now_ms: int) -> int:
    """When something was said; never in the future, behind which nothing could be appended any more."""
    try:
        return max(0, min(round(datetime.fromisoformat(at).timestamp() * 1000), now_ms))
    except (ValueError, OverflowError):
        return 0


def read_log(data_dir: Path, file: Path, workspace_id: str) -> tuple[ConversationKey, list[Entry]]:
    """Whose log *file* is, and its entries; what an interrupted write left of the last one is left out. Blocking.

    Raises `UnreadableLog` and `OSError`. A link is not followed, and a file that was moved or copied is refused:
    its name has to be that of the conversation that it speaks of.
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
