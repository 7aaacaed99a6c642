"""Telegram, by long polling: I/O only. What messages mean is in `convert`, what errors mean in `errors`.

aiogram's own Dispatcher asks for the next updates, and thereby confirms the last ones, before their
handlers are done. So the polling here is ours: an update is confirmed only after it was accepted.
"""

from __future__ import annotations

import asyncio
import math
import random
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import structlog
from aiogram import Bot
from aiogram.client.session.aiohttp import AiohttpSession
from aiogram.client.telegram import TelegramAPIServer
from aiogram.exceptions import TelegramConflictError
from aiogram.methods import DeleteWebhook, GetMe, TelegramMethod
from aiogram.types import Update
from aiogram.utils.token import TokenValidationError
from aiohttp import ClientError
from pydantic import SecretStr, ValidationError

from connectors.connector import Accept, Capabilities, ConnectorFailed, Health, SendFailed, State
from connectors.message import ConversationKey, OutboundMessage, OutboundPart, Receipt, StoreUnavailable
from connectors.telegram import convert
from connectors.telegram.errors import AIOGRAM_ERRORS, meaning, refuses_formatting, retry_after_seconds, send_failed
from connectors.telegram.mentions import Identity

log = structlog.get_logger()

_Result = TypeVar("_Result")

TOKEN_VARIABLE = "AGENT_RUNTIME_TELEGRAM_BOT_TOKEN"  # noqa: S105 - the variable's name
BASE_VARIABLE = "AGENT_RUNTIME_TELEGRAM_API_BASE"

_ATTEMPTS_PER_UPDATE = 3
"""How often an update is offered when accepting it fails for another reason than an absent store."""

_CLOSE_SECONDS = 5.0


class _GetRawUpdates(TelegramMethod[list[dict[str, Any]]]):
    """``getUpdates`` as plain JSON: one update that aiogram cannot read must not take the batch with it."""

    __returning__ = list[dict[str, Any]]
    __api_method__ = "getUpdates"

    offset: int | None = None
    timeout: int
    allowed_updates: list[str]


