"""The processes of a bench: bots as an operator starts them, and children that are told what to do by JSON lines.

Children do what would otherwise be counted as the bot's. Each module that is run as one calls `obey` with what it can
do; whoever starts it by `child` calls `Child.ask`. One command is done at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

from tests.emulators.own_redis import OwnRedis
from tests.emulators.valkey import die_with_parent

ROOT = Path(__file__).parents[1]
LONGEST_LINE_BYTES = 64_000_000
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PREFIX = "AGENT_RUNTIME_"
TOKEN = "the-admin-token-of-the-benches"
LOOK_SECONDS = 0.01
NOWHERE = "http://127.0.0.1:1"
"""In place of a Qdrant server, which several processes need: documents are degraded."""
QUIET_SECONDS = 2.0
QUIET_MS = 100.0
LONGEST_SECONDS = 180.0

ENDED = (FileNotFoundError, ProcessLookupError)
"""What reading about a process or thread raises that has just ended."""

Command = Callable[..., Awaitable[Any]]
Role = Literal["all", "gateway", "worker"]


# What a process takes


def cpu_ms(pid: int) -> float:
    """What the threads of a process have computed so far, those that ended included; none of its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / TICKS_PER_SECOND


def memory_mb(pid: int) -> float:
    """The memory of a process, with its share of what it shares with others (PSS)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def tree(pid: int) -> list[int]:
    """A process and all that it and its children have started."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(*ENDED):
            for one in (task / "children").read_text().split():
                found += tree(int(one))
    return found


