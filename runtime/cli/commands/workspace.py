"""``agent-runtime workspace``: tenants, and which platform places belong to them."""

from __future__ import annotations

from typing import Any

import click

from config.settings import Settings
from runtime.cli.client import connect, segment
from runtime.cli.invocation import Invocation, default_workspace_option, json_option, run
from runtime.cli.output import line, print_json, table


@click.group()
def command() -> None:
    """Create, list, route and delete workspaces, and set what holds in a place."""


@command.command()
@click.argument("workspace")
@json_option
@click.pass_obj
def create(invocation: Invocation, workspace: str, as_json: bool) -> None:
    """Create WORKSPACE (1 to 64 characters of a-z, 0-9, '.', '_', '-')."""
    run(_create(invocation.settings(), workspace, as_json))


async def _create(settings: Settings, workspace: str, as_json: bool) -> None:
    async with connect(settings) as client:
        made = await client.post("/v1/workspaces", {"id": workspace})
    if as_json:
        print_json(made)
        return
    line(f"Workspace {workspace} {'is created.' if made['created'] else 'exists already.'}")
    line(f"Put its Markdown documents into {settings.data_dir / 'workspaces' / workspace / 'docs'}")


@command.command(name="list")
@json_option
@click.pass_obj
def list_(invocation: Invocation, as_json: bool) -> None:
    """List all workspaces and their routes."""
    run(_list(invocation.settings(), as_json))


async def _list(settings: Settings, as_json: bool) -> None:
    async with connect(settings) as client:
        found = await client.get("/v1/workspaces")
    if as_json:
        print_json(found)
        return
    routes: dict[str, list[str]] = {}
    for route in found["routes"]:
        routes.setdefault(route["workspace"], []).append(route["place"])
    table(
        ["workspace", "created", "places"],
        [
            [each["id"], (each["created_at"] or "–")[:19], ", ".join(routes.get(each["id"], []))]
            for each in found["workspaces"]
        ],
    )


@command.command()
@click.argument("place")
@click.argument("workspace", required=False)
@click.option("--remove", is_flag=True, help="Remove the route of PLACE.")
@json_option
@click.pass_obj
def route(invocation: Invocation, place: str, workspace: str | None, remove: bool, as_json: bool) -> None:
    """Route PLACE (e.g. telegram:-10001 or slack:T123) to WORKSPACE, which is created if it does not exist."""
    if remove == (workspace is not None):
        raise click.UsageError("give a workspace, or --remove")
    run(_route(invocation.settings(), place, workspace, as_json))


async def _route(settings: Settings, place: str, workspace: str | None, as_json: bool) -> None:
    path = f"/v1/routes/{segment(place)}"
    async with connect(settings) as client:
        answer = await (client.delete(path) if workspace is None else client.put(path, {"workspace": workspace}))
    if as_json:
        print_json(answer or {"place": place, "workspace": workspace})
    else:
        line(f"{place} is no longer routed" if workspace is None else f"{place} → {workspace}")


@command.command()
@click.argument("place")
@click.argument("mode", required=False, type=click.Choice(["addressed", "all", "never", "default"]))
@default_workspace_option
@json_option
@click.pass_obj
def answer(invocation: Invocation, place: str, mode: str | None, workspace: str | None, as_json: bool) -> None:
    """Set when the bot answers in the group PLACE (e.g. telegram:-10001). Without MODE, show it."""
    run(_answer(invocation.settings(), place, mode, workspace, as_json))


@command.command()
@click.argument("place")
@click.argument("mode", required=False, type=click.Choice(["on", "off", "default"]))
@default_workspace_option
@json_option
@click.pass_obj
def sources(invocation: Invocation, place: str, mode: str | None, workspace: str | None, as_json: bool) -> None:
    """Set whether replies in PLACE (e.g. slack:T1/C1, or * for all) end with sources. Without MODE, show it."""
    run(_sources(invocation.settings(), place, mode, workspace, as_json))


async def _sources(settings: Settings, place: str, mode: str | None, workspace: str | None, as_json: bool) -> None:
    wanted = None if mode is None else {"sources": None if mode == "default" else mode == "on"}
    held = await _settle(settings, place, workspace, wanted)
    if as_json:
        print_json(held)
        return
    words = {True: "on", False: "off"}
    line(f"{place}: {words.get(held['sources']) or f'default ({words[settings.show_sources]})'}")


async def _answer(settings: Settings, place: str, mode: str | None, workspace: str | None, as_json: bool) -> None:
    wanted = None if mode is None else {"answering": None if mode == "default" else mode}
    held = await _settle(settings, place, workspace, wanted)
    if as_json:
        print_json(held)
    else:
        line(f"{place}: {held['answering'] or f'default ({settings.answer_in_groups})'}")


async def _settle(
    settings: Settings, place: str, workspace: str | None, wanted: dict[str, Any] | None
) -> dict[str, Any]:
    """What holds in *place*, after what is *wanted* was changed there."""
    path = f"/v1/workspaces/{segment(workspace or settings.default_workspace)}/places/{segment(place)}"
    async with connect(settings) as client:
        held: dict[str, Any] = await client.get(path)
        if wanted is not None:
            before = {name: value for name, value in held.items() if name != "place"}
            held = await client.put(path, before | wanted)
    return held


@command.command()
@click.argument("workspace")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
@click.pass_obj
def delete(invocation: Invocation, workspace: str, yes: bool, as_json: bool) -> None:
    """Delete WORKSPACE with its conversations, records, people and routes, and its folder of files."""
    settings = invocation.settings()
    if not yes:
        folder = settings.data_dir / "workspaces" / workspace
        held = f"its conversations, records, people and routes, and all files in {folder}"
        click.confirm(f"Delete workspace {workspace} for good: {held}?", abort=True, err=True)
    run(_delete(settings, workspace, as_json))


async def _delete(settings: Settings, workspace: str, as_json: bool) -> None:
    async with connect(settings) as client:
        answer = await client.delete(f"/v1/workspaces/{segment(workspace)}")
    if as_json:
        print_json(answer or {"id": workspace, "deleted": True})
    else:
        line(f"Workspace {workspace} and all its data are deleted.")
