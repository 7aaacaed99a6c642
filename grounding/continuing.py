"""Sessions, as turns ask for them: what the last prompt of a conversation showed, and what is there now."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from connectors.message import AgentRuntimeError, ConversationKey
from grounding.budgets import Budgets
from grounding.layers.tail import Limits
from grounding.memory.contexts import ContextDocument, ContextDocuments
from grounding.run_context import ContextLine, TailEntry
from grounding.sessions.freezing import Freezing, Now, Settled
from grounding.sessions.growing import newest
from grounding.sessions.shown import Shown
from grounding.sessions.store import Sessions

Documents = tuple[ContextDocument | None, ContextDocument | None]
"""The newest of a conversation, and the one that its last prompt showed, where it is kept."""
OLDER_KNOWN = 10_000
"""Conversations."""


@dataclass(frozen=True, slots=True)
class Going:
    """Where a conversation stands: what its last prompt showed, what there is now, and what is shown of it."""

    before: Shown | None
    there: Now
    settled: Settled


@dataclass(frozen=True, slots=True)
class Continuing:
    """Without *sessions* every turn is the first of its session."""

    contexts: ContextDocuments
    freezing: Freezing
    sessions: Sessions | None = None
    older: dict[ConversationKey, str] = field(default_factory=dict)
    """Which document that is not the newest a conversation's last prompt showed: the next one mostly shows it again, so
    that it is read beside the newest, and not after the session."""

    async def before(self, key: ConversationKey) -> Shown | None:
        """What the last prompt showed, if the session goes on. Raises `connectors.message.StoreUnavailable`."""
        return await self.sessions.get(key) if self.sessions else None

    async def keep(self, key: ConversationKey, shown: Shown | None) -> None:
        """Keep what a prompt showed for the next one. Raises `connectors.message.StoreUnavailable`."""
        if self.sessions and shown:
            await self.sessions.keep(key, shown)

    async def documents(self, key: ConversationKey, before: asyncio.Task[Shown | None]) -> Documents:
        """The documents of *key*. Raises `connectors.message.StoreUnavailable` and
        `grounding.transcript.entry.UnknownFormat`."""
        guessed, likely = self.older.get(key, ""), None
        newest = self.contexts.latest(key)
        if guessed:
            latest, likely = await asyncio.gather(newest, self._likely(key, guessed))
        else:
            latest = await newest
        shown = await asyncio.shield(before)
        if latest is None or shown is None or not shown.document:
            return latest, None
        if latest.id == shown.document or self.freezing.layout == "user_first":
            self.older.pop(key, None)
            return latest, latest
        if likely is not None and shown.document == guessed:
            return latest, likely
        if len(self.older) >= OLDER_KNOWN:
            self.older.clear()
        self.older[key] = shown.document
        return latest, await self.contexts.version(key, shown.document)

    async def _likely(self, key: ConversationKey, version: str) -> ContextDocument | None:
        """*version*, if it can be read. Why it cannot be is said once it is known to be wanted."""
        try:
            return await self.contexts.version(key, version)
        except AgentRuntimeError:
            return None

    def go_on(
        self,
        before: Shown | None,
        lines: Sequence[ContextLine] | None,
        documents: Documents | None,
        entries: tuple[TailEntry, ...] | None,
        audience: str | None,
        budgets: Budgets,
        today: str,
    ) -> Going:
        """What a turn is shown that comes after the one *before*."""
        latest, shown = documents or (None, None)
        there = Now(None if lines is None else tuple(lines), latest, shown, entries)
        return Going(before, there, self.freezing.settle(before, there, audience, budgets, today))

    def small_talk(self, before: Shown | None, lines: Sequence[ContextLine] | None, audience: str | None) -> Going:
        """The same for small talk."""
        there = Now(None if lines is None else tuple(lines), None, None, None)
        return Going(before, there, self.freezing.settle_small_talk(before, there, audience))

    def instead(self, lines: Sequence[ContextLine] | None, history: Sequence[TailEntry], budgets: Budgets) -> Going:
        """What is shown where *history* is to stand in for the conversation."""
        there = Now(None if lines is None else tuple(lines), None, None, tuple(history))
        said = newest(history, Limits.of(budgets), self.freezing.tokens)
        return Going(None, there, Settled(there.lines, None, said))
