"""The process: it starts, says where it listens, survives its store, and ends in order."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
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
async def process(data_dir: Path, provider: openai.FakeOpenAI, **settings: str) -> AsyncIterator[Process]:
    environment = {
        "DATA_DIR": str(data_dir),
        "HTTP_PORT": "0",
        "ADMIN_TOKEN": ADMIN,
        "LLM_MODEL": "openai/fake",
        "LLM_API_BASE": provider.base_url,
        "LLM_API_KEY": "key",
        "SHUTDOWN_GRACE_SECONDS": "10",
        **settings,
    }
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "runtime",
        "serve",
        env={**os.environ, **{f"AGENT_RUNTIME_{name}": value for name, value in environment.items()}},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
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


async def test_it_answers_on_both_sockets_and_ends_in_order(data_dir: Path, openai_server: openai.FakeOpenAI) -> None:
    """TCP and the unix socket (for its owner only) are one application; SIGTERM ends it with 0 and cleans up."""
    async with process(data_dir, openai_server) as running, client_of(running) as client:
        sample = "/v1/workspaces/sample/messages"
        assert (await client.post(sample, json={"text": "hello"})).status_code == 200
        path = socket_path(data_dir, "runtime.sock")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        transport = httpx.AsyncHTTPTransport(uds=str(path))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=client.headers) as local:
            assert (await local.get("/v1/workspaces")).status_code == 200
        follower = asyncio.create_task(client.get("/v1/events"))  # a stream that would last for ever
        running.child.send_signal(signal.SIGTERM)
        assert await running.end() == 0
        await asyncio.wait([follower])
        assert not path.exists()
        names = [event["event"] for event in running.events]
        assert names.index("serve.stopping") < names.index("serve.stopped")


async def test_an_answer_in_hand_is_still_given_when_it_stops(data_dir: Path, openai_server: openai.FakeOpenAI) -> None:
    """A request that waits when SIGTERM comes gets its answer; a new one is refused."""
    asked, go = asyncio.Event(), asyncio.Event()
    openai_server.chunk_delay_seconds = 0.05

    def answer(body: dict[str, Any]) -> str:
        asked.set()
        return "word " * 20

    openai_server.answer = answer
    async with process(data_dir, openai_server) as running, client_of(running) as client:
        headers = {"Accept": "text/event-stream"}
        body = {"text": "a long story"}
        async with client.stream("POST", "/v1/workspaces/sample/messages", json=body, headers=headers) as stream:
            text = ""
            async for piece in stream.aiter_text():
                text += piece
                if "delta" in text and not go.is_set():
                    go.set()
                    running.child.send_signal(signal.SIGINT)
        assert "event: done" in text
        with pytest.raises(httpx.ConnectError):
            while True:
                # What was connected before the socket closed is cut off; who comes after it is not let in at all.
                with contextlib.suppress(httpx.RemoteProtocolError, httpx.ReadError):
                    await client.get("/healthz")
        assert await running.end() == 0


async def test_who_waits_when_the_grace_is_over_is_told_how_to_have_the_answer(
    data_dir: Path, openai_server: openai.FakeOpenAI
) -> None:
    """The whole stop takes the grace period once, however long the model hangs."""
    openai_server.will(*["hang"] * 4)
    async with process(data_dir, openai_server, SHUTDOWN_GRACE_SECONDS="2") as running, client_of(running) as client:
        sample = "/v1/workspaces/sample/messages"
        plain = asyncio.create_task(client.post(sample, json={"text": "hello", "context": "a"}))
        streaming = {"Accept": "text/event-stream"}
        stream = asyncio.create_task(client.post(sample, json={"text": "hi", "context": "b"}, headers=streaming))
        while len(openai_server.requests) < 2:
            await asyncio.sleep(0.01)
        running.child.send_signal(signal.SIGTERM)
        stopping = await running.event("serve.stopping")
        stopped = await running.event("serve.stopped")
        assert await running.end() == 0

        assert ((await plain).status_code, (await plain).json()["error"]["code"]) == (503, "stopping")
        assert '"code": "stopping"' in (await stream).text
        moments = [datetime.fromisoformat(event["timestamp"]) for event in (stopping, stopped)]
        assert moments[1] - moments[0] < timedelta(seconds=3.9)  # 2 s for HTTP and 2 s for turns would be more


async def test_a_second_signal_ends_it_at_once(data_dir: Path, openai_server: openai.FakeOpenAI) -> None:
    """While a turn hangs the first signal waits for it; the second does not."""
    openai_server.will("hang")
    async with process(data_dir, openai_server) as running, client_of(running) as client:
        hanging = asyncio.create_task(client.post("/v1/workspaces/sample/messages", json={"text": "hello"}))
        await running.event("grounding.assembled")
        running.child.send_signal(signal.SIGTERM)
        await running.event("serve.stopping")
        running.child.send_signal(signal.SIGTERM)
        assert await running.end() == 128 + signal.SIGTERM
        await asyncio.wait([hanging])


async def test_a_killed_store_comes_back_and_nothing_breaks(data_dir: Path, openai_server: openai.FakeOpenAI) -> None:
    """Redis killed: messages are 503 or answered, never lost; the process lives, restarts it and goes on."""
    async with process(data_dir, openai_server) as running, client_of(running) as client:
        sample = "/v1/workspaces/sample/messages"
        assert (await client.post(sample, json={"text": "hello"})).status_code == 200
        os.kill(store_pid(data_dir), signal.SIGKILL)
        while True:
            answer = await client.post(sample, json={"text": "still there?"})
            if answer.status_code == 200:
                break
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_unavailable")
        assert running.child.returncode is None
        await ready(client)


async def test_while_the_store_hangs_nothing_is_acknowledged(data_dir: Path, openai_server: openai.FakeOpenAI) -> None:
    """503 on messages and readiness, the process alive and saying so; and it resumes by itself."""
    async with process(data_dir, openai_server, REDIS_TIMEOUT_SECONDS="0.3") as running, client_of(running) as client:
        sample = "/v1/workspaces/sample/messages"
        assert (await client.post(sample, json={"text": "hello"})).status_code == 200
        store = store_pid(data_dir)
        os.kill(store, signal.SIGSTOP)
        try:
            refused = await client.post(sample, json={"text": "are you there?"})
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
        while (await client.post(sample, json={"text": "and now?"})).status_code != 200:
            assert running.child.returncode is None


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


async def test_a_port_in_use_is_a_clear_error(data_dir: Path, openai_server: openai.FakeOpenAI) -> None:
    """It names the setting and who may hold the port, before anything is opened."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        async with process(data_dir, openai_server, HTTP_PORT=str(port)) as running:
            assert await running.end() == 1
            assert running.child.stderr is not None
            told = (await running.child.stderr.read()).decode()
    assert f"AGENT_RUNTIME_HTTP_PORT={port}" in told
    assert "another program" in told
    assert "Traceback" not in told
    assert not (data_dir / "redis").exists()


