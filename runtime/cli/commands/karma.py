"""``agent-runtime karma``: answers that people marked as good or bad."""

from __future__ import annotations

from typing import Any

import click

from config.settings import Settings
from runtime.cli.client import connect, segment
from runtime.cli.invocation import Invocation, json_option, run, workspace_of, workspace_option
from runtime.cli.output import line, print_json, table
from runtime.cli.turns import find_turn, turn_path

Row = dict[str, Any]
_SHOWN = 60


@click.group()
def command() -> None:
    """Manage the marks on answers. The model is shown good answers to similar questions as examples."""


@command.command()
@click.argument("turn")
@click.argument("mark", metavar="MARK", type=click.Choice(["good", "bad", "none"]))
@click.option("--user", metavar="CONNECTOR:ID", help="The person whose mark it is. Default: you.")
@workspace_option
@json_option
@click.pass_obj
def mark(invocation: Invocation, turn: str, mark: str, user: str | None, workspace: str | None, as_json: bool) -> None:
    """Mark the answer of TURN (a turn id, or `last`) as good or bad, or remove the mark (none)."""
    settings = invocation.settings()
    found = run(_mark(settings, workspace, turn, mark, user))
    if as_json:
        print_json(found)
    else:
        line(f"{found['turn_id']}: marked {found['mark']} (good: {found['good']}, bad: {found['bad']})")


@command.command("list")
@workspace_option
@json_option
@click.pass_obj
def listing(invocation: Invocation, workspace: str | None, as_json: bool) -> None:
    """List the marked turns, the newest first, and the examples that came from them."""
    settings = invocation.settings()
    rows = run(_list(settings, workspace_of(settings, workspace)))
    if as_json:
        for row in rows:
            print_json(row)
        return
    if not rows:
        line("No answer is marked. React to a reply with 👍, or run `agent-runtime karma mark last good`.")
        return
    table(
        ["turn", "conversation", "good", "bad", "seen by", "asked"],
        [
            [one["turn_id"], one["context_id"], one["good"], one["bad"], _audience(one), _asked(one)[:_SHOWN]]
            for one in rows
        ],
        right=["good", "bad"],
    )


@command.command()
@click.argument("turn")
@workspace_option
@json_option
@click.pass_obj
def remove(invocation: Invocation, turn: str, workspace: str | None, as_json: bool) -> None:
    """Remove all marks of TURN, and the example that came from it."""
    settings = invocation.settings()
    found = run(_remove(settings, workspace_of(settings, workspace), turn))
    if as_json:
        print_json(found)
    else:
        line(f"{found['turn_id']}: all marks are removed")


async def _mark(settings: Settings, workspace: str | None, turn: str, mark: str, user: str | None) -> Row:
    body = {"mark": mark} | ({"user": user} if user else {})
    async with connect(settings) as client:
        name, turn_id = await find_turn(client, turn, workspace)
        found: Row = await client.post(f"{turn_path(name, turn_id)}/mark", body)
    return found


async def _list(settings: Settings, workspace: str) -> list[Row]:
    async with connect(settings) as client:
        found: list[Row] = (await client.get(f"/v1/workspaces/{segment(workspace)}/karma"))["karma"]
    return found


async def _remove(settings: Settings, workspace: str, turn: str) -> Row:
    async with connect(settings) as client:
        found: Row = await client.delete(f"/v1/workspaces/{segment(workspace)}/karma/{segment(turn)}")
    return found


def _audience(row: Row) -> str:
    return str(row["audience"] or "nobody") if row["trace"] else "nobody"


def _asked(row: Row) -> str:
    return str(row["trace"]["asked"]) if row["trace"] else ""
