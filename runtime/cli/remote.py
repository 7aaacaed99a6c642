"""A console's messages, handed to a runtime in another process over HTTP; its answers, streamed back."""

from __future__ import annotations

import asyncio
from typing import Any

from connectors.console.connector import ConsoleConnector
from connectors.message import (
    Accepted,
    AgentRuntimeError,
    ConversationKey,
    Degraded,
    InboundMessage,
    OutboundMessage,
    Source,
    StoreUnavailable,
    Usage,
)
from runtime.cli.client import ApiError, Client, Unreachable, segment


class RemoteDoor:
    """What the gateway's door is for a console in the same process. *group* owns the streams."""

    def __init__(
        self, client: Client, console: ConsoleConnector, group: asyncio.TaskGroup, workspace: str, context: str
    ) -> None:
        self._client = client
        self._console = console
        self._group = group
        self._path = f"/v1/workspaces/{segment(workspace)}/messages"
        self._workspace = workspace
        self._context = context
        self._streams: set[asyncio.Task[None]] = set()

    async def accept(self, message: InboundMessage) -> Accepted:
        """Send *message*; the answer comes to the console by itself. Raises `StoreUnavailable`, `ApiError`."""
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = self._group.create_task(self._exchange(message, begun), name="answer")
        self._streams.add(task)
        task.add_done_callback(self._streams.discard)
        try:
            await begun
        except ApiError as error:
            if error.status == 503:
                raise StoreUnavailable(str(error)) from error
            raise
        except Unreachable as error:
            raise StoreUnavailable(str(error)) from error
        return Accepted("stored")

    def close(self) -> None:
        """Stop waiting for answers; the turns go on."""
        for task in self._streams:
            task.cancel()

    async def _exchange(self, message: InboundMessage, begun: asyncio.Future[None]) -> None:
        """One request. *begun* learns how it was received: its failure, or nothing once it is kept."""
        key = ConversationKey(self._workspace, "console", self._context)
        answers = (message.message_id,)
        body = {"text": message.text, "context": self._context, "direct": True}
        headers = {"Idempotency-Key": message.message_id}

        def received() -> None:
            if not begun.done():
                begun.set_result(None)

        try:
            async for name, data in self._client.events("POST", self._path, body, headers, begun=received):
                if name == "delta":
                    await self._console.stream(key, answers, str(data["text"]))
                elif name == "done":
                    await self._deliver(answer(key, answers, data))
        except AgentRuntimeError as error:
            if begun.done():
                await self._deliver(OutboundMessage(key, "", str(error), kind="apology", answers=answers))
            else:
                begun.set_exception(error)

    async def _deliver(self, message: OutboundMessage) -> None:
        for part in self._console.render(message):
            await self._console.send(message, part)


def answer(key: ConversationKey, answers: tuple[str, ...], data: dict[str, Any]) -> OutboundMessage:
    """The answer object of the HTTP interface as the console shows it. Pure."""
    usage = data.get("usage") or {}
    return OutboundMessage(
        key=key,
        turn_id=str(data.get("turn_id", "")),
        text=str(data.get("text", "")),
        answers=answers,
        strategy=str(data.get("strategy", "")),
        reason=str(data.get("reason", "")),
        sources=tuple(Source(each["source"], each["heading"]) for each in data.get("sources", ())),
        shows_sources=True,
        degraded=tuple(Degraded(each["block"], each["why"]) for each in data.get("degraded", ())),
        usage=Usage(
            prompt=usage.get("prompt", 0),
            cached=usage.get("cached", 0),
            completion=usage.get("completion", 0),
            cost_usd=usage.get("cost_usd", 0.0),
            estimated=usage.get("estimated", False),
        ),
    )
