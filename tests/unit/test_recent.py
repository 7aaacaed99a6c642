"""A cache of results for the last texts."""

from hypothesis import given
from hypothesis import strategies as st

from grounding.prompt_input import Recent

TEXTS = st.lists(st.sampled_from("abcdefgh"), max_size=40)


@given(TEXTS)
def test_each_text_is_computed_once(texts: list[str]) -> None:
    computed: list[str] = []
    recent = Recent[str](100)

    def upper(text: str) -> str:
        computed.append(text)
        return text.upper()

    assert [recent.of(text, upper) for text in texts] == [text.upper() for text in texts]
    assert sorted(computed) == sorted(set(texts))


@given(TEXTS)
def test_a_small_cache_returns_the_right_result_for_each_text(texts: list[str]) -> None:
    recent = Recent[str](2)

    assert [recent.of(text, str.upper) for text in texts] == [text.upper() for text in texts]
