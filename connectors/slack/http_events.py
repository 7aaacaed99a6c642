"""Slack's events and commands over HTTP. I/O; whether a request is genuine is in `signature`.

Commands and interactions (forms) may come to `COMMANDS_PATH` or to `PATH`, as the app's settings have it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

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
COMMANDS_PATH = "/slack/commands"
MAX_BODY_BYTES = 1_000_000
ANSWER_WITHIN_SECONDS = 2.8
"""Slack counts an event as failed after 3 s, and sends it again."""

Take = Callable[[dict[str, Any]], Awaitable[bool]]
"""Takes a payload; whether it may be acknowledged. Raises `connectors.message.StoreUnavailable`."""

TakeCommand = Callable[[dict[str, Any]], Awaitable[str]]
"""Takes a command; what to tell its giver at once, or nothing."""

_FORM = "application/x-www-form-urlencoded"


class HttpEvents:
    """The routes of one app. A request is acknowledged only after *take*, *take_command* or *take_press* (for
    interactions) has returned."""

    def __init__(
        self,
        secret: SecretStr,
        take: Take,
        take_command: TakeCommand,
        take_press: Take,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._secret = secret
        self._take = take
        self._take_command = take_command
        self._take_press = take_press
        self._now = now
        self._answered = signature.Answered()

    def routes(self) -> Sequence[BaseRoute]:
        return [Route(path, self._receive, methods=["POST"]) for path in (PATH, COMMANDS_PATH)]

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
        is_form = request.headers.get("content-type", "").split(";")[0].strip().lower() == _FORM
        response = await (self._answer_form(body) if is_form else self._answer(body))
        if response.status_code == 200:
            # Only now: Slack may repeat at once, in the same second, what was not answered.
            self._answered.add(signed, self._now())
        return response

    async def _answer(self, body: bytes) -> Response:
        payload = _object_in(body)
        if payload is None:
            return PlainTextResponse("no event", 400)
        if payload.get("type") == "url_verification":
            return JSONResponse({"challenge": str(payload.get("challenge", ""))})
        if await self._take(payload):
            return Response(status_code=200)
        return _again("it could not be accepted")

    async def _answer_form(self, body: bytes) -> Response:
        form: dict[str, Any] = dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
        if "command" in form:
            told = await self._take_command(form)
            return JSONResponse(shown_to_one(told)) if told else Response(status_code=200)
        if "payload" in form:
            payload = _object_in(form["payload"])
            if payload is None:
                return PlainTextResponse("no interaction", 400)
            return Response(status_code=200) if await self._take_press(payload) else _again("it could not be accepted")
        if "ssl_check" in form:
            log.info("message.ignored", connector="slack", why="ssl_check")
            return Response(status_code=200)
        return PlainTextResponse("no command", 400)


def shown_to_one(text: str) -> dict[str, Any]:
    """An answer to a command that only its giver sees."""
    return {"response_type": "ephemeral", "text": text}


def _object_in(text: str | bytes) -> dict[str, Any] | None:
    """The JSON object that *text* is; None for anything else."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


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
