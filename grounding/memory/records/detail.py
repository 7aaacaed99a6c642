"""Short forms of a record for prompts, computed when it is written. Pure.

``micro`` is one line of at most `MICRO_TOKENS`, ``summary`` has at most `SUMMARY_TOKENS`. Both are the first sentences
of the text, cut at natural boundaries, with the record's status in brackets: "Chose Postgres [success, 0.85
confidence]".
"""

from __future__ import annotations

from datetime import UTC, date, datetime

from grounding.memory.records.record import Record, State, Type
from grounding.memory.sentences import sentences
from grounding.tokens import Tokens, clip

MICRO_TOKENS = 24
"""About twenty tokens: a sentence and the status."""
SUMMARY_TOKENS = 100
_READ_CHARACTERS = 4000
"""The length of the text that may enter a summary: 100 tokens are seldom more than 600 characters."""
_LINE_CHARACTERS = 600
_HEADS = {Type.DECISION: "Decision", Type.PROCEDURE: "Procedure", Type.EPISODE: "Episode"}
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip


def detailed(record: Record, tokens: Tokens) -> Record:
    """Return *record* with micro and summary of its present text.

    An archived episode whose text is already reduced to the summary stays as it is.
    """
    if record.summary and record.text == record.summary and record.state is State.ARCHIVED:
        return record
    said = _sentences(record)
    return record.model_copy(update={"micro": _micro(record, said, tokens), "summary": _summary(record, said, tokens)})


def in_words(day: str) -> str:
    """Return a day or time (as `Record.due`) in words, "Friday 27 November 2026"; empty for an empty one."""
    if not day:
        return ""
    when = date.fromisoformat(day[:10])
    clock = ""
    if len(day) > len("2026-11-27"):
        moment = datetime.fromisoformat(day).astimezone(UTC)
        when, clock = moment.date(), f" {moment:%H:%M} UTC"
    return f"{_WEEKDAYS[when.weekday()]} {when.day} {_MONTHS[when.month - 1]} {when.year}{clock}"


def indexed_text(record: Record) -> str:
    """Return the text of *record* that is embedded and indexed: micro, full text, trigger, reason, and the due date in
    words."""
    parts = [record.micro, record.text, record.trigger, record.reason]
    parts += [f"{record.kind} due {in_words(record.due)}"] if record.due else []
    return "\n".join(dict.fromkeys(part for part in parts if part))


def _micro(record: Record, said: list[str], tokens: Tokens) -> str:
    head = f"{record.severity.upper()}: " if record.type is Type.CENSOR else ""
    bracket = _bracket(record, short=True)
    room = MICRO_TOKENS - tokens.count(head) - (tokens.count(bracket) + 1 if bracket else 0)
    line = _fitting(said, tokens, room)
    while tokens.count(made := _joined(head + line, bracket)) > MICRO_TOKENS and room > 1:
        room -= 1  # joined parts may count one token more
        line = _fitting(said, tokens, room)
    return made


def _summary(record: Record, said: list[str], tokens: Tokens) -> str:
    head = _HEADS.get(record.type, "")
    head = f"{head}: " if head else f"{record.severity.upper()}: " if record.type is Type.CENSOR else ""
    tail = _tail(record, tokens)
    room = SUMMARY_TOKENS - tokens.count(head) - (tokens.count(tail) + 1 if tail else 0)
    text = _fitting(said, tokens, room)
    while tokens.count(made := head + text + tail) > SUMMARY_TOKENS and room > 1:
        room -= 1
        text = _fitting(said, tokens, room)
    return made


def _tail(record: Record, tokens: Tokens) -> str:
    if record.type is Type.CENSOR:
        return f" — {clip(' '.join(record.reason.split()), tokens, SUMMARY_TOKENS // 3)}" if record.reason else ""
    if record.type is Type.DECISION:
        return f"\nOutcome: {record.outcome or 'not known yet'}. Confidence: {_number(record.confidence)}."
    bracket = _bracket(record, short=False)
    return f" {bracket}" if bracket else ""


def _bracket(record: Record, *, short: bool) -> str:
    parts: list[str] = []
    if record.type is Type.DECISION:
        parts += [record.outcome] if record.outcome else []
        parts.append(f"{_number(record.confidence)}{'' if short else ' confidence'}")
    elif record.type is Type.ITEM:
        parts.append(record.state.value)
        parts += [f"due {record.due[:10] if short else in_words(record.due)}"] if record.due else []
    elif record.type is Type.PROCEDURE and record.state in (State.EFFECTIVE, State.INEFFECTIVE):
        parts.append(record.state.value)
    elif record.type is Type.EPISODE:
        parts.append(record.created_at[:10])
    elif record.type is Type.FACT and record.confidence < 1.0:
        parts.append(f"{_number(record.confidence)}{'' if short else ' confidence'}")
    if record.state is State.SUPERSEDED or record.superseded_by:
        parts.append("superseded")
    return f"[{', '.join(parts)}]" if parts else ""


def _sentences(record: Record) -> list[str]:
    """Return the sentences of the text, or the text on one line if it has no sentences."""
    text = record.text[:_READ_CHARACTERS]
    return sentences(text) or [" ".join(text.split())[:_LINE_CHARACTERS]]


def _fitting(said: list[str], tokens: Tokens, room: int) -> str:
    """Return as many first sentences as fit into *room* tokens. If not even the first fits, cut it."""
    line = clip(said[0], tokens, max(room, 1))
    if line != said[0].rstrip():
        return line
    for sentence in said[1:]:
        longer = f"{line} {sentence}"
        if not tokens.fits(longer, room):
            break
        line = longer
    return line


def _joined(line: str, bracket: str) -> str:
    return f"{line} {bracket}".strip() if bracket else line


def _number(share: float) -> str:
    return f"{share:.2f}"
