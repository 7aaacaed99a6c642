"""``agent-runtime global-context``: lines that stand in every prompt of a workspace, a place or a person."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from config.settings import Settings
from runtime.cli.client import connect, segment
from runtime.cli.invocation import Invocation, json_option, run, workspace_of, workspace_option
from runtime.cli.output import count, line, print_json, table

WHOSE_OPTIONS = (
    click.option("--user", metavar="CONNECTOR:ID", help="Use this person's own lines."),
    click.option("--context", metavar="CONTEXT_ID", help="Use this private place's lines, e.g. slack:C123."),
)
expected_option = click.option("--expected-version", type=int, help="Fail unless the line has this version.")


def whose_options(function: Callable[..., None]) -> Callable[..., None]:
    """The options that say whose lines are meant, as ``whose``."""

    @functools.wraps(function)
    def named(*args: Any, user: str | None, context: str | None, **options: Any) -> None:
        if user and context:
            raise click.UsageError("give --user or --context, not both")
        function(*args, whose=_given(user=user, context=context), **options)

    for option in reversed(WHOSE_OPTIONS):
        named = option(named)
    return named


@click.group()
def command() -> None:
    """Manage the global context: numbered lines in every prompt of a workspace, of one private place, or of one person.

    After a deletion the other lines keep their numbers until the next session (AGENT_RUNTIME_SESSION_IDLE_SECONDS).
    """


@command.command()
@click.option("--waiting", is_flag=True, help="Show the edits that wait for approval.")
@click.option("--history", is_flag=True, help="Show the newest edits and their authors.")
@whose_options
@workspace_option
@json_option
@click.pass_obj
def show(
    invocation: Invocation, waiting: bool, history: bool, whose: dict[str, Any], workspace: str | None, as_json: bool
) -> None:
    """List the lines with their numbers."""
    if waiting and history:
        raise click.UsageError("give --waiting or --history, not both")
    settings = invocation.settings()
    part = "waiting" if waiting else "history" if history else ""
    run(_show(settings, part, whose, workspace_of(settings, workspace), as_json))


async def _show(settings: Settings, part: str, whose: dict[str, Any], workspace: str, as_json: bool) -> None:
    async with connect(settings) as client:
        found = await client.get(f"{_path(workspace)}{f'/{part}' if part else ''}", **whose)
        others = [] if part or whose or as_json else (await client.get(f"{_path(workspace)}/owners"))["owners"]
    if as_json:
        print_json(found)
    elif part == "waiting":
        rows = [[one["id"], one["action"], one["before"], one["content"], one["author"]] for one in found["waiting"]]
        _table(["id", "edit", "was", "text", "by"], rows, "No edit waits for approval.")
    elif part == "history":
        rows = [[one["at"][:19], one["action"], one["before"], one["after"], one["by"]] for one in found["edits"]]
        _table(["at", "edit", "was", "text", "by"], rows, "There are no edits yet.")
    else:
        rows = [[f"{one['line']}--", one["content"], one["author"], one["version"]] for one in found["lines"]]
        none = "There are no lines for the whole workspace yet." if others else "There are no lines yet."
        _table(
            ["line", "text", "by", "version"],
            rows,
            f"{none} `agent-runtime global-context append TEXT` adds one.",
        )
        _show_others(others)


def _show_others(others: list[dict[str, Any]]) -> None:
    """Whose further lines there are, and how to see them."""
    if not others:
        return
    number = sum(one["lines"] for one in others)
    line()
    line(f"{count(number, 'line')} {'belongs' if number == 1 else 'belong'} to places and people:")
    table(
        ["show with", "lines"],
        [
            [f"--context {one['context']}" if "context" in one else f"--user {one['user']}", one["lines"]]
            for one in others
        ],
        right=["lines"],
    )


@command.command()
@click.argument("content")
@whose_options
@workspace_option
@json_option
@click.pass_obj
def append(invocation: Invocation, content: str, whose: dict[str, Any], workspace: str | None, as_json: bool) -> None:
    """Add CONTENT as a line at the end."""
    settings = invocation.settings()
    run(_append(settings, {"content": content, **whose}, workspace_of(settings, workspace), as_json))


async def _append(settings: Settings, body: dict[str, Any], workspace: str, as_json: bool) -> None:
    async with connect(settings) as client:
        _told(await client.post(_path(workspace), body), as_json)


@command.command()
@click.argument("number", type=click.IntRange(0))
@click.argument("content")
@expected_option
@whose_options
@workspace_option
@json_option
@click.pass_obj
def replace(
    invocation: Invocation,
    number: int,
    content: str,
    expected_version: int | None,
    whose: dict[str, Any],
    workspace: str | None,
    as_json: bool,
) -> None:
    """Replace line NUMBER with CONTENT."""
    settings = invocation.settings()
    body = {"content": content, **whose, **_given(expected_version=expected_version)}
    run(_replace(settings, number, body, workspace_of(settings, workspace), as_json))


async def _replace(settings: Settings, number: int, body: dict[str, Any], workspace: str, as_json: bool) -> None:
    async with connect(settings) as client:
        _told(await client.put(f"{_path(workspace)}/{number}", body), as_json)


@command.command()
@click.argument("number", type=click.IntRange(0))
@expected_option
@whose_options
@workspace_option
@json_option
@click.pass_obj
def delete(
    invocation: Invocation,
    number: int,
    expected_version: int | None,
    whose: dict[str, Any],
    workspace: str | None,
    as_json: bool,
) -> None:
    """Delete line NUMBER."""
    settings = invocation.settings()
    run(_delete(settings, number, expected_version, whose, workspace_of(settings, workspace), as_json))


async def _delete(
    settings: Settings, number: int, expected: int | None, whose: dict[str, Any], workspace: str, as_json: bool
) -> None:
    async with connect(settings) as client:
        answer = await client.delete(f"{_path(workspace)}/{number}", **whose, expected_version=expected)
    if as_json:
        print_json(answer)
    else:
        line(f"Line {number} is deleted.")


@command.command()
@click.argument("number", type=click.IntRange(0))
@whose_options
@workspace_option
@json_option
@click.pass_obj
def share(invocation: Invocation, number: int, whose: dict[str, Any], workspace: str | None, as_json: bool) -> None:
    """Show line NUMBER of a place or a person to the whole workspace."""
    settings = invocation.settings()
    run(_share(settings, number, whose, workspace_of(settings, workspace), as_json))


async def _share(settings: Settings, number: int, whose: dict[str, Any], workspace: str, as_json: bool) -> None:
    async with connect(settings) as client:
        shared = await client.post(f"{_path(workspace)}/{number}/share", whose)
    if as_json:
        print_json(shared)
    else:
        line(f"The whole workspace can see this line now: {shared['content']}")


@command.command()
@click.argument("id_", metavar="ID")
@whose_options
@workspace_option
@json_option
@click.pass_obj
def approve(invocation: Invocation, id_: str, whose: dict[str, Any], workspace: str | None, as_json: bool) -> None:
    """Approve the edit ID. `show --waiting` shows the ids."""
    settings = invocation.settings()
    run(_decide(settings, id_, "approve", whose, workspace_of(settings, workspace), as_json))


@command.command()
@click.argument("id_", metavar="ID")
@whose_options
@workspace_option
@json_option
@click.pass_obj
def deny(invocation: Invocation, id_: str, whose: dict[str, Any], workspace: str | None, as_json: bool) -> None:
    """Reject the edit ID. `show --waiting` shows the ids."""
    settings = invocation.settings()
    run(_decide(settings, id_, "deny", whose, workspace_of(settings, workspace), as_json))


async def _decide(
    settings: Settings, id_: str, decision: str, whose: dict[str, Any], workspace: str, as_json: bool
) -> None:
    async with connect(settings) as client:
        answer = await client.post(f"{_path(workspace)}/waiting/{segment(id_)}", {"decision": decision, **whose})
    if as_json:
        print_json(answer)
    else:
        line(f"Edit {id_} is {'approved' if decision == 'approve' else 'rejected'}.")


def _path(workspace: str) -> str:
    return f"/v1/workspaces/{segment(workspace)}/global-context"


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _told(row: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(row)
    else:
        line(f"{row['line']}-- {row['content']}")


def _table(headers: list[str], rows: list[list[Any]], otherwise: str) -> None:
    if rows:
        table(headers, rows)
    else:
        line(otherwise)
