"""``agent-runtime replay``: whether a turn's prompt can be rebuilt, byte for byte."""

from __future__ import annotations

import click

from config.settings import Settings
from runtime.cli.client import connect
from runtime.cli.invocation import Invocation, json_option, run
from runtime.cli.output import count, line, print_json, status_line
from runtime.cli.turns import LAST, find_turn, show_messages, show_rounds, turn_path


@click.command()
@click.argument("turn", default=LAST)
@click.option("-w", "--workspace", metavar="W", help="Only this workspace.")
@json_option
@click.pass_obj
def command(invocation: Invocation, turn: str, workspace: str | None, as_json: bool) -> int:
    """Rebuild the prompt of TURN (a turn id; default: `last`) and check that it is identical, byte for byte.

    Calls of tools are listed, without what the tools answered. The exit code is 1 if the prompt is not identical.
    """
    return run(_replay(invocation.settings(), turn, workspace, as_json))


async def _replay(settings: Settings, turn: str, workspace: str | None, as_json: bool) -> int:
    with status_line("opening the stores …"):
        async with connect(settings) as client:
            name, turn_id = await find_turn(client, turn, workspace)
            rebuilt = await client.get(turn_path(name, turn_id) + "/replay")
    if as_json:
        print_json(rebuilt)
    else:
        show_messages(rebuilt["messages"])
        show_rounds(rebuilt.get("rounds") or ())
        line()
        if rebuilt["identical"]:
            line(f"{turn_id}: identical, sha256 {rebuilt['sha256']}", fg="green")
        else:
            if cut := rebuilt.get("cut"):
                line(f"{count(cut, 'record')} of this prompt {'was' if cut == 1 else 'were'} forgotten since.")
            line(f"{turn_id}: NOT identical: sent {rebuilt['stored_sha256']}, rebuilt {rebuilt['sha256']}", fg="red")
    return 0 if rebuilt["identical"] else 1
