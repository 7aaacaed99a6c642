"""A reply's texts as parts, and as a file when there are too many."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.message import ConversationKey, OutboundMessage
from connectors.text import DISCORD_MARKDOWN, SLACK_MRKDWN, TELEGRAM_HTML, Dialect, cut_reply, outbound_parts
from connectors.text.split import FILE_NAME, can_be_seen

KEY = ConversationKey("acme", "telegram", "1")


@given(st.lists(st.text(min_size=1), max_size=8), st.integers(1, 6))
def test_few_texts_are_parts_and_many_a_beginning_and_the_whole_as_a_file(texts: list[str], limit: int) -> None:
    """Indexes count on, totals are true, tokens differ, and nothing is lost either way."""
    message = OutboundMessage(KEY, "t1", "".join(texts))
    parts = outbound_parts(message, texts, "html", limit)
    assert [part.index for part in parts] == list(range(len(parts)))
    assert {part.total for part in parts} <= {len(parts)}
    assert len({part.token for part in parts}) == len(parts)
    if len(texts) <= limit:
        assert [part.text for part in parts] == texts
        assert not any(part.file_name for part in parts)
    else:
        assert [part.file_name for part in parts] == ["", FILE_NAME]
        assert parts[0].text == texts[0]
        assert parts[1].text == message.text


@pytest.mark.parametrize("dialect", [TELEGRAM_HTML, SLACK_MRKDWN, DISCORD_MARKDOWN])
def test_a_beginning_says_that_the_whole_reply_is_in_the_file(dialect: Dialect) -> None:
    """And fits, with room for the sources; a reply that fits says nothing of the kind."""
    words = "\n\n".join("Plan *B* costs **12 euros**. " * 20 for _ in range(10))
    texts, sources_at = cut_reply(words, dialect, 1000, 900, 3)
    assert len(texts) > 3
    assert sources_at == 0
    assert dialect.visible_text(texts[0]).strip("_*").endswith("The whole reply follows.")
    assert dialect.size(texts[0]) <= 900
    texts, _ = cut_reply(words, dialect, 1000, 900, 30)
    assert "in the file" not in "".join(texts)


def test_a_lone_surrogate_does_not_reach_a_file() -> None:
    """Files are UTF-8."""
    message = OutboundMessage(KEY, "t1", "a\ud800b")
    assert outbound_parts(message, ["a", "b"], "html", 1)[1].text == "a\ufffdb"


def test_spaces_and_controls_alone_cannot_be_seen() -> None:
    """Nor can format characters; a letter among them can."""
    assert not can_be_seen("\u200b \n\u2028\t")
    assert can_be_seen("\u200bx")
