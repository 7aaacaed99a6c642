"""Server-sent events that are pushed, end when the client leaves or the process stops, and stay alive when quiet."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from connectors.message import StoreUnavailable
from runtime.http.errors import as_api_error

KEEP_ALIVE_SECONDS = 15.0
LOOK_SECONDS = 5.0
"""How often it is looked whether the caller may still listen."""
_AT_ONCE = 4
"""Events after which it is looked whether the client is still there: what sends them may not wait for anything itself,
and asyncio complains of a sixth that nobody takes."""
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}

Emit = Callable[[str, dict[str, Any]], Awaitable[None]]
Produce = Callable[[Emit], Awaitable[None]]


class EventResponse(Response):
    """Runs *produce*, which awaits ``emit(name, data)`` for each event; when it returns the stream ends.

    An error of *produce* becomes the event ``error``. *stopping* is set when the process stops. A stream without an
    end of its own is asked by *lasts* whether its caller may still listen; if not it ends with the event ``error``.
    """

    def __init__(
        self, produce: Produce, stopping: asyncio.Event, lasts: Callable[[], Awaitable[bool]] | None = None
    ) -> None:
        super().__init__(headers=_HEADERS, media_type="text/event-stream")
        del self.headers["content-length"]
        self._produce = produce
        self._stopping = stopping
        self._lasts = lasts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with asyncio.TaskGroup() as tasks:
            work = tasks.create_task(self._work(send))
            others = [
                tasks.create_task(_left(receive)),
                tasks.create_task(_stopped(self._stopping)),
                tasks.create_task(_keep_alive(send)),
                *([tasks.create_task(_shut_out(self._lasts, send))] if self._lasts is not None else ()),
            ]
            await asyncio.wait({work, *others}, return_when=asyncio.FIRST_COMPLETED)
            for task in (work, *others):
                task.cancel()
        await send({"type": "http.response.body", "body": b""})

    async def _work(self, send: Send) -> None:
        sent = 0

        async def emit(name: str, data: dict[str, Any]) -> None:
            nonlocal sent
            await send({"type": "http.response.body", "body": encode_event(name, data), "more_body": True})
            sent += 1
            if sent % _AT_ONCE == 0:
                await asyncio.sleep(0)

        try:
            await self._produce(emit)
        except Exception as error:  # noqa: BLE001 - the boundary: by the table of errors, or logged whole
            known = as_api_error(error)
            await emit("error", {"error": {"code": known.code, "message": known.message}})


def encode_event(name: str, data: dict[str, Any]) -> bytes:
    """One event; JSON in ASCII has no line breaks, so one ``data`` line holds it whatever the text."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode("ascii")


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _stopped(stopping: asyncio.Event) -> None:
    await stopping.wait()


async def _shut_out(lasts: Callable[[], Awaitable[bool]], send: Send) -> None:
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        try:
            if await lasts():
                continue
        except StoreUnavailable:
            continue  # nobody can tell, and nothing is told meanwhile
        refused = {"error": {"code": "unauthenticated", "message": "the token is no longer valid"}}
        await send({"type": "http.response.body", "body": encode_event("error", refused), "more_body": True})
        return


async def _keep_alive(send: Send) -> None:
    while True:
        await asyncio.sleep(KEEP_ALIVE_SECONDS)
        await send({"type": "http.response.body", "body": b": waiting\n\n", "more_body": True})
