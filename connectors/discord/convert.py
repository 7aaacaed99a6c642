"""Discord's events as our nouns, and our parts as bodies of Discord's calls. Pure.

A thread is a channel of its own on Discord, so that the external id of a place is always one channel id.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal

import discord

from connectors.discord.mentions import Identity, Names, with_names, without_own_mentions
from connectors.message import (
    Attachment,
    Author,
    InboundKind,
    InboundMessage,
    OutboundMessage,
    OutboundPart,
    Quote,
)
from connectors.text import discord_markdown
from connectors.text.form import parse
from connectors.text.parts import parts
from connectors.text.split import utf16_units

CONNECTOR = "discord"

MAX_TEXT_UNITS = 2000
"""Reference, "Create Message": content of up to 2000 characters. It does not say which; counted in UTF-16
code units a text is within the limit whatever is meant."""

UNFINISHED_UNITS = 1900
"""From this size on a message may be the first part of one that its author had to cut by hand."""

NONCE_CHARACTERS = 25
"""Reference, "Create Message": a nonce has at most 25 characters."""

REPLY_HINT = "Write for a chat: short paragraphs and lists; small tables only."

_SUPPRESS_EMBEDS = 1 << 2
"""Reference, "Message Flags"."""

_NOBODY: dict[str, list[str]] = {"parse": []}
_SPOKEN = frozenset({discord.MessageType.default, discord.MessageType.reply})
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Zs", "Zl", "Zp"})

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
    if not message.content and not attachments and quote is None:
        return None
    text, mentioned = without_own_mentions(message.content, _identity(message, me))
    direct = isinstance(message.channel, discord.DMChannel)
    return InboundMessage(
        connector=CONNECTOR,
        external_id=str(message.channel.id),
        message_id=str(message.id),
        author=_author(message),
        text=with_names(text, _names(message)),
        kind=kind,
        sent_at=_moment(message, kind),
        direct=direct,
        addressed=direct or mentioned or _calls(message, me) or _takes_part(message.channel),
        quote=quote,
        attachments=attachments,
        looks_unfinished=_is_forwarded(message) or utf16_units(message.content) >= UNFINISHED_UNITS,
        routes=_routes(message.channel),
        default_workspace=_default_workspace(message.channel, message.author.id),
        reply_hint=REPLY_HINT,
    )


def from_edit(event: discord.RawMessageUpdateEvent, me: int) -> InboundMessage | None:
    """An edit by its author. Discord sends the same event when it has made a preview of a link: then None."""
    edited_at = event.message.edited_at
    before = event.cached_message
    if edited_at is None or (before is not None and before.edited_at == edited_at):
        return None
    return from_message(event.message, me, InboundKind.EDIT)


def from_delete(message_id: int, message: discord.Message | None, place: Place, me: int) -> InboundMessage | None:
    """*message_id* was deleted in *place*; *message* is what it was, where that is remembered.

    Discord does not say whose it was: a direct message that is not remembered belongs to nobody (None).
    """
    if message is not None and message.author.id == me:
        return None
    if message is None and _guild_id(place) is None:
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
        routes=_routes(place),
        default_workspace=_default_workspace(place, message.author.id if message is not None else 0),
        reply_hint=REPLY_HINT,
    )


def from_reaction(event: discord.RawReactionActionEvent, place: Place, me: int) -> InboundMessage | None:
    """A reaction that somebody put on a message or took away."""
    if event.user_id == me:
        return None
    who = event.member
    emoji = f":{event.emoji.name}:" if event.emoji.is_custom_emoji() else event.emoji.name
    return InboundMessage(
        connector=CONNECTOR,
        external_id=str(place.id),
        message_id=str(event.message_id),
        author=Author(str(event.user_id), who.display_name if who else "", who.bot if who else False),
        text="",
        kind=InboundKind.REACTION,
        direct=_guild_id(place) is None,
        addressed=False,
        reaction=emoji if event.event_type == "REACTION_ADD" else "",
        routes=_routes(place),
        default_workspace=_default_workspace(place, event.user_id),
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
        routes=_routes(greets_in) if greets_in else (f"{CONNECTOR}:{guild.id}",),
        default_workspace=f"{CONNECTOR}-{guild.id}",
        reply_hint=REPLY_HINT,
    )


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
    resolved = message.reference.resolved if message.reference is not None else None
    return resolved if isinstance(resolved, discord.Message) else None


def _quote(message: discord.Message) -> Quote | None:
    if message.message_snapshots:
        text = "\n\n".join(snapshot.content for snapshot in message.message_snapshots if snapshot.content)
        return Quote(author="", text=with_names(text, _names(message))) if text else None
    replied = _replied_to(message)
    if replied is None or not replied.content:
        return None
    return Quote(author=replied.author.display_name, text=with_names(replied.content, _names(replied)))


def _attachments(message: discord.Message) -> tuple[Attachment, ...]:
    forwarded = [file for snapshot in message.message_snapshots for file in snapshot.attachments]
    files = [
        Attachment(
            _kind(file, message.flags.voice), file.filename, _media_type(file), size_bytes=file.size, handle=file.url
        )
        for file in (*message.attachments, *forwarded)
    ]
    stickers = [Attachment("other", f"sticker {sticker.name}", handle=sticker.url) for sticker in message.stickers]
    return (*files, *stickers)


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


def _guild_id(place: Place) -> int | None:
    if isinstance(place, discord.PartialMessageable):
        return place.guild_id
    return None if isinstance(place, (discord.DMChannel, discord.GroupChannel)) else place.guild.id


def _routes(place: Place) -> tuple[str, ...]:
    guild = _guild_id(place)
    if guild is None:
        return (f"{CONNECTOR}:{place.id}",)
    whole = f"{CONNECTOR}:{guild}"
    parents = (f"{whole}/{place.parent_id}",) if isinstance(place, discord.Thread) else ()
    return (f"{whole}/{place.id}", *parents, whole)


def _default_workspace(place: Place, user_id: int) -> str:
    # A user's id may be a guild's too: they are numbered apart.
    guild = _guild_id(place)
    return f"{CONNECTOR}-dm-{user_id}" if guild is None else f"{CONNECTOR}-{guild}"


def to_parts(message: OutboundMessage) -> tuple[OutboundPart, ...]:
    """*message* as Discord's kind of Markdown, within its limit; none for a text in which nothing can be seen.

    Parts without anything visible are left out: Discord refuses them as empty. Surrogates without
    their other half, which no protocol can carry, are replaced by U+FFFD.
    """
    text = message.text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    cut = parts(parse(text), MAX_TEXT_UNITS, utf16_units, discord_markdown.render)
    texts = [part for part in cut if _can_be_seen(part)]
    return tuple(
        OutboundPart(index, len(texts), part, f"{message.turn_id}.{message.kind}.{index}", payload="markdown")
        for index, part in enumerate(texts)
    )


def _can_be_seen(text: str) -> bool:
    return any(unicodedata.category(character) not in _INVISIBLE for character in text)


def nonce_of(part: OutboundPart) -> str:
    """*part*'s token in at most `NONCE_CHARACTERS`, the same for the same token."""
    return hashlib.sha256(part.token.encode("utf-8", "surrogatepass")).hexdigest()[:NONCE_CHARACTERS]


def to_send(message: OutboundMessage, part: OutboundPart) -> dict[str, Any]:
    """The body that says *part*, once for one token; the first part hangs at the message that it replies to.

    Raises `ValueError` when that message's id is none of Discord's.
    """
    body: dict[str, Any] = {**_body(part), "nonce": nonce_of(part), "enforce_nonce": True}
    if message.reply_to is not None and part.index == 0:
        body["message_reference"] = {"message_id": str(int(message.reply_to)), "fail_if_not_exists": False}
    return body


def to_edit(part: OutboundPart) -> dict[str, Any]:
    """The body that replaces a message by *part*."""
    return _body(part)


def _body(part: OutboundPart) -> dict[str, Any]:
    return {"content": part.text, "allowed_mentions": _NOBODY, "flags": _SUPPRESS_EMBEDS}
