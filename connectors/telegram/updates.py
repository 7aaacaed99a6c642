"""Telegram's updates as our nouns. Pure.

Telegram counts text and the offsets of entities in UTF-16 code units (Bot API, "MessageEntity").
"""

from __future__ import annotations

import mimetypes
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    Poll,
    ReactionTypeEmoji,
    ReactionTypeUnion,
    Update,
    User,
    Video,
)

from connectors.message import Attachment, Author, InboundKind, InboundMessage, Quote
from connectors.telegram import REPLY_HINT
from connectors.telegram.payloads import CONNECTOR
from connectors.text import join_around, utf16_units, without_sources

# ---- content ----
#
# What is in a message besides text: its files, and what can be told of the rest in a few words. Pure.


Origin = MessageOriginUser | MessageOriginChat | MessageOriginChannel | MessageOriginHiddenUser

_IMAGES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
"""Documents of these types are pictures that were sent uncompressed."""


def attachments(message: Message) -> tuple[Attachment, ...]:
    """The file of *message*: at most one, since the files of an album come as messages of their own."""
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
        return (_named("voice", message.audio, "audio"),)
    # An animation also comes as a document, for old clients: it is one file all the same.
    moving = message.animation or message.video
    if moving:
        return (_named("other", moving, "video"),)
    if message.document:
        kind: Literal["image", "document"] = "image" if message.document.mime_type in _IMAGES else "document"
        return (_named(kind, message.document, "document"),)
    return ()


def _named(
    kind: Literal["document", "image", "voice", "other"], file: Animation | Audio | Document | Video, stem: str
) -> Attachment:
    media_type = file.mime_type or ""
    name = file.file_name or stem + (mimetypes.guess_extension(media_type) or "")
    return Attachment(kind, name, media_type, file.file_size or 0, file.file_id)


def told(message: Message) -> str:
    """What *message* shows that is neither text nor a file, in brackets; empty where that is nothing."""
    said = _told(message)
    return f"[{' '.join(said.split())}]" if said else ""


def _told(message: Message) -> str:
    if message.sticker:
        return f"sticker {message.sticker.emoji or ''}"
    if message.venue:  # comes with its location
        return f"place: {message.venue.title}, {message.venue.address} ({_point(message)})"
    if message.location:
        return f"location: {_point(message)}"
    if message.contact:
        contact = message.contact
        name = " ".join(filter(None, (contact.first_name, contact.last_name)))
        return f"contact: {name}, {contact.phone_number}"
    if message.poll:
        return _of_poll(message.poll)
    if message.checklist:
        return f"checklist: {message.checklist.title}: " + "; ".join(task.text for task in message.checklist.tasks)
    if message.dice:
        return f"{message.dice.emoji} {message.dice.value}"
    if message.game:
        return f"game: {message.game.title}"
    return _of_what_cannot_be_read(message)


def _of_poll(poll: Poll) -> str:
    return f"poll: {poll.question}: " + "; ".join(option.text for option in poll.options)


def _of_what_cannot_be_read(message: Message) -> str:
    if message.story:
        return "story"
    if message.live_photo:
        return "live photo"
    if message.paid_media:
        return "paid media"
    return "message of a kind that bots cannot read yet" if message.rich_message else ""


def _point(message: Message) -> str:
    where = message.location or (message.venue.location if message.venue else None)
    return f"{where.latitude:.5f}, {where.longitude:.5f}" if where else ""


def origin_name(origin: Origin) -> str:
    """Who said first what was forwarded or quoted from elsewhere."""
    match origin:
        case MessageOriginUser():
            return origin.sender_user.full_name
        case MessageOriginChat():
            return origin.sender_chat.title or ""
        case MessageOriginChannel():
            return origin.chat.title or ""
        case _:
            return origin.sender_user_name


# ---- marks ----
#
# What people set in bold, as code, as a link…, as Markdown. Pure. (The other way is `connectors.text.render`.)
#
# The offsets of Telegram's entities count UTF-16 code units (Bot API, "MessageEntity").


