"""A child process that is kept running: started, waited for, restarted with backoff, stopped in bounded time."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import hashlib
import os
import random
import signal
import stat
import sys
import tempfile
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Protocol

import structlog

from connectors.connector import Health, State
from connectors.message import AgentRuntimeError

log = structlog.get_logger()

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
CALM_SECONDS = 30.0
"""A child that lived this long was well: the next restart is quick again."""

_PR_SET_PDEATHSIG = 1
# Loaded here, because little may be done between fork and exec.
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


class ChildFailed(AgentRuntimeError):
    """An embedded server did not come up; the text says why and what to set instead."""

    retryable = True


class Program(Protocol):
    """What is run."""

    name: str
    ready_seconds: float
    stop_seconds: float

    async def spawn(self) -> Process:
        """Start the process. Raises `ChildFailed` or `OSError`."""

    async def until_ready(self, process: Process) -> None:
        """Return when *process* serves; may wait forever, because the caller bounds it and watches the process."""

    async def explain(self) -> str:
        """What the last process wrote before it ended, e.g. the end of its log; may be empty."""


def die_with_parent(parent: int, death_signal: signal.Signals) -> Callable[[], None]:
    """What a child calls before exec so that the kernel ends it when the thread that started it ends.

    Only Linux can do that; elsewhere the call does nothing and the next start looks for an orphan.
    """

    def in_the_child() -> None:
        if _libc is not None:
            _libc.prctl(_PR_SET_PDEATHSIG, int(death_signal))
            if os.getppid() != parent:  # it died before the line above
                os._exit(1)

    return in_the_child


@contextlib.asynccontextmanager
async def beside(work: Coroutine[None, None, None], name: str) -> AsyncIterator[None]:
    """Run *work* as a task as long as the block lasts.

    What the block raises leaves as it is, not wrapped in an exception group.
    """
    raised: Exception | None = None
    async with asyncio.TaskGroup() as group:
        task = group.create_task(work, name=name)
        try:
            yield
        except Exception as error:  # noqa: BLE001 - raised again below, outside of the group
            raised = error
        finally:
            task.cancel()
    if raised is not None:
        raise raised


class SupervisedChild:
    """One *program*, kept running by `watch` between `start` and `stop`."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._process: Process | None = None
        self._stopping = False
        self._given_up = False
        self.health = Health(State.CONNECTING)

    @property
    def pid(self) -> int | None:
        """Of the running process; None while there is none."""
        return self._process.pid if self._process and self._process.returncode is None else None

    async def start(self) -> None:
        """Start once and wait until it serves. Raises `ChildFailed`."""
        program = self._program
        started = time.monotonic()
        try:
            self._process = process = await program.spawn()
            await self._until_ready(process)
        except (OSError, TimeoutError, ChildFailed) as error:
            await self._end()
            why = str(error) or f"not ready within {program.ready_seconds:g} s"
            self.health = Health(State.FAILED, why)
            if isinstance(error, ChildFailed):
                raise
            raise ChildFailed(f"the embedded {program.name} server did not start: {why}") from error
        except asyncio.CancelledError:
            await self._end()
            raise
        self.health = Health(State.CONNECTED)
        log.info("embedded.started", server=program.name, duration_ms=round((time.monotonic() - started) * 1000))

    async def watch(self) -> None:
        """Restart the process whenever it ends, until cancelled."""
        pause = FIRST_PAUSE_SECONDS
        while True:
            started = time.monotonic()
            if self._process is not None:
                await self._process.wait()
                if self._stopping:
                    return
                if not self._given_up:  # else that was told
                    self._degrade(await self._why(self._process))
                self._given_up = False
            if time.monotonic() - started > CALM_SECONDS:
                pause = FIRST_PAUSE_SECONDS
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
            try:
                await self.start()
            except ChildFailed as error:
                self._degrade(str(error))

    def give_up(self, why: str) -> None:
        """End the process, of which nothing is to be expected any more, by force: `watch` starts the next one."""
        if self._process is None or self._process.returncode is not None or self._stopping:
            return
        self._given_up = True
        self._degrade(f"{why}, and was ended")
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def stop(self) -> None:
        """End the process: asked first, then by force. Bounded by the program's ``stop_seconds``; idempotent."""
        self._stopping = True
        await self._end()
        self.health = Health(State.STOPPED)

    def _degrade(self, why: str) -> None:
        self.health = Health(State.DEGRADED, why)
        log.warning("store.degraded", store=self._program.name, why=why)

    async def _why(self, process: Process) -> str:
        code = process.returncode or 0
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        last_words = await self._program.explain()
        return f"{how}: {last_words}" if last_words else how

    async def _until_ready(self, process: Process) -> None:
        """Race of readiness against the end of the process and the time-out."""
        async with asyncio.timeout(self._program.ready_seconds):
            ready = asyncio.ensure_future(self._program.until_ready(process))
            ended = asyncio.ensure_future(process.wait())
            try:
                await asyncio.wait((ready, ended), return_when=asyncio.FIRST_COMPLETED)
                if ended.done() or not ready.done():  # it may have said that it is ready, and died
                    raise ChildFailed(f"the embedded {self._program.name} server {await self._why(process)}")
                await ready
            finally:
                for task in (ready, ended):
                    task.cancel()
                await asyncio.gather(ready, ended, return_exceptions=True)

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(self._program.stop_seconds):
                await process.wait()
        except (TimeoutError, asyncio.CancelledError) as error:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            if isinstance(error, asyncio.CancelledError):
                raise
            await process.wait()


# ---- sockets ----
#
# Where the unix sockets of a data folder lie, within the length that the kernel allows.


MAX_SOCKET_PATH_BYTES = 100
"""``sun_path`` holds 108 bytes on Linux and 104 on macOS, the closing zero included."""


class UnsafeSocketFolder(Exception):
    """The folder for sockets in the temporary directory belongs to, or is open to, somebody else."""


def socket_path(data_dir: Path, name: str) -> Path:
    """The path of the socket *name* of *data_dir*; the folder it lies in exists, mode 0700.

    Under *data_dir* where that fits into `MAX_SOCKET_PATH_BYTES`, else under a folder of this user
    in the temporary directory that is named after a hash of the absolute *data_dir*: every process
    with the same user and the same data folder finds the same path. Touches the disk: call it in a
    thread. Raises `UnsafeSocketFolder`, `OSError`.
    """
    absolute = Path(os.path.abspath(data_dir))
    preferred = absolute / name
    if len(os.fsencode(preferred)) <= MAX_SOCKET_PATH_BYTES:
        preferred.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return preferred
    digest = hashlib.sha256(os.fsencode(absolute)).hexdigest()[:16]
    mine = Path(tempfile.gettempdir()) / f"agent-runtime-{os.getuid()}"
    _make_private(mine)
    folder = mine / digest
    _make_private(folder)
    short = folder / name.replace(os.sep, "-")
    if len(os.fsencode(short)) > MAX_SOCKET_PATH_BYTES:
        raise UnsafeSocketFolder(
            f"{tempfile.gettempdir()} is too long a path for a socket; set TMPDIR to a shorter one, such as /tmp"
        )
    return short


def _make_private(folder: Path) -> None:
    """Make *folder* or, where it exists, make sure that it is a real folder of ours that nobody else may enter."""
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise UnsafeSocketFolder(
            f"{folder} is not a private folder of this user; remove it, or set AGENT_RUNTIME_DATA_DIR to a shorter path"
        )
