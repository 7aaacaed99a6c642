"""What messages of blocks say, for those whose text Slack leaves empty."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.slack.mrkdwn import blocks_text, message_text, to_markdown


def rich(*elements: dict[str, Any]) -> dict[str, Any]:
    return {"type": "rich_text", "elements": list(elements)}


def section(*elements: dict[str, Any], kind: str = "rich_text_section", **more: Any) -> dict[str, Any]:
    return {"type": kind, "elements": list(elements), **more}


def text(said: str, **style: bool) -> dict[str, Any]:
    return {"type": "text", "text": said, **({"style": style} if style else {})}


@pytest.mark.parametrize(
    ("block", "said"),
    [
        (rich(section(text("a < b "), text("bold ", bold=True), text("x*y", code=True))), "a < b **bold** `x*y`"),
        (
            rich(section({"type": "user", "user_id": "U1"}, text(" and "), {"type": "broadcast", "range": "here"})),
            "@Lena and @here",
        ),
        (
            rich(section({"type": "link", "url": "https://x.org/?a=1&b=2", "text": "docs"})),
            "[docs](https://x.org/?a=1&b=2)",
        ),
        (
            rich(section({"type": "link", "url": "https://x.org"}, {"type": "emoji", "name": "tada"})),
            "https://x.org:tada:",
        ),
        (rich(section(text("x = 1\ny = 2"), kind="rich_text_preformatted")), "```\nx = 1\ny = 2\n```"),
        (rich(section(text("said\nonce"), kind="rich_text_quote")), "> said\n> once"),
        (
            rich(
                section(section(text("one")), section(text("two")), kind="rich_text_list", style="ordered"),
                section(section(text("inner")), kind="rich_text_list", style="bullet", indent=1),
            ),
            "1. one\n2. two\n    • inner",
        ),
        (
            {
                "type": "section",
                "text": {"type": "mrkdwn", "text": "*due*"},
                "fields": [{"type": "plain_text", "text": "a<b"}],
            },
            "**due**\na<b",
        ),
        ({"type": "header", "text": {"type": "plain_text", "text": "Build"}}, "**Build**"),
        (
            {"type": "context", "elements": [{"type": "mrkdwn", "text": "by"}, {"type": "plain_text", "text": "CI"}]},
            "by CI",
        ),
        ({"type": "markdown", "text": "**as it is**"}, "**as it is**"),
        ({"type": "image", "alt_text": "a cat"}, "a cat"),
        ({"type": "divider"}, ""),
        ({"type": "invented tomorrow"}, ""),
    ],
)
def test_blocks_read_as_markdown(block: dict[str, Any], said: str) -> None:
    """Each kind by its words; what has none is left out."""
    assert to_markdown(blocks_text([block]), {"U1": "Lena"}) == said


def test_a_text_comes_before_its_blocks() -> None:
    """Blocks, and an app's attachments, serve only where Slack has no text, or a stand-in for one."""
    blocks = [rich(section(text("from blocks")))]
    assert message_text({"text": "the text", "blocks": blocks}) == "the text"
    assert message_text({"text": "", "blocks": blocks}) == "from blocks"
    assert message_text({"text": "This content can't be displayed.", "blocks": blocks}) == "from blocks"
    assert message_text({"text": "This content can't be displayed."}) == ""
    assert (
        message_text({"attachments": [{"title": "Build 7", "text": "failed"}, {"fallback": "x"}]})
        == "Build 7\nfailed\nx"
    )
    assert (
        message_text({"attachments": [{"is_share": True, "text": "quoted"}, {"from_url": "u", "text": "preview"}]})
        == ""
    )


JUNK = st.recursive(
    st.none() | st.integers() | st.text(max_size=5) | st.sampled_from(["rich_text", "section", "rich_text_list"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "elements", "text", "style", "fields", "indent"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.lists(JUNK, max_size=3))
def test_blocks_of_any_shape_say_something_or_are_unreadable(blocks: list[Any]) -> None:
    """With the errors that the connector takes for "unreadable"."""
    try:
        said = blocks_text(blocks)
    except (KeyError, TypeError, ValueError, AttributeError):
        return
    assert isinstance(said, str)
