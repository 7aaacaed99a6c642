"""Progress on standard error: the status line, and runs of the index that report how far they are."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from connectors.console import neutralise
from connectors.message import AgentRuntimeError
from runtime.cli.client import Client, api_path

_CLEAR_LINE = "\r\x1b[K"
_MIN_COLUMNS = 20


class StatusLine:
    """One line on standard error that says what is going on. Off a terminal it prints nothing."""

    def __init__(self) -> None:
        self._on = sys.stderr.isatty()
        self._visible = False

    def show(self, text: str) -> None:
        if not self._on:
            return
        width = max(shutil.get_terminal_size().columns - 1, _MIN_COLUMNS)
        clean = " ".join(neutralise(text).split())
        cut = clean if len(clean) <= width else clean[: width - 1] + "…"
        sys.stderr.write(f"{_CLEAR_LINE}{cut}")
        sys.stderr.flush()
        self._visible = True

    def clear(self) -> None:
        if self._visible:
            sys.stderr.write(_CLEAR_LINE)
            sys.stderr.flush()
            self._visible = False


@contextmanager
def status_line(text: str) -> Iterator[StatusLine]:
    """Show a status line until the block ends."""
    status = StatusLine()
    status.show(text)
    try:
        yield status
    finally:
        status.clear()


class RunEnded(AgentRuntimeError):
    """A run's stream of events ended before its result."""

    retryable = True


async def follow_run(
    client: Client, path: str, body: dict[str, Any], status: StatusLine, verb: str, workspace: str = ""
) -> dict[str, Any]:
    """Start the run at *path*, show its progress as *verb*, and return its result. Raises `ApiError`, `RunEnded`.

    *workspace* is the workspace of a run that names none in its progress.
    """
    status.show(f"{verb} {workspace} …" if workspace else f"{verb} …")
    async for name, data in client.events("POST", path, body):
        if name == "progress":
            where = workspace or data["workspace"]
            status.show(f"{verb} {where}: {data['done']}/{data['total']}  {data['path']}")
        elif name == "done":
            status.clear()
            return data
    raise RunEnded("the runtime stopped before the run was done; run the command again")


async def index_documents(
    client: Client, workspace: str, status: StatusLine, *, paths: Sequence[str] | None = None, fresh: bool = False
) -> dict[str, Any]:
    """Bring the index of *workspace* in step with its files, or with those at *paths*, and return the counts."""
    body: dict[str, Any] = {"fresh": fresh} | ({} if paths is None else {"paths": list(paths)})
    return await follow_run(client, api_path("workspaces", workspace, "index"), body, status, "indexing", workspace)


async def index_if_pending(client: Client, workspace: str, status: StatusLine) -> None:
    """Index the documents that are on disk but not in the index, so that a first search finds something."""
    if (await client.get(api_path("workspaces", workspace, "index")))["pending"]:
        await index_documents(client, workspace, status)
