"""The HTTP face of a whole runtime on a real socket, with its embedded stores, for tests."""

from __future__ import annotations

import asyncio
import functools
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from fastapi import FastAPI

from config.settings import Settings
from runtime.http import create_app, listen_tcp, serving
from runtime.observability import EventStream, Metrics, Redaction, events
from runtime.process import Runtime, open_runtime

ADMIN = "the-admin-token-of-the-tests"


@dataclass
class Face:
    """A running face. ``client`` speaks as the admin; `as_token` and `bare` as others."""

    runtime: Runtime
    app: FastAPI
    url: str
    client: httpx.AsyncClient

    def bare(self, **options: Any) -> httpx.AsyncClient:
        """A client without a token."""
        return httpx.AsyncClient(base_url=self.url, timeout=30, **options)

    def as_token(self, token: str) -> httpx.AsyncClient:
        """A client with another token."""
        return self.bare(headers={"Authorization": f"Bearer {token}"})

    async def token(self, workspace: str, role: str) -> str:
        """A new token."""
        made = await self.client.post("/v1/access", json={"action": "token", "workspace": workspace, "role": role})
        return str(made.json()["token"])

    async def event(self, name: str, **wanted: Any) -> dict[str, Any]:
        """The first event of that name with the fields *wanted*, stored or still to come."""
        async with self.client.stream("GET", "/v1/events", params={"event": name, "limit": 5000}) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    found: dict[str, Any] = json.loads(line.removeprefix("data: "))
                    if wanted.items() <= found.items():
                        return found
        raise AssertionError(f"the stream ended without {name}")

    async def workspace(self, workspace_id: str) -> str:
        """A workspace of that id."""
        await self.client.post("/v1/workspaces", json={"id": workspace_id})
        return f"/v1/workspaces/{workspace_id}"


@asynccontextmanager
async def serving_face(settings: Settings) -> AsyncIterator[Face]:
    """A face that lives as long as the block, with its index open."""
    stream, metrics = EventStream(), Metrics()

    def keep(event: events.Event, line: str) -> None:
        stream.put(line, event)
        metrics.observe(event)

    events.configure(Redaction.of(settings), keep=keep, silent=True)
    async with open_runtime(settings, stream) as runtime:
        app = create_app(runtime, metrics)
        listener = await asyncio.to_thread(listen_tcp, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        headers = {"Authorization": f"Bearer {ADMIN}"}
        async with (
            serving(app, [listener], settings.shutdown_grace_seconds),
            httpx.AsyncClient(base_url=url, headers=headers, timeout=30) as client,
            asyncio.TaskGroup() as tasks,
        ):
            supervisor = tasks.create_task(runtime.supervisor.run(runtime.accept))
            await runtime.knowledge.opened()
            await ready(client)
            yield Face(runtime, app, url, client)
            supervisor.cancel()


def let_go_of_apps() -> None:
    """Free the applications that are over: FastAPI remembers the last 4,096 functions that it was given, with all that
    they belong to, which is the runtimes of some thirty applications, of 40 MB each."""
    remembering = sys.modules.get("fastapi.dependencies.models")
    for kept in vars(remembering).values() if remembering else ():
        if isinstance(kept, functools._lru_cache_wrapper):
            kept.cache_clear()


async def ready(client: httpx.AsyncClient) -> None:
    """Wait until messages are accepted."""
    while (await client.get("/readyz")).status_code != 200:
        await asyncio.sleep(0.01)


def sse(text: str) -> list[tuple[str, dict[str, Any]]]:
    """The events in *text*, comments left out."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if fields:
            found.append((fields["event"], json.loads(fields["data"])))
    return found
