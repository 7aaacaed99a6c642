"""Select the records for a message.

`RecordSelector` looks them up and then chooses among them with the pure functions of ``relevance.py`` and below it:
score, repetition, reuse of the last selection, budgets.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from pydantic import ValidationError

from connectors.message import ConversationKey, Scope, redis_key
from connectors.redis_calls import Answer, RedisCall, RoundTrip
from grounding.memory.frames import LOADED, Chosen, Frame, scale
from grounding.memory.records import FoundRecord, Record, Records, State, Type, days_meant
from grounding.memory.selection.censors import in_force
from grounding.memory.selection.relevance import Floor, bearing, fitting, likeness, method_query, probability
from grounding.prompt_input import Calibration, Censor, SelectedRecord, Selection, SelectionReason, Strict
from grounding.retrieval import NEGATIONS, spell_out, term_set

if TYPE_CHECKING:
    from redis.asyncio import Redis

SEARCHED: Mapping[Type, int] = {
    Type.DECISION: 20,
    Type.FACT: 30,
    Type.PROCEDURE: 10,
    Type.EPISODE: 10,
    Type.ITEM: 20,
}
"""Most records of each type that are searched for, so that no type crowds out another."""
MOST_METHODS = 10
"""Most procedures that are searched for by the frame of a message."""
RESERVED_TOKENS = 40
"""Tokens of the block's budget for its first and last line."""
FEW_TERMS = 1
"""A message of at most this many terms ("and why?", "pgvector?") is searched together with the question before."""
LONGEST_QUERY_CHARACTERS = 2000
"""The part of a message that is searched. A person who pastes a log asks about its beginning, or in the first lines."""
_KNOWN_AT_MOST = 1000
MAX_OPEN_ITEMS = 500
"""Most open items that are read if a message names a day: the newest."""
DUE_RELEVANCE = 5.0
"""The log-odds of an item that is due on the day that the message asks about."""
Now = Callable[[], datetime]


@dataclass(frozen=True, slots=True)
class Standing:
    """The records of a scope that hold without a search."""

    censors: tuple[Censor, ...]
    """The censors in force."""
    pinned: tuple[Record, ...]
    """Verbatim records; they stand in every prompt."""
    rules: tuple[Record, ...] = ()
    """Standing rules of all people; see `RuleSelector`."""


@dataclass(frozen=True, slots=True)
class ScopeState:
    """What is known of a scope's records before the search: their number and the conversation's last selection."""

    count: int
    kept: LastSelection | None


@dataclass(frozen=True, slots=True)
class StoredRecords:
    """What a turn needs of the records without a search. ``kept`` is None if no stored conversation goes on."""

    standing: Answer[list[Record]]
    count: Answer[int]
    kept: Answer[LastSelection | None] | None

    @property
    def state(self) -> ScopeState:
        """What does not depend on the question. Raises `connectors.message.StoreUnavailable`."""
        return ScopeState(self.count.result(), self.kept.result() if self.kept else None)


@dataclass(frozen=True, slots=True)
class RecordLookup:
    """The records found for a message, with their relevance, and the last selection as it reads now.

    ``thin``: the message is too short to have a subject of its own.
    """

    found: tuple[tuple[FoundRecord, float], ...] = ()
    kept: LastSelection | None = None
    read: tuple[Record, ...] = ()
    pinned: tuple[Record, ...] = ()
    """Verbatim records; they stand in every prompt."""
    due: tuple[Record, ...] = ()
    """Open items that are due on the days that the message names, the soonest first."""
    thin: bool = False
    is_empty: bool = False
    """Whether the scope has no records at all."""
    calibration: Calibration | None = None
    minimum: float = 0.0
    """The relevance below which a record found is not shown."""

    def similarity(self, record_id: str, otherwise: float) -> float:
        """Return the similarity of that record and the message; *otherwise* if the search did not find it."""
        return next((likeness(one) for one, _ in self.found if one.record.id == record_id), otherwise)


@dataclass(frozen=True, slots=True)
class Selected:
    """The selected records, the best first, and the selection to store; None if the stored one stays."""

    records: tuple[SelectedRecord, ...]
    selection: Selection
    keep: LastSelection | None = None


