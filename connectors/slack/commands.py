"""A slash command as Slack delivers it, as our noun. Pure.

Slack's apps declare their commands in their settings; ours declares one, and what follows its word is the
runtime's own command: ``/agent usage`` is ``usage``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from connectors.message import Author, InboundKind, InboundMessage
from connectors.slack import REPLY_HINT
from connectors.slack.convert import COMMAND_MARK, CONNECTOR, Identity, default_workspace, routes_of
from connectors.slack.outgoing import BUTTON_PREFIX

BARE = "help"
"""What a command without words asks for."""

_PREFIX = "command-"


@dataclass(frozen=True, slots=True)
class Command:
    """What was asked, and where its reply may be posted for a while."""

    message: InboundMessage
    response_url: str


def channel_of(payload: Mapping[str, Any]) -> str:
    """The channel in which a command was given. Raises `KeyError`."""
    return str(payload["channel_id"])


def to_command(payload: Mapping[str, Any], me: Identity, *, public: bool = False) -> Command:
    """The payload of a ``slash_commands`` envelope or form; *public* says whether its channel is. Raises `KeyError` or
    `ValueError` for none of Slack's."""
    channel, thread, trigger = str(payload["channel_id"]), str(payload.get("thread_ts") or ""), payload["trigger_id"]
    user = str(payload["user_id"])
    if not (channel and trigger and user):
        raise ValueError("a command without a channel, a trigger or a user")
    message = InboundMessage(
        connector=CONNECTOR,
        external_id=f"{channel}/{thread}" if thread else channel,
        message_id=f"{_PREFIX}{trigger}",
        author=Author(id=user, name=str(payload.get("user_name") or "")),
        text=str(payload.get("text") or "").strip() or BARE,
        kind=InboundKind.COMMAND,
        direct=channel.startswith("D"),
        public=public,
        place=channel,
        routes=routes_of(channel, me),
        default_workspace=default_workspace(me.team_id),
        reply_hint=REPLY_HINT,
        command_mark=COMMAND_MARK,
    )
    return Command(message, str(payload.get("response_url") or ""))


def to_press(payload: Mapping[str, Any], me: Identity) -> InboundMessage | None:
    """The payload of an interaction; None where nobody pressed a button that gives a command.
    Raises as `to_command`."""
    if payload["type"] != "block_actions":
        return None
    pressed = [one for one in payload["actions"] if str(one.get("action_id")).startswith(BUTTON_PREFIX)]
    if not pressed:
        return None
    channel, thread = str(payload["channel"]["id"]), str(payload["message"].get("thread_ts") or "")
    user = payload["user"]
    return InboundMessage(
        connector=CONNECTOR,
        external_id=f"{channel}/{thread}" if thread else channel,
        message_id=f"button-{payload['trigger_id']}",
        author=Author(id=str(user["id"]), name=str(user.get("username") or user.get("name") or "")),
        text=str(pressed[0]["value"]),
        kind=InboundKind.COMMAND,
        direct=channel.startswith("D"),
        place=channel,
        routes=routes_of(channel, me),
        default_workspace=default_workspace(me.team_id),
        reply_hint=REPLY_HINT,
        command_mark=COMMAND_MARK,
    )


def is_command(message_id: str) -> bool:
    """Whether *message_id* is that of a command, of which people see no message that could be answered."""
    return message_id.startswith(_PREFIX)
