"""A Slack on loopback that refuses what Slack refuses: Web API, Socket Mode and HTTP events.

It speaks to the real SDK; what it answers follows docs.slack.dev (the errors of each method, "Using Socket
Mode", "Events API", "Verifying requests from Slack"). Tests (or a person) speak through `say`, look through
`shown`, and make it misbehave through `fail_next`, `down`, `mute`, `drop_acks`, `disconnect` and `kill`.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal

from aiohttp import ClientError, WSMsgType, web

MAX_POST_CHARACTERS = 40_000
MAX_UPDATE_CHARACTERS = 4_000
FIRST_SECOND = 1_700_000_000

_TS = re.compile(r"\d{10}\.\d{6}")
_EMOJI_NAME = re.compile(r"[a-z0-9_+'-]+")
_LINK = re.compile(r"<((?:https?://|mailto:)[^<>|]+)(?:\|([^<>]*))?>")
_MASS_MENTION = re.compile(r"<!(here|channel|everyone)(\|[^>]*)?>")
_SCOPES = {
    "chat.postMessage": "chat:write",
    "chat.update": "chat:write",
    "assistant.threads.setStatus": "chat:write",
    "reactions.add": "reactions:write",
    "users.info": "users:read",
    "conversations.history": "channels:history",
    "conversations.replies": "channels:history",
}

Json = dict[str, Any]
Post = Callable[[bytes, Mapping[str, str]], Awaitable[int]]
"""Brings an event over HTTP to the app: body and headers, the status of its answer."""


@dataclass(frozen=True)
class Person:
    """Someone with an account; also stands for the direct messages with them."""

    id: str = "U501"
    name: str = "Lena"

    @property
    def channel_id(self) -> str:
        return "D" + self.id[1:]

    def as_json(self) -> Json:
        profile = {"display_name": self.name, "real_name": f"{self.name} Example"}
        return {"id": self.id, "name": self.name.lower(), "is_bot": False, "profile": profile}


@dataclass(frozen=True)
class Channel:
    """A channel; the bot is in it."""

    id: str = "C200"
    name: str = "team"

    @property
    def channel_id(self) -> str:
        return self.id


@dataclass
class Shown:
    """A message of the bot as people see it. ``raw`` is what was sent."""

    channel: str
    ts: str
    text: str
    raw: str
    thread: str | None = None
    has_preview: bool = True
    notifies_all: bool = False
    edits: int = 0


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one call. ``lost`` drops the connection, ``before`` or ``after`` doing the work."""

    status: int = 200
    error: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    lost: Literal["before", "after"] | None = None
    body: str | None = None
    content_type: str = "text/html"


def rate_limited(seconds: int) -> Fault:
    return Fault(429, "ratelimited", {"Retry-After": str(seconds)})


def refused(error: str) -> Fault:
    return Fault(error=error)


LOST_ANSWER = Fault(lost="after")
LOST_REQUEST = Fault(lost="before")
SERVER_ERROR = Fault(500, body="oops")
GATEWAY_PAGE = Fault(502, body="<html>Bad Gateway</html>")
PLAIN_TEXT = Fault(200, body="ok?", content_type="text/plain")


@dataclass
class Delivery:
    """One event on its way to the app, until it is acknowledged."""

    payload: Json
    attempt: int = 0
    sent_at: float = 0.0
    acknowledged: bool = False


class _Refused(Exception):
    def __init__(self, error: str, **more: Any) -> None:
        super().__init__(error)
        self.more = more


