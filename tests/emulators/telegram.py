"""A Bot API server on loopback that refuses what Telegram refuses.

It speaks to the real SDK; what it answers follows the Bot API documentation (core.telegram.org/bots/api)
and the error texts of the official server. Tests (or a person) speak through `say`, look through
`shown`, and make it misbehave through `fail_next`, `down` and `deliver_again`.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Any

from aiohttp import web

from tests.emulators.telegram_html import CannotParse, Entity, parse_html
from tests.emulators.telegram_nouns import (
    BLOCKED,
    FIRST_UPDATE,
    GATEWAY_PAGE,
    GROUP_MESSAGES_A_MINUTE,
    LOST_ANSWER,
    LOST_REQUEST,
    MAX_CAPTION_UNITS,
    MAX_DOWNLOAD_BYTES,
    MAX_TEXT_UNITS,
    NO_ANSWER,
    NOT_BY_DEFAULT,
    REACTIONS,
    SERVER_ERROR,
    SOMEBODY,
    Fault,
    Json,
    Params,
    Person,
    Refused,
    Room,
    Shown,
    entities_of,
    rate_limited,
    units,
)
from tests.emulators.telegram_webhook import BadWebhook, Webhook

__all__ = [
    "BLOCKED",
    "FIRST_UPDATE",
    "GATEWAY_PAGE",
    "LOST_ANSWER",
    "LOST_REQUEST",
    "MAX_DOWNLOAD_BYTES",
    "NO_ANSWER",
    "SERVER_ERROR",
    "Fault",
    "Person",
    "Room",
    "Shown",
    "TelegramEmulator",
    "entities_of",
    "rate_limited",
]

_IN_A_MINUTE = frozenset({"sendmessage", "senddocument", "editmessagetext", "editmessagemedia"})
_COMMAND = re.compile(r"[a-z0-9_]{1,32}")
_TOKEN = re.compile(r"\d+:[A-Za-z0-9_-]{30,}")


class TelegramEmulator:
    """One bot's Telegram. Use as an asynchronous context manager; ``base_url`` is its API base."""

    def __init__(self, token: str = "123456:" + "A" * 35, username: str = "helper_bot") -> None:
        self.token = token
        self.me = Person(id=int(token.split(":")[0]), name="Helper", username=username, is_bot=True)
        self.base_url = ""
        self.down = False
        """Whether every connection is dropped, as in an outage."""
        self.revoked = False
        self.commands: list[Json] = []
        self.typing: list[tuple[int, int | None]] = []
        self.reactions: dict[tuple[int, int], list[str]] = {}
        """The bot's own."""
        self._put: dict[tuple[int, int, int], list[Json]] = {}
        """Those of people: by chat, message and person."""
        self.pressed: dict[str, str | None] = {}
        """Presses of buttons, by id, and what the bot answered to whoever pressed; None while the sign still turns."""
        self.calls: list[str] = []
        self.on_text: Callable[[int, str], None] = lambda chat_id, text: None
        """Is told of each text that the bot sends or edits, once it is accepted."""
        self.confirmed = 0
        """All updates below this id are confirmed: they will not be delivered again."""
        self.delivered: list[int] = []
        """Update ids in the order of their delivery, repeats included."""
        self._faults: defaultdict[str, deque[Fault]] = defaultdict(deque)
        self._updates: list[Json] = []
        self._next_update = FIRST_UPDATE
        self.first_message = 1
        self._next_message: defaultdict[int, int] = defaultdict(lambda: self.first_message)
        self._chats: dict[int, Json] = {}
        self._topics: dict[int, tuple[int, ...]] = {}
        self._messages: dict[tuple[int, int], Json] = {}
        self._shown: list[Shown] = []
        self._allowed: list[str] = []
        self._files: dict[str, tuple[str, bytes, int]] = {}
        self._upgraded: dict[int, int] = {}
        self._changed = asyncio.Condition()
        self.webhook = Webhook(self._waiting, self._changed)
        self._deliveries: asyncio.Task[None] | None = None
        self._poller = 0
        self._minutes: defaultdict[int, deque[float]] = defaultdict(deque)
        """By group: when what was said or edited there in the last minute was."""
        self.clock: Callable[[], float] = time.monotonic
        """By which these minutes are measured, in seconds."""
        self.too_many: list[int] = []
        """The groups in which the bot was refused for more than a minute takes, a time each."""
        self._runner: web.AppRunner | None = None
        self._methods: dict[str, Callable[[Params], Any]] = {
            "getme": lambda _: self.me.as_json() | {"can_join_groups": True},
            "setwebhook": self._set_webhook,
            "deletewebhook": self._delete_webhook,
            "getwebhookinfo": lambda _: self.webhook.info(self._allowed),
            "setmycommands": self._set_commands,
            "getfile": self._get_file,
            "sendmessage": self._send_message,
            "senddocument": self._send_document,
            "editmessagetext": self._edit_message,
            "editmessagemedia": self._edit_media,
            "editmessagereplymarkup": self._edit_buttons,
            "answercallbackquery": self._answer_press,
            "deletemessage": self._delete_message,
            "sendchataction": self._send_action,
            "setmessagereaction": self._set_reaction,
        }

    async def __aenter__(self) -> TelegramEmulator:
        app = web.Application()
        app.router.add_route("*", "/bot{token}/{method}", self._handle)
        app.router.add_get("/file/bot{token}/{path:.+}", self._download)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.base_url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        self._deliveries = asyncio.create_task(self.webhook.deliver())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._deliveries is not None:
            self._deliveries.cancel()
            await asyncio.wait([self._deliveries])
        if self._runner is not None:
            await self._runner.cleanup()

    # What people do and see

    async def say(
        self,
        text: str,
        *,
        to: Room | None = None,
        by: Person = SOMEBODY,
        topic: int | None = None,
        reply_to: int | None = None,
        **more: Any,
    ) -> int:
        """*by* says *text* (in private, or *to* a room); its message id. ``more`` goes into the message as it is."""
        chat: Json = to.as_json() if to else {"id": by.id, "type": "private", "first_name": by.name}
        self.join(to or by)
        message = self._new_message(chat, by, topic)
        if text:
            message |= {"text": text, "entities": entities_of(text)}
        if reply_to is not None:
            quoted = self._messages[chat["id"], reply_to]
            message["reply_to_message"] = {k: v for k, v in quoted.items() if k != "reply_to_message"}
        message |= more
        self._messages[chat["id"], message["message_id"]] = message
        await self.push("message", message)
        return int(message["message_id"])

    async def change(self, chat_id: int, message_id: int, text: str) -> None:
        """Somebody edits a message of theirs."""
        edited = self._messages[chat_id, message_id] | {
            "text": text,
            "entities": entities_of(text),
            "edit_date": 1_700_000_100,
        }
        self._messages[chat_id, message_id] = edited
        await self.push("edited_message", edited)

    async def push(self, kind: str, content: Json) -> int:
        """Any update, as it is; its id."""
        async with self._changed:
            update_id, self._next_update = self._next_update, self._next_update + 1
            self._updates.append({"update_id": update_id, kind: content})
            self._changed.notify_all()
            return update_id

    async def react(self, chat_id: int, message_id: int, emoji: str, by: Person = SOMEBODY) -> None:
        """Somebody puts *emoji* on a message, in the place of what they put there; an empty one takes that away."""
        new = [{"type": "emoji", "emoji": emoji}] if emoji else []
        old, self._put[chat_id, message_id, by.id] = self._put.get((chat_id, message_id, by.id), []), new
        await self.push(
            "message_reaction",
            {
                "chat": self._chats[chat_id],
                "message_id": message_id,
                "user": by.as_json(),
                "date": 1_700_000_100,
                "old_reaction": old,
                "new_reaction": new,
            },
        )

    async def press(self, shown: Shown, label: str, by: Person = SOMEBODY) -> str:
        """Somebody presses a button below a message of the bot; the id of the press."""
        query = str(4_000_000 + len(self.pressed))
        self.pressed[query] = None
        message = self._messages[shown.chat_id, shown.message_id]
        content = {"id": query, "from": by.as_json(), "message": message, "chat_instance": "1"}
        await self.push("callback_query", content | {"data": shown.buttons[label]})
        return query

    async def upgrade(self, room: Room, new_id: int) -> Room:
        """A group becomes a supergroup with another id. Both say so; the old one takes no messages any more."""
        grown = replace(room, id=new_id)
        self._upgraded[room.id] = new_id
        self.join(grown)
        old = self._new_message(room.as_json(), SOMEBODY, None) | {"migrate_to_chat_id": new_id}
        await self.push("message", old)
        await self.push(
            "message", self._new_message(grown.as_json(), SOMEBODY, None) | {"migrate_from_chat_id": room.id}
        )
        return grown

    def keep(self, content: bytes, path: str, size: int | None = None) -> Json:
        """A file that somebody uploaded, as it stands in messages. *size*, if it is to look larger."""
        file_id = f"file-{len(self._files) + 1}"
        size = len(content) if size is None else size
        self._files[file_id] = (path, content, size)
        return {"file_id": file_id, "file_unique_id": f"unique-{file_id}", "file_size": size}

    def join(self, place: Room | Person) -> None:
        """The bot may write there from now on."""
        if isinstance(place, Room):
            self._chats[place.id] = place.as_json()
            self._topics[place.id] = place.topics
        else:
            self._chats[place.id] = {"id": place.id, "type": "private", "first_name": place.name}

    def shown(self, place: Room | Person, topic: int | None = None) -> list[Shown]:
        """What the bot said there and nobody edited away, oldest first."""
        return [m for m in self._shown if m.chat_id == place.id and m.topic == topic]

    def said(self, place: Room | Person, topic: int | None = None) -> list[Shown]:
        """The same as `shown`."""
        return self.shown(place, topic)

    def fail_next(self, method: str, *faults: Fault) -> None:
        """The next calls of *method* fail so, one each."""
        self._faults[method.lower()].extend(faults)

    def expire(self) -> None:
        """Drops all waiting updates, as Telegram does after 24 hours."""
        self._updates.clear()

    def drop_confirmed(self) -> None:
        """Drops the confirmed updates. They cannot be delivered again, and are not looked through for each poll."""
        self._updates[:] = [one for one in self._updates if one["update_id"] >= self.confirmed]

    async def deliver_again(self) -> None:
        """Forgets what was confirmed, as Telegram does when it loses its own record of it."""
        async with self._changed:
            self.confirmed = 0
            self._changed.notify_all()

    async def until(self, condition: Callable[[TelegramEmulator], bool], seconds: float = 60.0) -> None:
        """Waits until *condition* holds. Raises `TimeoutError`."""
        async with asyncio.timeout(seconds):
            while not condition(self):
                await asyncio.sleep(0.005)

    # What the bot calls

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        method = request.match_info["method"].lower()
        self.calls.append(method)
        params = dict(await request.post()) | dict(request.query)
        fault = self._faults[method].popleft() if self._faults[method] else None
        if fault and fault.lost == "for ever":
            await asyncio.Event().wait()
        if self._drops(fault, "before"):
            return self._dropped(request)
        if fault and fault.body is not None:
            return web.Response(status=fault.status, text=fault.body, content_type="text/html")
        try:
            result = await self._result(request.match_info["token"], method, params, fault)
        except Refused as refused:
            answer = {"ok": False, "error_code": refused.status, "description": str(refused)}
            if refused.parameters:
                answer["parameters"] = refused.parameters
            return web.json_response(answer, status=refused.status)
        if self._drops(fault, "after"):
            return self._dropped(request)
        return web.json_response({"ok": True, "result": result})

    async def _download(self, request: web.Request) -> web.StreamResponse:
        try:
            self._authorise(request.match_info["token"])
        except Refused as refused:
            return web.json_response({"ok": False, "error_code": refused.status}, status=refused.status)
        for path, content, _ in self._files.values():
            if path == request.match_info["path"]:
                return web.Response(body=content, content_type="application/octet-stream")
        return web.json_response({"ok": False, "error_code": 404, "description": "Not Found"}, status=404)

    async def _result(self, token: str, method: str, params: Params, fault: Fault | None) -> Any:
        self._authorise(token)
        if fault and fault.status != 200:
            raise Refused(fault.status, fault.description, fault.parameters)
        if method == "getupdates":
            return await self._get_updates(params)
        if method not in self._methods:
            raise Refused(404, "Not Found: method not found")
        minute = self._minute(params) if method in _IN_A_MINUTE else None
        result = self._methods[method](params)
        if minute is not None:
            minute.append(self.clock())
        return await result if asyncio.iscoroutine(result) else result

    def _minute(self, params: Params) -> deque[float] | None:
        """What a group was told in the last minute; None for a chat that is none. Refuses more than it takes."""
        chat = int(params["chat_id"]) if str(params["chat_id"]).lstrip("-").isdecimal() else 0
        if chat >= 0:
            return None
        minute, now = self._minutes[chat], self.clock()
        while minute and minute[0] <= now - 60.0:
            minute.popleft()
        if len(minute) >= GROUP_MESSAGES_A_MINUTE:
            self.too_many.append(chat)
            seconds = math.ceil(minute[0] + 60.0 - now)
            raise Refused(429, f"Too Many Requests: retry after {seconds}", {"retry_after": seconds})
        return minute

    def _drops(self, fault: Fault | None, moment: str) -> bool:
        return self.down or (fault is not None and fault.lost == moment)

    def _dropped(self, request: web.Request) -> web.Response:
        if request.transport is not None:
            request.transport.abort()
        return web.Response()

    def _authorise(self, token: str) -> None:
        if not _TOKEN.fullmatch(token):
            raise Refused(404, "Not Found")
        if token != self.token or self.revoked:
            raise Refused(401, "Unauthorized")

    async def _get_updates(self, params: Params) -> list[Json]:
        if self.webhook.url:
            raise Refused(409, "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook")
        if "allowed_updates" in params:
            self._allowed = json.loads(params["allowed_updates"])
        offset = int(params.get("offset") or 0)
        async with self._changed:
            self.confirmed = max(self.confirmed, offset)
            self._poller += 1
            mine = self._poller
            self._changed.notify_all()  # a poll that still waits gives way
            try:
                async with asyncio.timeout(float(params.get("timeout") or 0)):
                    await self._changed.wait_for(lambda: self._poller != mine or self.down or self._waiting())
            except TimeoutError:
                return []
            if self._poller != mine:
                raise Refused(
                    409,
                    "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running",
                )
            batch = self._waiting()[: int(params.get("limit") or 100)]
            self.delivered += [update["update_id"] for update in batch]
            return batch

    def _waiting(self) -> list[Json]:
        return [
            update
            for update in self._updates
            if update["update_id"] >= self.confirmed
            and update["update_id"] not in self.webhook.taken
            and self._wanted(update)
        ]

    def _wanted(self, update: Json) -> bool:
        kind = next(key for key in update if key != "update_id")
        return kind in self._allowed if self._allowed else kind not in NOT_BY_DEFAULT

    async def _set_webhook(self, params: Params) -> bool:
        try:
            self.webhook.set(params)
        except BadWebhook as error:
            raise Refused(400, f"Bad Request: {error}") from None
        if "allowed_updates" in params:
            self._allowed = json.loads(params["allowed_updates"])
        async with self._changed:
            self._changed.notify_all()
        return True

    def _delete_webhook(self, params: Params) -> bool:
        self.webhook.url = ""
        if params.get("drop_pending_updates") == "true":
            self.confirmed = self._next_update
        return True

    def _set_commands(self, params: Params) -> bool:
        commands = json.loads(params["commands"])
        if len(commands) > 100:
            raise Refused(400, "Bad Request: BOT_COMMANDS_TOO_MUCH")
        for command in commands:
            if not _COMMAND.fullmatch(command["command"]):
                raise Refused(400, "Bad Request: BOT_COMMAND_INVALID")
            if not 1 <= len(command["description"]) <= 256:
                raise Refused(400, "Bad Request: BOT_COMMAND_DESCRIPTION_INVALID")
        self.commands = commands
        return True

    def _get_file(self, params: Params) -> Json:
        file_id = params.get("file_id", "")
        if file_id not in self._files:
            raise Refused(400, "Bad Request: wrong file_id or the file is temporarily unavailable")
        path, _, size = self._files[file_id]
        if size > MAX_DOWNLOAD_BYTES:
            raise Refused(400, "Bad Request: file is too big")
        return {"file_id": file_id, "file_unique_id": f"unique-{file_id}", "file_size": size, "file_path": path}

    def _send_message(self, params: Params) -> Json:
        chat, topic, reply_to = self._place(params)
        text, entities = self._text(params)
        buttons = _buttons(params)
        message = self._new_message(chat, self.me, topic) | {"text": text}
        shown = self._show(message, text, entities, topic, reply_to, has_preview=_has_preview(params))
        self._shown[-1].buttons = buttons
        self.on_text(chat["id"], text)
        return shown

    def _send_document(self, params: Params) -> Json:
        chat, topic, reply_to = self._place(params)
        file_name, content = self._upload(str(params.get("document", "")), params)
        caption = str(params.get("caption", ""))
        if units(caption) > MAX_CAPTION_UNITS:
            raise Refused(400, "Bad Request: message caption is too long")
        document = self.keep(content, f"documents/{file_name}") | {"file_name": file_name}
        message = self._new_message(chat, self.me, topic) | {"document": document}
        return self._show(message, caption, (), topic, reply_to, file_name=file_name, content=content)

    def _upload(self, named: str, params: Params) -> tuple[str, bytes]:
        """The name and the content of the file that came with the call."""
        uploaded = params.get(named.removeprefix("attach://"))
        if not named.startswith("attach://") or not isinstance(uploaded, web.FileField):
            raise Refused(400, "Bad Request: there is no document in the request")
        content = uploaded.file.read()
        if not content:
            raise Refused(400, "Bad Request: file must be non-empty")
        return uploaded.filename, content

    def _place(self, params: Params) -> tuple[Json, int | None, int | None]:
        """Chat, topic and the message that is replied to."""
        chat = self._chat(params)
        topic = int(params["message_thread_id"]) if params.get("message_thread_id") else None
        if topic is not None and topic not in self._topics.get(chat["id"], ()):
            raise Refused(400, "Bad Request: message thread not found")
        reply = json.loads(params.get("reply_parameters") or "{}")
        if reply and (chat["id"], reply["message_id"]) not in self._messages:
            if not reply.get("allow_sending_without_reply"):
                raise Refused(400, "Bad Request: message to be replied not found")
            reply = {}
        return chat, topic, reply.get("message_id")

    def _show(
        self,
        message: Json,
        text: str,
        entities: tuple[Entity, ...],
        topic: int | None,
        reply_to: int | None,
        *,
        has_preview: bool = False,
        file_name: str = "",
        content: bytes = b"",
    ) -> Json:
        chat_id, message_id = message["chat"]["id"], message["message_id"]
        self._messages[chat_id, message_id] = message
        self._shown.append(
            Shown(chat_id, message_id, text, entities, topic, reply_to, has_preview, 0, file_name, content)
        )
        return message

    def _own(self, chat: Json, params: Params, what: str) -> Shown:
        """The bot's message that is to be changed."""
        for shown in self._shown:
            if (shown.chat_id, shown.message_id) == (chat["id"], int(params["message_id"])):
                return shown
        if (chat["id"], int(params["message_id"])) in self._messages:
            raise Refused(400, f"Bad Request: message can't be {what}{'d' if what.endswith('e') else 'ed'}")
        raise Refused(400, f"Bad Request: message to {what} not found")

    def _edit_message(self, params: Params) -> Json:
        chat = self._chat(params)
        text, entities = self._text(params)
        known = self._own(chat, params, "edit")
        if known.file_name:
            raise Refused(400, "Bad Request: there is no text in the message to edit")
        buttons = _buttons(params)
        if (known.text, known.entities, known.buttons) == (text, entities, buttons):
            raise Refused(
                400,
                "Bad Request: message is not modified: specified new message content and reply markup are exactly "
                "the same as a current content and reply markup of the message",
            )
        known.text = text
        known.buttons = buttons  # without a markup they go
        known.entities = entities
        known.edits += 1
        known.has_preview = _has_preview(params)
        self.on_text(chat["id"], text)
        return self._messages[chat["id"], known.message_id] | {"text": text, "edit_date": 1_700_000_200}

    def _edit_buttons(self, params: Params) -> Json:
        chat = self._chat(params)
        known, buttons = self._own(chat, params, "edit"), _buttons(params)
        if known.buttons == buttons:
            raise Refused(400, "Bad Request: message is not modified")
        known.buttons = buttons
        return self._messages[chat["id"], known.message_id]

    def _answer_press(self, params: Params) -> bool:
        if params["callback_query_id"] not in self.pressed:
            raise Refused(400, "Bad Request: query is too old and response timeout expired or query ID is invalid")
        self.pressed[params["callback_query_id"]] = params.get("text", "")
        return True

    def _edit_media(self, params: Params) -> Json:
        """A document in place of what was said: "to add media to text messages" (Bot API, editMessageMedia)."""
        chat = self._chat(params)
        known = self._own(chat, params, "edit")
        known.file_name, known.content = self._upload(json.loads(params["media"])["media"], params)
        known.text, known.entities = "", ()
        known.edits += 1
        return self._messages[chat["id"], known.message_id] | {"edit_date": 1_700_000_200}

    def _delete_message(self, params: Params) -> bool:
        shown = self._own(self._chat(params), params, "delete")
        self._shown.remove(shown)
        del self._messages[shown.chat_id, shown.message_id]
        return True

    def _send_action(self, params: Params) -> bool:
        topic = params.get("message_thread_id")
        self.typing.append((self._chat(params)["id"], int(topic) if topic else None))
        return True

    def _set_reaction(self, params: Params) -> bool:
        chat, message_id = self._chat(params)["id"], int(params["message_id"])
        emoji = [reaction["emoji"] for reaction in json.loads(params.get("reaction") or "[]")]
        if (chat, message_id) not in self._messages:
            raise Refused(400, "Bad Request: message to react not found")
        if not set(emoji) <= REACTIONS:
            raise Refused(400, "Bad Request: REACTION_INVALID")
        self.reactions[chat, message_id] = emoji
        return True

    def _chat(self, params: Params) -> Json:
        new = self._upgraded.get(int(params["chat_id"])) if str(params["chat_id"]).lstrip("-").isdecimal() else None
        if new is not None:
            why = "Bad Request: group chat was upgraded to a supergroup chat"
            raise Refused(400, why, {"migrate_to_chat_id": new})
        try:
            return self._chats[int(params["chat_id"])]
        except (KeyError, ValueError):
            raise Refused(400, "Bad Request: chat not found") from None

    def _text(self, params: Params) -> tuple[str, tuple[Entity, ...]]:
        """What people see. White space goes from the end, and from the start up to the first entity."""
        text = params.get("text", "")
        entities: tuple[Entity, ...] = ()
        mode = params.get("parse_mode")
        if mode and mode.lower() != "html":
            raise Refused(400, "Bad Request: unsupported parse_mode")
        if mode:
            try:
                text, entities = parse_html(text)
            except CannotParse as error:
                raise Refused(400, f"Bad Request: can't parse entities: {error}") from None
        if not text.strip():
            raise Refused(400, "Bad Request: message text is empty")
        if units(text) > MAX_TEXT_UNITS:
            raise Refused(400, "Bad Request: message is too long")
        return _trimmed(text, entities)

    def _new_message(self, chat: Json, author: Person, topic: int | None) -> Json:
        message_id = self._next_message[chat["id"]]
        self._next_message[chat["id"]] += 1
        message = {"message_id": message_id, "date": 1_700_000_000, "chat": chat, "from": author.as_json()}
        return message | ({"message_thread_id": topic, "is_topic_message": True} if topic is not None else {})


def _buttons(params: Params) -> dict[str, str]:
    """Bot API, InlineKeyboardButton: a label, and ``callback_data`` of 1 to 64 bytes."""
    rows = json.loads(params.get("reply_markup") or "{}").get("inline_keyboard", [])
    buttons = {one["text"]: one["callback_data"] for row in rows for one in row}
    if any(not label.strip() for label in buttons):
        raise Refused(400, "Bad Request: text buttons are allowed only with text")
    if any(not 1 <= len(data.encode()) <= 64 for data in buttons.values()):
        raise Refused(400, "Bad Request: BUTTON_DATA_INVALID")
    return buttons


def _has_preview(params: Params) -> bool:
    return not json.loads(params.get("link_preview_options") or "{}").get("is_disabled", False)


def _trimmed(text: str, entities: tuple[Entity, ...]) -> tuple[str, tuple[Entity, ...]]:
    lead = len(text) - len(text.lstrip())
    cut = min([lead, *(entity.offset for entity in entities)])
    shown = text[cut:].rstrip()
    size = units(shown)
    kept = (replace(e, offset=e.offset - cut, length=min(e.length, size - e.offset + cut)) for e in entities)
    return shown, tuple(entity for entity in kept if entity.length > 0)
