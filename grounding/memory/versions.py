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
    """Which document it is of a conversation's, by its version, its id and when it was made, and from where on it grows
    old. ``indexed`` is the id of what searches find."""

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
    """A version without its text: ``size_bytes`` is the text's, in UTF-8."""

    id: str
    at: str
    author: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ContextDocument:
    """One version of a conversation's document. ``turns`` and ``entries`` say how far it reaches: what was said later
    is not in it.

    ``turn_ids`` are the turns of which it was made. ``author`` is the person or program that put it, or what made it.
    ``kept`` are the lines that people wrote themselves. ``put`` is how far the conversation had come when a person put
    it, ``after_turn`` its last turn then. ``id`` is given by the store.
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
        """How far it has read the conversation."""
        return Reach(self.turns, self.entries)

    @property
    def due_from(self) -> Reach:
        """From where on it grows old: what a person put just now is not made anew at once."""
        return _later(self.reach, self.put)

    @property
    def mark(self) -> Mark:
        return Mark(self.version, self.at, self.due_from, self.id)

    @property
    def newest_turn_id(self) -> str:
        """The last turn before it was made; empty where it was made before any."""
        return max(self.turn_ids, default=self.after_turn)

    @property
    def etag(self) -> str:
        """A strong entity tag: other bytes, other tag."""
        return '"' + hashlib.sha256(self.text.encode("utf-8", "surrogatepass")).hexdigest()[:32] + '"'


def fields_of(document: ContextDocument) -> dict[str, str]:
    """*document* as it is stored, without its id."""
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
    """The inverse of `fields_of`. Raises `UnknownFormat`."""
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
    """The mark in the values of `Mark.FIELDS`; None where they are of no document. Raises `UnknownFormat`."""
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
