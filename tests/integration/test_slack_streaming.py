"""Replies that grow on Slack: by its own streaming where it has it, and what may go wrong on the way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from connectors.connector import AppendsText, EditsMessages, SendFailed
from connectors.message import ConversationKey, InboundMessage, OutboundMessage, Receipt
from connectors.slack.connector import SlackConnector
from tests.contract.connector_suite import FakeGateway, reply_to, running, send_all
from tests.contract.slack_harness import slack_connector
from tests.emulators import slack as emulated
from tests.emulators.slack import Channel, Person, SlackEmulator

LENA = Person("U501", "Lena")
TEAM = Channel("C200")


@pytest.fixture
async def slack() -> AsyncIterator[SlackEmulator]:
    async with SlackEmulator() as emulator:
        emulator.join(TEAM)
        yield emulator


@pytest.fixture
async def bot(slack: SlackEmulator) -> AsyncIterator[SlackConnector]:
    connector = slack_connector(slack)
    yield connector
    await connector.close()


@pytest.fixture
def gateway() -> FakeGateway:
    return FakeGateway()


async def asked(slack: SlackEmulator, gateway: FakeGateway) -> InboundMessage:
    """A question in a thread, as the runtime heard it."""
    slack.say(f"{slack.at_bot} how far?", to=TEAM)
    await gateway.until(lambda g: len(g.accepted) == 1)
    return gateway.accepted[0]


async def finish(bot: SlackConnector, message: OutboundMessage, receipt: Receipt) -> None:
    """Gives what was begun its final form."""
    (part,) = bot.render(message)
    await bot.edit(message, part, receipt)


async def test_a_reply_in_a_thread_grows_and_gets_its_final_form(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """It is one message throughout, and can be found by its token in the end."""
    assert isinstance(bot, AppendsText)
    assert isinstance(bot, EditsMessages)
    async with running(bot, gateway):
        message = reply_to(await asked(slack, gateway), "**Nine** miles, more or less.")
        assert bot.appends(message)
        receipt = await bot.begin(message, "**Nine** mi")
        await bot.append(message, receipt, "les, more")
        (growing,) = slack.shown(TEAM)
        during = (growing.text, growing.streaming)
        await finish(bot, message, receipt)
        (shown,) = slack.shown(TEAM)
        assert await bot.find(message.key, bot.render(message)[0]) == receipt
    assert during == ("**Nine** miles, more", True)
    assert (shown.ts, shown.text, shown.streaming) == (receipt.message_id, "*Nine* miles, more or less.", False)
    assert slack.calls.count("chat.update") == 1


async def test_a_stream_whose_beginning_slack_did_not_answer_is_found_by_its_words(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """It becomes the reply. What has its last form, and what begins with other words, is not taken for it."""
    async with running(bot, gateway):
        message = reply_to(await asked(slack, gateway), "**Nine** miles, more or less.")
        before = replace(message, turn_id="t0", text="Nine")
        await finish(bot, before, await bot.begin(replace(before, text="Ni"), "Ni"))
        slack.fail_next("chat.startStream", emulated.LOST_ANSWER)
        with pytest.raises(SendFailed) as caught:
            await bot.begin(message, "**Nine** mi")
        (part,) = bot.render(message)
        receipt = await bot.find_beginning(message, part)
        other = await bot.find_beginning(message, replace(part, text="Ten miles."))
        assert receipt is not None
        await finish(bot, message, receipt)
        again = await bot.find_beginning(message, part)
    assert caught.value.ambiguous
    assert (other, again) == (None, None)
    assert [(one.text, one.streaming) for one in slack.shown(TEAM)] == [
        ("Nine", False),
        ("*Nine* miles, more or less.", False),
    ]


async def test_what_stood_there_before_the_question_is_no_beginning_of_its_answer(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """It would be overwritten, and the answer stand above its question."""
    async with running(bot, gateway):
        first = await asked(slack, gateway)
        await bot.begin(reply_to(first, "Nine"), "Nine")
        slack.say(f"{slack.at_bot} and back?", to=TEAM, thread=first.message_id)
        await gateway.until(lambda g: len(g.accepted) == 2)
        message = reply_to(gateway.accepted[1], "Nine miles, too.")
        (part,) = bot.render(message)
        assert await bot.find_beginning(message, part) is None
        receipt = await bot.begin(message, "Nine mi")
        assert await bot.find_beginning(message, part) == receipt


async def test_where_slack_shows_no_stream_edits_serve(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """Outside of threads, and where nobody is known for whom it would be."""
    async with running(bot, gateway):
        slack.say("hello")
        await gateway.until(lambda g: len(g.accepted) == 1)
        assert not bot.appends(reply_to(gateway.accepted[0], "hi"))
        root = slack.say("in a thread of private messages", thread=gateway.accepted[0].message_id)
        await gateway.until(lambda g: len(g.accepted) == 2)
        assert bot.appends(reply_to(gateway.accepted[1], "hi"))
        unknown = OutboundMessage(ConversationKey("acme", "slack", f"{TEAM.id}/{root}"), "t1", "hi", answers=("1.1",))
        assert not bot.appends(unknown)
        assert not bot.appends(replace(unknown, key=ConversationKey("acme", "slack", "none of Slack's")))
        for message in (unknown, replace(unknown, key=ConversationKey("acme", "slack", "none of Slack's"))):
            with pytest.raises(SendFailed):
                await bot.begin(message, "hi")
    assert slack.streams.begun == 0


async def test_a_stream_that_a_former_process_began_is_stopped_before_it_is_changed(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """Slack refuses to change what still streams."""
    async with running(bot, gateway):
        message = reply_to(await asked(slack, gateway), "Nine miles.")
        receipt = await bot.begin(message, "Nine")
        taken = reply_to(gateway.accepted[0], "never mind")
        other = await bot.begin(taken, "never")
    restarted = slack_connector(slack)
    await finish(restarted, message, receipt)
    await restarted.take_back(taken, other)
    await restarted.close()
    (shown,) = slack.shown(TEAM)
    assert (shown.text, shown.streaming) == ("Nine miles.", False)


async def test_a_stream_that_slack_ended_gets_its_final_form_all_the_same(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """Slack ends each after some minutes; adding to it is refused for good then."""
    async with running(bot, gateway):
        message = reply_to(await asked(slack, gateway), "Nine miles, at last.")
        receipt = await bot.begin(message, "Nine")
        slack.streams.expire()
        with pytest.raises(SendFailed) as caught:
            await bot.append(message, receipt, " miles")
        await finish(bot, message, receipt)
    assert not caught.value.retryable
    assert [shown.text for shown in slack.shown(TEAM)] == ["Nine miles, at last."]


@pytest.mark.parametrize("word", ["unknown_method", "missing_scope", "not_allowed"])
async def test_a_workspace_without_streaming_is_asked_once(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway, word: str
) -> None:
    """From then on replies there are shown by edits."""
    slack.fail_next("chat.startStream", emulated.refused(word))
    async with running(bot, gateway):
        message = reply_to(await asked(slack, gateway), "Nine miles.")
        assert bot.appends(message)
        with pytest.raises(SendFailed) as caught:
            await bot.begin(message, "Nine")
        assert not bot.appends(message)
        await send_all(bot, message)
    assert (caught.value.retryable, caught.value.ambiguous) == (False, False)
    assert [shown.text for shown in slack.shown(TEAM)] == ["Nine miles."]


async def test_a_refusal_for_one_channel_and_a_passing_one_leave_the_others_alone(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """Only what will not change is remembered, and only for where it holds."""
    other = Channel("C201")
    async with running(bot, gateway):
        here = reply_to(await asked(slack, gateway), "Nine miles.")
        slack.say(f"{slack.at_bot} and here?", to=other)
        await gateway.until(lambda g: len(g.accepted) == 2)
        there = reply_to(gateway.accepted[1], "Nine, too.")
        slack.fail_next("chat.startStream", emulated.rate_limited(3), emulated.refused("channel_type_not_supported"))
        with pytest.raises(SendFailed) as limited:
            await bot.begin(here, "Nine")
        still = bot.appends(here)
        with pytest.raises(SendFailed):
            await bot.begin(here, "Nine")
        assert not bot.appends(here)
        assert bot.appends(there)
        await bot.begin(there, "Nine")
    assert still
    assert limited.value.retry_after_seconds == 3.0


async def test_what_streams_calls_nobody_and_may_be_long(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """Also where a mention is put together from two pieces; 30,000 characters go as several calls."""
    async with running(bot, gateway):
        message = reply_to(await asked(slack, gateway), "x")
        receipt = await bot.begin(message, "<!channel> and <")
        await bot.append(message, receipt, "!here> and @" + "channel")
        await bot.append(message, receipt, "x" * 30_000)
    (shown,) = slack.shown(TEAM)
    assert not shown.notifies_all
    assert shown.text.startswith("<!channel> and <!here> and @channel")
    assert len(shown.text) > 30_000
    assert slack.calls.count("chat.appendStream") == 4


# Edits and taking back


async def test_a_message_is_taken_back_once_and_for_all(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """Plain or streaming; one that is gone already is no error, one of somebody else is."""
    async with running(bot, gateway):
        question = await asked(slack, gateway)
        message = reply_to(question, "Nine miles.")
        (plain,) = await send_all(bot, message)
        stream = await bot.begin(message, "Nine")
        for receipt in (Receipt(plain), stream, Receipt(plain), stream):
            await bot.take_back(message, receipt)
        with pytest.raises(SendFailed) as caught:
            await bot.take_back(message, Receipt(question.message_id))
    assert slack.shown(TEAM) == []
    assert not caught.value.retryable


async def test_an_edit_that_comes_too_soon_says_how_long_to_wait(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """And leaves the message as it was."""
    async with running(bot, gateway):
        message = reply_to(await asked(slack, gateway), "Nine miles.")
        (sent,) = await send_all(bot, message)
        slack.fail_next("chat.update", emulated.rate_limited(11))
        with pytest.raises(SendFailed) as caught:
            await finish(bot, replace(message, text="Ten miles."), Receipt(sent))
    assert (caught.value.retryable, caught.value.ambiguous) == (True, False)
    assert caught.value.retry_after_seconds == 11.0
    assert [shown.text for shown in slack.shown(TEAM)] == ["Nine miles."]
