"""Every connector passes the same suite."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.connector import ConnectionState, Connector, SendFailed
from connectors.message import ConversationKey, InboundKind, OutboundMessage, OutboundPart, Source
from tests.contract.connector_suite import (
    PATIENCE_SECONDS,
    FakeGateway,
    Fault,
    Harness,
    HarnessFactory,
    RefusingHarness,
    RefusingHarnessFactory,
    eventually,
    measured,
    reply_to,
    running,
    send_all,
    visible,
)
from tests.contract.console_harness import console_connector, console_harness
from tests.contract.discord_harness import discord_connector, discord_harness
from tests.contract.http_harness import http_connector, http_harness
from tests.contract.slack_harness import slack_connector, slack_harness, slack_over_http_harness
from tests.contract.telegram_harness import telegram_by_webhook_harness, telegram_connector, telegram_harness
from tests.contract.web_harness import web_connector, web_harness
from tests.emulators.slack import seen as seen_mrkdwn
from tests.emulators.telegram_html import parse_html

# A platform takes part by one line in each of these four (REFUSING only where it can refuse a message, SOURCES only
# where a reply shows its sources).
HARNESSES: dict[str, HarnessFactory] = {
    "telegram": telegram_harness,
    "telegram by webhook": telegram_by_webhook_harness,
    "slack": slack_harness,
    "slack over http": slack_over_http_harness,
    "discord": discord_harness,
    "http": http_harness,
    "web": web_harness,
    "console": console_harness,
}
UNCONNECTED: dict[str, Callable[[], Connector]] = {
    "telegram": telegram_connector,
    "slack": slack_connector,
    "discord": discord_connector,
    "http": http_connector,
    "web": web_connector,
    "console": console_connector,
}
REFUSING: dict[str, RefusingHarnessFactory] = {
    "telegram": telegram_harness,
    "slack": slack_harness,
    "discord": discord_harness,
}

SOURCES = {
    "telegram": "\n\nSources: refunds.md › Windows · oncall.md · c.md · d.md · +2 more",
    "slack": "\nSources: refunds.md › Windows · oncall.md · c.md · d.md · +2 more",
    "discord": "\n-# Sources: `refunds.md › Windows` · `oncall.md` · `c.md` · `d.md` · +2 more",
}

FAULTS: tuple[Fault, ...] = ("rate_limited", "forbidden", "lost_answer", "server_error")


@pytest.fixture(params=HARNESSES)
async def harness(request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    async with HARNESSES[request.param]() as built:
        yield built


@pytest.fixture(params=REFUSING)
async def refusing(request: pytest.FixtureRequest) -> AsyncIterator[RefusingHarness]:
    async with REFUSING[request.param]() as built:
        yield built


@pytest.fixture
def gateway() -> FakeGateway:
    return FakeGateway()


async def test_what_a_person_says_arrives_with_its_place_author_and_text(
    harness: Harness, gateway: FakeGateway
) -> None:
    """What a person says arrives once, with connector, place, identity, author and text."""
    async with running(harness.connector, gateway):
        for number, place in enumerate(harness.places, start=1):
            await harness.say(place, f"hello {place} – grüß dich 👋")
            await gateway.until(lambda g, number=number: len(g.accepted) >= number)  # type: ignore[misc]
    assert [m.text for m in gateway.accepted] == [f"hello {place} – grüß dich 👋" for place in harness.places]
    for place, message in zip(harness.places, gateway.accepted, strict=True):
        assert message.connector == harness.connector.name
        assert message.kind is InboundKind.MESSAGE
        assert message.external_id
        assert message.message_id
        assert message.author.id
        assert not message.author.is_bot
        assert message.addressed
        assert message.direct == (place == "direct")
        assert message.workspace_id or message.default_workspace


async def test_every_message_has_its_own_identity_and_they_come_in_order(
    harness: Harness, gateway: FakeGateway
) -> None:
    """Messages of one place arrive in the order in which they were said, each with its own identity."""
    said = [f"number {n}" for n in range(5)]
    async with running(harness.connector, gateway):
        for text in said:
            await harness.say("direct", text)
        await gateway.until(lambda g: len(g.accepted) >= len(said))
    assert [m.text for m in gateway.accepted] == said
    assert len({m.message_id for m in gateway.accepted}) == len(said)
    assert len({m.external_id for m in gateway.accepted}) == 1


async def test_nothing_is_acknowledged_while_the_store_is_away(harness: Harness, gateway: FakeGateway) -> None:
    """What could not be stored is not acknowledged, and arrives once the store is back."""
    gateway.store_available = False
    async with running(harness.connector, gateway):
        await harness.say("direct", "do not lose me")
        await gateway.until(lambda g: g.refusals >= 2)
        assert await harness.acknowledged() == 0
        assert gateway.accepted == []
        gateway.store_available = True
        await gateway.until(lambda g: len(g.accepted) >= 1)
        assert [m.text for m in gateway.accepted] == ["do not lose me"]
        await eventually(lambda: harness.connector.health.state is ConnectionState.CONNECTED)


async def test_a_reply_reaches_its_place_and_every_part_has_a_receipt(harness: Harness, gateway: FakeGateway) -> None:
    """A reply is shown in the place of its question, and each part's receipt carries an id."""
    async with running(harness.connector, gateway):
        for number, place in enumerate(harness.places, start=1):
            await harness.say(place, "question")
            await gateway.until(lambda g, number=number: len(g.accepted) >= number)  # type: ignore[misc]
            receipts = await send_all(harness.connector, reply_to(gateway.accepted[-1], f"answer in {place}"))
            assert receipts
            assert all(receipts)
            assert await harness.shown(place) == [f"answer in {place}"]


