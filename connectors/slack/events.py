"""Slack's events, commands and button presses as inbound messages. Pure. (`connectors.slack.payloads` is the way out.)

A conversation is a direct message's channel, or a thread: a message that mentions the bot in a channel begins a
thread, to which the answer and what follows belong. So ``external_id`` is ``D123``, ``C123/1712.0001`` (with the
timestamp of the thread's first message) or, for a message to nobody in a channel, ``C123``.

An event of an unexpected shape raises one of `MALFORMED`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal

from connectors.message import Attachment, Author, InboundKind, InboundMessage, Quote
from connectors.slack import REPLY_HINT
from connectors.slack.mrkdwn import blocks_text, emoji_of, mentions, message_text, people_in, to_markdown, unescape

CONNECTOR = "slack"

COMMAND_MARK: Final = "!"
"""Slack takes every message that begins with ``/`` for a command of its own or of an app's manifest."""

MALFORMED = (KeyError, TypeError, ValueError, AttributeError)

MESSAGE_SUBTYPES = frozenset({None, "file_share", "thread_broadcast", "me_message", "bot_message"})
"""The subtypes of ``message`` events that are new messages of people or apps."""

Event = Mapping[str, Any]
File = Mapping[str, Any]

BUTTON_PREFIX = "command-"
"""Begins the ``action_id`` of a button that gives a command."""

_COMMAND_PREFIX = "command-"
_COMMAND_WITHOUT_WORDS = "help"
_SIZE_LIMITS = (4_000, 12_000, 40_000)
_NEAR_LIMIT = 100


@dataclass(frozen=True, slots=True)
class Identity:
    """The bot's own account, from ``auth.test``."""

    user_id: str
    bot_id: str
    team_id: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class EventDetails:
    """Facts that an event does not contain and that had to be looked up."""

    names: Mapping[str, str] = field(default_factory=dict)
    """People's names by user id."""
    takes_part: bool = False
    """True if the bot takes part in the event's thread."""
    place: str | None = None
    """For a reaction: the conversation of the message that it is on."""
    public: bool = False
    """True if the channel is public; used if the event does not name the channel's type."""


@dataclass(frozen=True, slots=True)
class _Message:
    """A message event without its envelope; ``body`` is the message itself, wherever the event has it."""

    kind: InboundKind
    body: Event
    channel: str
    ts: str
    direct: bool
    public: bool | None
    """None if the event does not say."""
    is_app_mention: bool

    @property
    def thread(self) -> str | None:
        """The thread in which the message is a reply. The first message of a thread is no reply."""
        thread = self.body.get("thread_ts")
        return str(thread) if thread and thread != self.ts else None

    @property
    def text(self) -> str:
        return message_text(self.body)


def to_inbound(event: Event, me: Identity, details: EventDetails | None = None) -> InboundMessage | None:
    """Convert *event*; None if the runtime does not need it (the bot's own messages, service notes)."""
    details = details or EventDetails()
    match event["type"]:
        case "message" | "app_mention":
            message = _message(event)
            return None if message is None else _from_message(message, me, details)
        case "reaction_added" | "reaction_removed":
            return _from_reaction(event, me, details)
        case "member_joined_channel" | "member_left_channel":
            return _from_membership(event, me, details) if event.get("user", me.user_id) == me.user_id else None
        case "channel_left" | "group_left":
            return _from_membership(event, me, details)
    return None


def to_command(payload: Event, me: Identity) -> InboundMessage:
    """Convert the payload of a slash command, which does not say whether its channel is public.

    Our app declares one command in its settings; the word after it is the runtime's: ``/agent usage`` is ``usage``.
    """
    channel, user, trigger = str(payload["channel_id"]), str(payload["user_id"]), payload["trigger_id"]
    if not (channel and trigger and user):
        raise ValueError("a command without a channel, a trigger or a user")
    thread = str(payload.get("thread_ts") or "")
    return _inbound(
        me,
        channel,
        external_id=f"{channel}/{thread}" if thread else channel,
        message_id=f"{_COMMAND_PREFIX}{trigger}",
        author=Author(id=user, name=str(payload.get("user_name") or "")),
        text=str(payload.get("text") or "").strip() or _COMMAND_WITHOUT_WORDS,
        kind=InboundKind.COMMAND,
        direct=channel.startswith("D"),
    )


def is_command(message_id: str) -> bool:
    """Return whether *message_id* is that of a slash command, which shows no message that could be answered."""
    return message_id.startswith(_COMMAND_PREFIX)


