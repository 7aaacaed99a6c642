"""A context document is refreshed whatever its size and that of the turns, and people are told if it cannot be."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
from redis.asyncio import Redis

from config.settings import Settings
from connectors.message import ConversationKey, Usage
from grounding.memory.context_document import (
    SECTIONS,
    ContextDocument,
    ContextDocuments,
    DocumentLimits,
    lines_by_people,
)
from grounding.memory.context_document.document import render
from grounding.prompt_input import load_tokens
from grounding.transcript import EntryRole, Reach, Transcript, TranscriptEntry
from runtime.background import SummaryRefresh
from runtime.coordination import Job
from runtime.llm import Completion, ModelFailed, ModelUnavailable
from tests.emulators.awaits import at_each_wait

KEY = ConversationKey("acme", "http", "default")
AT = "2026-11-21T10:00:00.000Z"
ANSWER = render({"Active Context": "- the race", "Facts": "- harbour: Cowes"})
MOST = 200
"""More waits than one refresh could have."""


def heard(question: str) -> str:
    """An answer that tells the last remark of *question*."""
    return ANSWER.replace(
        "Cowes", f"Cowes\n- heard: {max(map(int, re.findall(r'remark ([0-9]+)', question)), default=0)}"
    )


class Asked:
    """A model with a small window, which answers what it is given to answer."""

    def __init__(self) -> None:
        self.answers: list[str | ModelFailed] = []
        self.questions: list[str] = []
        self.window = 8192
        self.finish_reason = "stop"

    async def ask(self, scope: object, purpose: str, messages: Sequence[Any]) -> Completion:
        self.questions.append("".join(message["content"] for message in messages))
        answer = self.answers.pop(0) if self.answers else heard(self.questions[-1])
        await asyncio.sleep(0)
        if isinstance(answer, ModelFailed):
            raise answer
        return Completion(answer, "fake", usage=Usage(10, 0, 5), finish_reason=self.finish_reason)

    async def window_tokens(self) -> int:
        return self.window


class Nowhere:
    """Takes copies of documents, and keeps none."""

    async def copy(self, key: ConversationKey, document: ContextDocument) -> None:
        await asyncio.sleep(0)


class House:
    """One conversation, and what refreshes its document."""

    def __init__(self, redis: Redis, settings: Settings) -> None:
        self.transcript = Transcript(redis)
        self.contexts = ContextDocuments(redis)
        self.model = Asked()
        self.turns = 0
        model: Any = self.model
        sync: Any = Nowhere()
        limits = DocumentLimits(
            settings.llm_grounding_memory_summary_max_items,
            settings.llm_grounding_memory_summary_max_tokens,
            settings.context_document_max_bytes,
            load_tokens(),
        )

        async def index_later(job: Job) -> None:
            await asyncio.sleep(0)

        self.refresh = SummaryRefresh(settings, self.transcript, self.contexts, sync, model, model, limits, index_later)

    async def say(self, *texts: str) -> None:
        for text in texts:
            self.turns += 1
            turn_id = f"t{self.turns:03}"
            said = TranscriptEntry(EntryRole.INBOUND, text, turn_id, AT, "Lena", "http:u1", f"m{self.turns}")
            answer = TranscriptEntry(EntryRole.OUTBOUND, "noted", turn_id, AT)
            await self.transcript.append(KEY, turn_id, [said, answer])

    async def store(self, text: str, *, by_people: bool = False) -> None:
        kept = lines_by_people(text, "") if by_people else ()
        reach = await self.transcript.reach(KEY)
        made_by = "person" if by_people else "model"
        document = ContextDocument(text, 1, reach.turns, reach.entries, made_by, AT, kept=kept)  # type: ignore[arg-type]
        assert await self.contexts.store(KEY, document)

    async def look(self) -> ContextDocument:
        """What follows the newest turn."""
        job = Job("summary.refresh", KEY, f"t{self.turns:03}")
        for due in await self.refresh.due([job]):
            await self.refresh(due)
        document = await self.contexts.latest(KEY)
        assert document is not None
        return document

    async def six_turns(self, number: int = 0) -> ContextDocument:
        await self.say(*(f"remark {number + turn} about the weather" for turn in range(6)))
        return await self.look()


@pytest.fixture
def make(redis: Redis, settings: Callable[..., Settings]) -> Callable[..., House]:
    return lambda **fields: House(redis, settings(llm_model="openai/fake", **fields))


def long_text(size: int) -> str:
    lines = max(1, size // len(SECTIONS) // 60)
    text = {
        title: "\n".join(f"- {title} {n}: the crew sails again and again to the harbour" for n in range(lines))
        for title in SECTIONS
    }
    return render(text)


@pytest.mark.parametrize("size", [22_000, 100_000])
async def test_a_document_of_people_that_is_longer_than_the_window_goes_on_being_refreshed(
    make: Callable[..., House], size: int
) -> None:
    """Word for word theirs stays; what the model adds stands beside it; one question a refresh, as for a short one."""
    house = make(context_document_max_bytes=200_000)
    text = long_text(size)
    await house.store(text, by_people=True)
    first = await house.six_turns()
    second = await house.six_turns(6)

    assert [first.version, second.version] == [2, 3]
    assert first.reach == Reach(6, 12)
    assert second.reach == Reach(12, 24)
    assert len(house.model.questions) == 2
    assert all(len(question.encode()) <= 2 * (8192 - 1024) for question in house.model.questions)
    theirs = [line for line in text.splitlines() if line.startswith("- ")]
    stored = second.text.splitlines()
    assert [line for line in stored if line in set(theirs)] == theirs
    assert "- harbour: Cowes" in stored
    assert "- heard: 11" in stored
    assert second.problem is not None
    assert second.problem.kind == "crowded"
    assert await house.contexts.problems() == {KEY: second.problem}


@pytest.mark.parametrize("size", [22_000, 100_000])
async def test_a_document_that_nobody_wrote_by_hand_shrinks_over_refreshes(
    make: Callable[..., House], size: int
) -> None:
    house = make(context_document_max_bytes=200_000)
    await house.store(long_text(size))
    sizes = [size]
    while sizes[-1] > 380 * 6:
        house.model.answers = [render(dict.fromkeys(SECTIONS, "- in short"))]
        document = await house.six_turns(len(sizes) * 6)
        sizes.append(len(document.text))
        assert sizes[-1] < sizes[-2]
    assert len(sizes) < size // 3000
    assert all(len(question.encode()) <= 2 * (8192 - 1024) for question in house.model.questions)


async def test_long_turns_are_read_in_steps_each_a_version(make: Callable[..., House]) -> None:
    house = make()
    texts = [f"remark {number} {'about the weather ' * 100}" for number in range(20)]
    await house.say(*texts)
    document = await house.look()

    asked = house.model.questions
    assert len(asked) > 2
    assert all(len(question.encode()) <= 2 * (8192 - 1024) for question in asked)
    read = [number for number in range(20) for question in asked if f"remark {number} about" in question]
    assert read == list(range(20))
    versions = await house.contexts.versions(KEY, 10)
    made = [await house.contexts.version(KEY, one.id) for one in versions]
    turns = dict.fromkeys(turn for one in reversed(made) if one for turn in one.turn_ids)
    assert list(turns) == [f"t{number:03}" for number in range(1, 21)]
    assert document.reach == Reach(20, 40)


async def test_turns_that_came_while_a_step_was_written_are_read_next(make: Callable[..., House]) -> None:
    """And deleted messages hide none of the others."""
    house = make()
    await house.say(*(f"remark {number} {'about the weather ' * 100}" for number in range(8)))
    await house.transcript.amend(KEY, "m2", "")
    await house.transcript.amend(KEY, "m8", "")
    await house.look()
    await house.say(*(f"remark {number} about the sea" for number in range(8, 16)))
    await house.look()
    read = "\n".join(house.model.questions)
    assert [number for number in range(16) if f"remark {number} about" not in read] == [1, 7]


async def test_a_failing_model_is_asked_for_less_and_people_are_told_after_the_third_time(
    make: Callable[..., House],
) -> None:
    house = make()
    await house.store(long_text(10_000))
    house.model.finish_reason = "length"
    failures = []
    for number in range(3):
        document = await house.six_turns(6 * number)
        assert document.problem is not None
        failures.append(document.problem.failures)
        assert (await house.contexts.problems() != {}) is (number == 2)
    assert failures == [1, 2, 3]
    assert document.problem is not None
    assert "LLM_MAX_OUTPUT_TOKENS" in document.problem.advice
    sizes = [len(question) for question in house.model.questions]
    assert sizes == sorted(set(sizes), reverse=True)

    house.model.finish_reason = "stop"
    house.model.answers = [render(dict.fromkeys(SECTIONS, "- in short"))]
    document = await house.six_turns(18)
    assert document.problem is None
    assert document.version > 1
    assert await house.contexts.problems() == {}


async def test_a_window_without_room_for_any_part_is_told_at_once_and_no_model_is_asked(
    make: Callable[..., House],
) -> None:
    house = make()
    await house.store(ANSWER)
    house.model.window = 1500
    document = await house.six_turns()

    assert document.problem is not None
    assert document.problem.kind == "window"
    assert await house.contexts.problems() == {KEY: document.problem}
    assert house.model.questions == []
    house.model.window = 8192
    assert (await house.look()).problem is None


async def test_if_patterns_write_instead_of_a_model_that_fails_people_are_told_too(make: Callable[..., House]) -> None:
    house = make()
    for number in range(3):
        house.model.answers = [ModelUnavailable("gone", why="unreachable")] * 9
        document = await house.six_turns(6 * number)
        assert document.made_by == "extraction"
    assert document.problem is not None
    assert document.problem.text.endswith("3 times in a row: the model did not answer (unreachable)")
    await house.contexts.forget(KEY)
    assert await house.contexts.problems() == {}


async def test_a_problem_is_noted_on_the_version_that_has_it_only(make: Callable[..., House]) -> None:
    house = make()
    await house.store(long_text(22_000), by_people=True)
    document = await house.six_turns()
    assert document.problem is not None
    shorter = ContextDocument("- short", document.version + 1, 6, 12, "person", AT)
    assert await house.contexts.store(KEY, shorter, document.id)
    assert not await house.contexts.note_problem(KEY, document, document.problem)
    latest = await house.contexts.latest(KEY)
    assert latest is not None
    assert latest.problem is None


async def test_turns_may_come_wherever_a_refresh_waits(redis: Redis, settings: Callable[..., Settings]) -> None:
    """All are read, now or later."""
    number, waits = 0, 1
    while number < min(waits, MOST):
        number += 1
        await redis.flushall()
        house = House(redis, settings(llm_model="openai/fake"))
        await house.say(*(f"remark {one} about the weather" for one in range(8)))
        waits = 0

        async def say_two(house: House = house) -> None:
            await house.say("remark 8 about the weather", "remark 9 about the weather")

        def at(wait: int, number: int = number, say: Callable[[], Coroutine[Any, Any, None]] = say_two) -> Any:
            nonlocal waits
            waits = wait
            return say() if wait == number else None

        await asyncio.create_task(at_each_wait(house.look(), at))
        asyncio.get_running_loop().set_task_factory(None)
        await house.say(*(f"remark {one} about the weather" for one in range(10, 16)))
        await house.look()
        read = "\n".join(house.model.questions)
        assert [one for one in range(16) if f"remark {one} about" not in read] == [], f"wait {number}"
    assert 10 < number < MOST


async def test_a_refresh_may_be_stopped_wherever_it_waits(redis: Redis, settings: Callable[..., Settings]) -> None:
    """The next one goes on: every turn is read, in its order, and what people wrote stays."""

    async def stop_at(number: int) -> tuple[bool, list[str], str]:
        """Stop it as it waits for the *number*-th time; return whether it did, the turns of all versions, the text."""
        await redis.flushall()
        house = House(redis, settings(llm_model="openai/fake"))
        await house.store("## Facts\n- boat: Petrel\n", by_people=True)
        await house.say(*(f"remark {one} {'about the weather ' * 100}" for one in range(14)))

        def at(wait: int) -> None:
            if wait == number:
                asyncio.get_running_loop().call_soon(working.cancel)

        working = asyncio.ensure_future(at_each_wait(house.look(), at))
        await asyncio.wait([working])
        asyncio.get_running_loop().set_task_factory(None)
        document = await house.look()
        versions = await house.contexts.versions(KEY, 20)
        made = [await house.contexts.version(KEY, one.id) for one in versions]
        turns = dict.fromkeys(turn for one in reversed(made) if one for turn in one.turn_ids)
        return working.cancelled(), list(turns), document.text

    _, undisturbed, text = await stop_at(0)
    assert undisturbed == [f"t{turn:03}" for turn in range(1, 15)]
    assert "- boat: Petrel" in text
    number, is_stopped = 0, True
    while is_stopped and number < MOST:
        number += 1
        is_stopped, turns, after = await stop_at(number)
        assert (turns, after) == (undisturbed, text), f"wait {number}"
    assert 20 < number < MOST
