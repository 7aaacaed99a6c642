"""The bot's own processes: started as an operator starts them, watched from outside."""

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
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

from bench.children import ROOT, all_children, cpu_ms
from tests.emulators.valkey import die_with_parent

Role = Literal["all", "gateway", "worker"]
PREFIX = "AGENT_RUNTIME_"
TOKEN = "the-admin-token-of-the-benches"
LOOK_SECONDS = 0.01
NOWHERE = "http://127.0.0.1:1"
"""In place of a Qdrant server, which several processes need: documents are degraded."""


def settings(base_url: str, folder: Path, **more: str) -> dict[str, str]:
    """What every bot of a bench is told; by the settings' names without their prefix."""
    return {
        "DATA_DIR": str(folder),
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
    """One process of the runtime. Made by `bot`."""

    def __init__(self, process: subprocess.Popen[bytes], printed: Path, port: int, started: float) -> None:
        self.process = process
        self.port = port
        self.started = started
        """By the monotonic clock."""
        self._printed = printed

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def cpu_ms(self) -> float:
        """Of the process and of the one that has the search index, which does a part of its work."""
        return sum(map(cpu_ms, [self.pid, *(one for one in all_children(self.pid) if _has_index(one))]))

    def events(self) -> Iterator[dict[str, Any]]:
        """What it has printed so far."""
        for line in self._printed.read_text("utf-8", "replace").splitlines():
            with contextlib.suppress(ValueError):  # half a line
                yield json.loads(line)

    async def told(self, event: str, seconds: float = 60.0) -> None:
        """Wait until it has printed *event*."""
        async with asyncio.timeout(seconds):
            while not any(one["event"] == event for one in self.events()):
                self._must_run()
                await asyncio.sleep(0.05)

    async def ready(self, seconds: float = 60.0) -> float:
        """Wait until ``/readyz`` says so; the seconds since the process was started."""
        async with asyncio.timeout(seconds):
            while not await asyncio.to_thread(_is_ready, self.port):
                self._must_run()
                await asyncio.sleep(LOOK_SECONDS)
        return time.monotonic() - self.started

    async def connected(self, *names: str, seconds: float = 60.0) -> float:
        """Wait until these connectors are connected; the seconds since the start."""
        async with asyncio.timeout(seconds):
            while True:
                found = {one["connector"] for one in self.events() if _says_connected(one)}
                if found >= set(names):
                    return time.monotonic() - self.started
                self._must_run()
                await asyncio.sleep(LOOK_SECONDS)

    def _must_run(self) -> None:
        assert self.process.poll() is None, self._printed.read_text("utf-8", "replace")[-3000:]

    async def stop(self) -> None:
        """SIGTERM, and its end."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                await asyncio.to_thread(self.process.wait, 30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def _says_connected(event: Mapping[str, Any]) -> bool:
    return event["event"] == "connector.state" and event.get("state") == "connected"


def _has_index(pid: int) -> bool:
    return b"runtime.embedded.index_server" in Path(f"/proc/{pid}/cmdline").read_bytes()


def _is_ready(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 2.0) as asking:
            asking.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            return b" 200 " in asking.recv(64)
    except OSError:
        return False


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@asynccontextmanager
async def bot(
    given: Mapping[str, str], role: Role = "all", module: str = "runtime", more: Mapping[str, str] = {}
) -> AsyncIterator[Bot]:
    """``python -m module serve --role role`` with the settings *given*, and *more* in its environment."""
    port = free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    environment |= {PREFIX + name: value for name, value in {**given, "HTTP_PORT": str(port)}.items()}
    folder = Path(given["DATA_DIR"]).parent
    printed = folder / f"{role}-{port}.events"
    with printed.open("wb") as output:
        started = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", module, "serve", "--role", role],
            env={**environment, **more}, cwd=ROOT, stdout=output, stderr=output, preexec_fn=die_with_parent,
        )  # fmt: skip
    running = Bot(process, printed, port, started)
    try:
        yield running
    finally:
        await running.stop()
