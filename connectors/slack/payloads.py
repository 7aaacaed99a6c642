"""Replies as the arguments of Slack's methods. Pure. (`connectors.slack.events` is the way in.)

`to_parts` renders a reply as mrkdwn and cuts it. `to_send`, `to_edit` and `to_responses` are the arguments of
``chat.postMessage``, ``chat.update`` and posts to a command's ``response_url``. `find_part` and
`find_stream_starts` recognise our own messages in a channel's history.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from connectors.connector import SendFailed
from connectors.message import Button, OutboundMessage, OutboundPart
from connectors.slack.events import BUTTON_PREFIX, Identity, is_own
from connectors.text import SLACK_MRKDWN, cut_reply, outbound_parts, sources_line, without_lone_surrogates

MAX_TEXT_CHARACTERS = 4000
"""``chat.postMessage`` takes 40,000, but ``chat.update`` refuses more than 4,000 with ``msg_too_long``."""

MAX_RESPONSE_CHARACTERS = 30_000
"""Slack cuts a message at 40,000."""

MAX_SECTION_CHARACTERS = 3000
"""The limit for the text of a section block (docs.slack.dev, "Section block")."""

MAX_STREAM_CHARACTERS = 12_000
"""The limit for one call of Slack's own streaming (docs.slack.dev, "chat.appendStream")."""

MAX_BUTTONS = 25
"""The limit of an actions block (docs.slack.dev, "Actions block")."""

MAX_PARTS = 5
"""A reply of more parts is sent as its beginning and a file; no limit of Slack's."""

MRKDWN = "mrkdwn"
"""The payload of a part whose text is mrkdwn, escaped and ready to send."""

METADATA_EVENT = "agent_runtime_part"
"""The ``event_type`` of the metadata by which we find a message of ours again."""

_TS = re.compile(r"\d+\.\d+")
_CHANNEL = re.compile(r"[A-Z0-9]+")
_ANGLE_MENTION = re.compile(r"<(?=[!@#]|\Z)")
_MASS_MENTION = re.compile(r"@(?=here\b|channel\b|everyone\b|\Z)", re.IGNORECASE)


def to_parts(message: OutboundMessage, max_parts: int = MAX_PARTS) -> tuple[OutboundPart, ...]:
    """Render *message* as mrkdwn parts within Slack's limit; none if nothing in its text can be seen.

    Lone surrogates, which no protocol can carry, become U+FFFD. Sources are a block below the last text, and so are
    buttons; if the reply becomes a file, they are left out. That text is then a section block, which has a lower limit.
    """
    sources = sources_line(message)
    limit_with_sources = MAX_SECTION_CHARACTERS if sources or message.buttons else MAX_TEXT_CHARACTERS
    texts, sources_at = cut_reply(message.text, SLACK_MRKDWN, MAX_TEXT_CHARACTERS, limit_with_sources, max_parts)
    rendered = outbound_parts(message, texts, MRKDWN, max_parts)
    return tuple(replace(part, sources=sources) if part.index == sources_at else part for part in rendered)


def split_place(external_id: str) -> tuple[str, str | None]:
    """Return the channel of an external id, and its thread if it has one. Raises `SendFailed` for any other text."""
    channel, slash, thread = external_id.partition("/")
    if not _CHANNEL.fullmatch(channel) or (slash and not is_ts(thread)):
        raise SendFailed(f"Not an id of Slack's: {external_id!r} is no channel or thread", retryable=False)
    return channel, thread if slash else None


def is_ts(text: str) -> bool:
    """Return whether *text* has the form of Slack's timestamps, which are its message ids."""
    return _TS.fullmatch(text) is not None


def to_send(message: OutboundMessage, part: OutboundPart) -> dict[str, Any]:
    """Return the arguments of ``chat.postMessage``: without link previews, with the part's token as metadata."""
    channel, thread = split_place(message.key.external_id)
    arguments: dict[str, Any] = {
        "channel": channel,
        "text": part.text,
        "mrkdwn": True,
        "link_names": False,
        "unfurl_links": False,
        "unfurl_media": False,
        "metadata": _metadata(message, part),
        **_blocks(part, message.buttons),
    }
    return arguments if thread is None else arguments | {"thread_ts": thread}


def to_edit(message: OutboundMessage, part: OutboundPart, message_id: str) -> dict[str, Any]:
    """Return the arguments of ``chat.update`` that replace the message *message_id* with *part*.

    They include the metadata, because a message that began as a stream has none. A part without blocks names none,
    so that Slack removes the blocks of a stream (docs.slack.dev, "chat.update").
    """
    channel, _ = split_place(message.key.external_id)
    return {
        "channel": channel,
        "ts": message_id,
        "text": part.text,
        "link_names": False,
        "metadata": _metadata(message, part),
        **_blocks(part, message.buttons),
    }