def to_press(payload: Event, me: Identity) -> InboundMessage | None:
    """Convert the press of a button that gives a command; None for other interactions."""
    if payload["type"] != "block_actions":
        return None
    actions = [action for action in payload["actions"] if str(action.get("action_id")).startswith(BUTTON_PREFIX)]
    if not actions:
        return None
    channel, thread = str(payload["channel"]["id"]), str(payload["message"].get("thread_ts") or "")
    user = payload["user"]
    return _inbound(
        me,
        channel,
        external_id=f"{channel}/{thread}" if thread else channel,
        message_id=f"button-{payload['trigger_id']}",
        author=Author(id=str(user["id"]), name=str(user.get("username") or user.get("name") or "")),
        text=str(actions[0]["value"]),
        kind=InboundKind.COMMAND,
        direct=channel.startswith("D"),
    )


# Questions about an event, asked before its conversion


def event_identity(payload: Event) -> str:
    """Return the identity by which an event is recognised when it is delivered again.

    A message to the bot in a channel comes as two events, ``message`` and ``app_mention``, each with an ``event_id``
    of its own. Channel and timestamp of the message are the same.
    """
    event = payload["event"]
    if event["type"] in {"message", "app_mention"} and event.get("subtype") in MESSAGE_SUBTYPES:
        return f"{event['channel']}/{event['ts']}"
    return str(payload["event_id"])


def conversation_of(event: Event, me: Identity) -> str:
    """Return the conversation in whose order *event* belongs; its channel if that takes a look-up."""
    message = _message(event) if event["type"] in {"message", "app_mention"} else None
    if message is not None:
        return _external_id(message, _addresses_bot(message, me))
    return str(event.get("channel") or (event.get("item") or {}).get("channel") or "")


def reacted_to(event: Event) -> tuple[str, str]:
    """Return channel and timestamp of the message that a reaction is on; empty for other events."""
    item = event.get("item") or {}
    return str(item.get("channel") or ""), str(item.get("ts") or "")


def is_public(event: Event) -> bool | None:
    """Return whether *event* says that its channel is public; None if it does not name the channel's type."""
    kind = event.get("channel_type")
    return None if kind is None else kind == "channel"


def people_of(event: Event) -> frozenset[str]:
    """Return the ids of the people whose names `to_inbound` uses."""
    if event["type"] not in {"message", "app_mention"}:
        return frozenset(filter(None, [_user(event)]))
    message = _message(event)
    if message is None:
        return frozenset()
    shares = (share for share in message.body.get("attachments") or () if share.get("is_share"))
    authors = [_user(message.body), *(str(share.get("author_id") or "") for share in shares)]
    return people_in(message.text) | frozenset(filter(None, authors))


def author_and_team(event: Event, me: Identity) -> tuple[str, str]:
    """Return who wrote a message, and their team, which in a shared channel may be another organisation's."""
    return _user(event), str(event.get("user_team") or event.get("source_team") or event.get("team") or me.team_id)


def thread_to_look_up(event: Event, me: Identity) -> tuple[str, str] | None:
    """Return channel and thread of *event* if its meaning depends on whether the bot takes part in the thread."""
    if event["type"] != "message":
        return None
    message = _message(event)
    if message is None or message.thread is None or message.direct or message.kind is InboundKind.DELETE:
        return None
    if is_own(message.body, me) or _is_bot(message.body) or _addresses_bot(message, me):
        return None
    return message.channel, message.thread


def is_own(message: Event, me: Identity) -> bool:
    """Return whether the bot wrote *message* itself."""
    return _user(message) == me.user_id or (bool(me.bot_id) and message.get("bot_id") == me.bot_id)


# Workspaces


def default_workspace(team_id: str) -> str:
    """Return the id of a team's own workspace. Slack's ids are upper-case letters and digits."""
    return f"{CONNECTOR}-{team_id.lower()}"


def _inbound(me: Identity, channel: str, *, place: str | None = None, **fields: Any) -> InboundMessage:
    """Return an `InboundMessage` with *fields* and with what all messages in *channel* have in common."""
    return InboundMessage(
        connector=CONNECTOR,
        place=channel if place is None else place,
        routes=(f"{CONNECTOR}:{me.team_id}/{channel}", f"{CONNECTOR}:{me.team_id}"),
        default_workspace=default_workspace(me.team_id),
        reply_hint=REPLY_HINT,
        command_mark=COMMAND_MARK,
        **fields,
    )


# Messages


