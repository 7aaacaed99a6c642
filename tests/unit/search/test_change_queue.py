"""Changes of several workspaces are worked off at once, each of them once, and never more of one than its share."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from runtime.search.sync import BATCH_PATHS, PARALLEL_WORKSPACES, ChangeQueue


class Slow:
    """Work that ends when it is told to; ``done`` is what it was given."""

    def __init__(self) -> None:
        self.done: list[tuple[str, set[str] | None]] = []
        self.running: list[str] = []
        self.goes_on = asyncio.Event()

    async def work(self, workspace_id: str, paths: set[str] | None) -> None:
        self.running.append(workspace_id)
        self.done.append((workspace_id, paths))
        await self.goes_on.wait()
        self.running.remove(workspace_id)


async def passes() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def named(first: int, last: int) -> set[str]:
    return {f"{number:05}.md" for number in range(first, last)}


async def test_a_file_that_is_saved_during_an_import_is_worked_on_beside_it() -> None:
    """Also if it is reported once more among the files of the import."""
    slow = Slow()
    async with asyncio.TaskGroup() as group:
        changes = ChangeQueue(slow.work, group)
        changes.add("a", named(0, 5000), is_import=True)
        changes.add("a", {"edited.md", "00100.md"})
        changes.add("a", named(5000, 9000) | {"edited.md"}, is_import=True)
        await passes()
        assert [paths for _, paths in slow.done[1:]] == [{"edited.md", "00100.md"}]
        slow.goes_on.set()

    taken = [paths or set() for _, paths in slow.done]
    assert max(map(len, taken)) == BATCH_PATHS
    assert sum(map(len, taken)) == 9001


async def test_not_all_workspaces_are_worked_off_at_once_but_all_in_the_end() -> None:
    slow = Slow()
    async with asyncio.TaskGroup() as group:
        changes = ChangeQueue(slow.work, group)
        for number in range(3 * PARALLEL_WORKSPACES):
            changes.add(f"w{number}", {"a.md"})
        await passes()
        assert len(slow.running) == PARALLEL_WORKSPACES
        slow.goes_on.set()

    assert sorted(one for one, _ in slow.done) == sorted(f"w{number}" for number in range(3 * PARALLEL_WORKSPACES))


@given(st.lists(st.sets(st.sampled_from(["a.md", "b.md", "c.md", "d", "e"])), max_size=12), st.integers(0, 3))
async def test_every_change_is_worked_off_after_it_was_told(batches: list[set[str]], pause: int) -> None:
    """However batches, documents and folders mix: the last look at each path begins after its last change."""
    clock = 0
    looked: dict[str, int] = {}
    changed: dict[str, int] = {}

    async def work(_: str, paths: set[str] | None) -> None:
        for path in paths or ():
            looked[path] = clock
        for _pass in range(pause):
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        changes = ChangeQueue(work, group)
        for batch in batches:
            clock += 1
            changed |= dict.fromkeys(batch, clock)
            changes.add("a", set(batch))
            await asyncio.sleep(0)

    assert looked.keys() == changed.keys()
    assert all(looked[path] >= at for path, at in changed.items())
