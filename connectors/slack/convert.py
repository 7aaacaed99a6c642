"""Slack's events as our nouns, and our parts as the arguments of Slack's methods. Pure.

A conversation is a direct message's channel, or a thread: a message that calls the bot in a channel
begins one, which the answer and what follows belong to. So ``external_id`` is ``D123``, ``C123/1712.0001``
(the timestamp of the thread's first message) or, for what is said to nobody in a channel, ``C123``.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from connectors.message import (
    Attachment,
    Author,
    InboundKind,
    InboundMessage,
    OutboundMessage,
    OutboundPart,
    Quote,
)
from connectors.slack import mrkdwn
from connectors.text.form import parse
from connectors.text.mrkdwn import render
from connectors.text.parts import parts
from connectors.text.split import characters

CONNECTOR = "slack"

MAX_TEXT_CHARACTERS = 4000
"""``chat.postMessage`` takes 40,000, but ``chat.update`` refuses more than 4,000 with ``msg_too_long``."""

MRKDWN = "mrkdwn"
"""The payload of a part whose text is mrkdwn, escaped and ready to be sent."""

METADATA_EVENT = "agent_runtime_part"
"""``event_type`` of the metadata by which a message of ours is found again."""

REPLY_HINT = "Open with a brief acknowledgement of what was asked, then answer in short paragraphs with plain headings."

Event = Mapping[str, Any]

_SPOKEN = frozenset({None, "file_share", "thread_broadcast", "me_message", "bot_message"})
_JOINED = frozenset({"member_joined_channel"})
_LEFT = frozenset({"member_left_channel", "channel_left", "group_left"})
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Zs", "Zl", "Zp"})
_PLAIN_TEAM = re.compile(r"[A-Z0-9]{1,58}")

_EMOJI_NAMES = {
    "👀": "eyes",
    "✅": "white_check_mark",
    "⏳": "hourglass_flowing_sand",
    "❌": "x",
    "👍": "+1",
    "👎": "-1",
    "👌": "ok_hand",
    "🎉": "tada",
    "❤️": "heart",
    "❤": "heart",
    "🙏": "pray",
    "🔥": "fire",
    "🤔": "thinking_face",
    "😀": "grinning",
    "😄": "smile",
    "👋": "wave",
    "🚀": "rocket",
    "💯": "100",
    "⚠️": "warning",
}
_EMOJI = {name: emoji for emoji, name in reversed(_EMOJI_NAMES.items())} | {"thumbsup": "👍", "thumbsdown": "👎"}


@dataclass(frozen=True, slots=True)
class Identity:
    """The bot's own account, as ``auth.test`` tells it."""

    user_id: str
    bot_id: str
    team_id: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Known:
    """What an event does not say itself. ``place`` is the conversation of the message that a reaction is on."""

    names: Mapping[str, str] = field(default_factory=dict)
    takes_part: bool = False
    """Whether the bot takes part in the event's thread."""
    place: str | None = None


@dataclass(frozen=True, slots=True)
class _Spoken:
    """A message event without its envelope: ``said`` is the message itself, wherever the event has it."""

    kind: InboundKind
    said: Event
    channel: str
    ts: str
    direct: bool
    called: bool
    """By an ``app_mention``, which needs no look at the text."""

    @property
    def thread(self) -> str | None:
        """The thread that the message replies in; the first message of a thread is no reply."""
        thread = self.said.get("thread_ts")
        return str(thread) if thread and thread != self.ts else None

    @property
    def text(self) -> str:
        return self.said.get("text") or ""


def to_inbound(event: Event, me: Identity, known: Known | None = None) -> InboundMessage | None:
    """What *event* says, or None for what is no concern of the runtime (own messages, service notes).

    Raises `KeyError`, `TypeError`, `ValueError` or `AttributeError` for an event that is none of Slack's.
    """
    known = known or Known()
    kind = event["type"]
    if kind in {"message", "app_mention"}:
        spoken = _spoken(event)
        return None if spoken is None else _from_spoken(spoken, me, known)
    if kind in {"reaction_added", "reaction_removed"}:
        return _from_reaction(event, me, known)
    if kind in _JOINED | _LEFT:
        return _from_membership(event, me, known)
    return None


