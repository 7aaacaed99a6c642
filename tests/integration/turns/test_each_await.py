"""A turn in which a tool writes something down is disturbed at each place where it waits: the worker is stopped, or
stands still for too long; people stop the answer, or delete the question.

Each time the message is answered once, the tool is begun at most once, what was asked of the model is counted once,
what was said before stands, and nothing stays held. A turn without tools waits at no place that this one has not.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextvars import Context
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import pytest
import pytest_asyncio

from connectors.message import ConversationKey, Scope
from grounding.transcript import EntryRole
from runtime.billing import Budgets, BudgetTerm
from runtime.coordination import Hub
from runtime.delivery import Outbox
from runtime.process import ALL_PARTS
from runtime.turns import Mailbox, Worker
from runtime.turns.batch import WorkItem
from runtime.turns.cancel import TurnSignals
from runtime.turns.worker import MAX_CONCURRENT_TURNS
from tests.emulators.awaits import at_each_wait
from tests.emulators.bot import QUICK, Bot, bot_on
from tests.emulators.paper import Paper, say, until_over, written
from tests.emulators.toolbox import Desk, desk_beside, writes_down

pytestmark = [pytest.mark.timeout(360), pytest.mark.asyncio(loop_scope="module")]

ACME = Scope("acme")
A_DAY = BudgetTerm("workspace", "tokens", "day")
NOON = datetime(2026, 1, 15, 12, tzinfo=UTC)
MOST = 1000
"""More waits than one message could cause."""
NOTHING, BEGUN, WHOLE = "_Stopped._", "A moment.\n\n_Stopped._", "A moment.\n\nIt is written down."
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


@dataclass
class Scene:
    """A bot with a budget and tools, on a platform that can tell nothing."""

    bot: Bot
    paper: Paper
    desk: Desk
    halt: Halt

    async def try_at_each_wait(self, name: str) -> list[list[str]]:
        """Have messages answered, each disturbed one wait later than the one before, the first without trouble. What
        the conversations have of the answers."""
        said: list[list[str]] = []
        while len(said) <= MOST and self.halt.waits >= len(said) - 1:
            said.append(await self._disturb(f"{name}{len(said)}x", len(said)))
        self.halt.place = ""
        assert len(said) > 35
        assert said[0] == said[-1] == [WHOLE]
        return said

    async def _disturb(self, place: str, number: int) -> list[str]:
        self.halt.place, self.halt.at, self.halt.waits = place, number, 0
        which = f"wait {number}"
        unsent = await self._counted() - len(self.bot.model.requests)
        asked = len(self._asked_with_tools())
        await say(self.bot, written(place))
        await until_over(self.bot)
        await self._check_that_nothing_is_held(which)
        entries = await self.bot.runtime.transcript.newest(ConversationKey("acme", "paper", place), 10)
        assert [one.role for one in entries] in ([EntryRole.INBOUND], [EntryRole.INBOUND, EntryRole.OUTBOUND]), which
        said = [one.text for one in entries[1:]]
        assert self.paper.texts(place) == [text for text in said if text != NOTHING], which
        # A call that LiteLLM was still preparing counts as sent: an upper bound is charged.
        assert unsent <= await self._counted() - len(self.bot.model.requests) <= unsent + 1, which
        assert len([call for call in self.desk.calls if call.key.external_id == place]) <= 1, which
        assert len(self._asked_with_tools()) - asked <= 3, which
        return said

    def _asked_with_tools(self) -> list[dict[str, Any]]:
        return [body for body in self.bot.replies_asked if "tools" in body]

    async def _counted(self) -> int:
        """Calls of the model, as usage has them; the budget has the tokens of all of them."""
        totals = await self.bot.runtime.usage.totals(ACME)
        state = await self.bot.runtime.budgets.state(ACME)
        assert state.spent[A_DAY] == sum(one.prompt + one.completion for one in totals)
        return sum(one.calls for one in totals)

    async def _check_that_nothing_is_held(self, which: str) -> None:
        """Wait until the turn's tasks have ended; then no store holds anything for it."""
        runtime = self.bot.runtime
        async with asyncio.timeout(10):
            while runtime.worker._held.tasks:
                await asyncio.sleep(0.001)
        client = runtime.store.client
        left = [key async for key in client.scan_iter("ar:journal:*")]
        left += [key async for key in client.scan_iter("ar:mailbox:*:current:*")]
        assert left == [], which
        assert runtime.stops._writing == {}, which
        assert runtime.worker._slots["paper"]._value == MAX_CONCURRENT_TURNS, which


@pytest.fixture(scope="module")
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Budgets, "_now", lambda _: NOON)  # no day ends while it runs
        yield patch


