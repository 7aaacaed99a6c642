"""Discord's events as our nouns. Pure.

A thread is a channel of its own on Discord, so that the external id of a place is always one channel id.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import urlsplit

import discord

from connectors.connector import AttachmentUnavailable, Location
from connectors.discord import REPLY_HINT
from connectors.message import Attachment, Author, InboundKind, InboundMessage, Quote
from connectors.text import join_around, utf16_units, without_sources

# ---- words ----
#
# The words of a message, with short ones in brackets for what is shown without words. Pure.


_LONGEST = 500
"""Characters of one embed or poll."""


def words_of(message: discord.Message | discord.MessageSnapshot) -> str:
    """What *message* says, references to people and channels still as Discord writes them."""
    return "\n".join([*([message.content] if message.content else []), *shown_in(message)])


def shown_in(message: discord.Message | discord.MessageSnapshot) -> list[str]:
    """What *message* shows besides its text, each in brackets."""
    shown = [
        *(f"sticker: {sticker.name}" for sticker in message.stickers),
        *(_embed(embed) for embed in message.embeds),
        *(_poll(poll) for poll in _polls(message)),
    ]
    return [f"[{one}]" for one in shown if one]


def title_of_post(message: discord.Message) -> list[str]:
    """The title of the forum post that *message* begins, in brackets; nothing for other messages."""
    thread = message.channel
    if not isinstance(thread, discord.Thread) or thread.id != message.id:
        return []
    return [f"[post: {thread.name}]"] if isinstance(thread.parent, discord.ForumChannel) else []


def _embed(embed: discord.Embed) -> str:
    """Only what an app wrote: other embeds are Discord's previews of links, which their author did not write."""
    if embed.type != "rich":
        return ""
    fields = [f"{field.name}: {field.value}" for field in embed.fields]
    said = " – ".join(" ".join(part.split()) for part in (embed.title, embed.description, *fields) if part)
    return f"embed: {_short(said)}" if said else ""


def _polls(message: discord.Message | discord.MessageSnapshot) -> list[discord.Poll]:
    return [message.poll] if isinstance(message, discord.Message) and message.poll is not None else []


def _poll(poll: discord.Poll) -> str:
    answers = " / ".join(answer.text for answer in poll.answers if answer.text)
    return f"poll: {_short(f'{poll.question} – {answers}')}"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


# ---- mentions ----
#
# How people call the bot in a message, and what they said to it. Pure.
#
# The forms are those of Discord's reference, "Message Formatting".


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


# ---- attachments ----
#
# Where the files of messages lie.
#
# Discord signs the addresses of its files for about a day, and a file may be asked for later than that. So a
# handle names the message, which is read again when the file is wanted, and has fresh addresses.


CDN_HOSTS = ("cdn.discordapp.com", "media.discordapp.net")
_OWN_HOST = "discord.com"


def handle_of(channel_id: int, message_id: int, attachment_id: int) -> str:
    """What is kept of a file: ``<channel>/<message>/<attachment>``."""
    return f"{channel_id}/{message_id}/{attachment_id}"


def read_handle(handle: str) -> tuple[int, int, int]:
    """Channel, message and attachment of *handle*. Raises `AttachmentUnavailable`."""
    parts = handle.split("/")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() for part in parts):
        raise AttachmentUnavailable("I cannot find that file on Discord.")
    channel_id, message_id, attachment_id = map(int, parts)
    return channel_id, message_id, attachment_id


def url_in(message: dict[str, Any], attachment_id: int) -> str:
    """The address of an attachment of *message* (as REST tells it), or of what was forwarded with it.

    Raises `AttachmentUnavailable` when it has been taken out.
    """
    snapshots = [one.get("message", {}) for one in message.get("message_snapshots") or ()]
    for holder in (message, *snapshots):
        for file in holder.get("attachments") or ():
            if str(file.get("id")) == str(attachment_id):
                return str(file["url"])
    raise AttachmentUnavailable("That file is no longer in its message.")


def location(url: str, api_base: str) -> Location:
    """*url* with the hosts that may be asked for it: Discord's, or where the settings say that its API is.

    Raises `AttachmentUnavailable` for any other address.
    """
    asked, api = urlsplit(url), urlsplit(api_base)
    if asked.scheme == "https" and asked.hostname in CDN_HOSTS:
        return Location(url, CDN_HOSTS)
    if asked.hostname and asked.hostname == api.hostname and api.hostname != _OWN_HOST:
        return Location(url, (asked.hostname,), trusts_private=True)
    raise AttachmentUnavailable("That file is not stored on Discord.")


# ---- convert ----


CONNECTOR = "discord"

UNFINISHED_UNITS = 1900
"""From this size on a message may be the first part of one that its author had to cut by hand."""

_SPOKEN = frozenset({discord.MessageType.default, discord.MessageType.reply})

Place = (
    discord.TextChannel
    | discord.VoiceChannel
    | discord.StageChannel
    | discord.Thread
    | discord.DMChannel
    | discord.GroupChannel
    | discord.PartialMessageable
)
"""Where messages are said."""


