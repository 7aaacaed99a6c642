"""What of a prompt comes again, how Anthropic's models are told, and how pieces of tool calls are put together."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.message import ConversationKey
from grounding.prompt import cache_breakpoints
from grounding.prompt_input import Query, SummaryInput, TailEntry
from runtime.llm import Image, StablePrefix, with_images
from runtime.llm.messages import mark_stable_prefix, takes_cache_key
from runtime.llm.streaming import ToolCallAccumulator
from runtime.turns.rounds import with_rounds
from tests.emulators.prompts import build
from tests.emulators.toolbox import round_of

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
    messages = with_rounds(prompt.messages, [round_of("Let me look.")] * rounds)
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
    shown = mark_stable_prefix(
        with_images(prompt.messages, [Image.of("a.png", "image/png", b"x")]), StablePrefix.of(prompt, KEY)
    )
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


OFFERED = ("find", "find_all", "go")
FIND, GO = '{"q": "x"}', '{"to": 1}'
Piece = tuple[int, str, str, str]


def put_together(*pieces: Piece) -> list[tuple[str, str, str]]:
    called = ToolCallAccumulator(OFFERED)
    for piece in pieces:
        called.add(*piece)
    return [(call.id, call.name, call.arguments) for call in called.calls]


@given(st.lists(st.tuples(st.sampled_from(OFFERED), st.text()), min_size=1, max_size=4), st.randoms())
def test_calls_of_an_index_each_come_whole_however_they_are_cut_and_mixed(
    calls: list[tuple[str, str]], random: object
) -> None:
    pieces: list[list[Piece]] = []
    for index, (name, text) in enumerate(calls):
        arguments = json.dumps({"q": text})
        cut = random.randint(0, len(arguments))  # type: ignore[attr-defined]
        rest: list[Piece] = [(index, "", "", arguments[:cut]), (index, "", "", arguments[cut:])]
        pieces.append([(index, f"id{index}", name, ""), *rest])
    mixed: list[Piece] = []
    while any(pieces):
        mixed.append(random.choice([one for one in pieces if one]).pop(0))  # type: ignore[attr-defined]

    assert put_together(*mixed) == [
        (f"id{index}", name, json.dumps({"q": text})) for index, (name, text) in enumerate(calls)
    ]


@pytest.mark.parametrize(
    ("pieces", "wanted"),
    [
        (
            [
                (0, "a", "find", '{"q"'),
                (0, "", "", ': "x"}'),
                (0, "b", "go", "{"),
                (0, "", "", "}"),
                (1, "c", "go", GO),
            ],
            [("a", "find", FIND), ("b", "go", "{}"), ("c", "go", GO)],
        ),
        ([(0, "a", "go", ""), (0, "b", "go", "")], [("a", "go", ""), ("b", "go", "")]),
        ([(0, "", "find", FIND), (0, "", "go", GO)], [("", "find", FIND), ("", "go", GO)]),
        ([(0, "", "find", FIND), (0, "", "find", FIND)], [("", "find", FIND)] * 2),
        ([(0, "a", "find", FIND), (0, "a", "go", GO)], [("a", "find", FIND), ("a", "go", GO)]),
        ([(0, "", "go", ""), (0, "", "find", FIND)], [("", "go", ""), ("", "find", FIND)]),
    ],
    ids=["by ids", "without arguments", "no ids", "the same twice", "one id for all", "no arguments, no ids"],
)
def test_calls_that_come_under_one_index_are_told_apart(
    pieces: list[Piece], wanted: list[tuple[str, str, str]]
) -> None:
    assert put_together(*pieces) == wanted


@pytest.mark.parametrize(
    "pieces",
    [
        [(0, "a", "fi", ""), (0, "", "nd", FIND)],
        [(0, "a", "find", ""), (0, "a", "find", FIND[:4]), (0, "a", "find", FIND[4:]), (0, "a", "find", "")],
        [(0, "a", "find", ""), (0, "b", "", FIND[:4]), (0, "c", "find", FIND[4:]), (0, "", "", "")],
        [(0, "", "", FIND), (0, "a", "find", "")],
        [(0, "a", "find", ""), (0, "", "", FIND[:4]), (0, "", "", FIND[4:]), (0, "a", "find", FIND)],
        [(0, "a", "find", ""), (0, "", "", FIND), (0, "", "", FIND)],
        [(0, "a", "find", FIND), (0, "a", "", json.dumps(FIND))],
        [(0, "a", "find", FIND), (1, "a", "find", FIND)],
    ],
    ids=[
        "name in parts",
        "all again in each piece",
        "another id for each piece",
        "name last",
        "all again at the end",
        "arguments again",
        "again as text",
        "again under another index",
    ],
)
def test_pieces_of_one_call_stay_one_call(pieces: list[Piece]) -> None:
    [(id_, name, arguments)] = put_together(*pieces)

    assert (id_, name, json.loads(arguments)) == ("a", "find", {"q": "x"})


def test_a_name_that_begins_like_another_is_read_to_its_end() -> None:
    assert put_together((0, "a", "find", ""), (0, "", "_all", FIND)) == [("a", "find_all", FIND)]
