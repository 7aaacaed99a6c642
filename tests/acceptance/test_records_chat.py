"""What people say in passing, or have the bot keep, is there in other conversations, and theirs to take away."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from config.settings import Settings
from connectors.message import Scope
from grounding.memory.records import Type
from runtime.llm import Completion
from tests.emulators.bot import Bot, running_bot
from tests.emulators.openai import FakeOpenAI, Reply, about_records, told

BO: dict[str, Any] = {"author": {"id": "u2", "name": "Bo"}}
BOSS: dict[str, Any] = {"author": {"id": "boss", "name": "Ada"}}


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def bot_settings() -> dict[str, Any]:
    return {
        "access_admins": "http:boss",
        "llm_tools": "always",
        "records_extraction": True,
        "records_extraction_turns": 2,
        "llm_context_window_tokens": 32_000,
    }


@pytest_asyncio.fixture(loop_scope="module")
async def bot(own_bot: Bot) -> AsyncIterator[Bot]:
    yield own_bot
    await own_bot.settle()  # what looks for records takes no answer of the next test


async def kept(bot: Bot, user: str | None = None) -> list[str]:
    return [one.text for one in await bot.runtime.records.list(Scope(bot.workspace, None, user))]


async def test_a_model_finds_what_was_said_once_and_people_can_see_confirm_and_forget_it(bot: Bot) -> None:
    """In a group it is the workspace's. A poor answer afterwards changes nothing."""
    found = {"type": "decision", "text": "We moor the Petrel in Cowes", "evidence": [1], "personal": False}
    answers = [json.dumps({"records": [found]}), "Sure! {records: none}"]

    def answer(body: dict[str, Any]) -> Reply | str:
        return answers.pop(0) if about_records(body) else "Noted."

    bot.model.answer = answer
    for text in ("we moor the Petrel in Cowes from now on", "fine?", "is the sky blue?", "and the sea?"):
        await bot.say(text)
        await bot.settle()
    assert answers == []
    assert await kept(bot) == ["We moor the Petrel in Cowes"]
    (event,) = [one for one in bot.told("records.kept") if one["new"]]
    assert "Cowes" not in json.dumps(event)

    (record,) = await bot.runtime.records.list(Scope(bot.workspace))
    assert record.id in (await bot.say("/memory list", **BOSS))["text"]
    assert "only admins can list" in (await bot.say("/memory list", **BO))["text"]
    assert "found in what was said by `http:u1`" in (await bot.say(f"/memory show {record.id}", **BO))["text"]
    assert "Outcome noted" in (await bot.say(f"/memory outcome {record.id} success", **BO))["text"]
    assert "/memory list" in (await bot.say("/memory", **BOSS))["text"]
    await bot.say("/forget all", **BOSS)
    assert await kept(bot) == []


async def test_who_has_their_records_forgotten_gets_none_of_what_they_said_before(bot: Bot) -> None:
    looked_through: list[str] = []

    def answer(body: dict[str, Any]) -> str:
        if about_records(body):
            looked_through.append(json.dumps(body["messages"]))
            return '{"records": []}'
        return "Noted."

    bot.model.answer = answer
    for text in ("I am allergic to nuts", "/memory forget all", "I like rowing", "and sailing", "and swimming"):
        await bot.say(text, context="dm", direct=True)
        await bot.settle()
    assert "rowing" in "".join(looked_through)
    assert "nuts" not in "".join(looked_through)


