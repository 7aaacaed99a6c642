"""What is in a message besides text: its files, and what can be told of the rest in a few words. Pure."""

from __future__ import annotations

import mimetypes
from typing import Literal

from aiogram.types import (
    Animation,
    Audio,
    Document,
    Message,
    MessageOriginChannel,
    MessageOriginChat,
    MessageOriginHiddenUser,
    MessageOriginUser,
    Poll,
    Video,
)

from connectors.message import Attachment

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
