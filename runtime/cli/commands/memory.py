"""``agent-runtime memory``: typed records of a workspace, or of one person in it, and what people say about them."""

from __future__ import annotations

from typing import Any

import click

from config.settings import Settings
from runtime.cli.client import connect, segment
from runtime.cli.invocation import Invocation, json_option, run, workspace_of, workspace_option
from runtime.cli.output import count, line, print_json, table

_KINDS = click.Choice(["decision", "fact", "procedure", "episode", "censor", "item"])
_ITEMS = ("task", "event", "note")
_NEW_KINDS = click.Choice([*_KINDS.choices, *_ITEMS])
_OUTCOMES = click.Choice(["success", "partial", "failure", "pending"])
_DAYS = len("2026-11-27")
user_option = click.option("--user", metavar="CONNECTOR:ID", help="Include this person's own records.")
id_argument = click.argument("id_", metavar="ID")


@click.group()
def command() -> None:
    """Manage records: decisions, facts, procedures, episodes, censors and items."""


@command.command("list")
@click.option("--kind", "kinds", type=_KINDS, multiple=True, help="Only records of this kind. Can be repeated.")
@click.option("--type", "kinds", type=_KINDS, multiple=True, hidden=True)  # the same, as scripts may have it
@click.option(
    "--state", "states", multiple=True, help="Only records in this state. Hidden records are listed only this way."
)
@click.option("--query", help="Only records about this, the best first.")
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True)
@click.option("--before", help="Show the next page: the value of `next` in --json.")
@user_option
@workspace_option
@json_option
@click.pass_obj
def listing(
    invocation: Invocation,
    kinds: tuple[str, ...],
    states: tuple[str, ...],
    query: str | None,
    limit: int,
    before: str | None,
    user: str | None,
    workspace: str | None,
    as_json: bool,
) -> None:
    """List the records, the newest first."""
    settings = invocation.settings()
    asked = {"type": list(kinds), "state": list(states), "q": query, "limit": limit, "before": before, "user": user}
    run(_list(settings, asked, workspace_of(settings, workspace), as_json))


async def _list(settings: Settings, asked: dict[str, Any], workspace: str, as_json: bool) -> None:
    async with connect(settings) as client:
        found = await client.get(_path(workspace), **asked)
    if as_json:
        print_json(found)
        return
    rows = [
        [one["id"], one["type"], one["state"], one["created_at"][:_DAYS], one["audience"], one["micro"]]
        for one in found["records"]
    ]
    if rows:
        table(["id", "kind", "state", "created", "seen by", "text"], rows)
    else:
        line(
            "No record is about that."
            if asked["q"]
            else "There are no records. `agent-runtime memory add TEXT` adds one."
        )


@command.command()
@id_argument
@user_option
@workspace_option
@json_option
@click.pass_obj
def show(invocation: Invocation, id_: str, user: str | None, workspace: str | None, as_json: bool) -> None:
    """Show one record in full, with its history."""
    settings = invocation.settings()
    run(_show(settings, id_, user, workspace_of(settings, workspace), as_json))


async def _show(settings: Settings, id_: str, user: str | None, workspace: str, as_json: bool) -> None:
    async with connect(settings) as client:
        row = await client.get(f"{_path(workspace)}/{segment(id_)}", user=user)
    if as_json:
        print_json(row)
        return
    _told(row)
    line(row["text"])
    line()
    history = row.pop("history")
    for name, value in row.items():
        if name not in ("id", "text", "micro", "summary", "provenance") and value not in (None, "", False, 0):
            line(f"{name}: {value}")
    line("from: " + ", ".join(f"{name} {value}" for name, value in row["provenance"].items() if value))
    line()
    table(
        ["at", "was", "is", "why", "by"],
        [[one["at"][:19], one["from"], one["to"], one["why"], one["by"] or "the runtime"] for one in history],
    )


@command.command()
@click.argument("text")
@click.option(
    "--kind",
    type=_NEW_KINDS,
    default="fact",
    show_default=True,
    help="Kind of the record. Tasks, events and notes are items.",
)
@click.option("--type", "type_", type=_KINDS, hidden=True)  # as scripts may have it; then --kind is the item's
@click.option("--confidence", type=click.FloatRange(0, 1), help="How certain this is, from 0 to 1.")
@click.option("--outcome", type=_OUTCOMES, help="What came of it.")
@click.option("--supersedes", metavar="ID", help="Id of the record that this one replaces.")
@click.option("--verbatim", is_flag=True, default=None, help="Keep it word for word and put it into every prompt.")
@click.option("--trigger", help="For censors: words and phrases that trigger it, separated by |.")
@click.option("--reason", help="For censors: the reason.")
@click.option(
    "--severity", type=click.Choice(["warn", "block"]), help="For censors: warn the model, or block its answer."
)
@click.option("--due", help="For items: a day (2026-11-27) or a time (2026-11-27T16:00:00Z).")
@user_option
@workspace_option
@json_option
@click.pass_obj
def add(
    invocation: Invocation,
    /,
    text: str,
    kind: str,
    type_: str | None,
    user: str | None,
    workspace: str | None,
    as_json: bool,
    **fields: Any,
) -> None:
    """Add TEXT as a record. Adding the same text again confirms the record."""
    settings = invocation.settings()
    item = kind if kind in _ITEMS else None
    body = _given(type=type_ or ("item" if item else kind), kind=item, text=text, user=user, **fields)
    run(_add(settings, body, workspace_of(settings, workspace), as_json))


