"""Reads the files of a turn's messages: documents become text, pictures go to the model, voice is transcribed.

A file that cannot be read becomes a sentence in the query and an entry in ``degraded``; the turn goes on.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import structlog

from config.settings import Settings
from connectors.connector import AttachmentUnavailable
from connectors.message import Attachment, InboundMessage
from grounding.prompt_input import AttachedImage, AttachedText, DegradedBlock
from runtime.attachments.files import AUDIO_TYPES, IMAGE_TYPES, Files
from runtime.llm import Image, ModelFailed, Transcription

MAX_FILES = 10
"""Files that are read in one turn."""
MAX_IMAGES = 4
"""Pictures that are shown to the model in one turn."""
IMAGE_MAX_BYTES = 3_700_000
"""Size of one picture: as base64 within the 5 MB that Anthropic allows, the lowest of the large providers."""
VOICE_MARK = "[voice message]"
NOT_HEARD = "I cannot listen to voice messages here. Please write to me instead."
BLOCK = "attachments"
"""The name of attachments in ``degraded``."""
_ENDINGS = {"audio/ogg": ".ogg", "audio/mpeg": ".mp3", "audio/mp4": ".m4a", "audio/wav": ".wav", "video/mp4": ".mp4"}
_log = structlog.get_logger()


class Senses(Protocol):
    """The abilities of a model beyond text; see `runtime.llm.Model`."""

    async def sees_images(self, first: str | None = None) -> bool: ...

    async def transcribe(self, audio: bytes, name: str, media_type: str) -> Transcription: ...


@dataclass(frozen=True, slots=True)
class AttachmentContents:
    """The attachments of a turn's messages, as far as they could be read.

    ``heard``: the transcriptions of voice messages. ``unheard``: the reply if a voice message could not be heard and
    there is no other text.
    """

    files: tuple[AttachedText, ...] = ()
    images: tuple[Image, ...] = field(default=(), repr=False)
    degraded: tuple[DegradedBlock, ...] = ()
    heard: tuple[Transcription, ...] = ()
    unheard: str = ""

    @property
    def shown(self) -> tuple[AttachedImage, ...]:
        """The pictures without their bytes, as the manifest stores them."""
        return tuple(
            AttachedImage(name=image.name, media_type=image.media_type, sha256=image.sha256) for image in self.images
        )


NOTHING = AttachmentContents()
Hears = Callable[[Transcription], Awaitable[None]]
"""Called with each transcription as soon as it is there: it is paid for, even if others fail."""


async def _nobody(_: Transcription) -> None: ...


@dataclass(frozen=True, slots=True)
class _Item:
    """One file of the message at index ``place``, and the result. ``unsaid``: the reply if a voice message failed."""

    place: int
    attachment: Attachment
    text: str = ""
    note: str = ""
    image: Image | None = None
    heard: Transcription | None = None
    failed: str = ""
    unsaid: str = ""


class AttachmentReader:
    """Reads the files of turns. Stores nothing: a turn that is resumed fetches them again."""

    def __init__(self, settings: Settings, files: Files, senses: Senses) -> None:
        self._settings = settings
        self._files = files
        self._senses = senses
        # More text of a file can never be shown in a prompt.
        self._most = settings.llm_grounding_max_prompt_bytes

    async def read(
        self, messages: Sequence[InboundMessage], first: str | None = None, heard: Hears = _nobody
    ) -> tuple[tuple[InboundMessage, ...], AttachmentContents]:
        """Read the files of *messages*, which belong to one conversation. Return the messages, to which the words of
        voice messages are added, and the contents.

        *first* is the model that was chosen, if any; *heard* raises nothing. Raises nothing: failures are named in the
        contents.
        """
        items = _items(messages)
        if not items:
            return tuple(messages), NOTHING
        started = time.perf_counter()
        sees = any(_is_image(item.attachment) for item in items) and await self._senses.sees_images(first)
        read = await self._read_all(messages[0].connector, items, sees, heard)
        with_words = _with_words(messages, read)
        contents = _contents(with_words, read)
        _log.info(
            "attachments.read",
            files=len(read),
            failed=sum(bool(item.failed) for item in read),
            images=len(contents.images),
            voice=len(contents.heard),
            characters=sum(len(item.text) for item in read),
            duration_ms=round((time.perf_counter() - started) * 1000, 1),
        )
        return with_words, contents

    async def _read_all(self, connector: str, items: Sequence[_Item], sees: bool, heard: Hears) -> list[_Item]:
        """Read all *items* at the same time, within a turn's limits."""
        # Each may take the time once for fetching and once for converting; for voice the model has a limit of its own.
        deadline = asyncio.get_running_loop().time() + 2 * self._files.timeout_seconds

        async def read_one(position: int, images: int, item: _Item) -> _Item:
            is_voice = item.attachment.kind == "voice"
            if position >= MAX_FILES:
                note = f"not read: only the first {MAX_FILES} files of a message are"
                return replace(item, note=note, failed="too_many")
            if _is_image(item.attachment) and not sees:
                return replace(item, note="a picture, which the model in use cannot see", failed="blind_model")
            if _is_image(item.attachment) and images > MAX_IMAGES:
                note = f"not shown: only {MAX_IMAGES} pictures at once are"
                return replace(item, note=note, failed="too_many")
            try:
                async with asyncio.timeout_at(None if is_voice else deadline):
                    if is_voice:
                        return await self._transcribe(connector, item, heard)
                    if _is_image(item.attachment):
                        return await self._fetch_image(connector, item)
                    return await self._convert(connector, item)
            except AttachmentUnavailable as error:
                return _unread(item, error)
            except TimeoutError:
                return _unread(item, AttachmentUnavailable("there was no time left for it"))

        images = itertools.accumulate(_is_image(item.attachment) for item in items)
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(read_one(position, image, item))
                for position, (image, item) in enumerate(zip(images, items, strict=True))
            ]
        return [task.result() for task in tasks]

    async def _convert(self, connector: str, item: _Item) -> _Item:
        if item.attachment.kind == "other":
            raise AttachmentUnavailable("it is not a kind of file that I can read")
        found = await self._files.text(connector, item.attachment, self._most)
        return replace(item, text=found.text, note=found.note)

    async def _fetch_image(self, connector: str, item: _Item) -> _Item:
        fetched = await self._files.fetch(connector, item.attachment, IMAGE_TYPES, IMAGE_MAX_BYTES)
        if fetched.media_type not in IMAGE_TYPES or not fetched.data:
            raise AttachmentUnavailable("it is not a picture of a kind that I know")
        image = await asyncio.to_thread(Image.of, item.attachment.name, fetched.media_type, fetched.data)
        return replace(item, image=image)

    async def _transcribe(self, connector: str, item: _Item, heard: Hears) -> _Item:
        if self._settings.transcription_model is None:
            return replace(
                item, note="a voice message; they cannot be heard here", failed="no_transcription", unsaid=NOT_HEARD
            )
        try:
            fetched = await self._files.fetch(connector, item.attachment, AUDIO_TYPES)
            kind = fetched.media_type or item.attachment.media_type
            transcription = await self._senses.transcribe(fetched.data, "voice" + _ENDINGS.get(kind, ".ogg"), kind)
        except AttachmentUnavailable as error:
            sentence = f"I could not get your voice message: {error.user_text.rstrip('.')}."
            return _unread(item, error, sentence)
        except ModelFailed as error:
            again = f"Please try again{error.when}, or write to me."
            sentence = f"I could not listen to your voice message just now. {again}"
            return replace(
                item, note="a voice message that could not be heard", failed=f"model_{error.why}", unsaid=sentence
            )
        await heard(transcription)
        if not transcription.text:
            sentence = "I could not hear any words in your voice message."
            return replace(
                item, note="a voice message without words", heard=transcription, failed="silent", unsaid=sentence
            )
        return replace(item, heard=transcription)


