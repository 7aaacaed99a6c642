"""The commands against a runtime that runs already."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import structlog

from config.settings import Settings
from connectors.message import Author, ConversationKey, Fence, InboundMessage, Role
from runtime.cli.client import open_local
from runtime.process import ALL_PARTS, Runtime
from runtime.stores import SOCKET_NAME
from runtime.turns.batch import Batch, Envelope
from tests.emulators.openai import FakeOpenAI, in_background
from tests.integration.cli.conftest import Command, set_environment

pytestmark = pytest.mark.asyncio(loop_scope="module")
QUESTION = "What is our password policy?"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(provider: FakeOpenAI) -> AsyncIterator[Runtime]:
    """One runtime that answers on the socket of its data folder, as `serve` and `chat` do, for all tests."""
    with tempfile.TemporaryDirectory(prefix="ar-") as folder:
        settings = Settings.model_validate(
            {
                "data_dir": Path(folder),
                "llm_model": "openai/fake",
                "llm_api_base": provider.base_url,
                "llm_api_key": "key",
                "llm_timeout_seconds": 10.0,
                "records_extraction": False,
                "deep_embedding_model": "none",
            }
        )
        async with open_local(settings, ALL_PARTS, socket_name=SOCKET_NAME) as (runtime, _):
            await runtime.knowledge.opened()
            async with asyncio.TaskGroup() as group:
                connectors = group.create_task(runtime.supervisor.run(runtime.accept))
                yield runtime
                connectors.cancel()
    structlog.reset_defaults()
    logging.captureWarnings(False)


@pytest.fixture
def model(provider: FakeOpenAI) -> Iterator[FakeOpenAI]:
    """The model, which forgets what a test told it to do."""
    yield provider
    provider.forget_orders()


@pytest.fixture
def command(
    running: Runtime, model: FakeOpenAI, run_command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Command:
    """Runs a command line that finds the runtime."""
    set_environment(monkeypatch, running.settings.data_dir, model)
    monkeypatch.chdir(tmp_path)
    return run_command


async def within(command: Command, workspace: str) -> Command:
    """*command* for a new workspace."""
    await command("workspace", "create", workspace)

    async def run(*line: str) -> Any:
        return await command(*line, "-w", workspace)

    return run


def asked(model: FakeOpenAI) -> list[dict[str, Any]]:
    """What the model was asked, but for what it does in the background."""
    return [body for body in model.requests if not in_background(body)]


async def test_a_turn_is_made_explained_replayed_and_counted(command: Command, model: FakeOpenAI) -> None:
    model.will("Twelve characters at least.")
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
    assert replayed.json["messages"] == asked(model)[-1]["messages"]
    assert "identical" in (await command("replay")).out

    compared = await command("diff", turn["turn_id"], "last", "--json")
    assert compared.code == 0
    assert compared.json["identical"] is True
    assert "byte for byte" in (await command("diff", "last", "last")).out
    assert (await command("diff", "last", "t0")).code == 1

    used = (await command("usage", "--json")).json["workspaces"]
    assert {row["workspace"]: row["prompt"] > 0 for row in used}["sample"]
    assert "openai/fake" in (await command("usage")).out

    events = (await command("metrics", "tail", "--strategy", "qmd", "--json")).lines
    assert {event["event"] for event in events} == {"grounding.assembled", "turn.answered"}
    assert "turn.answered" in (await command("metrics", "tail")).out


async def test_a_workspaces_budget_is_shown_and_set(command: Command) -> None:
    await command("workspace", "create", "thrifty")
    set_now = await command(
        "usage", "-w", "thrifty", "--set", "workspace_tokens_per_day=5000", "--set", "user_usd_per_month=2.5", "--json"
    )
    assert set_now.code == 0, set_now.err
    assert set_now.json["workspaces"][0]["budget"]["workspace_tokens_per_day"]["left"] == 5000
    assert (await command("usage", "-w", "thrifty", "--set", "workspace_tokens_per_day=unlimited")).code == 0
    shown = (await command("usage", "-w", "thrifty", "--set", "workspace_tokens_per_day=5000")).out
    assert "workspace_tokens_per_day  5,000" in shown
    assert "user_usd_per_month" in shown
    hers = (await command("usage", "-w", "thrifty", "--user", "http:lena")).out
    assert hers.split()[-4:] == ["user_usd_per_month", "$2.50", "$0.00", "$2.50"]
    cleared = await command("usage", "-w", "thrifty", "--set", "user_usd_per_month=default", "--json")
    assert cleared.json["workspaces"][0]["budget"]["user_usd_per_month"] == {"limit": None}


async def test_the_same_chat_streams_lines_that_are_piped_in(command: Command) -> None:
    said = await command("chat", stdin="hello\nthanks\n")
    assert said.code == 0
    assert said.out.index("You said: hello") < said.out.index("You said: thanks")
    assert "none · small_talk" in said.out


async def test_a_model_that_fails_is_told_in_the_chat_and_the_process_lives(
    command: Command, model: FakeOpenAI
) -> None:
    model.key = "another"
    said = await command("chat", "-m", "hello")
    assert "no valid access to the language model" in said.out
    assert said.code == 1
    model.key = None
    again = await command("chat", "-m", "hello")
    assert "You said: hello" in again.out
    assert again.code == 0


async def test_commands_of_the_chat_work_in_the_terminal_too(command: Command) -> None:
    told = await command("chat", "-m", "/help")
    assert told.code == 0
    assert "/prompt" in told.out
    assert "There is no command" in (await command("chat", "-m", "/frobnicate", "--json")).json["text"]


async def test_workspaces_are_made_listed_routed_and_deleted(command: Command) -> None:
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
    assert "acme" not in names
    assert {"default", "sample"} <= set(names)


async def test_an_unknown_workspace_ends_with_1_and_the_command_that_creates_it(command: Command) -> None:
    for line in (["search", "x"], ["index"], ["ground", "x"], ["chat", "-m", "x"], ["prompt", "list"]):
        done = await command(*line, "-w", "nosuch")
        assert done.code == 1, line
        assert "agent-runtime workspace create nosuch" in done.err, line
        assert "Traceback" not in done.err, line


async def test_documents_from_elsewhere_are_copied_in_and_found(
    command: Command, tmp_path: Path, running: Runtime
) -> None:
    book = tmp_path / "handbook"
    book.mkdir()
    (book / "kayak.md").write_text("# Kayaks\n\nThe kayak lies in shed nine.\n")
    await command("workspace", "create", "boats")
    done = await command("index", "-w", "boats", str(book), "--json")
    assert done.code == 0, done.err
    assert (running.settings.data_dir / "workspaces" / "boats" / "docs" / "handbook" / "kayak.md").is_file()
    found = (await command("search", "where lies the kayak", "-w", "boats", "--json")).json
    assert found["results"][0]["source"] == "handbook/kayak.md"
    shown = await command("search", "kayak shed", "-w", "boats", "--explain")
    assert "1. handbook/kayak.md › Kayaks" in shown.out
    assert "bm25   rank 1 " in shown.out
    assert "dense  rank 1 " in shown.out
    assert "fused  rank 1 " in shown.out


async def test_a_dry_run_shows_the_prompt_and_asks_no_model(command: Command, model: FakeOpenAI) -> None:
    before = len(asked(model))
    built = (await command("ground", QUESTION, "--json")).json
    assert [message["role"] for message in built["messages"]] == ["system", "user"]
    assert built["strategy"] == "qmd"
    assert "── user" in (await command("ground", QUESTION)).out
    assert len(asked(model)) == before


async def test_a_directive_is_set_compared_and_rolled_back(command: Command, tmp_path: Path) -> None:
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


async def test_directives_are_named_by_the_same_words_as_in_a_chat(command: Command) -> None:
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


LONG = "Please, whoever asks you, always answer in a friendly way, and write to help@acme.com within 3 days at most."
SHORT = "Always be friendly. Write to help@acme.com within 3 days."


async def test_a_directive_is_made_shorter_shown_and_published_only_when_a_person_says_so(
    command: Command, model: FakeOpenAI
) -> None:
    await command("prompt", "set", LONG, "--kind", "soul")
    model.will("Be friendly.", SHORT)
    shown = await command("prompt", "condense", "--kind", "soul")
    assert shown.code == 0
    assert f"-{LONG}" in shown.out
    assert f"+{SHORT}" in shown.out
    assert "less, in every prompt" in shown.out
    assert "nothing is published" in shown.err
    assert "it lost the address 'help@acme.com'" in asked(model)[-1]["messages"][-1]["content"]
    assert (await command("prompt", "show", "--kind", "soul")).out == f"{LONG}\n"
    model.will("Be friendly.", "Write to help@acme.com.")
    rejected = await command("prompt", "condense", "--kind", "soul", "--yes")
    assert rejected.code == 1
    assert "it lost the number '3'" in rejected.err
    assert (await command("prompt", "show", "--kind", "soul")).out == f"{LONG}\n"
    model.will(SHORT)
    made = (await command("prompt", "condense", "--kind", "soul", "--yes", "--json")).json
    assert (made["published"], made["tokens_after"] < made["tokens_before"]) == (made["version"] + 1, True)
    assert (await command("prompt", "show", "--kind", "soul")).out == f"{SHORT}\n"
    refused = await command("prompt", "condense", "--kind", "cues")
    assert (refused.code, "is a table" in refused.err) == (1, True)


async def test_an_edited_directive_is_published_unless_somebody_was_faster(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
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


async def test_cues_are_published_like_directives_and_hold_at_once(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "CUES.toml"
    file.write_text('[add]\ndocuments = ["netlist"]')
    await command("workspace", "create", "circuits")
    here = ("-w", "circuits")
    question = ("ground", "is it in the netlist?", *here, "--json")
    before = json.loads((await command(*question)).out)
    assert (await command("prompt", "set", "--kind", "cues", *here, "--file", str(file))).code == 0
    after = json.loads((await command(*question)).out)

    assert (before["reason"], after["reason"]) == ("no_retrieval_cue", "workspace_retrieval_cue")
    assert "netlist" in json.loads((await command("prompt", "cues", *here, "--json")).out)["cues"]["documents"]
    assert "netlist" in (await command("prompt", "cues", *here)).out
    file.write_text('[add]\ndocumentz = ["x"]')
    refused = await command("prompt", "set", "--kind", "cues", *here, "--file", str(file))
    assert refused.code == 1
    assert "documentz is no kind of cue" in refused.err


async def test_people_get_roles_and_programs_get_tokens(command: Command) -> None:
    assert (await command("access", "role", "telegram:7", "admin")).code == 0
    token = (await command("access", "token", "--role", "viewer", "--json")).json["token"]
    assert len(token) > 20
    found = (await command("access", "list", "--json")).json
    assert [(p["user"], p["role"]) for p in found["people"]] == [("telegram:7", "admin")]
    assert "telegram:7" in (await command("access", "list")).out
    assert (await command("access", "revoke", found["tokens"][0]["id"])).code == 0
    assert (await command("access", "list", "--json")).json["tokens"] == []
    assert (await command("access", "token", "--owner", "telegram:7")).code == 0
    (owned,) = (await command("access", "list", "--json")).json["tokens"]
    assert owned["owner"] == "telegram:7"
    assert "belongs to" in (await command("access", "list")).out
    taken = await command("access", "role", "telegram:7", "none")
    assert (taken.code, f"Revoked with it: {owned['id']}" in taken.out) == (0, True)
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


async def test_doctor_asks_the_running_process(command: Command) -> None:
    await command("index")
    done = await command("doctor", "--json")
    assert done.code == 0, done.out
    assert {"settings", "runtime", "redis", "qdrant", "model"} <= {check["name"] for check in done.json["checks"]}


async def test_a_command_that_has_another_admin_token_is_told_so(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_RUNTIME_ADMIN_TOKEN", "some-other-token")
    done = await command("usage")
    assert done.code == 1
    assert "AGENT_RUNTIME_ADMIN_TOKEN" in done.err


async def test_a_directive_file_that_was_not_published_is_shown(running: Runtime, command: Command) -> None:
    file = running.settings.data_dir / "workspaces" / "sample" / "context" / "SOUL.md"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"\xff\xfe")
    await running.publisher.import_all()
    listed = (await command("prompt", "list")).out
    assert "NOT PUBLISHED  workspaces/sample/context/SOUL.md: the file is not UTF-8 text" in listed
    assert "→ correct or remove it" in listed
    assert (await command("prompt", "list", "--json")).json["refused"][0]["why"] == "the file is not UTF-8 text"
    assert "FAILED  directive workspaces/sample/context/SOUL.md: not published" in (await command("doctor")).out
    file.unlink()
    await running.publisher.import_all()
    assert "NOT PUBLISHED" not in (await command("prompt", "list")).out


async def give_up(running: Runtime, workspace: str, *texts: str) -> None:
    """Turns of *workspace* that failed for good."""
    for number, text in enumerate(texts):
        message = InboundMessage("http", "default", f"m{number}", Author("lena"), text, direct=True)
        envelope = Envelope(message, Role.MEMBER, 0.0, address="http")
        key = ConversationKey(workspace, "http", "default")
        batch = Batch(key, f"t{number}", 3, (envelope,), Fence("none", "none"))
        await running.dead_letters.add(batch, "interrupted")


async def test_turns_that_failed_for_good_are_listed_dropped_and_tried_again(
    running: Runtime, command: Command
) -> None:
    """In all workspaces: nobody has to know in which one a turn failed."""
    assert (await command("dead-letters", "list")).out == "No turn has failed for good.\n"
    await command("workspace", "create", "failing")
    await give_up(running, "failing", QUESTION, "Tell me a joke", "And another one")
    listed = await command("dead-letters", "list")
    assert listed.out.splitlines()[0].split()[:2] == ["turn", "given"]
    assert [line.split()[0] for line in listed.out.splitlines()[1:]] == ["t0", "t1", "t2"]
    assert QUESTION in listed.out
    assert "failing" in listed.out
    shown = (await command("dead-letters", "list", "--json")).lines
    assert [(one["turn_id"], one["workspace_id"], one["context_id"], one["attempts"]) for one in shown] == [
        (f"t{number}", "failing", "http:default", 3) for number in range(3)
    ]
    assert "FAILED  dead letters failing" in (await command("doctor")).out

    assert (await command("dead-letters", "list", "--workspace", "sample", "--json")).out == ""
    assert (await command("dead-letters", "drop", "t1", "--workspace", "sample")).code == 1
    assert (await command("dead-letters", "drop", "t1")).out == "1 turn dropped\n"
    again = await command("dead-letters", "drop", "t1")
    assert (again.code, again.out) == (1, "Nothing was done.\n")
    assert "'t1'" in again.err
    nowhere = await command("dead-letters", "list", "--workspace", "nowhere")
    assert (nowhere.code, "nowhere" in nowhere.err) == (1, True)

    retried = await command("dead-letters", "retry", "--all")
    assert (retried.code, retried.out) == (0, "2 turns put back into the queue\n")
    assert (await command("dead-letters", "list", "--json")).out == ""
    key = ConversationKey("failing", "http", "default")
    said: list[str] = []
    while "And another one" not in said:
        await asyncio.sleep(0.01)
        said = [entry.text for entry in await running.transcript.newest(key, 10)]
    assert [text for text in said if not text.startswith("You said")] == [QUESTION, "And another one"]


async def test_material_is_added_listed_and_removed(command: Command, tmp_path: Path) -> None:
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


async def test_logs_are_restored_and_the_index_is_built_anew(running: Runtime, command: Command) -> None:
    """What cannot be read is named, of logs and of documents."""
    await command("workspace", "create", "logbook")
    folder = running.settings.data_dir / "workspaces" / "logbook"
    (folder / "docs" / "boat.md").write_text("# Boat\n\nIt is blue.\n")
    await command("chat", "-w", "logbook", "-m", "hello there", "--json")
    restore = ("logs", "restore", "-w", "logbook")
    assert (await command(*restore, "--dry-run")).out.startswith("0 turns (0 messages) of 0 conversations")
    done = (await command(*restore, "--json")).json
    assert (done["turns"], done["refused"]) == (0, [])
    again = (await command("reindex", "-w", "logbook", "--json")).json
    assert (again["documents"], again["skipped"]) == (1, [])
    assert "indexed anew" in (await command("reindex", "-w", "logbook")).out
    assert (await command("reindex", "-w", "nowhere")).code == 1

    (folder / "logs" / "chats" / "console").mkdir(parents=True, exist_ok=True)
    (folder / "logs" / "chats" / "console" / "copied.md").write_text("# Chat Log\n")
    unread = await command(*restore)
    assert (unread.code, "console/copied.md" in unread.err) == (1, True)
    (folder / "docs" / "scan.md").write_bytes(b"\0\1")
    assert "skipped scan.md: binary" in (await command("index", "-w", "logbook")).err


async def test_a_context_document_is_put_shown_and_has_its_versions(command: Command, tmp_path: Path) -> None:
    command = await within(command, "papers")
    assert (await command("context-doc", "show")).code == 1
    text = "# Progress\r\n- sailed\r\n\n# Facts\n- boat: blue\n"
    file = tmp_path / "mine.md"
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


async def test_records_are_kept_and_people_say_what_they_think_of_them(command: Command) -> None:
    command = await within(command, "memories")
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


async def test_the_global_context_is_shown_and_edited(command: Command) -> None:
    command = await within(command, "lines")
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


async def test_the_lines_of_places_are_found_shown_and_shared(command: Command) -> None:
    command = await within(command, "places")
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


async def test_a_reply_is_marked_listed_and_its_marks_removed(command: Command, model: FakeOpenAI) -> None:
    assert "No answer is marked" in (await command("karma", "list")).out
    model.will("Twelve characters at least.")
    turn = (await command("chat", "-m", QUESTION, "--json")).json["turn_id"]

    assert "marked good (good: 1, bad: 0)" in (await command("karma", "mark", "last", "good")).out
    assert QUESTION in (await command("karma", "list")).out
    assert (await command("karma", "list", "--json")).lines[0]["trace"]["answered"] == "Twelve characters at least."
    assert "good by 1, bad by 0" in (await command("explain", turn)).out
    assert (await command("karma", "mark", turn, "none", "--json")).json["mark"] == "none"
    assert (await command("karma", "mark", turn, "bad")).code == 0
    assert (await command("karma", "remove", turn)).code == 0
    assert (await command("karma", "remove", turn)).code == 1
