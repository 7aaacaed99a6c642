"""The collection of the embedding model that is set, opened in the background, and which collection answers meanwhile.

Until it is open, and while it cannot be, `IndexUnavailable` says why.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import structlog

from config.settings import Settings
from connectors.connector import Health, State
from connectors.message import Scope, StoreUnavailable
from grounding.documents.catalogue import Catalogue, Identity
from grounding.documents.embedding import EmbedderUnavailable
from grounding.documents.index import IndexUnavailable
from grounding.documents.ledger import Ledger
from runtime.collection import Collection, Maker, default_identity, model_of
from runtime.formers import Formers
from runtime.llm import open_embedder
from runtime.workspaces import Workspaces

if TYPE_CHECKING:
    from redis.asyncio import Redis

_RETRY_SECONDS = (1.0, 30.0)
_log = structlog.get_logger()


class Opening:
    """``target`` is None until it is open; ``why`` says, once that failed, what it failed of."""

    def __init__(self, settings: Settings, redis: Redis, workspaces: Workspaces, maker: Maker) -> None:
        self._settings = settings
        self._redis = redis
        self._workspaces = workspaces
        self._maker = maker
        self.catalogue = Catalogue(redis)
        self.formers = Formers(self.catalogue, maker.former)
        self.target: Collection | None = None
        self.why = ""
        self._mute = ""
        """Why nothing can be embedded, and so nothing be found in an index that is open."""
        self._opened = asyncio.Event()

    async def run(self) -> None:
        """Open it, however long that takes, and see to what is open, until cancelled."""
        wait, longest = _RETRY_SECONDS
        while not self._opened.is_set():
            try:
                await self._open()
            except Exception as error:  # noqa: BLE001 - whatever it is, the bot answers without an index
                self.why = str(error) or type(error).__name__
                store = "redis" if isinstance(error, StoreUnavailable) else "qdrant"
                _log.warning("store.degraded", store=store, why=self.why)
                await asyncio.sleep(wait)
                wait = min(wait * 2, longest)
        await self.formers.tend((await self.ready()).name)

    async def opened(self) -> None:
        """Wait until it is open."""
        await self._opened.wait()

    async def ready(self) -> Collection:
        """It, once it is open. Raises `IndexUnavailable` after ``QDRANT_TIMEOUT_SECONDS``, or once that failed."""
        if self.target is None and self.why:
            raise IndexUnavailable(self.why)
        if self.target is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.qdrant_timeout_seconds):
                    await self._opened.wait()
        if self.target is None:
            raise IndexUnavailable(self.why or "the index is still being opened")
        return self.target

    @asynccontextmanager
    async def answering(self, scope: Scope) -> AsyncIterator[Collection]:
        """The collection that answers the scope's workspace: the former one until the new one has everything, and for
        as long as the new one is not open. Raises `IndexUnavailable`."""
        if self.target is None:
            async with self.formers.other_than(scope, model_of(self._settings)) as former:
                if former is not None:
                    yield former
                    return
        target = await self.ready()
        async with self.formers.answering(scope, target.name) as former:
            yield former or target

    async def warm(self) -> None:
        """Load a bundled embedding model, so that the first search need not; `health` says if it cannot be."""
        if self.target is None or self._settings.bundled_embedding_model is None:
            return
        try:
            await self.target.embedder.embed_query("warm")
        except EmbedderUnavailable as error:
            self._mute = str(error)
            _log.warning("store.degraded", store="qdrant", why=self._mute)

    async def health(self) -> Health:
        """How the index is now."""
        if self.target is None:
            return Health(State.DEGRADED, self.why) if self.why else Health(State.CONNECTING)
        try:
            async with asyncio.timeout(self._settings.qdrant_timeout_seconds):
                await self.target.index.check()
        except (IndexUnavailable, TimeoutError) as error:
            return Health(State.DEGRADED, str(error) or f"no answer in {self._settings.qdrant_timeout_seconds:g} s")
        return Health(State.DEGRADED, self._mute) if self._mute else Health(State.CONNECTED)

    async def close(self) -> None:
        """Let go of the index's files and connections. Never raises."""
        await self.formers.close()
        if self.target is not None:
            with suppress(StoreUnavailable):  # it runs out by itself
                await self.catalogue.leave(self.target.name)
            await self.target.index.close()

    async def _open(self) -> None:
        embedder = await open_embedder(self._settings)
        target = await asyncio.to_thread(self._maker.target, embedder)
        try:
            if not await target.index.exists():
                await self.catalogue.lost(target.name, [Scope(one.id) for one in await self._workspaces.all()])
            await target.index.ensure()
            await self._adopt(target.identity)
            await self.catalogue.register(target.identity)
            await self.catalogue.keep(target.name)
        except BaseException:
            await target.index.close()
            raise
        self.target = target
        self.why = ""
        self._opened.set()

    async def _adopt(self, target: Identity) -> None:
        """What versions without a catalogue left: of all models that they may have been given, the default one is
        known. Where its collection has documents of a workspace, it goes on answering."""
        if target == default_identity() or await self.catalogue.known():
            return
        ledger = Ledger(self._redis, default_identity().name)
        for workspace in await self._workspaces.all():
            if await ledger.documents(scope := Scope(workspace.id)):
                await self.catalogue.register(default_identity())
                await self.catalogue.claim(scope, default_identity().name)
