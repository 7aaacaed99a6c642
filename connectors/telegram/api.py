"""Call the Bot API through aiogram. Each call has a time limit, and no error contains the token. I/O."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import NoReturn, TypeVar
from urllib.parse import quote, urlsplit

import structlog
from aiogram import Bot
from aiogram.client.session.aiohttp import AiohttpSession
from aiogram.client.telegram import TelegramAPIServer
from aiogram.exceptions import TelegramConflictError
from aiogram.methods import TelegramMethod
from aiogram.types import Update
from aiogram.utils.token import TokenValidationError
from aiohttp import ClientError
from pydantic import SecretStr

from connectors.connector import ConnectorFailed, SendFailed
from connectors.health import Backoff, ConnectionHealth
from connectors.message import OutboundPart
from connectors.telegram import payloads
from connectors.telegram.errors import AIOGRAM_ERRORS, meaning, refuses, retry_after_seconds, send_failed

log = structlog.get_logger()

_Result = TypeVar("_Result")

OFFICIAL_HOST = "api.telegram.org"

_CLOSE_SECONDS = 5.0


class Api:
    """The Bot API for one bot. ``timeout_seconds`` limits each call.

    *vitals* is told of a connection that fails, and `recover` waits as *backoff* says.
    """

    def __init__(
        self, token: SecretStr, base: str, timeout_seconds: float, vitals: ConnectionHealth, backoff: Backoff
    ) -> None:
        self.timeout_seconds = timeout_seconds
        self._vitals = vitals
        self._backoff = backoff
        self._token = token
        self._server = TelegramAPIServer.from_base(base)
        self.host = urlsplit(base).hostname or ""
        self._bot: Bot | None = None
        self._closed = False
        self._opening = asyncio.Lock()

    async def call(self, method: TelegramMethod[_Result], within_seconds: float | None = None) -> _Result:
        """Return Telegram's answer to *method*. Raises one of `errors.AIOGRAM_ERRORS`, and `SendFailed` once closed."""
        bot = await self._open()
        return await bot(method, request_timeout=None if within_seconds is None else math.ceil(within_seconds))

    async def call_until_answered(self, method: TelegramMethod[_Result]) -> _Result:
        """Return Telegram's answer to *method*, asked again after each error. Raises as `recover`."""
        while True:
            try:
                answer = await self.call(method)
            except AIOGRAM_ERRORS as error:
                await self.recover(error)
            else:
                self._vitals.well("connection")
                self._backoff.failures = 0
                return answer

    async def recover(self, error: Exception) -> None:
        """Wait as long as *error* demands. Raises `ConnectorFailed` if waiting cannot help."""
        why = self.describe(error)
        if needs_person := meaning(error).needs_person:
            self.fail(f"{needs_person} ({why})", error)
        if isinstance(error, TelegramConflictError):
            why = f"another process is receiving for this bot; stop it or use another token ({why})"
        self._vitals.trouble("connection", why)
        await asyncio.sleep(self._backoff.next_seconds(retry_after_seconds(error)))

    def fail(self, why: str, error: Exception | None = None) -> NoReturn:
        """Note that only a person can help, and raise `ConnectorFailed`."""
        self._vitals.failed(why)
        raise ConnectorFailed(why) from error

    async def ask(self, build: Callable[[], TelegramMethod[_Result]]) -> _Result:
        """Send the call from *build*. Raises `SendFailed`, also if *build* raises `ValueError`."""
        try:
            method = build()
        except ValueError as error:
            raise SendFailed(f"Not an id of Telegram's: {error}", retryable=False) from error
        try:
            return await self.call(method)
        except AIOGRAM_ERRORS as error:
            raise send_failed(error, self.describe(error)) from error

    async def ask_formatted(
        self, part: OutboundPart, build: Callable[[OutboundPart], TelegramMethod[_Result]]
    ) -> _Result:
        """Ask with the formatting of *part*. If Telegram refuses the formatting, ask once more without it."""
        try:
            return await self.ask(lambda: build(part))
        except SendFailed as failed:
            plain = payloads.without_formatting(part)
            if plain is part or not refuses(failed, "can't parse entities"):
                raise
            log.warning("reply.unformatted", connector=payloads.CONNECTOR, part=part.token)
            return await self.ask(lambda: build(plain))

    async def ask_lossy(self, build: Callable[[], TelegramMethod[bool]]) -> None:
        """Ask for something that may be lost. Raises `SendFailed` only if Telegram demands a wait."""
        try:
            await self.ask(build)
        except SendFailed as failed:
            log.debug("connector.sign_lost", connector=payloads.CONNECTOR, why=str(failed))
            if failed.retry_after_seconds:
                raise

    def file_url(self, path: str) -> str:
        """Return the URL of a file. It contains the token."""
        return self._server.file_url(self._token.get_secret_value(), quote(path))

    def describe(self, error: Exception) -> str:
        """Return *error* in one line, without the token."""
        if isinstance(error, TokenValidationError):
            return "it is not of the form 123456:ABC"
        # Some errors contain the URL, and so the token.
        return self.masked(next(iter(str(error).splitlines()), type(error).__name__))

    def masked(self, text: str) -> str:
        """Return *text* without the token."""
        return text.replace(self._token.get_secret_value(), "**********")

    async def close(self) -> None:
        self._closed = True
        bot, self._bot = self._bot, None
        if bot is not None:
            try:
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await bot.session.close()
            except (TimeoutError, OSError, ClientError) as error:
                log.warning("connector.close_failed", connector=payloads.CONNECTOR, why=type(error).__name__)

    async def _open(self) -> Bot:
        if self._closed:
            raise SendFailed("The Telegram connector was closed.", retryable=True)
        async with self._opening:
            if self._bot is None:
                self._bot = await asyncio.to_thread(self._create)
            return self._bot

    def _create(self) -> Bot:
        """Load the certificates and build the schemas of all update types. Too slow for the event loop."""
        session = AiohttpSession(api=self._server, timeout=self.timeout_seconds)
        bot = Bot(self._token.get_secret_value(), session=session)
        Update.model_rebuild()
        return bot
