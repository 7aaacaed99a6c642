"""Without a language model the bot quotes: the whole path from a message over HTTP to a reply, on two handbooks."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

import runtime
from config.settings import EXTRACTIVE, Settings
from connectors.message import ConversationKey, Scope
from promptpolicy.condense import NotCondensed
from promptpolicy.policy import Kind, Place, Slot
from tests.emulators.bot import Bot, running_bot
from tests.emulators.openai import FakeOpenAI

SAMPLE = Path(runtime.__file__).parent / "sample"
FACTS = Path(__file__).parents[1] / "data" / "sample_facts.jsonl"
REWORDINGS = FACTS.with_name("sample_rewordings.jsonl")
"""How people put questions to the sample, in keywords, politely, in lower case; nothing answers those without facts.
None was looked at while the quoting was made better."""
MOST_SENTENCES, MOST_CHARACTERS = 8, 1100

ALSO_IN_THE_SAMPLE = {
    "How much does the radar tide gauge cost?": "1,290 €",
    "What is the warranty on the salinity probe?": "2 years",
    "How many reviewers does a hotfix need?": "two reviewers",
    "When does the winter freeze end?": "6 January",
    "How fast does the security lead have to decide whether customers are told?": "four hours",
    "What is the screen lock time for a telephone?": "1 minute",
    "How many vacation days can be carried over?": "five days",
    "How long may a sabbatical be?": "six months",
    "What is the daily allowance for a full day abroad?": "41 €",
    "How many people may I entertain without asking?": "at most six people",
    "How much is given for the desk at home?": "400 €",
    "How many hours do engineers rest after a call at night?": "eleven hours",
    "What does a change of address cost once the label is printed?": "12 €",
    "How long does the carrier Meridian take to answer a search?": "eight",
    "What does status 429 mean?": "too many requests",
    "How many items does a page have by default?": "100 items",
    "What is the deposit for a loan device?": "200 €",
    "When do public holidays close the office on Harbour Day?": "2027-06-05",
    "Who approves expenses up to 500 euros?": "your lead",
    "How long must feature flags live at most?": "90 days",
}
NOT_IN_THE_SAMPLE = (
    "What is the password of the coffee machine?",
    "Who is the head of marketing?",
    "How tall is the lighthouse in Aarholm?",
    "Do we sponsor visas?",
    "Which trade union represents us?",
    "What is the melting point of aluminium?",
    "How do I apply for a mortgage?",
    "When does the cafeteria open on Sundays?",
    "What is our stock price?",
    "Is there a nursery for children?",
    "How do I change the oil of the boat?",
    "What does the fox say?",
    "How many moons does Jupiter have?",
    "Which operating system runs on the Beacon?",
    "What is the speed limit in the harbour?",
    "How do I connect a Bluetooth headset?",
    "Who designed the logo?",
    "What are the side effects of aspirin?",
    "When is the summer party?",
    "How much does a life vest weigh?",
)
BAKERY = {
    "oven.md": "# Ovens\n\n## Temperatures\n\n| Bread | Degrees | Minutes |\n|---|---|---|\n| Rye | 240 | 55 |\n"
    "| Baguette | 250 | 22 |\n| Brioche | 180 | 30 |\n\n## Cleaning\n\nThe ovens are cleaned every Monday after the "
    "last batch. Vinegar is never used, because it damages the seals.\n",
    "shifts.md": "# Shifts\n\nThe early shift starts at 03:30 and ends at 11:00. Whoever is late calls Marta.\n\n"
    "## Swapping\n\nA shift can be swapped until noon of the day before. Both bakers sign the list in the office.\n",
    "orders.md": "# Orders\n\nCafés order until 17:00 for the next day. Orders above 300 rolls need two days.\n\n"
    "- Birthday cakes: three days ahead, 10 € deposit\n- Wedding cakes: four weeks ahead, 80 € deposit\n\n"
    "Unsold bread goes to the shelter in Mill Street at 19:00.\n",
    "allergene.md": "# Allergene\n\nDas Roggenbrot enthält Sesam. Das Baguette ist frei von Milch und Ei. Bei "
    "Rückfragen hilft Frau Yılmaz.\n",
}
IN_THE_BAKERY = {
    "How hot is the oven for rye bread?": "240",
    "How long is a baguette baked?": "22",
    "When does the early shift start?": "03:30",
    "Until when can I swap a shift?": "noon of the day before",
    "May we clean the ovens with vinegar?": "never used",
    "What is the deposit for a wedding cake?": "80 €",
    "What happens with unsold bread?": "shelter",
    "Whom do I call when I am late?": "Marta",
    "Welches Brot enthält Sesam?": "Roggenbrot",
    "How far ahead are birthday cakes ordered?": "three days",
}
NOT_IN_THE_BAKERY = (
    "What does a croissant cost?",
    "Who owns the bakery?",
    "How do I make sourdough starter?",
    "Is there a pension scheme?",
    "Where do we buy our flour?",
    "How many ovens do we have?",
    "What is the capital of Portugal?",
    "When is the bakery closed for holidays?",
    "Can I take my dog along?",
    "Wie hoch ist der Mindestlohn?",
)


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bot() -> AsyncIterator[Bot]:
    """Without LLM_MODEL; the sample's handbook is in ``acme``."""
    with tempfile.TemporaryDirectory(prefix="ar-") as folder:
        settings = Settings.model_validate({"data_dir": folder, "deep_embedding_model": "none"})
        files = (SAMPLE / "docs").rglob("*.md")
        sample = {file.relative_to(SAMPLE / "docs").as_posix(): file.read_text(encoding="utf-8") for file in files}
        async with running_bot(settings, FakeOpenAI(), documents=sample) as bot:
            await bot.write_documents("bakery", BAKERY)
            yield bot