async def _add(settings: Settings, body: dict[str, Any], workspace: str, as_json: bool) -> None:
    async with connect(settings) as client:
        row = await client.post(_path(workspace), body)
    if as_json:
        print_json(row)
    elif row["verbatim"]:
        line(f"{row['came']}: {row['id']} {row['type']} [{row['state']}]")
        line(row["text"])
    else:
        _told(row, f"{row['came']}: ")


def _changing(name: str, does: str, **fields: Any) -> None:
    """A command that changes one record so."""

    @command.command(name, help=does)
    @id_argument
    @user_option
    @workspace_option
    @json_option
    @click.pass_obj
    def change(invocation: Invocation, id_: str, user: str | None, workspace: str | None, as_json: bool) -> None:
        settings = invocation.settings()
        run(_change(settings, id_, fields, user, workspace_of(settings, workspace), as_json))


_changing("confirm", "Confirm the record ID. Three confirmations make a fact a core fact.", confirm=True)
_changing(
    "retire",
    "Retire the record ID: it appears in no prompt and no list. Decisions cannot be retired.",
    state="inactive",
)
_changing(
    "share",
    "Share the record ID, which belongs to one place or person, with the whole workspace.",
    audience="workspace",
)
_changing("false-positive", "Report that the censor ID acted by mistake.", false_positive=True)


@command.command()
@id_argument
@click.argument("outcome", type=_OUTCOMES)
@user_option
@workspace_option
@json_option
@click.pass_obj
def outcome(
    invocation: Invocation, id_: str, outcome: str, user: str | None, workspace: str | None, as_json: bool
) -> None:
    """Set the outcome of the decision or procedure ID."""
    settings = invocation.settings()
    run(_change(settings, id_, {"outcome": outcome}, user, workspace_of(settings, workspace), as_json))


@command.command()
@id_argument
@click.option("--off", is_flag=True, help="No longer keep it word for word.")
@user_option
@workspace_option
@json_option
@click.pass_obj
def verbatim(
    invocation: Invocation, id_: str, off: bool, user: str | None, workspace: str | None, as_json: bool
) -> None:
    """Keep the record ID word for word."""
    settings = invocation.settings()
    run(_change(settings, id_, {"verbatim": not off}, user, workspace_of(settings, workspace), as_json))


async def _change(
    settings: Settings, id_: str, fields: dict[str, Any], user: str | None, workspace: str, as_json: bool
) -> None:
    async with connect(settings) as client:
        row = await client.patch(f"{_path(workspace)}/{segment(id_)}", fields, user=user)
    if as_json:
        print_json(row)
    else:
        _told(row)


@command.command()
@click.argument("id_", metavar="[ID]", required=False)
@click.option("--all", "everything", is_flag=True, help="Erase all records of the person named by --user.")
@user_option
@workspace_option
@json_option
@click.pass_obj
def forget(
    invocation: Invocation, id_: str | None, everything: bool, user: str | None, workspace: str | None, as_json: bool
) -> None:
    """Erase the record ID, or all records of a person (--user and --all). A decision is only erased with its person."""
    if everything == bool(id_) or (everything and not user):
        raise click.UsageError("give an ID, or --user and --all")
    settings = invocation.settings()
    run(_forget(settings, id_, user, workspace_of(settings, workspace), as_json))


async def _forget(settings: Settings, id_: str | None, user: str | None, workspace: str, as_json: bool) -> None:
    async with connect(settings) as client:
        answer = await client.delete(f"{_path(workspace)}/{segment(id_)}" if id_ else _path(workspace), user=user)
    if as_json:
        print_json(answer)
    else:
        line(f"Erased {id_}." if id_ else f"Erased {count(answer['forgotten'], 'record')} of {user}.")


def _path(workspace: str) -> str:
    return f"/v1/workspaces/{segment(workspace)}/records"


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _told(row: dict[str, Any], before: str = "") -> None:
    line(f"{before}{row['id']} {row['type']} [{row['state']}] {row['micro']}")
