"""Gather the layers of one turn: everything that its prompt may show.

`Pipeline.begin` adds what the stores have for a turn to a round trip, so that it is read at once. Then
`StrategyChooser.choose` chooses the strategy: by the message's cues and, if these leave it open, by what a search finds
in the workspace's documents. `Gathering.gather` searches what else the strategy asks for. A layer that fails is named
in ``TurnLayers.degraded`` and left out; the turn goes on without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import structlog

from connectors.message import AgentRuntimeError, ConversationKey, Scope
from connectors.redis_calls import Answer, RoundTrip
from grounding.memory.context_document import ContextDocument
from grounding.memory.frames import SHIPPED, Chosen, Frames
from grounding.memory.frames import choose as choose_frame
from grounding.memory.global_context import UNTRUSTED, GlobalContexts, Line, model_in
from grounding.memory.karma import NOTHING as NO_MARKS
from grounding.memory.karma import Examples as Marks
from grounding.memory.karma import Karma, preferred
from grounding.memory.selection import RecordSelector, RuleSelector, Standing, StoredRecords, rules_for
from grounding.prompt import (
    SessionContinuity,
    SessionState,
    Shown,
    ShownState,
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
from grounding.retrieval import NOTHING, UNTRANSLATED, Found, PassageRoom
from grounding.strategy import (
    ENGLISH,
    Choice,
    Cues,
    FoldedText,
    Text,
    addresses_assistant,
    choose,
    choose_by_relevance,
    earlier_questions,
    leans_on,
    search_text,
)
from grounding.transcript import Reach, TailPage, Transcript

PASSAGES = 3
"""Passages of a prompt, if nothing else is said."""
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
_log = structlog.get_logger()


# What the pipeline reads from


class SearchesDocuments(Protocol):
    """Searches the workspace's documents."""

    async def awake(self, scope: Scope) -> None:
        """Wait until the documents can be searched, or cannot be for now: a moment after a start, later not at all."""

    async def look(self, scope: Scope, query: str, top_k: int, *, earlier: Sequence[str] = ()) -> Found:
        """Return what the documents have for *query*, enough for *top_k* passages, and how relevant that is.

        *earlier* are people's messages just before, the oldest first, on which *query* leans.
        """

    async def pack(
        self, scope: Scope, found: Found, room: PassageRoom, *, lost: list[DegradedBlock]
    ) -> Sequence[Passage]:
        """Return the relevant ones of *found* as passages that fit into *room*, the best first; none if nothing is
        relevant. Parts that could not be searched while others answered are added to *lost*."""


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

        *earlier* and *lost* are those of `SearchesDocuments`. Unless the message asks for turns (*asked_for*), returns
        only turns that are surely relevant.
        """


# The strategy of a turn


class Decision(NamedTuple):
    """The strategy of a turn and what the documents have for its message, if they were searched for it.

    ``why`` is a word for why they could not be searched; empty if they could, or if nobody wanted them.
    """

    choice: Choice
    found: Found | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class StrategyChooser:
    """Chooses the strategy of a turn.

    *timeout_seconds* bounds the search in the documents, and *asked_seconds* one that the message asks for; without
    *vocabulary* the message alone decides.
    """

    documents: SearchesDocuments
    timeout_seconds: float = 3.0
    asked_seconds: float = 10.0
    vocabulary: bool = True

    async def choose(
        self,
        key: ConversationKey,
        text: Text,
        cues: Cues,
        history: Sequence[TailEntry] = (),
        *,
        top_k: int = PASSAGES,
    ) -> Decision:
        """Return the strategy for *text* after *history*, in a prompt of *top_k* passages.

        Never raises: documents that cannot be searched in time have no say, and ``strategy.unsure`` is logged.
        """
        message = FoldedText.of(text)
        choice = choose(message, cues)
        leans = leans_on(message, history, cues)
        if choice.open and not self.vocabulary:
            return Decision(replace(choose_by_relevance(choice, leans=leans), open=False))
        if not (choice.open or choice.wants_documents):
            return Decision(choice)
        query, earlier = search_text(message, cues), earlier_questions(history, cues) if leans else ()
        found, why = await self._look(key.scope, query, top_k, earlier, asked_for=not choice.open)
        if choice.open:
            choice = choose_by_relevance(
                choice,
                found.relevance if found else NOTHING,
                leans=leans,
                passages=found.passages if found else 0,
                addresses_assistant=addresses_assistant(message, cues),
            )
        return Decision(choice, found, why)

    async def _look(
        self, scope: Scope, query: str, top_k: int, earlier: Sequence[str], *, asked_for: bool
    ) -> tuple[Found | None, str]:
        """Return what is found, or a word for why nothing can be searched."""
        try:
            await self.documents.awake(scope)
            async with asyncio.timeout(self.asked_seconds if asked_for else self.timeout_seconds):
                return await self.documents.look(scope, query, top_k, earlier=earlier), ""
        except (AgentRuntimeError, TimeoutError) as error:
            _log.warning("strategy.unsure", why=str(error) or "timeout", workspace_id=scope.workspace_id)
            return None, _why(error)
        except Exception as error:  # noqa: BLE001 - a turn is answered without, whatever broke
            _log.exception("strategy.unsure", why=type(error).__name__, workspace_id=scope.workspace_id)
            return None, _why(error)


# The layers of a turn


@dataclass(frozen=True, slots=True)
class RecordsLayer:
    """The frame of a message, and the standing rules and other records for it. ``selection`` is None if no records were
    looked for."""

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
    translation: str = ""
    """The message as the documents were searched for it, if they are in another language."""
    going: SessionState | None = None
    """The state of the session."""

    @property
    def before(self) -> Shown | None:
        """What the last prompt showed, if the session goes on."""
        return self.going.before if self.going else None


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Gathers the layers of turns. ``timeout_seconds`` bounds each search.

    Without a *selector* there are no records, without *karma* no good answers, without *rules* no standing rules.
    """

    transcript: Transcript
    continuing: SessionContinuity
    global_contexts: GlobalContexts
    documents: SearchesDocuments
    turns: RecallsTurns
    timeout_seconds: float
    selector: RecordSelector | None = None
    karma: Karma | None = None
    rules: RuleSelector | None = None

    def begin(
        self,
        trip: RoundTrip,
        key: ConversationKey,
        budgets: PromptLimits,
        turn_id: str = "",
        history: Sequence[TailEntry] | None = None,
        audience: str | None = None,
        asker: str = "",
    ) -> Gathering:
        """Add to *trip* what the stores have for a turn. The result gathers its layers after the trip was sent.

        A *history* replaces the stored conversation. *audience* are the readers of the answer: private data is shown
        only to its own audience. *asker* is the one person who asks (``connector:user_id``). Without a *turn_id*
        nothing is stored.
        """
        records, continues = records_scope(key, audience), history is None
        sessions, contexts = self.continuing.sessions, self.continuing.contexts
        return Gathering(
            self,
            key,
            budgets,
            turn_id,
            history,
            audience,
            asker,
            session=trip.add(sessions.get_call(key)) if sessions else None,
            lines=trip.add(self.global_contexts.open_call(model_in(key, audience), store=bool(turn_id))),
            document=trip.add(contexts.latest_call(key)) if continues else None,
            # One entry more than the tail may show, so that its first turn is complete.
            tail_page=trip.add(self.transcript.tail_page_call(key, budgets.tail_lines + 1)) if continues else None,
            reach=trip.add(self.transcript.reach_call(key)) if continues else None,
            stored_records=self.selector.read(trip, records, key, continues=continues) if self.selector else None,
            marks_version=trip.add(self.karma.version_call(key.scope)) if self.karma else None,
        )


