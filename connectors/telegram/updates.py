"""Telegram's updates as inbound messages. Pure.

`to_inbound` is the entry point. Telegram counts text, and the offsets of entities in it, in UTF-16 code units (Bot
API, "MessageEntity").
"""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Literal

from aiogram.types import (
    Animation,
    Audio,
    CallbackQuery,
    Chat,
    ChatMemberRestricted,
    ChatMemberUnion,
    ChatMemberUpdated,
    Document,
    Message,
    MessageEntity,
    MessageOriginChannel,
    MessageOriginChat,
    MessageOriginHiddenUser,
    MessageOriginUser,
    MessageReactionUpdated,
    ReactionTypeEmoji,
    ReactionTypeUnion,
    Update,
    User,
    Video,
)
from aiogram.utils.text_decorations import MarkdownDecoration

from connectors.message import Attachment, Author, InboundKind, InboundMessage, Quote
from connectors.telegram import REPLY_HINT
from connectors.telegram.payloads import CONNECTOR
from connectors.text import join_around, utf16_units, without_sources, wrap_text

ALLOWED_UPDATES = ["message", "edited_message", "message_reaction", "my_chat_member", "callback_query"]
"""The updates that Telegram is asked for. It sends reactions only on request. Channel posts are not requested."""

UNFINISHED_UNITS = 4000
"""A message of this size or more may be the first part of a longer text. Telegram's apps cut a long text at a word
somewhat before the limit of 4096."""

TopicOf = Callable[[int, int], int | None]
"""Returns the topic of a message (chat id, message id) if it is known. Reactions do not name the topic."""

Origin = MessageOriginUser | MessageOriginChat | MessageOriginChannel | MessageOriginHiddenUser

_PRESENT_STATUSES = frozenset({"creator", "administrator", "member"})


@dataclass(frozen=True, slots=True)
class Identity:
    """The bot's own account. ``username`` has no ``@``."""

    id: int
    username: str


def to_inbound(update: Update, me: Identity, topic_of: TopicOf = lambda _chat, _message: None) -> InboundMessage | None:
    """Convert *update*, or return None if the runtime does not need it.

    It does not need the bot's own messages, service messages, channel posts and commands for other bots.
    """
    if update.message is not None:
        return _from_message(update.message, InboundKind.MESSAGE, me)
    if update.edited_message is not None:
        return _from_message(update.edited_message, InboundKind.EDIT, me)
    if update.message_reaction is not None:
        return _from_reaction(update.message_reaction, me, topic_of)
    if update.my_chat_member is not None:
        return _from_membership(update.my_chat_member, update.update_id, me)
    if update.callback_query is not None:
        return _from_button(update.callback_query)
    return None


def chat_migration(update: Update) -> tuple[int, int] | None:
    """Return the old and the new id of a group that became a supergroup, if *update* says so."""
    message = update.message
    if message is None:
        return None
    if message.migrate_to_chat_id is not None:
        return message.chat.id, message.migrate_to_chat_id
    if message.migrate_from_chat_id is not None:
        return message.migrate_from_chat_id, message.chat.id
    return None


def topic_of_message(message: Message) -> int | None:
    """Return the topic to which *message* belongs, or None.

    In a group without topics, ``message_thread_id`` only names the message that started a chain of replies.
    """
    return message.message_thread_id if message.is_topic_message else None


# The kinds of updates


def _from_message(message: Message, kind: InboundKind, me: Identity) -> InboundMessage | None:
    author = _author(message)
    if author.id == str(me.id) or message.is_automatic_forward:
        return None
    if kind is InboundKind.EDIT and message.location is not None:
        return None  # a live location moved
    written = message.text if message.text is not None else message.caption
    entities = (message.entities if message.text is not None else message.caption_entities) or []
    files = attachments(message)
    shown = written or describe(message)
    if not shown and not files:
        return None
    text, mentioned = to_markdown(shown, entities, me)
    forwarded = message.forward_origin is not None
    addressee = Addressee.NONE if forwarded else command_addressee(written or "", entities, me)
    if addressee is Addressee.ANOTHER:
        return None
    if addressee is Addressee.US and kind is InboundKind.MESSAGE:
        kind = InboundKind.COMMAND
        text = _command(text)
    if message.forward_origin is not None:
        text = f"[forwarded from {_origin_name(message.forward_origin)}]\n{text}".rstrip()
    replied = _replied_message(message)
    replies_to_us = replied is not None and replied.from_user is not None and replied.from_user.id == me.id
    return _inbound(
        message.chat,
        topic_of_message(message),
        message_id=str(message.message_id),
        author=author,
        text=text,
        kind=kind,
        sent_at=message.date,
        addressed=message.chat.type == "private" or mentioned or replies_to_us,
        relayed=forwarded and not _forwards_own_message(message),
        quote=_quote(message, replied),
        attachments=files,
        looks_unfinished=message.media_group_id is not None
        or forwarded
        or utf16_units(written or "") >= UNFINISHED_UNITS,
    )


