"""``agent-runtime ground``: the prompt of a text, without asking the model."""

from __future__ import annotations

from typing import Any

import click

from config.settings import Settings
from runtime.cli.client import connect, segment
from runtime.cli.invocation import Invocation, json_option, run, workspace_of, workspace_option
from runtime.cli.output import ensure_indexed, line, print_json, status_line
from runtime.cli.turns import show_blocks, show_degraded, show_messages, show_prefix, show_strategy


@click.command()
@click.argument("text")
@workspace_option
@click.option(
    "--connector", default=None, help="With --external-id: build the prompt as if TEXT was said in that place."
)
@click.option("--external-id", default=None, help="The platform's id of the place.")
@json_option
@click.pass_obj
def command(
    invocation: Invocation,
    text: str,
    workspace: str | None,
    connector: str | None,
    external_id: str | None,
    as_json: bool,
) -> None:
    """Show the prompt for TEXT: strategy, blocks, budgets and the exact messages.

    No model is called, and nothing is stored.
    """
    if (connector is None) != (external_id is None):
        raise click.UsageError("give both --connector and --external-id, or neither")
    body: dict[str, Any] = {"text": text}
    if connector is not None:
        body |= {"connector": connector, "external_id": external_id}
    run(_ground(invocation.settings(), body, workspace, as_json))


async def _ground(settings: Settings, body: dict[str, Any], workspace: str | None, as_json: bool) -> None:
    name = workspace_of(settings, workspace)
    with status_line("opening the stores …") as status:
        async with connect(settings) as client:
            await ensure_indexed(client, name, status)
            built = await client.post(f"/v1/workspaces/{segment(name)}/ground", body)
    if as_json:
        print_json(built)
        return
    show_strategy(built["strategy"], built["reason"])
    show_degraded(built["degraded"])
    show_blocks(built["blocks"], built["tokens_total"])
    show_prefix(built["prefix"])
    line(f"prefix digest  {built['prefix_digest']}", dim=True)
    show_messages(built["messages"])
