"""What was found is put in order once more, by the cosines of deeper vectors."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from grounding.documents.fusing import both
from grounding.documents.index import Fusion
from grounding.documents.second_look import looked_again

SCORES = st.dictionaries(st.integers(0, 29), st.floats(0, 3), max_size=30)
COSINES = st.dictionaries(st.integers(0, 29), st.floats(-1, 1))
NEAR = {"a": 0.5, "b": 0.5, "c": 0.5}
WORDED = {"a": 2.0, "b": 2.0, "c": 2.0}


def test_without_any_cosine_everything_stays_as_it_is() -> None:
    assert looked_again([("a", 0.9), ("b", 0.4)], NEAR, WORDED, {}) == [("a", 0.9), ("b", 0.4)]


def test_a_larger_cosine_goes_before_a_smaller_one_of_the_same_words() -> None:
    fused = [("a", 0.5), ("b", 0.5), ("c", 0.5)]
    found = looked_again(fused, NEAR, WORDED, {"a": 0.1, "b": 0.2, "c": 0.3})
    assert [point for point, _ in found] == ["c", "b", "a"]


def test_a_point_without_a_cosine_is_judged_by_its_quick_one() -> None:
    fused = [("a", 0.5), ("b", 0.5), ("c", 0.5)]
    found = looked_again(fused, NEAR, WORDED, {"a": 0.1, "c": 0.3})
    assert [point for point, _ in found] == ["c", "b", "a"]


@given(SCORES, SCORES, COSINES, st.sampled_from(["dbsf", "rrf"]), st.integers(1, 40))
def test_nothing_is_found_beside_and_nothing_lost(
    near: dict[int, float], worded: dict[int, float], cosines: dict[int, float], method: str, top_k: int
) -> None:
    near, worded = (dict(sorted(arm.items(), key=lambda one: -one[1])) for arm in (near, worded))
    fused = both(near, worded, Fusion("rrf" if method == "rrf" else "dbsf"), top_k)
    known = {point: cosine for point, cosine in cosines.items() if point in dict(fused)}
    found = looked_again(fused, near, worded, known)
    assert {point for point, _ in found} == {point for point, _ in fused}
    assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)
    last = max((place for place, (point, _) in enumerate(fused) if point in known), default=-1)
    assert [point for point, _ in found[last + 1 :]] == [point for point, _ in fused[last + 1 :]]