def _from_reaction(reaction: MessageReactionUpdated, me: Identity, topic_of: TopicOf) -> InboundMessage | None:
    actor = reaction.user or reaction.actor_chat
    if actor is None or actor.id == me.id:
        return None
    before, after = _emoji(reaction.old_reaction), _emoji(reaction.new_reaction)
    added = [emoji for emoji in after if emoji not in before]
    return _inbound(
        reaction.chat,
        topic_of(reaction.chat.id, reaction.message_id),
        message_id=str(reaction.message_id),
        author=_to_author(actor),
        kind=InboundKind.REACTION,
        sent_at=reaction.date,
        addressed=False,
        reaction=added[-1] if added else "",
        unreacted=tuple(emoji for emoji in before if emoji not in after),
    )


def _emoji(reactions: Sequence[ReactionTypeUnion]) -> list[str]:
    return [reaction.emoji for reaction in reactions if isinstance(reaction, ReactionTypeEmoji)]


def _from_membership(change: ChatMemberUpdated, update_id: int, me: Identity) -> InboundMessage | None:
    """Convert the bot's joining or leaving. In a private chat, the person started or blocked the bot."""
    before, after = _is_present(change.old_chat_member), _is_present(change.new_chat_member)
    if before == after or change.new_chat_member.user.id != me.id:
        return None
    return _inbound(
        change.chat,
        None,
        message_id=f"membership-{update_id}",
        author=_to_author(change.from_user),
        kind=InboundKind.JOINED if after else InboundKind.LEFT,
        sent_at=change.date,
        addressed=False,
    )


def _is_present(member: ChatMemberUnion) -> bool:
    # A restricted member may have left. The restriction then waits for their return.
    return member.is_member if isinstance(member, ChatMemberRestricted) else member.status in _PRESENT_STATUSES


def _from_button(query: CallbackQuery) -> InboundMessage | None:
    """Convert a pressed button. Telegram does not name the chat of a very old message: then return None."""
    message = query.message
    if message is None or not query.data:
        return None
    return _inbound(
        message.chat,
        topic_of_message(message) if isinstance(message, Message) else None,
        message_id=f"button-{query.id}",
        author=_to_author(query.from_user),
        text=query.data,
        kind=InboundKind.COMMAND,
    )


def _inbound(
    chat: Chat, topic: int | None, *, message_id: str, author: Author, kind: InboundKind, text: str = "", **details: Any
) -> InboundMessage:
    """Build a message with the fields that follow from its place. *details* are the other fields."""
    route = f"{CONNECTOR}:{chat.id}"
    return InboundMessage(
        connector=CONNECTOR,
        external_id=str(chat.id) if topic is None else f"{chat.id}/{topic}",
        message_id=message_id,
        author=author,
        text=text,
        kind=kind,
        direct=chat.type == "private",
        # Only a public supergroup or channel has a username (Bot API, "Chat"). All other chats are private.
        public=chat.type in {"supergroup", "channel"} and bool(chat.username),
        place=str(chat.id) if topic is not None else "",
        routes=(route,) if topic is None else (f"{route}/{topic}", route),
        # A group's id is negative and keeps its sign, so chat -10001 and user 10001 have different workspaces.
        default_workspace=f"{CONNECTOR}-{chat.id}",
        reply_hint=REPLY_HINT,
        **details,
    )


# Authors, forwards and quotes


def _author(message: Message) -> Author:
    # Anonymous admins and channels write through a stand-in account that calls itself a bot.
    if message.sender_chat is not None:
        return _to_author(message.sender_chat)
    return _to_author(message.from_user) if message.from_user is not None else Author(id=str(message.chat.id))


