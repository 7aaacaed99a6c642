"""Many replies in one chat of the emulated Telegram: what waits, and for how long, by a clock of the test's own."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from connectors.connector import Connector
from connectors.message import ConversationKey, OutboundMessage
from connectors.telegram.connector import TelegramConnector
from runtime.coordination import Hub
from runtime.delivery import Delivery, Outbox, RateLimiters
from runtime.delivery.rate_limiter import RateLimiter
from tests.contract.telegram_harness import telegram_connector
from tests.emulators.clock import Clock
from tests.emulators.telegram import Person, Room, TelegramEmulator, rate_limited

LENA = Person(501, "Lena")
TEAM = Room(-100501, "Team")
TURNS = 100


class Chat:
    """One chat, in which replies are delivered one after the other."""

    def __init__(
        self, redis: Redis, telegram: TelegramEmulator, connector: TelegramConnector, place: Person | Room
    ) -> None:
        connectors: dict[str, Connector] = {"telegram": connector}
        self.clock = Clock()
        limiters = RateLimiters(lambda connector: RateLimiter(connector, self.clock.time, self.clock.sleep))
        self.telegram = telegram
        self.outbox = Outbox(redis, Hub(redis, shared=False))
        self._delivery = Delivery(self.outbox, connectors, limiters, "resend")
        self._key = ConversationKey("acme", "telegram", str(place.id))
        self._place = place
        telegram.join(place)

    async def answer(self, *numbers: int) -> None:
        for number in numbers:
            message = OutboundMessage(self._key, f"t{number}", f"reply {number}")
            await self.outbox.put(message, ["telegram"])
            await self._delivery.deliver(self._key, message.turn_id)

    @property
    def shown(self) -> list[str]:
        return [message.text for message in self.telegram.shown(self._place)]


@pytest_asyncio.fixture
async def telegram() -> AsyncIterator[TelegramEmulator]:
    async with TelegramEmulator() as emulator:
        yield emulator


@pytest_asyncio.fixture
async def connector(telegram: TelegramEmulator) -> AsyncIterator[TelegramConnector]:
    connector = telegram_connector(telegram)
    yield connector
    await connector.close()


def replies(count: int) -> list[str]:
    return [f"reply {number}" for number in range(count)]


async def test_a_hundred_turns_in_a_private_chat_take_one_call_each_and_wait_for_nothing(
    redis: Redis, telegram: TelegramEmulator, connector: TelegramConnector
) -> None:
    chat = Chat(redis, telegram, connector, LENA)
    await chat.answer(*range(TURNS))

    assert chat.clock.slept == []
    assert chat.shown == replies(TURNS)
    assert telegram.calls == ["sendmessage"] * TURNS


async def test_after_a_429_a_chat_waits_as_long_as_telegram_says_and_then_keeps_the_documented_rate(
    redis: Redis, telegram: TelegramEmulator, connector: TelegramConnector
) -> None:
    chat = Chat(redis, telegram, connector, LENA)
    await chat.answer(*range(TURNS - 10))
    telegram.fail_next("sendMessage", rate_limited(17))
    await chat.answer(TURNS - 10)
    assert chat.clock.slept == pytest.approx([17.0])

    chat.clock.slept.clear()
    await chat.answer(*range(TURNS - 9, TURNS))
    assert chat.clock.slept == pytest.approx([1.0] * 9)
    assert chat.shown == replies(TURNS)


async def test_a_group_gets_twenty_messages_at_once_and_is_never_told_too_many(
    redis: Redis, telegram: TelegramEmulator, connector: TelegramConnector
) -> None:
    chat = Chat(redis, telegram, connector, TEAM)
    await chat.answer(*range(20))

    assert chat.clock.slept == []
    assert telegram.too_many == []
    assert chat.shown == replies(20)
