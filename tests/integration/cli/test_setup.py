"""The guided setup, as a person walks through it."""

from __future__ import annotations

import asyncio
import os
import stat
import tomllib
from pathlib import Path

import pytest
from aiohttp import web
from click.testing import CliRunner, Result

from config.load import ConfigurationError
from runtime.cli.commands import setup as cli_setup
from runtime.cli.commands.setup import find_local_servers
from runtime.cli.main import cli
from tests.emulators.discord import DiscordEmulator
from tests.emulators.loopback import serving
from tests.emulators.openai import FakeOpenAI
from tests.emulators.slack import SlackEmulator
from tests.emulators.telegram import TelegramEmulator
from tests.integration.cli.conftest import Command


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, data_dir: Path, tmp_path: Path) -> None:
    """No model server on this machine, and no settings but the data folder."""
    for name in list(os.environ):
        if name.startswith("AGENT_RUNTIME_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AGENT_RUNTIME_DATA_DIR", str(data_dir))
    monkeypatch.chdir(tmp_path)

    async def nothing() -> list[cli_setup.LocalServer]:
        return []

    monkeypatch.setattr(cli_setup, "find_local_servers", nothing)


async def walk(*answers: str, options: tuple[str, ...] = ()) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, cli, ["setup", *options], input="\n".join(answers) + "\n")


COMPATIBLE = str(len(cli_setup.PROVIDERS) + 1)
NO_PLATFORM = ("n",) * len(cli_setup.GUIDES)


async def test_a_person_whose_key_is_refused_is_told_why_and_asked_again(
    openai_server: FakeOpenAI, tmp_path: Path
) -> None:
    openai_server.key = "right"
    wrong = (COMPATIBLE, openai_server.base_url, "wrong", "fake", "n")
    done = await walk(*wrong, COMPATIBLE, openai_server.base_url, "right", "fake", *NO_PLATFORM)
    assert done.exit_code == 0, done.output
    assert "check the key" in done.output or "does not accept the key" in done.output
    assert "answered in" in done.output
    assert "with a chat page and an HTTP interface (no platform is connected)" in done.output
    assert "right" not in done.output
    written = tomllib.loads((tmp_path / "agent-runtime.toml").read_text())
    assert written["llm_api_key"] == "right"


async def test_a_second_setup_keeps_what_the_first_did_not_ask_for(openai_server: FakeOpenAI, tmp_path: Path) -> None:
    file = tmp_path / "agent-runtime.toml"
    file.write_text('http_port = 9000\nllm_api_key = "old"\n[routes]\n"telegram:-1" = "acme"\n')
    done = await walk(COMPATIBLE, openai_server.base_url, "", "fake", *NO_PLATFORM)
    assert done.exit_code == 0, done.output
    assert tomllib.loads(file.read_text()) == {
        "http_port": 9000,
        "llm_api_base": openai_server.base_url,
        "llm_model": "openai/fake",
        "routes": {"telegram:-1": "acme"},
    }
    assert len(list(tmp_path.glob("agent-runtime.toml.*.bak"))) == 1


async def test_a_setup_corrects_what_it_sets_and_names_what_it_cannot_correct(tmp_path: Path) -> None:
    file = tmp_path / "agent-runtime.toml"
    file.write_text('llm_api_base = "http://host:notaport"\n')
    assert (await walk(options=("--yes", *BUNDLED))).exit_code == 0
    file.write_text('llm_api_base = "http://host:notaport"\nhttp_port = "eighty"\n')
    done = await walk(options=("--yes", *BUNDLED))
    assert isinstance(done.exception, ConfigurationError)
    assert len(done.exception.problems) == 2
    assert "eighty" in file.read_text()


async def test_leaving_in_the_middle_changes_nothing(tmp_path: Path) -> None:
    done = await walk(COMPATIBLE)
    assert done.exit_code != 0
    assert list(tmp_path.iterdir()) == []


BUNDLED = ("--provider", "bundled", "--no-test")


