"""What of the bot's messages is to be told when, to somebody who sees lines go by. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from tests.emulators.play.world import Message

SETTLES_SECONDS = 2.5
"""A message that did not change for so long has its form: platforms let a reply grow every two seconds or faster."""


@dataclass(frozen=True)
class Change:
    """Something that people see happen."""

    kind: Literal["said", "edited", "deleted"]
    message: Message


@dataclass
class _Known:
    message: Message
    since: float
    told: str | None = None


class Watch:
    """One platform's messages over time: each is told once it has its form, and again when that changes."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def look(self, messages: Sequence[Message], now: float, delivered: Collection[str] = ()) -> list[Change]:
        """What is to be told at *now* (seconds of any clock). Replies in the *delivered* conversations are whole."""
        changes = []
        standing = {message.id for message in messages}
        for gone in [one for one in self._known if one not in standing]:
            known = self._known.pop(gone)
            if known.told is not None:  # else it was shown while it grew, and became another message
                changes.append(Change("deleted", known.message))
        for message in messages:
            known = self._known.setdefault(message.id, _Known(message, now))
            if message.text != known.message.text:
                known.since = now
            known.message = message
            whole = message.is_whole or message.conversation in delivered or now - known.since >= SETTLES_SECONDS
            if whole and not message.is_growing and known.told != message.text:
                changes.append(Change("said" if known.told is None else "edited", message))
                known.told = message.text
        return changes

    @property
    def growing(self) -> list[Message]:
        """What people see and has not been told yet."""
        return [known.message for known in self._known.values() if known.told != known.message.text]
