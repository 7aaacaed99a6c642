"""``agent-runtime karma``: answers that people marked as good or bad."""

from __future__ import annotations

from typing import Any

import click

from runtime.cli.client import Client, api_path, request, run_with_client
from runtime.cli.commands.turns import find_turn, turn_path
from runtime.cli.invocation import Invocation, data_command, workspace_option
from runtime.cli.output import emit, table

Row = dict[str, Any]
_QUESTION_CHARACTERS = 60


@click.group()
def command() -> None:
    """Manage the marks on answers. The model is shown good answers to similar questions as examples."""


@command.command()
@click.argument("turn")
@click.argument("mark", metavar="MARK", type=click.Choice(["good", "bad", "none"]))
@click.option("--user", metavar="CONNECTOR:ID", help="The person whose mark it is. Default: you.")
@workspace_option
@data_command
def mark(invocation: Invocation, turn: str, mark: str, user: str | None, workspace: str) -> None:
    """Mark the answer of TURN (a turn id, or `last`) as good or bad, or remove the mark (none)."""

    async def store(client: Client) -> Row:
        path = turn_path(*await find_turn(client, turn, workspace), "mark")
        return await client.call("POST", path, {"mark": mark} | ({"user": user} if user else {}))

    row = run_with_client(invocation, store)
    emit(invocation, row, f"{row['turn_id']}: marked {row['mark']} (good: {row['good']}, bad: {row['bad']})")


@command.command("list")
@workspace_option
@data_command
def list_(invocation: Invocation, workspace: str) -> None:
    """List the marked turns, the newest first, and the examples that came from them."""
    rows = request(invocation, "GET", api_path("workspaces", workspace, "karma"))["karma"]
    emit(invocation, rows, _show_marks)


def _show_marks(rows: list[Row]) -> None:
    table(
        ["turn", "conversation", "good", "bad", "seen by", "asked"],
        [
            [
                row["turn_id"],
                row["context_id"],
                row["good"],
                row["bad"],
                (row["trace"] and row["audience"]) or "nobody",
                row["trace"]["asked"][:_QUESTION_CHARACTERS] if row["trace"] else "",
            ]
            for row in rows
        ],
        right=["good", "bad"],
        empty="No answer is marked. React to a reply with 👍, or run `agent-runtime karma mark last good`.",
    )


@command.command()
@click.argument("turn")
@workspace_option
@data_command
def remove(invocation: Invocation, turn: str, workspace: str) -> None:
    """Remove all marks of TURN, and the example that came from it."""
    row = request(invocation, "DELETE", api_path("workspaces", workspace, "karma", turn))
    emit(invocation, row, f"{row['turn_id']}: all marks are removed")
