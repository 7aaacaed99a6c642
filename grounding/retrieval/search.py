"""Searching a workspace's documents: for people, and for prompts."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol, runtime_checkable

import structlog

from connectors.message import Scope
from grounding.prompt_input import DegradedBlock, Recent
from grounding.prompt_input import Passage as PromptPassage
from grounding.retrieval.bm25 import SparseVector, encode_query, term_set
from grounding.retrieval.embedding import Embedder, EmbedderUnavailable, Vector
from grounding.retrieval.index import BLOCK, LATE, AskDeep, Deeper, Hit, Kind, NotYet, Passage, PassageIndex
from grounding.retrieval.packing import Retrieved, Room, Run, choose, neighbours_wanted, pack, utf8
from grounding.retrieval.ranking import Reranker, RerankUnavailable, rerank
from grounding.retrieval.relevance import Floor, Judging, asked_terms, fitting, floor_for
from grounding.retrieval.stored import searched

# ---- looking up ----
#
# One look-up of what a prompt may be told of documents: found, judged, chosen, and read with what stands around it.
#
# What is read follows from what was found, so all of it is done where the index is: whoever asks an index of another
# process has one way there and back, and is given what may be told instead of all that was found.


CANDIDATES_PER_PASSAGE = 3
"""Hits looked at for each passage wanted: some are duplicates, some join into one."""


@dataclass(frozen=True, slots=True)
class LookUp:
    """What is looked up: *query* with its vectors. At most *top_k* runs are chosen, of what reaches *floor*; where
    nothing does, of what reaches it for the query *spelled_out* with what was asked before."""

    query: str
    dense: Vector | None
    sparse: SparseVector
    floor: Floor
    top_k: int
    spelled_out: str = ""

    @property
    def candidates(self) -> int:
        """How many hits are looked at."""
        return self.top_k * CANDIDATES_PER_PASSAGE


class Chosen(NamedTuple):
    """The *runs* that may be told, best first, and the passages that they may grow by."""

    runs: list[Run]
    around: list[Passage]


NOTHING = Chosen([], [])


@runtime_checkable
class LooksUp(Protocol):
    """A `PassageIndex` that another process has, where the look-up is made."""

    async def look_up(
        self, scope: Scope, kind: Kind, look: LookUp, judging: Judging, deep: AskDeep | None = None
    ) -> Chosen:
        """See `looked_up`."""


async def looked_up(
    index: PassageIndex, scope: Scope, kind: Kind, look: LookUp, judging: Judging, deep: AskDeep | None = None
) -> Chosen:
    """What *look* finds in *index* in *scope*; *deep* as in `PassageIndex.search`, and *judging* as it is done here.

    Raises `IndexUnavailable`, and `ValueError` for a scope that may not hold the kind.
    """
    size = await size_of(index, scope, kind)  # mostly known
    hits = await index.search(scope, kind, look.dense, look.sparse, look.candidates, scores=True, deep=deep)
    return await chosen_of(index, scope, kind, look, hits, size, judging)


async def size_of(index: PassageIndex, scope: Scope, kind: Kind) -> int:
    """About how many passages a search in *scope* is made among."""
    return sum([await index.estimate(one, kind) for one in searched(scope, kind)])


async def chosen_of(
    index: PassageIndex, scope: Scope, kind: Kind, look: LookUp, hits: Sequence[Hit], size: int, judging: Judging
) -> Chosen:
    """What may be told of *hits*, found among *size* passages, and what stands around it."""
    if not hits:
        return NOTHING
    floor = fitting(look.floor, hits)

    def chosen() -> list[Run]:
        kept = floor.keep(look.query, hits, size)
        if not kept and look.spelled_out:
            kept = floor.keep(look.spelled_out, hits, size)
        return choose(kept, look.top_k)

    runs = await judging.of(hits, chosen)
    wanted: dict[str, set[int]] = defaultdict(set)
    for run in runs:
        wanted[run.source].update(neighbours_wanted(run))
    if not wanted:
        return NOTHING
    # No two owners have a source of one name.
    found = [await index.read(one, kind, wanted) for one in searched(scope, kind)]
    return Chosen(runs, [passage for by_source in found for some in by_source.values() for passage in some])


# ---- followup ----
#
# What a message is searched with inside a conversation: its own words, and a little of what was asked before. Pure.
#
# "And what about the window?" names its subject only two turns above. The words and vectors of the last turns go
# into the
# query with a weight that falls with the number of terms that the message has itself: one that says what it is about is
# hardly moved, also where it changes the subject; a fragment is carried by what came before.
#
# The rule and its three figures were chosen on conversations that were not scored with them: docs/decisions/07.


EARLIER_TURNS = 2
"""Turns of people that are looked back at. More of them changed nothing that was measured."""
EARLIER_MAX_CHARACTERS = 400
"""What of such a turn is used: its beginning. Whoever pasted a log there does not ask about all of it."""
LARGEST_WEIGHT = 0.4
"""Of the last turn, next to a message whose own terms have 1."""
WEIGHT_OF_ALL_TERMS = 0.8
"""The last turn's weight is this divided by the message's different terms, from three terms on."""
OLDER = 0.5
"""The weight of a turn, in parts of that of the turn after it."""

FRAGMENT_TERMS = 2
"""Up to so many terms a message is a fragment to whoever reads it whole, as a cross-encoder does."""


def recent(turns: Sequence[str]) -> tuple[str, ...]:
    """Those of *turns* (what people said, the oldest first) that a search uses, each with its beginning."""
    spoken = [turn for turn in turns if turn.strip()]
    return tuple(turn[:EARLIER_MAX_CHARACTERS] for turn in spoken[-EARLIER_TURNS:])


def spell_out(query: str, turns: Sequence[str], own_terms: int, fragment: int = FRAGMENT_TERMS) -> str:
    """*query* behind the `recent` ones of *turns* if it has at most *fragment* different terms, else alone."""
    return "\n".join((*recent(turns), query)) if own_terms <= fragment else query


def weights(own_terms: int, turns: int) -> list[float]:
    """How much each of as many *turns*, the oldest first, counts next to a message of *own_terms* different terms."""
    last = min(LARGEST_WEIGHT, WEIGHT_OF_ALL_TERMS / max(own_terms, 1))
    return [last * OLDER**age for age in reversed(range(turns))]


def mix_terms(own: SparseVector, earlier: Sequence[SparseVector], own_terms: int) -> SparseVector:
    """The terms of a message that has *own_terms* different ones, as they are, and those of *earlier* turns (the oldest
    first) that it does not have, each once and with the weight of the last turn that has it. How rare a term is is for
    the index to say."""
    mixed: dict[int, float] = {}
    for weight, turn in zip(weights(own_terms, len(earlier)), earlier, strict=True):
        mixed |= {index: weight * min(value, 1.0) for index, value in zip(turn.indices, turn.values, strict=True)}
    mixed |= zip(own.indices, own.values, strict=True)
    ordered = sorted(mixed.items())
    return SparseVector(tuple(index for index, _ in ordered), tuple(value for _, value in ordered))


def mix_vectors(own: Vector, earlier: Sequence[Vector], own_terms: int) -> Vector:
    """The weighted sum, as a unit vector, of the unit vectors of a message that has *own_terms* different terms and of
    *earlier* turns (the oldest first); zeros where all are zeros."""
    import numpy as np

    # By numpy's double precision, which rounds as Python's: to the last bit the same, for a third of the time.
    mixed = np.array(own, dtype=np.float64)
    for weight, turn in zip(weights(own_terms, len(earlier)), earlier, strict=True):
        mixed += weight * np.array(turn, dtype=np.float64)
    length = math.sqrt(math.fsum((mixed * mixed).tolist()))
    unit: Vector = (mixed / length if length > 0 else mixed).tolist()
    return unit


# ---- search ----


_log = structlog.get_logger()

SHORT_QUERY_CHARACTERS = 400
QUERY_MAX_CHARACTERS = 4000
"""What of a question is searched with; the beginning and the end of longer ones."""
COUNTS_REMEMBERED = 1024
"""Passages and labels of which it is known how many tokens they are: some 200 bytes each."""
COUNTED_AT_ONCE = 1000
"""Characters whose tokens are counted on the loop, in up to half a millisecond; to hand them over takes as long."""


class Search:
    """Hybrid search over the passages of one embedding model, reranked where there is a *reranker*.

    Where that fails the fused order stands, and ``lost``, if it is given, names it.
    """

    def __init__(
        self,
        index: PassageIndex,
        embedder: Embedder,
        *,
        floor: Floor | None = None,
        count: Callable[[str], int] | None = None,
        reranker: Reranker | None = None,
        words_alone: str = "",
        kind: Kind = Kind.DOCUMENT,
        deep: Deeper | None = None,
    ) -> None:
        """*kind* is what is searched: no other is ever found. *count* gives the tokens of a text; without it passages
        are bound by their bytes alone. *words_alone*, where given, names in ``lost`` a search by words alone, which is
        made where the question cannot be embedded. *deep* is the model of the passages' deeper vectors; a search that
        goes without because its question is not embedded in time is named in ``lost``, too."""
        self._index = index
        self._look_up = index.look_up if isinstance(index, LooksUp) else partial(looked_up, index)
        self._embedder = embedder
        self._floor = floor or floor_for(embedder.name)
        self._counts = _Counts(count) if count else None
        self._reranker = reranker
        self._words_alone = words_alone
        self._kind = kind
        self._judging = Judging()
        self._deep = deep

    async def search(
        self,
        scope: Scope,
        query: str,
        top_k: int,
        *,
        explain: bool = False,
        scores: bool = False,
        lost: list[DegradedBlock] | None = None,
        earlier: Sequence[str] = (),
    ) -> list[Hit]:
        """The best *top_k* chunks, best first, without any floor; with *explain* each arm's rank and raw score, with
        *scores* the raw scores alone. *earlier* is what people said before *query* in the same conversation, the oldest
        first.

        Raises `IndexUnavailable` and `EmbedderUnavailable`.
        """
        query = shorten(query)
        if not query.strip():
            return []
        dense, sparse = await self._vectors(query, earlier, lost)
        deep = self._again(query, earlier, lost, dense, sparse)
        wanted = max(top_k, self._reranker.candidates) if self._reranker else top_k
        hits = await self._index.search(
            scope, self._kind, dense, sparse, wanted, explain=explain, scores=scores, deep=deep
        )
        if self._reranker is not None:
            query = _spelled_out(query, earlier) or query
        return (await self._reranked(scope, query, hits, lost))[:top_k]

    async def _vectors(
        self, query: str, earlier: Sequence[str], lost: list[DegradedBlock] | None
    ) -> tuple[Vector | None, SparseVector]:
        try:
            return await query_vectors(self._embedder, query, earlier)
        except EmbedderUnavailable:
            if not self._words_alone:
                raise
        if lost is not None:
            lost.append(DegradedBlock(block="retrieved", why=self._words_alone))
        return None, await query_terms(query, earlier)

    def _again(
        self,
        query: str,
        earlier: Sequence[str],
        lost: list[DegradedBlock] | None,
        dense: Vector | None,
        sparse: SparseVector,
    ) -> AskDeep | None:
        """What gives the question's deeper vector, where there is a second look."""
        looks_again = self._deep is not None and self._index.deepens and dense is not None and bool(sparse.indices)
        return partial(self._deep_vector, query, earlier, lost) if looks_again else None

    async def _deep_vector(self, query: str, earlier: Sequence[str], lost: list[DegradedBlock] | None) -> Vector | None:
        """The question's deeper vector, which is mixed as the quick one is; None where there is none in time, or where
        the model cannot read the question: what was said before it would say then what is found."""
        if self._deep is None:
            return None
        try:
            own, *turns = await _asked(self._deep, query, earlier)
            return _mixed(query, own, turns) if any(own) else None
        except NotYet:
            return None
        except EmbedderUnavailable:
            if lost is not None:
                lost.append(DegradedBlock(block=BLOCK, why=LATE))
            return None

    async def _reranked(self, scope: Scope, query: str, hits: list[Hit], lost: list[DegradedBlock] | None) -> list[Hit]:
        if self._reranker is None:
            return hits
        try:
            return await rerank(self._reranker, scope, query, hits)
        except RerankUnavailable as error:
            _log.warning("rerank.failed", workspace_id=scope.workspace_id, model=self._reranker.name, why=error.why)
            if lost is not None:
                lost.append(DegradedBlock(block="rerank", why=error.why))
            return hits

    async def retrieve(
        self,
        scope: Scope,
        query: str,
        top_k: int,
        max_bytes: int,
        max_tokens: int | None = None,
        *,
        lost: list[DegradedBlock] | None = None,
        earlier: Sequence[str] = (),
    ) -> list[Retrieved]:
        """At most *top_k* passages of at most *max_bytes* bytes each, with their labels of at most *max_tokens* tokens
        together, best first; an empty list where nothing is relevant. *earlier* as in `search`.

        Raises `IndexUnavailable` and `EmbedderUnavailable`: an outage never poses as "no such document".
        """
        query = shorten(query)
        if not query.strip():
            return []
        runs, found = await self._chosen(scope, query, top_k, lost, earlier)
        if not runs:
            return []
        around: dict[str, dict[int, Passage]] = defaultdict(dict)
        for passage in found:
            around[passage.source][passage.ordinal] = passage
        room = Room(top_k, max_bytes, max_tokens if self._counts else None, self._counts or len)
        if all(utf8(part.lead + part.text) <= max_bytes for run in runs for part in run.parts):
            texts = {part.lead + part.text for part in found}
            if self._counts is None or sum(map(len, self._counts.lacking(texts))) <= COUNTED_AT_ONCE:
                return pack(runs, around, query, room)
        # Counting what was not told lately, or choosing what to keep of a long passage, takes milliseconds: off the
        # loop.
        return await asyncio.to_thread(pack, runs, around, query, room)

    async def _chosen(
        self, scope: Scope, query: str, top_k: int, lost: list[DegradedBlock] | None, earlier: Sequence[str]
    ) -> Chosen:
        if self._reranker is None:
            dense, sparse = await self._vectors(query, earlier, lost)
            look = LookUp(query, dense, sparse, self._floor, top_k, _spelled_out(query, earlier))
            again = self._again(query, earlier, lost, look.dense, look.sparse)
            return await self._look_up(scope, self._kind, look, self._judging, again)
        size = await size_of(self._index, scope, self._kind)  # mostly known
        look = LookUp(query, None, SparseVector((), ()), self._floor, top_k, _spelled_out(query, earlier))
        hits = await self.search(scope, query, look.candidates, scores=True, lost=lost, earlier=earlier)
        return await chosen_of(self._index, scope, self._kind, look, hits, size, self._judging)

    async def passages(
        self,
        scope: Scope,
        query: str,
        top_k: int,
        excerpt_bytes: int,
        max_tokens: int | None = None,
        *,
        lost: list[DegradedBlock] | None = None,
        earlier: Sequence[str] = (),
    ) -> list[PromptPassage]:
        """`retrieve`, in the form of a turn's input."""
        found = await self.retrieve(scope, query, top_k, excerpt_bytes, max_tokens, lost=lost, earlier=earlier)
        return [
            PromptPassage(source=item.source, heading=item.heading, text=item.text, score=item.score) for item in found
        ]


