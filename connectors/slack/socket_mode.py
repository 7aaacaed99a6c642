"""Socket Mode: Slack's events over a WebSocket that we open. I/O.

The SDK's own client handles envelopes side by side, so that their order is lost, repeats a refused
``apps.connections.open`` for ever, and lets nobody see how it fares. So the loop here is ours.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog
from aiohttp import ClientError, ClientWebSocketResponse, WSMsgType

log = structlog.get_logger()

LINK_DISABLED = "link_disabled"
_LINGER_SECONDS = 10.0
_SEND_SECONDS = 5.0
_OVERDUE = 1.1
"""A socket that lives longer than this many times what Slack said is one that Slack may have forgotten."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """One thing that Slack delivered, to be acknowledged on the socket that it came by."""

    kind: str
    payload: dict[str, Any]
    envelope_id: str
    socket: Socket

    async def acknowledge(self, payload: dict[str, Any] | None = None) -> None:
        """May be lost: then Slack delivers again. *payload* is shown to who gave a command."""
        answer: dict[str, Any] = {"envelope_id": self.envelope_id}
        await self.socket.say(answer if payload is None else answer | {"payload": payload})


class Socket:
    """One connection, which *follows* so many that broke. `read` runs until it ends; ``retiring`` is set when another
    is wanted, and ``why`` says why."""

    def __init__(self, websocket: ClientWebSocketResponse, take: Callable[[Envelope], None], follows: int = 0) -> None:
        self._websocket = websocket
        self._take = take
        self.follows = follows
        self.greeted = False
        """Whether Slack said ``hello``: events come from then on."""
        self.announced = False
        """Whether Slack asked for another connection, instead of this one breaking."""
        self.settled = asyncio.Event()
        """Set once it is known whether Slack greets."""
        self.retiring = asyncio.Event()
        self.why = "the connection ended"
        self._condemned = False

    async def read(self, hello_seconds: float) -> None:
        """Pass on envelopes until the connection ends; for `_LINGER_SECONDS` after Slack announced its end."""
        try:
            async with asyncio.timeout(hello_seconds) as patience:
                while await self._read_one(patience):
                    pass
        except TimeoutError:
            if not self.greeted:
                self.why = "Slack did not greet on the new connection"
            elif not self.announced and not self._condemned:
                self.announced = True  # it works as far as anybody knows: no trouble, only time for another
                self.why = "Slack did not replace the connection in its time"
        finally:
            self.settled.set()
            self.retiring.set()
            await self.close()

    async def say(self, message: dict[str, Any]) -> None:
        """Send; a connection that is gone loses it."""
        try:
            async with asyncio.timeout(_SEND_SECONDS):
                await self._websocket.send_str(json.dumps(message))
        except (ClientError, OSError, TimeoutError) as error:
            log.debug("connector.acknowledgement_lost", connector="slack", why=type(error).__name__)

    async def give_up(self, why: str) -> None:
        """It is no good although it looks alive: `read` ends."""
        self._condemn(why)
        await self.close()

    async def close(self) -> None:
        try:
            async with asyncio.timeout(_SEND_SECONDS):
                await self._websocket.close()
        except (ClientError, OSError, TimeoutError) as error:
            log.debug("connector.close_failed", connector="slack", why=type(error).__name__)

    async def _read_one(self, patience: asyncio.Timeout) -> bool:
        """Whether there may be more."""
        frame = await self._websocket.receive()
        if frame.type is not WSMsgType.TEXT:
            if self._condemned:
                return frame.type is WSMsgType.BINARY
            if frame.type is WSMsgType.ERROR:
                self.why = f"the connection broke ({type(frame.data).__name__})"
            elif isinstance(error := self._websocket.exception(), Exception):
                self.why = f"Slack does not answer on the connection ({type(error).__name__})"
            return frame.type is WSMsgType.BINARY
        try:
            said = json.loads(frame.data)
            kind = said["type"]
        except (ValueError, TypeError, KeyError):
            log.warning("message.ignored", connector="slack", why="unreadable")
            return True
        self._understand(kind, said, patience)
        return True

    def _understand(self, kind: str, said: dict[str, Any], patience: asyncio.Timeout) -> None:
        if kind == "hello":
            self.greeted = True
            self.settled.set()
            patience.reschedule(_end_of_life(said))
        elif kind == "disconnect":
            self.announced = True
            self.why = f"Slack asked for another connection ({said.get('reason', 'no reason')})"
            if said.get("reason") == LINK_DISABLED:
                self._condemn("Socket Mode was turned off in the app's settings")
            self.retiring.set()
            patience.reschedule(asyncio.get_running_loop().time() + _LINGER_SECONDS)
        elif "envelope_id" in said:
            payload = said.get("payload")
            self._take(Envelope(kind, payload if isinstance(payload, dict) else {}, str(said["envelope_id"]), self))

    def _condemn(self, why: str) -> None:
        """*why* is the reason whatever happens to the connection from now on; it is no planned replacement."""
        self.why, self._condemned, self.announced = why, True, False
        self.retiring.set()


def _end_of_life(hello: dict[str, Any]) -> float | None:
    """When, by the loop's clock, a connection is overdue to be replaced; None where Slack does not say."""
    details = hello.get("debug_info")
    seconds = details.get("approximate_connection_time") if isinstance(details, dict) else None
    if not isinstance(seconds, int | float) or seconds <= 0:
        return None
    return asyncio.get_running_loop().time() + _OVERDUE * seconds
