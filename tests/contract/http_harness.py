"""The HTTP connector, and a program that repeats a request until it is answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
from starlette.applications import Starlette
from starlette.requests import Request

from connectors.http import HttpConnector
from connectors.message import OutboundMessage, OutboundPart, Receipt, Role
from tests.contract.connector_suite import Place, eventually


@dataclass(frozen=True)
class _Anybody:
    role: Role = Role.MEMBER
    workspace_id: str | None = None
    id: str = "token:test"


async def _authenticate(_request: Request) -> _Anybody:
    return _Anybody()


class _CountingConnector(HttpConnector):
    """Knows how many requests were given an answer, which their client then has in a moment."""

    answered = 0

    async def send(self, message: OutboundMessage, part: OutboundPart) -> Receipt:
        self.answered += len(self._waiting.of(message.key, message.answers))
        return await super().send(message, part)


def http_connector() -> _CountingConnector:
    return _CountingConnector(_authenticate, max_body_bytes=1_000_000, wait_seconds=20)


class HttpHarness:
    places: tuple[Place, ...] = ("direct", "group")

    def __init__(self, client: httpx.AsyncClient, connector: _CountingConnector, tasks: asyncio.TaskGroup) -> None:
        self.connector = connector
        self._client = client
        self._tasks = tasks
        self._requests: list[asyncio.Task[None]] = []
        self._finished = 0
        self._shown: dict[Place, list[str]] = {"direct": [], "group": []}

    async def say(self, place: Place, text: str) -> None:
        number = len(self._requests)
        self._requests.append(self._tasks.create_task(self._ask(place, text, f"request-{number}")))

    async def _ask(self, place: Place, text: str, idempotency_key: str) -> None:
        body = {"text": text, "context": place, "direct": place == "direct", "author": {"id": "7", "name": "Ann"}}
        while True:
            response = await self._client.post(
                "/v1/workspaces/acme/messages", json=body, headers={"Idempotency-Key": idempotency_key}
            )
            if response.status_code != 503:
                break
            await asyncio.sleep(0.01)
        self._shown[place].append(response.json()["text"])
        self._finished += 1

    async def acknowledged(self) -> int:
        return self._finished

    async def shown(self, place: Place) -> list[str]:
        await eventually(lambda: self._finished >= self.connector.answered)
        return self._shown[place]

    def leave(self) -> None:
        for request in self._requests:
            request.cancel()


@asynccontextmanager
async def http_harness() -> AsyncIterator[HttpHarness]:
    connector = http_connector()
    transport = httpx.ASGITransport(Starlette(routes=list(connector.routes())))
    async with (
        httpx.AsyncClient(transport=transport, base_url="http://runtime.test") as client,
        asyncio.TaskGroup() as tasks,
    ):
        harness = HttpHarness(client, connector, tasks)
        try:
            yield harness
        finally:
            harness.leave()
