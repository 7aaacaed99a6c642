"""Changes of several workspaces are worked off at once, each of them once, and never more of one than its share."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from runtime.search.sync import NEWEST, OLDEST, RUNS, RUNS_OF_EACH, Changes


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


async def test_what_comes_beyond_a_workspaces_runs_waits_and_becomes_one() -> None:
    slow = Slow()
    async with asyncio.TaskGroup() as group:
        changes = Changes(slow.work, group)
        for number in range(6):
            changes.add("a", {f"{number}.md"})
            await passes()
        assert slow.running == ["a"] * RUNS_OF_EACH
        changes.add("b", {"b.md"})
        await passes()
        assert slow.running == ["a"] * RUNS_OF_EACH + ["b"]
        slow.goes_on.set()

    first = [("a", {f"{number}.md"}) for number in range(RUNS_OF_EACH)]
    rest = ("a", {f"{number}.md" for number in range(RUNS_OF_EACH, 6)})
    assert slow.done == [*first, ("b", {"b.md"}), rest]


async def test_what_is_saved_during_an_import_of_thousands_is_worked_off_next() -> None:
    slow = Slow()
    async with asyncio.TaskGroup() as group:
        changes = Changes(slow.work, group)
        changes.add("a", named(0, 5000), is_import=True)
        await passes()
        assert len(slow.done) == RUNS_OF_EACH
        changes.add("a", {"edited.md"})
        slow.goes_on.set()

    taken = [paths or set() for _, paths in slow.done]
    assert "edited.md" in taken[RUNS_OF_EACH] | taken[RUNS_OF_EACH + 1]
    assert {len(paths) for paths in taken[:2]} == {NEWEST, OLDEST}
    assert sum(map(len, taken)) == 5001


async def test_an_edit_that_is_told_early_in_an_import_is_not_buried_by_what_is_copied_after_it() -> None:
    """Nor where it is told once more among the files of the import: whoever is free next works it off."""
    slow = Slow()
    async with asyncio.TaskGroup() as group:
        changes = Changes(slow.work, group)
        changes.add("a", named(100, 1000), is_import=True)
        await passes()
        changes.add("a", {"edited.md"})
        changes.add("a", named(1000, 5000), is_import=True)
        changes.add("a", named(5000, 9000) | {"edited.md"}, is_import=True)
        slow.goes_on.set()

    taken = [paths or set() for _, paths in slow.done]
    assert "edited.md" in taken[RUNS_OF_EACH] | taken[RUNS_OF_EACH + 1]


async def test_edits_are_worked_off_in_turn_and_an_import_goes_on_beside_them() -> None:
    """However many edits come one by one, none is passed over for a later one, and the import is not left behind."""
    taken: list[set[str]] = []
    async with asyncio.TaskGroup() as group:

        async def work(_: str, paths: set[str] | None) -> None:
            taken.append(paths or set())
            if len(taken) < 40:
                changes.add("a", {f"{len(taken):05}.md"} | {f"{len(taken):05}-{one}.md" for one in range(NEWEST - 1)})
            await passes()

        changes = Changes(work, group)
        changes.add("a", {f"import/{path}" for path in named(0, 10 * OLDEST)}, is_import=True)

    edits = [sorted(one) for one in taken if not any(path.startswith("import/") for path in one)]
    assert edits == sorted(edits)
    imported = [number for number, one in enumerate(taken) if any(path.startswith("import/") for path in one)]
    assert imported[-1] < 40


async def test_what_waits_longest_does_not_wait_for_ever_though_newer_changes_go_on_coming() -> None:
    oldest: list[int] = []
    async with asyncio.TaskGroup() as group:

        async def work(_: str, paths: set[str] | None) -> None:
            if "00000.md" in (paths or ()):
                oldest.append(len(added))
            if len(added) < 20:
                added.append(OLDEST * (len(added) + 4))
                changes.add("a", named(added[-1], added[-1] + OLDEST), is_import=True)
            await passes()

        added: list[int] = []
        changes = Changes(work, group)
        changes.add("a", named(0, 4 * OLDEST), is_import=True)

    assert len(oldest) == 1
    assert oldest[0] < 4


async def test_everything_takes_the_place_of_folders_that_wait_and_single_files_go_on_beside_it() -> None:
    slow = Slow()
    async with asyncio.TaskGroup() as group:
        changes = Changes(slow.work, group)
        changes.add("a", {"first"})
        await passes()
        for paths in ({"folder"}, None, {"other", "b.md"}):
            changes.add("a", paths)
            await passes()
        assert slow.done == [("a", {"first"}), ("a", {"b.md"})]
        slow.goes_on.set()

    assert slow.done[2:] == [("a", None)]


async def test_not_all_workspaces_are_worked_off_at_once_but_all_in_the_end() -> None:
    slow = Slow()
    async with asyncio.TaskGroup() as group:
        changes = Changes(slow.work, group)
        for number in range(3 * RUNS):
            changes.add(f"w{number}", {"a.md"})
        await passes()
        assert len(slow.running) == RUNS
        slow.goes_on.set()

    assert sorted(one for one, _ in slow.done) == sorted(f"w{number}" for number in range(3 * RUNS))


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
        changes = Changes(work, group)
        for batch in batches:
            clock += 1
            changed |= dict.fromkeys(batch, clock)
            changes.add("a", set(batch))
            await asyncio.sleep(0)

    assert looked.keys() == changed.keys()
    assert all(looked[path] >= at for path, at in changed.items())


async def test_documents_that_take_long_keep_no_others_waiting_and_come_one_by_one_edits_first() -> None:
    """However many others were told with them."""
    long = {f"{name}.md" for name in ("long-1", "long-2", "long-3")}
    going, taken = asyncio.Event(), list[set[str]]()

    async def work(_: str, paths: set[str] | None) -> None:
        taken.append(paths or set())
        if paths and paths & long:
            await going.wait()

    async with asyncio.TaskGroup() as group:
        changes = Changes(work, group)
        changes.add("a", named(0, 300) | long, is_import=True, long=long)
        await passes()
        assert set().union(*taken) == named(0, 300) | {"long-1.md"}
        changes.add("a", {"long-3.md", "short.md"}, long={"long-3.md"})
        await passes()
        assert {"short.md"} in taken
        going.set()
    assert [one for one in taken if one & long] == [{"long-1.md"}, {"long-3.md"}, {"long-2.md"}]


async def test_a_document_that_became_long_or_short_while_it_waits_is_worked_off_once_and_stays_an_edit() -> None:
    slow = Slow()
    async with asyncio.TaskGroup() as group:
        changes = Changes(slow.work, group)
        changes.add("a", {"one.md", "two.md"})
        changes.add("a", {"both.md"}, long={"both.md"})
        await passes()
        changes.add("a", {"grown.md", "shrunk.md"} | named(0, 3), long={"shrunk.md"})
        changes.add("a", {"grown.md", "shrunk.md"} | named(3, 100), is_import=True, long={"grown.md"})
        slow.goes_on.set()
    taken = [paths or set() for _, paths in slow.done]
    assert sorted(path for one in taken for path in one).count("grown.md") == 1
    assert {"grown.md"} in taken
    assert any("shrunk.md" in one and not one & named(3, 100) for one in taken)
