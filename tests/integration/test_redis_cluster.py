"""The same client on a cluster: three masters, real ones."""

# redis-py is partly untyped.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio as plain
from redis.asyncio import Redis

from config.settings import Settings
from connectors.message import Scope, StoreUnavailable, partition_tag, redis_key
from runtime.budget_terms import BudgetExceeded, Cost, Term
from runtime.budgets import Budgets
from runtime.embedded.child import die_with_parent
from runtime.embedded.redis_server import find_binary
from runtime.stores import connect
from tests.integration.test_forgetting import KEY, OTHER, House

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


@pytest.fixture
async def cluster(data_dir: Path) -> AsyncIterator[tuple[list[int], list[asyncio.subprocess.Process]]]:
    """Ports and processes of three masters that share the slots."""
    ports, binary = _free_ports(), find_binary()
    processes = []
    for port in ports:
        folder = data_dir / str(port)
        folder.mkdir()
        options = [
            "--port",
            str(port),
            "--bind",
            "127.0.0.1",
            "--dir",
            str(folder),
            "--save",
            "",
            "--loglevel",
            "warning",
        ]
        options += ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--logfile", str(folder / "log")]
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


@pytest.fixture
async def client(cluster: tuple[list[int], Any]) -> AsyncIterator[Redis]:
    places = ",".join(f"127.0.0.1:{port}" for port in cluster[0])
    made = connect(f"redis+cluster://{places}", 1.0)
    yield made
    await made.aclose()


def key(partition: int, *parts: str) -> str:
    return redis_key("test", partition_tag(partition), *parts)


async def test_commands_transactions_scripts_streams_and_blocking_reads_work(client: Redis) -> None:
    for partition in range(12):
        async with client.pipeline() as pipe:
            pipe.incr(key(partition, "n"))
            pipe.rpush(key(partition, "l"), "x")
            assert await pipe.execute() == [1, 1]
    script = client.register_script("return redis.call('incrby', KEYS[1], ARGV[1])")
    assert await script(keys=[key(3, "n")], args=[4]) == 5
    await client.xadd(key(1, "s"), {"k": "v"})
    await client.xgroup_create(key(1, "s"), "g", id="0")
    read: Any = await client.xreadgroup("g", "c", {key(1, "s"): ">"}, count=1)
    [[_, [(_, fields)]]] = read
    assert fields == {"k": "v"}
    assert not await client.xread({key(2, "s"): "$"}, block=1500)
    async with client.pipeline(transaction=False) as pipe:
        for partition in range(12):
            pipe.get(key(partition, "n"))
        assert (await pipe.execute()).count("1") == 11


async def test_what_is_forgotten_is_gone_from_every_node(client: Redis, data_dir: Path) -> None:
    house = House(client, data_dir)
    for number in (1, 2):
        await house.say(number)
    await house.say(3, OTHER)
    await house.transcript.begin_session(KEY, "m8")

    assert await house.forgetting.last(KEY, "m9")
    assert await house.transcript.last_turn(KEY) == "t1"
    await house.forgetting.everything(KEY, "m10")

    assert "answer 1" not in await house.everything_stored()
    assert await house.log(KEY) == []
    assert len(await house.log(OTHER)) == 2


async def test_budgets_are_kept_on_whichever_node_a_workspace_lies(client: Redis, data_dir: Path) -> None:
    budgets = Budgets(client, Settings(data_dir=data_dir, budget_workspace_tokens_per_day=100), 60.0)
    for number in range(12):
        scope = Scope(f"w{number}")
        await budgets.set(scope, {"user_tokens_per_day": 50})
        await budgets.reserve(scope, "t1", Cost(40), "http:lena")
        with pytest.raises(BudgetExceeded):
            await budgets.reserve(scope, "t2", Cost(40), "http:lena")
        await budgets.settle(scope, "t1", Cost(30), "http:lena")

    states = await budgets.states([Scope(f"w{number}") for number in range(12)])
    assert [state.left(Term("workspace", "tokens", "day")) for state in states] == [70] * 12


async def test_a_dead_master_is_an_outage_of_its_keys(client: Redis, cluster: tuple[list[int], Any]) -> None:
    for partition in range(12):
        await client.set(key(partition), "v")
    for process in cluster[1]:
        process.kill()
    for partition in range(3):
        with pytest.raises(StoreUnavailable):
            await client.get(key(partition))
        with pytest.raises(StoreUnavailable):
            async with client.pipeline() as pipe:
                pipe.incr(key(partition, "n"))
                await pipe.execute()
        with pytest.raises(StoreUnavailable):
            await client.register_script("return 1")(keys=[key(partition)])


async def test_a_cluster_that_is_not_there_is_an_outage() -> None:
    client = connect("redis+cluster://127.0.0.1:1,127.0.0.1:2", 0.5)
    with pytest.raises(StoreUnavailable):
        await client.get("k")
    with pytest.raises(StoreUnavailable):
        async with client.pipeline() as pipe:
            pipe.get("k")
            await pipe.execute()
    await client.aclose()


async def test_sentinels_that_are_not_there_are_an_outage() -> None:
    client = connect("redis+sentinel://127.0.0.1:1,127.0.0.1:2/mymaster", 0.5)
    with pytest.raises(StoreUnavailable):
        await client.get("k")
    await client.aclose()
