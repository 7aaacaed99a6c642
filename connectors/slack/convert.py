"""Slack's events as our nouns. Pure. (The other way is `connectors.slack.outgoing`.)

A conversation is a direct message's channel, or a thread: a message that calls the bot in a channel
begins one, which the answer and what follows belong to. So ``external_id`` is ``D123``, ``C123/1712.0001``
(the timestamp of the thread's first message) or, for what is said to nobody in a channel, ``C123``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from connectors.message import Author, InboundKind, InboundMessage, Quote
from connectors.slack import REPLY_HINT, blocks, mrkdwn
from connectors.slack.attachments import attachments_of
from connectors.slack.emoji import emoji_of

CONNECTOR = "slack"

COMMAND_MARK: Final = "!"
"""Slack takes every message that begins with ``/`` for a command of its own or of an app's manifest."""

Event = Mapping[str, Any]

_SPOKEN = frozenset({None, "file_share", "thread_broadcast", "me_message", "bot_message"})
_JOINED = frozenset({"member_joined_channel"})
_LEFT = frozenset({"member_left_channel", "channel_left", "group_left"})
_LIMITS = (4_000, 12_000, 40_000)
_NEAR_LIMIT = 100
_PLAIN_TEAM = re.compile(r"[A-Z0-9]{1,58}")


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
    public: bool = False
    """Whether its channel is public, where the event does not name its type."""


@dataclass(frozen=True, slots=True)
class _Spoken:
    """A message event without its envelope: ``said`` is the message itself, wherever the event has it."""

    kind: InboundKind
    said: Event
    channel: str
    ts: str
    direct: bool
    public: bool | None
    """None where the event does not say."""
    called: bool
    """By an ``app_mention``, which needs no look at the text."""

    @property
    def thread(self) -> str | None:
        """The thread that the message replies in; the first message of a thread is no reply."""
        thread = self.said.get("thread_ts")
        return str(thread) if thread and thread != self.ts else None

    @property
    def text(self) -> str:
        return blocks.text_of(self.said)


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


def is_public(event: Event) -> bool | None:
    """Whether *event* says that its channel is public; None where it does not name the channel's type."""
    kind = event.get("channel_type")
    return None if kind is None else kind == "channel"


def people_of(event: Event) -> frozenset[str]:
    """The ids of the people whose names `to_inbound` wants to know."""
    if event["type"] not in {"message", "app_mention"}:
        return frozenset(filter(None, [_user(event)]))
    spoken = _spoken(event)
    if spoken is None:
        return frozenset()
    shared = (str(one.get("author_id") or "") for one in spoken.said.get("attachments") or () if one.get("is_share"))
    return mrkdwn.people_in(spoken.text) | frozenset(filter(None, [_user(spoken.said), *shared]))


def asker_of(event: Event, me: Identity) -> tuple[str, str]:
    """The person who said a message, and their team, which in a shared channel may be another organisation's."""
    return _user(event), str(event.get("user_team") or event.get("source_team") or event.get("team") or me.team_id)


def thread_in_question(event: Event, me: Identity) -> tuple[str, str] | None:
    """Channel and thread of an event whose meaning depends on whether the bot takes part in the thread."""
    if event["type"] != "message":
        return None
    spoken = _spoken(event)
    if spoken is None or spoken.thread is None or spoken.direct or spoken.kind is InboundKind.DELETE:
        return None
    if is_own(spoken.said, me) or _is_bot(spoken.said) or _calls(spoken, me):
        return None
    return spoken.channel, spoken.thread


def _spoken(event: Event) -> _Spoken | None:
    subtype = event.get("subtype")
    kind, said = InboundKind.MESSAGE, event
    if subtype == "message_changed":
        said, before = event["message"], event.get("previous_message") or {}
        if said.get("subtype") == "tombstone":  # a deleted message that has replies
            kind, said = InboundKind.DELETE, {**before, "ts": said["ts"]}
        elif _content(said) == _content(before):
            return None  # a link preview came, a thread grew, or a file's thumbnails are ready
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
        public=is_public(event),
        called=event["type"] == "app_mention",
    )


