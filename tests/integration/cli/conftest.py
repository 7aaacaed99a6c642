"""Command lines, run in a thread with a loop of their own, as processes of their own would be."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from runtime.cli.main import invoke
from tests.emulators.openai import FakeOpenAI


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


def set_environment(monkeypatch: pytest.MonkeyPatch, data_dir: Path, model: FakeOpenAI) -> None:
    """Give settings as a person does: in the environment. The model is the emulator."""
    for name in list(os.environ):
        if name.startswith("AGENT_RUNTIME_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AGENT_RUNTIME_DATA_DIR", str(data_dir))
    monkeypatch.setenv("AGENT_RUNTIME_DEEP_EMBEDDING_MODEL", "none")
    monkeypatch.setenv("AGENT_RUNTIME_LLM_MODEL", "openai/fake")
    monkeypatch.setenv("AGENT_RUNTIME_LLM_API_BASE", model.base_url)
    monkeypatch.setenv("AGENT_RUNTIME_LLM_API_KEY", "key")
    monkeypatch.setenv("AGENT_RUNTIME_LLM_TIMEOUT_SECONDS", "10")


@pytest.fixture
def surroundings(
    monkeypatch: pytest.MonkeyPatch, data_dir: Path, openai_server: FakeOpenAI, tmp_path: Path
) -> Iterator[None]:
    """A data folder of this test's own, for which nothing runs."""
    set_environment(monkeypatch, data_dir, openai_server)
    monkeypatch.chdir(tmp_path)
    yield
    structlog.reset_defaults()
    logging.captureWarnings(False)


@pytest.fixture
def run_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs a command line with what it is given to read."""

    async def run(*line: str, stdin: str = "") -> Done:
        capsys.readouterr()
        typed = SimpleNamespace(buffer=io.BytesIO(stdin.encode()), isatty=lambda: False)
        monkeypatch.setattr(sys, "stdin", typed)
        code = await asyncio.to_thread(invoke, line)
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return run


@pytest.fixture
def command(surroundings: None, run_command: Command) -> Command:
    """Runs a command line where nothing runs yet."""
    return run_command
