"""A cluster of real servers: three masters on loopback, where wanted with a replica each."""

# redis-py is partly untyped.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import redis.asyncio as plain

from runtime.embedded import die_with_parent
from runtime.embedded.redis import find_binary

SLOTS = 16384
MASTERS = 3


def _free_ports(count: int) -> list[int]:
    """Ports that are free, and so is the cluster's bus 10000 above each. They lie below those that the system gives to
    connections. The search begins anywhere, because another process that looks at the same moment would find the same
    ones."""
    with contextlib.ExitStack() as stack:
        found: list[int] = []
        for candidate in range(random.randrange(12_000, 22_000), 22_700):
            port, bus = stack.enter_context(socket.socket()), stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                port.bind(("127.0.0.1", candidate))
                bus.bind(("127.0.0.1", candidate + 10_000))
                found.append(candidate)
            if len(found) == count:
                return found
    raise AssertionError("no free ports")


@asynccontextmanager
async def running_cluster(
    folder: Path, *, replicas: bool = False
) -> AsyncIterator[tuple[list[int], list[asyncio.subprocess.Process]]]:
    """Ports and processes of three masters that share the slots, and then of the replica of each, in the same order."""
    ports, binary = _free_ports(2 * MASTERS if replicas else MASTERS), find_binary()
    # Who is slow for a moment, as the whole machine may be, is not to be replaced for that.
    options = ["--bind", "127.0.0.1", "--save", "", "--loglevel", "warning", "--cluster-enabled", "yes"]
    options += ["--cluster-node-timeout", "2000" if replicas else "1000", "--repl-diskless-sync-delay", "0"]
    processes = []
    for port in ports:
        own = folder / str(port)
        own.mkdir()
        here = ["--port", str(port), "--dir", str(own), "--logfile", str(own / "log")]
        parent = die_with_parent(os.getpid(), signal.SIGKILL)
        processes.append(await asyncio.create_subprocess_exec(str(binary), *options, *here, preexec_fn=parent))
    try:
        await _form(ports[:MASTERS])
        if replicas:
            await _replicate(ports)
        yield ports, processes
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def kill_caught_up(master: int, replica: int, process: asyncio.subprocess.Process) -> None:
    """``kill -9`` of the *process* of the server at port *master*, in a moment in which the one at *replica* has all
    that it has acknowledged: meanwhile it takes no writes."""
    async with plain.Redis(port=master) as dying, plain.Redis(port=replica) as heir:
        await dying.client_pause(60_000, all=False)
        at: Any = await dying.info("replication")
        while (await heir.info("replication"))["slave_repl_offset"] < at["master_repl_offset"]:
            await asyncio.sleep(0.005)
        process.kill()
        await process.wait()


async def promoted(replica: int) -> None:
    """Wait until the server at port *replica* serves in the place of its master."""
    async with plain.Redis(port=replica) as heir:
        while (await heir.info("replication"))["role"] != "master":
            await asyncio.sleep(0.05)


async def _replicate(ports: list[int]) -> None:
    clients = [plain.Redis(port=port, decode_responses=True) for port in ports]
    for port in ports[MASTERS:]:
        await clients[0].execute_command("CLUSTER MEET", "127.0.0.1", port)
    for client in clients:
        await _until(client, "CLUSTER INFO", "cluster_known_nodes", str(len(ports)))
    for master, replica in zip(clients[:MASTERS], clients[MASTERS:], strict=True):
        name = await master.execute_command("CLUSTER MYID")
        while name not in str(await replica.execute_command("CLUSTER NODES")):
            await asyncio.sleep(0.05)
        await replica.execute_command("CLUSTER REPLICATE", name)
    for client in clients[MASTERS:]:
        await _until(client, "INFO replication", "master_link_status", "up")
    for client in clients:
        await client.aclose()


async def _until(client: plain.Redis, command: str, name: str, value: str) -> None:
    info: Any = {}
    while info.get(name) != value:
        await asyncio.sleep(0.05)
        info = await client.execute_command(*command.split() if command.startswith("INFO") else [command])


async def _form(ports: list[int]) -> None:
    clients = [plain.Redis(port=port, decode_responses=True) for port in ports]
    for n, client in enumerate(clients):
        first, last = n * SLOTS // MASTERS, (n + 1) * SLOTS // MASTERS - 1
        await client.execute_command("CLUSTER ADDSLOTSRANGE", first, last)
        await client.execute_command("CLUSTER SET-CONFIG-EPOCH", n + 1)
        await clients[0].execute_command("CLUSTER MEET", "127.0.0.1", ports[n])
    for client in clients:
        await _until(client, "CLUSTER INFO", "cluster_state", "ok")
        await _until(client, "CLUSTER INFO", "cluster_known_nodes", str(MASTERS))
        await client.aclose()
