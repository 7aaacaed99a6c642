"""What people write on Slack, as mrkdwn or as blocks, is read as Markdown."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.slack.mrkdwn import blocks_text, mentions, message_text, people_in, to_markdown, unescape
from connectors.text import escape_mrkdwn

NAMES = {"U1": "Lena", "U0BOT": "helper"}


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("a &lt; b &amp;&amp; c &gt; d", "a < b && c > d"),
        ("&amp;lt; stays escaped once", "&lt; stays escaped once"),
        ("see <https://x.org/a?b=1&amp;c=2|the docs>", "see [the docs](https://x.org/a?b=1&c=2)"),
        ("see <https://x.org>", "see https://x.org"),
        ("see <http://x.org|x.org>", "see x.org"),
        ("write to <mailto:a@x.org|a@x.org>", "write to a@x.org"),
        ("ask <@U1> or <@U2|bo> or <@U3>", "ask @Lena or @bo or @U3"),
        ("in <#C1|general> or <#C2>", "in #general or #C2"),
        ("<!here> and <!subteam^S1|@crew> and <!subteam^S2>", "@here and @crew and @subteam"),
        ("due <!date^1392734382^{date}|Feb 18>", "due Feb 18"),
        ("*bold* and _slanted_ and ~gone~", "**bold** and _slanted_ and ~~gone~~"),
        ("2 * 3 * 4 and a*b*c", "2 * 3 * 4 and a*b*c"),
        ("*see <https://x.org/*|it>*", "**see [it](https://x.org/*)**"),
        ("`*not bold* &lt;@U1&gt;` but *this*", "`*not bold* <@U1>` but **this**"),
        ("```if a &lt; b:\n  *x*```", "```if a < b:\n  *x*```"),
        ("`<https://x.org>`", "`https://x.org`"),
    ],
)
def test_what_people_write_reads_as_markdown(said: str, read: str) -> None:
    """Links, names, entities and emphasis; what stands in code is left alone."""
    assert to_markdown(said, NAMES) == read


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("<@U0BOT> what is up?", "what is up?"),
        ("<@U0BOT>, what is up?", "what is up?"),
        ("  <@U0BOT>: <@U0BOT> hello", "hello"),
        ("thanks, <@U0BOT>!", "thanks!"),
        ("tell me <@U0BOT> when", "tell me when"),
        ("could <@U0BOT>, please, help", "could, please, help"),
        ("please ask <@U0BOT>", "please ask"),
        ("<@U0BOT|helper> hi", "hi"),
        ("<@U0BOT>", ""),
        ("no call `<@U0BOT>`", "no call `@helper`"),
    ],
)
def test_the_bots_own_name_is_taken_out_without_a_gap(said: str, read: str) -> None:
    """What remains is what was said to the bot."""
    assert to_markdown(said, NAMES, "U0BOT") == read


def test_only_a_name_outside_of_code_calls() -> None:
    """Somebody who shows how to call the bot does not call it."""
    assert mentions("hi <@U0BOT>", "U0BOT")
    assert not mentions("write `<@U0BOT> hi`", "U0BOT")
    assert not mentions("hi <@U0BOTTOM>", "U0BOT")
    assert people_in("<@U1> and <@U2|bo> and <@U1>") == {"U1", "U2"}


@given(st.text(max_size=200))
def test_unescaping_undoes_what_is_escaped_in_replies(text: str) -> None:
    """The bot reads its own words as it wrote them."""
    assert unescape(escape_mrkdwn(text)) == text


@given(st.text(st.sampled_from(list("ab <>&|@#!*~`\n\x00\x01")), max_size=80))
def test_any_text_of_slack_can_be_read(text: str) -> None:
    """However broken its marks are; the stand-ins of the conversion never come out."""
    read = to_markdown(text, NAMES, "U0BOT")
    assert not set(read) & set("\x00\x01")


@pytest.mark.parametrize(
    "said",
    [" ," * 19_900 + "{me} x", "x" + " " * 39_000 + "{me}x", "x{me}" + " " * 39_000 + "x", "a {me} " * 3_000 + "b"],
    ids=["commas before", "spaces before", "spaces after", "many calls"],
)
def test_a_message_at_slacks_limit_is_read_without_going_over_it_again_and_again(said: str) -> None:
    """Slack lets people write 40,000 characters; no pattern may go back over them (the suite's time-out tells)."""
    text = said.format(me="<@U0BOT>")
    for _ in range(200):
        assert "U0BOT" not in to_markdown(text, NAMES, "U0BOT")


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
