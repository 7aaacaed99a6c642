"""Finding a turn by what a person types: its id, ``last``, or nothing."""

from __future__ import annotations

from typing import Any

from connectors.message import AgentRuntimeError
from runtime.cli.client import ApiError, Client, segment

LAST = "last"


class NoSuchTurn(AgentRuntimeError):
    """No workspace that was looked in knows the turn."""


async def find_turn(client: Client, turn: str, workspace: str | None) -> tuple[str, str]:
    """The workspace and id of *turn*, looked for in all workspaces unless one is named.

    Raises `NoSuchTurn` and `ApiError`.
    """
    workspaces = (
        [workspace] if workspace else [each["id"] for each in (await client.get("/v1/workspaces"))["workspaces"]]
    )
    if turn == LAST:
        return await _newest(client, workspaces)
    for name in workspaces:
        try:
            await client.get(turn_path(name, turn))
        except ApiError as error:
            if error.status != 404 or (workspace and error.code == "unknown_workspace"):
                raise
        else:
            return name, turn
    where = f"workspace {workspace}" if workspace else "any workspace"
    raise NoSuchTurn(f"no turn {turn!r} is known in {where}; `agent-runtime explain last` shows the newest")


async def _newest(client: Client, workspaces: list[str]) -> tuple[str, str]:
    found: list[tuple[str, str, str]] = []
    for name in workspaces:
        rows: list[dict[str, Any]] = (await client.get(f"/v1/workspaces/{segment(name)}/turns", limit=1))["turns"]
        found += [(row["at"], name, row["turn_id"]) for row in rows]
    if not found:
        raise NoSuchTurn("there are no turns yet; ask something with `agent-runtime chat` first")
    _, name, turn_id = max(found)
    return name, turn_id


def turn_path(workspace: str, turn: str) -> str:
    """The path of a turn's manifest."""
    return f"/v1/workspaces/{segment(workspace)}/turns/{segment(turn)}"
