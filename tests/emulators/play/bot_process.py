"""The bot in a process of its own: started, told to stop, killed, and its events read."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from runtime.embedded import die_with_parent

Event = dict[str, Any]
STOP_SECONDS = 25.0
"""Longer than the bot's own SHUTDOWN_GRACE_SECONDS."""
_ROOT = Path(__file__).parents[3]
_LAST_WORDS = 12


class BotEnded(Exception):
    """It ended although nobody wanted it to; the text has its last words."""


class BotProcess:
    """``python -m runtime serve`` with *environment*. Every event that it prints goes to *heard*."""

    def __init__(self, environment: Mapping[str, str], heard: Callable[[Event], None]) -> None:
        self._environment = dict(environment)
        self._heard = heard
        self._process: Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._last_words: deque[str] = deque(maxlen=_LAST_WORDS)
        self._states: dict[str, tuple[str, str]] = {}
        self._moved = asyncio.Condition()

    @property
    def pid(self) -> int | None:
        """Of the running process; None while there is none."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def start(self, wanted: tuple[str, ...], seconds: float) -> None:
        """Start it and wait until the *wanted* connectors are connected. Raises `BotEnded` and `TimeoutError`."""
        self._states.clear()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "runtime", "serve",
            cwd=_ROOT, env=self._environment, stdin=asyncio.subprocess.DEVNULL, stdout=PIPE, stderr=STDOUT,
            limit=2**22,
            # Not in this terminal's group: Ctrl-C is for the person's side, which then ends the bot in order.
            start_new_session=True, preexec_fn=die_with_parent(os.getpid(), signal.SIGTERM),
        )  # fmt: skip
        self._reader = asyncio.create_task(self._read(self._process), name="bot's events")
        async with asyncio.timeout(seconds), self._moved:
            await self._moved.wait_for(lambda: self._is_settled(wanted))
        if self.pid is None or (self._reader.done() and self._process.returncode is not None):
            raise BotEnded("the bot ended:\n" + "\n".join(self._last_words))
        failed = [f"{name}: {why}" for name, (state, why) in self._states.items() if state == "failed"]
        if failed:
            raise BotEnded("not connected: " + "; ".join(failed))

    async def stop(self) -> None:
        """End it in order, by force where that takes too long. Does nothing where it has ended."""
        if self._process is None:
            return
        if self._process.returncode is None:
            self._process.terminate()
            try:
                async with asyncio.timeout(STOP_SECONDS):
                    await self._process.wait()
            except (TimeoutError, asyncio.CancelledError) as error:
                self._process.kill()
                await self._process.wait()
                if isinstance(error, asyncio.CancelledError):
                    raise
        await self._over()

    async def kill(self) -> None:
        """As if the machine had failed: no chance to clean up."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
        await self._over()

    async def _over(self) -> None:
        if self._process is not None:
            await self._process.wait()
        if self._reader is not None:
            # Its embedded servers hold the pipe until they, too, have ended.
            with suppress(TimeoutError):
                async with asyncio.timeout(5):
                    await self._reader

    def _is_settled(self, wanted: tuple[str, ...]) -> bool:
        if self._reader is not None and self._reader.done():
            return True
        return all(self._states.get(name, ("", ""))[0] in ("connected", "failed") for name in wanted)

    async def _read(self, process: Process) -> None:
        assert process.stdout is not None
        try:
            async for line in process.stdout:
                await self._take(line.decode("utf-8", "replace").rstrip())
        finally:
            await process.wait()
            asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(self._tell()))

    async def _take(self, line: str) -> None:
        try:
            event = json.loads(line)
        except ValueError:
            event = None
        if not isinstance(event, dict) or "event" not in event:
            self._last_words.append(line)
            return
        if event["level"] in ("warning", "error"):
            self._last_words.append(f"{event['event']}: {event.get('why', event.get('error', ''))}")
        if event["event"] == "connector.state":
            self._states[event["connector"]] = (event["state"], event.get("why", ""))
        self._heard(event)
        await self._tell()

    async def _tell(self) -> None:
        async with self._moved:
            self._moved.notify_all()
