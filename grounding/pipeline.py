"""Gather the layers of one turn: everything that its prompt may show.

`StrategyChooser` chooses the strategy: by the message's cues and, if these leave it open, by the workspace's documents.
`Pipeline.ground` then reads the layers side by side, each once and each within its time limit. The methods of `_Layers`
are those layers, in the order in which they start. A layer that fails is named in ``TurnLayers.degraded`` and left out;
the turn goes on without it.
"""

from __future__ import annotations

import asyncio
from asyncio import Task, shield
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypeVar

import structlog

from connectors.message import AgentRuntimeError, ConversationKey, Scope
from grounding.memory.frames import SHIPPED, Chosen, Frames
from grounding.memory.frames import choose as choose_frame
from grounding.memory.global_context import UNTRUSTED, GlobalContexts, model_in
from grounding.memory.karma import NOTHING as NO_MARKS
from grounding.memory.karma import Examples as Marks
from grounding.memory.karma import Karma, preferred
from grounding.memory.selection import RecordLookup, RecordSelector, Standing
from grounding.prompt import (
    Documents,
    SessionContinuity,
    SessionState,
    Shown,
    TailLimits,
    last_turns,
    passages_room,
    summary_section,
    tail_entry,
    tail_section,
)
from grounding.prompt_input import (
    Calibration,
    Censor,
    ContextLine,
    DegradedBlock,
    FrameInput,
    Passage,
    PromptLimits,
    RecalledTurn,
    SelectedRecord,
    Selection,
    SummaryInput,
    TailEntry,
    Trace,
    utf8_length,
)
from grounding.retrieval import Match
from grounding.strategy import (
    ASSISTANT,
    ENGLISH,
    Choice,
    Cues,
    addresses_assistant,
    choose,
    choose_by_relevance,
    earlier_questions,
    is_follow_up,
    search_text,
    without_courtesy,
)
from grounding.transcript import Transcript

HOPELESS_LOG_ODDS = -4.0
"""Below this relevance the messages before cannot make a message that is no follow-up a question for documents."""
REQUESTED_TURNS = 40
"""The most turns that are recalled if the message asks about the conversation."""
UNREQUESTED_TURNS = 12
"""The most if it does not: they may be irrelevant."""
UNREQUESTED_SECONDS = 0.5
"""An answer does not wait longer for turns that may not be needed."""
RECALLED_CHARACTERS_PER_TOKEN = 8
"""No token budget holds more. All gathered turns are stored with the turn's manifest."""
SHORTEST_TOKEN_BYTES = 3
"""Tail and summary are sure to be shown up to so many bytes for each token of their budgets."""

T = TypeVar("T")
LastMessages = Callable[[], Awaitable[Sequence[TailEntry]]]
"""Returns the last messages of the conversation as soon as they are read."""
Decides = Callable[[LastMessages], Awaitable[Choice]]
"""Decides what a message needs if its cues leave that open."""
_log = structlog.get_logger()


# What the pipeline reads from


class FindsPassages(Protocol):
    """Finds passages in the workspace's documents."""

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
        """Return at most *top_k* relevant passages, the best first; none if nothing is relevant.

        Each has at most *excerpt_bytes* bytes, all together with their labels *max_tokens* tokens. *earlier* are
        people's messages just before, the oldest first: *query* may lean on them. Parts that could not be searched
        while others answered are added to *lost*.
        """


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
        """Return at most *top_k* turns that are relevant to *query*, without those of *exclude*.

        *earlier* and *lost* are those of `FindsPassages`. Unless the message asks for turns (*asked_for*), returns only
        turns that are surely relevant.
        """


class MatchesDocuments(Protocol):
    """Knows the subjects of the workspace's documents."""

    async def awake(self, scope: Scope) -> None:
        """Wait until the documents can be searched, or cannot be for now: a moment after a start, later not at all."""

    async def best_match(self, scope: Scope, text: str) -> Match | None:
        """Return the relevance of the best passage to *text*; None if the documents cannot be searched now."""


# The strategy of a turn


