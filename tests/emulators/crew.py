"""Several real processes of the runtime that share one Redis, and die when they are told to."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from tests.emulators.valkey import die_with_parent

Role = Literal["all", "gateway", "worker"]
STOP_SECONDS = 40
ADMIN = "the-admin-token-of-the-tests"


class Crew:
    """Processes by name, each of which appends its events to a file of its own in *folder*.

    *environment* holds settings by their name without the prefix. They have no deeper embedding model unless that says
    so: it would be one process more for each.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        with_defaults = {"DEEP_EMBEDDING_MODEL": "none", **environment}
        self._environment = {f"AGENT_RUNTIME_{name}": value for name, value in with_defaults.items()}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._told_before: dict[str, int] = {}
        """How many bytes of events there were of each when it was started last."""

    def start(self, name: str, role: Role, **more: str) -> None:
        """Start a process called *name*, with *more* settings of its own."""
        settings = {f"AGENT_RUNTIME_{variable}": value for variable, value in more.items()}
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / f"{name}.events").open("ab") as told, (self._folder / f"{name}.errors").open("ab") as bad:
            self._told_before[name] = told.tell()
            self._running[name] = subprocess.Popen(
                [sys.executable, "-m", "runtime", "serve", "--role", role],
                env={**os.environ, "PYTHONFAULTHANDLER": "1", **self._environment, **settings},
                stdout=told,
                stderr=bad,
                preexec_fn=die_with_parent,
            )

    def kill(self, name: str) -> None:
        """``kill -9``."""
        process = self._running.pop(name)
        process.kill()
        process.wait(10)

    def freeze(self, name: str) -> None:
        """SIGSTOP: it stands still, like the processes of a laptop that sleeps."""
        self._running[name].send_signal(signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        """SIGCONT: it goes on, and its clocks have gone on meanwhile."""
        self._running[name].send_signal(signal.SIGCONT)

    async def stop(self, name: str) -> int:
        """SIGTERM; the exit code."""
        process = self._running.pop(name)
        process.send_signal(signal.SIGTERM)
        try:
            return await asyncio.to_thread(process.wait, STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # it writes where all its threads are
            await asyncio.to_thread(process.wait, STOP_SECONDS)
            last = [*self.events(name)][-10:]
            raise AssertionError(f"{name} did not stop: {last}\n{self.errors()[-8000:]}") from None

    def end(self) -> None:
        """Kill all that still run."""
        for name in list(self._running):
            self.kill(name)

    def events(self, name: str = "*") -> Iterator[dict[str, Any]]:
        """What the processes called *name* (a pattern) have told so far; a line that a kill cut short is left out."""
        for path in sorted(self._folder.glob(f"{name}.events")):
            for line in path.read_text(encoding="utf-8").splitlines():
                if line.startswith("{") and line.endswith("}"):
                    yield json.loads(line)

    def errors(self) -> str:
        """What the processes wrote beside their events."""
        return "".join(path.read_text(encoding="utf-8") for path in sorted(self._folder.glob("*.errors")))

    async def has_told(self, name: str, event: str) -> None:
        """Wait until the process called *name* has told *event* since it was started last."""
        with (self._folder / f"{name}.events").open("rb") as events:
            events.seek(self._told_before[name])
            while f'"event": "{event}"'.encode() not in events.read():
                assert self._running[name].poll() is None, self.errors()[-2000:]
                await asyncio.sleep(0.1)

    async def told(self, name: str, event: str, times: int = 1) -> None:
        """Wait until the processes called *name* have told *event* so often."""
        while sum(one["event"] == event for one in self.events(name)) < times:
            assert name not in self._running or self._running[name].poll() is None, self.errors()[-2000:]
            await asyncio.sleep(0.05)
