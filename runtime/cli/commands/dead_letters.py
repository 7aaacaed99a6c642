"""``agent-runtime dead-letters``: turns that failed for good."""

from __future__ import annotations

from typing import Any

import click

from config.settings import Settings
from runtime.cli.client import ApiError, Client, connect, segment
from runtime.cli.invocation import Invocation, json_option, run
from runtime.cli.output import count, line, note, print_json, table

Letter = dict[str, Any]

_turn = click.argument("turn", required=False)
_every = click.option("--all", "every", is_flag=True, help="All turns that `list` shows.")
_workspace = click.option("-w", "--workspace", metavar="W", help="Only this workspace. Default: all workspaces.")


@click.group()
def command() -> None:
    """List, retry and drop dead letters: turns that failed AGENT_RUNTIME_TURN_MAX_ATTEMPTS times.

    The person was told that something went wrong. If you retry a turn, they get the answer after all.
    """


@command.command(name="list")
@_workspace
@json_option
@click.pass_obj
def list_(invocation: Invocation, workspace: str | None, as_json: bool) -> None:
    """List the turns that failed for good, with the beginning of each question."""
    settings = invocation.settings()
    letters = run(_list(settings, workspace))
    if as_json:
        for letter in letters:
            print_json(letter)
        return
    if not letters:
        line("No turn has failed for good.")
        return
    names = ("turn_id", "at", "workspace_id", "context_id", "why", "attempts", "text")
    headers = ["turn", "given up", "workspace", "conversation", "why", "attempts", "what was said"]
    table(headers, [[one[name] for name in names] for one in letters], right=["attempts"])


@command.command()
@_turn
@_every
@_workspace
@json_option
@click.pass_obj
def retry(invocation: Invocation, turn: str | None, every: bool, workspace: str | None, as_json: bool) -> int:
    """Retry TURN: answer it in a new turn. `serve` must run for this."""
    return _act(invocation, turn, every, workspace, as_json, "retry")


@command.command()
@_turn
@_every
@_workspace
@json_option
@click.pass_obj
def drop(invocation: Invocation, turn: str | None, every: bool, workspace: str | None, as_json: bool) -> int:
    """Drop TURN: it is never answered."""
    return _act(invocation, turn, every, workspace, as_json, "drop")


def _act(invocation: Invocation, turn: str | None, every: bool, workspace: str | None, as_json: bool, what: str) -> int:
    if (turn is None) == (not every):
        raise click.UsageError("give a TURN (`agent-runtime dead-letters list` shows them) or --all")
    settings = invocation.settings()
    done, failed, waits = run(_each(settings, workspace, turn, what))
    if as_json:
        for answer in done:
            print_json(answer)
    else:
        said = "put back into the queue" if what == "retry" else "dropped"
        line(f"{count(len(done), 'turn')} {said}" if done or not failed else "Nothing was done.")
    for problem in failed:
        note(f"agent-runtime: {problem}")
    if waits and done:
        note("No `serve` runs on this data folder. The turns are answered when it runs.")
    return 1 if failed else 0


async def _list(settings: Settings, workspace: str | None) -> list[Letter]:
    async with connect(settings) as client:
        return await _letters(client, workspace)


async def _letters(client: Client, workspace: str | None) -> list[Letter]:
    """What failed in *workspace*, or in all; each with its ``workspace_id``."""
    if workspace is None:
        names = [row["id"] for row in (await client.get("/v1/workspaces"))["workspaces"]]
    else:
        names = [workspace]
    letters: list[Letter] = []
    for name in names:
        found = await client.get(f"/v1/workspaces/{segment(name)}/dead-letters")
        letters += [{**letter, "workspace_id": name} for letter in found["dead_letters"]]
    return letters


async def _each(
    settings: Settings, workspace: str | None, turn: str | None, what: str
) -> tuple[list[dict[str, Any]], list[str], bool]:
    """What was answered for each turn, what went wrong with others, and whether nobody is there to answer."""
    done: list[dict[str, Any]] = []
    failed: list[str] = []
    async with connect(settings) as client:
        letters = [one for one in await _letters(client, workspace) if turn in (None, one["turn_id"])]
        if turn is not None and not letters:
            failed.append(f"no turn {turn!r} failed for good; `agent-runtime dead-letters list` shows those that did")
        for letter in letters:
            path = f"/v1/workspaces/{segment(letter['workspace_id'])}/dead-letters/{segment(letter['turn_id'])}"
            try:
                done.append(await (client.post(f"{path}/retry", {}) if what == "retry" else client.delete(path)))
            except ApiError as error:
                if error.status not in (404, 429):  # nothing that is wrong with one turn alone
                    raise
                failed.append(str(error))
        return done, failed, what == "retry" and client.runtime is not None
