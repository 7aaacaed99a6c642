"""What the index holds of the documents, and whether that is what is kept of them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from connectors.message import Scope
from grounding.documents.index import Kind, PassageIndex
from grounding.documents.ledger import Ledger
from grounding.documents.library import Skipped
from grounding.documents.registry import pending
from grounding.documents.runs import Status, is_known
from grounding.documents.shelf import Shelf


class Indexed:
    """Of one collection. *fingerprint* says how documents are cut and embedded now."""

    def __init__(self, shelf: Shelf, index: PassageIndex, ledger: Ledger, fingerprint: str) -> None:
        self._shelf = shelf
        self._index = index
        self._ledger = ledger
        self._fingerprint = fingerprint

    async def pending(self, scope: Scope) -> set[str]:
        """Documents that are not in the index as they are kept now, by their looks. Raises `StoreUnavailable`."""
        there, unfit = await self._shelf.look_through(scope)
        registry, named = await self._ledger.all(scope), await self._ledger.skipped(scope)
        return await asyncio.to_thread(pending, registry, named, there, unfit, self._fingerprint)

    async def knows(self, scope: Scope, paths: Collection[str]) -> set[str]:
        """Those of *paths* of which the index has some text. Raises `StoreUnavailable`."""
        return await self._ledger.some(scope, list(paths))

    async def has(self, scope: Scope, paths: Sequence[str]) -> bool:
        """Whether the documents at *paths* are in the index as they are kept now, gone where they are none; False also
        where those are too many to be read at once. Raises `StoreUnavailable` or `OSError`."""
        known = await self._ledger.entries(scope, paths)
        read = await self._shelf.read(scope, paths, {path: one.sha256 for path, one in known.items()})
        return len(read) == len(paths) and all(is_known(item, known.get(path)) for path, item in read.items())

    async def is_whole(self, scope: Scope) -> bool:
        """Whether the index has what is written down that it has. Raises `IndexUnavailable` and `StoreUnavailable`."""
        return not await self._doubted(scope)

    async def is_being_filled(self, scope: Scope) -> bool:
        """Whether less than half of the shared documents are in this collection yet. Raises `StoreUnavailable`."""
        documents, kept = await asyncio.gather(self._ledger.documents(scope), self._shelf.size(scope))
        return 2 * documents < kept

    async def status(self, scope: Scope, waiting: int | None = None) -> Status:
        """What the index holds. *waiting* is how many documents are pending, where that is known: else all of them
        are looked at. Raises `StoreUnavailable` and `IndexUnavailable`."""
        return Status(
            documents=await self._ledger.documents(scope),
            chunks=await self._index.count(scope, Kind.DOCUMENT),
            pending=len(await self.pending(scope)) if waiting is None else waiting,
            lag_ms=await self._ledger.lag_ms(scope),
            shallow=await self._index.count_shallow(scope, Kind.DOCUMENT),
        )

    async def skipped(self, scope: Scope) -> list[Skipped]:
        """Files that are no documents, by path. Raises `StoreUnavailable`."""
        found = await self._ledger.skipped(scope)
        return [found[path] for path in sorted(found)]

    async def _doubted(self, scope: Scope) -> frozenset[str]:
        """Documents that the index has lost (another server, a deleted folder)."""
        registry = await self._ledger.all(scope)
        expected = sum(entry.chunks for entry in registry.values())
        if await self._index.count(scope, Kind.DOCUMENT) == expected:
            return frozenset()
        found = await self._index.sources(scope, Kind.DOCUMENT)
        return frozenset(path for path, entry in registry.items() if found.get(path, 0) != entry.chunks)
