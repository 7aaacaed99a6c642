"""The port of the passage index, and its nouns.

The index holds passages of five kinds (`Kind`), each with a dense and a sparse vector. It can be rebuilt from files,
transcripts and Redis at any time. Every call names a scope: the workspace and, for some kinds, the context or the
person are conditions inside EVERY query.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

from connectors.message import AgentRuntimeError, Scope
from grounding.retrieval.bm25 import SparseVector
from grounding.retrieval.embedding import Vector


class IndexUnavailable(AgentRuntimeError):
    """The index cannot answer now. ``retryable`` says whether the same call may succeed later."""

    retryable = True
    user_text = "I cannot search the documents right now."

    def __init__(self, message: str, *, retryable: bool = True) -> None:
        super().__init__(message)
        self.retryable = retryable


class Kind(StrEnum):
    """The origin of a passage: a document of a workspace, a turn of a conversation, a conversation's context
    document, a typed record of a workspace or of a person in it, or material attached to a workspace or a context."""

    DOCUMENT = "document"
    TURN = "turn"
    CONTEXT = "context"
    RECORD = "record"
    CODEX = "codex"


ANSWERING = frozenset(("assistant", "ai", "bot"))
"""The speakers of answers in a chat, in lower case."""
CONTINUED = "… "
"""Stands behind a speaker's name where a part of a message begins in its middle."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of text that can be found.

    ``id`` never changes and is unique within the scope. ``source`` is the path under ``docs/``, the turn's id, the
    context's, or the type of a record. ``start`` and ``end`` count characters of that source; ``first_line`` and
    ``last_line`` count from 1. ``said_at`` is RFC 3339, for turns and records. ``previous`` is the turn before.
    """

    id: str
    kind: Kind
    source: str
    text: str
    title: str = ""
    heading: str = ""
    lead: str = ""
    ordinal: int = 0
    start: int = 0
    end: int = 0
    first_line: int = 1
    last_line: int = 1
    said_at: str = ""
    previous: str = ""


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """A passage with its vectors. ``deep`` is that of the deeper model and may follow later (`PassageIndex.deepen`)."""

    passage: Passage
    dense: Vector
    sparse: SparseVector
    deep: Vector | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """All passages of one source."""

    scope: Scope
    kind: Kind
    name: str
    entries: Sequence[IndexEntry]


class Arm(NamedTuple):
    """The rank (from 1; 0 if only the score was wanted) and the raw score that one arm of a search gave a passage. The
    dense arm's score is the plain cosine of question and passage, without any centring."""

    rank: int
    score: float


class Hit(NamedTuple):
    """A passage that was found.

    ``score`` is the number that orders hits; its scale depends on the arms and the second look, so that it can be
    compared within one search only. It does not say whether the passage is any good: the relevance does
    (`grounding.retrieval.relevance`), which is made of the raw scores in ``dense``, ``sparse`` and ``deep``.

    ``dense`` and ``sparse`` are the arms' raw scores. One is None if it was not wanted or if the arm did not have the
    passage among its candidates. ``deep`` has the cosine of the deeper vectors, if the search has one of its own, is
    explained, gives scores or compares (`PassageQuery.compared`), and the passage has such a vector.

    If a reranker decided the order, ``fused`` has the place and the score before it, and ``rerank`` has its place and
    its score, if it read the passage. It does not change ``score``: see `deciding_score`. ``relevance`` is there if the
    search is explained.
    """

    passage: Passage
    score: float
    dense: Arm | None = None
    sparse: Arm | None = None
    fused: Arm | None = None
    rerank: Arm | None = None
    deep: Arm | None = None
    relevance: float | None = None

    @property
    def deciding_score(self) -> float:
        """The score that decided the hit's place: the reranker's if it read the passage, else ``score``."""
        return self.rerank.score if self.rerank else self.score


CANDIDATES = 300
"""The number of passages that each arm of a search offers, if both are asked."""
TIES = 8
"""So many passages more than wanted are ranked, so that the last places do not fall to chance."""