class _Counts:
    """*count*, of each of the last texts once: what is told in one turn is mostly told again."""

    def __init__(self, count: Callable[[str], int]) -> None:
        self._count = count
        self._known: Recent[int] = Recent(COUNTS_REMEMBERED)
        self.lacking = self._known.lacking

    def __call__(self, text: str) -> int:
        return self._known.of(text, self._count)


async def query_vectors(embedder: Embedder, query: str, earlier: Sequence[str] = ()) -> tuple[Vector, SparseVector]:
    """What *query* is searched with, after what was said *earlier* (see `grounding.retrieval.search`). A long one
    says itself what it is about.

    Raises `EmbedderUnavailable`.
    """
    sparse = await query_terms(query, earlier)
    own, *turns = await _asked(embedder, query, earlier)
    return _mixed(query, own, turns), sparse


async def _asked(embedder: Embedder | Deeper, query: str, earlier: Sequence[str]) -> list[Vector]:
    """The vectors of *query* and of what of *earlier* is used. Raises `EmbedderUnavailable`."""
    return await embedder.embed_queries([query, *_before(query, earlier)])


def _mixed(query: str, own: Vector, turns: Sequence[Vector]) -> Vector:
    return mix_vectors(own, turns, len(term_set(query))) if turns else own


async def query_terms(query: str, earlier: Sequence[str] = ()) -> SparseVector:
    """The words of `query_vectors`."""
    sparse = await encoded(query)
    if before := _before(query, earlier):
        return mix_terms(sparse, [encode_query(text) for text in before], len(term_set(query)))
    return sparse


