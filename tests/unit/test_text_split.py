"""Edges at which texts are cut, and the units in which platforms measure."""

from __future__ import annotations

import pytest

from connectors.text import cluster_edge, utf16_units
from connectors.text.edges import natural_edge


@pytest.mark.parametrize(("text", "expected"), [("", 0), ("abc", 3), ("ä", 1), ("🙂", 2), ("\ud83d", 1)])
def test_utf16_units_are_counted(text: str, expected: int) -> None:
    assert utf16_units(text) == expected


@pytest.mark.parametrize(
    ("text", "furthest", "head"),
    [
        ("one two. three\nfour\n\nfive six", 24, "one two. three\nfour\n\n"),
        ("one two. three four\nfive", 22, "one two. three four\n"),
        ("one two three. four five", 20, "one two three. "),
        ("one two three", 10, "one two "),
    ],
)
def test_cuts_fall_at_the_best_edge(text: str, furthest: int, head: str) -> None:
    edge = natural_edge(text, furthest)
    assert edge is not None
    assert text[:edge] == head


def test_a_text_without_edges_has_none() -> None:
    assert natural_edge("x" * 50, 20) is None


@pytest.mark.parametrize("cluster", ["e\u0301", "👩\u200d👩\u200d👧", "👍🏽", "🇩🇪", "각", "\r\n"])
def test_a_cluster_is_never_broken(cluster: str) -> None:
    text = "ab" + cluster + "c"
    for furthest in range(2, 2 + len(cluster)):
        assert cluster_edge(text, furthest) == 2


def test_a_cluster_longer_than_the_room_is_broken() -> None:
    assert cluster_edge("e" + "\u0301" * 9, 4) == 4
