"""Our parts as the arguments of Slack's methods. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from connectors.connector import SendFailed
from connectors.message import Author, Button, InboundKind, InboundMessage, OutboundMessage, OutboundPart
from connectors.slack import REPLY_HINT
from connectors.slack.events import COMMAND_MARK, CONNECTOR, Identity, default_workspace, is_own, routes_of
from connectors.text import (
    can_be_seen,
    characters,
    cut_for_sources,
    mrkdwn_render,
    outbound_parts,
    parse,
    parts,
    sources_line,
)

MAX_TEXT_CHARACTERS = 4000
"""``chat.postMessage`` takes 40,000, but ``chat.update`` refuses more than 4,000 with ``msg_too_long``."""

MAX_SECTION_CHARACTERS = 3000
"""What the text of a section block takes (docs.slack.dev, "Section block")."""

MAX_BUTTONS = 25
"""What an actions block takes (docs.slack.dev, "Actions block")."""

BUTTON_PREFIX = "command-"
"""Begins the ``action_id`` of a button that gives a command."""

MAX_STREAM_CHARACTERS = 12_000
"""What one call of Slack's own streaming takes (docs.slack.dev, "chat.appendStream")."""

MAX_PARTS = 5
MRKDWN = "mrkdwn"
"""The payload of a part whose text is mrkdwn, escaped and ready to be sent."""

METADATA_EVENT = "agent_runtime_part"
"""``event_type`` of the metadata by which a message of ours is found again."""

_TS = re.compile(r"\d+\.\d+")
_CALLING = re.compile(r"<(?=[!@#]|\Z)")
_MASS = re.compile(r"@(?=here\b|channel\b|everyone\b|\Z)", re.IGNORECASE)


def to_parts(message: OutboundMessage, max_parts: int = MAX_PARTS) -> tuple[OutboundPart, ...]:
    """*message* as mrkdwn within Slack's limit; none for a text in which nothing can be seen.

    Surrogates without their other half, which no protocol can carry, are replaced by U+FFFD. The last text has the
    sources and the buttons: they are shown in blocks, and the text then in a section block, which takes less.
    """
    form = parse(_valid(message.text))

    def cut(limit: int) -> list[str]:
        return [text for text in parts(form, limit, characters, mrkdwn_render) if can_be_seen(text)]

    sources = sources_line(message)
    room = MAX_SECTION_CHARACTERS if sources or message.buttons else MAX_TEXT_CHARACTERS
    texts, last = cut_for_sources(cut, MAX_TEXT_CHARACTERS, room, characters, max_parts)
    made = outbound_parts(message, texts, MRKDWN, max_parts)
    return tuple(replace(part, sources=sources) if part.index == last else part for part in made)


def to_place(external_id: str) -> tuple[str, str | None]:
    """Channel and thread of an external id. Raises `ValueError` when it is none of Slack's."""
    channel, slash, thread = external_id.partition("/")
    if not re.fullmatch(r"[A-Z0-9]+", channel) or (slash and not is_ts(thread)):
        raise ValueError(f"{external_id!r} is no channel or thread")
    return channel, thread if slash else None


def place_of(external_id: str) -> tuple[str, str | None]:
    """As `to_place`, for what the runtime wants done. Raises `connectors.connector.SendFailed`."""
    try:
        return to_place(external_id)
    except ValueError as error:
        raise SendFailed(f"Not an id of Slack's: {error}", retryable=False) from error


def is_ts(text: str) -> bool:
    """Whether *text* is of the form of Slack's timestamps, by which it knows messages."""
    return _TS.fullmatch(text) is not None


def to_send(message: OutboundMessage, part: OutboundPart) -> dict[str, Any]:
    """Arguments of ``chat.postMessage``: previews off, and the part's token in the metadata."""
    channel, thread = to_place(message.key.external_id)
    arguments: dict[str, Any] = {
        "channel": channel,
        "text": part.text,
        "mrkdwn": True,
        "link_names": False,
        "unfurl_links": False,
        "unfurl_media": False,
        "metadata": metadata(message, part),
        **_blocks(part, message.buttons),
    }
    return arguments if thread is None else arguments | {"thread_ts": thread}


def to_edit(message: OutboundMessage, part: OutboundPart, message_id: str) -> dict[str, Any]:
    """Arguments of ``chat.update`` that replace the message *message_id* by *part*.

    The metadata comes along: a message that was begun as a stream has none until then. Where the part needs no
    blocks, they are not named, so that Slack takes those of a stream away (docs.slack.dev, "chat.update").
    """
    channel, _ = to_place(message.key.external_id)
    return {
        "channel": channel,
        "ts": message_id,
        "text": part.text,
        "link_names": False,
        "metadata": metadata(message, part),
        **_blocks(part, message.buttons),
    }


