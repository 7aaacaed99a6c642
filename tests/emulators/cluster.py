"""A cluster of real servers: three masters on loopback."""

# redis-py is partly untyped.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import redis.asyncio as plain

from runtime.embedded.child import die_with_parent
from runtime.embedded.redis_server import find_binary

SLOTS = 16384
MASTERS = 3


def _free_ports() -> list[int]:
    """Ports whose cluster bus port (10000 above) exists too."""
    with contextlib.ExitStack() as stack:
        found: list[int] = []
        for candidate in range(21000, 40000):
            listener = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                listener.bind(("127.0.0.1", candidate))
                found.append(candidate)
            if len(found) == MASTERS:
                return found
    raise AssertionError("no free ports")


@asynccontextmanager
async def running_cluster(folder: Path) -> AsyncIterator[tuple[list[int], list[asyncio.subprocess.Process]]]:
    """Ports and processes of three masters that share the slots."""
    ports, binary = _free_ports(), find_binary()
    processes = []
    for port in ports:
        own = folder / str(port)
        own.mkdir()
        options = [
            "--port",
            str(port),
            "--bind",
            "127.0.0.1",
            "--dir",
            str(own),
            "--save",
            "",
            "--loglevel",
            "warning",
        ]
        options += ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--logfile", str(own / "log")]
        parent = die_with_parent(os.getpid(), signal.SIGKILL)
        processes.append(await asyncio.create_subprocess_exec(str(binary), *options, preexec_fn=parent))
    try:
        await _form(ports)
        yield ports, processes
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _form(ports: list[int]) -> None:
    clients = [plain.Redis(port=port, decode_responses=True) for port in ports]
    for n, client in enumerate(clients):
        first, last = n * SLOTS // MASTERS, (n + 1) * SLOTS // MASTERS - 1
        await client.execute_command("CLUSTER ADDSLOTSRANGE", first, last)
        await client.execute_command("CLUSTER SET-CONFIG-EPOCH", n + 1)
        await clients[0].execute_command("CLUSTER MEET", "127.0.0.1", ports[n])
    for client in clients:
        info: Any = {}
        while info.get("cluster_state") != "ok" or info.get("cluster_known_nodes") != str(MASTERS):
            await asyncio.sleep(0.05)
            info = await client.execute_command("CLUSTER INFO")
        await client.aclose()