async def test_a_grounding_number_that_is_none_falls_back_with_an_event(
    data_dir: Path, openai_server: openai.FakeOpenAI
) -> None:
    """Each is named by one warning among the events, with what was set and what holds."""
    wrong = {"LLM_GROUNDING_TOP_K": "many", "LLM_GROUNDING_QMD_MAX_TOKENS": "0"}
    async with process(data_dir, openai_server, **wrong) as running:
        await running.event("http.listening")
    warnings = [event for event in running.events if event["event"] == "setting.fallen_back"]
    assert [(one["level"], one["variable"], one["value"], one["default"]) for one in warnings] == [
        ("warning", "AGENT_RUNTIME_LLM_GROUNDING_TOP_K", "many", 3),
        ("warning", "AGENT_RUNTIME_LLM_GROUNDING_QMD_MAX_TOKENS", "0", 900),
    ]


async def test_a_second_process_of_one_folder_is_refused(data_dir: Path, openai_server: openai.FakeOpenAI) -> None:
    """Two processes never share a data folder; a stale socket does not count as one."""
    stale = await asyncio.to_thread(listen_unix, socket_path(data_dir, "runtime.sock"))
    stale.close()
    async with process(data_dir, openai_server) as running, client_of(running):
        with pytest.raises(DataDirInUse, match="AGENT_RUNTIME_DATA_DIR"):
            await asyncio.to_thread(listen_unix, socket_path(data_dir, "runtime.sock"))
        async with process(data_dir, openai_server) as second:
            said, complained = await second.child.communicate()
        assert second.child.returncode == 1
        assert said == b""  # nothing was begun: neither an engine nor a store
        assert f"process {running.child.pid} serves this data folder already".encode() in complained
        port = int(running.events[-1].get("port", 0)) or next(e["port"] for e in running.events if "port" in e)
        with pytest.raises(CannotListen, match="in use by another program"):
            await asyncio.to_thread(listen_tcp, "127.0.0.1", port)


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


def test_what_is_refused_for_its_role_starts_nothing_and_makes_no_folder(data_dir: Path) -> None:
    folder = data_dir / "new"
    own = {name: value for name, value in os.environ.items() if not name.startswith("AGENT_RUNTIME_")}
    command = [sys.executable, "-m", "runtime", "serve", "--role", "worker"]
    refused = subprocess.run(
        command, env=own | {"AGENT_RUNTIME_DATA_DIR": str(folder)}, capture_output=True, text=True, check=False
    )
    assert refused.returncode == 2
    assert "QDRANT_URL" in refused.stderr
    assert not folder.exists()


def test_a_process_without_a_chat_page_names_none(data_dir: Path) -> None:
    with listen_tcp("127.0.0.1", 0) as tcp, listen_unix(socket_path(data_dir, "runtime.sock")) as unix:
        url = f"http://127.0.0.1:{tcp.getsockname()[1]}"
        of_a_worker, of_a_gateway = addresses([tcp]), addresses([tcp, unix])
    assert of_a_worker["url"] == url
    assert not {"chat", "socket"} & of_a_worker.keys()
    assert of_a_gateway["chat"] == f"{url}/chat"
