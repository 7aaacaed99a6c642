"""Main of the child process that has the embedded search index.

``python -m runtime.embedded.serve_index SOCKET`` is given the number of an open socket, and answers what
`runtime.embedded.asked_index` asks on it until it is closed, or SIGTERM: then what is open is flushed and closed.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from connectors.message import Scope
from grounding.documents.embedding import Vector
from grounding.documents.index import AskDeep, Fusion, IndexUnavailable, Kind, Passage, Source
from grounding.documents.judging import Judging
from grounding.documents.looking_back import looked_back
from grounding.documents.looking_up import looked_up
from grounding.documents.qdrant_edge import EmbeddedIndex
from runtime.embedded.index_lane import (
    UNASKED,
    IndexLane,
    entry_of,
    flat_chosen,
    flat_hit,
    flat_passage,
    in_pieces,
    look_of,
    look_up_of,
    packed,
    unpacked,
    words_of,
)

SWITCH_SECONDS = 0.001
"""How long the engine's thread may go on in Python while a question waits, as in ``serve``."""
FEW_PASSAGES = 16
"""Whose words are looked at at once though they are new: 1 ms, while nobody here waits for less than a search."""
ASKS_BACK = frozenset(("search", "look_up"))
"""What may need the question's deeper vector, which follows."""
Rows = list[Any]


class Served:
    """The indexes that the other side has made, and what is asked of them."""

    def __init__(self, group: asyncio.TaskGroup, gone: Callable[[], None]) -> None:
        self.lane = IndexLane(self._told, gone)
        self._group = group
        self._indexes: dict[int, EmbeddedIndex] = {}
        self._asked: dict[int, asyncio.Task[None]] = {}
        self._deep: dict[int, asyncio.Future[Vector | None]] = {}
        self._judging = Judging(FEW_PASSAGES)

    def _told(self, number: int, parts: list[Any]) -> None:
        what, *about = parts[0]
        if number == UNASKED:
            self._note(what, *about)
            return
        if what in ASKS_BACK:
            self._deep[number] = asyncio.get_running_loop().create_future()
        rows = [row for part in parts[1:-1] for row in part]
        self._asked[number] = task = self._group.create_task(self._answer(number, what, about, rows))
        task.add_done_callback(lambda _: self._forget(number))

    def _note(self, what: str, *about: Any) -> None:
        """What is no question."""
        if what == "make":
            key, folder, model, dimensions, fusion, how = about
            self._indexes[key] = EmbeddedIndex(Path(folder), model, dimensions, fusion=Fusion(**fusion), **how)
            return
        number = about[0]
        if what == "deep":
            if (awaited := self._deep.get(number)) is not None and not awaited.done():
                awaited.set_result(unpacked(about[1]))
            return
        self.lane.forget(number)
        if (asked := self._asked.get(number)) is not None:
            asked.cancel()

    def _forget(self, number: int) -> None:
        self._asked.pop(number, None)
        self._deep.pop(number, None)

    async def _answer(self, number: int, what: str, about: Rows, rows: Rows) -> None:
        try:
            key, *about = about
            found: Rows = []
            if what == "beat":
                pass
            elif what == "close":
                await self._indexes.pop(key).close()
            elif what == "drop":
                await self._indexes.pop(key).drop()
            elif what == "search":
                found = await _search(self._indexes[key], about, self._deep[number])
            elif what == "look_up":
                found = await _look_up(self._indexes[key], about, self._deep[number], self._judging)
            else:
                found = await ANSWERS[what](self._indexes[key], *about, *([rows] if what in GIVEN_ROWS else ()))
            *pieces, last = in_pieces(found) or [[]]
            for piece in pieces:
                self.lane.send(number, piece, is_last=False)
                await asyncio.sleep(0)
            self.lane.send(number, last)
        except asyncio.CancelledError:
            self.lane.send(number, [])  # the end of what was sent of it
            raise
        except (IndexUnavailable, ValueError) as error:
            self.lane.send(number, (type(error).__name__, str(error), getattr(error, "retryable", False)))
        except Exception as error:  # noqa: BLE001 - it is told to whoever asked, and printed for whoever looks why
            traceback.print_exc()
            self.lane.send(number, (IndexUnavailable.__name__, f"the search index failed ({error!r})", True))

    async def close(self) -> None:
        """Flush and close all that is open. Never raises."""
        for task in self._asked.values():
            task.cancel()
        for index in self._indexes.values():
            await index.close()

    def log(self, logger: Any, method: str, event: MutableMapping[str, Any]) -> str:
        """Has the other side say what is logged here."""
        self.lane.send(UNASKED, ("log", method, {name: _plain(value) for name, value in event.items()}))
        raise structlog.DropEvent


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | None) else str(value)


async def _search(index: EmbeddedIndex, about: Rows, deep: asyncio.Future[Vector | None]) -> Rows:
    scope, kind, dense, words, top_k, how, looks_again = about
    hits = await index.search(
        Scope(*scope), Kind(kind), unpacked(dense), words_of(words), top_k, **how, deep=_ask(deep, looks_again)
    )
    return [flat_hit(hit) for hit in hits]


