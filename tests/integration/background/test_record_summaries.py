"""Long records are summed up by the model in the background; until then, and without one, their beginning stands in."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from redis.asyncio import Redis

from connectors.message import Scope
from grounding.memory.records import (
    NewRecord,
    Provenance,
    Record,
    RecordHit,
    RecordStore,
    Rules,
    Type,
    accept_abstract,
)
from grounding.prompt_input import load_tokens
from runtime.background import RecordsAndManifests, RecordSummaries
from runtime.billing import BudgetExceeded, BudgetTerm
from runtime.llm import Completion, ModelFailed
from runtime.turns import Manifests

ACME, ADA = Scope("acme"), Scope("acme", audience="http:u1")
BY = Provenance(author="http:ada")
LONG = (
    "We rent the hall in the harbour for the summer market. "
    + "The owner showed us around on a sunny afternoon and was very friendly to all of us. " * 8
    + "Lena was against it because the roof leaks. The contract can be ended by 30 April with two weeks of notice."
)
ABSTRACT = "The hall in the harbour is rented. Lena was against it: the roof leaks. It can be ended by 30 April."


class Asked:
    """Stands in for what pays for the model's answers."""

    def __init__(self, *answers: str | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[Scope, str, str]] = []

    async def ask(self, scope: Scope, purpose: str, messages: Sequence[Any]) -> Completion:
        self.asked.append((scope, purpose, messages[1]["content"]))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Completion(answer, "fake")


class Nowhere:
    async def find(self, *_: object, **__: object) -> list[RecordHit]:
        return []

    async def follow(self, *_: object) -> None:
        pass


def records(redis: Redis, asked: Asked | None) -> RecordsAndManifests:
    summarise = RecordSummaries(asked) if asked else None  # type: ignore[arg-type]
    store = RecordStore(redis)
    return RecordsAndManifests(
        store, load_tokens(), Nowhere(), Rules(), manifests=Manifests(redis), summarise=summarise
    )


async def added(kept: RecordsAndManifests, text: str = LONG, of: Type = Type.DECISION, scope: Scope = ACME) -> Record:
    return (await kept.add(scope, NewRecord(of, text), BY)).record


async def test_the_model_puts_what_matters_of_a_long_decision_into_its_summary(redis: Redis) -> None:
    asked = Asked(ABSTRACT)
    kept = records(redis, asked)
    record = await added(kept, scope=ADA)
    assert "roof" not in record.summary
    assert await RecordStore(redis).behind() == ["acme"]

    assert await kept.sweep(ACME) == 1

    after = await kept.get(ADA, record.id)
    assert after.summary == f"Decision: {ABSTRACT}\nOutcome: not known yet. Confidence: 1.00."
    assert (after.text, after.micro, after.changed_at) == (record.text, record.micro, record.changed_at)
    assert asked.asked == [(ACME, "record", LONG)]
    assert await kept.sweep(ACME) == 0


async def test_a_new_outcome_leaves_the_abstract_and_a_new_text_asks_for_another(redis: Redis) -> None:
    asked = Asked(ABSTRACT, "The hall is rented after all.")
    kept = records(redis, asked)
    record = await added(kept)
    await kept.sweep(ACME)

    went_well = await kept.change(ACME, record.id, {"outcome": "success"}, BY)
    assert went_well.summary == f"Decision: {ABSTRACT}\nOutcome: success. Confidence: 1.00."
    changed = await kept.change(ACME, record.id, {"text": f"{LONG} Signed today."}, BY)
    assert "30 April" not in changed.summary
    await kept.sweep(ACME)

    assert "The hall is rented after all." in (await kept.get(ACME, record.id)).summary


@pytest.mark.parametrize(
    "error",
    [
        ModelFailed("the server is away", why="unreachable", retryable=True),
        BudgetExceeded(BudgetTerm("workspace", "tokens", "day"), 1, first=True, until=datetime.now(UTC)),
    ],
)
async def test_what_cannot_be_asked_now_keeps_its_beginning_and_is_asked_later(redis: Redis, error: Exception) -> None:
    asked = Asked(error, ABSTRACT)
    kept = records(redis, asked)
    record = await added(kept)

    await kept.sweep(ACME)
    assert (await kept.get(ACME, record.id)).summary == record.summary
    assert await kept.sweep(ACME) == 0
    now = datetime.now(UTC)
    assert await RecordStore(redis).due(ACME, now + timedelta(minutes=59)) == []
    assert [one.id for one in await RecordStore(redis).due(ACME, now + timedelta(minutes=61))] == [record.id]


async def test_without_a_model_and_for_short_verbatim_and_hidden_records_nobody_is_asked(redis: Redis) -> None:
    without = records(redis, None)
    await added(without)
    assert await without.sweep(ACME) == 0

    kept = records(redis, Asked())
    await added(kept, "- Bring the tent.\n- Bring the lamps.", Type.PROCEDURE)
    await kept.add(ACME, NewRecord(Type.FACT, f"{LONG} Word for word.", verbatim=True), BY)
    assert await kept.sweep(ACME) == 0


@pytest.mark.parametrize(
    ("answer", "is_taken"),
    [
        (ABSTRACT, True),
        (f"```\n{ABSTRACT}\n```", True),
        ("", False),
        ("It can be ended by 31 May.", False),
        (f"{LONG} {LONG}", False),
    ],
)
async def test_an_answer_that_adds_a_number_or_is_too_long_is_not_taken(
    redis: Redis, answer: str, is_taken: bool
) -> None:
    kept = records(redis, Asked(answer))
    record = await added(kept)
    await kept.sweep(ACME)

    assert accept_abstract(answer, record) == (ABSTRACT if is_taken else LONG[:600])
    assert ((await kept.get(ACME, record.id)).summary == record.summary) is not is_taken
    assert await kept.sweep(ACME) == 0
