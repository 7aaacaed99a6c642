"""Fusion by scores where the words of a question are in few passages. Pure.

Distribution-based fusion puts each arm's scores on the scale of its own candidates. Of one to a few hundred candidates
by words that scale says nothing: the only passage with a rare word is its own average, and falls behind what is merely
nearest by meaning. Here passages without any of the words count as well, with their score of 0, as many as the other
arm offers; so the fewer hold a word, the more it says.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast

from connectors.message import AgentRuntimeError, Scope
from grounding.retrieval.embedding import Vector
from grounding.retrieval.index import Arm, Fusion, Hit, Kind, Passage
from grounding.retrieval.stored import DEEP, Place, passage_of

Id = TypeVar("Id", bound=Hashable)
DEVIATIONS = 3
"""The scale's ends lie so many standard deviations below and above the mean, as in Qdrant."""


@dataclass(frozen=True, slots=True)
class Fused(Generic[Id]):
    """A passage's point: what an engine's point has, with the fused score."""

    id: Id
    score: float
    payload: Any
    vector: Any


def may_say_little(fusion: Fusion, kind: Kind) -> bool:
    """Whether it depends on how many candidates words find how passages of *kind* are fused. Turns of a conversation
    are always few, and judged by more than their score."""
    return fusion.method == "dbsf" and kind is Kind.DOCUMENT


def says_little(fusion: Fusion, kind: Kind, found: int) -> bool:
    """Whether *found* candidates by words are too few for the engine's own fusion."""
    return may_say_little(fusion, kind) and 0 < found < fusion.candidates


class Scale(NamedTuple):
    """Makes a score a number on the scale of all scores of an arm: ``factor`` × score + ``shift``."""

    factor: float
    shift: float

    def of(self, score: float) -> float:
        return self.factor * score + self.shift


def scale_of(scores: Collection[float], zeros: int = 0) -> Scale:
    """The scale from three standard deviations below the mean of *scores*, and of as many *zeros*, which is 0, to three
    above it, which is 1."""
    count = len(scores) + zeros
    mean = math.fsum(scores) / count if count else 0.0  # the same in every order
    squares = math.fsum([(score - mean) ** 2 for score in scores]) + zeros * mean**2
    width = 2 * DEVIATIONS * math.sqrt(squares / max(1, count - 1))
    return Scale(1 / width, 0.5 - mean / width) if width else Scale(0.0, 0.5)


def scales_of(
    dense: Mapping[Id, float], sparse: Mapping[Id, float], *, counts_absent: bool = True
) -> tuple[Scale, Scale, float]:
    """The scales of both arms, and what a passage without any of the words has on the second: nothing where words find
    as many as are asked for, or where those without do not count (*counts_absent*), as in Qdrant."""
    missing = max(0, len(dense) - len(sparse)) if counts_absent else 0
    words = scale_of(sparse.values(), missing)
    return scale_of(dense.values()), words, words.of(0.0) if missing else 0.0


def by_scores(
    dense: Mapping[Id, float], sparse: Mapping[Id, float], top_k: int, *, counts_absent: bool = True
) -> list[tuple[Id, float]]:
    """The best *top_k* points by the sum of both arms' scores, each on its own scale, with that sum; equal ones in the
    order of their ids. If *counts_absent*, *sparse* is all that has any of the words, and points without any count, as
    many as *dense* offers beside it; if not, the fusion is Qdrant's own."""
    (factor, shift), words, without = scales_of(dense, sparse, counts_absent=counts_absent)
    # Written out: a call for each point would take longer than all the rest.
    summed = {point: factor * score + shift + without for point, score in dense.items()}
    factor, shift = words
    for point, score in sparse.items():
        summed[point] = summed.get(point, without) - without + factor * score + shift
    return best_first(summed, top_k)


def best_first(scores: Mapping[Id, float], most: int | None = None) -> list[tuple[Id, float]]:
    """The points of *scores* with them, or the best *most* of them; equal ones in the order of their ids."""
    least = -math.inf
    if most is not None and 0 < most < len(scores):  # scores alone are sorted in a third of the time
        least = sorted(scores.values(), reverse=True)[most - 1]
    # UUIDs as numbers have the order that they have as words: ties are the same with every adapter.
    ranked = sorted([(-score, cast("Any", point)) for point, score in scores.items() if score >= least])
    return [(point, -score) for score, point in ranked[:most]]