async def test_a_long_reply_arrives_whole_and_in_order(harness: Harness, gateway: FakeGateway) -> None:
    """A reply of many times the platform's limit is shown whole, in order."""
    text = "\n\n".join(f"Paragraph {n}: " + "the quick brown fox 🦊 jumps. " * 20 for n in range(40))
    async with running(harness.connector, gateway):
        await harness.say("direct", "tell me everything")
        await gateway.until(lambda g: len(g.accepted) >= 1)
        await send_all(harness.connector, reply_to(gateway.accepted[0], text))
        assert visible("".join(await harness.shown("direct"))) == visible(text)


async def test_a_reply_ends_with_its_sources_in_the_form_of_its_platform(
    harness: Harness, gateway: FakeGateway
) -> None:
    """Each once, of many the first, and none where the place wants none. Programs and the page have them apart."""
    names = ("refunds.md", "refunds.md", "oncall.md", "c.md", "d.md", "e.md", "f.md")
    sources = tuple(Source(name, "Windows" if name == "refunds.md" else "") for name in names)
    line = SOURCES.get(harness.connector.name, "")
    async with running(harness.connector, gateway):
        await harness.say("direct", "question")
        await gateway.until(lambda g: len(g.accepted) >= 1)
        answer = replace(reply_to(gateway.accepted[0], "thirty days"), sources=sources, shows_sources=True)
        await send_all(harness.connector, answer)
        assert await harness.shown("direct") == ["thirty days" + line]


async def test_health_tells_the_truth_over_a_life(harness: Harness, gateway: FakeGateway) -> None:
    """A connector is not connected before it runs, connected while it does, stopped after it was closed."""
    before = harness.connector.health.state
    async with running(harness.connector, gateway):
        during = harness.connector.health.state
    assert before is not ConnectionState.CONNECTED
    assert during is ConnectionState.CONNECTED
    assert harness.connector.health.state is ConnectionState.STOPPED


