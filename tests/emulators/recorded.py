"""A provider on loopback that answers every request with one recorded response, as JSON or as a stream of events."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.emulators.loopback import serving


@dataclass
class Recorded:
    """The running provider. ``requests`` are the bodies that it was sent."""

    body: Mapping[str, Any]
    events: Sequence[Mapping[str, Any]]
    base_url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)


@contextlib.asynccontextmanager
async def answering(body: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> AsyncIterator[Recorded]:
    """It as long as the block lasts: *body* for a request that wants the whole, *events* for one that wants a stream.
    An event with a ``type`` is sent by that name, as Anthropic does."""
    recorded = Recorded(body, events)

    async def answer(request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        recorded.requests.append(asked)
        if not (asked.get("stream") or "streamGenerateContent" in request.path):
            return web.json_response(recorded.body)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in recorded.events:
            name = f"event: {event['type']}\n" if "type" in event else ""
            await response.write(f"{name}data: {json.dumps(event)}\n\n".encode())
        if "type" not in recorded.events[-1]:
            await response.write(b"data: [DONE]\n\n")
        return response

    app = web.Application()
    app.router.add_route("POST", "/{path:.*}", answer)
    async with serving(app) as recorded.base_url:
        yield recorded
