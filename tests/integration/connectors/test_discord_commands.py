"""Native commands on Discord: registered, given, stored before they are acknowledged, and answered to their giver."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from connectors.connector import CommandHint, RegistersCommands, SendFailed
from connectors.discord.connector import DiscordConnector
from connectors.message import (
    Accepted,
    Button,
    ConversationKey,
    InboundKind,
    InboundMessage,
    OutboundMessage,
    Receipt,
    StoreUnavailable,
)
from tests.contract.connector_suite import FakeGateway, conversation, eventually, reply_to, running, send_all
from tests.contract.discord_harness import discord_connector
from tests.emulators import discord as emulated
from tests.emulators.discord import DiscordEmulator, Given, Person, Room, Shown
from tests.emulators.discord_nouns import AUTOCOMPLETE, BUTTON, COMMAND, MODAL

LENA = Person(id=501, name="Lena")
TEAM = Room(channel_id=910, name="general")
THREAD = Room(channel_id=911, name="refunds", parent=910)
HINTS = (CommandHint("help", "What I can do", "[command]"), CommandHint("new", "Begin anew"))


@pytest.fixture
async def discord() -> AsyncIterator[DiscordEmulator]:
    async with DiscordEmulator(rooms=(TEAM, THREAD)) as emulator:
        yield emulator


@pytest.fixture
async def bot(discord: DiscordEmulator) -> AsyncIterator[DiscordConnector]:
    connector = discord_connector(discord)
    yield connector
    await connector.close()


@pytest.fixture
def gateway() -> FakeGateway:
    return FakeGateway()


async def with_buttons(discord: DiscordEmulator, bot: DiscordConnector) -> Shown:
    """A message of the bot's to Lena with a button."""
    discord.join(LENA)
    key = ConversationKey("acme", "discord", str(LENA.channel_id))
    await send_all(bot, OutboundMessage(key, "t1", "May they?", buttons=(Button("Deny", "pair deny X"),)))
    return discord.shown(LENA)[-1]


async def given_and_taken(
    discord: DiscordEmulator, gateway: FakeGateway, name: str, text: str = "", **more: Any
) -> tuple[Given, InboundMessage]:
    """A command that was accepted and acknowledged, and what was accepted."""
    before = len(gateway.accepted)
    given = await discord.command(name, text, **more)
    await gateway.until(lambda g: len(g.accepted) > before)
    await eventually(lambda: given.is_answered)
    return given, gateway.accepted[-1]


# Registering


async def test_discord_offers_the_commands_that_were_registered_last(
    discord: DiscordEmulator, bot: DiscordConnector
) -> None:
    assert isinstance(bot, RegistersCommands)
    await bot.register_commands(HINTS)
    assert [(one["name"], one["options"]) for one in discord.commands.registered] == [
        ("help", [{"type": 3, "name": "command", "description": "[command]"}]),
        ("new", []),
    ]
    await bot.register_commands(HINTS[1:])
    assert [one["name"] for one in discord.commands.registered] == ["new"]


async def test_a_command_that_discord_does_not_allow_is_left_out(
    discord: DiscordEmulator, bot: DiscordConnector
) -> None:
    await bot.register_commands(
        [CommandHint("two words", "No"), CommandHint("x" * 33, "No"), CommandHint("ok", "y" * 300)]
    )
    assert [one["name"] for one in discord.commands.registered] == ["ok"]
    assert len(discord.commands.registered[0]["description"]) == 100


async def test_commands_that_cannot_be_registered_just_now_say_so(
    discord: DiscordEmulator, bot: DiscordConnector
) -> None:
    discord.fail_next("register", emulated.rate_limited(7))
    with pytest.raises(SendFailed) as caught:
        await bot.register_commands(HINTS)
    assert (caught.value.retryable, caught.value.retry_after_seconds) == (True, 7)


# Giving


async def test_a_command_arrives_as_what_was_typed(
    discord: DiscordEmulator, bot: DiscordConnector, gateway: FakeGateway
) -> None:
    """In private and in a channel, in the place's own conversation, for nobody but its giver to see."""
    async with running(bot, gateway):
        given, private = await given_and_taken(discord, gateway, "help", "model", by=LENA)
        _, public = await given_and_taken(discord, gateway, "status", by=LENA, to=TEAM)
    assert (private.kind, private.text, private.message_id) == (
        InboundKind.COMMAND,
        "help model",
        f"interaction-{given.id}",
    )
    assert (private.external_id, private.direct, private.default_workspace) == ("7000501", True, "discord-dm-501")
    assert (public.external_id, public.direct, public.routes) == ("910", False, ("discord:900/910", "discord:900"))
    assert (public.text, public.addressed, public.author.id, public.author.name) == ("status", True, "501", "Lena")
    assert given.is_waiting
    assert given.ephemeral == [True]
    assert not given.had_bot_token