class RecordSelector:
    """Selects records.

    *floor* returns the relevance floor of a scope. It is called after the search, because the embedding model may not
    be known before. *costs* returns the tokens of a record in a prompt.
    """

    def __init__(
        self,
        records: Records,
        kept: LastSelections,
        *,
        costs: Costs,
        floor: Callable[[Scope], Floor],
        budgets: TypeBudgets | None = None,
        now: Now = lambda: datetime.now(UTC),
    ) -> None:
        self._records = records
        self._kept = kept
        self._budgets = budgets or BUDGETS
        self._costs = costs
        self._floor = floor
        self._now = now
        self._standing: dict[Scope, tuple[Censor, ...]] = {}

    def read(self, trip: RoundTrip, scope: Scope, key: ConversationKey, *, continues: bool) -> StoredRecords:
        """Add to *trip* what a turn needs of the records without a search. *continues*: the stored conversation goes
        on."""
        return StoredRecords(
            trip.add(self._records.standing_call(scope)),
            trip.add(self._records.count_call(scope)),
            trip.add(self._kept.get_call(key)) if continues else None,
        )

    async def standing(self, scope: Scope, newest: list[Record] | None = None) -> Standing:
        """Return the records that hold without a search; *newest* are those of `StoredRecords`. Raises
        `connectors.message.StoreUnavailable`; see `last_censors`."""
        records = await self._records.standing(scope, newest)
        censors = in_force(records)
        if len(self._standing) >= _KNOWN_AT_MOST:
            self._standing.clear()
        self._standing[scope] = censors
        pinned, rules = ([one for one in records if one.type in types] for types in (LOADED, (Type.RULE,)))
        return Standing(censors, tuple(pinned), tuple(rules))

    def last_censors(self, scope: Scope) -> tuple[Censor, ...] | None:
        """Return the censors that were in force when this process last read them, for use while the store is down.

        None means that it never read them, not that there are none.
        """
        return self._standing.get(scope)

    async def look(
        self,
        scope: Scope,
        text: str,
        chosen: Chosen,
        earlier: Sequence[str],
        there: ScopeState,
        pinned: Sequence[Record],
    ) -> RecordLookup:
        """Search the records for *text*, said after *earlier*. *pinned* are the pinned records of `standing`.

        Raises `connectors.message.StoreUnavailable`, `IndexUnavailable` and `EmbedderUnavailable`.
        """
        count, kept = there.count, there.kept
        if not count:
            return RecordLookup(is_empty=True)
        text = text[:LONGEST_QUERY_CHARACTERS]
        own = len(term_set(text))
        query = "\n".join([*earlier[-1:], text]) if chosen.acts else spell_out(text, earlier, own, FEW_TERMS)
        frame = chosen.frame if chosen.reason in ("cue", "goes_on") else None
        found, methods, read, calibration, due = await asyncio.gather(
            self._records.search_by_type(scope, query, SEARCHED),
            self._records.search_by_type(scope, method_query(frame) if frame else "", {Type.PROCEDURE: MOST_METHODS}),
            self._records.read(scope, [one.id for one in kept.records] if kept else []),
            self._calibration(scope),
            self._due(scope, text),
        )
        floor = fitting(self._floor(scope), found)
        asked = {query, text} if own else {query}  # a short message may ask about only one part of the message before
        relevant = await asyncio.to_thread(bearing, floor, asked, found, count, frame, methods)
        return RecordLookup(
            relevant,
            kept,
            tuple(read),
            tuple(pinned),
            tuple(due),
            own <= FEW_TERMS,
            calibration=calibration,
            minimum=floor.minimum,
        )

    async def selected(self, looked: RecordLookup, text: str, chosen: Chosen, shown: Sequence[str]) -> Selected:
        """Run `select` in a thread: texts seen for the first time take long."""
        return await asyncio.to_thread(self.select, looked, text, chosen, shown)

    def select(self, looked: RecordLookup, text: str, chosen: Chosen, shown: Sequence[str]) -> Selected:
        """Select the records for *text* from *looked*; *shown* is the rest of the prompt. Pure except for the date."""
        if looked.is_empty:
            return Selected((), Selection(why="nothing_kept", found=0, budget=0))
        # Midnight, so that scores do not change within a day.
        today = self._now().replace(hour=0, minute=0, second=0, microsecond=0)
        budgets = message_budgets(self._budgets, chosen.frame, scale(text))
        due = self._fitting_due(looked)
        by_day = {one.record.id for one in due}
        bearing = ranked(looked.found, chosen.frame, looked.minimum, today)
        bearing = [one for one in bearing if one.record.id not in by_day]
        above = [*due, *bearing]
        fresh = [*due, *without_repeated(bearing, shown)]
        said = {one.record.id for one in above} - {one.record.id for one in fresh}
        why = reason(looked.kept, looked.read, chosen, above, said, looked.pinned, thin=looked.thin)
        if why in ("reused", "aside") and by_day - {one.id for one in (looked.kept.records if looked.kept else ())}:
            why = "topic"
        if why == "reused":
            assert looked.kept is not None
            return self._repeat_selection(looked, looked.kept, len(above))
        if why == "aside":
            assert looked.kept is not None
            return self._repeat_selection(looked, looked.kept.model_copy(update={"records": ()}), 0, why)
        whole = sum(budgets.values())
        stands = self._standing_texts(looked)
        held = {one.id for one in looked.pinned}
        others = [one for one in fresh if one.record.id not in held]
        if why != "changed":
            brought = held | {one.record.id for one in above}
            if left := _carried_over(looked, brought, CARRIED - len(others)):
                others = [*due, *without_repeated([*others[len(due) :], *left], shown)]
        # Verbatim records return to the prompt when the tail no longer says them, so space is reserved for them.
        taken = RESERVED_TOKENS + sum(self._costs(one, "summary") for one in looked.pinned)
        filled = fill(others, _reduced(budgets, taken), self._costs)
        kept = LastSelection(
            frame=chosen.frame.name, records=tuple(map(_kept, filled)), pinned=tuple(sorted(held)), budget=whole
        )
        records = tuple(map(_selected, (*stands, *filled)))
        return Selected(records, Selection(why=why, found=len(above), budget=whole), kept)

    async def keep(self, key: ConversationKey, kept: LastSelection) -> None:
        """Store the selection for the next message. Raises `connectors.message.StoreUnavailable`."""
        await self._kept.keep(key, kept)

    def _fitting_due(self, looked: RecordLookup) -> list[Scored]:
        """Return the items that are due when the message asks, the soonest first, as many as fit into the items'
        budget."""
        held = {one.id for one in looked.pinned}
        due = [
            Scored(one, 1.0, looked.similarity(one.id, 0.0), DUE_RELEVANCE) for one in looked.due if one.id not in held
        ]
        return [one.scored for one in fill(due, {Type.ITEM: self._budgets.get(Type.ITEM, 0)}, self._costs)]

    def _standing_texts(self, looked: RecordLookup) -> list[Filled]:
        """Return the pinned records in full."""
        return [
            Filled(Scored(one, 1.0, looked.similarity(one.id, 0.0), 0.0), "summary", self._costs(one, "summary"))
            for one in looked.pinned
        ]

    def _repeat_selection(
        self,
        looked: RecordLookup,
        kept: LastSelection,
        found: int,
        why: SelectionReason = "reused",
    ) -> Selected:
        """Repeat the last selection behind the pinned records.

        Order and levels stay; texts and similarities are current. The stored selection stays as it is.
        """
        held = {one.id for one in looked.pinned}
        by_id = {one.id: one for one in looked.read}
        before = [
            Filled(
                Scored(by_id[one.id], one.score, looked.similarity(one.id, one.similarity), 0.0),
                one.level,
                self._costs(by_id[one.id], one.level),
            )
            for one in kept.records
            if one.id not in held
        ]
        records = tuple(map(_selected, (*self._standing_texts(looked), *before)))
        return Selected(records, Selection(why=why, found=found, budget=kept.budget))

    async def _due(self, scope: Scope, text: str) -> Sequence[Record]:
        """Return the open items that are due on the days that *text* names or asks about, the soonest first."""
        days = days_meant(text, self._now())
        if days is None:
            return ()
        first, last = days
        items = await self._records.list(scope, (Type.ITEM,), (State.OPEN,), MAX_OPEN_ITEMS)
        due = [one for one in items if one.due and first <= one.due[:10] and (not last or one.due[:10] <= last)]
        return sorted(due, key=lambda one: (one.due, one.id))

    async def _calibration(self, scope: Scope) -> Calibration | None:
        """Return the calibration of the workspace."""
        decisions = await self._records.list(
            Scope(scope.workspace_id), (Type.DECISION,), (State.REVIEWED,), MOST_REVIEWED
        )
        return calibrated(decisions)


