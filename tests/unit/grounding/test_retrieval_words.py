"""The words of texts and questions: terms, BM25's vectors, codes, and how much of a question a text has."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import snowballstemmer
from hypothesis import given
from hypothesis import strategies as st

from grounding.retrieval import coverage, encode_document, terms
from grounding.retrieval.bm25 import PAIR_WEIGHT, encode_query, pair_index, term_index
from grounding.retrieval.relevance import codes

ENDINGS = ["nationally", "ingness", "fulization", "entation", "ratively", "ousness", "ibilities", "ement", "izers"]


def test_words_are_folded_stemmed_and_freed_of_stop_words() -> None:
    assert terms("The Refunds are refunding, ＲＥＦＵＮＤ's") == ["refund", "refund", "refund"]


def test_identifiers_are_found_whole_and_by_their_words() -> None:
    assert terms("AGENT_DATA_DIR") == ["agent_data_dir", "agent", "data", "dir"]


def test_scripts_without_spaces_are_read_in_pairs() -> None:
    assert terms("退款政策") == ["退款", "款政", "政策"]


def test_a_term_has_the_same_index_on_every_machine() -> None:
    assert term_index("refund") == 1_155_478_322


def test_more_of_a_term_weighs_more_but_never_beyond_saturation_and_less_in_a_longer_text() -> None:
    weights = [encode_document(" ".join(["refund"] * count + ["other"] * (100 - count))) for count in (1, 2, 50)]
    values = [dict(zip(v.indices, v.values, strict=True))[term_index("refund")] for v in weights]
    assert values[0] < values[1] < values[2] < 2.2
    short, long = encode_document("refund"), encode_document("refund " + "filler " * 300)
    assert long.values[long.indices.index(term_index("refund"))] < short.values[0]


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
    alone = snowballstemmer.stemmer("english")

    def stems(_: int) -> list[str]:
        return terms(" ".join(words))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            beside = list(threads.map(stems, range(8)))
    finally:
        sys.setswitchinterval(interval)
    assert beside == [[alone.stemWord(word) for word in words]] * 8


def test_a_word_that_is_far_too_long_is_cut() -> None:
    word = "blob" * 30_000
    assert terms(f"{word} {word}s") == [word[:64]] * 2


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("What does E4711 mean?", {"e4711"}),
        ("IngestQueueDeep fired, what now?", {"ingestqueuedeep"}),
        ("JavaScript on GitHub, by McDonald", set()),
        ("is INC-2041 (or CVE-2024-3094) fixed", {"inc-2041", "cve-2024-3094"}),
        ("set redis_url, then go", {"redis_url"}),
        ("upgrade to v2.13.1.", {"v2.13.1"}),
        ("see you at 10am on the 2nd, 500mb of mp3 for B2B", set()),
        ("call me in 2026 or at 555-1234", set()),
        ("where is PO#4711, part 4711-A (or 4711-a)?", {"po#4711", "4711-a"}),
        ("INC-12 and issue#7, issue#71", {"inc-12", "issue#71"}),
        ("covid-19, COVID-19, covid19, windows-11, catch-22, base64", set()),
        ("a 24-hour shift, 500-mb files, the 1990s, 2026-11-21T10:00, 2026-11-21", set()),
        ("no code-like words here.", set()),
        ("", set()),
    ],
)
def test_a_code_has_letters_and_digits_or_an_underscore_and_is_no_word_with_a_small_number(
    text: str, found: set[str]
) -> None:
    assert codes(text) == found


def test_a_very_long_text_without_an_end_is_searched_in_linear_time() -> None:
    for text in ("a-" * 200_000 + "1", "a#" * 200_000 + "-", "1-" * 200_000 + "-", "1" * 400_000 + "-a-"):
        assert codes(text) == frozenset()