def from_message(message: discord.Message, me: int, kind: InboundKind = InboundKind.MESSAGE) -> InboundMessage | None:
    """What *message* says to the bot whose user id is *me*, or None for what is no concern of the runtime:
    its own messages and notes of Discord's ("… joined", "… pinned a message")."""
    if message.author.id == me or message.type not in _SPOKEN:
        return None
    attachments = _attachments(message)
    quote = _quote(message)
    shown = shown_in(message)
    if not message.content and not shown and not attachments and quote is None:
        return None
    text, mentioned = without_own_mentions(message.content, _identity(message, me))
    said = [with_names(text, _names(message))] if text else []
    direct = isinstance(message.channel, discord.DMChannel)
    called, in_our_thread = direct or mentioned or _calls(message, me), _takes_part(message.channel)
    return InboundMessage(
        connector=CONNECTOR,
        external_id=str(message.channel.id),
        message_id=str(message.id),
        author=_author(message),
        text="\n".join([*title_of_post(message), *said, *shown]),
        kind=kind,
        sent_at=_convert_moment(message, kind),
        direct=direct,
        public=is_public(message.channel),
        place=parent_of(message.channel),
        addressed=called or in_our_thread,
        by_thread_only=in_our_thread and not called,
        quote=quote,
        attachments=attachments,
        looks_unfinished=_is_forwarded(message) or utf16_units(message.content) >= UNFINISHED_UNITS,
        routes=routes_of(message.channel, message.author.id),
        default_workspace=default_workspace(message.channel, message.author.id),
        reply_hint=REPLY_HINT,
    )


def from_edit(event: discord.RawMessageUpdateEvent, me: int) -> InboundMessage | None:
    """An edit by its author. Discord sends the same event when it has made a preview of a link, or when somebody
    pinned the message or took its preview away: then None."""
    if event.message.edited_at is None:
        return None
    before = event.cached_message
    if before is not None and _said(before) == _said(event.message):
        return None
    return from_message(event.message, me, InboundKind.EDIT)


def from_delete(message_id: int, message: discord.Message | None, place: Place, me: int) -> InboundMessage | None:
    """*message_id* was deleted in *place*; *message* is what it was, where that is remembered.

    Discord does not say whose it was: a direct message that is not remembered belongs to nobody (None).
    """
    if message is not None and message.author.id == me:
        return None
    if message is None and guild_id_of(place) is None:
        return None
    return InboundMessage(
        connector=CONNECTOR,
        external_id=str(place.id),
        message_id=str(message_id),
        author=_author(message) if message is not None else Author(id=""),
        text="",
        kind=InboundKind.DELETE,
        direct=isinstance(place, discord.DMChannel),
        addressed=False,
        routes=routes_of(place, message.author.id if message is not None else 0),
        default_workspace=default_workspace(place, message.author.id if message is not None else 0),
        reply_hint=REPLY_HINT,
    )


def from_reaction(event: discord.RawReactionActionEvent, place: Place, me: int) -> InboundMessage | None:
    """A reaction that somebody put on a message or took away."""
    if event.user_id == me:
        return None
    who = event.member
    emoji = f":{event.emoji.name}:" if event.emoji.is_custom_emoji() else event.emoji.name
    is_new = event.event_type == "REACTION_ADD"
    return InboundMessage(
        connector=CONNECTOR,
        external_id=str(place.id),
        message_id=str(event.message_id),
        author=Author(str(event.user_id), who.display_name if who else "", who.bot if who else False),
        text="",
        kind=InboundKind.REACTION,
        direct=guild_id_of(place) is None,
        public=is_public(place),
        place=parent_of(place),
        addressed=False,
        reaction=emoji if is_new else "",
        unreacted=() if is_new else (emoji,),
        routes=routes_of(place, event.user_id),
        default_workspace=default_workspace(place, event.user_id),
        reply_hint=REPLY_HINT,
    )


def from_membership(
    guild: discord.Guild, me: int, kind: Literal[InboundKind.JOINED, InboundKind.LEFT]
) -> InboundMessage:
    """The bot came to a server or left it. The place is where the server greets people, if anywhere."""
    greets_in = guild.system_channel
    member = guild.get_member(me) if kind is InboundKind.JOINED else None
    since = member.joined_at if member else None
    return InboundMessage(
        connector=CONNECTOR,
        external_id=str(greets_in.id if greets_in else guild.id),
        message_id=f"{kind.value}-{guild.id}" + (f"-{since.timestamp():.0f}" if since else ""),
        author=Author(id=""),
        text="",
        kind=kind,
        sent_at=since,
        addressed=False,
        routes=routes_of(greets_in, 0) if greets_in else (f"{CONNECTOR}:{guild.id}",),
        default_workspace=f"{CONNECTOR}-{guild.id}",
        reply_hint=REPLY_HINT,
    )


def _said(message: discord.Message) -> tuple[object, ...]:
    return message.content, [file.id for file in message.attachments]


def _identity(message: discord.Message, me: int) -> Identity:
    role = message.guild.self_role if message.guild else None
    return Identity(me, role.id if role else None)


