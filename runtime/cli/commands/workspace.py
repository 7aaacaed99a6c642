"""``agent-runtime workspace``: tenants, and which platform places belong to them."""

from __future__ import annotations

import click

from config.settings import Settings
from runtime.cli.client import connect, segment
from runtime.cli.invocation import Invocation, json_option, run, workspace_of, workspace_option
from runtime.cli.output import line, print_json, table


@click.group()
def command() -> None:
    """Tenants, and which places of the platforms belong to them."""


@command.command()
@click.argument("workspace")
@json_option
@click.pass_obj
def create(invocation: Invocation, workspace: str, as_json: bool) -> None:
    """Make WORKSPACE (1 to 64 of a-z, 0-9, '.', '_', '-')."""
    run(_create(invocation.settings(), workspace, as_json))


async def _create(settings: Settings, workspace: str, as_json: bool) -> None:
    async with connect(settings) as client:
        made = await client.post("/v1/workspaces", {"id": workspace})
    if as_json:
        print_json(made)
        return
    line(f"workspace {workspace} {'created' if made['created'] else 'was there already'}")
    line(f"its Markdown goes to {settings.data_dir / 'workspaces' / workspace / 'docs'}")


@command.command(name="list")
@json_option
@click.pass_obj
def list_(invocation: Invocation, as_json: bool) -> None:
    """Show all workspaces and routes."""
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
@click.option("--remove", is_flag=True, help="Forget the route of PLACE.")
@json_option
@click.pass_obj
def route(invocation: Invocation, place: str, workspace: str | None, remove: bool, as_json: bool) -> None:
    """Let PLACE (e.g. telegram:-10001 or slack:T123) belong to WORKSPACE, which is created where it is missing."""
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
@workspace_option
@json_option
@click.pass_obj
def answer(invocation: Invocation, place: str, mode: str | None, workspace: str | None, as_json: bool) -> None:
    """Say when the bot answers in the group PLACE (e.g. telegram:-10001); without MODE, show it."""
    run(_answer(invocation.settings(), place, mode, workspace, as_json))


async def _answer(settings: Settings, place: str, mode: str | None, workspace: str | None, as_json: bool) -> None:
    path = f"/v1/workspaces/{segment(workspace_of(settings, workspace))}/places/{segment(place)}"
    async with connect(settings) as client:
        held = await client.get(path)
        if mode is not None:
            wanted = {**held, "answering": None if mode == "default" else mode}
            wanted.pop("place")
            held = await client.put(path, wanted)
    if as_json:
        print_json(held)
    else:
        line(f"{place}: {held['answering'] or f'default ({settings.answer_in_groups})'}")


@command.command()
@click.argument("workspace")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@click.pass_obj
def delete(invocation: Invocation, workspace: str, yes: bool, as_json: bool) -> None:
    """Delete WORKSPACE with all that it holds: conversations, records, people, routes, and its folder of files."""
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
        line(f"workspace {workspace} deleted, with all that it held")
