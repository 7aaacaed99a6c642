"""Select the records for a message: first look them up, then choose among them with pure functions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from connectors.message import ConversationKey, Scope
from grounding.documents.followup import spelled_out
from grounding.documents.sparse import term_set
from grounding.memory.frames.choosing import Chosen
from grounding.memory.frames.complexity import scale
from grounding.memory.frames.frame import LOADED
from grounding.memory.global_context_origin import Foreign
from grounding.memory.records.dates import days_meant
from grounding.memory.records.patterns import is_heard_preference
from grounding.memory.records.port import Found, ReadsRecords
from grounding.memory.records.record import Record, State, Type
from grounding.memory.selection.calibration import MOST_REVIEWED, calibrated
from grounding.memory.selection.censoring import in_force
from grounding.memory.selection.filling import Costs, Filled, Level, TypeBudgets, fill, shared_out
from grounding.memory.selection.kept import Kept, KeptRecord, KeptSelections
from grounding.memory.selection.relevance import Floor, fitting
from grounding.memory.selection.repeating import without_repeated
from grounding.memory.selection.reuse import CARRIED, carried, reason
from grounding.memory.selection.scoring import Scored, Weights, ranked
from grounding.run_context import Calibration, Censor, SelectedRecord, Selection, SelectionReason

FOUND_AT_MOST = 40
"""Most records of one search: more than any budget shows."""
RESERVED_TOKENS = 40
"""Tokens of the block's budget for its first and last line."""
FEW_TERMS = 1
"""A message of at most this many terms ("and why?", "pgvector?") is searched together with the question before."""
LONGEST_QUERY_CHARACTERS = 2000
"""The part of a message that is searched. A person who pastes a log asks about its beginning, or in the first lines."""
LONG_TEXT_CHARACTERS = 4000
"""Longer texts are processed in a thread: texts seen for the first time take long."""
CALIBRATION_SECONDS = 5.0
"""How long the calibration of reviewed decisions is cached."""
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


@dataclass(frozen=True, slots=True)
class There:
    """What is known of a scope's records before the search: their number and the conversation's last selection."""

    count: int
    kept: Kept | None


@dataclass(frozen=True, slots=True)
class Looked:
    """The records found for a message, with their relevance, and the last selection as it reads now.

    ``thin``: the message is too short to have a subject of its own.
    """

    found: tuple[tuple[Found, float], ...] = ()
    kept: Kept | None = None
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

    @property
    def characters(self) -> int:
        """The characters of all records in it."""
        found = (one.record for one, _ in self.found)
        return sum(len(one.text) for one in (*found, *self.read, *self.pinned, *self.due))

    def similarity(self, record_id: str, otherwise: float) -> float:
        """Return the similarity of that record and the message; *otherwise* if the search did not find it."""
        return next((one.similarity for one, _ in self.found if one.record.id == record_id), otherwise)


@dataclass(frozen=True, slots=True)
class Selected:
    """The selected records, the best first, and the selection to store; None if the stored one stays."""

    records: tuple[SelectedRecord, ...]
    selection: Selection
    keep: Kept | None = None


