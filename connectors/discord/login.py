"""One login at Discord: opened when it is first needed, closed once. Everything asked of Discord goes through it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog
from aiohttp import ClientError
from discord.gateway import DiscordWebSocket
from pydantic import SecretStr

from connectors.connector import SendFailed
from connectors.discord.client import FLIGHT, Flight, GatewayClient, Told
from connectors.discord.convert import CONNECTOR
from connectors.discord.errors import DISCORD_ERRORS, meaning, retry_after_seconds, send_failed

log = structlog.get_logger()

_Result = TypeVar("_Result")

_CLOSE_SECONDS = 5.0
_LONGEST_TEXT = 300


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that grow from ``first_seconds`` to ``longest_seconds``."""

    first_seconds: float
    longest_seconds: float

    async def wait(self, failures: int, asked_seconds: float | None = None) -> None:
        """Waits as long as was asked for, else by how many failures there were (from 1 on)."""
        await asyncio.sleep(asked_seconds or self.seconds(failures, random.random()))  # noqa: S311 - no secret

    def seconds(self, failures: int, chance: float) -> float:
        """The wait after so many failures: exponential, and between half and all of that by *chance* (0 to 1), so
        that many bots do not come back in the same instant."""
        longest = min(self.longest_seconds, self.first_seconds * 2.0 ** min(failures - 1, 20))
        return longest * (0.5 + chance / 2)


class Login:
    """*make* makes a client that tells what it hears to the callable that it is given."""

    def __init__(
        self, token: SecretStr, make: Callable[[Told], GatewayClient], longest_call_seconds: float, backoff: Backoff
    ) -> None:
        self._token = token
        self._make = make
        self._longest_call_seconds = longest_call_seconds
        self._backoff = backoff
        self._opening = asyncio.Lock()
        self._closed = False
        self.client: GatewayClient | None = None
        """The client that is logged in, if one is."""
        self.tell: Callable[[GatewayClient, str, tuple[Any, ...]], None] = lambda client, event, args: None
        """Hears what the gateway says, in order."""
        self.doubted = asyncio.Event()
        """Whether a call was refused in a way that only a person can put right."""

    async def opened(self) -> GatewayClient:
        """A client that is logged in. Raises one of `DISCORD_ERRORS`, and `SendFailed` after `close`."""
        async with self._opening:
            if self._closed:
                raise SendFailed("The Discord connector was closed.", retryable=True)
            if self.client is None or self.client.is_closed():
                client = self._make(self._hear)
                try:
                    async with asyncio.timeout(self._longest_call_seconds):
                        await client.login(self._token.get_secret_value())
                except BaseException:
                    await self._let_go(client)
                    raise
                self.client = client
            return self.client

    async def opened_at_last(self) -> GatewayClient:
        """As `opened`, with patience."""
        failures = 0
        while True:
            try:
                return await self.opened()
            except DISCORD_ERRORS as error:
                failures += 1
                await self._backoff.wait(failures, retry_after_seconds(error))

    async def ask(self, call: Callable[[GatewayClient], Awaitable[_Result]], *, waits: bool = True) -> _Result:
        """What Discord answers to *call*. Raises `SendFailed`, at once for a rate limit if it never *waits*."""
        try:
            client = await self.opened()
        except DISCORD_ERRORS as error:
            found = meaning(error)  # nothing was sent: never ambiguous
            why = f"Discord was not reached: {self.describe(error)}"
            raise SendFailed(why, retryable=found.retryable, retry_after_seconds=retry_after_seconds(error)) from error
        flight = Flight(waits=waits)
        token = FLIGHT.set(flight)
        try:
            async with asyncio.timeout(self._longest_call_seconds) as limit:
                return await call(client)
        except DISCORD_ERRORS as error:
            if limit.expired() and not flight.may_have_landed:
                raise SendFailed("Discord's rate limits let nothing through.", retryable=True) from error
            if meaning(error).needs_person:
                self.doubted.set()
            raise send_failed(error, self.describe(error)) from error
        finally:
            FLIGHT.reset(token)

    async def ask_in_passing(self, call: Callable[[GatewayClient], Awaitable[None]]) -> None:
        """Asks for what may be lost. Raises `SendFailed` only with a wait that is asked for."""
        try:
            await self.ask(call)
        except SendFailed as failed:
            log.debug("connector.sign_lost", connector=CONNECTOR, why=str(failed))
            if failed.retry_after_seconds:
                raise

    async def hang_up(self) -> None:
        """Ends the session at the gateway; calls can still be made."""
        socket: DiscordWebSocket | None = self.client.ws if self.client is not None else None
        if socket is not None and socket.open:
            await _in_time(socket.close(code=1000))

    async def close(self) -> None:
        """For good. Bounded; never raises."""
        self._closed = True
        client, self.client = self.client, None
        if client is not None:
            await self._let_go(client)

    def describe(self, error: BaseException) -> str:
        """*error* in one line, without the token."""
        text = str(error).replace(self._token.get_secret_value(), "**********") or type(error).__name__
        return " ".join(text.split())[:_LONGEST_TEXT]

    async def _let_go(self, client: GatewayClient) -> None:
        await _in_time(client.close())

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if self.client is not None:
            self.tell(self.client, event, args)


async def _in_time(closing: Awaitable[None]) -> None:
    try:
        async with asyncio.timeout(_CLOSE_SECONDS):
            await closing
    except (TimeoutError, OSError, ClientError) as error:
        log.warning("connector.close_failed", connector=CONNECTOR, why=type(error).__name__)
