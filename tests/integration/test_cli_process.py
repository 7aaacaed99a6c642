"""The commands as processes of their own: signals, pipes, and a `serve` that other commands find."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from runtime.cli.client import answers
from runtime.embedded import socket_path
from runtime.stores import SOCKET_NAME
from tests.emulators.openai import FakeOpenAI

ROOT = Path(__file__).parents[2]


def surroundings(data_dir: Path, model: FakeOpenAI) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("AGENT_RUNTIME_")}
    return own | {
        "PYTHONPATH": str(ROOT),
        "AGENT_RUNTIME_DATA_DIR": str(data_dir),
        "AGENT_RUNTIME_LLM_MODEL": "openai/fake",
        "AGENT_RUNTIME_LLM_API_BASE": model.base_url,
        "AGENT_RUNTIME_HTTP_PORT": "0",
    }


@asynccontextmanager
async def process(data_dir: Path, model: FakeOpenAI, *line: str) -> AsyncIterator[Process]:
    """A command that runs on, once it answers other commands; ended by force at the end, if need be."""
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "runtime", *line,
        cwd=data_dir, env=surroundings(data_dir, model), stdin=PIPE, stdout=PIPE, stderr=PIPE,
    )  # fmt: skip
    try:
        path = await asyncio.to_thread(socket_path, data_dir, SOCKET_NAME)
        async with asyncio.timeout(60):
            while not await answers(path):
                assert started.returncode is None, await started.communicate()
                await asyncio.sleep(0.05)
        yield started
    finally:
        if started.returncode is None:
            started.kill()
            await started.wait()


@pytest.mark.parametrize("behind", [False, True])
def test_serve_takes_its_file_and_format_before_and_behind_its_name(behind: bool, data_dir: Path) -> None:
    """Both places mean the same; here the file names a port that is in use, so that it ends at once."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        file = data_dir / "bot.toml"
        file.write_text(f'data_dir = "{data_dir}"\nhttp_port = {port}\nllm_grounding_top_k = "many"\n')
        options = ["--config", str(file), "--log-format", "console"]
        line = ["serve", *options] if behind else [*options, "serve"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("AGENT_RUNTIME_")}
        ended = subprocess.run(
            [sys.executable, "-m", "runtime", *line],
            cwd=data_dir, env=environment | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    assert ended.returncode == 1
    assert f"port {port}" in ended.stderr
    assert "WARNING setting.fallen_back" in ended.stdout


@pytest.mark.parametrize("options", [(), ("--json",)])
async def test_serve_on_a_terminal_is_readable_and_says_where_the_chat_is(
    options: tuple[str, ...], data_dir: Path, openai_server: FakeOpenAI
) -> None:
    """It ends its start with the address and how to sign in; with --json a terminal gets what a pipe gets."""
    ours, theirs = pty.openpty()
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "runtime", "serve", *options,
        cwd=data_dir, stdin=theirs, stdout=theirs, stderr=theirs,
        env=surroundings(data_dir, openai_server) | {"AGENT_RUNTIME_COMMAND": "./agent-runtime"},
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    try:
        last = b'"state": "connected"' if options else b"Ctrl-C stops the bot."
        while last not in shown:
            shown += await asyncio.to_thread(os.read, ours, 65536)
    finally:
        started.kill()
        await started.wait()
        os.close(ours)
    lines = shown.decode().splitlines()
    if options:
        assert all(json.loads(line)["event"] for line in lines if line.strip())
        return
    assert not any(line.startswith("{") for line in lines)
    (chat,) = [line for line in lines if line.startswith("Chat: ")]
    assert re.match(r"Chat: http://127\.0\.0\.1:\d+/chat, sign in with the token in the file .*/admin-token\.", chat)
    assert "`./agent-runtime access invite NAME`" in lines[lines.index(chat) + 1]
    connected = [number for number, line in enumerate(lines) if "connector.state" in line and "state connected" in line]
    assert 0 < max(connected) < lines.index(chat)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_a_chat_that_is_told_to_end_cleans_up_and_says_so_by_its_exit_code(
    number: signal.Signals, code: int, data_dir: Path, openai_server: FakeOpenAI
) -> None:
    async with process(data_dir, openai_server, "chat") as chat:
        chat.send_signal(number)
        async with asyncio.timeout(90):
            _, errors = await chat.communicate()
    assert chat.returncode == code
    assert errors.strip() == b""
    assert not (data_dir / SOCKET_NAME).exists()


async def test_commands_find_a_serve_by_its_data_folder(data_dir: Path, openai_server: FakeOpenAI) -> None:
    async with process(data_dir, openai_server, "serve") as serve:
        said = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "runtime", "chat", "-m", "hello", "--json",
            cwd=data_dir, env=surroundings(data_dir, openai_server), stdout=PIPE, stderr=PIPE,
        )  # fmt: skip
        async with asyncio.timeout(60):
            answer, errors = await said.communicate()
        assert (said.returncode, errors) == (0, b"")
        serve.send_signal(signal.SIGTERM)
        async with asyncio.timeout(90):
            events, _ = await serve.communicate()
    assert json.loads(answer)["text"] == "You said: hello"
    assert serve.returncode == 0
    # The turn was the serve's, not the command's own.
    assert "turn.answered" in [json.loads(event)["event"] for event in events.splitlines()]


def test_a_reader_that_has_enough_is_no_error(data_dir: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "runtime", "--help"], cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, check=False
    )
    os.close(writing)
    assert done.stderr == b""
