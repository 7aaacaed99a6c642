"""The document about a conversation: a model keeps it, people may change it, and nobody's words are lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from connectors.message import ConversationKey, Scope
from grounding.memory.context_document import ContextDocument, bodies
from grounding.memory.context_document.document import render
from runtime.http.doctor import run_checks
from tests.emulators.bot import Bot
from tests.emulators.openai import Reply, in_background

pytestmark = pytest.mark.asyncio(loop_scope="module")

OLD = render({"Facts": "- boat: Petrel", "Active Context": "- the regatta"})
NEW = render({"Facts": "- boat: Petrel\n- harbour: Cowes", "Active Context": "- the race", "Progress": "- entered"})


@pytest.fixture
def bot(own_bot: Bot) -> Bot:
    return own_bot


def key(bot: Bot) -> ConversationKey:
    return ConversationKey(bot.workspace, "http", "default")


def writes(summary: Callable[[], str | Reply]) -> Callable[[dict[str, Any]], str | Reply]:
    """A model that answers *summary* where it is asked for the document."""

    def answer(body: dict[str, Any]) -> str | Reply:
        return summary() if in_background(body) else "noted"

    return answer


async def remarks(bot: Bot, count: int) -> None:
    for number in range(count):
        await bot.say(f"remark {number} about the weather at sea")
        await bot.settle()


async def latest(bot: Bot) -> ContextDocument:
    document = await bot.runtime.contexts.latest(key(bot))
    assert document is not None
    return document


async def put(bot: Bot, text: str) -> ContextDocument:
    return await bot.runtime.context_editor.put(key(bot), text, "http:u1", lambda _: True)


async def versions(bot: Bot) -> list[str]:
    return [one.author for one in await bot.runtime.contexts.versions(key(bot), 100)]


def asked(bot: Bot) -> int:
    return sum(map(in_background, bot.model.requests[bot.first_request :]))


async def test_unchanged_stores_nothing_and_is_not_asked_again_before_it_is_due(bot: Bot) -> None:
    """Whether the model says so or gives the same text back."""
    bot.model.answer = writes(lambda: OLD)
    await remarks(bot, 1)
    for same in ("UNCHANGED", OLD.replace("## ", "# ")):
        bot.model.answer = writes(lambda same=same: same)  # type: ignore[misc]
        before = asked(bot)
        await remarks(bot, 6)
        assert asked(bot) == before + 1

    assert (await latest(bot)).text == OLD
    assert await versions(bot) == ["model:openai/fake"]
    assert [event["turns"] for event in bot.told("summary.unchanged")] == [7, 13]


async def test_a_version_names_the_turns_that_it_was_made_of(bot: Bot) -> None:
    bot.model.answer = writes(lambda: OLD)
    first = await bot.say("we sail the Petrel")
    await bot.settle()
    bot.model.answer = writes(lambda: NEW)
    later = [(await bot.say(f"remark {number} about Cowes"))["turn_id"] for number in range(6)]
    await bot.settle()

    kept = await bot.runtime.contexts.versions(key(bot), 10)
    made = [await bot.runtime.contexts.version(key(bot), one.id) for one in kept]
    assert [one.turn_ids for one in made if one] == [tuple(sorted(later)), (first["turn_id"],)]


async def test_what_a_person_puts_is_told_from_the_next_turn_on_and_stays_as_it_is(bot: Bot) -> None:
    """It is not made anew at once, and its bytes are theirs."""
    bot.model.answer = writes(lambda: OLD)
    await remarks(bot, 5)
    mine = "# Facts\r\n* the skipper is Ada\r\n"
    await put(bot, mine)
    bot.model.answer = writes(lambda: NEW)
    await bot.say("is the sky blue?")
    assert "the skipper is Ada" in bot.sent["user"]
    assert bot.grounding["summary_refreshed"] is True
    await bot.settle()
    await remarks(bot, 4)

    assert (await latest(bot)).text == mine
    assert bot.grounding["summary_refreshed"] is False
    assert (await versions(bot))[0] == "http:u1"


async def test_what_a_person_wrote_survives_a_model_that_drops_it(bot: Bot) -> None:
    """The model is told of it; and what it left out all the same comes back, in this refresh and the next."""
    bot.model.answer = writes(lambda: OLD)
    await remarks(bot, 1)
    await put(bot, OLD.replace("- boat: Petrel", "- boat: Petrel\n- Ada gets seasick"))
    bot.model.answer = writes(lambda: NEW)
    await remarks(bot, 6)

    question = next(str(body["messages"][1]) for body in reversed(bot.model.requests) if body not in bot.replies_asked)
    assert question.count("Ada gets seasick") == 1
    assert bodies((await latest(bot)).text)["Facts"].splitlines() == [
        "- boat: Petrel", "- harbour: Cowes", "- Ada gets seasick"
    ]  # fmt: skip

    bot.model.answer = writes(lambda: NEW.replace("- entered", "- finished"))
    await remarks(bot, 6)
    assert "- Ada gets seasick" in (await latest(bot)).text
    assert "finished" in (await latest(bot)).text
    await put(bot, NEW)
    bot.model.answer = writes(lambda: NEW.replace("- entered", "- home again"))
    await remarks(bot, 6)
    assert "seasick" not in (await latest(bot)).text


async def test_what_a_person_puts_while_the_model_writes_is_what_the_refresh_is_made_of(bot: Bot) -> None:
    bot.model.answer = writes(lambda: OLD)
    await remarks(bot, 6)
    loop, puts = asyncio.get_running_loop(), list[asyncio.Future[ContextDocument]]()

    def meanwhile() -> str:
        """The person is quicker than the model, once."""
        if not puts:
            puts.append(asyncio.ensure_future(put(bot, OLD + "- Ada decides\n"), loop=loop))
        return NEW

    bot.model.answer = writes(meanwhile)
    await remarks(bot, 1)
    assert "Ada decides" in (await puts[0]).text
    await remarks(bot, 8)

    assert bodies((await latest(bot)).text)["Decisions"] == "- Ada decides"
    assert "harbour: Cowes" in (await latest(bot)).text


CUT_OFF = Reply(render({"Facts": "- skipper: Ada\n- har"}), finish_reason="length")


@pytest.mark.parametrize("answer", ["Sure! A poem.", render({}), "x" * 70_000, CUT_OFF])
async def test_a_document_that_a_person_put_stays_where_the_model_makes_none(bot: Bot, answer: str | Reply) -> None:
    bot.model.answer = writes(lambda: answer)
    await put(bot, "## Facts\n- skipper: Ada\n")
    await remarks(bot, 7)

    assert (await latest(bot)).text == "## Facts\n- skipper: Ada\n"
    assert bot.told("summary.kept")


async def test_what_is_being_worked_on_is_told_once(bot: Bot) -> None:
    """Active Context and Progress are the working memory: in the summary, and nowhere else in the prompt."""
    await put(bot, "## Active Context\n- polishing the brass bell\n\n## Progress\n- Next: varnish the tiller\n")
    await bot.say("is the sky blue?")

    everything = "\n".join(bot.sent.values())
    assert everything.count("polishing the brass bell") == 1
    assert everything.count("varnish the tiller") == 1


async def test_what_was_forgotten_is_found_in_no_document(bot: Bot) -> None:
    bot.model.answer = writes(lambda: OLD)
    await bot.say("we sail the Petrel")
    await bot.settle()

    async def found() -> list[str]:
        hits = await bot.runtime.knowledge.finding.search(key(bot).scope, "petrel", 5)
        return [hit.passage.source for hit in hits]

    assert "http:default" in await found()
    assert (await bot.say("/forget all", direct=True))["text"].startswith("I have forgotten")
    await bot.settle()
    assert "http:default" not in await found()


async def shown(bot: Bot) -> dict[str, str]:
    """What people and operators are told about the document."""
    turn = (await bot.say("is the sky blue?"))["turn_id"]
    await bot.settle()
    manifest = await bot.runtime.manifests.get(Scope(bot.workspace), turn)
    about = [check for check in await run_checks(bot.runtime) if f"http:default in {bot.workspace}" in check.detail]
    return {
        "explain": next(block["why"] for block in manifest.blocks if block["name"] == "summary"),
        "doctor": "\n".join(f"{check.detail} {check.advice}" for check in about),
        "memory": (await bot.say("/memory"))["text"],
    }


async def test_a_long_document_of_a_person_goes_on_being_refreshed_and_people_are_told_that_it_is_long(
    bot: Bot,
) -> None:
    lines = [f"- machine {number} stands in hall {number % 7} and is serviced in May" for number in range(420)]
    text = "## Facts\n" + "\n".join(lines) + "\n"
    assert len(text) > 22_000
    await put(bot, text)
    bot.model.answer = writes(lambda: NEW)
    await remarks(bot, 7)

    document = await latest(bot)
    assert document.made_by == "model"
    assert set(lines) <= set(document.text.splitlines())
    assert "- harbour: Cowes" in document.text
    told = await shown(bot)
    for where in ("explain", "doctor", "memory"):
        assert "The lines that people wrote take" in told[where], where
    for where in ("explain", "doctor"):
        assert "context-doc put" in told[where], where
    assert "Please tell an administrator" in told["memory"]


async def test_a_document_that_the_model_cannot_refresh_says_so_after_the_third_time(bot: Bot) -> None:
    bot.model.answer = writes(lambda: OLD)
    await remarks(bot, 1)
    bot.model.answer = writes(lambda: "Sure! A poem.")
    await remarks(bot, 6)
    assert "could not refresh" not in "".join((await shown(bot)).values())
    await remarks(bot, 1)

    told = await shown(bot)
    for where in ("explain", "doctor", "memory"):
        assert "The model could not refresh this summary" in told[where], where
        assert "not the required shape" in told[where], where
    assert [event["failures"] for event in bot.told("summary.kept")] == [1, 2, 3, 4]
    bot.model.answer = writes(lambda: NEW)
    await remarks(bot, 1)
    assert "could not refresh" not in "".join((await shown(bot)).values())
