"""Codes in a text."""

from __future__ import annotations

import pytest

from grounding.documents.codes import codes
from grounding.documents.index import Arm, Hit, Kind, Passage
from grounding.documents.relevance import NAMED_LOG_ODDS, floor_for


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("What does E4711 mean?", {"e4711"}),
        ("is INC-2041 (or CVE-2024-3094) fixed", {"inc-2041", "cve-2024-3094"}),
        ("set redis_url, then go", {"redis_url"}),
        ("upgrade to v2.13.1.", {"v2.13.1"}),
        ("see you at 10am on the 2nd, 500mb of mp3 for B2B", set()),
        ("call me in 2026 or at 555-1234", set()),
        ("no code-like words here.", set()),
        ("", set()),
    ],
)
def test_a_code_begins_with_a_letter_and_has_digits_or_an_underscore(text: str, found: set[str]) -> None:
    assert codes(text) == found


def test_a_very_long_text_without_an_end_is_searched_in_linear_time() -> None:
    assert codes("a-" * 200_000 + "1") == frozenset()


def test_a_passage_with_the_code_that_was_asked_for_is_relevant_whatever_its_meaning() -> None:
    floor = floor_for("wordllama-l2-supercat")
    said = Passage("1", Kind.DOCUMENT, "errors.md", "E4711: the pump is dry. E47110 is another one.")
    hit = Hit(said, 1.0, Arm(1, -0.1), Arm(1, 5.0))
    assert floor.relevance("E4711?", hit, 5000) == NAMED_LOG_ODDS
    assert floor.relevance("E471?", hit, 5000) < floor.minimum
