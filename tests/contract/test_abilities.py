"""What connectors can do beyond the port's core is the same on every platform that can do it, and the docs say it.

A platform takes part in an ability by one line in the table of that ability. Where the suite needs hands or eyes for
it that a `Harness` does not have, the protocol of the table says which.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import httpx
import pytest

from connectors.connector import (
    AttachmentUnavailable,
    CommandHint,
    Connector,
    EditsMessages,
    LocatesAttachments,
    Reacts,
    RegistersCommands,
    ShowsButtons,
    ShowsTyping,
    StreamsText,
)
from connectors.message import Attachment, Button, InboundKind, InboundMessage, OutboundMessage, OutboundPart
from connectors.text.split import FILE_NAME
from tests.contract.connector_suite import (
    PATIENCE_SECONDS,
    FakeGateway,
    Harness,
    HarnessFactory,
    Place,
    reply_to,
    running,
    send_all,
)
from tests.contract.discord_harness import discord_harness
from tests.contract.slack_harness import slack_harness, slack_over_http_harness
from tests.contract.telegram_harness import telegram_by_webhook_harness, telegram_harness
from tests.contract.test_connectors import UNCONNECTED
from tests.contract.web_harness import web_harness


class FileHarness(Harness, Protocol):
    """People on it can look into files that the bot sent."""

    async def files(self, place: Place) -> list[tuple[str, bytes]]:
        """Name and content of each file that people see there from the bot, oldest first."""


class AttachmentHarness(Harness, Protocol):
    """People on it can send files."""

    async def send_file(self, place: Place, name: str, content: bytes) -> None:
        """A person sends a file with a few words, addressed to the bot."""


class CommandHarness(Harness, Protocol):
    """People on it are shown commands and give them by its own means."""

    async def give(self, place: Place, command: str) -> None:
        """A person gives *command*, a word and what follows it, to the bot."""

    async def offered(self) -> list[str]:
        """The words of the commands that people are shown."""


class ButtonHarness(Harness, Protocol):
    """People on it see buttons and press them."""

    async def buttons(self, place: Place) -> list[list[str]]:
        """The labels of the buttons below each message that people see there from the bot, oldest first."""

    async def press(self, place: Place, label: str) -> None:
        """The person who speaks in `say` presses the button *label* below the newest message of the bot."""


EDITING: dict[str, HarnessFactory] = {
    "telegram": telegram_harness,
    "discord": discord_harness,
    "slack": slack_harness,
    "web": web_harness,
}
FILING: dict[str, Callable[[], AbstractAsyncContextManager[FileHarness]]] = {
    "telegram": telegram_harness,
    "slack": slack_harness,
}
LOCATING: dict[str, Callable[[], AbstractAsyncContextManager[AttachmentHarness]]] = {
    "telegram": telegram_harness,
    "slack": slack_harness,
}
COMMANDED: dict[str, Callable[[], AbstractAsyncContextManager[CommandHarness]]] = {
    "telegram": telegram_harness,
    "telegram by webhook": telegram_by_webhook_harness,
    "web": web_harness,
}


BUTTONED: dict[str, Callable[[], AbstractAsyncContextManager[ButtonHarness]]] = {
    "telegram": telegram_harness,
    "telegram by webhook": telegram_by_webhook_harness,
    "slack": slack_harness,
    "slack over http": slack_over_http_harness,
    "discord": discord_harness,
}


@pytest.fixture(params=EDITING)
async def editing(request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    async with EDITING[request.param]() as built:
        yield built


@pytest.fixture(params=FILING)
async def filing(request: pytest.FixtureRequest) -> AsyncIterator[FileHarness]:
    async with FILING[request.param]() as built:
        yield built


@pytest.fixture(params=LOCATING)
async def locating(request: pytest.FixtureRequest) -> AsyncIterator[AttachmentHarness]:
    async with LOCATING[request.param]() as built:
        yield built


@pytest.fixture(params=COMMANDED)
async def commanded(request: pytest.FixtureRequest) -> AsyncIterator[CommandHarness]:
    async with COMMANDED[request.param]() as built:
        yield built


@pytest.fixture(params=BUTTONED)
async def buttoned(request: pytest.FixtureRequest) -> AsyncIterator[ButtonHarness]:
    async with BUTTONED[request.param]() as built:
        yield built


@pytest.fixture
def gateway() -> FakeGateway:
    return FakeGateway()


async def asked(harness: Harness, gateway: FakeGateway, place: Place) -> InboundMessage:
    """What a person asked there."""
    before = len(gateway.accepted)
    await harness.say(place, "question")
    await gateway.until(lambda g: len(g.accepted) > before)
    return gateway.accepted[-1]


def edited(message: OutboundMessage, text: str) -> OutboundMessage:
    """The same message, further on."""
    return replace(message, text=text)


async def test_what_was_sent_can_be_replaced_and_taken_back(editing: Harness, gateway: FakeGateway) -> None:
    """In every place; repeating either is harmless."""
    connector = editing.connector
    assert isinstance(connector, EditsMessages)
    async with running(connector, gateway):
        for place in editing.places:
            said = reply_to(await asked(editing, gateway, place), "half an ans")
            assert connector.edits(said)
            receipt = await connector.send(said, connector.render(said)[0])
            whole = edited(said, "half an answer, and the other half")
            for _ in range(2):
                await connector.edit(whole, connector.render(whole)[0], receipt)
            assert await editing.shown(place) == ["half an answer, and the other half"]
            for _ in range(2):
                await connector.take_back(whole, receipt)
            assert await editing.shown(place) == []


async def test_a_part_that_is_a_file_arrives_as_one(filing: FileHarness, gateway: FakeGateway) -> None:
    """Under its name, with its text as UTF-8, in the place of its question, and with a receipt."""
    text = "# Everything\n\n" + "grüße 🦊 and more, <b>as it is</b>. " * 400
    connector = filing.connector
    async with running(connector, gateway):
        for place in filing.places:
            said = reply_to(await asked(filing, gateway, place), "The beginning.")
            (beginning,) = connector.render(said)
            file = OutboundPart(1, 2, text, f"{said.turn_id}.reply.file", file_name=FILE_NAME)
            receipts = [await connector.send(said, part) for part in (beginning, file)]
            assert all(receipt.message_id for receipt in receipts)
            assert await filing.files(place) == [(FILE_NAME, text.encode())]
            assert (await filing.shown(place))[0] == "The beginning."


async def test_a_file_that_was_sent_can_be_fetched(locating: AttachmentHarness, gateway: FakeGateway) -> None:
    """From one of the named hosts, with the named headers, and byte for byte."""
    content = "# Opening hours\n\nNine to five – grüß Gott.".encode()
    connector = locating.connector
    assert isinstance(connector, LocatesAttachments)
    async with running(connector, gateway):
        for number, place in enumerate(locating.places, start=1):
            await locating.send_file(place, "hours.md", content)
            await gateway.until(lambda g, number=number: len(g.accepted) >= number)  # type: ignore[misc]
            (attachment,) = gateway.accepted[-1].attachments
            location = await connector.locate(attachment)
            assert (attachment.name, attachment.size_bytes) == ("hours.md", len(content))
            assert urlsplit(location.url).hostname in location.hosts
            assert location.trusts_private  # the tests stand in for an operator's own server
            async with httpx.AsyncClient(headers=dict(location.headers)) as client:
                assert (await client.get(location.url)).content == content
            assert location.url not in repr(location)


async def test_a_file_that_is_gone_is_said_to_be_so(locating: AttachmentHarness, gateway: FakeGateway) -> None:
    """In a sentence for the person who sent it."""
    connector = locating.connector
    assert isinstance(connector, LocatesAttachments)
    async with running(connector, gateway):
        with pytest.raises(AttachmentUnavailable) as caught:
            await connector.locate(Attachment("document", "gone.md", handle="gone"))
    assert caught.value.user_text.endswith(".")


async def test_commands_are_offered_as_they_were_registered_last(
    commanded: CommandHarness, gateway: FakeGateway
) -> None:
    """What is not registered any more is not offered any more."""
    connector = commanded.connector
    assert isinstance(connector, RegistersCommands)
    many = [CommandHint("help", "Shows what I can do.", "[command]"), CommandHint("new", "Begins anew.")]
    async with running(connector, gateway):
        for hints in (many, many, many[:1]):
            await connector.register_commands(hints)
            assert await commanded.offered() == [hint.name for hint in hints]


async def test_a_command_that_is_given_arrives_as_one(commanded: CommandHarness, gateway: FakeGateway) -> None:
    """Its word and what follows it, without marks, with its place and who gave it."""
    connector = commanded.connector
    assert isinstance(connector, RegistersCommands)
    async with running(connector, gateway):
        await connector.register_commands([CommandHint("help", "Shows what I can do.", "[command]")])
        for number, place in enumerate(commanded.places, start=1):
            await commanded.give(place, "help new")
            await gateway.until(lambda g, number=number: len(g.accepted) >= number)  # type: ignore[misc]
            found = gateway.accepted[-1]
            assert (found.kind, found.text, found.direct) == (InboundKind.COMMAND, "help new", place == "direct")
            assert found.addressed
            assert found.message_id
            assert found.author.id
            assert not found.author.is_bot


async def test_an_answer_to_a_command_reaches_its_place(commanded: CommandHarness, gateway: FakeGateway) -> None:
    """As any other."""
    connector = commanded.connector
    async with running(connector, gateway):
        for number, place in enumerate(commanded.places, start=1):
            await commanded.give(place, "help")
            await gateway.until(lambda g, number=number: len(g.accepted) >= number)  # type: ignore[misc]
            said = reply_to(gateway.accepted[-1], f"help for {place}")
            for part in connector.render(said):
                await connector.send(said, part)
            assert await commanded.shown(place) == [f"help for {place}"]


TWO = (Button("Approve", "pair approve ABCD-1234"), Button("Deny", "pair deny ABCD-1234"))


async def test_a_pressed_button_gives_its_command_and_goes(buttoned: ButtonHarness, gateway: FakeGateway) -> None:
    """Below the last part, in the place where it is shown, in the name of who pressed; it is answered there."""
    connector = buttoned.connector
    assert isinstance(connector, ShowsButtons)
    assert connector.max_buttons >= len(TWO)
    async with running(connector, gateway):
        for place in buttoned.places:
            question = await asked(buttoned, gateway, place)
            said = replace(reply_to(question, "word " * 1500), buttons=TWO)
            parts = len(await send_all(connector, said))
            assert parts > 1
            assert await buttoned.buttons(place) == [[]] * (parts - 1) + [["Approve", "Deny"]]
            before = await buttoned.shown(place)
            await buttoned.press(place, "Deny")
            await gateway.until(lambda g: g.accepted[-1].kind is InboundKind.COMMAND)
            pressed = gateway.accepted[-1]
            assert (pressed.text, pressed.author.id) == ("pair deny ABCD-1234", question.author.id)
            assert (pressed.external_id, pressed.place, pressed.direct) == (
                question.external_id,
                question.place,
                place == "direct",
            )
            assert pressed.routes == question.routes
            assert pressed.default_workspace == question.default_workspace
            await settled(buttoned, place, [[]] * parts)
            assert await buttoned.shown(place) == before
            await send_all(connector, reply_to(pressed, "It is done."))
            assert (await buttoned.shown(place))[-1] == "It is done."


async def test_the_buttons_stay_until_a_press_is_stored(buttoned: ButtonHarness, gateway: FakeGateway) -> None:
    connector = buttoned.connector
    async with running(connector, gateway):
        question = await asked(buttoned, gateway, "direct")
        await send_all(connector, replace(reply_to(question, "May they?"), buttons=TWO))
        gateway.store_available = False
        await buttoned.press("direct", "Approve")
        await gateway.until(lambda g: g.refusals >= 1)
        assert await buttoned.buttons("direct") == [["Approve", "Deny"]]
        gateway.store_available = True
        await buttoned.press("direct", "Approve")
        await gateway.until(lambda g: g.accepted[-1].kind is InboundKind.COMMAND)
        await settled(buttoned, "direct", [[]])


async def settled(harness: ButtonHarness, place: Place, buttons: list[list[str]]) -> None:
    """Waits until people see these *buttons*."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await harness.buttons(place) != buttons:
            await asyncio.sleep(0.005)