def by_ranks(dense: Sequence[Id], sparse: Sequence[Id], fusion: Fusion, top_k: int) -> list[tuple[Id, float]]:
    """The best *top_k* points by weighted reciprocal ranks of both arms, which are best first; as the engine's own."""
    summed: dict[Id, float] = {}
    for arm, weight in ((dense, fusion.dense), (sparse, fusion.sparse)):
        for rank, point in enumerate(arm if weight > 0 else (), start=1):
            summed[point] = summed.get(point, 0.0) + 1 / (fusion.k - 1 + rank / weight)
    return best_first(summed, top_k)


def both(dense: Mapping[Id, float], sparse: Mapping[Id, float], fusion: Fusion, top_k: int) -> list[tuple[Id, float]]:
    """The best *top_k* points of both arms, which are best first, as *fusion* has it."""
    if fusion.method == "rrf":
        return by_ranks([*dense], [*sparse], fusion, top_k)
    return by_scores(dense, sparse, top_k)


def absent(best: Sequence[tuple[Id, float]], there: Collection[Any]) -> list[Id]:
    """The points of *best* that are not among *there* yet."""
    known = {point.id for point in there}
    return [point for point, _ in best if point not in known]


def merged(best: Sequence[tuple[Id, float]], *there: Collection[Any]) -> list[Fused[Id]]:
    """The points of *best* that are *there*, with what they carry; one that is not was deleted a moment ago."""
    points = {point.id: point for some in there for point in some}
    return [Fused(name, score, points[name].payload, points[name].vector) for name, score in best if name in points]


# ---- arms ----
#
# What a search's arms say of the passages that were found: the last step of both adapters. Pure.
#
# An engine's point makes its id, payload and vectors only when it is asked for them, and that costs more than the
# search:
# what is not needed is not read.


TIES = 8
"""How many passages more than wanted are asked for, so that the last places do not fall to chance."""
_CLOSE = 1.5e-6
"""Scores are equal if they are so to six places. Those that are further apart than this are not: to see that takes a
tenth of what rounding takes."""


def hits_of(
    fused: Sequence[Any],
    arms: Mapping[str, Iterable[Any]],
    top_k: int,
    *,
    explain: bool,
    cosine_of: Callable[[Any], float] | None,
    compared: int | None = None,
) -> list[Hit]:
    """The best *top_k* of the *fused* points, with what each of *arms* (``dense``, ``sparse``, ``deep``; all points are
    best first) says of them, in an order that is the same on every call: engines leave the order of equal scores to
    chance, here source, ordinal and id decide.

    With *explain* an arm tells ranks, too; *cosine_of* stands in for the dense one, of the best *compared*
    or of all. Raises `grounding.retrieval.index.IndexUnavailable` for a stored format that is not known.
    """
    near = [(one.id, one, passage_of(one.payload)) for one in _leading(fused, top_k)]
    scores = [one.score for _, one, _ in near]
    if any(before - after < _CLOSE for before, after in pairwise(scores)):  # mostly all stand in their order
        near.sort(key=lambda one: (-round(one[1].score, 6), one[2].source, one[2].ordinal, one[2].id))
    best = near[:top_k]
    wanted = {point for point, _, _ in best}
    arm_of = _ranked if explain else _scored
    told = {name: arm_of(((one.id, one.score) for one in points), wanted) for name, points in arms.items()}
    if cosine_of is not None:
        told["dense"] = {point: Arm(0, cosine_of(one)) for point, one, _ in best[:compared]}
    dense, sparse = told.get("dense", {}), told.get("sparse", {})
    deep = told.get(DEEP, {})
    if not sparse and not deep:  # mostly; what is the same for all need not be given
        return [Hit(passage, one.score, dense.get(point)) for point, one, passage in best]
    return [
        Hit(passage, one.score, dense.get(point), sparse.get(point), deep=deep.get(point))
        for point, one, passage in best
    ]