@pytest.fixture(scope="module")
def halt(patch: pytest.MonkeyPatch) -> Halt:
    made = Halt()
    patch.setattr(Worker, "_serve", lambda one, offer: made.serve(one, offer))
    return made


async def scene_with(desk: Desk, halt: Halt, lease_seconds: int) -> AsyncIterator[Scene]:
    paper = Paper()
    async with bot_on(
        paper,
        parts=ALL_PARTS - {"jobs"},  # nothing but answers is asked for
        timings=QUICK,
        llm_tools="always",
        turn_lease_seconds=lease_seconds,
        turn_max_attempts=10,
        budget_workspace_tokens_per_day=100_000_000,
    ) as bot:
        bot.model.answer = writes_down
        yield Scene(bot, paper, desk, halt)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(patch: pytest.MonkeyPatch, halt: Halt) -> AsyncIterator[Scene]:
    """The lease of a turn ends in none of the tests."""
    async for one in scene_with(desk_beside(patch), halt, 60):
        yield one


@pytest_asyncio.fixture(loop_scope="module")
async def short_scene(patch: pytest.MonkeyPatch, halt: Halt) -> AsyncIterator[Scene]:
    """The lease of a turn ends soon after its worker."""
    async for one in scene_with(desk_beside(patch), halt, 2):
        yield one


async def test_a_worker_may_be_stopped_wherever_it_waits(short_scene: Scene) -> None:
    """As when the grace period is over, or the lease was lost."""

    def stop(serving: asyncio.Task[None]) -> None:
        asyncio.get_running_loop().call_soon(serving.cancel)

    short_scene.halt.befalls = stop
    said = await short_scene.try_at_each_wait("stopped")

    assert all(one == [WHOLE] for one in said)
    assert len(short_scene.desk.noted) > 30


@pytest.mark.parametrize("is_stopped", [False, True])
async def test_a_worker_may_stand_still_wherever_it_waits_while_another_takes_over(
    scene: Scene, is_stopped: bool
) -> None:
    """When it goes on, all has been said, and it can say nothing more; also where it hears of a stop before it learns
    that it has lost its hold."""
    runtime = scene.bot.runtime
    hub = Hub(runtime.store.client, shared=False)
    mailbox = Mailbox(runtime.store.client, worker="other")
    other = Worker(runtime.settings, mailbox, runtime.turns, hub, runtime.dead_letters)

    async def take_over() -> None:
        for offer in await mailbox.abandoned(0.0, 100):
            await other._serve(offer)

    async def take_over_and_stop(heard: list[TurnSignals]) -> None:
        # In a context of its own: neither counted as the first worker's nor ended with it.
        await asyncio.shield(asyncio.create_task(take_over(), context=Context()))
        for wishes in heard:
            wishes.stop = is_stopped
            wishes.changed.set()

    scene.halt.befalls = lambda _serving: take_over_and_stop(list(runtime.stops._writing.values()))
    noted = len(scene.desk.noted)
    said = await scene.try_at_each_wait(f"still-{is_stopped}")

    assert all(one == [WHOLE] for one in said)
    assert len(scene.desk.noted) - noted > 30


@pytest.mark.parametrize("wish", ["stop", "drop"])
async def test_an_answer_may_be_stopped_wherever_it_waits(scene: Scene, wish: Literal["stop", "drop"]) -> None:
    """By people, or because the message that it answers was deleted."""
    stops = scene.bot.runtime.stops

    def wished(_serving: asyncio.Task[Any]) -> None:
        for turn_id in list(stops._writing):
            stops._receive({"turn": turn_id}, "stop" if wish == "stop" else "dropped")

    scene.halt.befalls = wished
    said = await scene.try_at_each_wait(wish)

    expected: list[list[str]] = [[NOTHING], [BEGUN], [WHOLE]] if wish == "stop" else [[], [WHOLE]]
    assert next(one for one in said[1:] if one != [WHOLE]) == expected[0]  # before that the turn is being taken
    assert [one for one in expected if one in said] == expected
    assert all(one in expected for one in said)


async def test_a_turn_that_is_given_up_after_its_reply_was_stored_delivers_that_reply(
    monkeypatch: pytest.MonkeyPatch,
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
    async with bot_on(paper, turn_max_attempts=1) as bot, asyncio.timeout(20):
        await say(bot, written("desk"))
        await until_over(bot)
        entries = await bot.runtime.transcript.newest(ConversationKey("acme", "paper", "desk"), 10)

    assert broken
    assert paper.texts("desk") == [entries[-1].text]
    assert len(bot.replies_asked) == 1
