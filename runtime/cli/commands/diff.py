"""``agent-runtime diff``: what two turns were told, compared."""

from __future__ import annotations

from typing import Any

import click

from config.settings import Settings
from runtime.cli.client import Client, connect
from runtime.cli.invocation import Invocation, json_option, run
from runtime.cli.output import count, line, print_json, show_diff, status_line, table
from runtime.cli.turns import find_turn, turn_path
from runtime.turns.manifest import SAME, compare


@click.command()
@click.argument("turn_a")
@click.argument("turn_b")
@click.option("-w", "--workspace", metavar="W", help="Only this workspace.")
@json_option
@click.pass_obj
def command(invocation: Invocation, turn_a: str, turn_b: str, workspace: str | None, as_json: bool) -> None:
    """Compare what went into TURN_A and TURN_B (turn ids, or `last`): strategy, blocks, sources and messages."""
    run(_diff(invocation.settings(), turn_a, turn_b, workspace, as_json))


async def _diff(settings: Settings, turn_a: str, turn_b: str, workspace: str | None, as_json: bool) -> None:
    with status_line("opening the stores …"):
        async with connect(settings) as client:
            compared = compare(await _turn(client, turn_a, workspace), await _turn(client, turn_b, workspace))
    if as_json:
        print_json(compared)
    else:
        _show(compared)


async def _turn(client: Client, turn: str, workspace: str | None) -> dict[str, Any]:
    name, turn_id = await find_turn(client, turn, workspace)
    manifest: dict[str, Any] = await client.get(turn_path(name, turn_id), prompt=True)
    return manifest


def _show(compared: dict[str, Any]) -> None:
    line(f"{compared['a']} → {compared['b']}", bold=True)
    for name, (before, after) in compared["changed"].items():
        line(f"{name:<13} {_words(before)} → {_words(after)}")
    line()
    rows = [[one["name"], one["change"], *one["tokens"]] for one in compared["blocks"]]
    table(["block", "change", "tokens before", "after"], rows, right=["tokens before", "after"])
    line()
    if compared["identical"]:
        line("The prompts are identical, byte for byte.", fg="green")
        return
    kept = sum(one["change"] == SAME for one in compared["blocks"])
    line(f"The prompts differ. Same: {kept} of {count(len(compared['blocks']), 'block')}.")
    line()
    show_diff(compared["diff"])


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {one}" for name, one in value.items()) or "–"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "–"
    return str(value) or "–"
