"""``agent-runtime dead-letters``: turns that failed for good."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from runtime.cli.client import ApiError, Client, api_path, run_with_client
from runtime.cli.invocation import Invocation, data_command
from runtime.cli.output import count, emit, note, table

Letter = dict[str, Any]
workspace_option = click.option("-w", "--workspace", metavar="W", help="Only this workspace. Default: all workspaces.")


def letter_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument TURN, ``--all``, ``--workspace`` and ``--json``."""
    function = workspace_option(data_command(function))
    function = click.option("--all", "all_", is_flag=True, help="All turns that `list` shows.")(function)
    return click.argument("turn", required=False)(function)


@click.group()
def command() -> None:
    """List, retry and drop dead letters: turns that failed AGENT_RUNTIME_TURN_MAX_ATTEMPTS times.

    The person was told that something went wrong. If you retry a turn, they get the answer after all.
    """


@command.command(name="list")
@workspace_option
@data_command
def list_(invocation: Invocation, workspace: str | None) -> None:
    """List the turns that failed for good, with the beginning of each question."""
    emit(invocation, run_with_client(invocation, lambda client: _letters(client, workspace)), _show_letters)


def _show_letters(letters: list[Letter]) -> None:
    names = ("turn_id", "at", "workspace_id", "context_id", "why", "attempts", "text")
    table(
        ["turn", "given up", "workspace", "conversation", "why", "attempts", "what was said"],
        [[letter[name] for name in names] for letter in letters],
        right=["attempts"],
        empty="No turn has failed for good.",
    )


@command.command()
@letter_options
def retry(invocation: Invocation, turn: str | None, all_: bool, workspace: str | None) -> int:
    """Retry TURN: answer it in a new turn. `serve` must run for this."""
    return _end(invocation, turn, all_, workspace, "POST", "retry")


@command.command()
@letter_options
def drop(invocation: Invocation, turn: str | None, all_: bool, workspace: str | None) -> int:
    """Drop TURN: it is never answered."""
    return _end(invocation, turn, all_, workspace, "DELETE")


def _end(invocation: Invocation, turn: str | None, all_: bool, workspace: str | None, method: str, *action: str) -> int:
    """Retry or drop the letters of *turn*, or all, and print the result. Return the exit code."""
    if (turn is None) != all_:
        raise click.UsageError("give a TURN (`agent-runtime dead-letters list` shows them) or --all")
    done: list[Letter] = []
    problems: list[str] = []

    async def end(client: Client) -> bool:
        letters = [letter for letter in await _letters(client, workspace) if turn in (None, letter["turn_id"])]
        if turn is not None and not letters:
            problems.append(f"no turn {turn!r} failed for good; `agent-runtime dead-letters list` shows those that did")
        for letter in letters:
            path = api_path("workspaces", letter["workspace_id"], "dead-letters", letter["turn_id"], *action)
            try:
                done.append(await client.call(method, path, {} if action else None))
            except ApiError as error:
                if error.status not in (404, 429):  # only these are about one turn alone
                    raise
                problems.append(str(error))
        return client.runtime is not None

    no_serve_runs = run_with_client(invocation, end)
    verb = "put back into the queue" if action else "dropped"
    emit(invocation, done, f"{count(len(done), 'turn')} {verb}" if done or not problems else "Nothing was done.")
    for problem in problems:
        note(f"agent-runtime: {problem}")
    if action and no_serve_runs and done:
        note("No `serve` runs on this data folder. The turns are answered when it runs.")
    return 1 if problems else 0


async def _letters(client: Client, workspace: str | None) -> list[Letter]:
    """Return the dead letters of *workspace*, or of all workspaces, each with its ``workspace_id``."""
    letters: list[Letter] = []
    for name in [workspace] if workspace else await client.workspaces():
        answer = await client.get(api_path("workspaces", name, "dead-letters"))
        letters += [{**letter, "workspace_id": name} for letter in answer["dead_letters"]]
    return letters
