"""What a turn is given of the material that was attached: all of it, a tool to search it, or the passages that fit."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from config.settings import Settings
from connectors.message import AgentRuntimeError, Scope
from grounding.budgets import Budgets
from grounding.codex.choosing import Room
from grounding.codex.store import Holding
from grounding.codex.tool import SCOPE, SEARCH_CODEX
from grounding.condensing import room_tokens
from grounding.layers import retrieval
from grounding.pipeline import why
from grounding.run_context import CodexInput, DegradedBlock, Injected, ModelMemory, Passage
from runtime.material import Materials
from runtime.question import Question
from runtime.tools import Offer, Tooling

BESIDE_CHARACTERS = 20_000
"""Of a prompt, for everything but material, directives and what formatters put in: a message of 8,000 bytes, and twice
the characters that English has in the tokens of the system message's other blocks."""
BESIDE_MESSAGES = 2
"""Of a window everything else is left so many messages of the longest kind: the blocks before a message leave it at
least half of what there is beside directives and material (`grounding.window.message_reserve`). With less room than
their budgets they are cut, which material is not."""
NO_LIMIT = 2**40
MEMORY_STEPS = 8
"""Of a window: memory decides anew only when it is more or less by one of so many."""


@dataclass(frozen=True, slots=True)
class Looked:
    """What there is, as far as that could be found out."""

    holding: Holding | None = None
    degraded: tuple[DegradedBlock, ...] = ()


@dataclass(frozen=True, slots=True)
class Turn:
    """For whom: *window* is that of the model that is asked *first*; ``identity`` how it must behave, in
    ``identity_tokens``; ``offer`` the tools and ``injected`` the blocks that it has in any case. Without *keep* nothing
    is stored."""

    question: Question
    first: str | None
    budgets: Budgets
    identity: str
    identity_tokens: int
    offer: Offer
    injected: Sequence[Injected]
    small_talk: bool
    keep: bool
    memory: ModelMemory | None = None
    """What there is for the model's cache, where that is known."""


@dataclass(frozen=True, slots=True)
class Attached:
    """``input`` is None where there is no material; ``offer`` are all tools of the turn."""

    offer: Offer
    input: CodexInput | None = None
    passages: tuple[Passage, ...] = ()
    degraded: tuple[DegradedBlock, ...] = ()


class Attaching:
    """Keeps nothing between turns."""

    def __init__(self, settings: Settings, materials: Materials, tooling: Tooling) -> None:
        self._timeout_seconds = settings.redis_timeout_seconds
        self._materials = materials
        self._tooling = tooling

    async def look(self, scope: Scope, window: int) -> Looked:
        """What there is in *scope*, for a model of *window* tokens. One command, beside what else a turn asks."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return Looked(await self._materials.store.held(scope, window))
        except (AgentRuntimeError, TimeoutError) as error:
            return Looked(degraded=(DegradedBlock(block="codex", why=why(error)),))

    async def attach(self, looked: Looked, turn: Turn, *, crowded: bool = False) -> Attached:
        """What of it *turn* is given; where it is *crowded* it is not given whole. What fails is named, and the turn
        goes on without."""
        if looked.holding is None or not looked.holding.files:
            return Attached(turn.offer, degraded=looked.degraded)
        if not self._tooling.sigil(turn.question).allows(SCOPE):
            return Attached(turn.offer, self._withheld(looked.holding))
        scope = turn.question.key.scope
        try:
            room = replace(room_of(turn), is_crowded=crowded)
            given = await self._materials.given(scope, looked.holding, room, keep=turn.keep)
        except AgentRuntimeError as error:
            return Attached(turn.offer, degraded=(DegradedBlock(block="codex", why=why(error)),))
        if given is None or given.mode == "whole" or turn.small_talk:
            return Attached(turn.offer, given)
        offer = await self._tooling.offer(
            turn.question, window_tokens=turn.budgets.window_tokens, first=turn.first, with_material=True
        )
        if SEARCH_CODEX in offer.tools:
            return Attached(offer, given)
        passages, degraded = await self._found(scope, turn)
        return Attached(turn.offer, given, passages, degraded)

    def _withheld(self, holding: Holding) -> CodexInput:
        """What is told of *holding* where it may not be read for whoever asks."""
        size = self._materials.size(holding)
        return CodexInput(
            mode="withheld",
            why="sigil",
            tokens=size.tokens,
            weight=size.weight,
            limit=0,
            count=holding.files,
        )

    async def _found(self, scope: Scope, turn: Turn) -> tuple[tuple[Passage, ...], tuple[DegradedBlock, ...]]:
        """For a model that cannot search: what bears on the message."""
        budgets, text = turn.budgets, turn.question.text
        try:
            found, is_whole = await self._materials.find(
                scope, text, budgets.top_k, budgets.excerpt_bytes, retrieval.room(budgets.retrieved_tokens)
            )
        except AgentRuntimeError as error:
            return (), (DegradedBlock(block="codex", why=why(error)),)
        return tuple(found), () if is_whole else (DegradedBlock(block="codex", why="indexing"),)


def merged(
    documents: Sequence[Passage], attached: Attached, top_k: int
) -> tuple[tuple[Passage, ...], CodexInput | None]:
    """The best of both, and how many of them are material."""
    if attached.input is None or not attached.passages:
        return tuple(documents), attached.input
    best = sorted([*attached.passages, *documents], key=lambda one: -one.score)[:top_k]
    count = sum(1 for one in best if one in attached.passages)
    return tuple(best), attached.input.model_copy(update={"retrieved": count})


def room_of(turn: Turn) -> Room:
    """What there is room for in *turn*, whatever is asked."""
    budgets = turn.budgets
    beside = [one for one in turn.injected if one.message == "system"]
    return Room(
        budgets.window_tokens,
        budgets.output_tokens,
        turn.identity_tokens
        + turn.offer.tokens
        + BESIDE_MESSAGES * budgets.query_tokens
        + sum(one.budget for one in beside),
        _characters(turn, beside),
        room_tokens(turn.memory, max(1, budgets.window_tokens // MEMORY_STEPS)) if turn.memory is not None else None,
    )


def _characters(turn: Turn, beside: Sequence[Injected]) -> int:
    """What material may have of them: what a limit for the whole prompt leaves, else any number."""
    if not turn.budgets.bounds_material:
        return NO_LIMIT
    taken = len(turn.identity) + BESIDE_CHARACTERS + sum(len(one.text) for one in beside)
    return max(0, turn.budgets.prompt_characters - taken)
