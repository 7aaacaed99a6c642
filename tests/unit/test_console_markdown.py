"""Markdown in a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.console.convert import render, split_finished

MARKDOWN = st.lists(
    st.sampled_from(["a", "bc ", "\n", "\n\n", "- ", "1. ", "# ", "```\n", "> ", "|a|b|\n|-|-|\n", "  ", "**", "`"])
).map("".join)


@given(MARKDOWN, MARKDOWN)
def test_what_is_finished_stays_finished(text: str, more: str) -> None:
    """Splitting loses nothing, and what was finished is also the beginning of the longer text's finished part."""
    finished, rest = split_finished(text)
    assert finished + rest == text
    assert split_finished(text + more)[0].startswith(finished)


@pytest.mark.parametrize(
    ("text", "finished"),
    [("one", ""), ("one\n\ntw", ""), ("one\n\ntwo\n", "one\n\n"), ("- a\n\n- b\n", ""), ("```\na\n\nb\n", "")],
)
def test_only_whole_blocks_are_finished(text: str, finished: str) -> None:
    assert split_finished(text)[0] == finished


def test_lines_are_broken_between_words_at_the_width() -> None:
    text = "Acknowledge the page within five minutes, then tell the channel."
    assert render(text, 30, colours=False) == "Acknowledge the page within\nfive minutes, then tell the\nchannel."


def test_nothing_that_was_written_is_lost() -> None:
    """HTML is text, line breaks stay, and links show their address."""
    shown = render("Use <name> in `a<b>`\nhere: [docs](https://example.org/x)", 80, colours=False)
    assert shown == "Use <name> in a<b>\nhere: docs (https://example.org/x)"


def test_marks_are_rendered_and_not_shown() -> None:
    shown = render("# Title\n\n**bold** words\n\n- one\n- two", 40, colours=True)
    assert "**" not in shown
    assert "# " not in shown
    assert "\x1b[1mbold\x1b[0m" in shown
