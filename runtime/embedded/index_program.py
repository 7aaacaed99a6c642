"""The program of the child that has the embedded search index: how it is started, what is said to it, what it wrote."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from runtime.embedded.child import die_with_parent
from runtime.embedded.index_lane import IndexLane

READY_SECONDS = 30.0
STOP_SECONDS = 10.0
"""What is open is flushed and closed in them."""
LOG_TAIL_BYTES = 800
MAX_LOG_BYTES = 1_000_000
"""The log is kept from one child to the next. One that is larger becomes the former one, of which there is one."""


class IndexProgram:
    """The program that `SupervisedChild` runs."""

    name = "qdrant"
    ready_seconds = READY_SECONDS
    stop_seconds = STOP_SECONDS

    def __init__(self, log: Path, told: Callable[[int, list[Any]], None], lost: Callable[[], None]) -> None:
        self._log = log
        self._log_start = 0
        """Where what the last child wrote begins."""
        self._told = told
        self._lost = lost
        self._open = asyncio.Event()
        self._ended = asyncio.Event()
        self.begun = asyncio.Event()
        """Set once the first child was started, or could not be."""
        self.lane: IndexLane | None = None

    @property
    def ready_lane(self) -> IndexLane | None:
        """The connection to a child that answers; None while there is none."""
        return self.lane if self._open.is_set() and self.lane is not None and self.lane.is_open else None

    async def until_lane(self) -> IndexLane:
        """The same, once there is one."""
        while (lane := self.ready_lane) is None:
            self._open.clear()  # where it is set, the connection closes and has not said so yet
            await self._open.wait()
        return lane

    def is_ready(self) -> None:
        """The child says so."""
        self._open.set()

    async def spawn(self) -> Process:
        try:
            return await self._spawn()
        finally:
            self.begun.set()

    async def _spawn(self) -> Process:
        self.hang_up()
        ours, theirs = socket.socketpair()
        log = await asyncio.to_thread(self._open_log)
        try:
            process = await self._execute(theirs.fileno(), log)
        except BaseException:
            ours.close()
            raise
        finally:
            log.close()
            theirs.close()
        self._ended.clear()
        _, self.lane = await asyncio.get_running_loop().create_connection(
            lambda: IndexLane(self._told, self._hung_up), sock=ours
        )
        return process

    async def _execute(self, own: int, log: IO[bytes]) -> Process:
        search = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "runtime.embedded.serve_index", str(own)),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(search)},
            pass_fds=[own],
            stdin=DEVNULL,
            stdout=log,
            stderr=log,
            # SIGKILL: all that was stored is in the engine's log, and whoever starts next wants the folder.
            preexec_fn=die_with_parent(os.getpid(), signal.SIGKILL),
            process_group=0,
        )

    async def until_ready(self, process: Process) -> None:
        waits = [asyncio.ensure_future(self._open.wait()), asyncio.ensure_future(self._ended.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if not self._open.is_set():
            await process.wait()  # it hung up, so it will end; its end is what is reported

    async def explain(self) -> str:
        return await asyncio.to_thread(self._log_tail)

    def hang_up(self) -> None:
        if self.lane is not None:
            self.lane.close()
        self.lane = None
        self._open.clear()

    def _hung_up(self) -> None:
        self._open.clear()
        self._ended.set()
        self._lost()

    def turn_over_log(self) -> None:
        """Make the log the former one where it is too large; whoever has it open goes on. Raises `OSError`."""
        if self._log.exists() and self._log.stat().st_size > MAX_LOG_BYTES:
            shutil.copyfile(self._log, self._log.with_name(f"{self._log.name}.1"))
            os.truncate(self._log, 0)
            self._log_start = 0

    def _open_log(self) -> IO[bytes]:
        self._log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(OSError):  # no room for another one
            self.turn_over_log()
        log = self._log.open("ab", buffering=0)
        with contextlib.suppress(OSError):
            log.write(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} started by process {os.getpid()}\n".encode())
        self._log_start = log.tell()
        return log

    def _log_tail(self) -> str:
        try:
            with self._log.open("rb") as log:
                log.seek(max(self._log_start, self._log.stat().st_size - LOG_TAIL_BYTES))
                return log.read().decode("utf-8", "replace").strip()
        except OSError:
            return ""
