"""What people are told of messages that were not taken."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from connectors.message import Author, ConversationKey, InboundMessage, StoreUnavailable
from runtime import refusals
from runtime.refusals import BEGINNING_CHARACTERS, MOST_NAMED, Refusals, beginning

KEY = ConversationKey("acme", "telegram", "-100")
MESSAGE = InboundMessage("telegram", "-100", "m1", Author("7", "Ann"), "what does it cost?")
WHY = "You are writing faster than I can answer."


class Said:
    """What was said because of which messages, by the last of them; once it fails where it is to."""

    def __init__(self) -> None:
        self.texts: list[tuple[str, str]] = []
        self.ids: list[str] = []
        self.fails = False

    async def say(self, key: ConversationKey, text: str, messages: Sequence[InboundMessage], turn_id: str) -> None:
        self.ids.append(turn_id)
        if self.fails:
            self.fails = False
            raise StoreUnavailable("Redis: away")
        self.texts.append((messages[-1].message_id, text))


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "TICK_SECONDS", 0.001)


def message(number: int, author: str = "7") -> InboundMessage:
    return replace(MESSAGE, message_id=f"m{number}", text=f"question {number}", author=Author(author))


async def told(said: Said, told: Refusals, count: int) -> None:
    """Run until so much was said."""
    async with asyncio.timeout(10):
        running = asyncio.create_task(told.run())
        while len(said.texts) < count:
            await asyncio.sleep(0.001)
        running.cancel()
        await asyncio.wait({running})


async def test_the_first_is_told_at_once_with_why_and_how_it_begins() -> None:
    said = Said()
    await Refusals(said.say).tell(KEY, MESSAGE, WHY, 12, first=True)
    assert said.texts == [
        ("m1", f"{WHY} I have not taken this message. Please send it again in 12 s:\n\n> `what does it cost?`")
    ]


async def test_those_that_follow_are_told_once_together_with_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each person apart, and a message that the platform brings twice is one."""
    monkeypatch.setattr(refusals, "QUIET_SECONDS", 0.0)
    said = Said()
    some = Refusals(said.say)
    for number in (2, 3, 3, 4):
        await some.tell(KEY, message(number), WHY, 0, first=False)
    await some.tell(KEY, message(5, "8"), WHY, 0, first=False)
    await told(said, some, 2)

    together = (
        "I have not taken these 3 messages either. Please send them again:\n\n"
        "> `question 2`\n>\n> `question 3`\n>\n> `question 4`"
    )
    alone = "I have not taken this message either. Please send it again:\n\n> `question 5`"
    assert said.texts == [("m4", together), ("m5", alone)]


async def test_of_very_many_some_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "QUIET_SECONDS", 0.0)
    said = Said()
    some = Refusals(said.say)
    for number in range(MOST_NAMED + 7):
        await some.tell(KEY, message(number), WHY, 0, first=False)
    await told(said, some, 1)
    [(_, text)] = said.texts
    assert text.startswith(f"I have not taken these {MOST_NAMED + 7} messages either.")
    assert text.endswith("> and 7 more")
    assert text.count("question") == MOST_NAMED


async def test_who_goes_on_writing_is_told_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "QUIET_SECONDS", 3600.0)
    monkeypatch.setattr(refusals, "LONGEST_SECONDS", 0.0)
    said = Said()
    some = Refusals(said.say)
    await some.tell(KEY, MESSAGE, WHY, 0, first=False)
    await told(said, some, 1)


async def test_what_is_left_is_told_at_the_end_and_an_outage_ends_nothing() -> None:
    said = Said()
    said.fails = True
    some = Refusals(said.say)
    await some.tell(KEY, MESSAGE, WHY, 0, first=False)
    await some.tell(KEY, message(2, "8"), WHY, 0, first=False)
    running = asyncio.create_task(some.run())
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait({running})
    assert [one for one, _ in said.texts] == ["m2"]


async def test_what_could_not_be_told_is_told_when_the_store_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the same id: it may have been stored although nobody was told so."""
    monkeypatch.setattr(refusals, "QUIET_SECONDS", 0.0)
    said = Said()
    said.fails = True
    some = Refusals(said.say)
    await some.tell(KEY, MESSAGE, WHY, 0, first=False)
    await told(said, some, 1)

    assert [one for one, _ in said.texts] == ["m1"]
    assert said.ids[0]
    assert said.ids == [said.ids[0]] * 2


async def test_what_was_not_taken_while_it_could_not_be_told_is_told_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "QUIET_SECONDS", 0.0)
    said = Said()
    say = said.say

    async def away(key: ConversationKey, text: str, those: Sequence[InboundMessage], turn_id: str) -> None:
        if len(those) == 1:
            await some.tell(KEY, message(2), WHY, 0, first=False)
            raise StoreUnavailable("Redis: away")
        await say(key, text, those, turn_id)

    some = Refusals(away)
    await some.tell(KEY, MESSAGE, WHY, 0, first=False)
    await told(said, some, 1)

    [(_, text)] = said.texts
    assert text.index("what does it cost?") < text.index("question 2")


def test_the_beginning_is_one_line_that_ends_no_quotation() -> None:
    assert beginning(replace(MESSAGE, text="a `b`\n\nc")) == "a 'b' c"
    assert beginning(replace(MESSAGE, text="x" * 200)) == "x" * BEGINNING_CHARACTERS + " …"
    assert beginning(replace(MESSAGE, text="")) == "…"


@pytest.mark.parametrize("one", ["👨‍👩‍👧", "e\u0301", "🇩🇪", "日"])
@pytest.mark.parametrize("before", range(6))
def test_the_beginning_ends_between_what_people_take_for_characters(one: str, before: int) -> None:
    text = "x" * before + one * BEGINNING_CHARACTERS
    begun = beginning(replace(MESSAGE, text=text)).removesuffix(" …")
    assert begun == "x" * before + one * ((BEGINNING_CHARACTERS - before) // len(one))
