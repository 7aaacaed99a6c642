"""Censors act: what goes against a block reaches nobody, what goes against a warning is put to the model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from connectors.message import Scope, StoreUnavailable
from grounding.memory.records import NewRecord, Provenance, Record, RecordStore, Type
from tests.emulators.bot import Bot
from tests.emulators.openai import Reply, told
from tests.emulators.toolbox import Desk, desk_beside

pytestmark = pytest.mark.asyncio(loop_scope="module")
STREAM = {"accept": "text/event-stream"}


@pytest.fixture(scope="module")
def desk() -> Iterator[Desk]:
    with pytest.MonkeyPatch.context() as patch:
        yield desk_beside(patch)


@pytest.fixture(scope="module")
def bot_settings(desk: Desk) -> dict[str, Any]:
    return {"llm_tools": "always"}


@pytest.fixture
def bot(own_bot: Bot, desk: Desk) -> Bot:
    desk.noted.clear()
    return own_bot


async def forbid(bot: Bot, severity: Any = "block", audience: str | None = None) -> Record:
    new = NewRecord(
        type=Type.CENSOR,
        text="Never name the code word",
        trigger="blue heron|code word is",
        reason="it is secret",
        severity=severity,
    )
    return (await bot.runtime.records.add(Scope(bot.workspace, audience=audience), new, Provenance())).record


async def test_a_reply_that_goes_against_a_block_is_stopped_and_its_reason_told(bot: Bot) -> None:
    censor = await forbid(bot)
    bot.model.will("It is Blue Heron, of course.")
    answer = await bot.say("what do you call the project?")
    bot.model.will("I had rather not say.")
    fine = await bot.say("and what else?")
    await bot.settle()

    assert "goes against a rule that holds here: Never name the code word (it is secret)." in answer["text"]
    assert "Heron" not in answer["text"]
    assert "heron" not in bot.sent["user"].lower()
    assert fine["text"] == "I had rather not say."
    assert "- BLOCK: Never name the code word — it is secret" in bot.sent["system"]
    [acted] = bot.told("censor.acted")
    assert (acted["record_id"], acted["severity"], acted["where"]) == (censor.id, "block", "reply")
    assert (await bot.runtime.records.get(Scope(bot.workspace), censor.id)).activations == 1


async def test_while_a_block_is_in_force_nothing_of_a_reply_is_seen_before_it_is_checked(bot: Bot) -> None:
    await forbid(bot)
    bot.model.will("Let me think about it. It is Blue Heron.", "Let me think about it. No.")
    stopped = await bot.post("what do you call the project?", headers=STREAM)
    passed = await bot.post("and what else is there to tell?", context="b", headers=STREAM)

    assert "Let me think" not in stopped.text
    assert "Heron" not in stopped.text
    assert "rule that holds here" in stopped.text
    assert passed.text.count("event: delta") == 1
    assert "Let me think about it. No." in passed.text


async def test_a_process_that_never_read_the_censors_says_nothing_until_it_has(
    bot: Bot, monkeypatch: pytest.MonkeyPatch
) -> None:
    await forbid(bot)
    standing, looks = RecordStore.standing, 0

    async def away_at_first(store: RecordStore, scope: Scope, newest: list[Record] | None = None) -> list[Record]:
        nonlocal looks
        looks += 1
        if looks <= 3:
            raise StoreUnavailable("away")
        return await standing(store, scope, newest)

    monkeypatch.setattr(RecordStore, "standing", away_at_first)
    bot.model.will("It is Blue Heron, of course.")
    answer = await bot.say("what do you call the project?")

    assert "rule that holds here" in answer["text"]
    assert "Heron" not in answer["text"]
    assert looks > 3


async def test_a_tool_call_against_a_block_is_not_made_and_one_against_a_warning_is_made_and_warned_of(
    bot: Bot, desk: Desk
) -> None:
    blocking = await forbid(bot, "block")
    call = Reply(tool_calls=(("note", {"words": "the Blue Heron flies"}),))
    bot.model.will(call, "I could not note it.")
    await bot.say("write that down, will you?")
    [refused] = told(bot.replies_asked[-1])
    noted = len(desk.noted)

    await bot.runtime.records.change(Scope(bot.workspace), blocking.id, {"severity": "warn"}, Provenance())
    bot.model.will(call, "Noted.")
    await bot.say("write it down all the same", context="b")
    [warned] = told(bot.replies_asked[-1])

    assert noted == 0
    assert "it was stopped, and nothing was done: Never name the code word (it is secret)" in refused
    assert len(desk.noted) == 1
    assert "Warning: Never name the code word (it is secret)." in warned
    assert "noted" in warned


async def test_a_warning_becomes_a_block_once_it_has_acted_often_enough_and_not_by_being_read(bot: Bot) -> None:
    censor = await forbid(bot, "warn")
    for number in range(3):
        bot.model.will("The code word is on the wall.", "The code word is on the wall.")
        answer = await bot.say("where is it?", context=f"c{number}")
        assert answer["text"] == "The code word is on the wall."
        await bot.settle()
        await bot.say("what is the capital of France?", context=f"c{number}")

    bot.model.will("The code word is on the wall.")
    answer = await bot.say("where is it?", context="d")

    assert "rule that holds here" in answer["text"]
    await bot.settle()
    assert (await bot.runtime.records.get(Scope(bot.workspace), censor.id)).activations == 4


async def test_a_reply_against_a_warning_is_put_to_the_model_once_before_anybody_sees_it(bot: Bot) -> None:
    censor = await forbid(bot, "warn")
    bot.model.will("The code word is on the wall.", "It is on the wall.")
    heeded = await bot.post("where is it?", headers=STREAM)
    asked = bot.replies_asked[-1]["messages"]
    bot.model.will("The code word is on the wall.", "The code word is on the wall, I repeat.")
    repeated = await bot.say("where is it?", context="b")
    await bot.settle()

    assert "code word" not in heeded.text
    assert "It is on the wall." in heeded.text
    assert [one["role"] for one in asked] == ["system", "user", "assistant", "user"]
    assert asked[2]["content"] == "The code word is on the wall."
    assert "Never name the code word (it is secret)" in asked[3]["content"]
    assert repeated["text"] == "The code word is on the wall, I repeat."
    assert len(bot.replies_asked) == 4
    assert (await bot.runtime.records.get(Scope(bot.workspace), censor.id)).activations == 2
    assert bot.told("turn.answered")[0]["rounds"] == 2


async def test_a_warned_reply_is_sent_as_it_was_where_the_model_fails_to_write_another(bot: Bot) -> None:
    await forbid(bot, "warn")
    bot.model.will("The code word is on the wall.", *[Reply(trouble="not_found")] * 9)
    answer = await bot.say("where is it?")

    assert answer["text"] == "The code word is on the wall."


async def test_a_warned_reply_is_sent_as_it_was_where_the_model_only_wants_tools_then(bot: Bot, desk: Desk) -> None:
    await forbid(bot, "warn")
    bot.model.will("The code word is on the wall.", Reply(tool_calls=(("note", {"words": "again"}),)))
    answer = await bot.say("where is it?")

    assert answer["text"] == "The code word is on the wall."
    assert desk.noted == []


async def test_a_warned_reply_that_is_sent_as_it_was_keeps_what_was_said_beside_its_tool_calls(bot: Bot) -> None:
    await forbid(bot, "warn")
    noting = Reply("I note it first.", tool_calls=(("note", {"words": "the wall"}),))
    bot.model.will(noting, "The code word is on the wall.", *[Reply(trouble="not_found")] * 9)
    answer = await bot.say("where is it?")

    assert answer["text"] == "I note it first.\n\nThe code word is on the wall."


async def test_a_persons_own_censor_binds_in_their_direct_messages_only(bot: Bot) -> None:
    await forbid(bot, audience="http:u1")
    for direct, context in ((True, "dm"), (False, "group")):
        bot.model.will("It is Blue Heron.")
        answer = await bot.say("what do you call the project?", context=context, direct=direct)
        assert ("Heron" in answer["text"]) is not direct
