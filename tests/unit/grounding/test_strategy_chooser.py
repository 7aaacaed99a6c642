"""What no cue decides is looked up in the workspace's documents."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from structlog.testing import capture_logs

from connectors.message import ConversationKey, Scope
from grounding.pipeline import StrategyChooser
from grounding.prompt_input import TailEntry
from grounding.retrieval import MEASURED_CHUNKS, IndexUnavailable, Match
from grounding.strategy import ENGLISH

KEY = ConversationKey("acme", "http", "default")
LARGE = MEASURED_CHUNKS
"""Passages of a workspace in which small ones have no advantage."""


@dataclass
class Shelf:
    """Documents that speak of some texts, and keep what they were asked."""

    known: dict[str, float] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    breaks: Exception | None = None
    hangs: bool = False
    opening: bool = False
    wakes: asyncio.Event | None = None

    async def awake(self, scope: Scope) -> None:
        if self.wakes is not None:
            await self.wakes.wait()

    async def best_match(self, scope: Scope, text: str) -> Match | None:
        self.asked.append(text)
        if self.breaks is not None:
            raise self.breaks
        if self.hangs:
            await asyncio.Event().wait()
        return None if self.opening else Match(self.known.get(text, -3.0), LARGE)


QUESTION = "how much is the harbour plan?"
BEFORE = (
    TailEntry(speaker="user", text=QUESTION, turn_id="t1"),
    TailEntry(speaker="assistant", text="Twelve euros.", turn_id="t1"),
)


async def test_a_question_that_the_documents_speak_of_is_for_them() -> None:
    choice = await StrategyChooser(Shelf({QUESTION: 3.0}), 1.0).choose(KEY, QUESTION, ENGLISH)

    assert (choice.strategy.value, choice.reason, choice.wants_history) == ("qmd", "workspace_match", False)


async def test_one_that_they_do_not_speak_of_is_not() -> None:
    choice = await StrategyChooser(Shelf(), 1.0).choose(KEY, "who wrote Hamlet?", ENGLISH)

    assert choice.reason == "no_retrieval_cue"


async def test_a_follow_up_is_looked_up_with_what_was_said_before_it_and_needs_both() -> None:
    shelf = Shelf({f"{QUESTION}\nand the ocean one?": 6.0, "and the ocean one?": -1.0})
    choice = await StrategyChooser(shelf, 1.0).choose(KEY, "and the ocean one?", ENGLISH, BEFORE)

    assert (choice.reason, choice.wants_history, choice.wants_documents) == ("workspace_match", True, True)


@pytest.mark.parametrize(
    "text", ["you said it is cheap, how much is the harbour plan?", "as we discussed, I need the plan"]
)
async def test_a_message_that_leans_on_the_conversation_may_be_for_the_documents_too(text: str) -> None:
    choice = await StrategyChooser(Shelf({text: 3.0}), 1.0).choose(KEY, text, ENGLISH)

    assert (choice.strategy.value, choice.reason) == ("qmd", "workspace_match")
    assert choice.wants_history
    assert choice.wants_documents


async def test_one_that_leans_on_the_conversation_alone_stays_with_it() -> None:
    choice = await StrategyChooser(Shelf(), 1.0).choose(KEY, "as we discussed, make it blue", ENGLISH)

    assert (choice.reason, choice.wants_documents) == ("chat_memory_cue", False)


@pytest.mark.parametrize("text", ["hello", "thanks!", "", "what did we decide?", "go on", "which file holds it?"])
async def test_what_cues_decide_is_never_looked_up(text: str) -> None:
    shelf = Shelf()
    await StrategyChooser(shelf, 1.0).choose(KEY, text, ENGLISH, BEFORE)

    assert shelf.asked == []


async def test_one_setting_turns_the_look_off() -> None:
    shelf = Shelf({QUESTION: 9.0})
    choice = await StrategyChooser(shelf, 1.0, vocabulary=False).choose(KEY, QUESTION, ENGLISH, BEFORE)

    assert (choice.reason, shelf.asked) == ("no_retrieval_cue", [])


@pytest.mark.parametrize(
    ("shelf", "why"),
    [
        (Shelf(breaks=IndexUnavailable("away")), "away"),
        (Shelf(hangs=True), "timeout"),
        (Shelf(breaks=ZeroDivisionError()), "ZeroDivisionError"),
    ],
)
async def test_documents_that_cannot_be_asked_leave_the_decision_to_the_cues(shelf: Shelf, why: str) -> None:
    with capture_logs() as events:
        choice = await StrategyChooser(shelf, 0.05).choose(KEY, QUESTION, ENGLISH)

    assert choice.reason == "no_retrieval_cue"
    assert [(event["event"], event["why"]) for event in events] == [("strategy.unsure", why)]


async def test_an_index_that_is_being_opened_is_not_waited_for() -> None:
    with capture_logs() as events:
        choice = await StrategyChooser(Shelf(opening=True), 1.0).choose(KEY, QUESTION, ENGLISH)

    assert (choice.reason, events) == ("no_retrieval_cue", [])


async def test_what_is_said_first_after_a_start_is_judged_once_the_documents_can_be_asked() -> None:
    shelf = Shelf({QUESTION: 3.0}, wakes=asyncio.Event())
    choosing = asyncio.create_task(StrategyChooser(shelf, 0.05).choose(KEY, QUESTION, ENGLISH))
    await asyncio.sleep(0.1)
    assert shelf.asked == []
    assert shelf.wakes is not None
    shelf.wakes.set()

    assert (await choosing).wants_documents
