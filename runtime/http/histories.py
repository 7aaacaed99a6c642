"""A history in the body of a request: messages that stand in for those of a stored conversation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from grounding.prompt_input import TailEntry
from grounding.strategy import ASSISTANT
from runtime.http.errors import Body


class EarlierMessage(Body):
    """A message that was said before. ``agent`` is another word for ``assistant``."""

    role: Literal["user", "assistant", "agent"]
    text: str


def tail_of(history: Iterable[EarlierMessage]) -> tuple[TailEntry, ...]:
    """Return *history*, the oldest first, as the last messages of a conversation."""
    return tuple(
        TailEntry(speaker="user" if message.role == "user" else ASSISTANT, text=message.text, turn_id="")
        for message in history
    )
