"""Slack's events over HTTP: what comes from Slack is stored before it is acknowledged, all else is refused."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

import httpx
import pytest
from starlette.applications import Starlette
from structlog.testing import capture_logs

from connectors.connector import ConnectionState
from connectors.message import Accepted, InboundMessage
from connectors.slack.connector import SlackConnector
from tests.contract.connector_suite import FakeGateway, eventually, running
from tests.contract.slack_harness import slack_connector_over_http
from tests.emulators.slack import SlackEmulator


@dataclass
class Door:
    """The route, from outside."""

    slack: SlackEmulator
    bot: SlackConnector

    async def post(self, body: bytes, headers: Mapping[str, str] | None = None) -> httpx.Response:
        """A request with *body*, signed unless *headers* say otherwise."""
        transport = httpx.ASGITransport(Starlette(routes=list(self.bot.routes())))
        async with httpx.AsyncClient(transport=transport, base_url="http://bot.test") as client:
            return await client.post(
                "/slack/events", content=body, headers=self.slack.signed(body) if headers is None else headers
            )

    def event(self, text: str = "hello", ts: str = "1700000001.000100") -> bytes:
        """A direct message, as Slack would post it."""
        event = {"type": "message", "user": "U501", "text": text, "ts": ts, "channel": "D501", "channel_type": "im"}
        return json.dumps({"type": "event_callback", "event_id": f"Ev{ts}", "event": event}).encode()


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    async with SlackEmulator() as slack:
        bot = slack_connector_over_http(slack)
        yield Door(slack, bot)
        await bot.close()


@pytest.fixture
def gateway() -> FakeGateway:
    return FakeGateway()


async def test_the_address_is_confirmed_to_slack_alone(door: Door, gateway: FakeGateway) -> None:
    """The challenge is answered when it is signed, and needs no store."""
    challenge = json.dumps({"type": "url_verification", "challenge": "3eZbrw1aB"}).encode()
    async with running(door.bot, gateway):
        answer = await door.post(challenge)
        forged = await door.post(challenge, {"content-type": "application/json"})
    assert (answer.status_code, answer.json()) == (200, {"challenge": "3eZbrw1aB"})
    assert forged.status_code == 401
    assert "3eZbrw1aB" not in forged.text


async def test_forged_and_stale_requests_are_refused(door: Door, gateway: FakeGateway) -> None:
    """Unsigned, signed with another secret, for another body, and more than five minutes off."""
    body = door.event()
    other = SlackEmulator()
    other.signing_secret = "another secret"
    stale = time.time() - 301
    attempts: list[dict[str, str]] = [
        {},
        other.signed(body),
        door.slack.signed(body + b" "),
        door.slack.signed(body, at=stale),
        door.slack.signed(body, at=time.time() + 600),
        door.slack.signed(body) | {"x-slack-request-timestamp": "soon"},
    ]
    with capture_logs() as logs:
        async with running(door.bot, gateway):
            answers = [await door.post(body, headers) for headers in attempts]
    assert [answer.status_code for answer in answers] == [401] * (len(attempts) - 1) + [400]
    assert gateway.accepted == []
    refused = [e["why"] for e in logs if e["event"] == "connector.request_refused"]
    assert refused == ["signature"] * (len(attempts) - 1)
    assert door.slack.signing_secret not in str(logs)


async def test_a_replay_is_not_heard_again(door: Door, gateway: FakeGateway) -> None:
    """The same signed request again, within its five minutes."""
    body = door.event()
    headers = door.slack.signed(body)
    async with running(door.bot, gateway):
        answers = [await door.post(body, headers) for _ in range(2)]
        again = await door.post(body, door.slack.signed(body, at=time.time() - 100))
    assert [answer.status_code for answer in answers] == [200, 200]
    assert again.status_code == 200  # Slack itself, delivering again: signed anew
    assert len(gateway.accepted) == 1


async def test_what_could_not_be_stored_is_not_acknowledged(door: Door, gateway: FakeGateway) -> None:
    """And Slack may repeat it at once with the same signature."""
    body = door.event()
    headers = door.slack.signed(body)
    gateway.store_available = False
    async with running(door.bot, gateway):
        first = await door.post(body, headers)
        during = door.bot.health
        gateway.store_available = True
        second = await door.post(body, headers)
        after = door.bot.health
    assert (first.status_code, second.status_code) == (503, 200)
    assert (during.state, after.state) == (ConnectionState.DEGRADED, ConnectionState.CONNECTED)
    assert [m.text for m in gateway.accepted] == ["hello"]


async def test_what_could_not_be_stored_keeps_its_place(door: Door, gateway: FakeGateway) -> None:
    """Slack repeats it only a minute later; what is said meanwhile waits for it."""
    async with running(door.bot, gateway):
        assert (await door.post(door.event("one", "1700000001.000100"))).status_code == 200
        gateway.store_available = False
        assert (await door.post(door.event("two", "1700000002.000100"))).status_code == 503
        gateway.store_available = True
        assert (await door.post(door.event("three", "1700000003.000100"))).status_code == 200
        again = await door.post(door.event("two", "1700000002.000100"))
    assert again.status_code == 200
    assert [m.text for m in gateway.accepted] == ["one", "two", "three"]


async def test_what_comes_after_newer_messages_is_taken(door: Door, gateway: FakeGateway) -> None:
    """A request that never reached the runtime, and that Slack repeats; said once however often it comes."""
    async with running(door.bot, gateway):
        for text, ts in (("one", "1700000001.000100"), ("three", "1700000003.000100"), ("two", "1700000002.000100")):
            assert (await door.post(door.event(text, ts))).status_code == 200
        again = door.event("two", "1700000002.000100")
        assert (await door.post(again, door.slack.signed(again, at=time.time() - 100))).status_code == 200
    assert [m.text for m in gateway.accepted] == ["one", "three", "two"]


async def test_before_it_runs_and_after_nothing_is_taken(door: Door, gateway: FakeGateway) -> None:
    """Slack keeps what comes then."""
    before = await door.post(door.event("early"))
    async with running(door.bot, gateway):
        during = await door.post(door.event("in time", "1700000002.000100"))
    after = await door.post(door.event("late", "1700000003.000100"))
    assert [answer.status_code for answer in (before, during, after)] == [503, 200, 503]
    assert [m.text for m in gateway.accepted] == ["in time"]


async def test_a_fault_of_ours_is_tried_a_few_times_and_quotes_nothing(door: Door) -> None:
    """Then it is acknowledged: Slack's attempts would end the same."""

    class FaultyGateway(FakeGateway):
        async def accept(self, message: InboundMessage) -> Accepted:
            raise RuntimeError(f"a fault of ours with {message.text}")

    with capture_logs() as logs:
        async with running(door.bot, FaultyGateway()):
            answer = await door.post(door.event("poison"))
    assert answer.status_code == 200
    assert [e["why"] for e in logs if e["event"] == "message.failed"] == ["RuntimeError"] * 3
    assert "poison" not in str([logs, answer.text])


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 200),
        (b"no json", 400),
        (b"[]", 400),
        (b'{"a":' + b"[" * 200_000, 400),
        (b'{"type":"app_rate_limited"}', 200),
        (b'{"type":"event_callback"}', 200),
        (b'{"type":"event_callback","event":[]}', 400),
        (b'{"type":"event_callback","event_id":"E","event":{"type":"team_join"}}', 200),
        (b"x" * 1_000_001, 413),
    ],
)
async def test_signed_nonsense_is_answered(door: Door, gateway: FakeGateway, body: bytes, status: int) -> None:
    """Without being passed on; what Slack may send is acknowledged."""
    async with running(door.bot, gateway):
        answer = await door.post(body)
    assert answer.status_code == status
    assert gateway.accepted == []


async def test_slack_is_not_kept_waiting(door: Door) -> None:
    """A store that hangs is no acknowledgement, and soon enough for Slack's three seconds."""

    class HangingGateway(FakeGateway):
        async def accept(self, message: InboundMessage) -> Accepted:
            await asyncio.Event().wait()
            raise AssertionError("nothing sets it")

    async with running(door.bot, HangingGateway()):
        answer = await door.post(door.event())
    assert answer.status_code == 503


async def test_health_says_when_slack_cannot_be_reached(gateway: FakeGateway) -> None:
    """Without a socket the Web API is what tells."""
    async with SlackEmulator() as slack:
        bot = slack_connector_over_http(slack, check_seconds=0.02)
        async with running(bot, gateway):
            slack.down = True
            await eventually(lambda: bot.health.state is ConnectionState.DEGRADED)
            slack.down = False
            await eventually(lambda: bot.health.state is ConnectionState.CONNECTED)
    assert bot.health.state is ConnectionState.STOPPED
