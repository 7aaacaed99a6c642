"""Gathers what one turn may need to know; the only owner of memory assembly.

What a turn is given is a list of layers (`grounding.pipeline`); they are begun together (`grounding.pipeline`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

import structlog

from connectors.message import AgentRuntimeError, ConversationKey, Scope
from grounding.memory.frames import SHIPPED, Chosen, Frames, choose
from grounding.memory.global_context import UNTRUSTED, GlobalContexts, model_in
from grounding.memory.karma import NOTHING as UNMARKED
from grounding.memory.karma import Karma, preferred
from grounding.memory.karma import Looked as Marks
from grounding.memory.selection import RecordLookup, RecordSelector, ScopeState, Selected, Standing
from grounding.prompt import Continuing, Documents, Going, Shown, ShownState, last_turns, tail_entry
from grounding.prompt import layers as summary_layer
from grounding.prompt import layers as tail_layer
from grounding.prompt_input import (
    Budgets,
    Calibration,
    Censor,
    ContextLine,
    DegradedBlock,
    FrameInput,
    Passage,
    RecalledTurn,
    SelectedRecord,
    Selection,
    SummaryInput,
    TailEntry,
    Trace,
)
from grounding.retrieval import Match
from grounding.strategy import (
    ASSISTANT,
    ENGLISH,
    Choice,
    Cues,
    addresses_assistant,
    asked_before,
    considered,
    is_follow_up,
    search_text,
    without_courtesy,
)
from grounding.strategy import choose as strategy_choose
from grounding.transcript import Entry, Reach, Transcript

# ---- recalling ----
#
# Earlier turns of a conversation, as one turn needs them: beyond what its tail shows.


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
        `grounding.pipeline.FindsPassages`. Where they are not *asked_for*, none unless they surely do."""


@dataclass(frozen=True, slots=True)
class Recalling:
    """What of a conversation is recalled, and whether it is worth a look. Raises what its parts raise."""

    turns: RecallsTurns

    async def asked_for(
        self,
        key: ConversationKey,
        text: str,
        earlier: Sequence[str],
        settled: ShownState,
        lost: list[DegradedBlock],
    ) -> Sequence[RecalledTurn]:
        """Turns that bear on *text*, which asks about the conversation, but for those that are shown whole, as
        *settled*; *earlier* is what people asked just before."""
        return await self.turns.recall(
            key.scope, text, ASKED_FOR_TURNS, _shown(settled), earlier=earlier, lost=lost, asked_for=True
        )

    async def unasked(self, key: ConversationKey, text: str, settled: ShownState, turns: int) -> Sequence[RecalledTurn]:
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


def _shown(settled: ShownState) -> frozenset[str]:
    return frozenset(entry.turn_id for entry in settled.tail) - settled.partly


# ---- remembering ----
#
# What of the typed records one turn is given, beside the other layers: the frame, records, censors, calibration.


