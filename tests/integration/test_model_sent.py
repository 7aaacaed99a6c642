"""Whoever asks the model is told when the request is on its way: until the answer there is time for other things."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import runtime.model
from runtime.loading import load_litellm
from runtime.model import Model, ModelUnavailable
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


@pytest.mark.parametrize("on_delta", [None, _ignore])
async def test_a_request_is_told_of_as_soon_as_it_is_sent(
    model: Model, openai_server: FakeOpenAI, on_delta: Any
) -> None:
    """Should this fail with a new LiteLLM: `runtime.loading` knows how it makes its sessions."""
    openai_server.will("hang")
    sent = asyncio.Event()
    asking = asyncio.create_task(model.complete(MESSAGES, on_delta=on_delta, on_sent=sent.set))
    await sent.wait()
    while not openai_server.requests:
        await asyncio.sleep(0.001)
    assert not asking.done()
    asking.cancel()
    await asyncio.wait({asking})


@pytest.mark.parametrize("on_delta", [None, _ignore])
async def test_it_is_told_once_also_where_it_is_sent_again(
    model_settings: MakeSettings, openai_server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch, on_delta: Any
) -> None:
    monkeypatch.setattr(runtime.model, "FIRST_BACKOFF_SECONDS", 0.001)
    openai_server.will("server_error")
    model, told = Model(model_settings(llm_max_attempts=2)), list[str]()
    completion = await model.complete(MESSAGES, on_delta=on_delta, on_sent=lambda: told.append("sent"))
    await model.close()
    assert (completion.attempts, told) == (2, ["sent"])


async def test_a_request_that_reaches_nobody_is_not_told_of(model_settings: MakeSettings) -> None:
    model, told = Model(model_settings(llm_api_base="http://127.0.0.1:9/v1", llm_max_attempts=1)), list[str]()
    with pytest.raises(ModelUnavailable):
        await model.complete(MESSAGES, on_sent=lambda: told.append("sent"))
    assert told == []


@pytest.mark.parametrize("on_delta", [None, _ignore])
async def test_where_the_client_does_not_tell_it_is_told_when_the_answer_begins(
    model: Model, monkeypatch: pytest.MonkeyPatch, on_delta: Any
) -> None:
    litellm, told = load_litellm(), list[str]()
    litellm.in_memory_llm_clients_cache.flush_cache()
    monkeypatch.setattr(litellm, "disable_aiohttp_transport", True)
    await model.complete(MESSAGES, on_delta=on_delta, on_sent=lambda: told.append("sent"))
    litellm.in_memory_llm_clients_cache.flush_cache()
    assert told == ["sent"]
