"""The port of the passage index, and its nouns.

The index holds passages of five kinds, documents of a workspace, turns of a conversation and its context document,
typed records of a workspace or of a person in it, and material that was attached to a workspace or to a context in it,
each with a dense and a sparse vector. It can be rebuilt from files,
transcripts and Redis at any time. Whoever asks says in whose scope: the workspace, and for what is a conversation's the
context, for records the person, are conditions INSIDE every query.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple, Protocol

from config.settings import Settings
from connectors.message import AgentRuntimeError, Scope
from grounding.retrieval.bm25 import SparseVector
from grounding.retrieval.embedding import Embedder, EmbedderUnavailable, Vector


class IndexUnavailable(AgentRuntimeError):
    """The index cannot answer now. ``retryable`` says whether the same call may succeed later."""

    retryable = True
    user_text = "I cannot search the documents right now."

    def __init__(self, message: str, *, retryable: bool = True) -> None:
        super().__init__(message)
        self.retryable = retryable


class Kind(StrEnum):
    """What a passage is a part of."""

    DOCUMENT = "document"
    TURN = "turn"
    CONTEXT = "context"
    RECORD = "record"
    CODEX = "codex"


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of text that can be found.

    ``id`` names it for good within its scope. ``source`` is the path under ``docs/``, the turn's id, the context's, or
    the type of a record; ``start`` and ``end`` are characters of that source, ``first_line`` and ``last_line`` count
    from 1. ``said_at`` is RFC 3339, for turns and records.
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
class Entry:
    """A passage with the vectors under which it is found. ``deep``, that of a second, deeper model, may follow later
    (`PassageIndex.deepen`)."""

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
    entries: Sequence[Entry]


class Arm(NamedTuple):
    """Where one arm of the search put a passage: its rank from 1 (0 where only the score was asked for), and its own
    raw score. The dense arm's is the cosine of question and passage as they are, without any centring."""

    rank: int
    score: float


class Hit(NamedTuple):
    """A passage that was found. ``score`` is the fused one; the arms are there when they were asked for,
    ``None`` where the arm did not have the passage among its candidates. ``fused`` and ``rerank`` are there where a
    reranker decided the order: the place before, and what it said. ``deep`` is the cosine of question and passage by
    their deeper vectors, and its rank among those that were looked at again; where it is explained."""

    passage: Passage
    score: float
    dense: Arm | None = None
    sparse: Arm | None = None
    fused: Arm | None = None
    rerank: Arm | None = None
    deep: Arm | None = None


@dataclass(frozen=True, slots=True)
class Fusion:
    """How Qdrant makes one ranking of the two arms.

    ``dbsf``: distribution-based score fusion, the sum of both arms' scores, each on the scale from three standard
    deviations below to three above the mean of its candidates. It has no weights. ``rrf``: weighted reciprocal rank
    fusion (Cormack, Clarke and Büttcher, SIGIR 2009) with the rank constant ``k``; Qdrant divides the rank by the
    weight, 1 / (k - 1 + rank / weight).

    ``candidates`` is how many passages each arm offers. ``centring`` is the share (0 to 1) of the scope's mean vector
    that is taken from the question before the arms are fused (see `grounding.retrieval.ranking`). ``looked_again``
    is how many of the best of both arms are compared by their deeper vectors, where the question has one.
    """

    method: Literal["dbsf", "rrf"] = "dbsf"
    k: int = 2
    dense: float = 1.0
    sparse: float = 1.5
    candidates: int = 300
    centring: float = 0.75
    looked_again: int = 100

    @classmethod
    def from_settings(cls, settings: Settings) -> Fusion:
        """Return the fusion that *settings* ask for."""
        return cls(
            method=settings.retrieval_fusion,
            k=settings.retrieval_rrf_k,
            dense=settings.retrieval_rrf_dense_weight,
            sparse=settings.retrieval_rrf_sparse_weight,
            candidates=settings.retrieval_candidates,
            centring=settings.retrieval_centring,
        )


AskDeep = Callable[[], Awaitable[Vector | None]]


