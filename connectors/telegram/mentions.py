"""How people call the bot in a message, and what they said to it. Pure.

The offsets of Telegram's entities count UTF-16 code units (Bot API, "MessageEntity").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from aiogram.types import MessageEntity

from connectors.text.mentions import join_around


@dataclass(frozen=True, slots=True)
class Identity:
    """The bot's own account. ``username`` is without the ``@``."""

    id: int
    username: str


class Addressee(Enum):
    """To whom a message speaks as a command."""

    NONE = auto()
    """It is none."""
    US = auto()
    """To this bot, or to whichever bot knows it."""
    ANOTHER = auto()


def command_addressee(text: str, entities: Sequence[MessageEntity], me: Identity) -> Addressee:
    """To whom *text* is a command: it is one when a bot command stands at its very beginning."""
    first = next((entity for entity in entities if entity.type == "bot_command" and entity.offset == 0), None)
    if first is None:
        return Addressee.NONE
    _, at, addressee = text[: first.length].partition("@")  # plain ASCII, so a unit is a character
    return Addressee.ANOTHER if at and addressee.casefold() != me.username.casefold() else Addressee.US


def without_own_mentions(text: str, entities: Sequence[MessageEntity], me: Identity) -> tuple[str, bool]:
    """*text* without the bot's own name where it is called by it, and whether it is."""
    units = text.encode("utf-16-le", "surrogatepass")
    own_name = f"@{me.username}".casefold() if me.username else None
    kept: list[str] = []
    end = 0
    for entity in sorted(entities, key=lambda e: e.offset):
        start, stop = 2 * entity.offset, 2 * (entity.offset + entity.length)
        if start < end:
            continue  # overlaps one that was taken out
        named = _decode(units[start:stop])
        if entity.type == "bot_command":
            command, at, addressee = named.partition("@")
            if not at or f"@{addressee}".casefold() != own_name:
                continue
            replacement = command
        elif (entity.type == "mention" and named.casefold() == own_name) or (
            entity.type == "text_mention" and entity.user is not None and entity.user.id == me.id
        ):
            replacement = ""
        else:
            continue
        kept += [_decode(units[end:start]), replacement]
        end = stop
    if end == 0:
        return text, False
    return join_around([*kept, _decode(units[end:])]), True


def _decode(units: bytes) -> str:
    return units.decode("utf-16-le", "surrogatepass")