def _carried_over(looked: RecordLookup, brought: Collection[str], room: int) -> list[Scored]:
    """Return at most *room* records of the last selection that this message has not *brought* again.

    The most recently useful come first. Superseded records are left out.
    """
    by_id = {one.id: one for one in looked.read if one.state is not State.SUPERSEDED}
    left = [
        Scored(by_id[one.id], one.score, looked.similarity(one.id, 0.0), 0.0)
        for one in (looked.kept.records if looked.kept else ())
        if one.id in by_id and one.id not in brought
    ]
    return left[: max(room, 0)]


def _reduced(budgets: TypeBudgets, tokens: int) -> dict[Type, int]:
    """Return *budgets* reduced by *tokens* in all, starting with the largest."""
    left = dict(budgets)
    for of in sorted(left, key=lambda one: (-left[one], one.value)):
        taken = min(left[of], tokens)
        left[of] -= taken
        tokens -= taken
    return left


def _kept(filled: Filled) -> KeptRecord:
    one = filled.scored
    return KeptRecord(
        id=one.record.id,
        level=filled.level,
        state=one.record.state.value,
        score=round(one.score, 6),
        similarity=round(one.similarity, 6),
    )


def _selected(filled: Filled) -> SelectedRecord:
    record, origin = filled.scored.record, filled.scored.record.provenance.origin
    short = record.micro if filled.level == "micro" else record.summary
    is_whole = record.verbatim or record.type is Type.RULE
    return SelectedRecord(
        id=record.id,
        type=record.type.value,
        level=filled.level,
        text=record.text if is_whole else short,
        state=record.state.value,
        made_on=record.created_at[:10],
        due=record.due,
        score=round(filled.scored.score, 6),
        similarity=round(filled.scored.similarity, 6),
        origin=origin if origin in ("retrieved", "others") else "",
        verbatim=is_whole,
        tokens=filled.tokens,
    )


