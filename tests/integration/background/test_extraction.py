"""What people said becomes records in the background: once, of the right owner, and whatever a model answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from redis.asyncio import Redis

from config.settings import Settings
from connectors.message import ConversationKey, Scope, Usage
from grounding.memory.records import Added, Record, RecordBusy, State, Type
from grounding.prompt import build_prompt
from grounding.prompt_input import Participant, Passage, load_tokens
from grounding.retrieval import IndexUnavailable
from grounding.transcript import EntryRole, Transcript, TranscriptEntry
from runtime.background import ExtractionMarks, RecordsExtraction
from runtime.background.extraction import JOB
from runtime.billing import BudgetExceeded, BudgetTerm
from runtime.coordination import Job
from runtime.llm import Completion, ModelFailed
from runtime.turns.manifest import Manifests
from tests.emulators.awaits import at_each_wait
from tests.emulators.prompts import context
from tests.emulators.records import RememberedRecords

KEY = ConversationKey("acme", "http", "default")
LENA = Participant(user="http:u1", name="Lena", role="member")
BO = Participant(user="http:u2", name="Bo", role="member")
WORKSPACE = Scope("acme")


class Asked:
    """A model that answers what it is given to answer, and what it may cost."""

    def __init__(self) -> None:
        self.answers: list[str | Exception] = []
        self.questions: list[str] = []
        self.purposes: list[str] = []
        self.is_broke = False
        self.window = 8192

    async def ask(self, scope: Scope, purpose: str, messages: Sequence[Any]) -> Completion:
        if self.is_broke:
            raise BudgetExceeded(BudgetTerm("workspace", "tokens", "day"), 1, first=True, until=datetime.now(UTC))
        self.purposes.append(purpose)
        self.questions.append(messages[1]["content"])
        answer = self.answers.pop(0) if self.answers else '{"records": []}'
        if isinstance(answer, Exception):
            raise answer
        return Completion(answer, "fake", usage=Usage(10, 0, 5))

    async def window_tokens(self) -> int:
        return self.window


class House:
    """One conversation, and what looks through it."""

    def __init__(self, redis: Redis, settings: Settings) -> None:
        self.redis = redis
        self.transcript = Transcript(redis)
        self.manifests = Manifests(redis)
        self.marks = ExtractionMarks(redis)
        self.records = RememberedRecords()
        self.model = Asked()
        asked: Any = self.model
        self.extraction = RecordsExtraction(
            settings, self.transcript, self.manifests, self.marks, self.records, asked, asked
        )
        self.tokens = load_tokens()
        self.turns = 0

    async def say(
        self,
        text: str,
        by: Participant = LENA,
        *,
        direct: bool = False,
        manifest: bool = True,
        turn: str = "",
        **of: Any,
    ) -> str:
        """A turn of one message and an answer."""
        self.turns += 1
        turn_id = turn or f"t{self.turns:03}"
        at = f"2026-11-21T10:{self.turns:02}:00.000Z"
        said = TranscriptEntry(EntryRole.INBOUND, text, turn_id, at, by.name, by.user, f"m{self.turns}")
        await self.transcript.append(KEY, turn_id, [said, TranscriptEntry(EntryRole.OUTBOUND, "noted", turn_id, at)])
        if manifest:
            plain = {"passages": (), "tail": (), "recalled": ()}
            whose = by.user if direct else ""
            made = context(turn_id=turn_id, direct=direct, audience=whose, authors=(by,), **{**plain, **of})
            await self.manifests.keep(made, build_prompt(made, self.tokens), at)
        return turn_id

    async def look(self) -> None:
        """What follows the newest turn."""
        jobs = [Job(JOB, KEY, f"t{self.turns:03}")]
        for job in await self.extraction.due(jobs):
            await self.extraction(job)

    async def kept(self, user: str | None = None) -> list[Record]:
        found = await self.records.list(Scope("acme", None, user))
        return sorted(found, key=lambda one: one.created_at)

    async def texts(self, user: str | None = None) -> list[str]:
        return [one.text for one in await self.kept(user)]


@pytest.fixture
def patterns(redis: Redis, settings: Callable[..., Settings]) -> House:
    """Without a model."""
    return House(redis, settings())


@pytest.fixture
def model(redis: Redis, settings: Callable[..., Settings]) -> House:
    return House(redis, settings(llm_model="openai/fake", records_extraction_turns=2))


def found(*texts: str, **fields: Any) -> str:
    usual = {"type": "fact", "evidence": [1], "personal": False}
    return json.dumps({"records": [{**usual, "text": text, **fields} for text in texts]})


async def test_without_a_model_plain_statements_are_kept_after_their_turn(patterns: House) -> None:
    for text in ("The launch date is 12 March.", "thanks!", "No, make it 14 March.", "We decided to hire Ada."):
        await patterns.say(text)
        await patterns.look()

    first, second, decided = await patterns.kept()
    assert (first.text, first.state, first.superseded_by) == ("launch date: 12 March", State.SUPERSEDED, second.id)
    assert (second.text, second.supersedes) == ("launch date: 14 March", first.id)
    assert (decided.type, decided.text) == (Type.DECISION, "We decided to hire Ada")
    by = second.provenance
    assert (by.author, by.turn_id, by.context_id, by.origin) == ("http:u1", "t003", "http:default", "extraction")
    assert second.created_at.startswith("2026-11-21T10:03")
    assert patterns.model.questions == []


async def test_the_same_conversation_once_more_adds_and_confirms_nothing(patterns: House) -> None:
    said = ("The launch date is 12 March.", "No, make it 14 March.", "We decided to hire Ada.")
    for text in said:
        await patterns.say(text)
        await patterns.look()
    before = await patterns.kept()

    await patterns.transcript.forget(KEY)
    await patterns.marks.forget(KEY)
    await patterns.redis.delete(*[key async for key in patterns.redis.scan_iter(match="ar:transcript:*")])
    for number, text in enumerate(said, start=1):
        await patterns.say(text, turn=f"t{number:03}")
        await patterns.look()

    assert await patterns.kept() == before


async def test_what_somebody_else_says_too_confirms(patterns: House) -> None:
    for by in (LENA, BO):
        await patterns.say("The launch date is 12 March.", by)
        await patterns.look()
    (one,) = await patterns.kept()
    assert (one.state, one.confirmations) == (State.CONFIRMED, 1)


async def test_a_direct_message_is_kept_for_its_person_and_a_group_for_the_workspace(patterns: House) -> None:
    await patterns.say("My favourite colour is green. The launch date is 12 March.", direct=True)
    await patterns.look()
    await patterns.say("My desk is 4B. The codename is Kite.", BO)
    await patterns.look()
    await patterns.say("The budget is 500 EUR.", manifest=False)
    await patterns.look()

    assert await patterns.texts() == ["codename: Kite"]
    assert sorted(await patterns.texts(LENA.user)) == [
        "Lena's favourite colour: green",
        "codename: Kite",
        "launch date: 12 March",
    ]
    assert await patterns.texts(BO.user) == ["codename: Kite"]


async def test_a_model_is_asked_every_few_turns_and_what_it_found_says_what_its_turn_was_shown(model: House) -> None:
    passages = (Passage(source="a.md", heading="A", text="x", score=1.0),)
    await model.say("The launch date is 12 March", passages=passages)
    await model.look()
    assert model.model.questions == []
    await model.say("Do we need a cake?")
    model.model.answers = [found("The launch date is 12 March")]
    await model.look()
    await model.look()

    (question,) = model.model.questions
    assert "[1] Lena: The launch date is 12 March" in question
    assert "[2] Lena: Do we need a cake?" in question
    (one,) = await model.kept()
    assert (one.text, one.provenance.origin, one.provenance.turn_id) == (
        "The launch date is 12 March",
        "retrieved",
        "t001",
    )
    assert model.model.purposes == ["extraction"]


async def test_a_standing_rule_is_kept_after_its_turn_though_the_model_is_asked_later(model: House) -> None:
    """It is kept once, and does not come back if a person deletes it."""
    await model.say("From now on answer in French.", direct=True)
    await model.look()
    (rule,) = await model.kept(LENA.user)
    assert (rule.type, rule.text, rule.provenance.turn_id) == (Type.RULE, "From now on answer in French", "t001")
    assert model.model.questions == []
    await model.say("Do we need a cake?", direct=True)
    await model.look()
    assert len(model.model.questions) == 1
    assert [one.confirmations for one in await model.kept(LENA.user)] == [0]

    await model.say("Please answer in German from now on.", direct=True)
    await model.look()
    (german,) = await model.kept(LENA.user)
    assert (german.text, german.supersedes) == ("answer in German from now on", rule.id)
    await model.records.erase(Scope("acme", None, LENA.user), german.id, german.provenance)
    await model.say("Do we need another one?", direct=True)
    await model.look()
    assert await model.kept(LENA.user) == []


@pytest.mark.parametrize(
    "answer", ["", "no JSON", "{}", found("x" * 500), found("The launch date is 1 May", replaces="k9")]
)
async def test_a_poor_answer_changes_no_record_and_patterns_look_instead(model: House, answer: str) -> None:
    await model.say("The codename is Kite.")
    await model.say("The launch date is 12 March.")
    await model.look()
    before = await model.kept()
    await model.say("hm")
    await model.say("The budget is 500 EUR.")
    model.model.answers = [answer]
    await model.look()

    after = await model.kept()
    assert after[: len(before)] == before
    assert [one.text for one in after[len(before) :]] == ["budget: 500 EUR"]


async def test_a_model_that_fails_or_costs_too_much_leaves_it_to_patterns(model: House) -> None:
    await model.say("The codename is Kite.")
    await model.say("well")
    model.model.answers = [ModelFailed("down", why="server_error")]
    await model.look()
    model.model.is_broke = True
    await model.say("The budget is 500 EUR.")
    await model.say("well")
    await model.look()

    assert await model.texts() == ["codename: Kite", "budget: 500 EUR"]
    assert len(model.model.purposes) == 1


async def test_a_model_with_a_small_window_is_told_what_was_said_last(model: House) -> None:
    for number in range(20):
        await model.say(f"The harbour number {number} is in Oslo, " + "and the water is deep " * 20)
    model.model.window = 2600
    await model.look()
    (question,) = model.model.questions
    assert "number 19 is" in question
    assert "number 0 is" not in question
    assert "[1] Lena: The harbour number" in question


@pytest.mark.parametrize("breaking", [ConnectionResetError(), RecordBusy()])
async def test_what_is_interrupted_goes_on_without_asking_again(
    model: House, monkeypatch: pytest.MonkeyPatch, breaking: Exception
) -> None:
    await model.say("The launch date is 12 March and the codename is Kite")
    await model.say("well")
    model.model.answers = [found("The launch date is 12 March", "The codename is Kite")]
    added = model.records.add
    calls: list[str] = []

    async def breaks(*arguments: Any) -> Added:
        calls.append(arguments[1].text)
        if len(calls) == 2:
            raise breaking
        return await added(*arguments)

    monkeypatch.setattr(model.records, "add", breaks)
    with pytest.raises(type(breaking)):
        await model.look()
    await model.look()

    assert sorted(await model.texts()) == ["The codename is Kite", "The launch date is 12 March"]
    assert len(model.model.questions) == 1


async def test_what_is_forgotten_while_it_is_looked_through_is_not_kept(
    patterns: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await patterns.say("The launch date is 12 March.")
    added = patterns.records.add

    async def forgotten(*arguments: Any) -> Added:
        made = await added(*arguments)
        await patterns.transcript.forget(KEY)
        return made

    monkeypatch.setattr(patterns.records, "add", forgotten)
    await patterns.look()
    assert await patterns.texts() == []


async def test_a_contradiction_is_found_without_the_index_too(patterns: House) -> None:
    await patterns.say("The launch date is 12 March.")
    await patterns.look()
    patterns.records.fails = IndexUnavailable("away")
    await patterns.say("The launch date is 14 March.")
    await patterns.look()
    assert [one.state for one in await patterns.kept()] == [State.SUPERSEDED, State.NEW]


async def test_what_is_said_after_a_turn_was_forgotten_is_looked_through_too(patterns: House) -> None:
    await patterns.say("The launch date is 12 March.")
    forgotten = await patterns.say("The codename is Kite.")
    await patterns.look()
    await patterns.transcript.forget_turn(KEY, forgotten)
    await patterns.marks.forget_turn(KEY, forgotten, await patterns.transcript.reach(KEY))
    await patterns.say("The budget is 500 EUR.")
    await patterns.look()
    assert "budget: 500 EUR" in await patterns.texts()


async def test_a_conversation_that_began_anew_is_looked_through_though_its_mark_was_left(patterns: House) -> None:
    for text in ("The launch date is 12 March.", "thanks!", "well"):
        await patterns.say(text)
        await patterns.look()
    await patterns.transcript.forget(KEY)
    await patterns.say("The budget is 500 EUR.")
    await patterns.look()
    assert "budget: 500 EUR" in await patterns.texts()


async def test_turns_may_come_wherever_a_look_waits(redis: Redis, settings: Callable[..., Settings]) -> None:
    """All are looked through, now or later."""
    number, waits = 0, 1
    while number < min(waits, 200):
        number += 1
        await redis.flushall()
        house = House(redis, settings())
        await house.say("The launch date is 12 March.")
        waits = 0

        async def say_two(house: House = house) -> None:
            await house.say("The budget is 500 EUR.")
            await house.say("The codename is Kite.")

        def at(wait: int, number: int = number, say: Callable[[], Any] = say_two) -> Any:
            nonlocal waits
            waits = wait
            return say() if wait == number else None

        await asyncio.create_task(at_each_wait(house.look(), at))
        asyncio.get_running_loop().set_task_factory(None)
        await house.look()
        assert len(await house.texts()) == 3, f"wait {number}"
    assert 5 < number < 200
