"""Splitting keeps every character and every limit, and cuts where a reader would."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from connectors.text.split import Piece, Size, characters, split, utf8_bytes, utf16_units

SIZES = (characters, utf16_units, utf8_bytes)

SNIPPETS = st.sampled_from(
    [
        "word ", "A sentence. ", "\n", "\n\n", "```\n", "```python\n", "~~~\n", "````\n", "`" * 40, "  ```", "e\u0301",
        "👩‍👩‍👧‍👦", "🇩🇪🇫🇷", "👍🏽", "한국", "각", "\r\n", "\t", " ", "漢字。", "\ud83d\ude00", "x" * 30,
        "```" + "l" * 50 + "\n",
    ]
)  # fmt: skip
TEXTS = st.one_of(
    st.text(max_size=300),
    st.text(st.characters(), max_size=300),
    st.lists(st.one_of(SNIPPETS, st.text(max_size=12)), max_size=80).map("".join),
)


@given(text=TEXTS, limit=st.integers(16, 200), size=st.sampled_from(SIZES))
@example(text="```\n" + "`" * 60, limit=16, size=characters)
@example(text="```\ncode\n" + "`" * 60, limit=16, size=utf8_bytes)
@example(text="👩‍👩‍👧‍👦" * 9, limit=16, size=utf8_bytes)
@settings(max_examples=800, deadline=None)
def test_no_character_is_lost_and_no_part_is_too_large(text: str, limit: int, size: Size) -> None:
    """The bodies joined are the text; every part is within the limit and has some of the text."""
    pieces = split(text, limit, size)
    assert "".join(piece.body for piece in pieces) == text
    for piece in pieces:
        assert piece.body
        assert size(piece.text) <= limit
        assert re.fullmatch(r"((`{3,}|~{3,})[^\n]*\n)?", piece.opening)
        assert re.fullmatch(r"\n?(`{3,}|~{3,})|", piece.closing)
    if text:
        assert pieces[0].opening == ""
        assert pieces[-1].closing == ""


@given(text=TEXTS, limit=st.integers(16, 200), size=st.sampled_from(SIZES))
@settings(max_examples=300, deadline=None)
def test_a_fence_that_is_closed_is_opened_again_and_only_then(text: str, limit: int, size: Size) -> None:
    """A part that had to close a code block is followed by one that opens it with the same marker."""
    pieces = split(text, limit, size)
    for before, after in pairwise(pieces):
        assert bool(before.closing) == bool(after.opening)
        assert after.opening.startswith(before.closing.strip())


@given(text=st.text(st.sampled_from("a😀e\u0301 "), max_size=400), limit=st.integers(16, 60))
@settings(max_examples=300, deadline=None)
def test_parts_of_what_fits_one_part_are_never_made(text: str, limit: int) -> None:
    """A text that fits is one part, unchanged."""
    pieces = split(text, limit, utf16_units)
    assert (len(pieces) <= 1) == (utf16_units(text) <= limit)


@pytest.mark.parametrize(
    "cluster",
    [
        "👩‍👩‍👧",
        "🇩🇪",
        "👍🏽",
        "e\u0301\u0323",
        "각",
        "❤️‍🔥",
        "🏴\U000e0067\U000e0062\U000e007f",
        "\r\n",
        "नि",
        " \u0301",
    ],
)
@given(limit=st.integers(16, 40), lead=st.integers(0, 20))
@example(limit=16, lead=15)
@settings(max_examples=60, deadline=None)
def test_a_cluster_is_never_broken_where_that_can_be_avoided(cluster: str, limit: int, lead: int) -> None:
    """What a reader sees as one character stays in one part."""
    text = "x" * lead + cluster * 30
    for piece in split(text, limit):
        assert re.fullmatch(f"x*({re.escape(cluster)})*", piece.body)


@pytest.mark.parametrize(
    ("text", "limit", "bodies"),
    [
        ("", 16, []),
        ("short", 16, ["short"]),
        ("first paragraph\n\nsecond one", 24, ["first paragraph\n\n", "second one"]),
        ("line number one\nline number two", 24, ["line number one\n", "line number two"]),
        ("One sentence. Another sentence.", 24, ["One sentence. ", "Another sentence."]),
        ("some words without an end", 16, ["some words ", "without an end"]),
        ("一二三四五六七八九。十一二三四五六", 16, ["一二三四五六七八九。", "十一二三四五六"]),
        ("abcdefghijklmnopqrstuvwxyz", 16, ["abcdefghijklmnop", "qrstuvwxyz"]),
        ("a\n\n" + "b" * 20, 20, ["a\n\n" + "b" * 17, "bbb"]),
    ],
)
def test_cuts_fall_at_the_best_edge(text: str, limit: int, bodies: list[str]) -> None:
    """Paragraphs before lines before sentences before words before characters, and no part nearly empty."""
    assert [piece.body for piece in split(text, limit)] == bodies


def test_a_code_block_is_closed_and_reopened_over_a_cut() -> None:
    """Code that is cut stays code in both parts, with its language."""
    text = "```python\n" + "".join(f"print({n})\n" for n in range(6)) + "```\nDone."
    assert [piece.text for piece in split(text, 50)] == [
        "```python\nprint(0)\nprint(1)\nprint(2)\nprint(3)\n```",
        "```python\nprint(4)\nprint(5)\n```\nDone.",
    ]


@pytest.mark.parametrize("limit", [44, 47, 52, 60])
def test_a_cut_goes_before_a_code_block_rather_than_after_its_first_line(limit: int) -> None:
    """No part ends with a fence that was just opened."""
    text = "Some words before the code comes:\n```python\nprint('hello, world')\n```"
    assert [piece.text for piece in split(text, limit)] == [
        "Some words before the code comes:\n",
        "```python\nprint('hello, world')\n```",
    ]


def test_a_fence_whose_lines_take_half_a_part_is_cut_like_other_text() -> None:
    """A marker that is too long to be repeated is not repeated."""
    pieces = split("`" * 30 + "\n" + "code\n" * 10 + "`" * 30, 40)
    assert {(piece.opening, piece.closing) for piece in pieces} == {("", "")}


def test_a_limit_too_small_to_hold_anything_is_refused() -> None:
    """A limit below 16 is an error of the caller."""
    with pytest.raises(ValueError, match="16"):
        split("text", 15)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", (0, 0, 0)), ("aé", (2, 2, 3)), ("€", (1, 1, 3)), ("😀", (1, 2, 4)), ("\ud83d\ude00", (2, 2, 6))],
)
def test_sizes_are_counted_in_the_units_they_are_named_after(text: str, expected: tuple[int, int, int]) -> None:
    """Code points, UTF-16 units and UTF-8 bytes."""
    assert tuple(size(text) for size in SIZES) == expected


def test_a_piece_is_its_body_between_its_fence_lines() -> None:
    """A piece's text is what is sent."""
    assert Piece("body", "```\n", "\n```").text == "```\nbody\n```"
