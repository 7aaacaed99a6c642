"""People talk to the bot on Discord: the real SDK against an emulated Discord."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import pytest_asyncio

from config.settings import Settings
from connectors.message import ConversationKey, Role, Scope
from tests.contract.discord_harness import discord_connector
from tests.emulators import discord as emulated
from tests.emulators.bot import Bot, running_bot
from tests.emulators.discord import DiscordEmulator, Person, Place, Room
from tests.emulators.openai import FakeOpenAI, Reply

LENA = Person(id=501, name="Lena")
BO = Person(id=502, name="Bo")
TEAM = Room(channel_id=910, name="general")
THREAD = Room(channel_id=911, name="refunds", parent=910, joined=True)


@dataclass
class Chat:
    """A bot on Discord and the people around it."""

    bot: Bot
    discord: DiscordEmulator

    async def hears(self, text: str, by: Person = LENA, to: Room | None = None, reply_to: int | None = None) -> str:
        """What the bot says next to *by* (or in the channel), when *by* says *text*."""
        place: Place = to or by
        before = len(self.discord.shown(place))
        await self.discord.say(text, by=by, to=to, reply_to=reply_to)
        await self.discord.until(lambda discord: len(discord.shown(place)) > before)
        return self.discord.shown(place)[-1].text

    @property
    def at_bot(self) -> str:
        return self.discord.at_bot


@pytest_asyncio.fixture
async def discord() -> AsyncIterator[DiscordEmulator]:
    async with DiscordEmulator(rooms=(TEAM, THREAD)) as emulator:
        yield emulator


@pytest_asyncio.fixture
async def chat(
    discord: DiscordEmulator, model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> AsyncIterator[Chat]:
    settings = model_settings(access_policy="open", default_workspace="acme")
    async with running_bot(settings, openai_server, [discord_connector(discord)]) as bot:
        await discord.until(lambda discord: discord.identifies == 1)
        yield Chat(bot, discord)


async def test_a_direct_message_is_answered_and_remembered(chat: Chat) -> None:
    chat.bot.model.will("Ahoy, Lena!")
    assert await chat.hears("the boat is called Petrel") == "Ahoy, Lena!"
    await chat.bot.settle()
    chat.bot.model.will("Petrel, you said.")
    assert await chat.hears("what did I call the boat?") == "Petrel, you said."

    assert "Lena: the boat is called Petrel" in chat.bot.sent["user"]
    assert "assistant: Ahoy, Lena!" in chat.bot.sent["user"]


async def test_who_waits_for_an_answer_sees_that_it_is_on_its_way(chat: Chat) -> None:
    chat.bot.model.chunk_delay_seconds = 0.5
    assert await chat.hears("tell me of the way")

    assert LENA.channel_id in chat.discord.typing


async def test_on_a_server_the_bot_answers_only_when_it_is_meant(chat: Chat) -> None:
    await chat.discord.say("nobody asks the bot", by=BO, to=TEAM)
    reply = await chat.hears(f"{chat.at_bot} what is the pricing policy?", by=LENA, to=TEAM)

    assert reply
    assert len(chat.discord.shown(TEAM)) == 1
    assert chat.bot.sent["user"].endswith("what is the pricing policy?")
    assert "nobody asks" not in chat.bot.sent["user"]


async def test_a_reply_to_the_bot_needs_no_mention(chat: Chat) -> None:
    await chat.hears(f"{chat.at_bot} hello", to=TEAM)
    answer = chat.discord.shown(TEAM)[-1]
    assert await chat.hears("what does that policy say?", to=TEAM, reply_to=answer.message_id)


async def test_a_thread_is_a_conversation_of_its_own_in_which_all_is_meant(chat: Chat) -> None:
    await chat.hears(f"{chat.at_bot} the code is 1234", to=TEAM)
    await chat.hears("as I said, what is the code?", to=THREAD)

    assert "1234" not in chat.bot.sent["user"]


async def test_a_very_long_reply_arrives_whole_and_in_order_and_pings_nobody(chat: Chat) -> None:
    whole = "@everyone\n\n" + "\n\n".join(f"Paragraph {n}. " + "All of it has to arrive. " * 12 for n in range(30))
    chat.bot.model.will(Reply(text=whole))

    await chat.discord.say("tell me everything", by=LENA)
    await chat.discord.until(lambda discord: "Paragraph 29" in "".join(m.text for m in discord.shown(LENA)))

    parts = chat.discord.shown(LENA)
    assert len(parts) >= 4
    shown = "".join(part.text for part in parts).replace("\u200b", "")  # what keeps a name from being a mention
    assert "".join(shown.split()) == "".join(whole.split())
    assert not any(part.pings or part.has_preview for part in parts)


async def test_a_message_that_is_delivered_twice_is_answered_once(chat: Chat) -> None:
    said = await chat.discord.say("only once, please", by=LENA)
    await chat.discord.until(lambda discord: len(discord.shown(LENA)) == 1)
    await chat.discord.deliver_again(said)
    await chat.hears("and another")

    assert len(chat.discord.shown(LENA)) == 2
    assert len(chat.bot.replies_asked) == 2


async def test_what_was_said_while_no_session_was_open_is_answered(chat: Chat) -> None:
    await chat.hears("hello there")
    await chat.discord.drop_for_good()
    await chat.discord.say("did you hear that?", by=LENA)
    await chat.discord.until(lambda discord: len(discord.shown(LENA)) == 2)

    assert "did you hear that?" in chat.bot.sent["user"]
    assert chat.discord.identifies == 2


async def test_a_send_that_is_held_back_by_discord_is_made_good(chat: Chat) -> None:
    chat.discord.fail_next("send", emulated.rate_limited(0.1))

    assert await chat.hears("are the docs up?")
    assert len(chat.bot.told("reply.retried")) == 1
    assert len(chat.discord.shown(LENA)) == 1


async def test_a_send_of_which_nobody_knows_is_repeated_and_shown_once(chat: Chat) -> None:
    """Discord knows the part again by its nonce."""
    chat.discord.fail_next("send", emulated.LOST_ANSWER)

    await chat.hears("are the docs up?")
    await chat.hears("and now, what do they say?")

    assert len(chat.discord.shown(LENA)) == 2
    assert chat.discord.calls.count("send") == 3


async def test_a_stranger_pairs_with_a_code_that_an_admin_approves(
    discord: DiscordEmulator, model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    settings = model_settings(access_policy="pairing", default_workspace="acme")
    async with running_bot(settings, openai_server, [discord_connector(discord)]) as bot:
        await discord.until(lambda discord: discord.identifies == 1)
        chat = Chat(bot, discord)
        notice = await chat.hears("hello?")
        assert openai_server.requests == []

        waiting = await bot.runtime.access.pending()
        code = next(word.strip("`.,:") for word in notice.split() if len(word.strip("`.,:")) >= 8 and word.isupper())
        assert [person.user for person in waiting] == ["discord:501"]
        approved = await bot.runtime.access.approve(code)
        assert approved.role is Role.MEMBER
        await discord.until(
            lambda seen: sum(not one.text.endswith("…") for one in seen.shown(LENA)) == 3
        )  # that they are in, and the first answer

        openai_server.will("Welcome aboard.")
        assert await chat.hears("hello again, what do the docs say?") == "Welcome aboard."
        assert bot.told("access.refused")


async def test_an_admin_lets_a_stranger_in_by_a_button_and_their_question_is_answered(
    discord: DiscordEmulator, model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    """Only admins' presses count, and the second one says who decided."""
    boss, al = Person(id=500, name="Boss"), Person(id=503, name="Al")
    settings = model_settings(access_admins=("discord:500", "discord:502", "discord:503"))
    async with running_bot(settings, openai_server, [discord_connector(discord)]) as bot:
        await discord.until(lambda discord: discord.identifies == 1)
        chat = Chat(bot, discord)
        for admin in (boss, al, BO):
            await chat.hears("!help", by=admin)
        assert "Your pairing code is" in await chat.hears("what does the harbour plan cost?")
        await discord.until(lambda seen: all(seen.shown(admin)[-1].buttons for admin in (boss, al, BO)))
        asked, other, third = (discord.shown(admin)[-1] for admin in (boss, BO, al))
        assert "Lena" in asked.text
        assert "what does the harbour plan cost?" in asked.text
        assert list(asked.buttons) == ["Approve", "Deny"]

        await bot.runtime.access.set_role("discord:599", Role.MEMBER, "default")
        await discord.press(third, "Deny", by=Person(id=599, name="Eve"))
        await discord.until(lambda seen: "Only admins can use" in seen.shown(al)[-1].text)
        before = len(discord.shown(LENA))
        pressed = await discord.press(asked, "Approve", by=boss)
        await discord.until(
            lambda seen: len(seen.shown(LENA)) == before + 2 and "may now talk" in seen.shown(boss)[-1].text
        )
        assert discord.shown(LENA)[before].text.startswith("Welcome! An admin has let you in.")
        assert "what does the harbour plan cost?" in bot.sent["user"]
        await discord.until(lambda _: pressed.is_answered)
        assert asked.buttons == {}
        assert "what does the harbour plan cost?" in asked.text

        await discord.press(other, "Deny", by=BO)
        await discord.until(lambda seen: "already, by Boss" in seen.shown(BO)[-1].text)
        assert await bot.runtime.access.role_of("discord:501", "default") is Role.MEMBER


