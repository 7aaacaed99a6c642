"""Slack's events and commands over HTTP. I/O; whether a request is genuine is in `signature`.

Commands and interactions (forms) may come to `COMMANDS_PATH` or to `PATH`, as the app's settings have it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
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
from connectors.slack.api import Recent
from connectors.slack.events import CONNECTOR
from connectors.slack.receive import Gaps, History, as_payload

if TYPE_CHECKING:
    from starlette.routing import BaseRoute


# ---- signature ----
#
# Whether a request comes from Slack: its signature, its age, and that it was not answered before. Pure.
#
# The signature is ``v0=`` and the hexadecimal HMAC-SHA256 of ``v0:<timestamp>:<body>`` with the signing secret
# (docs.slack.dev, "Verifying requests from Slack").


MAX_AGE_SECONDS = 5 * 60
"""Older and later requests are refused, as Slack advises."""


def sign(secret: str, timestamp: str, body: bytes) -> str:
    """The signature of *body*, sent at *timestamp* (seconds since 1970, as written in the header)."""
    signed = b"v0:" + timestamp.encode("utf-8", "surrogatepass") + b":" + body
    return "v0=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def is_genuine(secret: str, timestamp: str, body: bytes, signature: str, now_seconds: float) -> bool:
    """Whether *signature* is that of *body* and at most `MAX_AGE_SECONDS` off. Takes constant time to compare."""
    if not (timestamp.isascii() and timestamp.isdecimal() and len(timestamp) <= 20):
        return False
    if abs(now_seconds - int(timestamp)) > MAX_AGE_SECONDS:
        return False
    return hmac.compare_digest(sign(secret, timestamp, body).encode(), signature.encode("utf-8", "surrogatepass"))


class Answered:
    """The signatures of requests that were answered, for as long as they would still be fresh."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def __contains__(self, signature: str) -> bool:
        return signature in self._until

    def add(self, signature: str, now_seconds: float) -> None:
        """Remember *signature*, and forget those that are too old to be accepted anyway."""
        while self._until and next(iter(self._until.values())) < now_seconds:
            del self._until[next(iter(self._until))]
        self._until[signature] = now_seconds + 2 * MAX_AGE_SECONDS


# ---- http events ----


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
        self._answered = Answered()

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
        if not is_genuine(secret, sent_at, body, signed, self._now()):
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


# ---- http order ----
#
# Events over HTTP in the order in which they were said. I/O.
#
# What was not acknowledged Slack sends again at once, after a minute and after five, and what is said meanwhile
# would be
# taken before it. So after a request that was not acknowledged the first message of each conversation brings what is
# missing before it from the history, as after a socket that broke; what Slack then repeats is known.


_PATIENCE_SECONDS = 1.2
"""For the history: less than half of what Slack gives an answer to a request."""


class InOrder:
    """Passes events on to *take*, each after what is missing before it."""

    def __init__(self, history: History, take: Take) -> None:
        self._gaps = Gaps(history, _PATIENCE_SECONDS)
        self._take = take
        self._passed: Recent[tuple[object, object], None] = Recent()

    async def take(self, payload: dict[str, Any]) -> bool:
        """As `connectors.slack.http_events.Take`."""
        event = payload.get("event")
        if not isinstance(event, dict):
            return await self._take(payload)
        taken = False
        try:
            taken = await self._take_in_order(payload, event)
        finally:
            if not taken:  # whatever the reason: Slack sends it again, and later than what is said meanwhile
                self._gaps.broke(event)
        return taken

    async def _take_in_order(self, payload: dict[str, Any], event: dict[str, Any]) -> bool:
        for one in await self._gaps.filled(event, self._gaps.breaks):
            said = (one.get("channel"), one.get("ts"))
            late = self._gaps.is_late(one) and said not in self._passed
            if not await self._take(payload if one is event else as_payload(one)):
                return False
            if late:
                log.info("message.late", connector=CONNECTOR, message_id=said[1])
            self._passed.put(said, None)
            self._gaps.passed_on(one)
        return True
