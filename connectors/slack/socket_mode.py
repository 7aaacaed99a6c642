"""Socket Mode: Slack's events over a WebSocket that we open. I/O.

The SDK's own client handles envelopes side by side, so that their order is lost, repeats a refused
``apps.connections.open`` for ever, and lets nobody see how it fares. So the loop here is ours.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog
from aiohttp import ClientError, ClientWebSocketResponse, WSMsgType
from pydantic import SecretStr
from slack_sdk.errors import SlackApiError

from connectors.connector import ConnectorFailed, SendFailed
from connectors.health import Backoff, Vitals
from connectors.slack.api import Api
from connectors.slack.errors import SLACK_ERRORS, meaning, retry_after_seconds
from connectors.slack.http_events import shown_to_one
from connectors.slack.receive import Gaps, Hearing, History, Intake, as_payload, is_unheard

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


# ---- link ----
#
# Keeps a Socket Mode connection open and passes on what comes by it. I/O.


APP_TOKEN_VARIABLE = "AGENT_RUNTIME_SLACK_APP_TOKEN"  # noqa: S105 - the variable's name

_WAITING_ENVELOPES = 1000
_COMMANDS_AT_ONCE = 20
_AT_ONCE = frozenset({"slash_commands", "interactive"})
"""Kinds of envelopes for whose acknowledgement people wait."""
_DEAF = "the connection is open, but brings no events"


class Link:
    """Events by Socket Mode, one after the other; commands and presses beside them, as people wait for those.

    What a socket that broke may have swallowed is read from the history before what is said after it (`Gaps`).

    A socket on which a ping of every *ping_seconds* is not answered in half that time is opened anew, and so is one
    that answers but is silent for longer than is usual (and than *quiet_seconds*) while Slack's history has newer
    messages; those are then passed on from there.
    """

    def __init__(
        self,
        api: Api,
        intake: Intake,
        history: History,
        vitals: Vitals,
        app_token: SecretStr,
        *,
        timeout_seconds: float,
        ping_seconds: float,
        quiet_seconds: float,
        backoff: Backoff,
    ) -> None:
        self._api = api
        self._intake = intake
        self._history = history
        self._vitals = vitals
        self._app_token = app_token
        self._timeout_seconds = timeout_seconds
        self._ping_seconds = ping_seconds
        self._backoff = backoff
        self._hearing = Hearing(quiet_seconds)
        self._gaps = Gaps(history)
        self._look_seconds = min(quiet_seconds, ping_seconds)
        self._overrun = False
        self._waiting: asyncio.Queue[Envelope] = asyncio.Queue(_WAITING_ENVELOPES)
        self._commands: asyncio.Queue[Envelope] = asyncio.Queue(_WAITING_ENVELOPES)
        self._socket: Socket | None = None

    async def run(self) -> None:
        """Until cancelled. Raises `connectors.connector.ConnectorFailed` in a group."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._take_all(), name="slack events")
            for number in range(_COMMANDS_AT_ONCE):
                tasks.create_task(self._take_commands(), name=f"slack commands {number}")
            tasks.create_task(self._watch_hearing(), name="slack hearing")
            tasks.create_task(self._stay_connected(tasks), name="slack socket")

    # The connection

    async def _stay_connected(self, tasks: asyncio.TaskGroup) -> None:
        backoff = self._backoff.fresh()
        while True:
            try:
                socket = await self._open()
            except SLACK_ERRORS as error:
                why = self._refused(error)
                self._vitals.trouble("socket", f"Socket Mode cannot be opened: {why}")
                await asyncio.sleep(backoff.next_seconds(retry_after_seconds(error)))
                continue
            # A socket that Slack wants to end goes on being read while the next one is opened.
            tasks.create_task(socket.read(self._timeout_seconds), name="slack socket reader")
            await socket.settled.wait()
            opened_at = asyncio.get_running_loop().time()
            if socket.greeted:
                self._socket = socket
                self._vitals.well("socket")
                self._vitals.connected()
            await socket.retiring.wait()
            if asyncio.get_running_loop().time() - opened_at > backoff.longest_seconds:
                backoff.failures = 0
            if socket.announced and socket.greeted and backoff.failures == 0:
                backoff.failures = 1
                continue
            self._gaps.broke()
            self._vitals.trouble("socket", socket.why)
            await asyncio.sleep(backoff.next_seconds())

    async def _open(self) -> Socket:
        secret = self._app_token.get_secret_value()
        answer = await self._api.call(lambda client: client.apps_connections_open(app_token=secret))
        websocket = await self._api.websocket(str(answer.get("url") or ""), self._ping_seconds)
        return Socket(websocket, self._receive, self._gaps.breaks)

    def _refused(self, error: Exception) -> str:
        """Why. Raises `ConnectorFailed` when Slack will not think otherwise."""
        why = self._api.describe(error)
        if isinstance(error, SlackApiError) and not meaning(error).retryable:
            raise ConnectorFailed(
                f"Slack does not open Socket Mode with the app token ({why}). Set {APP_TOKEN_VARIABLE} to an "
                "app-level token with the scope connections:write, which begins with xapp-, and turn Socket Mode on "
                "in the app's settings."
            ) from error
        return why

    # What comes by it

    def _receive(self, envelope: Envelope) -> None:
        self._hearing.heard(envelope.payload, asyncio.get_running_loop().time())
        queue = self._commands if envelope.kind in _AT_ONCE else self._waiting
        try:
            queue.put_nowait(envelope)
        except asyncio.QueueFull:  # not acknowledged, so that Slack delivers it again
            if not self._overrun:  # said once for a flood, not once for each of its messages
                log.warning("connector.overrun", connector="slack", waiting=queue.qsize())
            self._overrun = True
        else:
            self._overrun = self._overrun and queue.qsize() > _WAITING_ENVELOPES // 2

    async def _take_all(self) -> None:
        """One after the other, so that messages keep their order; each is acknowledged when it was accepted."""
        while True:
            envelope = await self._waiting.get()
            if envelope.kind == "events_api":
                await self._take_in_order(envelope.payload, envelope.socket.follows)
            else:
                log.info("message.ignored", connector="slack", why=f"unsupported: {envelope.kind}")
            await envelope.acknowledge()

    async def _take_in_order(self, payload: dict[str, Any], follows: int) -> None:
        event = payload.get("event")
        if not isinstance(event, dict):
            await self._intake.take_until_accepted(payload, self._backoff.fresh())
            return
        for one in await self._gaps.filled(event, follows):
            told = payload if one is event else as_payload(one)
            await self._intake.take_until_accepted(told, self._backoff.fresh())
            self._gaps.passed_on(one)

    async def _take_commands(self) -> None:
        while True:
            envelope = await self._commands.get()
            if envelope.kind == "interactive":
                if await self._intake.take_press(envelope.payload):
                    await envelope.acknowledge()
                continue
            told = await self._intake.take_command(envelope.payload)
            await envelope.acknowledge(shown_to_one(told) if told else None)

    # Whether it hears

    async def _watch_hearing(self) -> None:
        while True:
            await asyncio.sleep(self._look_seconds)
            now = asyncio.get_running_loop().time()
            if not self._waiting.empty() or not self._hearing.is_overdue(now):
                continue
            self._hearing.asked(now)
            unheard = await self._unheard()
            if not unheard or self._socket is None:
                continue
            log.warning("connector.deaf", connector="slack", unheard=len(unheard))
            self._vitals.trouble("socket", _DEAF)
            await self._socket.give_up(_DEAF)
            for event in unheard:
                self._hearing.reached(event)
                await self._intake.take_until_accepted(as_payload(event), self._backoff.fresh())

    async def _unheard(self) -> list[dict[str, Any]]:
        """What was said in the places that were heard last, and did not come as an event."""
        found: list[dict[str, Any]] = []
        for channel, thread, ts in self._hearing.places():
            try:
                said = await self._history.after(channel, thread, ts)
            except SendFailed as failed:
                log.debug("connector.lookup_failed", connector="slack", what="history", why=str(failed))
                continue
            found += [event for event in said if is_unheard(event, time.time())]
        return sorted(found, key=lambda event: float(event["ts"]))
