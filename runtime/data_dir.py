"""The folder under which everything is kept: made where it is missing, usable, and used by one process at a time."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import struct
from pathlib import Path

from connectors.message import AgentRuntimeError
from runtime.embedded.sockets import socket_path

SOCKET_NAME = "runtime.sock"
"""Of the unix socket in DATA_DIR on which a running process answers commands."""
_PROBE_SECONDS = 1.0


class DataDirUnusable(AgentRuntimeError):
    """DATA_DIR cannot be made, or this user may not write there; the text says what to do."""


class DataDirInUse(AgentRuntimeError):
    """Another process answers for DATA_DIR; the text says which, and what to do."""


async def prepare_data_dir(path: Path) -> None:
    """Make the folder *path*, for this user alone, where it is missing. Raises `DataDirUnusable`."""
    await asyncio.to_thread(_prepare, path)


def _prepare(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(path, f"cannot be made a folder ({error.strerror})") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise _unusable(path, "this user may not write there")
    shutil.rmtree(path / "gone", ignore_errors=True)  # vectors of deleted documents, which earlier versions kept


def _unusable(path: Path, why: str) -> DataDirUnusable:
    return DataDirUnusable(
        f"AGENT_RUNTIME_DATA_DIR={path}: {why}; let this user write there, or set it to another folder"
    )


async def check_unused(path: Path) -> None:
    """Raises `DataDirInUse` where a process runs on the folder *path*, which is there."""
    await asyncio.to_thread(lambda: check_unanswered(socket_path(path, SOCKET_NAME)))


def check_unanswered(path: Path) -> None:
    """Raises `DataDirInUse` where a process answers on the socket at *path*. Blocking."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(_PROBE_SECONDS)
        try:
            client.connect(str(path))
        except OSError:
            return
        pid = _peer(client)
    process, stop = (f"process {pid}", f"stop it (`kill {pid}`)") if pid else ("a process", "stop it")
    raise DataDirInUse(
        f"{process} serves this data folder already (it answers on {path}): {stop}, or set AGENT_RUNTIME_DATA_DIR to "
        "another folder and AGENT_RUNTIME_HTTP_PORT to another port"
    )


def _peer(client: socket.socket) -> int | None:
    """The id of the process that *client* is connected to, where the system tells it."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    pid, _, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(pid) or None
