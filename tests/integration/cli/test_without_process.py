"""The commands where nothing runs: they open the runtime themselves, or say why they cannot."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from config.settings import Settings
from runtime.cli.client import connect
from runtime.embedded import StoreInUse, embedded_redis, socket_path
from runtime.llm import load_litellm
from runtime.stores import SOCKET_NAME
from tests.emulators.openai import FakeOpenAI
from tests.emulators.slack import SlackEmulator
from tests.emulators.telegram import TelegramEmulator
from tests.integration.cli.conftest import Command

SAMPLE_SET = Path(__file__).parents[3] / "runtime" / "sample"


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
    assert "/forget last" in (await command("chat", "-m", "!forget")).out


async def test_a_question_that_no_model_translates_says_what_to_set(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In words, where the documents are in another language."""
    monkeypatch.setenv("AGENT_RUNTIME_LLM_MODEL", "bundled/extractive")
    told = (await command("search", "Wie viele Urlaubstage haben wir?")).err
    assert "another language" in told
    assert "set AGENT_RUNTIME_LLM_MODEL" in told
    assert (await command("search", "How many vacation days do we have?")).err == ""


async def test_the_multilingual_model_finds_them_without(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_RUNTIME_LLM_MODEL", "bundled/extractive")
    monkeypatch.setenv("AGENT_RUNTIME_EMBEDDING_MODEL", "bundled/multilingual")
    found = await command("search", "Wie viele Urlaubstage haben wir?")
    assert found.err == ""
    assert "1. people/holidays.md" in found.out


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


@pytest.mark.parametrize("line", [("retry",), ("drop",), ("retry", "t1", "--all")])
async def test_which_turn_is_meant_has_to_be_said(command: Command, line: tuple[str, ...]) -> None:
    done = await command("dead-letters", *line)
    assert done.code == 2
    assert "--all" in done.err


@pytest.mark.parametrize("place", ["a-file", "a-file/below"])
async def test_a_data_folder_that_cannot_be_used_is_named_with_its_setting(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str
) -> None:
    (tmp_path / "a-file").touch()
    monkeypatch.setenv("AGENT_RUNTIME_DATA_DIR", str(tmp_path / place))
    for arguments in (["usage"], ["serve"]):
        done = await command(*arguments)
        assert done.code == 1
        assert f"AGENT_RUNTIME_DATA_DIR={tmp_path / place}: " in done.err
        assert done.err.count("\n") == 1


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


async def test_stores_that_another_process_holds_are_a_clear_error(data_dir: Path) -> None:
    async with embedded_redis(data_dir):
        with pytest.raises(StoreInUse, match="in use by process"):
            async with connect(Settings(data_dir=data_dir), in_use_seconds=0.0):
                pass


async def test_a_role_that_needs_servers_starts_nothing_without_them(
    command: Command, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_RUNTIME_DATA_DIR", str(data_dir / "new"))
    refused = await command("serve", "--role", "worker")
    assert refused.code == 2
    assert "QDRANT_URL" in refused.err
    assert not (data_dir / "new").exists()


@pytest.mark.parametrize(
    ("wrong", "failing"),
    [
        (
            {"LLM_MODEL": "nobodys/model", "QDRANT_URL": "http://127.0.0.1:1"},
            {
                "model": ("names no provider", "provider/model"),
                "qdrant": ("cannot be reached: ConnectError", "AGENT_RUNTIME_QDRANT_URL"),
            },
        ),
        (
            {"LLM_API_BASE": "http://127.0.0.1:1/v1", "EMBEDDING_MODEL": "nobodys/model"},
            {
                "model": (
                    "openai/fake: the model server at http://127.0.0.1:1/v1 cannot be reached: "
                    "it refuses the connection",
                    "AGENT_RUNTIME_LLM_API_BASE",
                ),
                "qdrant": ("not_found", "AGENT_RUNTIME_EMBEDDING_MODEL"),
            },
        ),
        (
            {"REDIS_URL": "redis://127.0.0.1:1"},
            {"redis": ("unreachable", "AGENT_RUNTIME_REDIS_URL"), "qdrant": ("", "see the check redis")},
        ),
    ],
)
async def test_doctor_says_which_setting_is_wrong(
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    wrong: dict[str, str],
    failing: dict[str, tuple[str, str]],
) -> None:
    await load_litellm()  # on a busy machine the doctor would not wait for it
    for variable, value in wrong.items():
        monkeypatch.setenv(f"AGENT_RUNTIME_{variable}", value)
    done = await command("doctor", "--json")
    assert done.code == 1
    found = {check["name"]: check for check in done.json["checks"]}
    for name, (why, advice) in failing.items():
        assert not found[name]["ok"]
        assert why in found[name]["detail"]
        assert advice in found[name]["advice"]
    if "REDIS_URL" in wrong:
        listed = await command("workspace", "list")
        assert (listed.code, "`agent-runtime doctor` says why" in listed.err) == (1, True)


async def test_doctor_asks_the_platforms_and_every_model_that_is_set(
    command: Command, openai_server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    ]
    assert checks["platform slack"]["detail"] == "the bot token lacks the scope files:read"
    assert checks["platform telegram"]["detail"] == "the bot is @helper_bot"
    assert checks["fallback model openai/second"]["ok"]
    assert checks["transcription model"]["detail"] == "openai/whisper-1 answered"

    openai_server.key = "another"
    failed = [check for check in (await command("doctor", "--json")).json["checks"] if not check["ok"]]
    assert "model" in [check["name"] for check in failed]
    assert any("set AGENT_RUNTIME_LLM_API_KEY" in check["advice"] for check in failed)


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
    assert (await command("eval", "memory", str(tmp_path / "qrels"))).code == 1


async def test_retrieval_is_scored_for_each_arm(command: Command) -> None:
    done = await command("eval", "retrieval", str(SAMPLE_SET), "--json")
    assert done.code == 0, done.err
    assert list(done.json["arms"]) == ["bm25", "dense", "fused"]
    assert done.json["main"] == "fused"
    assert done.json["arms"]["fused"]["recall_at_5"] > 0.9
    assert "nDCG@10" in (await command("eval", "retrieval", str(SAMPLE_SET))).out
    assert (await command("eval", "retrieval", str(SAMPLE_SET / "docs"))).code == 1
