"""Discord's connector with the real SDK, against a REST API and a gateway on loopback that enforce Discord's limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from connectors.connector import (
    AttachmentUnavailable,
    ConnectionState,
    ConnectorFailed,
    LocatesAttachments,
    SendFailed,
)
from connectors.discord.connector import DiscordConnector
from connectors.discord.errors import DiscordUnavailable
from connectors.message import (
    Accepted,
    Attachment,
    ConversationKey,
    InboundKind,
    InboundMessage,
    OutboundMessage,
    OutboundPart,
)
from runtime.embedded import background_task
from runtime.process.connectors import Backfill
from tests.contract.connector_suite import FakeGateway, eventually, reply_to, running, send_all
from tests.contract.discord_harness import discord_connector
from tests.emulators import discord as emulated
from tests.emulators.discord import DiscordEmulator, File, Person, Room
from tests.emulators.discord_nouns import MAX_UPLOAD_BYTES, VOICE_MESSAGE

LENA = Person(id=501, name="Lena")
OMAR = Person(id=502, name="Omar")
TEAM = Room(channel_id=910, name="general")
OTHER = Room(channel_id=920, name="other")
THREAD = Room(channel_id=911, name="refunds", parent=910)
IN_TEAM = ConversationKey("acme", "discord", "910")


@pytest.fixture
async def discord() -> AsyncIterator[DiscordEmulator]:
    async with DiscordEmulator(rooms=(TEAM, OTHER, THREAD)) as emulator:
        yield emulator


@pytest.fixture
async def bot(discord: DiscordEmulator) -> AsyncIterator[DiscordConnector]:
    connector = discord_connector(discord)
    yield connector
    await connector.close()


@pytest.fixture
def gateway() -> FakeGateway:
    return FakeGateway()


class Reading(FakeGateway):
    """Stores each message once, and reads what *bot* missed between its sessions."""

    def __init__(self, bot: DiscordConnector, wait_seconds: float = 20.0) -> None:
        super().__init__()
        self.backfill = Backfill(
            bot, _nothing, self._store, wait_seconds=wait_seconds, retry_seconds=(0.01, 0.1), watch_seconds=0.01
        )

    async def accept(self, message: InboundMessage) -> Accepted:
        return await self.backfill.accept(message)

    async def _store(self, message: InboundMessage) -> Accepted:
        if message.message_id in [known.message_id for known in self.accepted]:
            return Accepted("duplicate")
        return await super().accept(message)


async def _nothing(connector: str) -> dict[ConversationKey, str]:
    return {}


@asynccontextmanager
async def reading(bot: DiscordConnector, wait_seconds: float = 20.0) -> AsyncIterator[Reading]:
    """*bot* receives while inside, and what it missed is read."""
    gateway = Reading(bot, wait_seconds)
    async with background_task(gateway.backfill.run(), "backfill"), running(bot, gateway):
        yield gateway


def texts(gateway: FakeGateway) -> list[str]:
    return [message.text for message in gateway.accepted]


def says(text: str, key: ConversationKey = IN_TEAM, turn: str = "t1", **more: Any) -> OutboundMessage:
    return OutboundMessage(key, turn, text, **more)


# Receiving


async def test_all_that_happens_arrives_in_its_kind(
    discord: DiscordEmulator, bot: DiscordConnector, gateway: FakeGateway
) -> None:
    """Messages, edits, reactions and deletions come in the order in which they happened."""
    async with running(bot, gateway):
        said = await discord.say(f"{discord.at_bot} hello", to=TEAM, by=LENA)
        await discord.change(said, f"{discord.at_bot} hello all")
        await discord.preview(said)
        await discord.react(said, "👍", by=OMAR)
        await discord.react(said, "👍", by=OMAR, take_away=True)
        await discord.delete(said)
        await gateway.until(lambda g: len(g.accepted) >= 5)
    assert [(m.kind, m.text, m.reaction) for m in gateway.accepted] == [
        (InboundKind.MESSAGE, "hello", ""),
        (InboundKind.EDIT, "hello all", ""),
        (InboundKind.REACTION, "", "👍"),
        (InboundKind.REACTION, "", ""),
        (InboundKind.DELETE, "", ""),
    ]
    assert gateway.accepted[-1].author.id == "501"


async def test_one_message_is_accepted_at_a_time(discord: DiscordEmulator, bot: DiscordConnector) -> None:
    """While a message is being stored, those behind it wait, and none overtakes it."""
    release = asyncio.Event()
    started: list[str] = []

    class SlowGateway(FakeGateway):
        async def accept(self, message: InboundMessage) -> Accepted:
            started.append(message.text)
            if message.text == "first":
                await release.wait()
            return await super().accept(message)

    gateway = SlowGateway()
    async with running(bot, gateway):
        await discord.say("first", by=LENA)
        await discord.say("second", by=LENA)
        await eventually(lambda: started == ["first"])
        release.set()
        await gateway.until(lambda g: len(g.accepted) == 2)
    assert texts(gateway) == ["first", "second"]


async def test_the_bot_does_not_hear_itself(
    discord: DiscordEmulator, bot: DiscordConnector, gateway: FakeGateway
) -> None:
    async with running(bot, gateway):
        await discord.say("hello", by=LENA)
        await gateway.until(lambda g: len(g.accepted) == 1)
        await send_all(bot, reply_to(gateway.accepted[0], "hello yourself"))
        await discord.say("bye", by=LENA)
        await gateway.until(lambda g: len(g.accepted) >= 2)
    assert texts(gateway) == ["hello", "bye"]


async def test_a_message_that_cannot_be_accepted_does_not_stop_the_others(
    discord: DiscordEmulator, bot: DiscordConnector
) -> None:
    """After three attempts it is given up, and said so without its words."""

    class Choosy(FakeGateway):
        async def accept(self, message: InboundMessage) -> Accepted:
            if message.text == "secret poison":
                raise RuntimeError("secret poison")
            return await super().accept(message)

    gateway = Choosy()
    with capture_logs() as logs:
        async with running(bot, gateway):
            await discord.say("secret poison", by=LENA)
            await discord.say("still there?", by=LENA)
            await gateway.until(lambda g: len(g.accepted) == 1)
            await eventually(lambda: bot.health.state is ConnectionState.CONNECTED)
    failed = [entry for entry in logs if entry["event"] == "message.failed"]
    assert len(failed) == 3
    assert "secret poison" not in str(logs)


async def test_an_event_that_cannot_be_read_is_left_out(discord: DiscordEmulator, bot: DiscordConnector) -> None:
    """What nobody understands is logged; discord.py ends the session for it, and the next one reads what was missed."""
    async with reading(bot) as gateway:
        await discord.say("known", by=LENA)
        await gateway.until(lambda g: "known" in texts(g))
        broken = discord.message_json(LENA, LENA, "odd") | {"message_snapshots": [{"message": {"content": None}}]}
        await discord.push("MESSAGE_CREATE", broken, LENA)
        await discord.say("fine", by=LENA)
        await gateway.until(lambda g: "fine" in texts(g))


async def test_a_message_in_hand_when_receiving_stops_is_offered_again(
    discord: DiscordEmulator, bot: DiscordConnector, gateway: FakeGateway
) -> None:
    """A connector that is started again goes on where it was."""
    gateway.store_available = False
    receiving = asyncio.create_task(bot.run(gateway.accept))
    await eventually(lambda: bot.health.state is ConnectionState.CONNECTED)
    await discord.say("keep me", by=LENA)
    await gateway.until(lambda g: g.refusals >= 1)
    assert "store" in bot.health.why
    receiving.cancel()
    with suppress(asyncio.CancelledError):
        await receiving
    gateway.store_available = True
    async with running(bot, gateway):
        await gateway.until(lambda g: "keep me" in texts(g))


# Connections


async def test_a_dropped_connection_is_resumed_and_nothing_is_missed(
    discord: DiscordEmulator, bot: DiscordConnector, gateway: FakeGateway
) -> None:
    """Within the session Discord sends what came in between, and nothing twice."""
    async with running(bot, gateway):
        await discord.say("before", by=LENA)
        await discord.drop()
        await discord.say("in between", by=LENA)
        await gateway.until(lambda g: len(g.accepted) >= 2)
        await eventually(lambda: bot.health.state is ConnectionState.CONNECTED)
        await discord.say("after", by=LENA)
        await gateway.until(lambda g: len(g.accepted) >= 3)
    assert texts(gateway) == ["before", "in between", "after"]
    assert (discord.identifies, discord.resumes) == (1, 1)


async def test_a_session_that_discord_moves_is_resumed(
    discord: DiscordEmulator, bot: DiscordConnector, gateway: FakeGateway
) -> None:
    async with running(bot, gateway):
        await discord.ask_to_reconnect()
        await discord.until(lambda d: d.resumes == 1)
        await discord.say("still there?", by=LENA)
        await gateway.until(lambda g: texts(g) == ["still there?"])
        await discord.invalidate(resumable=True)
        await discord.until(lambda d: d.resumes == 2)
    assert discord.identifies == 1


async def test_what_was_said_without_a_session_is_read_before_anything_newer_in_its_channel(
    discord: DiscordEmulator, bot: DiscordConnector
) -> None:
    """In every channel, thread and direct message from which something was received."""
    async with reading(bot) as gateway:
        await discord.say("known", by=LENA)
        await discord.say(f"{discord.at_bot} known too", to=TEAM, by=LENA)
        await discord.say("not for the bot", to=THREAD, by=LENA)
        await gateway.until(lambda g: len(g.accepted) == 3)
        await discord.drop_for_good()
        missed = [f"{discord.at_bot} missed {number}" for number in range(120)]
        for text in missed:
            await discord.say(text, to=TEAM, by=LENA)
        await discord.say("missed alone", by=LENA)
        await discord.say(f"{discord.at_bot} missed below", to=THREAD, by=OMAR)
        gateway.store_available = False
        await discord.until(lambda d: d.identifies == 2)
        await discord.say("newer", by=LENA)
        await discord.say(f"{discord.at_bot} newer there", to=TEAM, by=LENA)
        gateway.store_available = True
        await gateway.until(lambda g: {"newer", "newer there", "missed below"} <= set(texts(g)))
    assert [message.text for message in gateway.accepted if message.direct] == ["known", "missed alone", "newer"]
    in_team = [message for message in gateway.accepted if message.external_id == IN_TEAM.external_id]
    assert [message.text for message in in_team] == [
        "known too",
        *(f"missed {number}" for number in range(120)),
        "newer there",
    ]
    assert in_team[7].addressed


async def test_a_channel_that_cannot_be_read_holds_up_no_other_and_its_own_messages_for_a_limited_time(
    discord: DiscordEmulator, bot: DiscordConnector
) -> None:
    async with reading(bot, wait_seconds=0.5) as gateway:
        await discord.say("known", by=LENA)
        await gateway.until(lambda g: len(g.accepted) == 1)
        await discord.drop_for_good()
        await discord.say("missed", by=LENA)
        discord.unreadable.add(LENA.channel_id)
        await discord.until(lambda d: d.identifies == 2)
        await discord.say("newer", by=LENA)
        await discord.say(f"{discord.at_bot} elsewhere", to=TEAM, by=OMAR)
        await gateway.until(lambda g: "newer" in texts(g))
        assert texts(gateway) == ["known", "elsewhere", "newer"]
        assert "missed cannot be read" in gateway.backfill.trouble
        discord.unreadable.clear()
        await gateway.until(lambda g: "missed" in texts(g))
        await eventually(lambda: not gateway.backfill.trouble)


async def test_what_does_not_fit_into_memory_is_read_again(discord: DiscordEmulator) -> None:
    """With the store away for long, messages beyond the limit are left at Discord, and come after all."""
    bot = discord_connector(discord, max_waiting=3)
    said = [f"number {number}" for number in range(12)]
    async with reading(bot) as gateway:
        await discord.say("known", by=LENA)
        await gateway.until(lambda g: texts(g) == ["known"])
        gateway.store_available = False
        for text in said:
            await discord.say(text, by=LENA)
        await gateway.until(lambda g: g.refusals >= 2)
        gateway.store_available = True
        await gateway.until(lambda g: len(g.accepted) == 13)
    assert texts(gateway) == ["known", *said]


async def test_reading_what_was_missed_waits_out_an_error(discord: DiscordEmulator, bot: DiscordConnector) -> None:
    async with reading(bot) as gateway:
        await discord.say("known", by=LENA)
        await gateway.until(lambda g: len(g.accepted) == 1)
        await discord.drop_for_good()
        await discord.say("missed", by=LENA)
        discord.fail_next("history", emulated.SERVER_ERROR, emulated.rate_limited(0.01))
        await gateway.until(lambda g: "missed" in texts(g))
        await eventually(lambda: bot.health.state is ConnectionState.CONNECTED)
    assert discord.calls.count("history") == 3


async def test_a_channel_that_may_not_be_read_is_passed_over(discord: DiscordEmulator, bot: DiscordConnector) -> None:
    async with reading(bot) as gateway:
        await discord.say("known", by=LENA)
        await discord.say(f"{discord.at_bot} known", to=TEAM, by=LENA)
        await gateway.until(lambda g: len(g.accepted) == 2)
        await discord.drop_for_good()
        await discord.say(f"{discord.at_bot} hidden", to=TEAM, by=LENA)
        await discord.say("missed", by=LENA)
        discord.fail_next("history", emulated.FORBIDDEN)
        await gateway.until(lambda g: len(g.accepted) == 3)
        await eventually(lambda: discord.calls.count("history") == 2)
    assert len(gateway.accepted) == 3


async def test_a_mute_socket_is_noticed_and_opened_again(discord: DiscordEmulator) -> None:
    """A gateway that answers no heartbeat is not healthy, however open its socket is."""
    discord.heartbeat_interval_seconds = 0.05
    bot = discord_connector(discord, heartbeat_timeout_seconds=0.3)
    async with reading(bot) as gateway:
        await discord.say("known", by=LENA)
        await gateway.until(lambda g: len(g.accepted) == 1)
        discord.mute = True
        await discord.say("into the void", by=LENA)
        await eventually(lambda: bot.health.state is ConnectionState.DEGRADED)
        discord.mute = False
        await eventually(lambda: bot.health.state is ConnectionState.CONNECTED)
        await gateway.until(lambda g: "into the void" in texts(g))


async def test_all_calls_together_keep_to_the_global_rate_limit(discord: DiscordEmulator, gateway: FakeGateway) -> None:
    """150 direct messages at once, while the histories of many channels are read: no call is refused."""
    people = [Person(id=1000 + number, name=f"Person {number}") for number in range(150)]
    rooms = [Room(channel_id=5000 + number, name=f"room {number}") for number in range(40)]
    for person in people:
        discord.join(person)
    for room in rooms:
        discord.join(room)
    bot = discord_connector(discord)

    async def send(person: Person) -> None:
        message = OutboundMessage(ConversationKey("acme", "discord", str(person.channel_id)), f"t{person.id}", "hello")
        await bot.send(message, bot.render(message)[0])

    async def read(room: Room) -> None:
        async for _ in bot.missed(str(room.channel_id), "1"):
            pass

    async with running(bot, gateway), asyncio.TaskGroup() as group:
        for person in people:
            group.create_task(send(person))
        for room in rooms:
            group.create_task(read(room))
    assert discord.calls_over_the_limit == 0
    assert discord.calls.count("send") == 150
    assert discord.calls.count("history") >= 40


async def test_an_outage_is_said_and_survived(
    discord: DiscordEmulator, bot: DiscordConnector, gateway: FakeGateway
) -> None:
    async with running(bot, gateway):
        discord.down = True
        await discord.drop()
        await eventually(lambda: bot.health.state is ConnectionState.DEGRADED)
        discord.down = False
        await discord.say("are you back?", by=LENA)
        await gateway.until(lambda g: "are you back?" in texts(g))
        assert bot.health.state is ConnectionState.CONNECTED


async def test_a_session_that_does_not_come_back_is_begun_anew(discord: DiscordEmulator) -> None:
    """discord.py waits longer and longer between attempts to resume; patience ends before that."""
    bot = discord_connector(discord, session_seconds=0.2)
    async with reading(bot) as gateway:
        await discord.say("known", by=LENA)
        await gateway.until(lambda g: len(g.accepted) == 1)
        discord.down = True
        await discord.drop()
        await asyncio.sleep(0.6)
        discord.down = False
        await discord.drop_for_good()
        await discord.say("and now?", by=LENA)
        await gateway.until(lambda g: "and now?" in texts(g))


async def test_discord_away_at_the_start_is_waited_for(
    discord: DiscordEmulator, bot: DiscordConnector, gateway: FakeGateway
) -> None:
    discord.fail_next("me", emulated.LOST_REQUEST, emulated.SERVER_ERROR, emulated.rate_limited(0.01))
    async with running(bot, gateway):
        assert bot.health.state is ConnectionState.CONNECTED


async def test_a_gateway_away_at_the_start_is_waited_for(discord: DiscordEmulator, gateway: FakeGateway) -> None:
    """discord.py breaks when its first socket cannot be opened: that is no reason to end."""
    right, discord.gateway_url = discord.gateway_url, "ws://127.0.0.1:1/"
    bot = discord_connector(discord)
    discord.gateway_url = right
    receiving = asyncio.create_task(bot.run(gateway.accept))
    await eventually(lambda: bool(bot.health.why))
    assert bot.health.state is ConnectionState.CONNECTING
    assert not receiving.done()
    receiving.cancel()
    with suppress(asyncio.CancelledError):
        await receiving
    await bot.close()


@pytest.mark.parametrize("when", ["login", "session"])
async def test_a_bad_token_names_its_variable(discord: DiscordEmulator, gateway: FakeGateway, when: str) -> None:
    """Whether it is refused at the login or revoked later."""
    bot = discord_connector(discord)
    receiving = asyncio.create_task(bot.run(gateway.accept))
    if when == "session":
        await eventually(lambda: bot.health.state is ConnectionState.CONNECTED)
        discord.token = "another"
        await discord.close_with(4004)
    else:
        discord.token = "another"
    with pytest.raises(ConnectorFailed, match="AGENT_RUNTIME_DISCORD_BOT_TOKEN"):
        await receiving
    assert bot.health.state is ConnectionState.FAILED
    assert "MTIz" not in bot.health.why
    await bot.close()
    assert bot.health.state is ConnectionState.FAILED


async def test_a_missing_intent_names_the_switch(
    discord: DiscordEmulator, bot: DiscordConnector, gateway: FakeGateway
) -> None:
    discord.allows_message_content = False
    with pytest.raises(ConnectorFailed, match="Message Content Intent"):
        await bot.run(gateway.accept)
    assert bot.health.state is ConnectionState.FAILED


# Sending


async def test_the_same_part_sent_twice_is_shown_once(
    discord: DiscordEmulator, bot: DiscordConnector, gateway: FakeGateway
) -> None:
    """Discord knows a part by its nonce; a part of another turn is another."""
    message = says("hello")
    part = bot.render(message)[0]
    first, again = await bot.send(message, part), await bot.send(message, part)
    assert first == again
    other = says("hello", turn="t2")
    await bot.send(other, bot.render(other)[0])
    assert [m.text for m in discord.shown(TEAM)] == ["hello", "hello"]


async def test_a_reply_hangs_at_its_question_and_pings_nobody(discord: DiscordEmulator, bot: DiscordConnector) -> None:
    said = await discord.say("question", to=TEAM, by=LENA)
    message = says("@everyone see https://example.org", reply_to=str(said))
    await bot.send(message, bot.render(message)[0])
    gone = says("too late", reply_to="1", turn="t2")
    await bot.send(gone, bot.render(gone)[0])
    shown = discord.shown(TEAM)
    assert [m.reply_to for m in shown] == [said, None]
    assert not any(m.pings or m.has_preview for m in shown)


async def test_signs_are_shown_and_their_loss_is_no_error(discord: DiscordEmulator, bot: DiscordConnector) -> None:
    said = await discord.say("question", to=TEAM, by=LENA)
    await bot.typing(IN_TEAM)
    await bot.react(IN_TEAM, str(said), "👀")
    assert discord.typing == [TEAM.channel_id]
    assert discord.reactions[TEAM.channel_id, said] == ["👀"]
    discord.fail_next("typing", emulated.SERVER_ERROR)
    discord.fail_next("react", emulated.FORBIDDEN)
    await bot.typing(IN_TEAM)
    await bot.react(IN_TEAM, str(said), "🎉")
    assert discord.reactions[TEAM.channel_id, said] == ["👀"]


async def test_a_rate_limit_is_waited_out_by_discord_py(discord: DiscordEmulator, bot: DiscordConnector) -> None:
    """A short one; what it tells as too long is passed on with the wait."""
    discord.fail_next("send", emulated.rate_limited(0.01, via=True))
    message = says("hello")
    await bot.send(message, bot.render(message)[0])
    assert discord.calls.count("send") == 2
    discord.fail_next("send", emulated.rate_limited(55, via=True))
    with pytest.raises(SendFailed) as caught:
        await bot.send(message, bot.render(message)[0])
    assert (caught.value.retryable, caught.value.ambiguous, caught.value.retry_after_seconds) == (True, False, 55)


async def test_a_send_that_discord_py_repeats_is_shown_once(discord: DiscordEmulator, bot: DiscordConnector) -> None:
    """It sends again after a 502, which the nonce makes harmless."""
    discord.fail_next("send", emulated.BAD_GATEWAY)
    message = says("hello")
    await bot.send(message, bot.render(message)[0])
    assert [m.text for m in discord.shown(TEAM)] == ["hello"]


async def test_a_silent_discord_leaves_the_outcome_unknown(discord: DiscordEmulator) -> None:
    bot = discord_connector(discord, timeout_seconds=0.3)
    message = says("hello")
    await bot.typing(IN_TEAM)
    discord.fail_next("send", emulated.Fault(lost="never"))
    with pytest.raises(SendFailed) as caught:
        await bot.send(message, bot.render(message)[0])
    assert caught.value.ambiguous
    await bot.close()


async def test_a_send_for_which_the_rate_limit_leaves_no_room_was_not_sent(discord: DiscordEmulator) -> None:
    bot = discord_connector(discord, timeout_seconds=0.3, rate_limit_seconds=0.2)
    message = says("hello")
    await bot.typing(IN_TEAM)
    discord.fail_next("send", emulated.rate_limited(20, via=True))
    with pytest.raises(SendFailed, match="left no room") as caught:
        await bot.send(message, bot.render(message)[0])
    assert (caught.value.retryable, caught.value.ambiguous) == (True, False)
    discord.fail_next("send", emulated.BAD_GATEWAY, emulated.rate_limited(20, via=True))
    with pytest.raises(SendFailed) as caught:
        await bot.send(message, bot.render(message)[0])
    assert caught.value.ambiguous  # nobody knows what became of the first attempt
    await bot.close()


async def test_a_send_without_a_login_was_not_sent(discord: DiscordEmulator, bot: DiscordConnector) -> None:
    """Nothing went out, so it may simply be tried again."""
    discord.fail_next("me", emulated.SERVER_ERROR)
    message = says("hello")
    with pytest.raises(SendFailed) as caught:
        await bot.send(message, bot.render(message)[0])
    assert (caught.value.retryable, caught.value.ambiguous) == (True, False)
    await bot.send(message, bot.render(message)[0])


@pytest.mark.parametrize("place", ["../users/@me", "", "C1", "1/2"])
async def test_ids_that_are_not_discords_are_refused(bot: DiscordConnector, place: str) -> None:
    message = says("hello", ConversationKey("acme", "discord", place or " "))
    with pytest.raises(SendFailed) as caught:
        await bot.send(message, bot.render(message)[0])
    assert not caught.value.retryable


async def test_a_closed_connector_sends_nothing(bot: DiscordConnector) -> None:
    await bot.close()
    with pytest.raises(SendFailed) as caught:
        await bot.send(says("hello"), bot.render(says("hello"))[0])
    assert caught.value.retryable


async def test_a_missed_message_that_cannot_be_read_does_not_stop_the_others(
    discord: DiscordEmulator, bot: DiscordConnector
) -> None:
    """It is logged and passed over; those after it are read."""
    async with reading(bot) as gateway:
        await discord.say("known", by=LENA)
        await gateway.until(lambda g: len(g.accepted) == 1)
        await discord.drop_for_good()
        await discord.say("odd", by=LENA, message_snapshots=[{"message": {}}])
        await discord.say("missed", by=LENA)
        with capture_logs() as logs:
            await gateway.until(lambda g: "missed" in texts(g))
    assert [entry["why"] for entry in logs if entry["event"] == "message.failed"] == ["KeyError"]


# What was missed over a restart


async def test_after_a_restart_what_was_missed_can_be_read(discord: DiscordEmulator, bot: DiscordConnector) -> None:
    """By conversation, after the last message known, without the bot's own words."""
    last = await discord.say(f"{discord.at_bot} known", to=TEAM, by=LENA)
    await bot.send(says("an answer"), bot.render(says("an answer"))[0])
    await discord.say(f"{discord.at_bot} missed", to=TEAM, by=OMAR)
    alone = await discord.say("known alone", by=LENA)
    await discord.say("missed alone", by=LENA)
    there = [message async for message in bot.missed(IN_TEAM.external_id, str(last))]
    here = [message async for message in bot.missed(str(LENA.channel_id), str(alone))]
    assert [(m.text, m.addressed, m.direct, m.default_workspace) for m in there + here] == [
        ("missed", True, False, "discord-900"),
        ("missed alone", True, True, "discord-dm-501"),
    ]


