"""Runs of one workspace wait for one another only where they want the same document."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grounding.documents.library import AtHand


async def passes() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_document_that_is_not_at_hand_is_had_at_once_and_one_that_is_after_it_was_let_go() -> None:
    hand, had = AtHand(), list[str]()

    async def wants(*paths: str) -> None:
        async with hand.some(paths):
            had.append(paths[0])

    async with asyncio.TaskGroup() as group, hand.some(["a.md", "b.md"]):
        group.create_task(wants("b.md", "c.md"))
        group.create_task(wants("d.md"))
        await passes()
        assert had == ["d.md"]
    assert had == ["d.md", "b.md"]


async def test_everything_is_had_though_others_go_on_coming() -> None:
    hand, had = AtHand(), list[str]()

    async def everything() -> None:
        async with hand.everything():
            had.append("everything")
            await passes()
            had.append("let go")

    async def some() -> None:
        async with hand.some(["b.md"]):
            had.append("some")

    async with asyncio.TaskGroup() as group, hand.some(["a.md"]):
        group.create_task(everything())
        await passes()
        group.create_task(some())
        await passes()
        assert had == []
    assert had == ["everything", "let go", "some"]


async def test_who_gives_up_waiting_keeps_nobody_out() -> None:
    hand = AtHand()
    async with hand.some(["a.md"]):
        for waiting in (hand.some(["a.md"]), hand.everything()):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01), waiting:
                    raise AssertionError("had what another has")
    async with asyncio.timeout(5), hand.everything():
        pass


@given(st.lists(st.sets(st.sampled_from("abcde"), max_size=3), max_size=12))
async def test_no_document_is_ever_in_two_hands(wanted: list[set[str]]) -> None:
    hand, now = AtHand(), list[str]()

    async def takes(paths: set[str]) -> None:
        async with hand.some(paths) if paths else hand.everything():
            assert paths.isdisjoint(now)
            now.extend(paths)
            await asyncio.sleep(0)
            for path in paths:
                now.remove(path)

    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        for paths in wanted:
            group.create_task(takes(paths))