async def test_a_command_in_a_thread_belongs_to_the_thread(
    discord: DiscordEmulator, bot: DiscordConnector, gateway: FakeGateway
) -> None:
    """Whether the server has told of it before or not."""
    async with running(bot, gateway):
        for room in (THREAD, Room(channel_id=977, name="new", parent=910)):
            _, taken = await given_and_taken(discord, gateway, "new", to=room)
            assert taken.external_id == str(room.channel_id)
            assert taken.routes == (f"discord:900/{room.channel_id}", "discord:900/910", "discord:900")


async def test_names_stand_in_a_command_where_discord_has_ids(
    discord: DiscordEmulator, bot: DiscordConnector, gateway: FakeGateway
) -> None:
    async with running(bot, gateway):
        _, taken = await given_and_taken(discord, gateway, "prompt", "for <#910> and <@&321>", by=LENA, to=TEAM)
    assert taken.text == "prompt for #general and @Helper"


async def test_a_command_is_acknowledged_only_after_it_was_stored(
    discord: DiscordEmulator, bot: DiscordConnector
) -> None:
    release = asyncio.Event()
    started = asyncio.Event()

    class SlowGateway(FakeGateway):
        async def accept(self, message: InboundMessage) -> Accepted:
            started.set()
            await release.wait()
            return await super().accept(message)

    async with running(bot, SlowGateway()):
        given = await discord.command("help")
        await started.wait()
        assert not given.is_answered
        release.set()
        await eventually(lambda: given.is_waiting)


async def test_discord_is_told_to_wait_where_storing_takes_long(discord: DiscordEmulator) -> None:
    """In time, although it is not stored yet; and what became of it is told."""
    release = asyncio.Event()

    class Away(FakeGateway):
        async def accept(self, message: InboundMessage) -> Accepted:
            await release.wait()
            raise StoreUnavailable("away")

    bot = discord_connector(discord, answer_seconds=0.05)
    async with running(bot, Away()):
        given = await discord.command("help", to=TEAM)
        await eventually(lambda: given.is_waiting)
        release.set()
        await eventually(lambda: bool(given.shown))
    assert given.texts == [StoreUnavailable.user_text]
    assert given.ephemeral == [True]


async def test_without_a_store_the_giver_is_told_at_once(
    discord: DiscordEmulator, bot: DiscordConnector, gateway: FakeGateway
) -> None:
    """Discord repeats no command: nothing is promised that cannot be kept."""
    gateway.store_available = False
    async with running(bot, gateway):
        given = await discord.command("help", to=TEAM)
        await eventually(lambda: bool(given.shown))
    assert given.texts == [StoreUnavailable.user_text]
    assert given.ephemeral == [True]
    assert gateway.accepted == []


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (Accepted("refused", "rate_limit", retry_after_seconds=12), "12 s"),
        (Accepted("refused", "viewer"), "may not answer you"),
        (Accepted("ignored", "never"), "do not answer here"),
    ],
)
async def test_a_command_that_nobody_will_answer_is_not_left_waiting(
    discord: DiscordEmulator, bot: DiscordConnector, outcome: Accepted, said: str
) -> None:
    class Refusing(FakeGateway):
        async def accept(self, message: InboundMessage) -> Accepted:
            return outcome

    async with running(bot, Refusing()):
        given = await discord.command("help", to=TEAM)
        await eventually(lambda: bool(given.shown))
    assert said in given.texts[0]


async def test_a_fault_of_ours_is_told_and_does_not_stop_the_others(
    discord: DiscordEmulator, bot: DiscordConnector
) -> None:
    class Choosy(FakeGateway):
        async def accept(self, message: InboundMessage) -> Accepted:
            if message.text == "poison":
                raise RuntimeError("poison")
            return await super().accept(message)

    gateway = Choosy()
    async with running(bot, gateway):
        poison = await discord.command("poison")
        await eventually(lambda: bool(poison.shown))
        await given_and_taken(discord, gateway, "help")
    assert "went wrong" in poison.texts[0]


