"""What a turn does with the files that came with it, whatever they, their platform and the model are like."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
import pytest_asyncio

from config.settings import Settings
from connectors.connector import AttachmentUnavailable, Location
from connectors.message import Attachment, Author, ConversationKey, Fence, InboundMessage, Role
from grounding.prompt_input import AttachedText
from runtime.attachments import AttachmentContents, AttachmentReader, Files, Locator, transcript_text
from runtime.attachments.reading import MAX_FILES, MAX_IMAGES
from runtime.coordination import Hub
from runtime.llm import ModelUnavailable, Transcription
from runtime.turns.batch import Batch, Envelope
from runtime.turns.turn_state import Question
from tests.emulators import documents as made
from tests.emulators import hostile

KEY = ConversationKey("acme", "fake", "C1")


class Platform:
    """A connector that only locates: a handle is a path on *server*, or trouble."""

    def __init__(self, server: hostile.HostileServer) -> None:
        self.server = server
        self.located: list[str] = []

    async def locate(self, attachment: Attachment) -> Location:
        self.located.append(attachment.name)
        match attachment.handle:
            case "gone":
                raise AttachmentUnavailable("The file is not there any more.")
            case "broken":
                raise KeyError("an adapter that broke")
            case "stuck":
                await asyncio.Event().wait()
        return Location(f"http://127.0.0.1:{self.server.port}{attachment.handle}", ("127.0.0.1",), {}, True)


class Senses:
    """A model that may see, and hears *heard*."""

    def __init__(self, sees: bool = True, heard: str | ModelUnavailable = "ahoy") -> None:
        self.sees = sees
        self.heard = heard
        self.recordings: list[tuple[str, str]] = []

    async def sees_images(self, first: str | None = None) -> bool:
        return self.sees

    async def transcribe(self, audio: bytes, name: str, media_type: str) -> Transcription:
        self.recordings.append((name, media_type))
        if isinstance(self.heard, ModelUnavailable):
            raise self.heard
        return Transcription(self.heard, "openai/whisper-1")


@pytest_asyncio.fixture
async def platform() -> AsyncIterator[Platform]:
    async with hostile.serving() as server:
        server.files = {
            "/a.md": ("text/markdown", b"# Words"),
            "/a.pdf": ("application/octet-stream", made.pdf("Words")),
            "/a.png": ("image/png", made.PNG),
            "/a.ogg": ("audio/ogg", made.OGG),
            "/login": ("text/html", b"<!DOCTYPE html><html><body>Sign in"),
            "/not.png": ("image/png", b"words"),
        }
        yield Platform(server)


Read = Callable[..., Any]


@pytest.fixture
def reading(platform: Platform, settings: Callable[..., Settings]) -> Callable[..., AttachmentReader]:
    def make(senses: Senses | None = None, timeout_seconds: float = 30.0, **fields: Any) -> AttachmentReader:
        chosen = settings(**fields)
        connectors = cast("Mapping[str, Any]", {"fake": platform, "deaf": object()})
        return AttachmentReader(
            chosen,
            Files(
                chosen,
                Locator(connectors, cast("Hub", SimpleNamespace(hear=lambda *_: None))),
                timeout_seconds=timeout_seconds,
            ),
            senses or Senses(),
        )

    return make


def said(*attachments: Attachment, text: str = "look", connector: str = "fake") -> tuple[InboundMessage]:
    return (InboundMessage(connector, "C1", "m1", Author("u1", "Lena"), text, attachments=attachments),)


def document(name: str, handle: str = "/a.md", **more: Any) -> Attachment:
    return Attachment("document", name, handle=handle, **more)


async def read(reading: AttachmentReader, *attachments: Attachment, **more: Any) -> AttachmentContents:
    _, contents = await reading.read(said(*attachments, **more))
    return contents


@pytest.mark.parametrize(
    ("attachment", "note"),
    [
        (document("a.pdf", "gone"), "could not be read: The file is not there any more"),
        (document("a.pdf", "broken"), "could not be read: something went wrong with it here"),
        (document("a.pdf", "stuck"), "could not be read: fetching it took longer than 0.5 seconds"),
        (document("a.pdf", "/drip"), "could not be read: fetching it took longer than 0.5 seconds"),
        (document("a.pdf", "/status/404"), "could not be read: the platform does not have it any more"),
        (document("a.pdf", "/login"), "could not be read: the platform sent a web page in its place"),
        (document("a.pdf", size_bytes=12_000_000), "could not be read: too large (12 MB; the limit is 10 MB)"),
        (Attachment("other", "dance.mp4"), "could not be read: it is not a kind of file that I can read"),
        (Attachment("image", "a.png", handle="/not.png"), "could not be read: it is text, which I cannot read"),
    ],
)
async def test_what_cannot_be_read_is_a_note_and_the_rest_is_read(
    reading: Callable[..., AttachmentReader], attachment: Attachment, note: str
) -> None:
    found = await read(reading(timeout_seconds=0.5), attachment, document("b.md"))
    assert found.files == (
        AttachedText(name=attachment.name, note=note),
        AttachedText(name="b.md", text="# Words"),
    )
    assert [(part.block, part.why) for part in found.degraded] == [("attachments", "unreadable")]


async def test_many_slow_files_are_given_up_together(
    reading: Callable[..., AttachmentReader], platform: Platform
) -> None:
    """Of more than are fetched side by side, those that waited longest for their turn are not even begun."""
    stuck = [document(f"{number}.pdf", "stuck") for number in range(MAX_FILES)]
    found = await read(reading(timeout_seconds=0.2), *stuck)
    assert {file.note for file in found.files[:4]} == {"could not be read: fetching it took longer than 0.2 seconds"}
    assert found.files[-1].note == "could not be read: there was no time left for it"
    assert platform.located == [f"{number}.pdf" for number in range(8)]


async def test_a_platform_that_cannot_locate_is_no_error(reading: Callable[..., AttachmentReader]) -> None:
    found = await read(reading(), document("a.md"), connector="deaf")
    assert found.files == (AttachedText(name="a.md", note="could not be read: files cannot be fetched from here"),)


async def test_only_so_many_files_are_fetched(reading: Callable[..., AttachmentReader], platform: Platform) -> None:
    found = await read(reading(), *(document(f"{number}.md") for number in range(MAX_FILES + 2)))
    assert len(platform.located) == MAX_FILES
    assert [file.note for file in found.files[MAX_FILES:]] == ["not read: only the first 10 files of a message are"] * 2
    assert [part.why for part in found.degraded] == ["too_many"]


async def test_pictures_are_shown_up_to_a_number(reading: Callable[..., AttachmentReader]) -> None:
    found = await read(reading(), *(Attachment("image", f"{n}.png", handle="/a.png") for n in range(MAX_IMAGES + 1)))
    assert [image.name for image in found.images] == ["0.png", "1.png", "2.png", "3.png"]
    assert found.images[0].media_type == "image/png"
    assert [(file.name, file.note) for file in found.files] == [("4.png", "not shown: only 4 pictures at once are")]


async def test_a_picture_sent_as_a_file_is_a_picture(reading: Callable[..., AttachmentReader]) -> None:
    found = await read(reading(), document("a.png", "/a.png", media_type="image/png"))
    assert [image.uri for image in found.images] == ["data:image/png;base64," + base64.b64encode(made.PNG).decode()]


async def test_no_picture_is_fetched_for_a_model_that_does_not_see(
    reading: Callable[..., AttachmentReader], platform: Platform
) -> None:
    found = await read(reading(Senses(sees=False)), Attachment("image", "a.png", handle="/a.png"))
    assert platform.located == []
    assert found.images == ()
    assert [part.why for part in found.degraded] == ["blind_model"]


VOICE = Attachment("voice", "voice.ogg", handle="/a.ogg")


async def test_a_voice_message_becomes_words_for_everything_that_follows(
    reading: Callable[..., AttachmentReader],
) -> None:
    senses = Senses()
    (heard,), _ = await reading(senses, transcription_model="openai/whisper-1").read(said(VOICE, text="listen"))
    assert heard.text == "listen\n\n[voice message] ahoy"
    senses.recordings.clear()
    (heard,), found = await reading(senses, transcription_model="openai/whisper-1").read(said(VOICE, text=""))
    batch = Batch(ConversationKey("acme", "fake", "C1"), "t1", 1, (Envelope(heard, Role.MEMBER, 0.0),), Fence("", ""))
    assert Question.of(batch, found).text == "[voice message] ahoy"
    assert transcript_text(heard) == "[voice message] ahoy"
    assert found.unheard == ""
    assert senses.recordings == [("voice.ogg", "audio/ogg")]


@pytest.mark.parametrize(
    ("senses", "model", "told"),
    [
        (Senses(), None, "I cannot listen to voice messages here. Please write to me instead."),
        (Senses(heard=""), "openai/whisper-1", "I could not hear any words in your voice message."),
        (
            Senses(heard=ModelUnavailable("away", why="timeout")),
            "openai/whisper-1",
            "I could not listen to your voice message just now. Please try again, or write to me.",
        ),
    ],
)
async def test_a_voice_message_that_cannot_be_heard_is_told_to_who_sent_it(
    reading: Callable[..., AttachmentReader], senses: Senses, model: str | None, told: str
) -> None:
    alone = await read(reading(senses, transcription_model=model), VOICE, text="")
    assert alone.unheard == told
    with_words = await read(reading(senses, transcription_model=model), VOICE, text="listen to this")
    assert with_words.unheard == ""
    assert with_words.files[0].name == "voice.ogg"
    assert with_words.files[0].note.startswith("a voice message")


async def test_each_recording_is_told_of_as_soon_as_it_is_written_down(
    reading: Callable[..., AttachmentReader],
) -> None:
    """It is paid for, whatever comes of the others."""
    told = asyncio.Event()

    class OneAtATime(Senses):
        async def transcribe(self, audio: bytes, name: str, media_type: str) -> Transcription:
            if self.recordings:
                await told.wait()
            return await super().transcribe(audio, name, media_type)

    calls = []

    async def heard(one: Transcription) -> None:
        calls.append(one.call)
        told.set()

    async with asyncio.timeout(10):
        await reading(OneAtATime(), transcription_model="openai/whisper-1").read(said(VOICE, VOICE), None, heard)
    assert len(set(calls)) == 2


async def test_a_voice_message_that_the_platform_lost_is_told_too(reading: Callable[..., AttachmentReader]) -> None:
    lost = Attachment("voice", "voice.ogg", handle="gone")
    found = await read(reading(transcription_model="openai/whisper-1"), lost, text="")
    assert found.unheard == "I could not get your voice message: The file is not there any more."