async def test_what_was_missed_may_have_to_wait(discord: DiscordEmulator, bot: DiscordConnector) -> None:
    discord.fail_next("history", emulated.SERVER_ERROR)
    await discord.say("hello", to=TEAM)
    with pytest.raises(DiscordUnavailable):
        _ = [message async for message in bot.missed(IN_TEAM.external_id, "1")]
    assert [message async for message in bot.missed("404", "1")] == []


PRICES = File("prices.md", b"# Prices\n\nTwelve euros.", "text/markdown")


@pytest.fixture
async def filing_bot(discord: DiscordEmulator) -> AsyncIterator[DiscordConnector]:
    connector = discord_connector(discord, reply_max_parts=2)
    yield connector
    await connector.close()


def in_team(text: str, turn: str = "t1") -> OutboundMessage:
    return OutboundMessage(IN_TEAM, turn, text)


async def sent_by_lena(
    discord: DiscordEmulator, filing_bot: DiscordConnector, gateway: FakeGateway, file: File = PRICES, flags: int = 0
) -> tuple[int, Attachment]:
    async with running(filing_bot, gateway):
        said = await discord.say("see", by=LENA, files=(file,), flags=flags)
        await gateway.until(lambda g: len(g.accepted) == 1)
    (attachment,) = gateway.accepted[0].attachments
    return said, attachment


