"""What is told of files that change: in pieces, and what was saved by itself before an import."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from watchfiles import Change

from grounding.documents import Changed, changed_documents, in_pieces, watch
from grounding.documents.watcher import FEW, PIECE, group_changes


def test_changes_are_told_by_workspace_and_only_documents_are_looked_at() -> None:
    base = Path("/data/workspaces")
    names = ["acme/docs/a.md", "acme/docs/v1.2", "acme/docs/.put-x", "acme/logs/l.md", "Not-an-id/docs/a.md", "acme"]
    (change,) = group_changes(base, [(Change.modified, str(base / name)) for name in names])
    assert change == Changed("acme", frozenset({"docs/a.md", "docs/v1.2", "docs/.put-x", "logs/l.md"}))
    assert changed_documents(change) == {"a.md", "v1.2"}
    assert changed_documents(Changed("acme", frozenset({"docs"}))) is None
    assert changed_documents(Changed("acme", frozenset({"context/SOUL.md"}))) == set()


@pytest.mark.parametrize("kind", [Change.added, Change.deleted])
def test_all_documents_are_looked_at_where_the_folder_of_a_workspace_came_or_went(kind: Change) -> None:
    """Of files that are in a new folder before the system follows it, nothing is told."""
    base = Path("/data/workspaces")
    (change,) = group_changes(base, [(kind, str(base / "acme"))])
    assert changed_documents(change) is None
    assert "context" in change.paths


def test_an_edit_that_is_told_with_an_import_of_another_folder_goes_before_it() -> None:
    """Many files that are written anew at once are an import."""
    imported = [f"docs/import/{number}.md" for number in range(1000)]
    first, *others = in_pieces("acme", [*imported, "docs/edited.md"])
    assert (first.is_import, first.paths) == (False, frozenset({"docs/edited.md"}))
    assert {piece.is_import for piece in others} == {True}
    assert {piece.is_import for piece in in_pieces("acme", [f"docs/{number}.md" for number in range(2 * FEW)])} == {
        True
    }


@given(st.sets(st.from_regex(r"docs(/[ab]){0,2}/[0-9]{1,4}\.md", fullmatch=True), max_size=600))
def test_every_path_is_told_once_and_never_very_many_together(paths: set[str]) -> None:
    pieces = in_pieces("acme", paths)
    assert sorted(path for piece in pieces for path in piece.paths) == sorted(paths)
    assert all(0 < len(piece.paths) <= PIECE for piece in pieces)


async def test_a_folder_to_which_a_link_leads_is_told_of_by_its_own_path_also_when_the_link_is_gone(
    tmp_path: Path,
) -> None:
    docs = tmp_path / "workspaces" / "acme" / "docs"
    (docs / "z").mkdir(parents=True)
    (docs / "a").symlink_to("z")
    begun, told = asyncio.Event(), asyncio.Queue[str]()

    async def follow() -> None:
        async for change in watch(tmp_path, begun=begun.set):
            for path in sorted(change.paths):
                told.put_nowait(path)

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        following = group.create_task(follow())
        await begun.wait()
        (docs / "z/one.md").write_text("one")
        assert await told.get() == "docs/z/one.md"
        (docs / "a").unlink()
        assert await told.get() == "docs/a"
        (docs / "z/two.md").write_text("two")
        assert await told.get() == "docs/z/two.md"
        following.cancel()


async def test_what_a_link_leads_to_outside_is_not_watched(tmp_path: Path) -> None:
    outside, docs = tmp_path / "outside", tmp_path / "workspaces" / "acme" / "docs"
    outside.mkdir()
    docs.mkdir(parents=True)
    (docs / "link").symlink_to(outside)
    begun, told = asyncio.Event(), asyncio.Queue[str]()

    async def follow() -> None:
        async for change in watch(tmp_path, begun=begun.set):
            for path in sorted(change.paths):
                told.put_nowait(path)

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        following = group.create_task(follow())
        await begun.wait()
        (outside / "foreign").mkdir()
        (docs / "own.md").write_text("own")
        assert await told.get() == "docs/own.md"
        following.cancel()
