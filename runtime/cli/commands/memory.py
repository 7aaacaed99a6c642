"""``agent-runtime memory``: typed records of a workspace, or of one person in it, and what people say about them."""

from __future__ import annotations

from typing import Any

import click

from config.settings import Settings
from runtime.cli.client import connect, segment
from runtime.cli.invocation import Invocation, json_option, run, workspace_of, workspace_option
from runtime.cli.output import line, print_json, table

_TYPES = click.Choice(["decision", "fact", "procedure", "episode", "censor", "item"])
_OUTCOMES = click.Choice(["success", "partial", "failure", "pending"])
_DAYS = len("2026-11-27")
user_option = click.option("--user", metavar="CONNECTOR:ID", help="With this person's own records.")
id_argument = click.argument("id_", metavar="ID")


@click.group()
def command() -> None:
    """Decisions, facts, procedures, episodes, censors and items: what is kept, and what becomes of it."""


@command.command("list")
@click.option("--type", "types", type=_TYPES, multiple=True, help="Only of this type; may be repeated.")
@click.option("--state", "states", multiple=True, help="Only in this state; hidden ones show only so.")
@click.option("--query", help="What bears on this, the best first.")
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True)
@click.option("--before", help="Go on after the page that ended with this (`next` of --json).")
@user_option
@workspace_option
@json_option
@click.pass_obj
def listing(
    invocation: Invocation,
    types: tuple[str, ...],
    states: tuple[str, ...],
    query: str | None,
    limit: int,
    before: str | None,
    user: str | None,
    workspace: str | None,
    as_json: bool,
) -> None:
    """List records, the newest first."""
    settings = invocation.settings()
    asked = {"type": list(types), "state": list(states), "q": query, "limit": limit, "before": before, "user": user}
    run(_list(settings, asked, workspace_of(settings, workspace), as_json))


async def _list(settings: Settings, asked: dict[str, Any], workspace: str, as_json: bool) -> None:
    async with connect(settings) as client:
        found = await client.get(_path(workspace), **asked)
    if as_json:
        print_json(found)
        return
    rows = [[one["id"], one["type"], one["state"], one["created_at"][:_DAYS], one["micro"]] for one in found["records"]]
    if rows:
        table(["id", "type", "state", "made", "what"], rows)
    else:
        line("nothing bears on that" if asked["q"] else "nothing is kept; `memory add TEXT` keeps something")


@command.command()
@id_argument
@user_option
@workspace_option
@json_option
@click.pass_obj
def show(invocation: Invocation, id_: str, user: str | None, workspace: str | None, as_json: bool) -> None:
    """Show one record in full, and what became of it."""
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
@click.option("--type", "type_", type=_TYPES, default="fact", show_default=True)
@click.option("--confidence", type=click.FloatRange(0, 1), help="How sure this is, 0 to 1.")
@click.option("--outcome", type=_OUTCOMES, help="What came of it.")
@click.option("--supersedes", metavar="ID", help="The record whose place this one takes.")
@click.option("--verbatim", is_flag=True, default=None, help="Keep it word for word, in every prompt.")
@click.option("--trigger", help="Censors: words and phrases that set it off, separated by |.")
@click.option("--reason", help="Censors: why.")
@click.option("--severity", type=click.Choice(["warn", "block"]), help="Censors.")
@click.option("--kind", type=click.Choice(["task", "event", "note"]), help="Items.")
@click.option("--due", help="Items: a day (2026-11-27) or a time (2026-11-27T16:00:00Z).")
@user_option
@workspace_option
@json_option
@click.pass_obj
def add(
    invocation: Invocation,
    /,
    text: str,
    type_: str,
    user: str | None,
    workspace: str | None,
    as_json: bool,
    **fields: Any,
) -> None:
    """Keep TEXT; the same text again confirms."""
    settings = invocation.settings()
    body = _given(type=type_, text=text, user=user, **fields)
    run(_add(settings, body, workspace_of(settings, workspace), as_json))


async def _add(settings: Settings, body: dict[str, Any], workspace: str, as_json: bool) -> None:
    async with connect(settings) as client:
        row = await client.post(_path(workspace), body)
    if as_json:
        print_json(row)
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


_changing("confirm", "Say that ID is so; three times make a fact core.", confirm=True)
_changing("retire", "Take ID out of use: it is in no prompt and no list any more. Decisions stay.", state="inactive")
_changing("false-positive", "Say that the censor ID acted where it should not have.", false_positive=True)


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
    """Say what came of ID: a decision is reviewed by it, a procedure judged."""
    settings = invocation.settings()
    run(_change(settings, id_, {"outcome": outcome}, user, workspace_of(settings, workspace), as_json))


@command.command()
@id_argument
@click.option("--off", is_flag=True, help="Not any more.")
@user_option
@workspace_option
@json_option
@click.pass_obj
def verbatim(
    invocation: Invocation, id_: str, off: bool, user: str | None, workspace: str | None, as_json: bool
) -> None:
    """Keep ID word for word, whatever is pruned."""
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
@click.option("--all", "everything", is_flag=True, help="All that is kept of the person named by --user.")
@user_option
@workspace_option
@json_option
@click.pass_obj
def forget(
    invocation: Invocation, id_: str | None, everything: bool, user: str | None, workspace: str | None, as_json: bool
) -> None:
    """Erase ID for good, or with --user and --all whatever a person has. Decisions can only go with their person."""
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
        line(f"{id_} is erased" if id_ else f"{answer['forgotten']} records of {user} are erased")


def _path(workspace: str) -> str:
    return f"/v1/workspaces/{segment(workspace)}/records"


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _told(row: dict[str, Any], before: str = "") -> None:
    line(f"{before}{row['id']} {row['type']} [{row['state']}] {row['micro']}")
