"""People send files, pictures and voice messages to the bot, on Telegram's emulator."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import pytest_asyncio

from config.settings import Settings
from connectors.message import Scope
from grounding.prompt import build_prompt
from tests.contract.telegram_harness import telegram_connector
from tests.emulators import documents as made
from tests.emulators.bot import Bot, bot_on, running_bot
from tests.emulators.openai import FakeOpenAI
from tests.emulators.telegram import Person, TelegramEmulator

ADMINS = tuple(Person(id=number, name="Lena") for number in range(501, 521))
"""One for each test: each talks to the bot in private."""
BO = Person(id=502_000, name="Bo")

pytestmark = pytest.mark.asyncio(loop_scope="module")


@dataclass
class Chat:
    """A bot on Telegram, and people who send it files."""

    bot: Bot
    telegram: TelegramEmulator
    admin: Person = ADMINS[0]

    async def hears(self, *, by: Person | None = None, text: str = "", **message: Any) -> str:
        """What the bot says next, when *by*, or else the admin, sends a message."""
        by = by or self.admin
        before = len(self.telegram.said(by))
        await self.telegram.say(text, by=by, **message)
        await self.telegram.until(lambda telegram: len(telegram.said(by)) > before)
        await self.bot.settle()
        return "\n".join(shown.text for shown in self.telegram.said(by)[before:])

    def document(self, data: bytes, name: str, media_type: str = "", size: int | None = None) -> dict[str, Any]:
        """A file as it stands in a message."""
        return self.telegram.keep(data, f"documents/{hashlib.sha256(data).hexdigest()[:8]}/{name}", size) | {
            "file_name": name,
            "mime_type": media_type,
        }

    def voice(self, data: bytes = made.OGG) -> dict[str, Any]:
        return self.telegram.keep(data, "voice/file_1.oga") | {"duration": 3, "mime_type": "audio/ogg"}

    def photo(self, data: bytes = made.PNG) -> list[dict[str, Any]]:
        return [self.telegram.keep(data, "photos/file_2.jpg") | {"width": 1, "height": 1}]

    @property
    def asked(self) -> str:
        """What the newest prompt for a reply says to the model, of one without pictures."""
        [content] = [one["content"] for one in self.bot.replies_asked[-1]["messages"] if one["role"] == "user"]
        return str(content)


@asynccontextmanager
async def chatting(settings: Settings, model: FakeOpenAI) -> AsyncIterator[Chat]:
    async with (
        TelegramEmulator() as telegram,
        running_bot(settings, model, [telegram_connector(telegram)]) as bot,
    ):
        yield Chat(bot, telegram)


def on_telegram(telegram: TelegramEmulator, **fields: Any) -> AbstractAsyncContextManager[Bot]:
    """A bot whose admins are `ADMINS`."""
    admins = tuple(f"telegram:{one.id}" for one in ADMINS)
    return bot_on(telegram_connector(telegram), access_admins=admins, **fields)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_chat() -> AsyncIterator[Chat]:
    async with TelegramEmulator() as telegram, on_telegram(telegram) as bot:
        yield Chat(bot, telegram)


@pytest.fixture
def chat(module_chat: Chat) -> Chat:
    """The bot that all tests share, and an admin whom it does not know yet."""
    bot = module_chat.bot.from_now()
    bot.model.forget_orders()
    return replace(module_chat, bot=bot, admin=next(NEW_ADMINS))


NEW_ADMINS = iter(ADMINS)


async def test_the_text_of_a_file_stands_behind_the_words(chat: Chat) -> None:
    chat.bot.model.will("Forty euros.")
    sent = chat.document(made.pdf("Winter tyres cost 40 euros"), "prices.pdf", "application/pdf")
    assert (await chat.hears(caption="What do the tyres cost?", document=sent)).startswith("Forty euros.")
    assert chat.asked.endswith(
        "What do the tyres cost?\n\nAttached files: prices.pdf\n\nContent of prices.pdf:\n> Winter tyres cost 40 euros"
    )


async def test_a_file_without_a_word_is_read_too_and_noted_in_the_log(chat: Chat) -> None:
    await chat.hears(document=chat.document(b"# Minutes\n\nWe sail at noon.", "minutes.md"))
    assert "Content of minutes.md:\n> # Minutes\n> \n> We sail at noon." in chat.asked
    chat.bot.model.will("The minutes.")
    await chat.hears(text="What did I just send you?")
    assert "Lena: [attachments] minutes.md" in chat.asked


async def test_a_file_that_cannot_be_read_is_told_to_the_model_and_the_turn_goes_on(chat: Chat) -> None:
    chat.bot.model.will("I could not open it.")
    too_large = chat.document(b"%PDF-1.4", "huge.pdf", "application/pdf", size=12_000_000)
    assert await chat.hears(caption="Sum it up", document=too_large) == "I could not open it."
    assert "huge.pdf: could not be read: too large (12 MB; the limit is 10 MB)" in chat.asked
    assert {"block": "attachments", "why": "unreadable"} in chat.bot.grounding["degraded"]


async def test_a_turn_with_a_file_is_replayed_to_the_byte(chat: Chat) -> None:
    await chat.hears(caption="And this?", document=chat.document(b"words " * 3000, "long.txt", "text/plain"))
    [kept] = await chat.bot.runtime.manifests.newest(Scope("acme"), 1)
    assert build_prompt(kept.context, chat.bot.runtime.tokens).sha256 == kept.prompt_sha256
    assert kept.context.query.files[0].name == "long.txt"
    assert len(kept.context.query.files[0].text) <= chat.bot.runtime.settings.llm_grounding_max_prompt_bytes


async def test_a_model_that_does_not_see_is_told_so(chat: Chat) -> None:
    await chat.hears(caption="What is it?", photo=chat.photo())
    assert "a picture, which the model in use cannot see" in chat.asked
    assert not any(chat.bot.model.images)


async def test_pictures_are_shown_and_voices_heard_where_models_see_and_hear() -> None:
    models: dict[str, Any] = {"llm_model": "openai/gpt-4o", "transcription_model": "openai/gpt-4o-transcribe"}
    async with TelegramEmulator() as telegram, on_telegram(telegram, **models, show_sources=True) as bot:
        chat = Chat(bot, telegram)
        await check_a_picture(chat)
        await check_a_voice(chat)
        await check_citations(chat)


async def check_a_picture(chat: Chat) -> None:
    chat.bot.model.will("A single pixel.")
    assert await chat.hears(caption="What is it?", photo=chat.photo()) == "A single pixel."
    shown = [image for images in chat.bot.model.images for image in images]
    assert len(shown) == 1
    assert shown[0].startswith("data:image/png;base64,")
    [kept] = await chat.bot.runtime.manifests.newest(Scope("acme"), 1)
    assert kept.context.query.images[0].sha256 == hashlib.sha256(made.PNG).hexdigest()
    assert "Shown with this message: " in build_prompt(kept.context, chat.bot.runtime.tokens).user


async def check_a_voice(chat: Chat) -> None:
    """It is answered like words; one that could not be heard is apologised for."""
    chat.bot.model.heard = "What is the pricing policy?"
    chat.bot.model.will("Twelve euros.")
    assert (await chat.hears(voice=chat.voice())).startswith("Twelve euros.")
    assert "\n\n[voice message] What is the pricing policy?" in chat.asked
    assert "The harbour plan costs 12 euros" in chat.asked
    await chat.hears(text="What did I ask before?")
    assert "Lena: [voice message] What is the pricing policy?" in chat.asked
    used = {one.model: one for one in await chat.bot.runtime.usage.totals(Scope("acme"))}
    assert (used["openai/gpt-4o-transcribe"].calls, used["openai/gpt-4o-transcribe"].prompt) == (1, 14)

    asked = len(chat.bot.replies_asked)
    chat.bot.model.will("unauthorized")
    assert "could not listen to your voice message" in await chat.hears(voice=chat.voice())
    assert len(chat.bot.replies_asked) == asked


async def check_citations(chat: Chat) -> None:
    """An answer that cites an attached file names no document that it did not use."""
    tyres = "# Winter tyres\n\nWhat tyres cost is in the price list.\n"
    await chat.bot.write_documents("acme", {"tyres.md": tyres})
    for name in ("prices.md", "prices.txt"):
        chat.bot.model.will(f"Forty euros [{name}].")
        sent = chat.document(b"Winter tyres cost 40 euros", name, "text/plain")
        said = await chat.hears(caption="What do the tyres cost, by our docs?", document=sent)
        assert "[tyres.md" in chat.asked
        assert said == f"Forty euros [{name}]."


async def test_where_no_model_hears_the_person_is_told_so(chat: Chat) -> None:
    said = await chat.hears(voice=chat.voice())
    assert said == "I cannot listen to voice messages here. Please write to me instead."
    assert chat.bot.replies_asked == []


async def test_an_admin_adds_a_document_by_sending_it(chat: Chat) -> None:
    sent = chat.document(
        made.docx(made.paragraph("Lifeboats", "Heading1") + made.paragraph("There are nine.")), "b.docx"
    )
    said = await chat.hears(caption="/docs add ship/lifeboats", document=sent)
    assert "b.docx is stored as ship/lifeboats.md" in said
    assert "I can look it up now (1 chunk)" in said
    await chat.hears(text="How many lifeboats do the docs say there are?")
    assert "There are nine." in chat.asked
    assert "ship/lifeboats.md" in await chat.hears(text="/docs")


async def test_a_document_is_replaced_only_where_that_was_said(chat: Chat) -> None:
    async def send(caption: str, text: bytes) -> str:
        return await chat.hears(caption=caption, document=chat.document(text, "crew.md", "text/markdown"))

    assert "is stored as crew.md" in await send("/docs add", b"# Crew\n\nLena.")
    assert "is already stored with the same text" in await send("/docs add", b"# Crew\n\nLena.")
    assert "exists already; the caption /docs replace" in await send("/docs add", b"# Crew\n\nBo.")
    assert "is stored as crew.md" in await send("/docs replace", b"# Crew\n\nBo.")
    library, scope = chat.bot.runtime.knowledge.library, Scope("acme")
    assert (await asyncio.to_thread(library.get, scope, "crew.md")).text == "# Crew\n\nBo.\n"
    assert await chat.hears(text="/docs remove crew.md") == "crew.md is removed."
    assert "crew.md" in await chat.hears(text="/docs remove crew.md")


async def test_what_cannot_be_read_is_named_and_counts_as_no_document(chat: Chat) -> None:
    docs = chat.bot.runtime.settings.data_dir / "workspaces" / "acme" / "docs"
    (docs / "hands.md").write_text("# Crew\n\nLena.\n", encoding="utf-8")
    (docs / "photo.md").write_bytes(b"\x89PNG\x00\x01")
    await chat.bot.runtime.knowledge.sync(Scope("acme"))
    said = await chat.hears(text="/docs")
    listed, unread = said.split("I cannot read these files:")
    assert "photo.md" not in listed
    assert "photo.md: binary" in unread
    assert "hands.md" in listed


async def test_others_cannot_change_the_documents(chat: Chat) -> None:
    sent = chat.document(b"# Lies", "lies.md")
    assert "Only admins" in await chat.hears(by=BO, caption="/docs add", document=sent)
    found, _ = await chat.bot.runtime.knowledge.shelf.look_through(Scope("acme"))
    assert "lies.md" not in [one.path for one in found]


async def test_a_document_cannot_leave_the_documents_folder(chat: Chat) -> None:
    sent = chat.document(b"# Lies", "lies.md")
    for path in ("../lies.md", "/etc/lies.md", ".hidden.md"):
        assert "was not stored" in await chat.hears(caption=f"/docs add {path}", document=sent)
    assert "was not stored: it is a program" in await chat.hears(
        caption="/docs add", document=chat.document(b"MZ\x90\x00\x03\x00", "setup.md")
    )
