"""Text between Slack's mrkdwn and Markdown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.slack.mrkdwn import escape, escaped_size, from_markdown, names_person, people_in, to_markdown, unescape

NAMES = {"U1": "Lena", "U0BOT": "helper"}
MARKS = [*"ab *_~`#>-[]()<>&|!@\n.:/", "**", "```", "\n```\n", "https://x.y/", "](https://x.y/"]
MARKED = st.lists(st.sampled_from(MARKS), max_size=60).map("".join)


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
    assert names_person("hi <@U0BOT>", "U0BOT")
    assert not names_person("write `<@U0BOT> hi`", "U0BOT")
    assert not names_person("hi <@U0BOTTOM>", "U0BOT")
    assert people_in("<@U1> and <@U2|bo> and <@U1>") == {"U1", "U2"}


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ("a < b && c > d", "a &lt; b &amp;&amp; c &gt; d"),
        ("**bold**, *slanted*, ***both***, ~~gone~~", "*bold*, _slanted_, *_both_*, ~gone~"),
        ("__bold__ and snake_case_name and 2 * 3 * 4", "*bold* and snake_case_name and 2 * 3 * 4"),
        ("## A **big** heading ##\ntext", "*A big heading*\ntext"),
        ("# About C#\n### \tclosed ###", "*About C#*\n*closed*"),
        ("- one\n  * two\n+ three", "• one\n  • two\n• three"),
        ("> quoted\n> more", "> quoted\n> more"),
        ("see [the docs](https://x.org/a_b_c?x=1&y=2)", "see <https://x.org/a_b_c?x=1&amp;y=2|the docs>"),
        ("![a cat](https://x.org/cat.png)", "<https://x.org/cat.png|a cat>"),
        ("[a (b)](https://x.org/c_(d))", "<https://x.org/c_(d)|a (b)>"),
        ("https://x.org/*a*b", "https://x.org/*a*b"),
        ("**https://x.org**, <https://x.org/_a_>", "*https://x.org*, https://x.org/_a_"),
        ("`**a** < b`", "`**a** &lt; b`"),
        ("```python\nif a < b:\n    **x**\n```\n**y**", "```\nif a &lt; b:\n    **x**\n```\n*y*"),
        ("~~~\ncode\n~~~", "```\ncode\n```"),
        ("[no link](javascript:alert)", "[no link](javascript:alert)"),
    ],
)
def test_what_the_model_writes_is_sent_as_mrkdwn(written: str, sent: str) -> None:
    """Emphasis, headings, lists, links and code in Slack's own marks."""
    assert from_markdown(written) == sent


@pytest.mark.parametrize("trick", ["<!here>", "<!channel|x>", "<@U1>", "<#C1>", "<https://evil.org|bank.org>"])
def test_a_reply_mentions_nobody_and_disguises_no_link(trick: str) -> None:
    """Slack's own marks are shown as characters, also where Markdown could carry them in."""
    for written in (trick, f"**{trick}**", f"# {trick}", f"[{trick}](x)", f"> {trick}", f"- {trick}"):
        sent = from_markdown(written)
        assert trick not in sent
        assert trick in unescape(sent)


@given(MARKED)
def test_mrkdwn_is_never_longer_than_the_escaped_text(text: str) -> None:
    """So that a part that was cut by its escaped size is within Slack's limit as sent."""
    assert len(from_markdown(text)) <= escaped_size(text)


@given(MARKED)
def test_no_word_is_lost_on_the_way_out(text: str) -> None:
    """Marks may change or go; the letters of prose stay, in order (a code block's language is not shown)."""
    if not any(mark in text for mark in ("```", "~~~", "](")):
        assert [c for c in unescape(from_markdown(text)) if c in "ab"] == [c for c in text if c in "ab"]


@given(MARKED)
def test_only_links_leave_an_angle_bracket_in_what_is_sent(text: str) -> None:
    """Nothing else in a reply has a meaning for Slack."""
    for piece in from_markdown(text).split("<")[1:]:
        assert piece.startswith(("https://", "http://"))


@given(st.text(max_size=200))
def test_escaping_is_undone_by_unescaping_and_measured_right(text: str) -> None:
    """The two are inverse, and `escaped_size` counts without making the text."""
    assert unescape(escape(text)) == text
    assert len(escape(text)) == escaped_size(text)


@given(st.text(st.sampled_from(list("ab <>&|@#!*~`\n\x00\x01\x02")), max_size=80))
def test_any_text_of_slack_can_be_read(text: str) -> None:
    """However broken its marks are; the stand-ins of the conversion never come out."""
    read = to_markdown(text, NAMES, "U0BOT")
    assert not set(read) & set("\x00\x01\x02")


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