async def fetched(url: str) -> httpx.Response:
    async with httpx.AsyncClient() as client:
        return await client.get(url)


# In


async def test_a_file_can_be_fetched_for_as_long_as_its_message_stands(
    discord: DiscordEmulator, filing_bot: DiscordConnector, gateway: FakeGateway
) -> None:
    """Its address has expired by then, so that Discord is asked for a fresh one; also after a restart."""
    _, attachment = await sent_by_lena(discord, filing_bot, gateway)
    assert isinstance(filing_bot, LocatesAttachments)
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
    discord: DiscordEmulator, filing_bot: DiscordConnector, gateway: FakeGateway
) -> None:
    _, attachment = await sent_by_lena(
        discord, filing_bot, gateway, File("voice-message.ogg", b"OggS", "audio/ogg"), VOICE_MESSAGE
    )
    assert attachment.kind == "voice"


async def test_a_forwarded_file_is_found_in_what_was_forwarded(
    discord: DiscordEmulator, filing_bot: DiscordConnector, gateway: FakeGateway
) -> None:
    snapshot = {
        "type": 0,
        "content": "the prices",
        "embeds": [],
        "attachments": [discord.attached(LENA, PRICES)],
        "timestamp": "2026-01-01T00:00:00+00:00",
        "edited_timestamp": None,
    }
    async with running(filing_bot, gateway):
        await discord.say("", by=LENA, message_snapshots=[{"message": snapshot}])
        await gateway.until(lambda g: len(g.accepted) == 1)
        (attachment,) = gateway.accepted[0].attachments
        found = await filing_bot.locate(attachment)
    assert (await fetched(found.url)).content == PRICES.content


