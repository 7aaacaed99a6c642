"""Gathers what one turn may need to know. Reads top to bottom; the only owner of memory assembly."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import structlog

from connectors.message import AgentRuntimeError, ConversationKey, Scope
from grounding.asked import ASSISTANT, asked_before
from grounding.budgets import Budgets
from grounding.continuing import Continuing, Documents, Going
from grounding.cues.english import ENGLISH
from grounding.cues.kinds import Cues
from grounding.layers import retrieval
from grounding.memory.frames.frame import Frames
from grounding.memory.frames.shipped import SHIPPED
from grounding.memory.global_context import GlobalContexts
from grounding.memory.global_context_lines import UNTRUSTED
from grounding.memory.global_context_origin import model_in
from grounding.memory.karma.choosing import preferred
from grounding.memory.karma.reading import NOTHING as UNMARKED
from grounding.memory.karma.reading import Karma
from grounding.memory.karma.reading import Looked as Marks
from grounding.memory.selection.selecting import Looked, Standing
from grounding.recalling import Recalling, RecallsTurns, as_many, is_looked_for
from grounding.remembering import NOTHING, Asked, Remembered, Remembering, asked_in, shown_besides
from grounding.run_context import (
    Censor,
    ContextLine,
    DegradedBlock,
    Passage,
    RecalledTurn,
    SummaryInput,
    TailEntry,
    Trace,
)
from grounding.sections import speaker
from grounding.sessions.growing import MAX_ENTRY_CHARACTERS
from grounding.sessions.shown import Shown
from grounding.strategy import Choice, search_text
from grounding.transcript.entry import Entry, EntryRole
from grounding.transcript.log import Transcript

T = TypeVar("T")
_log = structlog.get_logger()


class FindsPassages(Protocol):
    """Finds what the workspace's documents say."""

    async def passages(
        self,
        scope: Scope,
        query: str,
        top_k: int,
        excerpt_bytes: int,
        max_tokens: int,
        *,
        lost: list[DegradedBlock],
        earlier: Sequence[str],
    ) -> Sequence[Passage]:
        """At most *top_k* relevant passages of *excerpt_bytes* bytes each and *max_tokens* tokens together, labels
        included, the best first; none where nothing is relevant. *lost* is given what could not be had while the rest
        answered. *earlier* is what people said just before, the oldest first: *query* may lean on it."""


