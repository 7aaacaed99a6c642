"""Reads what came with the messages of a turn: documents become text, pictures are shown, voice is written down.

Whatever cannot be read becomes a sentence in the query and an entry in ``degraded``; the turn goes on.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import structlog

from config.settings import Settings
from connectors.connector import AttachmentUnavailable, Location
from connectors.message import Attachment, InboundMessage
from grounding.prompt_input import AttachedImage, AttachedText, DegradedBlock
from runtime.attachments.conversion import Conversion
from runtime.attachments.formats import Text
from runtime.attachments.media import (
    DOCX,
    HTML,
    IMAGES,
    ODT,
    PDF,
    PPTX,
    XLSX,
    Fetched,
    Network,
    check_type,
    plain_type,
    too_large,
)
from runtime.llm import Image, ModelFailed, Transcription

# ---- files ----
#
# One file that came with a message: found on its platform, fetched, and made text. Everything is bounded.


AT_ONCE = 4
"""Files that are fetched side by side, so that they never fill the memory together."""
DOCUMENT_TYPES = frozenset(
    {
        *(PDF, DOCX, XLSX, PPTX, ODT, HTML, "text/*"),
        *("application/json", "application/xml", "application/yaml", "application/x-yaml", "application/toml"),
        *("application/javascript", "application/x-javascript", "application/sql", "application/x-sh"),
        *("application/x-ndjson", "application/rtf", "application/csv", "application/xhtml+xml"),
        # What Windows calls a CSV; if it is an old workbook its bytes say so.
        *("application/vnd.ms-excel",),
    }
)
"""What may be declared, or found, of a document; which of them can be read its conversion knows."""
IMAGE_TYPES = frozenset(IMAGES)
AUDIO_TYPES = frozenset({"audio/*", "application/ogg", "video/mp4", "video/webm", "video/ogg"})
"""Voice messages; containers without a picture are often called videos."""
_log = structlog.get_logger()


class Locates(Protocol):
    """What knows where a connector's files lie; see `runtime.attachments.locate.Locator.locate`."""

    async def locate(self, connector: str, attachment: Attachment) -> Location: ...


class Files:
    """Files of messages, by the connectors that they came through."""

    def __init__(self, settings: Settings, locates: Locates, network: Network | None = None) -> None:
        self._settings = settings
        self._locates = locates
        self._network = network
        self._conversion = Conversion(settings.attachment_max_pages, settings.attachment_timeout_seconds)
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def fetch(
        self, connector: str, attachment: Attachment, allowed: frozenset[str], max_bytes: int | None = None
    ) -> Fetched:
        """The bytes of *attachment*, which came through *connector* and is one of *allowed*.

        Raises `AttachmentUnavailable`, whatever went wrong.
        """
        most = min(max_bytes or self._settings.attachment_max_bytes, self._settings.attachment_max_bytes)
        if attachment.size_bytes > most:
            raise too_large(attachment.size_bytes, most)
        seconds = self._settings.attachment_timeout_seconds
        async with self._slots:
            try:
                async with asyncio.timeout(seconds):
                    location = await self._locates.locate(connector, attachment)
                    if location.path:
                        return await asyncio.to_thread(_read, location.path, attachment.media_type, most, allowed)
                    # What it is made with is imported by the first file that comes, not by every start.
                    fetcher: Any = await asyncio.to_thread(importlib.import_module, "runtime.attachments.fetch")
                    fetched: Fetched = await fetcher.fetch(location, most, allowed, seconds, self._network)
                    return fetched
            except AttachmentUnavailable:
                raise
            except TimeoutError as error:
                raise AttachmentUnavailable(f"fetching it took longer than {seconds:g} seconds") from error
            except Exception as error:
                # An adapter or a library broke on a stranger's file: the turn goes on without it.
                _log.exception("attachment.failed", connector=connector, media_type=attachment.media_type)
                raise AttachmentUnavailable("something went wrong with it here") from error

    async def text(self, connector: str, attachment: Attachment, most: int, max_bytes: int | None = None) -> Text:
        """*attachment* as Markdown of at most *most* characters. Raises `AttachmentUnavailable`."""
        fetched = await self.fetch(connector, attachment, DOCUMENT_TYPES, max_bytes)
        if fetched.media_type == HTML and not _is_web_page(attachment):
            # A platform that no longer knows us answers with the page on which people sign in.
            raise AttachmentUnavailable("the platform sent a web page in its place")
        return await self._conversion.text(fetched.data, fetched.media_type, attachment.name, most)


def _read(path: str, declared: str, most: int, allowed: frozenset[str]) -> Fetched:
    """The file at *path*, which our own page took. Raises `AttachmentUnavailable`."""
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        raise AttachmentUnavailable("it is not on the machine that answers, or was deleted") from None
    if len(data) > most:
        raise too_large(len(data), most)
    return Fetched(data, check_type(data, plain_type(declared), allowed))


def _is_web_page(attachment: Attachment) -> bool:
    return plain_type(attachment.media_type) == HTML or attachment.name.lower().endswith((".html", ".htm", ".xhtml"))


# ---- reading ----


