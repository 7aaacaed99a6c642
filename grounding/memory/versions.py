"""One version of a context document, and its form in Redis. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, cast

from grounding.memory.document import Line
from grounding.transcript.entry import Reach, UnknownFormat

_VERSION = "1"

MadeBy = Literal["model", "extraction", "person"]


@dataclass(frozen=True, slots=True)
class Mark:
    """Identifies a version of a conversation's document: version, id, time, and the reach from which it ages.

    ``indexed`` is the id of the version that the search index holds.
    """

    FIELDS: ClassVar = ["v", "version", "at", "turns", "entries", "id", "put_turns", "put_entries", "indexed"]

    version: int
    at: str
    reach: Reach
    id: str = ""
    indexed: str = field(default="", compare=False)

    @property
    def is_indexed(self) -> bool:
        return bool(self.id) and self.indexed == self.id


@dataclass(frozen=True, slots=True)
class Version:
    """A version without its text. ``size_bytes`` is the size of the text in UTF-8."""

    id: str
    at: str
    author: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ContextDocument:
    """One version of a conversation's document.

    - ``turns`` and ``entries`` say how much of the conversation it covers.
    - ``turn_ids`` are the turns it was made from.
    - ``author`` is the person or program that stored it, or what made it.
    - ``kept`` are the lines that people wrote themselves.
    - ``put`` is the length of the conversation when a person stored it, ``after_turn`` the last turn then.
    - ``id`` comes from the store.
    """

    text: str
    version: int
    turns: int
    entries: int
    made_by: MadeBy
    at: str
    turn_ids: tuple[str, ...] = ()
    author: str = ""
    kept: tuple[Line, ...] = ()
    put: Reach | None = None
    after_turn: str = ""
    id: str = field(default="", compare=False)

    @property
    def reach(self) -> Reach:
        """How much of the conversation it covers."""
        return Reach(self.turns, self.entries)

    @property
    def due_from(self) -> Reach:
        """The reach from which it ages. A document that a person has just stored is not replaced at once."""
        return _later(self.reach, self.put)

    @property
    def mark(self) -> Mark:
        return Mark(self.version, self.at, self.due_from, self.id)

    @property
    def newest_turn_id(self) -> str:
        """The last turn before it was made; empty if there was none."""
        return max(self.turn_ids, default=self.after_turn)

    @property
    def etag(self) -> str:
        """A strong entity tag: it differs if the bytes differ."""
        return '"' + hashlib.sha256(self.text.encode("utf-8", "surrogatepass")).hexdigest()[:32] + '"'


def fields_of(document: ContextDocument) -> dict[str, str]:
    """Return *document* as stored, without its id."""
    fields = {
        "v": _VERSION,
        "text": document.text,
        "version": str(document.version),
        "turns": str(document.turns),
        "entries": str(document.entries),
        "made_by": document.made_by,
        "author": document.author,
        "at": document.at,
        "turn_ids": json.dumps(document.turn_ids),
    }
    if document.kept:
        fields["kept"] = json.dumps([[line.section, line.text] for line in document.kept])
    if document.put is not None:
        fields |= {"put_turns": str(document.put.turns), "put_entries": str(document.put.entries)}
    if document.after_turn:
        fields["after_turn"] = document.after_turn
    return fields


def from_fields(fields: Mapping[str, str], version_id: str) -> ContextDocument:
    """Return the document stored as *fields*. Raises `UnknownFormat`."""
    _check(fields["v"])
    return ContextDocument(
        text=fields["text"],
        version=int(fields["version"]),
        turns=int(fields["turns"]),
        entries=int(fields["entries"]),
        made_by=cast("MadeBy", fields["made_by"]),
        at=fields["at"],
        turn_ids=tuple(json.loads(fields["turn_ids"])),
        author=fields.get("author", ""),
        kept=tuple(Line(section, text) for section, text in json.loads(fields.get("kept", "[]"))),
        put=_put(fields.get("put_turns"), fields.get("put_entries")),
        after_turn=fields.get("after_turn", ""),
        id=version_id,
    )


def mark_of(values: Sequence[str | None]) -> Mark | None:
    """Return the mark in the values of `Mark.FIELDS`; None if there is no document. Raises `UnknownFormat`."""
    format_, version, at, turns, entries, version_id, put_turns, put_entries, indexed = values
    if format_ is None:
        return None
    _check(format_)
    reach = _later(Reach(int(turns or 0), int(entries or 0)), _put(put_turns, put_entries))
    return Mark(int(version or 0), at or "", reach, version_id or "", indexed or "")


def _put(turns: str | None, entries: str | None) -> Reach | None:
    return None if turns is None or entries is None else Reach(int(turns), int(entries))


def _later(reach: Reach, put: Reach | None) -> Reach:
    return reach if put is None else Reach(max(reach.turns, put.turns), max(reach.entries, put.entries))


def _check(version: str) -> None:
    if version != _VERSION:
        raise UnknownFormat(f"a context document has version {version!r}; this runtime reads {_VERSION}")
