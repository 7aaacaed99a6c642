"""Updates that Telegram posts to ``/telegram/webhook``, and the registration of that address. I/O."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import re
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import structlog
from aiogram.exceptions import TelegramBadRequest
from aiogram.methods import GetWebhookInfo, SetWebhook
from aiogram.types import WebhookInfo
from pydantic import SecretStr
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from connectors.connector import ConnectorFailed
from connectors.message import StoreUnavailable
from connectors.telegram.api import Api
from connectors.telegram.errors import AIOGRAM_ERRORS
from connectors.telegram.payloads import CONNECTOR
from connectors.telegram.receive import InOrder, Intake, OvertookAnother, Recover, Vitals
from connectors.telegram.updates import ALLOWED_UPDATES, chat_of

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

log = structlog.get_logger()

PATH = "/telegram/webhook"
SECRET_HEADER = "x-telegram-bot-api-secret-token"  # noqa: S105 - the header's name
SECRET_VARIABLE = "AGENT_RUNTIME_TELEGRAM_WEBHOOK_SECRET"  # noqa: S105 - the variable's name
PUBLIC_URL_VARIABLE = "AGENT_RUNTIME_HTTP_PUBLIC_URL"

MAX_BODY_BYTES = 1_000_000

MAX_CONNECTIONS = 8
"""Deliveries that Telegram may make at once (Bot API, setWebhook: 1 to 100, 40 unless said)."""

RECENT_ERROR_SECONDS = 900.0
"""A delivery that failed longer ago says nothing about now: Telegram tries again after minutes at most."""

_SECRET = re.compile(r"[A-Za-z0-9_-]{1,256}")  # Bot API, setWebhook, "secret_token"


def check_secret(secret: SecretStr) -> str:
    """What is wrong with *secret*, for the operator; empty where nothing is."""
    if _SECRET.fullmatch(secret.get_secret_value()):
        return ""
    return (
        f"Telegram does not accept this webhook secret. Set {SECRET_VARIABLE} to 1 to 256 of A-Z, a-z, 0-9, _ and -, "
        "or unset it for long polling."
    )


class Webhook:
    """The route of one bot. A request is answered with 200 only after *intake* has taken its update.

    All else is repeated by Telegram, for about a day. Updates of one chat that are in hand at once are taken
    in the order of their ids. Taking one may last ``within_seconds``.
    """

    def __init__(self, secret: SecretStr, intake: Intake, within_seconds: float) -> None:
        self._secret = secret
        self._intake = intake
        self._within_seconds = within_seconds
        self._order = InOrder()

    def routes(self) -> Sequence[BaseRoute]:
        return [Route(PATH, self._receive, methods=["POST"])]

    async def _receive(self, request: Request) -> Response:
        given = request.headers.get(SECRET_HEADER, "").encode()
        if not hmac.compare_digest(given, self._secret.get_secret_value().encode()):
            log.warning("connector.request_refused", connector=CONNECTOR, why="secret")
            return PlainTextResponse("not from Telegram", 401)
        try:
            async with asyncio.timeout(self._within_seconds):
                return await self._respond(request)
        except TimeoutError:
            return _again("it took too long")
        except StoreUnavailable:
            return _again("the store is unavailable")
        except OvertookAnother:
            return _again("one before it was not accepted")

    async def _respond(self, request: Request) -> Response:
        body = await _body(request)
        if body is None:
            return PlainTextResponse("too large", 413)
        try:
            update = json.loads(body)
        except ValueError:
            update = None
        if not isinstance(update, dict) or not isinstance(update.get("update_id"), int):
            return PlainTextResponse("no update", 400)
        if await self._order.take_turn(chat_of(update), update["update_id"], lambda: self._intake.take(update)):
            return Response(status_code=200)
        return _again("it could not be accepted")


def _again(why: str) -> Response:
    """Not confirmed: Telegram sends it again."""
    return PlainTextResponse(why, 503)


async def _body(request: Request) -> bytes | None:
    """The body; None where it is longer than `MAX_BODY_BYTES`."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            return None
    return bytes(body)


