"""The messages of a few turns of one conversation, and the rules for records that are extracted from them. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from connectors.message import person_in
from grounding.documents.sparse import terms
from grounding.memory.records.port import NewRecord
from grounding.memory.records.record import Origin, Provenance, Record, State, Type
from grounding.transcript.entry import Entry, EntryRole

MAX_PER_TURN = 3
"""Most records of one turn; a person who states more has pasted something."""
MAX_RECORD_CHARACTERS = 400
MOST_RULES = 16
MOST_RULES_BYTES = 2400
"""Most verbatim records (standing rules and preferences) of one person, and their size in UTF-8 bytes.

They stand in every prompt of that person and nothing else can use their space. Sixteen usual ones take about 400
tokens. Further rules and preferences become ordinary records.
"""
MOST_PREFERENCES = 10
MOST_PREFERENCES_BYTES = 1500
"""Limits for storing a preference verbatim, counted over rules and preferences together. They are lower than the limits
for rules, so that space for rules remains."""
CONFIRMS = 0.5
REPLACES = 1 / 3
"""The least share of content words, of the shorter text's words, that two records must have in common before a model's
claim is believed that one confirms, or replaces, the other. The slip of a weak model must not erase knowledge."""
_NUMBER = re.compile(r"(?<!\w)\w*\d[\w.,:/-]*")  # begins at a word's first character: long words are scanned once
_SIGNS = re.compile(r"(?<!\w)[-−](?=\d)|!=|[<>≠≤≥]")
_DENIALS = frozenset(("no", "not", "never", "kein", "keine", "nicht", "sin", "pas"))
"""A search ignores these words, but here they change the meaning."""
GONE = frozenset({State.SUPERSEDED, State.INACTIVE, State.RETIRED})


def is_evidence(entry: Entry) -> bool:
    """Say whether a person wrote *entry* in their own words, not forwarded."""
    return entry.role is EntryRole.INBOUND and not entry.foreign and bool(entry.text.strip())


@dataclass(frozen=True, slots=True)
class Window:
    """Entries of one conversation, oldest first. All its turns have the same *owner*.

    *owner* is an audience as in `connectors.message.Scope`; empty means the workspace. *origins* maps turn ids to the
    kind of text that the turn's prompt held.
    """

    context_id: str
    entries: tuple[Entry, ...]
    owner: str
    origins: Mapping[str, Origin]

    @property
    def said(self) -> tuple[Entry, ...]:
        """What people wrote themselves: the evidence. All other entries, also forwarded messages, are only context."""
        return tuple(filter(is_evidence, self.entries))

    @property
    def is_private(self) -> bool:
        """Whether it is the direct message of one person."""
        return person_in(self.owner) is not None

    @property
    def turns(self) -> int:
        return len({one.turn_id for one in self.said})

    @property
    def most(self) -> int:
        """The most records that may be extracted from it."""
        return MAX_PER_TURN * self.turns


@dataclass(frozen=True, slots=True)
class Extracted:
    """A candidate record and its evidence.

    ``by`` names the turn and the author of the newest evidence, but no context. ``key`` is the same for the same words
    of the same turn.
    """

    new: NewRecord
    by: Provenance
    key: str


def extracted(new: NewRecord, evidence: Entry, origin: Origin) -> Extracted:
    """Return *new* as a candidate with the author, turn and time of *evidence*."""
    digest = hashlib.sha256(f"{new.type}\x00{_plain(new.text)}".encode("utf-8", "surrogatepass")).hexdigest()[:24]
    by = Provenance(author=evidence.user, turn_id=evidence.turn_id, origin=origin)
    return Extracted(replace(new, created_at=new.created_at or evidence.at), by, f"{evidence.turn_id}/{digest}")


def meaning(text: str) -> tuple[str, ...]:
    """Return a form of *text* that is equal for texts that say the same.

    It holds the stems of the content words in order, the negations and the signs of numbers.
    """
    words = _plain(text).replace("n't", " not").replace("n’t", " not").split()
    denied = sorted(_DENIALS.intersection(words))
    return (*terms(text), *(f"-{word}" for word in denied), *_SIGNS.findall(text))


def same_as(new: NewRecord, known: Iterable[Record]) -> Record | None:
    """Return the record of *known* that is still in force and says the same as *new*."""
    wanted = meaning(new.text)
    held = (one for one in known if one.type is new.type and one.state not in GONE)
    return next((one for one in held if meaning(one.text) == wanted), None)


def confirms(new: NewRecord, old: Record) -> bool:
    """Say whether *new* can count as a repetition of *old*.

    They need the same type and half of the words in common, and *new* must hold no number that *old* lacks.
    """
    return (
        old.type is new.type
        and old.state not in GONE
        and numbers(new.text) <= numbers(old.text)
        and (_shared(new.text, old.text) >= CONFIRMS)
    )


def may_replace(new: NewRecord, old: Record) -> bool:
    """Say whether *new*, which a model calls a contradiction of *old*, may replace it.

    Both must be facts that share at least `REPLACES` of their words.
    """
    return old.type is new.type is Type.FACT and old.state not in GONE and _shared(new.text, old.text) >= REPLACES


def numbers(text: str) -> set[str]:
    """Return all words of *text* that contain a digit."""
    return {one.strip(".,:/-").casefold() for one in _NUMBER.findall(text)}


def _shared(text: str, other: str) -> float:
    """Return the share of the shorter text's content words that both have, 0 to 1."""
    words, others = set(terms(text)), set(terms(other))
    return len(words & others) / (min(len(words), len(others)) or 1)


def settled(new: NewRecord, known: Collection[Record], replaces: Record | None = None) -> NewRecord:
    """Return *new* with the text of the record that it repeats, else superseding *replaces*, else unchanged."""
    if (same := same_as(new, known)) is not None:
        return replace(new, text=same.text, supersedes="")
    return replace(new, supersedes=replaces.id) if replaces is not None else new


Standing = Literal["rule", "preference"]


def as_standing(new: NewRecord, of: Standing, known: Iterable[Record], so_far: Iterable[str]) -> NewRecord:
    """Mark *new*, a standing rule or a preference, as verbatim if its owner's limits allow one more.

    *so_far* are the verbatim texts of the same window, including *new*. A record that *new* supersedes does not count.
    """
    left = (one for one in known if one.verbatim and one.state not in GONE and one.id != new.supersedes)
    held = {*so_far, *(one.text for one in left)}
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in held)
    most = (MOST_RULES, MOST_RULES_BYTES) if of == "rule" else (MOST_PREFERENCES, MOST_PREFERENCES_BYTES)
    return replace(new, verbatim=True) if len(held) <= most[0] and size <= most[1] else new


def owned(known: Iterable[Record], owner: str) -> list[Record]:
    """Return the records of *known* that belong to *owner*. Only these can be confirmed or replaced."""
    return [one for one in known if one.audience == owner]


def latest(found: Sequence[Extracted], most: int) -> list[Extracted]:
    """Return the newest *most* of *found* in their order, without repetitions."""
    unique = {(one.new.type, meaning(one.new.text)): one for one in found}
    kept = [one for one in found if unique[one.new.type, meaning(one.new.text)] is one]
    return kept[-most:] if most > 0 else []


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).strip(" .!")
