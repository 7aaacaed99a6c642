"""Discord's REST API and gateway on loopback, refusing what Discord refuses.

It speaks to the real SDK; what it answers follows Discord's reference (discord.com/developers/docs). Tests
(or a person) speak through `say` and `command`, look through `shown` and `Given.shown`, and make it misbehave
through `fail_next`, `down`, `mute`, `drop`, `ask_to_reconnect`, `invalidate` and `expire_links`.
"""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal

from aiohttp import WSCloseCode, WSMsgType, web

from tests.emulators.discord_commands import Commands, Given
from tests.emulators.discord_nouns import (
    BUTTON,
    COMMAND,
    DIRECT_MESSAGES,
    DIRECT_REACTIONS,
    EPOCH_MILLISECONDS,
    GUILD_MESSAGES,
    GUILD_REACTIONS,
    GUILDS,
    MAX_CALLS_A_SECOND,
    MAX_NONCE_CHARACTERS,
    MAY_TALK,
    MESSAGE_CONTENT,
    SOMEBODY,
    SUPPRESS_EMBEDS,
    TOKENLESS,
    File,
    Json,
    Person,
    Place,
    Refused,
    Room,
    Shown,
    body_of,
    buttons_of,
    change_shown,
    content_of,
    files_of,
    pings,
)

__all__ = ["DiscordEmulator", "Fault", "File", "Given", "Json", "Person", "Place", "Room", "Shown", "rate_limited"]


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one call. ``lost`` drops the connection, ``before`` or ``after`` doing the work, or
    ``never`` answers. After the work a ``status`` is answered instead."""

    status: int = 200
    body: Json = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    lost: Literal["before", "after", "never"] | None = None
    page: str = ""
    """Answered instead, as a web page."""


def rate_limited(seconds: float, *, via: bool = False) -> Fault:
    """Discord's 429; without the header ``Via``, as a proxy may leave it."""
    headers = {"Retry-After": str(seconds)} | ({"Via": "1.1 google"} if via else {})
    return Fault(429, {"message": "You are being rate limited.", "retry_after": seconds, "global": False}, headers)


GLOBAL_LIMIT = Fault(
    429,
    {"message": "You are being rate limited.", "retry_after": 1.0, "global": True},
    {"Retry-After": "1", "Via": "1.1 google", "X-RateLimit-Global": "true", "X-RateLimit-Scope": "global"},
)
FORBIDDEN = Fault(403, {"message": "Missing Access", "code": 50001})
LOST_ANSWER = Fault(lost="after")
LOST_REQUEST = Fault(lost="before")
SERVER_ERROR = Fault(503, {"message": "upstream connect error"})
NOT_DISCORD = Fault(page="<html>Welcome to the hotel's network</html>")
BAD_GATEWAY = Fault(502, {"message": "bad gateway"})
SLOW_GATEWAY = Fault(504, {"message": "gateway timeout"}, lost="after")


@dataclass
class _Session:
    """What one IDENTIFY began. Outlives its socket, for RESUME."""

    id: str
    intents: int
    sequence: int = 0
    sent: list[Json] = field(default_factory=list)
    socket: _Socket | None = None

    async def push(self, event: str, data: Json) -> None:
        self.sequence += 1
        frame = {"op": 0, "t": event, "s": self.sequence, "d": data}
        self.sent.append(frame)
        if self.socket is not None:
            await self.socket.send(frame)


class _Socket:
    """A WebSocket that compresses as asked: one zlib stream, flushed after each frame."""

    def __init__(self, ws: web.WebSocketResponse, compress: bool) -> None:
        self.ws = ws
        self.was_closed = False
        """Whether Discord closed it: what the client answers to that does not end its session."""
        self._stream = zlib.compressobj() if compress else None

    async def send(self, frame: Json) -> None:
        if self.ws.closed:
            return
        text = json.dumps(frame)
        try:
            if self._stream is None:
                await self.ws.send_str(text)
            else:
                packed = self._stream.compress(text.encode()) + self._stream.flush(zlib.Z_SYNC_FLUSH)
                await self.ws.send_bytes(packed)
        except ConnectionError:
            return  # the other side has gone: the session keeps the frame for RESUME

    def abort(self) -> None:
        transport = self.ws._req.transport if self.ws._req is not None else None
        if transport is not None:
            transport.abort()


