"""What LiteLLM's errors mean for a turn."""

from __future__ import annotations

import inspect

import httpx
import pytest

from runtime.llm import ModelFailed, ModelRefused, ModelUnavailable, begin_loading, load_litellm
from runtime.llm.errors import ERRORS, classify_error, model_failure, read_retry_after


def test_every_error_class_of_litellm_has_its_line_in_the_table() -> None:
    begin_loading().result()
    import litellm.exceptions as errors

    missing = [
        name
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, Exception) and kind.__module__ == errors.__name__ and kind.__name__ not in ERRORS
    ]
    assert missing == []


@pytest.mark.parametrize(
    ("error", "why", "retry"),
    [
        (TimeoutError(), "timeout", True),
        (ConnectionResetError(), "unreachable", True),
        (httpx.ReadError("x"), "unreachable", True),
        (httpx.ReadTimeout("x"), "unreachable", True),
        (KeyError("choices"), "bad_response", False),
    ],
)
def test_errors_beside_litellms_own_have_a_verdict(error: Exception, why: str, retry: bool) -> None:
    assert (classify_error(error).why, classify_error(error).retry) == (why, retry)


@pytest.mark.parametrize("model", ["openai/gpt-4o", "azure/gpt-4o", "gemini/gemini-2.0-flash", "anthropic/claude-3"])
async def test_a_model_for_which_there_is_no_key_wants_one_and_is_not_asked_again(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "AZURE_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(Exception, match=r"(?i)missing") as failed:
        await (await load_litellm()).acompletion(model, [{"role": "user", "content": "hello"}], max_retries=0)
    verdict = classify_error(failed.value)
    assert (verdict.why, verdict.retry, verdict.refused) == ("auth", False, True)


async def test_a_model_of_a_provider_that_nobody_knows_is_not_found() -> None:
    with pytest.raises(Exception, match="NOT provided") as failed:
        await (await load_litellm()).acompletion("nobodys/model", [{"role": "user", "content": "hello"}])
    assert classify_error(failed.value).why == "not_found"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("llama9 is not a valid model ID", "not_found"),
        ('model "llama9" not found, try pulling it first', "not_found"),
        ("The model `llama9` does not exist", "not_found"),
        ("max_tokens is too large for this model", "bad_request"),
    ],
)
def test_a_server_may_say_under_another_status_that_it_lacks_the_model(said: str, why: str) -> None:
    begin_loading().result()
    import litellm.exceptions as errors

    assert classify_error(errors.BadRequestError(said, "llama9", "openai")).why == why


@pytest.mark.parametrize(
    ("address", "lacks"), [("http://127.0.0.1:1234", True), ("http://127.0.0.1:1234/v1", False), ("", False)]
)
def test_an_address_that_may_lack_its_end_is_told_with_a_model_that_is_not_found(address: str, lacks: bool) -> None:
    begin_loading().result()
    import litellm.exceptions as errors

    failure = model_failure(errors.NotFoundError("404", "m", "openai"), "openai/m", shown=False, address=address)
    assert ("lacks /v1" in failure.admin_text) is lacks


def test_a_refusal_that_arrives_in_a_stream_is_a_refusal() -> None:
    begin_loading().result()
    import litellm.exceptions as errors

    refused = errors.AuthenticationError("no", "openai", "m")
    broken = errors.APIConnectionError("gone", "openai", "m")
    wrapped = [
        errors.MidStreamFallbackError("x", "m", "openai", original_exception=original) for original in (refused, broken)
    ]
    assert [classify_error(error).why for error in wrapped] == ["auth", "broken_stream"]


def test_a_failure_never_repeats_what_the_provider_said() -> None:
    begin_loading().result()
    import litellm.exceptions as errors

    failure = model_failure(errors.BadRequestError("bad prompt: my secret", "m", "openai"), "openai/m", shown=False)
    assert isinstance(failure, ModelRefused)
    assert "secret" not in str(failure) + failure.user_text
    assert isinstance(model_failure(TimeoutError(), "m", shown=False), ModelUnavailable)


@pytest.mark.parametrize(("header", "seconds"), [("2", 2.0), ("0.5", 0.5), ("-1", None), ("inf", None), ("soon", None)])
def test_the_wait_that_a_provider_asks_for_is_read_where_it_is_a_number(header: str, seconds: float | None) -> None:
    request = httpx.Request("POST", "http://127.0.0.1")
    response = httpx.Response(429, headers={"retry-after": header}, request=request)
    assert read_retry_after(httpx.HTTPStatusError("x", request=request, response=response)) == seconds


def test_no_wait_is_read_from_an_error_without_an_answer() -> None:
    assert read_retry_after(TimeoutError()) is None


def test_who_names_the_model_need_not_name_it_twice() -> None:
    error = model_failure(TimeoutError(), "openai/fake", shown=False)

    assert str(error) == f"openai/fake: {error.without_model}"
    assert "openai/fake" not in error.without_model


def _limited(seconds: float | None) -> ModelFailed:
    request = httpx.Request("POST", "http://127.0.0.1")
    headers = {} if seconds is None else {"retry-after": f"{seconds:g}"}
    error = httpx.HTTPStatusError("x", request=request, response=httpx.Response(429, headers=headers, request=request))
    return model_failure(error, "openai/fake", shown=False)


@pytest.mark.parametrize(
    ("seconds", "when"),
    [(None, "in a moment."), (3, "in a moment."), (45, "in about 50 seconds."), (900, "15 minutes.")],
)
def test_people_are_told_how_long_the_provider_wants_to_be_left_alone(seconds: float | None, when: str) -> None:
    assert _limited(seconds).user_text.endswith(when)


@pytest.mark.parametrize(
    ("other", "when"), [(120, "in about 2 minutes."), (1800, "15 minutes."), (None, "15 minutes.")]
)
def test_of_several_models_the_one_that_can_be_asked_first_says_when(other: float | None, when: str) -> None:
    failure = _limited(900)
    failure.tell_retry_time(_limited(other).retry_after_seconds)
    assert failure.user_text.endswith(when)


def test_a_refusal_names_no_time_as_asking_again_is_no_use() -> None:
    begin_loading().result()
    import litellm.exceptions as errors

    request = httpx.Request("POST", "http://127.0.0.1")
    response = httpx.Response(401, headers={"retry-after": "900"}, request=request)
    failure = model_failure(errors.AuthenticationError("no", "openai", "m", response=response), "openai/m", shown=False)
    assert "minutes" not in failure.user_text
