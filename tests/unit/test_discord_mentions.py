"""How people call the bot on Discord, and what they said to it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.discord.events import Identity, Names, with_names, without_own_mentions

ME = Identity(user=123, role=321)
NAMES = Names(users={5: "Lena"}, roles={6: "crew"}, channels={7: "general"})


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("<@123> what is up?", "what is up?"),
        ("<@!123>, what is up?", "what is up?"),
        ("<@&321> what is up?", "what is up?"),
        ("what is up, <@123>?", "what is up?"),
        ("thanks, <@123>!", "thanks!"),
        ("hey <@123> what is up?", "hey what is up?"),
        ("<@123> <@123>", ""),
        ("<@123>", ""),
        ("<@123>\n```\ncode\n```", "```\ncode\n```"),
    ],
)
def test_the_bots_own_name_is_taken_out(said: str, meant: str) -> None:
    """By its account's name or its role's, wherever it stands."""
    assert without_own_mentions(said, ME) == (meant, True)


@pytest.mark.parametrize("said", ["hello", "<@5> and <@&6>", "@Helper", "<@1234>", "<@&123>", "<#123>", ""])
def test_what_calls_somebody_else_stays_as_it_is(said: str) -> None:
    assert without_own_mentions(said, ME) == (said, False)


def test_a_server_without_a_role_for_the_bot_knows_its_name_only() -> None:
    assert without_own_mentions("<@&321> hi", Identity(user=123)) == ("<@&321> hi", False)


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("<@5> asked <@!5>", "@Lena asked @Lena"),
        ("<@&6> in <#7>", "@crew in #general"),
        ("<:anchor:88> and <a:wave:99>", ":anchor: and :wave:"),
        ("</deploy now:1234>", "/deploy now"),
        ("at <t:1767225600:R>", "at 2026-01-01 00:00 UTC"),
        ("at <t:999999999999>", "at <t:999999999999>"),
        ("<@404> <#404> <@&404>", "<@404> <#404> <@&404>"),
        ("a <b> c", "a <b> c"),
    ],
)
def test_references_are_read_as_names(said: str, read: str) -> None:
    """People, roles, channels, emoji, commands and moments; what is not known stays as it is."""
    assert with_names(said, NAMES) == read


@given(st.text(max_size=200))
def test_no_text_breaks_the_reading(text: str) -> None:
    """Text without references is never changed."""
    if "<" not in text:
        assert with_names(text, NAMES) == text
        assert without_own_mentions(text, ME) == (text, False)
    else:
        assert "<@123>" not in without_own_mentions(with_names(text + "<@123>", NAMES), ME)[0]


PLAIN = st.text(st.characters(exclude_characters="<>"), max_size=60)


@given(PLAIN, PLAIN)
def test_taking_the_name_out_loses_nothing_else(before: str, after: str) -> None:
    """Words around the name stay, in their order (at its edges, space and punctuation may go)."""
    text, mentioned = without_own_mentions(f"{before}<@123>{after}", ME)
    assert mentioned
    words = [character for character in before + after if character.isalnum()]
    assert [character for character in text if character.isalnum()] == words
