"""What is left out of each call of LiteLLM. Should one of these fail with a new LiteLLM: `runtime.lighter`; the calls
cost more and are right all the same."""

from __future__ import annotations

import asyncio
import gc
import importlib
import sys
import threading
import weakref
from collections import Counter
from types import FrameType
from typing import Any

import pytest

from runtime.loading import load_litellm
from runtime.model import Model
from tests.conftest import MakeSettings
from tests.emulators.openai import FakeOpenAI

MESSAGES = [{"role": "user", "content": "Hello?"}]


@pytest.fixture
async def model(model_settings: MakeSettings) -> Any:
    made = Model(model_settings(llm_max_attempts=1))
    await made.warm()
    yield made
    await made.close()


async def _ignore(_: str) -> None:
    return


def _threads_of(monkeypatch: pytest.MonkeyPatch, module: str, name: str) -> list[int]:
    """The threads in which the function is called from now on."""
    found: list[int] = []
    owner = importlib.import_module(module)
    called = getattr(owner, name)

    def call(*args: Any, **options: Any) -> Any:
        found.append(threading.get_ident())
        return called(*args, **options)

    monkeypatch.setattr(owner, name, call)
    return found


@pytest.mark.parametrize("on_delta", [None, _ignore])
async def test_a_request_is_prepared_where_it_is_asked_for(
    model: Model, openai_server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch, on_delta: Any
) -> None:
    threads = _threads_of(monkeypatch, "litellm.main", "get_optional_params")
    await model.complete(MESSAGES, on_delta=on_delta)
    assert threads == [threading.get_ident()]


async def test_other_providers_requests_are_prepared_in_a_thread_because_that_may_take_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    litellm = load_litellm()
    threads = _threads_of(monkeypatch, "litellm.main", "get_optional_params")
    said = await litellm.acompletion(model="anthropic/claude-x", messages=MESSAGES, mock_response="Hi.", api_key="-")
    assert said.choices[0].message.content == "Hi."
    assert len(threads) == 1
    assert threads != [threading.get_ident()]


async def test_what_fails_while_a_request_is_prepared_fails_the_call() -> None:
    litellm = load_litellm()
    with pytest.raises(litellm.APIConnectionError):
        await litellm.acompletion(model="openai/x", messages=[{"role": "nobody"}, 7], api_key="-")


