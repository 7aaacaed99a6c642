"""What the emulated Discord speaks of: people, places, messages, files, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from aiohttp import web

MAX_TEXT_CHARACTERS = 2000
MAX_NONCE_CHARACTERS = 25
MAX_UPLOAD_BYTES = 10 * 1024 * 1024
SUPPRESS_EMBEDS = 1 << 2
VOICE_MESSAGE = 1 << 13
EPOCH_MILLISECONDS = 1_420_070_400_000

GUILDS, GUILD_MESSAGES, GUILD_REACTIONS = 1 << 0, 1 << 9, 1 << 10
DIRECT_MESSAGES, DIRECT_REACTIONS, MESSAGE_CONTENT = 1 << 12, 1 << 13, 1 << 15

MAY_TALK = 1 << 10 | 1 << 11 | 1 << 16
"""View Channels, Send Messages, Read Message History."""

COMMAND, BUTTON, AUTOCOMPLETE, MODAL = 2, 3, 4, 5
SAY, DEFER, SUGGEST = 4, 5, 8
EPHEMERAL = 1 << 6

TOKENLESS = frozenset({"respond", "follow_up", "change_first", "change_answer", "delete_answer"})
"""Calls for which the token of their interaction is enough."""

Json = dict[str, Any]


@dataclass(frozen=True)
class Person:
    """Someone with an account; as a place, their direct messages with the bot."""

    id: int = 501
    name: str = "Lena"
    is_bot: bool = False

    @property
    def channel_id(self) -> int:
        return 7_000_000 + self.id

    @property
    def guild_id(self) -> None:
        return None

    def as_json(self) -> Json:
        return {
            "id": str(self.id),
            "username": self.name.lower(),
            "global_name": self.name,
            "discriminator": "0",
            "avatar": None,
            "bot": self.is_bot,
        }


SOMEBODY = Person()


@dataclass(frozen=True)
class Room:
    """A channel of a server; with a ``parent``, a thread below that channel."""

    channel_id: int = 910
    name: str = "general"
    guild_id: int = 900
    parent: int | None = None
    joined: bool = False
    """For a thread: whether the bot is a member of it."""


Place = Person | Room


@dataclass
class Shown:
    """A message of the bot as people see it."""

    channel_id: int
    message_id: int
    text: str
    nonce: str = ""
    reply_to: int | None = None
    has_preview: bool = True
    pings: bool = True
    edits: int = 0
    files: tuple[File, ...] = ()


@dataclass(frozen=True)
class File:
    """A file of a message."""

    name: str
    content: bytes
    media_type: str = "text/plain"


class Refused(Exception):
    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


async def body_of(request: web.Request) -> Json:
    """The body of a call: JSON, or a form whose files are under ``_files``. Refuses a form that Discord would."""
    if not request.can_read_body:
        return {}
    if not request.content_type.startswith("multipart/"):
        answer = await request.json()
        return {"_list": answer} if isinstance(answer, list) else answer
    form = await request.post()
    body: Json = json.loads(str(form["payload_json"]))
    files: dict[int, File] = {}
    for name, field in form.items():
        if isinstance(field, web.FileField) and name.startswith("files["):
            number = int(name.removeprefix("files[").removesuffix("]"))
            files[number] = File(field.filename, field.file.read(), field.content_type)
    return body | {"_files": files}


def files_of(body: Json) -> tuple[File, ...]:
    """The files of a message, in the order in which it names them. Refuses what Discord would."""
    files: dict[int, File] = body.get("_files", {})
    if sum(len(file.content) for file in files.values()) > MAX_UPLOAD_BYTES:
        raise Refused(413, 40005, "Request entity too large")
    named = {int(one["id"]): one for one in body.get("attachments", [])}
    if "attachments" in body and named.keys() != files.keys():
        raise Refused(400, 50035, "Invalid Form Body\nIn attachments: unknown attachment")
    return tuple(file for _, file in sorted(files.items()))


def content_of(body: Json) -> str:
    """The text of a message. Refuses what Discord would."""
    text = str(body.get("content") or "").strip()
    if not text and not body.get("_files"):
        raise Refused(400, 50006, "Cannot send an empty message")
    # Discord does not say what a character is: the stricter way to count.
    if len(text.encode("utf-16-le")) // 2 > MAX_TEXT_CHARACTERS:
        raise Refused(400, 50035, "Invalid Form Body\nIn content: Must be 2000 or fewer in length.")
    return text


def change_shown(shown: Shown, body: Json) -> None:
    """*shown* becomes what *body* says. Refuses what Discord would."""
    shown.text = content_of(body)
    shown.edits += 1
    if "attachments" in body:
        shown.files = files_of(body)


def pings(body: Json) -> bool:
    """Whether a message pings those whom it mentions."""
    return bool(body.get("allowed_mentions", {"parse": ["users"]}).get("parse"))
