"""What arrives while an answer is made: collected, made part of it, or answered by itself."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from connectors.message import ConversationKey, Superseded
from runtime.coordination import Job
from runtime.llm import Completion
from runtime.workspaces import PlaceSettings, QueueMode
from tests.emulators.bot import Bot, bot_on

pytestmark = pytest.mark.asyncio(loop_scope="module")


@dataclass
class Desk:
    """A place of the shared bot in which nothing was said yet."""

    bot: Bot
    context: str

    @property
    def key(self) -> ConversationKey:
        return ConversationKey("acme", "http", self.context)

    async def queue(self, mode: QueueMode) -> None:
        await self.bot.runtime.places.put(self.key.scope, self.key.context_id, PlaceSettings(queue=mode))

    def post(self, text: str, **more: Any) -> "asyncio.Task[Any]":
        return asyncio.create_task(self.bot.post(text, context=self.context, **more))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_bot() -> AsyncIterator[Bot]:
    async with bot_on(turn_lease_seconds=5) as bot:
        yield bot


_numbers = itertools.count(1)


@pytest_asyncio.fixture(loop_scope="module")
async def desk(shared_bot: Bot) -> AsyncIterator[Desk]:
    yield Desk(shared_bot.from_now(), f"desk{next(_numbers)}")
    shared_bot.model.forget_orders()
    await shared_bot.settle()


async def asked(bot: Bot, requests: int) -> None:
    """Wait until the model was asked so often."""
    async with asyncio.timeout(60):
        while len(bot.replies_asked) < requests:
            await asyncio.sleep(0.005)


async def test_collected_messages_get_one_answer_all(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    bot = desk.bot
    gate = asyncio.Event()
    hold_first(bot, gate, monkeypatch)
    first = desk.post("what are boats?")
    await asked(bot, 1)
    later = [desk.post(text) for text in ("and ships?", "and rafts?")]
    await waiting(bot, 3)
    gate.set()

    answer, *answers = [(await one).json() for one in (first, *later)]
    assert answers[0]["turn_id"] == answers[1]["turn_id"] != answer["turn_id"]
    assert len(bot.replies_asked) == 2


async def test_followups_get_an_answer_each_in_order(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    bot = desk.bot
    await desk.queue("followup")
    gate = asyncio.Event()
    hold_first(bot, gate, monkeypatch)
    first = desk.post("what are boats?")
    await asked(bot, 1)
    later = []
    for count, text in enumerate(("and ships?", "and rafts?"), 2):
        later.append(desk.post(text))
        await waiting(bot, count)
    gate.set()

    turns = [(await one).json()["turn_id"] for one in (first, *later)]
    assert len(set(turns)) == 3
    assert turns == sorted(turns)
    assert [prompt["messages"][-1]["content"].endswith("and rafts?") for prompt in bot.replies_asked] == [
        False,
        False,
        True,
    ]


async def test_the_newest_gets_the_answer_and_those_it_interrupts_a_conflict(desk: Desk) -> None:
    bot = desk.bot
    await desk.queue("interrupt")
    bot.model.will("hang")
    first = desk.post("what are boats?", headers={"Idempotency-Key": "first"})
    await asked(bot, 1)
    bot.model.will("hang")
    second = desk.post("I mean ships")
    await asked(bot, 2)
    bot.model.will("Large ones.")
    third = desk.post("large ships")

    assert [(await one).status_code for one in (first, second)] == [409, 409]
    assert (await first).json()["error"]["code"] == "superseded"
    answer = await third
    assert (answer.status_code, answer.json()["text"]) == (200, "Large ones.")
    assert all(word in bot.sent["user"] for word in ("what are boats?", "I mean ships", "large ships"))
    await bot.settle()

    repeated = await bot.post("what are boats?", context=desk.context, headers={"Idempotency-Key": "first"})
    assert (repeated.status_code, repeated.json()["error"]["code"]) == (409, "superseded")
    entries = await bot.runtime.transcript.newest(desk.key, 9)
    assert [one.text for one in entries] == ["what are boats?", "I mean ships", "large ships", "Large ones."]
    assert {one.turn_id for one in entries} == {answer.json()["turn_id"]}
    assert len(bot.told("turn.interrupted")) == 2
    assert len(bot.told("turn.answered")) == 1


async def test_who_is_interrupted_hears_of_it_while_the_answer_is_still_made(desk: Desk) -> None:
    """Not only when the newer message has its answer, which may take as long as it likes."""
    bot = desk.bot
    await desk.queue("interrupt")
    bot.model.will("hang")
    first = desk.post("what are boats?")
    await asked(bot, 1)
    bot.model.will("hang")
    stream = desk.post("any boats?", headers={"Accept": "text/event-stream"})
    await asked(bot, 2)
    bot.model.will("hang")
    last = desk.post("I mean ships")
    async with asyncio.timeout(60):
        assert (await first).json()["error"]["code"] == "superseded"
        assert 'event: error\ndata: {"error": {"code": "superseded"' in (await stream).text
    assert not last.done()
    await bot.runtime.stops.stop(desk.key)
    assert (await last).json()["text"] == "_Stopped._"


@pytest.mark.parametrize("moment", range(6))
async def test_whenever_the_second_message_comes_both_are_answered_once(
    desk: Desk, moment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From before the model is asked until after the reply is stored."""
    bot = desk.bot
    await desk.queue("interrupt")
    steps = Steps(bot, monkeypatch)
    first = desk.post("what are boats?")
    await steps.until(moment)
    second = desk.post("and ships?")
    await waiting(bot, 2)
    steps.go_on()

    answers = [await first, await second]
    assert answers[1].status_code == 200
    await bot.settle()
    entries = await bot.runtime.transcript.newest(desk.key, 9)
    said = [one.text for one in entries if one.role == "inbound"]
    assert said == ["what are boats?", "and ships?"]
    merged = len({one.turn_id for one in entries}) == 1
    assert answers[0].status_code == (409 if merged else 200)
    assert merged is (moment < Steps.COMPLETED)
    assert len([one for one in entries if one.role == "outbound"]) == (1 if merged else 2)


