"""Supervises a child process: starts it, waits until it is ready, restarts it with backoff, and stops it."""

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
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

import structlog

from connectors.connector import ConnectionState, Health
from connectors.message import AgentRuntimeError

log = structlog.get_logger()

PAUSE_SECONDS = (0.1, 5.0)
"""Before the next start of a child that ended; it doubles from the first to the second."""
CALM_SECONDS = 30.0
"""After a child ran this long, the next restart is quick again."""
LOG_END_BYTES = 800

_PR_SET_PDEATHSIG = 1
# Loaded at import, because little may be done between fork and exec.
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


class ChildFailed(AgentRuntimeError):
    """An embedded server did not come up; the text says why and what to set instead."""

    retryable = True


class Program(Protocol):
    """A program that `SupervisedChild` runs."""

    name: str
    ready_seconds: float
    stop_seconds: float

    async def spawn(self) -> Process:
        """Start the process. Raises `ChildFailed` or `OSError`."""

    async def until_ready(self, process: Process) -> None:
        """Return when *process* is ready. May wait forever: the caller sets a limit and watches the process."""

    async def explain(self) -> str:
        """Return the last output of the last process, e.g. the end of its log; may be empty."""


def die_with_parent(parent: int, death_signal: signal.Signals) -> Callable[[], None]:
    """Return a function for a child to call before exec, so that the kernel ends it when its parent thread ends.

    Only Linux can do that. Elsewhere the function does nothing, and the next start looks for an orphan.
    """

    def in_the_child() -> None:
        if _libc is not None:
            _libc.prctl(_PR_SET_PDEATHSIG, int(death_signal))
            if os.getppid() != parent:  # the parent died before the line above
                os._exit(1)

    return in_the_child


async def spawn_python(
    module: str,
    *arguments: str,
    log_file: Path,
    stdout: int | None = None,
    environment: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> Process:
    """Start *module* of this program in a child; what it writes goes to *log_file*, and that of the last one beside it.

    The child gets no Ctrl-C, which is for the parent, and is killed when the parent ends. Raises `OSError`.
    """
    search = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    log = await asyncio.to_thread(_open_log, log_file)
    with log:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", module, *arguments),
            env={**os.environ, **(environment or {}), "PYTHONPATH": os.pathsep.join(search)},
            pass_fds=pass_fds,
            stdin=DEVNULL,
            stdout=log if stdout is None else stdout,
            stderr=log,
            preexec_fn=die_with_parent(os.getpid(), signal.SIGKILL),
            process_group=0,
        )


def _open_log(file: Path) -> IO[bytes]:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if file.exists():
        file.replace(file.with_name(f"{file.name}.1"))
    return file.open("wb")


async def read_log_end(file: Path) -> str:
    """Return the last output of a child that `spawn_python` started; empty if there is none."""
    with contextlib.suppress(OSError):
        raw = await asyncio.to_thread(file.read_bytes)
        return raw[-LOG_END_BYTES:].decode("utf-8", "replace").strip()
    return ""


@contextlib.asynccontextmanager
async def background_task(work: Coroutine[None, None, None], name: str) -> AsyncIterator[None]:
    """Run *work* as a task as long as the block lasts.

    An error of the block is raised unchanged, not wrapped in an exception group.
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

    def __init__(self, program: Program, pause_seconds: tuple[float, float] = PAUSE_SECONDS) -> None:
        self._program = program
        self._pause_seconds = pause_seconds
        self._process: Process | None = None
        self._stopping = False
        self._given_up = False
        self.health = Health(ConnectionState.CONNECTING)

    @property
    def pid(self) -> int | None:
        """The id of the running process; None while there is none."""
        return self._process.pid if self._process and self._process.returncode is None else None

    async def start(self) -> None:
        """Start the process and wait until it is ready. Raises `ChildFailed`."""
        program = self._program
        started = time.monotonic()
        try:
            self._process = process = await program.spawn()
            await self._until_ready(process)
        except (OSError, TimeoutError, ChildFailed) as error:
            await self._end()
            why = str(error) or f"not ready within {program.ready_seconds:g} s"
            self.health = Health(ConnectionState.FAILED, why)
            if isinstance(error, ChildFailed):
                raise
            raise ChildFailed(f"the embedded {program.name} server did not start: {why}") from error
        except asyncio.CancelledError:
            await self._end()
            raise
        self.health = Health(ConnectionState.CONNECTED)
        log.info("embedded.started", server=program.name, duration_ms=round((time.monotonic() - started) * 1000))

    async def watch(self) -> None:
        """Restart the process whenever it ends, until cancelled."""
        shortest, longest = self._pause_seconds
        pause = shortest
        while True:
            started = time.monotonic()
            if self._process is not None:
                await self._process.wait()
                if self._stopping:
                    return
                if not self._given_up:  # else `give_up` has logged it
                    self._degrade(await self._why(self._process))
                self._given_up = False
            if time.monotonic() - started > CALM_SECONDS:
                pause = shortest
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311
            pause = min(pause * 2, longest)
            try:
                await self.start()
            except ChildFailed as error:
                self._degrade(str(error))

    def give_up(self, why: str) -> None:
        """Kill the process because it does not answer any more. `watch` starts the next one."""
        if self._process is None or self._process.returncode is not None or self._stopping:
            return
        self._given_up = True
        self._degrade(f"{why}, and was ended")
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def stop(self) -> None:
        """Terminate the process, and kill it after the program's ``stop_seconds``. Idempotent."""
        self._stopping = True
        await self._end()
        self.health = Health(ConnectionState.STOPPED)

    def _degrade(self, why: str) -> None:
        self.health = Health(ConnectionState.DEGRADED, why)
        log.warning("store.degraded", store=self._program.name, why=why)

    async def _why(self, process: Process) -> str:
        code = process.returncode or 0
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        output = await self._program.explain()
        return f"{how}: {output}" if output else how

    async def _until_ready(self, process: Process) -> None:
        """Wait until the process is ready, it ends, or the time is up."""
        async with asyncio.timeout(self._program.ready_seconds):
            ready = asyncio.ensure_future(self._program.until_ready(process))
            ended = asyncio.ensure_future(process.wait())
            try:
                await asyncio.wait((ready, ended), return_when=asyncio.FIRST_COMPLETED)
                if ended.done() or not ready.done():  # it may have been ready and then ended
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


MAX_SOCKET_PATH_BYTES = 100
"""The kernel allows 108 bytes on Linux and 104 on macOS (``sun_path``), with the closing zero."""


class UnsafeSocketFolder(Exception):
    """The folder for sockets in the temporary directory belongs to somebody else, or is open to others."""


def socket_path(data_dir: Path, name: str) -> Path:
    """Return the path of the socket *name* of *data_dir*, and create its folder with mode 0700.

    The path is under *data_dir* if that fits into `MAX_SOCKET_PATH_BYTES`. Else it is under a folder of this user in
    the temporary directory, named after a hash of the absolute *data_dir*, so that every process of the same user finds
    the same path. Blocks: call it in a thread. Raises `UnsafeSocketFolder` and `OSError`.
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
    """Create *folder*, or check that it is a real folder of this user that nobody else may enter."""
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise UnsafeSocketFolder(
            f"{folder} is not a private folder of this user; remove it, or set AGENT_RUNTIME_DATA_DIR to a shorter path"
        )
