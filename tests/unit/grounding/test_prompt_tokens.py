"""Counting tokens, cutting a text to a budget, and keeping results."""

from __future__ import annotations

import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from grounding.prompt_input import LineByLine, Recent, clip, load_tokens, utf8_length
from grounding.prompt_input.tokens import ELLIPSIS

TOKENS = load_tokens()
TEXTS = st.one_of(
    st.text(max_size=500),
    st.text(alphabet="日本語。カナ", max_size=400),
    st.lists(st.sampled_from(["👩‍👩‍👧‍👦", "🏳️‍🌈", "e\u0301", "a", " ", "\n"]), max_size=80).map("".join),
)


@given(TEXTS, st.integers(0, 120), st.integers(0, 600))
@settings(max_examples=300, deadline=None)
def test_what_is_cut_keeps_both_limits_and_is_a_beginning_of_the_text(text: str, tokens: int, size: int) -> None:
    cut = clip(text, TOKENS, tokens, size)

    assert TOKENS.count(cut) <= tokens
    assert utf8_length(cut) <= size
    assert text.startswith(cut.removesuffix(ELLIPSIS))


@given(
    st.lists(st.sampled_from(["👩‍👩‍👧‍👦", "🏳️‍🌈", "e\u0301", "한"]), min_size=5, max_size=60).map("".join),
    st.integers(8, 60),
)
@settings(max_examples=150, deadline=None)
def test_no_character_that_a_person_sees_is_broken(text: str, tokens: int) -> None:
    whole = set(regex.findall(r"\X", text))

    assert set(regex.findall(r"\X", clip(text, TOKENS, tokens).removesuffix(ELLIPSIS))) <= whole


def test_text_that_fits_is_left_as_it_is() -> None:
    assert clip("A short text.", TOKENS, 100) == "A short text."


def test_the_cut_is_at_the_end_of_a_sentence_where_there_is_one() -> None:
    assert clip("One is here. " * 40, TOKENS, 30).endswith("here." + ELLIPSIS)


def test_special_tokens_in_a_text_are_only_text() -> None:
    assert TOKENS.count("<|endoftext|>") > 1


@given(TEXTS, st.integers(0, 200))
@settings(max_examples=150, deadline=None)
def test_fitting_is_counting(text: str, limit: int) -> None:
    assert TOKENS.fits(text, limit) == (TOKENS.count(text) <= limit)


LINES = st.one_of(
    TEXTS,
    st.text(alphabet="\n\r\t \u00a0\u2028\u0085\x1c.'{}[]-s12aé日\u0301", max_size=60),
    st.lists(
        st.sampled_from(["it", "'s", "\n", "\n\n", "  ", "12345", "...", "Ω", "}\r\n", "\ud800"]), max_size=40
    ).map("".join),
)


@given(LINES)
@settings(max_examples=600, deadline=None)
def test_counting_line_by_line_is_counting(text: str) -> None:
    by_line = LineByLine(TOKENS)

    assert [by_line.count(text), by_line.count(text)] == [TOKENS.count(text)] * 2


@given(LINES, st.integers(0, 60))
@settings(max_examples=200, deadline=None)
def test_fitting_line_by_line_is_fitting(text: str, limit: int) -> None:
    assert LineByLine(TOKENS).fits(text, limit) == TOKENS.fits(text, limit)


@given(st.lists(st.sampled_from("abcdefgh"), max_size=40))
def test_what_was_computed_last_is_not_computed_again_and_what_was_dropped_is(texts: list[str]) -> None:
    computed: list[str] = []
    large, small = Recent[str](100), Recent[str](2)

    def upper(text: str) -> str:
        computed.append(text)
        return text.upper()

    assert [large.of(text, upper) for text in texts] == [text.upper() for text in texts]
    assert sorted(computed) == sorted(set(texts))
    assert [small.of(text, str.upper) for text in texts] == [text.upper() for text in texts]
