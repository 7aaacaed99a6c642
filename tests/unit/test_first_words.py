"""What of a reply is said first, before an edit makes it whole."""

import pytest

from runtime.first_words import BEGINNING_CHARACTERS, beginning


@pytest.mark.parametrize("one", ["👨‍👩‍👧", "e\u0301", "🇩🇪", "日"])
@pytest.mark.parametrize("before", range(6))
def test_a_text_without_spaces_is_cut_between_what_people_take_for_characters(one: str, before: int) -> None:
    text = "x" * before + one * BEGINNING_CHARACTERS
    begun = beginning(text, BEGINNING_CHARACTERS).removesuffix("…")
    assert begun == "x" * before + one * ((BEGINNING_CHARACTERS - before) // len(one))
