"""``agent-runtime dead-letters``: turns that failed for good."""

from __future__ import annotations

from typing import Any

import click

from config.settings import Settings
from runtime.cli.client import ApiError, Client, connect, segment
from runtime.cli.invocation import Invocation, json_option, run, workspace_of, workspace_option
from runtime.cli.output import count, line, note, print_json, table

Letter = dict[str, Any]

_turn = click.argument("turn", required=False)
_every = click.option("--all", "every", is_flag=True, help="All of the workspace.")


@click.group()
def command() -> None:
    """Turns that were given up after TURN_MAX_ATTEMPTS: look at them, try them again, or drop them.

    The people were told that something went wrong. A turn that is tried again is answered below that.
    """


@command.command(name="list")
@workspace_option
@json_option
@click.pass_obj
def list_(invocation: Invocation, workspace: str | None, as_json: bool) -> None:
    """Show the turns that failed for good, with the beginning of what they were to answer."""
    settings = invocation.settings()
    letters = run(_list(settings, workspace_of(settings, workspace)))
    if as_json:
        for letter in letters:
            print_json(letter)
        return
    if not letters:
        line("no turn has failed for good")
        return
    rows = [[one["turn_id"], one["at"], one["context_id"], one["why"], one["attempts"], one["text"]] for one in letters]
    table(["turn", "given up", "conversation", "why", "attempts", "what was said"], rows, right=["attempts"])


@command.command()
@_turn
@_every
@workspace_option
@json_option
@click.pass_obj
def retry(invocation: Invocation, turn: str | None, every: bool, workspace: str | None, as_json: bool) -> int:
    """Have TURN answered after all, by a new turn; `serve` has to run for that."""
    return _act(invocation, turn, every, workspace, as_json, "retry")


@command.command()
@_turn
@_every
@workspace_option
@json_option
@click.pass_obj
def drop(invocation: Invocation, turn: str | None, every: bool, workspace: str | None, as_json: bool) -> int:
    """Forget TURN: it is never answered."""
    return _act(invocation, turn, every, workspace, as_json, "drop")


def _act(invocation: Invocation, turn: str | None, every: bool, workspace: str | None, as_json: bool, what: str) -> int:
    if (turn is None) == (not every):
        raise click.UsageError("name a TURN (see `agent-runtime dead-letters list`), or give --all")
    settings = invocation.settings()
    done, failed, waits = run(_each(settings, workspace_of(settings, workspace), turn, what))
    if as_json:
        for answer in done:
            print_json(answer)
    else:
        said = "put back to be answered" if what == "retry" else "dropped"
        line(f"{count(len(done), 'turn')} {said}" if done or not failed else "nothing was done")
    for problem in failed:
        note(f"agent-runtime: {problem}")
    if waits and done:
        note("no `serve` runs on this data folder; they are answered when it does")
    return 1 if failed else 0


async def _list(settings: Settings, workspace: str) -> list[Letter]:
    async with connect(settings) as client:
        return await _letters(client, workspace)


async def _letters(client: Client, workspace: str) -> list[Letter]:
    found: list[Letter] = (await client.get(f"/v1/workspaces/{segment(workspace)}/dead-letters"))["dead_letters"]
    return found


async def _each(
    settings: Settings, workspace: str, turn: str | None, what: str
) -> tuple[list[dict[str, Any]], list[str], bool]:
    """What was answered for each turn, what went wrong with others, and whether nobody is there to answer."""
    done: list[dict[str, Any]] = []
    failed: list[str] = []
    async with connect(settings) as client:
        turns = [turn] if turn is not None else [one["turn_id"] for one in await _letters(client, workspace)]
        for turn_id in turns:
            path = f"/v1/workspaces/{segment(workspace)}/dead-letters/{segment(turn_id)}"
            try:
                done.append(await (client.post(f"{path}/retry", {}) if what == "retry" else client.delete(path)))
            except ApiError as error:
                if error.status not in (404, 429):  # nothing that is wrong with one turn alone
                    raise
                failed.append(str(error))
        return done, failed, what == "retry" and client.runtime is not None
