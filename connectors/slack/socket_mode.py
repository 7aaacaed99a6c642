"""Socket Mode: Slack's events over a WebSocket that we open. I/O.

The SDK's own client handles envelopes concurrently, so that their order is lost, repeats a refused
``apps.connections.open`` for ever, and does not report its state. So the loop here is our own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog
from aiohttp import ClientError, ClientWebSocketResponse, WSMsgType
from pydantic import SecretStr
from slack_sdk.errors import SlackApiError

from connectors.connector import ConnectorFailed
from connectors.health import Backoff, ConnectionHealth
from connectors.slack.api import Api
from connectors.slack.backfill import Gaps, History, as_payload
from connectors.slack.check import APP_TOKEN_VARIABLE
from connectors.slack.errors import SLACK_ERRORS, meaning, retry_after_seconds
from connectors.slack.payloads import ephemeral
from connectors.slack.receive import Intake

log = structlog.get_logger()

_QUEUE_SIZE = 1000
_LINGER_SECONDS = 10.0
_SEND_SECONDS = 5.0
_MAX_AGE_FACTOR = 1.1
"""Slack may have forgotten a socket that lives longer than this factor times what Slack said."""


class SocketMode:
    """Keeps a connection open. Passes on events in order, and commands and presses concurrently, as people wait.

    Slack replaces a connection from time to time: the old one is read until the new one is open. A connection on which
    a ping of every *ping_seconds* is not answered in half that time is replaced. After a connection broke, the history
    fills what it may have swallowed (`Gaps`).
    """

    def __init__(
        self,
        api: Api,
        intake: Intake,
        history: History,
        vitals: ConnectionHealth,
        app_token: SecretStr,
        *,
        timeout_seconds: float,
        ping_seconds: float,
        backoff: Backoff,
    ) -> None:
        self._api = api
        self._intake = intake
        self._vitals = vitals
        self._app_token = app_token
        self._timeout_seconds = timeout_seconds
        self._ping_seconds = ping_seconds
        self._backoff = backoff
        self._gaps = Gaps(history)
        self._overrun = False
        self._events: asyncio.Queue[Envelope] = asyncio.Queue(_QUEUE_SIZE)
        self._tasks: asyncio.TaskGroup

    async def run(self) -> None:
        """Run until cancelled. Raises `connectors.connector.ConnectorFailed` in a group."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self._take_events(), name="slack events")
            tasks.create_task(self._stay_connected(), name="slack socket")

    async def _stay_connected(self) -> None:
        backoff = self._backoff.fresh()
        while True:
            try:
                socket = await self._open()
            except SLACK_ERRORS as error:
                why = self._api.describe(error)
                if isinstance(error, SlackApiError) and not meaning(error).retryable:
                    raise ConnectorFailed(
                        f"Slack does not open Socket Mode with the app token ({why}). Set {APP_TOKEN_VARIABLE} to an "
                        "app-level token with the scope connections:write, which begins with xapp-, and turn Socket "
                        "Mode on in the app's settings."
                    ) from error
                self._vitals.trouble("socket", f"Socket Mode cannot be opened: {why}")
                await asyncio.sleep(backoff.next_seconds(retry_after_seconds(error)))
                continue
            # A task of its own: the socket is read on while its successor is opened.
            self._tasks.create_task(socket.read(self._timeout_seconds), name="slack socket reader")
            await socket.settled.wait()
            opened_at = asyncio.get_running_loop().time()
            if socket.greeted:
                self._vitals.well("socket")
                self._vitals.connected()
            await socket.retiring.wait()
            if asyncio.get_running_loop().time() - opened_at > backoff.longest_seconds:
                backoff.failures = 0
            if socket.announced and socket.greeted and backoff.failures == 0:
                backoff.failures = 1
                continue
            self._gaps.note_break()
            self._vitals.trouble("socket", socket.why)
            await asyncio.sleep(backoff.next_seconds())

    async def _open(self) -> Socket:
        secret = self._app_token.get_secret_value()
        answer = await self._api.call(lambda client: client.apps_connections_open(app_token=secret))
        websocket = await self._api.websocket(str(answer.get("url") or ""), self._ping_seconds)
        return Socket(websocket, self._receive, self._gaps.breaks)

    def _receive(self, envelope: Envelope) -> None:
        if envelope.kind in {"slash_commands", "interactive"}:
            self._tasks.create_task(self._take_command(envelope), name="slack command")
            return
        try:
            self._events.put_nowait(envelope)
        except asyncio.QueueFull:  # not acknowledged, so that Slack delivers it again
            if not self._overrun:  # one warning for a flood, not one for each of its messages
                log.warning("connector.overrun", connector="slack", waiting=self._events.qsize())
            self._overrun = True
        else:
            self._overrun = self._overrun and self._events.qsize() > _QUEUE_SIZE // 2

    async def _take_events(self) -> None:
        """Pass on events one after the other, so that messages keep their order; acknowledge each after that."""
        while True:
            envelope = await self._events.get()
            if envelope.kind == "events_api":
                await self._take_in_order(envelope.payload, envelope.socket.breaks_before)
            else:
                log.info("message.ignored", connector="slack", why=f"unsupported: {envelope.kind}")
            await envelope.acknowledge()

    async def _take_in_order(self, payload: dict[str, Any], breaks: int) -> None:
        event = payload.get("event")
        if not isinstance(event, dict):
            await self._intake.take_until_accepted(payload, self._backoff.fresh())
            return
        for message in await self._gaps.fill(event, breaks):
            envelope = payload if message is event else as_payload(message)
            await self._intake.take_until_accepted(envelope, self._backoff.fresh())
            self._gaps.note_passed_on(message)

    async def _take_command(self, envelope: Envelope) -> None:
        if envelope.kind == "slash_commands":
            text = await self._intake.take_command(envelope.payload)
            await envelope.acknowledge(ephemeral(text) if text else None)
        elif await self._intake.take_press(envelope.payload):
            await envelope.acknowledge()


