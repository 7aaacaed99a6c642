"""A Slack on loopback that refuses what Slack refuses: Web API, Socket Mode, HTTP events, commands and files.

It speaks to the real SDK; what it answers follows docs.slack.dev (the errors of each method, "Using Socket
Mode", "Events API", "Verifying requests from Slack", "Handling user interaction"). Tests (or a person) speak through
`say`, `command` and `upload`, look through `shown` and `whispers`, and make it misbehave through `fail_next`, `down`,
`mute`, `drop_acks`, `disconnect` and `kill`.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

from aiohttp import ClientError, WSMsgType, web

from tests.emulators.slack_commands import Commands
from tests.emulators.slack_files import Files
from tests.emulators.slack_nouns import (
    GATEWAY_PAGE,
    LOST_ANSWER,
    LOST_REQUEST,
    PLAIN_TEXT,
    SERVER_ERROR,
    SOMEBODY,
    Channel,
    Delivery,
    Fault,
    Json,
    Person,
    Post,
    Refused,
    Shown,
    Whisper,
    buttons_in,
    rate_limited,
    refused,
    seen,
)
from tests.emulators.slack_streams import Streams
from tests.emulators.slack_workspace import Workspace

__all__ = [
    "GATEWAY_PAGE",
    "LOST_ANSWER",
    "LOST_REQUEST",
    "PLAIN_TEXT",
    "SERVER_ERROR",
    "Channel",
    "Delivery",
    "Fault",
    "Person",
    "Shown",
    "SlackEmulator",
    "Whisper",
    "rate_limited",
    "refused",
    "seen",
]


_SCOPES = {
    "chat.postMessage": "chat:write",
    "chat.update": "chat:write",
    "chat.delete": "chat:write",
    "chat.startStream": "chat:write",
    "chat.appendStream": "chat:write",
    "chat.stopStream": "chat:write",
    "assistant.threads.setStatus": "chat:write",
    "reactions.add": "reactions:write",
    "users.info": "users:read",
    "conversations.history": "channels:history",
    "conversations.info": "channels:read",
    "conversations.replies": "channels:history",
    "files.getUploadURLExternal": "files:write",
    "files.completeUploadExternal": "files:write",
    "files.delete": "files:write",
    "files.info": "files:read",
}
_SCOPES_OF_EVENTS = {
    "app_mentions:read",
    "commands",
    "groups:history",
    "im:history",
    "mpim:history",
    "reactions:read",
}
"""For which no call asks."""


class SlackEmulator(Workspace):
    """One workspace with one app. Use as an asynchronous context manager; ``base_url`` is its API base."""

    def __init__(self, redeliver_seconds: float = 0.5) -> None:
        super().__init__()
        self.token = "xoxb-" + "1" * 24
        self.app_token = "xapp-1-" + "2" * 24
        self.signing_secret = "8f742231b10e8888abcd99yyyzzz85a5"
        self.team_id = "T0TEAM"
        self.base_url = ""
        self.redeliver_seconds = redeliver_seconds
        """After how long an event that was not acknowledged is delivered again (at Slack: 3 s)."""
        self.down = False
        """Whether every connection is dropped, as in an outage."""
        self.mute = False
        """Whether open sockets are silent: no event, no answer to a ping."""
        self.voids_urls = False
        """Whether the URL of each socket is used up before it opens, as it is some seconds after it was given."""
        self.hangs = False
        """Whether the opening of a socket gets no answer."""
        self.hung = 0
        """Openings that got no answer so far."""
        self.greets = True
        """Whether a new socket is greeted with ``hello``."""
        self.connection_seconds = 18_060.0
        """How long a socket is said to live, in its ``hello``."""
        self.doubles = False
        """Whether every event is delivered twice."""
        self.deadline_seconds = 3.0
        """How long Slack waits for the acknowledgement of a command or of a pressed button."""
        self.drop_acks = 0
        """How many acknowledgements are yet to be lost."""
        self.post: Post | None = None
        """With it events go over HTTP instead of sockets."""
        self.delays: defaultdict[str, float] = defaultdict(float)
        """How long each method takes (s)."""
        self.revoked = False
        self.scopes = {*_SCOPES.values(), *_SCOPES_OF_EVENTS}
        self.calls: list[str] = []
        self.opened = 0
        """Sockets opened so far."""
        self.deliveries: list[Delivery] = []
        self._faults: defaultdict[str, deque[Fault]] = defaultdict(deque)
        self._sockets: list[web.WebSocketResponse] = []
        self._tickets: set[str] = set()
        self._envelopes: dict[str, Delivery] = {}
        self._courier: asyncio.Task[None] | None = None
        self._runner: web.AppRunner | None = None
        self.streams, self.files, self.commands = Streams(self), Files(self), Commands(self)
        self._methods: dict[str, Callable[[Json], Json]] = {
            **self.methods,
            "chat.startStream": self.streams.start,
            "chat.appendStream": self.streams.append,
            "chat.stopStream": self.streams.stop,
            "files.getUploadURLExternal": self.files.promise,
            "files.completeUploadExternal": self.files.complete,
            "files.delete": self.files.delete,
            "files.info": self.files.info,
            "auth.test": self._auth_test,
        }

    async def __aenter__(self) -> SlackEmulator:
        app = web.Application()
        app.router.add_route("*", "/api/{method}", self._handle)
        app.router.add_get("/link/{ticket}", self._link)
        app.router.add_routes([*self.files.routes(), *self.commands.routes()])
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self._port = self._runner.addresses[0][1]
        self.base_url = f"{self.origin}/api/"
        self._courier = asyncio.create_task(self._deliver())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._courier is not None:
            self._courier.cancel()
            with suppress(asyncio.CancelledError):
                await self._courier
        await self.kill()
        if self._runner is not None:
            await self._runner.cleanup()

    # What people do and see

    @property
    def origin(self) -> str:
        """Scheme, host and port of everything here."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def at_bot(self) -> str:
        """How somebody calls the bot."""
        return f"<@{self.user_id}>"

    def say(
        self, text: str, *, to: Channel | None = None, by: Person = SOMEBODY, thread: str | None = None, **more: Any
    ) -> str:
        """*by* says *text* (in private, or *to* a channel); its ts. ``more`` goes into the message as it is."""
        place = self.join(to or by)
        self.people[by.id] = by
        ts = self._new_ts()
        message = {"type": "message", "user": by.id, "text": text, "ts": ts, **more}
        if thread is not None:
            root = next(said for said in self._messages[place] if said["ts"] == thread)
            root["thread_ts"] = thread
            message |= {"thread_ts": thread, "parent_user_id": root.get("user", "")}
        self._messages[place].append(message)
        self._event({**message, "channel": place, "channel_type": self.kind(place), "event_ts": ts})
        if self.at_bot in text and not place.startswith("D"):
            mention = {key: value for key, value in message.items() if key != "parent_user_id"}
            self._event({**mention, "type": "app_mention", "channel": place, "event_ts": ts})
        return ts

    def command(self, text: str, *, by: Person = SOMEBODY, to: Channel | None = None, thread: str | None = None) -> str:
        """*by* types ``/agent`` and *text*; its trigger. Brought once."""
        self.people[by.id] = by
        if to is None:
            self.join(by)
        return self.bring(self.commands.payload(text, by, to, thread))

    def bring(self, command: Json) -> str:
        """A command as it is; its trigger."""
        self.deliveries.append(Delivery(command, kind="slash_commands"))
        return str(command["trigger_id"])

    def interact(self, payload: Json) -> Delivery:
        """Somebody uses a button or a shortcut."""
        self.deliveries.append(Delivery(payload, kind="interactive"))
        return self.deliveries[-1]

    def press(self, shown: Shown, label: str, by: Person = SOMEBODY) -> Delivery:
        """*by* presses a button below a message of the bot."""
        self.people[by.id] = by
        said = self._find(shown.channel, shown.ts)
        container = {"type": "message", "message_ts": shown.ts, "channel_id": shown.channel, "is_ephemeral": False}
        return self.interact(
            {
                "type": "block_actions",
                "user": {"id": by.id, "username": by.name.lower(), "name": by.name.lower(), "team_id": self.team_id},
                "api_app_id": "A0APP",
                "container": container,
                "trigger_id": f"{self.number()}.{self.number()}.f00",
                "team": {"id": self.team_id, "domain": "emulator"},
                "channel": {"id": shown.channel, "name": "directmessage"},
                "message": dict(said),
                "actions": [buttons_in(said["blocks"])[label] | {"block_id": "b1", "action_ts": self._new_ts()}],
            }
        )

    def upload(
        self,
        name: str,
        content: bytes,
        /,
        *,
        media_type: str = "text/markdown",
        text: str = "",
        by: Person = SOMEBODY,
        to: Channel | None = None,
        **more: Any,
    ) -> str:
        """*by* posts a file; the message's ts. ``more`` goes into the file as its message shows it."""
        file = {**self.files.add(name, content, media_type), **more}
        return self.say(text, by=by, to=to, subtype="file_share", files=[file])

    @property
    def whispers(self) -> list[Whisper]:
        """What the bot told people about their commands, oldest first."""
        return self.commands.whispers

    def change(self, place: Channel | Person, ts: str, text: str) -> None:
        """Somebody edits a message of theirs."""
        said = self._find(place.channel_id, ts)
        before = dict(said)
        said |= {"text": text, "edited": {"user": said["user"], "ts": self._new_ts()}}
        self._changed(place, "message_changed", message=dict(said), previous_message=before)

    def delete(self, place: Channel | Person, ts: str) -> None:
        """Somebody deletes a message of theirs. Of the first of a thread a stone is left, with the thread below it."""
        said = self._find(place.channel_id, ts)
        if any(one.get("thread_ts") == ts != one["ts"] for one in self._messages[place.channel_id]):
            before = dict(said)
            said.clear()
            said |= {
                "type": "message",
                "subtype": "tombstone",
                "user": "USLACKBOT",
                "text": "This message was deleted.",
            }
            said |= {"ts": ts, "thread_ts": ts, "hidden": True}
            self._changed(place, "message_changed", message=dict(said), previous_message=before)
            return
        self._messages[place.channel_id].remove(said)
        self._changed(place, "message_deleted", deleted_ts=ts, previous_message=said)

    def react(self, place: Channel | Person, ts: str, name: str, by: Person = SOMEBODY, added: bool = True) -> None:
        """Somebody puts an emoji on a message, or takes it away."""
        self.people[by.id] = by
        item = {"type": "message", "channel": place.channel_id, "ts": ts}
        kind = "reaction_added" if added else "reaction_removed"
        event = {"type": kind, "user": by.id, "reaction": name, "item": item, "event_ts": self._new_ts()}
        for said in self._messages[place.channel_id]:
            if said["ts"] == ts and "user" in said:
                event["item_user"] = said["user"]
        self._event(event)

    def push(self, event: Json) -> Delivery:
        """Any event, as it is."""
        return self._event(event)

    def join(self, place: Channel | Person) -> str:
        """The bot may write there from now on; its id."""
        self._channels.add(place.channel_id)
        if isinstance(place, Channel) and place.private:
            self._private.add(place.channel_id)
        return place.channel_id

    def leave(self, place: Channel | Person) -> None:
        """The bot may not write there any more."""
        self._channels.discard(place.channel_id)

    def shown(self, place: Channel | Person, thread: str | None = None) -> list[Shown]:
        """What the bot said there, oldest first; in all threads, or in one."""
        return [m for m in self._shown if m.channel == place.channel_id and thread in (None, m.thread)]

    def fail_next(self, method: str, *faults: Fault) -> None:
        """The next calls of *method* fail so, one each."""
        self._faults[method].extend(faults)

    @property
    def acknowledged(self) -> set[tuple[str, str]]:
        """Channel and ts of the messages that the app acknowledged."""
        events = [one.payload["event"] for one in self.deliveries if one.acknowledged and one.kind == "events_api"]
        return {(event.get("channel", ""), event.get("ts", "")) for event in events}

    @property
    def sockets(self) -> int:
        """Open sockets."""
        return sum(not socket.closed for socket in self._sockets)

    async def disconnect(self, reason: str = "refresh_requested", after_seconds: float = 0.05) -> None:
        """Asks for other sockets in place of the open ones, and closes these."""
        old = [socket for socket in self._sockets if not socket.closed]
        for socket in old:
            with suppress(ConnectionError):
                await socket.send_json({"type": "disconnect", "reason": reason, "debug_info": {"host": "emulator"}})
        await asyncio.sleep(after_seconds)
        for socket in old:
            await socket.close()

    async def write(self, text: str) -> None:
        """Writes *text* on all sockets, as it is."""
        for socket in self._sockets:
            await socket.send_str(text)

    async def kill(self) -> None:
        """All sockets break without a word."""
        sockets, self._sockets = self._sockets, []
        for socket in sockets:
            transport = socket._req.transport if socket._req is not None else None
            if transport is not None:
                transport.abort()

    async def until(self, condition: Callable[[SlackEmulator], bool], seconds: float = 60.0) -> None:
        """Waits until *condition* holds. Raises `TimeoutError`."""
        async with asyncio.timeout(seconds):
            while not condition(self):
                await asyncio.sleep(0.005)

    def signed(self, body: bytes, at: float | None = None) -> dict[str, str]:
        """Headers of a request with *body*, signed as Slack does."""
        timestamp = str(int(time.time() if at is None else at))
        mac = hmac.new(self.signing_secret.encode(), b"v0:" + timestamp.encode() + b":" + body, hashlib.sha256)
        return {
            "content-type": "application/json",
            "x-slack-request-timestamp": timestamp,
            "x-slack-signature": "v0=" + mac.hexdigest(),
        }

    # Events on their way

    def _event(self, event: Json) -> Delivery:
        payload = {
            "type": "event_callback",
            "team_id": self.team_id,
            "api_app_id": "A0APP",
            "event_id": f"Ev{self.number():08d}",
            "event_time": self.first_second,
            "event": event,
        }
        made = [Delivery(payload) for _ in range(2 if self.doubles else 1)]
        self.deliveries += made
        return made[0]

    def _changed(self, place: Channel | Person, subtype: str, **more: Any) -> None:
        channel, at = place.channel_id, self._new_ts()
        envelope = {"type": "message", "subtype": subtype, "channel": channel, "channel_type": self.kind(channel)}
        self._event({**envelope, "hidden": True, "ts": at, "event_ts": at, **more})

    async def _deliver(self) -> None:
        while True:
            for delivery in [one for one in self.deliveries if not one.acknowledged]:
                now = asyncio.get_running_loop().time()
                if delivery.kind != "events_api" and delivery.attempt:
                    delivery.failed = delivery.failed or self._is_late(delivery)
                    continue  # commands and interactions are never brought again
                if self.down or (delivery.attempt and now - delivery.sent_at < self.redeliver_seconds):
                    continue
                if self.post is not None:
                    delivery.sent_at, delivery.attempt = now, delivery.attempt + 1
                    await self._deliver_over_http(delivery, self.post)
                elif (socket := self._ready_socket()) is not None:
                    delivery.sent_at, delivery.attempt = now, delivery.attempt + 1
                    await self._deliver_on(socket, delivery)
            await asyncio.sleep(0.003)

    def _ready_socket(self) -> web.WebSocketResponse | None:
        return next((one for one in reversed(self._sockets) if not one.closed), None) if not self.mute else None

    async def _deliver_over_http(self, delivery: Delivery, post: Post) -> None:
        is_form = delivery.kind != "events_api"
        body = self.commands.form(delivery.payload) if is_form else json.dumps(delivery.payload).encode()
        headers = self.signed(body)
        if is_form:
            headers["content-type"] = "application/x-www-form-urlencoded"
        if delivery.attempt > 1:
            headers |= {"x-slack-retry-num": str(delivery.attempt - 1), "x-slack-retry-reason": "http_error"}
        status = await post(body, headers)
        if self.drop_acks and status == 200:
            self.drop_acks -= 1
        elif status == 200:
            self._taken(delivery)
        else:
            delivery.failed = is_form

    async def _deliver_on(self, socket: web.WebSocketResponse, delivery: Delivery) -> None:
        envelope_id = f"envelope-{self.number()}"
        self._envelopes[envelope_id] = delivery
        envelope: Json = {
            "type": delivery.kind,
            "envelope_id": envelope_id,
            "payload": delivery.payload,
            "accepts_response_payload": delivery.kind != "events_api",
            "retry_attempt": delivery.attempt - 1,
            "retry_reason": "timeout" if delivery.attempt > 1 else "",
        }
        with suppress(ConnectionError, ClientError):
            await socket.send_json(envelope)

    async def _link(self, request: web.Request) -> web.StreamResponse:
        if self.hangs:
            self.hung += 1
            await asyncio.Event().wait()
        if self.voids_urls:
            self._tickets.clear()
        if request.match_info["ticket"] not in self._tickets or self.down:
            return web.Response(status=404)
        self._tickets.discard(request.match_info["ticket"])
        socket = web.WebSocketResponse(autoping=False)
        await socket.prepare(request)
        self.opened += 1
        if self.greets:
            await socket.send_json(
                {
                    "type": "hello",
                    "num_connections": 1,
                    "connection_info": {"app_id": "A0APP"},
                    "debug_info": {"host": "emulator", "approximate_connection_time": self.connection_seconds},
                }
            )
            self._sockets.append(socket)
        async for frame in socket:
            if self.mute:
                continue
            if frame.type is WSMsgType.PING:
                await socket.pong(frame.data)
            elif frame.type is WSMsgType.TEXT:
                self._acknowledge(json.loads(frame.data))
        return socket

    def _acknowledge(self, answer: Json) -> None:
        delivery = self._envelopes.pop(answer["envelope_id"], None)
        if delivery is None:
            return
        if self.drop_acks:
            self.drop_acks -= 1
        else:
            delivery.told = answer.get("payload")
            self._taken(delivery)

    def _taken(self, delivery: Delivery) -> None:
        """Its acknowledgement came, which for commands and interactions may be too late."""
        delivery.acknowledged = delivery.kind == "events_api" or not self._is_late(delivery)
        if delivery.acknowledged:
            self.commands.note(delivery)

    def _is_late(self, delivery: Delivery) -> bool:
        return asyncio.get_running_loop().time() - delivery.sent_at > self.deadline_seconds

    # What the bot calls

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        method = request.match_info["method"]
        self.calls.append(method)
        asked = await _arguments(request)
        await asyncio.sleep(self.delays[method])
        fault = self._faults[method].popleft() if self._faults[method] else None
        if self.down or (fault and fault.lost == "before"):
            return _dropped(request)
        if fault and fault.body is not None:
            return web.Response(status=fault.status, text=fault.body, content_type=fault.content_type)
        try:
            self._authorise(request.headers.get("Authorization", "").removeprefix("Bearer "), method, fault)
            result = self._open_connection() if method == "apps.connections.open" else self._answer(method, asked)
        except Refused as refusal:
            status = fault.status if fault else 200
            headers = fault.headers if fault else {}
            return web.json_response(
                {"ok": False, "error": str(refusal), **refusal.more}, status=status, headers=headers
            )
        if fault and fault.lost == "after":
            return _dropped(request)
        headers = {"x-oauth-scopes": ",".join(sorted(self.scopes))}
        return web.json_response({"ok": True, **result}, headers=headers)

    def _answer(self, method: str, asked: Json) -> Json:
        if method not in self._methods:
            raise Refused("unknown_method", req_method=method)
        needed = _SCOPES.get(method)
        if needed is not None and needed not in self.scopes:
            raise Refused("missing_scope", needed=needed)
        return self._methods[method](asked)

    def _authorise(self, token: str, method: str, fault: Fault | None) -> None:
        if fault and fault.error:
            raise Refused(fault.error)
        if not token:
            raise Refused("not_authed")
        if self.revoked and token == self.token:
            raise Refused("token_revoked")
        if token not in {self.token, self.app_token}:
            raise Refused("invalid_auth")
        if (token == self.app_token) != (method == "apps.connections.open"):
            raise Refused("not_allowed_token_type")

    def _open_connection(self) -> Json:
        ticket = f"ticket-{self.number()}"
        self._tickets.add(ticket)
        return {"url": f"ws://127.0.0.1:{self._port}/link/{ticket}"}

    def _auth_test(self, _asked: Json) -> Json:
        return {"team_id": self.team_id, "user_id": self.user_id, "bot_id": self.bot_id, "user": self.name}


async def _arguments(request: web.Request) -> Json:
    asked: Json = dict(request.query)
    if request.content_type == "application/json":
        asked |= await request.json()
    elif request.method == "POST":
        asked |= {key: str(value) for key, value in (await request.post()).items()}
    return asked


def _dropped(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()