@pytest.mark.parametrize("kind", [BUTTON, MODAL])
async def test_what_is_no_command_is_declined_to_its_giver_alone(
    discord: DiscordEmulator, bot: DiscordConnector, gateway: FakeGateway, kind: int
) -> None:
    """A button or form of another time does not say "interaction failed"."""
    data = {"custom_id": "x", "component_type": 2, "components": []}
    async with running(bot, gateway):
        given = await discord.commands.interact(kind, data, TEAM, LENA)
        await eventually(lambda: bool(given.shown))
    assert given.ephemeral == [True]
    assert gateway.accepted == []


class SlowGateway(FakeGateway):
    """Goes on when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = asyncio.Event()

    async def accept(self, message: InboundMessage) -> Accepted:
        await self.go_on.wait()
        return await super().accept(message)


async def test_a_press_that_takes_long_to_store_is_acknowledged_first(discord: DiscordEmulator) -> None:
    """Within the 3 s; the buttons go once it is stored."""
    bot, gateway = discord_connector(discord, answer_seconds=0.0), SlowGateway()
    async with running(bot, gateway):
        shown = await with_buttons(discord, bot)
        pressed = await discord.press(shown, "Deny", by=LENA)
        await eventually(lambda: pressed.is_deferred)
        assert shown.buttons
        gateway.go_on.set()
        await eventually(lambda: not shown.buttons)
    assert [(one.kind, one.text) for one in gateway.accepted] == [(InboundKind.COMMAND, "pair deny X")]
    assert (shown.text, pressed.shown) == ("May they?", [])


@pytest.mark.parametrize("late", [False, True])
async def test_who_presses_a_button_is_told_alone_why_it_is_not_stored(discord: DiscordEmulator, late: bool) -> None:
    """Also where the press was acknowledged before; the buttons stay."""
    bot, gateway = discord_connector(discord, answer_seconds=0.0 if late else 60.0), SlowGateway()
    gateway.store_available = False
    async with running(bot, gateway):
        shown = await with_buttons(discord, bot)
        pressed = await discord.press(shown, "Deny", by=LENA)
        if late:
            await eventually(lambda: pressed.is_deferred)
        gateway.go_on.set()
        await eventually(lambda: bool(pressed.shown))
    assert (pressed.texts, pressed.ephemeral, pressed.is_deferred) == ([StoreUnavailable.user_text], [True], late)
    assert (shown.text, list(shown.buttons)) == ("May they?", ["Deny"])


async def test_a_menu_command_is_declined_and_suggestions_are_none(
    discord: DiscordEmulator, bot: DiscordConnector, gateway: FakeGateway
) -> None:
    async with running(bot, gateway):
        menu = await discord.commands.interact(
            COMMAND, {"id": "1", "name": "Ask", "type": 3, "target_id": "5"}, TEAM, LENA
        )
        half = {
            "id": "1",
            "name": "help",
            "type": 1,
            "options": [{"name": "text", "type": 3, "value": "m", "focused": True}],
        }
        typing = await discord.commands.interact(AUTOCOMPLETE, half, TEAM, LENA)
        await eventually(lambda: bool(menu.shown) and typing.is_answered)
    assert typing.choices == []
    assert gateway.accepted == []


# Answering


async def test_an_answer_goes_to_the_giver_alone(
    discord: DiscordEmulator, bot: DiscordConnector, gateway: FakeGateway
) -> None:
    """Its first part in the place of "is thinking", the others below; nothing in the channel."""
    async with running(bot, gateway):
        given, taken = await given_and_taken(discord, gateway, "help", to=TEAM)
        receipts = await send_all(bot, reply_to(taken, "first " + "word " * 500))
        assert not given.is_waiting
        assert len(given.shown) == len(receipts) == 2
        assert given.ephemeral == [True, True]
        assert not any(one.pings for one in given.shown)
        assert discord.shown(TEAM) == []


async def test_an_answer_that_comes_before_the_command_is_acknowledged_is_its_acknowledgement(
    discord: DiscordEmulator, bot: DiscordConnector
) -> None:
    """A stranger is told the code for pairing while the message is still being looked at."""

    class Telling(FakeGateway):
        async def accept(self, message: InboundMessage) -> Accepted:
            await send_all(bot, reply_to(message, "your code is ABCD"))
            return Accepted("refused", "stranger", key=conversation(message))

    async with running(bot, Telling()):
        given = await discord.command("help")
        await eventually(lambda: bool(given.shown))
        # Nothing else comes: the next command is dealt with, and this one has said what it had to say.
        other = await discord.command("help")
        await eventually(lambda: bool(other.shown))
    assert given.texts == ["your code is ABCD"]
    assert discord.calls.count("respond") == 2
    assert discord.calls.count("follow_up") == discord.calls.count("change_first") == 0


async def test_an_answer_can_be_replaced_and_taken_back(
    discord: DiscordEmulator, bot: DiscordConnector, gateway: FakeGateway
) -> None:
    async with running(bot, gateway):
        given, taken = await given_and_taken(discord, gateway, "usage", to=TEAM)
        message = reply_to(taken, "one moment")
        receipt = await bot.send(message, bot.render(message)[0])
        await bot.edit(message, bot.render(reply_to(taken, "12 tokens"))[0], receipt)
        assert given.texts == ["12 tokens"]
        await bot.take_back(message, receipt)
        await bot.take_back(message, receipt)
        assert given.texts == []


async def test_a_lost_answer_to_the_first_part_is_given_again_and_shown_once(
    discord: DiscordEmulator, bot: DiscordConnector, gateway: FakeGateway
) -> None:
    """To replace the first answer twice is as good as once; nothing is left unknown."""
    async with running(bot, gateway):
        given, taken = await given_and_taken(discord, gateway, "usage", to=TEAM)
        message = reply_to(taken, "12 tokens")
        discord.fail_next("change_first", emulated.LOST_ANSWER)
        with pytest.raises(SendFailed) as caught:
            await send_all(bot, message)
        assert (caught.value.retryable, caught.value.ambiguous) == (True, False)
        await send_all(bot, message)
    assert given.texts == ["12 tokens"]


async def test_a_lost_acknowledgement_does_not_lose_the_answer(
    discord: DiscordEmulator, bot: DiscordConnector, gateway: FakeGateway
) -> None:
    """Discord takes one response only, and says so to the second; the answer then takes the place of the first."""
    discord.fail_next("respond", emulated.LOST_ANSWER)
    async with running(bot, gateway):
        given, taken = await given_and_taken(discord, gateway, "usage", to=TEAM)
        await send_all(bot, reply_to(taken, "12 tokens"))
        assert given.texts == ["12 tokens"]
        assert not given.is_waiting


async def test_an_answer_that_was_lost_on_its_way_as_a_response_can_be_given_again(
    discord: DiscordEmulator, bot: DiscordConnector
) -> None:
    failures: list[SendFailed] = []

    class Telling(FakeGateway):
        async def accept(self, message: InboundMessage) -> Accepted:
            answer = reply_to(message, "12 tokens")
            try:
                await send_all(bot, answer)
            except SendFailed as failed:
                failures.append(failed)
                await send_all(bot, answer)
            return await super().accept(message)

    discord.fail_next("respond", emulated.LOST_ANSWER)
    gateway = Telling()
    async with running(bot, gateway):
        given = await discord.command("usage", to=TEAM)
        await gateway.until(lambda g: len(g.accepted) == 1)
    assert given.texts == ["12 tokens"]
    assert [(failed.retryable, failed.ambiguous) for failed in failures] == [(True, False)]


@pytest.mark.parametrize("fault", [emulated.LOST_ANSWER, emulated.SLOW_GATEWAY], ids=["lost answer", "504"])
async def test_a_further_part_of_which_nobody_knows_is_not_said_again(
    discord: DiscordEmulator, bot: DiscordConnector, gateway: FakeGateway, fault: emulated.Fault
) -> None:
    """Not by discord.py either, which repeats a call after a 504."""
    async with running(bot, gateway):
        given, taken = await given_and_taken(discord, gateway, "usage", to=TEAM)
        message = reply_to(taken, "word " * 500)
        first, second = bot.render(message)
        await bot.send(message, first)
        discord.fail_next("follow_up", fault)
        await bot.send(message, second)
    assert len(given.shown) == 2


async def test_a_long_answer_to_a_command_goes_as_its_beginning_and_a_file(discord: DiscordEmulator) -> None:
    bot, gateway = discord_connector(discord, reply_max_parts=2), FakeGateway()
    text = "\n\n".join(f"Paragraph {number}. " + "word " * 100 for number in range(30))
    async with running(bot, gateway):
        given, taken = await given_and_taken(discord, gateway, "memory", to=TEAM)
        await send_all(bot, reply_to(taken, text))
    assert [len(one.files) for one in given.shown] == [0, 1]
    assert given.shown[1].files[0].content.decode() == text
    assert given.ephemeral == [True, True]


@pytest.mark.parametrize("how", ["by Discord", "by the clock", "by a restart"])
async def test_a_late_answer_is_public_only_where_nobody_else_is(
    discord: DiscordEmulator, gateway: FakeGateway, how: str
) -> None:
    """A command's token is good for fifteen minutes, in this process; who gave it in a channel expects privacy."""
    bot = discord_connector(discord, token_seconds=-1.0 if how == "by the clock" else 870.0)
    async with running(bot, gateway):
        given, private = await given_and_taken(discord, gateway, "usage", by=LENA)
        other, public = await given_and_taken(discord, gateway, "usage", by=LENA, to=TEAM)
        if how == "by Discord":
            discord.commands.expire(given)
            discord.commands.expire(other)
        if how != "by a restart":
            await answered_late(discord, bot, private, public)
    if how == "by a restart":
        again = discord_connector(discord)
        await answered_late(discord, again, private, public)
        await again.close()
    assert given.shown == other.shown == []


