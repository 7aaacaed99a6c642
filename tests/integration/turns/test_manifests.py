"""What went into each turn is kept, and records that are forgotten leave it."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from connectors.message import Scope, new_turn_id
from connectors.redis_calls import ask
from grounding.prompt import UNKNOWN, build_prompt
from grounding.prompt_input import Censor, CodexFile, CodexInput, RunContext, SelectedRecord, load_tokens
from runtime.turns.manifest import Manifests, UnknownTurn
from tests.emulators.prompts import context


async def test_manifests_are_listed_newest_first_and_paged(redis: Redis) -> None:
    manifests, tokens = Manifests(redis), load_tokens()
    ids = sorted(new_turn_id() for _ in range(5))
    for turn_id in ids:
        changed = context(turn_id=turn_id)
        await manifests.keep(changed, build_prompt(changed, tokens), "2026-11-21T10:00:00Z")

    first = await manifests.newest(Scope("acme"), 2)
    rest = await manifests.newest(Scope("acme"), 10, before=first[-1].turn_id)

    assert [one.turn_id for one in (*first, *rest)] == ids[::-1]


async def test_what_went_into_many_turns_is_told_whole_without_those_that_are_not_known(redis: Redis) -> None:
    """With the material that they were given: what was said about it is somebody else's."""
    manifests, tokens = Manifests(redis), load_tokens()
    files = (CodexFile(path="rules.md", text="Nobody swims at night."),)
    given = CodexInput(mode="whole", why="fits", tokens=9, weight=9, limit=100, count=1, files=files)
    ids = sorted(new_turn_id() for _ in range(20))
    kept = {turn_id: context(turn_id=turn_id, codex=given if turn_id == ids[12] else None) for turn_id in ids}
    for one in kept.values():
        await manifests.keep(one, build_prompt(one, tokens), "2026-11-21T10:00:00Z")

    assert await Manifests(redis).contexts(Scope("acme"), [*ids, "t-unknown"]) == kept
    assert await manifests.contexts(Scope("acme"), []) == {}
    assert await manifests.contexts(Scope("other"), ids) == {}


def rules(*ids: str) -> tuple[Censor, ...]:
    return tuple(Censor(id=one, severity="warn", text=f"Never say {one}") for one in ids)


async def test_a_turn_that_is_kept_anew_does_not_bring_back_what_was_cut_out_meanwhile(redis: Redis) -> None:
    """As where a fallback read less: its prompt is kept once more after the answer."""
    manifests, tokens, acme = Manifests(redis), load_tokens(), Scope("acme")
    shown = context().model_copy(update={"censors": rules("r1", "r2")})
    prompt = build_prompt(shown, tokens)
    await manifests.keep(shown, prompt, "2026-11-21T10:00:00Z")
    await manifests.cut_records(acme, ["r1", "r9"])
    await manifests.keep_again(shown, prompt, "2026-11-21T10:00:01Z", prefix=UNKNOWN)

    kept = await manifests.get(acme, shown.turn_id)

    assert kept.at == "2026-11-21T10:00:01Z"
    assert (kept.context.censors, kept.cut) == (rules("r2"), 1)


async def test_a_turn_that_was_forgotten_while_a_fallback_answered_is_not_kept_anew(redis: Redis) -> None:
    manifests, shown = Manifests(redis), context()
    prompt = build_prompt(shown, load_tokens())
    await manifests.keep(shown, prompt, "2026-11-21T10:00:00Z")
    await manifests.forget(Scope("acme"), [shown.turn_id])

    await manifests.keep_again(shown, prompt, "2026-11-21T10:00:01Z", prefix=UNKNOWN)

    with pytest.raises(UnknownTurn):
        await manifests.get(Scope("acme"), shown.turn_id)


def fact(name: str) -> SelectedRecord:
    return SelectedRecord(
        id=name, type="fact", level="summary", text=f"It is {name}", state="new", made_on="", due="", score=0,
        similarity=0, origin="", verbatim=False, tokens=5,
    )  # fmt: skip


async def test_a_turn_that_is_kept_after_its_record_was_cut_is_kept_without_it(redis: Redis) -> None:
    """It read the record just before that was erased, and nobody looks at it a second time."""
    manifests, tokens, acme = Manifests(redis), load_tokens(), Scope("acme")
    shown = context().model_copy(update={"records": (fact("r1"), fact("r2")), "censors": rules("c1", "c2")})
    await manifests.cut_records(acme, ["r1", "c2"])
    await manifests.keep(shown, build_prompt(shown, tokens), "2026-11-21T10:00:00Z")

    kept = await manifests.get(acme, shown.turn_id)

    assert ([one.id for one in kept.context.records], kept.context.censors, kept.cut) == (["r2"], rules("c1"), 2)


async def test_a_turn_that_is_not_among_the_newest_any_more_is_kept_nowhere(redis: Redis) -> None:
    """Nobody who has a record forgotten would find it there."""
    manifests, tokens, acme = Manifests(redis, kept_turns=2), load_tokens(), Scope("acme")
    for number in range(4):
        one = context(turn_id=f"t{number}").model_copy(update={"records": (fact("r1"),)})
        await manifests.keep(one, build_prompt(one, tokens), "2026-11-21T10:00:00Z")
        await ask(redis, manifests.finish_call(acme, one.turn_id, {"error": ""}, 1))
    await manifests.cut_records(acme, ["r1"])

    assert set(await manifests.contexts(acme, ["t0", "t1", "t2", "t3"])) == {"t2", "t3"}
    assert [one.cut for one in await manifests.newest(acme, 10)] == [1, 1]
    assert not [key async for key in redis.scan_iter() if key.endswith(("t0", "t1"))]


async def test_the_outcome_of_a_later_attempt_is_not_replaced_by_that_of_an_earlier_one(redis: Redis) -> None:
    """A worker that hung answers although another one has answered the turn in its place."""
    manifests, shown, acme = Manifests(redis), context(), Scope("acme")
    await manifests.keep(shown, build_prompt(shown, load_tokens()), "2026-11-21T10:00:00Z")
    for attempt, model in ((1, "small"), (2, "large"), (2, "larger"), (1, "late")):
        await ask(redis, manifests.finish_call(acme, shown.turn_id, {"model": model}, attempt))

    assert (await manifests.get(acme, shown.turn_id)).outcome == {"model": "larger"}


async def test_records_are_cut_while_turns_are_kept_and_kept_anew_and_none_holds_them_after(redis: Redis) -> None:
    manifests, tokens, acme = Manifests(redis), load_tokens(), Scope("acme")
    turns = [
        context(turn_id=f"t{number}").model_copy(update={"records": (fact("r1"), fact(f"s{number}"))})
        for number in range(20)
    ]

    async def live(one: RunContext) -> None:
        prompt = build_prompt(one, tokens)
        await manifests.keep(one, prompt, "2026-11-21T10:00:00Z")
        await manifests.keep_again(one, prompt, "2026-11-21T10:00:01Z", prefix=UNKNOWN)

    await asyncio.gather(*map(live, turns[:10]), manifests.cut_records(acme, ["r1"]), *map(live, turns[10:]))

    for number in range(20):
        kept = await manifests.get(acme, f"t{number}")
        assert ([one.id for one in kept.context.records], kept.cut) == ([f"s{number}"], 1)
