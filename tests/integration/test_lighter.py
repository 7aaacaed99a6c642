"""What is left out of each call of LiteLLM. Should one of these fail with a new LiteLLM: `runtime.lighter`; the calls
cost more and are right all the same."""

from __future__ import annotations

import asyncio
import threading
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
    import importlib

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
