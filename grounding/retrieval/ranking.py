"""Where a passage's score is made, once for both adapters. Pure, but for `Centres` and the reranker's call.

A search takes these steps. `grounding.retrieval.qdrant.QdrantIndex.search` takes them, this module has the arithmetic:

1. Each arm offers its candidates (`PassageQuery.arms`): ``near`` by cosine, with the question seen from the scope's
   centre (`subtract_centre`); ``sparse`` by BM25 (`grounding.retrieval.bm25`).
2. `fuse_arms` makes one ranking of both: score = near + words, each on a scale on which most are between 0 and 1.
3. If the question has a deeper vector, the best are compared by theirs and ordered anew (`second_look`):
   score = words + 0.5 near + 2.5 deep, each on such a scale.
4. `hits_of` reads the ranking as hits.
5. If a reranker is configured, `Search` puts the first hits in its order (`rerank`).

An arm is one of the rankings that a question gets by itself. There are three: ``sparse`` has BM25 scores; ``near`` has
cosines with the question seen from the centre, and is fused with ``sparse``; ``dense`` has the plain cosines, which are
not fused but shown (`Hit.dense`) and weighed in the relevance.

The score made here orders passages. Of the best of them, the relevance decides which a prompt shows. It is made in
`grounding.retrieval.relevance` of raw scores, so that hits must come from a search with ``scores=True`` or
``explain=True``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from connectors.message import AgentRuntimeError, Scope
from grounding.retrieval.embedding import Vector
from grounding.retrieval.index import CANDIDATES, TIES, Arm, Hit, Kind, Passage, PassageQuery
from grounding.retrieval.stored import DEEP, Place

Id = TypeVar("Id", bound=Hashable)

CENTRING = 0.75
"""The share (0 to 1) of the scope's mean vector that is taken from the question before the arms are fused."""
LOOKED_AGAIN = 100
"""So many of the best passages of both arms are compared by their deeper vectors."""


# Fusion
#
# Distribution-based fusion puts each arm's scores on the scale of its own candidates. If words find only a few, that
# scale says nothing: the only passage with a rare word is its own average, and falls behind whatever is nearest by
# meaning. So passages without any of the words count as well, with their score of 0, as many as ``near`` offers: the
# fewer passages hold a word, the more it says.


DEVIATIONS = 3
"""The scale ends so many standard deviations below and above the mean, as in Qdrant."""


def fuse_arms(query: PassageQuery, arms: Mapping[str, Mapping[Id, float]]) -> list[tuple[Id, float]]:
    """Return the best points with their scores, best first. *arms* has each arm's raw scores, best first."""
    if not query.has_both_arms:
        (only,) = arms.values()
        return [*only.items()]
    near, worded = arms["near"], arms["sparse"]
    limit = max(query.limit, LOOKED_AGAIN + TIES) if query.looks_again else query.limit
    counts_absent = query.looks_again or words_find_few(query.kind, len(worded))
    return fuse_by_scores(near, worded, limit, counts_absent=counts_absent)


def words_find_few(kind: Kind, found: int) -> bool:
    """Return whether *found* candidates by words are too few for their own scale. Only documents are concerned: turns
    of a conversation are always few, and judged by more than their score."""
    return kind is Kind.DOCUMENT and 0 < found < CANDIDATES


class Scale(NamedTuple):
    """Puts a score on the common scale of an arm: ``factor`` × score + ``shift``."""

    factor: float
    shift: float

    def of(self, score: float) -> float:
        return self.factor * score + self.shift


def scale_of(scores: Collection[float], zeros: int = 0) -> Scale:
    """Return the scale from three standard deviations below the mean of *scores* and of as many *zeros* (which is 0) to
    three above it (which is 1)."""
    count = len(scores) + zeros
    mean = math.fsum(scores) / count if count else 0.0  # the same in every order
    squares = math.fsum([(score - mean) ** 2 for score in scores]) + zeros * mean**2
    width = 2 * DEVIATIONS * math.sqrt(squares / max(1, count - 1))
    return Scale(1 / width, 0.5 - mean / width) if width else Scale(0.0, 0.5)


def scales_of(
    near: Mapping[Id, float], worded: Mapping[Id, float], *, counts_absent: bool = True
) -> tuple[Scale, Scale, float]:
    """Return the scales of both arms, and what a passage without any of the words has on the second. That is 0 if words
    find as many passages as vectors do, or if absent ones do not count, as in Qdrant."""
    missing = max(0, len(near) - len(worded)) if counts_absent else 0
    words = scale_of(worded.values(), missing)
    return scale_of(near.values()), words, words.of(0.0) if missing else 0.0