def as_selected(record: Record, level: Level) -> SelectedRecord:
    """Return *record* as a prompt would show it, to measure its size."""
    return _selected(Filled(Scored(record, 0.0, 0.0, 0.0), level, 0))


# Score: the order of relevant records
#
# The score is the sum of research note 009 (context management): similarity .50, type .15, recency .15 (a half-life of
# 30 days), outcome .10, usage .05, confidence .05. It only orders records that passed the relevance floor: no boost
# lifts a record over the floor.

HALF_LIFE_DAYS = 30.0
OUTCOMES = {"success": 1.2, "partial": 1.0, "pending": 0.9, "failure": 0.8}
"""The figures of the note; 1 for a record without an outcome."""
LARGEST_USAGE = 1.5
STANDING: Mapping[State, float] = {
    State.CORE: 0.2,
    State.CONFIRMED: 0.1,
    State.EFFECTIVE: 0.2,
    State.INEFFECTIVE: -0.3,
    State.SUPERSEDED: -0.5,
    State.DONE: -0.3,
    State.CANCELLED: -0.5,
    State.ARCHIVED: -0.1,
}
"""Added to the priority of the type, by state: core facts and effective procedures come first."""
_LEAST_STEP = 1e-6


@dataclass(frozen=True, slots=True)
class Scored:
    """A record above the floor: its score, and the log-odds that it is relevant to the message."""

    record: Record
    score: float
    similarity: float
    relevance: float


def score(found: FoundRecord, frame: Frame, today: datetime) -> float:
    """Return the score of one record."""
    record = found.record
    return (
        0.50 * min(max(likeness(found), 0.0), 1.0)
        + 0.15 * (frame.priority(record.type) + STANDING.get(record.state, 0.0))
        + 0.15 * recency(record.created_at, today)
        + 0.10 * OUTCOMES.get(record.outcome or "", 1.0)
        + 0.05 * usage(record.activations)
        + 0.05 * record.confidence
    )


def recency(at: str, today: datetime) -> float:
    """Return 1 for today, halved every `HALF_LIFE_DAYS`. *at* is RFC 3339."""
    made = datetime.fromisoformat(at)
    days = max((today - made).total_seconds() / 86_400, 0.0)
    return math.exp(-math.log(2) / HALF_LIFE_DAYS * days)


