"""One login at Discord: opened when it is first needed, closed once. Everything asked of Discord goes through it."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import random
import re
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeVar

import aiohttp
import discord
import structlog
from aiohttp import ClientError
from discord.gateway import DiscordWebSocket
from discord.http import HTTPClient, Route
from pydantic import SecretStr
from yarl import URL

from connectors.connector import SendFailed
from connectors.discord.errors import DISCORD_ERRORS, meaning, retry_after_seconds, send_failed
from connectors.discord.events import CONNECTOR

# ---- client ----
#
# discord.py's client, pointed where the settings say, telling what happens in order.
#
# discord.py starts a task for each event, which may overtake one another, and has its addresses in class
# variables. Here events are told by one call each, in the order in which the gateway sent them, and the
# addresses belong to the client.


log = structlog.get_logger()

# discord.py warns twice that it cannot speak aloud, which the bot does not do.
logging.getLogger("discord.client").setLevel(logging.ERROR)

Told = Callable[[str, tuple[Any, ...]], None]
"""Called with discord.py's name of an event and its arguments. Must neither block nor raise."""

LONGEST_RATE_LIMIT_SECONDS = 30.0
"""Longest wait for a rate limit inside a call (the least that discord.py allows); beyond it raises."""

MAX_CALLS = 50
"""Reference, "Rate Limits": 50 requests a second, whatever they ask for, but for those that answer interactions."""

SESSION_WAIT_SECONDS = 5.0
"""Reference, "Rate Limiting" of the gateway: one new session in 5 seconds."""


def intents() -> discord.Intents:
    """What the bot needs to hear, and nothing else. Message content has to be allowed by a person."""
    return discord.Intents(
        guilds=True,
        guild_messages=True,
        dm_messages=True,
        guild_reactions=True,
        dm_reactions=True,
        message_content=True,
    )


_NEEDS_NO_TOKEN = re.compile(r"/(?:interactions|webhooks)/\d+/")
_HELLO, _HEARTBEAT_ANSWERED = 10, 11
"""Reference, "Gateway Opcodes"."""
_LONGEST_SIGN = 300
"""No frame that is longer is one of these two."""


@dataclass(slots=True)
class Flight:
    """One call: whether a request of it may have been carried out, as far as is known by now, and whether
    one before the newest may have been."""

    may_have_landed: bool = False
    earlier: bool = False
    waits: bool = True
    """Whether rate limits are waited for inside the call. If not, one ends it by `discord.RateLimited`."""


FLIGHT: ContextVar[Flight | None] = ContextVar("FLIGHT", default=None)
"""The call that is being made. discord.py waits for rate limits inside a call: a call that runs out of time
may never have left."""


class _Pace:
    """Lets at most `MAX_CALLS` calls be on their way or have ended within the last second, in the order in which they
    come: so Discord never sees more in any second, however long each takes to arrive."""

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(MAX_CALLS)

    async def enter(self, call: SimpleNamespace) -> None:
        await self._room.acquire()
        call.holds_room = True

    def leave(self, call: SimpleNamespace) -> None:
        """May be told twice of one call, or of one that never entered."""
        if getattr(call, "holds_room", False):
            call.holds_room = False
            asyncio.get_running_loop().call_later(1.0, self._room.release)


def _watch() -> aiohttp.TraceConfig:
    pace = _Pace()

    async def starts(_session: object, call: SimpleNamespace, request: aiohttp.TraceRequestStartParams) -> None:
        if _NEEDS_NO_TOKEN.search(request.url.path):
            request.headers.pop("Authorization", None)  # the token of the interaction says enough
        else:
            await pace.enter(call)
        flight = FLIGHT.get()
        if flight is not None:
            flight.earlier, flight.may_have_landed = flight.may_have_landed, True

    async def ends(_session: object, call: SimpleNamespace, answer: aiohttp.TraceRequestEndParams) -> None:
        pace.leave(call)
        flight = FLIGHT.get()
        if flight is not None and answer.response.status == 429:
            flight.may_have_landed = flight.earlier
            if not flight.waits:
                raise discord.RateLimited(_asked_seconds(answer.response))

    async def fails(_session: object, call: SimpleNamespace, _failed: aiohttp.TraceRequestExceptionParams) -> None:
        pace.leave(call)

    trace = aiohttp.TraceConfig()
    trace.on_request_start.append(starts)
    trace.on_request_end.append(ends)
    trace.on_request_exception.append(fails)
    return trace