def fuse_by_scores(
    near: Mapping[Id, float], worded: Mapping[Id, float], top_k: int, *, counts_absent: bool = True
) -> list[tuple[Id, float]]:
    """Return the best *top_k* points by the sum of both arms' scores, each on its own scale. If *counts_absent*,
    passages without any of the words count on the second scale; if not, the fusion is Qdrant's own."""
    near_scale, words, without = scales_of(near, worded, counts_absent=counts_absent)
    fused = {point: near_scale.of(score) + without for point, score in near.items()}
    for point, score in worded.items():  # what only words find gets nothing for its meaning
        fused[point] = fused.get(point, without) - without + words.of(score)
    return best_first(fused, top_k)


def best_first(scores: Mapping[Id, float], most: int | None = None) -> list[tuple[Id, float]]:
    """Return the points of *scores*, or the best *most* of them, best first; equal ones by their ids."""
    # UUIDs as numbers sort as they do as text: ties are the same with every adapter.
    ranked = sorted((-score, cast("Any", point)) for point, score in scores.items())
    return [(point, -score) for score, point in ranked[:most]]


# The centre of a scope's vectors
#
# Texts of one workspace resemble each other: their vectors share a large part, and passages that have most of it are
# near to every question (Radovanović, Nanopoulos and Ivanović, "Hubs in Space", JMLR 2010; centring as the remedy:
# Suzuki et al., "Centering Similarity Measures to Reduce Hubs", EMNLP 2013). Taking a share of the mean away from the
# question alone does the same to the ranking and leaves the stored vectors as they are.


SAMPLE = 256
"""The mean is taken of so many vectors: the first by their ids, which are digests, so that it is a fair sample and the
same for every adapter."""
TRUSTED = 32
"""With so many vectors half of the share is taken away, with fewer less: their mean says little."""
MAX_AGE_SECONDS = 600.0
"""A mean is taken anew after this long, because other processes change the index too."""
CENTRES = 1000
"""So many are remembered, a few kB each."""


@dataclass(frozen=True, slots=True)
class Centre:
    """The mean of *count* unit vectors; empty if there are none."""

    mean: tuple[float, ...]
    count: int


def centre_of(vectors: Sequence[Sequence[float]]) -> Centre:
    """Return the centre of *vectors*, all of one size."""
    count = len(vectors)
    return Centre(tuple(sum(column) / count for column in zip(*vectors, strict=True)), count)


def subtract_centre(vector: Vector, centre: Centre, share: float) -> Vector:
    """Return *vector* without *share* (0 to 1) of the centre's mean, on the vector's scale; zeros stay zeros."""
    share *= centre.count / (centre.count + TRUSTED)
    length = math.hypot(*vector)
    if not share or not length:
        return vector
    share *= length  # only the direction counts in a cosine
    moved = [value - share * mean for value, mean in zip(vector, centre.mean, strict=True)]
    # A question that is the mean itself has no direction left.
    return moved if math.hypot(*moved) > 1e-6 * length else vector


class Centres:
    """Remembers the centres of tenants' vectors (``dense`` or `DEEP`) until the tenant's passages change, or for
    `MAX_AGE_SECONDS`."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._known: dict[str, dict[str, tuple[Centre, float]]] = {}

    def get(self, tenant: str, vector: str) -> Centre | None:
        """Return the centre if it is known and still good."""
        centre, since = self._known.get(tenant, {}).get(vector, (None, 0.0))
        return centre if self._now() - since <= MAX_AGE_SECONDS else None

    def put(self, tenant: str, vector: str, centre: Centre) -> None:
        """Remember *centre*."""
        if len(self._known) >= CENTRES:
            self._known.clear()
        self._known.setdefault(tenant, {})[vector] = centre, self._now()

    def forget(self, tenant: str) -> None:
        """Forget the centres of *tenant*."""
        self._known.pop(tenant, None)

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()


# The second look
#
# Of what words and vectors found, the best are compared once more by a deeper model's vectors. Those come some time
# after a passage can be found, so that passages with and without them may stand in one ranking. Nothing else is found
# than without them; only the order changes. Figures and alternatives: docs/decisions/09.


QUICK_WEIGHT = 0.5
DEEP_WEIGHT = 2.5
"""The weights of the quick and the deeper cosine beside the words, each on its own scale."""
FEEDBACK_WEIGHT = 0.3
FEEDBACK_PASSAGES = 3
"""So much of the mean of the best passages' deeper vectors is added to the question (pseudo relevance feedback:
Rocchio, 1971; with dense vectors: Li et al., "Pseudo Relevance Feedback with Deep Language Models", TOIS 2023)."""
NEIGHBOUR_WEIGHT = 0.5
"""The weight of the mean of the neighbours' deeper cosines beside a passage's own: a single passage of a long text
about something else may come near to a question by chance; the one that answers it mostly stands among others about
it."""
ANSWER_COST = 0.5
"""The later parts of an assistant's long answer in a chat have so much less: it speaks of much, and what is asked for
was mostly said by a person, or at the beginning of an answer. Bounded, so that they can be found all the same."""
LEAST_COSINES = 10
"""Fewer cosines do not show where their scale lies."""


def add_feedback(question: Vector, best: Sequence[Vector]) -> Vector:
    """Return the unit vector *question* moved a little towards the *best* passages' vectors, again as a unit vector."""
    if not best:
        return question
    share = FEEDBACK_WEIGHT / len(best)
    moved = [own + share * sum(column) for own, column in zip(question, zip(*best, strict=True), strict=True)]
    length = math.hypot(*moved)
    return [value / length for value in moved] if length > 0 else question


