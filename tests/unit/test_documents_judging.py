"""Where passages are judged by their words: on the event loop, or off it."""

import threading
from collections.abc import Sequence

import pytest

from grounding.retrieval import Hit, Judging, Kind, Passage
from grounding.retrieval.relevance import FEW_PASSAGES, JUDGED_REMEMBERED


def hits(*numbers: int) -> Sequence[Hit]:
    return [Hit(Passage(str(one), Kind.DOCUMENT, "a.md", "words"), 1.0) for one in numbers]


async def is_on_the_loop(judging: Judging, found: Sequence[Hit]) -> bool:
    return await judging.of(found, threading.get_ident) == threading.get_ident()


async def test_many_new_passages_are_judged_off_the_loop_and_on_it_once_they_are_known() -> None:
    judging, found = Judging(), hits(*range(FEW_PASSAGES + 1))

    assert not await is_on_the_loop(judging, found)
    assert await is_on_the_loop(judging, found)


async def test_few_new_passages_are_judged_where_they_are_asked_for() -> None:
    assert await is_on_the_loop(Judging(), hits(*range(FEW_PASSAGES)))


async def test_passages_that_were_judged_long_ago_are_new_again() -> None:
    judging, found = Judging(), hits(*range(FEW_PASSAGES + 1))
    await judging.of(found, list)
    await judging.of(hits(*range(100, 100 + JUDGED_REMEMBERED)), list)

    assert not await is_on_the_loop(judging, found)


async def test_what_judging_raises_arrives() -> None:
    def judge() -> None:
        raise ValueError("no words")

    with pytest.raises(ValueError, match="no words"):
        await Judging().of(hits(*range(FEW_PASSAGES + 1)), judge)
