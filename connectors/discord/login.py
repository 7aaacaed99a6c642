"""One login at Discord. It is opened when it is first needed and closed once; all calls to Discord go through it.

`Login` makes calls with a time limit and translates their errors. `GatewayClient` is discord.py's client with addresses
of its own; it reports the gateway's events in order. (discord.py has its addresses in class variables, and starts a
task for each event, so that events may overtake one another.)
"""

from __future__ import annotations

import asyncio
import logging
import re
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

log = structlog.get_logger()

# discord.py warns twice that it cannot use voice channels, which the bot does not do.
logging.getLogger("discord.client").setLevel(logging.ERROR)

_Result = TypeVar("_Result")

MAX_RATE_LIMIT_SECONDS = 30.0
"""The longest wait for a rate limit inside a call (discord.py's minimum). A longer wait raises an error."""

MAX_CALLS_PER_SECOND = 50
"""Reference, "Rate Limits": 50 requests a second of all kinds, except those that answer interactions."""

SESSION_WAIT_SECONDS = 5.0
"""Reference, "Rate Limiting" of the gateway: one new session in 5 seconds."""

_CLOSE_SECONDS = 5.0
_MAX_ERROR_CHARACTERS = 300
_NEEDS_NO_TOKEN = re.compile(r"/(?:interactions|webhooks)/\d+/")


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """The addresses of Discord, and how long it may take: for one request, for one call with all its waits, for the
    answer to a heartbeat; and the pause before another session."""

    api_base: str
    gateway_url: str
    request_seconds: float
    call_seconds: float
    heartbeat_seconds: float
    session_wait_seconds: float = SESSION_WAIT_SECONDS


class Login:
    """The bot's login. *token* never leaves it."""

    def __init__(self, token: SecretStr, options: ConnectionOptions) -> None:
        self._token = token
        self._options = options
        self._opening = asyncio.Lock()
        self._closed = False
        self.client: GatewayClient | None = None
        """The client that is logged in, if any."""
        self.on_event: OnEvent = lambda client, event, args: None
        """Receives the gateway's events in order."""

    async def open(self) -> GatewayClient:
        """Return a client that is logged in. Raises one of `DISCORD_ERRORS`, and `SendFailed` after `close`."""
        async with self._opening:
            if self._closed:
                raise SendFailed("The Discord connector was closed.", retryable=True)
            if self.client is None or self.client.is_closed():
                client = GatewayClient(self._options, self._report)
                try:
                    async with asyncio.timeout(self._options.call_seconds):
                        await client.login(self._token.get_secret_value())
                except BaseException:
                    await _close_in_time(client.close())
                    raise
                self.client = client
            return self.client

    async def ask(
        self, call: Callable[[GatewayClient], Awaitable[_Result]], *, waits: bool = True, repeats: bool = True
    ) -> _Result:
        """Return Discord's answer to *call*. Raises `SendFailed`.

        With *waits* false it is raised at once for a rate limit, with *repeats* false for an error of the server.
        """
        try:
            client = await self.open()
        except DISCORD_ERRORS as error:
            why = f"Discord was not reached: {self.describe(error)}"
            retryable = meaning(error).retryable  # never ambiguous, because nothing was sent
            raise SendFailed(why, retryable=retryable, retry_after_seconds=retry_after_seconds(error)) from error
        state, seconds = _Call(waits, repeats), self._options.call_seconds
        token = _CALL.set(state)
        try:
            async with asyncio.timeout(seconds) as limit:
                return await call(client)
        except DISCORD_ERRORS as error:
            if limit.expired() and not state.may_have_arrived:
                why = f"Discord's rate limit left no room for the message within {seconds:g} s, so it was not sent"
                raise SendFailed(why, retryable=True) from error
            why = f"no answer within {seconds:g} s" if limit.expired() else self.describe(error)
            raise send_failed(error, why) from error
        finally:
            _CALL.reset(token)

    async def ask_lossy(self, call: Callable[[GatewayClient], Awaitable[None]]) -> None:
        """Ask for something that may be lost. Raises `SendFailed` only if Discord demands a wait."""
        try:
            await self.ask(call)
        except SendFailed as failed:
            log.debug("connector.sign_lost", connector=CONNECTOR, why=str(failed))
            if failed.retry_after_seconds:
                raise

    async def hang_up(self) -> None:
        """End the session at the gateway. Calls are still possible."""
        socket: DiscordWebSocket | None = self.client.ws if self.client is not None else None
        if socket is not None and socket.open:
            await _close_in_time(socket.close(code=1000))

    async def close(self) -> None:
        """Close for good, within a few seconds. Never raises."""
        self._closed = True
        client, self.client = self.client, None
        if client is not None:
            await _close_in_time(client.close())

    def describe(self, error: BaseException) -> str:
        """Return *error* in one line, without the token."""
        text = str(error).replace(self._token.get_secret_value(), "**********") or type(error).__name__
        return " ".join(text.split())[:_MAX_ERROR_CHARACTERS]

    def _report(self, client: GatewayClient, event: str, args: tuple[Any, ...]) -> None:
        if client is self.client:
            self.on_event(client, event, args)


async def _close_in_time(closing: Awaitable[None]) -> None:
    try:
        async with asyncio.timeout(_CLOSE_SECONDS):
            await closing
    except (TimeoutError, OSError, ClientError) as error:
        log.warning("connector.close_failed", connector=CONNECTOR, why=type(error).__name__)