def name_of(pid: int) -> str:
    """The module or program of a process, e.g. ``runtime.embedded.index_server``."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().replace("\0", " ").split(" ")
    return words[words.index("-m") + 1] if "-m" in words else Path(words[0]).name


# Children


class ChildFailed(Exception):
    """A command broke in the other process; the text is its traceback, or says that it has ended."""


class Child:
    """A running process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ask(self, command: str, **about: Any) -> Any:
        """What *command* gives. Raises `ChildFailed`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([command, about]).encode() + b"\n")
        line = await self._process.stdout.readline()
        if not line:
            raise ChildFailed(f"the process ended while it was to {command}")
        done, result = json.loads(line)
        if not done:
            raise ChildFailed(result)
        return result


@asynccontextmanager
async def child(module: str, *arguments: str) -> AsyncIterator[Child]:
    """``python -m module`` with *arguments*, as long as the block lasts."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, *arguments, stdin=pipe, stdout=pipe, cwd=ROOT, limit=LONGEST_LINE_BYTES,
        preexec_fn=die_with_parent,
    )  # fmt: skip
    try:
        yield Child(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def obey(commands: Mapping[str, Command]) -> None:
    """Do what standard input says until it ends, and answer each command on standard output."""
    reader = asyncio.StreamReader(limit=LONGEST_LINE_BYTES)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        command, about = json.loads(line)
        try:
            answer = [True, await commands[command](**about)]
        except Exception:  # noqa: BLE001 - whoever asked gets it
            answer = [False, traceback.format_exc()]
        print(json.dumps(answer), flush=True)


@asynccontextmanager
async def own_redis(folder: Path) -> AsyncIterator[str]:
    """A Redis server with ``appendfsync always`` as long as the block lasts; its URL."""
    server = OwnRedis(folder)
    await asyncio.to_thread(server.start)
    try:
        yield server.url
    finally:
        server.kill()


# Bots


def settings(base_url: str, folder: Path, **more: str) -> dict[str, str]:
    """The settings of every bot of a bench, by their names without the prefix. Its files lie in *folder*/data."""
    return {
        "DATA_DIR": str(folder / "data"),
        "ADMIN_TOKEN": TOKEN,
        "ACCESS_POLICY": "open",
        "DEFAULT_WORKSPACE": "sample",
        "RATE_LIMIT_MESSAGES": "1000000",
        "LLM_MODEL": "openai/bench",
        "LLM_API_BASE": base_url,
        "LLM_API_KEY": "bench-key",
        **more,
    }


class Bot:
    """One process of the runtime, with the processes that it starts. Made by `bot`."""

    def __init__(self, process: subprocess.Popen[bytes], printed: Path, port: int, started: float) -> None:
        self.pid = process.pid
        self.url = f"http://127.0.0.1:{port}"
        self.started = started
        """By the monotonic clock."""
        self._process = process
        self._port = port
        self._printed = printed

    def cpu_ms(self) -> dict[str, float]:
        """What each of its processes has computed so far, by name."""
        return self._by_process(cpu_ms)

    def memory_mb(self) -> dict[str, float]:
        """The memory (PSS) of each of its processes, by name."""
        return self._by_process(memory_mb)

    def _by_process(self, read: Callable[[int], float]) -> dict[str, float]:
        found = {}
        for pid in tree(self.pid):
            with contextlib.suppress(*ENDED):
                found[name_of(pid)] = read(pid)
        return found

    def events(self) -> Iterator[dict[str, Any]]:
        """What it has printed so far."""
        for line in self._printed.read_text("utf-8", "replace").splitlines():
            with contextlib.suppress(ValueError):  # half a line
                yield json.loads(line)

    async def until(self, holds: Callable[[], bool], seconds: float = 60.0) -> float:
        """Wait until *holds* is true; the seconds since the process was started."""
        async with asyncio.timeout(seconds):
            while not await asyncio.to_thread(holds):
                assert self._process.poll() is None, self._printed.read_text("utf-8", "replace")[-3000:]
                await asyncio.sleep(LOOK_SECONDS)
        return time.monotonic() - self.started

    async def ready(self) -> float:
        """Wait until ``/readyz`` says so; the seconds since the start."""
        return await self.until(lambda: _is_ready(self._port))

    async def printed(self, event: str) -> float:
        """Wait until it has printed *event*; the seconds since the start."""
        return await self.until(lambda: any(one["event"] == event for one in self.events()))

    async def connected(self, *names: str) -> float:
        """Wait until these connectors are connected; the seconds since the start."""
        return await self.until(lambda: {one["connector"] for one in self.events() if _connects(one)} >= set(names))

    async def quiet(self) -> None:
        """Wait until all its processes together compute less than `QUIET_MS` in `QUIET_SECONDS`."""
        async with asyncio.timeout(LONGEST_SECONDS):
            spent = QUIET_MS
            while spent >= QUIET_MS:
                before = sum(self.cpu_ms().values())
                await asyncio.sleep(QUIET_SECONDS)
                spent = sum(self.cpu_ms().values()) - before

    async def stop(self) -> None:
        """SIGTERM, and its end."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                await asyncio.to_thread(self._process.wait, 30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def _connects(event: Mapping[str, Any]) -> bool:
    return event["event"] == "connector.state" and event.get("state") == "connected"


def _is_ready(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 2.0) as asking:
            asking.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            return b" 200 " in asking.recv(64)
    except OSError:
        return False


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@asynccontextmanager
async def bot(given: Mapping[str, str], role: Role = "all") -> AsyncIterator[Bot]:
    """``python -m runtime serve --role role`` with the settings *given*."""
    port = _free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    environment |= {PREFIX + name: value for name, value in {**given, "HTTP_PORT": str(port)}.items()}
    folder = Path(given["DATA_DIR"]).parent
    folder.mkdir(parents=True, exist_ok=True)
    printed = folder / f"{role}-{port}.events"
    with printed.open("wb") as output:
        started = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "runtime", "serve", "--role", role],
            env=environment, cwd=ROOT, stdout=output, stderr=output, preexec_fn=die_with_parent,
        )  # fmt: skip
    running = Bot(process, printed, port, started)
    try:
        yield running
    finally:
        await running.stop()
