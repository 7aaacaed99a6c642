"""What arrives while an answer is made: collected, made part of it, or answered by itself."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from config.settings import Settings
from connectors.message import Author, ConversationKey, InboundMessage, Role, Superseded
from runtime.coordination import Hub, Job
from runtime.delivery import Outbox, Previews, RateLimiters, notify_unanswered
from runtime.llm import Completion
from runtime.turns.batch import Batch, BatchGrown, Envelope, Lease
from runtime.turns.cancel import Cancellations, notify_interrupted
from runtime.turns.checkpoint import Checkpoints
from runtime.turns.mailbox import Mailbox
from runtime.workspaces import PlaceSettings, QueueMode
from tests.emulators.bot import Bot, running_bot
from tests.emulators.openai import FakeOpenAI
from tests.emulators.paper import Paper

KEY = ConversationKey("acme", "http", "desk")


def envelope(number: int, queue: QueueMode, *, unfinished: bool = False, by: str = "u1", text: str = "") -> Envelope:
    message = InboundMessage(
        KEY.connector, KEY.external_id, f"m{number}", Author(by), text or str(number), looks_unfinished=unfinished
    )
    return Envelope(message, Role.MEMBER, time.time(), queue=queue)


def ids(batch: Batch | None) -> list[str]:
    return [one.message.message_id for one in batch.envelopes] if batch else []


@pytest_asyncio.fixture
async def mailbox(redis: Redis) -> Mailbox:
    mailbox = Mailbox(redis)
    await mailbox.prepare()
    return mailbox


async def held(mailbox: Mailbox, silent_seconds: float = 60.0) -> Lease:
    offers = await mailbox.offers([KEY.partition], 1) or await mailbox.abandoned(silent_seconds, 1)
    lease = await mailbox.claim(offers[0])
    assert lease is not None
    return lease


async def taken(mailbox: Mailbox, lease: Lease) -> Batch:
    batch = await mailbox.take(lease)
    assert batch is not None
    return batch


# The mailbox


async def test_what_waits_is_one_turn_and_with_followup_one_each(mailbox: Mailbox) -> None:
    for number, mode in enumerate(("collect", "interrupt", "followup", "followup", "collect", "collect")):
        await mailbox.store(KEY, envelope(number, mode))  # type: ignore[arg-type]
    lease = await held(mailbox)

    turns = []
    while (batch := await mailbox.take(lease)) is not None:
        turns.append(ids(batch))
        await mailbox.done(batch)

    assert turns == [["m0", "m1"], ["m2"], ["m3"], ["m4", "m5"]]


async def test_a_message_of_its_own_has_its_rest_with_it_and_nobody_elses(mailbox: Mailbox) -> None:
    """An album or a text that was cut stays together."""
    for one in (
        envelope(1, "followup", unfinished=True),
        envelope(2, "followup", unfinished=True),
        envelope(3, "followup"),
        envelope(4, "followup", unfinished=True),
        envelope(5, "followup", by="u2"),
        replace(envelope(6, "followup", unfinished=True), accepted_at=time.time() + 100),
        replace(envelope(7, "followup"), accepted_at=time.time() + 200),
    ):
        await mailbox.store(KEY, one)
    lease = await held(mailbox)

    turns = []
    while (batch := await mailbox.take(lease)) is not None:
        turns.append(ids(batch))
        await mailbox.done(batch)

    assert turns == [["m1", "m2", "m3"], ["m4"], ["m5"], ["m6"], ["m7"]]


async def test_nobody_can_write_what_passes_for_a_mode(mailbox: Mailbox) -> None:
    for number, text in enumerate(('"queue":"followup"', '{"queue":"followup"}', '\\"queue":"followup"')):
        await mailbox.store(KEY, envelope(number, "collect", text=text))

    assert len((await taken(mailbox, await held(mailbox))).envelopes) == 3


async def test_storing_says_which_turn_is_at_hand(mailbox: Mailbox) -> None:
    assert (await mailbox.store(KEY, envelope(1, "interrupt"))).current_turn == ""
    lease = await held(mailbox)
    batch = await taken(mailbox, lease)

    assert (await mailbox.store(KEY, envelope(2, "interrupt"))).current_turn == batch.turn_id
    await mailbox.done(batch)
    assert (await mailbox.store(KEY, envelope(3, "interrupt"))).current_turn == ""


# What people wish of an answer


async def test_what_is_said_of_a_turn_before_it_is_begun_is_stored_for_it(redis: Redis, mailbox: Mailbox) -> None:
    """Between the taking of a turn and its answering lies the wait for the rest of a message."""
    stops = Cancellations(Hub(redis, shared=False), mailbox)
    await mailbox.store(KEY, envelope(1, "collect"))
    batch = await taken(mailbox, await held(mailbox))

    assert await stops.stop(KEY)
    with stops.listen(batch.turn_id) as wishes:
        await stops.refresh(batch, wishes)
        assert wishes.stop


async def test_a_worker_in_another_process_hears_of_it(redis: Redis, mailbox: Mailbox) -> None:
    gateway, worker = Hub(redis, shared=True), Hub(redis, shared=True)
    stops = Cancellations(worker, mailbox)
    listening = asyncio.create_task(worker.run())
    try:
        with stops.listen("t1") as wishes:
            async with asyncio.timeout(60):
                while not wishes.more:  # the first may be told before anybody listens
                    await notify_interrupted(gateway, "t1")
                    await asyncio.sleep(0.02)
    finally:
        listening.cancel()
        await asyncio.wait([listening])


async def test_a_call_for_more_of_which_there_is_none_changes_nothing(redis: Redis, mailbox: Mailbox) -> None:
    """The news may come when the message was made part of the question already, or was taken out again."""
    stops = Cancellations(Hub(redis, shared=False), mailbox)
    await mailbox.store(KEY, envelope(1, "interrupt"))
    batch = await taken(mailbox, await held(mailbox))
    with stops.listen(batch.turn_id) as wishes:
        wishes.more = True
        await stops.grow_batch(batch, wishes)
        assert not wishes.more

        await mailbox.store(KEY, envelope(2, "interrupt"))
        with pytest.raises(BatchGrown) as merged:
            await stops.grow_batch(batch, wishes)
    assert ids(merged.value.batch) == ["m1", "m2"]
    assert merged.value.batch.turn_id == batch.turn_id


# The end of a process in the middle of an interruption


async def test_the_answer_to_the_smaller_question_is_not_taken_up_again(redis: Redis, mailbox: Mailbox) -> None:
    journal = Checkpoints(redis)
    await mailbox.store(KEY, envelope(1, "interrupt"))
    lease = await held(mailbox)
    batch = await taken(mailbox, lease)
    await journal.save_words(batch, {0: "what was spoken"})
    await journal.save_answer(batch, 0, Completion(text="to the first alone", model="m"))
    await mailbox.store(KEY, envelope(2, "interrupt"))
    grown = await mailbox.extend(batch)

    again = await taken(mailbox, await held(mailbox, silent_seconds=0.0))
    assert ids(again) == ids(grown) == ["m1", "m2"]
    assert (await journal.load(again)).completions == ()
    await journal.save_words(again, {1: "and more of it"})
    assert (await journal.load(again)).words == {0: "what was spoken", 1: "and more of it"}

    await journal.save_answer(again, 0, Completion(text="to both", model="m"))
    assert [one.text for one in (await journal.load(again)).completions] == ["to both"]


# Whole turns


@pytest_asyncio.fixture
async def bot(model_settings: Callable[..., Settings], openai_server: FakeOpenAI) -> AsyncIterator[Bot]:
    async with running_bot(model_settings(access_policy="open"), openai_server) as bot:
        yield bot


async def queue(bot: Bot, mode: QueueMode) -> None:
    await bot.runtime.places.put(KEY.scope, "*", PlaceSettings(queue=mode))


async def asked(bot: Bot, requests: int) -> None:
    """Wait until the model was asked so often."""
    async with asyncio.timeout(60):
        while len(bot.replies_asked) < requests:
            await asyncio.sleep(0.005)


def post(bot: Bot, text: str, **more: Any) -> "asyncio.Task[Any]":
    return asyncio.create_task(bot.post(text, context="desk", **more))


async def test_collected_messages_get_one_answer_all(bot: Bot) -> None:
    gate = asyncio.Event()
    hold_first(bot, gate)
    first = post(bot, "what are boats?")
    await asked(bot, 1)
    later = [post(bot, text) for text in ("and ships?", "and rafts?")]
    await waiting(bot, 3)
    gate.set()

    answer, *answers = [(await one).json() for one in (first, *later)]
    assert answers[0]["turn_id"] == answers[1]["turn_id"] != answer["turn_id"]
    assert len(bot.replies_asked) == 2


async def test_followups_get_an_answer_each_in_order(bot: Bot) -> None:
    await queue(bot, "followup")
    gate = asyncio.Event()
    hold_first(bot, gate)
    first = post(bot, "what are boats?")
    await asked(bot, 1)
    later = []
    for count, text in enumerate(("and ships?", "and rafts?"), 2):
        later.append(post(bot, text))
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


async def test_the_newest_gets_the_answer_and_those_it_interrupts_a_conflict(bot: Bot) -> None:
    await queue(bot, "interrupt")
    bot.model.will("hang")
    first = post(bot, "what are boats?", headers={"Idempotency-Key": "first"})
    await asked(bot, 1)
    bot.model.will("hang")
    second = post(bot, "I mean ships")
    await asked(bot, 2)
    bot.model.will("Large ones.")
    third = post(bot, "large ships")

    assert [(await one).status_code for one in (first, second)] == [409, 409]
    assert (await first).json()["error"]["code"] == "superseded"
    answer = await third
    assert (answer.status_code, answer.json()["text"]) == (200, "Large ones.")
    assert all(word in bot.sent["user"] for word in ("what are boats?", "I mean ships", "large ships"))
    await bot.settle()

    repeated = await bot.post("what are boats?", context="desk", headers={"Idempotency-Key": "first"})
    assert (repeated.status_code, repeated.json()["error"]["code"]) == (409, "superseded")
    entries = await bot.runtime.transcript.newest(KEY, 9)
    assert [one.text for one in entries] == ["what are boats?", "I mean ships", "large ships", "Large ones."]
    assert {one.turn_id for one in entries} == {answer.json()["turn_id"]}
    assert len(bot.told("turn.interrupted")) == 2
    assert len(bot.told("turn.answered")) == 1


async def test_who_is_interrupted_hears_of_it_while_the_answer_is_still_made(bot: Bot) -> None:
    """Not only when the newer message has its answer, which may take as long as it likes."""
    await queue(bot, "interrupt")
    bot.model.will("hang")
    first = post(bot, "what are boats?")
    await asked(bot, 1)
    bot.model.will("hang")
    stream = post(bot, "any boats?", headers={"Accept": "text/event-stream"})
    await asked(bot, 2)
    bot.model.will("hang")
    last = post(bot, "I mean ships")
    async with asyncio.timeout(60):
        assert (await first).json()["error"]["code"] == "superseded"
        assert 'event: error\ndata: {"error": {"code": "superseded"' in (await stream).text
    assert not last.done()
    await bot.runtime.stops.stop(KEY)
    assert (await last).json()["text"] == "_Stopped._"


async def test_who_waits_at_another_process_hears_that_a_newer_message_gets_the_answer(redis: Redis) -> None:
    let_go: list[tuple[ConversationKey, tuple[str, ...]]] = []

    class Door(Paper):
        def let_go(self, key: ConversationKey, messages: tuple[str, ...], *, gone: bool) -> None:
            assert not gone
            let_go.append((key, messages))

    gateway, worker = Hub(redis, shared=True), Hub(redis, shared=True)
    Previews({"http": Door()}, Outbox(redis, gateway), RateLimiters(), gateway)
    listening = asyncio.create_task(gateway.run())
    try:
        async with asyncio.timeout(60):
            while not let_go:  # the first may be told before anybody listens
                await notify_unanswered(worker, KEY, ("m1", "m2"))
                await asyncio.sleep(0.02)
    finally:
        listening.cancel()
        await asyncio.wait([listening])
    assert let_go[0] == (KEY, ("m1", "m2"))


async def test_a_stream_of_an_interrupted_message_ends_with_the_conflict(bot: Bot) -> None:
    await queue(bot, "interrupt")
    bot.model.will("hang")
    first = post(bot, "what are boats?", headers={"Accept": "text/event-stream"})
    await asked(bot, 1)
    bot.model.will("Large ones.")
    second = post(bot, "large ships", headers={"Accept": "text/event-stream"})

    assert 'event: error\ndata: {"error": {"code": "superseded"' in (await first).text
    assert "Large ones." not in (await first).text
    assert "event: done" in (await second).text


@pytest.mark.parametrize("moment", range(6))
async def test_whenever_the_second_message_comes_both_are_answered_once(bot: Bot, moment: int) -> None:
    """From before the model is asked until after the reply is stored."""
    await queue(bot, "interrupt")
    steps = Steps(bot)
    first = post(bot, "what are boats?")
    await steps.until(moment)
    second = post(bot, "and ships?")
    await waiting(bot, 2)
    steps.go_on()

    answers = [await first, await second]
    assert answers[1].status_code == 200
    await bot.settle()
    entries = await bot.runtime.transcript.newest(KEY, 9)
    said = [one.text for one in entries if one.role == "inbound"]
    assert said == ["what are boats?", "and ships?"]
    merged = len({one.turn_id for one in entries}) == 1
    assert answers[0].status_code == (409 if merged else 200)
    assert merged is (moment < Steps.COMPLETED)
    assert len([one for one in entries if one.role == "outbound"]) == (1 if merged else 2)


async def test_what_is_said_once_the_reply_is_stored_is_the_next_turns_though_the_first_is_taken_up_again(
    bot: Bot,
) -> None:
    """The worker loses the turn before its jobs are enqueued: whoever has it next finds the reply, which must not pass
    for the answer to what was said since."""
    await queue(bot, "interrupt")
    turns: Any = bot.runtime.turns
    enqueue = turns._jobs.enqueue
    second: list[asyncio.Task[Any]] = []

    async def lost_before(*jobs: Job) -> None:
        if not second:
            second.append(post(bot, "and ships?"))
            await waiting(bot, 2)
            raise Superseded("another worker holds the conversation now")
        await enqueue(*jobs)

    turns._jobs.enqueue = lost_before
    first = await post(bot, "what are boats?")
    await waiting(bot, 2)

    assert (first.status_code, (await second[0]).status_code) == (200, 200)
    await bot.settle()
    entries = await bot.runtime.transcript.newest(KEY, 9)
    assert [one.text for one in entries if one.role == "inbound"] == ["what are boats?", "and ships?"]
    assert len({one.turn_id for one in entries}) == 2


async def test_a_stop_ends_what_an_interruption_began_anew(bot: Bot) -> None:
    await queue(bot, "interrupt")
    bot.model.will("hang", "hang")
    first = post(bot, "what are boats?")
    await asked(bot, 1)
    second = post(bot, "and ships?")
    await asked(bot, 2)

    assert await bot.runtime.stops.stop(KEY)
    assert (await second).json()["text"] == "_Stopped._"
    assert (await first).status_code == 409


def hold_first(bot: Bot, gate: asyncio.Event) -> None:
    """Have the model's first answer wait for *gate*."""
    complete = bot.runtime.model.complete
    calls = 0

    async def held_back(*args: Any, **named: Any) -> Completion:
        nonlocal calls
        calls += 1
        number = calls
        answer = await complete(*args, **named)
        if number == 1:
            await gate.wait()
        return answer

    bot.runtime.model.complete = held_back  # type: ignore[method-assign]


async def waiting(bot: Bot, messages: int) -> None:
    """Wait until so many messages were accepted."""
    async with asyncio.timeout(60):
        while len(bot.told("message.accepted")) < messages:
            await asyncio.sleep(0.005)


class Steps:
    """Holds the first turn at one of its steps."""

    COMPLETED = 4
    """From here on there is an answer."""

    def __init__(self, bot: Bot) -> None:
        self._reached: dict[int, asyncio.Event] = {}
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
            self._wrap(owner, name, number, after=after)

    def _wrap(self, owner: Any, name: str, number: int, *, after: bool) -> None:
        original = getattr(owner, name)

        async def stepped(*args: Any, **named: Any) -> Any:
            if after:
                result = await original(*args, **named)
                await self._at(number)
                return result
            await self._at(number)
            return await original(*args, **named)

        setattr(owner, name, stepped)

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