def identity_of(payload: Event) -> str:
    """By which an event is recognised when it comes again.

    What is said in a channel to the bot comes as two events with an ``event_id`` of their own each, ``message``
    and ``app_mention``; the message's channel and timestamp are the same. Raises as `to_inbound`.
    """
    event = payload["event"]
    if event["type"] in {"message", "app_mention"} and event.get("subtype") in _SPOKEN:
        return f"{event['channel']}/{event['ts']}"
    return str(payload["event_id"])


def people_of(event: Event) -> frozenset[str]:
    """The ids of the people whose names `to_inbound` wants to know."""
    if event["type"] not in {"message", "app_mention"}:
        return frozenset(filter(None, [_user(event)]))
    spoken = _spoken(event)
    if spoken is None:
        return frozenset()
    return mrkdwn.people_in(spoken.text) | frozenset(filter(None, [_user(spoken.said)]))


def thread_in_question(event: Event, me: Identity) -> tuple[str, str] | None:
    """Channel and thread of an event whose meaning depends on whether the bot takes part in the thread."""
    if event["type"] != "message":
        return None
    spoken = _spoken(event)
    if spoken is None or spoken.thread is None or spoken.direct or spoken.kind is InboundKind.DELETE:
        return None
    if _is_own(spoken.said, me) or _is_bot(spoken.said) or _calls(spoken, me):
        return None
    return spoken.channel, spoken.thread


def _spoken(event: Event) -> _Spoken | None:
    subtype = event.get("subtype")
    kind, said = InboundKind.MESSAGE, event
    if subtype == "message_changed":
        said, before = event["message"], event.get("previous_message") or {}
        if said.get("subtype") == "tombstone":  # a deleted message that has replies
            kind, said = InboundKind.DELETE, {**before, "ts": said["ts"]}
        elif (said.get("text"), said.get("files")) == (before.get("text"), before.get("files")):
            return None  # a link preview came, or a thread grew
        else:
            kind = InboundKind.EDIT
    elif subtype == "message_deleted":
        kind, said = InboundKind.DELETE, {**(event.get("previous_message") or {}), "ts": event["deleted_ts"]}
    elif subtype not in _SPOKEN:
        return None
    channel = str(event["channel"])
    return _Spoken(
        kind=kind,
        said=said,
        channel=channel,
        ts=str(said["ts"]),
        direct=event.get("channel_type") == "im" or channel.startswith("D"),
        called=event["type"] == "app_mention",
    )


def _from_spoken(spoken: _Spoken, me: Identity, known: Known) -> InboundMessage | None:
    said = spoken.said
    if _is_own(said, me):
        return None
    attachments, quote = _attachments(said), _quote(said, known)
    if not spoken.text and not attachments and quote is None and spoken.kind is not InboundKind.DELETE:
        return None
    called = _calls(spoken, me)
    return InboundMessage(
        connector=CONNECTOR,
        external_id=_external_id(spoken, called),
        message_id=spoken.ts,
        author=_author(said, known),
        text=mrkdwn.to_markdown(spoken.text, {me.user_id: me.name, **known.names}, me.user_id),
        kind=spoken.kind,
        sent_at=_time(spoken.ts),
        direct=spoken.direct,
        addressed=spoken.direct or called or (spoken.thread is not None and known.takes_part),
        quote=quote,
        attachments=attachments,
        routes=_routes(spoken.channel, me),
        default_workspace=default_workspace(me.team_id),
        reply_hint=REPLY_HINT,
    )


def _calls(spoken: _Spoken, me: Identity) -> bool:
    """Whether the message itself says that it is for the bot: by its name, or as a reply to the bot's message."""
    replied_to = spoken.said.get("parent_user_id") if spoken.thread is not None else None
    return spoken.called or replied_to == me.user_id or mrkdwn.names_person(spoken.text, me.user_id)


