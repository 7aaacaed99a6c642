"""A whole bot in this process: real embedded Redis and Qdrant, real HTTP face, an emulated model provider."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import structlog
from starlette.applications import Starlette

from config.settings import Settings
from connectors.connector import Connector
from connectors.message import Scope
from runtime.embedded import background_task
from runtime.observability import EventStream, Redaction, events
from runtime.process import ALL_PARTS, Part, Runtime, Timings, open_runtime
from tests.emulators import openai
from tests.emulators.jobs import until_idle
from tests.emulators.openai import FakeOpenAI, in_background

DOCUMENTS = {
    "pricing.md": "# Pricing policy\n\n## Plans\n\nThe harbour plan costs 12 euros a month. The ocean plan costs 40.\n",
    "refunds.md": "# Refund policy\n\n## Windows\n\nA refund can be asked for within 30 days of delivery.\n",
    "oncall.md": "# On-call runbook\n\n## Paging\n\nPage the duty captain at once when the lighthouse alarm rings.\n",
}

QUICK = Timings(sweep_seconds=0.05, jobs_sweep_seconds=0.05, retry_seconds=(0.01, 0.02))
"""For a bot whose store, worker or process is disturbed: it goes on at once."""


@dataclass
class Bot:
    """People talk to it with `say`; ``model.requests`` are what the provider was sent."""

    runtime: Runtime
    model: FakeOpenAI
    http: httpx.AsyncClient
    events: list[dict[str, Any]] = field(default_factory=list)
    workspace: str = "acme"
    """Where people talk to it if they do not say where."""
    first_event: int = 0
    first_request: int = 0

    async def in_workspace(self, workspace: str) -> Bot:
        """The same bot for a test that shares it: in a workspace of its own with `DOCUMENTS`, as if just started."""
        await self.write_documents(workspace, DOCUMENTS)
        return replace(self.from_now(), workspace=workspace)

    def from_now(self) -> Bot:
        """The same bot, of which nothing is told that was before."""
        return replace(self, first_event=len(self.events), first_request=len(self.model.requests))

    async def say(
        self, text: str, *, context: str = "default", workspace: str | None = None, **more: Any
    ) -> dict[str, Any]:
        """What the bot answers over HTTP, in a public place unless it is direct: the contract's object."""
        response = await self.post(text, context=context, workspace=workspace, **more)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    async def post(
        self, text: str, *, context: str = "default", workspace: str | None = None, headers: Any = None, **more: Any
    ) -> httpx.Response:
        public = {} if more.get("direct") else {"public": True}
        body = {"text": text, "context": context, "author": {"id": "u1", "name": "Lena"}, **public, **more}
        return await self.http.post(
            f"/v1/workspaces/{workspace or self.workspace}/messages", json=body, headers=headers
        )

    async def settle(self) -> None:
        """Wait until what follows replies is done: summaries, recall, chat logs."""
        async with asyncio.timeout(60):
            for pause in longer_pauses():
                if not await self.runtime.mailbox.ready():
                    break
                await asyncio.sleep(pause)
            await until_idle(self.runtime.jobs)
            await self.runtime.copy.flush()

    async def write_documents(self, workspace: str, documents: dict[str, str]) -> None:
        """Put *documents* into the workspace, findable when this returns."""
        await self.runtime.workspaces.create(workspace)
        folder = self.runtime.settings.data_dir / "workspaces" / workspace / "docs"
        for name, text in documents.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        await self.runtime.knowledge.sync(Scope(workspace))

    def told(self, event: str) -> list[dict[str, Any]]:
        """The events of that name so far, of other workspaces none if the bot is shared."""
        places = (None, self.workspace)
        return [
            one
            for one in self.events[self.first_event :]
            if one["event"] == event and (not self.first_event or one.get("workspace_id") in places)
        ]

    @property
    def grounding(self) -> dict[str, Any]:
        """The newest ``grounding.assembled``."""
        return self.told("grounding.assembled")[-1]

    @property
    def replies_asked(self) -> list[dict[str, Any]]:
        """The model requests that were for replies, without those for summaries."""
        return [body for body in self.model.requests[self.first_request :] if not in_background(body)]

    @property
    def sent(self) -> dict[str, str]:
        """The messages of the newest reply request by role."""
        return {message["role"]: message["content"] for message in self.replies_asked[-1]["messages"]}

    @property
    def chat_logs(self) -> Path:
        return self.runtime.settings.data_dir / "workspaces"


def longer_pauses() -> Iterator[float]:
    """Seconds to pause before each look whether something has happened, where the look itself is work."""
    pause = 0.01
    while True:
        yield pause
        pause = min(pause * 1.5, 0.1)


@asynccontextmanager
async def told_to(redaction: Redaction, keep: events.Keep) -> AsyncIterator[None]:
    """Events go to *keep* inside the block, and after it to where they went before: to a bot that is shared."""
    before = structlog.get_config()
    events.configure(redaction, keep=keep, silent=True)
    try:
        yield
    finally:
        structlog.configure(**before)


@asynccontextmanager
async def running_bot(
    settings: Settings,
    model: FakeOpenAI,
    platforms: Sequence[Connector] = (),
    documents: dict[str, str] | None = None,
    parts: frozenset[Part] = ALL_PARTS,
    timings: Timings | None = None,
) -> AsyncIterator[Bot]:
    """A bot with a workspace ``acme`` that holds *documents*, answering as long as the block lasts. Where it does not
    do all *parts*, somebody else has to."""
    seen: list[dict[str, Any]] = []
    stream = EventStream()

    def keep(event: events.Event, line: str) -> None:
        seen.append(json.loads(line))
        stream.put(line, event)

    async with (
        told_to(Redaction.of(settings), keep),
        open_runtime(settings, stream, platforms=platforms, parts=parts, timings=timings) as runtime,
        background_task(runtime.supervisor.run(runtime.accept), "connectors"),
        httpx.AsyncClient(
            transport=httpx.ASGITransport(Starlette(routes=list(runtime.http.routes()))),
            base_url="http://localhost",
            headers={"Authorization": f"Bearer {runtime.admin_token}"},
            timeout=60,
        ) as http,
    ):
        async with asyncio.timeout(60):
            await runtime.knowledge.opened()
        async with asyncio.timeout(120):  # what a test waits for is an answer, not what is loaded for the first one
            await runtime.model.warm()
        bot = Bot(runtime, model, http, seen)
        await bot.write_documents("acme", DOCUMENTS if documents is None else documents)
        yield bot


@asynccontextmanager
async def bot_on(
    *platforms: Connector,
    data_dir: Path | None = None,
    parts: frozenset[Part] = ALL_PARTS,
    timings: Timings | None = None,
    **fields: Any,
) -> AsyncIterator[Bot]:
    """A bot on *platforms* with a model provider of its own, and with a folder of its own unless *data_dir* is given.

    Everybody may talk to it, in the workspace ``acme``, unless *fields* of the settings say otherwise. It needs no
    fixtures, so that a module's tests can share it.
    """
    with ExitStack() as folders:
        folder = data_dir or Path(folders.enter_context(tempfile.TemporaryDirectory(prefix="ar-")))
        async with openai.serving() as model:
            settings = {
                "data_dir": folder,
                "access_policy": "open",
                "default_workspace": "acme",
                "llm_model": "openai/fake",
                "llm_api_base": model.base_url,
                "llm_api_key": "key",
                "llm_timeout_seconds": 10.0,
                "records_extraction": False,
                "deep_embedding_model": "none",
                **fields,
            }
            made = Settings.model_validate(settings)
            async with running_bot(made, model, platforms, parts=parts, timings=timings) as bot:
                yield bot
