"""Documents that arrive together are indexed together."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest

from connectors.message import Scope
from grounding.retrieval import IndexUnavailable
from runtime.http.doctor import files_check
from runtime.http.routes.documents import Indexing

SCOPE = Scope("acme")


class Slow:
    """An index whose runs take until they are let go; ``runs`` are the paths of each."""

    def __init__(self) -> None:
        self.runs: list[set[str]] = []
        self.go = asyncio.Event()
        self.error: IndexUnavailable | None = None

    async def index(self, scope: Scope, paths: Collection[str] | None = None) -> None:
        assert scope == SCOPE
        self.runs.append(set(paths or ()))
        gate = self.go
        await gate.wait()
        if self.error is not None:
            raise self.error


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_what_arrives_during_a_run_becomes_one_further_run() -> None:
    """A hundred documents are two runs, and each caller waits for the run that has its document."""
    index = Slow()
    indexing = Indexing(index)
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(indexing.index(SCOPE, ["0.md"]))
        await settled()
        others = [tasks.create_task(indexing.index(SCOPE, [f"{number}.md"])) for number in range(1, 100)]
        await settled()
        assert index.runs == [{"0.md"}]
        assert not first.done()
        assert not any(task.done() for task in others)
        index.go.set()
    assert index.runs == [{"0.md"}, {f"{number}.md" for number in range(1, 100)}]


async def test_a_failed_run_fails_everybody_in_it_and_nobody_after() -> None:
    """The error reaches each caller of that run; the next run starts clean."""
    index = Slow()
    indexing = Indexing(index)
    index.error = IndexUnavailable("away")
    index.go.set()
    failed = await asyncio.gather(*[indexing.index(SCOPE, [name]) for name in "ab"], return_exceptions=True)
    assert [type(one) for one in failed] == [IndexUnavailable, IndexUnavailable]
    index.error = None
    await indexing.index(SCOPE, ["c"])
    assert index.runs[-1] == {"c"}


async def test_a_caller_that_leaves_takes_nobodys_document_along() -> None:
    """Where the caller that runs the index is cancelled, the next one runs it for all."""
    index = Slow()
    indexing = Indexing(index)
    running = asyncio.ensure_future(indexing.index(SCOPE, ["now.md"]))
    await settled()
    leaving = asyncio.ensure_future(indexing.index(SCOPE, ["left.md"]))
    await settled()
    staying = asyncio.ensure_future(indexing.index(SCOPE, ["stays.md"]))
    await settled()
    first, index.go = index.go, asyncio.Event()
    first.set()
    await running
    await settled()
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    await settled()
    assert not staying.done()
    index.go.set()
    await staying
    assert index.runs == [{"now.md"}, {"left.md", "stays.md"}, {"left.md", "stays.md"}]


def test_the_doctor_says_that_files_cannot_be_followed_and_which_limits_to_raise() -> None:
    check = files_check("files cannot be followed: OS file watch limit reached.")
    assert (check.ok, "watch limit" in check.detail, "max_user_watches" in check.advice) == (False, True, True)
    assert files_check("").ok
