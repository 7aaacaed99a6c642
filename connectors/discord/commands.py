"""Native commands: how Discord is told of them, and what somebody who gave one said. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import discord

from connectors.connector import CommandHint
from connectors.discord import REPLY_HINT
from connectors.discord.convert import (
    CONNECTOR,
    Place,
    default_workspace,
    guild_id_of,
    is_public,
    parent_of,
    routes_of,
)
from connectors.discord.mentions import Names, with_names
from connectors.discord.payloads import BUTTON_PREFIX
from connectors.message import Author, InboundKind, InboundMessage

ID_PREFIX = "interaction-"
"""Begins the message id of a command. Its number is not that of a message, and the answer to it is seen by one
person only: it must be known as one also after a restart."""

PRESS_PREFIX = "button-"
"""Begins the message id of a pressed button. The answer to it is seen by all who see the button."""

MAX_COMMANDS = 100
MAX_DESCRIPTION_CHARACTERS = 100
"""Reference, "Application Commands": of one app, and of a command's or option's description."""

_CHAT_INPUT = 1
_STRING = 3
_BUTTON = 2
# Reference, "Application Command Naming", without the scripts that have no case.
_NAME = re.compile(r"[-_\w]{1,32}")
_FIRST_WORD = re.compile(r"[\[<]?([a-z][a-z_-]{0,31})[\]>]?(?:…|\.\.\.)?")


def to_commands(hints: Sequence[CommandHint]) -> list[dict[str, Any]]:
    """*hints* as Discord's application commands, without those whose name it does not allow."""
    named = [hint for hint in hints if is_allowed(hint)]
    return [
        {
            "type": _CHAT_INPUT,
            "name": hint.name.lower(),
            "description": _described(hint.summary) or hint.name,
            "options": [_option(hint.arguments)] if hint.arguments else [],
        }
        for hint in named[:MAX_COMMANDS]
    ]


def is_allowed(hint: CommandHint) -> bool:
    """Whether Discord allows a command of that name."""
    return _NAME.fullmatch(hint.name.lower()) is not None


def are_registered(known: Sequence[Mapping[str, Any]], wanted: Sequence[Mapping[str, Any]]) -> bool:
    """Whether Discord offers exactly the commands *wanted*; *known* is what it says of itself."""
    return sorted(map(_essence, known)) == sorted(map(_essence, wanted))


def is_command_id(message_id: str) -> bool:
    """Whether a message id is that of a command."""
    return message_id.startswith(ID_PREFIX)


def from_interaction(interaction: discord.Interaction[Any], place: Place) -> InboundMessage | None:
    """What the person who gave a command said, or the command of the button that was pressed; None for what is neither
    a command in the chat's own line nor a button of ours."""
    data: Mapping[str, Any] = interaction.data or {}
    custom_id = str(data.get("custom_id") or "")
    if interaction.type is discord.InteractionType.application_command and data.get("type") == _CHAT_INPUT:
        values = [str(option["value"]) for option in data.get("options") or () if "value" in option]
        said = with_names(" ".join([str(data["name"]), *values]).strip(), _names(interaction, data))
        prefix = ID_PREFIX
    elif data.get("component_type") == _BUTTON and custom_id.startswith(BUTTON_PREFIX):
        said, prefix = custom_id.removeprefix(BUTTON_PREFIX), PRESS_PREFIX
    else:
        return None
    who = interaction.user
    return InboundMessage(
        connector=CONNECTOR,
        external_id=str(place.id),
        message_id=f"{prefix}{interaction.id}",
        author=Author(str(who.id), who.display_name, who.bot),
        text=said,
        kind=InboundKind.COMMAND,
        sent_at=interaction.created_at,
        direct=guild_id_of(place) is None and not isinstance(place, discord.GroupChannel),
        public=is_public(place),
        place=parent_of(place),
        addressed=True,
        routes=routes_of(place, who.id),
        default_workspace=default_workspace(place, who.id),
        reply_hint=REPLY_HINT,
    )


def _option(arguments: str) -> dict[str, Any]:
    first = _FIRST_WORD.fullmatch(arguments.split()[0]) if arguments.split() else None
    return {
        "type": _STRING,
        "name": first[1] if first else "text",
        "description": _described(arguments) or "text",
        "required": False,
    }


def _described(text: str) -> str:
    plain = " ".join(text.split())
    limit = MAX_DESCRIPTION_CHARACTERS
    return plain if len(plain) <= limit else plain[: limit - 1] + "…"


def _essence(command: Mapping[str, Any]) -> tuple[Any, ...]:
    """What was asked for of a command, without what Discord adds."""
    options = tuple(
        (option["type"], option["name"], option["description"], bool(option.get("required")))
        for option in command.get("options") or ()
    )
    return command.get("type") or _CHAT_INPUT, command["name"], command["description"], options


def _names(interaction: discord.Interaction[Any], data: Mapping[str, Any]) -> Names:
    users: Mapping[str, Any] = (data.get("resolved") or {}).get("users") or {}
    guild = interaction.guild
    return Names(
        users={int(one): str(user.get("global_name") or user["username"]) for one, user in users.items()},
        roles={role.id: role.name for role in guild.roles} if guild else {},
        channels={channel.id: channel.name for channel in (*guild.channels, *guild.threads)} if guild else {},
    )