def _message(event: Event) -> _Message | None:
    subtype = event.get("subtype")
    kind, body = InboundKind.MESSAGE, event
    if subtype == "message_changed":
        body, before = event["message"], event.get("previous_message") or {}
        if body.get("subtype") == "tombstone":  # a deleted message that has replies
            kind, body = InboundKind.DELETE, {**before, "ts": body["ts"]}
        elif _content(body) == _content(before):
            return None  # a link preview came, a thread grew, or a file's thumbnails are ready
        else:
            kind = InboundKind.EDIT
    elif subtype == "message_deleted":
        kind, body = InboundKind.DELETE, {**(event.get("previous_message") or {}), "ts": event["deleted_ts"]}
    elif subtype not in MESSAGE_SUBTYPES:
        return None
    channel = str(event["channel"])
    return _Message(
        kind=kind,
        body=body,
        channel=channel,
        ts=str(body["ts"]),
        direct=event.get("channel_type") == "im" or channel.startswith("D"),
        public=is_public(event),
        is_app_mention=event["type"] == "app_mention",
    )


def _from_message(message: _Message, me: Identity, details: EventDetails) -> InboundMessage | None:
    body = message.body
    if is_own(body, me):
        return None
    attachments, quote = attachments_of(body), _quote(body, details)
    if not message.text and not attachments and quote is None and message.kind is not InboundKind.DELETE:
        return None
    addresses_bot = _addresses_bot(message, me)
    in_our_thread = message.thread is not None and details.takes_part
    return _inbound(
        me,
        message.channel,
        external_id=_external_id(message, addresses_bot),
        message_id=message.ts,
        author=_author(body, details),
        text=to_markdown(message.text, {me.user_id: me.name, **details.names}, me.user_id),
        kind=message.kind,
        sent_at=_time(message.ts),
        direct=message.direct,
        public=details.public if message.public is None else message.public,
        addressed=message.direct or addresses_bot or in_our_thread,
        by_thread_only=in_our_thread and not (message.direct or addresses_bot),
        quote=quote,
        attachments=attachments,
        looks_unfinished=message.kind is InboundKind.MESSAGE and _may_be_cut(message.text),
    )


def _addresses_bot(message: _Message, me: Identity) -> bool:
    """Return whether the message itself is for the bot: it mentions the bot, or replies to the bot's message."""
    replied_to = message.body.get("parent_user_id") if message.thread is not None else None
    return message.is_app_mention or replied_to == me.user_id or mentions(message.text, me.user_id)


def _external_id(message: _Message, addresses_bot: bool) -> str:
    if message.thread is not None:
        return f"{message.channel}/{message.thread}"
    begins_thread = not message.direct and (addresses_bot or message.body.get("thread_ts") == message.ts)
    return f"{message.channel}/{message.ts}" if begins_thread else message.channel


def _user(event: Event) -> str:
    user = event.get("user") or ""
    return str(user.get("id", "") if isinstance(user, Mapping) else user)


def _is_bot(message: Event) -> bool:
    return bool(message.get("bot_id")) or message.get("subtype") == "bot_message" or _user(message) == "USLACKBOT"


def _author(message: Event, details: EventDetails) -> Author:
    user = _user(message)
    profile = message.get("user_profile") or {}  # of people of another organisation
    profile_name = profile.get("display_name") or profile.get("real_name") or profile.get("name")
    name = details.names.get(user) or str(message.get("username") or profile_name or "")
    return Author(id=user or str(message.get("bot_id") or "unknown"), name=name, is_bot=_is_bot(message))


def _quote(message: Event, details: EventDetails) -> Quote | None:
    """Return what was shared or forwarded with *message*, Slack's only way to quote. Several quotes become one."""
    quotes = [quote for shared in message.get("attachments") or () if (quote := _shared(shared, details))]
    if len(quotes) < 2:
        return quotes[0] if quotes else None
    text = "\n\n".join(f"**{quote.author}:** {quote.text}" if quote.author else quote.text for quote in quotes)
    return Quote(author="", text=text)


def _shared(shared: Event, details: EventDetails) -> Quote | None:
    if not (shared.get("is_share") or shared.get("is_msg_unfurl")):
        return None
    inner = (block.get("message") or {} for block in shared.get("message_blocks") or ())
    mrkdwn = shared.get("text") or "\n".join(blocks_text(message.get("blocks") or ()) for message in inner)
    text = to_markdown(mrkdwn or shared.get("fallback") or "", details.names)
    author = details.names.get(str(shared.get("author_id"))) or str(shared.get("author_name") or "")
    return Quote(author=author, text=text) if text.strip() else None


def _content(message: Event) -> tuple[str, tuple[str, ...]]:
    """Return the text and the files of *message*. Only a change of these is an edit."""
    text = message.get("text") or blocks_text(message.get("blocks") or ())
    return str(text), tuple(str(file.get("id")) for file in message.get("files") or ())


def _may_be_cut(text: str) -> bool:
    """Return whether Slack may have cut *text*. Its clients split longer texts at the nearest space; its API cuts."""
    length = len(unescape(text))
    return any(limit - _NEAR_LIMIT <= length <= limit for limit in _SIZE_LIMITS)