_AROUND = {"bold": "**", "italic": "_", "strikethrough": "~~"}
_QUOTES = frozenset({"blockquote", "expandable_blockquote"})
_CALLS = frozenset({"mention", "text_mention", "bot_command"})
_CLOSES, _OPENS = 0, 1

Insertion = tuple[int, int, int, int, str]
"""Where (in units), whether it closes or opens, its rank among those (the inner closes first, the outer opens
first; of two of one size the first is the outer), and what."""


def to_markdown(text: str, entities: Sequence[MessageEntity]) -> tuple[str, list[MessageEntity]]:
    """*text* with Markdown's marks for what its *entities* set, and the other entities where they stand then.

    Every character of *text* stays, in its order. A name or a command that is called is not marked.
    """
    called = [(one.offset, one.offset + one.length) for one in entities if one.type in _CALLS]
    command = next((one.length for one in entities if one.type == "bot_command" and one.offset == 0), 0)
    units = text.encode("utf-16-le", "surrogatepass")
    insertions: list[Insertion] = []
    others = []
    for number, entity in enumerate(entities):
        made = list(_insertions(units, entity, number))
        if not made:
            others.append(entity)
        elif (entity.offset, entity.offset + entity.length) not in called and entity.offset >= command:
            insertions += made
    if not insertions:
        return text, others
    insertions.sort()
    return _with(units, insertions), [_moved(entity, insertions) for entity in others]


def _insertions(units: bytes, entity: MessageEntity, number: int) -> Iterator[Insertion]:
    start, end = _without_space(units, entity.offset, entity.offset + entity.length)
    if start >= end:
        return
    shown = _decode(units[2 * start : 2 * end])
    if entity.type in _AROUND:
        yield from _pair(start, end, number, _AROUND[entity.type], _AROUND[entity.type])
    elif entity.type == "code":
        mark = "`" if "`" not in shown else "``"
        yield from _pair(start, end, number, mark, mark)
    elif entity.type == "pre":
        fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", shown)), 0)
        before = "" if start == 0 or _decode(units[2 * start - 2 : 2 * start]) == "\n" else "\n"
        after = "" if _decode(units[2 * end : 2 * end + 2]) in ("", "\n") else "\n"
        yield from _pair(start, end, number, f"{before}{fence}{entity.language or ''}\n", f"\n{fence}{after}")
    elif entity.type == "text_link" and entity.url and entity.url.rstrip("/") != shown.rstrip("/"):
        address = f"<{entity.url}>" if re.search(r"[\s()]", entity.url) else entity.url
        yield from _pair(start, end, number, "[", f"]({address})")
    elif entity.type in _QUOTES:
        lines = [at for at in range(start + 1, end) if units[2 * at - 2 : 2 * at] == b"\n\0"]
        yield from ((at, _OPENS, start - end, number, "> ") for at in (start, *lines))


def _pair(start: int, end: int, number: int, before: str, after: str) -> Iterator[Insertion]:
    yield start, _OPENS, start - end, number, before
    yield end, _CLOSES, end - start, -number, after


def _without_space(units: bytes, start: int, end: int) -> tuple[int, int]:
    """The range without white space at its ends: Markdown's marks do not hold beside it."""
    shown = _decode(units[2 * start : 2 * end])
    lead = len(shown) - len(shown.lstrip())
    return start + lead, start + max(lead, _size(shown.rstrip()))


def _with(units: bytes, insertions: Iterable[Insertion]) -> str:
    pieces, done = [], 0
    for at, *_, what in insertions:
        pieces += [_decode(units[2 * done : 2 * at]), what]
        done = at
    return "".join([*pieces, _decode(units[2 * done :])])


def _moved(entity: MessageEntity, insertions: Iterable[Insertion]) -> MessageEntity:
    before = sum(_size(what) for at, *_, what in insertions if at <= entity.offset)
    within = sum(_size(what) for at, *_, what in insertions if entity.offset < at < entity.offset + entity.length)
    return entity.model_copy(update={"offset": entity.offset + before, "length": entity.length + within})


