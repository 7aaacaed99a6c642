"""What Telegram can do beyond saying and hearing: files, commands, taking back, groups that move, deaf polls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from connectors.connector import (
    AttachmentUnavailable,
    CommandHint,
    ConnectionState,
    SendFailed,
)
from connectors.message import Attachment, ConversationKey, InboundKind, OutboundMessage, OutboundPart, Receipt
from connectors.telegram.connector import (
    FILE_GONE,
    FILE_TOO_LARGE,
    FILE_UNAVAILABLE,
    FILE_UNREACHABLE,
    TelegramConnector,
)
from tests.contract.connector_suite import FakeGateway, eventually, reply_to, running, send_all
from tests.contract.telegram_harness import telegram_connector
from tests.emulators import telegram as emulated
from tests.emulators.telegram import MAX_DOWNLOAD_BYTES, Room, TelegramEmulator, entities_of

TEAM = Room(id=-100200, topics=(7, 8))
VILLAGE = Room(id=-300, title="The village")


@pytest.fixture
async def telegram() -> AsyncIterator[TelegramEmulator]:
    async with TelegramEmulator() as emulator:
        emulator.join(TEAM)
        emulator.join(VILLAGE)
        yield emulator


@pytest.fixture
async def bot(telegram: TelegramEmulator) -> AsyncIterator[TelegramConnector]:
    connector = telegram_connector(telegram)
    yield connector
    await connector.close()


@pytest.fixture
def gateway() -> FakeGateway:
    return FakeGateway()


async def asked(telegram: TelegramEmulator, gateway: FakeGateway, to: Room | None = None) -> OutboundMessage:
    """The reply to what somebody asks there, in the first of its topics."""
    before = len(gateway.accepted)
    await telegram.say("@helper_bot hi", to=to, topic=to.topics[0] if to and to.topics else None)
    await gateway.until(lambda g: len(g.accepted) > before)
    return reply_to(gateway.accepted[-1], "hello")


def a_file(message: OutboundMessage, index: int = 0) -> OutboundPart:
    """A part of *message* that is a file."""
    return OutboundPart(index, index + 1, "# All of it", f"{message.turn_id}.file", file_name="all.md")


# Files out


async def test_a_file_goes_to_the_topic_and_hangs_at_the_question(
    telegram: TelegramEmulator, bot: TelegramConnector, gateway: FakeGateway
) -> None:
    """As a text part would."""
    async with running(bot, gateway):
        said = replace(await asked(telegram, gateway, TEAM), reply_to="1")
        await bot.send(said, a_file(said))
    (shown,) = telegram.shown(TEAM, topic=7)
    assert (shown.file_name, shown.content, shown.reply_to) == ("all.md", b"# All of it", 1)


# Edits and taking back


async def test_only_a_message_that_is_gone_already_counts_as_taken_back(
    telegram: TelegramEmulator, bot: TelegramConnector, gateway: FakeGateway
) -> None:
    """One that Telegram does not let the bot delete is an error."""
    async with running(bot, gateway):
        said = await asked(telegram, gateway)
        await bot.take_back(said, Receipt("999"))
        with pytest.raises(SendFailed) as caught:
            await bot.take_back(said, Receipt("1"))
    assert not caught.value.retryable


# Files in


async def test_why_a_file_cannot_be_had_is_said_to_the_person_and_the_token_to_nobody(
    telegram: TelegramEmulator, bot: TelegramConnector
) -> None:
    """Too large, gone, kept where HTTP does not reach, and not now."""
    handles = {
        telegram.keep(b"", "video/film.mp4", size=MAX_DOWNLOAD_BYTES + 1)["file_id"]: FILE_TOO_LARGE,
        "unknown": FILE_GONE,
        telegram.keep(b"x", "/var/lib/telegram-bot-api/documents/file_1")["file_id"]: FILE_UNREACHABLE,
    }
    with capture_logs() as logs:
        for handle, why in handles.items():
            with pytest.raises(AttachmentUnavailable) as caught:
                await bot.locate(Attachment("document", "x", handle=handle))
            assert caught.value.user_text == why
        telegram.fail_next("getFile", emulated.rate_limited(5), emulated.LOST_ANSWER, emulated.GATEWAY_PAGE)
        good = telegram.keep(b"x", "documents/x")["file_id"]
        for _ in range(3):
            with pytest.raises(AttachmentUnavailable) as caught:
                await bot.locate(Attachment("document", "x", handle=good))
            assert caught.value.user_text == FILE_UNAVAILABLE
            assert telegram.token not in f"{caught.value!r}{caught.value.__cause__!r}"
    assert telegram.token not in str(logs)


async def test_only_the_named_host_is_asked_and_only_ones_own_may_be_private(telegram: TelegramEmulator) -> None:
    """Telegram's own stands on the internet; another was named by the operator. Paths are quoted."""
    file = telegram.keep(b"x", "documents/a b?#.md")
    own = telegram_connector(telegram)
    location = await own.locate(Attachment("document", "a", handle=file["file_id"]))
    await own.close()
    assert location.hosts == ("127.0.0.1",)
    assert location.trusts_private
    assert location.url == f"{telegram.base_url}/file/bot{telegram.token}/documents/a%20b%3F%23.md"
    assert telegram.token not in repr(location)