@dataclass(frozen=True, slots=True)
class Grounds:
    """What was gathered for a turn. ``degraded`` names the blocks that failed."""

    summary: SummaryInput | None = None
    tail: tuple[TailEntry, ...] = ()
    recalled: tuple[RecalledTurn, ...] = ()
    passages: tuple[Passage, ...] = ()
    global_context: tuple[ContextLine, ...] | None = None
    degraded: tuple[DegradedBlock, ...] = ()
    remembered: Remembered = NOTHING
    censors: tuple[Censor, ...] | None = ()
    """None where the store is away and this process never knew them: then nothing may be said yet."""
    karma_floor: tuple[Trace, ...] = ()
    karma: tuple[Trace, ...] = ()
    deltas: tuple[str, ...] = ()
    going: Going | None = None
    """How the session goes on."""

    @property
    def before(self) -> Shown | None:
        """What the last prompt showed, if the session goes on."""
        return self.going.before if self.going else None


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Where the layers come from. ``timeout_seconds`` bounds each of them."""

    transcript: Transcript
    continuing: Continuing
    global_contexts: GlobalContexts
    documents: FindsPassages
    turns: RecallsTurns
    timeout_seconds: float
    remembering: Remembering | None = None
    """None where no records are kept."""
    karma: Karma | None = None
    """None where nothing is marked."""

    async def ground(
        self,
        key: ConversationKey,
        text: str,
        choice: Choice,
        budgets: Budgets,
        turn_id: str = "",
        history: Sequence[TailEntry] | None = None,
        person: str | None = None,
        cues: Cues = ENGLISH,
        frames: Frames = SHIPPED,
        today: str = "",
        *,
        deciding: asyncio.Task[Choice] | None = None,
    ) -> Grounds:
        """Everything that *choice*, made by *cues*, asks for, or what *deciding* makes of it: never small talk. A
        *history* given stands in for the stored one.

        *person* is whose own lines of the global context, and records, are shown, in a direct message. Without a
        *turn_id* nothing is stored. A layer that fails is left out and named in ``degraded``; the others come all the
        same.
        """
        degraded: list[DegradedBlock] = []
        if choice.small_talk:
            async with asyncio.TaskGroup() as layers:
                session = layers.create_task(self._layer("session", degraded, lambda: self.continuing.before(key)))
                always = layers.create_task(
                    self._layer("global_context", degraded, lambda: self._known(key, person, turn_id))
                )
                standing = layers.create_task(self._standing(key, person, degraded))
                marking = layers.create_task(self._marks(session, key, person, degraded))
            going = self.continuing.small_talk(session.result(), always.result(), person)
            return Grounds(
                global_context=going.settled.global_context,
                degraded=_by_block(degraded),
                censors=self._censors(key, person, standing.result()),
                karma_floor=marking.result().floor,
                going=going,
            )
        async with asyncio.TaskGroup() as layers:
            session = layers.create_task(self._layer("session", degraded, lambda: self.continuing.before(key)))
            always = layers.create_task(
                self._layer("global_context", degraded, lambda: self._known(key, person, turn_id))
            )
            documents = layers.create_task(
                self._layer("summary", degraded, lambda: self.continuing.documents(key, session))
            )
            tail = layers.create_task(self._layer("tail", degraded, lambda: self._tail(key, budgets, turn_id, history)))
            standing = layers.create_task(self._standing(key, person, degraded))
            marking = layers.create_task(self._marks(session, key, person, degraded, tail, text, cues))
            looking = layers.create_task(
                self._look(tail, standing, degraded, key, text, person, cues, frames, history is None)
            )
            passages = (
                layers.create_task(self._passages(tail, deciding, degraded, key.scope, text, budgets, cues))
                if choice.wants_documents or deciding is not None
                else None
            )
            standing_still = layers.create_task(
                self._going(session, always, documents, tail, history, person, budgets, today)
            )
            recalling = layers.create_task(
                self._recalled(standing_still, tail, choice, deciding, degraded, key, text, cues)
                if history is None
                else _nothing()
            )
        going, marks = standing_still.result(), marking.result()
        settled = going.settled
        recalled = tuple(as_many(preferred(recalling.result(), marks.turns), budgets.records_tokens))
        return Grounds(
            settled.summary,
            settled.tail,
            recalled,
            (passages and passages.result()) or (),
            settled.global_context,
            remembered=await self._remembered(
                key, turn_id, looking.result(), settled.tail, settled.summary, budgets, degraded
            ),
            degraded=_by_block(degraded),
            censors=self._censors(key, person, standing.result()),
            karma_floor=marks.floor,
            karma=marks.chosen({one.turn_id for one in settled.tail} | {one.turn_id for one in recalled}),
            deltas=settled.deltas,
            going=going,
        )

    async def _going(
        self,
        session: asyncio.Task[Shown | None],
        always: asyncio.Task[tuple[ContextLine, ...] | None],
        documents: asyncio.Task[Documents | None],
        tail: asyncio.Task[tuple[TailEntry, ...] | None],
        history: Sequence[TailEntry] | None,
        person: str | None,
        budgets: Budgets,
        today: str,
    ) -> Going:
        """How the session goes on, as soon as it is known what there is."""
        before, lines, newest, said = await session, await always, await documents, await tail
        if history is not None:
            return self.continuing.instead(lines, history, budgets)
        return self.continuing.go_on(before, lines, newest, said, person, budgets, today)

    async def _recalled(
        self,
        going: asyncio.Task[Going],
        tail: asyncio.Task[tuple[TailEntry, ...] | None],
        first: Choice,
        deciding: asyncio.Task[Choice] | None,
        degraded: list[DegradedBlock],
        key: ConversationKey,
        text: str,
        cues: Cues,
    ) -> Sequence[RecalledTurn]:
        """Earlier turns, where they are asked for, or surely bear on the message; it says so where a look failed that
        nobody asked for, and nothing is missed for certain."""
        choice = first if deciding is None else await deciding
        settled, said = (await going).settled, await tail or ()
        recalling, unsure = Recalling(self.transcript, self.turns), list[DegradedBlock]()
        found: Sequence[RecalledTurn] | None = None
        if choice.wants_history:
            found = await self._layer(
                "records", degraded, lambda: recalling.asked_for(key, text, said, settled, cues, degraded)
            )
        elif is_looked_for(first, choice):
            found = await self._layer("records", unsure, lambda: recalling.unasked(key, text, settled))
        if unsure:
            _log.warning("recall.unsure", why=unsure[0].why, workspace_id=key.workspace_id)
        return found or ()

    async def _marks(
        self,
        session: asyncio.Task[Shown | None],
        key: ConversationKey,
        person: str | None,
        degraded: list[DegradedBlock],
        tail: asyncio.Task[tuple[TailEntry, ...] | None] | None = None,
        text: str = "",
        cues: Cues = ENGLISH,
    ) -> Marks:
        """What people marked as good: all that stands in the *session*, and how like it is to *text*, said after
        *tail*."""
        if self.karma is None:
            return UNMARKED
        karma, earlier = self.karma, asked_before((await tail if tail else None) or (), cues)

        async def stood() -> Sequence[str] | None:
            before = await asyncio.shield(session)  # it is not this layer's to give up
            return before.karma_floor if before else None

        looking = self._layer("karma", degraded, lambda: karma.look(key, person, text, earlier, stood=stood))
        return await looking or UNMARKED

    async def _standing(
        self, key: ConversationKey, person: str | None, degraded: list[DegradedBlock]
    ) -> Standing | None:
        if self.remembering is None:
            return None
        remembering = self.remembering
        return await self._layer("censors", degraded, lambda: remembering.standing(key, person))

    def _censors(
        self, key: ConversationKey, person: str | None, standing: Standing | None
    ) -> tuple[Censor, ...] | None:
        """What must not be said or done; while the store is away, what must not a moment ago, if that is known."""
        if self.remembering is None:
            return ()
        return self.remembering.last_censors(key, person) if standing is None else standing.censors

    async def _look(
        self,
        tail: asyncio.Task[tuple[TailEntry, ...] | None],
        standing: asyncio.Task[Standing | None],
        degraded: list[DegradedBlock],
        key: ConversationKey,
        text: str,
        person: str | None,
        cues: Cues,
        frames: Frames,
        continues: bool,
    ) -> tuple[Asked, Looked | None] | None:
        """The frame, and the records that there are for the message. What does not depend on the tail is read beside
        it; the search begins when it is there."""
        if self.remembering is None:
            return None
        remembering = self.remembering
        there = await self._layer("records", degraded, lambda: remembering.there(key, person, continues=continues))
        asked = asked_in(text, await tail or (), frames, cues)
        if there is None:
            return asked, None
        known, holding = there, await standing

        async def looked() -> Looked:
            holds = await remembering.standing(key, person) if holding is None else holding
            return await remembering.look(key, person, asked, cues, known, holds)

        return asked, await self._layer("records", degraded, looked)

    async def _remembered(
        self,
        key: ConversationKey,
        turn_id: str,
        found: tuple[Asked, Looked | None] | None,
        tail: Sequence[TailEntry],
        summary: SummaryInput | None,
        budgets: Budgets,
        degraded: list[DegradedBlock],
    ) -> Remembered:
        """What of the records is shown, once it is known what is shown besides."""
        if self.remembering is None or found is None:
            return NOTHING
        remembering, (asked, looked) = self.remembering, found
        if looked is None:
            return Remembered(asked.frame)
        there, shown = looked, shown_besides(tail, summary, budgets)
        chosen = await self._layer("records", degraded, lambda: remembering.chosen(key, turn_id, asked, there, shown))
        return Remembered(asked.frame) if chosen is None else chosen

    async def _layer(self, block: str, degraded: list[DegradedBlock], get: Callable[[], Awaitable[T]]) -> T | None:
        try:
            async with asyncio.timeout(self.timeout_seconds):
                return await get()
        except TimeoutError:
            degraded.append(DegradedBlock(block=block, why="timeout"))
        except AgentRuntimeError as error:
            degraded.append(DegradedBlock(block=block, why=why(error)))
        except Exception as error:  # noqa: BLE001 - a lost layer degrades the turn, whatever broke it
            _log.exception("layer.failed", block=block)
            degraded.append(DegradedBlock(block=block, why=why(error)))
        return None

    async def _known(self, key: ConversationKey, person: str | None, turn_id: str) -> tuple[ContextLine, ...]:
        """The global context, whatever else is wanted."""
        lines = await self.global_contexts.open(model_in(key, person), store=bool(turn_id))
        return tuple(
            ContextLine(number=line.number, content=line.content, marked=line.origin in UNTRUSTED) for line in lines
        )

    async def _tail(
        self, key: ConversationKey, budgets: Budgets, turn_id: str, history: Sequence[TailEntry] | None
    ) -> tuple[TailEntry, ...]:
        if history is not None:
            return tuple(history)
        entries = await self.transcript.tail(key, budgets.tail_lines + 1, except_turn=turn_id)
        return tuple(_tail_entry(entry) for entry in entries)

    async def _passages(
        self,
        tail: asyncio.Task[tuple[TailEntry, ...] | None],
        deciding: asyncio.Task[Choice] | None,
        degraded: list[DegradedBlock],
        scope: Scope,
        text: str,
        budgets: Budgets,
        cues: Cues,
    ) -> tuple[Passage, ...] | None:
        """The layer of passages. It begins when the tail is there; without one the message is searched for alone."""
        if deciding is not None and not (await deciding).wants_documents:
            return None
        query, earlier = search_text(text, cues), asked_before(await tail or (), cues)

        async def found() -> tuple[Passage, ...]:
            room = retrieval.room(budgets.retrieved_tokens)
            return tuple(
                await self.documents.passages(
                    scope, query, budgets.top_k, budgets.excerpt_bytes, room, lost=degraded, earlier=earlier
                )
            )

        return await self._layer("retrieved", degraded, found)


async def _nothing() -> Sequence[RecalledTurn]:
    return ()


def _by_block(degraded: list[DegradedBlock]) -> tuple[DegradedBlock, ...]:
    return tuple(sorted(degraded, key=lambda part: part.block))


def _tail_entry(entry: Entry) -> TailEntry:
    by = ASSISTANT if entry.role is EntryRole.OUTBOUND else speaker(entry.author)
    text = entry.text[:MAX_ENTRY_CHARACTERS]
    return TailEntry(speaker=by, text=text, turn_id=entry.turn_id, user=entry.user, foreign=entry.foreign)


def why(error: BaseException) -> str:
    """An error's class as a word of metrics: ``IndexUnavailable`` is ``index_unavailable``."""
    name = type(error).__name__
    return "".join("_" + letter.lower() if letter.isupper() else letter for letter in name).lstrip("_")