@dataclass(frozen=True, slots=True)
class StrategyChooser:
    """Chooses the strategy of a turn.

    *timeout_seconds* bounds the look into the documents; without *vocabulary* the cues alone decide.
    """

    documents: MatchesDocuments
    timeout_seconds: float = 3.0
    vocabulary: bool = True

    async def choose(self, key: ConversationKey, text: str, cues: Cues, history: Sequence[TailEntry] = ()) -> Choice:
        """Return the strategy for *text* after *history*.

        Never raises: if the documents cannot be searched in time, the cues' choice stands and ``strategy.unsure`` is
        logged.
        """

        async def last_messages() -> Sequence[TailEntry]:
            return history

        first = self.choose_by_cues(text, cues)
        await self.awake(first, key)
        return await self.decide(first, key, text, cues, last_messages)

    def choose_by_cues(self, text: str, cues: Cues) -> Choice:
        """Return the cues' choice; ``open`` if the documents decide, too."""
        choice = choose(text, cues)
        return choice if self.vocabulary else replace(choice, open=False)

    async def awake(self, first: Choice, key: ConversationKey) -> None:
        """Wait until the documents can be searched, if they decide."""
        if first.open:
            await self.documents.awake(key.scope)

    async def decide(
        self, first: Choice, key: ConversationKey, text: str, cues: Cues, last_messages: LastMessages
    ) -> Choice:
        """Return the strategy for *text*, given the cues' choice *first*. Never raises; see `choose`."""
        if not first.open:
            return first
        try:
            async with asyncio.timeout(self.timeout_seconds):
                return await self._by_documents(first, key, text, cues, last_messages)
        except (AgentRuntimeError, TimeoutError) as error:
            _log.warning("strategy.unsure", why=str(error) or "timeout", workspace_id=key.workspace_id)
        except Exception as error:  # noqa: BLE001 - a turn is answered without, whatever broke
            _log.exception("strategy.unsure", why=type(error).__name__, workspace_id=key.workspace_id)
        return first

    async def _by_documents(
        self, first: Choice, key: ConversationKey, text: str, cues: Cues, last_messages: LastMessages
    ) -> Choice:
        alone = await self.documents.best_match(key.scope, without_courtesy(text, cues))
        if alone is None:
            return first
        follows_up = is_follow_up(text, cues)
        decide = partial(
            choose_by_relevance,
            first,
            alone.relevance,
            passages=alone.passages,
            addresses_assistant=addresses_assistant(text, cues),
            is_follow_up=follows_up,
        )
        decided = decide(None)
        if decided is not first or not alone.passages:
            return decided
        if alone.relevance < HOPELESS_LOG_ODDS and not follows_up:
            return first
        messages = await last_messages()
        before = next((entry.text for entry in reversed(messages) if entry.speaker != ASSISTANT), "")
        if not before:
            return first
        together = await self.documents.best_match(key.scope, f"{before}\n{text}")
        return decide(together.relevance if together else None)


# The layers of a turn


@dataclass(frozen=True, slots=True)
class RecordsLayer:
    """The frame of a message and the typed records for it. ``selection`` is None if no records were looked for."""

    frame: FrameInput | None = None
    records: tuple[SelectedRecord, ...] = ()
    selection: Selection | None = None
    calibration: Calibration | None = None


