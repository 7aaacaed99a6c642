"""What people said in a few turns of one conversation, and what was found in it that may be kept. Pure."""

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
"""Records of one turn; who says more pastes something."""
MAX_RECORD_CHARACTERS = 400
MOST_RULES = 16
MOST_RULES_BYTES = 2400
"""Rules for every answer, and preferences, that one person has kept word for word, and what these take in UTF-8: they
stand in every prompt of theirs, where nothing else can take their room, sixteen usual ones in some 400 tokens. Further
ones are records as others."""
MOST_PREFERENCES = 10
MOST_PREFERENCES_BYTES = 1500
"""A preference is one of them only as long as there are no more in all: rules find room beside them."""
CONFIRMS = 0.5
REPLACES = 1 / 3
"""What two records share at least of the shorter one's content words before a model's word is taken for it that one
confirms, or replaces, the other: a slip of a poor model shall not do away with what is known."""
_NUMBER = re.compile(r"(?<!\w)\w*\d[\w.,:/-]*")  # from a word's beginning: long words are read once
_SIGNS = re.compile(r"(?<!\w)[-−](?=\d)|!=|[<>≠≤≥]")
_DENIALS = frozenset(("no", "not", "never", "kein", "keine", "nicht", "sin", "pas"))
"""They mean nothing to a search, and everything here."""
GONE = frozenset({State.SUPERSEDED, State.INACTIVE, State.RETIRED})


def is_evidence(entry: Entry) -> bool:
    """Whether a person says *entry* in words of their own."""
    return entry.role is EntryRole.INBOUND and not entry.foreign and bool(entry.text.strip())


@dataclass(frozen=True, slots=True)
class Window:
    """Entries of one conversation, oldest first, all of whose turns have one *owner*: an audience as in
    `connectors.message.Scope`, empty for the workspace. *origins* says what the turns were shown, by turn id."""

    context_id: str
    entries: tuple[Entry, ...]
    owner: str
    origins: Mapping[str, Origin]

    @property
    def said(self) -> tuple[Entry, ...]:
        """What people say themselves: evidence. The rest, with what they only forward, is context."""
        return tuple(filter(is_evidence, self.entries))

    @property
    def is_private(self) -> bool:
        """Whether it is one person's direct message."""
        return person_in(self.owner) is not None

    @property
    def turns(self) -> int:
        return len({one.turn_id for one in self.said})

    @property
    def most(self) -> int:
        """Records that may come of it."""
        return MAX_PER_TURN * self.turns


@dataclass(frozen=True, slots=True)
class Extracted:
    """One record that may be kept, and whose words say it. ``by`` names the turn and the author of its newest
    evidence, but no context. The same words of the same turn have the same ``key``."""

    new: NewRecord
    by: Provenance
    key: str


def extracted(new: NewRecord, evidence: Entry, origin: Origin) -> Extracted:
    """*new* as *evidence* says it."""
    digest = hashlib.sha256(f"{new.type}\x00{_plain(new.text)}".encode("utf-8", "surrogatepass")).hexdigest()[:24]
    by = Provenance(author=evidence.user, turn_id=evidence.turn_id, origin=origin)
    return Extracted(replace(new, created_at=new.created_at or evidence.at), by, f"{evidence.turn_id}/{digest}")


def meaning(text: str) -> tuple[str, ...]:
    """What texts share that say the same: their content words in order, whatever their endings, what they deny, and the
    signs of their numbers."""
    words = _plain(text).replace("n't", " not").replace("n’t", " not").split()
    denied = sorted(_DENIALS.intersection(words))
    return (*terms(text), *(f"-{word}" for word in denied), *_SIGNS.findall(text))


def same_as(new: NewRecord, known: Iterable[Record]) -> Record | None:
    """The one of *known*, still in force, that says what *new* says."""
    wanted = meaning(new.text)
    held = (one for one in known if one.type is new.type and one.state not in GONE)
    return next((one for one in held if meaning(one.text) == wanted), None)


def confirms(new: NewRecord, old: Record) -> bool:
    """Whether *new* may be said to say *old* again: half of the words, and no number that *old* does not have."""
    return (
        old.type is new.type
        and old.state not in GONE
        and numbers(new.text) <= numbers(old.text)
        and (_shared(new.text, old.text) >= CONFIRMS)
    )


def may_replace(new: NewRecord, old: Record) -> bool:
    """Whether *new*, which is said to contradict *old*, may take its place: facts about the same."""
    return old.type is new.type is Type.FACT and old.state not in GONE and _shared(new.text, old.text) >= REPLACES


def numbers(text: str) -> set[str]:
    """All in *text* that has a digit in it."""
    return {one.strip(".,:/-").casefold() for one in _NUMBER.findall(text)}


def _shared(text: str, other: str) -> float:
    """How much of the shorter one's content words both have, 0 to 1."""
    words, others = set(terms(text)), set(terms(other))
    return len(words & others) / (min(len(words), len(others)) or 1)


def settled(new: NewRecord, known: Collection[Record], replaces: Record | None = None) -> NewRecord:
    """*new* in the words of what it confirms, else in the place of *replaces*, else as it is."""
    if (same := same_as(new, known)) is not None:
        return replace(new, text=same.text, supersedes="")
    return replace(new, supersedes=replaces.id) if replaces is not None else new


Standing = Literal["rule", "preference"]


def as_standing(new: NewRecord, of: Standing, known: Iterable[Record], so_far: Iterable[str]) -> NewRecord:
    """*new*, a rule for every answer or a preference, kept word for word, as long as its owner has no more of both than
    `MOST_RULES` or `MOST_PREFERENCES`, and no longer ones; *so_far* are those of its window, *new* too. One that it
    takes the place of makes room for it."""
    left = (one for one in known if one.verbatim and one.state not in GONE and one.id != new.supersedes)
    held = {*so_far, *(one.text for one in left)}
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in held)
    most = (MOST_RULES, MOST_RULES_BYTES) if of == "rule" else (MOST_PREFERENCES, MOST_PREFERENCES_BYTES)
    return replace(new, verbatim=True) if len(held) <= most[0] and size <= most[1] else new


def owned(known: Iterable[Record], owner: str) -> list[Record]:
    """Those of *known* that are *owner*'s: only among them is anything confirmed or replaced."""
    return [one for one in known if one.audience == owner]


def latest(found: Sequence[Extracted], most: int) -> list[Extracted]:
    """The newest *most* of *found* in their order, each said once."""
    unique = {(one.new.type, meaning(one.new.text)): one for one in found}
    kept = [one for one in found if unique[one.new.type, meaning(one.new.text)] is one]
    return kept[-most:] if most > 0 else []


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).strip(" .!")
