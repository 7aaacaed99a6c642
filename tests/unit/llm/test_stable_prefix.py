"""What of a prompt comes again, and how Anthropic's models are told."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.message import ConversationKey
from grounding.prompt import cache_breakpoints
from grounding.prompt_input import Query, SummaryInput, TailEntry
from runtime.llm import StablePrefix, with_images
from runtime.llm.messages import mark_stable_prefix, takes_cache_key
from runtime.turns.rounds import with_rounds
from tests.emulators.prompts import build
from tests.unit.test_rounds import IMAGE, round_

KEY = ConversationKey("acme", "slack", "C1")
SAID = st.lists(st.text(st.sampled_from("ab \n<é"), min_size=1, max_size=4), min_size=1, max_size=5)
"""Of both together no more lines than a tail may have: what it cannot show begins anew."""


def tail(said: list[str]) -> tuple[TailEntry, ...]:
    return tuple(TailEntry(speaker=f"P{n % 2}", text=text, turn_id=f"t{n}") for n, text in enumerate(said))


def parts(message: Any) -> list[tuple[str, bool]]:
    """The texts of a message's parts, and whether they are marked."""
    if isinstance(message["content"], str):
        return [(message["content"], False)]
    return [(part["text"], "cache_control" in part) for part in message["content"] if part["type"] == "text"]


@settings(max_examples=60, deadline=None)
@given(before=SAID, then=SAID)
def test_all_places_of_a_prompt_are_found_again_in_the_next_of_the_conversation(
    before: list[str], then: list[str]
) -> None:
    one = build(layout="prefix_stable", tail=tail(before), query=Query(text="one?"))
    two = build(layout="prefix_stable", tail=tail([*before, *then]), query=Query(text="two, and more?"), passages=())
    ends = cache_breakpoints(one)
    assert set(ends) <= set(cache_breakpoints(two))
    assert list(ends) == sorted(set(ends))
    shared = len(os.path.commonprefix([one.user, two.user]))  # noqa: RUF071 - of text
    assert not ends or ends[-1] <= shared


def test_the_last_place_is_behind_the_last_entry_of_the_tail() -> None:
    prompt = build(layout="prefix_stable", tail=tail(["hello", "two\nlines", "bye"]))
    assert prompt.user[: cache_breakpoints(prompt)[-1]].endswith("P0: bye\n")
    assert prompt.user[cache_breakpoints(prompt)[-1] :].startswith("</recent_conversation>")


def test_nothing_of_the_users_message_comes_again_where_it_begins_with_the_query() -> None:
    assert cache_breakpoints(build(layout="user_first")) == ()
    assert cache_breakpoints(build(layout="prefix_stable", small_talk=True)) == ()


@settings(max_examples=60, deadline=None)
@given(said=SAID, layout=st.sampled_from(["user_first", "prefix_stable"]), rounds=st.integers(0, 2))
def test_marked_messages_say_the_same_with_at_most_four_marks(said: list[str], layout: str, rounds: int) -> None:
    prompt = build(layout=layout, tail=tail(said), summary=SummaryInput(text="# About\n\nboats", turns=1, version=1))
    messages = with_rounds(prompt.messages, [round_("Let me look.")] * rounds)
    result = mark_stable_prefix(messages, StablePrefix.of(prompt, KEY))

    marks = sum(is_marked for message in result[:2] for _, is_marked in parts(message))
    assert ["".join(text for text, _ in parts(message)) for message in result[:2]] == [prompt.system, prompt.user]
    assert all(text.strip() for message in result[:2] for text, _ in parts(message))
    assert parts(result[0])[-1][1]
    assert marks + ("cache_control" in result[-1]) <= 4
    assert ("cache_control" in result[-1]) is (rounds > 0)
    assert [message["role"] for message in result] == [message["role"] for message in messages]


def test_what_changes_with_every_turn_is_never_marked() -> None:
    prompt = build(layout="prefix_stable", tail=tail(["hello", "hi"]))
    [*_, last] = parts(mark_stable_prefix(prompt.messages, StablePrefix.of(prompt, KEY))[1])
    assert "pricing policy" in last[0]
    assert not last[1]


def test_pictures_stay_behind_the_parts_of_the_text() -> None:
    prompt = build(layout="prefix_stable")
    shown = mark_stable_prefix(with_images(prompt.messages, [IMAGE]), StablePrefix.of(prompt, KEY))  # type: ignore[list-item]
    assert [part["type"] for part in shown[1]["content"]][-2:] == ["text", "image_url"]


def test_the_key_names_a_conversation_and_says_nothing_of_it() -> None:
    prompt = build()
    keys = [StablePrefix.of(prompt, ConversationKey("acme", "slack", place)).key for place in ("C1", "C2", "C1")]
    assert keys[0] == keys[2] != keys[1]
    assert "acme" not in keys[0]
    assert len(keys[0]) <= 64


@pytest.mark.parametrize(
    ("model", "own_server", "expected"),
    [
        ("openai/gpt-4o", False, True),
        ("gpt-4o", False, True),
        ("azure/mine", True, True),
        ("openai/own", True, False),
        ("mistral/large", False, False),
        ("anthropic/claude-sonnet-4-5", False, False),
    ],
)
def test_a_key_is_sent_to_openai_only(model: str, own_server: bool, expected: bool) -> None:
    assert takes_cache_key(model, own_server) is expected