class Socket:
    """One connection. `read` runs until it ends; ``retiring`` is set when a successor is wanted, for the reason
    ``why``.

    *breaks_before* is the number of connections that broke before this one was opened.
    """

    def __init__(
        self, websocket: ClientWebSocketResponse, take: Callable[[Envelope], None], breaks_before: int = 0
    ) -> None:
        self._websocket = websocket
        self._take = take
        self.breaks_before = breaks_before
        self.greeted = False
        """True once Slack said ``hello``: events come from then on."""
        self.announced = False
        """True if Slack asked for a successor; False if the connection broke."""
        self.settled = asyncio.Event()
        """Set once it is known whether Slack greets."""
        self.retiring = asyncio.Event()
        self.why = "the connection ended"

    async def read(self, hello_seconds: float) -> None:
        """Pass on envelopes until the connection ends, or for `_LINGER_SECONDS` after Slack announced its end."""
        try:
            async with asyncio.timeout(hello_seconds) as deadline:
                while await self._read_frame(deadline):
                    pass
        except TimeoutError:
            if not self.greeted:
                self.why = "Slack did not greet on the new connection"
            elif not self.retiring.is_set():
                self.announced = True  # it works as far as we know: it is time for a successor, but no trouble
                self.why = "Slack did not replace the connection in its time"
        finally:
            self.settled.set()
            self.retiring.set()
            await self.close()

    async def send(self, message: dict[str, Any]) -> None:
        """Send *message*; it is lost if the connection is gone."""
        try:
            async with asyncio.timeout(_SEND_SECONDS):
                await self._websocket.send_str(json.dumps(message))
        except (ClientError, OSError, TimeoutError) as error:
            log.debug("connector.acknowledgement_lost", connector="slack", why=type(error).__name__)

    async def close(self) -> None:
        try:
            async with asyncio.timeout(_SEND_SECONDS):
                await self._websocket.close()
        except (ClientError, OSError, TimeoutError) as error:
            log.debug("connector.close_failed", connector="slack", why=type(error).__name__)

    async def _read_frame(self, deadline: asyncio.Timeout) -> bool:
        """Read one frame. Returns False at the end of the connection."""
        frame = await self._websocket.receive()
        if frame.type is not WSMsgType.TEXT:
            if not self.retiring.is_set():
                if frame.type is WSMsgType.ERROR:
                    self.why = f"the connection broke ({type(frame.data).__name__})"
                elif isinstance(error := self._websocket.exception(), Exception):
                    self.why = f"Slack does not answer on the connection ({type(error).__name__})"
            return frame.type is WSMsgType.BINARY
        try:
            message = json.loads(frame.data)
            kind = message["type"]
        except (ValueError, TypeError, KeyError):
            log.warning("message.ignored", connector="slack", why="unreadable")
            return True
        if kind == "hello":
            self.greeted = True
            self.settled.set()
            deadline.reschedule(_successor_due_at(message))
        elif kind == "disconnect":
            reason = message.get("reason", "no reason")
            self.why = f"Slack asked for another connection ({reason})"
            self.announced = reason != "link_disabled"
            if not self.announced:
                self.why = "Socket Mode was turned off in the app's settings"
            self.retiring.set()
            deadline.reschedule(asyncio.get_running_loop().time() + _LINGER_SECONDS)
        elif "envelope_id" in message:
            payload = message.get("payload")
            self._take(Envelope(kind, payload if isinstance(payload, dict) else {}, str(message["envelope_id"]), self))
        return True


@dataclass(frozen=True, slots=True)
class Envelope:
    """One delivery by Slack, to be acknowledged on the socket that brought it."""

    kind: str
    payload: dict[str, Any]
    envelope_id: str
    socket: Socket

    async def acknowledge(self, payload: dict[str, Any] | None = None) -> None:
        """Acknowledge it, with *payload* for the person who gave a command. If this is lost, Slack delivers again."""
        answer: dict[str, Any] = {"envelope_id": self.envelope_id}
        await self.socket.send(answer if payload is None else answer | {"payload": payload})


def _successor_due_at(hello: dict[str, Any]) -> float | None:
    """Return when, in the loop's time, a connection should have been replaced; None if Slack does not say."""
    details = hello.get("debug_info")
    seconds = details.get("approximate_connection_time") if isinstance(details, dict) else None
    if not isinstance(seconds, int | float) or seconds <= 0:
        return None
    return asyncio.get_running_loop().time() + _MAX_AGE_FACTOR * seconds