# Commands


async def test_a_command_that_telegram_cannot_show_is_named(telegram: TelegramEmulator, bot: TelegramConnector) -> None:
    hints = [CommandHint("help", "Shows what I can do.", "[command]"), CommandHint("Über-uns", "Who we are.")]
    with capture_logs() as logs:
        await bot.register_commands(hints)
    assert telegram.commands == [{"command": "help", "description": "[command] – Shows what I can do."}]
    assert [e["names"] for e in logs if e["event"] == "connector.commands_unfit"] == [["Über-uns"]]


async def test_commands_that_cannot_be_registered_now_say_so(
    telegram: TelegramEmulator, bot: TelegramConnector
) -> None:
    """With the wait that Telegram asks for."""
    telegram.fail_next("setMyCommands", emulated.rate_limited(30))
    with pytest.raises(SendFailed) as caught:
        await bot.register_commands([CommandHint("help", "Shows what I can do.")])
    assert (caught.value.retryable, caught.value.retry_after_seconds) == (True, 30.0)


# Places


async def test_a_reply_follows_its_group_when_that_has_moved(
    telegram: TelegramEmulator, bot: TelegramConnector, gateway: FakeGateway
) -> None:
    """By the refusal of the send; the operator is told of the new id."""
    async with running(bot, gateway):
        said = await asked(telegram, gateway, VILLAGE)
        with capture_logs() as logs:
            town = await telegram.upgrade(VILLAGE, -100300)
            await eventually(
                lambda: [e["new"] for e in logs if e["event"] == "connector.place_moved"] == ["-100300"] * 2
            )
        await send_all(bot, said)
    assert [m.text for m in telegram.shown(town)] == ["hello"]
    assert telegram.shown(VILLAGE) == []
    assert telegram.calls.count("sendmessage") == 2
    assert [m.kind for m in gateway.accepted] == [InboundKind.MESSAGE]


async def test_what_was_said_where_a_group_moved_to_is_changed_and_taken_back_there(
    telegram: TelegramEmulator, bot: TelegramConnector, gateway: FakeGateway
) -> None:
    """As first words are that a moved group is sent: what the former one was told stays as it is."""
    async with running(bot, gateway):
        said = await asked(telegram, gateway, VILLAGE)
        whole = bot.render(said)[0]
        earlier = replace(said, turn_id="earlier")
        before = await bot.send(earlier, whole)
        town = await telegram.upgrade(VILLAGE, -100300)
        begun, unwanted = [await bot.send(said, replace(whole, text=words)) for words in ("hel…", "nobody wants this")]
        await bot.edit(said, whole, begun)
        await bot.take_back(said, unwanted)
        with pytest.raises(SendFailed):
            await bot.edit(earlier, replace(whole, text="of the former group"), before)

    assert [m.text for m in telegram.shown(town)] == ["hello"]


async def test_what_followed_a_group_is_changed_there_by_a_process_that_never_heard_of_the_move(
    telegram: TelegramEmulator, bot: TelegramConnector, gateway: FakeGateway
) -> None:
    """As after a restart between first words and their last form. Messages of the same number, in the group's former
    chat and for a turn that did not follow, are not mixed up with it."""
    async with running(bot, gateway):
        said = await asked(telegram, gateway, VILLAGE)
        whole = bot.render(said)[0]
        town = await telegram.upgrade(VILLAGE, -100300)
        begun, unwanted = [await bot.send(said, replace(whole, text=words)) for words in ("hel…", "nobody wants this")]
    restarted = telegram_connector(telegram)
    await restarted.edit(said, whole, begun)
    await restarted.take_back(said, unwanted)
    with pytest.raises(SendFailed):
        await restarted.edit(said, whole, Receipt(begun.message_id.rpartition("/")[2]))
    await restarted.close()

    assert [(m.text, m.edits) for m in telegram.shown(town)] == [("hello", 1)]


async def test_a_reaction_belongs_to_the_topic_of_its_message(
    telegram: TelegramEmulator, bot: TelegramConnector, gateway: FakeGateway
) -> None:
    """To a person's message, and to the bot's own."""
    async with running(bot, gateway):
        said = await asked(telegram, gateway, TEAM)
        receipt = await bot.send(said, bot.render(said)[0])
        await telegram.react(TEAM.id, int(gateway.accepted[0].message_id), "🔥")
        await telegram.react(TEAM.id, int(receipt.message_id), "👍")
        await telegram.react(TEAM.id, 999, "👎")
        await gateway.until(lambda g: len(g.accepted) == 4)
    assert [(m.external_id, m.reaction) for m in gateway.accepted[1:]] == [
        (f"{TEAM.id}/7", "🔥"),
        (f"{TEAM.id}/7", "👍"),
        (str(TEAM.id), "👎"),
    ]


