"""Files on Slack: those that people post are located, and replies that are too long go as one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from connectors.connector import AttachmentUnavailable, LocatesAttachments, SendFailed
from connectors.message import Attachment, ConversationKey, OutboundMessage, Receipt
from connectors.slack.connector import SlackConnector
from connectors.text.split import FILE_NAME
from tests.contract.connector_suite import FakeGateway, reply_to, running, send_all
from tests.contract.slack_harness import slack_connector
from tests.emulators import slack as emulated
from tests.emulators.slack import Channel, Person, SlackEmulator

LENA = Person("U501", "Lena")
TEAM = Channel("C200")
LONG = "\n\n".join(f"paragraph {n}: {'words ' * 30}" for n in range(200)).rstrip()


@pytest.fixture
async def slack() -> AsyncIterator[SlackEmulator]:
    async with SlackEmulator() as emulator:
        emulator.join(TEAM)
        yield emulator


@pytest.fixture
async def bot(slack: SlackEmulator) -> AsyncIterator[SlackConnector]:
    connector = slack_connector(slack, reply_max_parts=5)
    yield connector
    await connector.close()


@pytest.fixture
def gateway() -> FakeGateway:
    return FakeGateway()


async def posted(slack: SlackEmulator, gateway: FakeGateway, **more: Any) -> Attachment:
    """A file that Lena posts, as the runtime heard of it."""
    slack.upload("plan.md", b"# Plan", by=LENA, **more)
    await gateway.until(lambda g: len(g.accepted) == 1)
    (attachment,) = gateway.accepted[0].attachments
    return attachment


async def test_a_posted_file_can_be_fetched_where_it_is_located(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """With the token, which goes to that host only and is shown to nobody."""
    assert isinstance(bot, LocatesAttachments)
    async with running(bot, gateway):
        attachment = await posted(slack, gateway)
        location = await bot.locate(attachment)
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
    bot = SlackConnector(SecretStr("xoxb-1"), app_token=SecretStr("xapp-1"))
    url = "https://files.slack.com/files-pri/T1-F1/download/plan.md"
    location = await bot.locate(Attachment("document", "plan.md", handle=f"F1 hosted {url}"))
    assert (location.url, location.hosts) == (url, ("files.slack.com", ".slack.com"))
    assert location.headers == {"Authorization": "Bearer xoxb-1"}
    assert not location.trusts_private
    for other in ("https://evil.org/x", "https://slack.com.evil.org/x", "http://files.slack.com/x", "file:///etc"):
        with pytest.raises(AttachmentUnavailable):
            await bot.locate(Attachment("document", "plan.md", handle=f"F1 hosted {other}"))
    with pytest.raises(AttachmentUnavailable):
        await bot.locate(Attachment("document", "plan.md"))


async def test_a_file_of_another_organisation_is_asked_for(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """Slack Connect tells no more than its id at first; where it tells more, that is known from the start."""
    bare: dict[str, Any] = {
        "mode": "file_access",
        "file_access": "check_file_info",
        "name": None,
        "title": None,
        "mimetype": None,
    }
    async with running(bot, gateway):
        attachment = await posted(slack, gateway, **bare, url_private="", url_private_download="")
        slack.fail_next("files.info", emulated.SERVER_ERROR)
        slack.upload("late.md", b"# Late", by=LENA, **bare)
        await gateway.until(lambda g: len(g.accepted) == 2)
        (late,) = gateway.accepted[1].attachments
        location = await bot.locate(late)
        slack.files.known.clear()
        with pytest.raises(AttachmentUnavailable) as caught:
            await bot.locate(late)
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
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway, more: dict[str, Any], words: str
) -> None:
    """For the person who sent it."""
    async with running(bot, gateway):
        attachment = await posted(slack, gateway, **more)
        with pytest.raises(AttachmentUnavailable) as caught:
            await bot.locate(attachment)
    assert words in caught.value.user_text
    assert "plan.md" in caught.value.user_text


async def test_without_the_scope_for_files_that_is_said(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """Slack would answer with the page where people log in, which is no file."""
    slack.scopes.discard("files:read")
    async with running(bot, gateway):
        attachment = await posted(slack, gateway)
        with pytest.raises(AttachmentUnavailable) as caught:
            await bot.locate(attachment)
    assert "files:read" in caught.value.user_text


# Out


async def test_a_very_long_reply_goes_as_its_beginning_and_a_file(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """In the thread where it belongs; found again by its name, and taken back as a file."""
    async with running(bot, gateway):
        slack.say(f"{slack.at_bot} everything!", to=TEAM)
        await gateway.until(lambda g: len(g.accepted) == 1)
        message = reply_to(gateway.accepted[0], LONG)
        first, file = bot.render(message)
        ids = await send_all(bot, message)
        beginning, shown = slack.shown(TEAM)
        found = await bot.find(message.key, file)
        other = await bot.find(message.key, bot.render(replace(message, turn_id="another"))[1])
        with pytest.raises(SendFailed) as caught:
            await bot.edit(message, file, Receipt(ids[1]))
        await bot.take_back(message, Receipt(ids[1]))
        await bot.take_back(message, Receipt(ids[1]))
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
    slack: SlackEmulator, bot: SlackConnector, method: str, fault: emulated.Fault, ambiguous: bool
) -> None:
    """Nothing is seen before it."""
    message = OutboundMessage(ConversationKey("acme", "slack", TEAM.id), "t1", LONG)
    _, file = bot.render(message)
    slack.fail_next(method, fault)
    with pytest.raises(SendFailed) as caught:
        await bot.send(message, file)
    assert (caught.value.retryable, caught.value.ambiguous) == (True, ambiguous)
    assert len(slack.shown(TEAM)) == ambiguous


@pytest.mark.parametrize(("status", "retryable"), [(503, True), (413, False)])
async def test_an_upload_that_is_not_taken_shows_nothing(
    slack: SlackEmulator, bot: SlackConnector, status: int, retryable: bool
) -> None:
    """And may be tried again where the server is to blame."""
    message = OutboundMessage(ConversationKey("acme", "slack", TEAM.id), "t1", LONG)
    slack.files.put_status = status
    with pytest.raises(SendFailed) as caught:
        await bot.send(message, bot.render(message)[1])
    assert (caught.value.retryable, caught.value.ambiguous) == (retryable, False)
    assert slack.shown(TEAM) == []