class PassageIndex(Protocol):
    """What both adapters do. Every method raises `IndexUnavailable`; those that take a kind raise
    `ValueError` where it is a conversation's and the scope names no context.

    Passages may have a second, deeper vector, which may come later and goes when the passage is stored again without.
    An index that is made without one, or of a server that cannot add it, has none: ``deepens`` is false then, what is
    told of deeper vectors has no effect, and no passage lacks one.
    """

    deepens: bool
    """Whether passages can have a deeper vector; known once `ensure` has returned."""

    too_old: str
    """What the engine does otherwise than it is asked to because of its version, as a person reads it; empty where
    nothing. Known once `ensure` has returned."""

    async def ensure(self) -> None:
        """Make the collection of this embedding model, with its payload indexes, where it is missing."""

    async def upsert(self, scope: Scope, entries: Sequence[Entry]) -> None:
        """Store *entries*, replacing those of the same id. Searchable once it returns."""

    async def replace(self, sources: Sequence[Source]) -> None:
        """Make the entries of each of *sources* the whole of it. They can be found throughout."""

    async def delete(
        self, scope: Scope, kind: Kind, *, source: str | None = None, ids: Sequence[str] | None = None
    ) -> None:
        """Forget all passages of *source*, or those named by *ids*, where these are empty none; with neither, all of
        the kind."""

    async def search(
        self,
        scope: Scope,
        kind: Kind,
        dense: Vector | None,
        sparse: SparseVector | None,
        top_k: int,
        *,
        explain: bool = False,
        scores: bool = False,
        compared: int = 0,
        only_sources: Sequence[str] = (),
        deep: AskDeep | None = None,
    ) -> list[Hit]:
        """The best *top_k* passages, best first; with one vector only that arm's ranking and raw score.

        *deep* gives the question's vector by the deeper model, if there is one. It is awaited when both arms have
        answered; their best are looked at again with it (see `grounding.retrieval.ranking`). Those that have none
        of their own, or zeros, stand by what the arms say.

        Of records both the workspace's and the scope's user's are searched, if it names one, and of material both the
        workspace's and the scope's context's; every other method is about the scope's own alone.

        With *explain* hits carry each arm's rank and raw score, which runs both arms again; with *scores* the raw
        scores alone: the cosine is that of the stored vector, so that the dense arm, the dearest, runs once. Without
        either the best *compared* have that cosine alone.
        """

    async def read(self, scope: Scope, kind: Kind, wanted: Mapping[str, Collection[int]]) -> dict[str, list[Passage]]:
        """For each source of *wanted* its passages at those ordinals, in reading order, as far as they exist."""

    async def beside(
        self, scope: Scope, kind: Kind, sources: Collection[str], followed: Collection[str]
    ) -> list[Passage]:
        """The first passage of each of *sources*, and of each source whose `Passage.previous` is one of *followed*."""

    async def vectors(self, scope: Scope, kind: Kind, ids: Sequence[str], *, deep: bool = False) -> dict[str, Vector]:
        """The stored dense vectors of those of *ids* that exist, or the *deep* ones of those that have one."""

    async def deepen(self, scope: Scope, kind: Kind, vectors: Mapping[str, Vector]) -> int:
        """Give passages, by their ids, a deeper vector, which replaces the one that they have; what was deleted
        meanwhile stays so. How many there were."""

    async def shallow(self, scope: Scope, kind: Kind, limit: int, *, source: str | None = None) -> list[Passage]:
        """At most *limit* passages (of *source*) without a deeper vector, in no particular order."""

    async def count_shallow(self, scope: Scope, kind: Kind) -> int:
        """How many passages have no deeper vector."""

    async def ids(self, scope: Scope, kind: Kind, source: str | None = None) -> list[str]:
        """Ids of all passages (of *source*), sorted."""

    async def sources(self, scope: Scope, kind: Kind) -> dict[str, int]:
        """Every source and how many passages it has."""

    async def count(self, scope: Scope, kind: Kind) -> int:
        """How many passages there are. Takes the longer the more there are: see `estimate`."""

    async def estimate(self, scope: Scope, kind: Kind) -> int:
        """About how many passages there are, without counting them."""

    async def drop_workspace(self, scope: Scope) -> None:
        """Forget everything of the scope's workspace, of all kinds and contexts."""

    async def check(self) -> None:
        """Return if the index answers; raise `IndexUnavailable`, with what to do about it, if not."""

    async def exists(self) -> bool:
        """Whether the collection is there. Makes nothing."""

    async def drop(self) -> None:
        """Delete the collection with all that is in it, if it is there; interrupted, it can be done again."""

    async def close(self) -> None:
        """Let go of files and connections. Never raises."""


def cosine(left: Vector, right: Vector) -> float:
    """Of two vectors of one size; 0 where one of them is zero."""
    return cosines_to(left)(right)


def cosines_to(left: Vector) -> Callable[[Vector], float]:
    """`cosine` of *left* and another one, for many others."""
    own = sum(map(operator.mul, left, left))

    def cosine_of(right: Vector) -> float:
        lengths = math.sqrt(own * sum(map(operator.mul, right, right)))
        return sum(map(operator.mul, left, right)) / lengths if lengths else 0.0

    return cosine_of


# ---- deeper ----
#
# The second, deeper embedding model: asked beside everything else, and searched without where it is late.
#
# It embeds what was found already, so nobody waits for it: documents get its vectors some time after they can be found,
# and a question goes without where its vector is not there in time.


BLOCK = "deep"
"""What a search that went without is named after, in metrics and in the answers of `search`."""
LATE = "late"


class NotYet(EmbedderUnavailable):
    """The model is still being loaded: what nobody could expect of it now is no loss."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is still being loaded", retryable=True)


class Deeper(Protocol):
    """A deeper embedding model. Two of the same name give the same vectors."""

    @property
    def name(self) -> str: ...

    @property
    def dimensions(self) -> int: ...

    async def embed_queries(self, texts: Sequence[str]) -> list[Vector]:
        """The unit vectors of a few questions. Raises `EmbedderUnavailable` where they are not there in time, `NotYet`
        where they could not be."""

    async def embed_documents(self, texts: Sequence[str]) -> list[Vector]:
        """One unit vector (or zeros for text without words) per text, however long that takes. Raises
        `EmbedderUnavailable`."""


class AtHand:
    """An *embedder* of this process as a deeper one, for whom questions are worth any wait."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self.name, self.dimensions = embedder.name, embedder.dimensions

    async def embed_queries(self, texts: Sequence[str]) -> list[Vector]:
        """Raises `EmbedderUnavailable`."""
        return await self._embedder.embed_queries(texts)

    async def embed_documents(self, texts: Sequence[str]) -> list[Vector]:
        """Raises `EmbedderUnavailable`."""
        return await self._embedder.embed_documents(texts)