def addresses(monkeypatch: pytest.MonkeyPatch, **bases: str) -> None:
    """The platforms are the emulators."""
    for name, base in bases.items():
        monkeypatch.setenv(f"AGENT_RUNTIME_{name.upper()}_API_BASE", base)


def written(folder: Path) -> dict[str, object]:
    return tomllib.loads((folder / "agent-runtime.toml").read_text())


async def test_all_platforms_are_connected_step_by_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each is asked who the bot is; secrets are not shown, and written to the file alone."""
    async with (
        TelegramEmulator(username="harbour_bot") as telegram,
        SlackEmulator() as slack,
        DiscordEmulator() as discord,
    ):
        addresses(monkeypatch, telegram=telegram.base_url, slack=slack.base_url, discord=discord.base_url)
        tokens = ("y", telegram.token, "y", slack.token, "1", slack.app_token, "y", discord.token)
        done = await walk(*tokens, "Not One", "crew", options=BUNDLED)
    assert done.exit_code == 0, done.output
    for said in ("the bot is @harbour_bot", f"the bot is @{slack.name}", "the bot is @helper", "slack-manifest.yaml"):
        assert said in done.output
    assert "https://discord.com/oauth2/authorize?client_id=124" in done.output
    assert "Existing: default, sample." in done.output
    assert "`agent-runtime serve` runs the bot for the platforms" in done.output
    assert "'Not One' is not a workspace id" in done.output
    assert not any(secret in done.output for secret in (telegram.token, slack.token, slack.app_token, discord.token))
    assert written(tmp_path) == {
        "telegram_bot_token": telegram.token,
        "slack_bot_token": slack.token,
        "slack_app_token": slack.app_token,
        "discord_bot_token": discord.token,
        "default_workspace": "crew",
    }


async def test_what_a_platform_refuses_is_asked_again_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A token of another kind, one that is void, and an intent that is off."""
    async with SlackEmulator() as slack, DiscordEmulator() as discord:
        addresses(monkeypatch, slack=slack.base_url, discord=discord.base_url)
        discord.allows_message_content = False
        another = ("y", slack.app_token, "1", slack.app_token)
        void = ("y", "xoxb-void", "1", slack.app_token)
        right = ("y", slack.token, "1", slack.app_token)
        kept = ("y", discord.token, "y")
        done = await walk("n", *another, *void, *right, *kept, "", options=BUNDLED)
    assert done.exit_code == 0, done.output
    assert "xoxb-" in done.output
    assert "does not accept the bot token (invalid_auth)" in done.output
    assert "switch the Message Content Intent on" in done.output
    assert written(tmp_path)["slack_bot_token"] == slack.token
    assert written(tmp_path)["discord_bot_token"] == discord.token


