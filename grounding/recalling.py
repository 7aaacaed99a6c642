"""Earlier turns of a conversation, as one turn needs them: beyond what its tail shows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from connectors.message import ConversationKey, Scope
from grounding.run_context import DegradedBlock, RecalledTurn
from grounding.sessions.freezing import Settled
from grounding.strategy import Choice

ASKED_FOR_TURNS = 40
UNASKED_SECONDS = 0.5
"""An answer does not wait longer for what may not be needed."""
UNASKED_TURNS = 12
"""Of what nobody asked for by name less is told: it may be beside the point."""
RECALLED_CHARACTERS_PER_TOKEN = 8
"""More fit no budget; what is gathered is kept with every turn."""


class RecallsTurns(Protocol):
    """Finds earlier turns of one conversation."""

    async def recall(
        self,
        scope: Scope,
        query: str,
        top_k: int,
        exclude: frozenset[str],
        *,
        earlier: Sequence[str],
        lost: list[DegradedBlock],
        asked_for: bool,
    ) -> Sequence[RecalledTurn]:
        """At most *top_k* turns that bear on *query*, without those of *exclude*. *earlier* and *lost* as in
        `grounding.gathering.FindsPassages`. Where they are not *asked_for*, none unless they surely do."""


@dataclass(frozen=True, slots=True)
class Recalling:
    """What of a conversation is recalled, and whether it is worth a look. Raises what its parts raise."""

    turns: RecallsTurns

    async def asked_for(
        self,
        key: ConversationKey,
        text: str,
        earlier: Sequence[str],
        settled: Settled,
        lost: list[DegradedBlock],
    ) -> Sequence[RecalledTurn]:
        """Turns that bear on *text*, which asks about the conversation, but for those that are shown whole, as
        *settled*; *earlier* is what people asked just before."""
        return await self.turns.recall(
            key.scope, text, ASKED_FOR_TURNS, _shown(settled), earlier=earlier, lost=lost, asked_for=True
        )

    async def unasked(self, key: ConversationKey, text: str, settled: Settled, turns: int) -> Sequence[RecalledTurn]:
        """Turns that speak of what *text* asks, though it does not say that it is about the conversation ("what is my
        sister's name?"). Nothing is searched while the tail shows all of the conversation's *turns*."""
        shown = _shown(settled)
        if turns <= len(shown):
            return ()
        async with asyncio.timeout(UNASKED_SECONDS):
            return await self.turns.recall(key.scope, text, UNASKED_TURNS, shown, earlier=(), lost=[], asked_for=False)


def is_looked_for(first: Choice, choice: Choice) -> bool:
    """Whether earlier turns are looked for unasked: where the cues left it open what the message needs (*first*), and
    nothing said since that it is about the conversation."""
    return first.open and not choice.wants_history


def as_many(turns: Sequence[RecalledTurn], tokens: int) -> Iterator[RecalledTurn]:
    """The first of *turns*, until they have more characters together than so many *tokens* ever have."""
    characters = tokens * RECALLED_CHARACTERS_PER_TOKEN
    for turn in turns:
        if characters <= 0:
            return
        yield turn
        characters -= len(turn.text)


def _shown(settled: Settled) -> frozenset[str]:
    return frozenset(entry.turn_id for entry in settled.tail) - settled.partly
