"""Telegram's updates as our nouns, and our parts as Telegram's methods. Pure.

Telegram counts text and the offsets of entities in UTF-16 code units (Bot API, "MessageEntity").
"""

from __future__ import annotations

import unicodedata
from dataclasses import replace
from typing import Literal

from aiogram.methods import EditMessageText, SendChatAction, SendMessage, SetMessageReaction
from aiogram.types import (
    Chat,
    ChatMemberUpdated,
    LinkPreviewOptions,
    Message,
    MessageReactionUpdated,
    ReactionTypeEmoji,
    ReplyParameters,
    Update,
    User,
)

from connectors.message import (
    Attachment,
    Author,
    InboundKind,
    InboundMessage,
    OutboundMessage,
    OutboundPart,
    Quote,
    Receipt,
)
from connectors.telegram.mentions import Identity, without_own_mentions
from connectors.text import html
from connectors.text.form import parse
from connectors.text.parts import parts
from connectors.text.split import utf16_units

CONNECTOR = "telegram"

MAX_TEXT_UNITS = 4096
"""Bot API, sendMessage: "1-4096 characters after entities parsing", counted in UTF-16 code units."""

HTML = "html"
"""The payload of a part whose text is HTML; any other is plain."""

UNFINISHED_UNITS = 4000
"""From this size on a message may be the first part of one that the sender's app had to cut: apps cut a
long text at a word somewhat before the limit, so the limit itself is too late to look for."""

ALLOWED_UPDATES = ["message", "edited_message", "message_reaction", "my_chat_member"]
"""The updates that `to_inbound` understands; Telegram sends no others."""

REPLY_HINT = "Open with a brief acknowledgement of what was asked, then answer in short paragraphs made for a phone."

# Telegram refuses these as reactions ("REACTION_INVALID"); the nearest that it takes.
_REACTION_STAND_INS = {"✅": "👌", "⏳": "👀", "❌": "👎"}

_NO_PREVIEW = LinkPreviewOptions(is_disabled=True)
_PRESENT = frozenset({"creator", "administrator", "member", "restricted"})
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Zs", "Zl", "Zp"})


def to_inbound(update: Update, me: Identity) -> InboundMessage | None:
    """What *update* says, or None for what is no concern of the runtime (own messages, service notes)."""
    if update.message is not None:
        return _from_message(update.message, InboundKind.MESSAGE, me)
    if update.edited_message is not None:
        return _from_message(update.edited_message, InboundKind.EDIT, me)
    if update.message_reaction is not None:
        return _from_reaction(update.message_reaction, me)
    if update.my_chat_member is not None:
        return _from_membership(update.my_chat_member, update.update_id, me)
    return None


def _from_message(message: Message, kind: InboundKind, me: Identity) -> InboundMessage | None:
    author = _author(message)
    if author.id == str(me.id):
        return None
    said = message.text if message.text is not None else message.caption
    entities = (message.entities if message.text is not None else message.caption_entities) or []
    attachments = _attachments(message)
    if not said and not attachments:
        return None
    text, mentioned = without_own_mentions(said or "", entities, me)
    direct = message.chat.type == "private"
    replied = _replied_to(message)
    return InboundMessage(
        connector=CONNECTOR,
        external_id=_external_id(message.chat, message),
        message_id=str(message.message_id),
        author=author,
        text=text,
        kind=kind,
        sent_at=message.date,
        direct=direct,
        addressed=direct or mentioned or _is_from(replied, me),
        quote=_quote(message, replied),
        attachments=attachments,
        looks_unfinished=_looks_unfinished(message, said or ""),
        routes=_routes(message.chat, message),
        default_workspace=_default_workspace(message.chat),
        reply_hint=REPLY_HINT,
    )


