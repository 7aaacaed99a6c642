"""The same client on a cluster: three masters, real ones."""

# redis-py is partly untyped.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from config.settings import Settings
from connectors.message import Scope, StoreUnavailable, partition_tag, redis_key
from connectors.redis_calls import RedisCall, RoundTrip
from grounding.codex import CodexStore, Size
from grounding.memory.global_context import Editor, EditOrigin, GlobalContexts
from grounding.memory.records import NewRecord, Provenance, RecordHit, Records, RecordStore, Type
from grounding.prompt_input import load_tokens
from grounding.retrieval import IndexUnavailable
from runtime.billing import BudgetExceeded, Budgets, BudgetTerm
from runtime.billing.budgets import Cost
from runtime.operations import Actor, AuditEntry, AuditLog
from runtime.stores import connect
from tests.emulators.cluster import running_cluster
from tests.emulators.forgetting import KEY, OTHER, House
from tests.integration.delivery.test_deliverer import FIRST, Paper, Process, until_none_wait

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster() -> AsyncIterator[tuple[list[int], list[asyncio.subprocess.Process]]]:
    """Ports and processes of three masters that share the slots."""
    with tempfile.TemporaryDirectory(prefix="ar-") as folder:
        async with running_cluster(Path(folder)) as made:
            yield made


@pytest_asyncio.fixture(loop_scope="module")
async def client(cluster: tuple[list[int], Any]) -> AsyncIterator[Redis]:
    """A client of a cluster in which nothing is stored."""
    made = connect(url_of(cluster), 30.0)
    await made.flushall()
    yield made
    await made.aclose()


def url_of(cluster: tuple[list[int], Any]) -> str:
    return "redis+cluster://" + ",".join(f"127.0.0.1:{port}" for port in cluster[0])


def key(partition: int, *parts: str) -> str:
    return redis_key("test", partition_tag(partition), *parts)


async def test_commands_transactions_scripts_and_streams_work(client: Redis) -> None:
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
    async with client.pipeline(transaction=False) as pipe:
        for partition in range(12):
            pipe.get(key(partition, "n"))
        assert (await pipe.execute()).count("1") == 11


async def test_a_subscription_may_be_the_first_thing_that_is_asked_for(client: Redis) -> None:
    async with client.pubsub(ignore_subscribe_messages=True) as subscription:
        await subscription.subscribe("news")
        await subscription.get_message(timeout=1)
        await client.publish("news", "there is work")
        async with asyncio.timeout(5):
            while (message := await subscription.get_message(timeout=1)) is None:
                pass
    assert message["data"] == "there is work"


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
    budgets = Budgets(client, Settings(data_dir=data_dir, budget_workspace_tokens_per_day=100))
    for number in range(12):
        scope = Scope(f"w{number}")
        await budgets.set(scope, {"user_tokens_per_day": 50})
        await budgets.reserve(scope, "t1", Cost(40), "http:lena")
        with pytest.raises(BudgetExceeded):
            await budgets.reserve(scope, "t2", Cost(40), "http:lena")
        await budgets.settle(scope, "t1", Cost(30), "http:lena")

    states = await budgets.states([Scope(f"w{number}") for number in range(12)])
    assert [state.left(BudgetTerm("workspace", "tokens", "day")) for state in states] == [70] * 12


async def test_a_cluster_and_sentinels_that_are_not_there_are_an_outage() -> None:
    client = connect("redis+cluster://127.0.0.1:1,127.0.0.1:2", 0.5)
    with pytest.raises(StoreUnavailable):
        await client.pubsub().subscribe("news")
    with pytest.raises(StoreUnavailable):
        await client.get("k")
    with pytest.raises(StoreUnavailable):
        async with client.pipeline() as pipe:
            pipe.get("k")
            await pipe.execute()
    await client.aclose()
    sentinel = connect("redis+sentinel://127.0.0.1:1,127.0.0.1:2/mymaster", 0.5)
    with pytest.raises(StoreUnavailable):
        await sentinel.get("k")
    await sentinel.aclose()


async def test_a_thousand_commands_and_transactions_at_once_find_connections(client: Redis) -> None:
    async def both(number: int) -> list[Any]:
        async with client.pipeline() as pipe:
            pipe.set(key(number % 64, f"a{number}"), number)
            pipe.get(key(number % 64, f"a{number}"))
            return await pipe.execute()

    set_, done = await asyncio.gather(
        asyncio.gather(*(client.set(key(number % 64, f"b{number}"), number) for number in range(500))),
        asyncio.gather(*(both(number) for number in range(500))),
    )

    assert all(set_)
    assert done == [[True, str(number)] for number in range(500)]


async def test_replies_are_delivered_in_order_whichever_master_keeps_them(client: Redis, data_dir: Path) -> None:
    settings = Settings.model_validate({"data_dir": data_dir})
    shown: list[str] = []
    messages = [
        replace(
            FIRST, key=replace(FIRST.key, external_id=f"place{place}"), turn_id=f"t{number}", text=f"{place}.{number}"
        )
        for number in range(3)
        for place in range(8)
    ]
    worker = Process(client, settings, Paper(shown))
    for message in messages[:8]:  # nobody hears of these: they are found
        await worker.put(message)
    async with Process(client, settings, Paper(shown)).running() as process:
        for message in messages[8:]:
            await process.put(message)
        await until_none_wait(client)

    assert sorted(shown) == sorted(message.text for message in messages)
    for place in range(8):
        assert [text for text in shown if text.startswith(f"{place}.")] == [f"{place}.{n}" for n in range(3)]


