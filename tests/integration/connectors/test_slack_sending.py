"""Replies that grow, files that go out and come in: Slack's own streaming and files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from connectors.connector import AppendsText, AttachmentUnavailable, EditsMessages, LocatesAttachments, SendFailed
from connectors.message import Attachment, ConversationKey, InboundMessage, OutboundMessage, Receipt
from connectors.slack.connector import SlackConnector
from connectors.text.split import FILE_NAME
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


LONG = "\n\n".join(f"paragraph {n}: {'words ' * 30}" for n in range(200)).rstrip()


@pytest.fixture
async def filing_bot(slack: SlackEmulator) -> AsyncIterator[SlackConnector]:
    connector = slack_connector(slack, reply_max_parts=5)
    yield connector
    await connector.close()


async def posted(slack: SlackEmulator, gateway: FakeGateway, **more: Any) -> Attachment:
    """A file that Lena posts, as the runtime heard of it."""
    slack.upload("plan.md", b"# Plan", by=LENA, **more)
    await gateway.until(lambda g: len(g.accepted) == 1)
    (attachment,) = gateway.accepted[0].attachments
    return attachment


async def test_a_posted_file_can_be_fetched_where_it_is_located(
    slack: SlackEmulator, filing_bot: SlackConnector, gateway: FakeGateway
) -> None:
    """With the token, which goes to that host only and is shown to nobody."""
    assert isinstance(filing_bot, LocatesAttachments)
    async with running(filing_bot, gateway):
        attachment = await posted(slack, gateway)
        location = await filing_bot.locate(attachment)
    async with httpx.AsyncClient() as client:
        content = (await client.get(location.url, headers=location.headers)).content
        stranger = await client.get(location.url)
    assert (attachment.kind, attachment.name, attachment.size_bytes) == ("document", "plan.md", 6)
    assert content == b"# Plan"
    assert stranger.status_code == 302
    assert (location.hosts, location.trusts_private) == (("127.0.0.1",), True)
    assert slack.token not in repr(location)
    assert slack.token not in attachment.handle


async def test_a_file_of_slacks_own_servers_is_asked_for_there_alone() -> None:
    """And one of anywhere else is not: the token would go with it."""
    filing_bot = SlackConnector(SecretStr("xoxb-1"), app_token=SecretStr("xapp-1"))
    url = "https://files.slack.com/files-pri/T1-F1/download/plan.md"
    location = await filing_bot.locate(Attachment("document", "plan.md", handle=f"F1 hosted {url}"))
    assert (location.url, location.hosts) == (url, ("files.slack.com", ".slack.com"))
    assert location.headers == {"Authorization": "Bearer xoxb-1"}
    assert not location.trusts_private
    for other in ("https://evil.org/x", "https://slack.com.evil.org/x", "http://files.slack.com/x", "file:///etc"):
        with pytest.raises(AttachmentUnavailable):
            await filing_bot.locate(Attachment("document", "plan.md", handle=f"F1 hosted {other}"))
    with pytest.raises(AttachmentUnavailable):
        await filing_bot.locate(Attachment("document", "plan.md"))


async def test_a_file_of_another_organisation_is_asked_for(
    slack: SlackEmulator, filing_bot: SlackConnector, gateway: FakeGateway
) -> None:
    """Slack Connect tells no more than its id at first; where it tells more, that is known from the start."""
    bare: dict[str, Any] = {
        "mode": "file_access",
        "file_access": "check_file_info",
        "name": None,
        "title": None,
        "mimetype": None,
    }
    async with running(filing_bot, gateway):
        attachment = await posted(slack, gateway, **bare, url_private="", url_private_download="")
        slack.fail_next("files.info", emulated.SERVER_ERROR)
        slack.upload("late.md", b"# Late", by=LENA, **bare)
        await gateway.until(lambda g: len(g.accepted) == 2)
        (late,) = gateway.accepted[1].attachments
        location = await filing_bot.locate(late)
        slack.files.known.clear()
        with pytest.raises(AttachmentUnavailable) as caught:
            await filing_bot.locate(late)
    assert (attachment.name, attachment.media_type, attachment.size_bytes) == ("plan.md", "text/markdown", 6)
    assert location.url.endswith("/late.md")
    assert "not on Slack any more" in caught.value.user_text


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"mode": "hidden_by_limit"}, "plan's limit"),
        ({"mode": "external", "is_external": True, "external_type": "gdrive"}, "only linked"),
    ],
)
async def test_a_file_that_slack_does_not_give_is_refused_in_words(
    slack: SlackEmulator, filing_bot: SlackConnector, gateway: FakeGateway, more: dict[str, Any], words: str
) -> None:
    """For the person who sent it."""
    async with running(filing_bot, gateway):
        attachment = await posted(slack, gateway, **more)
        with pytest.raises(AttachmentUnavailable) as caught:
            await filing_bot.locate(attachment)
    assert words in caught.value.user_text
    assert "plan.md" in caught.value.user_text


async def test_without_the_scope_for_files_that_is_said(
    slack: SlackEmulator, filing_bot: SlackConnector, gateway: FakeGateway
) -> None:
    """Slack would answer with the page where people log in, which is no file."""
    slack.scopes.discard("files:read")
    async with running(filing_bot, gateway):
        attachment = await posted(slack, gateway)
        with pytest.raises(AttachmentUnavailable) as caught:
            await filing_bot.locate(attachment)
    assert "files:read" in caught.value.user_text


# Out


async def test_a_very_long_reply_goes_as_its_beginning_and_a_file(
    slack: SlackEmulator, filing_bot: SlackConnector, gateway: FakeGateway
) -> None:
    """In the thread where it belongs; found again by its name, and taken back as a file."""
    async with running(filing_bot, gateway):
        slack.say(f"{slack.at_bot} everything!", to=TEAM)
        await gateway.until(lambda g: len(g.accepted) == 1)
        message = reply_to(gateway.accepted[0], LONG)
        first, file = filing_bot.render(message)
        ids = await send_all(filing_bot, message)
        beginning, shown = slack.shown(TEAM)
        found = await filing_bot.find(message.key, file)
        other = await filing_bot.find(message.key, filing_bot.render(replace(message, turn_id="another"))[1])
        with pytest.raises(SendFailed) as caught:
            await filing_bot.edit(message, file, Receipt(ids[1]))
        await filing_bot.take_back(message, Receipt(ids[1]))
        await filing_bot.take_back(message, Receipt(ids[1]))
    assert file.file_name == FILE_NAME
    assert (shown.raw, shown.thread) == (LONG, beginning.thread)
    assert LONG.startswith(beginning.text[:100])
    assert (found, other) == (Receipt(shown.ts), None)
    assert not caught.value.retryable
    assert [one.ts for one in slack.shown(TEAM)] == [ids[0]]
    assert first.total == 2


@pytest.mark.parametrize(
    ("method", "fault", "ambiguous"),
    [
        ("files.getUploadURLExternal", emulated.LOST_ANSWER, False),
        ("files.completeUploadExternal", emulated.LOST_ANSWER, True),
    ],
)
async def test_only_the_last_step_of_an_upload_can_leave_a_doubt(
    slack: SlackEmulator, filing_bot: SlackConnector, method: str, fault: emulated.Fault, ambiguous: bool
) -> None:
    """Nothing is seen before it."""
    message = OutboundMessage(ConversationKey("acme", "slack", TEAM.id), "t1", LONG)
    _, file = filing_bot.render(message)
    slack.fail_next(method, fault)
    with pytest.raises(SendFailed) as caught:
        await filing_bot.send(message, file)
    assert (caught.value.retryable, caught.value.ambiguous) == (True, ambiguous)
    assert len(slack.shown(TEAM)) == ambiguous


@pytest.mark.parametrize(("status", "retryable"), [(503, True), (413, False)])
async def test_an_upload_that_is_not_taken_shows_nothing(
    slack: SlackEmulator, filing_bot: SlackConnector, status: int, retryable: bool
) -> None:
    """And may be tried again where the server is to blame."""
    message = OutboundMessage(ConversationKey("acme", "slack", TEAM.id), "t1", LONG)
    slack.files.put_status = status
    with pytest.raises(SendFailed) as caught:
        await filing_bot.send(message, filing_bot.render(message)[1])
    assert (caught.value.retryable, caught.value.ambiguous) == (retryable, False)
    assert slack.shown(TEAM) == []