async def test_a_file_whose_message_was_deleted_is_gone(
    discord: DiscordEmulator, filing_bot: DiscordConnector, gateway: FakeGateway
) -> None:
    said, attachment = await sent_by_lena(discord, filing_bot, gateway)
    await discord.delete(said)
    later = discord_connector(discord)
    with pytest.raises(AttachmentUnavailable, match="gone"):
        await later.locate(attachment)
    await later.close()


async def test_a_file_is_not_to_be_had_while_discord_is_away(
    discord: DiscordEmulator, filing_bot: DiscordConnector
) -> None:
    discord.fail_next("message", emulated.SERVER_ERROR)
    with pytest.raises(AttachmentUnavailable, match="later"):
        await filing_bot.locate(Attachment("document", "a.md", handle="910/1/1"))


@pytest.mark.parametrize("handle", ["", "1/2", "../../users/1/2", "1/2/x", "https://evil.example/a"])
async def test_a_handle_of_somebody_elses_is_refused(filing_bot: DiscordConnector, handle: str) -> None:
    with pytest.raises(AttachmentUnavailable):
        await filing_bot.locate(Attachment("document", "a.md", handle=handle))


# Out


async def test_a_very_long_reply_goes_as_its_beginning_and_a_file(
    discord: DiscordEmulator, filing_bot: DiscordConnector
) -> None:
    """The file has the whole text, is one message by its nonce, and pings nobody."""
    text = "\n\n".join(f"Paragraph {number}. @everyone " + "word " * 100 for number in range(30))
    await send_all(filing_bot, in_team(text))
    await send_all(filing_bot, in_team(text))
    beginning, whole = discord.shown(TEAM)
    assert beginning.text.startswith("Paragraph 0.")
    assert [(file.name, file.content.decode()) for file in whole.files] == [("whole-reply.md", text)]
    assert not whole.pings