def usage(activations: int) -> float:
    """Return 1 for at most one activation, growing to `LARGEST_USAGE`."""
    return min(1.0 + math.log10(activations) * 0.1, LARGEST_USAGE) if activations > 0 else 1.0


def ranked(found: Sequence[tuple[FoundRecord, float]], frame: Frame, minimum: float, today: datetime) -> list[Scored]:
    """Return those of *found* (with their relevance) that reach *minimum*, the best first; ties go by id.

    A superseded record ranks below its successor, if that is among them.
    """
    kept = {one.record.id: (one, relevance) for one, relevance in found if relevance >= minimum}
    own = {name: score(one, frame, today) for name, (one, _) in kept.items()}
    scored = [
        Scored(one.record, _below_successors(name, own, kept), likeness(one), relevance)
        for name, (one, relevance) in kept.items()
    ]
    return sorted(scored, key=lambda one: (-one.score, one.record.id))


def _below_successors(name: str, own: Mapping[str, float], kept: Mapping[str, tuple[FoundRecord, float]]) -> float:
    """Return the score of *name*, reduced below the scores of all its successors."""
    worth, steps, visited = own[name], 0, {name}
    successor = kept[name][0].record.superseded_by
    while successor in kept and successor not in visited:
        visited.add(successor)
        steps += 1
        worth = min(worth, own[successor] - steps * _LEAST_STEP)
        successor = kept[successor][0].record.superseded_by
    return worth


# Repetition: records that the prompt says already
#
# A repetition is the same statement. A difference in a name, a number, a negation, an outcome or a day is a difference.

LEAST_WORDS = 3
"""Shorter records occur in every text; they must match a line as a whole."""
_WORD = re.compile(r"(?<!\w)[-−]\d+(?:[.,:/]\d+)*|\d+(?:[.,:/]\d+)*(?!\w)|\w+|[%$€£<>=≠]")
_IDLE_WORDS = frozenset(("a", "an", "the", "is", "are", "that"))


def without_repeated(ranked: Sequence[Scored], shown: Iterable[str]) -> list[Scored]:
    """Return *ranked* without the records that a line of *shown* or a better record repeats.

    A line repeats a record if it contains its words one after the other, apart from articles, and no further negation;
    a question repeats nothing. A record with an outcome or a due day is repeated only by one that has the same.
    """
    lines = [_statement(line) for text in shown for line in text.splitlines() if not line.rstrip().endswith("?")]
    by_particulars: dict[tuple[str, str], list[_Statement]] = {}
    kept: list[Scored] = []
    for one in ranked:
        statement, particulars = _statement(one.record.text), (one.record.outcome or "", one.record.due)
        others = by_particulars.setdefault(particulars, [])
        said = others if any(particulars) else [*lines, *others]
        if statement.words and any(line.repeats(statement) for line in said):
            continue
        others.append(statement)
        kept.append(one)
    return kept


@dataclass(frozen=True, slots=True)
class _Statement:
    """The words of a text in their order, between spaces, and how many there are and how many of them negate."""

    words: str
    count: int
    negations: int

    def repeats(self, other: _Statement) -> bool:
        if other.count < LEAST_WORDS:
            return self.words == other.words
        return f" {other.words} " in f" {self.words} " and self.negations == other.negations


def _statement(text: str) -> _Statement:
    said = text.casefold().replace("n't", " not").replace("n’t", " not")
    words = [word for word in _WORD.findall(said) if word not in _IDLE_WORDS]
    return _Statement(" ".join(words), len(words), sum(word in NEGATIONS for word in words))


# Reuse: whether the records of the last message also serve the next one
#
# Every message searches for its own records, which is cheap. The prompt nevertheless repeats the last records, in the
# same bytes, if they cover the message: the best record found is among them, and so is at least `COVERED_SHARE` of all
# that was found, weighted by the probability of relevance. A message whose cue switches the frame selects anew, because
# types and budgets differ. One without a cue ("how much is it?"), or that has a cue of the frame before, too, stays.
#
# Selecting anew adds the records found and drops those that were useful longest ago. Up to `CARRIED` records stay in
# the prompt, so that a return to an earlier subject finds its records there.

