"""Build records from requests to add, and changed records from requests to change. Pure."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from typing import Any

from pydantic import ValidationError

from grounding.memory.records import lifecycle
from grounding.memory.records.lifecycle import Rules
from grounding.memory.records.port import Came, NewRecord
from grounding.memory.records.record import STATES, Provenance, Record, RecordRefused, State, Type

TEXT_MAX_CHARACTERS = 20_000
SHORT_MAX_CHARACTERS = 2_000
"""Applies to a censor's trigger and reason."""
TRUSTED = frozenset({"person", "tool", "extraction"})
"""Origins that are people's own words, or the model's wording of these alone."""
MODELS = frozenset({"tool", "extraction"})
"""The trusted origins whose wording is the model's."""
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_NOT_WORDS = re.compile(r"(?:(?!(?<!\w)[-−]\d)[^\w%$€£+#<>=≠≤≥])+")
"""Everything but letters, digits and the signs that can reverse a text's meaning (signs of numbers, comparisons)."""


def made(new: NewRecord, record_id: str, audience: str, by: Provenance, at: str) -> Record:
    """Build the record *record_id* of *audience* (empty: the workspace) from *new*, without micro and summary.

    Raises `RecordRefused`.
    """
    _require(new.type is Type.ITEM or (not new.due and new.status == "open"), "a status and a due day are for items")
    state = State(new.status) if new.type is Type.ITEM else STATES[new.type][0]
    if new.type is Type.DECISION and new.outcome is not None:
        state = State.PENDING if new.outcome == "pending" else State.REVIEWED
    try:
        return Record(
            id=record_id,
            type=new.type,
            audience=audience,
            text=cleaned(new.text),
            micro="",
            summary="",
            state=state,
            created_at=moment(new.created_at) if new.created_at else at,
            changed_at=at,
            provenance=by,
            confidence=float(new.confidence),
            outcome=new.outcome,
            verbatim=new.verbatim,
            supersedes=new.supersedes,
            trigger=_short(new.trigger),
            reason=_short(new.reason),
            severity=new.severity,
            kind=new.kind,
            due=due_day(new.due),
        )
    except ValidationError as error:
        raise RecordRefused(_validation_message(error)) from None


def digest(record: Record) -> str:
    """Return a hash that is equal for records that say the same.

    They have the same type and the same words; case, white space and punctuation do not matter. Censors must also have
    the same trigger, items the same kind and due date.
    """
    parts: list[str] = [record.type, _words(record.text)]
    if record.type is Type.CENSOR:
        parts.append(_words(record.trigger))
    if record.type is Type.ITEM:
        parts += [record.kind, record.due]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def said_again(known: Record, new: NewRecord, by: Provenance, rules: Rules, at: str) -> Record:
    """Return *known*, confirmed by *new*, which says the same. People's own words replace an untrusted provenance."""
    is_trusted = by.origin in TRUSTED
    again = lifecycle.confirm(known, rules, at, is_trusted=is_trusted)
    if is_trusted and known.provenance.origin not in TRUSTED:
        again = again.model_copy(update={"provenance": by})
    if new.outcome is not None and new.outcome != known.outcome:
        again = lifecycle.log_outcome(again, new.outcome, rules, at)
    if new.verbatim:
        again = lifecycle.mark_verbatim(again, True, at)
    if new.supersedes:
        again = again.model_copy(update={"supersedes": new.supersedes})
    return again.model_copy(update={"version": known.version + 1})


def changed(record: Record, fields: Mapping[str, Any], rules: Rules, at: str, *, is_trusted: bool = True) -> Record:
    """Return *record* with *fields* changed.

    Besides texts and numbers by their names the fields are ``state`` (or an item's ``status``), ``outcome``,
    ``severity``, ``verbatim``, ``confirm`` and ``false_positive`` (both true), and ``take_back`` (see
    `lifecycle.take_back`). Raises `RecordRefused`, also for an unknown field.
    """
    result = _with_values(record, {name: fields[name] for name in _NORMALISERS if name in fields}, at)
    steps: dict[str, Callable[[Record, Any], Record]] = {
        "state": lambda one, value: lifecycle.set_state(one, _state(one, value), at),
        "status": lambda one, value: lifecycle.set_state(one, _status(one, value), at),
        "outcome": lambda one, value: lifecycle.log_outcome(one, value, rules, at),
        "severity": lambda one, value: lifecycle.set_severity(one, value, at),
        "verbatim": lambda one, value: lifecycle.mark_verbatim(one, bool(value), at),
        "confirm": lambda one, value: lifecycle.confirm(one, rules, at, is_trusted=is_trusted) if value else one,
        "take_back": lambda one, value: lifecycle.take_back(one, value, rules, at),
        "false_positive": lambda one, value: lifecycle.report_false_positive(one, rules, at) if value else one,
    }
    unknown = sorted(set(fields) - set(steps) - set(_NORMALISERS))
    if unknown:
        raise RecordRefused(f"a record has no field {unknown[0]!r} that can be changed")
    for name, step in steps.items():
        if name in fields:
            result = step(result, fields[name])
    try:  # `model_copy` does not validate
        result = Record.model_validate(result.model_dump())
    except ValidationError as error:
        raise RecordRefused(_validation_message(error)) from None
    return result if result == record else result.model_copy(update={"version": record.version + 1})


