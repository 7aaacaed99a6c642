"""What is said, noted and forgotten, told to every collection of passages that may have to answer with it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress

import structlog

from connectors.message import ConversationKey, Scope
from grounding.documents.catalogue import Catalogue, Lacks
from grounding.documents.context_field import ContextField
from grounding.documents.embedding import EmbedderUnavailable
from grounding.documents.index import IndexUnavailable
from grounding.documents.turns import Memory, Turns
from grounding.memory.records.index import RecordIndex
from runtime.formers import Formers

_log = structlog.get_logger()


class ToldTurns:
    """*turns* are those of *target*, the collection of the model that is set."""

    def __init__(self, target: str, turns: Turns, catalogue: Catalogue, formers: Formers) -> None:
        self._target = target
        self._turns = turns
        self._catalogue = catalogue
        self._formers = formers

    async def remember(self, memories: Sequence[Memory]) -> None:
        """See `grounding.documents.turns.Turns.remember`. Where a former collection still answers it is told too; what
        it does not take is written down, and named when it answers."""
        by_workspace: dict[str, list[Memory]] = defaultdict(list)
        for memory in memories:
            by_workspace[memory.scope.workspace_id].append(memory)
        for workspace_id, said in by_workspace.items():
            await self._tell_former(Scope(workspace_id), said)
        await self._turns.remember(memories)

    async def _tell_former(self, scope: Scope, said: Sequence[Memory]) -> None:
        async with self._formers.answering(scope, self._target) as former:
            if former is None:
                return
            try:
                await former.turns.remember(said)
            except (EmbedderUnavailable, IndexUnavailable) as error:
                _log.warning("index.failed", workspace_id=scope.workspace_id, why=str(error))
                await self._catalogue.fell_behind(scope, former.name, Lacks.TURNS)

    async def forget(self, scope: Scope, turn_ids: Sequence[str] | None = None) -> None:
        """See `grounding.documents.turns.Turns.forget`: in all collections that there are, also those that are only
        kept for a while. Raises `StoreUnavailable` too."""
        await self._turns.forget(scope, turn_ids)
        for name in (await self._catalogue.known()).keys() - {self._target}:
            async with self._formers.using(name) as former:
                if former is not None:
                    await former.turns.forget(scope, turn_ids)


class ToldContexts:
    """*field* is that of *target*, the collection of the model that is set."""

    def __init__(self, target: str, field: ContextField, catalogue: Catalogue, formers: Formers) -> None:
        self._target = target
        self._field = field
        self._catalogue = catalogue
        self._formers = formers

    async def put(self, key: ConversationKey, text: str, at: str) -> None:
        """See `grounding.documents.context_field.ContextField.put`. Where a former collection still answers it is told
        too; what it does not take is written down, and the version that it had is not found any more."""
        async with self._formers.answering(key.scope, self._target) as former:
            if former is not None:
                try:
                    await former.contexts.put(key, text, at)
                except (EmbedderUnavailable, IndexUnavailable) as error:
                    _log.warning("index.failed", workspace_id=key.workspace_id, why=str(error))
                    await self._catalogue.fell_behind(key.scope, former.name, Lacks.CONTEXTS)
                    with suppress(IndexUnavailable):
                        await former.contexts.forget(key)
        await self._field.put(key, text, at)

    async def forget(self, key: ConversationKey) -> None:
        """See `grounding.documents.context_field.ContextField.forget`: in all collections that there are. Raises
        `StoreUnavailable` too."""
        await self._field.forget(key)
        for name in (await self._catalogue.known()).keys() - {self._target}:
            async with self._formers.using(name) as former:
                if former is not None:
                    await former.contexts.forget(key)


class ToldRecords:
    """*records* are those of *target*, the collection of the model that is set."""

    def __init__(self, target: str, records: RecordIndex, catalogue: Catalogue, formers: Formers) -> None:
        self._target = target
        self._records = records
        self._catalogue = catalogue
        self._formers = formers

    async def follow(self, scope: Scope, ids: Sequence[str]) -> None:
        """See `grounding.memory.records.index.RecordIndex.follow`. Where a former collection still answers it follows
        too; what it does not take is written down. What is gone is forgotten in all collections that there are."""
        async with self._formers.answering(scope, self._target) as former:
            if former is not None:
                try:
                    await former.records.follow(scope, ids)
                except (EmbedderUnavailable, IndexUnavailable) as error:
                    _log.warning("index.failed", workspace_id=scope.workspace_id, why=str(error))
                    await self._catalogue.fell_behind(scope, former.name, Lacks.RECORDS)
        if gone := await self._records.gone(scope, ids):
            for name in (await self._catalogue.known()).keys() - {self._target}:
                async with self._formers.using(name) as kept:
                    if kept is not None:
                        await kept.records.forget(scope, gone)
        await self._records.follow(scope, ids)
