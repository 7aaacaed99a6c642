"""How the index stores passages: under which ids, in which form, and the conditions by which they are found again.

In whose scope a passage stands is part of its id and a condition inside EVERY query. Pure; the same for both adapters.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import sys
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from connectors.message import Scope
from grounding.retrieval.index import IndexUnavailable, Kind, Passage, Source

PAYLOAD_VERSION = 2
DEEP = "deep"
"""The name of the deeper vector, beside ``dense`` and ``sparse``."""


@dataclass(frozen=True, slots=True)
class Match:
    """A condition: the payload's *key* is one of *values*."""

    key: str
    values: tuple[str, ...] | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Where:
    """All of *must*, and where *is_shallow* no deeper vector."""

    must: tuple[Match, ...]
    is_shallow: bool = False


@cache  # for a few models, and asked for several times a turn
def collection_name(model: str, dimensions: int, version: int = PAYLOAD_VERSION) -> str:
    """The collection of one embedding model and *version* of payloads: no other ever meets these vectors."""
    plain = re.sub(r"[^A-Za-z0-9]+", "-", model).strip("-").lower()[:60]
    return f"passages-v{version}-{plain}-{dimensions}-{hashlib.sha256(model.encode()).hexdigest()[:8]}"


def point_id(scope: Scope, passage: Passage) -> str:
    """The UUID under which *passage* is stored: different for every scope that may not see the others'."""
    return _point_uuid(scope, passage.kind, passage.id)


def point_ids(scope: Scope, kind: Kind, ids: Iterable[str]) -> list[str]:
    """`point_id` of passages that are known by their ids only."""
    return [_point_uuid(scope, kind, passage_id) for passage_id in ids]


def _point_uuid(scope: Scope, kind: Kind, passage_id: str) -> str:
    context = _context(scope, kind)
    name = "\0".join((scope.workspace_id, kind, context, passage_id)).encode("utf-8", "surrogatepass")
    return str(uuid.UUID(bytes=hashlib.sha256(name).digest()[:16]))


def _context(scope: Scope, kind: Kind) -> str:
    """Within the workspace: whose passages of *kind* these are."""
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
    """Whose passages of *kind* these are: the workspace's, or one context's or person's alone, as one value.

    One condition instead of three (workspace, kind, context) is what makes large scopes fast: over 50,000 passages
    the dense arm takes 3.6 ms instead of 7.0, the rarity of words within the scope 0.8 instead of 4.7 (a quiet core).
    """
    return "\0".join((scope.workspace_id, kind, _context(scope, kind)))


def searched(scope: Scope, kind: Kind) -> tuple[Scope, ...]:
    """Whose passages of *kind* a search in *scope* may find: the scope's own, and of some kinds the workspace's too."""
    shares = (kind is Kind.RECORD and scope.audience) or (kind is Kind.CODEX and scope.context_id)
    return (scope, Scope(scope.workspace_id)) if shares else (scope,)


def seen(scope: Scope, kind: Kind, *, only: Sequence[str] = ()) -> Where:
    """The condition of every search: what is `searched`, of the sources *only* if there are any. There is none that
    leaves sources out: the embedded engine would look at each passage for it, of 50,000 in 20 ms instead of 3."""
    must = [Match("tenant", tuple(tenant(one, kind) for one in searched(scope, kind)))]
    if only:
        must.append(Match("source", tuple(only)))
    return Where(tuple(must))


def where(
    scope: Scope,
    kind: Kind,
    *,
    source: str | None = None,
    ordinals: Iterable[int] | None = None,
) -> Where:
    """The condition of every query that is no search: the tenant, and what else is asked."""
    must = [Match("tenant", (tenant(scope, kind),))]
    if source is not None:
        must.append(Match("source", (source,)))
    if ordinals is not None:
        must.append(Match("ordinal", tuple(ordinals)))
    return Where(tuple(must))


def shallow(scope: Scope, kind: Kind, source: str | None = None) -> Where:
    """The condition that a passage (of *source*) has no deeper vector."""
    return Where(where(scope, kind, source=source).must, is_shallow=True)


def where_beside(scope: Scope, kind: Kind, sources: Collection[str], followed: Collection[str]) -> list[Where]:
    """The conditions of `PassageIndex.beside`, of which passages meet one."""
    base = where(scope, kind, ordinals=(0,)).must
    named = {"source": tuple(sorted(sources)), "previous": tuple(sorted(followed))}
    return [Where((*base, Match(key, names))) for key, names in named.items() if names]


def where_any(sources: Sequence[Source]) -> Where:
    """A condition that every passage of *sources* meets, and few others: those of the same name elsewhere."""
    conditions = [where(one.scope, one.kind, source=one.name).must for one in sources]
    values: dict[str, dict[Any, None]] = {}
    for match in itertools.chain.from_iterable(conditions):
        values.setdefault(match.key, {}).update(dict.fromkeys(match.values))
    shared = set.intersection(*({match.key for match in condition} for condition in conditions))
    return Where(tuple(Match(key, tuple(found)) for key, found in values.items() if key in shared))


def whole_workspace(scope: Scope) -> Where:
    """Everything of the scope's workspace, and nothing else."""
    return Where((Match("workspace", (scope.workspace_id,)),))


KEYWORD_FIELDS = ("workspace", "source", "previous")
"""Payload fields with a keyword index, beside ``tenant``."""
INTEGER_FIELDS = ("ordinal",)


def payload(scope: Scope, passage: Passage) -> dict[str, Any]:
    """*passage* as it is stored."""
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


def passage_of(stored: dict[str, Any] | None) -> Passage:
    """The inverse of `payload`. Raises `IndexUnavailable` for a format that this version does not know."""
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
    """Where a passage stands: in which source, and as which of its passages."""

    source: str
    ordinal: int


PLACE_FIELDS = ("source", "ordinal")
"""The payload fields that `place_of` needs."""


def place_of(stored: Mapping[str, Any]) -> Place:
    """Where the passage stands whose `PLACE_FIELDS`, at least, *stored* has."""
    return Place(sys.intern(stored["source"]), stored["ordinal"])  # a source has many passages: its name is kept once


def in_reading_order(records: Iterable[Any]) -> list[Passage]:
    """The passages of an engine's *records* by their ordinals."""
    return sorted((passage_of(record.payload) for record in records), key=lambda passage: passage.ordinal)
