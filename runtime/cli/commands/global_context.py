"""``agent-runtime global-context``: the lines that are in every prompt of a workspace, a private place or a person."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from runtime.cli.client import Client, api_path, request, run_with_client
from runtime.cli.invocation import Invocation, data_command, workspace_option
from runtime.cli.output import count, emit, line, table

Owner = dict[str, str]
"""``user`` or ``context``; empty for the lines of the workspace."""
_USER = click.option("--user", metavar="CONNECTOR:ID", help="Use this person's own lines.")
_CONTEXT = click.option("--context", metavar="CONTEXT_ID", help="Use this private place's lines, e.g. slack:C123.")
expected_option = click.option("--expected-version", type=int, help="Fail unless the line has this version.")
number_argument = click.argument("number", type=click.IntRange(0))


def owner_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add ``--user``, ``--context`` (both as ``owner``), ``--workspace`` and ``--json``."""

    @functools.wraps(function)
    def with_owner(*args: Any, user: str | None, context: str | None, **options: Any) -> None:
        if user and context:
            raise click.UsageError("give --user or --context, not both")
        owner = {"user": user, "context": context}
        function(*args, owner={name: value for name, value in owner.items() if value is not None}, **options)

    return _USER(_CONTEXT(workspace_option(data_command(with_owner))))


@click.group()
def command() -> None:
    """Manage the global context: numbered lines in every prompt of a workspace, of one private place, or of one person.

    After a deletion the other lines keep their numbers until the next session (AGENT_RUNTIME_SESSION_IDLE_SECONDS).
    """


@command.command()
@click.option("--waiting", is_flag=True, help="Show the edits that wait for approval.")
@click.option("--history", is_flag=True, help="Show the newest edits and their authors.")
@owner_options
def show(invocation: Invocation, waiting: bool, history: bool, owner: Owner, workspace: str) -> None:
    """List the lines with their numbers."""
    if waiting and history:
        raise click.UsageError("give --waiting or --history, not both")
    if waiting:
        emit(invocation, request(invocation, "GET", _path(workspace, "waiting"), **owner), _show_waiting)
    elif history:
        emit(invocation, request(invocation, "GET", _path(workspace, "history"), **owner), _show_history)
    else:
        _show_lines(invocation, owner, workspace)


def _show_waiting(answer: dict[str, Any]) -> None:
    table(
        ["id", "edit", "was", "text", "by"],
        [[edit["id"], edit["action"], edit["before"], edit["content"], edit["author"]] for edit in answer["waiting"]],
        empty="No edit waits for approval.",
    )


def _show_history(answer: dict[str, Any]) -> None:
    table(
        ["at", "edit", "was", "text", "by"],
        [[edit["at"][:19], edit["action"], edit["before"], edit["after"], edit["by"]] for edit in answer["edits"]],
        empty="There are no edits yet.",
    )


def _show_lines(invocation: Invocation, owner: Owner, workspace: str) -> None:
    others: list[dict[str, Any]] = []

    async def get(client: Client) -> dict[str, Any]:
        if not owner and not invocation.as_json:
            others.extend((await client.get(_path(workspace, "owners")))["owners"])
        return await client.get(_path(workspace), **owner)

    def show(answer: dict[str, Any]) -> None:
        none = "There are no lines for the whole workspace yet." if others else "There are no lines yet."
        table(
            ["line", "text", "by", "version"],
            [[f"{row['line']}--", row["content"], row["author"], row["version"]] for row in answer["lines"]],
            empty=f"{none} `agent-runtime global-context append TEXT` adds one.",
        )
        if others:
            number = sum(other["lines"] for other in others)
            line()
            line(f"{count(number, 'line')} {'belongs' if number == 1 else 'belong'} to places and people:")
            table(["show with", "lines"], [[_owner_option(other), other["lines"]] for other in others], right=["lines"])

    emit(invocation, run_with_client(invocation, get), show)


def _owner_option(owner: dict[str, Any]) -> str:
    return f"--context {owner['context']}" if "context" in owner else f"--user {owner['user']}"


@command.command()
@click.argument("content")
@owner_options
def append(invocation: Invocation, content: str, owner: Owner, workspace: str) -> None:
    """Add CONTENT as a line at the end."""
    row = request(invocation, "POST", _path(workspace), {"content": content, **owner})
    emit(invocation, row, f"{row['line']}-- {row['content']}")


@command.command()
@number_argument
@click.argument("content")
@expected_option
@owner_options
def replace(
    invocation: Invocation, number: int, content: str, expected_version: int | None, owner: Owner, workspace: str
) -> None:
    """Replace line NUMBER with CONTENT."""
    body: dict[str, Any] = {"content": content, **owner}
    if expected_version is not None:
        body["expected_version"] = expected_version
    row = request(invocation, "PUT", _path(workspace, str(number)), body)
    emit(invocation, row, f"{row['line']}-- {row['content']}")


@command.command()
@number_argument
@expected_option
@owner_options
def delete(invocation: Invocation, number: int, expected_version: int | None, owner: Owner, workspace: str) -> None:
    """Delete line NUMBER."""
    path = _path(workspace, str(number))
    answer = request(invocation, "DELETE", path, **owner, expected_version=expected_version)
    emit(invocation, answer, f"Line {number} is deleted.")


@command.command()
@number_argument
@owner_options
def share(invocation: Invocation, number: int, owner: Owner, workspace: str) -> None:
    """Show line NUMBER of a place or a person to the whole workspace."""
    row = request(invocation, "POST", _path(workspace, str(number), "share"), owner)
    emit(invocation, row, f"The whole workspace can see this line now: {row['content']}")


def _add_decision(decision: str, result: str, description: str) -> None:
    @command.command(decision, help=f"{description} the edit ID. `show --waiting` shows the ids.")
    @click.argument("id_", metavar="ID")
    @owner_options
    def decide(invocation: Invocation, id_: str, owner: Owner, workspace: str) -> None:
        answer = request(invocation, "POST", _path(workspace, "waiting", id_), {"decision": decision, **owner})
        emit(invocation, answer, f"Edit {id_} is {result}.")


_add_decision("approve", "approved", "Approve")
_add_decision("deny", "rejected", "Reject")


def _path(workspace: str, *more: str) -> str:
    return api_path("workspaces", workspace, "global-context", *more)