COVERED_SHARE = 0.25
"""Measured on 300 questions about five long chats (locomo-dev), each after each other question of its chat, with single
statements as records. Of the questions that needed records not shown, 1.7 % were given the old ones; of those with an
answer in common, 48 %. At .5 these are 0.7 and 26 %; at .25 without the rule about the best record 13 and 65 %."""
CARRIED = 10
"""How many records stay in the prompt.

Measured by ``python -m bench.records refresh`` on chats of people with each other and with an assistant. With 0 carried
records the selection changed in .50 and .44 of the turns, with up to 10 in .22 and .28, with up to 12 in .20 and .24.
Of the records shown .74 and .83, .36 and .57, .33 and .52 were relevant to the message at hand.
"""


def covered(ranked: Sequence[Scored], known: Collection[str]) -> float:
    """Return the share (0 to 1) of the relevance of *ranked* that the ids *known* hold; 1 if nothing is relevant."""
    weights = {one.record.id: probability(one.relevance) for one in ranked}
    whole = sum(weights.values())
    return sum(weight for name, weight in weights.items() if name in known) / whole if whole else 1.0


def reason(
    kept: LastSelection | None,
    read: Sequence[Record],
    chosen: Chosen,
    ranked: Sequence[Scored],
    said: Collection[str],
    pinned: Collection[Record] = (),
    *,
    thin: bool,
) -> SelectionReason:
    """Return why the records must be selected anew.

    ``reused`` means that the old ones serve. ``aside`` means that no records are shown, because none is relevant to a
    message with a subject of its own.

    *read* are the records of *kept* that still exist. *ranked* are the records found, the best first. *said* are the
    ids of those that the prompt says anyway. *pinned* are the records of every prompt. *thin* means that the message is
    too short to have a subject of its own.
    """
    if kept is None:
        return "cold"
    if chosen.acts:
        return "acting"
    if _has_changed(kept, read):
        return "changed"
    known, held = {one.id for one in kept.records}, {one.id for one in pinned}
    if held != set(kept.pinned):
        return "changed"
    if not ranked:
        return "reused" if thin or not known - held else "aside"
    known |= set(said) | held
    if chosen.reason == "cue" and kept.frame not in chosen.cued:
        return "frame"
    best = max(ranked, key=lambda one: one.relevance)
    if best.record.id not in known or covered(ranked, known) < COVERED_SHARE:
        return "topic"
    return "reused"


def _has_changed(kept: LastSelection, read: Sequence[Record]) -> bool:
    """Say whether a record was deleted or superseded."""
    before = {one.id: one.state for one in kept.records}
    if len(read) != len(before):
        return True
    return any(one.state is State.SUPERSEDED and before[one.id] != State.SUPERSEDED.value for one in read)


# Budgets: the tokens of each type
#
# Each type has a budget, shaped by the frame and scaled by the demands of the message. The best record comes first. A
# record is shown as its summary, or as its micro if the summary does not fit, never in full. Types share what others
# leave.

Level = Literal["summary", "micro"]
LEVELS: tuple[Level, ...] = ("summary", "micro")
TypeBudgets = Mapping[Type, int]
"""Tokens per type."""
BUDGETS: TypeBudgets = {
    Type.DECISION: 2000,
    Type.FACT: 1500,
    Type.PROCEDURE: 1500,
    Type.EPISODE: 1000,
    Type.ITEM: 500,
}
"""What the frame and the demands of the message start from."""
Costs = Callable[[Record, Level], int]
"""Returns the tokens that a record takes at a level, including the rest of its line."""


@dataclass(frozen=True, slots=True)
class Filled:
    """A record to show, with its level and its tokens."""

    scored: Scored
    level: Level
    tokens: int


def message_budgets(base: TypeBudgets, frame: Frame, scale: float) -> dict[Type, int]:
    """Return the budgets for a message: *base* shaped by *frame*, times *scale*.

    The total is never more than the total of *base* times *scale*.
    """
    shaped = {of: max(base.get(of, 0), 0) * frame.share(of) for of in LOADED}
    most, asked = sum(max(base.get(of, 0), 0) for of in LOADED), sum(shaped.values())
    down = min(most / asked, 1.0) if asked else 0.0
    return {of: int(tokens * down * scale) for of, tokens in shaped.items()}