MAX_FILES = 10
"""Files of one turn that are read."""
MAX_IMAGES = 4
"""Pictures that are shown to the model in one turn."""
IMAGE_MAX_BYTES = 3_700_000
"""Of one picture: as base64 within the 5 MB that Anthropic takes, the least of the large providers."""
VOICE_MARK = "[voice message]"
NOT_HEARD = "I cannot listen to voice messages here. Please write to me instead."
BLOCK = "attachments"
"""How ``degraded`` calls what came with the messages."""
_ENDINGS = {"audio/ogg": ".ogg", "audio/mpeg": ".mp3", "audio/mp4": ".m4a", "audio/wav": ".wav", "video/mp4": ".mp4"}


class Senses(Protocol):
    """What a model takes in besides text; see `runtime.llm.Model`."""

    async def sees_images(self, first: str | None = None) -> bool: ...

    async def transcribe(self, audio: bytes, name: str, media_type: str) -> Transcription: ...


@dataclass(frozen=True, slots=True)
class Contents:
    """What came with the messages of a turn, as far as it could be read.

    ``heard`` are the transcripts of voice messages, by what they cost; ``unheard`` is what to answer where a
    voice message could not be heard and nothing else was said.
    """

    files: tuple[AttachedText, ...] = ()
    images: tuple[Image, ...] = field(default=(), repr=False)
    degraded: tuple[DegradedBlock, ...] = ()
    heard: tuple[Transcription, ...] = ()
    unheard: str = ""

    @property
    def shown(self) -> tuple[AttachedImage, ...]:
        """What is kept of the pictures."""
        return tuple(
            AttachedImage(name=image.name, media_type=image.media_type, sha256=image.sha256) for image in self.images
        )


NOTHING = Contents()
Hears = Callable[[Transcription], Awaitable[None]]
"""What is told of each recording as soon as it is written down: it is paid for, whatever comes of the others."""


async def _nobody(_: Transcription) -> None: ...


@dataclass(frozen=True, slots=True)
class _Item:
    """One file, and what became of it. ``words`` are what a voice message says; ``unsaid`` why nobody knows."""

    place: int
    attachment: Attachment
    text: str = ""
    note: str = ""
    image: Image | None = None
    heard: Transcription | None = None
    failed: str = ""
    unsaid: str = ""


class Reading:
    """Reads the files of turns. Keeps nothing between them: a turn that is taken up again fetches again."""

    def __init__(self, settings: Settings, files: Files, senses: Senses) -> None:
        self._settings = settings
        self._files = files
        self._senses = senses
        # No more of a file than this can ever be shown in a prompt.
        self._most = settings.llm_grounding_max_prompt_bytes

    async def read(
        self, messages: Sequence[InboundMessage], first: str | None = None, heard: Hears = _nobody
    ) -> tuple[tuple[InboundMessage, ...], Contents]:
        """Read what came with *messages*, which belong to one conversation. Voice messages get their words.

        *first* is the model that is asked first, if one was chosen; *heard* raises nothing. Raises nothing: what cannot
        be read is named.
        """
        items = _items(messages)
        if not items:
            return tuple(messages), NOTHING
        started = time.perf_counter()
        sees = any(_is_image(item.attachment) for item in items) and await self._senses.sees_images(first)
        read = await self._all(messages[0].connector, items, sees, heard)
        done = _with_words(messages, read)
        contents = _contents(done, read)
        _log.info(
            "attachments.read",
            files=len(read),
            failed=sum(bool(item.failed) for item in read),
            images=len(contents.images),
            voice=len(contents.heard),
            characters=sum(len(item.text) for item in read),
            duration_ms=round((time.perf_counter() - started) * 1000, 1),
        )
        return done, contents

    async def _all(self, connector: str, items: Sequence[_Item], sees: bool, heard: Hears) -> list[_Item]:
        """Each of *items*, read side by side, as far as a turn's limits go."""
        # Each may take the time once for fetching and once for reading, all side by side; voice has its model's time.
        deadline = asyncio.get_running_loop().time() + 2 * self._settings.attachment_timeout_seconds
        images = 0
        tasks: list[Callable[[], Awaitable[_Item]]] = []
        for position, item in enumerate(items):
            images += _is_image(item.attachment)
            if position >= MAX_FILES:
                tasks.append(_refuse(item, f"not read: only the first {MAX_FILES} files of a message are", "too_many"))
            elif item.attachment.kind == "voice":
                tasks.append(_each(functools.partial(self._hear, heard), connector, item))
            elif not _is_image(item.attachment):
                tasks.append(_each(self._read, connector, item, deadline))
            elif not sees:
                tasks.append(_refuse(item, "a picture, which the model in use cannot see", "blind_model"))
            elif images > MAX_IMAGES:
                tasks.append(_refuse(item, f"not shown: only {MAX_IMAGES} pictures at once are", "too_many"))
            else:
                tasks.append(_each(self._look, connector, item, deadline))
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(_as_coroutine(task)) for task in tasks]
        return [task.result() for task in running]

    async def _read(self, connector: str, item: _Item) -> _Item:
        if item.attachment.kind == "other":
            raise AttachmentUnavailable("it is not a kind of file that I can read")
        found = await self._files.text(connector, item.attachment, self._most)
        return replace(item, text=found.text, note=found.note)

    async def _look(self, connector: str, item: _Item) -> _Item:
        fetched = await self._files.fetch(connector, item.attachment, IMAGE_TYPES, IMAGE_MAX_BYTES)
        if fetched.media_type not in IMAGE_TYPES or not fetched.data:
            raise AttachmentUnavailable("it is not a picture of a kind that I know")
        image = await asyncio.to_thread(Image.of, item.attachment.name, fetched.media_type, fetched.data)
        return replace(item, image=image)

    async def _hear(self, told: Hears, connector: str, item: _Item) -> _Item:
        if self._settings.transcription_model is None:
            return replace(
                item, note="a voice message; they cannot be heard here", failed="no_transcription", unsaid=NOT_HEARD
            )
        try:
            fetched = await self._files.fetch(connector, item.attachment, AUDIO_TYPES)
            kind = fetched.media_type or item.attachment.media_type
            heard = await self._senses.transcribe(fetched.data, "voice" + _ENDINGS.get(kind, ".ogg"), kind)
        except AttachmentUnavailable as error:
            sentence = f"I could not get your voice message: {error.user_text.rstrip('.')}."
            return _unread(item, error, sentence)
        except ModelFailed as error:
            again = f"Please try again{error.when}, or write to me."
            sentence = f"I could not listen to your voice message just now. {again}"
            return replace(
                item, note="a voice message that could not be heard", failed=f"model_{error.why}", unsaid=sentence
            )
        await told(heard)
        if not heard.text:
            sentence = "I could not hear any words in your voice message."
            return replace(item, note="a voice message without words", heard=heard, failed="silent", unsaid=sentence)
        return replace(item, heard=heard)


