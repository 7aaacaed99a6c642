"""What the process and the child that has the search index say to each other: numbered messages, in parts.

A part goes as its message's number and its length, each of four little-endian bytes, a byte that says whether it is the
last one, and a pickle. Both sides are the same program: whoever could write here could do anything else, too. Vectors
go as bytes, four a number: a list of 384 numbers costs thirty times as much to send, and to look through for garbage.
"""

from __future__ import annotations

import asyncio
import pickle
import struct
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, cast

from connectors.message import Scope
from grounding.documents.embedding import Vector
from grounding.documents.index import Arm, Entry, Hit, Kind, Passage
from grounding.documents.looking_back import Look
from grounding.documents.looking_up import Chosen, LookUp
from grounding.documents.packing import Run
from grounding.documents.relevance import Floor, TurnFloor
from grounding.documents.sparse import SparseVector

HEAD = struct.Struct("<IIB")
UNASKED = 0
"""The number of what a child says by itself."""
ROWS = 64
"""So many passages go in one part: to read them takes the event loop some 0.3 ms."""

Flat = tuple[Any, ...]


class IndexLane(asyncio.Protocol):
    """One end. *told* is given each message's number and parts, *lost* is called once when the other end is gone."""

    def __init__(self, told: Callable[[int, list[Any]], None], lost: Callable[[], None]) -> None:
        self._told = told
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._read = bytearray()
        self._parts: dict[int, list[Any]] = {}
        self._flows = asyncio.Event()
        self._flows.set()

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, number: int, part: Any, *, is_last: bool = True) -> None:
        """Send a part of a message; nothing where nobody is there any more."""
        if self._transport is not None and not self._transport.is_closing():
            raw = pickle.dumps(part, protocol=5)
            self._transport.write(HEAD.pack(number, len(raw), is_last) + raw)

    async def send_all(self, number: int, first: Any, others: Iterable[Any]) -> None:
        """Send a message of several parts, each of *others* made when those before it are on the way: what is as large
        is neither made nor kept at once, and others have their turn between them."""
        self.send(number, first, is_last=False)
        for part in others:
            self.send(number, part, is_last=False)
            await asyncio.sleep(0)
            await self._flows.wait()
        self.send(number, None)

    def forget(self, number: int) -> None:
        """What came of message *number* so far is not wanted."""
        self._parts.pop(number, None)

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def pause_writing(self) -> None:
        self._flows.clear()

    def resume_writing(self) -> None:
        self._flows.set()

    def data_received(self, data: bytes) -> None:
        self._read += data
        at = 0
        with memoryview(self._read) as read:
            while len(read) - at >= HEAD.size:
                number, size, is_last = HEAD.unpack_from(read, at)
                end = at + HEAD.size + size
                if len(read) < end:
                    break
                self._got(number, pickle.loads(read[at + HEAD.size : end]), bool(is_last))  # noqa: S301 - see above
                at = end
        del self._read[:at]

    def _got(self, number: int, part: Any, is_last: bool) -> None:
        if not is_last:
            self._parts.setdefault(number, []).append(part)
            return
        before = self._parts.pop(number, None)
        self._told(number, [part] if before is None else [*before, part])

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._flows.set()
        self._parts.clear()
        self._lost()


def packed(vector: Vector | None) -> bytes | None:
    """A vector as it is sent."""
    return None if vector is None else array("f", vector).tobytes()


def unpacked(raw: bytes | None) -> Vector | None:
    """The inverse of `packed`, but for what four bytes do not hold of a number."""
    return None if raw is None else array("f", raw).tolist()


def flat_scope(scope: Scope) -> Flat:
    return scope.workspace_id, scope.context_id, scope.audience


def flat_words(words: SparseVector | None) -> Flat | None:
    return None if words is None else (array("I", words.indices).tobytes(), array("d", words.values).tobytes())


def words_of(flat: Flat | None) -> SparseVector | None:
    if flat is None:
        return None
    return SparseVector(tuple(array("I", flat[0])), tuple(array("d", flat[1])))


def flat_passage(passage: Passage) -> Flat:
    return (
        passage.id,
        passage.kind.value,
        passage.source,
        passage.text,
        passage.title,
        passage.heading,
        passage.lead,
        passage.ordinal,
        passage.start,
        passage.end,
        passage.first_line,
        passage.last_line,
        passage.said_at,
        passage.previous,
    )


def passage_of(flat: Flat) -> Passage:
    return Passage(flat[0], _KINDS[flat[1]], *flat[2:])


_KINDS = {kind.value: kind for kind in Kind}


def flat_entry(entry: Entry) -> Flat:
    return flat_passage(entry.passage), packed(entry.dense), flat_words(entry.sparse), packed(entry.deep)


def entry_of(flat: Flat) -> Entry:
    passage, dense, words, deep = flat
    return Entry(passage_of(passage), unpacked(dense) or [], words_of(words) or SparseVector((), ()), unpacked(deep))


def flat_hit(hit: Hit) -> Flat:
    return flat_passage(hit.passage), hit.score, *(None if arm is None else tuple(arm) for arm in hit[2:])


def hit_of(flat: Flat) -> Hit:
    return Hit(passage_of(flat[0]), flat[1], *(None if arm is None else Arm(*arm) for arm in flat[2:]))


_floor_of = attrgetter(*(field.name for field in fields(TurnFloor)))
"""Its fields in their order: `dataclasses.astuple` copies each of them, which takes twenty times as long."""


def flat_look(look: Look) -> Flat:
    floor, excluded = _floor_of(look.floor), [*look.excluded]
    words = flat_words(look.sparse)
    return look.query, packed(look.dense), words, excluded, floor, look.top_k, look.asked_for, look.bears


def look_of(flat: Flat) -> Look:
    query, dense, words, excluded, floor, *rest = flat
    sparse = words_of(words) or SparseVector((), ())
    return Look(query, unpacked(dense), sparse, frozenset(excluded), TurnFloor(*floor), *rest)


_floor_of_documents = attrgetter(*(field.name for field in fields(Floor)))


def flat_look_up(look: LookUp) -> Flat:
    floor = _floor_of_documents(look.floor)
    return look.query, packed(look.dense), flat_words(look.sparse), floor, look.top_k, look.spelled_out


def look_up_of(flat: Flat) -> LookUp:
    query, dense, words, floor, *rest = flat
    return LookUp(query, unpacked(dense), words_of(words) or SparseVector((), ()), Floor(*floor), *rest)


def flat_chosen(chosen: Chosen) -> list[Any]:
    """Rows: the runs, each as the hits that it begins with and is to reach, then the passages around them."""
    if not chosen.runs:
        return []
    runs = [
        (flat_passage(run.parts[0]), run.score, [(flat_passage(hit.passage), hit.score) for hit in run.near])
        for run in chosen.runs
    ]
    return [runs, *map(flat_passage, chosen.around)]


def chosen_of(rows: Sequence[Any]) -> Chosen:
    """The inverse of `flat_chosen`, but for what the arms said of the hits."""
    if not rows:
        return Chosen([], [])
    runs = []
    for first, score, near in rows[0]:
        run = Run.of(Hit(passage_of(first), score))
        run.near = [Hit(passage_of(one), its) for one, its in near]
        runs.append(run)
    return Chosen(runs, [passage_of(row) for row in rows[1:]])


def in_pieces(rows: Sequence[Any], size: int = ROWS) -> list[Sequence[Any]]:
    """*rows*, at most *size* of them at a time."""
    return [rows[start : start + size] for start in range(0, len(rows), size)]