def _from_spoken(spoken: _Spoken, me: Identity, known: Known) -> InboundMessage | None:
    said = spoken.said
    if is_own(said, me):
        return None
    attachments, quote = attachments_of(said), _quote(said, known)
    if not spoken.text and not attachments and quote is None and spoken.kind is not InboundKind.DELETE:
        return None
    called, in_our_thread = _calls(spoken, me), spoken.thread is not None and known.takes_part
    return InboundMessage(
        connector=CONNECTOR,
        external_id=_external_id(spoken, called),
        message_id=spoken.ts,
        author=_author(said, known),
        text=mrkdwn.to_markdown(spoken.text, {me.user_id: me.name, **known.names}, me.user_id),
        kind=spoken.kind,
        sent_at=_time(spoken.ts),
        direct=spoken.direct,
        public=known.public if spoken.public is None else spoken.public,
        place=spoken.channel,
        addressed=spoken.direct or called or in_our_thread,
        by_thread_only=in_our_thread and not (spoken.direct or called),
        quote=quote,
        attachments=attachments,
        looks_unfinished=spoken.kind is InboundKind.MESSAGE and _is_cut(spoken.text),
        routes=routes_of(spoken.channel, me),
        default_workspace=default_workspace(me.team_id),
        reply_hint=REPLY_HINT,
        command_mark=COMMAND_MARK,
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
    channel, emoji, is_new = str(item["channel"]), emoji_of(str(event["reaction"])), event["type"] == "reaction_added"
    return InboundMessage(
        connector=CONNECTOR,
        external_id=known.place or channel,
        message_id=str(item["ts"]),
        author=_author(event, known),
        text="",
        kind=InboundKind.REACTION,
        sent_at=_time(event.get("event_ts")),
        direct=channel.startswith("D"),
        public=known.public,
        place=channel,
        addressed=False,
        reaction=emoji if is_new else "",
        unreacted=() if is_new else (emoji,),
        routes=routes_of(channel, me),
        default_workspace=default_workspace(me.team_id),
        reply_hint=REPLY_HINT,
        command_mark=COMMAND_MARK,
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
        routes=routes_of(channel, me),
        default_workspace=default_workspace(me.team_id),
        reply_hint=REPLY_HINT,
        command_mark=COMMAND_MARK,
    )


def _user(event: Event) -> str:
    found = event.get("user") or ""
    return str(found.get("id", "") if isinstance(found, Mapping) else found)


def is_own(said: Event, me: Identity) -> bool:
    """Whether the bot said it itself."""
    return _user(said) == me.user_id or (bool(me.bot_id) and said.get("bot_id") == me.bot_id)


def _is_bot(said: Event) -> bool:
    return bool(said.get("bot_id")) or said.get("subtype") == "bot_message" or _user(said) == "USLACKBOT"


def _author(said: Event, known: Known) -> Author:
    user = _user(said)
    author_id = user or str(said.get("bot_id") or "unknown")
    profile = said.get("user_profile") or {}  # of people of another organisation
    given = profile.get("display_name") or profile.get("real_name") or profile.get("name")
    name = known.names.get(user) or str(said.get("username") or given or "")
    return Author(id=author_id, name=name, is_bot=_is_bot(said))


def _quote(said: Event, known: Known) -> Quote | None:
    """What was shared or forwarded with the message; Slack has no other way to quote. Several become one."""
    quotes = [quote for shared in said.get("attachments") or () if (quote := _shared(shared, known))]
    if len(quotes) < 2:
        return quotes[0] if quotes else None
    text = "\n\n".join(f"**{quote.author}:** {quote.text}" if quote.author else quote.text for quote in quotes)
    return Quote(author="", text=text)


def _shared(shared: Event, known: Known) -> Quote | None:
    if not (shared.get("is_share") or shared.get("is_msg_unfurl")):
        return None
    inner = (one.get("message") or {} for one in shared.get("message_blocks") or ())
    found = shared.get("text") or "\n".join(blocks.to_mrkdwn(one.get("blocks") or ()) for one in inner)
    text = mrkdwn.to_markdown(found or shared.get("fallback") or "", known.names)
    author = known.names.get(str(shared.get("author_id"))) or str(shared.get("author_name") or "")
    return Quote(author=author, text=text) if text.strip() else None


def _content(said: Event) -> tuple[str, tuple[str, ...]]:
    """What makes an edit one: the words and the files."""
    text = said.get("text") or blocks.to_mrkdwn(said.get("blocks") or ())
    return str(text), tuple(str(file.get("id")) for file in said.get("files") or ())


def _is_cut(text: str) -> bool:
    """Whether Slack may have cut *text*: its clients split what is longer, at the nearest space, its API cuts it."""
    length = len(mrkdwn.unescape(text))
    return any(limit - _NEAR_LIMIT <= length <= limit for limit in _LIMITS)


def _time(ts: object) -> datetime | None:
    try:
        return datetime.fromtimestamp(float(str(ts)), UTC) if ts else None
    except (OverflowError, OSError) as error:
        raise ValueError(f"{ts!r} is no time") from error


def routes_of(channel: str, me: Identity) -> tuple[str, ...]:
    """The keys under which an operator may route a channel, most specific first."""
    return (f"{CONNECTOR}:{me.team_id}/{channel}", f"{CONNECTOR}:{me.team_id}")


def default_workspace(team_id: str) -> str:
    """The workspace of a team alone; another team's is never the same.

    Slack's ids are upper-case letters and digits. What is not is written as ``_<hexadecimal>.``, and what is
    then too long for a workspace id as its SHA-256, which no id in lower case can be confused with.
    """
    if _PLAIN_TEAM.fullmatch(team_id):
        return f"{CONNECTOR}-{team_id.lower()}"
    escaped = "".join(c.lower() if _PLAIN_TEAM.fullmatch(c) else f"_{ord(c):x}." for c in team_id)
    if 0 < len(escaped) <= 58:
        return f"{CONNECTOR}-{escaped}"
    return f"{CONNECTOR}--{hashlib.sha256(team_id.encode('utf-8', 'surrogatepass')).hexdigest()[:57]}"
