"""What no cue decides is looked up in the workspace's documents."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from structlog.testing import capture_logs

from connectors.message import ConversationKey, Scope
from grounding.pipeline import StrategyChooser
from grounding.prompt_input import DegradedBlock, Passage, TailEntry
from grounding.retrieval import MEASURED_CHUNKS, Found, Hit, IndexUnavailable, Kind, PassageRoom
from grounding.retrieval import Passage as Stored
from grounding.strategy import ENGLISH, Choice

KEY = ConversationKey("acme", "http", "default")
LARGE = MEASURED_CHUNKS
"""Passages of a workspace in which small ones have no advantage."""


@dataclass
class Shelf:
    """Documents that speak of some texts, and keep what they were asked."""

    known: dict[str, float] = field(default_factory=dict)
    otherwise: float = -3.0
    asked: list[str] = field(default_factory=list)
    breaks: Exception | None = None
    hangs: bool = False
    wakes: asyncio.Event | None = None

    async def awake(self, scope: Scope) -> None:
        if self.wakes is not None:
            await self.wakes.wait()

    async def look(self, scope: Scope, query: str, top_k: int, *, earlier: Sequence[str] = ()) -> Found:
        self.asked.append("\n".join((*earlier, query)))
        if self.breaks is not None:
            raise self.breaks
        if self.hangs:
            await asyncio.Event().wait()
        hit = Hit(Stored("1", Kind.DOCUMENT, "a.md", "…"), 1.0)
        return Found(query, tuple(earlier), (hit,), (self.known.get(self.asked[-1], self.otherwise),), LARGE)

    async def pack(
        self, scope: Scope, found: Found, room: PassageRoom, *, lost: list[DegradedBlock]
    ) -> Sequence[Passage]:
        raise AssertionError("deciding packs nothing")


async def choice_of(
    shelf: Shelf, text: str, history: Sequence[TailEntry] = (), *, seconds: float = 1.0, vocabulary: bool = True
) -> Choice:
    """What is decided about *text*."""
    chooser = StrategyChooser(shelf, seconds, vocabulary=vocabulary)
    return (await chooser.choose(KEY, text, ENGLISH, history)).choice


QUESTION = "how much is the harbour plan?"
BEFORE = (
    TailEntry(speaker="user", text=QUESTION, turn_id="t1"),
    TailEntry(speaker="assistant", text="Twelve euros.", turn_id="t1"),
)


async def test_a_question_that_the_documents_speak_of_is_for_them() -> None:
    choice = await choice_of(Shelf({QUESTION: 3.0}), QUESTION)

    assert (choice.strategy.value, choice.reason, choice.wants_history) == ("qmd", "workspace_match", False)


async def test_one_that_they_do_not_speak_of_is_not() -> None:
    choice = await choice_of(Shelf(), "who wrote Hamlet?")

    assert choice.reason == "no_retrieval_cue"


async def test_a_follow_up_is_looked_up_with_what_was_said_before_it_and_needs_both() -> None:
    shelf = Shelf({f"{QUESTION}\nand the ocean one?": 6.0})
    choice = await choice_of(shelf, "and the ocean one?", BEFORE)

    assert (choice.strategy.value, choice.reason) == ("tail", "leans_on_conversation")
    assert (choice.wants_history, choice.wants_documents) == (True, True)


async def test_a_follow_up_of_which_the_documents_know_nothing_needs_the_conversation() -> None:
    choice = await choice_of(Shelf(), "why is it so expensive?", BEFORE)

    assert (choice.strategy.value, choice.reason) == ("tail", "leans_on_conversation")
    assert (choice.wants_history, choice.wants_documents) == (True, False)


async def test_a_message_that_stands_for_itself_is_looked_up_without_what_was_said_before() -> None:
    shelf = Shelf({"who approves travel expenses?": 3.0})
    choice = await choice_of(shelf, "who approves travel expenses?", BEFORE)

    assert shelf.asked == ["who approves travel expenses?"]
    assert (choice.strategy.value, choice.wants_history) == ("qmd", False)


@pytest.mark.parametrize(
    "text", ["you said it is cheap, how much is the harbour plan?", "as we discussed, I need the plan"]
)
async def test_a_message_that_leans_on_the_conversation_may_be_for_the_documents_too(text: str) -> None:
    choice = await choice_of(Shelf(otherwise=3.0), text)

    assert (choice.strategy.value, choice.reason) == ("tail", "chat_memory_cue")
    assert choice.wants_history
    assert choice.wants_documents


async def test_one_that_leans_on_the_conversation_alone_stays_with_it() -> None:
    choice = await choice_of(Shelf(), "as we discussed, make it blue")

    assert (choice.reason, choice.wants_documents) == ("chat_memory_cue", False)


@pytest.mark.parametrize("text", ["hello", "thanks!", "", "what did we decide?", "go on"])
async def test_what_cues_decide_is_never_looked_up(text: str) -> None:
    shelf = Shelf()
    await choice_of(shelf, text, BEFORE)

    assert shelf.asked == []


async def test_one_setting_turns_the_look_off() -> None:
    shelf = Shelf({QUESTION: 9.0})
    choice = await choice_of(shelf, QUESTION, vocabulary=False)

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
        choice = await choice_of(shelf, QUESTION, seconds=0.05)

    assert choice.reason == "no_retrieval_cue"
    assert [(event["event"], event["why"]) for event in events] == [("strategy.unsure", why)]


async def test_what_cues_ask_for_is_searched_and_stays_decided() -> None:
    decision = await StrategyChooser(Shelf(), 1.0).choose(KEY, "which file holds it?", ENGLISH)

    assert (decision.choice.reason, decision.found is not None) == ("workspace_retrieval_cue", True)


async def test_what_is_said_first_after_a_start_is_judged_once_the_documents_can_be_asked() -> None:
    shelf = Shelf({QUESTION: 3.0}, wakes=asyncio.Event())
    choosing = asyncio.create_task(choice_of(shelf, QUESTION, seconds=0.05))
    await asyncio.sleep(0.1)
    assert shelf.asked == []
    assert shelf.wakes is not None
    shelf.wakes.set()

    assert (await choosing).wants_documents
