"""The commands as processes of their own: signals, pipes and terminals."""

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
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from runtime.cli.client import answers
from runtime.embedded import socket_path
from runtime.stores import SOCKET_NAME

ROOT = Path(__file__).parents[3]


def surroundings(data_dir: Path, **settings: str) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("AGENT_RUNTIME_")}
    values = {"DATA_DIR": str(data_dir), "HTTP_PORT": "0", "DEEP_EMBEDDING_MODEL": "none", **settings}
    return own | {"PYTHONPATH": str(ROOT)} | {f"AGENT_RUNTIME_{name}": value for name, value in values.items()}


def hears_interrupts() -> None:
    """Whoever runs the tests may ignore SIGINT, which a child would inherit."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


async def shown_on_a_terminal(data_dir: Path, until: bytes, *options: str) -> list[str]:
    """The lines that `serve` shows on a terminal until *until* is among them."""
    ours, theirs = pty.openpty()
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "runtime", "serve", *options,
        cwd=data_dir, stdin=theirs, stdout=theirs, stderr=theirs,
        env=surroundings(data_dir, COMMAND="./agent-runtime"),
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    try:
        while until not in shown:
            shown += await asyncio.to_thread(os.read, ours, 65536)
    finally:
        started.kill()
        await started.wait()
        os.close(ours)
    return shown.decode().splitlines()


async def test_serve_on_a_terminal_is_readable_and_says_where_the_chat_is(data_dir: Path) -> None:
    """It ends its start with the address and how to sign in."""
    lines = await shown_on_a_terminal(data_dir, b"Ctrl-C stops the bot.")
    assert not any(line.startswith("{") for line in lines)
    (chat,) = [line for line in lines if line.startswith("Chat: ")]
    assert re.match(r"Chat: http://127\.0\.0\.1:\d+/chat, sign in with the token in the file .*/admin-token\.", chat)
    assert "`./agent-runtime access invite NAME`" in lines[lines.index(chat) + 1]
    connected = [number for number, line in enumerate(lines) if "connector.state" in line and "state connected" in line]
    assert 0 < max(connected) < lines.index(chat)


async def test_with_json_a_terminal_gets_what_a_pipe_gets(data_dir: Path) -> None:
    """Options that all commands have may stand behind the command, and before it."""
    file = data_dir / "bot.toml"
    file.write_text('llm_grounding_top_k = "many"\n')
    lines = await shown_on_a_terminal(data_dir, b'"setting.fallen_back"', "--json", "--config", str(file))
    assert "setting.fallen_back" in [json.loads(line)["event"] for line in lines if line.endswith("}")]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_a_chat_that_is_told_to_end_cleans_up_and_says_so_by_its_exit_code(
    number: signal.Signals, code: int, data_dir: Path
) -> None:
    chat = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "runtime", "chat",
        cwd=data_dir, env=surroundings(data_dir), stdin=PIPE, stdout=PIPE, stderr=PIPE, preexec_fn=hears_interrupts,
    )  # fmt: skip
    try:
        path = await asyncio.to_thread(socket_path, data_dir, SOCKET_NAME)
        while not await answers(path):
            assert chat.returncode is None, await chat.communicate()
            await asyncio.sleep(0.05)
        chat.send_signal(number)
        _, errors = await chat.communicate()
    finally:
        if chat.returncode is None:
            chat.kill()
            await chat.wait()
    assert chat.returncode == code
    assert errors.strip() == b""
    assert not path.exists()


def test_a_port_in_use_is_a_clear_error(data_dir: Path) -> None:
    """It names the setting and who may hold the port, before anything is opened."""
    file = data_dir / "bot.toml"
    file.write_text('llm_grounding_top_k = "many"\n')
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        ended = subprocess.run(
            [sys.executable, "-m", "runtime", "--config", str(file), "--log-format", "console", "serve"],
            cwd=data_dir, env=surroundings(data_dir, HTTP_PORT=port), capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert ended.returncode == 1
    assert f"AGENT_RUNTIME_HTTP_PORT={port}" in ended.stderr
    assert "another program" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "WARNING setting.fallen_back" in ended.stdout
    assert not (data_dir / "redis").exists()


def test_a_reader_that_has_enough_is_no_error(data_dir: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "runtime", "--help"], cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, check=False
    )
    os.close(writing)
    assert done.stderr == b""
