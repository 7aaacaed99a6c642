"""``agent-runtime usage``: tokens, cost and budgets."""

from __future__ import annotations

from typing import Any

import click

from runtime.billing import TERMS, UNLIMITED
from runtime.cli.client import Client, api_path, run_with_client
from runtime.cli.invocation import Invocation, data_command, only_workspace_option
from runtime.cli.output import dollars, emit, line, table

Limit = float | str | None
"""A number, ``unlimited``, or None for the limit of the settings."""
_FIGURES = ("turns", "prompt", "cached", "completion", "cost")


def _parse_limits(_context: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> dict[str, Limit]:
    """Return the limits of ``--set`` by name."""
    terms = {term.name: term for term in TERMS}
    limits: dict[str, Limit] = {}
    for text in texts:
        name, _, value = text.partition("=")
        term, value = terms.get(name.strip().lower()), value.strip()
        if term is None:
            raise click.BadParameter(f"{name!r} is not a limit; expected one of {', '.join(terms)}", param=option)
        try:
            if value in ("default", UNLIMITED):
                limits[term.name] = None if value == "default" else value
            else:
                limits[term.name] = float(value) if term.what == "usd" else int(value)
        except ValueError:
            raise click.BadParameter(f"{text!r}: expected a number, unlimited or default", param=option) from None
    return limits


@click.command()
@only_workspace_option
@click.option("--user", metavar="CONNECTOR:ID", help="Show what is left of this person's budget in the workspace.")
@click.option(
    "--set",
    "limits",
    metavar="LIMIT=VALUE",
    multiple=True,
    callback=_parse_limits,
    help="Set a limit of the workspace: a number, 'unlimited', or 'default' (what the settings say). LIMIT is "
    f"one of {', '.join(term.name for term in TERMS)}. Can be repeated.",
)
@data_command
def command(invocation: Invocation, workspace: str | None, user: str | None, limits: dict[str, Limit]) -> None:
    """Show the tokens and cost of each workspace, and what is left of its budgets."""
    if (limits or user) and workspace is None:
        raise click.UsageError("name the workspace with --workspace")
    if limits and user:
        raise click.UsageError("give --set or --user, not both: limits are the same for everybody in a workspace")
    root = ("workspaces", workspace) if workspace else ()

    async def get(client: Client) -> dict[str, Any]:
        if user is not None:
            return await client.get(api_path(*root, "budget"), user=user)
        if limits:
            budget = await client.get(api_path(*root, "budget"))
            await client.call("PUT", api_path(*root, "budget"), budget["set"] | limits)
        return await client.get(api_path(*root, "usage"))

    def show(answer: dict[str, Any]) -> None:
        if user is not None:
            _show_budget(user, answer["budget"], "user")
        else:
            _show_usage(answer)

    emit(invocation, run_with_client(invocation, get), show)


def _show_usage(usage: dict[str, Any]) -> None:
    rows = usage["workspaces"]
    if not rows:
        line("No model was called yet.")
        return
    table(
        ["workspace", *_FIGURES],
        [[row["workspace"], row["turns"], *_costs(row)] for row in rows],
        right=_FIGURES,
    )
    for row in rows:
        if models := row["models"]:
            line()
            table(
                [f"model in {row['workspace']}", "calls", *_FIGURES[1:]],
                [[name, figures["calls"], *_costs(figures)] for name, figures in models.items()],
                right=("calls", *_FIGURES),
            )
        _show_budget(row["workspace"], row["budget"], "workspace")


def _costs(figures: dict[str, Any]) -> list[Any]:
    return [figures["prompt"], figures["cached"], figures["completion"], dollars(float(figures["cost_usd"]))]


def _show_budget(owner: str, budget: dict[str, Any], kind: str) -> None:
    """Print the limits of *owner*, a user or a workspace, each with what is spent and left of it if that is known."""
    rows = [
        [term.name, *(_amount(term.what, budget[term.name].get(name)) for name in ("limit", "spent", "left"))]
        for term in reversed(TERMS)
        if (term.whose == kind or kind == "workspace") and budget.get(term.name, {}).get("limit") is not None
    ]
    if rows:
        line()
        table([f"budget of {owner}", "limit", "spent", "left"], rows, right=("limit", "spent", "left"))
    elif kind == "user":
        line(f"{owner} has no limit in this workspace.")


def _amount(unit: str, value: float | None) -> str:
    if value is None:
        return "–"
    return dollars(float(value)) if unit == "usd" else f"{value:,.0f}"