async def test_a_message_can_become_a_file_and_words_again(
    discord: DiscordEmulator, filing_bot: DiscordConnector
) -> None:
    message = in_team("one moment")
    (words,) = filing_bot.render(message)
    receipt = await filing_bot.send(message, words)
    file = OutboundPart(0, 1, "# All of it", "t1.reply.file", file_name="all.md")
    await filing_bot.edit(message, file, receipt)
    (shown,) = discord.shown(TEAM)
    assert (shown.text, [one.content for one in shown.files]) == ("", [b"# All of it"])
    await filing_bot.edit(message, words, receipt)
    assert (shown.text, shown.files) == ("one moment", ())


async def test_a_file_that_is_too_large_is_refused_for_good(
    discord: DiscordEmulator, filing_bot: DiscordConnector
) -> None:
    file = OutboundPart(0, 1, "x" * (MAX_UPLOAD_BYTES + 1), "t1.reply.file", file_name="all.md")
    with pytest.raises(SendFailed) as caught:
        await filing_bot.send(in_team("x"), file)
    assert (caught.value.retryable, caught.value.ambiguous) == (False, False)


# Taking back, and the pace of edits


async def test_a_message_that_cannot_be_taken_back_says_so(
    discord: DiscordEmulator, filing_bot: DiscordConnector
) -> None:
    message = in_team("one moment")
    receipt = await filing_bot.send(message, filing_bot.render(message)[0])
    discord.fail_next("delete", emulated.FORBIDDEN)
    with pytest.raises(SendFailed) as caught:
        await filing_bot.take_back(message, receipt)
    assert not caught.value.retryable


