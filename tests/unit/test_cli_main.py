"""The command line: help, usage errors, configuration errors, and how failures end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from runtime.cli.commands.index import NothingToIndex, sort_paths
from runtime.cli.main import cli, invoke

ROOT = Path(__file__).parents[2]
COMMANDS = cli.list_commands(click.Context(cli))
HEAVY = {"httpx", "pydantic", "rich", "redis", "fastapi", "litellm", "numpy", "config.settings", "prompt_toolkit"}


@pytest.fixture(autouse=True)
def bare_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings of the developer's, and an empty working directory."""
    for name in list(os.environ):
        if name.startswith("AGENT_RUNTIME_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def test_help_lists_the_commands_without_importing_what_they_need() -> None:
    program = (
        "import sys; from runtime.cli.main import invoke; invoke(['--help']); "
        f"print('heavy:', sorted({HEAVY!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "heavy: []" in done.stdout
    assert all(f"  {name} " in done.stdout for name in COMMANDS)


def test_what_the_commands_of_a_group_do_is_said_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["prompt", "--help"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "Ask the model for a shorter text of a directive, and publish it if you agree." in told
    assert "..." not in told.partition("Commands:")[2]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"Usage: agent-runtime {name}")


@pytest.mark.parametrize(
    "line",
    [
        ["nosuch"],
        ["search"],
        ["search", "x", "--top-k", "0"],
        ["search", "x", "--top-k", "101"],
        ["serve", "--role", "king"],
        ["workspace", "route", "slack:T1"],
        ["workspace", "route", "slack:T1", "acme", "--remove"],
        ["ground", "x", "--connector", "slack"],
        ["prompt", "show", "--kind", "skill"],
        ["prompt", "show", "--scope", "context"],
        ["prompt", "set", "text", "--kind", "system", "--name", "x"],
        ["access", "role", "telegram:1", "king"],
        ["setup", "--yes"],
        ["setup", "--yes", "--provider", "nobody"],
        ["setup", "--yes", "--provider", "compatible", "--model", "m"],
        ["setup", "--yes", "--provider", "openai", "--api-key-env", "NOT_SET_ANYWHERE"],
    ],
)
def test_a_command_line_that_makes_no_sense_ends_with_2_and_says_why(
    line: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(line) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Error: " in captured.err


def test_all_mistakes_of_a_configuration_are_told_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AGENT_RUNTIME_HTTP_PORT", "zero")
    monkeypatch.setenv("AGENT_RUNTIME_SLACK_BOT_TOKEN", "not-a-slack-token")
    monkeypatch.setenv("AGENT_RUNTIME_NOSUCH", "1")
    assert invoke(["usage"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    told = captured.err
    assert "AGENT_RUNTIME_HTTP_PORT='zero'" in told
    assert "AGENT_RUNTIME_SLACK_BOT_TOKEN" in told
    assert "AGENT_RUNTIME_NOSUCH" in told
    assert "not-a-slack-token" not in told


def test_a_configuration_file_that_is_missing_is_a_configuration_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["--config", "nowhere.toml", "usage"]) == 2
    assert "nowhere.toml" in capsys.readouterr().err


def test_doctor_reports_a_wrong_configuration_as_failed_checks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AGENT_RUNTIME_HTTP_PORT", "zero")
    assert invoke(["doctor"]) == 2
    shown = capsys.readouterr().out
    assert "FAILED  settings: AGENT_RUNTIME_HTTP_PORT='zero'" in shown
    assert "→ correct it" in shown


def test_paths_of_the_workspace_are_told_from_paths_elsewhere(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    (docs / "policies").mkdir(parents=True)
    (docs / "policies" / "a.md").write_text("# A")
    handbook = tmp_path / "handbook"
    (handbook / "deep").mkdir(parents=True)
    (handbook / "deep" / "b.md").write_text("# B")
    (handbook / "picture.png").write_bytes(b"\x89PNG")
    inside, outside = sort_paths(["policies", str(docs / "policies" / "a.md"), str(handbook)], docs)
    assert inside == ["policies", "policies/a.md"]
    assert [(each.path, each.file.name) for each in outside] == [("handbook/deep/b.md", "b.md")]


@pytest.mark.parametrize("path", ["nowhere.md", "empty", "picture.png", "../../etc"])
def test_a_path_without_markdown_is_refused(path: str, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    name = path if path.startswith("..") else str(tmp_path / path)
    with pytest.raises(NothingToIndex):
        sort_paths([name], tmp_path / "docs")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["serv"], "'serve'"),
        (["prompt", "lst"], "'list'"),
        (["chat", "--wrkspace", "x"], "--workspace"),
    ],
)
def test_a_misspelt_command_or_option_is_answered_with_the_one_that_was_meant(
    typed: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(typed) == 2
    assert meant in capsys.readouterr().err


def test_hints_name_the_command_as_it_was_started(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script of a checkout says how it was called; `agent-runtime` alone would not be found there."""
    monkeypatch.setenv("AGENT_RUNTIME_COMMAND", "./agent-runtime")
    assert invoke(["dead-letters", "retry"]) == 2
    told = capsys.readouterr().err
    assert "Usage: ./agent-runtime dead-letters retry" in told
    assert "`./agent-runtime dead-letters list`" in told


def test_the_script_of_a_checkout_says_how_it_was_called() -> None:
    script = (ROOT / "agent-runtime").read_text()
    assert script.index("started_as=$0") < script.index("AGENT_RUNTIME_COMMAND=$started_as exec agent-runtime")