def _convert_moment(message: discord.Message, kind: InboundKind) -> datetime | None:
    return message.edited_at if kind is InboundKind.EDIT else message.created_at


def _author(message: discord.Message) -> Author:
    who = message.author
    return Author(str(who.id), who.display_name, is_bot=who.bot or message.webhook_id is not None)


def _calls(message: discord.Message, me: int) -> bool:
    """Whether it is a reply to the bot. (With its ping off, a reply does not mention whom it answers.)"""
    replied = _replied_to(message)
    return replied is not None and replied.author.id == me


def _takes_part(place: Place) -> bool:
    """Whether it is a thread that the bot is a member of: it was called there, or has spoken there."""
    return isinstance(place, discord.Thread) and place.me is not None


def _names(message: discord.Message) -> Names:
    guild = message.guild
    channels: Iterable[Any] = (*guild.channels, *guild.threads) if guild and "<#" in message.content else ()
    return Names(
        users={user.id: user.display_name for user in message.mentions},
        roles={role.id: role.name for role in message.role_mentions},
        channels={channel.id: channel.name for channel in channels},
    )


def _is_forwarded(message: discord.Message) -> bool:
    return bool(message.message_snapshots)


def _replied_to(message: discord.Message) -> discord.Message | None:
    """What it answers: as Discord sent it along, or as it is remembered."""
    if message.reference is None:
        return None
    resolved = message.reference.resolved
    return resolved if isinstance(resolved, discord.Message) else message.reference.cached_message


def _quote(message: discord.Message) -> Quote | None:
    if message.message_snapshots:
        text = "\n\n".join(words for snapshot in message.message_snapshots if (words := words_of(snapshot)))
        return Quote(author="", text=with_names(text, _names(message))) if text else None
    replied = _replied_to(message)
    words = without_sources(words_of(replied)) if replied is not None else ""
    if replied is None or not words:
        return None
    return Quote(replied.author.display_name, with_names(words, _names(replied)), str(replied.id))


def _attachments(message: discord.Message) -> tuple[Attachment, ...]:
    forwarded = [(file, snapshot.flags) for snapshot in message.message_snapshots for file in snapshot.attachments]
    return tuple(
        Attachment(
            _kind(file, flags.voice),
            file.filename,
            _media_type(file),
            size_bytes=file.size,
            handle=handle_of(message.channel.id, message.id, file.id),
        )
        for file, flags in (*((file, message.flags) for file in message.attachments), *forwarded)
    )


def _media_type(file: discord.Attachment) -> str:
    return (file.content_type or "").partition(";")[0].strip()


def _kind(file: discord.Attachment, is_voice: bool) -> Literal["document", "image", "voice", "other"]:
    match _media_type(file).partition("/")[0]:
        case "image":
            return "image"
        case "audio" if is_voice:
            return "voice"
        case "audio" | "video":
            return "other"
        case _:
            return "document"


def guild_id_of(place: Place) -> int | None:
    """The server of *place*; None for direct messages."""
    if isinstance(place, discord.PartialMessageable):
        return place.guild_id
    return None if isinstance(place, (discord.DMChannel, discord.GroupChannel)) else place.guild.id


def is_public(place: Place) -> bool:
    """Whether everybody on the server may read *place*, by the permissions of @everyone there. Private threads are for
    their members; of what Discord did not describe nothing is known."""
    if isinstance(place, discord.Thread):
        parent = place.parent
        return place.type is not discord.ChannelType.private_thread and parent is not None and _may_all_read(parent)
    return isinstance(place, discord.abc.GuildChannel) and _may_all_read(place)


def _may_all_read(channel: discord.abc.GuildChannel) -> bool:
    everyone = channel.guild.get_role(channel.guild.id)
    known = channel.guild.get_channel(channel.id)
    if everyone is None or known is None:  # a command's own description of its channel leaves out who is kept away
        return False
    granted = known.permissions_for(everyone)
    return granted.view_channel and granted.read_message_history


def parent_of(place: Place) -> str:
    """The channel whose readers read *place*, too: that of a thread which is not private; empty where there is none."""
    is_open = isinstance(place, discord.Thread) and place.type is not discord.ChannelType.private_thread
    return str(place.parent_id) if isinstance(place, discord.Thread) and is_open else ""


def routes_of(place: Place, user_id: int) -> tuple[str, ...]:
    """Under which keys an operator may route *place*, most specific first; a direct message also by its person."""
    guild = guild_id_of(place)
    if guild is None:
        return (f"{CONNECTOR}:{place.id}", f"{CONNECTOR}:dm-{user_id}")
    whole = f"{CONNECTOR}:{guild}"
    parents = (f"{whole}/{place.parent_id}",) if isinstance(place, discord.Thread) else ()
    return (f"{whole}/{place.id}", *parents, whole)


def default_workspace(place: Place, user_id: int) -> str:
    """The workspace of *place* alone; in direct messages that of the person."""
    # A user's id may be a guild's too: they are numbered apart.
    guild = guild_id_of(place)
    return f"{CONNECTOR}-dm-{user_id}" if guild is None else f"{CONNECTOR}-{guild}"