@pytest.mark.parametrize("via", [True, False])
async def test_an_edit_that_is_held_back_says_for_how_long(
    discord: DiscordEmulator, filing_bot: DiscordConnector, via: bool
) -> None:
    """It is not waited for inside the call: by then there may be more to show."""
    message = in_team("one moment")
    receipt = await filing_bot.send(message, filing_bot.render(message)[0])
    discord.fail_next("edit", emulated.rate_limited(25, via=via))
    with pytest.raises(SendFailed) as caught:
        await filing_bot.edit(message, filing_bot.render(in_team("more"))[0], receipt)
    assert (caught.value.retryable, caught.value.ambiguous, caught.value.retry_after_seconds) == (True, False, 25)
    await filing_bot.edit(message, filing_bot.render(in_team("more"))[0], receipt)
    assert [one.text for one in discord.shown(TEAM)] == ["more"]


async def test_a_refused_call_ends_nothing(discord: DiscordEmulator, gateway: FakeGateway) -> None:
    """Discord ends the session of a token that is no longer good by itself."""
    bot = discord_connector(discord)
    async with running(bot, gateway):
        discord.fail_next("send", emulated.Fault(401, {"message": "401: Unauthorized", "code": 0}))
        message = OutboundMessage(ConversationKey("acme", "discord", "910"), "t1", "hello")
        with pytest.raises(SendFailed):
            await bot.send(message, bot.render(message)[0])
        await discord.say("still there?", by=LENA)
        await gateway.until(lambda g: texts(g) == ["still there?"])
        assert bot.health.state is ConnectionState.CONNECTED


