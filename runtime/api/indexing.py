"""Indexes documents on arrival: those that arrive while the index is busy are indexed together."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Protocol

from connectors.message import AgentRuntimeError, Scope


class Syncs(Protocol):
    """What brings the index in step; see `runtime.knowledge.Knowledge.index`."""

    async def index(self, scope: Scope, paths: Collection[str] | None = None) -> Any: ...


@dataclass
class _Batch:
    paths: set[str] = field(default_factory=set)
    done: bool = False
    error: AgentRuntimeError | None = None


class Indexing:
    """Groups the documents of many requests, so that a hundred of them are a few runs and not a hundred."""

    def __init__(self, knowledge: Syncs) -> None:
        self._knowledge = knowledge
        self._next: dict[str, _Batch] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def index(self, scope: Scope, paths: Collection[str]) -> None:
        """Return when the index is in step with *paths* as they lay on disk when this was called.

        Raises `IndexUnavailable`, `EmbedderUnavailable`, `StoreUnavailable`.
        """
        workspace_id = scope.workspace_id
        batch = self._next.setdefault(workspace_id, _Batch())
        batch.paths |= set(paths)
        async with self._locks.setdefault(workspace_id, asyncio.Lock()):
            if not batch.done:
                await self._run(scope, batch)
        if batch.error is not None:
            raise batch.error

    async def _run(self, scope: Scope, batch: _Batch) -> None:
        """Index *batch* for all who wait for it. Where this is cancelled the next of them begins again."""
        if self._next.get(scope.workspace_id) is batch:
            del self._next[scope.workspace_id]
        try:
            await self._knowledge.index(scope, batch.paths)
        except AgentRuntimeError as error:
            batch.error = error
        batch.done = True
