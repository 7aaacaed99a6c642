"""What is made is worked off in its order, each while the next one is made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from grounding.documents.indexer import made_ahead


async def numbers(told: list[str], count: int, fails: bool = False) -> AsyncGenerator[int, None]:
    try:
        for number in range(count):
            await asyncio.sleep(0)
            told.append(f"made {number}")
            yield number
        if fails:
            raise OSError("no more")
    finally:
        told.append("ended")


async def test_the_next_one_is_made_while_one_is_worked_off_and_never_more() -> None:
    told: list[str] = []

    async def work_off(number: int) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        told.append(f"done {number}")

    await made_ahead(numbers(told, 3), work_off)
    assert told == ["made 0", "made 1", "done 0", "made 2", "done 1", "ended", "done 2"]


async def test_what_was_made_before_an_error_is_worked_off_before_it_is_raised() -> None:
    told: list[str] = []

    async def work_off(number: int) -> None:
        await asyncio.sleep(0)
        told.append(f"done {number}")

    with pytest.raises(OSError, match="no more"):
        await made_ahead(numbers(told, 2, fails=True), work_off)
    assert told[-1] == "done 1"


async def test_where_one_cannot_be_worked_off_no_more_are_made() -> None:
    told: list[str] = []

    async def work_off(number: int) -> None:
        raise ValueError(f"not {number}")

    with pytest.raises(ValueError, match="not 0"):
        await made_ahead(numbers(told, 100), work_off)
    assert told[-1] == "ended"
    assert len(told) < 4


async def test_who_is_stopped_stops_both() -> None:
    told: list[str] = []

    async def work_off(number: int) -> None:
        await asyncio.sleep(60)

    task = asyncio.create_task(made_ahead(numbers(told, 100), work_off))
    for _ in range(10):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert told[-1] == "ended"
