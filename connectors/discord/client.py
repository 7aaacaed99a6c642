"""discord.py's client, pointed where the settings say, telling what happens in order.

discord.py starts a task for each event, which may overtake one another, and has its addresses in class
variables. Here events are told by one call each, in the order in which the gateway sent them, and the
addresses belong to the client.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import aiohttp
import discord
import structlog
from discord.http import HTTPClient, Route
from discord.state import ConnectionState
from yarl import URL

from connectors.discord.convert import CONNECTOR

log = structlog.get_logger()

# The bot does not speak aloud: no warnings that it could not.
discord.VoiceClient.warn_nacl = False
discord.VoiceClient.warn_dave = False

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


def _guarded(event: str, parse: Callable[[Any], Any]) -> Callable[[Any], None]:
    """*parse*, with the boundary that discord.py has not: a frame that it trips over must not end the session."""

    def guarded(data: Any) -> None:
        try:
            parse(data)
        except Exception as error:  # noqa: BLE001 - logged; the next frames do not depend on it
            why = type(error).__name__  # without the error's own words, which may quote the message
            log.warning("message.ignored", connector=CONNECTOR, why="unreadable", frame=event, error=why)

    return guarded


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
        super().__init__(
            intents=intents(),
            allowed_mentions=discord.AllowedMentions.none(),
            heartbeat_timeout=heartbeat_timeout_seconds,
            guild_ready_timeout=ready_seconds,
            enable_debug_events=True,  # the only way to see heartbeats being asked for and answered
        )

    def _get_state(self, **options: Any) -> ConnectionState[Any]:
        # Called once, while the client is made: the last moment at which its calls can be replaced.
        self.http = _Calls(
            *self._addresses, loop=self.loop, max_ratelimit_timeout=LONGEST_RATE_LIMIT_SECONDS, http_trace=_watch()
        )
        state = super()._get_state(**options)
        state.parsers = {event: _guarded(event, parse) for event, parse in state.parsers.items()}
        return state

    def dispatch(self, event: str, /, *args: Any, **_: Any) -> None:
        if event == "socket_raw_receive":
            self._heard(args[0])
        else:
            self._tell(event, args)

    def _heard(self, frame: str) -> None:
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