async def test_a_model_that_is_in_no_list_is_looked_for_once(
    model_settings: MakeSettings, openai_server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model(model_settings(llm_model="openai/in-no-list"))
    await model.warm()
    looked = _threads_of(monkeypatch, "litellm.utils", "_get_model_info_from_generalization")
    here = threading.get_ident()  # another test's threads may still be asking what LiteLLM knows of a model
    await model.complete(MESSAGES)
    first = looked.count(here)
    await model.complete(MESSAGES)
    await model.close()
    assert first
    assert looked.count(here) == first


async def test_nobody_is_told_how_long_a_request_took(
    model: Model, openai_server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    from litellm._service_logger import ServiceLogging

    told: list[object] = []

    async def tell(self: ServiceLogging, *args: Any, **options: Any) -> None:
        told.append(options)

    monkeypatch.setattr(ServiceLogging, "async_service_success_hook", tell)
    await model.complete(MESSAGES)
    await asyncio.sleep(0)
    assert told == []


async def _counted(model: Model) -> Counter[tuple[str, str]]:
    """How often each function is called here by one call of *model*, by the last part of its module and its name."""
    await model.complete(MESSAGES)
    found: Counter[tuple[str, str]] = Counter()

    def see(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            found[frame.f_globals.get("__name__", "").rpartition(".")[2], frame.f_code.co_name] += 1

    sys.setprofile(see)
    try:
        await model.complete(MESSAGES)
    finally:
        sys.setprofile(None)
    return found


async def test_what_is_the_same_for_each_request_is_not_worked_out_for_each(
    model: Model, openai_server: FakeOpenAI
) -> None:
    calls = await _counted(model)
    assert calls["exchange", "run"], "the call is counted here"
    assert calls["_models", "construct_type"] == 0, "an answer in words is handed on as it came"
    assert calls["cookiejar", "extract_cookies"] == 0, "no cookies are looked for where none came"
    assert calls["_urls", "copy_with"] == 0, "an address is put together once"
    assert calls["enum", "__get__"] < 100, "the names of all providers are not read by way of enum"


PLAIN = {"index": 0, "message": {"role": "assistant", "content": "Hi."}, "finish_reason": "stop"}
TOOL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ANSWERS: dict[str, tuple[dict[str, Any], bool]] = {
    "words": ({"id": "x", "created": 1, "model": "m", "choices": [PLAIN], "usage": {"prompt_tokens": 1}}, True),
    "more than OpenAI says": ({"choices": [PLAIN | {"stop_reason": 7}], "provider": "x", "usage": None}, True),
    "less than OpenAI says": ({"choices": [{"message": {"content": "Hi."}}]}, True),
    "nothing": ({"choices": []}, True),
    "no choices": ({"error": {"message": "busy"}}, False),
    "a choice that is none": ({"choices": ["Hi."]}, False),
    "a tool": ({"choices": [PLAIN | {"message": {"role": "assistant", "tool_calls": [TOOL]}}]}, False),
    "likelihoods": ({"choices": [PLAIN | {"logprobs": {"content": []}}]}, False),
    "usage in parts": ({"choices": [PLAIN], "usage": {"prompt_tokens_details": {"cached_tokens": 1, "new": 2}}}, True),
    "usage in parts of parts": ({"choices": [PLAIN], "usage": {"prompt_tokens_details": {"by": {"day": 1}}}}, False),
    "usage in words": ({"choices": [PLAIN], "usage": "many"}, False),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_that_is_handed_on_as_it_came_has_the_keys_that_the_clients_object_has(name: str) -> None:
    load_litellm()
    from openai import AsyncOpenAI
    from openai._models import construct_type
    from openai.types.chat import ChatCompletion

    data, as_it_came = ANSWERS[name]
    client: Any = AsyncOpenAI(api_key="-")
    found = client._process_response_data(data=data, cast_to=ChatCompletion, response=None)
    if as_it_came:
        made: Any = construct_type(type_=ChatCompletion, value=data)
        assert found.model_dump() == made.model_dump()
    assert isinstance(found, ChatCompletion) is not as_it_came


def test_cookies_that_came_with_an_answer_are_kept() -> None:
    load_litellm()
    import httpx

    jar = httpx.Cookies()
    request = httpx.Request("POST", "https://models.example/v1")
    jar.extract_cookies(httpx.Response(200, headers={"Set-Cookie": "who=me"}, request=request))
    assert dict(jar) == {"who": "me"}


@pytest.mark.parametrize("on_delta", [None, _ignore])
async def test_an_answer_that_is_read_is_freed_at_once(
    model: Model, openai_server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch, on_delta: Any
) -> None:
    import httpx

    seen: list[weakref.ref[Any]] = []
    begin = httpx.Response.__init__

    def begun(self: httpx.Response, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        seen.append(weakref.ref(self))

    monkeypatch.setattr(httpx.Response, "__init__", begun)
    gc.disable()
    try:
        await model.complete(MESSAGES, on_delta=on_delta)
        await asyncio.sleep(0)
        assert [one() for one in seen] == [None]
    finally:
        gc.enable()


async def test_an_answer_may_be_closed_twice(openai_server: FakeOpenAI) -> None:
    load_litellm()
    import httpx

    async with httpx.AsyncClient() as client:
        answer = await client.get(openai_server.base_url)
        stream: Any = answer.stream
        took = answer.elapsed
        await stream.aclose()
        assert answer.elapsed == took


def test_requests_go_to_the_address_of_their_own_provider() -> None:
    load_litellm()
    from openai import AsyncOpenAI

    clients: list[Any] = [AsyncOpenAI(api_key="-", base_url=f"https://{name}.example/v1") for name in "aba"]
    found = [str(client._prepare_url("/chat/completions")) for client in clients]
    assert found == [f"https://{name}.example/v1/chat/completions" for name in "aba"]
    clients[0].base_url = "https://c.example/v2"
    assert str(clients[0]._prepare_url("/chat/completions")) == "https://c.example/v2/chat/completions"
    assert str(clients[0]._prepare_url("/chat/other")) == "https://c.example/v2/chat/other"


def test_providers_are_known_by_their_names_as_ever() -> None:
    load_litellm()
    from litellm.types.utils import LlmProviders

    main: Any = importlib.import_module("litellm.main")
    listed = main.LlmProviders
    assert list(listed) == list(LlmProviders)
    assert [one.value for one in LlmProviders] == [one._value_ for one in LlmProviders]
    assert listed("openai") is LlmProviders.OPENAI
    assert isinstance(LlmProviders.OPENAI, listed)
    with pytest.raises(ValueError, match="nobody"):
        listed("nobody")
