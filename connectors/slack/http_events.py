"""Slack's events, commands and interactions over HTTP: the routes ``/slack/events`` and ``/slack/commands``. I/O.

Commands and interactions, which are forms, may come to either route, by the app's settings.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import structlog
from pydantic import SecretStr
from slack_sdk.signature import SignatureVerifier
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from connectors.message import StoreUnavailable
from connectors.slack.backfill import Gaps, History, as_payload
from connectors.slack.events import CONNECTOR
from connectors.slack.payloads import ephemeral
from connectors.slack.receive import Intake

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

log = structlog.get_logger()

PATH = "/slack/events"
COMMANDS_PATH = "/slack/commands"
MAX_BODY_BYTES = 1_000_000
ANSWER_WITHIN_SECONDS = 2.8
"""Slack counts an event as failed after 3 s, and sends it again."""

_GAP_SECONDS = 1.2
"""For the history of a conversation: less than half of `ANSWER_WITHIN_SECONDS`."""

_FORM = "application/x-www-form-urlencoded"


class HttpEvents:
    """Checks requests, passes them on to *intake*, and acknowledges them after it has accepted them.

    A request that somebody recorded and sends again says nothing new: each event, command and press has an id.
    """

    def __init__(self, secret: SecretStr, intake: Intake, history: History) -> None:
        self._verifier = SignatureVerifier(secret.get_secret_value())
        self._intake = intake
        self._gaps = Gaps(history, _GAP_SECONDS)

    def routes(self) -> Sequence[BaseRoute]:
        return [Route(path, self._receive, methods=["POST"]) for path in (PATH, COMMANDS_PATH)]

    async def _receive(self, request: Request) -> Response:
        try:
            async with asyncio.timeout(ANSWER_WITHIN_SECONDS):
                return await self._respond(request)
        except TimeoutError:
            return _not_acknowledged("it took too long")
        except StoreUnavailable:
            return _not_acknowledged("the store is unavailable")

    async def _respond(self, request: Request) -> Response:
        body = await _read_body(request)
        if body is None:
            return PlainTextResponse("too large", 413)
        signature = request.headers.get("x-slack-signature", "")
        if not is_genuine(self._verifier, request.headers.get("x-slack-request-timestamp", ""), body, signature):
            log.warning("connector.request_refused", connector=CONNECTOR, why="signature")
            return PlainTextResponse("not signed by Slack", 401)
        is_form = request.headers.get("content-type", "").split(";")[0].strip().lower() == _FORM
        return await (self._answer_form(body) if is_form else self._answer_event(body))

    async def _answer_event(self, body: bytes) -> Response:
        payload = _json_object(body)
        if payload is None:
            return PlainTextResponse("no event", 400)
        if payload.get("type") == "url_verification":
            return JSONResponse({"challenge": str(payload.get("challenge", ""))})
        return _acknowledged_if(await self._take(payload))

    async def _answer_form(self, body: bytes) -> Response:
        form: dict[str, Any] = dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
        if "command" in form:
            text = await self._intake.take_command(form)
            return JSONResponse(ephemeral(text)) if text else Response(status_code=200)
        if "payload" in form:
            payload = _json_object(form["payload"])
            if payload is None:
                return PlainTextResponse("no interaction", 400)
            return _acknowledged_if(await self._intake.take_press(payload))
        if "ssl_check" in form:
            log.info("message.ignored", connector=CONNECTOR, why="ssl_check")
            return Response(status_code=200)
        return PlainTextResponse("no command", 400)

    async def _take(self, payload: dict[str, Any]) -> bool:
        """Pass on an event after the missing messages before it; see `Gaps`. Returns and raises as `Intake.take`.

        Slack sends an unacknowledged event again at once, after a minute and after five minutes.
        """
        event = payload.get("event")
        if not isinstance(event, dict):
            return await self._intake.take(payload)
        taken = False
        try:
            taken = await self._take_in_order(payload, event)
        finally:
            if not taken:
                self._gaps.note_break(event)
        return taken

    async def _take_in_order(self, payload: dict[str, Any], event: dict[str, Any]) -> bool:
        for message in await self._gaps.fill(event, self._gaps.breaks):
            if not await self._intake.take(payload if message is event else as_payload(message)):
                return False
            self._gaps.note_passed_on(message)
        return True


def is_genuine(verifier: SignatureVerifier, timestamp: str, body: bytes, signature: str) -> bool:
    """Return whether Slack signed *body* at *timestamp* (s since 1970), at most five minutes from now."""
    try:
        return verifier.is_valid(body, timestamp, signature)
    except (ValueError, TypeError):  # a timestamp that is no number, or a signature that is not ASCII
        return False


def _acknowledged_if(accepted: bool) -> Response:
    return Response(status_code=200) if accepted else _not_acknowledged("it could not be accepted")


def _not_acknowledged(why: str) -> Response:
    """Return an answer after which Slack sends the request again."""
    return PlainTextResponse(why, 503)


def _json_object(text: str | bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


async def _read_body(request: Request) -> bytes | None:
    """Return the body; None if it is longer than `MAX_BODY_BYTES`."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            return None
    return bytes(body)