async def test_every_step_of_the_global_context_stays_on_one_node(client: Redis) -> None:
    lines = GlobalContexts(client, load_tokens(), max_tokens=700, idle_seconds=1800)
    for workspace in ("acme", "beta", "gamma"):
        mine = Editor(Scope(workspace, "http:dm", "http:u1"), "turn")
        by = EditOrigin("http:u1", "t1", "model")
        await lines.append(Editor(Scope(workspace), "api"), "ours", by)
        await lines.append(mine, "mine", by)
        waits = (await lines.replace(mine, 1, "yours", by, waits=True)).waits
        await lines.approve(mine.scope, waits, "http:u1")
        assert [line.content for line in await lines.open(mine)] == ["ours", "yours"]
        await lines.forget_person(mine.scope)
        assert [line.content for line in await lines.open(mine) if line.content] == ["ours"]


async def test_every_step_of_the_typed_records_stays_on_one_node(client: Redis) -> None:
    class Nowhere:
        async def find(self, *_: object, **__: object) -> list[RecordHit]:
            return []

        async def follow(self, *_: object) -> None:
            raise IndexUnavailable("there is none here")

    store = RecordStore(client)
    records = Records(store, load_tokens(), Nowhere())
    for workspace in ("acme", "beta", "gamma"):
        mine, by = (
            Scope(workspace, "http:dm", "http:u1"),
            Provenance(author="http:u1", turn_id="t1", context_id="http:dm"),
        )
        ours = (await records.add(Scope(workspace), NewRecord(Type.FACT, "ours", verbatim=True), by, "k")).record
        old = (await records.add(mine, NewRecord(Type.FACT, "mine", created_at="2020-01-01"), by)).record
        new = (await records.add(mine, NewRecord(Type.FACT, "yours", supersedes=old.id), by)).record
        await records.change(mine, ours.id, {"confirm": True}, by, "k2")
        await records.count_use(mine, [ours.id, new.id])
        assert [one.text for one in await records.list(mine)] == ["yours", "ours", "mine"]
        assert [one.id for one in await records.standing(mine)] == [ours.id]
        assert len(await records.history(mine, ours.id)) == 3
        assert await store.indexed(mine, {new.id: 2}) == []
        assert not await records.catch_up(Scope(workspace))
        await records.sweep(Scope(workspace))
        assert await records.forget(mine) == 2
    assert await store.behind() == ["acme", "beta", "gamma"]


async def test_material_is_kept_on_whichever_node_its_workspace_lies(client: Redis) -> None:
    store = CodexStore(client, max_bytes=10_000, file_max_bytes=5000)
    for number in range(6):
        scope = Scope(f"w{number}", "http:den")
        for owner in (Scope(scope.workspace_id), scope):
            await store.put(owner, "a.md", "first", Size(2, 3, 5))
            await store.put(owner, "b.md", "second", Size(2, 3, 6))
        await store.keep_mode(scope, 8192, "search")
        await store.delete(scope, "a.md")
        held = await store.held(scope, 8192)
        assert (held.every.files, held.own.files, held.before) == (2, 1, "search")
        assert await store.texts(Scope(scope.workspace_id), ["a.md", "b.md", "c.md"]) == {
            "a.md": "first",
            "b.md": "second",
        }
    assert len(await store.waiting()) == 6


async def test_audit_logs_are_kept_on_whichever_node_their_workspaces_lie(client: Redis) -> None:
    clock = [1_800_000_000.0]
    log = AuditLog(client, b"a key of sufficient length", clock=lambda: clock[0])
    eve = Actor("telegram:7", "Eve")
    for workspace in (None, "acme", "beta", "gamma"):
        for _ in range(2):
            entry = AuditEntry(operation="x", actor=eve, face="cli", workspace_id=workspace, origin="here")
            await log.append(entry)
        assert (await log.verify(workspace)).is_intact
    assert await log.erase_actor("telegram:7")
    assert {row.actor.id for row in (await log.read("beta")).rows} == {""}
    await log.append(AuditEntry(operation="x", actor=eve, face="cli", workspace_id="acme"))
    clock[0] += 500 * 24 * 3600
    await log.prune_all(["acme", "beta", "gamma"])
    for workspace in (None, "acme", "beta", "gamma"):
        assert (await log.verify(workspace)).is_intact
        assert (await log.read(workspace)).rows == []
    assert not await log.erase_actor("telegram:7")


async def test_dead_masters_are_an_outage_of_their_keys(cluster: tuple[list[int], Any]) -> None:
    """The last of these tests: the cluster is gone after it."""
    client = connect(url_of(cluster), 1.0)
    for partition in range(12):
        await client.set(key(partition), "v")
    for port in cluster[0]:
        async with Redis(port=port) as master:
            await master.config_set("cluster-require-full-coverage", "no")
    cluster[1][0].kill()
    trip = RoundTrip(client)
    answers = [trip.add(RedisCall.of("GET", key(partition), parse=str)) for partition in range(12)]
    await trip.send()
    outages = 0
    for answer in answers:
        try:
            assert answer.result() == "v"
        except StoreUnavailable:
            outages += 1
    assert 0 < outages < 12

    for process in cluster[1][1:]:
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
    await client.aclose()