async def test_a_session_that_is_declared_invalid_is_begun_anew(discord: DiscordEmulator, gateway: FakeGateway) -> None:
    """Discord says so when it cannot be resumed; the runtime then reads what was said in between."""
    bot = discord_connector(discord)
    async with running(bot, gateway):
        await discord.until(lambda d: d.has_session)
        assert bot.sessions == 1
        await discord.invalidate(resumable=False)
        await discord.until(lambda d: d.identifies == 2)
        await eventually(lambda: bot.sessions == 2)


@pytest.mark.parametrize(("code", "names"), [(4004, "DISCORD_BOT_TOKEN"), (4013, "intent"), (4014, "Message Content")])
async def test_a_close_that_only_a_person_can_help_says_what_to_do(
    discord: DiscordEmulator, gateway: FakeGateway, code: int, names: str
) -> None:
    bot = discord_connector(discord)
    receiving = asyncio.create_task(bot.run(gateway.accept))
    await eventually(lambda: bot.health.state is ConnectionState.CONNECTED)
    await discord.until(lambda d: d.has_session)
    await discord.close_with(code)
    with pytest.raises(ConnectorFailed, match=names):
        await receiving
    await bot.close()


async def test_a_close_that_passes_is_come_back_from(discord: DiscordEmulator, gateway: FakeGateway) -> None:
    bot = discord_connector(discord)
    async with running(bot, gateway):
        await discord.until(lambda d: d.has_session)
        await discord.close_with(4000)
        await discord.until(lambda d: d.resumes == 1)
        await discord.say("still there?", by=LENA)
        await gateway.until(lambda g: texts(g) == ["still there?"])