def _from_reaction(reaction: MessageReactionUpdated, me: Identity) -> InboundMessage | None:
    actor = reaction.user or reaction.actor_chat
    if actor is None or actor.id == me.id:
        return None
    added = [r.emoji for r in reaction.new_reaction if isinstance(r, ReactionTypeEmoji)]
    return InboundMessage(
        connector=CONNECTOR,
        external_id=str(reaction.chat.id),
        message_id=str(reaction.message_id),
        author=_author_of(actor),
        text="",
        kind=InboundKind.REACTION,
        sent_at=reaction.date,
        direct=reaction.chat.type == "private",
        addressed=False,
        reaction=added[-1] if added else "",
        routes=_routes(reaction.chat),
        default_workspace=_default_workspace(reaction.chat),
        reply_hint=REPLY_HINT,
    )


def _from_membership(change: ChatMemberUpdated, update_id: int, me: Identity) -> InboundMessage | None:
    """The bot came into a chat or left it (in a private chat: the person started or blocked it)."""
    was, is_now = change.old_chat_member.status in _PRESENT, change.new_chat_member.status in _PRESENT
    if was == is_now or change.new_chat_member.user.id != me.id:
        return None
    return InboundMessage(
        connector=CONNECTOR,
        external_id=str(change.chat.id),
        message_id=f"membership-{update_id}",
        author=_author_of(change.from_user),
        text="",
        kind=InboundKind.JOINED if is_now else InboundKind.LEFT,
        sent_at=change.date,
        direct=change.chat.type == "private",
        addressed=False,
        routes=_routes(change.chat),
        default_workspace=_default_workspace(change.chat),
        reply_hint=REPLY_HINT,
    )


def _topic(message: Message | None) -> int | None:
    # In groups without topics a message_thread_id only says which message started a chain of replies.
    return message.message_thread_id if message is not None and message.is_topic_message else None


def _external_id(chat: Chat, message: Message | None = None) -> str:
    topic = _topic(message)
    return str(chat.id) if topic is None else f"{chat.id}/{topic}"


def _routes(chat: Chat, message: Message | None = None) -> tuple[str, ...]:
    place = f"{CONNECTOR}:{chat.id}"
    topic = _topic(message)
    return (place,) if topic is None else (f"{place}/{topic}", place)


def _default_workspace(chat: Chat) -> str:
    # A group's id is negative and keeps its sign, so that chat -10001 and user 10001 never meet.
    return f"{CONNECTOR}-{chat.id}"


def _author(message: Message) -> Author:
    # An anonymous admin or a channel speaks through a stand-in account that calls itself a bot.
    if message.sender_chat is not None:
        return _author_of(message.sender_chat)
    return _author_of(message.from_user) if message.from_user is not None else Author(id=str(message.chat.id))


def _author_of(who: User | Chat) -> Author:
    if isinstance(who, User):
        return Author(id=str(who.id), name=who.full_name, is_bot=who.is_bot)
    return Author(id=str(who.id), name=who.title or who.username or "")


def _replied_to(message: Message) -> Message | None:
    replied = message.reply_to_message
    # The first message of a topic "replies" to the note that the topic was created.
    return None if replied is None or replied.forum_topic_created is not None else replied


def _is_from(message: Message | None, me: Identity) -> bool:
    return message is not None and message.from_user is not None and message.from_user.id == me.id


def _quote(message: Message, replied: Message | None) -> Quote | None:
    chosen = message.quote.text if message.quote is not None else None
    if replied is None:
        return Quote(author="", text=chosen) if chosen else None
    text = chosen or replied.text or replied.caption or ""
    return Quote(author=_author(replied).name, text=text) if text else None


def _looks_unfinished(message: Message, said: str) -> bool:
    return (
        message.media_group_id is not None
        or message.forward_origin is not None
        or utf16_units(said) >= UNFINISHED_UNITS
    )