async def test_the_files_of_an_album_come_one_by_one_and_say_that_more_follows(
    telegram: TelegramEmulator, bot: TelegramConnector, gateway: FakeGateway
) -> None:
    """So that they can be collected into one turn; the caption stands at one of them."""
    async with running(bot, gateway):
        for number in range(3):
            photo = [telegram.keep(b"x", f"photos/{number}.jpg") | {"width": 9, "height": 9}]
            caption = "our office" if number == 0 else None
            await telegram.say("", photo=photo, media_group_id="album", caption=caption)
        await gateway.until(lambda g: len(g.accepted) == 3)
    assert [(m.text, len(m.attachments), m.looks_unfinished) for m in gateway.accepted] == [
        ("our office", 1, True),
        ("", 1, True),
        ("", 1, True),
    ]
    assert len({m.attachments[0].handle for m in gateway.accepted}) == 3


async def test_an_album_in_a_group_is_meant_for_the_bot_as_a_whole(
    telegram: TelegramEmulator, bot: TelegramConnector, gateway: FakeGateway
) -> None:
    """Its caption stands at the first file only."""
    at_bot = f"@{telegram.me.username}"
    async with running(bot, gateway):
        for album, caption in (("a", f"{at_bot} our office"), ("b", "not for the bot")):
            for number in range(2):
                photo = [telegram.keep(b"x", f"photos/{album}{number}.jpg") | {"width": 9, "height": 9}]
                said: dict[str, Any] = (
                    {"caption": caption, "caption_entities": entities_of(caption)} if number == 0 else {}
                )
                await telegram.say("", to=TEAM, photo=photo, media_group_id=album, **said)
        await gateway.until(lambda g: len(g.accepted) == 4)
    assert [(m.text, m.addressed) for m in gateway.accepted] == [
        ("our office", True),
        ("", True),
        ("not for the bot", False),
        ("", False),
    ]


# Polls


async def test_a_poll_that_is_never_answered_is_given_up_and_told(
    telegram: TelegramEmulator, gateway: FakeGateway
) -> None:
    """A connection that is open and deaf is left after the time of a poll and of a call; the next one hears."""
    bot = telegram_connector(telegram, poll_seconds=1, timeout_seconds=1.0, longest_backoff_seconds=0.5)
    states: list[ConnectionState] = []

    async def look() -> None:
        while True:
            states.append(bot.health.state)
            await asyncio.sleep(0.005)

    async with running(bot, gateway):
        looking = asyncio.create_task(look())  # which poll it is that gets no answer is a matter of luck
        telegram.fail_next("getUpdates", emulated.NO_ANSWER)
        await telegram.say("wakes the poll before it")
        await gateway.until(lambda g: len(g.accepted) == 1)
        await telegram.say("is anybody there?")
        await gateway.until(lambda g: len(g.accepted) == 2)
        await eventually(lambda: bot.health.state is ConnectionState.CONNECTED)
        looking.cancel()
    await bot.close()
    assert ConnectionState.DEGRADED in states
    assert [m.text for m in gateway.accepted] == ["wakes the poll before it", "is anybody there?"]


async def test_a_restart_goes_on_where_telegram_was_told_to_stop(
    telegram: TelegramEmulator, bot: TelegramConnector, gateway: FakeGateway
) -> None:
    """What was confirmed does not come again, and what came meanwhile does."""
    async with running(bot, gateway):
        await telegram.say("before")
        await telegram.until(lambda t: t.confirmed == emulated.FIRST_UPDATE + 1)
    await telegram.say("meanwhile")
    again = telegram_connector(telegram)
    async with running(again, gateway):
        await gateway.until(lambda g: len(g.accepted) == 2)
    assert [m.text for m in gateway.accepted] == ["before", "meanwhile"]


async def test_an_error_never_shows_the_token(telegram: TelegramEmulator, gateway: FakeGateway) -> None:
    """Also where the URL, of which it is part, stands in the error."""
    bot = TelegramConnector(SecretStr(telegram.token), "http://[::1]:1/proxy")
    task = asyncio.create_task(bot.run(gateway.accept))
    with capture_logs() as logs:
        await eventually(lambda: bot.health.why != "")
        await bot.typing(ConversationKey("acme", "telegram", "501"))
    task.cancel()
    await asyncio.wait([task])
    await bot.close()
    assert telegram.token not in f"{bot.health}{logs}"
