"""``agent-runtime metrics``: the structured events, past and live, and the figures of the memory."""

from __future__ import annotations

import json
import shutil
import sys
from typing import Any

import click

from runtime.cli.client import Client, api_path, run_with_client
from runtime.cli.invocation import Invocation, data_command, only_workspace_option
from runtime.cli.output import emit, line
from runtime.observability import LEVEL_COLOURS, format_event, wrap_line

_PREFIX = "agent_runtime_memory_"
_AIMS = {
    "relevance": "more than 0.6",
    "budget_utilization": "0.5 to 0.9",
    "refresh_rate": "less than 0.3",
    "recall_precision": "more than 0.4",
    "growth_per_day": "",
    "confirmation_rate": "more than 0.2",
    "cold_start_seconds": "less than 0.5",
}
"""The figures and their aims."""


@click.group()
def command() -> None:
    """Show events and memory figures."""


@command.command()
@only_workspace_option
@click.option("--strategy", type=click.Choice(["none", "tail", "qmd"]), help="Only turns with this strategy.")
@click.option("--event", metavar="NAME", help="Only events with this name, e.g. turn.answered.")
@click.option("-n", "--limit", type=click.IntRange(min=0), default=50, show_default=True, help="Number of past events.")
@click.option("-f", "--follow", is_flag=True, help="Keep printing new events, until Ctrl-C.")
@data_command
def tail(
    invocation: Invocation, workspace: str | None, strategy: str | None, event: str | None, limit: int, follow: bool
) -> None:
    """Print the last events, one a line, the oldest first."""
    filters: dict[str, Any] = {
        "workspace": workspace,
        "strategy": strategy,
        "event": event,
        "limit": limit,
        "follow": follow,
    }

    async def print_events(client: Client) -> None:
        async for _, event in client.events("GET", api_path("events"), **filters):
            if invocation.as_json:
                click.echo(json.dumps(event))
            else:
                _show_event(event)

    run_with_client(invocation, print_events)


def _show_event(event: dict[str, Any]) -> None:
    text = format_event(event)
    if sys.stdout.isatty():
        text = wrap_line(text, shutil.get_terminal_size().columns)
    colour = LEVEL_COLOURS.get(str(event.get("level")))
    line(text, **({"fg": colour} if colour else {}))


@command.command()
@data_command
def memory(invocation: Invocation) -> None:
    """Print the memory figures of the last 30 days. docs/selection.md explains them."""

    def show(figures: dict[str, float | None]) -> None:
        for name, value in figures.items():
            shown = "no turn or record yet" if value is None else f"{value:g}"
            aim = f"  aim: {_AIMS[name]}" if _AIMS[name] else ""
            line(f"{name.ljust(22)} {shown.ljust(8)}{aim}".rstrip())

    emit(invocation, figures(run_with_client(invocation, lambda client: client.get_text("/metrics"))), show)


def figures(exposition: str) -> dict[str, float | None]:
    """Return the figures of the memory in a Prometheus *exposition*; None for those without a value yet. Pure."""
    rows = [row for row in exposition.splitlines() if row.startswith(_PREFIX) and "{" not in row]
    values: dict[str, float | None] = {
        name.removeprefix(_PREFIX): float(value) for name, _, value in (row.rpartition(" ") for row in rows)
    }
    values["cold_start_seconds"] = values.get("cold_start_mean_seconds")
    return {name: values.get(name) for name in _AIMS}