def blend_neighbours(cosines: Mapping[Id, float], places: Mapping[Id, Place]) -> dict[Id, float]:
    """Return the *cosines* of passages, each drawn a little towards those of the passages just before and after it in
    its source, as far as *cosines* has them."""
    by_place = {places[point]: cosine for point, cosine in cosines.items() if point in places}
    blended = dict(cosines)
    for point, own in cosines.items():
        if point not in places:
            continue
        source, ordinal = places[point]
        around = [by_place[place] for place in ((source, ordinal - 1), (source, ordinal + 1)) if place in by_place]
        if around:
            blended[point] = (own + NEIGHBOUR_WEIGHT * sum(around) / len(around)) / (1 + NEIGHBOUR_WEIGHT)
    return blended


def second_look(
    fused: Sequence[tuple[Id, float]],
    near: Mapping[Id, float],
    worded: Mapping[Id, float],
    cosines: Mapping[Id, float],
    most: int,
    answers: Collection[Id] = (),
) -> list[tuple[Id, float]]:
    """Return *fused* with its first *most* points in the order of words, quick and deeper vectors together.

    *near* and *worded* are the raw scores of all candidates of each arm, *cosines* those of the deeper vectors. A point
    among the first without a deeper vector keeps its place: it gets the mean score of a point of its fused score. If
    some have none, and fewer than `LEAST_COSINES` have one, all stay as they are. The other points stay behind.
    *answers* are later parts of long answers (`ANSWER_COST`).
    """
    first, behind = fused[:most], fused[most:]
    if not cosines or len(cosines) < min(LEAST_COSINES, len(first)):
        return list(fused)
    near_scale, words, without = scales_of(near, worded)
    deep_scale = scale_of(cosines.values())

    def score_of(point: Id) -> float:
        by_words = words.of(worded[point]) if point in worded else without
        by_meaning = QUICK_WEIGHT * near_scale.of(near[point]) if point in near else 0.0
        score = by_words + by_meaning + DEEP_WEIGHT * deep_scale.of(cosines[point])
        return score - ANSWER_COST if point in answers else score

    known = {point: score_of(point) for point, _ in first if point in cosines}
    if len(known) == len(first):
        scores = known
    else:
        scale = _map_scale([score for point, score in first if point in known], [*known.values()])
        scores = {point: known[point] if point in known else scale.of(score) for point, score in first}
    ranked = best_first(scores)
    # Scores must fall along the whole list: it is sorted by them again.
    last = ranked[-1][1] - first[-1][1]
    return [*ranked, *((point, score + last) for point, score in behind)]


DEEPEST = 16
"""So many turns nearest to a question by their deeper vectors are candidates too: what says the same in other words may
not be among those that words and quick vectors find in a long conversation."""


def with_deepest(ranking: Sequence[tuple[Id, float]], nearest: Mapping[Id, float], most: int) -> list[tuple[Id, float]]:
    """Return at most *most* points of *ranking*; the last ones are those of *nearest* that it does not have, each with
    the lowest score. A vector of zeros is near to nothing."""
    known = {point for point, _ in ranking}
    new = [point for point, cosine in nearest.items() if cosine and point not in known][:most]
    kept = list(ranking[: most - len(new)])
    lowest = kept[-1][1] if kept else 0.0
    return [*kept, *((point, lowest) for point in new)]


