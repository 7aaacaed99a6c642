"""The process: it starts, says where it listens, survives its store, and ends in order."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest

from config.settings import Settings
from runtime.embedded import socket_path
from runtime.http import listen_tcp, listen_unix
from runtime.http.server import CannotListen
from runtime.process.serve import RoleUnavailable, addresses, check_role
from runtime.stores import DataDirInUse
from tests.emulators import openai
from tests.emulators.face import ADMIN, ready

SECONDS = 90
MESSAGES = "/v1/workspaces/sample/messages"


@dataclass
class Process:
    """A process that serves; ``events`` are what it has printed so far."""

    child: asyncio.subprocess.Process
    events: list[dict[str, Any]]
    data_dir: Path

    async def event(self, name: str) -> dict[str, Any]:
        """Read on until that event is printed."""
        assert self.child.stdout is not None
        while line := await self.child.stdout.readline():
            self.events.append(json.loads(line))
            if self.events[-1]["event"] == name:
                return self.events[-1]
        raise AssertionError(f"ended without {name}: {self.events[-5:]}")

    async def end(self) -> int:
        """Read what is left; the exit code."""
        assert self.child.stdout is not None
        async for line in self.child.stdout:
            self.events.append(json.loads(line))
        return await self.child.wait()


@asynccontextmanager
async def process(
    data_dir: Path, provider: openai.FakeOpenAI, command: Sequence[str] = ("serve",), **settings: str
) -> AsyncIterator[Process]:
    """A process of its own, which SIGINT reaches even if whoever runs the tests ignores it."""
    environment = {
        "DATA_DIR": str(data_dir),
        "HTTP_PORT": "0",
        "ADMIN_TOKEN": ADMIN,
        "LLM_MODEL": "openai/fake",
        "LLM_API_BASE": provider.base_url,
        "LLM_API_KEY": "key",
        "SHUTDOWN_GRACE_SECONDS": "10",
        "DEEP_EMBEDDING_MODEL": "none",
        **settings,
    }
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "runtime",
        *command,
        env={**os.environ, **{f"AGENT_RUNTIME_{name}": value for name, value in environment.items()}},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        limit=1_000_000,
    )
    try:
        async with asyncio.timeout(SECONDS):
            yield Process(child, [], data_dir)
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


@asynccontextmanager
async def client_of(running: Process) -> AsyncIterator[httpx.AsyncClient]:
    listening = await running.event("http.listening")
    headers = {"Authorization": f"Bearer {ADMIN}"}
    async with httpx.AsyncClient(base_url=listening["url"], headers=headers, timeout=SECONDS) as client:
        await ready(client)
        yield client


async def test_a_process_serves_its_folder_alone_outlives_a_store_that_hangs_and_ends_in_order(
    data_dir: Path, openai_server: openai.FakeOpenAI
) -> None:
    """TCP and the unix socket (for its owner only) are one application, and commands find it; SIGTERM ends it."""
    path = await asyncio.to_thread(socket_path, data_dir, "runtime.sock")
    stale = await asyncio.to_thread(listen_unix, path)  # of a process that is gone
    stale.close()
    numbers = {"LLM_GROUNDING_TOP_K": "many", "LLM_GROUNDING_QMD_MAX_TOKENS": "0"}
    async with process(data_dir, openai_server, REDIS_TIMEOUT_SECONDS="1", **numbers) as running:
        async with client_of(running) as client:
            warnings = [event for event in running.events if event["event"] == "setting.fallen_back"]
            assert [(one["level"], one["variable"], one["value"], one["default"]) for one in warnings] == [
                ("warning", "AGENT_RUNTIME_LLM_GROUNDING_TOP_K", "many", 3),
                ("warning", "AGENT_RUNTIME_LLM_GROUNDING_QMD_MAX_TOKENS", "0", 900),
            ]
            await is_reached_by_both_sockets(path, client)
            await is_alone(running, openai_server)
            await acknowledges_nothing_while_the_store_hangs(running, client)

            follower = asyncio.create_task(client.get("/v1/events"))  # a stream that would last for ever
            running.child.send_signal(signal.SIGTERM)
            assert await running.end() == 0
            await asyncio.wait([follower])
        assert not path.exists()
        names = [event["event"] for event in running.events]
        assert names.index("serve.stopping") < names.index("serve.stopped")
        assert names.count("turn.answered") >= 2  # the command's turn was its own, too


async def is_reached_by_both_sockets(path: Path, client: httpx.AsyncClient) -> None:
    assert (await client.post(MESSAGES, json={"text": "hello"})).status_code == 200
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    transport = httpx.AsyncHTTPTransport(uds=str(path))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=client.headers) as local:
        assert (await local.get("/v1/workspaces")).status_code == 200


async def is_alone(running: Process, provider: openai.FakeOpenAI) -> None:
    """A second process is refused before it opens anything; a command takes the one that there is."""
    with pytest.raises(DataDirInUse, match="AGENT_RUNTIME_DATA_DIR"):
        await asyncio.to_thread(listen_unix, socket_path(running.data_dir, "runtime.sock"))
    async with process(running.data_dir, provider) as second:
        said, complained = await second.child.communicate()
    assert (second.child.returncode, said) == (1, b"")
    assert f"process {running.child.pid} serves this data folder already".encode() in complained
    port = next(event["port"] for event in running.events if "port" in event)
    with pytest.raises(CannotListen, match="in use by another program"):
        await asyncio.to_thread(listen_tcp, "127.0.0.1", port)
    async with process(running.data_dir, provider, command=("chat", "-m", "hello", "--json")) as chat:
        answer, complained = await chat.child.communicate()
    assert (chat.child.returncode, complained) == (0, b"")
    assert json.loads(answer)["text"] == "You said: hello"


async def acknowledges_nothing_while_the_store_hangs(running: Process, client: httpx.AsyncClient) -> None:
    """503 on messages and readiness, the process alive and saying so; and it resumes by itself."""
    store = store_pid(running.data_dir)
    os.kill(store, signal.SIGSTOP)
    try:
        refused = await client.post(MESSAGES, json={"text": "are you there?"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_unavailable")
        assert (await client.get("/healthz")).status_code == 200
        away = await client.get("/readyz")
        assert (away.status_code, away.json()["ready"]) == (503, False)
        assert away.json()["stores"]["redis"]["state"] != "connected"
        assert (await client.get("/metrics")).status_code == 200
        listed = await client.get("/v1/workspaces")
        assert (listed.status_code, listed.headers["Retry-After"]) == (503, "1")
    finally:
        os.kill(store, signal.SIGCONT)
    await ready(client)
    while (await client.post(MESSAGES, json={"text": "and now?"})).status_code != 200:
        assert running.child.returncode is None


async def test_while_it_stops_answers_in_hand_are_given_and_who_waits_to_the_end_is_told_how_to_have_theirs(
    data_dir: Path, openai_server: openai.FakeOpenAI
) -> None:
    """A new request is refused. The whole stop takes the grace period once, however long the model hangs."""
    openai_server.will("hang", "hang", "word " * 20)
    openai_server.chunk_delay_seconds = 0.02
    streamed = {"Accept": "text/event-stream"}
    async with process(data_dir, openai_server, SHUTDOWN_GRACE_SECONDS="5") as running, client_of(running) as client:
        plain = asyncio.create_task(client.post(MESSAGES, json={"text": "hello", "context": "a"}))
        stream = asyncio.create_task(client.post(MESSAGES, json={"text": "hi", "context": "b"}, headers=streamed))
        while len(openai_server.requests) < 2:
            await asyncio.sleep(0.01)
        body, text = {"text": "a long story", "context": "c"}, ""
        async with client.stream("POST", MESSAGES, json=body, headers=streamed) as in_hand:
            async for piece in in_hand.aiter_text():
                if not text:
                    running.child.send_signal(signal.SIGINT)
                text += piece
        assert "event: done" in text
        stopping = await running.event("serve.stopping")
        with pytest.raises(httpx.ConnectError):
            while True:
                # What was connected before the socket closed is cut off; who comes after it is not let in at all.
                with contextlib.suppress(httpx.RemoteProtocolError, httpx.ReadError):
                    await client.get("/healthz")
        stopped = await running.event("serve.stopped")
        assert await running.end() == 0

        assert ((await plain).status_code, (await plain).json()["error"]["code"]) == (503, "stopping")
        assert '"code": "stopping"' in (await stream).text
        moments = [datetime.fromisoformat(event["timestamp"]) for event in (stopping, stopped)]
        assert moments[1] - moments[0] < timedelta(seconds=9.5)  # 5 s for HTTP and 5 s for turns would be more


async def test_a_second_signal_ends_it_at_once(data_dir: Path, openai_server: openai.FakeOpenAI) -> None:
    """While a turn hangs the first signal waits for it; the second does not."""
    openai_server.will("hang")
    async with process(data_dir, openai_server) as running, client_of(running) as client:
        hanging = asyncio.create_task(client.post(MESSAGES, json={"text": "hello"}))
        await running.event("grounding.assembled")
        running.child.send_signal(signal.SIGTERM)
        await running.event("serve.stopping")
        running.child.send_signal(signal.SIGTERM)
        assert await running.end() == 128 + signal.SIGTERM
        await asyncio.wait([hanging])


def store_pid(data_dir: Path) -> int:
    """The process of the embedded server of *data_dir*."""
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes()
            working = os.readlink(entry / "cwd")
        except OSError:
            continue
        if b"valkey" in command and (str(data_dir).encode() in command or working.startswith(str(data_dir))):
            return int(entry.name)
    raise AssertionError("no embedded server runs")


@pytest.mark.parametrize("role", ["gateway", "worker"])
def test_roles_apart_are_refused_where_nothing_is_shared(role: Literal["gateway", "worker"], data_dir: Path) -> None:
    """Nothing half-works in silence: the error says what to use and what is missing."""
    with pytest.raises(RoleUnavailable, match="AGENT_RUNTIME_REDIS_URL") as raised:
        check_role(Settings(data_dir=data_dir), role)
    assert raised.value.exit_code == 2
    assert "--role all" in str(raised.value)
    check_role(Settings(data_dir=data_dir), "all")
    shared = {"data_dir": data_dir, "redis_url": "redis://r:1", "qdrant_url": "http://q:1"}
    check_role(Settings.model_validate(shared), role)


def test_a_process_without_a_chat_page_names_none(data_dir: Path) -> None:
    with listen_tcp("127.0.0.1", 0) as tcp, listen_unix(socket_path(data_dir, "runtime.sock")) as unix:
        url = f"http://127.0.0.1:{tcp.getsockname()[1]}"
        of_a_worker, of_a_gateway = addresses([tcp]), addresses([tcp, unix])
    assert of_a_worker["url"] == url
    assert not {"chat", "socket"} & of_a_worker.keys()
    assert of_a_gateway["chat"] == f"{url}/chat"
