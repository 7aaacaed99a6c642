"""The worker: conversations side by side, each in order, whatever one of them runs into."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from redis.asyncio import Redis

from config.settings import Settings
from connectors.message import Author, ConversationKey, InboundMessage, Role, StoreUnavailable
from runtime import worker as module
from runtime.mailbox import Batch, Envelope, Mailbox
from runtime.worker import Worker
from tests.emulators.bot import running_bot
from tests.emulators.openai import FakeOpenAI

Answer = Callable[[Batch], Awaitable[None]]


class Scripted:
    """Stands for the turns: what is done with a batch is a function."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer

    async def apologise(self, batch: Batch) -> None:
        return None


@asynccontextmanager
async def working(settings: Settings, mailbox: Mailbox, answer: Answer) -> AsyncIterator[Worker]:
    worker = Worker(settings, mailbox, Scripted(answer))
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        running.cancel()
        await asyncio.wait([running])


def envelope(key: ConversationKey, number: int) -> Envelope:
    message = InboundMessage(
        connector=key.connector,
        external_id=key.external_id,
        message_id=f"m{number}",
        author=Author("u1", "Lena"),
        text=str(number),
        direct=True,
        addressed=True,
    )
    return Envelope(message, Role.MEMBER, time.time())


async def test_a_platform_that_takes_no_replies_holds_up_no_other(
    redis: Redis, settings: Callable[..., Settings]
) -> None:
    mailbox = Mailbox(redis)
    answered = asyncio.Event()

    async def answer(batch: Batch) -> None:
        if batch.key.connector == "telegram":
            await asyncio.Event().wait()
        answered.set()

    async with working(settings(shutdown_grace_seconds=0.1), mailbox, answer) as worker:
        for number in range(module.MAX_CONCURRENT_TURNS + 6):
            key = ConversationKey("acme", "telegram", str(number))
            await mailbox.store(key, envelope(key, 1))
            worker.wake(key)
        await asyncio.sleep(0.3)
        key = ConversationKey("acme", "http", "desk")
        await mailbox.store(key, envelope(key, 1))
        worker.wake(key)

        async with asyncio.timeout(5):
            await answered.wait()


async def test_a_message_that_comes_as_its_conversation_goes_idle_does_not_wait_for_the_sweep(
    redis: Redis, settings: Callable[..., Settings]
) -> None:
    mailbox = Mailbox(redis)
    key = ConversationKey("acme", "http", "desk")
    answered: list[str] = []
    told = asyncio.Event()

    async def answer(batch: Batch) -> None:
        answered.extend(one.message.message_id for one in batch.envelopes)
        told.set()

    slowest = 0.0
    async with working(settings(), mailbox, answer) as worker:
        await asyncio.sleep(0.1)
        for number in range(300):
            told.clear()
            started = time.perf_counter()
            await mailbox.store(key, envelope(key, number))
            worker.wake(key)
            while f"m{number}" not in answered:
                await told.wait()
                told.clear()
            slowest = max(slowest, time.perf_counter() - started)
            await asyncio.sleep(0.0002 * (number % 8))  # somewhere between the answer and the end of the work

    assert answered == [f"m{number}" for number in range(300)]
    assert slowest < module.SWEEP_SECONDS / 2


async def test_a_turn_that_was_interrupted_after_its_reply_can_be_explained_and_is_counted(
    model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    async with running_bot(model_settings(access_policy="open"), openai_server) as bot:
        append = bot.runtime.transcript.append
        lost = 1

        async def interrupted(*args: object) -> bool:
            nonlocal lost
            if lost:
                lost -= 1
                raise StoreUnavailable("Redis: gone")
            return await append(*args)  # type: ignore[arg-type]

        bot.runtime.transcript.append = interrupted  # type: ignore[method-assign,assignment]
        said = await bot.say("What does the pricing policy say?")
        await bot.settle()
        scope = ConversationKey("acme", "http", "default").scope

        kept = await bot.runtime.manifests.get(scope, said["turn_id"])
        assert kept.outcome["kind"] == "reply"
        assert [used.replies for used in await bot.runtime.usage.totals(scope)] == [1]
        assert len(bot.replies_asked) == 1


async def test_a_reply_that_its_connector_chokes_on_is_not_made_again_and_again(
    model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    async with running_bot(model_settings(access_policy="open"), openai_server) as bot:

        def choke(message: object) -> None:
            raise ValueError("a fault of the adapter")

        bot.runtime.http.render = choke  # type: ignore[method-assign,assignment]
        asking = asyncio.create_task(bot.post("What does the pricing policy say?"))
        async with asyncio.timeout(20):
            while not bot.told("turn.failed"):
                await asyncio.sleep(0.01)
        await bot.settle()
        asking.cancel()

        assert len(bot.replies_asked) == 1
        assert not await bot.runtime.mailbox.ready()