def fill(ranked: Sequence[Scored], budgets: TypeBudgets, costs: Costs) -> list[Filled]:
    """Return as many of *ranked* (the best first) as fit, in that order."""
    left = dict(budgets)
    placed: dict[str, Filled] = {}
    waiting: list[Scored] = []
    for one in ranked:
        of = one.record.type
        if taken := _fit(one, left.get(of, 0), costs):
            placed[one.record.id] = taken
            left[of] -= taken.tokens
        else:
            waiting.append(one)
    spare = sum(left.values())
    for one in waiting:
        if taken := _fit(one, spare, costs):
            placed[one.record.id] = taken
            spare -= taken.tokens
    return [placed[one.record.id] for one in ranked if one.record.id in placed]


def _fit(one: Scored, room: int, costs: Costs) -> Filled | None:
    """Return *one* at the most detailed level that fits into *room* tokens."""
    for level in LEVELS:
        tokens = costs(one.record, level)
        if tokens <= room:
            return Filled(one, level, tokens)
    return None


# The last selection of each conversation, so that the next message can reuse it
#
# Key (owner ``selection``, under the conversation's tag): ``kept:<conversation>``, which expires with the session. It
# holds ids and levels of detail but no text; texts are read from the records.

_OWNER = "selection"


class KeptRecord(Strict):
    """One record that was shown; see `grounding.prompt_input.run_context.SelectedRecord`."""

    id: str
    level: Literal["summary", "micro"]
    state: str
    score: float
    similarity: float


class LastSelection(Strict):
    """The last selection: the frame, the records, the best first, and the budget in tokens."""

    v: Literal[1] = 1
    frame: str
    records: tuple[KeptRecord, ...] = ()
    pinned: tuple[str, ...] = ()
    """Ids of the records that stood in every prompt then, whether they fitted or not."""
    budget: int


class LastSelections:
    """The last selections of all conversations. Every method raises `connectors.message.StoreUnavailable`."""

    def __init__(self, redis: Redis, idle_seconds: int) -> None:
        self._redis = redis
        self._idle_seconds = idle_seconds

    def get_call(self, key: ConversationKey) -> RedisCall[LastSelection | None]:
        """Return the call that reads the last selection: None after a pause, or if another release stored it."""
        return RedisCall.of("GETEX", self._key(key), "EX", self._idle_seconds, parse=_last_selection)

    async def keep(self, key: ConversationKey, kept: LastSelection) -> None:
        """Store *kept* in place of the last selection."""
        await self._redis.set(self._key(key), kept.model_dump_json(), ex=self._idle_seconds)

    async def forget(self, key: ConversationKey) -> None:
        """Delete the last selection, so that the next message selects anew."""
        await self._redis.delete(self._key(key))

    @staticmethod
    def _key(key: ConversationKey) -> str:
        return redis_key(_OWNER, key.tag, "kept", key.encoded)


def _last_selection(raw: str | None) -> LastSelection | None:
    try:
        return None if raw is None else LastSelection.model_validate_json(raw)
    except ValidationError:
        return None


# Calibration: how well people predicted the outcomes of their decisions
#
# Accuracy is the mean outcome (success 1, partial ½, failure 0) of the reviewed decisions. The Brier score is the mean
# squared distance between confidence and outcome (Brier, "Verification of forecasts expressed in terms of probability",
# 1950): 0 is perfect, a constant ½ gets .25.

LEAST_REVIEWED = 10
"""With fewer reviews, chance outweighs skill."""
MOST_REVIEWED = 200
"""Only the newest count, because people learn."""
VALUES = {"success": 1.0, "partial": 0.5, "failure": 0.0}


def calibrated(decisions: Iterable[Record]) -> Calibration | None:
    """Return the calibration of the reviewed *decisions*; None if they are fewer than `LEAST_REVIEWED`."""
    pairs = [
        (one.confidence, VALUES[one.outcome])
        for one in decisions
        if one.state is State.REVIEWED and one.outcome in VALUES
    ]
    if len(pairs) < LEAST_REVIEWED:
        return None
    return Calibration(
        reviewed=len(pairs),
        accuracy=round(sum(value for _, value in pairs) / len(pairs), 4),
        brier=round(sum((sure - value) ** 2 for sure, value in pairs) / len(pairs), 4),
        confidence=round(sum(sure for sure, _ in pairs) / len(pairs), 4),
    )