def _attachments(message: Message) -> tuple[Attachment, ...]:
    if message.photo:
        largest = max(message.photo, key=lambda size: size.width * size.height)
        return (Attachment("image", "photo.jpg", "image/jpeg", largest.file_size or 0, largest.file_id),)
    if message.voice:
        voice = message.voice
        return (Attachment("voice", "voice.ogg", voice.mime_type or "audio/ogg", voice.file_size or 0, voice.file_id),)
    if message.sticker:
        sticker = message.sticker
        return (
            Attachment("other", f"sticker {sticker.emoji or ''}".strip(), "", sticker.file_size or 0, sticker.file_id),
        )
    if message.video_note:
        note = message.video_note
        return (Attachment("other", "video note", "video/mp4", note.file_size or 0, note.file_id),)
    # An animation also comes as a document, for old clients: it is one file all the same.
    named = message.animation or message.video or message.audio or message.document
    if named is None:
        return ()
    kind: Literal["document", "other"] = "document" if named is message.document else "other"
    return (Attachment(kind, named.file_name or kind, named.mime_type or "", named.file_size or 0, named.file_id),)


def to_parts(message: OutboundMessage) -> tuple[OutboundPart, ...]:
    """*message* as HTML within Telegram's limit; none for a text in which nothing can be seen.

    Parts without anything visible are left out: Telegram refuses them as empty. Surrogates without
    their other half, which no protocol can carry, are replaced by U+FFFD.
    """
    cut = parts(parse(message.text), MAX_TEXT_UNITS, html.size, html.render)
    texts = [part for part in cut if _can_be_seen(html.seen(part))]
    return tuple(
        OutboundPart(
            index=index,
            total=len(texts),
            text=part,
            token=f"{message.turn_id}.{message.kind}.{index}",
            payload=HTML,
        )
        for index, part in enumerate(texts)
    )


def without_formatting(part: OutboundPart) -> OutboundPart:
    """*part* as plain text, with the addresses of its links as far as they find room."""
    if part.payload != HTML:
        return part
    text = html.seen_with_addresses(part.text)
    if utf16_units(text) > MAX_TEXT_UNITS:
        text = html.seen(part.text)
    return replace(part, text=text, payload="plain")


def _can_be_seen(text: str) -> bool:
    return any(unicodedata.category(character) not in _INVISIBLE for character in text)


def to_place(external_id: str) -> tuple[int, int | None]:
    """Chat and topic of an external id. Raises `ValueError` when it is none of Telegram's."""
    chat, slash, topic = external_id.partition("/")
    return int(chat), int(topic) if slash else None


def _parse_mode(part: OutboundPart) -> str | None:
    return "HTML" if part.payload == HTML else None


def to_send(message: OutboundMessage, part: OutboundPart) -> SendMessage:
    """The call that says *part* in its place; the first part hangs at the message that it replies to."""
    chat, topic = to_place(message.key.external_id)
    reply = None
    if message.reply_to is not None and part.index == 0:
        reply = ReplyParameters(message_id=int(message.reply_to), allow_sending_without_reply=True)
    return SendMessage(
        chat_id=chat,
        message_thread_id=topic,
        text=part.text,
        parse_mode=_parse_mode(part),
        link_preview_options=_NO_PREVIEW,
        reply_parameters=reply,
    )


def to_edit(message: OutboundMessage, part: OutboundPart, receipt: Receipt) -> EditMessageText:
    """The call that replaces the message of *receipt* by *part*."""
    chat, _ = to_place(message.key.external_id)
    return EditMessageText(
        chat_id=chat,
        message_id=int(receipt.message_id),
        text=part.text,
        parse_mode=_parse_mode(part),
        link_preview_options=_NO_PREVIEW,
    )


def to_typing(external_id: str) -> SendChatAction:
    """The call that shows "typing…" in a place."""
    chat, topic = to_place(external_id)
    return SendChatAction(chat_id=chat, message_thread_id=topic, action="typing")


def to_reaction(external_id: str, message_id: str, emoji: str) -> SetMessageReaction:
    """The call that puts *emoji* on a message (takes the bot's away when empty)."""
    chat, _ = to_place(external_id)
    shown = _REACTION_STAND_INS.get(emoji, emoji)
    return SetMessageReaction(
        chat_id=chat,
        message_id=int(message_id),
        reaction=[ReactionTypeEmoji(emoji=shown)] if shown else [],
    )