def reworded(before: Record, after: Record, by: Provenance) -> Record:
    """Return *after* with the provenance *by* if a conversation changed its text, so that forgetting the conversation
    forgets the record too.

    If the old text was other people's words, a new wording by the model keeps their origin.
    """
    if not by.context_id or after.text == before.text:
        return after
    known = before.provenance.origin
    origin = known if known not in TRUSTED and by.origin in MODELS else by.origin
    return after.model_copy(update={"provenance": by.model_copy(update={"origin": origin})})


def came_of(before: Record | None, after: Record) -> Came:
    """Return what adding did; *before* is the record that existed, if one did."""
    if before is not None:
        return "confirmed"
    return "superseded" if after.supersedes else "new"


def cleaned(text: str) -> str:
    """Return *text* without control characters and surrounding white space. Raises `RecordRefused`."""
    kept = _CONTROLS.sub("", text.encode("utf-8", "replace").decode()).strip()
    if not kept:
        raise RecordRefused("a record needs a text")
    if len(kept) > TEXT_MAX_CHARACTERS:
        raise RecordRefused(f"a record holds at most {TEXT_MAX_CHARACTERS} characters; this text has {len(kept)}")
    return kept


def moment(text: str) -> str:
    """Return a time with its zone in the form of records: UTC with milliseconds. Raises `RecordRefused`."""
    try:
        when = datetime.fromisoformat(text)
        return stamp(when if when.tzinfo is not None else when.replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        raise RecordRefused(f"{text!r} is no time: write it like 2026-11-27T16:00:00Z") from None


def stamp(when: datetime) -> str:
    """Return *when* in the form of records. Years have four digits, so that text order is time order."""
    return when.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def due_day(text: str) -> str:
    """Return a day, or a time in UTC; empty for an empty one. Raises `RecordRefused`."""
    if not text:
        return ""
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        return moment(text)


_NORMALISERS: dict[str, Callable[[Any], Any]] = {
    "text": lambda value: cleaned(str(value)),
    "trigger": lambda value: _short(str(value)),
    "reason": lambda value: _short(str(value)),
    "kind": str,
    "due": lambda value: due_day(str(value or "")),
    "confidence": float,
}
"""Fields that hold a value of their own, each with the function that normalises a new value."""


def _with_values(record: Record, fields: Mapping[str, Any], at: str) -> Record:
    _require(record.type is Type.ITEM or "due" not in fields, "a due day is for items")
    try:
        stated = {name: _NORMALISERS[name](value) for name, value in fields.items()}
    except (TypeError, ValueError) as error:
        raise RecordRefused(f"that is no value of a record: {error}") from None
    if all(getattr(record, name) == value for name, value in stated.items()):
        return record
    return record.model_copy(update={**stated, "changed_at": at})


def _state(record: Record, value: Any) -> State:
    if value in (State.INACTIVE, State.RETIRED):
        return State(value)  # each type has one of the two, and both mean hidden
    if value not in STATES[record.type]:
        raise RecordRefused(f"a {record.type} is never {value!r}: it is one of {', '.join(STATES[record.type])}")
    return State(value)


def _status(record: Record, value: Any) -> State:
    _require(record.type is Type.ITEM, "a status is for items; other records have a state")
    return _state(record, value)


def _short(text: str) -> str:
    kept = " ".join(_CONTROLS.sub("", text.encode("utf-8", "replace").decode()).split())
    if len(kept) > SHORT_MAX_CHARACTERS:
        raise RecordRefused(f"a trigger and a reason hold at most {SHORT_MAX_CHARACTERS} characters")
    return kept


def _words(text: str) -> str:
    """Return only letters, digits and meaningful signs: "I prefer Celsius." equals "i prefer  celsius"."""
    folded = unicodedata.normalize("NFKC", text).casefold().replace("!=", "≠")
    return _NOT_WORDS.sub(" ", folded).strip() or folded


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise RecordRefused(otherwise)


def _validation_message(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