async def test_slack_by_http_needs_a_signing_secret_and_no_app_token(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The app token of an earlier setup goes: with it events would go on coming by Socket Mode."""
    async with SlackEmulator() as slack:
        addresses(monkeypatch, slack=slack.base_url)
        await walk("n", "y", slack.token, "1", slack.app_token, "n", "", options=BUNDLED)
        assert "slack_app_token" in written(tmp_path)
        done = await walk("n", "y", slack.token, "2", slack.signing_secret, "n", "", options=BUNDLED)
    assert done.exit_code == 0, done.output
    assert "Connect another one instead" in done.output
    assert written(tmp_path) == {"slack_bot_token": slack.token, "slack_signing_secret": slack.signing_secret}


async def test_without_questions_tokens_come_from_the_environment_and_have_to_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where one does not, nothing is written."""
    options = (
        "--yes",
        *BUNDLED,
        "--slack-token-env",
        "BOT",
        "--slack-app-token-env",
        "APP",
        "--discord-token-env",
        "D",
    )
    async with SlackEmulator() as slack, DiscordEmulator() as discord:
        addresses(monkeypatch, slack=slack.base_url, discord=discord.base_url)
        for name, value in (("BOT", slack.token), ("APP", slack.app_token), ("D", "wrong")):
            monkeypatch.setenv(name, value)
        refused = await walk(options=options)
        assert refused.exit_code == 1
        assert "Discord is not connected; nothing was written" in refused.output
        assert list(tmp_path.iterdir()) == []
        monkeypatch.setenv("D", discord.token)
        done = await walk(options=options)
        assert done.exit_code == 0, done.output
        lonely = await walk(options=("--yes", *BUNDLED, "--slack-app-token-env", "APP", "--output", "other.toml"))
        assert lonely.exit_code == 2
        assert "--slack-token-env" in lonely.output
    assert set(written(tmp_path)) == {"slack_bot_token", "slack_app_token", "discord_bot_token"}


async def test_the_models_that_a_server_lists_are_offered(openai_server: FakeOpenAI, tmp_path: Path) -> None:
    """By number, also where the address was typed without the /v1 that clients need."""
    address = openai_server.base_url.removesuffix("/v1")
    done = await walk(COMPATIBLE, address, "", "1", *NO_PLATFORM)
    assert "   1  fake" in done.output
    assert done.exit_code == 0, done.output
    chosen = written(tmp_path)
    assert (chosen["llm_model"], chosen["llm_api_base"]) == ("openai/fake", openai_server.base_url)


async def test_a_server_that_lists_nothing_is_asked_for_by_name(tmp_path: Path) -> None:
    done = await walk(COMPATIBLE, "http://127.0.0.1:1/v1", "", "mine", "y", *NO_PLATFORM)
    assert "does not list its models" in done.output
    assert written(tmp_path)["llm_model"] == "openai/mine"


async def test_without_a_person_the_models_that_there_are_are_named(openai_server: FakeOpenAI) -> None:
    done = await walk(options=("--yes", "--provider", "compatible", "--api-base", openai_server.base_url))
    assert done.exit_code == 2
    assert "needs --model: fake" in done.output


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
    assert cli_setup.full_model_id(provider, model) == expected


async def test_setup_tries_the_model_and_writes_a_file_that_works(
    command: Command, openai_server: FakeOpenAI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "s3cret")
    openai_server.key = "s3cret"
    openai_server.will("Hello there.")
    line = ["setup", "--yes", "--provider", "compatible", "--model", "fake", "--api-base", openai_server.base_url]
    done = await command(*line, "--api-key-env", "MY_KEY")
    assert done.code == 0, done.err
    assert "Hello there." in done.out
    assert "s3cret" not in done.out + done.err
    assert stat.S_IMODE((tmp_path / "agent-runtime.toml").stat().st_mode) == 0o600
    assert written(tmp_path) == {
        "llm_model": "openai/fake",
        "llm_api_base": openai_server.base_url,
        "llm_api_key": "s3cret",
    }


async def test_setup_that_gets_no_answer_says_what_to_do_and_writes_nothing(
    command: Command, openai_server: FakeOpenAI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "wrong")
    openai_server.key = "s3cret"
    line = ["setup", "--yes", "--provider", "compatible", "--model", "fake", "--api-base", openai_server.base_url]
    done = await command(*line, "--api-key-env", "MY_KEY")
    assert done.code == 1
    assert "does not accept the key" in done.err
    assert not (tmp_path / "agent-runtime.toml").exists()
    assert (await command(*line, "--api-key-env", "MY_KEY", "--no-test")).code == 0


async def test_model_servers_on_this_machine_are_found_with_their_models() -> None:
    async def tags(_: web.Request) -> web.Response:
        return web.json_response({"models": [{"name": "qwen3:4b"}, {"name": "llama3.2"}]})

    app = web.Application()
    app.router.add_get("/api/tags", tags)
    async with serving(app) as here:
        found = await find_local_servers(here, "http://127.0.0.1:9")
        wrong = await find_local_servers("http://127.0.0.1:9", here)
    assert [(server.name, server.models) for server in found] == [("ollama", ("qwen3:4b", "llama3.2"))]
    assert wrong == []