class DiscordEmulator:
    """One bot's Discord. Use as an asynchronous context manager; ``base_url`` and ``gateway_url`` are its addresses."""

    def __init__(self, token: str = "MTIz.abc.def", rooms: tuple[Room, ...] = (Room(),)) -> None:
        self.token = token
        self.me = Person(id=123, name="Helper", is_bot=True)
        self.role_id = 321
        """The role that the server keeps for the bot."""
        self.rooms = {room.channel_id: room for room in rooms}
        self.base_url = ""
        self.gateway_url = ""
        self.heartbeat_interval_seconds = 40.0
        self.allows_message_content = True
        """The switch "Message Content Intent" of the Developer Portal."""
        self.down = False
        """Whether every connection is dropped, as in an outage."""
        self.mute = False
        """Whether open sockets say nothing any more, not even to heartbeats."""
        self.unreadable: set[int] = set()
        """Channels of which no history can be had for now."""
        self.identifies = 0
        self.resumes = 0
        self.typing: list[int] = []
        self.reactions: dict[tuple[int, int], list[str]] = {}
        self.calls: list[str] = []
        self.calls_over_the_limit = 0
        """Calls that were refused because fifty others had come within a second."""
        self.bodies: list[Json] = []
        self._arrivals: deque[float] = deque(maxlen=MAX_CALLS_A_SECOND)
        self._faults: defaultdict[str, deque[Fault]] = defaultdict(deque)
        self._sessions: dict[str, _Session] = {}
        self._people: dict[int, Person] = {}
        self._messages: dict[int, Json] = {}
        self._by_nonce: dict[tuple[int, str], int] = {}
        self._shown: list[Shown] = []
        self._last_id = 0
        self._runner: web.AppRunner | None = None
        self._files: dict[int, File] = {}
        self._links_since = 0
        self.commands = Commands(self)

    async def __aenter__(self) -> DiscordEmulator:
        app = web.Application()
        api = "/api/v10"
        routes: dict[tuple[str, str], tuple[str, Callable[[web.Request, Json], Any]]] = {
            ("GET", "/users/@me"): ("me", lambda _r, _b: self.me.as_json()),
            ("GET", "/oauth2/applications/@me"): ("application", self._application),
            ("GET", "/applications/@me"): ("application", self._application),
            ("GET", "/channels/{channel}"): ("channel", self._get_channel),
            ("GET", "/channels/{channel}/messages"): ("history", self._history),
            ("POST", "/channels/{channel}/messages"): ("send", self._send),
            ("PATCH", "/channels/{channel}/messages/{message}"): ("edit", self._edit),
            ("GET", "/channels/{channel}/messages/{message}"): ("message", self._get_message),
            ("DELETE", "/channels/{channel}/messages/{message}"): ("delete", self._delete),
            ("POST", "/channels/{channel}/typing"): ("typing", self._type),
            ("PUT", "/channels/{channel}/messages/{message}/reactions/{emoji}/@me"): ("react", self._react),
        }
        for (method, path), (name, answer) in (*routes.items(), *self.commands.routes.items()):
            app.router.add_route(method, api + path, self._answering(name, answer))
        app.router.add_get("/attachments/{channel}/{file}/{name}", self._download)
        app.router.add_get("/", self._gateway)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        port = self._runner.addresses[0][1]
        self.base_url = f"http://127.0.0.1:{port}{api}"
        self.gateway_url = f"ws://127.0.0.1:{port}/"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for session in list(self._sessions.values()):
            if session.socket is not None:
                session.socket.abort()
        if self._runner is not None:
            await self._runner.cleanup()

    # What people do and see

    @property
    def at_bot(self) -> str:
        return f"<@{self.me.id}>"

    @property
    def has_session(self) -> bool:
        """Whether somebody listens, or may resume."""
        return bool(self._sessions)

    async def say(
        self,
        text: str,
        *,
        to: Room | None = None,
        by: Person = SOMEBODY,
        reply_to: int | None = None,
        files: tuple[File, ...] = (),
        **more: Any,
    ) -> int:
        """*by* says *text* (in private, or *to* a room); its message id. ``more`` goes into the message as it is."""
        place: Place = to or by
        self.join(place)
        message = self.message_json(place, by, text)
        if reply_to is not None:
            message |= {
                "type": 19,
                "message_reference": {"message_id": str(reply_to), "channel_id": str(place.channel_id)},
                "referenced_message": {k: v for k, v in self._messages[reply_to].items() if k != "referenced_message"},
            }
        message["attachments"] = [self.attached(place, file) for file in files]
        message |= more
        self._messages[int(message["id"])] = message
        await self.push("MESSAGE_CREATE", message, place)
        return int(message["id"])

    async def change(self, message_id: int, text: str) -> None:
        """Somebody edits a message of theirs."""
        edited = self._messages[message_id] | {"content": text, "edited_timestamp": "2026-01-01T00:00:01+00:00"}
        self._messages[message_id] = edited
        await self.push("MESSAGE_UPDATE", edited, self._place_of(edited))

    async def preview(self, message_id: int) -> None:
        """Discord has made the preview of a link in a message."""
        shown = self._messages[message_id] | {"embeds": [{"type": "link", "title": "A page"}]}
        await self.push("MESSAGE_UPDATE", shown, self._place_of(shown))

    async def delete(self, *message_ids: int) -> None:
        """Messages of one place are deleted."""
        gone = [self._messages.pop(one) for one in message_ids]
        place = self._place_of(gone[0])
        where = self._where(place)
        if len(gone) == 1:
            await self.push("MESSAGE_DELETE", {"id": gone[0]["id"], **where}, place)
        else:
            await self.push("MESSAGE_DELETE_BULK", {"ids": [one["id"] for one in gone], **where}, place)

    async def command(
        self, name: str, text: str = "", *, to: Room | None = None, by: Person = SOMEBODY, option: str = "text"
    ) -> Given:
        """*by* gives a native command (in private, or in a room)."""
        options = [{"name": option, "type": 3, "value": text}] if text else []
        data = {"id": "55", "name": name, "type": 1, "options": options}
        return await self.commands.interact(COMMAND, data, to or by, by)

    async def press(self, shown: Shown, label: str, by: Person = SOMEBODY) -> Given:
        """*by* presses a button below a message of the bot."""
        message = self._messages[shown.message_id]
        data = {"id": 2, "custom_id": shown.buttons[label], "component_type": 2}
        return await self.commands.interact(BUTTON, data, self._place_of(message), by, message=message, on=shown)

    async def react(self, message_id: int, emoji: str, by: Person = SOMEBODY, *, take_away: bool = False) -> None:
        place = self._place_of(self._messages[message_id])
        data: Json = {
            "user_id": str(by.id),
            "message_id": str(message_id),
            "emoji": {"id": None, "name": emoji},
            "type": 0,
            **self._where(place),
        }
        if place.guild_id is not None and not take_away:
            data["member"] = self._member(by) | {"user": by.as_json()}
        await self.push("MESSAGE_REACTION_REMOVE" if take_away else "MESSAGE_REACTION_ADD", data, place)

    async def deliver_again(self, message_id: int) -> None:
        message = self._messages[message_id]
        await self.push("MESSAGE_CREATE", message, self._place_of(message))

    async def push(self, event: str, data: Json, place: Place | None = None) -> None:
        """Any event, to every session whose intents ask for it."""
        if place is not None and not isinstance(place, Person):
            data = data | {"guild_id": str(place.guild_id)}
        for session in list(self._sessions.values()):
            if not session.intents & _intent_for(event, direct=isinstance(place, Person)):
                continue
            told = data
            hides = not session.intents & MESSAGE_CONTENT and not isinstance(place, Person)
            if hides and "content" in data and self.at_bot not in data["content"]:
                told = data | {"content": "", "attachments": [], "embeds": []}
            socket, self_mute = session.socket, self.mute
            session.socket = None if self_mute else socket
            await session.push(event, told)
            session.socket = socket

    def join(self, place: Place) -> None:
        """The bot may write there from now on."""
        if isinstance(place, Person):
            self._people[place.channel_id] = place
        else:
            self.rooms[place.channel_id] = place

    def shown(self, place: Place) -> list[Shown]:
        """What the bot said there, oldest first."""
        return [message for message in self._shown if message.channel_id == place.channel_id]

    # How it misbehaves

    def fail_next(self, call: str, *faults: Fault) -> None:
        """The next calls of *call* (``send``, ``edit``, ``history``, ``me`` …) fail so, one each."""
        self._faults[call].extend(faults)

    async def drop(self) -> None:
        """Every socket breaks, without a word."""
        for session in list(self._sessions.values()):
            if session.socket is not None:
                session.socket.abort()
                session.socket = None

    async def drop_for_good(self) -> None:
        """Every socket breaks, and no session can be resumed."""
        await self.drop()
        self.forget_sessions()

    def expire_links(self) -> None:
        """The addresses of files that were told until now are good no more."""
        self._links_since = self._new_id()

    async def close_with(self, code: int) -> None:
        for session in list(self._sessions.values()):
            if session.socket is not None:
                session.socket.was_closed = True
                await session.socket.ws.close(code=code)

    async def ask_to_reconnect(self) -> None:
        """RECONNECT: Discord moves its sessions to another machine."""
        await self._to_all({"op": 7, "d": None})

    async def invalidate(self, *, resumable: bool = False) -> None:
        """INVALID_SESSION."""
        sessions = list(self._sessions.values())
        if not resumable:
            self._sessions.clear()
        for session in sessions:
            if session.socket is not None:
                await session.socket.send({"op": 9, "d": resumable})

    def forget_sessions(self) -> None:
        """No session can be resumed any more."""
        self._sessions.clear()

    async def until(self, condition: Callable[[DiscordEmulator], bool], seconds: float = 60.0) -> None:
        """Waits until *condition* holds. Raises `TimeoutError`."""
        async with asyncio.timeout(seconds):
            while not condition(self):
                await asyncio.sleep(0.005)

    async def _to_all(self, frame: Json) -> None:
        for session in list(self._sessions.values()):
            if session.socket is not None:
                await session.socket.send(frame)

    # The gateway

    async def _gateway(self, request: web.Request) -> web.StreamResponse:
        if self.down:
            return _dropped(request)
        if request.query.get("v") != "10" or request.query.get("encoding") != "json":
            return web.Response(status=400)
        ws = web.WebSocketResponse(autoping=False)
        await ws.prepare(request)
        socket = _Socket(ws, request.query.get("compress") == "zlib-stream")
        session: _Session | None = None
        if not self.mute:
            await socket.send({"op": 10, "d": {"heartbeat_interval": int(self.heartbeat_interval_seconds * 1000)}})
        try:
            async for received in ws:
                if received.type is not WSMsgType.TEXT or self.mute:
                    continue
                frame = json.loads(received.data)
                match frame["op"]:
                    case 1:
                        # As a network does: discord.py notes when it sent a heartbeat only after sending it.
                        await asyncio.sleep(0.005)
                        await socket.send({"op": 11, "d": None})
                    case 2:
                        session = await self._identify(socket, frame["d"])
                    case 6:
                        session = await self._resume(socket, frame["d"])
        finally:
            if session is not None and session.socket is socket:
                session.socket = None
            ended = not socket.was_closed and ws.close_code in (WSCloseCode.OK, WSCloseCode.GOING_AWAY)
            if session is not None and ended:
                self._sessions.pop(session.id, None)  # a client that closes so ends its session
        return ws

    async def _identify(self, socket: _Socket, asked: Json) -> _Session | None:
        self.identifies += 1
        if asked["token"] != self.token:
            await socket.ws.close(code=4004, message=b"Authentication failed.")
            return None
        if asked["intents"] & MESSAGE_CONTENT and not self.allows_message_content:
            await socket.ws.close(code=4014, message=b"Disallowed intent(s).")
            return None
        session = _Session(f"session-{self.identifies}", asked["intents"], socket=socket)
        guilds = sorted({room.guild_id for room in self.rooms.values()})
        await session.push(
            "READY",
            {
                "v": 10,
                "user": self.me.as_json(),
                "session_id": session.id,
                "resume_gateway_url": self.gateway_url,
                "guilds": [{"id": str(guild), "unavailable": True} for guild in guilds],
                "application": {"id": "124", "flags": 0},
                "private_channels": [],
            },
        )
        for guild in guilds:
            await session.push("GUILD_CREATE", self.guild(guild) | {"unavailable": False})
        self._sessions[session.id] = session
        return session

    async def _resume(self, socket: _Socket, asked: Json) -> _Session | None:
        self.resumes += 1
        session = self._sessions.get(asked["session_id"] or "")
        if session is None or asked["token"] != self.token:
            await socket.send({"op": 9, "d": False})
            return None
        session.socket = socket
        for frame in [frame for frame in session.sent if frame["s"] > asked["seq"]]:
            await socket.send(frame)
        await session.push("RESUMED", {})
        return session

    def guild(self, guild_id: int) -> Json:
        """A server as GUILD_CREATE tells it."""
        rooms = [room for room in self.rooms.values() if room.guild_id == guild_id]
        return {
            "id": str(guild_id),
            "name": "The crew",
            "owner_id": "1",
            "member_count": 3,
            "system_channel_id": str(rooms[0].channel_id),
            "roles": [
                {"id": str(guild_id), "name": "@everyone", "permissions": str(MAY_TALK), "position": 0, "color": 0},
                {
                    "id": str(self.role_id),
                    "name": self.me.name,
                    "permissions": "0",
                    "position": 1,
                    "color": 0,
                    "managed": True,
                    "tags": {"bot_id": str(self.me.id)},
                },
            ],
            "members": [self._member(self.me) | {"user": self.me.as_json()}],
            "channels": [self._channel(room) for room in rooms if room.parent is None],
            "threads": [self._channel(room) for room in rooms if room.parent is not None],
            "emojis": [],
            "stickers": [],
            "presences": [],
            "voice_states": [],
            "features": [],
        }

    # What the bot calls

    def _answering(self, name: str, answer: Callable[[web.Request, Json], Any]) -> Any:
        async def handle(request: web.Request) -> web.StreamResponse:
            self.calls.append(name)
            body = await body_of(request)
            fault = self._faults[name].popleft() if self._faults[name] else None
            if self.down or (fault and fault.lost == "before"):
                return _dropped(request)
            if fault and fault.lost == "never":
                await asyncio.sleep(3600)
            if name not in TOKENLESS and self._is_over_the_limit():
                fault = GLOBAL_LIMIT
                return _told(fault.body, fault.status, fault.headers)
            if fault and fault.page:
                return web.Response(text=fault.page, content_type="text/html")
            try:
                if name not in TOKENLESS:
                    self._authorise(request)
                if fault and fault.status != 200 and fault.lost != "after":
                    return _told(fault.body, fault.status, fault.headers)
                if body:
                    self.bodies.append(body)
                result = answer(request, body)
            except Refused as refused:
                told = {"message": str(refused), "code": refused.code}
                return _told(told, refused.status, {"Via": "1.1 google"})
            if fault and fault.lost == "after":
                is_told = fault.status != 200
                return _told(fault.body, fault.status, fault.headers) if is_told else _dropped(request)
            return _told(result) if result is not None else web.Response(status=204)

        return handle

    def _is_over_the_limit(self) -> bool:
        """Whether a call that comes now is one too many within a second, whatever it asks for."""
        now = time.monotonic()
        if len(self._arrivals) == MAX_CALLS_A_SECOND and now - self._arrivals[0] < 1.0:
            self.calls_over_the_limit += 1
            return True
        self._arrivals.append(now)
        return False

    def _authorise(self, request: web.Request) -> None:
        if request.headers.get("Authorization") != f"Bot {self.token}":
            raise Refused(401, 0, "401: Unauthorized")

    def _application(self, _request: web.Request, _body: Json) -> Json:
        return {
            "id": "124",
            "name": "Helper",
            "description": "",
            "icon": None,
            "bot_public": True,
            "bot_require_code_grant": False,
            "verify_key": "0",
            "flags": (1 << 19) if self.allows_message_content else 0,
            "summary": "",
            "owner": self.me.as_json(),
        }

    def _get_channel(self, request: web.Request, _body: Json) -> Json:
        place = self._asked_place(request)
        if isinstance(place, Person):
            return self.direct_channel(place)
        return self._channel(place) | {"guild_id": str(place.guild_id)}

    def _history(self, request: web.Request, _body: Json) -> list[Json]:
        place = self._asked_place(request)
        if place.channel_id in self.unreadable:
            raise Refused(503, 0, "Service Unavailable")
        after = int(request.query.get("after") or 0)
        limit = int(request.query.get("limit") or 50)
        if not 1 <= limit <= 100:
            raise Refused(400, 50035, "Invalid Form Body")
        mine = [m for m in self._messages.values() if int(m["channel_id"]) == place.channel_id]
        # The oldest after that id, told newest first: as Discord does.
        page = sorted((m for m in mine if int(m["id"]) > after), key=lambda m: int(m["id"]))[:limit]
        return page[::-1]

    def _send(self, request: web.Request, body: Json) -> Json:
        place = self._asked_place(request)
        text = content_of(body)
        nonce = str(body.get("nonce") or "")
        if len(nonce) > MAX_NONCE_CHARACTERS:
            raise Refused(400, 50035, "Invalid Form Body\nIn nonce: Must be 25 or fewer in length.")
        if nonce and body.get("enforce_nonce") and (place.channel_id, nonce) in self._by_nonce:
            return self._messages[self._by_nonce[place.channel_id, nonce]]
        reference = body.get("message_reference") or {}
        replied = int(reference["message_id"]) if reference else None
        if replied is not None and replied not in self._messages:
            if reference.get("fail_if_not_exists", True):
                raise Refused(400, 50035, "Invalid Form Body\nIn message_reference: Unknown message")
            replied = None
        message = self.message_json(place, self.me, text) | {"nonce": nonce}
        files, buttons = files_of(body), buttons_of(body)
        message["attachments"] = [self.attached(place, file) for file in files]
        message_id = int(message["id"])
        self._messages[message_id] = message
        if nonce:
            self._by_nonce[place.channel_id, nonce] = message_id
        self._shown.append(
            Shown(
                place.channel_id,
                message_id,
                text,
                nonce,
                reply_to=replied,
                has_preview=not body.get("flags", 0) & SUPPRESS_EMBEDS,
                pings=pings(body),
                files=files,
                buttons=buttons,
            )
        )
        self._echo(message, place)
        return message

    def _echo(self, message: Json, place: Place) -> None:
        """The bot hears itself, like everybody in the channel."""
        told = asyncio.ensure_future(self.push("MESSAGE_CREATE", message, place))
        told.add_done_callback(lambda done: done.exception())

    def _edit(self, request: web.Request, body: Json) -> Json:
        place, message_id = self._asked_place(request), int(request.match_info["message"])
        text = content_of(body)
        known = [m for m in self._shown if (m.channel_id, m.message_id) == (place.channel_id, message_id)]
        if not known:
            others = message_id in self._messages
            raise (
                Refused(403, 50005, "Cannot edit a message authored by another user")
                if others
                else Refused(404, 10008, "Unknown Message")
            )
        change_shown(known[0], body)
        known[0].has_preview = not body.get("flags", 0) & SUPPRESS_EMBEDS
        known[0].pings = pings(body)
        self._messages[message_id]["content"] = text
        return self._messages[message_id]

    def _get_message(self, request: web.Request, _body: Json) -> Json:
        place, message_id = self._asked_place(request), int(request.match_info["message"])
        message = self._messages.get(message_id)
        if message is None or int(message["channel_id"]) != place.channel_id:
            raise Refused(404, 10008, "Unknown Message")
        snapshots = [one["message"] for one in message.get("message_snapshots", [])]
        for holder in (message, *snapshots):
            holder["attachments"] = [self._linked(place, one) for one in holder["attachments"]]
        return message

    def _delete(self, request: web.Request, _body: Json) -> None:
        place, message_id = self._asked_place(request), int(request.match_info["message"])
        message = self._messages.get(message_id)
        if message is None or int(message["channel_id"]) != place.channel_id:
            raise Refused(404, 10008, "Unknown Message")
        if message["author"]["id"] != str(self.me.id):
            raise Refused(403, 50013, "Missing Permissions")
        self._shown = [one for one in self._shown if one.message_id != message_id]
        del self._messages[message_id]
        told = asyncio.ensure_future(self.push("MESSAGE_DELETE", {"id": str(message_id), **self._where(place)}, place))
        told.add_done_callback(lambda done: done.exception())

    # Files

    def attached(self, place: Place, file: File) -> Json:
        """*file* as an attachment of a message in *place*."""
        number = self._new_id()
        self._files[number] = file
        about = {"id": str(number), "size": len(file.content), "filename": file.name, "content_type": file.media_type}
        return self._linked(place, about)

    def _linked(self, place: Place, attachment: Json) -> Json:
        host = self.base_url.removesuffix("/api/v10")
        path = f"/attachments/{place.channel_id}/{attachment['id']}/{attachment['filename']}"
        url = f"{host}{path}?ex={self._new_id():x}&is=0&hm=0"
        return attachment | {"url": url, "proxy_url": url}

    async def _download(self, request: web.Request) -> web.Response:
        """The CDN. It needs no token, but an address that has not expired."""
        self.calls.append("download")
        file = self._files.get(int(request.match_info["file"]))
        if file is None or int(request.query.get("ex", "0"), 16) < self._links_since:
            return web.Response(status=404, text="This content is no longer available.")
        return web.Response(body=file.content, content_type=file.media_type)

    def _type(self, request: web.Request, _body: Json) -> None:
        self.typing.append(self._asked_place(request).channel_id)

    def _react(self, request: web.Request, _body: Json) -> None:
        place, message_id = self._asked_place(request), int(request.match_info["message"])
        emoji = request.match_info["emoji"]
        if message_id not in self._messages:
            raise Refused(404, 10008, "Unknown Message")
        if emoji.isascii() and ":" not in emoji:
            raise Refused(400, 10014, "Unknown Emoji")
        self.reactions.setdefault((place.channel_id, message_id), []).append(emoji)

    def _asked_place(self, request: web.Request) -> Place:
        channel_id = int(request.match_info["channel"])
        place: Place | None = self.rooms.get(channel_id) or self._people.get(channel_id)
        if place is None:
            raise Refused(404, 10003, "Unknown Channel")
        return place

    # What things look like

    def message_json(self, place: Place, author: Person, text: str) -> Json:
        """A new message as the gateway tells it."""
        message: Json = {
            "id": str(self._new_id()),
            "channel_id": str(place.channel_id),
            "author": author.as_json(),
            "content": text,
            "timestamp": "2026-01-01T00:00:00+00:00",
            "edited_timestamp": None,
            "tts": False,
            "mention_everyone": False,
            "mentions": [self.me.as_json()] if self.at_bot in text else [],
            "mention_roles": [str(self.role_id)] if f"<@&{self.role_id}>" in text else [],
            "attachments": [],
            "embeds": [],
            "pinned": False,
            "type": 0,
            "flags": 0,
        }
        return message

    def _new_id(self) -> int:
        """A snowflake: later ones are larger, also across places."""
        now = (int(time.time() * 1000) - EPOCH_MILLISECONDS) << 22
        self._last_id = max(self._last_id + 1, now)
        return self._last_id

    def _place_of(self, message: Json) -> Place:
        channel_id = int(message["channel_id"])
        return self.rooms.get(channel_id) or self._people[channel_id]

    def _where(self, place: Place) -> Json:
        return {"channel_id": str(place.channel_id)}

    def _member(self, person: Person) -> Json:
        roles = [str(self.role_id)] if person == self.me else []
        return {"roles": roles, "flags": 0, "joined_at": "2026-01-01T00:00:00+00:00", "deaf": False, "mute": False}

    def direct_channel(self, person: Person) -> Json:
        """Direct messages with *person*, as a channel."""
        return {"id": str(person.channel_id), "type": 1, "recipients": [person.as_json()]}

    def _channel(self, room: Room) -> Json:
        newest = max(
            (int(m["id"]) for m in self._messages.values() if m["channel_id"] == str(room.channel_id)), default=0
        )
        found: Json = {
            "id": str(room.channel_id),
            "guild_id": str(room.guild_id),
            "name": room.name,
            "type": 0 if room.parent is None else 12 if room.private else 11,
            "position": 0,
            "permission_overwrites": _closed_to_all(room) if room.private and room.parent is None else [],
            "parent_id": None if room.parent is None else str(room.parent),
            "last_message_id": str(newest) if newest else None,
        }
        if room.parent is not None:
            found |= {
                "owner_id": "1",
                "message_count": 0,
                "member_count": 1,
                "thread_metadata": {
                    "archived": False,
                    "auto_archive_duration": 1440,
                    "archive_timestamp": "2026-01-01T00:00:00+00:00",
                },
            }
            if room.joined:
                member = {"id": str(room.channel_id), "user_id": str(self.me.id), "flags": 0}
                found["member"] = member | {"join_timestamp": "2026-01-01T00:00:00+00:00"}
        return found


def _told(answer: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    # Without a charset, as Discord does: discord.py reads no other as JSON.
    named = {"Content-Type": "application/json", **(headers or {})}
    return web.Response(status=status, body=json.dumps(answer).encode(), headers=named)


def _closed_to_all(room: Room) -> list[Json]:
    everyone = {"id": str(room.guild_id), "type": 0, "allow": "0", "deny": str(1 << 10)}
    return [everyone]


def _dropped(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


def _intent_for(event: str, *, direct: bool) -> int:
    if event.startswith("MESSAGE_REACTION"):
        return DIRECT_REACTIONS if direct else GUILD_REACTIONS
    if event == "INTERACTION_CREATE":
        return -1  # needs no intent
    if event.startswith("MESSAGE"):
        return DIRECT_MESSAGES if direct else GUILD_MESSAGES
    return GUILDS