def _before(query: str, earlier: Sequence[str]) -> Sequence[str]:
    return recent(earlier) if len(query) <= SHORT_QUERY_CHARACTERS else ()


def _spelled_out(query: str, earlier: Sequence[str]) -> str:
    """*query* with what was said *earlier*, where it says too little by itself; else empty."""
    before = _before(query, earlier)
    spelled_out = spell_out(query, before, len(asked_terms(query))) if before else query
    return spelled_out if spelled_out != query else ""


async def encoded(query: str) -> SparseVector:
    """See `encode_query`. Of a short one that takes less than the way to a thread and back."""
    if len(query) <= SHORT_QUERY_CHARACTERS:
        return encode_query(query)
    return await asyncio.to_thread(encode_query, query)


def shorten(query: str) -> str:
    """*query*, or its beginning and end where it is longer than `QUERY_MAX_CHARACTERS`."""
    if len(query) <= QUERY_MAX_CHARACTERS:
        return query
    half = QUERY_MAX_CHARACTERS // 2
    return f"{query[:half]}\n{query[-half:]}"


# ---- vocabulary ----
#
# Whether a workspace's documents speak of what a message says: a cheap look into the index, for the strategy.
#
# It is the search itself, for a few passages: nothing has to be kept in step with the documents, and what they speak of
# in other words counts too.