async def test_what_is_said_once_the_reply_is_stored_is_the_next_turns_though_the_first_is_taken_up_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker loses the turn before its jobs are enqueued: whoever has it next finds the reply, which must not pass
    for the answer to what was said since."""
    bot = desk.bot
    await desk.queue("interrupt")
    turns: Any = bot.runtime.turns
    enqueue = turns._jobs.enqueue
    second: list[asyncio.Task[Any]] = []

    async def lost_before(*jobs: Job) -> None:
        if not second:
            second.append(desk.post("and ships?"))
            await waiting(bot, 2)
            raise Superseded("another worker holds the conversation now")
        await enqueue(*jobs)

    monkeypatch.setattr(turns._jobs, "enqueue", lost_before)
    first = await desk.post("what are boats?")
    await waiting(bot, 2)

    assert (first.status_code, (await second[0]).status_code) == (200, 200)
    await bot.settle()
    entries = await bot.runtime.transcript.newest(desk.key, 9)
    assert [one.text for one in entries if one.role == "inbound"] == ["what are boats?", "and ships?"]
    assert len({one.turn_id for one in entries}) == 2


def hold_first(bot: Bot, gate: asyncio.Event, patch: pytest.MonkeyPatch) -> None:
    """Have the model's first answer wait for *gate*."""
    complete = bot.runtime.model.complete

    async def held_back(*args: Any, **named: Any) -> Completion:
        patch.setattr(bot.runtime.model, "complete", complete)
        answer = await complete(*args, **named)
        await gate.wait()
        return answer

    patch.setattr(bot.runtime.model, "complete", held_back)


async def waiting(bot: Bot, messages: int) -> None:
    """Wait until so many messages were accepted."""
    async with asyncio.timeout(60):
        while len(bot.told("message.accepted")) < messages:
            await asyncio.sleep(0.005)


class Steps:
    """Holds the first turn at one of its steps."""

    COMPLETED = 4
    """From here on there is an answer."""

    def __init__(self, bot: Bot, patch: pytest.MonkeyPatch) -> None:
        self._held = -1
        self._gate = asyncio.Event()
        self._arrived = asyncio.Event()
        turns: Any = bot.runtime.turns
        for number, (owner, name, after) in enumerate(
            (
                (turns._reading, "read", False),
                (turns._prompts, "build", False),
                (turns._model, "complete", False),
                (turns._model, "complete", True),
                (turns._outbox, "put", False),
                (turns._outbox, "put", True),
            )
        ):
            patch.setattr(owner, name, self._wrapped(getattr(owner, name), number, after=after))

    def _wrapped(self, original: Any, number: int, *, after: bool) -> Any:
        async def stepped(*args: Any, **named: Any) -> Any:
            if after:
                result = await original(*args, **named)
                await self._at(number)
                return result
            await self._at(number)
            return await original(*args, **named)

        return stepped

    async def _at(self, number: int) -> None:
        if number == self._held and not self._gate.is_set():
            self._arrived.set()
            await self._gate.wait()

    async def until(self, number: int) -> None:
        self._held = number
        async with asyncio.timeout(60):
            await self._arrived.wait()

    def go_on(self) -> None:
        self._gate.set()