@dataclass(frozen=True, slots=True)
class TurnLayers:
    """The layers of one turn, and its strategy. ``degraded`` names the blocks that failed."""

    summary: SummaryInput | None = None
    tail: tuple[TailEntry, ...] = ()
    recalled: tuple[RecalledTurn, ...] = ()
    passages: tuple[Passage, ...] = ()
    global_context: tuple[ContextLine, ...] | None = None
    degraded: tuple[DegradedBlock, ...] = ()
    remembered: RecordsLayer = RecordsLayer()
    censors: tuple[Censor, ...] | None = ()
    """None if the store is down and this process has never read them: then nothing may be answered yet."""
    karma_floor: tuple[Trace, ...] = ()
    karma: tuple[Trace, ...] = ()
    deltas: tuple[str, ...] = ()
    going: SessionState | None = None
    """The state of the session."""
    choice: Choice | None = None

    @property
    def before(self) -> Shown | None:
        """What the last prompt showed, if the session goes on."""
        return self.going.before if self.going else None


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Gathers the layers of turns. ``timeout_seconds`` bounds each read of a layer.

    Without a *selector* there are no records, without *karma* no good answers.
    """

    transcript: Transcript
    continuing: SessionContinuity
    global_contexts: GlobalContexts
    documents: FindsPassages
    turns: RecallsTurns
    timeout_seconds: float
    selector: RecordSelector | None = None
    karma: Karma | None = None

    async def ground(
        self,
        key: ConversationKey,
        text: str,
        choice: Choice,
        budgets: PromptLimits,
        turn_id: str = "",
        history: Sequence[TailEntry] | None = None,
        audience: str | None = None,
        cues: Cues = ENGLISH,
        frames: Frames = SHIPPED,
        today: str = "",
        *,
        deciding: Decides | None = None,
    ) -> TurnLayers:
        """Return the layers for *text*.

        *choice* is the strategy by *cues*; *deciding* may change it, but never to small talk. A *history* replaces the
        stored conversation. *audience* are the readers of the answer: private data is shown only to its own audience.
        Without a *turn_id* nothing is stored. An error outside of a layer's reads is raised as it is.
        """
        turn = _Layers(self, key, text, choice, budgets, turn_id, history, audience, cues, frames, today, deciding)
        try:
            return await (turn.gather_small_talk() if choice.small_talk else turn.gather())
        except BaseExceptionGroup as errors:
            raise first_error(errors) from errors


@dataclass(frozen=True, slots=True)
class _Layers:
    """The layers of one turn. A task among a method's parameters is a layer that it waits for."""

    sources: Pipeline
    key: ConversationKey
    text: str
    first: Choice
    budgets: PromptLimits
    turn_id: str
    history: Sequence[TailEntry] | None
    audience: str | None
    cues: Cues
    frames: Frames
    today: str
    deciding: Decides | None
    degraded: list[DegradedBlock] = field(default_factory=list)

    async def gather(self) -> TurnLayers:
        async with asyncio.TaskGroup() as group:
            start = group.create_task
            # These wait for no other layer, so that their reads go out together.
            session = start(self.session())
            global_context = start(self.global_context())
            documents = start(self.documents(session))
            tail = start(self.tail())
            standing = start(self.standing_records())
            turn_count = start(self.turn_count())
            # These wait for some of them.
            choice = start(self.choice(tail))
            earlier = start(self.earlier_messages(tail))
            marks = start(self.marks(session, earlier))
            going = start(self.going(session, global_context, documents, tail))
            records = start(self.records(standing, earlier, going))
            passages = start(self.passages(choice, earlier))
            recalled = start(self.recalled(choice, going, earlier, turn_count))
        settled = going.result().settled
        turns = tuple(_within(preferred(recalled.result(), marks.result().turns), self.budgets.records_tokens))
        visible_turns = {entry.turn_id for entry in settled.tail} | {turn.turn_id for turn in turns}
        return TurnLayers(
            settled.summary,
            settled.tail,
            turns,
            passages.result(),
            settled.global_context,
            degraded=self._degraded_by_block(),
            remembered=records.result(),
            censors=self._censors(standing.result()),
            karma_floor=marks.result().floor,
            karma=marks.result().chosen(visible_turns),
            deltas=settled.deltas,
            going=going.result(),
            choice=choice.result(),
        )

    async def gather_small_talk(self) -> TurnLayers:
        """Return the layers that small talk needs, too: global context, censors, and the standing good answers."""
        async with asyncio.TaskGroup() as group:
            start = group.create_task
            session = start(self.session())
            global_context = start(self.global_context())
            standing = start(self.standing_records())
            marks = start(self.marks(session, None))
        continuing = self.sources.continuing
        going = continuing.small_talk(session.result(), global_context.result(), self.audience)
        return TurnLayers(
            global_context=going.settled.global_context,
            degraded=self._degraded_by_block(),
            censors=self._censors(standing.result()),
            karma_floor=marks.result().floor,
            going=going,
            choice=self.first,
        )

    async def session(self) -> Shown | None:
        """Read what the conversation's last prompt showed."""
        return await self._read("session", lambda: self.sources.continuing.before(self.key))

    async def global_context(self) -> tuple[ContextLine, ...] | None:
        model = model_in(self.key, self.audience)
        lines = await self._read(
            "global_context", lambda: self.sources.global_contexts.open(model, store=bool(self.turn_id))
        )
        if lines is None:
            return None
        return tuple(
            ContextLine(number=line.number, content=line.content, marked=line.origin in UNTRUSTED) for line in lines
        )

    async def documents(self, session: Task[Shown | None]) -> Documents | None:
        """Read the context documents: the newest, and the one that the last prompt showed."""
        return await self._read("summary", lambda: self.sources.continuing.documents(self.key, session))

    async def tail(self) -> tuple[TailEntry, ...] | None:
        """Read the last messages. One more than the tail may show, so that its first turn is complete."""
        if self.history is not None:
            return tuple(self.history)
        most = self.budgets.tail_lines + 1
        entries = await self._read(
            "tail", lambda: self.sources.transcript.tail(self.key, most, except_turn=self.turn_id)
        )
        return None if entries is None else tuple(map(tail_entry, entries))

    async def standing_records(self) -> Standing | None:
        """Read the records that hold without a search: censors and verbatim records."""
        if (selector := self.sources.selector) is None:
            return None
        return await self._read("censors", lambda: selector.standing(self._records_scope))

    async def turn_count(self) -> int:
        """Count the conversation's turns, if earlier ones may be recalled unasked; 0 if that is unknown."""
        if self.history is not None or not self.first.open:
            return 0
        reach = await self._read("records", lambda: self.sources.transcript.reach(self.key), [])
        return reach.turns if reach else 0

    async def choice(self, tail: Task[tuple[TailEntry, ...] | None]) -> Choice:
        async def last_messages() -> Sequence[TailEntry]:
            return await shield(tail) or ()

        return self.first if self.deciding is None else await self.deciding(last_messages)

    async def earlier_messages(self, tail: Task[tuple[TailEntry, ...] | None]) -> tuple[str, ...]:
        """Return people's messages just before, as searches use them; none if the tail could not be read."""
        return earlier_questions(await tail or (), self.cues)

    async def marks(self, session: Task[Shown | None], earlier: Task[tuple[str, ...]] | None) -> Marks:
        """Read the answers that people marked as good: those that stand for the session and, after *earlier* messages,
        those that are like the message."""
        if (karma := self.sources.karma) is None:
            return NO_MARKS
        text, before = (self.text, await earlier) if earlier else ("", ())

        async def standing() -> Sequence[str] | None:
            shown = await shield(session)
            return shown.karma_floor if shown else None

        found = await self._read("karma", lambda: karma.look(self.key, self.audience, text, before, stood=standing))
        return found or NO_MARKS

    async def going(
        self,
        session: Task[Shown | None],
        global_context: Task[tuple[ContextLine, ...] | None],
        documents: Task[Documents | None],
        tail: Task[tuple[TailEntry, ...] | None],
    ) -> SessionState:
        """Decide which messages, summary and lines are shown, and which stay as in the last prompt."""
        continuing, budgets = self.sources.continuing, self.budgets
        if self.history is not None:
            return continuing.instead(await global_context, self.history, budgets)
        read = (await session, await global_context, await documents, await tail)
        return continuing.go_on(*read, self.audience, budgets, self.today)

    async def records(
        self, standing: Task[Standing | None], earlier: Task[tuple[str, ...]], going: Task[SessionState]
    ) -> RecordsLayer:
        """Choose the frame, search the records, and select those that the rest of the prompt does not show already."""
        if (selector := self.sources.selector) is None:
            return RecordsLayer()
        scope, continues = self._records_scope, self.history is None
        state = await self._read("records", lambda: selector.read_state(scope, self.key, continues=continues))
        before = await earlier
        chosen = choose_frame(self.text, self.frames, before, self.cues)
        frame = _frame_input(chosen)
        if state is None:
            return RecordsLayer(frame)
        standing_records = await standing

        async def search() -> RecordLookup:
            pinned = (standing_records or await selector.standing(scope)).pinned
            query = search_text(self.text, self.cues) if state.count else ""
            return await selector.look(scope, query, chosen, before, state, pinned)

        found = await self._read("records", search)
        settled = (await going).settled
        if found is None:
            return RecordsLayer(frame)
        shown = [] if found.is_empty else _shown_texts(settled.tail, settled.summary, self.budgets)

        async def select() -> RecordsLayer:
            selected = await selector.selected(found, self.text, chosen, shown)
            if selected.keep is not None and self.turn_id:
                await selector.keep(self.key, selected.keep)
            return RecordsLayer(frame, selected.records, selected.selection, found.calibration)

        return await self._read("records", select) or RecordsLayer(frame)

    async def passages(self, choice: Task[Choice], earlier: Task[tuple[str, ...]]) -> tuple[Passage, ...]:
        """Search the documents, if the message needs them."""
        if not (await choice).wants_documents:
            return ()
        before, budgets = await earlier, self.budgets
        query, room = search_text(self.text, self.cues), passages_room(budgets.retrieved_tokens)
        found = await self._read(
            "retrieved",
            lambda: self.sources.documents.passages(
                self.key.scope, query, budgets.top_k, budgets.excerpt_bytes, room, lost=self.degraded, earlier=before
            ),
        )
        return tuple(found or ())

    async def recalled(
        self, choice: Task[Choice], going: Task[SessionState], earlier: Task[tuple[str, ...]], turn_count: Task[int]
    ) -> Sequence[RecalledTurn]:
        """Find earlier turns that the tail does not show whole: if the message asks about the conversation, or, if its
        cues left its needs open ("what is my sister's name?"), those that are surely relevant.

        If the second search fails, that is only logged: perhaps nothing is missing.
        """
        if self.history is not None:
            return ()
        decided, settled = await choice, (await going).settled
        shown = frozenset(entry.turn_id for entry in settled.tail) - settled.partly
        recall = partial(self.sources.turns.recall, self.key.scope, self.text)
        if decided.wants_history:
            before = await earlier
            found = await self._read(
                "records",
                lambda: recall(REQUESTED_TURNS, shown, earlier=before, lost=self.degraded, asked_for=True),
            )
            return found or ()
        if not self.first.open or await turn_count <= len(shown):
            return ()
        failed: list[DegradedBlock] = []

        async def unrequested() -> Sequence[RecalledTurn]:
            async with asyncio.timeout(UNREQUESTED_SECONDS):
                return await recall(UNREQUESTED_TURNS, shown, earlier=(), lost=[], asked_for=False)

        found = await self._read("records", unrequested, failed)
        if failed:
            _log.warning("recall.unsure", why=failed[0].why, workspace_id=self.key.workspace_id)
        return found or ()

    @property
    def _records_scope(self) -> Scope:
        return records_scope(self.key, self.audience)

    def _censors(self, standing: Standing | None) -> tuple[Censor, ...] | None:
        """Return the censors in force; if the store is down, those that were last read, or None if none ever were."""
        if (selector := self.sources.selector) is None:
            return ()
        return selector.last_censors(self._records_scope) if standing is None else standing.censors

    async def _read(
        self, block: str, read: Callable[[], Awaitable[T]], degraded: list[DegradedBlock] | None = None
    ) -> T | None:
        """Return the result of *read*; if it fails or takes too long, None, and name *block* in *degraded* (by default
        the turn's)."""
        degraded = self.degraded if degraded is None else degraded
        try:
            async with asyncio.timeout(self.sources.timeout_seconds):
                return await read()
        except TimeoutError:
            degraded.append(DegradedBlock(block=block, why="timeout"))
        except AgentRuntimeError as error:
            degraded.append(DegradedBlock(block=block, why=error_word(error)))
        except Exception as error:  # noqa: BLE001 - a lost layer degrades the turn, whatever broke it
            _log.exception("layer.failed", block=block)
            degraded.append(DegradedBlock(block=block, why=error_word(error)))
        return None

    def _degraded_by_block(self) -> tuple[DegradedBlock, ...]:
        return tuple(sorted(self.degraded, key=lambda part: part.block))