def _external_id(spoken: _Spoken, called: bool) -> str:
    if spoken.thread is not None:
        return f"{spoken.channel}/{spoken.thread}"
    begins_thread = not spoken.direct and (called or spoken.said.get("thread_ts") == spoken.ts)
    return f"{spoken.channel}/{spoken.ts}" if begins_thread else spoken.channel


def _from_reaction(event: Event, me: Identity, known: Known) -> InboundMessage | None:
    item = event["item"]
    user = _user(event)
    if item.get("type") != "message" or user == me.user_id:
        return None
    name = str(event["reaction"]).split("::")[0]
    channel = str(item["channel"])
    return InboundMessage(
        connector=CONNECTOR,
        external_id=known.place or channel,
        message_id=str(item["ts"]),
        author=_author(event, known),
        text="",
        kind=InboundKind.REACTION,
        sent_at=_time(event.get("event_ts")),
        direct=channel.startswith("D"),
        addressed=False,
        reaction=_EMOJI.get(name, f":{name}:") if event["type"] == "reaction_added" else "",
        routes=_routes(channel, me),
        default_workspace=default_workspace(me.team_id),
        reply_hint=REPLY_HINT,
    )


def _from_membership(event: Event, me: Identity, known: Known) -> InboundMessage | None:
    """The bot came into a channel or left it."""
    if event.get("user", me.user_id) != me.user_id and event["type"] not in {"channel_left", "group_left"}:
        return None
    channel, at = str(event["channel"]), str(event.get("event_ts") or "")
    by = str(event.get("inviter") or event.get("actor_id") or me.user_id)
    return InboundMessage(
        connector=CONNECTOR,
        external_id=channel,
        message_id=f"membership-{at}",
        author=Author(id=by, name=known.names.get(by, "")),
        text="",
        kind=InboundKind.JOINED if event["type"] in _JOINED else InboundKind.LEFT,
        sent_at=_time(at),
        addressed=False,
        routes=_routes(channel, me),
        default_workspace=default_workspace(me.team_id),
        reply_hint=REPLY_HINT,
    )


def _user(event: Event) -> str:
    found = event.get("user") or ""
    return str(found.get("id", "") if isinstance(found, Mapping) else found)


def _is_own(said: Event, me: Identity) -> bool:
    return _user(said) == me.user_id or (bool(me.bot_id) and said.get("bot_id") == me.bot_id)


def _is_bot(said: Event) -> bool:
    return bool(said.get("bot_id")) or said.get("subtype") == "bot_message" or _user(said) == "USLACKBOT"


def _author(said: Event, known: Known) -> Author:
    user = _user(said)
    author_id = user or str(said.get("bot_id") or "unknown")
    name = known.names.get(user) or str(said.get("username") or "")
    return Author(id=author_id, name=name, is_bot=_is_bot(said))


def _quote(said: Event, known: Known) -> Quote | None:
    """A message that was shared; Slack has no other way to quote."""
    for shared in said.get("attachments") or ():
        if shared.get("is_share") or shared.get("is_msg_unfurl"):
            text = mrkdwn.to_markdown(shared.get("text") or shared.get("fallback") or "", known.names)
            return Quote(author=str(shared.get("author_name") or ""), text=text) if text else None
    return None


def _attachments(said: Event) -> tuple[Attachment, ...]:
    files = (file for file in said.get("files") or () if file.get("mode") not in {"tombstone", "hidden_by_limit"})
    return tuple(
        Attachment(
            kind=_file_kind(str(file.get("mimetype") or ""), file.get("mode")),
            name=str(file.get("name") or file.get("title") or file["id"]),
            media_type=str(file.get("mimetype") or ""),
            size_bytes=int(file.get("size") or 0),
            handle=str(file["id"]),
        )
        for file in files
    )


