"""The command line: help, errors of usage and configuration, what is printed for people, the file that setup writes."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.load import ConfigurationError
from connectors.console import neutralise
from grounding.strategy import Reason, Strategy, choose
from runtime.cli.commands import setup
from runtime.cli.commands.chat import EXAMPLES, greeting
from runtime.cli.commands.index import NothingToIndex, sort_paths
from runtime.cli.commands.search import excerpt
from runtime.cli.commands.setup import dumps
from runtime.cli.main import cli, invoke
from runtime.cli.output import json_text
from runtime.observability import format_event
from runtime.turns.manifest import REASONS, STRATEGIES

ROOT = Path(__file__).parents[3]
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


def test_a_configuration_file_that_is_missing_is_a_configuration_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["--config", "nowhere.toml", "usage"]) == 2
    assert "nowhere.toml" in capsys.readouterr().err


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


@given(st.text(max_size=700), st.integers(2, 400))
def test_an_excerpt_is_one_line_within_its_limit(text: str, limit: int) -> None:
    shown = excerpt(text, limit)
    assert len(shown) <= limit
    assert len(shown.splitlines()) <= 1


def test_every_reason_and_strategy_is_explained_in_words() -> None:
    assert set(get_args(Reason)) <= set(REASONS)
    assert {strategy.value for strategy in Strategy} == set(STRATEGIES)


@pytest.mark.parametrize("question", EXAMPLES)
def test_the_questions_of_the_first_screen_are_looked_up_in_the_documents(question: str) -> None:
    assert choose(question).strategy is Strategy.QMD


def test_the_first_screen_says_plainly_that_answers_are_quotations() -> None:
    shown = " ".join(greeting("sample", 11, None, remote=False, width=80).split())
    assert "No language model is set" in shown
    assert "quotations" in shown
    assert "agent-runtime setup" in shown
    assert all(question in shown for question in EXAMPLES)


def test_the_first_screen_of_another_workspace_offers_no_questions_of_the_sample() -> None:
    shown = greeting("acme", 3, "openai/gpt", remote=False, width=80)
    assert "openai/gpt" in shown
    assert not any(question in shown for question in EXAMPLES)
    assert "quotations" not in shown


@given(st.integers(30, 200), st.sampled_from([None, 0, 1, 11]), st.sampled_from([None, "openai/gpt"]), st.booleans())
def test_the_first_screen_fits_the_terminal(width: int, documents: int | None, model: str | None, remote: bool) -> None:
    shown = greeting("sample", documents, model, remote=remote, width=width)
    assert max(map(len, shown.splitlines())) <= width


@given(st.dictionaries(st.text(max_size=5), st.text(st.characters(), max_size=20)))
def test_json_says_the_same_and_moves_no_terminal(value: dict[str, str]) -> None:
    """A C1 control such as U+009B begins an escape sequence like ESC [ does; half a surrogate pair has no bytes."""
    text = json_text(value)

    assert json.loads(text) == value
    assert neutralise(text) == text
    text.encode()


def test_an_event_stays_on_its_line_whatever_its_place_is_called() -> None:
    shown = format_event({"event": "turn.answered", "workspace_id": "acme", "context_id": "http:a\n12:00:00 forged"})
    assert "\n" not in shown


NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SCALARS = st.one_of(TEXT, st.booleans(), st.integers(-(2**62), 2**62), st.floats(allow_nan=False, allow_infinity=False))
VALUES = st.recursive(
    st.one_of(SCALARS, st.lists(SCALARS, max_size=3)),
    lambda inner: st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(TEXT, VALUES, max_size=5))
def test_what_is_written_reads_back_as_it_was(values: dict[str, object]) -> None:
    assert tomllib.loads(dumps(values)) == values


def test_the_file_and_the_copy_of_the_old_one_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "agent-runtime.toml"
    path.write_text("# mine\nhttp_port = 9000\n")
    path.chmod(0o644)
    backup = setup.write_config(path, {"http_port": 9001}, NOW)
    assert backup is not None
    assert backup.read_text() == "# mine\nhttp_port = 9000\n"
    assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}
    assert sorted(tmp_path.iterdir()) == sorted([path, backup])


def test_a_file_that_is_no_toml_is_named_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "agent-runtime.toml"
    path.write_text("llm_model = ")
    with pytest.raises(ConfigurationError, match=r"agent-runtime\.toml: is not valid TOML"):
        setup.read_config(path)
