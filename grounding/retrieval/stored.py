"""How passages are stored: their ids, their payloads, and the conditions by which they are found again.

The scope of a passage is part of its id and a condition inside EVERY query. Pure; the same for both adapters.
"""

from __future__ import annotations

import hashlib
import re
import sys
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from connectors.message import Scope
from grounding.retrieval.index import ANSWERING, CONTINUED, IndexUnavailable, Kind, Passage, Source

PAYLOAD_VERSION = 2
DEEP = "deep"
"""The name of the deeper vector, beside ``dense`` and ``sparse``."""
PLACE_FIELDS = ("source", "ordinal", "lead")
"""The payload fields that `place_of` and `continues_answer` need."""


@cache  # there are few models, and a turn asks several times
def collection_name(model: str, dimensions: int, version: int = PAYLOAD_VERSION) -> str:
    """Return the name of the collection of one embedding model and payload *version*, which no other shares."""
    plain = re.sub(r"[^A-Za-z0-9]+", "-", model).strip("-").lower()[:60]
    return f"passages-v{version}-{plain}-{dimensions}-{hashlib.sha256(model.encode()).hexdigest()[:8]}"


# Whose passages they are


def _context(scope: Scope, kind: Kind) -> str:
    """Return the owner of passages of *kind* within the workspace: a context, a person, or nobody in particular."""
    if kind is Kind.DOCUMENT:
        return ""
    if kind is Kind.RECORD:
        return scope.audience or ""
    if kind is Kind.CODEX:
        return scope.context_id or ""
    if not scope.context_id:
        raise ValueError(f"a {kind} is indexed and searched within one context: the scope names none")
    return scope.context_id


def tenant(scope: Scope, kind: Kind) -> str:
    """Return the owner of the passages of *kind* as one value: the workspace, or one context or person in it.

    One condition instead of three (workspace, kind, context) makes large scopes fast: over 50,000 passages the dense
    arm takes 3.6 ms instead of 7.0, the rarity of words within the scope 0.8 instead of 4.7 (a quiet core).
    """
    return "\0".join((scope.workspace_id, kind, _context(scope, kind)))


def searched(scope: Scope, kind: Kind) -> tuple[Scope, ...]:
    """Return the scopes that a search in *scope* covers: its own and, for some kinds, the workspace's too."""
    shares = (kind is Kind.RECORD and scope.audience) or (kind is Kind.CODEX and scope.context_id)
    return (scope, Scope(scope.workspace_id)) if shares else (scope,)


def point_ids(scope: Scope, kind: Kind, ids: Iterable[str]) -> list[str]:
    """Return the UUIDs under which the passages *ids* are stored. They differ between scopes that must not see each
    other's passages."""
    owner = (scope.workspace_id, kind, _context(scope, kind))

    def point_uuid(passage_id: str) -> str:
        name = "\0".join((*owner, passage_id)).encode("utf-8", "surrogatepass")
        return str(uuid.UUID(bytes=hashlib.sha256(name).digest()[:16]))

    return [point_uuid(passage_id) for passage_id in ids]


def point_id(scope: Scope, passage: Passage) -> str:
    """Return the UUID under which *passage* is stored."""
    return point_ids(scope, passage.kind, [passage.id])[0]


# The conditions of queries


@dataclass(frozen=True, slots=True)
class Match:
    """A condition: the payload's *key* is one of *values*."""

    key: str
    values: tuple[str, ...] | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Where:
    """All of *must* and, if *is_shallow*, no deeper vector; none but the points *only* if that is given, and none of
    the points *without*."""

    must: tuple[Match, ...] = ()
    is_shallow: bool = False
    only: Sequence[Any] | None = None
    without: Sequence[Any] = ()


def seen(scope: Scope, kind: Kind, *, only: Sequence[str] = ()) -> Where:
    """Return the condition of a search: the `searched` scopes and, if *only* names any, these sources.

    There is no condition that excludes sources: the embedded engine would check each passage for it, which takes
    20 ms instead of 3 among 50,000."""
    must = [Match("tenant", tuple(tenant(owner, kind) for owner in searched(scope, kind)))]
    if only:
        must.append(Match("source", tuple(only)))
    return Where(tuple(must))


