"""How people call the bot in a message, and what they said to it. Pure.

The forms are those of Discord's reference, "Message Formatting".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from connectors.text.mentions import join_around

_REFERENCE = re.compile(
    r"<(?:"
    r"@!?(?P<user>\d+)|@&(?P<role>\d+)|\#(?P<channel>\d+)"
    r"|/(?P<command>[^:<>\n]+):\d+|a?:(?P<emoji>\w+):\d+|t:(?P<time>-?\d{1,12})(?::[tTdDfFRsS])?"
    r")>"
)


@dataclass(frozen=True, slots=True)
class Names:
    """What the references of a message stand for: names by id, without ``@`` or ``#``."""

    users: Mapping[int, str] = field(default_factory=dict)
    roles: Mapping[int, str] = field(default_factory=dict)
    channels: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Identity:
    """The bot's own account, and the role that Discord keeps for it on the server at hand.

    People who type the bot's name are offered both, so that either calls it.
    """

    user: int
    role: int | None = None


def without_own_mentions(text: str, me: Identity) -> tuple[str, bool]:
    """*text* without the bot's own name where it is called by it, and whether it is."""
    kept: list[str] = []
    end = 0
    for found in _REFERENCE.finditer(text):
        if not _means(found, me):
            continue
        kept.append(text[end : found.start()])
        end = found.end()
    if not kept:
        return text, False
    return join_around([*kept, text[end:]]), True


def with_names(text: str, names: Names) -> str:
    """*text* with names where Discord has ids; what is not known stays as it is."""
    return _REFERENCE.sub(lambda found: _named(found, names), text)


def _means(found: re.Match[str], me: Identity) -> bool:
    user, role = found["user"], found["role"]
    return (user is not None and int(user) == me.user) or (role is not None and int(role) == me.role)


def _named(found: re.Match[str], names: Names) -> str:
    kinds: tuple[tuple[str, str, Mapping[int, str]], ...] = (
        ("user", "@", names.users),
        ("role", "@", names.roles),
        ("channel", "#", names.channels),
    )
    for kind, sign, known in kinds:
        if found[kind] is not None:
            name = known.get(int(found[kind]))
            return sign + name if name else found[0]
    if found["command"] is not None:
        return f"/{found['command']}"
    if found["emoji"] is not None:
        return f":{found['emoji']}:"
    return _moment(int(found["time"])) or found[0]


def _moment(seconds: int) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, OSError, ValueError):
        return ""