def without_buttons(channel: str, said: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of ``chat.update`` that take the buttons of the message *said* away."""
    kept = [block for block in said.get("blocks") or () if block.get("type") != "actions"]
    return {"channel": channel, "ts": str(said["ts"]), "text": str(said.get("text") or ""), "blocks": kept}


def to_respond(part: OutboundPart) -> dict[str, Any]:
    """The body of a post to a command's ``response_url``: for the eyes of who gave the command only."""
    return {
        "response_type": "ephemeral",
        "replace_original": False,
        "text": part.text,
        "mrkdwn": True,
        "unfurl_links": False,
        "unfurl_media": False,
        **_blocks(part),
    }


def metadata(message: OutboundMessage, part: OutboundPart) -> dict[str, Any]:
    """By which *part* is found again."""
    return {"event_type": METADATA_EVENT, "event_payload": {"turn_id": message.turn_id, "token": part.token}}


def found_in(messages: list[Any], part: OutboundPart, me: Identity) -> str | None:
    """The id of the message among *messages* that is *part*: by its metadata, or by the name of its file."""
    for said in messages:
        if not is_own(said, me):
            continue
        if part.file_name:
            if any(file.get("name") == upload_name(part) for file in said.get("files") or ()):
                return str(said["ts"])
            continue
        told: Mapping[str, Any] = said.get("metadata") or {}
        token = (told.get("event_payload") or {}).get("token")
        if told.get("event_type") == METADATA_EVENT and token == part.token:
            return str(said["ts"])
    return None


def asked_at(message: OutboundMessage) -> float:
    """When the first of what *message* answers was said (more may have come after it was begun), in Slack's time (s);
    0.0 where that is not known."""
    return min((float(one) for one in message.answers if _TS.fullmatch(one)), default=0.0)


def begun_in(messages: list[Any], part: OutboundPart, me: Identity, after: float) -> list[str]:
    """The ids of those among *messages* that may be the beginning of *part*, as a stream shows it: of ours and *after*
    that time, without the metadata that every last form has, and with the words that it begins with, however they are
    formatted. What was there before is none, whatever it says: it would be lost."""
    whole = _letters(part.text)
    return [
        str(said["ts"])
        for said in messages
        if is_own(said, me) and float(said["ts"]) > after and not said.get("metadata") and not said.get("files")
        if (words := _letters(str(said.get("text") or ""))) and whole.startswith(words)
    ]


def _letters(text: str) -> str:
    return "".join(one for one in text if one.isalnum())


def upload_name(part: OutboundPart) -> str:
    """The name under which *part*'s file is uploaded: its own, made unique by its token, as files have no metadata."""
    name = PurePosixPath(part.file_name)
    mark = hashlib.sha256(part.token.encode("utf-8", "surrogatepass")).hexdigest()[:10]
    return f"{name.stem}-{mark}{name.suffix}"


def stream_pieces(text: str) -> list[str]:
    """*text*, Markdown, as pieces for Slack's own streaming: valid, within its limit, and calling nobody.

    A zero-width space goes where a mention could begin, also at the end, where the next piece could complete it.
    """
    harmless = _MASS.sub("@\u200b", _CALLING.sub("<\u200b", _valid(text)))
    return [harmless[at : at + MAX_STREAM_CHARACTERS] for at in range(0, len(harmless), MAX_STREAM_CHARACTERS)]


def _blocks(part: OutboundPart, buttons: Sequence[Button] = ()) -> dict[str, Any]:
    """*part* as blocks where it has sources, or is the last and has *buttons* below it. Slack then shows its text in
    notifications only. In plain text nothing of a document's name becomes a mention, a link or an emoji."""
    blocks: list[dict[str, Any]] = []
    if part.sources:
        blocks.append({"type": "context", "elements": [_plain(part.sources)]})
    if buttons and part.index == part.total - 1 and not part.file_name:
        pressed = [
            {"type": "button", "text": _plain(one.label), "action_id": f"{BUTTON_PREFIX}{number}", "value": one.command}
            for number, one in enumerate(buttons[:MAX_BUTTONS])
        ]
        blocks.append({"type": "actions", "elements": pressed})
    if not blocks:
        return {}
    return {"blocks": [{"type": "section", "text": {"type": "mrkdwn", "text": part.text}, "expand": True}, *blocks]}


def _plain(text: str) -> dict[str, Any]:
    return {"type": "plain_text", "text": text, "emoji": False}


def _valid(text: str) -> str:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


# ---- commands ----
#
# A slash command as Slack delivers it, as our noun. Pure.
#
# Slack's apps declare their commands in their settings; ours declares one, and what follows its word is the
# runtime's own command: ``/agent usage`` is ``usage``.


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