def _time(ts: object) -> datetime | None:
    try:
        return datetime.fromtimestamp(float(str(ts)), UTC) if ts else None
    except (OverflowError, OSError) as error:
        raise ValueError(f"{ts!r} is no time") from error


# Reactions and membership


def _from_reaction(event: Event, me: Identity, details: EventDetails) -> InboundMessage | None:
    item = event["item"]
    if item.get("type") != "message" or _user(event) == me.user_id:
        return None
    channel, emoji, is_new = str(item["channel"]), emoji_of(str(event["reaction"])), event["type"] == "reaction_added"
    return _inbound(
        me,
        channel,
        external_id=details.place or channel,
        message_id=str(item["ts"]),
        author=_author(event, details),
        text="",
        kind=InboundKind.REACTION,
        sent_at=_time(event.get("event_ts")),
        direct=channel.startswith("D"),
        public=details.public,
        addressed=False,
        reaction=emoji if is_new else "",
        unreacted=() if is_new else (emoji,),
    )


def _from_membership(event: Event, me: Identity, details: EventDetails) -> InboundMessage:
    """Convert the bot's arrival in a channel or its departure."""
    channel, at = str(event["channel"]), str(event.get("event_ts") or "")
    by = str(event.get("inviter") or event.get("actor_id") or me.user_id)
    return _inbound(
        me,
        channel,
        place="",
        external_id=channel,
        message_id=f"membership-{at}",
        author=Author(id=by, name=details.names.get(by, "")),
        text="",
        kind=InboundKind.JOINED if event["type"] == "member_joined_channel" else InboundKind.LEFT,
        sent_at=_time(at),
        addressed=False,
    )


# Files


class FileAccess:
    """The ways to get the content of a file."""

    HOSTED = "hosted"
    """Slack serves it at the handle's URL."""
    ASK = "ask"
    """Slack gives its URL only if asked (``files.info``)."""
    HIDDEN = "hidden_by_limit"
    """Slack hides it, because the workspace is over its plan's limit."""
    EXTERNAL = "external"
    """It is only linked from Slack."""


@dataclass(frozen=True, slots=True)
class Handle:
    """Identifies a file in `connectors.message.Attachment`; ``access`` is one of `FileAccess`."""

    file_id: str
    access: str
    url: str = ""

    def encode(self) -> str:
        """Return one line; the three parts contain no spaces."""
        return " ".join(filter(None, (self.file_id, self.access, self.url)))

    @classmethod
    def decode(cls, text: str) -> Handle:
        """Return the handle that `encode` wrote. Raises `ValueError`."""
        file_id, _, rest = text.partition(" ")
        access, _, url = rest.partition(" ")
        if not file_id:
            raise ValueError("a file without an id")
        return cls(file_id, access or FileAccess.ASK, url)


def attachments_of(message: Event) -> tuple[Attachment, ...]:
    """Return the files of *message* and of those that it forwards, without deleted ones."""
    return tuple(
        Attachment(
            kind=_file_kind(file),
            name=str(file.get("name") or file.get("title") or file["id"]),
            media_type=str(file.get("mimetype") or ""),
            size_bytes=int(file.get("size") or 0),
            handle=handle_of(file).encode(),
        )
        for file in _files(message)
        if file.get("mode") != "tombstone"
    )


def handle_of(file: File) -> Handle:
    """Return the handle of *file*, from what Slack says about its URL."""
    file_id = str(file["id"])
    if file.get("mode") == FileAccess.HIDDEN:
        return Handle(file_id, FileAccess.HIDDEN)
    if _is_external(file):
        return Handle(file_id, FileAccess.EXTERNAL)
    url = str(file.get("url_private_download") or file.get("url_private") or "")
    if is_bare(file) or not url or any(c.isspace() for c in url):
        return Handle(file_id, FileAccess.ASK)
    return Handle(file_id, FileAccess.HOSTED, url)


def is_bare(file: File) -> bool:
    """Return whether Slack sent only the id of *file*, as it does for files of other organisations."""
    return file.get("file_access") == "check_file_info"


def _files(message: Event) -> Iterator[File]:
    yield from message.get("files") or ()
    for shared in message.get("attachments") or ():
        if shared.get("is_share") or shared.get("is_msg_unfurl"):
            yield from shared.get("files") or ()


def _is_external(file: File) -> bool:
    return file.get("mode") == FileAccess.EXTERNAL or bool(file.get("is_external"))


def _file_kind(file: File) -> Literal["document", "image", "voice", "other"]:
    media_type = str(file.get("mimetype") or "")
    if _is_external(file):
        return "other"
    if media_type.startswith("image/"):
        return "image"
    if media_type.startswith("audio/") or file.get("subtype") == "slack_audio":
        return "voice"
    return "other" if media_type.startswith("video/") else "document"