def to_remove_buttons(channel: str, message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``chat.update`` that remove the buttons of *message*."""
    blocks = [block for block in message.get("blocks") or () if block.get("type") != "actions"]
    return {"channel": channel, "ts": str(message["ts"]), "text": str(message.get("text") or ""), "blocks": blocks}


def to_responses(part: OutboundPart) -> list[dict[str, Any]]:
    """Return the bodies of the posts to a command's ``response_url``, which only the person who gave it sees.

    There is one, unless *part* is a file: nobody can post one there, so its Markdown is cut into long messages.
    """
    texts = [part.text]
    if part.file_name:
        limit = MAX_RESPONSE_CHARACTERS
        texts, _ = cut_reply(part.text, SLACK_MRKDWN, limit, limit, max_parts=sys.maxsize)
    return [
        {
            **ephemeral(text),
            "replace_original": False,
            "mrkdwn": True,
            "unfurl_links": False,
            "unfurl_media": False,
            **_blocks(part),
        }
        for text in texts
    ]


def ephemeral(text: str) -> dict[str, Any]:
    """Return an answer to a command that only the person who gave it sees."""
    return {"response_type": "ephemeral", "text": text}


def find_part(messages: list[Any], part: OutboundPart, me: Identity) -> str | None:
    """Return the id of the bot's message that is *part*: by its metadata, or by the name of its file."""
    for message in messages:
        if not is_own(message, me):
            continue
        if part.file_name:
            if any(file.get("name") == upload_name(part) for file in message.get("files") or ()):
                return str(message["ts"])
            continue
        metadata: Mapping[str, Any] = message.get("metadata") or {}
        token = (metadata.get("event_payload") or {}).get("token")
        if metadata.get("event_type") == METADATA_EVENT and token == part.token:
            return str(message["ts"])
    return None


def find_stream_starts(messages: list[Any], part: OutboundPart, me: Identity, after: float) -> list[str]:
    """Return the ids of messages that may be the beginning of *part*, shown as a stream.

    They are the bot's, newer than the Slack time *after* (s), without the metadata that every final form has, and
    their letters begin those of *part* (a stream formats them differently). An older message is never one of them:
    the edit that follows would destroy it.
    """
    letters = _letters(part.text)
    return [
        str(message["ts"])
        for message in messages
        if is_own(message, me) and float(message["ts"]) > after
        if not message.get("metadata") and not message.get("files")
        if (beginning := _letters(str(message.get("text") or ""))) and letters.startswith(beginning)
    ]


def question_time(message: OutboundMessage) -> float:
    """Return the Slack time (s) of the first message that *message* answers; 0.0 if it is unknown."""
    return min((float(answered) for answered in message.answers if is_ts(answered)), default=0.0)


def upload_name(part: OutboundPart) -> str:
    """Return the name under which to upload *part*'s file. Its token makes it unique, as files have no metadata."""
    name = PurePosixPath(part.file_name)
    digest = hashlib.sha256(part.token.encode("utf-8", "surrogatepass")).hexdigest()[:10]
    return f"{name.stem}-{digest}{name.suffix}"


def stream_pieces(text: str) -> list[str]:
    """Cut *text*, Markdown, into pieces for Slack's own streaming that mention nobody.

    They are only the preview: `to_parts` makes the final form. Previews are far shorter than one piece may be.
    A zero-width space breaks everything that could begin a mention, also at the end of *text*, since the next piece
    could complete it.
    """
    harmless = _MASS_MENTION.sub("@\u200b", _ANGLE_MENTION.sub("<\u200b", without_lone_surrogates(text)))
    return [harmless[at : at + MAX_STREAM_CHARACTERS] for at in range(0, len(harmless), MAX_STREAM_CHARACTERS)]


def _metadata(message: OutboundMessage, part: OutboundPart) -> dict[str, Any]:
    return {"event_type": METADATA_EVENT, "event_payload": {"turn_id": message.turn_id, "token": part.token}}


def _blocks(part: OutboundPart, buttons: Sequence[Button] = ()) -> dict[str, Any]:
    """Return the ``blocks`` argument if *part* shows sources or, as the last part, *buttons*; else no argument.

    Slack shows the text argument in notifications only if there are blocks, so the text is a block, too. Sources are
    plain text: nothing in a document's name becomes a mention, a link or an emoji.
    """
    blocks: list[dict[str, Any]] = []
    if part.sources:
        blocks.append({"type": "context", "elements": [_plain_text(part.sources)]})
    if buttons and part.index == part.total - 1 and not part.file_name:
        elements = [
            {
                "type": "button",
                "text": _plain_text(button.label),
                "action_id": f"{BUTTON_PREFIX}{number}",
                "value": button.command,
            }
            for number, button in enumerate(buttons[:MAX_BUTTONS])
        ]
        blocks.append({"type": "actions", "elements": elements})
    if not blocks:
        return {}
    return {"blocks": [{"type": "section", "text": {"type": "mrkdwn", "text": part.text}, "expand": True}, *blocks]}


def _plain_text(text: str) -> dict[str, Any]:
    return {"type": "plain_text", "text": text, "emoji": False}


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text))
