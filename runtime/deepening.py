"""Gives passages of documents and material their deeper vectors, once they can be found.

One of several processes does this (`runtime.leadership`). Which sources may lack vectors is written down by whoever
stores them (`grounding.documents.undeepened`), and whether they do the index says, so that whoever comes next goes on
where this one ended. What was stored last comes first.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence

import structlog

from connectors.message import Scope
from grounding.codex.store import CodexStore
from grounding.documents.deeper import Deeper
from grounding.documents.embedding import EmbedderUnavailable, Vector
from grounding.documents.index import Kind, Passage, PassageIndex
from grounding.documents.runs import indexed_text_of
from grounding.documents.undeepened import Undeepened
from runtime.knowledge import Knowledge
from runtime.unforeseen import tell_index_failed
from runtime.workspaces import Workspaces

START_SECONDS = 2.0
"""After the index is open nothing is begun for so long: a start has better things to do."""
LOOK_SECONDS = 30.0
"""Between looks for what other processes stored. Where there are none, nothing is stored that is not told of."""
LOOK_THROUGH_SECONDS = 86_400.0
"""After so long a workspace is looked through whole, whatever is written down: an index may have been put back in the
form that it had before. The engine takes 1 ms for 10,000 passages."""
PAGE = 256
"""Passages that are read at once then."""
BATCH = 16
"""Passages that are embedded at once, in half a second of a core that does nothing else."""
KNOWN = 2048
"""Texts whose vectors are kept in memory, 3 kB each: many documents have chunks in common."""
_RETRY_SECONDS = (1.0, 30.0)
_log = structlog.get_logger()
Owner = tuple[Scope, Kind]


class Deepening:
    """Of all workspaces, by *model*. With *shared* other processes store passages, too."""

    def __init__(
        self, knowledge: Knowledge, model: Deeper, workspaces: Workspaces, material: CodexStore, *, shared: bool
    ) -> None:
        self._knowledge = knowledge
        self._fresh = knowledge.fresh
        self._model = model
        self._workspaces = workspaces
        self._material = material
        self._shared = shared
        self._known: OrderedDict[bytes, Vector] = OrderedDict()
        self._looked_at: PassageIndex | None = None
        """The index of which all workspaces were looked at; after that what this process stores is told."""
        self._looked_when = 0.0
        self._done: dict[str, tuple[float, int]] = {}
        """Since when a workspace is being worked on, and how many of its passages have got a vector."""

    async def run(self) -> None:
        """See to it, until cancelled. What fails is tried again."""
        self._looked_at = None  # others may have stored something since
        await self._knowledge.opened()
        await asyncio.sleep(START_SECONDS)
        wait, longest = _RETRY_SECONDS
        while True:
            try:
                await self.look()
                wait, _ = _RETRY_SECONDS
                await self._fresh.wait(LOOK_SECONDS if self._shared else None)
            except Exception as error:  # noqa: BLE001 - see `tell_index_failed`
                tell_index_failed(error)
                await asyncio.sleep(wait)
                wait = min(wait * 2, longest)

    async def look(self) -> None:
        """Give everything that lacks a deeper vector one. Once all workspaces were looked at, one is again where this
        process stored something, and where others do every `LOOK_SECONDS`.

        Raises `EmbedderUnavailable`, `IndexUnavailable` and `StoreUnavailable`; what was done stays done.
        """
        collection = await self._knowledge.opening.ready()
        index = collection.index
        if not index.deepens:
            return
        await self._see_to_fresh(index)
        told, now = self._fresh.workspaces(), time.monotonic()
        is_known = self._looked_at is index and not (self._shared and now - self._looked_when >= LOOK_SECONDS)
        scopes = await self._there(told) if is_known else [Scope(one.id) for one in await self._workspaces.all()]
        if self._looked_at is not index:
            await self._prepare(index, scopes)
        noted = await collection.undeepened.look(scopes, time.time() - LOOK_THROUGH_SECONDS)
        for scope, sources in zip(scopes, noted, strict=True):
            if sources is None:
                await self._look_through(index, collection.undeepened, scope)
            elif sources:
                await self._see_to_noted(index, collection.undeepened, scope)
            self._tell(scope.workspace_id)
        for workspace_id in [*self._done]:  # of those that were not looked at, because `_see_to_fresh` did
            self._tell(workspace_id)
        self._fresh.looked_at(told)
        if not is_known:
            self._looked_at, self._looked_when = index, now

    async def _there(self, workspaces: Iterable[str]) -> list[Scope]:
        """Those of *workspaces* that there are, without listing all: this is asked whenever something was stored."""
        return [Scope(one) for one in workspaces if await self._workspaces.exists(one)]

    async def _prepare(self, index: PassageIndex, scopes: Sequence[Scope]) -> None:
        """Have the model loaded where there is anything to be found, so that it is there when the first question is."""
        for scope in scopes:
            for owner in await self._owners(scope):
                if await index.estimate(*owner):
                    self._model.prepare(())
                    return

    async def _look_through(self, index: PassageIndex, undeepened: Undeepened, scope: Scope) -> None:
        began, noted = time.time(), await undeepened.lacking(scope)
        for owner in await self._owners(scope):
            while passages := await index.shallow(*owner, PAGE):
                for start in range(0, len(passages), BATCH):
                    await self._give(index, owner, passages[start : start + BATCH])
                    await self._see_to_fresh(index)
        await undeepened.looked_through(scope, began)
        for one in noted:
            await undeepened.done(one)

    async def _see_to_noted(self, index: PassageIndex, undeepened: Undeepened, scope: Scope) -> None:
        for one in await undeepened.lacking(scope):
            while passages := await index.shallow(one.scope, one.kind, BATCH, source=one.source):
                await self._give(index, (one.scope, one.kind), passages)
                await self._see_to_fresh(index)
            await undeepened.done(one)

    async def _owners(self, scope: Scope) -> list[Owner]:
        """Whose passages of the scope's workspace are searched by deeper vectors."""
        held = await self._material.all_held(scope)
        return [(scope, Kind.DOCUMENT), *((owner, Kind.CODEX) for owner in held)]

    async def _see_to_fresh(self, index: PassageIndex) -> None:
        while (newest := self._fresh.newest()) is not None:
            scope, kind, source, _ = newest
            if passages := await index.shallow(scope, kind, BATCH, source=source):
                await self._give(index, (scope, kind), passages)
            else:
                self._fresh.done(*newest)

    async def _give(self, index: PassageIndex, owner: Owner, passages: Sequence[Passage]) -> None:
        workspace_id = owner[0].workspace_id
        since, count = self._done.get(workspace_id, (time.monotonic(), 0))
        vectors = await self._vectors([indexed_text_of(one) for one in passages])
        given = await index.deepen(*owner, {one.id: vector for one, vector in zip(passages, vectors, strict=True)})
        self._done[workspace_id] = since, count + given

    async def _vectors(self, texts: Sequence[str]) -> list[Vector]:
        names = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in texts]
        missing = {name: text for name, text in zip(names, texts, strict=True) if name not in self._known}
        for name, vector in zip(missing, await self._embedded([*missing.values()]), strict=True):
            self._known[name] = vector
        found = [self._known[name] for name in names]
        for name in names:
            self._known.move_to_end(name)
        while len(self._known) > KNOWN:
            self._known.popitem(last=False)
        return found

    async def _embedded(self, texts: Sequence[str]) -> list[Vector]:
        """A text that the model refuses gets zeros, so that it is near nothing and not asked for again and again."""
        if not texts:
            return []
        try:
            return await self._model.embed_documents(texts)
        except EmbedderUnavailable as error:
            if error.retryable:
                raise
            if len(texts) == 1:
                return [[0.0] * self._model.dimensions]
        return [vector for text in texts for vector in await self._embedded([text])]

    def _tell(self, workspace_id: str) -> None:
        if (done := self._done.pop(workspace_id, None)) is not None and done[1]:
            took = round((time.monotonic() - done[0]) * 1000)
            _log.info("index.deepened", workspace_id=workspace_id, chunks=done[1], duration_ms=took)