def written(message: InboundMessage) -> str:
    """*message* as the log has it: its words, and the names of the files that came with them."""
    spoken = message.text.startswith(VOICE_MARK) or f"\n{VOICE_MARK} " in message.text
    names = [one.name for one in message.attachments if not (spoken and one.kind == "voice")]
    parts = (message.text, "[attachments] " + ", ".join(names) if names else "")
    return "\n".join(part for part in parts if part.strip())


def _items(messages: Sequence[InboundMessage]) -> list[_Item]:
    return [_Item(place, attachment) for place, message in enumerate(messages) for attachment in message.attachments]


def _is_image(attachment: Attachment) -> bool:
    """Pictures may be sent as files, too; drawings that are written in XML are text."""
    of_pixels = attachment.media_type.startswith("image/") and attachment.media_type != "image/svg+xml"
    return attachment.kind == "image" or (attachment.kind == "document" and of_pixels)


def _each(
    step: Callable[[str, _Item], Awaitable[_Item]], connector: str, item: _Item, deadline: float | None = None
) -> Callable[[], Awaitable[_Item]]:
    async def run() -> _Item:
        try:
            async with asyncio.timeout_at(deadline):
                return await step(connector, item)
        except AttachmentUnavailable as error:
            return _unread(item, error)
        except TimeoutError:
            return _unread(item, AttachmentUnavailable("there was no time left for it"))

    return run


def _refuse(item: _Item, note: str, why: str) -> Callable[[], Awaitable[_Item]]:
    async def run() -> _Item:
        return replace(item, note=note, failed=why)

    return run


async def _as_coroutine(task: Callable[[], Awaitable[_Item]]) -> _Item:
    return await task()


def _unread(item: _Item, error: AttachmentUnavailable, unsaid: str = "") -> _Item:
    return replace(item, note=f"could not be read: {error.user_text.rstrip('.')}", failed="unreadable", unsaid=unsaid)


def _with_words(messages: Sequence[InboundMessage], items: Sequence[_Item]) -> tuple[InboundMessage, ...]:
    """*messages* in which voice messages are words: for the strategy, the search, the prompt and the log."""
    done = list(messages)
    for item in items:
        if item.heard is not None and item.heard.text:
            message = done[item.place]
            said = f"{VOICE_MARK} {item.heard.text}"
            text = f"{message.text}\n\n{said}" if message.text.strip() else said
            done[item.place] = replace(message, text=text)
    return tuple(done)


def _contents(messages: Sequence[InboundMessage], items: Sequence[_Item]) -> Contents:
    said_something = any(message.text.strip() for message in messages)
    only_voice = all(item.attachment.kind == "voice" for item in items)
    reasons = dict.fromkeys(item.failed for item in items if item.failed)
    return Contents(
        files=tuple(
            AttachedText(name=item.attachment.name, text=item.text, note=item.note)
            for item in items
            if item.text or item.note
        ),
        images=tuple(item.image for item in items if item.image is not None),
        degraded=tuple(DegradedBlock(block=BLOCK, why=why) for why in reasons),
        heard=tuple(item.heard for item in items if item.heard is not None),
        unheard=next((item.unsaid for item in items if item.unsaid), "") if only_voice and not said_something else "",
    )
