"""Changes of several workspaces are worked off at once, each of them once, and never more of one than its share."""

from __future__ import annotations

import asyncio

from runtime.changes import RUNS, RUNS_OF_EACH, Changes


class Slow:
    """Work that ends when it is told to; ``done`` is what it was given."""

    def __init__(self) -> None:
        self.done: list[tuple[str, set[str] | None, float]] = []
        self.running: list[str] = []
        self.goes_on = asyncio.Event()

    async def work(self, workspace_id: str, paths: set[str] | None, at: float) -> None:
        self.running.append(workspace_id)
        self.done.append((workspace_id, paths, at))
        await self.goes_on.wait()
        self.running.remove(workspace_id)


async def passes() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_what_comes_beyond_a_workspaces_runs_waits_and_becomes_one() -> None:
    slow = Slow()
    async with asyncio.TaskGroup() as group:
        changes = Changes(slow.work, group)
        for number in range(6):
            changes.add("a", {f"{number}.md"}, float(number))
            await passes()
        assert slow.running == ["a"] * RUNS_OF_EACH
        changes.add("b", {"b.md"}, 9.0)
        await passes()
        assert slow.running == ["a"] * RUNS_OF_EACH + ["b"]
        slow.goes_on.set()

    first = [("a", {f"{number}.md"}, float(number)) for number in range(RUNS_OF_EACH)]
    rest = ("a", {f"{number}.md" for number in range(RUNS_OF_EACH, 6)}, float(RUNS_OF_EACH))
    assert slow.done == [*first, ("b", {"b.md"}, 9.0), rest]


async def test_everything_takes_the_place_of_single_files_that_wait() -> None:
    slow = Slow()
    async with asyncio.TaskGroup() as group:
        changes = Changes(slow.work, group)
        for number in range(RUNS_OF_EACH):
            changes.add("a", {"first.md"}, float(number))
            await passes()
        for paths in ({"a.md"}, None, {"b.md"}):
            changes.add("a", paths, 5.0)
        slow.goes_on.set()

    assert slow.done[RUNS_OF_EACH:] == [("a", None, 5.0)]


async def test_not_all_workspaces_are_worked_off_at_once_but_all_in_the_end() -> None:
    slow = Slow()
    async with asyncio.TaskGroup() as group:
        changes = Changes(slow.work, group)
        for number in range(3 * RUNS):
            changes.add(f"w{number}", None, 0.0)
        await passes()
        assert len(slow.running) == RUNS
        slow.goes_on.set()

    assert sorted(one for one, _, _ in slow.done) == sorted(f"w{number}" for number in range(3 * RUNS))