async def answered_late(
    discord: DiscordEmulator, bot: DiscordConnector, private: InboundMessage, public: InboundMessage
) -> None:
    await send_all(bot, reply_to(private, "12 tokens"))
    assert [one.text for one in discord.shown(LENA)] == ["12 tokens"]
    with pytest.raises(SendFailed) as caught:
        await send_all(bot, reply_to(public, "12 tokens"))
    assert not caught.value.retryable
    assert discord.shown(TEAM) == []


async def test_a_turn_that_a_command_is_part_of_is_answered_like_any(
    discord: DiscordEmulator, bot: DiscordConnector, gateway: FakeGateway
) -> None:
    """Only what answers nothing but commands is for their giver alone."""
    async with running(bot, gateway):
        said = await discord.say(f"{discord.at_bot} hello", to=TEAM)
        _, taken = await given_and_taken(discord, gateway, "usage", to=TEAM)
        key = conversation(taken)
        both = OutboundMessage(key, "t1", "hello you", answers=(taken.message_id, str(said)), reply_to=taken.message_id)
        await send_all(bot, both)
        assert [(one.text, one.reply_to) for one in discord.shown(TEAM)] == [("hello you", None)]


async def test_a_command_has_no_message_to_react_to_and_is_a_place_in_time(
    discord: DiscordEmulator, bot: DiscordConnector, gateway: FakeGateway
) -> None:
    async with running(bot, gateway):
        _, taken = await given_and_taken(discord, gateway, "usage", to=TEAM)
        await bot.react(conversation(taken), taken.message_id, "👀")
        await discord.say(f"{discord.at_bot} since then", to=TEAM)
        missed = [one.text async for one in bot.missed(taken.external_id, taken.message_id)]
    assert "react" not in discord.calls
    assert missed == ["since then"]


async def test_an_answer_that_discord_refuses_is_no_end_of_the_connection(
    discord: DiscordEmulator, bot: DiscordConnector, gateway: FakeGateway
) -> None:
    """A response that comes too late is refused; the answer is then said where it may be."""
    discord.commands.deadline_seconds = 0.0
    async with running(bot, gateway):
        given = await discord.command("usage", by=LENA)
        await gateway.until(lambda g: len(g.accepted) == 1)
        await eventually(lambda: discord.calls.count("respond") >= 1)
        await send_all(bot, reply_to(gateway.accepted[0], "12 tokens"))
        assert [one.text for one in discord.shown(LENA)] == ["12 tokens"]
        await discord.say("still there?", by=LENA)
        await gateway.until(lambda g: len(g.accepted) == 2)
    assert not given.is_answered


async def test_a_receipt_of_unknown_outcome_cannot_be_edited(discord: DiscordEmulator, bot: DiscordConnector) -> None:
    message = OutboundMessage(ConversationKey("acme", "discord", "910"), "t1", "x")
    with pytest.raises(SendFailed) as caught:
        await bot.edit(message, bot.render(message)[0], Receipt("interaction-5"))
    assert not caught.value.retryable
