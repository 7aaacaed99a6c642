"""What the arms of a search say of what was found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from connectors.message import Scope
from grounding.retrieval import Hit, Kind, Passage
from grounding.retrieval.index import Arm
from grounding.retrieval.ranking import hits_of
from grounding.retrieval.stored import payload


@dataclass
class Point:
    """As an engine gives it; counts how often what is dear was read."""

    id: int
    score: float
    read: int = 0

    @property
    def passage(self) -> Passage:
        return Passage(f"p{self.id}", Kind.DOCUMENT, f"source{self.id % 3}.md", "text", ordinal=self.id % 5)

    @property
    def payload(self) -> dict[str, object]:
        self.read += 1
        return payload(Scope("acme"), self.passage)


SCORES = st.integers(0, 4).map(lambda number: number / 4)
ARM = st.lists(st.tuples(st.integers(0, 12), SCORES), unique_by=lambda one: one[0], max_size=12)


def points(arm: Sequence[tuple[int, float]]) -> list[Point]:
    return sorted((Point(number, score) for number, score in arm), key=lambda one: -one.score)


@given(ARM, ARM, st.integers(1, 6), st.booleans())
def test_only_what_may_be_wanted_is_read_and_the_rest_changes_nothing(
    fused: list[tuple[int, float]], sparse: list[tuple[int, float]], top_k: int, explain: bool
) -> None:
    near = points(fused)
    hits = hits_of(near, {"sparse": points(sparse)}, top_k, explain=explain, cosine_of=lambda point: float(point.id))

    ranks = {one.id: Arm(rank if explain else 0, one.score) for rank, one in enumerate(points(sparse), start=1)}
    everything = sorted(near, key=lambda one: (-one.score, one.passage.source, one.passage.ordinal, one.passage.id))
    assert hits == [Hit(one.passage, one.score, Arm(0, float(one.id)), ranks.get(one.id)) for one in everything[:top_k]]
    last = hits[-1].score if hits else 0.0
    assert {one.read for one in near if len(near) > top_k and one.score < last} <= {0}


NEARLY = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 40).map(lambda number: 0.5 + number * 3e-7)),
    unique_by=lambda one: one[0],
    max_size=12,
)


@given(NEARLY, st.integers(1, 6))
def test_scores_that_are_equal_to_six_places_leave_the_order_to_where_passages_stand(
    fused: list[tuple[int, float]], top_k: int
) -> None:
    near = points(fused)
    hits = hits_of(near, {}, top_k, explain=False, cosine_of=None)
    ordered = sorted(
        near, key=lambda one: (-round(one.score, 6), one.passage.source, one.passage.ordinal, one.passage.id)
    )
    assert hits == [Hit(one.passage, one.score) for one in ordered[:top_k]]