class Selecting:
    """Selects records.

    *floor* returns the relevance floor of a scope. It is called after the search, because the embedding model may not
    be known before. *costs* returns the tokens of a record in a prompt.
    """

    def __init__(
        self,
        records: ReadsRecords,
        kept: KeptSelections,
        *,
        weights: Weights,
        budgets: TypeBudgets,
        costs: Costs,
        floor: Callable[[Scope], Floor],
        now: Now = lambda: datetime.now(UTC),
    ) -> None:
        self._records = records
        self._kept = kept
        self._weights = weights
        self._budgets = budgets
        self._costs = costs
        self._floor = floor
        self._now = now
        self._calibrations: dict[str, tuple[float, Calibration | None]] = {}
        self._standing: dict[Scope, tuple[Censor, ...]] = {}

    async def standing(self, scope: Scope) -> Standing:
        """Read the records that hold without a search. Raises `connectors.message.StoreUnavailable`; see
        `last_standing`."""
        records = await self._records.standing(scope)
        censors = in_force(records)
        if len(self._standing) >= _KNOWN_AT_MOST:
            self._standing.clear()
        self._standing[scope] = censors
        return Standing(censors, tuple(one for one in records if one.type in LOADED))

    def last_standing(self, scope: Scope) -> tuple[Censor, ...] | None:
        """Return the censors that were in force when this process last read them, for use while the store is down.

        None means that it never read them, not that there are none.
        """
        return self._standing.get(scope)

    async def there(self, scope: Scope, key: ConversationKey, *, continues: bool) -> There:
        """Read what does not depend on the question. *continues*: the stored conversation goes on."""
        count, kept = await asyncio.gather(self._records.count(scope), self._last(key if continues else None))
        return There(count, kept)

    async def look(
        self, scope: Scope, text: str, chosen: Chosen, earlier: Sequence[str], there: There, pinned: Sequence[Record]
    ) -> Looked:
        """Search the records for *text*, said after *earlier*. *pinned* are the pinned records of `standing`.

        Raises `connectors.message.StoreUnavailable`, `IndexUnavailable` and `EmbedderUnavailable`.
        """
        count, kept = there.count, there.kept
        if not count:
            return Looked(is_empty=True)
        text = text[:LONGEST_QUERY_CHARACTERS]
        own = len(term_set(text))
        query = "\n".join([*earlier[-1:], text]) if chosen.acts else spelled_out(text, earlier, own, FEW_TERMS)
        found, read, calibration, due = await asyncio.gather(
            self._records.search(scope, query, FOUND_AT_MOST, LOADED),
            self._records.read(scope, [one.id for one in kept.records]) if kept and kept.records else _nothing(),
            self._calibration(scope),
            self._due(scope, text),
        )
        floor = fitting(self._floor(scope), found)
        asked = {query, text} if own else {query}  # a short message may ask about only one part of the message before
        if sum(len(one.record.text) for one in found) > LONG_TEXT_CHARACTERS:
            relevant = await asyncio.to_thread(_with_relevance, floor, asked, found, count)
        else:
            relevant = _with_relevance(floor, asked, found, count)
        return Looked(
            relevant,
            kept,
            tuple(read),
            tuple(pinned),
            tuple(due),
            own <= FEW_TERMS,
            calibration=calibration,
            minimum=floor.minimum,
        )

    async def selected(self, looked: Looked, text: str, chosen: Chosen, shown: Sequence[str]) -> Selected:
        """Run `select`, in a thread if there is much text to process."""
        if looked.characters + sum(map(len, shown)) > LONG_TEXT_CHARACTERS:
            return await asyncio.to_thread(self.select, looked, text, chosen, shown)
        return self.select(looked, text, chosen, shown)

    def select(self, looked: Looked, text: str, chosen: Chosen, shown: Sequence[str]) -> Selected:
        """Select the records for *text* from *looked*; *shown* is the rest of the prompt. Pure except for the date."""
        if looked.is_empty:
            return Selected((), Selection(why="nothing_kept", found=0, budget=0))
        # Midnight, so that scores do not change within a day.
        today = self._now().replace(hour=0, minute=0, second=0, microsecond=0)
        budgets = shared_out(self._budgets, chosen.frame, scale(text))
        due = self._fitting_due(looked)
        by_day = {one.record.id for one in due}
        bearing = ranked(looked.found, chosen.frame, self._weights, looked.minimum, today)
        bearing = [one for one in bearing if one.record.id not in by_day]
        above = [*due, *bearing]
        fresh = [*due, *without_repeated(bearing, shown)]
        said = {one.record.id for one in above} - {one.record.id for one in fresh}
        why = reason(looked.kept, looked.read, chosen, above, said, looked.pinned, thin=looked.thin)
        if why in ("reused", "aside") and by_day - {one.id for one in (looked.kept.records if looked.kept else ())}:
            why = "topic"
        if why == "reused":
            assert looked.kept is not None
            return self._repeat_selection(looked, looked.kept, len(above), shown)
        if why == "aside":
            assert looked.kept is not None
            return self._repeat_selection(looked, looked.kept.model_copy(update={"records": ()}), 0, shown, why)
        whole = sum(budgets.values())
        stands = self._standing_texts(looked, shown)
        held = {one.id for one in looked.pinned}
        others = [one for one in fresh if one.record.id not in held]
        if why != "changed":
            brought = held | {one.record.id for one in above}
            if left := _carried_over(looked, brought, CARRIED - len(others)):
                others = [*due, *without_repeated([*others[len(due) :], *left], shown)]
        # Verbatim records return to the prompt when the tail no longer says them, so space is reserved for them.
        taken = RESERVED_TOKENS + sum(self._costs(one, "summary") for one in looked.pinned)
        filled = fill(others, _reduced(budgets, taken), self._costs)
        kept = Kept(
            frame=chosen.frame.name, records=tuple(map(_kept, filled)), pinned=tuple(sorted(held)), budget=whole
        )
        records = tuple(
            _selected(one.scored.record, one.level, one.scored.score, one.scored.similarity, one.tokens)
            for one in (*stands, *filled)
        )
        return Selected(records, Selection(why=why, found=len(above), budget=whole), kept)

    def _fitting_due(self, looked: Looked) -> list[Scored]:
        """Return the items that are due when the message asks, the soonest first, as many as fit into the items'
        budget."""
        held = {one.id for one in looked.pinned}
        due = [
            Scored(one, 1.0, looked.similarity(one.id, 0.0), DUE_RELEVANCE) for one in looked.due if one.id not in held
        ]
        return [one.scored for one in fill(due, {Type.ITEM: self._budgets.get(Type.ITEM, 0)}, self._costs)]

    async def keep(self, key: ConversationKey, kept: Kept) -> None:
        """Store the selection for the next message. Raises `connectors.message.StoreUnavailable`."""
        await self._kept.keep(key, kept)

    async def _last(self, key: ConversationKey | None) -> Kept | None:
        return None if key is None else await self._kept.get(key)

    def _standing_texts(self, looked: Looked, shown: Sequence[str]) -> list[Filled]:
        """Return the pinned records in full, without preferences that *shown* says in the same words."""
        return [
            Filled(Scored(one, 1.0, looked.similarity(one.id, 0.0), 0.0), "summary", self._costs(one, "summary"))
            for one in looked.pinned
            if not (is_heard_preference(one) and _says(shown, one))
        ]

    def _repeat_selection(
        self, looked: Looked, kept: Kept, found: int, shown: Sequence[str], why: SelectionReason = "reused"
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
        records = tuple(
            _selected(one.scored.record, one.level, one.scored.score, one.scored.similarity, one.tokens)
            for one in (*self._standing_texts(looked, shown), *before)
        )
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
        """Return the calibration of the workspace, from a short cache."""
        known = self._calibrations.get(scope.workspace_id)
        if known is not None and known[0] > time.monotonic():
            return known[1]
        decisions = await self._records.list(
            Scope(scope.workspace_id), (Type.DECISION,), (State.REVIEWED,), MOST_REVIEWED
        )
        found = calibrated(decisions)
        if len(self._calibrations) >= _KNOWN_AT_MOST:
            self._calibrations.clear()
        self._calibrations[scope.workspace_id] = (time.monotonic() + CALIBRATION_SECONDS, found)
        return found


def _with_relevance(
    floor: Floor, asked: Collection[str], found: Sequence[Found], count: int
) -> tuple[tuple[Found, float], ...]:
    """Return each of *found* with its highest relevance to one of *asked*; *count* is the number of all records."""
    return tuple((one, max(floor.relevance(each, one, count) for each in asked)) for one in found)


def _carried_over(looked: Looked, brought: Collection[str], room: int) -> list[Scored]:
    """Return records of the last selection that stay beside those that this message *brought*."""
    left = carried(looked.kept, looked.read, brought, room)
    return [Scored(record, was.score, looked.similarity(was.id, 0.0), 0.0) for record, was in left]


def _says(shown: Sequence[str], record: Record) -> bool:
    """Say whether *shown* contains the exact words of *record*."""
    words = " ".join(record.text.casefold().split())
    return any(words in " ".join(text.casefold().split()) for text in shown)


async def _nothing() -> Sequence[Record]:
    return ()


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


def _selected(record: Record, level: Level, score: float, similarity: float, tokens: int) -> SelectedRecord:
    return SelectedRecord(
        id=record.id,
        type=record.type.value,
        level=level,
        text=_text(record, level),
        state=record.state.value,
        made_on=record.created_at[:10],
        due=record.due,
        score=round(score, 6),
        similarity=round(similarity, 6),
        origin=_foreign(record),
        verbatim=record.verbatim,
        tokens=tokens,
    )


def _text(record: Record, level: Level) -> str:
    if record.verbatim:
        return record.text
    return record.micro if level == "micro" else record.summary


def _foreign(record: Record) -> Foreign:
    origin = record.provenance.origin
    return origin if origin in ("retrieved", "others") else ""


def as_shown(record: Record, level: Level) -> SelectedRecord:
    """Return *record* as a prompt would show it, to measure its size."""
    return _selected(record, level, 0.0, 0.0, 0)
