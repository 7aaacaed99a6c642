"""What only this process changes is read once, and never kept over a change of it."""

from __future__ import annotations

import asyncio

import pytest

from runtime import in_memory as module
from runtime.in_memory import InMemory


class Stored:
    """A text in a store, and how often it was read."""

    def __init__(self) -> None:
        self.text = "before"
        self.reads = 0
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    async def read(self) -> str:
        self.reads += 1
        found = self.text
        await self.goes_on.wait()
        return found


async def test_what_is_known_is_not_read_again_until_it_changes() -> None:
    stored, memory = Stored(), InMemory[str](alone=True)
    assert [await memory.get("one", stored.read) for _ in range(3)] == ["before"] * 3
    with memory.changing():
        stored.text = "after"

    assert [await memory.get("one", stored.read) for _ in range(3)] == ["after"] * 3
    assert stored.reads == 2


async def test_where_others_change_it_too_it_is_read_each_time() -> None:
    stored, memory = Stored(), InMemory[str](alone=False)
    await memory.get("one", stored.read)
    stored.text = "after"

    assert await memory.get("one", stored.read) == "after"


async def test_what_was_read_before_a_change_and_arrives_after_it_is_not_kept() -> None:
    stored, memory = Stored(), InMemory[str](alone=True)
    stored.goes_on.clear()
    reading = asyncio.create_task(memory.get("one", stored.read))
    await asyncio.sleep(0)
    with memory.changing():
        stored.text = "after"
    stored.goes_on.set()

    assert await reading == "before"
    assert await memory.get("one", stored.read) == "after"


async def test_what_is_read_while_it_changes_is_not_kept() -> None:
    stored, memory = Stored(), InMemory[str](alone=True)
    with memory.changing():
        assert await memory.get("one", stored.read) == "before"
        stored.text = "after"

    assert await memory.get("one", stored.read) == "after"


async def test_after_a_change_that_may_happen_yet_the_store_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    stored, memory = Stored(), InMemory[str](alone=True)
    await memory.get("one", stored.read)
    with pytest.raises(TimeoutError), memory.changing():
        raise TimeoutError
    assert await memory.get("one", stored.read) == "before"
    stored.text = "after"
    assert await memory.get("one", stored.read) == "after"

    monkeypatch.setattr(memory, "_unsure_until", 0.0)
    await memory.get("one", stored.read)
    stored.text = "changed by nobody"
    assert await memory.get("one", stored.read) == "after"


async def test_what_cannot_be_read_is_read_again() -> None:
    memory = InMemory[str](alone=True)

    async def fails() -> str:
        raise TimeoutError

    for _ in range(2):
        with pytest.raises(TimeoutError):
            await memory.get("one", fails)


async def test_no_more_than_so_many_answers_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 2)
    stored, memory = Stored(), InMemory[str](alone=True)
    for name in ("one", "two", "three", "three", "one"):
        await memory.get(name, stored.read)

    assert stored.reads == 4
