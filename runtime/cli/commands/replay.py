"""``agent-runtime replay``: check that a turn's prompt can be rebuilt, byte for byte."""

from __future__ import annotations

from typing import Any

import click

from runtime.cli.client import Client, run_with_client
from runtime.cli.invocation import Invocation, json_option, only_workspace_option
from runtime.cli.output import count, emit, line
from runtime.cli.progress import status_line
from runtime.cli.turns import LAST, find_turn, show_messages, show_rounds, turn_path


@click.command()
@click.argument("turn", default=LAST)
@only_workspace_option
@json_option
@click.pass_obj
def command(invocation: Invocation, turn: str, workspace: str | None) -> int:
    """Rebuild the prompt of TURN (a turn id; default: `last`) and check that it is identical, byte for byte.

    Calls of tools are listed, without what the tools answered. The exit code is 1 if the prompt is not identical.
    """

    async def replay(client: Client) -> tuple[str, dict[str, Any]]:
        name, turn_id = await find_turn(client, turn, workspace)
        return turn_id, await client.get(turn_path(name, turn_id) + "/replay")

    with status_line("opening the stores …"):
        turn_id, replayed = run_with_client(invocation, replay)
    emit(invocation, replayed, lambda replayed: _show(turn_id, replayed))
    return 0 if replayed["identical"] else 1


def _show(turn_id: str, replayed: dict[str, Any]) -> None:
    show_messages(replayed["messages"])
    show_rounds(replayed.get("rounds") or ())
    line()
    if replayed["identical"]:
        line(f"{turn_id}: identical, sha256 {replayed['sha256']}", fg="green")
        return
    if cut := replayed.get("cut"):
        line(f"{count(cut, 'record')} of this prompt {'was' if cut == 1 else 'were'} forgotten since.")
    line(f"{turn_id}: NOT identical: sent {replayed['stored_sha256']}, rebuilt {replayed['sha256']}", fg="red")