def _to_author(sender: User | Chat) -> Author:
    if isinstance(sender, User):
        return Author(id=str(sender.id), name=sender.full_name, is_bot=sender.is_bot)
    return Author(id=str(sender.id), name=sender.title or sender.username or "")


def _forwards_own_message(message: Message) -> bool:
    origin = message.forward_origin
    author = message.from_user
    return isinstance(origin, MessageOriginUser) and author is not None and origin.sender_user.id == author.id


def _origin_name(origin: Origin) -> str:
    """Return the name of the first author of a forwarded or quoted message."""
    match origin:
        case MessageOriginUser():
            return origin.sender_user.full_name
        case MessageOriginChat():
            return origin.sender_chat.title or ""
        case MessageOriginChannel():
            return origin.chat.title or ""
        case _:
            return origin.sender_user_name


def _replied_message(message: Message) -> Message | None:
    replied = message.reply_to_message
    # The first message of a topic "replies" to the note that the topic was created.
    return None if replied is None or replied.forum_topic_created is not None else replied


def _quote(message: Message, replied: Message | None) -> Quote | None:
    chosen = message.quote.text if message.quote is not None else ""
    if replied is not None:
        text = chosen or without_sources(replied.text or "") or replied.caption or describe(replied)
        text = text or " ".join(f"[{file.name}]" for file in attachments(replied))
        return Quote(_author(replied).name, text, str(replied.message_id)) if text else None
    if not chosen:
        return None
    external = message.external_reply  # to a message in another chat, of which only the chosen part is known
    return Quote(author=_origin_name(external.origin) if external is not None else "", text=chosen)


# Files, and content that is neither text nor a file

_IMAGE_TYPES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
"""A document of one of these types is a picture that was sent uncompressed."""


def attachments(message: Message) -> tuple[Attachment, ...]:
    """Return the file of *message*, if any. It is at most one: each file of an album has a message of its own."""
    if message.photo:
        largest = max(message.photo, key=lambda size: size.width * size.height)
        return (Attachment("image", "photo.jpg", "image/jpeg", largest.file_size or 0, largest.file_id),)
    if message.voice:
        voice = message.voice
        return (Attachment("voice", "voice.ogg", voice.mime_type or "audio/ogg", voice.file_size or 0, voice.file_id),)
    if message.video_note:
        note = message.video_note
        return (Attachment("voice", "video-note.mp4", "video/mp4", note.file_size or 0, note.file_id),)
    if message.audio:
        return (_attachment("voice", message.audio, "audio"),)
    # For old clients an animation is also sent as a document. Both are the same file.
    if video := message.animation or message.video:
        return (_attachment("other", video, "video"),)
    if message.document:
        kind: Literal["image", "document"] = "image" if message.document.mime_type in _IMAGE_TYPES else "document"
        return (_attachment(kind, message.document, "document"),)
    return ()


def _attachment(
    kind: Literal["document", "image", "voice", "other"], file: Animation | Audio | Document | Video, stem: str
) -> Attachment:
    media_type = file.mime_type or ""
    name = file.file_name or stem + (mimetypes.guess_extension(media_type) or "")
    return Attachment(kind, name, media_type, file.file_size or 0, file.file_id)


def describe(message: Message) -> str:
    """Return a short description in brackets of content that is neither text nor a file; empty if there is none."""
    description = _description(message)
    return f"[{' '.join(description.split())}]" if description else ""


def _description(message: Message) -> str:
    if message.sticker:
        return f"sticker {message.sticker.emoji or ''}"
    if venue := message.venue:  # a venue also has a location
        point = message.location or venue.location
        return f"place: {venue.title}, {venue.address} ({point.latitude:.5f}, {point.longitude:.5f})"
    if message.location:
        return f"location: {message.location.latitude:.5f}, {message.location.longitude:.5f}"
    if message.contact:
        contact = message.contact
        name = " ".join(filter(None, (contact.first_name, contact.last_name)))
        return f"contact: {name}, {contact.phone_number}"
    if message.poll:
        return f"poll: {message.poll.question}: " + "; ".join(option.text for option in message.poll.options)
    if message.checklist:
        return f"checklist: {message.checklist.title}: " + "; ".join(task.text for task in message.checklist.tasks)
    if message.dice:
        return f"{message.dice.emoji} {message.dice.value}"
    if message.game:
        return f"game: {message.game.title}"
    if message.story:
        return "story"
    if message.live_photo:
        return "live photo"
    if message.paid_media:
        return "paid media"
    return "message of a kind that bots cannot read yet" if message.rich_message else ""


