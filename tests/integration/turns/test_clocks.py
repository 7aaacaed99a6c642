"""The clocks of processes differ, or jump: nothing waits for the wrong hour, is said twice or out of order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from redis.asyncio import Redis

from config.settings import Settings
from connectors.connector import Capabilities
from connectors.message import ConversationKey, OutboundMessage, OutboundPart, Receipt
from grounding.transcript import EntryRole
from runtime.coordination import Hub
from runtime.delivery import Delivery, Outbox, RateLimiters
from tests.emulators.bot import running_bot
from tests.emulators.openai import FakeOpenAI
from tests.emulators.paper import Paper, say, until_over, written

HOUR = 3600.0
PLACE = "desk"


class Clock:
    """The clock of the machine, and how far it is off (seconds)."""

    def __init__(self) -> None:
        self.off = 0.0
        self._right = time.time

    def __call__(self) -> float:
        return self._right() + self.off


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "time", made)
    return made


async def test_messages_are_answered_once_and_in_order_while_the_clock_jumps(
    clock: Clock, model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    """Whichever clock a message was accepted by, and whichever it is answered by; nor is a rest waited for longer."""
    paper = Paper()
    settings = model_settings(
        access_policy="open",
        default_workspace="acme",
        turn_collect_milliseconds=50,
        turn_lease_seconds=5,
        budget_workspace_tokens_per_day=100_000_000,
        rate_limit_messages=100,
    )
    async with running_bot(settings, openai_server, [paper]) as bot, asyncio.timeout(30):
        jumps = [(0.0, HOUR), (HOUR, 0.0), (0.0, -HOUR), (-HOUR, HOUR), (HOUR, -HOUR)]
        for number, (accepted, answered) in enumerate(jumps):
            clock.off = accepted
            await say(bot, replace(written(PLACE, f"m{number}", f"question {number}"), looks_unfinished=True))
            clock.off = answered
            await say(bot, written(PLACE, f"m{number}", f"question {number}"))  # the platform brings it again
            await until_over(bot)
        entries = await bot.runtime.transcript.newest(ConversationKey("acme", "paper", PLACE), 100)

    assert paper.texts(PLACE) == [one.text for one in entries if one.role is EntryRole.OUTBOUND]
    assert [one.text for one in entries if one.role is EntryRole.INBOUND] == [
        f"question {number}" for number in range(len(jumps))
    ]


class Nonces(Paper):
    """A platform that knows a part again by its nonce, for a while that is over."""

    capabilities = Capabilities(max_part_units=10_000, idempotency="nonce")
    dies = False

    async def send(self, message: OutboundMessage, part: OutboundPart) -> Receipt:
        receipt = await super().send(message, part)
        if self.dies:
            raise asyncio.CancelledError
        return receipt


async def test_a_part_that_seems_to_have_been_sent_in_the_future_counts_as_one_of_which_nobody_knows(
    clock: Clock, redis: Redis
) -> None:
    """Who sent it had another clock: it may be long ago, and the nonce forgotten."""
    paper, outbox = Nonces(), Outbox(redis, Hub(redis, shared=False), clock=clock)
    delivery = Delivery(outbox, {"paper": paper}, RateLimiters(), "skip")
    reply = OutboundMessage(ConversationKey("acme", "paper", PLACE), "t1", "the answer")
    await outbox.put(reply, ["paper"])
    clock.off, paper.dies = HOUR, True
    with pytest.raises(asyncio.CancelledError):
        await delivery.deliver(reply.key, "t1")
    clock.off, paper.dies = 0.0, False
    await delivery.deliver(reply.key, "t1")

    assert paper.texts(PLACE) == ["the answer"]
