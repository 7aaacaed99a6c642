"""Discord's events as our nouns. Pure.

A thread is a channel of its own on Discord, so that the external id of a place is always one channel id.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal

import discord

from connectors.discord import REPLY_HINT
from connectors.discord.attachments import handle_of
from connectors.discord.mentions import Identity, Names, with_names, without_own_mentions
from connectors.discord.words import shown_in, title_of_post, words_of
from connectors.message import Attachment, Author, InboundKind, InboundMessage, Quote
from connectors.text.sources import without_sources
from connectors.text.split import utf16_units

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
        sent_at=_moment(message, kind),
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


def _moment(message: discord.Message, kind: InboundKind) -> datetime | None:
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
