"""BM25's vectors are the same everywhere."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grounding.retrieval import coverage, encode_document, terms
from grounding.retrieval.bm25 import PAIR_WEIGHT, _stem, encode_query, pair_index, term_index

ENDINGS = ["nationally", "ingness", "fulization", "entation", "ratively", "ousness", "ibilities", "ement", "izers"]


def test_words_are_folded_stemmed_and_freed_of_stop_words() -> None:
    assert terms("The Refunds are refunding, ＲＥＦＵＮＤ's") == ["refund", "refund", "refund"]


def test_identifiers_are_found_whole_and_by_their_words() -> None:
    assert terms("AGENT_DATA_DIR") == ["agent_data_dir", "agent", "data", "dir"]


def test_scripts_without_spaces_are_read_in_pairs() -> None:
    assert terms("退款政策") == ["退款", "款政", "政策"]


def test_a_term_has_the_same_index_on_every_machine() -> None:
    assert term_index("refund") == 1_155_478_322


def test_more_of_a_term_weighs_more_but_never_beyond_saturation() -> None:
    weights = [encode_document(" ".join(["refund"] * count + ["other"] * (100 - count))) for count in (1, 2, 50)]
    values = [dict(zip(v.indices, v.values, strict=True))[term_index("refund")] for v in weights]
    assert values[0] < values[1] < values[2] < 2.2


def test_the_same_term_weighs_less_in_a_longer_text() -> None:
    short, long = encode_document("refund"), encode_document("refund " + "filler " * 300)
    assert long.values[long.indices.index(term_index("refund"))] < short.values[0]


def test_a_document_of_average_length_has_weight_one_for_a_single_occurrence() -> None:
    vector = encode_document("refund filler", average_terms=2)
    assert vector.values == pytest.approx((1.0, 1.0, 1.0))  # the third is the pair


def test_terms_that_follow_each_other_are_found_as_a_pair_in_their_order_alone() -> None:
    refund, window = term_index("refund"), term_index("window")
    pair = pair_index(refund, window)
    assert pair in encode_document("The refund window").indices
    assert pair not in encode_document("The window of refunds").indices
    asked = encode_query("refund window")
    assert dict(zip(asked.indices, asked.values, strict=True)) == {refund: 1.0, window: 1.0, pair: PAIR_WEIGHT}


def test_coverage_is_the_share_of_different_terms() -> None:
    assert coverage("refund window for gifts", "the window of refunds") == pytest.approx(2 / 3)
    assert coverage("the of", "anything") == 0.0


@given(st.text(max_size=300))
def test_any_text_gives_a_valid_vector(text: str) -> None:
    for vector in (encode_document(text), encode_query(text)):
        assert list(vector.indices) == sorted(set(vector.indices))
        assert len(vector.indices) == len(vector.values)
        assert all(0 <= index < 2**32 for index in vector.indices)
        assert all(value > 0 for value in vector.values)
    assert 0.0 <= coverage(text, text) <= 1.0


@given(st.text(alphabet=st.characters(max_codepoint=127), max_size=200))
def test_plain_ascii_gives_the_terms_that_it_gives_beside_other_scripts(text: str) -> None:
    assert terms(text + " 退款") == [*terms(text), "退款"]


def test_threads_that_stem_at_once_get_no_stems_of_one_another() -> None:
    """A question is encoded while documents are cut, and a wrong stem would be remembered for good."""
    words = [f"{start}{middle}{end}" for start in "bdfgklm" for middle in "aeiou" for end in ENDINGS]
    alone = [_stem(word) for word in words]

    def stems(_: int) -> list[str]:
        return [_stem(word) for word in words]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            beside = list(threads.map(stems, range(8)))
    finally:
        sys.setswitchinterval(interval)
    assert beside == [alone] * 8


def test_a_word_that_is_far_too_long_is_cut() -> None:
    word = "blob" * 30_000
    assert terms(f"{word} {word}s") == [word[:64]] * 2
