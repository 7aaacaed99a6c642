"""Model calls through LiteLLM, against a provider on loopback."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from config.settings import SMOLLM2, Settings
from connectors.message import Usage
from runtime.llm import Model, ModelRefused, ModelUnavailable, ToolCall, credentials, load_litellm
from tests.conftest import MakeSettings
from tests.emulators.openai import FakeOpenAI, Reply

ROOT = Path(__file__).parents[2]
MESSAGES = [{"role": "system", "content": "You are brief. " * 20}, {"role": "user", "content": "Grüße, wie geht's? 👋"}]
TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {}}}}


def quick_model(settings: Settings) -> Model:
    """Return one that hardly pauses between its attempts."""
    return Model(settings, retry_seconds=(0.001, 0.5))


@pytest.fixture
async def model(model_settings: MakeSettings) -> Any:
    made = quick_model(model_settings(llm_tools="always"))
    await made.warm()
    yield made
    await made.close()


class Screen:
    """Where streamed text is shown."""

    def __init__(self) -> None:
        self.text = ""
        self.pieces = 0
        self.restarts = 0

    async def show(self, delta: str) -> None:
        self.text += delta
        self.pieces += 1

    async def restart(self) -> None:
        self.text = ""
        self.restarts += 1


async def test_an_answer_comes_with_its_usage_and_who_gave_it(model: Model, openai_server: FakeOpenAI) -> None:
    completion = await model.complete(MESSAGES)
    assert completion.text.endswith("Grüße, wie geht's? 👋")
    assert (completion.model, completion.attempts, completion.finish_reason) == ("openai/fake", 1, "stop")
    assert completion.usage.prompt > 0
    assert completion.first_token_ms is None
    assert openai_server.keys == ["key"]


async def test_the_messages_reach_the_provider_as_they_were_given(model: Model, openai_server: FakeOpenAI) -> None:
    await model.complete(MESSAGES, max_output_tokens=77)
    [sent] = openai_server.requests
    assert sent["messages"] == MESSAGES
    assert sent["max_tokens"] == 77


async def test_a_streamed_answer_is_shown_piece_by_piece_and_equals_the_whole(
    model: Model, openai_server: FakeOpenAI
) -> None:
    screen = Screen()
    openai_server.chunk_delay_seconds = 0.01
    streamed = await model.complete(MESSAGES, on_delta=screen.show)
    whole = await model.complete(MESSAGES)
    assert screen.text == streamed.text == whole.text
    assert screen.pieces > 1
    assert streamed.first_token_ms is not None
    assert streamed.usage.completion == whole.usage.completion


@pytest.mark.parametrize("streams", [True, False])
async def test_an_answer_with_half_a_character_can_be_stored(
    model: Model, openai_server: FakeOpenAI, streams: bool
) -> None:
    openai_server.will("30 days \ud83d is all")
    completion = await model.complete(MESSAGES, on_delta=Screen().show if streams else None)
    assert completion.text == "30 days \ufffd is all"


async def test_tool_calls_arrive_whole_and_streamed(model: Model, openai_server: FakeOpenAI) -> None:
    openai_server.will(*[Reply(tool_calls=(("find", {"q": "x"}), ("find", {})))] * 2)
    wanted = (ToolCall("call_0", "find", '{"q": "x"}'), ToolCall("call_1", "find", "{}"))
    assert (await model.complete(MESSAGES, tools=[TOOL])).tool_calls == wanted
    assert (await model.complete(MESSAGES, tools=[TOOL], on_delta=Screen().show)).tool_calls == wanted
    assert openai_server.requests[0]["tools"] == [TOOL]
    ours = {"model", "messages", "tools", "max_tokens", "stream", "stream_options"}
    assert set(openai_server.requests[0]) | set(openai_server.requests[1]) <= ours, "nothing of LiteLLM's own is sent"


@pytest.mark.parametrize("trouble", ["rate_limited", "server_error", "empty", "garbage"])
@pytest.mark.parametrize("streams", [False, True])
async def test_what_may_pass_is_tried_again(
    model: Model, openai_server: FakeOpenAI, trouble: Any, streams: bool
) -> None:
    openai_server.will(trouble, "Second try.")
    completion = await model.complete(MESSAGES, on_delta=Screen().show if streams else None)
    assert (completion.text, completion.attempts) == ("Second try.", 2)


async def test_a_second_empty_answer_is_an_error(model: Model, openai_server: FakeOpenAI) -> None:
    openai_server.will("empty", "empty", "never asked for")
    with pytest.raises(ModelUnavailable) as failed:
        await model.complete(MESSAGES)
    assert failed.value.why == "empty"
    assert len(openai_server.requests) == 2


@pytest.mark.parametrize(
    ("trouble", "why"),
    [
        ("unauthorized", "auth"),
        ("context_window", "context_window"),
        ("content_policy", "content_policy"),
        ("not_found", "not_found"),
    ],
)
async def test_a_refusal_is_not_tried_again(model: Model, openai_server: FakeOpenAI, trouble: Any, why: str) -> None:
    openai_server.will(trouble, "never asked for")
    with pytest.raises(ModelRefused) as refused:
        await model.complete(MESSAGES)
    assert refused.value.why == why
    assert refused.value.user_text != ModelRefused.user_text
    assert len(openai_server.requests) == 1


async def test_a_provider_is_left_alone_as_long_as_it_asked(model: Model, openai_server: FakeOpenAI) -> None:
    openai_server.will(Reply(trouble="rate_limited", retry_after_seconds=1), "There you are.")
    started = time.monotonic()
    assert (await model.complete(MESSAGES)).text == "There you are."
    assert time.monotonic() - started >= 1


async def test_a_provider_that_asks_for_too_long_a_wait_is_passed_over(
    model_settings: MakeSettings, openai_server: FakeOpenAI
) -> None:
    openai_server.will(Reply(trouble="rate_limited", retry_after_seconds=600), "From the other.")
    completion = await quick_model(model_settings(llm_fallback_models="openai/other")).complete(MESSAGES)
    assert (completion.text, completion.model, completion.attempts) == ("From the other.", "openai/other", 2)


async def test_people_are_told_when_the_first_of_the_models_can_be_asked_again(
    model_settings: MakeSettings, openai_server: FakeOpenAI
) -> None:
    openai_server.will(*(Reply(trouble="rate_limited", retry_after_seconds=seconds) for seconds in (3600, 900)))
    with pytest.raises(ModelUnavailable) as failed:
        await quick_model(model_settings(llm_fallback_models="openai/other")).complete(MESSAGES)
    assert failed.value.user_text.endswith("Please try again in about 15 minutes.")


async def test_a_fallback_that_wants_a_long_wait_moves_no_time_of_the_first_model(
    model_settings: MakeSettings, openai_server: FakeOpenAI
) -> None:
    openai_server.will("server_error", Reply(trouble="rate_limited", retry_after_seconds=3600))
    with pytest.raises(ModelUnavailable) as failed:
        await quick_model(model_settings(llm_fallback_models="openai/other", llm_max_attempts=1)).complete(MESSAGES)
    assert failed.value.user_text.endswith("Please try again in a moment.")


@pytest.mark.parametrize(
    ("first", "asked"),
    [("openai/c", ["c", "fake", "b"]), ("openai/fake", ["fake", "b", "c"]), ("openai/gone", ["fake", "b", "c"])],
)
async def test_models_are_asked_in_their_order_a_chosen_one_before_the_others(
    model_settings: MakeSettings, openai_server: FakeOpenAI, first: str, asked: list[str]
) -> None:
    openai_server.will("not_found", "unauthorized", "Third.")
    model = quick_model(model_settings(llm_fallback_models="openai/b,openai/c"))

    completion = await model.complete(MESSAGES, first=first)

    assert (completion.text, completion.model) == ("Third.", f"openai/{asked[-1]}")
    assert [body["model"] for body in openai_server.requests] == asked
    assert model.names == ("openai/fake", "openai/b", "openai/c")


async def test_when_all_models_fail_the_first_ones_failure_is_told(
    model_settings: MakeSettings, openai_server: FakeOpenAI
) -> None:
    openai_server.will("unauthorized", "not_found")
    with pytest.raises(ModelRefused) as refused:
        await quick_model(model_settings(llm_fallback_models="openai/b")).complete(MESSAGES)
    assert (refused.value.why, refused.value.model) == ("auth", "openai/fake")


async def test_a_key_is_never_sent_to_another_providers_model(settings: MakeSettings) -> None:
    made = settings(llm_model="anthropic/x", llm_api_key="secret", llm_api_base="http://127.0.0.1:1")
    assert credentials(made, "anthropic/y")["api_key"] == "secret"
    assert credentials(made, "openai/y") == {}
    assert credentials(made, "gpt-4o") == {}


@pytest.mark.parametrize(
    ("model", "others", "own"),
    [
        (
            "gpt-4o",
            ["claude-sonnet-4-5", "embed-english-v3.0", "anthropic/x", "somebody-elses"],
            ["openai/y", "o3-mini"],
        ),
        ("claude-sonnet-4-5", ["gpt-4o", "text-embedding-3-small", "openai/x"], ["anthropic/y", "claude-3-haiku"]),
        ("nobodys", ["gpt-4o", "claude-3-haiku", "another"], ["nobodys"]),
    ],
)
def test_nor_where_models_are_named_without_their_providers(
    settings: MakeSettings, model: str, others: list[str], own: list[str]
) -> None:
    """LiteLLM knows some by their names alone: a key of OpenAI went to Anthropic, and to whoever embeds."""
    made = settings(llm_model=model, llm_api_key="secret", llm_api_base="http://127.0.0.1:1")
    assert [credentials(made, other) for other in others] == [{}] * len(others)
    assert {credentials(made, one)["api_key"] for one in (model, *own)} == {"secret"}


@pytest.mark.parametrize("trouble", ["break_off", "leave_off", "stall"])
async def test_a_stream_that_breaks_is_not_begun_again_below_what_was_shown(
    model_settings: MakeSettings, openai_server: FakeOpenAI, trouble: Any
) -> None:
    openai_server.will(Reply(text="This is a long answer.", trouble=trouble), "never asked for")
    screen = Screen()
    with pytest.raises(ModelUnavailable) as failed:
        await quick_model(model_settings(llm_timeout_seconds=1, llm_fallback_models="openai/b")).complete(
            MESSAGES, on_delta=screen.show
        )
    assert failed.value.shown
    assert failed.value.why == ("timeout" if trouble == "stall" else "broken_stream")
    assert "This is a long answer.".startswith(screen.text)
    assert len(openai_server.requests) == 1


@pytest.mark.parametrize("trouble", ["break_off", "leave_off", "stall"])
async def test_a_caller_who_can_take_back_what_was_shown_gets_the_answer_after_all(
    model_settings: MakeSettings, openai_server: FakeOpenAI, trouble: Any
) -> None:
    openai_server.will(Reply(text="This is a long answer.", trouble=trouble), "This is another.")
    screen = Screen()
    model = quick_model(model_settings(llm_timeout_seconds=1))
    completion = await model.complete(MESSAGES, on_delta=screen.show, on_restart=screen.restart)
    assert screen.text == completion.text == "This is another."
    assert screen.restarts == 1


async def test_a_model_that_never_says_when_an_answer_is_over_is_believed_the_third_time(
    model_settings: MakeSettings, openai_server: FakeOpenAI
) -> None:
    """Some servers just end the connection. Its first answers might have been broken off."""
    openai_server.answer = lambda body: Reply(text="This is all of it.", trouble="unsaid_end")
    screen, model = Screen(), quick_model(model_settings())
    first = await model.complete(MESSAGES, on_delta=screen.show, on_restart=screen.restart)
    again = await model.complete(MESSAGES, on_delta=screen.show, on_restart=screen.restart)
    await model.close()
    assert (first.text, first.attempts, first.finish_reason) == ("This is all of it.", 3, "stop")
    assert (again.text, again.attempts, screen.restarts) == ("This is all of it.", 1, 2)
    assert first.usage.completion > 0


async def test_two_answers_that_were_broken_off_are_not_taken_for_whole_where_none_was_heard_out_before(
    model_settings: MakeSettings, openai_server: FakeOpenAI
) -> None:
    """As by a server that has just been started, or a proxy whose server is gone."""
    cut = [Reply(text=text, trouble="unsaid_end") for text in ("Never delete the", "Never")]
    openai_server.will(*cut, "Never delete the vault.")
    screen, model = Screen(), quick_model(model_settings())
    answer = await model.complete(MESSAGES, on_delta=screen.show, on_restart=screen.restart)
    await model.close()
    assert (answer.text, answer.attempts) == ("Never delete the vault.", 3)


async def test_a_model_that_says_when_an_answer_is_over_is_not_believed_when_it_does_not(
    model_settings: MakeSettings, openai_server: FakeOpenAI
) -> None:
    """Its server, or a proxy before it, has broken the answer off."""
    model = quick_model(model_settings(llm_max_attempts=2))
    openai_server.will("Said.", *[Reply(text="This is half of it.", trouble="unsaid_end")] * 4)
    await model.complete(MESSAGES, on_delta=Screen().show)
    for _ in range(2):
        screen = Screen()
        with pytest.raises(ModelUnavailable) as failed:
            await model.complete(MESSAGES, on_delta=screen.show, on_restart=screen.restart)
        assert failed.value.why == "broken_stream"
    await model.close()


@pytest.mark.parametrize("trouble", ["no_end", "odd_usage"])
async def test_an_answer_that_is_over_is_not_lost_by_what_comes_after_it(
    model_settings: MakeSettings, openai_server: FakeOpenAI, trouble: Any
) -> None:
    openai_server.will(Reply(text="This is all.", trouble=trouble), "never asked for")
    screen = Screen()
    model = quick_model(model_settings(llm_timeout_seconds=1))
    completion = await model.complete(MESSAGES, on_delta=screen.show, on_restart=screen.restart)
    assert (completion.text, completion.finish_reason) == ("This is all.", "stop")
    assert (screen.text, screen.restarts, len(openai_server.requests)) == ("This is all.", 0, 1)


@pytest.mark.parametrize("streams", [False, True])
async def test_a_model_that_never_answers_times_out(
    model_settings: MakeSettings, openai_server: FakeOpenAI, streams: bool
) -> None:
    openai_server.will("hang", "hang")
    with pytest.raises(ModelUnavailable) as failed:
        model = quick_model(model_settings(llm_timeout_seconds=0.3, llm_max_attempts=2))
        await model.complete(MESSAGES, on_delta=Screen().show if streams else None)
    assert (failed.value.why, failed.value.retryable) == ("timeout", True)
    assert len(openai_server.requests) == 2


@pytest.mark.parametrize(
    ("host", "because"),
    [("127.0.0.1:1", "it refuses the connection"), ("no-such-host.invalid", "its host name is not known")],
)
async def test_a_server_that_is_not_there_is_named_to_admins(
    model_settings: MakeSettings, host: str, because: str
) -> None:
    with capture_logs() as events, pytest.raises(ModelUnavailable) as failed:
        await quick_model(model_settings(llm_api_base=f"http://{host}/v1", llm_max_attempts=1)).complete(MESSAGES)
    told = f"the model server at http://{host}/v1 cannot be reached: {because}"
    assert failed.value.why == "unreachable"
    assert failed.value.without_model == told
    assert [event["detail"] for event in events if event["event"] == "model.failed"] == [told]
    assert failed.value.admin_text.startswith(f"T{told[1:]}.")
    assert failed.value.user_text == "The language model cannot be reached now. Please try again in a moment."


async def test_a_password_in_an_address_is_told_to_nobody(model_settings: MakeSettings) -> None:
    with capture_logs() as events, pytest.raises(ModelUnavailable) as failed:
        address = "http://me:hunter2@127.0.0.1:1/v1"
        await quick_model(model_settings(llm_api_base=address, llm_max_attempts=1)).complete(MESSAGES)
    assert "The model server at http://127.0.0.1:1/v1 cannot be reached" in failed.value.admin_text
    assert "hunter2" not in f"{failed.value} {failed.value.admin_text} {failed.value.user_text} {events}"


async def test_a_server_that_is_not_there_is_not_asked_for_long(model_settings: MakeSettings) -> None:
    """Not so often as there are attempts: they would take 50 seconds."""
    await load_litellm()
    model = quick_model(model_settings(llm_api_base="http://127.0.0.1:1/v1", llm_max_attempts=100))
    with pytest.raises(ModelUnavailable):
        async with asyncio.timeout(25):
            await model.complete(MESSAGES)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, " has no model fake. Please set AGENT_RUNTIME_LLM_MODEL to"),
        ({"llm_model": "bare"}, "AGENT_RUNTIME_LLM_MODEL names no provider that is known: bare."),
    ],
)
async def test_a_wrong_name_of_a_model_is_told_to_admins_with_its_setting(
    model_settings: MakeSettings, openai_server: FakeOpenAI, fields: dict[str, str], told: str
) -> None:
    openai_server.will("not_found")
    with pytest.raises(ModelRefused) as refused:
        await quick_model(model_settings(**fields)).complete(MESSAGES)
    assert refused.value.why == "not_found"
    assert told in refused.value.admin_text
    assert "administrator" in refused.value.user_text


async def test_a_wrong_name_of_a_fallback_is_told_with_its_own_setting(
    model_settings: MakeSettings, openai_server: FakeOpenAI
) -> None:
    openai_server.will("not_found", "not_found")
    with pytest.raises(ModelRefused) as refused:
        await quick_model(model_settings(llm_fallback_models="openai/b")).complete(MESSAGES, first="openai/b")
    assert "has no model b. Please set AGENT_RUNTIME_LLM_FALLBACK_MODELS" in refused.value.admin_text


async def test_an_error_of_the_caller_while_showing_is_the_callers(model: Model, openai_server: FakeOpenAI) -> None:
    async def show(delta: str) -> None:
        raise LookupError(delta)

    with pytest.raises(LookupError):
        await model.complete(MESSAGES, on_delta=show)
    assert len(openai_server.requests) == 1


async def test_a_cancelled_call_ends_at_once_and_asks_nobody_else(
    model_settings: MakeSettings, openai_server: FakeOpenAI
) -> None:
    openai_server.will("hang")
    call = asyncio.create_task(quick_model(model_settings(llm_fallback_models="openai/b")).complete(MESSAGES))
    while not openai_server.requests:
        await asyncio.sleep(0.01)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert len(openai_server.requests) == 1


async def test_nothing_that_was_said_reaches_the_logs(
    model_settings: MakeSettings,
    openai_server: FakeOpenAI,
    capfd: pytest.CaptureFixture[str],
    printed_events: None,
) -> None:
    openai_server.will("context_window", "content_policy")
    messages = [{"role": "user", "content": "a private matter"}]
    settings = model_settings(llm_fallback_models="openai/b", llm_api_key="sk-very-secret")
    with pytest.raises(ModelRefused) as refused:
        await quick_model(settings).complete(messages)
    printed = "".join(capfd.readouterr())
    for hidden in ("private", "sk-very-secret"):
        assert hidden not in printed + repr(refused.value) + refused.value.user_text
    assert "model.failed" in printed


async def test_the_window_is_as_set_else_as_known_else_a_default(settings: MakeSettings) -> None:
    assert await quick_model(settings(llm_model="openai/x", llm_context_window_tokens=999)).window_tokens() == 999
    assert await quick_model(settings(llm_model="openai/gpt-4o")).window_tokens() == 128_000
    assert await quick_model(settings(llm_model="openai/unheard-of")).window_tokens() == 8192
    assert await quick_model(settings(llm_model=SMOLLM2)).window_tokens() == 8192
    assert await quick_model(settings()).window_tokens() == 32_768
    several = quick_model(settings(llm_model="openai/unheard-of", llm_fallback_models="openai/gpt-4o"))
    assert await several.window_tokens("openai/gpt-4o") == 128_000
    assert await several.window_tokens("openai/other") == 8192


async def test_cost_is_by_the_price_list_and_cached_tokens_cost_less(
    model_settings: MakeSettings, openai_server: FakeOpenAI
) -> None:
    model = quick_model(model_settings(llm_model="openai/gpt-4o"))
    first, second = [await model.complete(MESSAGES) for _ in range(2)]
    assert first.usage.cost_usd > second.usage.cost_usd > 0
    unpriced = await quick_model(model_settings()).complete(MESSAGES)
    assert unpriced.usage.cost_usd == 0
    assert isinstance(unpriced.usage, Usage)


async def test_streamed_answers_use_one_connection(model: Model, openai_server: FakeOpenAI) -> None:
    for _ in range(3):
        await model.complete(MESSAGES, on_delta=Screen().show)
    assert len(set(openai_server.peers)) == 1


async def test_without_any_model_what_needs_one_names_the_variable(
    settings: MakeSettings,
) -> None:
    with pytest.raises(ModelRefused, match="AGENT_RUNTIME_LLM_MODEL"):
        await quick_model(settings()).complete(MESSAGES, purpose="summary")
