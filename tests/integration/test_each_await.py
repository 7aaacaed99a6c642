"""A worker is stopped, or stands still for too long, at each place where it waits while it answers a message: the
message is answered once and recorded once all the same, and nothing stays held."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any

import pytest

from config.settings import Settings
from connectors.message import ConversationKey
from grounding.transcript import EntryRole
from runtime import stores
from runtime.coordination import Hub
from runtime.delivery import Outbox, deliverer
from runtime.turns import worker
from runtime.turns.batch import WorkItem
from runtime.turns.mailbox import Mailbox
from runtime.turns.worker import Worker
from tests.emulators.awaits import at_each_wait
from tests.emulators.bot import Bot, running_bot
from tests.emulators.openai import FakeOpenAI
from tests.emulators.paper import Paper, say, until_over, written

pytestmark = pytest.mark.timeout(360)
MOST = 1000
"""More waits than one message could cause."""
SERVE = Worker._serve


class Halt:
    """What befalls the first worker that is given a message of *place*, as it waits for the *at*-th time."""

    def __init__(self) -> None:
        self.place, self.at, self.waits = "", 0, 0
        self.befalls: Callable[[asyncio.Task[Any]], Coroutine[Any, Any, None] | None] = lambda _serving: None

    async def serve(self, one: Worker, offer: WorkItem) -> None:
        if offer.key.external_id != self.place or self.waits:
            await SERVE(one, offer)
            return

        serving = asyncio.current_task()
        assert serving is not None

        place = self.place

        def at(number: int) -> Coroutine[Any, Any, None] | None:
            if serving.done() or place != self.place:  # what outlives the turn waits for other things
                return None
            self.waits = number
            return self.befalls(serving) if number == self.at else None

        await at_each_wait(SERVE(one, offer), at)


@pytest.fixture
def halt(monkeypatch: pytest.MonkeyPatch) -> Halt:
    made = Halt()
    monkeypatch.setattr(Worker, "_serve", lambda one, offer: made.serve(one, offer))
    for module in (worker, deliverer):
        monkeypatch.setattr(module, "SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(worker, "_RETRY_SECONDS", (0.01, 0.02))
    monkeypatch.setattr(stores, "RETRY_SECONDS", (0.01, 0.02))
    return made


async def tried_at_each_wait(bot: Bot, paper: Paper, halt: Halt) -> int:
    """Have messages answered, each disturbed one wait later than the one before; how many waits there are."""
    for number in range(MOST):  # the first without trouble
        place = f"place{number}x"
        halt.place, halt.at, halt.waits = place, number, 0
        asked = len(bot.replies_asked)
        await say(bot, written(place))
        await until_over(bot)
        await nothing_is_held(bot, number)
        entries = await bot.runtime.transcript.newest(ConversationKey("acme", "paper", place), 10)

        assert len(paper.texts(place)) == 1, f"wait {number}"
        assert [entry.role for entry in entries] == [EntryRole.INBOUND, EntryRole.OUTBOUND], f"wait {number}"
        assert paper.texts(place) == [entries[-1].text], f"wait {number}"
        assert 1 <= len(bot.replies_asked) - asked <= 2, f"wait {number}"
        if number > halt.waits:
            return number
    raise AssertionError("the waits of one message never end")


async def nothing_is_held(bot: Bot, number: int) -> None:
    """Wait until the turn's tasks have ended; then no store holds anything for it."""
    async with asyncio.timeout(10):
        while bot.runtime.worker._held.tasks:
            await asyncio.sleep(0.001)
    client = bot.runtime.store.client
    left = [key async for key in client.scan_iter("ar:journal:*")]
    left += [key async for key in client.scan_iter("ar:mailbox:*:current:*")]
    assert left == [], f"wait {number}"
    assert bot.runtime.stops._writing == {}, f"wait {number}"
    assert bot.runtime.worker._slots["paper"]._value == worker.MAX_CONCURRENT_TURNS, f"wait {number}"


def bounded(model_settings: Callable[..., Settings], lease_seconds: int) -> Settings:
    """Settings with a budget, so that calls are reserved."""
    return model_settings(
        access_policy="open",
        default_workspace="acme",
        turn_lease_seconds=lease_seconds,
        budget_workspace_tokens_per_day=100_000_000,
        turn_max_attempts=10,
    )


def another_worker(bot: Bot) -> Callable[[], Coroutine[Any, Any, None]]:
    """What has another worker of *bot* take over all that the first one has in hand."""
    runtime = bot.runtime
    hub = Hub(runtime.store.client, shared=False)
    mailbox = Mailbox(runtime.store.client, worker="other")
    other = Worker(runtime.settings, mailbox, runtime.turns, hub, runtime.dead_letters)

    async def take_over() -> None:
        for offer in await mailbox.abandoned(0.0, 100):
            await other._serve(offer)

    async def apart() -> None:  # neither counted as the first worker's nor ended with it
        await asyncio.shield(asyncio.create_task(take_over(), context=Context()))

    return apart


async def test_a_worker_may_be_stopped_wherever_it_waits(
    halt: Halt, model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    """As when the grace period is over, or the lease was lost."""

    def stop(serving: asyncio.Task[None]) -> None:
        asyncio.get_running_loop().call_soon(serving.cancel)

    halt.befalls = stop
    paper = Paper()
    async with running_bot(bounded(model_settings, 2), openai_server, [paper]) as bot, asyncio.timeout(300):
        assert await tried_at_each_wait(bot, paper, halt) > 20


async def test_a_worker_may_stand_still_wherever_it_waits_while_another_takes_over(
    halt: Halt, model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    """When it goes on, all has been said, and it can say nothing more."""
    paper = Paper()
    async with running_bot(bounded(model_settings, 60), openai_server, [paper]) as bot, asyncio.timeout(300):
        take_over = another_worker(bot)
        halt.befalls = lambda _serving: take_over()
        assert await tried_at_each_wait(bot, paper, halt) > 20


async def test_a_turn_that_is_given_up_after_its_reply_was_stored_delivers_that_reply(
    monkeypatch: pytest.MonkeyPatch, model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    """And at once: no later sweep is waited for."""
    announce, broken = Outbox._announce, False

    async def break_once(self: Outbox, *told: Any, **more: Any) -> None:
        nonlocal broken
        if not broken:
            broken = True
            raise RuntimeError("it broke before anybody was told")
        await announce(self, *told, **more)

    monkeypatch.setattr(Outbox, "_announce", break_once)
    paper = Paper()
    settings = model_settings(access_policy="open", default_workspace="acme", turn_max_attempts=1)
    async with running_bot(settings, openai_server, [paper]) as bot, asyncio.timeout(20):
        await say(bot, written("desk"))
        await until_over(bot)
        entries = await bot.runtime.transcript.newest(ConversationKey("acme", "paper", "desk"), 10)

    assert broken
    assert paper.texts("desk") == [entries[-1].text]
    assert len(bot.replies_asked) == 1
