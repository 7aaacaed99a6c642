"""``agent-runtime diff``: compare what went into two turns."""

from __future__ import annotations

from typing import Any

import click

from runtime.cli.client import Client, run_with_client
from runtime.cli.invocation import Invocation, json_option, only_workspace_option
from runtime.cli.output import count, emit, line, show_diff, table
from runtime.cli.progress import status_line
from runtime.cli.turns import find_turn, turn_path
from runtime.turns import SAME, compare_manifests


@click.command()
@click.argument("turn_a")
@click.argument("turn_b")
@only_workspace_option
@json_option
@click.pass_obj
def command(invocation: Invocation, turn_a: str, turn_b: str, workspace: str | None) -> None:
    """Compare what went into TURN_A and TURN_B (turn ids, or `last`): strategy, blocks, sources and messages."""

    async def get(client: Client) -> list[dict[str, Any]]:
        paths = [turn_path(*await find_turn(client, turn, workspace)) for turn in (turn_a, turn_b)]
        return [await client.get(path, prompt=True) for path in paths]

    with status_line("opening the stores …"):
        a, b = run_with_client(invocation, get)
    emit(invocation, compare_manifests(a, b), _show_comparison)


def _show_comparison(comparison: dict[str, Any]) -> None:
    line(f"{comparison['a']} → {comparison['b']}", bold=True)
    for name, (before, after) in comparison["changed"].items():
        line(f"{name:<13} {_as_text(before)} → {_as_text(after)}")
    line()
    rows = [[block["name"], block["change"], *block["tokens"]] for block in comparison["blocks"]]
    table(["block", "change", "tokens before", "after"], rows, right=["tokens before", "after"])
    line()
    if comparison["identical"]:
        line("The prompts are identical, byte for byte.", fg="green")
        return
    same = sum(block["change"] == SAME for block in comparison["blocks"])
    line(f"The prompts differ. Same: {same} of {count(len(comparison['blocks']), 'block')}.")
    line()
    show_diff(comparison["diff"])


def _as_text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {part}" for name, part in value.items()) or "–"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "–"
    return str(value) or "–"
