"""What was remembered as records, as the model gets it: when it bears on the message, and only then."""

from __future__ import annotations

from typing import Any

import pytest

from connectors.message import Scope
from grounding.memory.records import NewRecord, Provenance, Type
from tests.emulators.bot import Bot

pytestmark = pytest.mark.asyncio(loop_scope="module")

LENA = "http:u1"
POSTGRES = "Chose Postgres with pgvector over a separate vector store, because one backup is enough"
HARBOUR = "The harbour master's radio listens on channel 12"


@pytest.fixture
def bot(own_bot: Bot) -> Bot:
    return own_bot


async def remember(bot: Bot, of: Type, text: str, audience: str | None = None, **more: Any) -> str:
    scope = Scope(bot.workspace, audience=audience)
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


async def test_how_reviewed_decisions_came_out_is_told_once_there_are_ten(bot: Bot) -> None:
    question = "Should we choose Postgres with pgvector again?"
    for number in range(10):
        outcome = "success" if number < 6 else "failure"
        if number == 9:
            await bot.say(question)
            assert "reviewed decisions" not in bot.sent["user"]
        await remember(bot, Type.DECISION, f"Chose plan {number} for the boat", outcome=outcome, confidence=0.9)
    await bot.say(question, context="later")

    assert "of 10 reviewed decisions 60% came out well (Brier 0.330). Overconfident" in bot.sent["user"]


async def test_a_record_is_found_by_what_it_says_first_although_sixty_figures_follow(bot: Bot) -> None:
    figures = " ".join(f"{number * 37 % 101}.{number % 10}" for number in range(60))
    await remember(bot, Type.FACT, f"The tide gauge at Kiel is read every morning. {figures}")
    for number in range(20):
        await remember(bot, Type.FACT, f"The harbour note number {number} tells of ropes, paint and lamps")

    await bot.say("When do people look at the water level meter in Kiel?")

    assert "The tide gauge at Kiel is read every morning." in bot.sent["user"]


async def test_the_only_item_is_found_by_its_day_by_those_who_may_see_it(bot: Bot) -> None:
    await remember(bot, Type.ITEM, "Submit the VAT return", LENA, due="2099-12-10")

    for number, question in enumerate(["Anything on 2099-12-10?", "What is there in December 2099?"]):
        await bot.say(question, context=f"direct{number}", direct=True)
        assert "Submit the VAT return" in bot.sent["user"]
        await bot.say(question, context=f"public{number}")
        assert "VAT" not in bot.sent["user"]


async def test_what_is_overdue_is_shown_but_not_what_is_done(bot: Bot) -> None:
    await remember(bot, Type.ITEM, "Submit the VAT return", due="2020-12-10")
    await remember(bot, Type.ITEM, "Renew the mooring", due="2020-03-01", status="done")
    await remember(bot, Type.ITEM, "Call the printer", due="2020-02-01")

    await bot.say("What's overdue?")

    sent = bot.sent["user"]
    assert sent.index("Call the printer") < sent.index("Submit the VAT return")
    assert "mooring" not in sent
