"""Receive updates that Telegram posts to ``/telegram/webhook``, and keep that address registered. I/O."""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import structlog
from aiogram.exceptions import TelegramBadRequest
from aiogram.methods import GetWebhookInfo, SetWebhook
from aiogram.types import WebhookInfo
from pydantic import SecretStr
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from connectors.health import Backoff, ConnectionHealth
from connectors.http_requests import RequestError, read_body
from connectors.message import StoreUnavailable
from connectors.telegram.api import Api
from connectors.telegram.check import PATH, PUBLIC_URL_VARIABLE, RECENT_ERROR_SECONDS, is_same_address
from connectors.telegram.errors import AIOGRAM_ERRORS
from connectors.telegram.payloads import CONNECTOR
from connectors.telegram.receive import Intake
from connectors.telegram.updates import ALLOWED_UPDATES

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

log = structlog.get_logger()

SECRET_HEADER = "x-telegram-bot-api-secret-token"  # noqa: S105 - the header's name
SECRET_VARIABLE = "AGENT_RUNTIME_TELEGRAM_WEBHOOK_SECRET"  # noqa: S105 - the variable's name

MAX_BODY_BYTES = 1_000_000

MAX_CONNECTIONS = 1
"""Deliveries that Telegram may make at the same time (Bot API, setWebhook: 1 to 100, default 40). One by one they keep
their order."""

_SECRET = re.compile(r"[A-Za-z0-9_-]{1,256}")  # Bot API, setWebhook, "secret_token"


def check_secret(secret: SecretStr) -> str:
    """Return what is wrong with *secret*, for the operator; empty if nothing is."""
    if _SECRET.fullmatch(secret.get_secret_value()):
        return ""
    return (
        f"Telegram does not accept this webhook secret. Set {SECRET_VARIABLE} to 1 to 256 of A-Z, a-z, 0-9, _ and -, "
        "or unset it for long polling."
    )


class Webhook:
    """The route of one bot. It answers 200 only after *intake* has accepted the update.

    Telegram repeats every other update, for about a day. One update is accepted at a time, as with long polling.
    Waiting for its turn and accepting it may take ``timeout_seconds``.
    """

    def __init__(self, secret: SecretStr, intake: Intake, timeout_seconds: float) -> None:
        self._secret = secret
        self._intake = intake
        self._timeout_seconds = timeout_seconds
        self._turn = asyncio.Lock()

    def routes(self) -> Sequence[BaseRoute]:
        return [Route(PATH, self._receive, methods=["POST"])]

    async def _receive(self, request: Request) -> Response:
        secret = request.headers.get(SECRET_HEADER, "").encode()
        if not hmac.compare_digest(secret, self._secret.get_secret_value().encode()):
            log.warning("connector.request_refused", connector=CONNECTOR, why="secret")
            return PlainTextResponse("not from Telegram", 401)
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await self._respond(request)
        except TimeoutError:
            return _ask_for_repeat("it took too long")
        except StoreUnavailable:
            return _ask_for_repeat("the store is unavailable")

    async def _respond(self, request: Request) -> Response:
        try:
            update = json.loads(await read_body(request, MAX_BODY_BYTES, "too large"))
        except RequestError as error:
            return PlainTextResponse(error.message, error.status, error.headers)
        except ValueError:
            update = None
        if not isinstance(update, dict) or not isinstance(update.get("update_id"), int):
            return PlainTextResponse("no update", 400)
        async with self._turn:
            await self._intake.take(update)
        return Response(status_code=200)


def _ask_for_repeat(why: str) -> Response:
    return PlainTextResponse(why, 503)


class Registration:
    """Keeps the webhook registered below ``public_url``. Without one, only checks whether somebody registered it.

    Asks Telegram about its deliveries every ``check_seconds``.
    """

    def __init__(
        self,
        api: Api,
        vitals: ConnectionHealth,
        backoff: Backoff,
        secret: SecretStr,
        public_url: str | None,
        check_seconds: float,
    ) -> None:
        self._api = api
        self._vitals = vitals
        self._backoff = backoff
        self._secret = secret
        self._url = f"{public_url.rstrip('/')}{PATH}" if public_url else None
        self._is_registered = False
        self._check_seconds = check_seconds

    async def run(self) -> None:
        """Register and watch until cancelled. Raises `ConnectorFailed` if only a person can help."""
        while True:
            try:
                if self._url is not None and not self._is_registered:
                    await self._register(self._url)
                info = await self._api.call(GetWebhookInfo())
            except AIOGRAM_ERRORS as error:
                await self._api.recover(error)
                continue
            self._backoff.failures = 0
            self._vitals.connected()
            self._vitals.well("connection")
            if self._check(info):
                await asyncio.sleep(self._check_seconds)
            else:
                # The pause keeps two processes that disagree from racing.
                await asyncio.sleep(self._backoff.next_seconds())

    async def _register(self, url: str) -> None:
        """Raises one of `errors.AIOGRAM_ERRORS`, and `ConnectorFailed` for a URL that Telegram never accepts."""
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
                self._api.fail(why, error)
            self._vitals.trouble(
                "webhook", f"Telegram refuses the webhook ({self._api.describe(error)}); see {PUBLIC_URL_VARIABLE}"
            )
            raise
        self._is_registered = True

    def _check(self, info: WebhookInfo) -> bool:
        """Report to health how deliveries fare. Return whether our webhook is still registered."""
        is_registered = self._url is None or is_same_address(info.url, self._url)
        self._report("webhook", self._registration_trouble(info, is_registered))
        self._report("delivery", self._api.masked(delivery_trouble(info, time.time())))
        if not is_registered:
            log.warning("connector.webhook_lost", connector=CONNECTOR, why="another address" if info.url else "removed")
            self._is_registered = False
        return is_registered

    def _registration_trouble(self, info: WebhookInfo, is_registered: bool) -> str:
        if self._url is None and not info.url:
            return (
                f"no webhook is registered: set {PUBLIC_URL_VARIABLE}, or call setWebhook with the address of "
                f"{PATH} and the secret of {SECRET_VARIABLE}"
            )
        if not is_registered:
            return "somebody removed the webhook or set another one; it is being set again"
        if self._url is None and info.max_connections != MAX_CONNECTIONS:
            return f"messages may change their order: call setWebhook again with max_connections={MAX_CONNECTIONS}"
        return ""

    def _report(self, subject: str, trouble: str) -> None:
        if trouble:
            self._vitals.trouble(subject, trouble)
        else:
            self._vitals.well(subject)


def delivery_trouble(info: WebhookInfo, now: float) -> str:
    """Return why Telegram cannot deliver updates; empty if it can.

    Telegram still names the last error after it is over. The error counts if it is recent and updates are waiting.
    """
    failed_at = info.last_error_date
    if not info.pending_update_count or failed_at is None or now - failed_at.timestamp() > RECENT_ERROR_SECONDS:
        return ""
    why = info.last_error_message or "no reason given"
    return (
        f"Telegram could not deliver {info.pending_update_count} updates ({why}); "
        f"see that {PUBLIC_URL_VARIABLE} leads here from the internet"
    )