@pytest.mark.asyncio(loop_scope="function")
async def test_without_a_model_of_its_own_what_a_person_stated_is_known_in_their_other_conversations_alone(
    settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    async with running_bot(settings(access_policy="open"), openai_server) as bot:
        asked: list[str] = []

        async def answer(messages: Any, *_: Any, **__: Any) -> Completion:
            asked.append(str(messages))
            return Completion("Noted.", "local/none")

        bot.runtime.model.complete = answer  # type: ignore[method-assign]
        await bot.say("The launch date is 12 March.", context="dm", direct=True)
        await bot.settle()
        await bot.say("No, make it 14 March.", context="dm", direct=True)
        await bot.settle()

        await bot.say("when is the launch?", context="another dm", direct=True)
        assert "launch date: 14 March" in asked[-1]
        for where in ({"context": "team"}, {"context": "dm of Bo", "direct": True, **BO}):
            await bot.say("when is the launch?", **where)
            assert "March" not in asked[-1]
        assert sorted(await kept(bot, "http:u1")) == ["launch date: 12 March", "launch date: 14 March"]
        assert await kept(bot) == []
        assert await kept(bot, "http:u2") == []
        listed = (await bot.say("/memory list", context="dm", direct=True))["text"]
        assert "superseded: launch date: 12 March" in listed
        await bot.say("/forget last", context="dm", direct=True)
        assert await kept(bot, "http:u1") == ["launch date: 12 March"]
        await bot.say("/memory forget all", context="dm", direct=True)
        assert await kept(bot, "http:u1") == []


async def test_a_task_that_was_named_in_one_conversation_is_found_in_another(bot: Bot) -> None:
    task = {"kind": "task", "text": "order tyres for the trailer", "due": "in two weeks"}
    bot.model.will(Reply(tool_calls=(("create_item", task),)), "Noted.")
    await bot.say("we need tyres in two weeks")
    assert "open task, due " in str(told(bot.replies_asked[-1])[-1])

    bot.model.will(Reply(tool_calls=(("query_items", {"text": "trailer", "due_before": "in a month"}),)), "Tyres.")
    await bot.say("what is there to do?", context="elsewhere")
    assert "order tyres for the trailer" in str(told(bot.replies_asked[-1])[-1])
    (item,) = await bot.runtime.records.list(Scope(bot.workspace), (Type.ITEM,))
    bot.model.will(Reply(tool_calls=(("update_item", {"id": item.id, "status": "done"}),)), "Done.")
    await bot.say("the tyres are here", context="elsewhere")
    bot.model.will(Reply(tool_calls=(("expand", {"record": item.id}),)), "It was.")
    await bot.say("what about the tyres?")
    assert f"item {item.id}, done" in str(told(bot.replies_asked[-1])[-1])


@pytest.mark.asyncio(loop_scope="function")
async def test_a_standing_rule_is_followed_where_it_applies_and_belongs_to_who_said_it(
    settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    async with running_bot(settings(access_policy="open"), openai_server) as bot:
        asked: list[str] = []

        async def answer(messages: Any, *_: Any, **__: Any) -> Completion:
            asked.append(str(messages[1]["content"]))
            return Completion("Noted.", "local/none")

        bot.runtime.model.complete = answer  # type: ignore[method-assign]

        async def say(text: str, **where: Any) -> str:
            reply = await bot.say(text, **where)
            await bot.settle()
            return str(reply["text"])

        dm: dict[str, Any] = {"context": "dm", "direct": True}
        other_dm: dict[str, Any] = {"context": "another dm", "direct": True}
        await say("Always mention version numbers when I ask about software libraries.", **dm)
        await say("From now on answer in German.", **dm)
        await say("which software libraries does the importer use?", **other_dm)
        assert "<standing_rules>" in asked[-1]
        assert "Always mention version numbers when I ask about software libraries" in asked[-1]
        await say("who painted the ceiling of the chapel?", **other_dm)
        assert "From now on answer in German" in asked[-1]
        assert "version numbers" not in asked[-1]
        await say("thanks!", **other_dm)
        assert asked[-1] == "thanks!"

        await say("Please answer in French from now on.", **dm)
        await say("what is due on Friday?", **other_dm)
        assert "answer in French from now on" in asked[-1]
        assert "German" not in asked[-1]
        listed = await say("/memory", **other_dm)
        assert "What you asked me to keep to" in listed
        (french,) = [
            one for one in await bot.runtime.records.list(Scope(bot.workspace, None, "http:u1")) if "French" in one.text
        ]
        assert "Changed" in await say(f"/memory change {french.id} answer in Dutch from now on", **other_dm)
        await say("what is due on Monday?", **other_dm)
        assert "answer in Dutch from now on" in asked[-1]
        assert "deleted" in await say(f"/memory forget {french.id}", **other_dm)
        await say("what is due on Tuesday?", **other_dm)
        assert "Dutch" not in asked[-1]

        await say("Never use emojis in answers, please.", context="team")
        await say("I prefer trains over planes.", context="team")
        await say("what is due on Friday?", context="team 2")
        assert "Never use emojis in answers" in asked[-1]
        assert "trains" not in asked[-1]
        await say("what is due on Friday?", context="team 2", **BO)
        assert "emojis" not in asked[-1]