class GatewayClient(discord.Client):
    """discord.py's client for one login. *on_event* receives every event of the gateway."""

    def __init__(self, options: ConnectionOptions, on_event: OnEvent) -> None:
        self._options = options
        self._on_event = on_event
        super().__init__(
            # A person has to allow the message content in the Developer Portal.
            intents=discord.Intents(
                guilds=True,
                guild_messages=True,
                dm_messages=True,
                guild_reactions=True,
                dm_reactions=True,
                message_content=True,
            ),
            allowed_mentions=discord.AllowedMentions.none(),
            heartbeat_timeout=options.heartbeat_seconds,
        )

    @property
    def http(self) -> HTTPClient:
        """The client for calls. discord.py creates one while it is set up; `_HttpClient` replaces it."""
        return self._http

    @http.setter
    def http(self, client: HTTPClient) -> None:
        self._http = _HttpClient(
            self._options,
            loop=client.loop,
            max_ratelimit_timeout=MAX_RATE_LIMIT_SECONDS,
            http_trace=_trace_calls(),
        )

    def dispatch(self, event: str, /, *args: Any, **_: Any) -> None:
        """Report *event* at once. discord.py would start a task, and may change the message before the task runs."""
        self._on_event(self, event, args)

    async def before_identify_hook(self, shard_id: int | None, *, initial: bool = False) -> None:
        if not initial:
            await asyncio.sleep(self._options.session_wait_seconds)


OnEvent = Callable[[GatewayClient, str, tuple[Any, ...]], None]
"""Receives a client, discord.py's name of an event and its arguments. Must neither block nor raise."""


class _HttpClient(HTTPClient):
    """Sends calls and opens sockets at the addresses of *connection_options*."""

    def __init__(self, connection_options: ConnectionOptions, **options: Any) -> None:
        super().__init__(**options)
        self._api_base = connection_options.api_base.rstrip("/")
        self._gateway_url = URL(connection_options.gateway_url)
        self._timeout = aiohttp.ClientTimeout(total=connection_options.request_seconds)

    async def request(self, route: Route, **options: Any) -> Any:
        route.url = self._api_base + route.url.removeprefix(Route.BASE)
        options.setdefault("timeout", self._timeout)
        answer = await super().request(route, **options)
        if isinstance(answer, str) and answer:
            raise discord.InvalidData("the answer is not JSON, so not Discord's")  # discord.py expects JSON
        return answer

    async def ws_connect(self, url: str, *, compress: int = 0) -> aiohttp.ClientWebSocketResponse:
        address = URL(url)
        if self._gateway_url.host != DiscordWebSocket.DEFAULT_GATEWAY.host:
            # A proxy. It also replaces the addresses that Discord gives out for resuming.
            address = self._gateway_url.with_query(address.query)
        return await super().ws_connect(str(address), compress=compress)


@dataclass(slots=True)
class _Call:
    """What is known of one call, which discord.py may send several times."""

    waits_for_rate_limits: bool = True
    """If not, a rate limit ends it with `discord.RateLimited`."""
    repeats: bool = True
    """If not, an error of the server ends it with `discord.DiscordServerError`: it may have been carried out."""
    may_have_arrived: bool = False
    """Whether a request was sent that Discord did not refuse for a rate limit."""


_CALL: ContextVar[_Call | None] = ContextVar("CALL", default=None)


def _trace_calls() -> aiohttp.TraceConfig:
    """Keep the limit of calls per second, and end calls that do not wait for a rate limit or are not repeated."""
    limit = _RateLimit()

    async def start(_session: object, request: SimpleNamespace, params: aiohttp.TraceRequestStartParams) -> None:
        if _NEEDS_NO_TOKEN.search(params.url.path):
            params.headers.pop("Authorization", None)  # the interaction's own token is enough
        else:
            await limit.enter(request)
        call = _CALL.get()
        request.call, request.is_first = call, call is not None and not call.may_have_arrived
        if call is not None:
            call.may_have_arrived = True

    async def end(_session: object, request: SimpleNamespace, params: aiohttp.TraceRequestEndParams) -> None:
        limit.leave(request)
        call: _Call | None = request.call
        if params.response.status == 429 and call is not None:
            if request.is_first:
                call.may_have_arrived = False
            if not call.waits_for_rate_limits:
                raise discord.RateLimited(_retry_after(params.response))
        if params.response.status >= 500 and call is not None and not call.repeats:
            raise discord.DiscordServerError(params.response, None)

    async def fail(_session: object, request: SimpleNamespace, _: aiohttp.TraceRequestExceptionParams) -> None:
        limit.leave(request)

    trace = aiohttp.TraceConfig()
    trace.on_request_start.append(start)
    trace.on_request_end.append(end)
    trace.on_request_exception.append(fail)
    return trace


class _RateLimit:
    """Allows `MAX_CALLS_PER_SECOND` calls that are on their way or have ended within the last second.

    So Discord never sees more in any second, however long each one takes to arrive. Calls wait in their order.
    """

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(MAX_CALLS_PER_SECOND)

    async def enter(self, request: SimpleNamespace) -> None:
        await self._room.acquire()
        request.holds_room = True

    def leave(self, request: SimpleNamespace) -> None:
        """Give the room back after a second. Does nothing if *request* has none."""
        if getattr(request, "holds_room", False):
            request.holds_room = False
            asyncio.get_running_loop().call_later(1.0, self._room.release)


def _retry_after(response: aiohttp.ClientResponse) -> float:
    try:
        return float(response.headers["Retry-After"])
    except (KeyError, ValueError):
        return 1.0
