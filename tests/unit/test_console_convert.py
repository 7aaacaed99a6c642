"""What a terminal is told."""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from connectors.console import neutralise
from connectors.console.convert import footer, to_inbound
from connectors.message import CALLER_PREFIX, ConversationKey, Degraded, OutboundMessage, Role, Source

KEY = ConversationKey("sample", "console", "default")
WILD = st.text(st.characters()) | st.text(st.sampled_from("a\n\r\t\x1b\x9b\x07[]0;m\u202e\u2066\ud800\x7f\u2028"))


@given(WILD)
def test_nothing_that_a_terminal_obeys_is_left(text: str) -> None:
    """After neutralising only line feeds and tabs control anything, and every encoder takes the text."""
    shown = neutralise(text)
    assert all(unicodedata.category(c) not in ("Cc", "Cs") for c in shown if c not in "\n\t")
    assert not set(shown) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
    shown.encode("utf-8")
    assert neutralise(shown) == shown


@given(st.lists(WILD))
def test_pieces_of_a_stream_come_out_as_the_whole_would(pieces: list[str]) -> None:
    """Where a stream is cut makes no difference to what is shown."""
    assert "".join(map(neutralise, pieces)) == neutralise("".join(pieces))


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Zs", "M"])))
def test_ordinary_text_is_left_alone(text: str) -> None:
    """Letters, numbers, punctuation, symbols and marks of all scripts stay as they are."""
    assert neutralise(text) == text


def test_an_escape_sequence_is_shown_and_not_obeyed() -> None:
    """Colours and window titles come out as visible characters."""
    assert neutralise("\x1b[31mred\x1b]0;title\x07") == "␛[31mred␛]0;title␇"


def test_under_an_answer_stand_its_sources_gaps_and_making() -> None:
    """Sources are named once each, then what was missing and why, then strategy, reason and time."""
    message = OutboundMessage(
        KEY,
        "t1",
        "x",
        strategy="qmd",
        reason="workspace_retrieval_cue",
        sources=(
            Source("refunds.md", "Windows"),
            Source("refunds.md", "Windows"),
            Source("a\x1b.md", ""),
        ),
        degraded=(Degraded("summary", "timeout"), Degraded("deep", "late")),
        shows_sources=True,
    )
    assert footer(message, 1.26) == (
        "Sources: refunds.md › Windows · a␛.md",
        "answered without: summary (timeout), the second look of the search (it took too long)",
        "qmd · workspace_retrieval_cue · 1.3 s",
    )
    assert footer(OutboundMessage(KEY, "t1", "x"), None) == ()


def test_a_line_is_said_by_whoever_owns_the_terminal() -> None:
    """A typed line is direct, addressed, an admin's, and of text that can be stored."""
    message = to_inbound(
        "a\udc80", message_id="1", workspace_id=None, context="default", author_name="Ann", sent_at=datetime.now(UTC)
    )
    assert message.text == "a?"
    assert message.author.id.startswith(CALLER_PREFIX)
    assert (message.author.name, message.caller_role, message.direct) == ("Ann", Role.ADMIN, True)
    assert (message.workspace_id, message.default_workspace) == (None, "sample")