class TelegramConnector:
    """A bot on Telegram: `connectors.connector.Connector`, `EditsMessages`, `ShowsTyping`, `Reacts`.

    ``timeout_seconds`` bounds each call, ``poll_seconds`` how long Telegram may hold an empty long poll.
    After a failure the waits grow from ``first_backoff_seconds`` to ``longest_backoff_seconds``.
    """

    name = convert.CONNECTOR
    capabilities = Capabilities(
        max_part_units=convert.MAX_TEXT_UNITS,
        units="utf16",
        threads=True,
        # "avoid sending more than one message per second" in one chat, and 20 a minute in a group
        # (Bot FAQ, "My bot is hitting limits"); edits count like messages.
        sends_per_second=1.0,
        edits_per_second=0.5,
    )
    typing_lasts_seconds = 5.0

    def __init__(
        self,
        token: SecretStr,
        api_base: str = "https://api.telegram.org",
        *,
        timeout_seconds: float = 20.0,
        poll_seconds: int = 30,
        first_backoff_seconds: float = 1.0,
        longest_backoff_seconds: float = 30.0,
    ) -> None:
        self._token = token
        self._api_base = api_base
        self._timeout_seconds = timeout_seconds
        self._poll_seconds = poll_seconds
        self._first_backoff_seconds = first_backoff_seconds
        self._longest_backoff_seconds = longest_backoff_seconds
        self._bot: Bot | None = None
        self._closed = False
        self._opening = asyncio.Lock()
        self._health = Health(State.CONNECTING)
        self._failures = 0
        self._in_conflict = False
        self._attempts: Counter[int] = Counter()

    @property
    def health(self) -> Health:
        return self._health

    async def run(self, accept: Accept) -> None:
        """Receives until cancelled. Raises `ConnectorFailed` when Telegram does not know the token."""
        try:
            await self._receive(await self._sign_in(), accept)
        finally:
            if self._health.state is not State.FAILED:
                self._is(State.STOPPED)

    def render(self, message: OutboundMessage) -> Sequence[OutboundPart]:
        return convert.to_parts(message)

    async def send(self, message: OutboundMessage, part: OutboundPart) -> Receipt:
        sent = await self._ask_formatted(part, lambda said: convert.to_send(message, said))
        return Receipt(message_id=str(sent.message_id))

    async def edit(self, message: OutboundMessage, part: OutboundPart, receipt: Receipt) -> None:
        try:
            await self._ask_formatted(part, lambda said: convert.to_edit(message, said, receipt))
        except SendFailed as failed:
            if "message is not modified" not in str(failed):
                raise

    async def typing(self, key: ConversationKey) -> None:
        await self._ask_in_passing(lambda: convert.to_typing(key.external_id))

    async def react(self, key: ConversationKey, message_id: str, emoji: str) -> None:
        await self._ask_in_passing(lambda: convert.to_reaction(key.external_id, message_id, emoji))

    async def close(self) -> None:
        self._closed = True
        bot, self._bot = self._bot, None
        if bot is not None:
            try:
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await bot.session.close()
            except (TimeoutError, OSError, ClientError) as error:
                log.warning("connector.close_failed", connector=self.name, why=type(error).__name__)
        if self._health.state is not State.FAILED:
            self._is(State.STOPPED)

    # Receiving

    async def _receive(self, me: Identity, accept: Accept) -> None:
        offset: int | None = None
        while True:
            for raw in await self._poll(offset):
                if not await self._take(raw, me, accept):
                    break  # this one and those after it are not confirmed: Telegram gives them again
                offset = raw["update_id"] + 1

    async def _sign_in(self) -> Identity:
        while True:
            try:
                bot = await self._opened()
                me = await bot(GetMe())
                # Telegram refuses long polling while a webhook is set; what waits there is kept.
                await bot(DeleteWebhook(drop_pending_updates=False))
            except AIOGRAM_ERRORS as error:
                await self._recover(error)
            else:
                self._recovered()
                return Identity(id=me.id, username=me.username or "")

    async def _poll(self, offset: int | None) -> list[dict[str, Any]]:
        """The next updates; none after a failure and the wait that it calls for."""
        # After a failure the first poll is a short one, so that health need not wait for somebody to speak.
        # Not after a conflict: each short poll would throw the other process out and look like success.
        wait_seconds = 0 if self._failures and not self._in_conflict else self._poll_seconds
        ask = _GetRawUpdates(offset=offset, timeout=wait_seconds, allowed_updates=convert.ALLOWED_UPDATES)
        try:
            bot = await self._opened()
            updates = await bot(ask, request_timeout=math.ceil(self._poll_seconds + self._timeout_seconds))
        except AIOGRAM_ERRORS as error:
            await self._recover(error)
            return []
        if not updates:  # also when Telegram has dropped what waited too long
            self._attempts.clear()
        if not self._attempts:  # else what is wrong lies with us, and is not over
            self._recovered()
        return updates

    async def _take(self, raw: dict[str, Any], me: Identity, accept: Accept) -> bool:
        """Whether the update may be confirmed. Waits before saying no."""
        update_id = raw["update_id"]
        try:
            update = Update.model_validate(raw)
        except ValidationError:
            log.warning("message.ignored", connector=self.name, why="unreadable", update_id=update_id)
            return True
        try:
            message = convert.to_inbound(update, me)
            if message is not None:
                await accept(message)
        except StoreUnavailable:
            self._attempts[update_id] = 0  # waits for as long as it takes
            await self._back_off("the store is unavailable; messages wait at Telegram")
            return False
        except Exception as error:  # noqa: BLE001 - the boundary: one message must not stop all others
            return await self._give_up(update_id, error)
        if self._attempts:
            self._attempts.clear()
            self._recovered()
        return True

    async def _give_up(self, update_id: int, error: Exception) -> bool:
        """Whether an update that fails for a fault of ours was tried often enough. Waits before saying no."""
        self._attempts[update_id] += 1
        frame = traceback.extract_tb(error.__traceback__)[-1]
        log.error(
            "message.failed",
            connector=self.name,
            why=type(error).__name__,  # without the error's own words, which may quote the message
            where=f"{frame.name}:{frame.lineno}",
            update_id=update_id,
        )
        if self._attempts[update_id] < _ATTEMPTS_PER_UPDATE:
            await self._back_off(f"a message could not be accepted ({type(error).__name__})")
            return False
        self._attempts.clear()
        self._recovered()
        return True

    async def _recover(self, error: Exception) -> None:
        """Waits as *error* calls for. Raises `ConnectorFailed` when waiting cannot help."""
        why = self._describe(error)
        if meaning(error).bad_token:
            failed = (
                f"Telegram does not accept the bot token ({why}). Set {TOKEN_VARIABLE} to the token that "
                f"@BotFather shows for the bot (and leave {BASE_VARIABLE} unset unless you use a proxy)."
            )
            self._is(State.FAILED, failed)
            raise ConnectorFailed(failed) from error
        self._in_conflict = isinstance(error, TelegramConflictError)
        if self._in_conflict:
            why = f"another process is receiving for this bot; stop it or use another token ({why})"
        await self._back_off(why, retry_after_seconds(error))

    async def _back_off(self, why: str, asked_seconds: float | None = None) -> None:
        never_connected = self._health.state is State.CONNECTING
        self._is(State.CONNECTING if never_connected else State.DEGRADED, why)
        # Exponential with jitter, so that many bots do not come back in the same instant.
        longest = min(self._longest_backoff_seconds, self._first_backoff_seconds * 2.0 ** min(self._failures, 20))
        self._failures += 1
        await asyncio.sleep(asked_seconds or longest * random.uniform(0.5, 1.0))  # noqa: S311 - no secret

    def _recovered(self) -> None:
        self._failures = 0
        self._in_conflict = False
        self._is(State.CONNECTED)

    def _is(self, state: State, why: str = "") -> None:
        self._health = Health(state, why)

    # Calling

    async def _opened(self) -> Bot:
        if self._closed:
            raise SendFailed("The Telegram connector was closed.", retryable=True)
        async with self._opening:
            if self._bot is None:
                self._bot = await asyncio.to_thread(self._open)
            return self._bot

    def _open(self) -> Bot:
        """Loads the certificates and builds the schemas of all update types: heavy, so not on the loop."""
        session = AiohttpSession(api=TelegramAPIServer.from_base(self._api_base), timeout=self._timeout_seconds)
        bot = Bot(self._token.get_secret_value(), session=session)
        Update.model_rebuild()
        return bot

    async def _ask(self, build: Callable[[], TelegramMethod[_Result]]) -> _Result:
        try:
            method = build()
        except ValueError as error:
            raise SendFailed(f"Not an id of Telegram's: {error}", retryable=False) from error
        try:
            bot = await self._opened()
            return await bot(method)
        except AIOGRAM_ERRORS as error:
            raise send_failed(error, self._describe(error)) from error

    async def _ask_formatted(
        self, part: OutboundPart, build: Callable[[OutboundPart], TelegramMethod[_Result]]
    ) -> _Result:
        """Asks with the formatting of *part*, and, where Telegram refuses just that, once more without."""
        try:
            return await self._ask(lambda: build(part))
        except SendFailed as failed:
            plain = convert.without_formatting(part)
            if plain is part or not refuses_formatting(failed):
                raise
            log.warning("reply.unformatted", connector=self.name, token=part.token)
            return await self._ask(lambda: build(plain))

    async def _ask_in_passing(self, build: Callable[[], TelegramMethod[bool]]) -> None:
        """Asks for what may be lost."""
        try:
            await self._ask(build)
        except SendFailed as failed:
            log.debug("connector.sign_lost", connector=self.name, why=str(failed))

    def _describe(self, error: Exception) -> str:
        if isinstance(error, TokenValidationError):
            return "it is not of the form 123456:ABC"
        # The token is part of every URL, and some errors show the URL. The first line is enough.
        return str(error).replace(self._token.get_secret_value(), "**********").splitlines()[0]