def _frame_input(chosen: Chosen) -> FrameInput:
    frame = chosen.frame
    return FrameInput(
        name=frame.name,
        description=frame.description,
        questions=frame.questions,
        reason=chosen.reason,
        cue=chosen.cue,
    )


def _shown_texts(tail: Sequence[TailEntry], summary: SummaryInput | None, budgets: PromptLimits) -> list[str]:
    """Return the lines of *tail* and the sections of *summary* that the prompt is sure to show.

    This is a lower bound, used to predict the prompt; `grounding.prompt.assemble` cuts the prompt itself.
    """
    limits = TailLimits.of(budgets)
    limits = limits._replace(bytes=min(limits.bytes, limits.tokens * SHORTEST_TOKEN_BYTES))
    shown = list(tail_section(last_turns(tail, limits.turns), limits).pieces)
    if summary is not None:
        section, left = summary_section(summary.text), budgets.summary_tokens * SHORTEST_TOKEN_BYTES
        for index in section.keep or range(len(section.pieces)):
            left -= utf8_length(section.pieces[index])
            if left < 0:
                break
            shown.append(section.pieces[index])
    return shown


def _within(turns: Sequence[RecalledTurn], tokens: int) -> Iterator[RecalledTurn]:
    """Yield the first of *turns*, until they have more characters together than *tokens* tokens can have."""
    characters = tokens * RECALLED_CHARACTERS_PER_TOKEN
    for turn in turns:
        if characters <= 0:
            return
        yield turn
        characters -= len(turn.text)


# Helpers that others use, too


def records_scope(key: ConversationKey, audience: str | None) -> Scope:
    """Return the scope of the records that a conversation's *audience* may read: the workspace's, and its own."""
    return Scope(key.workspace_id, audience=audience)


def first_error(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error that ended a group of tasks; callers handle errors by their class."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def error_word(error: BaseException) -> str:
    """Return an error's class as a word of metrics: ``IndexUnavailable`` is ``index_unavailable``."""
    name = type(error).__name__
    return "".join("_" + letter.lower() if letter.isupper() else letter for letter in name).lstrip("_")
