"""What is said to a model of its rounds, and what they come to."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.message import Usage
from grounding.prompt_input import load_tokens
from runtime.llm import Completion, Image, ToolCall, with_images
from runtime.llm.messages import has_images, without_images, without_tools
from runtime.turns.rounds import Round, merge_completions, round_rows, text_of_rounds, total_usage, with_rounds
from tests.emulators.toolbox import round_of

PROMPT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How much?"}]
IMAGE = Image.of("a.png", "image/png", b"x")


def test_a_round_follows_the_prompt_with_each_result_behind_its_call() -> None:
    messages = with_rounds(PROMPT, [round_of("Let me look.")])

    assert messages[:2] == PROMPT
    assistant, first, second = messages[2:]
    assert assistant["content"] == "Let me look."
    assert [call["id"] for call in assistant["tool_calls"]] == ["a", "call_0_1"]
    assert (first["tool_call_id"], second["tool_call_id"]) == ("a", "call_0_1")
    assert (first["content"], second["content"]) == ("<tool_result>0</tool_result>", "<tool_result>1</tool_result>")


def test_a_call_that_no_provider_would_take_back_is_said_again_in_a_form_that_it_takes() -> None:
    functions = [call["function"] for call in round_of().messages(0)[0]["tool_calls"]]

    assert functions == [{"name": "find", "arguments": '{"q": "x"}'}, {"name": "go_now_", "arguments": "{}"}]


@pytest.mark.parametrize(
    "arguments", ["[" * 5000, '{"q":' * 5000, '{"q": NaN}', '{"q": -Infinity}', '{"q": 1}{"q": 2}']
)
def test_arguments_that_nobody_reads_are_not_said_again(arguments: str) -> None:
    function = round_of("", ToolCall("a", "find", arguments)).messages(0)[0]["tool_calls"][0]["function"]

    assert function == {"name": "find", "arguments": "{}"}


@given(st.lists(st.lists(st.sampled_from(["", "a", "call_0_1", "call_1_0"]), min_size=1, max_size=4), max_size=4))
def test_no_two_calls_of_an_answer_are_said_with_one_id(ids: list[list[str]]) -> None:
    """Providers number them anew in each round, and others refuse such a conversation whole."""
    rounds = [round_of("", *(ToolCall(one, "find", "{}") for one in some)) for some in ids]
    messages = with_rounds([], rounds)
    said_ids = [call["id"] for message in messages for call in message.get("tool_calls", ())]

    assert len(set(said_ids)) == len(said_ids) == sum(map(len, ids))
    assert [message["tool_call_id"] for message in messages if message["role"] == "tool"] == said_ids
    firsts = {one: place for place, one in reversed(list(enumerate(one for some in ids for one in some))) if one}
    assert all(said_ids[place] == one or one.startswith("call_") for one, place in firsts.items())


def test_without_tools_there_is_one_system_and_one_user_message_with_what_was_found() -> None:
    messages = without_tools(with_rounds(PROMPT, [round_of("Let me look."), round_of()]))

    assert [message["role"] for message in messages] == ["system", "user"]
    assert messages[1]["content"].startswith("How much?\n\n")
    assert messages[1]["content"].count("<tool_result>0</tool_result>") == 2
    assert without_tools(PROMPT) == PROMPT


def test_what_was_found_stands_with_a_picture_and_without_it() -> None:
    messages = without_tools(with_rounds(with_images(PROMPT, [IMAGE]), [round_of()]))

    assert has_images(messages)
    text, picture = messages[1]["content"]
    assert "<tool_result>1</tool_result>" in text["text"]
    assert picture["type"] == "image_url"
    assert without_images(messages)[1]["content"] == text["text"]


def test_the_calls_of_an_answer_are_counted_and_timed_as_one() -> None:
    rounds = [
        Round(Completion("A moment.", "m", usage=Usage(10, 0, 5, 0.5), latency_ms=100, attempts=2), (), tools_ms=50),
        Round(Completion(" ", "m", usage=Usage(20, 10, 5, 0.25), latency_ms=100), ()),
    ]
    last = Completion("12.", "m2", "length", Usage(30, 20, 2, 0.125), first_token_ms=30, latency_ms=40)
    one = merge_completions(rounds, last)

    assert (one.text, one.model, one.finish_reason) == ("A moment.\n\n12.", "m2", "length")
    assert one.usage == Usage(60, 30, 12, 0.875)
    assert (one.latency_ms, one.first_token_ms, one.attempts) == (290, 280, 2)
    assert text_of_rounds(rounds) == "A moment."
    assert total_usage([]) == Usage()
    assert merge_completions([], last) is last


def test_of_a_round_that_was_stopped_what_ended_is_told() -> None:
    stopped = Round(round_of().completion, round_of().results[:1])

    [row] = round_rows([stopped])
    assert [one["tool"] for one in row["tools"]] == ["find"]
    assert not stopped.is_over


def test_what_a_round_takes_of_a_window_is_not_counted_short() -> None:
    tokens = load_tokens()
    one = round_of("Let me look.")
    texts = [message["content"] for message in one.messages(0)[1:]]

    assert one.count(tokens) >= tokens.count(json.dumps(one.messages(0)[0]["tool_calls"][0]["function"])) + len(texts)
