"""The web connector, and a page that sends what was written until it is taken, one message after the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast

import httpx
from starlette.applications import Starlette
from starlette.requests import Request

from connectors.message import ConversationKey, Role
from connectors.web import ChatPerson, File, ListedConversation, PastMessage, Session, WebConnector
from connectors.web.backend import COOKIE, Backend
from tests.contract.connector_suite import Place
from tests.emulators.web_page import shown


@dataclass(frozen=True)
class _Anybody:
    role: Role = Role.MEMBER
    workspace_id: str | None = None
    id: str = "token:test"
    name: str = "Ann"
    person: str = ""


class MemorySessions:
    """Sessions that end with the process."""

    def __init__(self) -> None:
        self.kept: dict[str, Session] = {}

    async def begin(self, token: str, session: Session) -> str:
        secret = f"secret-{len(self.kept)}-of-{token}"
        self.kept[secret] = session
        return secret

    async def find(self, secret: str) -> Session | None:
        return self.kept.get(secret)

    async def move(self, secret: str, workspace_id: str) -> Session | None:
        return self.kept.get(secret)

    async def end(self, secret: str) -> None:
        self.kept.pop(secret, None)


async def _authenticate(_request: Request) -> _Anybody:
    return _Anybody()


class NothingBefore:
    """A backend in which every conversation begins, and which keeps none."""

    async def has_workspace(self, workspace_id: str) -> bool:
        return True

    async def recent(self, key: ConversationKey, person: ChatPerson, limit: int) -> Sequence[PastMessage]:
        return ()

    async def add_message(
        self, key: ConversationKey, message_id: str, text: str, files: Sequence[File]
    ) -> ListedConversation:
        return ListedConversation("main", text, "2026-01-02T03:04:05Z")


def web_connector(sessions: MemorySessions | None = None) -> WebConnector:
    connector = WebConnector(
        _authenticate,
        lambda _request: None,
        sessions or MemorySessions(),
        max_body_bytes=1_000_000,
        max_file_bytes=1_000_000,
    )
    connector.backend = cast("Backend", NothingBefore())
    return connector


class WebHarness:
    places: tuple[Place, ...] = ("direct",)

    def __init__(self, client: httpx.AsyncClient, connector: WebConnector) -> None:
        self.connector = connector
        self.written: asyncio.Queue[str] = asyncio.Queue()
        self._client = client
        self._taken = 0

    async def say(self, place: Place, text: str) -> None:
        self.written.put_nowait(text)

    async def send_written(self) -> None:
        """The page's outbox."""
        while True:
            text = await self.written.get()
            body = {"id": f"message-{self._taken:08}", "conversation": "main", "text": text}
            while (await self._client.post("/chat/messages", json=body)).status_code == 503:
                await asyncio.sleep(0.01)
            self._taken += 1

    async def give(self, place: Place, command: str) -> None:
        self.written.put_nowait(f"/{command}")

    async def offered(self) -> list[str]:
        answer = await self._client.get("/chat/commands")
        return [command["name"] for command in answer.json()["commands"]]

    async def acknowledged(self) -> int:
        return self._taken

    async def shown(self, place: Place) -> list[str]:
        answer = await self._client.get("/chat/messages", params={"conversation": "main"})
        return [shown(item["nodes"]) for item in answer.json()["messages"] if item["by"] == "bot"]


@asynccontextmanager
async def web_harness() -> AsyncIterator[WebHarness]:
    sessions = MemorySessions()
    secret = await sessions.begin("token", Session("token:test", Role.MEMBER, "acme", "Ann"))
    connector = web_connector(sessions)
    transport = httpx.ASGITransport(Starlette(routes=list(connector.routes())))
    async with (
        httpx.AsyncClient(transport=transport, base_url="http://runtime.test", cookies={COOKIE: secret}) as client,
        asyncio.TaskGroup() as tasks,
    ):
        harness = WebHarness(client, connector)
        sending = tasks.create_task(harness.send_written())
        try:
            yield harness
        finally:
            sending.cancel()