async def test_a_stranger_who_mentions_the_bot_in_a_channel_is_let_in_and_answered_there(
    discord: DiscordEmulator, model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    boss = Person(id=500, name="Boss")
    settings = model_settings(access_admins=("discord:500",))
    async with running_bot(settings, openai_server, [discord_connector(discord)]) as bot:
        await discord.until(lambda discord: discord.identifies == 1)
        chat = Chat(bot, discord)
        await chat.hears("!help", by=boss)
        assert "I do not know you yet, Lena." in await chat.hears(f"{chat.at_bot} what does it cost?", to=TEAM)
        await discord.until(lambda seen: bool(seen.shown(boss)[-1].buttons))
        await discord.press(discord.shown(boss)[-1], "Approve", by=boss)
        await discord.until(lambda seen: len(seen.shown(TEAM)) == 3)
        await bot.settle()
        assert discord.shown(TEAM)[1].text.startswith("Welcome! An admin has let you in.")
        assert "what does it cost?" in bot.sent["user"]


async def test_a_stranger_who_gives_a_command_in_a_channel_reads_no_code(
    discord: DiscordEmulator, model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    async with running_bot(model_settings(), openai_server, [discord_connector(discord)]) as bot:
        await discord.until(lambda discord: discord.identifies == 1)
        given = await discord.command("status", by=BO, to=TEAM)
        await discord.until(lambda _: bool(given.shown))
        (waiting,) = await bot.runtime.access.pending()

        assert "I do not know you yet, Bo." in given.texts[0]
        assert waiting.code not in given.texts[0]


async def test_with_a_workspace_per_place_each_place_that_nothing_routes_gets_its_own(
    discord: DiscordEmulator, model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    settings = model_settings(access_policy="open", routes={"discord:900/911": "crew"}, workspace_per_place=True)
    async with running_bot(settings, openai_server, [discord_connector(discord)]) as bot:
        await discord.until(lambda discord: discord.identifies == 1)
        chat = Chat(bot, discord)
        await chat.hears("hello there, bot")
        await chat.hears(f"{chat.at_bot} hello", to=TEAM)
        await chat.hears("hello", to=THREAD)

        seen = [event["workspace_id"] for event in bot.told("message.accepted")]
        assert seen == ["discord-dm-501", "discord-900", "crew"]


async def test_a_wrong_token_fails_discord_alone(
    discord: DiscordEmulator, model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    connector = discord_connector(discord)
    discord.token = "another"
    async with running_bot(model_settings(access_policy="open"), openai_server, [connector]) as bot:
        await bot.say("hello over HTTP")
        states = [event for event in bot.told("connector.state") if event["connector"] == "discord"]

        assert states[-1]["state"] == "failed"
        assert "AGENT_RUNTIME_DISCORD_BOT_TOKEN" in states[-1]["why"]


async def test_what_was_said_while_nobody_listened_is_answered_after_the_restart(
    discord: DiscordEmulator, model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    settings = model_settings(access_policy="open", default_workspace="acme")
    async with running_bot(settings, openai_server, [discord_connector(discord)]) as bot:
        await discord.until(lambda discord: discord.identifies == 1)
        await Chat(bot, discord).hears("the boat is called Petrel")
        await bot.settle()
    await discord.say("is anybody there?")
    shown = len(discord.shown(LENA))

    async with running_bot(settings, openai_server, [discord_connector(discord)]) as bot:
        await discord.until(lambda discord: len(discord.shown(LENA)) > shown)

        assert "is anybody there?" in bot.sent["user"]
        assert [event["heard"] for event in bot.told("message.missed")] == [1]
    assert len(discord.shown(LENA)) == shown + 1


async def test_a_refused_message_is_not_answered_after_the_restart(
    discord: DiscordEmulator, model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    settings = model_settings(access_policy="open", default_workspace="acme", rate_limit_messages=1)
    async with running_bot(settings, openai_server, [discord_connector(discord)]) as bot:
        await discord.until(lambda discord: discord.identifies == 1)
        await Chat(bot, discord).hears("the boat is called Petrel")
        await discord.say("and it is green")
        await discord.until(lambda discord: any("not accept this message" in one.text for one in discord.shown(LENA)))
        await bot.settle()
    await discord.say("is anybody there?")
    shown = len(discord.shown(LENA))

    settings = model_settings(access_policy="open", default_workspace="acme")
    async with running_bot(settings, openai_server, [discord_connector(discord)]) as bot:
        await discord.until(lambda discord: len(discord.shown(LENA)) > shown)

        assert "is anybody there?" in bot.sent["user"]
        assert "green" not in bot.sent["user"]
        assert [event["heard"] for event in bot.told("message.missed")] == [1]


async def test_commands_are_offered_by_discord_itself_and_answered_to_their_giver_alone(chat: Chat) -> None:
    await chat.discord.until(lambda discord: bool(discord.commands.registered))
    assert "help" in {command["name"] for command in chat.discord.commands.registered}

    given = await chat.discord.command("help", by=LENA, to=TEAM)
    await chat.discord.until(lambda _: bool(given.shown))

    assert "help" in given.texts[0]
    assert all(given.ephemeral)
    assert chat.discord.shown(TEAM) == []
    assert chat.bot.replies_asked == []


async def test_a_stranger_who_gives_a_command_is_told_how_to_pair(
    discord: DiscordEmulator, model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    settings = model_settings(access_policy="pairing", default_workspace="acme")
    async with running_bot(settings, openai_server, [discord_connector(discord)]):
        await discord.until(lambda discord: discord.identifies == 1)
        given = await discord.command("status", by=BO)
        await discord.until(lambda _: bool(given.shown))

        assert len(given.shown) == 1
        assert all(given.ephemeral)
        assert discord.shown(BO) == []


async def test_a_reply_grows_and_is_one_message_in_the_end(chat: Chat) -> None:
    words = "The harbour opens at seven and closes at nine. " * 8
    chat.bot.model.will(Reply(text=words))

    assert (await chat.hears("when does the harbour open?"))[:11] == "The harbour"
    await chat.bot.settle()

    (shown,) = chat.discord.shown(LENA)
    assert shown.text.split() == words.split()


async def test_several_commands_at_once_are_all_answered_in_time(chat: Chat) -> None:
    """Discord shows "did not respond" after three seconds: the emulator refuses what comes later."""
    given = [await chat.discord.command("status", by=LENA) for _ in range(3)]
    await chat.discord.until(lambda _: all(one.shown for one in given))

    assert all(one.is_answered for one in given)


async def test_who_stops_an_answer_before_its_first_word_is_told_so_once(chat: Chat) -> None:
    chat.bot.model.will("hang")
    await chat.discord.say("tell me everything about boats", by=BO)
    await chat.discord.until(lambda _: len(chat.bot.replies_asked) == 1)
    await chat.discord.say("/stop", by=BO)

    await chat.discord.until(lambda _: len(chat.bot.told("reply.delivered")) == 2)
    assert [message.text for message in chat.discord.shown(BO)] == ["Stopped."]


async def test_a_mark_in_reply_to_an_answer_is_about_that_one(chat: Chat) -> None:
    await chat.hears(f"{chat.at_bot} how do I moor the Petrel?", to=TEAM)
    first = chat.discord.shown(TEAM)[-1].message_id
    await chat.hears(f"{chat.at_bot} and how do I reef her sail?", to=TEAM)

    said = await chat.hears("!good", to=TEAM, reply_to=first)

    assert said.startswith("Marked as good")
    (mark,) = chat.bot.told("turn.marked")
    assert mark["turn_id"] == chat.bot.told("turn.answered")[0]["turn_id"]


async def test_a_message_that_is_deleted_before_anything_of_its_answer_is_seen_is_not_answered(chat: Chat) -> None:
    """What the call took is counted all the same, and what is said next is answered."""
    chat.bot.model.will("hang")
    asked = await chat.discord.say("my number is 4711, where do I pay?", by=LENA)
    await chat.discord.until(lambda _: len(chat.bot.replies_asked) == 1)
    await chat.discord.delete(asked)
    await chat.discord.until(lambda _: bool(chat.bot.told("turn.answered")))
    chat.bot.model.will("Ahoy!")

    assert await chat.hears("are you there?") == "Ahoy!"
    assert [one.text for one in chat.discord.shown(LENA)] == ["Ahoy!"]
    assert "4711" not in chat.bot.sent["user"]
    assert (await chat.bot.runtime.usage.totals(Scope("acme")))[0].calls == 2
    await chat.bot.settle()
    [key] = {ConversationKey("acme", *one["context_id"].split(":")) for one in chat.bot.told("message.accepted")}
    kept = await chat.bot.runtime.transcript.newest(key, 9)
    assert [one.text for one in kept] == ["are you there?", "Ahoy!"]


async def test_an_answer_that_people_see_already_is_finished_though_its_message_is_deleted(chat: Chat) -> None:
    """It would end in the middle of a sentence, for others to wonder about."""
    chat.bot.model.chunk_delay_seconds = 0.05
    answer = "Boats float because they push water away. " * 10
    chat.bot.model.will(answer)
    asked = await chat.discord.say("why do boats float?", by=LENA)
    await chat.discord.until(lambda discord: bool(discord.shown(LENA)))
    await chat.discord.delete(asked)
    await chat.discord.until(lambda discord: discord.shown(LENA)[-1].text == answer.strip())

    assert [one["state"] for one in chat.bot.told("message.deleted")] == ["answering"]


async def test_of_messages_that_are_answered_together_a_deleted_one_stops_nothing(chat: Chat) -> None:
    chat.bot.model.chunk_delay_seconds = 0.05
    chat.bot.model.will("One moment, please. " * 5)
    await chat.discord.say("why do boats float?", by=LENA)
    await chat.discord.until(lambda _: len(chat.bot.replies_asked) == 1)
    first, _ = [await chat.discord.say(text, by=LENA) for text in ("and ships?", "and rafts?")]
    chat.bot.model.will("They all float.")
    await chat.discord.until(lambda _: len(chat.bot.replies_asked) == 2)
    await chat.discord.delete(first)
    await chat.discord.until(lambda discord: discord.shown(LENA)[-1].text == "They all float.")


async def test_the_rest_of_a_long_message_is_answered_though_its_beginning_is_deleted(chat: Chat) -> None:
    """Together they are one turn only when the rest is there; what is said after a deletion is somebody's question."""
    chat.bot.model.will("Boats float.")
    long = await chat.discord.say("boats " * 333 + "…", by=LENA)
    await chat.discord.until(lambda _: bool(chat.bot.told("message.accepted")))
    await chat.discord.say("now tell me why they float!", by=LENA)
    await chat.discord.until(lambda _: len(chat.bot.told("message.accepted")) == 2)
    await chat.discord.delete(long)
    await chat.discord.until(lambda discord: bool(discord.shown(LENA)))
    assert [one.text for one in chat.discord.shown(LENA)] == ["Boats float."]