PAGE = Path(__file__).parents[2] / "docs" / "connectors.md"
COLUMNS = {"telegram": "Telegram", "slack": "Slack", "discord": "Discord", "web": "web", "http": "HTTP"}
COLUMNS["console"] = "terminal"


def grows(connector: Connector) -> bool:
    return isinstance(connector, StreamsText) or (
        isinstance(connector, EditsMessages) and connector.capabilities.edits_per_second > 0
    )


ROWS: dict[str, Callable[[Connector], bool]] = {
    "files, pictures": lambda connector: isinstance(connector, LocatesAttachments),
    "a reply that grows": grows,
    "a sign while thinking": lambda connector: isinstance(connector, ShowsTyping),
    "buttons": lambda connector: isinstance(connector, ShowsButtons),
    "acknowledgement reaction": lambda connector: isinstance(connector, Reacts),
}


def tables() -> Iterator[list[list[str]]]:
    """Each table of the section, as rows of cells, its head first."""
    section = PAGE.read_text(encoding="utf-8").partition("## What works on each platform")[2].partition("\n## ")[0]
    for block in section.split("\n\n"):
        if block.startswith("| |"):
            rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]
            yield [rows[0], *rows[2:]]


def test_every_platform_has_a_word_on_every_ability() -> None:
    found = list(tables())
    assert len(found) == 3
    for head, *rows in found:
        assert head == ["", *COLUMNS.values()]
        assert {len(row) for row in rows} == {len(head)}
        assert all(all(row) for row in rows)
    assert COLUMNS.keys() == UNCONNECTED.keys()


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("name", UNCONNECTED)
async def test_what_the_code_cannot_do_the_table_does_not_promise(name: str, row: str) -> None:
    """A dash stands exactly where the connector has not the ability."""
    cells = {cells[0]: cells for _, *rows in tables() for cells in rows}
    cell = cells[row][1 + list(COLUMNS).index(name)]
    assert cell.startswith("–") is not ROWS[row](UNCONNECTED[name]())
