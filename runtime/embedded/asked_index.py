"""The passage index as this process has it while the engine is in another: asked, and filled, through a socket.

What it does is what `grounding.documents.qdrant_edge.EmbeddedIndex` does there. A scope that may not hold what it
is asked for is refused here, before anything is sent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import structlog

from connectors.message import Scope
from grounding.documents import stored
from grounding.documents.centre import Centres
from grounding.documents.embedding import Vector
from grounding.documents.index import (
    AskDeep,
    Entry,
    Fusion,
    Hit,
    IndexUnavailable,
    Kind,
    Passage,
    Source,
)
from grounding.documents.judging import Judging
from grounding.documents.looking_back import Look, Part
from grounding.documents.looking_up import Chosen, LookUp
from grounding.documents.sparse import SparseVector
from runtime.embedded.index_lane import (
    Flat,
    chosen_of,
    flat_entry,
    flat_look,
    flat_look_up,
    flat_scope,
    flat_words,
    hit_of,
    in_pieces,
    packed,
    passage_of,
    unpacked,
)
from runtime.embedded.index_process import IndexProcess

T = TypeVar("T")
OPENING_SECONDS = 300.0
"""How long the first answer may take: see `grounding.documents.qdrant_edge.OPENING_SECONDS`."""
ENTRIES = 16
"""So many are made ready to be sent at once: 0.3 ms of the event loop."""
BATCH = 32
"""What the child stores at once, each within the time limit."""
log = structlog.get_logger()


class AskedIndex:
    """`PassageIndex` over one that *process* has in *folder*."""

    def __init__(
        self,
        process: IndexProcess,
        folder: Path,
        model: str,
        dimensions: int,
        *,
        timeout_seconds: float,
        fusion: Fusion | None = None,
        version: int = stored.PAYLOAD_VERSION,
        deep_dimensions: int | None = None,
    ) -> None:
        self.deepens, self.too_old = deep_dimensions is not None, ""
        self._process = process
        self._timeout_seconds = timeout_seconds
        self._opened_by: int | None = None
        self._closed = False
        self._centres = Centres()
        self._key = process.make(
            folder,
            model,
            dimensions,
            asdict(fusion or Fusion()),
            timeout_seconds=timeout_seconds,
            version=version,
            deep_dimensions=deep_dimensions,
        )

    async def ensure(self) -> None:
        await self._ask("ensure")

    async def upsert(self, scope: Scope, entries: Sequence[Entry]) -> None:
        for kind in {entry.passage.kind for entry in entries}:
            stored.where(scope, kind)  # A scope that may not hold these is refused before anything is stored.
        if not entries:
            return
        rows = _made(entries, flat_entry)
        with self._changing(Counter(stored.tenant(scope, entry.passage.kind) for entry in entries)):
            await self._write("upsert", flat_scope(scope), rows=rows, count=len(entries))

    async def replace(self, sources: Sequence[Source]) -> None:
        if not sources:
            return
        stored.where_any(sources)  # a scope that may not hold these is refused here
        named = [(flat_scope(one.scope), one.kind.value, one.name) for one in sources]
        entries = [(number, entry) for number, one in enumerate(sources) for entry in one.entries]
        rows = _made(entries, lambda row: (row[0], flat_entry(row[1])))
        counts: Counter[str] = Counter()
        for one in sources:
            counts[stored.tenant(one.scope, one.kind)] += max(len(one.entries), 1)
        with self._changing(counts):
            await self._write("replace", named, rows=rows, count=len(entries))

    async def delete(
        self, scope: Scope, kind: Kind, *, source: str | None = None, ids: Sequence[str] | None = None
    ) -> None:
        tenant = stored.tenant(scope, kind)
        if ids is not None and not ids:
            return
        with self._changing({tenant: max(1, len(ids or ()))}):
            await self._write("delete", flat_scope(scope), kind.value, source, None if ids is None else [*ids])
        if ids is None and source is None:
            self._centres.forget(tenant)

    async def search(
        self,
        scope: Scope,
        kind: Kind,
        dense: Vector | None,
        sparse: SparseVector | None,
        top_k: int,
        *,
        explain: bool = False,
        scores: bool = False,
        compared: int = 0,
        only_sources: Sequence[str] = (),
        deep: AskDeep | None = None,
    ) -> list[Hit]:
        stored.seen(scope, kind)  # a scope that may not hold these is refused here
        if (dense is None and sparse is None) or top_k < 1:
            return []
        again = deep if self.deepens and dense is not None and sparse is not None else None
        how = {"explain": explain, "scores": scores, "compared": compared, "only_sources": [*only_sources]}
        about = (flat_scope(scope), kind.value, packed(dense), flat_words(sparse), top_k, how, again is not None)
        hits = await self._ask("search", *about, meanwhile=_meanwhile(again))
        return [hit_of(row) for row in hits]

    async def read(self, scope: Scope, kind: Kind, wanted: Mapping[str, Collection[int]]) -> dict[str, list[Passage]]:
        stored.where(scope, kind)
        if not any(wanted.values()):
            return {source: [] for source in wanted}
        found: dict[str, list[Passage]] = {source: [] for source in wanted}
        named = {source: [*ordinals] for source, ordinals in wanted.items()}
        for row in await self._ask("read", flat_scope(scope), kind.value, named):
            passage = passage_of(row)
            found[passage.source].append(passage)
        return found

    async def beside(
        self, scope: Scope, kind: Kind, sources: Collection[str], followed: Collection[str]
    ) -> list[Passage]:
        if not stored.where_beside(scope, kind, sources, followed):
            return []
        rows = await self._ask("beside", flat_scope(scope), kind.value, [*sources], [*followed])
        return [passage_of(row) for row in rows]

    async def look_back(self, scope: Scope, look: Look) -> list[Part]:
        """See `grounding.documents.looking_back.looked_back`."""
        stored.where(scope, Kind.TURN)  # a scope that may not hold these is refused here
        return [Part(*one) for one in await self._ask("look_back", flat_scope(scope), flat_look(look))]

    async def look_up(
        self, scope: Scope, kind: Kind, look: LookUp, judging: Judging, deep: AskDeep | None = None
    ) -> Chosen:
        """See `grounding.documents.looking_up.looked_up`."""
        stored.seen(scope, kind)  # a scope that may not hold these is refused here
        again = deep if self.deepens and look.dense is not None else None
        about = flat_scope(scope), kind.value, flat_look_up(look), again is not None
        return chosen_of(await self._ask("look_up", *about, meanwhile=_meanwhile(again)))

    async def vectors(self, scope: Scope, kind: Kind, ids: Sequence[str], *, deep: bool = False) -> dict[str, Vector]:
        stored.where(scope, kind)
        if not ids or (deep and not self.deepens):
            return {}
        rows = await self._ask("vectors", flat_scope(scope), kind.value, [*ids], deep)
        return {one: unpacked(raw) or [] for one, raw in rows}

    async def deepen(self, scope: Scope, kind: Kind, vectors: Mapping[str, Vector]) -> int:
        stored.where(scope, kind)
        if not self.deepens or not vectors:
            return 0
        rows = _made([*vectors.items()], lambda row: (row[0], packed(row[1])))
        (count,) = await self._write("deepen", flat_scope(scope), kind.value, rows=rows, count=len(vectors))
        return int(count)

    async def shallow(self, scope: Scope, kind: Kind, limit: int, *, source: str | None = None) -> list[Passage]:
        stored.shallow(scope, kind, source)
        if not self.deepens or limit < 1:
            return []
        rows = await self._ask("shallow", flat_scope(scope), kind.value, limit, source)
        return [passage_of(row) for row in rows]

    async def count_shallow(self, scope: Scope, kind: Kind) -> int:
        stored.shallow(scope, kind)
        return await self._number("count_shallow", scope, kind) if self.deepens else 0

    async def ids(self, scope: Scope, kind: Kind, source: str | None = None) -> list[str]:
        stored.where(scope, kind, source=source)
        return await self._ask("ids", flat_scope(scope), kind.value, source)

    async def sources(self, scope: Scope, kind: Kind) -> dict[str, int]:
        stored.where(scope, kind)
        return dict(await self._ask("sources", flat_scope(scope), kind.value))

    async def count(self, scope: Scope, kind: Kind) -> int:
        stored.where(scope, kind)
        return await self._number("count", scope, kind)

    async def estimate(self, scope: Scope, kind: Kind) -> int:
        tenant = stored.tenant(scope, kind)
        if kind is Kind.RECORD:  # whoever asks wants to know whether they are still there
            return await self._number("estimate", scope, kind)
        return await self._centres.size_of(tenant, lambda: self._number("estimate", scope, kind))

    async def drop_workspace(self, scope: Scope) -> None:
        try:
            await self._write("drop_workspace", flat_scope(scope))
        finally:
            self._centres.clear()

    async def check(self) -> None:
        await self._ask("check")

    async def exists(self) -> bool:
        return bool((await self._ask("exists"))[0])

    async def drop(self) -> None:
        await self._leave("drop")

    async def close(self) -> None:
        if self._closed:
            return
        if not self._process.has(self._key):
            self._gone()
            return
        try:
            await self._leave("close")
        except IndexUnavailable as error:
            # Everything is in the engine's log already: the next start reads it again.
            log.warning("store.degraded", store="qdrant", why=str(error))

    async def _leave(self, what: str) -> None:
        try:
            await self._ask(what)
        finally:
            self._gone()

    def _gone(self) -> None:
        self._closed = True
        self._process.forget(self._key)

    async def _number(self, what: str, scope: Scope, kind: Kind) -> int:
        return int((await self._ask(what, flat_scope(scope), kind.value))[0])

    @contextmanager
    def _changing(self, counts: Mapping[str, int]) -> Iterator[None]:
        """So many passages of tenants change in this block, also where it fails halfway."""
        try:
            yield
        finally:
            for tenant, count in counts.items():
                self._centres.changed(tenant, count)

    async def _ask(self, what: str, *about: Any, meanwhile: Any = None) -> list[Any]:
        return await self._asked(what, about, None, 1, repeats=True, meanwhile=meanwhile)

    async def _write(self, what: str, *about: Any, rows: Iterable[list[Flat]] | None = None, count: int = 0) -> Any:
        return await self._asked(what, about, rows, 1 + math.ceil(count / BATCH), repeats=False)

    async def _asked(
        self, what: str, about: Flat, rows: Any, steps: int, *, repeats: bool, meanwhile: Any = None
    ) -> list[Any]:
        self._ensure_open()
        pid = self._process.pid
        is_open = pid is not None and pid == self._opened_by
        limit = self._timeout_seconds * steps if is_open else max(OPENING_SECONDS, self._timeout_seconds * steps)
        found = await self._process.ask(
            (what, self._key, *about), rows, seconds=limit, repeats=repeats, meanwhile=meanwhile
        )
        if what not in ("exists", "close", "drop") and self._process.pid != self._opened_by:
            self._opened_by = self._process.pid
        return found

    def _ensure_open(self) -> None:
        if self._closed:
            raise IndexUnavailable("the search index is closed")


def _meanwhile(deep: AskDeep | None) -> Callable[[Callable[[Any], None]], Awaitable[None]] | None:
    """What has the question's deeper vector sent while the first look is made."""
    if deep is None:
        return None

    async def meanwhile(send: Callable[[Any], None]) -> None:
        send(packed(await deep()))

    return meanwhile


def _made(rows: Sequence[Any], made: Callable[[Any], Flat]) -> Iterator[list[Flat]]:
    for piece in in_pieces(rows, ENTRIES):
        yield [made(row) for row in piece]
