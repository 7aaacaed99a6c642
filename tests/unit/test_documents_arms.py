"""Hits: the best of a ranking, with what each arm says of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from connectors.message import Scope
from grounding.retrieval import Hit, Kind, Passage, PassageQuery
from grounding.retrieval.index import Arm
from grounding.retrieval.ranking import best_first, hits_of

PASSAGES = {
    number: Passage(f"p{number}", Kind.DOCUMENT, f"source{number % 3}.md", "text", ordinal=number % 5)
    for number in range(13)
}
ARM = st.dictionaries(st.integers(0, 12), st.integers(0, 4).map(lambda number: number / 4), max_size=12)


def question(top_k: int, *, explain: bool = False, scores: bool = False) -> PassageQuery:
    return PassageQuery(Scope("acme"), Kind.DOCUMENT, [1.0], None, top_k, explain, scores)


@given(ARM, ARM, st.integers(1, 6), st.booleans())
def test_the_best_carry_what_the_arms_say_of_them(
    fused: dict[int, float], sparse: dict[int, float], top_k: int, explain: bool
) -> None:
    worded = dict(best_first(sparse))
    cosines = {number: float(number) for number in fused}
    asked = question(top_k, explain=explain, scores=not explain)
    hits = hits_of(asked, best_first(fused), PASSAGES, {"sparse": worded}, cosines)

    ranks = {number: Arm(rank if explain else 0, score) for rank, (number, score) in enumerate(worded.items(), start=1)}
    ordered = sorted(fused, key=lambda one: (-fused[one], PASSAGES[one].source, PASSAGES[one].ordinal, f"p{one}"))
    assert hits == [
        Hit(PASSAGES[one], fused[one], None if explain else Arm(0, float(one)), ranks.get(one))
        for one in ordered[:top_k]
    ]


NEARLY = st.dictionaries(st.integers(0, 12), st.integers(0, 40).map(lambda number: 0.5 + number * 3e-7), max_size=12)


@given(NEARLY, st.integers(1, 6))
def test_scores_that_are_equal_to_six_places_leave_the_order_to_where_passages_stand(
    fused: dict[int, float], top_k: int
) -> None:
    hits = hits_of(question(top_k), best_first(fused), PASSAGES, {}, {})
    ordered = sorted(
        fused, key=lambda one: (-round(fused[one], 6), PASSAGES[one].source, PASSAGES[one].ordinal, f"p{one}")
    )
    assert hits == [Hit(PASSAGES[one], fused[one]) for one in ordered[:top_k]]


def test_a_point_that_is_gone_by_now_is_left_out() -> None:
    hits = hits_of(question(2), [(1, 2.0), (99, 1.0), (2, 0.5)], PASSAGES, {}, {})
    assert [hit.passage.id for hit in hits] == ["p1", "p2"]
