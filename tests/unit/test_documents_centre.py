"""Questions are seen from the centre of what is searched, as far as that is known."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grounding.retrieval.ranking import CENTRES, MAX_AGE_SECONDS, TRUSTED, Centre, Centres, centre_of, subtract_centre
from grounding.retrieval.stored import DEEP

numbers = st.floats(-1, 1, allow_nan=False, width=32)
vectors = st.lists(st.tuples(numbers, numbers, numbers), max_size=50)


def test_the_centre_is_the_mean() -> None:
    assert centre_of([[1.0, 0.0], [0.0, 1.0]]) == Centre((0.5, 0.5), 2)
    assert centre_of([]) == Centre((), 0)


def test_half_of_the_share_is_taken_where_the_sample_is_as_small_as_its_mean_is_trusted() -> None:
    assert subtract_centre([1.0, 0.0], Centre((1.0, 1.0), TRUSTED), 0.5) == [0.75, -0.25]


def test_the_length_of_a_question_does_not_matter() -> None:
    centre = Centre((0.6, 0.8), 96)
    assert subtract_centre([4.0, 0.0], centre, 1.0) == pytest.approx(
        [4 * x for x in subtract_centre([1.0, 0.0], centre, 1.0)]
    )


@given(vectors, st.tuples(numbers, numbers, numbers), st.floats(0, 1))
def test_a_question_always_keeps_a_direction(
    sample: list[tuple[float, ...]], asked: tuple[float, ...], share: float
) -> None:
    moved = subtract_centre(list(asked), centre_of(sample), share)
    assert len(moved) == 3
    assert all(math.isfinite(value) for value in moved)
    assert any(moved) == any(asked)


def test_nothing_is_taken_from_text_without_words_without_passages_or_without_share() -> None:
    centre = Centre((0.6, 0.8), 100)
    assert subtract_centre([0.0, 0.0], centre, 1.0) == [0.0, 0.0]
    assert subtract_centre([1.0, 0.0], centre_of([]), 1.0) == [1.0, 0.0]
    assert subtract_centre([1.0, 0.0], centre, 0.0) == [1.0, 0.0]


@pytest.mark.parametrize("lose", [lambda centres: centres.forget("a"), lambda centres: centres.clear()])
def test_a_centre_is_known_until_it_is_forgotten(lose: Callable[[Centres], None]) -> None:
    centres = Centres()
    for vector in ("dense", DEEP):
        centres.put("a", vector, Centre((1.0,), 100))
    centres.forget("b")
    assert centres.get("a", "dense") == centres.get("a", DEEP) == Centre((1.0,), 100)
    lose(centres)
    assert centres.get("a", "dense") is centres.get("a", DEEP) is None


def test_a_centre_grows_old_because_others_write_too() -> None:
    clock = [5.0]
    centres = Centres(lambda: clock[0])
    centres.put("a", "dense", Centre((1.0,), 100))
    clock[0] += MAX_AGE_SECONDS
    assert centres.get("a", "dense") is not None
    clock[0] += 1
    assert centres.get("a", "dense") is None


def test_the_memory_of_centres_is_bounded() -> None:
    centres = Centres()
    for number in range(CENTRES + 1):
        centres.put(str(number), "dense", Centre((1.0,), 1))
    assert centres.get("0", "dense") is None
    assert centres.get(str(CENTRES), "dense") is not None
