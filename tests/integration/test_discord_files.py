"""Files on Discord, in both directions, and messages that are taken back."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from connectors.connector import AttachmentUnavailable, LocatesAttachments, SendFailed
from connectors.discord.connector import DiscordConnector
from connectors.message import Attachment, ConversationKey, OutboundMessage, OutboundPart
from tests.contract.connector_suite import FakeGateway, running, send_all
from tests.contract.discord_harness import discord_connector
from tests.emulators import discord as emulated
from tests.emulators.discord import DiscordEmulator, File, Person, Room
from tests.emulators.discord_nouns import MAX_UPLOAD_BYTES, VOICE_MESSAGE

LENA = Person(id=501, name="Lena")
TEAM = Room(channel_id=910, name="general")
IN_TEAM = ConversationKey("acme", "discord", "910")
PRICES = File("prices.md", b"# Prices\n\nTwelve euros.", "text/markdown")


@pytest.fixture
async def discord() -> AsyncIterator[DiscordEmulator]:
    async with DiscordEmulator(rooms=(TEAM,)) as emulator:
        yield emulator


@pytest.fixture
async def bot(discord: DiscordEmulator) -> AsyncIterator[DiscordConnector]:
    connector = discord_connector(discord, reply_max_parts=2)
    yield connector
    await connector.close()


@pytest.fixture
def gateway() -> FakeGateway:
    return FakeGateway()


def says(text: str, turn: str = "t1") -> OutboundMessage:
    return OutboundMessage(IN_TEAM, turn, text)


async def sent_by_lena(
    discord: DiscordEmulator, bot: DiscordConnector, gateway: FakeGateway, file: File = PRICES, flags: int = 0
) -> tuple[int, Attachment]:
    async with running(bot, gateway):
        said = await discord.say("see", by=LENA, files=(file,), flags=flags)
        await gateway.until(lambda g: len(g.accepted) == 1)
    (attachment,) = gateway.accepted[0].attachments
    return said, attachment


async def fetched(url: str) -> httpx.Response:
    async with httpx.AsyncClient() as client:
        return await client.get(url)


# In


async def test_a_file_can_be_fetched_for_as_long_as_its_message_stands(
    discord: DiscordEmulator, bot: DiscordConnector, gateway: FakeGateway
) -> None:
    """Its address has expired by then, so that Discord is asked for a fresh one; also after a restart."""
    _, attachment = await sent_by_lena(discord, bot, gateway)
    assert isinstance(bot, LocatesAttachments)
    assert (attachment.name, attachment.media_type, attachment.size_bytes) == (
        "prices.md",
        "text/markdown",
        len(PRICES.content),
    )
    later = discord_connector(discord)
    first = await later.locate(attachment)
    assert (await fetched(first.url)).content == PRICES.content
    discord.expire_links()
    assert (await fetched(first.url)).status_code == 404
    fresh = await later.locate(attachment)
    assert (await fetched(fresh.url)).content == PRICES.content
    assert (fresh.hosts, fresh.trusts_private) == (("127.0.0.1",), True)
    assert not fresh.headers
    await later.close()


async def test_a_voice_message_is_known_as_one(
    discord: DiscordEmulator, bot: DiscordConnector, gateway: FakeGateway
) -> None:
    _, attachment = await sent_by_lena(
        discord, bot, gateway, File("voice-message.ogg", b"OggS", "audio/ogg"), VOICE_MESSAGE
    )
    assert attachment.kind == "voice"


async def test_a_forwarded_file_is_found_in_what_was_forwarded(
    discord: DiscordEmulator, bot: DiscordConnector, gateway: FakeGateway
) -> None:
    snapshot = {
        "type": 0,
        "content": "the prices",
        "embeds": [],
        "attachments": [discord.attached(LENA, PRICES)],
        "timestamp": "2026-01-01T00:00:00+00:00",
        "edited_timestamp": None,
    }
    async with running(bot, gateway):
        await discord.say("", by=LENA, message_snapshots=[{"message": snapshot}])
        await gateway.until(lambda g: len(g.accepted) == 1)
        (attachment,) = gateway.accepted[0].attachments
        found = await bot.locate(attachment)
    assert (await fetched(found.url)).content == PRICES.content


async def test_a_file_whose_message_was_deleted_is_gone(
    discord: DiscordEmulator, bot: DiscordConnector, gateway: FakeGateway
) -> None:
    said, attachment = await sent_by_lena(discord, bot, gateway)
    await discord.delete(said)
    later = discord_connector(discord)
    with pytest.raises(AttachmentUnavailable, match="gone"):
        await later.locate(attachment)
    await later.close()


async def test_a_file_is_not_to_be_had_while_discord_is_away(discord: DiscordEmulator, bot: DiscordConnector) -> None:
    discord.fail_next("message", emulated.SERVER_ERROR)
    with pytest.raises(AttachmentUnavailable, match="later"):
        await bot.locate(Attachment("document", "a.md", handle="910/1/1"))


@pytest.mark.parametrize("handle", ["", "1/2", "../../users/1/2", "1/2/x", "https://evil.example/a"])
async def test_a_handle_of_somebody_elses_is_refused(bot: DiscordConnector, handle: str) -> None:
    with pytest.raises(AttachmentUnavailable):
        await bot.locate(Attachment("document", "a.md", handle=handle))


# Out


async def test_a_very_long_reply_goes_as_its_beginning_and_a_file(
    discord: DiscordEmulator, bot: DiscordConnector
) -> None:
    """The file has the whole text, is one message by its nonce, and pings nobody."""
    text = "\n\n".join(f"Paragraph {number}. @everyone " + "word " * 100 for number in range(30))
    await send_all(bot, says(text))
    await send_all(bot, says(text))
    beginning, whole = discord.shown(TEAM)
    assert beginning.text.startswith("Paragraph 0.")
    assert [(file.name, file.content.decode()) for file in whole.files] == [("whole-reply.md", text)]
    assert not whole.pings


async def test_a_message_can_become_a_file_and_words_again(discord: DiscordEmulator, bot: DiscordConnector) -> None:
    message = says("one moment")
    (words,) = bot.render(message)
    receipt = await bot.send(message, words)
    file = OutboundPart(0, 1, "# All of it", "t1.reply.file", file_name="all.md")
    await bot.edit(message, file, receipt)
    (shown,) = discord.shown(TEAM)
    assert (shown.text, [one.content for one in shown.files]) == ("", [b"# All of it"])
    await bot.edit(message, words, receipt)
    assert (shown.text, shown.files) == ("one moment", ())


async def test_a_file_that_is_too_large_is_refused_for_good(discord: DiscordEmulator, bot: DiscordConnector) -> None:
    file = OutboundPart(0, 1, "x" * (MAX_UPLOAD_BYTES + 1), "t1.reply.file", file_name="all.md")
    with pytest.raises(SendFailed) as caught:
        await bot.send(says("x"), file)
    assert (caught.value.retryable, caught.value.ambiguous) == (False, False)


# Taking back, and the pace of edits


async def test_a_message_is_taken_back_once_and_for_all(discord: DiscordEmulator, bot: DiscordConnector) -> None:
    message = says("one moment")
    receipt = await bot.send(message, bot.render(message)[0])
    await bot.take_back(message, receipt)
    await bot.take_back(message, receipt)
    assert discord.shown(TEAM) == []
    assert discord.calls.count("delete") == 2


async def test_a_message_that_cannot_be_taken_back_says_so(discord: DiscordEmulator, bot: DiscordConnector) -> None:
    message = says("one moment")
    receipt = await bot.send(message, bot.render(message)[0])
    discord.fail_next("delete", emulated.FORBIDDEN)
    with pytest.raises(SendFailed) as caught:
        await bot.take_back(message, receipt)
    assert not caught.value.retryable


@pytest.mark.parametrize("via", [True, False])
async def test_an_edit_that_is_held_back_says_for_how_long(
    discord: DiscordEmulator, bot: DiscordConnector, via: bool
) -> None:
    """It is not waited for inside the call: by then there may be more to show."""
    message = says("one moment")
    receipt = await bot.send(message, bot.render(message)[0])
    discord.fail_next("edit", emulated.rate_limited(25, via=via))
    with pytest.raises(SendFailed) as caught:
        await bot.edit(message, bot.render(says("more"))[0], receipt)
    assert (caught.value.retryable, caught.value.ambiguous, caught.value.retry_after_seconds) == (True, False, 25)
    await bot.edit(message, bot.render(says("more"))[0], receipt)
    assert [one.text for one in discord.shown(TEAM)] == ["more"]