async def ask(bot: Bot, workspace: str, question: str) -> str:
    """The reply, in a conversation of its own: what was asked before plays no part."""
    answer = await bot.say(question, workspace=workspace, context=re.sub(r"\W+", "-", question)[:60])
    assert "agent-runtime setup" in answer["text"]
    return str(answer["text"])


def quotation(reply: str) -> str:
    """*reply* without its last line, which says that it is quoted; empty where it quotes nothing."""
    return reply.rpartition("\n\n")[0].replace("**", "")


async def missed(bot: Bot, workspace: str, facts: Mapping[str, Sequence[str]]) -> list[str]:
    """The questions of *facts* whose replies quote none of the accepted spellings. No reply is long."""
    wrong = []
    for question, spellings in facts.items():
        quoted = quotation(await ask(bot, workspace, question))
        assert len(quoted) <= MOST_CHARACTERS, question
        assert len(re.findall(r"(?<!\d)[.!?](?:\s|$)", quoted)) <= MOST_SENTENCES, question
        if not any(one in quoted for one in spellings):
            wrong.append(question)
    return wrong


async def test_at_least_34_of_the_samples_40_questions_are_answered_with_the_fact(bot: Bot) -> None:
    lines = [json.loads(line) for line in FACTS.read_text(encoding="utf-8").splitlines()]
    asked = [json.loads(line) for line in (SAMPLE / "questions.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [one["question"] for one in lines] == [one["question"] for one in asked]
    wrong = await missed(bot, "acme", {one["question"]: one["facts"] for one in lines})
    print(f"{40 - len(wrong)} of 40 answered; not: {wrong}")
    assert len(wrong) <= 40 - 34, wrong


async def test_at_least_31_of_42_rewordings_are_answered_with_the_fact(bot: Bot) -> None:
    lines = [json.loads(line) for line in REWORDINGS.read_text(encoding="utf-8").splitlines()]
    wrong = await missed(bot, "acme", {one["question"]: one["facts"] for one in lines if one["facts"]})
    assert len(wrong) <= 42 - 31, wrong
    unsaid = [one["question"] for one in lines if not one["facts"]]
    invented = [question for question in unsaid if quotation(await ask(bot, "acme", question))]
    assert len(invented) <= len(unsaid) // 5, invented


@pytest.mark.parametrize(
    "question",
    [
        "good morning, how much is the Harbour plan?",
        "thank you, and how much is the Harbour plan?",
        "Could you please tell me how much the Harbour plan is?",
        "Which plan has the most stations?",
    ],
)
async def test_politeness_hides_no_question_and_who_compares_sees_the_table(bot: Bot, question: str) -> None:
    assert "| Harbour | 490 € |" in await ask(bot, "acme", question)


async def test_other_questions_are_answered_too_and_what_no_document_says_is_not(bot: Bot) -> None:
    """Questions that nothing was fitted to, about the sample and about another handbook."""
    for workspace, said, unsaid in (
        ("acme", ALSO_IN_THE_SAMPLE, NOT_IN_THE_SAMPLE),
        ("bakery", IN_THE_BAKERY, NOT_IN_THE_BAKERY),
    ):
        wrong = await missed(bot, workspace, {question: (fact,) for question, fact in said.items()})
        assert len(wrong) <= len(said) // 5, wrong
        invented = [question for question in unsaid if quotation(await ask(bot, workspace, question))]
        assert len(invented) <= len(unsaid) // 10, invented


async def test_a_reply_is_an_answer_like_any_other(bot: Bot) -> None:
    """It has usage, sources that it cites, and a manifest; a table's row comes with its header."""
    answer = await bot.say("How much is the Harbour plan?", context="like-any-other")
    assert "| Plan | Price a month |" in answer["text"]
    assert "| Harbour | 490 € |" in answer["text"]
    assert "[products/pricing.md › Pricing › Cloud plans]" in answer["text"]
    assert {"source": "products/pricing.md", "heading": "Pricing › Cloud plans"} in answer["sources"]
    assert answer["usage"]["prompt"] > 0
    assert answer["usage"]["completion"] > 0
    assert answer["usage"]["cost_usd"] == 0
    assert bot.told("turn.answered")[-1]["model"] == EXTRACTIVE
    await bot.runtime.manifests.get(Scope("acme"), answer["turn_id"])


async def test_what_only_a_language_model_can_do_is_refused_or_done_without_one(bot: Bot) -> None:
    """A directive is not condensed; a summary is extracted as ever."""
    scope = Scope("acme")
    slot = Slot(Place(scope), Kind.SYSTEM)
    await bot.runtime.publisher.publish(slot, "Answer all questions of the crew.", author="lena", origin="api")
    with pytest.raises(NotCondensed, match=r"needs a language model.*agent-runtime setup"):
        await bot.runtime.condensing.propose(scope, slot)

    await bot.say("We decided that the boat is called Petrel.", context="summarised")
    await bot.settle()
    document = await bot.runtime.contexts.latest(ConversationKey("acme", "http", "summarised"))
    assert document is not None
    assert "Petrel" in document.text
    assert {event["purpose"] for event in bot.told("model.failed")} <= {"condense"}
