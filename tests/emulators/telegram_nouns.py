"""What the emulated Telegram is made of: people and rooms, what they see, what goes wrong, and its limits."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.emulators.telegram_html import Entity

MAX_TEXT_UNITS = 4096
MAX_CAPTION_UNITS = 1024
GROUP_MESSAGES_A_MINUTE = 20
"""Edits included."""
MAX_DOWNLOAD_BYTES = 20 * 1024 * 1024
FIRST_UPDATE = 1000
REACTIONS = frozenset(
    # Bot API, "ReactionTypeEmoji"
    re.findall(
        r"\S+",
        "❤ 👍 👎 🔥 🥰 👏 😁 🤔 🤯 😱 🤬 😢 🎉 🤩 🤮 💩 🙏 👌 🕊 🤡 🥱 🥴 😍 🐳 ❤\u200d🔥 🌚 🌭 💯 🤣 ⚡ 🍌 🏆 💔 🤨 😐 "
        "🍓 🍾 💋 🖕 😈 😴 😭 🤓 👻 👨\u200d💻 👀 🎃 🙈 😇 😨 🤝 ✍ 🤗 🫡 🎅 🎄 ☃ 💅 🤪 🗿 🆒 💘 🙉 🦄 😘 💊 🙊 😎 👾 "
        "🤷\u200d♂ 🤷 🤷\u200d♀ 😡",
    )
)
NOT_BY_DEFAULT = frozenset({"chat_member", "message_reaction", "message_reaction_count"})

# A word after a slash is no command where it is part of a path or of a tag.
_ENTITIES = re.compile(
    r"(?<![\w@/])(?P<mention>@\w{5,32})\b|(?<![\w@/<>])(?P<bot_command>/[A-Za-z0-9_]{1,64}(@\w{3,32})?)(?![\w/<>])"
)

Json = dict[str, Any]
Params = dict[str, Any]
"""Text, except for files that were uploaded."""


@dataclass(frozen=True)
class Person:
    """Someone with an account."""

    id: int = 501
    name: str = "Lena"
    username: str = ""
    is_bot: bool = False

    def as_json(self) -> Json:
        found: Json = {"id": self.id, "is_bot": self.is_bot, "first_name": self.name}
        return found | ({"username": self.username} if self.username else {})


SOMEBODY = Person()


@dataclass(frozen=True)
class Room:
    """A group; `Person` stands for the private chat with them."""

    id: int = -100200
    title: str = "The team"
    topics: tuple[int, ...] = ()
    username: str = ""
    """Of a public group."""

    def as_json(self) -> Json:
        found: Json = {"id": self.id, "type": "supergroup", "title": self.title, "is_forum": bool(self.topics)}
        return found | ({"username": self.username} if self.username else {})


@dataclass
class Shown:
    """A message of the bot as people see it."""

    chat_id: int
    message_id: int
    text: str
    entities: tuple[Entity, ...] = ()
    """What of ``text`` is set how (not the mentions and addresses that Telegram marks by itself)."""
    topic: int | None = None
    reply_to: int | None = None
    has_preview: bool = True
    edits: int = 0
    file_name: str = ""
    """Set where it is a document, whose caption is ``text``."""
    content: bytes = b""
    buttons: dict[str, str] = field(default_factory=dict)
    """The labels of the buttons below it, and what the bot is told where one is pressed."""


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one call. ``lost`` drops the connection, ``before`` or ``after`` doing the work, or
    gives no answer for ever."""

    status: int = 200
    description: str = ""
    parameters: Json = field(default_factory=dict)
    lost: Literal["before", "after", "for ever"] | None = None
    body: str | None = None


def rate_limited(seconds: int) -> Fault:
    return Fault(429, f"Too Many Requests: retry after {seconds}", {"retry_after": seconds})


BLOCKED = Fault(403, "Forbidden: bot was blocked by the user")
LOST_ANSWER = Fault(lost="after")
LOST_REQUEST = Fault(lost="before")
NO_ANSWER = Fault(lost="for ever")
SERVER_ERROR = Fault(500, "Internal Server Error")
GATEWAY_PAGE = Fault(502, body="<html>Bad Gateway</html>")


class Refused(Exception):
    def __init__(self, status: int, description: str, parameters: Json | None = None) -> None:
        super().__init__(description)
        self.status = status
        self.parameters = parameters


def units(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


def entities_of(text: str) -> list[Json]:
    """The mentions and commands that Telegram marks by itself."""
    return [
        {"type": match.lastgroup, "offset": units(text[: match.start()]), "length": units(match[0])}
        for match in re.finditer(_ENTITIES, text)
    ]