CANDIDATES = 5
"""Passages looked at; with ten the relevance of hardly any message is another one."""
VOCABULARY_NOTHING = -math.inf
"""Where there is no passage at all."""


class Match(NamedTuple):
    """The log-odds that the best passage found answers a message, or `NOTHING`, and among about how many passages it
    was searched for."""

    relevance: float
    passages: int


class Vocabulary:
    """Looks messages up among the passages of one embedding model."""

    def __init__(self, index: PassageIndex, embedder: Embedder, *, floor: Floor | None = None) -> None:
        self._index = index
        self._embedder = embedder
        self._floor = floor or floor_for(embedder.name)
        self._judging = Judging()

    async def awake(self, scope: Scope) -> None:
        """It always is."""

    async def best_match(self, scope: Scope, text: str) -> Match:
        """How relevant the best passage of the scope's workspace is to *text*.

        Where the floor does not weigh cosines nothing is embedded: with a model that is paid for, every message would
        cost a call. Raises `IndexUnavailable` and `EmbedderUnavailable`.
        """
        text = shorten(text)
        size = await self._index.estimate(scope, Kind.DOCUMENT)  # mostly known
        hits = await self.hits(scope, text)
        if not hits:
            return Match(VOCABULARY_NOTHING, size)
        return Match(await self._judging.of(hits, lambda: max(self._floor.relevances(text, hits, size))), size)

    async def hits(self, scope: Scope, text: str) -> list[Hit]:
        """The passages that are looked at, with their raw scores."""
        sparse = await encoded(text)
        if not sparse.indices:
            return []
        dense = await self._embedder.embed_query(text) if self._floor.dense_weight else None
        return await self._index.search(scope, Kind.DOCUMENT, dense, sparse, CANDIDATES, scores=True)
