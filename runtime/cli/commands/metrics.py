"""``agent-runtime metrics``: the structured events, readable, live, and the figures of the memory."""

from __future__ import annotations

import json
import shutil
import sys
from typing import Any

import click

from config.settings import Settings
from runtime.cli.client import connect
from runtime.cli.invocation import Invocation, json_option, run
from runtime.cli.output import line, print_json
from runtime.observability import COLOURS, folded, readable

_MEMORY = "agent_runtime_memory_"
_FIGURES = (
    "relevance",
    "budget_utilization",
    "refresh_rate",
    "recall_precision",
    "growth_per_day",
    "confirmation_rate",
)


@click.group()
def command() -> None:
    """Show events and memory figures."""


@command.command()
@click.option("-w", "--workspace", metavar="W", help="Only this workspace.")
@click.option("--strategy", type=click.Choice(["none", "tail", "qmd"]), help="Only turns with this strategy.")
@click.option("--event", metavar="NAME", help="Only events with this name, e.g. turn.answered.")
@click.option("-n", "--limit", type=click.IntRange(min=0), default=50, show_default=True, help="Number of past events.")
@click.option("-f", "--follow", is_flag=True, help="Keep printing new events, until Ctrl-C.")
@json_option
@click.pass_obj
def tail(
    invocation: Invocation,
    workspace: str | None,
    strategy: str | None,
    event: str | None,
    limit: int,
    follow: bool,
    as_json: bool,
) -> None:
    """Print the last events, one a line, the oldest first."""
    wanted = {"workspace": workspace, "strategy": strategy, "event": event, "limit": limit, "follow": follow}
    run(_tail(invocation.settings(), wanted, as_json))


async def _tail(settings: Settings, wanted: dict[str, Any], as_json: bool) -> None:
    async with connect(settings) as client:
        async for _, event in client.events("GET", "/v1/events", **wanted):
            if as_json:
                click.echo(json.dumps(event))
            else:
                text = readable(event)
                line(folded(text, shutil.get_terminal_size().columns) if sys.stdout.isatty() else text, **_style(event))


@command.command()
@json_option
@click.pass_obj
def memory(invocation: Invocation, as_json: bool) -> None:
    """Print the memory figures since the process started. docs/selection.md explains them."""
    run(_memory(invocation.settings(), as_json))


async def _memory(settings: Settings, as_json: bool) -> None:
    async with connect(settings) as client:
        found = figures(await client.get_text("/metrics"))
    if as_json:
        print_json(found)
        return
    for name, value in found.items():
        line(f"{name.ljust(22)} {'no turn or record yet' if value is None else f'{value:g}'}")


def figures(exposition: str) -> dict[str, float | None]:
    """The figures of the memory in what Prometheus reads; None where there is nothing to tell yet. Pure."""
    told = {name: float(value) for name, _, value in (row.rpartition(" ") for row in _rows(exposition))}
    found = {name: told.get(f"{_MEMORY}{name}") for name in _FIGURES}
    count, total = told.get(f"{_MEMORY}cold_start_seconds_count"), told.get(f"{_MEMORY}cold_start_seconds_sum")
    return found | {"cold_start_seconds": round(total / count, 4) if count and total is not None else None}


def _rows(exposition: str) -> list[str]:
    return [row for row in exposition.splitlines() if row.startswith(_MEMORY) and "{" not in row]


def _style(event: dict[str, Any]) -> dict[str, Any]:
    colour = COLOURS.get(str(event.get("level")))
    return {"fg": colour} if colour else {}
