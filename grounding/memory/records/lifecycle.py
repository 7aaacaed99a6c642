"""The lifecycle of a record: every transition is a pure function of the record, the event and the time.

Each function returns the changed record, or the same object if nothing changes. It raises `RecordRefused` if the
record's type does not allow the event. Times (*at*) are RFC 3339 in UTC.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from grounding.memory.records.model import (
    HIDDEN,
    NeverDeleted,
    Outcome,
    Record,
    RecordRefused,
    Severity,
    State,
    Type,
    is_shortened,
)


@dataclass(frozen=True, slots=True)
class Rules:
    """The thresholds of the transitions. Effectiveness is successes / (successes + failures)."""

    core_confirmations: int = 3
    effectiveness_activations: int = 5
    effective_above: float = 0.6
    ineffective_below: float = 0.4
    block_activations: int = 3
    retired_false_positives: int = 3
    summarized_days: int = 30
    archived_days: int = 90
    sums_up: bool = False
    """Whether a model sums up long records."""


TakenBack = Literal["confirm", "success", "failure", "false_positive"]
"""Feedback on a record that a person can take back."""

BY_HAND: dict[Type, dict[State, tuple[State, ...]]] = {
    Type.FACT: {
        State.NEW: (State.CONFIRMED, State.CORE),
        State.CONFIRMED: (State.CORE,),
        State.CORE: (State.CONFIRMED,),
        State.SUPERSEDED: (State.CONFIRMED,),
        State.INACTIVE: (State.NEW,),
    },
    Type.EPISODE: {
        State.ACTIVE: (State.SUMMARIZED, State.ARCHIVED),
        State.SUMMARIZED: (State.ARCHIVED,),
        State.INACTIVE: (State.ACTIVE,),
    },
    Type.PROCEDURE: {State.RETIRED: (State.ACTIVE,)},
    Type.CENSOR: {State.RETIRED: (State.CREATED,)},
    Type.DECISION: {State.RECORDED: (State.PENDING,)},
    Type.ITEM: {
        State.OPEN: (State.DONE, State.CANCELLED),
        State.DONE: (State.OPEN, State.CANCELLED),
        State.CANCELLED: (State.OPEN, State.DONE),
        State.INACTIVE: (State.OPEN,),
    },
    Type.RULE: {State.RETIRED: (State.ACTIVE,)},
}
"""The states that a person may set, by type and present state, besides the one that hides the record."""
_RETIRED = (Type.PROCEDURE, Type.CENSOR, Type.RULE)
"""The types whose hidden state is `State.RETIRED`."""


def confirm(record: Record, rules: Rules, at: str, *, is_trusted: bool = True) -> Record:
    """Count a repetition of the record.

    A fact becomes confirmed, and after `Rules.core_confirmations` repetitions core. A repetition that is not in
    people's own words (*is_trusted* is false) makes no fact core. Raises `RecordRefused` if the record is superseded or
    hidden.
    """
    if record.is_hidden or record.state is State.SUPERSEDED:
        raise RecordRefused(
            f"record {record.id} is {record.state}: say what it is now with a state, or add it as a new one"
        )
    state, count = record.state, record.confirmations + 1
    if record.type is Type.FACT and state is not State.CORE:
        state = State.CORE if is_trusted and count >= rules.core_confirmations else State.CONFIRMED
    return _changed(record, at, state=state, confirmations=count, confirmed_at=at)


def supersede(record: Record, by_id: str, at: str) -> Record:
    """Mark the record as replaced by the record *by_id*.

    A fact becomes superseded and can still be found. A procedure, a censor or a rule is retired. Decisions, episodes
    and items keep their state and only name their successor.
    """
    if by_id == record.id:
        raise RecordRefused("a record cannot supersede itself")
    if record.is_hidden:
        return record
    state = record.state
    if record.type is Type.FACT:
        state = State.SUPERSEDED
    elif record.type in _RETIRED:
        state = State.RETIRED
    return _changed(record, at, state=state, superseded_by=by_id)


def log_outcome(record: Record, outcome: Outcome, rules: Rules, at: str) -> Record:
    """Store the outcome of the record.

    A decision becomes reviewed, or pending if the outcome is ``pending``. A reviewed decision can be reviewed again but
    not become pending again. A procedure counts successes and failures.
    """
    if record.is_hidden:
        raise RecordRefused(f"record {record.id} is {record.state}: nothing can come of it")
    if record.type is Type.DECISION:
        if outcome == "pending":
            if record.state is State.REVIEWED:
                raise RecordRefused("this decision was reviewed: its outcome is success, partial or failure")
            return _changed(record, at, state=State.PENDING, outcome=outcome)
        return _changed(record, at, state=State.REVIEWED, outcome=outcome)
    if record.type is Type.PROCEDURE:
        successes = record.successes + (outcome == "success")
        failures = record.failures + (outcome == "failure")
        activations = max(record.activations, successes + failures)
        counted = record.model_copy(
            update={"successes": successes, "failures": failures, "activations": activations, "outcome": outcome}
        )
        return _changed(counted, at, state=_effectiveness(counted, rules))
    return _changed(record, at, outcome=outcome)


def use(record: Record, rules: Rules, at: str) -> Record:
    """Count that the bot followed a procedure or that a censor acted. Hidden records do not count."""
    if record.is_hidden:
        return record
    used = record.model_copy(update={"activations": record.activations + 1})
    if record.type is Type.PROCEDURE:
        return _changed(used, at, state=_effectiveness(used, rules))
    if record.type is Type.CENSOR:
        rightly = used.activations - used.false_positives
        if record.state is State.ESCALATED or rightly >= rules.block_activations:
            return _changed(used, at, state=State.ESCALATED, severity="block")
        return _changed(used, at, state=State.ACTIVE)
    return _changed(used, at)


def report_false_positive(record: Record, rules: Rules, at: str) -> Record:
    """Count that a censor acted wrongly. After `Rules.retired_false_positives` of these it is retired."""
    if record.type is not Type.CENSOR:
        raise RecordRefused(f"only a censor acts wrongly; record {record.id} is a {record.type}")
    if record.is_hidden:
        return record
    count = record.false_positives + 1
    state = State.RETIRED if count >= rules.retired_false_positives else record.state
    return _changed(record, at, false_positives=count, state=state)


def take_back(record: Record, what: TakenBack, rules: Rules, at: str) -> Record:
    """Undo feedback of a person.

    A confirmed fact without any other confirmation becomes new again. A core fact stays core, because a person may have
    set that state, and a retired record stays retired. A reviewed decision becomes pending again.
    """
    if record.is_hidden:
        return record
    if what == "confirm":
        count = max(0, record.confirmations - 1)
        is_new = record.type is Type.FACT and record.state is State.CONFIRMED and not count
        return _changed(record, at, confirmations=count, state=State.NEW if is_new else record.state)
    if what == "false_positive":
        return _changed(record, at, false_positives=max(0, record.false_positives - 1))
    if record.type is Type.DECISION and record.state is State.REVIEWED and record.outcome == what:
        return _changed(record, at, state=State.PENDING, outcome="pending")
    if record.type is not Type.PROCEDURE:
        raise RecordRefused(f"only of a procedure outcomes are counted; record {record.id} is a {record.type}")
    counted = record.model_copy(
        update={
            "successes": max(0, record.successes - (what == "success")),
            "failures": max(0, record.failures - (what == "failure")),
        }
    )
    judged = counted.successes + counted.failures
    return _changed(counted, at, state=_effectiveness(counted, rules) if judged else State.ACTIVE)


def retire(record: Record, at: str) -> Record:
    """Hide the record from lists and searches. Raises `NeverDeleted` for decisions."""
    if record.is_hidden:
        return record
    if record.type is Type.DECISION:
        raise NeverDeleted
    return _changed(record, at, state=_hidden_state(record))


def _hidden_state(record: Record) -> State:
    return State.RETIRED if record.type in _RETIRED else State.INACTIVE


def set_state(record: Record, state: State, at: str) -> Record:
    """Set the state that a person chose. Raises `NeverDeleted` if the record is a decision and the state hides it."""
    if state in HIDDEN:
        return retire(record, at)
    if state is record.state:
        return record
    allowed = list(BY_HAND[record.type].get(record.state, ()))
    if state not in allowed:
        if record.type is not Type.DECISION and not record.is_hidden:
            allowed.append(_hidden_state(record))
        hint = "; log its outcome to review it" if record.type is Type.DECISION else ""
        raise RecordRefused(
            f"a {record.type} that is {record.state} cannot become {state} by hand; it can become: "
            f"{', '.join(allowed) or 'nothing else'}{hint}"
        )
    fields: dict[str, Any] = {"state": state}
    if record.type is Type.FACT:
        fields["superseded_by"] = ""
    if record.type is Type.CENSOR:  # the counters start again
        fields |= {"activations": 0, "false_positives": 0}
    if record.type is Type.EPISODE and state is State.ARCHIVED:
        fields |= _without_detail(record)
    return _changed(record, at, **fields)


def set_severity(record: Record, severity: Severity, at: str) -> Record:
    """Set whether a censor warns or blocks.

    If a censor that escalated by itself is set to warn, its counters start again. Raises `RecordRefused` for records of
    other types.
    """
    if record.type is not Type.CENSOR:
        raise RecordRefused(f"a severity is for censors; record {record.id} is a {record.type}")
    if severity == "warn" and record.state is State.ESCALATED:
        return _changed(record, at, severity=severity, state=State.ACTIVE, activations=0, false_positives=0)
    return record if record.severity == severity else _changed(record, at, severity=severity)


def mark_verbatim(record: Record, is_verbatim: bool, at: str) -> Record:
    """Set whether pruning must keep the record word for word."""
    return record if record.verbatim is is_verbatim else _changed(record, at, verbatim=is_verbatim)


def sweep(record: Record, rules: Rules, at: str) -> Record:
    """Apply the transitions that age, or changed thresholds, cause."""
    now = datetime.fromisoformat(at)
    if record.is_hidden:
        return record
    if record.type is Type.EPISODE:
        age = now - datetime.fromisoformat(record.created_at)
        if age >= timedelta(days=rules.archived_days) and record.state is not State.ARCHIVED:
            return _changed(record, at, state=State.ARCHIVED, **_without_detail(record))
        if age >= timedelta(days=rules.summarized_days) and record.state is State.ACTIVE:
            return _changed(record, at, state=State.SUMMARIZED)
    if record.type is Type.PROCEDURE and _effectiveness(record, rules) is not record.state:
        return _changed(record, at, state=_effectiveness(record, rules))
    if record.type is Type.CENSOR and record.false_positives >= rules.retired_false_positives:
        return _changed(record, at, state=State.RETIRED)
    return record


def lacks_abstract(record: Record) -> bool:
    """Say whether a model should sum up the record: its summary leaves something out, and is shown."""
    if record.is_hidden or record.verbatim or record.abstract or record.type in (Type.CENSOR, Type.RULE):
        return False
    return is_shortened(record)


def next_due(record: Record, rules: Rules) -> datetime | None:
    """Return when the sweep must look at the record, or None if it need not."""
    if rules.sums_up and lacks_abstract(record):
        return datetime.fromisoformat(record.changed_at)
    if record.is_hidden or record.type is not Type.EPISODE or record.state is State.ARCHIVED:
        return None
    days = rules.summarized_days if record.state is State.ACTIVE else rules.archived_days
    try:
        return datetime.fromisoformat(record.created_at) + timedelta(days=days)
    except OverflowError:  # the date would lie after the year 9999
        return None


def is_standing(record: Record) -> bool:
    """Say whether prompts include the record without a search: a censor in force, a rule, or a verbatim record."""
    if record.is_hidden or record.superseded_by:
        return False
    return record.type in (Type.CENSOR, Type.RULE) or record.verbatim


def confirms_on_repeat(record: Record) -> bool:
    """Say whether the same text, said again, confirms this record instead of making a new one."""
    if record.is_hidden or record.superseded_by:
        return False
    return record.type is not Type.ITEM or record.state is State.OPEN


def _effectiveness(record: Record, rules: Rules) -> State:
    judged = record.successes + record.failures
    if record.activations < rules.effectiveness_activations or not judged:
        return record.state
    share = record.successes / judged
    if share > rules.effective_above:
        return State.EFFECTIVE
    return State.INEFFECTIVE if share < rules.ineffective_below else State.ACTIVE


def _without_detail(record: Record) -> dict[str, str]:
    """Return the update that reduces an old episode to its summary. The full text is in the transcript."""
    return {} if record.verbatim or len(record.summary) >= len(record.text) else {"text": record.summary}


def _changed(record: Record, at: str, **fields: Any) -> Record:
    return record.model_copy(update={**fields, "changed_at": at, "version": record.version + 1})
