"""What texts take at most in other models' vocabularies, held against these vocabularies themselves."""

from __future__ import annotations

from functools import cache
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.vocabularies import Takes, bundled, llama, ours, taken, vocabularies
from grounding.tokens import load_tokens
from grounding.vocabularies import most
from grounding.weighing import Loads, load
from grounding.window import WINDOW_SAFETY

TOKENS = load_tokens()
NASTY = {
    "digits": "3141592653" * 300,
    "a table": "12,345.678\t0.001\n" * 200,
    "blanks": " " * 5000,
    "line ends": "\n" * 3000,
    "tabs": "\t" * 3000,
    "rules": "=" * 900 + "\n" + "-" * 900,
    "Korean": "고객의 계정이 정상적으로 생성되었습니다. 감사합니다. " * 60,
    "Chinese": "今天的会议决定如下：请确认订单编号，我们的公司在北京。" * 60,
    "Thai": "กรุณาตรวจสอบหมายเลขคำสั่งซื้อ " * 60,
    "emoji": "😀👩‍👩‍👧‍👦🇩🇪" * 150,
    "names of programs": "document.getElementById('x').addEventListener(dispatchEvent, setTimeout);" * 60,
    "a minified script": 'function(e){return!!e&&(t=n[r]||(n[r]=[]),Object.defineProperty(t,"__esModule",{value:!0}))}'
    * 40,
    "capitals": "MAXIMUM BUFFER SIZE EXCEEDED " * 90,
    "prose": "The harbour plan costs a little more than was thought. " * 90,
}
PIECES = st.sampled_from([text[:40] for text in NASTY.values()]) | st.text(max_size=20)


@cache
def others() -> dict[str, Takes]:
    tokenizer, words = bundled(), llama()
    return {
        "SmolLM2": lambda text: len(tokenizer.encode(text.decode(), add_special_tokens=False).ids),
        "Llama 2": lambda text: len(words.encode(text.decode(), add_special_tokens=False).ids),
    }


@pytest.mark.parametrize("kind", NASTY)
def test_no_vocabulary_takes_more_of_a_text_than_it_is_reckoned_to(kind: str) -> None:
    for name, takes in others().items():
        assert takes(NASTY[kind].encode()) <= TOKENS.weigh(NASTY[kind]), name


@given(st.lists(PIECES, max_size=30).map("".join))
@settings(deadline=None)
def test_nor_of_any_text_far_more(text: str) -> None:
    """Words that stand together without a blank may be taken apart at other places than each by itself."""
    for name, takes in others().items():
        assert takes(text.encode("utf-8", "replace")) <= 2 * TOKENS.weigh(text), name


def test_english_is_reckoned_to_take_little_more_than_it_does() -> None:
    assert TOKENS.weigh(NASTY["prose"]) <= 1.3 * TOKENS.count(NASTY["prose"])


def test_what_is_kept_is_what_the_vocabularies_take() -> None:
    assert taken(islice(ours(), 0, None, 211), vocabularies()) == most()[::211]
    assert len(most()) == sum(1 for _ in ours())


def test_a_load_is_our_tokens_unless_a_model_takes_far_more() -> None:
    assert load(NASTY["prose"], TOKENS) == TOKENS.count(NASTY["prose"])
    assert load(NASTY["digits"], TOKENS) >= 3 / WINDOW_SAFETY * TOKENS.count(NASTY["digits"])


@given(st.sampled_from(sorted(NASTY)), st.integers(1, 500), st.floats(0.1, 1))
@settings(deadline=None)
def test_a_text_that_fits_by_loads_has_neither_too_many_tokens_nor_weighs_too_much(
    kind: str, limit: int, part: float
) -> None:
    text = NASTY[kind]
    if Loads(TOKENS, part).fits(text, limit):
        assert TOKENS.count(text) <= limit
        assert load(text, TOKENS) * part <= limit