def _map_scale(before: Sequence[float], after: Sequence[float]) -> Scale:
    """Return the scale that maps the scores *before* to those *after*: mean to mean, deviation to deviation."""
    old, new = scale_of(before), scale_of(after)
    if not old.factor or not new.factor:
        return Scale(0.0, math.fsum(after) / len(after))
    return Scale(old.factor / new.factor, (old.shift - new.shift) / new.factor)


# Hits


def hits_of(
    query: PassageQuery,
    ranking: Sequence[tuple[Id, float]],
    passages: Mapping[Id, Passage],
    arms: Mapping[str, Mapping[Id, float]],
    cosines: Mapping[Id, float],
) -> list[Hit]:
    """Return the best ``top_k`` of *ranking* as hits. Scores that are equal to six places are ordered by source,
    ordinal and id, because engines leave their order to chance.

    *passages* lacks a point that was deleted a moment ago. *arms* has each arm's raw scores, best first, and `DEEP`
    those of the deeper vectors. *cosines* are there if the query wants them; a vector of zeros has none.
    """
    found = [(point, score, passages[point]) for point, score in ranking if point in passages]
    found.sort(key=lambda hit: (-round(hit[1], 6), hit[2].source, hit[2].ordinal, hit[2].id))
    best = found[: query.top_k]
    shown: dict[str, dict[Id, Arm]] = {}
    if query.explain:
        shown = {name: _ranked(scores) for name, scores in arms.items()}
    elif query.scores:
        shown = {name: _unranked(arms[name]) for name in ("sparse", DEEP) if name in arms}
    if query.wants_cosines:
        compared = best if query.scores else best[: query.compared]
        shown["dense"] = _unranked({point: cosines.get(point, 0.0) for point, _, _ in compared})
        shown[DEEP] = _unranked(arms.get(DEEP, {}))
    dense, sparse, deep = (shown.get(name, {}) for name in ("dense", "sparse", DEEP))
    return [
        Hit(passage, score, dense.get(point), sparse.get(point), deep=deep.get(point)) for point, score, passage in best
    ]


def _ranked(scores: Mapping[Id, float]) -> dict[Id, Arm]:
    return {point: Arm(rank, score) for rank, (point, score) in enumerate(scores.items(), start=1)}


def _unranked(scores: Mapping[Id, float]) -> dict[Id, Arm]:
    return {point: Arm(0, score) for point, score in scores.items()}


# Reranking
#
# A cross-encoder reads the question and each of the first hits together. It is dearer than the whole search, so it is
# off unless a model is named.


PASSAGE_MAX_CHARACTERS = 4000
"""A reranker reads so much of a passage: cross-encoders mostly take 512 tokens, and providers charge for more."""


class RerankUnavailable(AgentRuntimeError):
    """The reranker gave no scores. ``why`` is one word for metrics; ``retryable`` says whether it may later."""

    def __init__(self, message: str, *, why: str, retryable: bool) -> None:
        super().__init__(message)
        self.why = why
        self.retryable = retryable


class Reranker(Protocol):
    """A model that says how well passages answer a query."""

    @property
    def name(self) -> str: ...

    @property
    def candidates(self) -> int:
        """The largest number of passages that it takes."""

    async def scores(self, scope: Scope, query: str, texts: Sequence[str]) -> list[float]:
        """Return one score per text, in the model's own unit; larger is better. The cost of the call is counted for
        *scope*. Raises `RerankUnavailable`."""


async def rerank(reranker: Reranker, scope: Scope, query: str, hits: Sequence[Hit]) -> list[Hit]:
    """Return *hits* with the first of them, as many as the reranker takes, in its order; the others follow unchanged.
    ``score`` stays as it was; ``fused`` and ``rerank`` are added.

    Raises `RerankUnavailable`.
    """
    placed = [hit._replace(fused=Arm(rank, hit.score)) for rank, hit in enumerate(hits, start=1)]
    first, rest = placed[: reranker.candidates], placed[reranker.candidates :]
    if not first:
        return []
    scores = await reranker.scores(scope, query, [_reranker_text(hit.passage) for hit in first])
    # Equal scores keep the fused order: the sort is stable.
    order = sorted(range(len(first)), key=lambda place: -scores[place])
    return [first[place]._replace(rerank=Arm(rank, scores[place])) for rank, place in enumerate(order, start=1)] + rest


def _reranker_text(passage: Passage) -> str:
    parts = (passage.title, passage.heading, passage.lead, passage.text)
    return "\n".join(dict.fromkeys(part for part in parts if part))[:PASSAGE_MAX_CHARACTERS]
