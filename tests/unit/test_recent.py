"""What was worked out of the last texts."""

from hypothesis import given
from hypothesis import strategies as st

from grounding.prompt_input import Recent, RecentObjects

some = st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=6), max_size=6)


@given(some)
def test_of_many_texts_at_once_each_is_worked_out_once(asked: list[list[str]]) -> None:
    worked_out: list[str] = []
    recent = Recent[str](100)

    def found(text: str) -> str:
        worked_out.append(text)
        return text.upper()

    for texts in asked:
        assert recent.of_all(texts, found) == [text.upper() for text in texts]

    assert sorted(worked_out) == sorted({text for texts in asked for text in texts})


@given(some)
def test_however_few_are_remembered_each_gets_its_own(asked: list[list[str]]) -> None:
    recent = Recent[str](2)

    for texts in asked:
        assert recent.of_all(texts, str.upper) == [text.upper() for text in texts]


@given(some)
def test_what_is_lacking_are_the_texts_of_which_nothing_was_found(asked: list[list[str]]) -> None:
    recent, found = Recent[str](100), set[str]()

    for texts in asked:
        assert recent.lacking(texts) == [text for text in texts if text not in found]
        recent.of_all(texts, str.upper)
        found |= set(texts)


def test_objects_that_hold_the_same_are_worked_out_each_for_itself_and_once() -> None:
    worked_out: list[list[str]] = []
    recent = RecentObjects[list[str], int](100)

    def found(thing: list[str]) -> int:
        worked_out.append(thing)
        return len(worked_out)

    one, other = ["a"], ["a"]

    assert [recent.of(thing, found) for thing in (one, other, one, other)] == [1, 2, 1, 2]


@given(st.lists(st.integers(0, 7), max_size=30))
def test_an_object_that_takes_the_place_of_a_forgotten_one_is_not_taken_for_it(asked: list[int]) -> None:
    recent = RecentObjects[list[int], int](2)

    for number in asked:
        assert recent.of([number], lambda thing: thing[0]) == number
