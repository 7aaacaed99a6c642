"""How likely a record bears on a message, on a scale that allows a fixed threshold. Pure.

The estimate is the log-odds, at even odds beforehand, that the record is one of those that answer the message: a
logistic regression on the quick cosine, the deeper cosine if it is there, the share of the message's terms that the
record contains, and its BM25 score in units of the largest possible IDF (`Floor`).
``python -m bench.record_floor`` fits it.

A frame that was chosen by a cue adds three things (`bearing`), because what helps to decide or to find a fault need not
answer:

- **Priority**: types that the frame puts first need less.
- **Kin**: a record that is near to those that surely bear on the message counts too. "Should we use Redis for caching?"
  is answered by what is known of Redis; near to that is why Postgres was chosen.
- **Methods**: a procedure that is about the frame itself ("Architecture decision: evaluate two alternatives") counts if
  any record bears on the message.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from operator import mul

from grounding.memory.frames import Frame
from grounding.memory.records import FoundRecord, Type
from grounding.retrieval import coverage, largest_idf

MEASURED_RECORDS = 550
"""The records of a workspace by which the constants were fitted."""
SIZE_WEIGHT = 0.4
"""Added for each unit of ln(`MEASURED_RECORDS` / records): in a small workspace few records are near by chance."""
LEAST_RECORDS = 10
"""Fewer records count as so many."""
PRIORITY_WEIGHT = 2.5
"""Added for each unit of a type's priority above that of a type that the frame does not mention."""
UNMENTIONED = 0.5
SURE = 1.0
"""The best record must have this relevance for others to count as its kin. Messages that nothing answers have .14 such
records each."""
KIN = (0.38, 0.14)
"""The cosine that kin needs: the first number less the second times the priority of its type."""
MOST_KIN = 5
"""So many kin are added at most, the nearest first."""
METHOD = 0.33
"""The least cosine of a procedure and the text of the frame, by the deeper vectors."""
QUICK_METHOD = 0.4
"""The same by the quick ones."""


@dataclass(frozen=True, slots=True)
class Floor:
    """The coefficients of one embedding model, and ``minimum``: records with lower log-odds are never shown.

    ``deeper`` are those for records that have a deeper cosine. ``size`` is the weight of the number of records.
    """

    minimum: float
    dense: float
    covered: float
    sparse: float
    constant: float
    deep: float = 0.0
    size: float = 0.0
    deeper: Floor | None = None

    def relevance(self, query: str, found: FoundRecord, count: int) -> float:
        """Return the log-odds that *found*, one of *count* records, is relevant to *query*."""
        if self.deeper is not None and found.deep is not None:
            return self.deeper.relevance(query, found, count)
        text = f"{found.record.text}\n{found.record.reason}" if found.record.reason else found.record.text
        return (
            self.constant
            + self.dense * max(found.similarity, 0.0)
            + self.deep * max(found.deep or 0.0, 0.0)
            + self.covered * coverage(query, text)
            + self.sparse * max(found.matched, 0.0) / largest_idf(max(count, 1))
            + self.size * math.log(MEASURED_RECORDS / min(max(count, LEAST_RECORDS), MEASURED_RECORDS))
        )


def likeness(found: FoundRecord) -> float:
    """Return the cosine of record and message, by the deeper vectors if they are there."""
    return found.similarity if found.deep is None else found.deep


def probability(relevance: float) -> float:
    """Return the probability for the log-odds *relevance*."""
    return 1.0 / (1.0 + math.exp(-relevance))


_FLOORS = {
    # Measured on single statements of five long chats (locomo-dev) as records, and 1,263 messages that none of them
    # answers: AUC .91, together with the deeper vectors .93.
    "wordllama-l2-supercat": Floor(
        -0.5,
        dense=8.54,
        covered=2.05,
        sparse=1.77,
        constant=-5.08,
        size=SIZE_WEIGHT,
        deeper=Floor(-0.5, dense=4.25, deep=7.61, covered=1.9, sparse=1.77, constant=-5.85, size=SIZE_WEIGHT),
    ),
    # The same data: AUC .92.
    "all-minilm-l6-v2-8bit": Floor(-0.5, dense=10.19, covered=2.3, sparse=1.94, constant=-5.4, size=SIZE_WEIGHT),
}
_BY_WORDS = Floor(-0.5, dense=0.0, covered=5.0, sparse=1.9, constant=-3.6)
"""For models whose cosines were not measured, words alone decide."""


def floor_for(model: str) -> Floor:
    """Return the floor for records that were embedded with *model*."""
    return _FLOORS.get(model, _BY_WORDS)


def fitting(floor: Floor, found: Sequence[FoundRecord]) -> Floor:
    """Return *floor*, or the word-only floor if *found* has no cosines: without them nothing would pass *floor*."""
    return floor if any(one.similarity for one in found) else replace(_BY_WORDS, minimum=floor.minimum)


def method_query(frame: Frame) -> str:
    """Return the text by which procedures about the frame itself are searched."""
    return " ".join((f"{frame.name}: {frame.description}", *frame.questions))


def bearing(
    floor: Floor,
    asked: Collection[str],
    found: Sequence[FoundRecord],
    count: int,
    frame: Frame | None = None,
    methods: Sequence[FoundRecord] = (),
) -> tuple[tuple[FoundRecord, float], ...]:
    """Return each of *found* with its relevance: the highest to one of *asked*.

    *count* is the number of all records. *frame* is the message's one if a cue chose it, *methods* what was found by
    its `method_query`.
    """
    relevances = {one.record.id: max(floor.relevance(each, one, count) for each in asked) for one in found}
    by_id = {one.record.id: one for one in found}
    if frame is not None:
        for one in found:
            above = max(frame.priority(one.record.type) - UNMENTIONED, 0.0)
            relevances[one.record.id] += PRIORITY_WEIGHT * above
        best = max(relevances.values(), default=-math.inf)
        added = _kin(found, relevances, floor.minimum, frame) if best >= SURE else []
        added += [one for one in methods if _is_method(one)] if best >= floor.minimum else []
        for one in added:
            by_id.setdefault(one.record.id, one)
            relevances[one.record.id] = max(relevances.get(one.record.id, -math.inf), floor.minimum)
    return tuple((one, relevances[name]) for name, one in by_id.items())


def _kin(found: Sequence[FoundRecord], relevances: dict[str, float], minimum: float, frame: Frame) -> list[FoundRecord]:
    """Return those of *found* below *minimum* that are near to the mean of those above it, weighted by their
    probability."""
    sure = [
        (one.vector, probability(relevances[one.record.id])) for one in found if relevances[one.record.id] >= minimum
    ]
    vectors = [[value * weight for value in vector] for vector, weight in sure if vector]
    if not vectors:
        return []
    mean = [sum(column) for column in zip(*vectors, strict=True)]
    length = math.hypot(*mean) or 1.0
    least, per_priority = KIN
    near = []
    for one in found:
        if one.vector and relevances[one.record.id] < minimum:
            cosine = sum(map(mul, mean, one.vector)) / length
            if (beyond := cosine - least + per_priority * frame.priority(one.record.type)) >= 0.0:
                near.append((beyond, one))
    near.sort(key=lambda pair: (-pair[0], pair[1].record.id))
    return [one for _, one in near[:MOST_KIN]]


def _is_method(one: FoundRecord) -> bool:
    if one.record.type is not Type.PROCEDURE:
        return False
    return one.deep >= METHOD if one.deep is not None else one.similarity >= QUICK_METHOD