# Commands and mentions of the bot


class Addressee(Enum):
    """The bot that a command is for."""

    NONE = auto()
    """The message is no command."""
    US = auto()
    """This bot, or every bot that knows the command."""
    ANOTHER = auto()


def command_addressee(text: str, entities: Sequence[MessageEntity], me: Identity) -> Addressee:
    """Return the bot that *text* commands. A command is a bot command at the very beginning of a text."""
    command = next((entity for entity in entities if entity.type == "bot_command" and entity.offset == 0), None)
    if command is None:
        return Addressee.NONE
    _, at, name = text[: command.length].partition("@")  # a command is ASCII: one unit is one character
    return Addressee.ANOTHER if at and name.casefold() != me.username.casefold() else Addressee.US


def _command(text: str) -> str:
    """Return the command's word in small letters, as it is registered, and its arguments."""
    word = text.split(maxsplit=1)[0]
    return word.removeprefix("/").lower() + text[len(word) :]


# Formatting as Markdown (`connectors.text` does the opposite)

_SIGNS = {"bold": "**", "italic": "_", "strikethrough": "~~"}
_QUOTE_TYPES = frozenset({"blockquote", "expandable_blockquote"})
_NAME_TYPES = frozenset({"mention", "text_mention", "bot_command"})

# Telegram sends no control characters, so these two mean nothing else in a text.
_OWN_NAME = "\0"
"""Stands for the bot's own name until it is removed."""
_LINE_END = "\1"
"""Stands for the end of a line, if there is none yet."""


def to_markdown(text: str, entities: Sequence[MessageEntity], me: Identity) -> tuple[str, bool]:
    """Write *entities* as Markdown into *text* and remove the bot's name. Return it, and whether it named the bot.

    Every other character of *text* stays, in its order. Names and commands get no marks.
    """
    names = [(entity.offset, entity.length) for entity in entities if entity.type in _NAME_TYPES]
    command_end = next((e.length for e in entities if e.type == "bot_command" and e.offset == 0), 0)
    written = [
        entity
        for entity in sorted(entities, key=lambda entity: (entity.offset, -entity.length))
        if entity.type in _NAME_TYPES or ((entity.offset, entity.length) not in names and entity.offset >= command_end)
    ]
    marked = _Markdown(me).unparse(text, written)
    marked = re.sub(rf"\A{_LINE_END}|{_LINE_END}\Z", "", marked)
    marked = re.sub(rf"\n?{_LINE_END}\n?", "\n", marked)
    if _OWN_NAME not in marked:
        return marked, False
    return join_around(marked.split(_OWN_NAME)), True


class _Markdown(MarkdownDecoration):
    """Writes entities as Markdown for a model. Nothing is escaped, and the bot's own name becomes `_OWN_NAME`."""

    def __init__(self, me: Identity) -> None:
        self._me = me

    def quote(self, value: str) -> str:
        return value

    def apply_entity(self, entity: MessageEntity, text: str) -> str:
        if entity.type in _SIGNS:
            return wrap_text(_SIGNS[entity.type], text, _SIGNS[entity.type])
        if entity.type in _QUOTE_TYPES:
            return "> " + text.replace("\n", "\n> ")
        match entity.type:
            case "code":
                sign = "``" if "`" in text else "`"
                return wrap_text(sign, text, sign)
            case "pre":
                fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", text)), 0)
                return f"{_LINE_END}{fence}{entity.language or ''}\n{text}\n{fence}{_LINE_END}"
            case "text_link" if entity.url and entity.url.rstrip("/") != text.rstrip("/"):
                address = f"<{entity.url}>" if re.search(r"[\s()]", entity.url) else entity.url
                return wrap_text("[", text, f"]({address})")
            case "bot_command":
                command, at, name = text.partition("@")
                return command + _OWN_NAME if at and self._is_own(name) else text
            case "mention" if self._is_own(text.removeprefix("@")):
                return _OWN_NAME
            case "text_mention" if entity.user is not None and entity.user.id == self._me.id:
                return _OWN_NAME
            case _:
                return text

    def _is_own(self, name: str) -> bool:
        return bool(self._me.username) and name.casefold() == self._me.username.casefold()