def _leading(fused: Sequence[Any], top_k: int) -> Sequence[Any]:
    """Those that can be among the best *top_k*: all others are behind by more than a tie."""
    if len(fused) <= top_k:
        return fused
    least = fused[top_k - 1].score - _CLOSE
    return [*fused[:top_k], *[point for point in fused[top_k:] if point.score > least]]


def _ranked(arm: Iterable[tuple[Hashable, float]], wanted: Collection[Hashable]) -> dict[Hashable, Arm]:
    return {point: Arm(rank, score) for rank, (point, score) in enumerate(arm, start=1) if point in wanted}


def _scored(arm: Iterable[tuple[Hashable, float]], wanted: Collection[Hashable]) -> dict[Hashable, Arm]:
    """Raw scores. An arm of hundreds is read as far as needed: what is wanted is mostly near its beginning."""
    found: dict[Hashable, Arm] = {}
    for point, score in arm:
        if point in wanted:
            found[point] = Arm(0, score)
            if len(found) == len(wanted):
                break
    return found


# ---- centre ----
#
# The centre of a scope's vectors, and questions seen from there. Pure, but for the state it keeps.
#
# Texts of one workspace resemble each other: their vectors share a large part, and passages that have most of it are
# near to every question (Radovanović, Nanopoulos and Ivanović, "Hubs in Space", JMLR 2010; centring as the remedy:
# Suzuki et al., "Centering Similarity Measures to Reduce Hubs", EMNLP 2013). Taking a share of the mean away from the
# question alone does the same to the ranking and leaves the stored vectors as they are.


SAMPLE = 256
"""Vectors that the mean is taken of: the first by their ids, which are digests, so that it is a fair sample and the
same for every adapter."""
TRUSTED = 32
"""With so many vectors half of the share is taken away, with fewer less: their mean says little."""
MAX_AGE_SECONDS = 600.0
"""A mean is taken again after this long, because other processes change the index too."""
SIZE_MAX_AGE_SECONDS = 10.0
"""The same for how many passages there are, which is cheaper to ask and counts for more."""
CENTRES = 1000
"""How many are remembered, a few kB each."""


@dataclass(frozen=True, slots=True)
class Centre:
    """The mean of *count* unit vectors; empty where there are none."""

    mean: tuple[float, ...]
    count: int


def deeper(tenant: str) -> str:
    """Under which name the centre of a tenant's deeper vectors is known."""
    return f"{tenant}\0deep"


def centre_of(vectors: Sequence[Sequence[float]]) -> Centre:
    """The centre of *vectors*, all of one size."""
    count = len(vectors)
    return Centre(tuple(sum(column) / count for column in zip(*vectors, strict=True)), count)


def off_centre(vector: Vector, centre: Centre, share: float) -> Vector:
    """*vector* without *share* (0 to 1) of the centre's mean, as long as the vector is; nothing is taken from zeros."""
    share *= centre.count / (centre.count + TRUSTED)
    length = math.hypot(*vector)
    if not share or not length:
        return vector
    share *= length  # only the direction counts in a cosine
    moved = [value - share * mean for value, mean in zip(vector, centre.mean, strict=True)]
    # A question that is the mean itself has no direction left.
    return moved if math.hypot(*moved) > 1e-6 * length else vector