@dataclass(frozen=True, slots=True)
class Gathering:
    """Gathers the layers of one turn. The answers are those of its round trip; each may have failed by itself."""

    sources: Pipeline
    key: ConversationKey
    budgets: PromptLimits
    turn_id: str
    history: Sequence[TailEntry] | None
    audience: str | None
    asker: str
    session: Answer[Shown | None] | None
    lines: Answer[tuple[Line, ...]]
    document: Answer[ContextDocument | None] | None
    tail_page: Answer[TailPage] | None
    reach: Answer[Reach] | None
    stored_records: StoredRecords | None
    marks_version: Answer[int] | None
    degraded: list[DegradedBlock] = field(default_factory=list)

    async def last_messages(self) -> tuple[TailEntry, ...] | None:
        """Return the last messages of the conversation; None if they cannot be read."""
        if self.tail_page is None:
            return tuple(self.history or ())
        page, most = self.tail_page, self.budgets.tail_lines + 1
        entries = await self._read(
            "tail",
            lambda: self.sources.transcript.tail(self.key, most, except_turn=self.turn_id, page=page.result()),
        )
        return None if entries is None else tuple(map(tail_entry, entries))

    async def gather(
        self,
        text: Text,
        decision: Decision,
        messages: tuple[TailEntry, ...] | None,
        *,
        cues: Cues = ENGLISH,
        frames: Frames = SHIPPED,
        today: str = "",
    ) -> TurnLayers:
        """Return the layers for *text*, about which *decision* was made and which follows *messages* (see
        `last_messages`).

        Small talk gets only the global context, the censors and the standing good answers. An error outside of a
        layer's reads is raised as it is.
        """
        choice, found, why = decision
        session = self._take("session", self.session)
        lines = self._take_lines()
        standing = await self._standing_records()
        if choice.small_talk:
            marks = await self._marks(session, "", ())
            going = self.sources.continuing.small_talk(session, lines, self.audience)
            return TurnLayers(
                global_context=going.settled.global_context,
                degraded=self._degraded_by_block(),
                censors=self._censors(standing),
                karma_floor=marks.floor,
                going=going,
            )
        message = FoldedText.of(text)
        query = search_text(message, cues)
        earlier = earlier_questions(messages or (), cues)
        going = await self._session_state(session, lines, messages, today)
        settled = going.settled
        try:
            async with asyncio.TaskGroup() as searches:
                start = searches.create_task
                marked = start(self._marks(session, message.text, earlier))
                records = start(self._records(message, query, frames, cues, standing, earlier, settled))
                rules = start(self._rules(query, standing, earlier))
                passages = start(self._passages(found)) if choice.wants_documents and found else None
                recalled = start(self._recalled(message.text, choice, settled, earlier))
        except BaseExceptionGroup as errors:
            raise first_error(errors) from errors
        marks, remembered = marked.result(), records.result()
        turns = tuple(_within(preferred(recalled.result(), marks.turns), self.budgets.records_tokens))
        visible_turns = {entry.turn_id for entry in settled.tail} | {turn.turn_id for turn in turns}
        translation = found.translation if found else UNTRANSLATED
        if why:
            self.degraded.append(DegradedBlock(block="retrieved", why=why))
        elif found and passages is None:
            self.degraded.extend(found.lost)
        if translation.why:
            self.degraded.append(DegradedBlock(block="translation", why=translation.why))
        return TurnLayers(
            settled.summary,
            settled.tail,
            turns,
            passages.result() if passages else (),
            settled.global_context,
            degraded=self._degraded_by_block(),
            remembered=replace(remembered, records=(*rules.result(), *remembered.records)),
            censors=self._censors(standing),
            karma_floor=marks.floor,
            karma=marks.chosen(visible_turns),
            deltas=settled.deltas,
            translation=translation.text,
            going=going,
        )

    # What the round trip has read

    def _take_lines(self) -> tuple[ContextLine, ...] | None:
        lines = self._take("global_context", self.lines)
        if lines is None:
            return None
        return tuple(
            ContextLine(number=line.number, content=line.content, marked=line.origin in UNTRUSTED) for line in lines
        )

    async def _standing_records(self) -> Standing | None:
        """Return the records that hold without a search: censors, standing rules and verbatim records."""
        selector, stored = self.sources.selector, self.stored_records
        if selector is None or stored is None:
            return None
        return await self._read("censors", lambda: selector.standing(self._records_scope, stored.standing.result()))

    async def _session_state(
        self,
        session: Shown | None,
        lines: tuple[ContextLine, ...] | None,
        messages: tuple[TailEntry, ...] | None,
        today: str,
    ) -> SessionState:
        """Decide which messages, summary and lines are shown, and which stay as in the last prompt."""
        continuing, document = self.sources.continuing, self.document
        if document is None:
            return continuing.instead(lines, messages or (), self.budgets)
        documents = await self._read("summary", lambda: continuing.documents(self.key, document.result(), session))
        return continuing.go_on(session, lines, documents, messages, self.audience, self.budgets, today)

    # What is searched

    async def _marks(self, session: Shown | None, text: str, earlier: Sequence[str]) -> Marks:
        """Return the answers that people marked as good: those that stand for the session and, after *earlier*
        messages, those that are like *text*."""
        karma, version = self.sources.karma, self.marks_version
        if karma is None or version is None:
            return NO_MARKS
        stood = session.karma_floor if session else None
        found = await self._read(
            "karma",
            lambda: karma.look(self.key, self.audience, text, earlier, version=version.result(), stood=stood),
        )
        return found or NO_MARKS

    async def _records(
        self,
        message: FoldedText,
        query: str,
        frames: Frames,
        cues: Cues,
        standing: Standing | None,
        earlier: Sequence[str],
        settled: ShownState,
    ) -> RecordsLayer:
        """Choose the frame, search the records, and select those that the rest of the prompt does not show already."""
        selector, stored = self.sources.selector, self.stored_records
        if selector is None or stored is None:
            return RecordsLayer()
        chosen = choose_frame(message, frames, earlier, cues)
        frame = _frame_input(chosen)

        async def select() -> RecordsLayer:
            state = stored.state
            pinned = (standing or await selector.standing(self._records_scope)).pinned
            wanted = query if state.count else ""
            found = await selector.look(self._records_scope, wanted, chosen, earlier, state, pinned)
            shown = [] if found.is_empty else _shown_texts(settled.tail, settled.summary, self.budgets)
            selected = await selector.selected(found, message.text, chosen, shown)
            if selected.keep is not None and self.turn_id:
                await selector.keep(self.key, selected.keep)
            return RecordsLayer(frame, selected.records, selected.selection, found.calibration)

        return await self._read("records", select) or RecordsLayer(frame)

    async def _rules(self, query: str, standing: Standing | None, earlier: Sequence[str]) -> tuple[SelectedRecord, ...]:
        """Return the standing rules that apply to *query*. If the search fails, return as many as fit: a rule too many
        does less harm than a rule too few."""
        selector = self.sources.rules
        rules = rules_for(self.asker, standing.rules) if standing else ()
        if selector is None or not rules:
            return ()
        failed: list[DegradedBlock] = []
        told = await self._read("records", lambda: selector.select(self._records_scope, rules, query, earlier), failed)
        if told is None:
            _log.warning("rules.unsure", why=failed[0].why, workspace_id=self.key.workspace_id)
            return selector.fit(rules)
        return told

    async def _passages(self, found: Found) -> tuple[Passage, ...]:
        """Pack what was *found* in the documents."""
        documents, scope, budgets = self.sources.documents, self.key.scope, self.budgets
        room = PassageRoom(budgets.top_k, budgets.excerpt_bytes, passages_room(budgets.retrieved_tokens))
        packed = await self._read(
            "retrieved",
            lambda: documents.pack(scope, found, room, lost=self.degraded),
        )
        return tuple(packed or ())

    async def _recalled(
        self, text: str, choice: Choice, settled: ShownState, earlier: Sequence[str]
    ) -> Sequence[RecalledTurn]:
        """Find earlier turns that the tail does not show whole: if the message asks about the conversation, or, if its
        cues left its needs open ("what is my sister's name?"), those that are surely relevant.

        If the second search fails, that is only logged: perhaps nothing is missing.
        """
        if self.reach is None:
            return ()
        shown = frozenset(entry.turn_id for entry in settled.tail) - settled.partly
        recall = partial(self.sources.turns.recall, self.key.scope, text)
        if choice.wants_history:
            most = UNREQUESTED_TURNS if choice.reason == "leans_on_conversation" else REQUESTED_TURNS
            found = await self._read(
                "records", lambda: recall(most, shown, earlier=earlier, lost=self.degraded, asked_for=True)
            )
            return found or ()
        if not choice.open:
            return ()
        failed: list[DegradedBlock] = []
        reach = self._take("records", self.reach, failed)
        if reach is None or reach.turns <= len(shown):
            return ()

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

    def _take(self, block: str, answer: Answer[T] | None, degraded: list[DegradedBlock] | None = None) -> T | None:
        """Return the result of *answer*; if it failed, None, and name *block* in *degraded* (by default the turn's)."""
        if answer is None:
            return None
        try:
            return answer.result()
        except Exception as error:  # noqa: BLE001 - a lost layer degrades the turn, whatever broke it
            self._note(block, error, degraded)
        return None

    async def _read(
        self, block: str, read: Callable[[], Awaitable[T]], degraded: list[DegradedBlock] | None = None
    ) -> T | None:
        """Return the result of *read*; if it fails or takes too long, None, and name *block* as `_take` does."""
        try:
            async with asyncio.timeout(self.sources.timeout_seconds):
                return await read()
        except Exception as error:  # noqa: BLE001 - a lost layer degrades the turn, whatever broke it
            self._note(block, error, degraded)
        return None

    def _note(self, block: str, error: Exception, degraded: list[DegradedBlock] | None) -> None:
        if not isinstance(error, TimeoutError | AgentRuntimeError):
            _log.error("layer.failed", block=block, exc_info=error)
        why = _why(error)
        (self.degraded if degraded is None else degraded).append(DegradedBlock(block=block, why=why))

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


def _why(error: BaseException) -> str:
    return "timeout" if isinstance(error, TimeoutError) else error_word(error)


def error_word(error: BaseException) -> str:
    """Return an error's class as a word of metrics: ``IndexUnavailable`` is ``index_unavailable``."""
    name = type(error).__name__
    return "".join("_" + letter.lower() if letter.isupper() else letter for letter in name).lstrip("_")
