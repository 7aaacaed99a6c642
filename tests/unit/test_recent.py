"""What was worked out of the last texts."""

from hypothesis import given
from hypothesis import strategies as st

from grounding.recent import Recent

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
