"""Slack's events over HTTP, at ``/slack/events``. I/O; whether a request is genuine is in `signature`."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import structlog
from pydantic import SecretStr
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from connectors.message import StoreUnavailable
from connectors.slack import signature

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

log = structlog.get_logger()

PATH = "/slack/events"
MAX_BODY_BYTES = 1_000_000
ANSWER_WITHIN_SECONDS = 2.8
"""Slack counts an event as failed after 3 s, and sends it again."""

Take = Callable[[dict[str, Any]], Awaitable[bool]]
"""Takes a payload; whether it may be acknowledged. Raises `connectors.message.StoreUnavailable`."""


class HttpEvents:
    """The route of one app. A request is acknowledged only after *take* has returned."""

    def __init__(self, secret: SecretStr, take: Take, now: Callable[[], float] = time.time) -> None:
        self._secret = secret
        self._take = take
        self._now = now
        self._answered = signature.Answered()

    def routes(self) -> Sequence[BaseRoute]:
        return [Route(PATH, self._receive, methods=["POST"])]

    async def _receive(self, request: Request) -> Response:
        try:
            async with asyncio.timeout(ANSWER_WITHIN_SECONDS):
                return await self._respond(request)
        except TimeoutError:
            return _again("it took too long")
        except StoreUnavailable:
            return _again("the store is unavailable")

    async def _respond(self, request: Request) -> Response:
        body = await _body(request)
        if body is None:
            return PlainTextResponse("too large", 413)
        signed = request.headers.get("x-slack-signature", "")
        sent_at = request.headers.get("x-slack-request-timestamp", "")
        secret = self._secret.get_secret_value()
        if not signature.is_genuine(secret, sent_at, body, signed, self._now()):
            log.warning("connector.request_refused", connector="slack", why="signature")
            return PlainTextResponse("not signed by Slack", 401)
        if signed in self._answered:
            log.warning("connector.request_refused", connector="slack", why="replay")
            return PlainTextResponse("answered before", 403)
        response = await self._answer(body)
        if response.status_code == 200:
            # Only now: Slack may repeat at once, in the same second, what was not answered.
            self._answered.add(signed, self._now())
        return response

    async def _answer(self, body: bytes) -> Response:
        try:
            payload = json.loads(body)
        except ValueError:
            payload = None
        if not isinstance(payload, dict):
            return PlainTextResponse("no event", 400)
        if payload.get("type") == "url_verification":
            return JSONResponse({"challenge": str(payload.get("challenge", ""))})
        if await self._take(payload):
            return Response(status_code=200)
        return _again("it could not be accepted")


def _again(why: str) -> Response:
    """Not acknowledged: Slack sends it again."""
    return PlainTextResponse(why, 503)


async def _body(request: Request) -> bytes | None:
    """The body; None where it is longer than `MAX_BODY_BYTES`."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            return None
    return bytes(body)
