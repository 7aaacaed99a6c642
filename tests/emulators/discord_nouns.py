"""What the emulated Discord speaks of: people, places, messages, files, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

MAX_TEXT_CHARACTERS = 2000
MAX_NONCE_CHARACTERS = 25
MAX_ROWS, MAX_BUTTONS, MAX_LABEL_CHARACTERS, MAX_CUSTOM_ID_CHARACTERS = 5, 5, 80, 100
"""Of a message, of a row, and of a button."""
MAX_CALLS_A_SECOND = 50
"""Rate Limits, "Global"; calls that answer interactions do not count."""
MAX_UPLOAD_BYTES = 10 * 1024 * 1024
SUPPRESS_EMBEDS = 1 << 2
VOICE_MESSAGE = 1 << 13
EPOCH_MILLISECONDS = 1_420_070_400_000

GUILDS, GUILD_MESSAGES, GUILD_REACTIONS = 1 << 0, 1 << 9, 1 << 10
DIRECT_MESSAGES, DIRECT_REACTIONS, MESSAGE_CONTENT = 1 << 12, 1 << 13, 1 << 15

MAY_TALK = 1 << 10 | 1 << 11 | 1 << 16
"""View Channels, Send Messages, Read Message History."""

COMMAND, BUTTON, AUTOCOMPLETE, MODAL = 2, 3, 4, 5
SAY, DEFER, DEFER_CHANGE, CHANGE, SUGGEST = 4, 5, 6, 7, 8
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
    private: bool = False
    """Whether @everyone may not view it; for a thread: whether only its members may."""


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
    buttons: dict[str, str] = field(default_factory=dict)
    """The labels of the buttons below it, and their ``custom_id``."""


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
    for name, part in form.items():
        if isinstance(part, web.FileField) and name.startswith("files["):
            number = int(name.removeprefix("files[").removesuffix("]"))
            files[number] = File(part.filename, part.file.read(), part.content_type)
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


def buttons_of(body: Json) -> dict[str, str]:
    """The buttons of a message: their labels, and their ``custom_id``. Refuses what Discord would."""
    rows = body.get("components") or []
    found = [one for row in rows for one in row["components"]]
    ids = [one["custom_id"] for one in found]
    fits = len(rows) <= MAX_ROWS and all(row["type"] == 1 for row in rows) and len(set(ids)) == len(ids)
    fits = fits and all(1 <= len(row["components"]) <= MAX_BUTTONS for row in rows)
    fits = fits and all(1 <= len(one) <= MAX_CUSTOM_ID_CHARACTERS for one in ids)
    fits = fits and all(one["type"] == 2 and one["style"] in (1, 2, 3, 4) for one in found)
    if not fits or not all(1 <= len(one["label"]) <= MAX_LABEL_CHARACTERS for one in found):
        raise Refused(400, 50035, "Invalid Form Body\nIn components: The specified component is invalid")
    return {one["label"]: one["custom_id"] for one in found}


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
    if body.keys() - {"components"}:
        shown.text = content_of(body)
    if "components" in body:
        shown.buttons = buttons_of(body)
    shown.edits += 1
    if "attachments" in body:
        shown.files = files_of(body)


def pings(body: Json) -> bool:
    """Whether a message pings those whom it mentions."""
    return bool(body.get("allowed_mentions", {"parse": ["users"]}).get("parse"))