def _size(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _decode(units: bytes) -> str:
    return units.decode("utf-16-le", "surrogatepass")


# ---- mentions ----
#
# How people call the bot in a message, and what they said to it. Pure.
#
# The offsets of Telegram's entities count UTF-16 code units (Bot API, "MessageEntity").


@dataclass(frozen=True, slots=True)
class Identity:
    """The bot's own account. ``username`` is without the ``@``."""

    id: int
    username: str


class Addressee(Enum):
    """To whom a message speaks as a command."""

    NONE = auto()
    """It is none."""
    US = auto()
    """To this bot, or to whichever bot knows it."""
    ANOTHER = auto()


def command_addressee(text: str, entities: Sequence[MessageEntity], me: Identity) -> Addressee:
    """To whom *text* is a command: it is one when a bot command stands at its very beginning."""
    first = next((entity for entity in entities if entity.type == "bot_command" and entity.offset == 0), None)
    if first is None:
        return Addressee.NONE
    _, at, addressee = text[: first.length].partition("@")  # plain ASCII, so a unit is a character
    return Addressee.ANOTHER if at and addressee.casefold() != me.username.casefold() else Addressee.US


def without_own_mentions(text: str, entities: Sequence[MessageEntity], me: Identity) -> tuple[str, bool]:
    """*text* without the bot's own name where it is called by it, and whether it is."""
    units = text.encode("utf-16-le", "surrogatepass")
    own_name = f"@{me.username}".casefold() if me.username else None
    kept: list[str] = []
    end = 0
    for entity in sorted(entities, key=lambda e: e.offset):
        start, stop = 2 * entity.offset, 2 * (entity.offset + entity.length)
        if start < end:
            continue  # overlaps one that was taken out
        named = _mentions_decode(units[start:stop])
        if entity.type == "bot_command":
            command, at, addressee = named.partition("@")
            if not at or f"@{addressee}".casefold() != own_name:
                continue
            replacement = command
        elif (entity.type == "mention" and named.casefold() == own_name) or (
            entity.type == "text_mention" and entity.user is not None and entity.user.id == me.id
        ):
            replacement = ""
        else:
            continue
        kept += [_mentions_decode(units[end:start]), replacement]
        end = stop
    if end == 0:
        return text, False
    return join_around([*kept, _mentions_decode(units[end:])]), True


def _mentions_decode(units: bytes) -> str:
    return units.decode("utf-16-le", "surrogatepass")


# ---- convert ----


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


# ---- places ----
#
# What this process has seen of Telegram's places and Telegram itself does not say again.


_REMEMBERED_MESSAGES = 4096
_REMEMBERED_ALBUMS = 256


class Places:
    """In which topic a message stands (a reaction to it does not say); which albums are meant for the bot (only the
    file with the caption says so); where a group went that became a supergroup: what is on its way there still names
    the group, and is refused once by each process that did not hear of it, with the new name."""

    def __init__(self) -> None:
        self._topics: OrderedDict[tuple[int, int], int] = OrderedDict()
        self._albums: OrderedDict[tuple[int, str], None] = OrderedDict()
        self._moved: dict[int, int] = {}

    def stands(self, chat: int, message_id: int, topic: int | None) -> None:
        """A message stands in *topic*. The newest few thousand are remembered."""
        if topic is None:
            return
        self._topics[chat, message_id] = topic
        self._topics.move_to_end((chat, message_id))
        if len(self._topics) > _REMEMBERED_MESSAGES:
            self._topics.popitem(last=False)

    def topic_of(self, chat: int, message_id: int) -> int | None:
        """The topic in which a message stands, if that is known."""
        return self._topics.get((chat, message_id))

    def addresses(self, chat: int, album: str) -> None:
        """The *album* in *chat* is meant for the bot. The newest few hundred are remembered."""
        self._albums[chat, album] = None
        if len(self._albums) > _REMEMBERED_ALBUMS:
            self._albums.popitem(last=False)

    def is_addressed(self, chat: int, album: str) -> bool:
        """Whether a file of the *album* said that it is meant for the bot."""
        return (chat, album) in self._albums

    def moved(self, old: int, new: int) -> None:
        """The chat *old* is the chat *new* from now on."""
        self._moved[old] = new

    def now(self, chat: int) -> int:
        """What *chat* is now."""
        return self._moved.get(chat, chat)