def _file_kind(media_type: str, mode: str | None) -> Literal["document", "image", "voice", "other"]:
    if media_type.startswith("image/"):
        return "image"
    if media_type.startswith("audio/"):
        return "voice"
    return "other" if mode == "external" or media_type.startswith("video/") else "document"


def _time(ts: object) -> datetime | None:
    return datetime.fromtimestamp(float(str(ts)), UTC) if ts else None


def _routes(channel: str, me: Identity) -> tuple[str, ...]:
    return (f"{CONNECTOR}:{me.team_id}/{channel}", f"{CONNECTOR}:{me.team_id}")


def default_workspace(team_id: str) -> str:
    """The workspace of a team that no route names; another team's is never the same.

    Slack's ids are upper-case letters and digits. What is not is written as ``_<hexadecimal>.``, and what is
    then too long for a workspace id as its SHA-256, which no id in lower case can be confused with.
    """
    if _PLAIN_TEAM.fullmatch(team_id):
        return f"{CONNECTOR}-{team_id.lower()}"
    escaped = "".join(c.lower() if _PLAIN_TEAM.fullmatch(c) else f"_{ord(c):x}." for c in team_id)
    if 0 < len(escaped) <= 58:
        return f"{CONNECTOR}-{escaped}"
    return f"{CONNECTOR}--{hashlib.sha256(team_id.encode('utf-8', 'surrogatepass')).hexdigest()[:57]}"


def to_parts(message: OutboundMessage) -> tuple[OutboundPart, ...]:
    """*message* as mrkdwn within Slack's limit; none for a text in which nothing can be seen.

    Surrogates without their other half, which no protocol can carry, are replaced by U+FFFD.
    """
    text = message.text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    cut = parts(parse(text), MAX_TEXT_CHARACTERS, characters, render)
    texts = [part for part in cut if _can_be_seen(part)]
    return tuple(
        OutboundPart(
            index=index,
            total=len(texts),
            text=part,
            token=f"{message.turn_id}.{message.kind}.{index}",
            payload=MRKDWN,
        )
        for index, part in enumerate(texts)
    )


def _can_be_seen(text: str) -> bool:
    return any(unicodedata.category(character) not in _INVISIBLE for character in text)


def to_place(external_id: str) -> tuple[str, str | None]:
    """Channel and thread of an external id. Raises `ValueError` when it is none of Slack's."""
    channel, slash, thread = external_id.partition("/")
    if not re.fullmatch(r"[A-Z0-9]+", channel) or (slash and not re.fullmatch(r"\d+\.\d+", thread)):
        raise ValueError(f"{external_id!r} is no channel or thread")
    return channel, thread if slash else None


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
        "metadata": {
            "event_type": METADATA_EVENT,
            "event_payload": {"turn_id": message.turn_id, "token": part.token},
        },
    }
    return arguments if thread is None else arguments | {"thread_ts": thread}


def to_edit(message: OutboundMessage, part: OutboundPart, message_id: str) -> dict[str, Any]:
    """Arguments of ``chat.update`` that replace the message *message_id* by *part*; its metadata stays."""
    channel, _ = to_place(message.key.external_id)
    return {"channel": channel, "ts": message_id, "text": part.text, "link_names": False}


def found_in(messages: list[Any], part: OutboundPart, me: Identity) -> str | None:
    """The id of the message among *messages* that is *part*, by its metadata."""
    for message in messages:
        metadata = message.get("metadata") or {}
        token = (metadata.get("event_payload") or {}).get("token")
        if metadata.get("event_type") == METADATA_EVENT and token == part.token and _is_own(message, me):
            return str(message["ts"])
    return None


def emoji_name(emoji: str) -> str | None:
    """Slack's name of *emoji*, which may be that name already; None for one that it has no name for."""
    known = _EMOJI_NAMES.get(emoji)
    bare = emoji.strip(":")
    return known or (bare if re.fullmatch(r"[a-z0-9_+'-]+", bare) else None)
