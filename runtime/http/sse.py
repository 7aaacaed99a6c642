"""Sends server-sent events until the work ends, the client leaves or the process stops."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from connectors.message import AgentRuntimeError, StoreUnavailable
from runtime.http.errors import as_api_error

KEEP_ALIVE_SECONDS = 15.0
LOOK_SECONDS = 5.0
"""Between two checks that the caller may still listen."""
_EVENTS_BETWEEN_CHECKS = 4
"""After so many events the loop gets a turn, in which it can notice that the client has left: sending need not wait for
anything, and asyncio complains of a sixth event that nobody takes."""
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}

Emit = Callable[[str, dict[str, Any]], Awaitable[None]]
Produce = Callable[[Emit], Awaitable[None]]
Report = Callable[[dict[str, Any]], None]


class EventResponse(Response):
    """Runs *produce*, which awaits ``emit(name, data)`` for each event; the stream ends when it returns.

    An error of *produce* becomes the event ``error``. *stopping* is set when the process stops. *is_allowed* says
    whether the caller may still listen to a stream without an end of its own; if not, it ends with the event ``error``.
    """

    def __init__(
        self, produce: Produce, stopping: asyncio.Event, is_allowed: Callable[[], Awaitable[bool]] | None = None
    ) -> None:
        super().__init__(headers=_HEADERS, media_type="text/event-stream")
        del self.headers["content-length"]
        self._produce = produce
        self._stopping = stopping
        self._is_allowed = is_allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._run(send)),
                group.create_task(_wait_for_disconnect(receive)),
                group.create_task(_wait_for(self._stopping)),
                group.create_task(_keep_alive(send)),
            ]
            if self._is_allowed is not None:
                tasks.append(group.create_task(_end_if_refused(self._is_allowed, send)))
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
        await send({"type": "http.response.body", "body": b""})

    async def _run(self, send: Send) -> None:
        sent = 0

        async def emit(name: str, data: dict[str, Any]) -> None:
            nonlocal sent
            await send({"type": "http.response.body", "body": encode_event(name, data), "more_body": True})
            sent += 1
            if sent % _EVENTS_BETWEEN_CHECKS == 0:
                await asyncio.sleep(0)

        try:
            await self._produce(emit)
        except Exception as error:  # noqa: BLE001 - the boundary: by the table of errors, or logged whole
            known = as_api_error(error)
            await emit("error", {"error": {"code": known.code, "message": known.message}})


def progress_response(work: Callable[[Report], Awaitable[dict[str, Any]]], stopping: asyncio.Event) -> EventResponse:
    """Return a stream of *work*: an event ``progress`` for each report, then its result as ``done``."""

    async def produce(emit: Emit) -> None:
        reports: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        failure: AgentRuntimeError | OSError | None = None
        result: dict[str, Any] = {}

        async def emit_reports() -> None:
            while (report := await reports.get()) is not None:
                await emit("progress", report)

        async with asyncio.TaskGroup() as group:
            group.create_task(emit_reports())
            try:
                result = await work(reports.put_nowait)
            except (AgentRuntimeError, OSError) as error:
                failure = error  # raised below: the reports before it come first, and no group wraps it
            reports.put_nowait(None)
        if failure is not None:
            raise failure
        await emit("done", result)

    return EventResponse(produce, stopping)


def encode_event(name: str, data: dict[str, Any]) -> bytes:
    """Return one event. JSON in ASCII has no line breaks, so one ``data`` line holds any text."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode("ascii")


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _wait_for(event: asyncio.Event) -> None:
    await event.wait()


async def _end_if_refused(is_allowed: Callable[[], Awaitable[bool]], send: Send) -> None:
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        try:
            if await is_allowed():
                continue
        except StoreUnavailable:
            continue  # nobody can tell, and no event comes meanwhile
        refused = {"error": {"code": "unauthenticated", "message": "the token is no longer valid"}}
        await send({"type": "http.response.body", "body": encode_event("error", refused), "more_body": True})
        return


async def _keep_alive(send: Send) -> None:
    while True:
        await asyncio.sleep(KEEP_ALIVE_SECONDS)
        await send({"type": "http.response.body", "body": b": waiting\n\n", "more_body": True})
