"""The guided setup, as a person walks through it."""

from __future__ import annotations

import asyncio
import os
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from runtime.cli import providers, setup
from runtime.cli.main import cli
from tests.emulators.openai import FakeOpenAI
from tests.emulators.telegram import TelegramEmulator


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, data_dir: Path, tmp_path: Path) -> None:
    """No model server on this machine, and no settings but the data folder."""
    for name in list(os.environ):
        if name.startswith("AGENT_RUNTIME_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AGENT_RUNTIME_DATA_DIR", str(data_dir))
    monkeypatch.chdir(tmp_path)

    async def nothing() -> list[providers.LocalServer]:
        return []

    monkeypatch.setattr(setup, "find_local_servers", nothing)


async def walk(*answers: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, cli, ["setup"], input="\n".join(answers) + "\n")


COMPATIBLE = str(len(providers.PROVIDERS) + 1)


async def test_a_person_whose_key_is_refused_is_told_why_and_asked_again(
    openai_server: FakeOpenAI, tmp_path: Path
) -> None:
    openai_server.key = "right"
    wrong = (COMPATIBLE, openai_server.base_url, "fake", "wrong", "n")
    done = await walk(*wrong, COMPATIBLE, openai_server.base_url, "fake", "right", "n")
    assert done.exit_code == 0, done.output
    assert "check the key" in done.output or "does not accept the key" in done.output
    assert "answered in" in done.output
    assert "right" not in done.output
    written = tomllib.loads((tmp_path / "agent-runtime.toml").read_text())
    assert written["llm_api_key"] == "right"


async def test_a_second_setup_keeps_what_the_first_did_not_ask_for(openai_server: FakeOpenAI, tmp_path: Path) -> None:
    file = tmp_path / "agent-runtime.toml"
    file.write_text('http_port = 9000\nllm_api_key = "old"\n[routes]\n"telegram:-1" = "acme"\n')
    done = await walk(COMPATIBLE, openai_server.base_url, "fake", "", "n")
    assert done.exit_code == 0, done.output
    assert tomllib.loads(file.read_text()) == {
        "http_port": 9000,
        "llm_api_base": openai_server.base_url,
        "llm_model": "openai/fake",
        "routes": {"telegram:-1": "acme"},
    }
    assert len(list(tmp_path.glob("agent-runtime.toml.*.bak"))) == 1


async def test_leaving_in_the_middle_changes_nothing(tmp_path: Path) -> None:
    done = await walk(COMPATIBLE)
    assert done.exit_code != 0
    assert list(tmp_path.iterdir()) == []


async def test_a_telegram_token_is_checked_by_asking_for_its_name() -> None:
    async with TelegramEmulator(username="harbour_bot") as telegram:
        assert await providers.telegram_name(telegram.base_url, telegram.token, 5) == "harbour_bot"
        for wrong in ("1:" + "B" * 35, "no token/../at all", ""):
            with pytest.raises(ValueError, match="BotFather") as refused:
                await providers.telegram_name(telegram.base_url, wrong, 5)
            assert not wrong or wrong not in str(refused.value)
    with pytest.raises(ValueError, match="cannot be asked"):
        await providers.telegram_name(telegram.base_url, telegram.token, 5)


@pytest.mark.parametrize(
    ("provider", "model", "expected"),
    [
        ("anthropic", "claude-x", "anthropic/claude-x"),
        ("openrouter", "anthropic/claude-x", "openrouter/anthropic/claude-x"),
        ("openai", "openai/gpt-x", "openai/gpt-x"),
        ("ollama", "qwen3:4b", "ollama_chat/qwen3:4b"),
        ("compatible", "org/model", "openai/org/model"),
    ],
)
def test_a_model_gets_the_prefix_of_its_provider_once(provider: str, model: str, expected: str) -> None:
    assert providers.full_model_id(provider, model) == expected
