"""``agent-runtime usage``: tokens and cost."""

from __future__ import annotations

from typing import Any

import click

from config.settings import Settings
from runtime.cli.client import connect, segment
from runtime.cli.invocation import Invocation, json_option, run
from runtime.cli.output import dollars, line, print_json, table

_NUMBERS = ("turns", "prompt", "cached", "completion", "cost")


@click.command()
@click.option("-w", "--workspace", metavar="W", help="Of this workspace only.")
@json_option
@click.pass_obj
def command(invocation: Invocation, workspace: str | None, as_json: bool) -> None:
    """Show the tokens and the cost of each workspace, as the providers counted them."""
    run(_usage(invocation.settings(), workspace, as_json))


async def _usage(settings: Settings, workspace: str | None, as_json: bool) -> None:
    path = f"/v1/workspaces/{segment(workspace)}/usage" if workspace else "/v1/usage"
    async with connect(settings) as client:
        found = await client.get(path)
    if as_json:
        print_json(found)
        return
    rows = found["workspaces"]
    if not rows:
        line("no model was called yet")
        return
    table(["workspace", *_NUMBERS], [_row(row["workspace"], row) for row in rows], right=_NUMBERS)
    for row in rows:
        if models := row.get("models"):
            line()
            table(
                [f"model in {row['workspace']}", "calls", *_NUMBERS[1:]],
                [
                    [name, figures.get("calls", ""), *_row(name, figures)[2:]]
                    for name, figures in _by_name(models).items()
                ],
                right=("calls", *_NUMBERS),
            )


def _row(name: str, figures: dict[str, Any]) -> list[Any]:
    cost = dollars(float(figures["cost_usd"]))
    return [name, figures.get("turns", ""), figures["prompt"], figures["cached"], figures["completion"], cost]


def _by_name(models: Any) -> dict[str, dict[str, Any]]:
    return models if isinstance(models, dict) else {row["model"]: row for row in models}