def _asked_seconds(response: aiohttp.ClientResponse) -> float:
    try:
        return float(response.headers["Retry-After"])
    except (KeyError, ValueError):
        return 1.0


class _Calls(HTTPClient):
    """Calls go to *api_base* and sockets to *gateway_url*; each attempt has *timeout_seconds*."""

    def __init__(self, api_base: str, gateway_url: str, timeout_seconds: float, **options: Any) -> None:
        super().__init__(**options)
        self._api_base = api_base.rstrip("/")
        self._gateway_url = URL(gateway_url)
        self._timeout_seconds = timeout_seconds

    async def request(self, route: Route, **options: Any) -> Any:
        route.url = self._api_base + route.url.removeprefix(Route.BASE)
        options.setdefault("timeout", aiohttp.ClientTimeout(total=self._timeout_seconds))
        answer = await super().request(route, **options)
        if isinstance(answer, str) and answer:
            raise discord.InvalidData("the answer is not JSON, so not Discord's")  # discord.py would trip over it
        return answer

    async def ws_connect(self, url: str, *, compress: int = 0) -> aiohttp.ClientWebSocketResponse:
        asked = URL(url)
        if self._gateway_url.host != discord.gateway.DiscordWebSocket.DEFAULT_GATEWAY.host:
            # A proxy: it stands before the addresses, too, that Discord gives out for resuming.
            asked = self._gateway_url.with_query(asked.query)
        return await super().ws_connect(str(asked), compress=compress)


class GatewayClient(discord.Client):
    """One login. *tell* hears every event of the gateway; ``heard_at`` is when the last frame came
    (``time.monotonic``), answers to heartbeats included, and ``answered_at`` when the last heartbeat was answered.
    ``heartbeat_seconds`` is the interval that Discord asks for."""

    def __init__(
        self,
        tell: Told,
        api_base: str,
        gateway_url: str,
        *,
        timeout_seconds: float,
        heartbeat_timeout_seconds: float,
        ready_seconds: float,
        session_wait_seconds: float = SESSION_WAIT_SECONDS,
    ) -> None:
        self._tell = tell
        self._addresses = (api_base, gateway_url, timeout_seconds)
        self._session_wait_seconds = session_wait_seconds
        self.heard_at = self.answered_at = time.monotonic()
        self.heartbeat_seconds = math.inf
        self._last_frame = "null"
        super().__init__(
            intents=intents(),
            allowed_mentions=discord.AllowedMentions.none(),
            heartbeat_timeout=heartbeat_timeout_seconds,
            guild_ready_timeout=ready_seconds,
            enable_debug_events=True,  # the only way to see heartbeats being asked for and answered
        )

    @property
    def http(self) -> HTTPClient:
        """The client for calls. discord.py creates one while it is set up; `_Calls` takes its place."""
        return self._calls

    @http.setter
    def http(self, client: HTTPClient) -> None:
        self._calls = _Calls(
            *self._addresses, loop=client.loop, max_ratelimit_timeout=LONGEST_RATE_LIMIT_SECONDS, http_trace=_watch()
        )

    def dispatch(self, event: str, /, *args: Any, **_: Any) -> None:
        """Pass *event* on at once. discord.py would start a task, and may change the message before the task runs."""
        if event == "socket_raw_receive":
            self._heard(args[0])
        else:
            self._tell(event, args)

    @property
    def last_message(self) -> tuple[int, int] | None:
        """The ids of the channel and the message in the last frame; None if it is about no message."""
        try:
            data = json.loads(self._last_frame)["d"]
            return int(data["channel_id"]), int(data["id"])
        except (ValueError, KeyError, TypeError):
            return None

    def _heard(self, frame: str) -> None:
        self._last_frame = frame
        self.heard_at = time.monotonic()
        if len(frame) > _LONGEST_SIGN:
            return
        told = json.loads(frame)
        if told.get("op") == _HELLO:
            self.heartbeat_seconds = told["d"]["heartbeat_interval"] / 1000
        if told.get("op") in (_HELLO, _HEARTBEAT_ANSWERED):
            self.answered_at = self.heard_at

    async def before_identify_hook(self, shard_id: int | None, *, initial: bool = False) -> None:
        if not initial:
            await asyncio.sleep(self._session_wait_seconds)


# ---- login ----


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
