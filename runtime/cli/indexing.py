"""Indexing with its progress shown, for the commands that need an index in step with the disk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from connectors.message import AgentRuntimeError
from runtime.cli.client import Client, segment
from runtime.cli.output import StatusLine


class IndexingEnded(AgentRuntimeError):
    """The stream of an index run ended before it said that it was done."""

    retryable = True


async def index(
    client: Client, workspace: str, status: StatusLine, *, paths: Sequence[str] | None = None, fresh: bool = False
) -> dict[str, Any]:
    """Bring the index of *workspace* in step with its files; what was done. Raises `ApiError`, `IndexingEnded`."""
    body: dict[str, Any] = {"fresh": fresh}
    if paths is not None:
        body["paths"] = list(paths)
    status.show(f"indexing {workspace} …")
    async for name, data in client.events("POST", f"/v1/workspaces/{segment(workspace)}/index", body):
        if name == "progress":
            status.show(f"indexing {workspace}: {data['done']}/{data['total']}  {data['path']}")
        elif name == "done":
            status.clear()
            return data
    raise IndexingEnded("the index run ended without a result; run `agent-runtime index` again")


async def ensure_indexed(client: Client, workspace: str, status: StatusLine) -> None:
    """Index what is on disk and not yet in the index, so that a first search finds something."""
    state = await client.get(f"/v1/workspaces/{segment(workspace)}/index")
    if state["pending"]:
        await index(client, workspace, status)


async def rebuild(client: Client, path: str, body: dict[str, Any], what: str, status: StatusLine) -> dict[str, Any]:
    """Have the runtime do what *path* does, with its progress shown; what was done. Raises `ApiError`,
    `IndexingEnded`."""
    status.show(f"{what} …")
    async for name, data in client.events("POST", path, body):
        if name == "progress":
            status.show(f"{what} {data['workspace']}: {data['done']}/{data['total']}  {data['path']}")
        elif name == "done":
            status.clear()
            return data
    raise IndexingEnded("the runtime stopped before the index was done; run the command again")
