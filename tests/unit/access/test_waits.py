"""How people are told how long to wait."""

from __future__ import annotations

import pytest

from runtime.access import wait_in_words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "in a moment"),
        (21, "in about 30 seconds"),
        (51, "in about a minute"),
        (61, "in about 2 minutes"),
        (900, "in about 15 minutes"),
        (3301, "in about an hour"),
        (3601, "in about 2 hours"),
        (24 * 3600 + 1, "in about 2 days"),
        (31 * 24 * 3600, "in about 31 days"),
        (1_764_000_000, "later"),
    ],
)
def test_a_wait_is_told_rounded_up_to_what_people_say(seconds: float, words: str) -> None:
    assert wait_in_words(seconds) == words
