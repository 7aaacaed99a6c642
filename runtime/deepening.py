"""Gives passages of documents and material their deeper vectors, once they can be found.

One of several processes does this (`runtime.leadership`). What is to be done is what lacks its vector in the index, so
that nothing has to be written down, and whoever comes next goes on where this one ended. What was stored last comes
first.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Sequence

import structlog

from connectors.message import Scope
from grounding.codex.store import CodexStore
from grounding.documents.deeper import Deeper
from grounding.documents.embedding import EmbedderUnavailable, Vector
from grounding.documents.index import Kind, Passage, PassageIndex
from grounding.documents.runs import indexed_text_of
from runtime.knowledge import Knowledge
from runtime.unforeseen import tell_index_failed
from runtime.workspaces import Workspaces

START_SECONDS = 2.0
"""After the index is open nothing is begun for so long: a start has better things to do."""
LOOK_SECONDS = 30.0
"""Between looks for what other processes stored. Where there are none, nothing is stored that is not told of."""
PAGE = 256
"""Passages that are read at once: to look for those that lack a vector the engine looks at all, of 10,000 in 1 ms."""
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
        """The index that was looked through whole; after that what this process stores is told."""
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
        """Give everything that lacks a deeper vector one. Once all was looked through, a workspace is again only where
        something was stored of which not every source is known: among 100,000 passages a look holds the interpreter's
        lock for 14 ms.

        Raises `EmbedderUnavailable`, `IndexUnavailable` and `StoreUnavailable`; what was done stays done.
        """
        index = (await self._knowledge.opening.ready()).index
        if not index.deepens:
            return
        await self._see_to_fresh(index)
        told, now = self._fresh.workspaces(), time.monotonic()
        is_known = self._looked_at is index and not (self._shared and now - self._looked_when >= LOOK_SECONDS)
        for workspace in await self._workspaces.all():
            if is_known and workspace.id not in told:
                self._tell(workspace.id)
                continue
            for owner in await self._owners(Scope(workspace.id)):
                if await index.estimate(*owner):
                    self._model.prepare(())  # so that it is there when the first question comes
                while passages := await index.shallow(*owner, PAGE):
                    for start in range(0, len(passages), BATCH):
                        await self._give(index, owner, passages[start : start + BATCH])
                        await self._see_to_fresh(index)
            self._tell(workspace.id)
        self._fresh.looked_through(told)
        if not is_known:
            self._looked_at, self._looked_when = index, now

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
