"""``agent-runtime ground``: the prompt for a text, without a call of the model."""

from __future__ import annotations

from typing import Any

import click

from runtime.cli.client import Client, api_path, run_with_client
from runtime.cli.invocation import Invocation, json_option, workspace_option
from runtime.cli.output import emit, line
from runtime.cli.progress import index_if_pending, status_line
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
def command(invocation: Invocation, text: str, workspace: str, connector: str | None, external_id: str | None) -> None:
    """Show the prompt for TEXT: strategy, blocks, budgets and the exact messages.

    No model is called, and nothing is stored.
    """
    if (connector is None) != (external_id is None):
        raise click.UsageError("give both --connector and --external-id, or neither")
    body = {"text": text}
    if connector is not None and external_id is not None:
        body |= {"connector": connector, "external_id": external_id}
    with status_line("opening the stores …") as status:

        async def ground(client: Client) -> dict[str, Any]:
            await index_if_pending(client, workspace, status)
            return await client.call("POST", api_path("workspaces", workspace, "ground"), body)

        answer = run_with_client(invocation, ground)
    emit(invocation, answer, _show_prompt)


def _show_prompt(prompt: dict[str, Any]) -> None:
    show_strategy(prompt["strategy"], prompt["reason"])
    show_degraded(prompt["degraded"])
    show_blocks(prompt["blocks"], prompt["tokens_total"])
    show_prefix(prompt["prefix"])
    line(f"prefix digest  {prompt['prefix_digest']}", dim=True)
    show_messages(prompt["messages"])