async def test_close_is_bounded_and_may_come_at_any_time(harness: Harness) -> None:
    """Closing a connector that never ran, and closing it twice, ends and raises nothing."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        await harness.connector.close()
        await harness.connector.close()


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_refused_send_says_what_may_be_done(
    refusing: RefusingHarness, gateway: FakeGateway, fault: Fault
) -> None:
    """A send that fails raises `SendFailed` that says whether it may be repeated and whether it is known to be lost."""
    async with running(refusing.connector, gateway):
        await refusing.say("direct", "question")
        await gateway.until(lambda g: len(g.accepted) >= 1)
        answer = reply_to(gateway.accepted[0], "answer")
        await refusing.fail_next_send(fault)
        with pytest.raises(SendFailed) as caught:
            await send_all(refusing.connector, answer)
        failure = caught.value
        assert failure.ambiguous == (fault in {"lost_answer", "server_error"})
        if fault == "rate_limited":
            assert failure.retryable
            assert failure.retry_after_seconds is not None
            assert failure.retry_after_seconds > 0
        if fault == "forbidden":
            assert not failure.retryable


# What people see of a part, by the payload of the platforms that give it a form of their own.
SEEN: dict[str, Callable[[str], str]] = {"html": lambda html: parse_html(html)[0], "mrkdwn": seen_mrkdwn}

MARKDOWN = "\\`~*_[]<>#&|-+=!:.)0123456789\0"
PROSE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=MARKDOWN), max_size=600)
ANY_TEXT = st.lists(
    st.text(max_size=40) | st.sampled_from([*MARKDOWN, "\n", "\n\n", "```", "**", "](http://x.y)"])
).map("".join)


def rendered(connector: Connector, text: str) -> tuple[Sequence[OutboundPart], list[str]]:
    """The parts of *text*, and what people see of them."""
    message = OutboundMessage(key=ConversationKey("acme", connector.name, "7"), turn_id="t1", text=text)
    parts = connector.render(message)
    assert list(connector.render(message)) == list(parts)
    return parts, [SEEN.get(part.payload, str)(part.text) for part in parts]


def repeated(texts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(texts, st.builds(lambda text, times: text * times, texts, st.integers(1, 60)))


@pytest.mark.parametrize("build", UNCONNECTED.values(), ids=UNCONNECTED.keys())
@given(text=repeated(PROSE))
@settings(max_examples=50, deadline=None)
def test_prose_is_shown_whole(build: Callable[[], Connector], text: str) -> None:
    """The parts of a text without Markdown together show every character of it."""
    # A tab or four spaces at the beginning of a line would be Markdown: code.
    text = "\n".join(line.lstrip() for line in text.replace("\r", "\n").split("\n"))
    _, seen = rendered(build(), text)
    assert visible("".join(seen)) == visible(text)


@pytest.mark.parametrize("build", UNCONNECTED.values(), ids=UNCONNECTED.keys())
@given(text=repeated(ANY_TEXT))
@settings(max_examples=50, deadline=None)
def test_every_part_is_within_the_limit_and_identified(build: Callable[[], Connector], text: str) -> None:
    """Whatever the text, its parts show something, are within the limit, numbered and identified for good."""
    connector = build()
    parts, seen = rendered(connector, text)
    limit = connector.capabilities.max_part_units
    assert all(0 < measured(part, connector.capabilities.units) <= limit for part in seen)
    assert [part.index for part in parts] == list(range(len(parts)))
    assert {part.total for part in parts} <= {len(parts)}
    assert len({part.token for part in parts}) == len(parts)


NAMES = st.text(max_size=80) | st.sampled_from(
    ["<@U1> @everyone <!here>", "`*_~ [a](http://x.y) -# <b>", "x" * 500, "a\nb", "https://x.y/", ":smile:", "@channel"]
)


@pytest.mark.parametrize("build", UNCONNECTED.values(), ids=UNCONNECTED.keys())
@given(text=repeated(ANY_TEXT), names=st.lists(st.tuples(NAMES, NAMES), max_size=8))
@settings(max_examples=50, deadline=None)
def test_sources_of_any_name_fit_below_any_text(
    build: Callable[[], Connector], text: str, names: list[tuple[str, str]]
) -> None:
    """Every part stays within the limit, and the last one has the line."""
    connector = build()
    plain = OutboundMessage(ConversationKey("acme", connector.name, "7"), "t1", text)
    message = replace(plain, sources=tuple(Source(*one) for one in names), shows_sources=True)
    parts = connector.render(message)
    assert list(connector.render(message)) == list(parts)
    assert connector.render(replace(message, shows_sources=False)) == connector.render(plain)
    seen = [SEEN.get(part.payload, str)(part.text) for part in parts]
    limit = connector.capabilities.max_part_units
    assert all(0 < measured(part, connector.capabilities.units) <= limit for part in seen)
    with_line = [part for part in parts if part.sources or part.text.splitlines()[-1].find("Sources: ") >= 0]
    if connector.name in SOURCES and parts and names and "Sources: " not in text:
        assert with_line == [parts[-1]]
    for part in with_line:
        assert "\n" not in part.sources
        assert not part.sources or len(part.text) <= 3000
