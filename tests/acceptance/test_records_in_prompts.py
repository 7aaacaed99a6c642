"""What was remembered as records, as the model gets it: when it bears on the message, and only then."""

from __future__ import annotations

from typing import Any

from connectors.message import Scope
from grounding.memory.records.port import NewRecord
from grounding.memory.records.record import Provenance, Type
from tests.emulators.bot import Bot

ACME = Scope("acme")
LENA = Scope("acme", user="http:u1")
POSTGRES = "Chose Postgres with pgvector over a separate vector store, because one backup is enough"
HARBOUR = "The harbour master's radio listens on channel 12"


async def remember(bot: Bot, of: Type, text: str, scope: Scope = ACME, **more: Any) -> str:
    added = await bot.runtime.records.add(scope, NewRecord(type=of, text=text, **more), Provenance())
    return added.record.id


async def test_records_that_bear_on_the_message_are_shown_and_others_are_not(bot: Bot) -> None:
    await remember(bot, Type.DECISION, POSTGRES, outcome="success", confidence=0.85)
    await remember(bot, Type.FACT, HARBOUR)

    await bot.say("Hi! Should we choose Postgres with pgvector again?")
    decided = bot.sent["user"]
    await bot.say("which channel does the harbour master's radio listen on?", context="b")
    asked = bot.sent["user"]
    await bot.say("thanks!", context="c")

    assert POSTGRES in decided
    assert "Current approach: decision." in decided
    assert "channel 12" not in decided
    assert HARBOUR in asked
    assert "Postgres" not in asked
    assert bot.sent["user"] == "thanks!"


async def test_records_stay_while_the_conversation_is_about_them_and_go_when_it_leaves_them(bot: Bot) -> None:
    await remember(bot, Type.DECISION, POSTGRES)
    await bot.say("Should we choose Postgres with pgvector again?")
    await bot.say("Should we prefer pgvector in Postgres?")
    await bot.say("Should we paint the boat green instead?")

    why = [one["records_why"] for one in bot.told("grounding.assembled")]
    assert why == ["cold", "reused", "aside"]
    assert "<memory_records>" not in bot.sent["user"]


async def test_a_persons_own_records_show_in_direct_messages_with_that_person_only(bot: Bot) -> None:
    await remember(bot, Type.FACT, "Lena is allergic to peanuts", LENA)
    question = "what is Lena allergic to?"

    for number, (author, direct, shown) in enumerate([("u1", True, True), ("u1", False, False), ("u2", True, False)]):
        await bot.say(question, context=f"c{number}", author={"id": author, "name": "L"}, direct=direct)
        assert ("peanuts" in bot.sent["user"]) is shown


async def test_without_an_index_a_turn_says_that_records_are_missing_and_goes_on(bot: Bot) -> None:
    await remember(bot, Type.FACT, HARBOUR)
    await bot.runtime.knowledge.close()

    answer = await bot.say("which channel does the harbour master's radio listen on?")

    assert "records" in {one["block"] for one in answer["degraded"]}
    assert answer["text"].startswith("You said: ")


async def test_how_reviewed_decisions_came_out_is_told_once_there_are_ten(bot: Bot) -> None:
    question = "Should we choose Postgres with pgvector again?"
    for number in range(10):
        outcome = "success" if number < 6 else "failure"
        await remember(bot, Type.DECISION, f"Chose plan {number} for the boat", outcome=outcome, confidence=0.9)
    await bot.say(question)

    assert "of 10 reviewed decisions 60% came out well (Brier 0.330). Overconfident" in bot.sent["user"]