class SlackEmulator:
    """One workspace with one app. Use as an asynchronous context manager; ``base_url`` is its API base."""

    def __init__(self, redeliver_seconds: float = 0.5) -> None:
        self.token = "xoxb-" + "1" * 24
        self.app_token = "xapp-1-" + "2" * 24
        self.signing_secret = "8f742231b10e8888abcd99yyyzzz85a5"
        self.team_id = "T0TEAM"
        self.user_id, self.bot_id, self.name = "U0BOT", "B0BOT", "helper"
        self.base_url = ""
        self.redeliver_seconds = redeliver_seconds
        """After how long an event that was not acknowledged is delivered again (at Slack: 3 s)."""
        self.down = False
        """Whether every connection is dropped, as in an outage."""
        self.mute = False
        """Whether open sockets are silent: no event, no answer to a ping."""
        self.greets = True
        """Whether a new socket is greeted with ``hello``."""
        self.connection_seconds = 18_060.0
        """How long a socket is said to live, in its ``hello``."""
        self.doubles = False
        """Whether every event is delivered twice."""
        self.drop_acks = 0
        """How many acknowledgements are yet to be lost."""
        self.post: Post | None = None
        """With it events go over HTTP instead of sockets."""
        self.revoked = False
        self.scopes = set(_SCOPES.values())
        self.calls: list[str] = []
        self.opened = 0
        """Sockets opened so far."""
        self.deliveries: list[Delivery] = []
        self.reactions: dict[tuple[str, str], list[str]] = {}
        self.statuses: list[tuple[str, str, str]] = []
        self.people: dict[str, Person] = {}
        self._channels: set[str] = set()
        self._messages: defaultdict[str, list[Json]] = defaultdict(list)
        self._shown: list[Shown] = []
        self._faults: defaultdict[str, deque[Fault]] = defaultdict(deque)
        self._sockets: list[web.WebSocketResponse] = []
        self._tickets: set[str] = set()
        self._envelopes: dict[str, Delivery] = {}
        self._next = 0
        self._courier: asyncio.Task[None] | None = None
        self._runner: web.AppRunner | None = None
        self._methods: dict[str, Callable[[Json], Json]] = {
            "auth.test": self._auth_test,
            "chat.postMessage": self._post_message,
            "chat.update": self._update,
            "reactions.add": self._add_reaction,
            "users.info": self._user_info,
            "conversations.history": lambda asked: self._page(asked, thread=None),
            "conversations.replies": lambda asked: self._page(asked, thread=str(asked.get("ts"))),
            "assistant.threads.setStatus": self._set_status,
        }

    async def __aenter__(self) -> SlackEmulator:
        app = web.Application()
        app.router.add_route("*", "/api/{method}", self._handle)
        app.router.add_get("/link/{ticket}", self._link)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self._port = self._runner.addresses[0][1]
        self.base_url = f"http://127.0.0.1:{self._port}/api/"
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
    def at_bot(self) -> str:
        """How somebody calls the bot."""
        return f"<@{self.user_id}>"

    def say(
        self, text: str, *, to: Channel | None = None, by: Person = Person(), thread: str | None = None, **more: Any
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
        self._event({**message, "channel": place, "channel_type": _kind(place), "event_ts": ts})
        if self.at_bot in text and not place.startswith("D"):
            mention = {key: value for key, value in message.items() if key != "parent_user_id"}
            self._event({**mention, "type": "app_mention", "channel": place, "event_ts": ts})
        return ts

    def change(self, place: Channel | Person, ts: str, text: str) -> None:
        """Somebody edits a message of theirs."""
        said = self._find(place.channel_id, ts)
        before = dict(said)
        said |= {"text": text, "edited": {"user": said["user"], "ts": self._new_ts()}}
        self._changed(place, "message_changed", message=dict(said), previous_message=before)

    def delete(self, place: Channel | Person, ts: str) -> None:
        """Somebody deletes a message of theirs."""
        said = self._find(place.channel_id, ts)
        self._messages[place.channel_id].remove(said)
        self._changed(place, "message_deleted", deleted_ts=ts, previous_message=said)

    def react(self, place: Channel | Person, ts: str, name: str, by: Person = Person(), added: bool = True) -> None:
        """Somebody puts an emoji on a message, or takes it away."""
        self.people[by.id] = by
        item = {"type": "message", "channel": place.channel_id, "ts": ts}
        kind = "reaction_added" if added else "reaction_removed"
        self._event({"type": kind, "user": by.id, "reaction": name, "item": item, "event_ts": self._new_ts()})

    def push(self, event: Json) -> Delivery:
        """Any event, as it is."""
        return self._event(event)

    def join(self, place: Channel | Person) -> str:
        """The bot may write there from now on; its id."""
        self._channels.add(place.channel_id)
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
        events = [delivery.payload["event"] for delivery in self.deliveries if delivery.acknowledged]
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

    async def kill(self) -> None:
        """All sockets break without a word."""
        sockets, self._sockets = self._sockets, []
        for socket in sockets:
            transport = socket._req.transport if socket._req is not None else None
            if transport is not None:
                transport.abort()

    async def until(self, condition: Callable[[SlackEmulator], bool], seconds: float = 20.0) -> None:
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
            "event_id": f"Ev{self._number():08d}",
            "event_time": FIRST_SECOND,
            "event": event,
        }
        made = [Delivery(payload) for _ in range(2 if self.doubles else 1)]
        self.deliveries += made
        return made[0]

    def _changed(self, place: Channel | Person, subtype: str, **more: Any) -> None:
        channel, at = place.channel_id, self._new_ts()
        envelope = {"type": "message", "subtype": subtype, "channel": channel, "channel_type": _kind(channel)}
        self._event({**envelope, "hidden": True, "ts": at, "event_ts": at, **more})

    async def _deliver(self) -> None:
        while True:
            for delivery in [one for one in self.deliveries if not one.acknowledged]:
                now = asyncio.get_running_loop().time()
                if self.down or (delivery.attempt and now - delivery.sent_at < self.redeliver_seconds):
                    continue
                if self.post is not None:
                    delivery.sent_at, delivery.attempt = now, delivery.attempt + 1
                    await self._deliver_over_http(delivery, self.post)
                elif socket := self._ready_socket():
                    delivery.sent_at, delivery.attempt = now, delivery.attempt + 1
                    await self._deliver_on(socket, delivery)
            await asyncio.sleep(0.003)

    def _ready_socket(self) -> web.WebSocketResponse | None:
        return next((one for one in reversed(self._sockets) if not one.closed), None) if not self.mute else None

    async def _deliver_over_http(self, delivery: Delivery, post: Post) -> None:
        body = json.dumps(delivery.payload).encode()
        headers = self.signed(body)
        if delivery.attempt > 1:
            headers |= {"x-slack-retry-num": str(delivery.attempt - 1), "x-slack-retry-reason": "http_error"}
        status = await post(body, headers)
        if self.drop_acks and status == 200:
            self.drop_acks -= 1
        else:
            delivery.acknowledged = status == 200

    async def _deliver_on(self, socket: web.WebSocketResponse, delivery: Delivery) -> None:
        envelope_id = f"envelope-{self._number()}"
        self._envelopes[envelope_id] = delivery
        envelope: Json = {
            "type": "events_api",
            "envelope_id": envelope_id,
            "payload": delivery.payload,
            "accepts_response_payload": False,
            "retry_attempt": delivery.attempt - 1,
            "retry_reason": "timeout" if delivery.attempt > 1 else "",
        }
        with suppress(ConnectionError, ClientError):
            await socket.send_json(envelope)

    async def _link(self, request: web.Request) -> web.StreamResponse:
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
            delivery.acknowledged = True

    # What the bot calls

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        method = request.match_info["method"]
        self.calls.append(method)
        asked = await _arguments(request)
        fault = self._faults[method].popleft() if self._faults[method] else None
        if self.down or (fault and fault.lost == "before"):
            return _dropped(request)
        if fault and fault.body is not None:
            return web.Response(status=fault.status, text=fault.body, content_type=fault.content_type)
        try:
            self._authorise(request.headers.get("Authorization", "").removeprefix("Bearer "), method, fault)
            result = self._open_connection() if method == "apps.connections.open" else self._answer(method, asked)
        except _Refused as refusal:
            status = fault.status if fault else 200
            headers = fault.headers if fault else {}
            return web.json_response(
                {"ok": False, "error": str(refusal), **refusal.more}, status=status, headers=headers
            )
        if fault and fault.lost == "after":
            return _dropped(request)
        return web.json_response({"ok": True, **result})

    def _answer(self, method: str, asked: Json) -> Json:
        if method not in self._methods:
            raise _Refused("unknown_method", req_method=method)
        needed = _SCOPES.get(method)
        if needed is not None and needed not in self.scopes:
            raise _Refused("missing_scope", needed=needed)
        return self._methods[method](asked)

    def _authorise(self, token: str, method: str, fault: Fault | None) -> None:
        if fault and fault.error:
            raise _Refused(fault.error)
        if not token:
            raise _Refused("not_authed")
        if self.revoked and token == self.token:
            raise _Refused("token_revoked")
        if token not in {self.token, self.app_token}:
            raise _Refused("invalid_auth")
        if (token == self.app_token) != (method == "apps.connections.open"):
            raise _Refused("not_allowed_token_type")

    def _open_connection(self) -> Json:
        ticket = f"ticket-{self._number()}"
        self._tickets.add(ticket)
        return {"url": f"ws://127.0.0.1:{self._port}/link/{ticket}"}

    def _auth_test(self, _asked: Json) -> Json:
        return {"team_id": self.team_id, "user_id": self.user_id, "bot_id": self.bot_id, "user": self.name}

    def _post_message(self, asked: Json) -> Json:
        channel = self._channel(asked.get("channel"))
        text = _text(asked)[:MAX_POST_CHARACTERS]
        thread = asked.get("thread_ts")
        if thread is not None and not any(said["ts"] == thread for said in self._messages[channel]):
            raise _Refused("invalid_thread_ts")
        metadata = asked.get("metadata")
        if metadata is not None and not (metadata.get("event_type") and isinstance(metadata["event_payload"], dict)):
            raise _Refused("invalid_metadata_format")
        ts = self._new_ts()
        said: Json = {"type": "message", "user": self.user_id, "bot_id": self.bot_id, "text": text, "ts": ts}
        said |= {"metadata": metadata} if metadata else {}
        said |= {"thread_ts": thread} if thread else {}
        self._messages[channel].append(said)
        self._shown.append(
            Shown(
                channel=channel,
                ts=ts,
                text=seen(text),
                raw=text,
                thread=thread,
                has_preview=bool(_LINK.search(text) or "http" in text) and asked.get("unfurl_links") is not False,
                notifies_all=bool(_MASS_MENTION.search(text)),
            )
        )
        self.statuses = [status for status in self.statuses if status[:2] != (channel, thread)]
        self._event({**said, "channel": channel, "channel_type": _kind(channel), "event_ts": ts})
        return {"channel": channel, "ts": ts, "message": said}

    def _update(self, asked: Json) -> Json:
        channel, text = self._channel(asked.get("channel")), _text(asked)
        if len(text) > MAX_UPDATE_CHARACTERS:
            raise _Refused("msg_too_long")
        known = [m for m in self._shown if (m.channel, m.ts) == (channel, asked.get("ts"))]
        if not known:
            theirs = any(said["ts"] == asked.get("ts") for said in self._messages[channel])
            raise _Refused("cant_update_message" if theirs else "message_not_found")
        known[0].raw, known[0].text = text, seen(text)
        known[0].edits += 1
        self._find(channel, known[0].ts)["text"] = text
        return {"channel": channel, "ts": known[0].ts, "text": text}

    def _add_reaction(self, asked: Json) -> Json:
        channel, name = self._channel(asked.get("channel")), str(asked.get("name", ""))
        if not _EMOJI_NAME.fullmatch(name):
            raise _Refused("invalid_name")
        if not any(said["ts"] == asked.get("timestamp") for said in self._messages[channel]):
            raise _Refused("message_not_found")
        there = self.reactions.setdefault((channel, str(asked["timestamp"])), [])
        if name in there:
            raise _Refused("already_reacted")
        there.append(name)
        return {}

    def _user_info(self, asked: Json) -> Json:
        person = self.people.get(str(asked.get("user")))
        if person is None:
            raise _Refused("user_not_found")
        return {"user": person.as_json()}

    def _page(self, asked: Json, thread: str | None) -> Json:
        channel = self._channel(asked.get("channel"))
        said = list(self._messages[channel])
        if thread is None:
            said = [one for one in reversed(said) if one.get("thread_ts") in (None, one["ts"])]
        else:
            said = [one for one in said if thread in (one["ts"], one.get("thread_ts"))]
            if not said:
                raise _Refused("thread_not_found")
        start, limit = int(asked.get("cursor") or 0), int(asked.get("limit") or 100)
        shown = [
            one if _is_true(asked.get("include_all_metadata")) else {k: v for k, v in one.items() if k != "metadata"}
            for one in said[start : start + limit]
        ]
        more = start + limit < len(said)
        return {
            "messages": shown,
            "has_more": more,
            "response_metadata": {"next_cursor": str(start + limit) if more else ""},
        }

    def _set_status(self, asked: Json) -> Json:
        channel, thread = self._channel(asked.get("channel_id")), str(asked.get("thread_ts"))
        if not any(said["ts"] == thread for said in self._messages[channel]):
            raise _Refused("invalid_thread_ts")
        self.statuses.append((channel, thread, str(asked.get("status", ""))))
        return {}

    def _channel(self, channel: Any) -> str:
        known = str(channel)
        if known not in self._messages and known not in self._channels:
            raise _Refused("channel_not_found")
        if known not in self._channels:
            raise _Refused("not_in_channel")
        return known

    def _find(self, channel: str, ts: str) -> Json:
        return next(said for said in self._messages[channel] if said["ts"] == ts)

    def _number(self) -> int:
        self._next += 1
        return self._next

    def _new_ts(self) -> str:
        return f"{FIRST_SECOND + self._number()}.000100"


def _kind(channel: str) -> str:
    return "im" if channel.startswith("D") else "channel"


def _text(asked: Json) -> str:
    text = str(asked.get("text") or "")
    if not text.strip():
        raise _Refused("no_text")
    return text


def seen(text: str) -> str:
    """What people read of mrkdwn: links by their words, entities as characters, nothing of a zero-width space.

    Emphasis stays as it is written.
    """
    text = _LINK.sub(lambda match: match[2] or match[1], text).replace("\u200b", "")
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def _is_true(value: Any) -> bool:
    return value is True or str(value) in {"1", "true"}


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
