"""Slack's mrkdwn, as people write it, is read as Markdown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.slack.mrkdwn import mentions, people_in, to_markdown, unescape
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
