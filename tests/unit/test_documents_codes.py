"""Codes in a text."""

from __future__ import annotations

import pytest

from grounding.retrieval import Hit, Kind, Passage
from grounding.retrieval.index import Arm
from grounding.retrieval.relevance import NAMED_LOG_ODDS, codes, floor_for


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("What does E4711 mean?", {"e4711"}),
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


def test_a_passage_with_the_code_that_was_asked_for_is_relevant_whatever_its_meaning() -> None:
    floor = floor_for("wordllama-l2-supercat")
    said = Passage("1", Kind.DOCUMENT, "errors.md", "E4711: the pump is dry. E47110 is another one.")
    hit = Hit(said, 1.0, Arm(1, -0.1), Arm(1, 5.0))
    assert floor.relevance("E4711?", hit, 5000) == NAMED_LOG_ODDS
    assert floor.relevance("E471?", hit, 5000) < floor.minimum