async def _look_up(index: EmbeddedIndex, about: Rows, deep: asyncio.Future[Vector | None], judging: Judging) -> Rows:
    scope, kind, look, looks_again = about
    asked = index, Scope(*scope), Kind(kind), look_up_of(look), judging
    return flat_chosen(await looked_up(*asked, deep=_ask(deep, looks_again)))


def _ask(deep: asyncio.Future[Vector | None], looks_again: bool) -> AskDeep | None:
    async def ask() -> Vector | None:
        return await deep

    return ask if looks_again else None


async def _done(work: Awaitable[None]) -> Rows:
    await work
    return []


async def _one(work: Awaitable[int | bool]) -> Rows:
    return [await work]


async def _passages(work: Awaitable[list[Passage]]) -> Rows:
    return [flat_passage(passage) for passage in await work]


async def _upsert(index: EmbeddedIndex, scope: Any, rows: Rows) -> Rows:
    return await _done(index.upsert(Scope(*scope), [entry_of(row) for row in rows]))


async def _replace(index: EmbeddedIndex, sources: Any, rows: Rows) -> Rows:
    entries: list[list[Any]] = [[] for _ in sources]
    for source, row in rows:
        entries[source].append(entry_of(row))
    named = zip(sources, entries, strict=True)
    return await _done(
        index.replace([Source(Scope(*scope), Kind(kind), name, own) for (scope, kind, name), own in named])
    )


async def _delete(index: EmbeddedIndex, scope: Any, kind: str, source: str | None, ids: Any) -> Rows:
    return await _done(index.delete(Scope(*scope), Kind(kind), source=source, ids=ids))


async def _read(index: EmbeddedIndex, scope: Any, kind: str, wanted: Mapping[str, Any]) -> Rows:
    found = await index.read(Scope(*scope), Kind(kind), wanted)
    return [flat_passage(passage) for passages in found.values() for passage in passages]


async def _beside(index: EmbeddedIndex, scope: Any, kind: str, sources: Any, followed: Any) -> Rows:
    return await _passages(index.beside(Scope(*scope), Kind(kind), sources, followed))


async def _look_back(index: EmbeddedIndex, scope: Any, look: Any) -> Rows:
    return [tuple(part) for part in await looked_back(index, Scope(*scope), look_of(look))]


async def _vectors(index: EmbeddedIndex, scope: Any, kind: str, ids: Any, deep: bool) -> Rows:
    found = await index.vectors(Scope(*scope), Kind(kind), ids, deep=deep)
    return [(one, packed(vector)) for one, vector in found.items()]


async def _deepen(index: EmbeddedIndex, scope: Any, kind: str, rows: Rows) -> Rows:
    return await _one(index.deepen(Scope(*scope), Kind(kind), {one: unpacked(raw) or [] for one, raw in rows}))


async def _shallow(index: EmbeddedIndex, scope: Any, kind: str, limit: int, source: str | None) -> Rows:
    return await _passages(index.shallow(Scope(*scope), Kind(kind), limit, source=source))


async def _ids(index: EmbeddedIndex, scope: Any, kind: str, source: str | None) -> Rows:
    return await index.ids(Scope(*scope), Kind(kind), source)


async def _sources(index: EmbeddedIndex, scope: Any, kind: str) -> Rows:
    return [*(await index.sources(Scope(*scope), Kind(kind))).items()]


async def _number(name: str, index: EmbeddedIndex, scope: Any, kind: str) -> Rows:
    return await _one(getattr(index, name)(Scope(*scope), Kind(kind)))


ANSWERS: Mapping[str, Callable[..., Awaitable[Rows]]] = {
    "ensure": lambda index: _done(index.ensure()),
    "check": lambda index: _done(index.check()),
    "exists": lambda index: _one(index.exists()),
    "drop_workspace": lambda index, scope: _done(index.drop_workspace(Scope(*scope))),
    "upsert": _upsert,
    "replace": _replace,
    "delete": _delete,
    "read": _read,
    "beside": _beside,
    "look_back": _look_back,
    "vectors": _vectors,
    "deepen": _deepen,
    "shallow": _shallow,
    "ids": _ids,
    "sources": _sources,
    **{name: partial(_number, name) for name in ("count", "estimate", "count_shallow")},
}
"""What can be asked of an index, beside `ASKS_BACK`, ``close`` and ``drop``."""
GIVEN_ROWS = frozenset(("upsert", "replace", "deepen"))


async def serve(own: socket.socket) -> None:
    """Answer on *own* until the other side hangs up, or SIGTERM."""
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, over.set)
    async with asyncio.TaskGroup() as group:
        served = Served(group, over.set)
        structlog.configure(processors=[served.log])
        await loop.create_connection(lambda: served.lane, sock=own)
        served.lane.send(UNASKED, ("ready",))
        await over.wait()
        await served.close()
        served.lane.close()


def main() -> None:
    sys.setswitchinterval(SWITCH_SECONDS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is for the parent, who stops us
    gc.freeze()
    asyncio.run(serve(socket.socket(fileno=int(sys.argv[1]))))
    sys.stderr.flush()
    os._exit(0)  # the engine's threads would be waited for


if __name__ == "__main__":
    main()
