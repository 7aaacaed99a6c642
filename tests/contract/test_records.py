"""The store of typed records and the fake of it do the same."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from connectors.message import Scope
from grounding.memory.records import (
    NeverDeleted,
    NewRecord,
    NoSuchRecord,
    Origin,
    Provenance,
    RecordIndex,
    RecordRefused,
    Records,
    RecordStore,
    State,
    Type,
    place,
)
from grounding.prompt_input import load_tokens
from grounding.retrieval.qdrant_edge import EmbeddedIndex
from tests.emulators.embedder import HashedWords
from tests.emulators.records import RememberedRecords

ACME, OTHER = Scope("acme"), Scope("other")
ADA, BEN = Scope("acme", None, "slack:U1"), Scope("acme", None, "slack:U2")
BY = Provenance(author="http:ada")


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.time = datetime(2026, 11, 22, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.time

    def go(self, **by: float) -> None:
        self.time += timedelta(**by)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest_asyncio.fixture(params=["redis", "remembered"])
async def records(request: pytest.FixtureRequest, redis: Redis, tmp_path: Path, clock: Clock) -> AsyncIterator[Records]:
    if request.param == "remembered":
        yield RememberedRecords(clock=clock)
        return
    embedder, store = HashedWords(), RecordStore(redis)
    index = EmbeddedIndex(tmp_path, embedder.name, embedder.dimensions, timeout_seconds=30)
    await index.ensure()
    try:
        yield Records(store, load_tokens(), RecordIndex(index, embedder, store), clock=clock)
    finally:
        await index.close()


def fact(text: str, **fields: Any) -> NewRecord:
    return NewRecord(Type.FACT, text, **fields)


def turn(turn_id: str) -> Provenance:
    return Provenance(author="slack:U1", turn_id=turn_id, origin="extraction")


async def test_what_is_added_is_kept_as_it_was_said_with_micro_and_summary(records: Records) -> None:
    added = await records.add(ACME, fact("  Tim prefers Celsius, not Fahrenheit.  ", confidence=0.8), BY)

    record = added.record
    assert added.came == "new"
    assert (record.text, record.state, record.audience) == ("Tim prefers Celsius, not Fahrenheit.", State.NEW, "")
    assert record.micro == "Tim prefers Celsius, not Fahrenheit. [0.80]"
    assert record.summary == "Tim prefers Celsius, not Fahrenheit. [0.80 confidence]"
    assert record.created_at == "2026-11-22T12:00:00.000Z"
    assert await records.get(ACME, record.id) == record


async def test_the_same_text_again_confirms_and_three_times_make_a_fact_core(records: Records) -> None:
    first = (await records.add(ACME, fact("We deploy on Fridays."), BY)).record
    states = []
    for text in ("we deploy on fridays", "We  deploy on Fridays!", "We deploy on Fridays."):
        added = await records.add(ACME, fact(text), BY)
        assert (added.came, added.record.id) == ("confirmed", first.id)
        states.append(added.record.state)

    assert states == [State.CONFIRMED, State.CONFIRMED, State.CORE]
    assert [one.confirmations for one in await records.list(ACME)] == [3]


async def test_the_same_turn_and_the_same_call_again_change_nothing(records: Records) -> None:
    for _ in range(2):
        await records.add(ACME, fact("The port is 5433."), turn("t1"))
        await records.add(ACME, fact("The host is db1."), BY, key="call-1")
        await records.add(ACME, fact("The port is 5433."), turn("t2"))

    assert {one.text: one.confirmations for one in await records.list(ACME)} == {
        "The port is 5433.": 1,
        "The host is db1.": 0,
    }
    again = await records.add(ACME, fact("The port is 5433."), turn("t2"))
    assert again.came == "unchanged"


async def test_a_newer_fact_supersedes_an_older_one_which_is_still_found_and_never_confirmed_back(
    records: Records,
) -> None:
    old = (await records.add(ACME, fact("The port is 5432."), turn("t1"))).record
    new = await records.add(ACME, fact("The port is 5433.", supersedes=old.id), turn("t2"))

    assert new.came == "superseded"
    was = await records.get(ACME, old.id)
    assert (was.state, was.superseded_by) == (State.SUPERSEDED, new.record.id)
    assert {one.record.id for one in await records.search(ACME, "which port", 5)} == {old.id, new.record.id}
    assert (await records.add(ACME, fact("The port is 5432."), turn("t1"))).came == "unchanged"
    again = await records.add(ACME, fact("The port is 5432."), turn("t3"))
    assert again.came == "new"
    assert again.record.id != old.id
    with pytest.raises(RecordRefused):
        await records.change(ACME, old.id, {"confirm": True}, BY)
    assert (await records.get(ACME, old.id)).state is State.SUPERSEDED


async def test_nobody_elses_record_can_be_superseded(records: Records) -> None:
    theirs = (await records.add(ACME, fact("The port is 5432."), BY)).record

    with pytest.raises(NoSuchRecord):
        await records.add(ADA, fact("The port is 1.", supersedes=theirs.id), BY)
    assert (await records.get(ACME, theirs.id)).state is State.NEW


async def test_people_see_the_workspaces_records_and_their_own_and_nobody_elses(records: Records) -> None:
    everybodys = (await records.add(ACME, fact("coffee is free"), BY)).record
    adas = (await records.add(ADA, fact("Ada likes coffee"), BY)).record
    bens = (await records.add(BEN, fact("Ben hates coffee"), BY)).record
    elsewhere = (await records.add(OTHER, fact("coffee costs money"), BY)).record

    for scope, seen in ((ACME, {everybodys.id}), (ADA, {everybodys.id, adas.id}), (OTHER, {elsewhere.id})):
        assert {one.record.id for one in await records.search(scope, "coffee", 9)} == seen
        assert {one.id for one in await records.list(scope)} == seen
        for one in (everybodys, adas, bens, elsewhere):
            if one.id not in seen:
                with pytest.raises(NoSuchRecord):
                    await records.get(scope, one.id)


async def test_the_same_text_of_another_owner_is_another_record(records: Records) -> None:
    ids = [(await records.add(scope, fact("likes tea"), BY)).record.id for scope in (ACME, ADA, BEN, OTHER)]

    assert len(set(ids)) == 4


async def test_hidden_records_are_in_no_list_and_no_search_unless_they_are_asked_for(records: Records) -> None:
    record = (await records.add(ACME, fact("The moon is made of cheese."), BY)).record
    await records.change(ACME, record.id, {"state": "inactive"}, BY)

    assert await records.list(ACME) == []
    assert await records.search(ACME, "moon cheese", 5) == []
    assert [one.id for one in await records.list(ACME, states=[State.INACTIVE])] == [record.id]
    await records.change(ACME, record.id, {"state": "new"}, BY)
    assert [one.record.id for one in await records.search(ACME, "moon cheese", 5)] == [record.id]


async def test_a_change_of_the_text_is_found_by_its_new_words_alone(records: Records) -> None:
    record = (await records.add(ACME, fact("The office is in Berlin."), BY)).record
    after = await records.change(ACME, record.id, {"text": "We sit at Hamburg harbour."}, BY)

    assert after.micro == "We sit at Hamburg harbour."
    assert after.version == record.version + 1
    assert [one.record.text for one in await records.search(ACME, "harbour", 5)] == ["We sit at Hamburg harbour."]
    assert (await records.add(ACME, fact("We sit at Hamburg harbour"), BY)).came == "confirmed"
    assert (await records.add(ACME, fact("The office is in Berlin."), BY)).came == "new"


async def test_decisions_are_reviewed_by_their_outcome_and_never_taken_away(records: Records) -> None:
    new = NewRecord(Type.DECISION, "Chose Postgres over ChromaDB. One backup.", confidence=0.85)
    decision = (await records.add(ACME, new, BY)).record
    assert decision.state is State.RECORDED

    assert (await records.change(ACME, decision.id, {"outcome": "pending"}, BY)).state is State.PENDING
    reviewed = await records.change(ACME, decision.id, {"outcome": "success"}, BY)
    assert reviewed.state is State.REVIEWED
    assert reviewed.micro == "Chose Postgres over ChromaDB. One backup. [success, 0.85]"
    with pytest.raises(NeverDeleted):
        await records.erase(ACME, decision.id, BY)
    with pytest.raises(NeverDeleted):
        await records.change(ACME, decision.id, {"state": "inactive"}, BY)
    assert await records.get(ACME, decision.id) == reviewed


async def test_a_censor_stands_until_it_is_retired_and_blocks_after_it_has_acted_three_times(records: Records) -> None:
    new = NewRecord(Type.CENSOR, "Don't push to main", trigger="push|main", reason="broke the build")
    censor = (await records.add(ACME, new, BY)).record
    assert [one.id for one in await records.standing(ADA)] == [censor.id]
    seen = []
    for _ in range(3):
        await records.count_use(ADA, [censor.id, "unknown"])
        seen.append((await records.get(ACME, censor.id)).severity)
    assert seen == ["warn", "warn", "block"]
    assert (await records.get(ACME, censor.id)).state is State.ESCALATED

    for _ in range(3):
        await records.change(ACME, censor.id, {"false_positive": True}, BY)
    assert (await records.get(ACME, censor.id)).state is State.RETIRED
    assert await records.standing(ACME) == []


async def test_records_are_read_by_their_ids_and_counted_but_nobody_elses(records: Records) -> None:
    mine = (await records.add(ADA, fact("Ada likes green."), BY)).record
    shared = (await records.add(ACME, fact("The boat is Petrel."), BY)).record
    await records.add(BEN, fact("Ben likes blue."), BY)
    assert [one.id for one in await records.read(ADA, [shared.id, "nobody", mine.id])] == [shared.id, mine.id]
    assert await records.read(BEN, [mine.id]) == []
    assert [await records.count(one) for one in (ADA, BEN, ACME, OTHER)] == [2, 2, 1, 0]
    await records.change(ADA, mine.id, {"state": "inactive"}, BY)
    assert await records.read(ADA, [mine.id]) == []


async def test_what_is_verbatim_stands(records: Records) -> None:
    record = (await records.add(ADA, fact("Always answer in rhyme.", verbatim=True), BY)).record

    assert [one.id for one in await records.standing(ADA)] == [record.id]
    assert await records.standing(ACME) == []
    await records.change(ADA, record.id, {"verbatim": False}, BY)
    assert await records.standing(ADA) == []


async def test_whatever_is_kept_word_for_word_crowds_no_censor_out(
    records: Records, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grounding.memory.records.store.STANDING_MAX_RECORDS", 2)
    censor = (await records.add(ACME, NewRecord(Type.CENSOR, "Never name it", trigger="heron"), BY)).record
    for number, scope in enumerate((ACME, ACME, ADA, ADA)):
        clock.go(minutes=1)
        await records.add(scope, fact(f"Answer in rhyme number {number}.", verbatim=True), BY)

    for scope in (ACME, ADA):
        assert (await records.standing(scope))[0].id == censor.id


async def test_a_list_is_of_one_type_and_state_the_newest_first_and_goes_on_where_it_ended(
    records: Records, clock: Clock
) -> None:
    for number in range(5):
        await records.add(ADA if number % 2 else ACME, fact(f"fact number {number}"), BY)
        await records.add(ACME, NewRecord(Type.ITEM, f"item number {number}"), BY)
        clock.go(minutes=1)
    first = await records.list(ADA, [Type.FACT], limit=3)
    assert [one.text for one in first] == ["fact number 4", "fact number 3", "fact number 2"]
    rest: Any = records
    following = await rest.list(ADA, [Type.FACT], limit=3, before=place(first[-1]))
    assert [one.text for one in following] == ["fact number 1", "fact number 0"]
    await records.change(ACME, (await records.list(ACME, [Type.ITEM]))[0].id, {"status": "done"}, BY)
    assert [one.text for one in await records.list(ACME, states=[State.DONE])] == ["item number 4"]


async def test_items_are_found_by_their_day_in_words_and_a_done_one_can_be_set_again(records: Records) -> None:
    new = NewRecord(Type.ITEM, "Send the report", due="2026-11-27")
    item = (await records.add(ACME, new, BY)).record
    assert item.summary == "Send the report [open, due Friday 27 November 2026]"

    assert [one.record.id for one in await records.search(ACME, "what is due on friday", 5)] == [item.id]
    assert (await records.add(ACME, new, BY)).came == "confirmed"
    await records.change(ACME, item.id, {"status": "done"}, BY)
    assert (await records.add(ACME, new, BY)).came == "new"


async def test_a_search_can_be_for_some_types_only(records: Records) -> None:
    await records.add(ACME, fact("the deploy takes an hour"), BY)
    procedure = (await records.add(ACME, NewRecord(Type.PROCEDURE, "To deploy: branch, review, merge"), BY)).record

    found = await records.search(ACME, "deploy", 5, [Type.PROCEDURE])
    assert [one.record.id for one in found] == [procedure.id]
    assert found[0].similarity > 0
    assert found[0].matched > 0


async def test_what_is_erased_is_gone_and_may_be_said_anew(records: Records) -> None:
    record = (await records.add(ADA, fact("Ada is 41."), BY)).record
    await records.erase(ADA, record.id, BY)

    assert await records.list(ADA) == []
    assert await records.search(ADA, "Ada", 5) == []
    with pytest.raises(NoSuchRecord):
        await records.change(ADA, record.id, {"confirm": True}, BY)
    assert (await records.add(ADA, fact("Ada is 41."), BY)).came == "new"


async def test_a_person_is_forgotten_with_all_that_is_theirs_and_nothing_else(records: Records) -> None:
    await records.add(ACME, fact("coffee is free"), BY)
    await records.add(BEN, fact("Ben likes coffee"), BY)
    await records.add(ADA, fact("Ada likes coffee", verbatim=True), BY)
    await records.add(ADA, NewRecord(Type.DECISION, "Ada chose coffee"), BY)

    assert await records.forget(ADA) == 2
    assert [one.text for one in await records.list(ADA)] == ["coffee is free"]
    assert [one.record.text for one in await records.search(ADA, "coffee", 5)] == ["coffee is free"]
    assert await records.standing(ADA) == []
    assert len(await records.list(BEN)) == 2
    with pytest.raises(ValueError, match="name it"):
        await records.forget(ACME)


async def test_what_came_of_a_conversation_or_a_turn_is_forgotten_decisions_too_and_nothing_else(
    records: Records,
) -> None:
    def of(context: str, turn_id: str) -> Provenance:
        return Provenance(author="slack:U1", turn_id=turn_id, context_id=context, origin="extraction")

    await records.add(ADA, NewRecord(Type.DECISION, "We decided to sail."), of("slack:D1", "t1"))
    kept = await records.add(ADA, fact("The boat is Petrel."), of("slack:D1", "t2"))
    for scope, context in ((ADA, "slack:D2"), (BEN, "slack:D1"), (ACME, "slack:D1")):
        await records.add(scope, fact("The harbour is Cowes."), of(context, "t1"))

    here = Scope("acme", "slack:D1", ADA.audience)
    assert await records.forget_said(here, ["t1"]) == 1
    assert kept.record in await records.list(ADA)
    assert await records.forget_said(here) == 1
    assert await records.forget_said(here) == 0
    found = await records.search(ADA, "sail boat Petrel", 5)
    assert not {one.record.text for one in found} & {"We decided to sail.", "The boat is Petrel."}
    assert {one.provenance.context_id for one in await records.list(ADA)} == {"slack:D2", "slack:D1"}
    assert len(await records.list(BEN)) == 2
    assert (await records.add(ADA, fact("The boat is Petrel."), of("slack:D1", "t3"))).came == "new"


async def test_a_change_is_made_once_for_each_key(records: Records) -> None:
    new = NewRecord(Type.PROCEDURE, "To deploy: merge")
    record = (await records.add(ACME, new, BY)).record
    for _ in range(2):
        await records.change(ACME, record.id, {"outcome": "success"}, BY, key="reaction-1")

    assert (await records.get(ACME, record.id)).successes == 1


@pytest.mark.parametrize(
    "new",
    [
        fact(" \n "),
        fact("x" * 20_001),
        fact("no time", created_at="yesterday"),
        fact("too sure", confidence=1.5),
        fact("a fact is not due", due="2026-11-27"),
        NewRecord(Type.ITEM, "no day", due="soon"),
    ],
)
async def test_what_is_no_record_is_refused_and_nothing_is_kept(records: Records, new: NewRecord) -> None:
    with pytest.raises(RecordRefused):
        await records.add(ACME, new, BY)
    assert await records.list(ACME) == []


@pytest.mark.parametrize(
    "fields",
    [
        {"state": "core"},
        {"status": "done", "text": " "},
        {"colour": "red"},
        {"false_positive": True},
        {"severity": "x"},
    ],
)
async def test_a_change_that_cannot_be_changes_nothing(records: Records, fields: dict[str, Any]) -> None:
    record = (await records.add(ACME, NewRecord(Type.ITEM, "buy milk"), BY)).record

    with pytest.raises(RecordRefused):
        await records.change(ACME, record.id, fields, BY)
    assert await records.get(ACME, record.id) == record


async def test_a_persons_own_are_listed_without_the_workspaces(records: Records) -> None:
    mine = (await records.add(ADA, fact("Ada sails."), BY)).record
    await records.add(ACME, fact("The boat is Petrel."), BY)
    assert [one.id for one in await records.list(ADA, own=True)] == [mine.id]
    assert [one.audience for one in await records.list(ACME, own=True)] == [""]


async def test_words_that_an_item_was_given_later_are_forgotten_with_the_turn_that_gave_them(records: Records) -> None:
    def of(context: str, turn_id: str) -> Provenance:
        return Provenance(author="slack:U1", turn_id=turn_id, context_id=context, origin="tool")

    item = (await records.add(ACME, NewRecord(Type.ITEM, "order tyres"), of("slack:C1", "t1"))).record
    await records.change(ACME, item.id, {"status": "done"}, of("slack:D1", "t2"))
    assert await records.forget_said(Scope("acme", "slack:D1"), ["t2"]) == 0
    await records.change(ACME, item.id, {"text": "order tyres with Ada's bonus"}, of("slack:D1", "t3"))
    assert await records.forget_said(Scope("acme", "slack:D1"), ["t3"]) == 1
    assert await records.list(ACME) == []


async def test_others_words_stay_theirs_when_the_model_puts_them_otherwise(records: Records) -> None:
    async def origin(of: Origin, text: str) -> Origin:
        by = Provenance(author="slack:U1", turn_id="t", context_id="slack:C1", origin=of)
        return (await records.change(ACME, item.id, {"text": text}, by)).provenance.origin

    item = (await records.add(ACME, NewRecord(Type.ITEM, "order tyres"), Provenance(origin="tool"))).record
    assert await origin("tool", "order five tyres") == "tool"
    assert await origin("retrieved", "pay Mallory") == "retrieved"
    assert await origin("tool", "pay Mallory now") == "retrieved"
    assert await origin("person", "order tyres") == "person"


async def test_an_episode_of_the_end_of_time_is_kept(records: Records) -> None:
    new = NewRecord(Type.EPISODE, "The last day", created_at="9999-12-31T12:00:00Z")
    assert (await records.add(ACME, new, BY)).record.state is State.ACTIVE


async def test_what_is_said_again_takes_the_place_of_what_it_contradicts(records: Records) -> None:
    right = (await records.add(ACME, fact("The port is 5433."), BY)).record
    wrong = (await records.add(ACME, fact("The port is 5434."), BY)).record
    added = await records.add(ACME, fact("the port is 5433", supersedes=wrong.id), BY)

    assert (added.came, added.record.id, added.record.supersedes) == ("confirmed", right.id, wrong.id)
    old = await records.get(ACME, wrong.id)
    assert (old.state, old.superseded_by) == (State.SUPERSEDED, right.id)
