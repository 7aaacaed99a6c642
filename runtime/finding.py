"""What is found in documents, earlier turns and records, and what is said of it that may be missing.

Until an index is open, and while none can be (`runtime.opening`), every search raises `IndexUnavailable` with the
reason: the turn goes on without that layer and says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection as Some
from collections.abc import Sequence
from contextlib import suppress

from connectors.message import Scope
from grounding.documents.backlog import Backlog
from grounding.documents.catalogue import Lacks
from grounding.documents.index import Hit, IndexUnavailable
from grounding.documents.shelf import READ_DOCUMENTS
from grounding.documents.vocabulary import Match
from grounding.memory.records.record import Type
from grounding.run_context import DegradedBlock, Passage, RecalledTurn
from runtime.collection import Collection
from runtime.doubts import REBUILDING, STALE, Doubts, with_doubt
from runtime.following import Following
from runtime.opening import Opening

_FILLING_SECONDS = 2.0
"""How long a turn waits for documents that are being indexed for the first time since the start."""


class Finding:
    """Searches what answers for a workspace: the collection of the model that is set, or a former one's until then."""

    def __init__(
        self, opening: Opening, following: Following, doubts: Doubts, backlog: Backlog, *, is_copied: bool
    ) -> None:
        self._opening = opening
        self._following = following
        self._doubts = doubts
        self._backlog = backlog
        self._is_copied = is_copied  # whether documents come from elsewhere than the files of this machine
        self.unremembered: set[str] = set()
        """Workspaces whose earlier turns are not all in the index, into which they are being put."""
        self._is_awake = False

    async def passages(
        self,
        scope: Scope,
        query: str,
        top_k: int,
        excerpt_bytes: int,
        max_tokens: int,
        *,
        lost: list[DegradedBlock],
        earlier: Sequence[str] = (),
    ) -> Sequence[Passage]:
        """See `grounding.pipeline.FindsPassages`. Waits for an index that is being opened or filled.

        Raises `IndexUnavailable` also where nothing was found in a workspace that is still being indexed
        for the first time since the start: that is no answer.
        """
        noted: list[DegradedBlock] = []
        async with self._opening.answering(scope) as answering:
            if self._opening.target is not None:  # else nobody follows yet
                with suppress(TimeoutError):
                    async with asyncio.timeout(_FILLING_SECONDS):
                        await self._following.until_ahead(scope)
            found, doubt = await asyncio.gather(
                answering.search.passages(scope, query, top_k, excerpt_bytes, max_tokens, lost=noted, earlier=earlier),
                self._doubt_after_a_look(scope, answering),
            )
        noted = with_doubt(noted, doubt)
        is_filling = any(one.block == "retrieved" and one.why == REBUILDING for one in noted)
        if not found and (self._following.is_behind(scope) or is_filling):
            raise IndexUnavailable("the documents are still being indexed")
        lost += noted
        return found

    async def awake(self, scope: Scope) -> None:
        """See `grounding.deciding.SpeaksOf`. What is said first after a start would be judged by cues alone else."""
        if self._is_awake and not self._following.is_behind(scope):
            return
        if self._opening.target is None and self._opening.why:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_FILLING_SECONDS):
                await self._opening.opened()
                await self._opening.warm()
                self._is_awake = True
                await self._following.until_ahead(scope)

    async def best_match(self, scope: Scope, text: str) -> Match | None:
        """See `grounding.deciding.SpeaksOf`. Waits for nothing: None while the index is being opened."""
        if self._opening.target is None:
            return None
        async with self._opening.answering(scope) as answering:
            return await answering.vocabulary.best_match(scope, text)

    async def _doubt_after_a_look(self, scope: Scope, answering: Collection) -> str:
        await self._doubts.look(scope)
        if await self._lacks(scope, answering, Lacks.DOCUMENTS):
            return REBUILDING
        if answering is not self._opening.target:
            return await self._doubt_of_former(scope, answering)
        if self._is_copied and await answering.indexer.is_being_filled(scope):
            return REBUILDING
        return self.doubt(scope)

    async def _doubt_of_former(self, scope: Scope, former: Collection) -> str:
        """As `doubt`, of a collection that may have what waits for the one that is set, whose model may be away."""
        if self._following.is_behind(scope) or self._doubts.is_unfollowed:
            return STALE
        if not self._doubts.doubt(scope):
            return ""
        waiting = await self._backlog.paths(scope, READ_DOCUMENTS + 1)
        return "" if await former.indexer.has(scope, waiting) else STALE

    async def _lacks(self, scope: Scope, answering: Collection, *what: Lacks) -> bool:
        """Whether something is known to be missing where a former collection answers, or of what was said."""
        if answering is self._opening.target:
            is_lacking = Lacks.TURNS in what and (scope.workspace_id in self.unremembered or self._doubts.is_apart)
            if is_lacking or not self._is_copied:  # this process alone fills it, and knows
                return is_lacking
        return await self._opening.catalogue.is_behind(scope, answering.name, *what)

    def doubt(self, scope: Scope) -> str:
        """Why what is found may not be all that there is, as a word of metrics; empty where nothing says so."""
        if self._following.is_behind(scope) or self._following.is_failing(scope):
            return STALE
        return self._doubts.doubt(scope)

    async def recall(
        self,
        scope: Scope,
        query: str,
        top_k: int,
        exclude: frozenset[str],
        *,
        earlier: Sequence[str] = (),
        lost: list[DegradedBlock] | None = None,
        asked_for: bool = True,
    ) -> Sequence[RecalledTurn]:
        """See `grounding.recalling.RecallsTurns`."""
        noted: list[DegradedBlock] = []
        if not asked_for and self._opening.target is None:
            return ()  # it is not worth a wait
        async with self._opening.answering(scope) as answering:
            found = await answering.turns.recall(
                scope, query, top_k, exclude, earlier=earlier, lost=noted, asked_for=asked_for
            )
            if not noted and await self._lacks(scope, answering, Lacks.TURNS, Lacks.RECORDS):
                noted.append(DegradedBlock(block="records", why=REBUILDING))
        if lost is not None:
            lost += noted
        return found

    async def search(
        self,
        scope: Scope,
        query: str,
        top_k: int,
        *,
        explain: bool = False,
        lost: list[DegradedBlock] | None = None,
    ) -> list[Hit]:
        """See `grounding.documents.search.Search.search`; where the scope names a context also in its document."""
        noted: list[DegradedBlock] = []
        inside = scope.context_id is not None
        async with self._opening.answering(scope) as answering:
            found, doubt = await asyncio.gather(
                answering.search.search(scope, query, top_k, explain=explain, scores=inside, lost=noted),
                self._doubt_after_a_look(scope, answering),
            )
            if inside:
                found = await answering.contexts.among(scope, query, found, top_k, explain=explain)
                if not doubt and await self._lacks(scope, answering, Lacks.CONTEXTS):
                    doubt = REBUILDING
        if lost is not None:
            lost += with_doubt(noted, doubt)
        return found

    def answering_model(self, scope: Scope) -> str:
        """What the cosines of the workspace's last search were taken with: the model that is set, or a former one while
        that answers; empty where none is known."""
        target = self._opening.target.identity if self._opening.target is not None else None
        former = self._opening.formers.model_of(scope, target.name if target else "")
        return former or (target.model if target else "")

    async def find_records(
        self, scope: Scope, query: str, top_k: int, types: Some[Type]
    ) -> Sequence[tuple[str, str, float, float]]:
        """See `grounding.memory.records.index.RecordIndex.find`."""
        async with self._opening.answering(scope) as answering:
            return await answering.records.find(scope, query, top_k, types)