SHORTEST_TOKEN_BYTES = 3
"""What of tail and summary is sure to be shown: so many bytes for each token of their budgets."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """What was chosen for a turn. ``selection`` is None where nothing was looked up."""

    frame: FrameInput | None = None
    records: tuple[SelectedRecord, ...] = ()
    selection: Selection | None = None
    calibration: Calibration | None = None


NOTHING = Remembered()


@dataclass(frozen=True, slots=True)
class Asked:
    """A message, and in which frame it was asked."""

    text: str
    chosen: Chosen
    earlier: tuple[str, ...]

    @property
    def frame(self) -> FrameInput:
        frame = self.chosen.frame
        return FrameInput(
            name=frame.name,
            description=frame.description,
            questions=frame.questions,
            reason=self.chosen.reason,
            cue=self.chosen.cue,
        )


@dataclass(frozen=True, slots=True)
class Remembering:
    """The records of all workspaces, as turns ask for them. The steps are apart, so that looking goes on beside the
    other layers, and choosing knows what they brought."""

    selecting: RecordSelector

    async def standing(self, key: ConversationKey, audience: str | None) -> Standing:
        """What holds without being searched for. Raises `connectors.message.StoreUnavailable`."""
        return await self.selecting.standing(seen_in(key, audience))

    def last_censors(self, key: ConversationKey, audience: str | None) -> tuple[Censor, ...] | None:
        """Those that were in force a moment ago; None where nobody has looked yet."""
        return self.selecting.last_standing(seen_in(key, audience))

    async def there(self, key: ConversationKey, audience: str | None, *, continues: bool) -> ScopeState:
        """What can be read before it is known what is asked. Raises `connectors.message.StoreUnavailable`."""
        return await self.selecting.there(seen_in(key, audience), key, continues=continues)

    async def look(
        self,
        key: ConversationKey,
        audience: str | None,
        asked: Asked,
        cues: Cues,
        there: ScopeState,
        standing: Standing,
    ) -> RecordLookup:
        """What there is for a message. Raises what searches raise."""
        query = search_text(asked.text, cues) if there.count else ""  # nothing is searched where there is no record
        return await self.selecting.look(
            seen_in(key, audience), query, asked.chosen, asked.earlier, there, standing.pinned
        )

    async def chosen(
        self, key: ConversationKey, turn_id: str, asked: Asked, looked: RecordLookup, shown: Sequence[str]
    ) -> Remembered:
        """The records out of *looked*; without a *turn_id* nothing is kept for the next message. Raises
        `connectors.message.StoreUnavailable`."""
        selected: Selected = await self.selecting.selected(looked, asked.text, asked.chosen, shown)
        if selected.keep is not None and turn_id:
            await self.selecting.keep(key, selected.keep)
        return Remembered(asked.frame, selected.records, selected.selection, looked.calibration)


def asked_in(text: str, earlier: tuple[str, ...], frames: Frames, cues: Cues) -> Asked:
    """*text* in its frame, after what people asked *earlier*. Pure."""
    return Asked(text, choose(text, frames, earlier, cues), earlier)


def shown_besides(tail: Sequence[TailEntry], summary: SummaryInput | None, budgets: Budgets) -> list[str]:
    """What the prompt is sure to show of *tail* and *summary*. Pure."""
    room = min(budgets.tail_bytes, budgets.tail_tokens * SHORTEST_TOKEN_BYTES)
    said = last_turns(tail, budgets.history_turns)
    shown = list(tail_layer.section(said, budgets.tail_lines, room).pieces)
    if summary is not None:
        section, left = summary_layer.summary_section(summary.text), budgets.summary_tokens * SHORTEST_TOKEN_BYTES
        for index in section.keep or range(len(section.pieces)):
            left -= len(section.pieces[index].encode("utf-8", "surrogatepass"))
            if left < 0:
                break
            shown.append(section.pieces[index])
    return shown


def seen_in(key: ConversationKey, audience: str | None) -> Scope:
    """Whose records are seen where a conversation's *audience* reads: the workspace's, and theirs."""
    return Scope(key.workspace_id, audience=audience)


# ---- gathering ----
#
# How the layers of one turn are gathered: all of them side by side, each once, each within its time.
#
# A layer is a function of the `Gathering`. It reads from the `Sources`, and waits for the layers that it needs with
# `Gathering.of`; what it asks of a store goes through `Gathering.bounded`, so that one that fails is named and left out
# while the others come all the same.


T = TypeVar("T")
Layer = Callable[["Gathering"], Coroutine[Any, Any, T]]
"""What a turn is given of one kind."""
Said = Callable[[], Awaitable[Sequence[TailEntry]]]
"""What was said last, as soon as it is known."""
Decides = Callable[[Said], Awaitable[Choice]]
"""Decides what a message needs that the cues leave open."""
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
class Sources:
    """Where the layers come from. ``timeout_seconds`` bounds what each of them asks."""

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


@dataclass(frozen=True, slots=True)
class Message:
    """What layers are gathered for; see `grounding.pipeline.Pipeline.ground`. ``first`` is what the cues chose."""

    key: ConversationKey
    text: str
    first: Choice
    budgets: Budgets
    turn_id: str
    history: Sequence[TailEntry] | None
    audience: str | None
    cues: Cues
    frames: Frames
    today: str
    deciding: Decides | None


class Gathering:
    """The layers of one message while they are gathered, as tasks of *group*."""

    def __init__(self, sources: Sources, message: Message, group: asyncio.TaskGroup) -> None:
        self.sources = sources
        self.message = message
        self.degraded: list[DegradedBlock] = []
        self._group = group
        self._begun: dict[Layer[Any], asyncio.Task[Any]] = {}

    def begin(self, layers: Iterable[Layer[Any]]) -> None:
        """Begin all of *layers*, in their order."""
        for layer in layers:
            self.of(layer)

    def of(self, layer: Layer[T]) -> asyncio.Task[T]:
        """*layer*, which begins now if nobody has begun it. Who waits for it within a time of their own has to shield
        it: it is not theirs to give up."""
        task = self._begun.get(layer)
        if task is None:
            task = self._begun[layer] = self._group.create_task(layer(self))
        return task

    async def bounded(
        self, block: str, get: Callable[[], Awaitable[T]], lost: list[DegradedBlock] | None = None
    ) -> T | None:
        """What *get* gives in time; None where it fails, and then *lost* (the turn's ``degraded``) names *block*."""
        named = self.degraded if lost is None else lost
        try:
            async with asyncio.timeout(self.sources.timeout_seconds):
                return await get()
        except TimeoutError:
            named.append(DegradedBlock(block=block, why="timeout"))
        except AgentRuntimeError as error:
            named.append(DegradedBlock(block=block, why=why(error)))
        except Exception as error:  # noqa: BLE001 - a lost layer degrades the turn, whatever broke it
            _log.exception("layer.failed", block=block)
            named.append(DegradedBlock(block=block, why=why(error)))
        return None


def true_error(several: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error that ended a group of tasks, by whose class callers know what to do."""
    found: BaseException = several
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


def why(error: BaseException) -> str:
    """An error's class as a word of metrics: ``IndexUnavailable`` is ``index_unavailable``."""
    name = type(error).__name__
    return "".join("_" + letter.lower() if letter.isupper() else letter for letter in name).lstrip("_")


# ---- given ----
#
# What a turn is given: each layer as a function of the `Gathering`, which says what it needs, and what it reads.


async def choice(of: Gathering) -> Choice:
    """What the message needs: as the cues chose, or as is decided where they leave it open."""

    async def said() -> Sequence[TailEntry]:
        last = of.of(tail)
        return await asyncio.shield(last) or ()

    deciding = of.message.deciding
    if deciding is None:
        return of.message.first
    return await deciding(said)


async def session(of: Gathering) -> Shown | None:
    """What the conversation's last prompt showed."""
    return await of.bounded("session", lambda: of.sources.continuing.before(of.message.key))


async def global_context(of: Gathering) -> tuple[ContextLine, ...] | None:
    """What is always known, whatever else is wanted."""
    message = of.message
    model = model_in(message.key, message.audience)
    lines = await of.bounded(
        "global_context", lambda: of.sources.global_contexts.open(model, store=bool(message.turn_id))
    )
    if lines is None:
        return None
    return tuple(
        ContextLine(number=line.number, content=line.content, marked=line.origin in UNTRUSTED) for line in lines
    )


async def documents(of: Gathering) -> Documents | None:
    """The context documents: the newest, and the one that the last prompt showed."""
    before = of.of(session)
    return await of.bounded("summary", lambda: of.sources.continuing.documents(of.message.key, before))


async def tail(of: Gathering) -> tuple[TailEntry, ...] | None:
    """What was said last; the history that was given, where one was."""
    message = of.message
    if message.history is not None:
        return tuple(message.history)
    most = message.budgets.tail_lines + 1
    entries = await of.bounded(
        "tail", lambda: of.sources.transcript.tail(message.key, most, except_turn=message.turn_id)
    )
    return None if entries is None else tuple(tail_entry(entry) for entry in entries)


async def earlier(of: Gathering) -> tuple[str, ...]:
    """What people asked just before, as a search uses it."""
    last = await of.of(tail)
    return asked_before(last or (), of.message.cues)


async def begin_session(of: Gathering) -> Going:
    """How the session goes on, as soon as it is known what there is."""
    continuing, message = of.sources.continuing, of.message
    before, lines, newest, said = of.of(session), of.of(global_context), of.of(documents), of.of(tail)
    if message.history is not None:
        return continuing.instead(await lines, message.history, message.budgets)
    there = await before, await lines, await newest, await said
    return continuing.go_on(*there, message.audience, message.budgets, message.today)


async def going_on_with_small_talk(of: Gathering) -> Going:
    """The same for a message that needs nothing."""
    before, lines = of.of(session), of.of(global_context)
    return of.sources.continuing.small_talk(await before, await lines, of.message.audience)


async def marked_lines(of: Gathering) -> Marks:
    """What people marked as good: all that stands in the session, and how like it is to the message."""
    if of.sources.karma is None:
        return UNMARKED
    return await _marks(of, of.message.text, await of.of(earlier))


async def standing_marks(of: Gathering) -> Marks:
    """Of what people marked as good what stands in the session."""
    return await _marks(of, "", ())


async def _marks(of: Gathering, text: str, before: Sequence[str]) -> Marks:
    if of.sources.karma is None:
        return UNMARKED
    karma, message = of.sources.karma, of.message

    async def stood() -> Sequence[str] | None:
        shown = await asyncio.shield(of.of(session))
        return shown.karma_floor if shown else None

    found = await of.bounded("karma", lambda: karma.look(message.key, message.audience, text, before, stood=stood))
    return found or UNMARKED


async def standing(of: Gathering) -> Standing | None:
    """The records that hold without being searched for."""
    if of.sources.remembering is None:
        return None
    remembering = of.sources.remembering
    return await of.bounded("censors", lambda: remembering.standing(of.message.key, of.message.audience))


async def censors(of: Gathering) -> tuple[Censor, ...] | None:
    """What must not be said or done; while the store is away, what must not a moment ago, if that is known."""
    if of.sources.remembering is None:
        return ()
    holding = await of.of(standing)
    if holding is None:
        return of.sources.remembering.last_censors(of.message.key, of.message.audience)
    return holding.censors


async def looked(of: Gathering) -> tuple[Asked, RecordLookup | None] | None:
    """The frame, and the records that there are for the message. What does not depend on the tail is read beside it;
    the search begins when it is there."""
    if of.sources.remembering is None:
        return None
    remembering, message = of.sources.remembering, of.message
    key, audience, continues = message.key, message.audience, message.history is None
    there = await of.bounded("records", lambda: remembering.there(key, audience, continues=continues))
    asked = asked_in(message.text, await of.of(earlier), message.frames, message.cues)
    if there is None:
        return asked, None
    known, holding = there, await of.of(standing)

    async def found() -> RecordLookup:
        holds = await remembering.standing(key, audience) if holding is None else holding
        return await remembering.look(key, audience, asked, message.cues, known, holds)

    return asked, await of.bounded("records", found)


async def remembered(of: Gathering) -> Remembered:
    """What of the records is shown, once it is known what is shown besides."""
    settled, found = (await of.of(begin_session)).settled, await of.of(looked)
    if of.sources.remembering is None or found is None:
        return NOTHING
    remembering, message, (asked, there) = of.sources.remembering, of.message, found
    if there is None:
        return Remembered(asked.frame)
    # Where there is no record nothing can be said twice.
    known, shown = there, [] if there.is_empty else shown_besides(settled.tail, settled.summary, message.budgets)
    chosen = await of.bounded("records", lambda: remembering.chosen(message.key, message.turn_id, asked, known, shown))
    return Remembered(asked.frame) if chosen is None else chosen


async def passages(of: Gathering) -> tuple[Passage, ...]:
    """What the documents say. The search begins when the tail is there; without one the message is searched for
    alone."""
    if not (await of.of(choice)).wants_documents:
        return ()
    message, before = of.message, await of.of(earlier)
    query, budgets = search_text(message.text, message.cues), message.budgets
    room = tail_layer.room(budgets.retrieved_tokens)
    found = await of.bounded(
        "retrieved",
        lambda: of.sources.documents.passages(
            message.key.scope, query, budgets.top_k, budgets.excerpt_bytes, room, lost=of.degraded, earlier=before
        ),
    )
    return tuple(found or ())


async def reach(of: Gathering) -> Reach | None:
    """How much was said in all, where earlier turns may be looked for unasked; None where that is not known."""
    message = of.message
    if message.history is not None or not message.first.open:
        return None
    return await of.bounded("records", lambda: of.sources.transcript.reach(message.key), [])


async def recalled_turns(of: Gathering) -> Sequence[RecalledTurn]:
    """Earlier turns, where they are asked for, or surely bear on the message; it says so where a look failed that
    nobody asked for, and nothing is missed for certain."""
    message = of.message
    if message.history is not None:
        return ()
    decided, settled = await of.of(choice), (await of.of(begin_session)).settled
    recalling, unsure = Recalling(of.sources.turns), list[DegradedBlock]()
    key, text, found = message.key, message.text, None
    if decided.wants_history:
        before = await of.of(earlier)
        found = await of.bounded("records", lambda: recalling.asked_for(key, text, before, settled, of.degraded))
    elif is_looked_for(message.first, decided):
        said = await of.of(reach)
        turns = said.turns if said else 0
        found = await of.bounded("records", lambda: recalling.unasked(key, text, settled, turns), unsure)
    if unsure:
        _log.warning("recall.unsure", why=unsure[0].why, workspace_id=key.workspace_id)
    return found or ()


# ---- pipeline ----


__all__ = ["Grounds", "Pipeline", "true_error", "why"]

_LAYERS: tuple[Layer[Any], ...] = (
    session,
    global_context,
    documents,
    tail,
    standing,
    reach,
    choice,
    marked_lines,
    looked,
    passages,
    begin_session,
    recalled_turns,
    remembered,
    censors,
)
"""What a turn is given. Those come first that wait for no other: what they ask goes out together."""
_SMALL_TALK: tuple[Layer[Any], ...] = (
    session,
    global_context,
    standing,
    standing_marks,
    going_on_with_small_talk,
    censors,
)
"""What it is given for small talk."""


@dataclass(frozen=True, slots=True)
class Grounds:
    """What was gathered for a turn, and what was decided that it needs. ``degraded`` names the blocks that failed."""

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
    choice: Choice | None = None

    @property
    def before(self) -> Shown | None:
        """What the last prompt showed, if the session goes on."""
        return self.going.before if self.going else None


@dataclass(frozen=True, slots=True)
class Pipeline(Sources):
    """The layers of all turns."""

    async def ground(
        self,
        key: ConversationKey,
        text: str,
        choice: Choice,
        budgets: Budgets,
        turn_id: str = "",
        history: Sequence[TailEntry] | None = None,
        audience: str | None = None,
        cues: Cues = ENGLISH,
        frames: Frames = SHIPPED,
        today: str = "",
        *,
        deciding: Decides | None = None,
    ) -> Grounds:
        """Everything that *choice*, made by *cues*, asks for, or what *deciding* makes of it: never small talk. A
        *history* given stands in for the stored one.

        *audience* is who reads the answer: what is kept is shown where it is theirs, or the workspace's. Without a
        *turn_id* nothing is stored. A layer that fails is left out and named in ``degraded``; the others come all the
        same. What breaks outside of what a layer asks is raised as it is.
        """
        message = Message(key, text, choice, budgets, turn_id, history, audience, cues, frames, today, deciding)
        try:
            async with asyncio.TaskGroup() as group:
                gathered = Gathering(self, message, group)
                gathered.begin(_SMALL_TALK if choice.small_talk else _LAYERS)
        except BaseExceptionGroup as several:
            raise true_error(several) from several
        return _of_small_talk(gathered) if choice.small_talk else _grounds(gathered)


def _of_small_talk(gathered: Gathering) -> Grounds:
    going = gathered.of(going_on_with_small_talk).result()
    return Grounds(
        global_context=going.settled.global_context,
        degraded=_by_block(gathered.degraded),
        censors=gathered.of(censors).result(),
        karma_floor=gathered.of(standing_marks).result().floor,
        going=going,
        choice=gathered.message.first,
    )


def _grounds(gathered: Gathering) -> Grounds:
    going, marks = gathered.of(begin_session).result(), gathered.of(marked_lines).result()
    settled, found = going.settled, gathered.of(recalled_turns).result()
    recalled = tuple(as_many(preferred(found, marks.turns), gathered.message.budgets.records_tokens))
    return Grounds(
        settled.summary,
        settled.tail,
        recalled,
        gathered.of(passages).result(),
        settled.global_context,
        remembered=gathered.of(remembered).result(),
        degraded=_by_block(gathered.degraded),
        censors=gathered.of(censors).result(),
        karma_floor=marks.floor,
        karma=marks.chosen({one.turn_id for one in settled.tail} | {one.turn_id for one in recalled}),
        deltas=settled.deltas,
        going=going,
        choice=gathered.of(choice).result(),
    )


def _by_block(degraded: Sequence[DegradedBlock]) -> tuple[DegradedBlock, ...]:
    return tuple(sorted(degraded, key=lambda part: part.block))


# ---- deciding ----
#
# Decides the strategy of a turn: by the message's cues and, where none decides, by the workspace's documents.


LATEST_ENTRIES = 6
"""Entries in which what the person said last is looked for."""
HOPELESS_LOG_ODDS = -4.0
"""Below this what was said before cannot make a message that is no follow-up a question for documents."""


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
        choice = strategy_choose(text, cues)
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