def where(scope: Scope, kind: Kind, *, source: str | None = None, ordinals: Iterable[int] | None = None) -> Where:
    """Return the condition of a query that is no search: the tenant, and a source and ordinals if they are named."""
    must = [Match("tenant", (tenant(scope, kind),))]
    if source is not None:
        must.append(Match("source", (source,)))
    if ordinals is not None:
        must.append(Match("ordinal", tuple(ordinals)))
    return Where(tuple(must))


def shallow(scope: Scope, kind: Kind) -> Where:
    """Return the condition that a passage has no deeper vector."""
    return Where(where(scope, kind).must, is_shallow=True)


def stale(source: Source) -> Where:
    """Return the condition for what is stored of *source* but is not among its entries."""
    keep = [point_id(source.scope, entry.passage) for entry in source.entries]
    return Where(where(source.scope, source.kind, source=source.name).must, without=keep)


def where_neighbours(scope: Scope, kind: Kind, sources: Collection[str], followed: Collection[str]) -> list[Where]:
    """Return the conditions of `PassageIndex.neighbours`; a passage meets at least one of them."""
    base = where(scope, kind, ordinals=(0,)).must
    names_by_field = {"source": tuple(sorted(sources)), "previous": tuple(sorted(followed))}
    return [Where((*base, Match(key, names))) for key, names in names_by_field.items() if names]


def whole_workspace(scope: Scope) -> Where:
    """Return the condition for everything of the scope's workspace, and nothing else."""
    return Where((Match("workspace", (scope.workspace_id,)),))


# Payloads


def payload(scope: Scope, passage: Passage) -> dict[str, Any]:
    """Return the stored form of *passage*."""
    return {
        "v": PAYLOAD_VERSION,
        "tenant": tenant(scope, passage.kind),
        "workspace": scope.workspace_id,
        "context": _context(scope, passage.kind),
        "kind": passage.kind.value,
        "id": passage.id,
        "source": passage.source,
        "title": passage.title,
        "heading": passage.heading,
        "text": passage.text,
        "lead": passage.lead,
        "ordinal": passage.ordinal,
        "span": [passage.start, passage.end, passage.first_line, passage.last_line],
        "said_at": passage.said_at,
        **({"previous": passage.previous} if passage.previous else {}),
    }


def passage_of(stored: Mapping[str, Any] | None) -> Passage:
    """Return the passage of a payload. Raises `IndexUnavailable` for a format that this version does not know."""
    stored = stored or {}
    if stored.get("v") != PAYLOAD_VERSION:
        raise IndexUnavailable(
            f"the index holds passages of format {stored.get('v')!r}, this version reads {PAYLOAD_VERSION}: "
            "run `agent-runtime index --fresh`, or the version that wrote them",
            retryable=False,
        )
    start, end, first_line, last_line = stored["span"]
    return Passage(
        id=stored["id"],
        kind=Kind(stored["kind"]),
        source=stored["source"],
        text=stored["text"],
        title=stored["title"],
        heading=stored["heading"],
        lead=stored["lead"],
        ordinal=stored["ordinal"],
        start=start,
        end=end,
        first_line=first_line,
        last_line=last_line,
        said_at=stored["said_at"],
        previous=stored.get("previous", ""),
    )


class Place(NamedTuple):
    """The place of a passage: its source, and its number within it."""

    source: str
    ordinal: int


def place_of(stored: Mapping[str, Any]) -> Place:
    """Return the place of the passage whose payload *stored* has at least `PLACE_FIELDS`."""
    return Place(sys.intern(stored["source"]), stored["ordinal"])  # a source has many passages: keep its name once


def continues_answer(stored: Mapping[str, Any]) -> bool:
    """Return whether the passage whose payload *stored* has at least `PLACE_FIELDS` is a later part of a long answer
    of the assistant in a chat."""
    speaker, mark, _ = stored["lead"].partition(f": {CONTINUED}")
    return bool(mark) and speaker.lower() in ANSWERING
