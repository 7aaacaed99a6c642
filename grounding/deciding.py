"""Decides the strategy of a turn: by the message's cues and, where none decides, by the workspace's documents."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import structlog

from connectors.message import AgentRuntimeError, ConversationKey, Scope
from grounding.asked import ASSISTANT
from grounding.cues.kinds import Cues
from grounding.documents.vocabulary import Match
from grounding.run_context import TailEntry
from grounding.strategy import Choice, addresses_assistant, choose, considered, is_follow_up, without_courtesy
from grounding.tail_entry import tail_entry
from grounding.transcript.entry import Entry

LATEST_ENTRIES = 6
"""Entries in which what the person said last is looked for."""
HOPELESS_LOG_ODDS = -4.0
"""Below this what was said before cannot make a message that is no follow-up a question for documents."""
_log = structlog.get_logger()


class SpeaksOf(Protocol):
    """Knows what the workspace's documents speak of."""

    async def awake(self, scope: Scope) -> None:
        """Return once they can be asked, or cannot be for now: after a start that takes a moment, later nothing."""

    async def best_match(self, scope: Scope, text: str) -> Match | None:
        """How relevant the best passage is to *text*; None where nobody can tell now."""


class SaidBefore(Protocol):
    """Knows what was said before; see `grounding.transcript.log.Transcript.tail`."""

    async def tail(self, key: ConversationKey, max_entries: int, except_turn: str = "") -> Sequence[Entry]: ...


@dataclass(frozen=True, slots=True)
class Deciding:
    """*timeout_seconds* bounds the look into the documents; with *vocabulary* off cues alone decide."""

    transcript: SaidBefore
    documents: SpeaksOf
    timeout_seconds: float
    vocabulary: bool = True

    async def choose(
        self,
        key: ConversationKey,
        text: str,
        cues: Cues,
        turn_id: str = "",
        history: Sequence[TailEntry] | None = None,
    ) -> Choice:
        """The strategy for *text*. A *history* given stands in for the stored one. Never raises: where the documents
        cannot be asked in time the cues' choice stands, and ``strategy.unsure`` is logged."""

        async def said() -> Sequence[TailEntry]:
            if history is not None:
                return history
            entries = await self.transcript.tail(key, LATEST_ENTRIES, except_turn=turn_id)
            return [tail_entry(entry) for entry in entries]

        first = self.by_cues(text, cues)
        await self.awake(first, key)
        return await self.decide(first, key, text, cues, said)

    def by_cues(self, text: str, cues: Cues) -> Choice:
        """What the cues choose; ``open`` where the documents are to be asked, too."""
        choice = choose(text, cues)
        return choice if self.vocabulary else replace(choice, open=False)

    async def awake(self, first: Choice, key: ConversationKey) -> None:
        """Wait until the documents can be asked, where they are to be."""
        if first.open:
            await self.documents.awake(key.scope)

    async def decide(
        self,
        first: Choice,
        key: ConversationKey,
        text: str,
        cues: Cues,
        said: Callable[[], Awaitable[Sequence[TailEntry]]],
    ) -> Choice:
        """As `choose`, where the cues chose *first*; *said* gives what was said last, where that is needed."""
        if not first.open:
            return first
        try:
            async with asyncio.timeout(self.timeout_seconds):
                return await self._considered(first, key, text, cues, said)
        except (AgentRuntimeError, TimeoutError) as error:
            _log.warning("strategy.unsure", why=str(error) or "timeout", workspace_id=key.workspace_id)
        except Exception as error:  # noqa: BLE001 - a turn is answered without, whatever broke
            _log.exception("strategy.unsure", why=type(error).__name__, workspace_id=key.workspace_id)
        return first

    async def _considered(
        self,
        choice: Choice,
        key: ConversationKey,
        text: str,
        cues: Cues,
        said: Callable[[], Awaitable[Sequence[TailEntry]]],
    ) -> Choice:
        alone = await self.documents.best_match(key.scope, without_courtesy(text, cues))
        if alone is None:
            return choice
        decide = partial(
            considered,
            choice,
            alone.relevance,
            passages=alone.passages,
            addresses_assistant=addresses_assistant(text, cues),
            is_follow_up=is_follow_up(text, cues),
        )
        decided = decide(None)
        if decided is not choice or not alone.passages:
            return decided
        if alone.relevance < HOPELESS_LOG_ODDS and not is_follow_up(text, cues):
            return choice
        before = said_last(await said())
        if not before:
            return choice
        together = await self.documents.best_match(key.scope, f"{before}\n{text}")
        return decide(together.relevance if together else None)


def said_last(tail: Sequence[TailEntry]) -> str:
    """What people said last of *tail*."""
    return next((entry.text for entry in reversed(tail) if entry.speaker != ASSISTANT), "")