class Registration:
    """Keeps the webhook registered at ``public_url``; without one, only looks whether somebody registered it.

    Every ``check_seconds``, and when the token is in doubt, Telegram is asked how deliveries fare.
    """

    def __init__(
        self,
        api: Api,
        vitals: Vitals,
        intake: Intake,
        recover: Recover,
        secret: SecretStr,
        public_url: str | None,
        check_seconds: float,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._api = api
        self._vitals = vitals
        self._intake = intake
        self._recover = recover
        self._secret = secret
        self._url = f"{public_url.rstrip('/')}{PATH}" if public_url else None
        self._is_registered = False
        self._check_seconds = check_seconds
        self._now = now

    async def run(self) -> None:
        """Registers and watches until cancelled. Raises `ConnectorFailed` when only a person can help."""
        while True:
            try:
                if self._url is not None and not self._is_registered:
                    await self._register(self._url)
                info = await self._api.call(GetWebhookInfo())
            except AIOGRAM_ERRORS as error:
                await self._recover(error)
                continue
            self._vitals.failures = 0
            self._vitals.connected()
            self._vitals.well("connection")
            if self._judge(info):
                await self._wait()
            else:
                await asyncio.sleep(self._vitals.next_wait_seconds())  # so that two who disagree do not race

    def _judge(self, info: WebhookInfo) -> bool:
        """Says by health how deliveries fare. Whether the webhook is registered as far as that is for us."""
        stands = self._url is None or is_same_address(info.url, self._url)
        self._tell("webhook", self._registration_trouble(info.url, stands))
        self._tell("delivery", self._api.masked(delivery_trouble(info, self._now())))
        if not info.pending_update_count:
            self._intake.nothing_waits()
        if not stands:
            log.warning("connector.webhook_lost", connector=CONNECTOR, why="another address" if info.url else "removed")
            self._is_registered = False
        return stands

    def _registration_trouble(self, url: str, stands: bool) -> str:
        if self._url is None and not url:
            return (
                f"no webhook is registered: set {PUBLIC_URL_VARIABLE}, or call setWebhook with the address of "
                f"{PATH} and the secret of {SECRET_VARIABLE}"
            )
        if not stands:
            return "somebody removed the webhook or set another one; it is being set again"
        return ""

    def _tell(self, what: str, why: str) -> None:
        if why:
            self._vitals.trouble(what, why)
        else:
            self._vitals.well(what)

    async def _register(self, url: str) -> None:
        """Raises one of `errors.AIOGRAM_ERRORS`, and `ConnectorFailed` for a URL that will never do."""
        try:
            await self._api.call(
                SetWebhook(
                    url=url,
                    secret_token=self._secret.get_secret_value(),
                    allowed_updates=ALLOWED_UPDATES,
                    max_connections=MAX_CONNECTIONS,
                )
            )
        except TelegramBadRequest as error:
            if "https url must be provided" in str(error).lower():
                why = f"Telegram posts to HTTPS only. Set {PUBLIC_URL_VARIABLE} to a URL that begins with https://."
                self._vitals.failed(why)
                raise ConnectorFailed(why) from error
            self._vitals.trouble(
                "webhook", f"Telegram refuses the webhook ({self._api.describe(error)}); see {PUBLIC_URL_VARIABLE}"
            )
            raise
        self._is_registered = True

    async def _wait(self) -> None:
        """Until the next look is due."""
        try:
            async with asyncio.timeout(self._check_seconds):
                await self._api.doubt.wait()
        except TimeoutError:
            return
        self._api.doubt.clear()


def is_same_address(shown: str, registered: str) -> bool:
    """Whether *shown* by Telegram is the address that was *registered*: it writes hosts in small letters and ASCII."""
    return _parts(shown) == _parts(registered)


def _parts(url: str) -> tuple[str, str, int, str]:
    parts = urlsplit(url)
    host = parts.hostname or ""
    with contextlib.suppress(UnicodeError):  # no name of a host: compared as it is
        host = host.encode("idna").decode()
    return parts.scheme, host, parts.port or 443, parts.path


def delivery_trouble(info: WebhookInfo, now: float) -> str:
    """What keeps updates from coming, as Telegram tells it; empty where nothing does.

    Telegram remembers the last error after it is over: it counts while something waits and it is recent.
    """
    failed_at = info.last_error_date
    if not info.pending_update_count or failed_at is None or now - failed_at.timestamp() > RECENT_ERROR_SECONDS:
        return ""
    why = info.last_error_message or "no reason given"
    return (
        f"Telegram could not deliver {info.pending_update_count} updates ({why}); "
        f"see that {PUBLIC_URL_VARIABLE} leads here from the internet"
    )
