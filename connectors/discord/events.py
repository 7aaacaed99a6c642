"""Discord's events as inbound messages. Pure: it reads discord.py's memory and does no I/O.

`to_inbound` is the entry point. A thread is a channel of its own on Discord, so the external id of a place is always
one channel id.
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

CONNECTOR = "discord"

UNFINISHED_UNITS = 1900
"""A message of this size or more may be the first part of a text that its author had to cut by hand."""

CDN_HOSTS = ("cdn.discordapp.com", "media.discordapp.net")

Place = (
    discord.TextChannel
    | discord.VoiceChannel
    | discord.StageChannel
    | discord.Thread
    | discord.DMChannel
    | discord.GroupChannel
    | discord.PartialMessageable
)
"""A channel that has messages."""

_WRITTEN = frozenset({discord.MessageType.default, discord.MessageType.reply})
_OWN_HOST = "discord.com"
_MAX_DESCRIPTION_CHARACTERS = 500
"""The limit for the description of one embed or poll."""


def to_inbound(client: discord.Client, me: int, event: str, args: tuple[Any, ...]) -> tuple[InboundMessage, ...]:
    """Convert *event* (discord.py's name) with *args*, for the bot whose user id is *me*. Empty for other events."""
    match event:
        case "message":
            found = [from_message(args[0], me)]
        case "raw_message_edit":
            found = [_from_edit(args[0], me)]
        case "raw_message_delete":
            deletion: discord.RawMessageDeleteEvent = args[0]
            place = _place(client, deletion.channel_id, deletion.guild_id)
            found = [_from_delete(deletion.message_id, deletion.cached_message, place, me)]
        case "raw_bulk_message_delete":
            deletions: discord.RawBulkMessageDeleteEvent = args[0]
            place = _place(client, deletions.channel_id, deletions.guild_id)
            cached = {message.id: message for message in deletions.cached_messages}
            found = [_from_delete(deleted, cached.get(deleted), place, me) for deleted in sorted(deletions.message_ids)]
        case "raw_reaction_add" | "raw_reaction_remove":
            reaction: discord.RawReactionActionEvent = args[0]
            found = [_from_reaction(reaction, _place(client, reaction.channel_id, reaction.guild_id), me)]
        case "guild_join":
            found = [_from_membership(args[0], me, InboundKind.JOINED)]
        case "guild_remove":
            found = [_from_membership(args[0], me, InboundKind.LEFT)]
        case _:
            found = []
    return tuple(message for message in found if message is not None)


def _place(client: discord.Client, channel_id: int, guild_id: int | None) -> Place:
    channel = client.get_channel(channel_id)
    if isinstance(channel, discord.TextChannel | discord.VoiceChannel | discord.StageChannel | discord.Thread):
        return channel
    return client.get_partial_messageable(channel_id, guild_id=guild_id)


# The kinds of events


def from_message(message: discord.Message, me: int, kind: InboundKind = InboundKind.MESSAGE) -> InboundMessage | None:
    """Convert *message*, or return None if the runtime does not need it.

    It does not need the bot's own messages and Discord's notes ("… joined", "… pinned a message").
    """
    if message.author.id == me or message.type not in _WRITTEN:
        return None
    attachments = _attachments(message)
    quote = _quote(message)
    descriptions = _descriptions(message)
    if not message.content and not descriptions and not attachments and quote is None:
        return None
    role = message.guild.self_role if message.guild else None
    text, mentioned = without_own_mentions(message.content, Identity(me, role.id if role else None))
    written = [with_names(text, _names(message))] if text else []
    replied = _replied_message(message)
    # A reply without ping does not mention the author of the message to which it replies.
    replies_to_us = replied is not None and replied.author.id == me
    called = mentioned or replies_to_us or isinstance(message.channel, discord.DMChannel)
    # The bot is a member of a thread if somebody called it there, or if it has written there.
    in_own_thread = isinstance(message.channel, discord.Thread) and message.channel.me is not None
    return inbound(
        message.channel,
        message.author.id,
        message_id=str(message.id),
        author=_author(message),
        text="\n".join([*_post_title(message), *written, *descriptions]),
        kind=kind,
        sent_at=message.edited_at if kind is InboundKind.EDIT else message.created_at,
        addressed=called or in_own_thread,
        by_thread_only=in_own_thread and not called,
        quote=quote,
        attachments=attachments,
        looks_unfinished=bool(message.message_snapshots) or utf16_units(message.content) >= UNFINISHED_UNITS,
    )


def _from_edit(event: discord.RawMessageUpdateEvent, me: int) -> InboundMessage | None:
    """Convert an edit by the author, or return None.

    Discord sends the same event for a new link preview, a removed one, and a pin.
    """
    if event.message.edited_at is None:
        return None
    before = event.cached_message
    if before is not None and _editable(before) == _editable(event.message):
        return None
    return from_message(event.message, me, InboundKind.EDIT)


def _editable(message: discord.Message) -> tuple[object, ...]:
    return message.content, [file.id for file in message.attachments]


def _from_delete(message_id: int, message: discord.Message | None, place: Place, me: int) -> InboundMessage | None:
    """Convert the deletion of *message_id*. *message* is its content, if discord.py still has it in memory.

    Discord does not name the author. So return None for a direct message that is no longer in memory.
    """
    if message is not None and message.author.id == me:
        return None
    if message is None and guild_id_of(place) is None:
        return None
    return inbound(
        place,
        message.author.id if message is not None else 0,
        message_id=str(message_id),
        author=_author(message) if message is not None else Author(id=""),
        kind=InboundKind.DELETE,
        addressed=False,
    )


def _from_reaction(event: discord.RawReactionActionEvent, place: Place, me: int) -> InboundMessage | None:
    if event.user_id == me:
        return None
    member = event.member
    emoji = f":{event.emoji.name}:" if event.emoji.is_custom_emoji() else event.emoji.name
    is_new = event.event_type == "REACTION_ADD"
    return inbound(
        place,
        event.user_id,
        message_id=str(event.message_id),
        author=Author(str(event.user_id), member.display_name if member else "", member.bot if member else False),
        kind=InboundKind.REACTION,
        addressed=False,
        reaction=emoji if is_new else "",
        unreacted=() if is_new else (emoji,),
    )


def _from_membership(
    guild: discord.Guild, me: int, kind: Literal[InboundKind.JOINED, InboundKind.LEFT]
) -> InboundMessage:
    """Convert the bot's joining or leaving. The place is the channel in which the server greets people, if any."""
    channel = guild.system_channel
    member = guild.get_member(me) if kind is InboundKind.JOINED else None
    since = member.joined_at if member else None
    return InboundMessage(
        connector=CONNECTOR,
        external_id=str(channel.id if channel else guild.id),
        message_id=f"{kind.value}-{guild.id}" + (f"-{since.timestamp():.0f}" if since else ""),
        author=Author(id=""),
        text="",
        kind=kind,
        sent_at=since,
        addressed=False,
        routes=routes_of(channel, 0) if channel else (f"{CONNECTOR}:{guild.id}",),
        default_workspace=f"{CONNECTOR}-{guild.id}",
        reply_hint=REPLY_HINT,
    )


def _author(message: discord.Message) -> Author:
    author = message.author
    return Author(str(author.id), author.display_name, is_bot=author.bot or message.webhook_id is not None)


def _replied_message(message: discord.Message) -> discord.Message | None:
    """Return the message to which *message* replies, if Discord sent it along or discord.py has it in memory."""
    if message.reference is None:
        return None
    resolved = message.reference.resolved
    return resolved if isinstance(resolved, discord.Message) else message.reference.cached_message


def _quote(message: discord.Message) -> Quote | None:
    """Return what *message* forwards, or else the message to which it replies."""
    if message.message_snapshots:
        texts = [text for snapshot in message.message_snapshots if (text := _full_text(snapshot))]
        return Quote(author="", text=with_names("\n\n".join(texts), _names(message))) if texts else None
    replied = _replied_message(message)
    if replied is None or not (text := without_sources(_full_text(replied))):
        return None
    return Quote(replied.author.display_name, with_names(text, _names(replied)), str(replied.id))


# Places


def inbound(
    place: Place, user_id: int, *, message_id: str, author: Author, kind: InboundKind, text: str = "", **details: Any
) -> InboundMessage:
    """Build a message with the fields that follow from its place. *details* are the other fields.

    ``routes`` begin with the most specific one. Direct messages can also be routed by the person.
    """
    guild = guild_id_of(place)
    is_open_thread = isinstance(place, discord.Thread) and place.type is not discord.ChannelType.private_thread
    return InboundMessage(
        connector=CONNECTOR,
        external_id=str(place.id),
        message_id=message_id,
        author=author,
        text=text,
        kind=kind,
        direct=guild is None and not isinstance(place, discord.GroupChannel),
        public=is_public(place),
        # The readers of a channel also read its threads, except the private ones.
        place=str(place.parent_id) if isinstance(place, discord.Thread) and is_open_thread else "",
        routes=routes_of(place, user_id),
        default_workspace=default_workspace(place, user_id),
        reply_hint=REPLY_HINT,
        **details,
    )


def guild_id_of(place: Place) -> int | None:
    """Return the server of *place*; None for direct messages."""
    if isinstance(place, discord.PartialMessageable):
        return place.guild_id
    return None if isinstance(place, (discord.DMChannel, discord.GroupChannel)) else place.guild.id


def is_public(place: Place) -> bool:
    """Return whether everybody on the server may read *place*, by the permissions of @everyone.

    Private threads are for their members. A place that Discord did not describe counts as private.
    """
    if isinstance(place, discord.Thread):
        parent = place.parent
        return place.type is not discord.ChannelType.private_thread and parent is not None and _everyone_reads(parent)
    return isinstance(place, discord.abc.GuildChannel) and _everyone_reads(place)


def _everyone_reads(channel: discord.abc.GuildChannel) -> bool:
    everyone = channel.guild.get_role(channel.guild.id)
    known = channel.guild.get_channel(channel.id)
    if everyone is None or known is None:  # a command's own description of its channel omits who is kept out
        return False
    permissions = known.permissions_for(everyone)
    return permissions.view_channel and permissions.read_message_history


def routes_of(place: Place, user_id: int) -> tuple[str, ...]:
    """Return the keys by which an operator may route *place*, most specific first."""
    guild = guild_id_of(place)
    if guild is None:
        return (f"{CONNECTOR}:{place.id}", f"{CONNECTOR}:dm-{user_id}")
    server = f"{CONNECTOR}:{guild}"
    parents = (f"{server}/{place.parent_id}",) if isinstance(place, discord.Thread) else ()
    return (f"{server}/{place.id}", *parents, server)


def default_workspace(place: Place, user_id: int) -> str:
    """Return the workspace of the server alone, or of the person in direct messages.

    Users and servers are numbered apart: both may have the same id.
    """
    guild = guild_id_of(place)
    return f"{CONNECTOR}-dm-{user_id}" if guild is None else f"{CONNECTOR}-{guild}"


# Text, and short descriptions in brackets of content that is not text


def _full_text(message: discord.Message | discord.MessageSnapshot) -> str:
    """Return the text and the descriptions of *message*, with ids in place of names."""
    return "\n".join([*([message.content] if message.content else []), *_descriptions(message)])


def _descriptions(message: discord.Message | discord.MessageSnapshot) -> list[str]:
    descriptions = [f"sticker: {sticker.name}" for sticker in message.stickers]
    descriptions += [_describe_embed(embed) for embed in message.embeds]
    if isinstance(message, discord.Message) and message.poll is not None:
        answers = " / ".join(answer.text for answer in message.poll.answers if answer.text)
        descriptions.append(f"poll: {_shorten(f'{message.poll.question} – {answers}')}")
    return [f"[{description}]" for description in descriptions if description]


def _describe_embed(embed: discord.Embed) -> str:
    """Describe an embed of an app. Other embeds are Discord's link previews, which the author did not write."""
    if embed.type != "rich":
        return ""
    fields = [f"{field.name}: {field.value}" for field in embed.fields]
    text = " – ".join(" ".join(part.split()) for part in (embed.title, embed.description, *fields) if part)
    return f"embed: {_shorten(text)}" if text else ""


def _shorten(text: str) -> str:
    limit = _MAX_DESCRIPTION_CHARACTERS
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _post_title(message: discord.Message) -> list[str]:
    """Return the title of the forum post that *message* begins, in brackets; empty for other messages."""
    thread = message.channel
    if not isinstance(thread, discord.Thread) or thread.id != message.id:
        return []
    return [f"[post: {thread.name}]"] if isinstance(thread.parent, discord.ForumChannel) else []


# Mentions (Reference, "Message Formatting")

_REFERENCE = re.compile(
    r"<(?:"
    r"@!?(?P<user>\d+)|@&(?P<role>\d+)|\#(?P<channel>\d+)"
    r"|/(?P<command>[^:<>\n]+):\d+|a?:(?P<emoji>\w+):\d+|t:(?P<time>-?\d{1,12})(?::[tTdDfFRsS])?"
    r")>"
)


@dataclass(frozen=True, slots=True)
class Identity:
    """The bot's own account, and the role that Discord keeps for it on the server.

    Discord's apps offer both to people who type the bot's name, so either one calls it.
    """

    user: int
    role: int | None = None


@dataclass(frozen=True, slots=True)
class Names:
    """The names for the ids in a message, without ``@`` or ``#``."""

    users: Mapping[int, str] = field(default_factory=dict)
    roles: Mapping[int, str] = field(default_factory=dict)
    channels: Mapping[int, str] = field(default_factory=dict)


def _names(message: discord.Message) -> Names:
    guild = message.guild
    channels: Iterable[Any] = (*guild.channels, *guild.threads) if guild and "<#" in message.content else ()
    return Names(
        users={user.id: user.display_name for user in message.mentions},
        roles={role.id: role.name for role in message.role_mentions},
        channels={channel.id: channel.name for channel in channels},
    )


def without_own_mentions(text: str, me: Identity) -> tuple[str, bool]:
    """Remove the bot's name from *text*. Return the rest, and whether the text mentioned the bot."""
    fragments: list[str] = []
    end = 0
    for match in _REFERENCE.finditer(text):
        user, role = match["user"], match["role"]
        if (user is not None and int(user) == me.user) or (role is not None and int(role) == me.role):
            fragments.append(text[end : match.start()])
            end = match.end()
    if not fragments:
        return text, False
    return join_around([*fragments, text[end:]]), True


def with_names(text: str, names: Names) -> str:
    """Replace the ids in *text* by names. An unknown id stays."""
    return _REFERENCE.sub(lambda match: _name_of(match, names), text)


def _name_of(match: re.Match[str], names: Names) -> str:
    kinds: tuple[tuple[str, str, Mapping[int, str]], ...] = (
        ("user", "@", names.users),
        ("role", "@", names.roles),
        ("channel", "#", names.channels),
    )
    for kind, sign, known in kinds:
        if match[kind] is not None:
            name = known.get(int(match[kind]))
            return sign + name if name else match[0]
    if match["command"] is not None:
        return f"/{match['command']}"
    if match["emoji"] is not None:
        return f":{match['emoji']}:"
    try:
        return datetime.fromtimestamp(int(match["time"]), UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, OSError, ValueError):
        return match[0]


# Files
#
# Discord signs the URLs of its files for about a day, and a file may be needed later. So the handle of a file names
# its message. When the file is needed, the message is read again and has fresh URLs.


def _attachments(message: discord.Message) -> tuple[Attachment, ...]:
    files = [(file, message.flags) for file in message.attachments]
    files += [(file, snapshot.flags) for snapshot in message.message_snapshots for file in snapshot.attachments]
    return tuple(
        Attachment(
            _kind(file, flags.voice),
            file.filename,
            _media_type(file),
            size_bytes=file.size,
            handle=handle_of(message.channel.id, message.id, file.id),
        )
        for file, flags in files
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


def handle_of(channel_id: int, message_id: int, attachment_id: int) -> str:
    """Return the handle of a file: ``<channel>/<message>/<attachment>``."""
    return f"{channel_id}/{message_id}/{attachment_id}"


def read_handle(handle: str) -> tuple[int, int, int]:
    """Return the channel, message and attachment of *handle*. Raises `AttachmentUnavailable`."""
    parts = handle.split("/")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() for part in parts):
        raise AttachmentUnavailable("I cannot find that file on Discord.")
    channel_id, message_id, attachment_id = map(int, parts)
    return channel_id, message_id, attachment_id


def url_in(message: Mapping[str, Any], attachment_id: int) -> str:
    """Return the URL of a file of *message* (as REST gives it), or of a message that it forwards.

    Raises `AttachmentUnavailable` if the file was removed from the message.
    """
    snapshots = [snapshot.get("message", {}) for snapshot in message.get("message_snapshots") or ()]
    for holder in (message, *snapshots):
        for file in holder.get("attachments") or ():
            if str(file.get("id")) == str(attachment_id):
                return str(file["url"])
    raise AttachmentUnavailable("That file is no longer in its message.")


def location(url: str, api_base: str) -> Location:
    """Return *url* with the hosts that may be asked for it: Discord's, or the host that the settings name for the API.

    Raises `AttachmentUnavailable` for any other URL.
    """
    file, api = urlsplit(url), urlsplit(api_base)
    if file.scheme == "https" and file.hostname in CDN_HOSTS:
        return Location(url, CDN_HOSTS)
    if file.hostname and file.hostname == api.hostname and api.hostname != _OWN_HOST:
        return Location(url, (file.hostname,), trusts_private=True)
    raise AttachmentUnavailable("That file is not stored on Discord.")
