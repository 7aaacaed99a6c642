"""``agent-runtime memory``: the records of a workspace, or of one person in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from runtime.cli.client import api_path, request
from runtime.cli.invocation import Invocation, data_command, workspace_option
from runtime.cli.output import count, emit, line, table

_KINDS = click.Choice(["decision", "fact", "procedure", "episode", "censor", "item", "rule"])
_ITEMS = ("task", "event", "note")
_NEW_KINDS = click.Choice([*_KINDS.choices, *_ITEMS])
_OUTCOMES = click.Choice(["success", "partial", "failure", "pending"])
_DATE = len("2026-11-27")
id_argument = click.argument("id_", metavar="ID")


def owner_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--user``, ``--workspace`` and ``--json``."""
    user_option = click.option("--user", metavar="CONNECTOR:ID", help="Include this person's own records.")
    return user_option(workspace_option(data_command(function)))


@click.group()
def command() -> None:
    """Manage records: decisions, facts, procedures, episodes, censors, items and standing rules."""


@command.command("list")
@click.option("--kind", "kinds", type=_KINDS, multiple=True, help="Only records of this kind. Can be repeated.")
@click.option("--type", "kinds", type=_KINDS, multiple=True, hidden=True)  # an older name, for scripts
@click.option(
    "--state", "states", multiple=True, help="Only records in this state. Hidden records are listed only this way."
)
@click.option("--query", help="Only records about this, the best first.")
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True)
@click.option("--before", help="Show the next page: the value of `next` in --json.")
@owner_options
def list_(
    invocation: Invocation,
    kinds: tuple[str, ...],
    states: tuple[str, ...],
    query: str | None,
    limit: int,
    before: str | None,
    user: str | None,
    workspace: str,
) -> None:
    """List the records, the newest first."""
    filters = {"type": list(kinds), "state": list(states), "q": query, "limit": limit, "before": before, "user": user}

    def show(page: dict[str, Any]) -> None:
        table(
            ["id", "kind", "state", "created", "seen by", "text"],
            [
                [row["id"], row["type"], row["state"], row["created_at"][:_DATE], row["audience"], row["micro"]]
                for row in page["records"]
            ],
            empty="No record is about that."
            if query
            else "There are no records. `agent-runtime memory add TEXT` adds one.",
        )

    emit(invocation, request(invocation, "GET", _path(workspace), **filters), show)


@command.command()
@id_argument
@owner_options
def show(invocation: Invocation, id_: str, user: str | None, workspace: str) -> None:
    """Show one record in full, with its history."""
    emit(invocation, request(invocation, "GET", _path(workspace, id_), user=user), _show_record)


def _show_record(row: dict[str, Any]) -> None:
    line(_summary(row))
    line(row["text"])
    line()
    for name, value in row.items():
        is_shown_elsewhere = name in ("id", "text", "micro", "summary", "provenance", "history")
        if not is_shown_elsewhere and value not in (None, "", False, 0):
            line(f"{name}: {value}")
    line("from: " + ", ".join(f"{name} {value}" for name, value in row["provenance"].items() if value))
    line()
    table(
        ["at", "was", "is", "why", "by"],
        [
            [edit["at"][:19], edit["from"], edit["to"], edit["why"], edit["by"] or "the runtime"]
            for edit in row["history"]
        ],
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
@click.option("--type", "type_", type=_KINDS, hidden=True)  # an older name, for scripts; then --kind is the item's
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
@owner_options
def add(invocation: Invocation, /, text: str, kind: str, type_: str | None, workspace: str, **fields: Any) -> None:
    """Add TEXT as a record. Adding the same text again confirms the record."""
    item = kind if kind in _ITEMS else None
    body = {"type": type_ or ("item" if item else kind), "kind": item, "text": text, **fields}
    body = {name: value for name, value in body.items() if value is not None}
    row = request(invocation, "POST", _path(workspace), body)
    summary = f"{row['id']} {row['type']} [{row['state']}]\n{row['text']}" if row["verbatim"] else _summary(row)
    emit(invocation, row, f"{row['came']}: {summary}")


def _add_change(name: str, description: str, **fields: Any) -> None:
    """Add the command *name*, which sets *fields* of one record."""

    @command.command(name, help=description)
    @id_argument
    @owner_options
    def change(invocation: Invocation, id_: str, user: str | None, workspace: str) -> None:
        _change(invocation, workspace, id_, user, **fields)


_add_change("confirm", "Confirm the record ID. Three confirmations make a fact a core fact.", confirm=True)
_add_change(
    "retire",
    "Retire the record ID: it appears in no prompt and no list. Decisions cannot be retired.",
    state="inactive",
)
_add_change(
    "share",
    "Share the record ID, which belongs to one place or person, with the whole workspace.",
    audience="workspace",
)
_add_change("false-positive", "Report that the censor ID acted by mistake.", false_positive=True)


@command.command()
@id_argument
@click.argument("outcome", type=_OUTCOMES)
@owner_options
def outcome(invocation: Invocation, id_: str, outcome: str, user: str | None, workspace: str) -> None:
    """Set the outcome of the decision or procedure ID."""
    _change(invocation, workspace, id_, user, outcome=outcome)


@command.command()
@id_argument
@click.option("--off", is_flag=True, help="No longer keep it word for word.")
@owner_options
def verbatim(invocation: Invocation, id_: str, off: bool, user: str | None, workspace: str) -> None:
    """Keep the record ID word for word."""
    _change(invocation, workspace, id_, user, verbatim=not off)


def _change(invocation: Invocation, workspace: str, id_: str, user: str | None, **fields: Any) -> None:
    row = request(invocation, "PATCH", _path(workspace, id_), fields, user=user)
    emit(invocation, row, _summary(row))


@command.command()
@click.argument("id_", metavar="[ID]", required=False)
@click.option("--all", "everything", is_flag=True, help="Erase all records of the person named by --user.")
@owner_options
def forget(invocation: Invocation, id_: str | None, everything: bool, user: str | None, workspace: str) -> None:
    """Erase the record ID, or all records of a person (--user and --all). A decision is only erased with its person."""
    if everything == bool(id_) or (everything and not user):
        raise click.UsageError("give an ID, or --user and --all")
    answer = request(invocation, "DELETE", _path(workspace, *([id_] if id_ else [])), user=user)
    erased = f"Erased {id_}." if id_ else f"Erased {count(answer['forgotten'], 'record')} of {user}."
    emit(invocation, answer, erased)


def _path(workspace: str, *more: str) -> str:
    return api_path("workspaces", workspace, "records", *more)


def _summary(row: dict[str, Any]) -> str:
    return f"{row['id']} {row['type']} [{row['state']}] {row['micro']}"
