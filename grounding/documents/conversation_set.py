"""Sets of long conversations, and questions about what was said in them.

Read is a BEIR folder (Thakur et al., NeurIPS 2021): ``corpus.jsonl`` has one message a line, in the order in which they
were said (``_id``, ``text``, ``metadata`` with ``workspace``, which names the conversation, and where there are any
``session``, ``date`` and ``speaker``), ``queries.jsonl`` the questions (``_id``, ``text``, ``metadata`` with
``workspace`` and ``category``) and ``qrels/test.tsv`` which messages are evidence (query, message, relevance). What the
speaker ``assistant`` says is the bot's. A text that begins with its speaker's name and a colon is taken without them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from grounding.documents.question_set import (
    BadQuestionSet,
    id_of,
    judgements,
    metadata_of,
    once,
    qrels_of,
    records,
    string_of,
)

BETWEEN_MESSAGES = timedelta(seconds=30)
BETWEEN_SESSIONS = timedelta(hours=2)
"""After the last message, where a session has the date of the one before."""
UNDATED = datetime(2024, 1, 1, 9, tzinfo=UTC)
"""When a conversation began that does not say so; each further session without a date is a day later."""
_DATES = ("%I:%M %p on %d %B, %Y", "%B-%d-%Y", "%d %B %Y", "%B %d, %Y")
"""Forms of dates beside ISO 8601."""


@dataclass(frozen=True, slots=True)
class Said:
    """One message; ``id`` is the set's."""

    id: str
    speaker: str
    text: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Asked:
    """A question about a conversation, and the ids of the messages that are evidence for its answer."""

    id: str
    text: str
    category: str
    evidence: frozenset[str]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages in the order in which they were said, and questions that come after all of them."""

    name: str
    said: tuple[Said, ...]
    asked: tuple[Asked, ...]


def load_conversations(folder: Path) -> list[Conversation]:
    """The conversations of the set in *folder*, by name; those without questions too.

    Raises `BadQuestionSet`; also for a set in which nothing is asked.
    """
    if not (folder / "corpus.jsonl").is_file():
        raise BadQuestionSet(f"{folder} has no corpus.jsonl: expected corpus.jsonl, queries.jsonl and qrels/test.tsv")
    said = _said(folder / "corpus.jsonl")
    asked = _asked(folder, {one.id for messages in said.values() for one in messages})
    if unknown := sorted(asked.keys() - said.keys()):
        raise BadQuestionSet(f"questions are about the conversation {unknown[0]!r}, of which corpus.jsonl has nothing")
    if not asked:
        raise BadQuestionSet("the set has no question with evidence in its conversations")
    return [Conversation(name, tuple(said[name]), tuple(asked.get(name, ()))) for name in sorted(said)]


def _said(file: Path) -> dict[str, list[Said]]:
    places: dict[str, str] = {}
    clocks: dict[str, _Clock] = {}
    said: dict[str, list[Said]] = {}
    for place, record in records(file, "_id", "text"):
        name, metadata = id_of(place, record), metadata_of(place, record)
        once(places, name, place)
        conversation = str(metadata.get("workspace", ""))
        speaker = " ".join(str(metadata.get("speaker") or "").split())
        text = string_of(place, record, "text").removeprefix(f"{speaker}: ")
        at = clocks.setdefault(conversation, _Clock()).at(metadata)
        if text.strip():  # the log has no entry for what says nothing
            said.setdefault(conversation, []).append(Said(name, speaker, text, at))
    return said


def _asked(folder: Path, known: set[str]) -> dict[str, list[Asked]]:
    evidence = judgements(qrels_of(folder))
    places: dict[str, str] = {}
    asked: dict[str, list[Asked]] = {}
    for place, record in records(folder / "queries.jsonl", "_id", "text"):
        name, metadata = id_of(place, record), metadata_of(place, record)
        once(places, name, place)
        if not evidence.get(name, set()) & known:
            continue
        one = Asked(
            name,
            string_of(place, record, "text"),
            str(metadata.get("category") or ""),
            frozenset(evidence[name]),
        )
        asked.setdefault(str(metadata.get("workspace", "")), []).append(one)
    return asked


class _Clock:
    """When the messages of a conversation were said: sessions at their dates, messages one after the other."""

    def __init__(self) -> None:
        self._session: object = None
        self._written: object = None
        self._last: datetime | None = None

    def at(self, metadata: Mapping[str, Any]) -> datetime:
        session, written = metadata.get("session"), metadata.get("date")
        if self._last is not None and (session, written) == (self._session, self._written):
            self._last += BETWEEN_MESSAGES
            return self._last
        began = _date(written)
        if self._last is None:
            at = began or UNDATED
        elif began is None:
            at = self._last + (BETWEEN_MESSAGES if session == self._session else timedelta(days=1))
        elif began <= self._last:
            at = self._last + (BETWEEN_MESSAGES if session == self._session else BETWEEN_SESSIONS)
        else:
            at = began
        self._session, self._written, self._last = session, written, at
        return at


def _date(written: object) -> datetime | None:
    """A date as sets write it, taken as UTC; None where it is none."""
    text = " ".join(str(written or "").split())
    try:
        found = datetime.fromisoformat(text)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except ValueError:
        pass
    for form in _DATES:
        try:
            return datetime.strptime(text, form).replace(tzinfo=UTC)
        except ValueError:
            continue
    return None
