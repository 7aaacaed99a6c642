"""Telegram's updates as our nouns. Pure.

Telegram counts text and the offsets of entities in UTF-16 code units (Bot API, "MessageEntity").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aiogram.types import (
    CallbackQuery,
    Chat,
    ChatMemberRestricted,
    ChatMemberUnion,
    ChatMemberUpdated,
    Message,
    MessageOriginUser,
    MessageReactionUpdated,
    ReactionTypeEmoji,
    ReactionTypeUnion,
    Update,
    User,
)

from connectors.message import Author, InboundKind, InboundMessage, Quote
from connectors.telegram import REPLY_HINT
from connectors.telegram.calls import CONNECTOR
from connectors.telegram.content import attachments, origin_name, told
from connectors.telegram.marks import to_markdown
from connectors.telegram.mentions import Addressee, Identity, command_addressee, without_own_mentions
from connectors.text.sources import without_sources
from connectors.text.split import utf16_units

UNFINISHED_UNITS = 4000
"""From this size on a message may be the first part of one that the sender's app had to cut: apps cut a
long text at a word somewhat before the limit, so the limit itself is too late to look for."""

ALLOWED_UPDATES = ["message", "edited_message", "message_reaction", "my_chat_member", "callback_query"]
"""What Telegram is asked to tell. Reactions only come when they are asked for; channel posts are not."""

TopicOf = Callable[[int, int], int | None]
"""The topic in which a message of a chat stands, if anybody knows: reactions do not say."""

_PRESENT = frozenset({"creator", "administrator", "member"})


def to_inbound(update: Update, me: Identity, topic_of: TopicOf = lambda _chat, _message: None) -> InboundMessage | None:
    """What *update* says, or None for what is no concern of the runtime (own messages, service notes, what
    channels post, commands for other bots)."""
    if update.message is not None:
        return _from_message(update.message, InboundKind.MESSAGE, me)
    if update.edited_message is not None:
        return _from_message(update.edited_message, InboundKind.EDIT, me)
    if update.message_reaction is not None:
        return _from_reaction(update.message_reaction, me, topic_of)
    if update.my_chat_member is not None:
        return _from_membership(update.my_chat_member, update.update_id, me)
    if update.callback_query is not None:
        return _from_press(update.callback_query)
    return None


def chat_of(raw: Mapping[str, Any]) -> int | None:
    """The chat to which an update belongs whose shape was not checked, if it has one."""
    for content in raw.values():
        if isinstance(content, Mapping) and isinstance(chat := content.get("chat"), Mapping):
            return chat["id"] if isinstance(chat.get("id"), int) else None
    return None


def moved(update: Update) -> tuple[int, int] | None:
    """The old and the new id of a group that became a supergroup, where *update* says so."""
    message = update.message
    if message is None:
        return None
    if message.migrate_to_chat_id is not None:
        return message.chat.id, message.migrate_to_chat_id
    if message.migrate_from_chat_id is not None:
        return message.migrate_from_chat_id, message.chat.id
    return None


def topic(message: Message | None) -> int | None:
    """The topic in which *message* stands."""
    # In groups without topics a message_thread_id only says which message started a chain of replies.
    return message.message_thread_id if message is not None and message.is_topic_message else None


def _from_press(query: CallbackQuery) -> InboundMessage | None:
    """A button was pressed; one below a message that is too old for Telegram to say of whom it is, is nothing."""
    message = query.message
    if message is None or not query.data:
        return None
    in_topic = topic(message) if isinstance(message, Message) else None
    return InboundMessage(
        connector=CONNECTOR,
        external_id=_external_id(message.chat, in_topic),
        message_id=f"button-{query.id}",
        author=_author_of(query.from_user),
        text=query.data,
        kind=InboundKind.COMMAND,
        direct=message.chat.type == "private",
        public=_is_public(message.chat),
        place=str(message.chat.id) if in_topic is not None else "",
        routes=_routes(message.chat, in_topic),
        default_workspace=_default_workspace(message.chat),
        reply_hint=REPLY_HINT,
    )


def _from_message(message: Message, kind: InboundKind, me: Identity) -> InboundMessage | None:
    author = _author(message)
    if author.id == str(me.id) or message.is_automatic_forward:
        return None
    if kind is InboundKind.EDIT and message.location is not None:
        return None  # somebody shares where they are, and moves
    said = message.text if message.text is not None else message.caption
    entities = (message.entities if message.text is not None else message.caption_entities) or []
    files = attachments(message)
    shown = said or told(message)
    if not shown and not files:
        return None
    text, mentioned = without_own_mentions(*to_markdown(shown, entities), me)
    forwarded = message.forward_origin is not None
    addressee = Addressee.NONE if forwarded else command_addressee(said or "", entities, me)
    if addressee is Addressee.ANOTHER:
        return None
    if addressee is Addressee.US and kind is InboundKind.MESSAGE:
        kind = InboundKind.COMMAND
        text = _command(text)
    if message.forward_origin is not None:
        text = f"[forwarded from {origin_name(message.forward_origin)}]\n{text}".rstrip()
    direct = message.chat.type == "private"
    replied = _replied_to(message)
    return InboundMessage(
        connector=CONNECTOR,
        external_id=_external_id(message.chat, topic(message)),
        message_id=str(message.message_id),
        author=author,
        text=text,
        kind=kind,
        sent_at=message.date,
        direct=direct,
        public=_is_public(message.chat),
        place=str(message.chat.id) if topic(message) is not None else "",
        addressed=direct or mentioned or _is_from(replied, me),
        relayed=forwarded and not _is_own(message),
        quote=_quote(message, replied),
        attachments=files,
        looks_unfinished=_looks_unfinished(message, said or ""),
        routes=_routes(message.chat, topic(message)),
        default_workspace=_default_workspace(message.chat),
        reply_hint=REPLY_HINT,
    )


def _is_own(message: Message) -> bool:
    """Whether who forwards *message* wrote it."""
    origin = message.forward_origin
    author = message.from_user
    return isinstance(origin, MessageOriginUser) and author is not None and origin.sender_user.id == author.id


def _command(text: str) -> str:
    """The word of a command in small letters, as it is registered, and what follows it."""
    word = text.split(maxsplit=1)[0]
    return word.removeprefix("/").lower() + text[len(word) :]


def _from_reaction(reaction: MessageReactionUpdated, me: Identity, topic_of: TopicOf) -> InboundMessage | None:
    actor = reaction.user or reaction.actor_chat
    if actor is None or actor.id == me.id:
        return None
    before, now = _emoji(reaction.old_reaction), _emoji(reaction.new_reaction)
    added = [one for one in now if one not in before]
    stands_in = topic_of(reaction.chat.id, reaction.message_id)
    return InboundMessage(
        connector=CONNECTOR,
        external_id=_external_id(reaction.chat, stands_in),
        message_id=str(reaction.message_id),
        author=_author_of(actor),
        text="",
        kind=InboundKind.REACTION,
        sent_at=reaction.date,
        direct=reaction.chat.type == "private",
        public=_is_public(reaction.chat),
        place=str(reaction.chat.id) if stands_in is not None else "",
        addressed=False,
        reaction=added[-1] if added else "",
        unreacted=tuple(one for one in before if one not in now),
        routes=_routes(reaction.chat, stands_in),
        default_workspace=_default_workspace(reaction.chat),
        reply_hint=REPLY_HINT,
    )


def _emoji(reactions: Sequence[ReactionTypeUnion]) -> list[str]:
    return [one.emoji for one in reactions if isinstance(one, ReactionTypeEmoji)]


def _from_membership(change: ChatMemberUpdated, update_id: int, me: Identity) -> InboundMessage | None:
    """The bot came into a chat or left it (in a private chat: the person started or blocked it)."""
    was, is_now = _is_present(change.old_chat_member), _is_present(change.new_chat_member)
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


def _is_present(member: ChatMemberUnion) -> bool:
    # Who is restricted may have left: the restriction then waits for them.
    return member.is_member if isinstance(member, ChatMemberRestricted) else member.status in _PRESENT


def _is_public(chat: Chat) -> bool:
    """Whether anybody may read *chat*: supergroups and channels have a username only where they are public (Bot API,
    "Chat"). Whatever else a bot is in is private."""
    return chat.type in {"supergroup", "channel"} and bool(chat.username)


def _external_id(chat: Chat, in_topic: int | None) -> str:
    return str(chat.id) if in_topic is None else f"{chat.id}/{in_topic}"


def _routes(chat: Chat, in_topic: int | None = None) -> tuple[str, ...]:
    place = f"{CONNECTOR}:{chat.id}"
    return (place,) if in_topic is None else (f"{place}/{in_topic}", place)


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
    chosen = message.quote.text if message.quote is not None else ""
    if replied is not None:
        text = chosen or without_sources(replied.text or "") or replied.caption or told(replied)
        text = text or " ".join(f"[{file.name}]" for file in attachments(replied))
        return Quote(_author(replied).name, text, str(replied.message_id)) if text else None
    if not chosen:
        return None
    elsewhere = message.external_reply  # in another chat: only what was chosen of it comes along
    return Quote(author=origin_name(elsewhere.origin) if elsewhere is not None else "", text=chosen)


def _looks_unfinished(message: Message, said: str) -> bool:
    return (
        message.media_group_id is not None
        or message.forward_origin is not None
        or utf16_units(said) >= UNFINISHED_UNITS
    )
