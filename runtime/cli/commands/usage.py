"""``agent-runtime usage``: tokens, cost and budgets."""

from __future__ import annotations

from typing import Any

import click

from config.settings import Settings
from runtime.billing import TERMS, UNLIMITED
from runtime.cli.client import connect, segment
from runtime.cli.invocation import Invocation, json_option, run
from runtime.cli.output import dollars, line, print_json, table

Limit = float | str | None
_NUMBERS = ("turns", "prompt", "cached", "completion", "cost")


def _parsed(_context: click.Context, option: click.Parameter, given: tuple[str, ...]) -> dict[str, Limit]:
    """``--set`` as the body of the request: limits by name, null for what the settings say."""
    known = {term.name: term for term in TERMS}
    limits: dict[str, Limit] = {}
    for each in given:
        name, _, value = each.partition("=")
        term = known.get(name.strip().lower())
        if term is None:
            raise click.BadParameter(f"{name!r} is not a limit; expected one of {', '.join(known)}", param=option)
        try:
            limits[term.name] = _limit(value.strip(), is_money=term.what == "usd")
        except ValueError:
            raise click.BadParameter(f"{each!r}: expected a number, unlimited or default", param=option) from None
    return limits


def _limit(value: str, *, is_money: bool) -> Limit:
    if value == "default":
        return None
    if value == UNLIMITED:
        return value
    return float(value) if is_money else int(value)


@click.command()
@click.option("-w", "--workspace", metavar="W", help="Only this workspace.")
@click.option("--user", metavar="CONNECTOR:ID", help="Show what is left of this person's budget in the workspace.")
@click.option(
    "--set",
    "limits",
    metavar="LIMIT=VALUE",
    multiple=True,
    callback=_parsed,
    help="Set a limit of the workspace: a number, 'unlimited', or 'default' (what the settings say). LIMIT is "
    f"one of {', '.join(term.name for term in TERMS)}. Can be repeated.",
)
@json_option
@click.pass_obj
def command(
    invocation: Invocation, workspace: str | None, user: str | None, limits: dict[str, Limit], as_json: bool
) -> None:
    """Show the tokens and cost of each workspace, and what is left of its budgets."""
    if (limits or user) and workspace is None:
        raise click.UsageError("name the workspace with --workspace")
    if limits and user:
        raise click.UsageError("give --set or --user, not both: limits are the same for everybody in a workspace")
    run(_usage(invocation.settings(), workspace, user, limits, as_json))


async def _usage(
    settings: Settings, workspace: str | None, user: str | None, limits: dict[str, Limit], as_json: bool
) -> None:
    here = f"/v1/workspaces/{segment(workspace)}" if workspace else "/v1"
    async with connect(settings) as client:
        if user is not None:
            found = await client.get(f"{here}/budget", user=user)
        else:
            if limits:
                held = (await client.get(f"{here}/budget"))["set"]
                await client.put(f"{here}/budget", held | limits)
            found = await client.get(f"{here}/usage")
    if as_json:
        print_json(found)
    elif user is not None:
        _show_budget(user, found["budget"], "user")
    else:
        _show(found)


def _show(found: dict[str, Any]) -> None:
    rows = found["workspaces"]
    if not rows:
        line("No model was called yet.")
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
        _show_budget(row["workspace"], row.get("budget", {}), "workspace")


def _show_budget(of: str, budget: dict[str, Any], whose: str) -> None:
    """The limits, each with what is left of it where that is known."""
    rows = [
        [term.name, *(_amount(term.what, budget[term.name].get(name)) for name in ("limit", "spent", "left"))]
        for term in reversed(TERMS)
        if (term.whose == whose or whose == "workspace") and budget.get(term.name, {}).get("limit") is not None
    ]
    if rows:
        line()
        table([f"budget of {of}", "limit", "spent", "left"], rows, right=("limit", "spent", "left"))
    elif whose == "user":
        line(f"{of} has no limit in this workspace.")


def _amount(what: str, value: float | None) -> str:
    if value is None:
        return "–"
    return dollars(float(value)) if what == "usd" else f"{value:,.0f}"


def _row(name: str, figures: dict[str, Any]) -> list[Any]:
    cost = dollars(float(figures["cost_usd"]))
    return [name, figures.get("turns", ""), figures["prompt"], figures["cached"], figures["completion"], cost]


def _by_name(models: Any) -> dict[str, dict[str, Any]]:
    return models if isinstance(models, dict) else {row["model"]: row for row in models}
