"""The collections of passages that are not the one that is set, open for as long as somebody needs them.

While another embedding model's collection is filled, a workspace is answered from the one before
(`grounding.documents.catalogue`), and told what changes; and what is forgotten is forgotten in all that are left.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import structlog

from connectors.message import Scope, StoreUnavailable
from grounding.documents.catalogue import Catalogue, Identity
from grounding.documents.index import IndexUnavailable
from runtime.collection import Collection

LOOK_SECONDS = 1.0
"""How long what was seen of a workspace is not asked for again."""
IDLE_SECONDS = 60.0
"""After which one that nobody needed is closed: an embedded one takes memory for all that is in it."""
TEND_SECONDS = 10.0
_REMEMBERED = 1000
_log = structlog.get_logger()


@dataclass(slots=True)
class _Open:
    collection: Collection
    users: int = 0
    used: float = 0.0


class Formers:
    """*make* makes the collection of an identity, in a thread."""

    def __init__(self, catalogue: Catalogue, make: Callable[[Identity], Collection]) -> None:
        self._catalogue = catalogue
        self._make = make
        self._open: dict[str, _Open] = {}
        self._opening = asyncio.Lock()
        self._seen: dict[str, tuple[str, float]] = {}
        """By workspace the collection that answers it, and when that was seen."""

    @asynccontextmanager
    async def answering(self, scope: Scope, target: str) -> AsyncIterator[Collection | None]:
        """The collection that answers the scope's workspace; None where that is *target*, or cannot be asked. Raises
        nothing of its own."""
        name = await self._current(scope)
        if name in ("", target):
            yield None
            return
        try:
            opened = await self._opened(name)
        except (IndexUnavailable, StoreUnavailable) as error:
            _log.warning("store.degraded", store="qdrant", why=str(error))
            opened = None
        if opened is None:
            yield None
            return
        async with _using(opened) as collection:
            try:
                yield collection
            except IndexUnavailable:
                self._seen.pop(scope.workspace_id, None)  # another process may have dropped it
                raise

    @asynccontextmanager
    async def other_than(self, scope: Scope, model: str) -> AsyncIterator[Collection | None]:
        """The collection that answers the scope's workspace while that of *model* is not open yet; None where it may be
        that very one, which nobody must open twice. Raises nothing of its own."""
        try:
            identity = (await self._catalogue.known()).get(await self._catalogue.current(scope))
        except StoreUnavailable:
            identity = None
        if identity is None or identity.model == model:
            yield None
            return
        async with self.answering(scope, "") as former:
            yield former

    @asynccontextmanager
    async def using(self, name: str) -> AsyncIterator[Collection | None]:
        """The collection of that name; None if it is not there, or is nothing that this version reads. Raises
        `IndexUnavailable` and `StoreUnavailable`."""
        opened = await self._opened(name)
        if opened is None:
            yield None
            return
        async with _using(opened) as collection:
            yield collection

    def model_of(self, scope: Scope, target: str) -> str:
        """The model of the collection that answered the scope's workspace last; empty where that is *target*, or is not
        open. No look into the store."""
        name, _ = self._seen.get(scope.workspace_id, ("", 0.0))
        opened = None if name == target else self._open.get(name)
        return opened.collection.identity.model if opened is not None else ""

    def switched(self, scope: Scope) -> None:
        """Another collection answers the workspace now."""
        self._seen.pop(scope.workspace_id, None)

    async def drop(self, identity: Identity) -> bool:
        """Delete the collection, whatever it holds; False while somebody here still asks it. Raises
        `IndexUnavailable`."""
        async with self._opening:
            opened = self._open.get(identity.name)
            if opened is not None and opened.users:
                return False
            collection = opened.collection if opened else await asyncio.to_thread(self._make, identity)
            self._open.pop(identity.name, None)
            await collection.index.drop()
        return True

    async def tend(self, target: str) -> None:
        """Say that this process fills *target*, and close what nobody needs, until cancelled."""
        while True:
            with suppress(StoreUnavailable):  # said again in time
                await self._catalogue.keep(target)
            await self._close_idle(time.monotonic() - IDLE_SECONDS)
            await asyncio.sleep(TEND_SECONDS)

    async def close(self) -> None:
        """Close them all. Never raises."""
        for opened in self._open.values():
            await opened.collection.index.close()
        self._open.clear()

    async def _close_idle(self, before: float) -> None:
        async with self._opening:
            idle = [name for name, opened in self._open.items() if not opened.users and opened.used < before]
            for name in idle:
                await self._open.pop(name).collection.index.close()

    async def _current(self, scope: Scope) -> str:
        now, workspace_id = time.monotonic(), scope.workspace_id
        name, at = self._seen.get(workspace_id, ("", -LOOK_SECONDS))
        if now - at < LOOK_SECONDS:
            return name
        if len(self._seen) >= _REMEMBERED:
            self._seen.clear()
        try:
            name = await self._catalogue.current(scope)
        except StoreUnavailable:
            return name
        self._seen[workspace_id] = (name, now)
        return name

    async def _opened(self, name: str) -> _Open | None:
        async with self._opening:
            opened = self._open.get(name)
            if opened is None:
                identity = (await self._catalogue.known()).get(name)
                if identity is None or not identity.is_readable:
                    return None
                collection = await asyncio.to_thread(self._make, identity)
                if not await collection.index.exists():  # opened, an embedded one would be made, and be empty
                    await collection.index.close()
                    return None
                opened = self._open[name] = _Open(collection)
            opened.used = time.monotonic()
            return opened


@asynccontextmanager
async def _using(opened: _Open) -> AsyncIterator[Collection]:
    opened.users += 1
    try:
        yield opened.collection
    finally:
        opened.users -= 1
        opened.used = time.monotonic()