class Centres:
    """Remembers the centres of tenants until about a tenth of what they stand for has changed, or they are old; and how
    many passages they have, until this process changes any."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._known: dict[str, tuple[Centre, float, int]] = {}
        self._changes: dict[str, int] = {}
        self._sizes: dict[str, tuple[int, float]] = {}
        self._changed = 0

    async def size_of(self, tenant: str, ask: Callable[[], Awaitable[int]]) -> int:
        """How many passages *tenant* has, as *ask* said. Raises what that raises."""
        size, since = self._sizes.get(tenant, (0, -math.inf))
        if self._now() - since <= SIZE_MAX_AGE_SECONDS:
            return size
        before = self._changed
        size = await ask()
        if before == self._changed:  # else it may be what there was before that
            if len(self._sizes) >= CENTRES:
                self._sizes.clear()
            self._sizes[tenant] = size, self._now()
        return size

    def of(self, tenant: str) -> Centre | None:
        """The centre of *tenant*, if it is known and still good."""
        centre, since, size = self._known.get(tenant, (None, 0.0, 0))
        if centre is None or self._now() - since > MAX_AGE_SECONDS:
            return None
        return centre if self._changes.get(tenant, 0) * 10 <= size else None

    def put(self, tenant: str, centre: Centre, size: int = 0) -> None:
        """Remember the *centre* of *tenant*. It stands for *size* passages, of which its sample is seldom touched by a
        change; without that, for those of the sample alone."""
        if len(self._known) >= CENTRES:
            self.clear()
        self._known[tenant] = centre, self._now(), max(size, centre.count)
        self._changes.pop(tenant, None)

    def changed(self, tenant: str, count: int) -> None:
        """*count* passages of *tenant* were stored or deleted."""
        self._resized(tenant)
        self._moved(tenant, count)
        self._moved(deeper(tenant), count)

    def deepened(self, tenant: str, count: int) -> None:
        """*count* passages of *tenant* were given a deeper vector."""
        self._moved(deeper(tenant), count)

    def forget(self, tenant: str) -> None:
        """Passages of *tenant* were deleted, nobody knows how many."""
        self._resized(tenant)
        for name in (tenant, deeper(tenant)):
            self._known.pop(name, None)
            self._changes.pop(name, None)

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()
        self._changes.clear()
        self._sizes.clear()
        self._changed += 1

    def _moved(self, name: str, count: int) -> None:
        if name in self._known:
            self._changes[name] = self._changes.get(name, 0) + count

    def _resized(self, tenant: str) -> None:
        self._sizes.pop(tenant, None)
        self._changed += 1


# ---- second look ----
#
# The second look: of what words and vectors found the best are compared once more, by a deeper model's vectors.
#
# Those come some time after a passage can be found. So there may be passages with and without them in one ranking, and
# nothing else is found than without them: what is found is put into another order. Pure. Figures, and what else was
# compared: docs/decisions/09.


QUICK = 0.5
DEEPER = 2.5
"""What the quick cosine and the deeper one count beside the words, each on its own scale."""
FEEDBACK = 0.3
BEST = 3
"""To the question so much of the mean of the best passages' deeper vectors is added (pseudo relevance feedback:
Rocchio, 1971; with dense vectors: Li et al., "Pseudo Relevance Feedback with Deep Language Models", TOIS 2023)."""
BESIDE = 0.5
"""What the mean of its neighbours' deeper cosines counts beside a passage's own: of a long text about something else a
single passage may come near to a question by chance, the one that answers it mostly stands among others about it."""
ENOUGH = 10
"""Of fewer cosines nothing can be said about where their scale lies."""


def among_neighbours(cosines: Mapping[Id, float], places: Mapping[Id, Place]) -> dict[Id, float]:
    """The *cosines* of passages, each drawn a little towards those of the passages just before and after it in its
    source, as far as *cosines* has them; *places* says where passages stand."""
    at = {places[point]: cosine for point, cosine in cosines.items() if point in places}
    found = dict(cosines)
    for point, own in cosines.items():
        if point not in places:
            continue
        source, ordinal = places[point]
        beside = [at[place] for place in ((source, ordinal - 1), (source, ordinal + 1)) if place in at]
        if beside:
            found[point] = (own + BESIDE * sum(beside) / len(beside)) / (1 + BESIDE)
    return found


def towards(question: Vector, best: Sequence[Vector]) -> Vector:
    """The unit vector *question* with a little of the *best* passages' vectors, as they stand before the second look;
    as it is where there are none."""
    if not best:
        return question
    share = FEEDBACK / len(best)
    moved = [own + share * sum(column) for own, column in zip(question, zip(*best, strict=True), strict=True)]
    length = math.hypot(*moved)
    return [one / length for one in moved] if length > 0 else question


def looked_again(
    fused: Sequence[tuple[Id, float]],
    near: Mapping[Id, float],
    worded: Mapping[Id, float],
    cosines: Mapping[Id, float],
    most: int,
) -> list[tuple[Id, float]]:
    """The points of *fused*, with their scores, best first, of which the first *most* were looked at: in the order of
    what words, quick and deeper vectors say together; equal ones in the order of their ids. *near* and *worded* are all
    that each arm found, with its raw scores, *cosines* those of the deeper vectors.

    A point that was looked at and has no deeper vector keeps its place: it is given what a point of its fused score
    has in the mean. Where some have none, and fewer than `ENOUGH` have one, all stay as they are. The others stay
    behind.
    """
    looked, behind = fused[:most], fused[most:]
    if not cosines or len(cosines) < min(ENOUGH, len(looked)):
        return list(fused)
    near_scale, words, without = scales_of(near, worded)
    quick, shift, (deep, level) = QUICK * near_scale.factor, QUICK * near_scale.shift, scale_of(cosines.values())

    def again(point: Id) -> float:
        by_words = words.of(worded[point]) if point in worded else without
        by_meaning = quick * near[point] + shift if point in near else 0.0
        return by_words + by_meaning + DEEPER * (deep * cosines[point] + level)

    known = {point: again(point) for point, _ in looked if point in cosines}
    if len(known) == len(looked):
        scores = known
    else:
        place = _matched([score for point, score in looked if point in known], [*known.values()])
        scores = {point: known[point] if point in known else place.of(score) for point, score in looked}
    ranked = best_first(scores)
    # Scores fall along the list, or whoever sorts by them again would mix both parts.
    last = ranked[-1][1] - looked[-1][1]
    return [*ranked, *((point, score + last) for point, score in behind)]


def _matched(before: Sequence[float], now: Sequence[float]) -> Scale:
    """What takes a score from the scale of *before* to that of *now*: mean to mean, deviation to deviation."""
    old, new = scale_of(before), scale_of(now)
    if not old.factor or not new.factor:
        return Scale(0.0, math.fsum(now) / len(now))
    return Scale(old.factor / new.factor, (old.shift - new.shift) / new.factor)


# ---- rerank ----
#
# A second look at what was found: a cross-encoder reads the question and each passage together.
#
# It is dearer than the whole search, so that it is off unless a model is named, and sees the first candidates only.


PASSAGE_MAX_CHARACTERS = 4000
"""What of a passage is read: cross-encoders mostly take 512 tokens, and providers charge for more."""


class RerankUnavailable(AgentRuntimeError):
    """The reranker gave no scores. ``why`` is one word for metrics; ``retryable`` says whether it may later."""

    def __init__(self, message: str, *, why: str, retryable: bool) -> None:
        super().__init__(message)
        self.why = why
        self.retryable = retryable


class Reranker(Protocol):
    """A model that says how well passages answer a question."""

    @property
    def name(self) -> str: ...

    @property
    def candidates(self) -> int:
        """How many passages it is given at most."""

    async def scores(self, scope: Scope, query: str, texts: Sequence[str]) -> list[float]:
        """One score per text, larger is better; what they mean is the model's own affair. What the call cost is
        counted for *scope*. Raises `RerankUnavailable`."""


async def rerank(reranker: Reranker, scope: Scope, query: str, hits: Sequence[Hit]) -> list[Hit]:
    """*hits* with the first of them, as many as the reranker takes, in its order; the others follow as they were.

    Raises `RerankUnavailable`.
    """
    placed = [hit._replace(fused=Arm(rank, hit.score)) for rank, hit in enumerate(hits, start=1)]
    first, rest = placed[: reranker.candidates], placed[reranker.candidates :]
    if not first:
        return []
    scores = await reranker.scores(scope, query, [read_text(hit.passage) for hit in first])
    # Equal scores keep the fused order: the sort is stable.
    order = sorted(range(len(first)), key=lambda at: -scores[at])
    return [first[at]._replace(rerank=Arm(rank, scores[at])) for rank, at in enumerate(order, start=1)] + rest


def read_text(passage: Passage) -> str:
    """What the reranker reads of *passage*: where it stands, and its text."""
    parts = (passage.title, passage.heading, passage.lead, passage.text)
    return "\n".join(dict.fromkeys(part for part in parts if part))[:PASSAGE_MAX_CHARACTERS]
