"""Redis is lost, or the index: what was said and written is there again, once, and can be found."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from connectors.message import ConversationKey, Scope
from grounding.memory.records import NewRecord, Provenance, Type
from grounding.prompt_input import DegradedBlock
from grounding.retrieval import IndexEntry, IndexUnavailable, Kind, PassageIndex, encode_document
from runtime.background import ReindexCounts, RestoreCounts
from runtime.http.doctor import run_checks
from runtime.ingress import remove_workspace
from tests.emulators.bot import DOCUMENTS, Bot, bot_on

pytestmark = pytest.mark.asyncio(loop_scope="module")
ACME = Scope("acme")
HERE, THERE = ConversationKey("acme", "http", "here"), ConversationKey("acme", "http", "there/7")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[Bot]:
    async with bot_on(default_workspace="default") as bot:
        yield bot


@pytest_asyncio.fixture(loop_scope="module")
async def bot(shared: Bot) -> Bot:
    """The shared bot, whose workspace is as at the start."""
    async with asyncio.timeout(60):
        await remove_workspace(shared.runtime, ACME)
        await shared.write_documents("acme", DOCUMENTS)
    return shared.from_now()


async def restored(bot: Bot, *, dry_run: bool = False) -> RestoreCounts:
    done = RestoreCounts()
    await bot.runtime.rebuilding.restore(ACME, done, lambda _: None, dry_run=dry_run)
    return done


async def texts(bot: Bot, key: ConversationKey) -> list[str]:
    return [entry.text for entry in await bot.runtime.transcript.newest(key, 100)]


async def test_conversations_come_back_from_the_chat_logs_once_and_in_order(bot: Bot) -> None:
    """After everything in Redis was lost, and the talk had gone on for a while."""
    for number in range(3):
        await bot.say(f"word {number}\n## not a header", context="here")
    await bot.say("elsewhere", context="there/7")
    await bot.settle()
    before = {key: await texts(bot, key) for key in (HERE, THERE)}
    reach = await bot.runtime.transcript.reach(HERE)
    await bot.runtime.store.client.flushall()
    await bot.runtime.workspaces.create("acme")
    await bot.say("later", context="here")
    await bot.settle()
    later = await texts(bot, HERE)
    assert len(later) == 2

    planned = await restored(bot, dry_run=True)
    assert await texts(bot, HERE) == later
    done = await restored(bot)
    assert (done.turns, done.conversations, done.entries, done.refused) == (4, 2, 8, [])
    assert (planned.turns, planned.entries) == (4, 8)
    assert await texts(bot, HERE) == [*before[HERE], *later]
    assert await texts(bot, THERE) == before[THERE]
    assert (await bot.runtime.transcript.reach(HERE)).turns == reach.turns + 1
    assert (await restored(bot)).turns == 0

    await bot.say("and on it goes", context="here")
    await bot.settle()
    assert (await texts(bot, HERE))[:-2] == [*before[HERE], *later]
    assert (await restored(bot)).turns == 0


async def test_a_turn_that_was_forgotten_does_not_come_back(bot: Bot) -> None:
    first = await bot.say("one", context="here")
    await bot.say("two", context="here")
    await bot.settle()
    await bot.runtime.transcript.forget_turn(HERE, first["turn_id"])
    bot.runtime.copy.forgotten(HERE)
    assert (await restored(bot)).turns == 0
    assert (await texts(bot, HERE))[0] == "two"


async def test_an_index_that_was_emptied_is_filled_with_documents_turns_and_records(bot: Bot) -> None:
    said = [await bot.say(f"The deploy key {n} lives in Lockbox {n}.", context="here") for n in range(3)]
    await bot.settle()
    records = bot.runtime.records
    for scope in (ACME, Scope("acme", None, "http:ada")):
        await records.add(scope, NewRecord(Type.FACT, "Lockbox 9 is the spare."), Provenance())
    index = opened(bot)
    await index.drop_workspace(ACME)
    assert await records.search(ACME, "spare Lockbox", 3) == []
    done = ReindexCounts()
    await bot.runtime.rebuilding.reindex(ACME, done, lambda _: None)
    assert (done.documents, done.conversations, done.turns, done.records) == (3, 1, 3, 2)
    assert [one.record.text for one in await records.search(ACME, "spare Lockbox", 3)] == ["Lockbox 9 is the spare."]
    assert set(await index.sources(HERE.scope, Kind.TURN)) == {one["turn_id"] for one in said}
    assert set(await index.sources(ACME, Kind.DOCUMENT)) == {"pricing.md", "refunds.md", "oncall.md"}
    assert await bot.runtime.knowledge.finding.recall(HERE.scope, "deploy key 1 Lockbox", 3, frozenset())

    await bot.runtime.transcript.forget_turn(HERE, said[0]["turn_id"])
    await bot.runtime.rebuilding.reindex(ACME, ReindexCounts(), lambda _: None)
    assert said[0]["turn_id"] not in await index.sources(HERE.scope, Kind.TURN)


async def test_an_index_of_another_model_gets_what_was_said_before(bot: Bot) -> None:
    """By itself, and once."""
    said = await bot.say("The deploy key lives in Lockbox.", context="here")
    await bot.settle()
    index, catalogue, name = opened(bot), bot.runtime.knowledge.catalogue, await name_of(bot)
    await bot.runtime.rebuilding.fill_new_index()
    assert await catalogue.is_complete(ACME, name)
    await index.drop_workspace(ACME)
    await catalogue.forget(ACME, name)
    await bot.runtime.rebuilding.fill_new_index()
    assert set(await index.sources(HERE.scope, Kind.TURN)) == {said["turn_id"]}
    filled = len(bot.told("index.remembered"))
    await bot.runtime.rebuilding.fill_new_index()
    assert len(bot.told("index.remembered")) == filled


async def test_what_an_index_has_already_is_not_put_into_it_again(bot: Bot) -> None:
    """After a crash in the middle, or back at a model that was left for a while; what was said otherwise is."""
    for number in range(3):
        await bot.say(f"The deploy key {number} lives in Lockbox {number}.", context="here")
    await bot.settle()
    catalogue, name = bot.runtime.knowledge.catalogue, await name_of(bot)
    await catalogue.forget(ACME, name)
    turns = (await bot.runtime.knowledge.ready()).turns
    known = sorted(await turns.known(HERE.scope))
    await turns.forget(HERE.scope, known[:1])
    index = opened(bot)
    (passage,) = (await index.read(HERE.scope, Kind.TURN, {known[1]: [0]}))[known[1]]
    stored = (await index.vectors(HERE.scope, Kind.TURN, [passage.id]))[passage.id]
    changed = replace(passage, text="something else")
    await index.upsert(HERE.scope, [IndexEntry(changed, stored, encode_document("something else"))])
    await bot.runtime.rebuilding.fill_workspace(ACME)
    assert sorted(await turns.known(HERE.scope)) == known
    assert (await index.read(HERE.scope, Kind.TURN, {known[1]: [0]}))[known[1]] == [passage]
    assert bot.told("index.remembered")[-1]["turns"] == 2


def opened(bot: Bot) -> PassageIndex:
    target = bot.runtime.knowledge.collections.target
    assert target is not None
    return target.index


async def name_of(bot: Bot) -> str:
    return (await bot.runtime.knowledge.ready()).name


async def test_what_a_damaged_index_had_is_indexed_and_remembered_again_by_itself(data_dir: Path) -> None:
    """Documents, turns and records, at the next start."""
    async with bot_on(data_dir=data_dir) as bot, asyncio.timeout(60):
        said = await bot.say("The deploy key lives in Lockbox.", context="here")
        await bot.settle()
        await bot.runtime.records.add(ACME, NewRecord(Type.FACT, "Lockbox 9 is the spare."), Provenance())
        await bot.runtime.rebuilding.fill_new_index()
        documents = await opened(bot).sources(ACME, Kind.DOCUMENT)
    (shard,) = (data_dir / "qdrant").iterdir()
    for file in shard.rglob("status.dat"):
        os.truncate(file, 0)
    async with bot_on(data_dir=data_dir) as bot, asyncio.timeout(60):
        await bot.settle()
        await bot.runtime.rebuilding.fill_new_index()
        await bot.runtime.knowledge.index(ACME)
        index = opened(bot)
        assert set(await index.sources(HERE.scope, Kind.TURN)) == {said["turn_id"]}
        assert await index.sources(ACME, Kind.DOCUMENT) == documents
        assert await bot.runtime.records.search(ACME, "spare Lockbox", 3)
        assert await bot.runtime.knowledge.catalogue.is_complete(ACME, await name_of(bot))
        assert [*shard.parent.glob(f"{shard.name}.damaged-*")]


async def test_what_is_found_damaged_while_the_bot_runs_counts_as_missing_until_it_is_filled_again(
    data_dir: Path,
) -> None:
    async with bot_on(data_dir=data_dir) as bot, asyncio.timeout(60):
        said = await bot.say("The deploy key lives in Lockbox.", context="here")
        await bot.settle()
        await bot.runtime.rebuilding.fill_new_index()
        documents = await opened(bot).sources(ACME, Kind.DOCUMENT)
        (shard,) = (data_dir / "qdrant").iterdir()
        for file in shard.rglob("status.dat"):
            os.truncate(file, 0)
        assert bot.runtime.engine is not None
        assert bot.runtime.engine.pid is not None
        os.kill(bot.runtime.engine.pid, signal.SIGKILL)

        while not [*shard.parent.glob(f"{shard.name}.damaged-*")]:
            lost: list[DegradedBlock] = []
            with suppress(IndexUnavailable):
                assert await bot.runtime.knowledge.finding.search(ACME, "harbour plan", 3, lost=lost) or lost
            await asyncio.sleep(0.01)
        while await opened(bot).sources(ACME, Kind.DOCUMENT) != documents:
            await asyncio.sleep(0.05)
        while said["turn_id"] not in await opened(bot).sources(HERE.scope, Kind.TURN):
            await asyncio.sleep(0.05)


async def test_doctor_says_that_the_index_lacks_what_it_should_have_and_reindex_puts_it_back(bot: Bot) -> None:
    await bot.say("The deploy key lives in Lockbox.", context="here")
    await bot.settle()
    await bot.runtime.rebuilding.fill_new_index()
    await bot.runtime.knowledge.index(ACME)
    await opened(bot).drop_workspace(ACME)

    (check,) = [one for one in await run_checks(bot.runtime) if one.name == "index acme"]
    assert not check.ok
    assert check.advice == "run `agent-runtime reindex --workspace acme`"

    await bot.runtime.rebuilding.reindex(ACME, ReindexCounts(), lambda _: None)
    (check,) = [one for one in await run_checks(bot.runtime) if one.name == "index acme"]
    assert check.ok
    assert await opened(bot).sources(ACME, Kind.DOCUMENT)
    assert await opened(bot).sources(HERE.scope, Kind.TURN)
