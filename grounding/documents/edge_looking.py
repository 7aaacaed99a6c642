"""A search among the passages of a tenant that is held whole: what `grounding.documents.edge_search` finds, found here.

Scores are summed in another order than the engine sums them: they are the same to some 1e-6. What is made of those of
a conversation's turns (`grounding.documents.recollection`) is so to 1e-5: from the question on from which a
conversation is held whole, its scores are others in that place.
"""

from __future__ import annotations

import math

import numpy as np

from grounding.documents import stored
from grounding.documents.arms import TIES
from grounding.documents.centre import TRUSTED, Centres
from grounding.documents.edge_held import Rows, Scores, Tenant, Wide
from grounding.documents.edge_search import EdgeSearch
from grounding.documents.fusing import DEVIATIONS, says_little
from grounding.documents.index import Arm, Hit


def is_answered_here(search: EdgeSearch) -> bool:
    """Whether *search* is one of those that turns make; others are the engine's."""
    is_fused_by_scores = search.fusion.method == "dbsf" or search.sparse is None
    is_one_tenant = len(stored.searched(search.scope, search.kind)) == 1
    is_plain = search.dense is not None and not (search.explain or search.only_sources or search.looks_again)
    return is_plain and is_one_tenant and is_fused_by_scores


def answered(search: EdgeSearch, held: Tenant, centres: Centres) -> list[Hit]:
    """The hits of *search*, which `is_answered_here`, in *held*."""
    dense, everything = np.asarray(search.dense, dtype=np.float64), np.arange(len(held.points))
    if search.sparse is None:
        near = held.near(dense)
        rows, scores = _ranked(near.astype(np.float64), everything, search.top_k, held)
        return _told(held, rows, scores, scores if search.scores else scores[: search.compared])
    worded, having = held.worded(search.sparse)
    total, found = _fused(search, held, _off_centre(search, held, centres, dense), worded, having)
    rows, scores = _ranked(total, found, search.top_k, held)
    cosines = held.cosines(dense, rows if search.scores else rows[: search.compared])
    if not search.scores:
        return _told(held, rows, scores, cosines)
    offered = frozenset(_best(worded, having, search.fusion.candidates, held).tolist())
    return [
        Hit(held.passages[row], score, Arm(0, cosine), Arm(0, float(worded[row])) if row in offered else None)
        for row, score, cosine in zip(rows, scores, cosines, strict=True)
    ]


def _told(held: Tenant, rows: list[int], scores: list[float], cosines: list[float]) -> list[Hit]:
    """The hits of *rows*, the first of which have *cosines*."""
    passages, compared = held.passages, len(cosines)
    first = [
        Hit(passages[row], score, Arm(0, cosine))
        for row, score, cosine in zip(rows[:compared], scores[:compared], cosines, strict=True)
    ]
    return [
        *first,
        *(Hit(passages[row], score) for row, score in zip(rows[compared:], scores[compared:], strict=True)),
    ]


def _fused(search: EdgeSearch, held: Tenant, dense: Wide, worded: Scores, having: Rows) -> tuple[Wide, Rows]:
    """The scores of both arms together, as the engine fuses them, or `grounding.documents.fusing` where few passages
    have any of the words; and which passages an arm offers."""
    fusion, count = search.fusion, len(worded)
    is_little = says_little(fusion, search.kind, min(len(having), fusion.candidates))
    most = fusion.candidates if is_little else max(fusion.candidates, search.top_k + TIES)
    near = held.near(dense)
    nearest = np.arange(count) if count <= most else _best(near, np.arange(count), most, held)
    having = having if len(having) <= most else _best(worded, having, most, held)
    absent = max(0, len(nearest) - len(having)) if is_little else 0
    of_words, without = _scaled(worded[having], absent)
    total = np.full(count, without)
    total[having] = of_words
    if count <= most:
        return total + _scaled(near, 0)[0], nearest
    total[nearest] += _scaled(near[nearest], 0)[0]
    return total, np.union1d(nearest, having)


def _scaled(scores: Scores, absent: int) -> tuple[Wide, float]:
    """*scores* on the scale of them and of *absent* passages that have 0; and what these have."""
    of_all = scores.astype(np.float64)
    count = len(of_all) + absent
    mean = float(np.add.reduce(of_all)) / max(1, count)
    apart = of_all - mean
    spread = math.sqrt((float(apart @ apart) + absent * mean**2) / max(1, count - 1))
    if spread == 0:
        return np.full(len(of_all), 0.5), 0.5 if absent else 0.0
    ends = 2 * DEVIATIONS * spread
    return apart / ends + 0.5, 0.5 - mean / ends if absent else 0.0


def _off_centre(search: EdgeSearch, held: Tenant, centres: Centres, dense: Wide) -> Wide:
    """See `grounding.documents.centre.off_centre`."""
    if not search.fusion.centring:
        return dense
    tenant = stored.tenant(search.scope, search.kind)
    centre = centres.of(tenant)
    if centre is None:
        centre = held.centre()
        centres.put(tenant, centre, len(held))
    length = math.sqrt(dense @ dense)
    share = search.fusion.centring * centre.count / (centre.count + TRUSTED) * length
    if not share:
        return dense
    moved: Wide = dense - share * held.mean_of(centre)
    return moved if math.sqrt(moved @ moved) > 1e-6 * length else dense


def _ranked(scores: Wide, rows: Rows, top_k: int, held: Tenant) -> tuple[list[int], list[float]]:
    """The best *top_k* of *rows*, and their scores: in the order of `grounding.documents.arms.hits_of`."""
    best = _best(scores, rows, top_k + TIES, held)
    found = scores[best]
    rounded = np.round(found, 6)
    if not (rounded[1:] == rounded[:-1]).any():
        return best[:top_k].tolist(), found[:top_k].tolist()
    passages = held.passages
    alike = [
        (-near, passages[row].source, passages[row].ordinal, passages[row].id, row, score)
        for near, row, score in zip(rounded.tolist(), best.tolist(), found.tolist(), strict=True)
    ]
    alike.sort()
    return [one[4] for one in alike[:top_k]], [one[5] for one in alike[:top_k]]


def _best(scores: Scores | Wide, rows: Rows, most: int, held: Tenant) -> Rows:
    """Of *rows* those of the best *most* scores, best first; equal ones at the end of it in the order of their ids."""
    given = -(scores if len(rows) == len(scores) else scores[rows])
    order = np.argsort(given, kind="stable")
    if len(rows) > most and given[order[most - 1]] == given[order[most]]:
        ids = held.points
        order = np.array(sorted(range(len(rows)), key=lambda place: (given[place], ids[rows[place]])))
    found: Rows = rows[order[:most]]
    return found