def transcript_text(message: InboundMessage) -> str:
    """Return *message* as the transcript stores it: its text, and the names of its files."""
    spoken = message.text.startswith(VOICE_MARK) or f"\n{VOICE_MARK} " in message.text
    names = [file.name for file in message.attachments if not (spoken and file.kind == "voice")]
    parts = (message.text, "[attachments] " + ", ".join(names) if names else "")
    return "\n".join(part for part in parts if part.strip())


def _items(messages: Sequence[InboundMessage]) -> list[_Item]:
    return [_Item(place, attachment) for place, message in enumerate(messages) for attachment in message.attachments]


def _is_image(attachment: Attachment) -> bool:
    """True for pictures, also if they are sent as files. SVG is text."""
    of_pixels = attachment.media_type.startswith("image/") and attachment.media_type != "image/svg+xml"
    return attachment.kind == "image" or (attachment.kind == "document" and of_pixels)


def _unread(item: _Item, error: AttachmentUnavailable, unsaid: str = "") -> _Item:
    return replace(item, note=f"could not be read: {error.user_text.rstrip('.')}", failed="unreadable", unsaid=unsaid)


def _with_words(messages: Sequence[InboundMessage], items: Sequence[_Item]) -> tuple[InboundMessage, ...]:
    """Add the words of voice messages to *messages*: for the strategy, the search, the prompt and the transcript."""
    done = list(messages)
    for item in items:
        if item.heard is not None and item.heard.text:
            message = done[item.place]
            said = f"{VOICE_MARK} {item.heard.text}"
            text = f"{message.text}\n\n{said}" if message.text.strip() else said
            done[item.place] = replace(message, text=text)
    return tuple(done)


def _contents(messages: Sequence[InboundMessage], items: Sequence[_Item]) -> AttachmentContents:
    has_text = any(message.text.strip() for message in messages)
    only_voice = all(item.attachment.kind == "voice" for item in items)
    reasons = dict.fromkeys(item.failed for item in items if item.failed)
    return AttachmentContents(
        files=tuple(
            AttachedText(name=item.attachment.name, text=item.text, note=item.note)
            for item in items
            if item.text or item.note
        ),
        images=tuple(item.image for item in items if item.image is not None),
        degraded=tuple(DegradedBlock(block=BLOCK, why=why) for why in reasons),
        heard=tuple(item.heard for item in items if item.heard is not None),
        unheard=next((item.unsaid for item in items if item.unsaid), "") if only_voice and not has_text else "",
    )