@dataclass(frozen=True, slots=True)
class PassageQuery:
    """A question to the index: the best *top_k* passages of *kind* are wanted.

    With one of the vectors *dense* and *sparse* the ranking and score are that arm's alone. *deep* is the question's
    vector by the deeper model, which orders the best of both arms anew; a passage without a deeper vector, or with
    zeros, keeps its place.

    With *explain* hits carry each arm's rank and raw score; with *scores* the raw scores alone, which the relevance
    needs. Without either the best *compared* hits carry their cosine. Then *deep* orders nothing: all hits carry their
    deeper cosine instead, and the last places have those nearest to *deep* that were not found otherwise.

    Records of the workspace and of the scope's user are both searched if the scope names a user; material of the
    workspace and of the scope's context likewise. If *only_sources* names any, no other source is searched. With both
    vectors each arm offers at least *offered* passages.
    """

    scope: Scope
    kind: Kind
    dense: Vector | None
    sparse: SparseVector | None
    top_k: int
    explain: bool = False
    scores: bool = False
    compared: int = 0
    only_sources: Sequence[str] = ()
    deep: Vector | None = None
    offered: int = CANDIDATES

    @property
    def has_both_arms(self) -> bool:
        return self.dense is not None and self.sparse is not None

    @property
    def looks_again(self) -> bool:
        """Whether the best passages are ordered anew by their deeper vectors."""
        return self.has_both_arms and self.deep is not None and not self.compared

    @property
    def arms(self) -> list[str]:
        """The arms to ask: ``near`` (cosines from the centre) and ``sparse`` are fused; ``dense`` (plain cosines) is
        asked if the search is explained, or if it is the only arm. For *scores* the plain cosines are computed later,
        for the best passages alone (`wants_cosines`)."""
        if self.top_k < 1:
            return []
        wanted = {
            "sparse": self.sparse is not None,
            "near": self.has_both_arms,
            "dense": self.dense is not None and (self.explain or self.sparse is None),
        }
        return [arm for arm, is_wanted in wanted.items() if is_wanted]

    @property
    def limit(self) -> int:
        """The number of points that are ranked."""
        return self.top_k + TIES

    @property
    def candidates(self) -> int:
        """The number of points that each arm offers."""
        return max(self.limit, self.offered) if self.has_both_arms else self.limit

    @property
    def wants_cosines(self) -> bool:
        """Whether the ranked passages are compared with the question once more, by their plain vectors."""
        return self.dense is not None and not self.explain and (self.scores or self.compared > 0)


class PassageIndex(Protocol):
    """An index of passages under one embedding model; `qdrant_edge` and `qdrant_server` implement it.

    Every method raises `IndexUnavailable`. A method that takes a kind raises `ValueError` if passages of that kind
    belong to a conversation and the scope names no context.

    A passage may have a second, deeper vector, which may come later and goes when the passage is stored again without
    one. If the index was opened without deeper vectors, or its server cannot add them, ``deepens`` is false: then
    `deepen` does nothing, and no passage lacks a deeper vector.
    """

    deepens: bool
    """Whether passages can have a deeper vector; known once `ensure` has returned."""

    async def ensure(self) -> None:
        """Create the collection of this embedding model and its payload indexes if they are missing."""

    async def upsert(self, scope: Scope, entries: Sequence[IndexEntry]) -> None:
        """Store *entries* and replace those of the same id. They are searchable once this returns."""

    async def replace(self, sources: Sequence[Source]) -> None:
        """Make the entries of each of *sources* the whole of that source."""

    async def delete(
        self, scope: Scope, kind: Kind, *, source: str | None = None, ids: Sequence[str] | None = None
    ) -> None:
        """Delete the passages named by *ids* (none if it is empty), or else those of *source*, or else all of the
        kind."""

    async def search(self, query: PassageQuery) -> list[Hit]:
        """Return what *query* asks for, best first. Every other method is about the scope's own passages alone."""

    async def read(self, scope: Scope, kind: Kind, wanted: Mapping[str, Collection[int]]) -> dict[str, list[Passage]]:
        """Return for each source of *wanted* its passages at those ordinals, in reading order, as far as they exist."""

    async def neighbours(
        self, scope: Scope, kind: Kind, sources: Collection[str], followed: Collection[str]
    ) -> list[Passage]:
        """Return the first passage of each of *sources*, and of each source whose `Passage.previous` is in
        *followed*."""

    async def vectors(self, scope: Scope, kind: Kind, ids: Sequence[str], *, deep: bool = False) -> dict[str, Vector]:
        """Return the stored dense vectors of those of *ids* that exist, or the *deep* ones of those that have one."""

    async def deepen(self, scope: Scope, kind: Kind, vectors: Mapping[str, Vector]) -> int:
        """Store deeper vectors of passages, by their ids, and return how many of these passages still existed."""

    async def shallow(self, scope: Scope, kind: Kind, limit: int) -> list[Passage]:
        """Return at most *limit* passages without a deeper vector, in no particular order."""

    async def ids(self, scope: Scope, kind: Kind) -> list[str]:
        """Return the ids of all passages, sorted."""

    async def sources(self, scope: Scope, kind: Kind) -> dict[str, int]:
        """Return every source with the number of its passages."""

    async def count(self, scope: Scope, kind: Kind, *, shallow: bool = False, exact: bool = True) -> int:
        """Return the number of passages, or of those without a deeper vector if *shallow*. If not *exact*, it is
        estimated in a time that does not grow with it."""

    async def drop_workspace(self, scope: Scope) -> None:
        """Delete everything of the scope's workspace, of all kinds and contexts."""

    async def check(self) -> None:
        """Return if the index answers; else raise `IndexUnavailable`, which says what to do about it."""

    async def exists(self) -> bool:
        """Return whether the collection exists. Creates nothing."""

    async def drop(self) -> None:
        """Delete the collection with all its passages, if it exists. An interrupted call can be repeated."""

    async def close(self) -> None:
        """Release files and connections. Never raises."""
