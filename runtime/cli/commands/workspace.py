"""``agent-runtime workspace``: workspaces (tenants), and the platform places that belong to them."""

from __future__ import annotations

from typing import Any

import click

from runtime.cli.client import Client, api_path, request, run_with_client
from runtime.cli.invocation import Invocation, data_command, default_workspace_option
from runtime.cli.output import emit, table


@click.group()
def command() -> None:
    """Create, list, route and delete workspaces, and set what holds in a place."""


@command.command()
@click.argument("workspace")
@data_command
def create(invocation: Invocation, workspace: str) -> None:
    """Create WORKSPACE (1 to 64 characters of a-z, 0-9, '.', '_', '-')."""
    answer = request(invocation, "POST", api_path("workspaces"), {"id": workspace})
    state = "is created." if answer["created"] else "exists already."
    docs = invocation.load().settings.data_dir / "workspaces" / workspace / "docs"
    emit(invocation, answer, f"Workspace {workspace} {state}\nPut its Markdown documents into {docs}")


@command.command(name="list")
@data_command
def list_(invocation: Invocation) -> None:
    """List all workspaces and their routes."""
    emit(invocation, request(invocation, "GET", api_path("workspaces")), _show_workspaces)


def _show_workspaces(answer: dict[str, Any]) -> None:
    routes: dict[str, list[str]] = {}
    for route in answer["routes"]:
        routes.setdefault(route["workspace"], []).append(route["place"])
    table(
        ["workspace", "created", "places"],
        [
            [row["id"], (row["created_at"] or "–")[:19], ", ".join(routes.get(row["id"], []))]
            for row in answer["workspaces"]
        ],
    )


@command.command()
@click.argument("place")
@click.argument("workspace", required=False)
@click.option("--remove", is_flag=True, help="Remove the route of PLACE.")
@data_command
def route(invocation: Invocation, place: str, workspace: str | None, remove: bool) -> None:
    """Route PLACE (e.g. telegram:-10001 or slack:T123) to WORKSPACE, which is created if it does not exist."""
    if remove == (workspace is not None):
        raise click.UsageError("give a workspace, or --remove")
    path = api_path("routes", place)
    if remove:
        answer = request(invocation, "DELETE", path) or {"place": place, "workspace": None}
        emit(invocation, answer, f"{place} is no longer routed")
    else:
        answer = request(invocation, "PUT", path, {"workspace": workspace})
        emit(invocation, answer or {"place": place, "workspace": workspace}, f"{place} → {workspace}")


def _add_setting(name: str, setting: str, choices: dict[str, Any], default: str, description: str) -> None:
    """Add the command *name*, which sets *setting* of a place to one of *choices*, by its word, or shows it.

    *default* names the process's setting that holds in the other places.
    """

    @command.command(name, help=description)
    @click.argument("place")
    @click.argument("mode", required=False, type=click.Choice([*choices, "default"]))
    @default_workspace_option
    @data_command
    def change(invocation: Invocation, place: str, mode: str | None, workspace: str) -> None:
        stored = _change_place(invocation, workspace, place, {setting: choices.get(mode)} if mode else None)
        words = {value: word for word, value in choices.items()}
        otherwise = words[getattr(invocation.load().settings, default)]
        emit(invocation, stored, f"{place}: {words.get(stored[setting]) or f'default ({otherwise})'}")


_add_setting(
    "answer",
    "answering",
    {word: word for word in ("addressed", "all", "never")},
    "answer_in_groups",
    "Set when the bot answers in the group PLACE (e.g. telegram:-10001). Without MODE, show it.",
)
_add_setting(
    "sources",
    "sources",
    {"on": True, "off": False},
    "show_sources",
    "Set whether replies in PLACE (e.g. slack:T1/C1, or * for all) end with sources. Without MODE, show it.",
)


def _change_place(invocation: Invocation, workspace: str, place: str, change: dict[str, Any] | None) -> dict[str, Any]:
    """Apply *change* to the settings of *place*, and return them."""
    path = api_path("workspaces", workspace, "places", place)

    async def apply(client: Client) -> dict[str, Any]:
        stored = await client.get(path)
        if change is None:
            return stored
        others = {name: value for name, value in stored.items() if name != "place"}
        return await client.call("PUT", path, others | change)

    return run_with_client(invocation, apply)


@command.command()
@click.argument("workspace")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@data_command
def delete(invocation: Invocation, workspace: str, yes: bool) -> None:
    """Delete WORKSPACE with its conversations, records, people and routes, and its folder of files."""
    if not yes:
        folder = invocation.load().settings.data_dir / "workspaces" / workspace
        data = f"its conversations, records, people and routes, and all files in {folder}"
        click.confirm(f"Delete workspace {workspace} for good: {data}?", abort=True, err=True)
    answer = request(invocation, "DELETE", api_path("workspaces", workspace)) or {"id": workspace, "deleted": True}
    emit(invocation, answer, f"Workspace {workspace} and all its data are deleted.")
