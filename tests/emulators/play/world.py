"""The three emulated platforms, each behind the same few things that a person does and sees there."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

PEOPLE = ("Ann", "Bo", "Eve")
ROOMS = ("general", "random")


class CannotDo(Exception):
    """The platform has no such thing; the text says so to the person who tried."""


@dataclass(frozen=True)
class Spot:
    """Where *person* speaks: in a *room* (its name), in a thread of it, or without a room in private."""

    person: str = PEOPLE[0]
    room: str = ""
    thread: str = ""
    """As the platform knows it; empty for none."""


@dataclass(frozen=True)
class Upload:
    """A file that somebody sends."""

    name: str
    content: bytes
    media_type: str


@dataclass(frozen=True)
class Message:
    """Something that the bot said, as people see it now. ``id`` is unique on its platform."""

    id: str
    conversation: str
    """As the runtime's ``context_id`` names it, without the platform."""
    text: str
    only_for: str = ""
    """Who alone sees it."""
    is_growing: bool = False
    """Whether the platform itself says that there is more to come."""
    is_whole: bool = False
    """Whether it came at once, and does not grow."""


@dataclass(frozen=True)
class Reaction:
    """An emoji of the bot's on a message."""

    message_id: str
    emoji: str


class Platform(Protocol):
    """One platform. An asynchronous context manager: it listens as long as the block lasts."""

    name: str

    async def __aenter__(self) -> object: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def environment(self) -> Mapping[str, str]:
        """The settings of a bot that is to be found here, without their prefix."""

    def conversation(self, spot: Spot) -> str:
        """What the runtime calls the conversation there. Raises `CannotDo` for a room that is not there."""

    async def thread(self, spot: Spot, word: str) -> str:
        """The thread that *word* (a message's id, or what the platform has) names. Raises `CannotDo`."""

    async def say(self, spot: Spot, text: str, reply_to: str = "", upload: Upload | None = None) -> str:
        """The id of what is said. ``@bot`` in *text* calls the bot. Raises `CannotDo`."""

    async def change(self, spot: Spot, message_id: str, text: str) -> None:
        """Edit what was said. Raises `CannotDo`."""

    async def delete(self, spot: Spot, message_id: str) -> None:
        """Take back what was said. Raises `CannotDo`."""

    async def react(self, spot: Spot, message_id: str, emoji: str) -> None:
        """Put *emoji* on a message. Raises `CannotDo`."""

    async def command(self, spot: Spot, line: str) -> None:
        """Give a command by the platform's own means; *line* is its word and what follows. Raises `CannotDo`."""

    async def press(self, spot: Spot, label: str) -> None:
        """Press the button *label* below the newest message of the bot's there that has it; without a label one of
        another time. Raises `CannotDo`."""

    def messages(self) -> Sequence[Message]:
        """Everything of the bot's that stands, in order within a conversation."""

    def reactions(self) -> Sequence[Reaction]:
        """The bot's reactions, oldest first."""

    def signs(self) -> int:
        """How often the bot has shown that it is typing (or thinking)."""

    async def outage(self, is_away: bool) -> None:
        """The platform cannot be reached (open connections break), or can be again."""


class Crew:
    """People's names and numbers: the first hundreds are of platforms' own; who is new gets the next."""

    def __init__(self) -> None:
        self._names = list(PEOPLE)

    def number(self, name: str) -> int:
        """501 for the first, and so on."""
        known = [one.lower() for one in self._names]
        if name.lower() not in known:
            self._names.append(name)
            known.append(name.lower())
        return 501 + known.index(name.lower())

    def name(self, number: int) -> str:
        """The inverse, as first written; else the number itself."""
        place = number - 501
        return self._names[place] if 0 <= place < len(self._names) else str(number)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._names)

    def spelt(self, name: str) -> str:
        """*name* as it was first written."""
        return self.name(self.number(name))


def room_in(rooms: Mapping[str, object], name: str) -> str:
    """*name* itself. Raises `CannotDo` where there is no such room."""
    if name not in rooms:
        raise CannotDo(f"there is no #{name} here; there are {', '.join('#' + one for one in rooms)}")
    return name


def calls_bot(text: str, at_bot: str) -> str:
    """*text* with ``@bot`` as the platform writes it."""
    return re.sub(r"(?<!\w)@bot\b", lambda _: at_bot, text)
