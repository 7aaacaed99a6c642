"""``agent-runtime prompt``: directives, their versions, and the way back."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import click

from config.settings import Settings
from runtime.cli.client import ApiError, Client, connect, segment
from runtime.cli.condensing import condense
from runtime.cli.directive_slots import Slot, slot_options
from runtime.cli.invocation import Invocation, json_option, run, workspace_of, workspace_option
from runtime.cli.output import line, note, print_json, show_diff, table


@click.group()
def command() -> None:
    """Directives: how the model must behave, by scope and kind, with versions."""


@command.command(name="list")
@workspace_option
@json_option
@click.pass_obj
def list_(invocation: Invocation, workspace: str | None, as_json: bool) -> None:
    """Show which directives there are."""
    run(_list(invocation.settings(), workspace, as_json))


async def _list(settings: Settings, workspace: str | None, as_json: bool) -> None:
    async with connect(settings) as client:
        found = await client.get(f"/v1/workspaces/{segment(workspace_of(settings, workspace))}/prompts")
    if as_json:
        print_json(found)
        return
    table(
        ["scope", "kind", "name", "version", "bytes", "author", "since"],
        [
            [
                row["scope"] + (f" {row['context_id']}" if row.get("context_id") else ""),
                row["kind"],
                row["name"] or "",
                row["version"],
                row["bytes"],
                row["author"],
                row["at"][:19],
            ]
            for row in found["prompts"]
        ],
        right=["version", "bytes"],
    )


@command.command()
@slot_options
@click.option("--version", type=int, help="This version instead of the one that holds.")
@json_option
@click.pass_obj
def show(invocation: Invocation, /, as_json: bool, version: int | None, **slot: Any) -> None:
    """Print a directive's text."""
    run(_show(invocation.settings(), Slot.of(**slot), version, as_json))


async def _show(settings: Settings, slot: Slot, version: int | None, as_json: bool) -> None:
    async with connect(settings) as client:
        found = await client.get(slot.path(settings), context=slot.context, version=version)
    if as_json:
        print_json(found)
    else:
        line(found["text"].rstrip("\n"))
        if sys.stdout.isatty():
            note(f"({slot}, version {found['version']} by {found['author']}, {found['at'][:19]})")


@command.command()
@workspace_option
@click.option("--context", metavar="CONTEXT_ID", default="", help="Those of one context, e.g. telegram:-10001.")
@json_option
@click.pass_obj
def cues(invocation: Invocation, workspace: str | None, context: str, as_json: bool) -> None:
    """Show the words and phrases that decide the strategy: what ships, with what --kind cues changes."""
    run(_cues(invocation.settings(), workspace, context, as_json))


async def _cues(settings: Settings, workspace: str | None, context: str, as_json: bool) -> None:
    async with connect(settings) as client:
        path = f"/v1/workspaces/{segment(workspace_of(settings, workspace))}/cues"
        found = await client.get(path, context=context or None)
    if as_json:
        print_json(found)
        return
    for kind, phrases in found["cues"].items():
        line(f"{kind}: {', '.join(phrases)}")


@command.command()
@workspace_option
@click.option("--context", metavar="CONTEXT_ID", default="", help="Those of one context, e.g. telegram:-10001.")
@json_option
@click.pass_obj
def frames(invocation: Invocation, workspace: str | None, context: str, as_json: bool) -> None:
    """Show how kinds of messages are gone about: what ships, with what --kind frames changes."""
    run(_frames(invocation.settings(), workspace, context, as_json))


async def _frames(settings: Settings, workspace: str | None, context: str, as_json: bool) -> None:
    async with connect(settings) as client:
        path = f"/v1/workspaces/{segment(workspace_of(settings, workspace))}/frames"
        found = await client.get(path, context=context or None)
    if as_json:
        print_json(found)
        return
    for name, frame in found["frames"].items():
        line(f"{name}: {frame['description']}")
        for part in ("questions", "cues"):
            line(f"  {part}: {', '.join(frame[part])}")
        for part in ("priorities", "shape"):
            line(f"  {part}: {', '.join(f'{of} {value:g}' for of, value in frame[part].items())}")


@command.command(name="set")
@click.argument("text", required=False)
@slot_options
@click.option("--file", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Read the text from here.")
@click.option("--expected-version", type=int, help="Fail where another version holds (0: none).")
@json_option
@click.pass_obj
def set_(
    invocation: Invocation,
    /,
    text: str | None,
    as_json: bool,
    file: Path | None,
    expected_version: int | None,
    **slot: Any,
) -> None:
    """Publish TEXT, the text in --file, or what comes in on standard input, as the new version of a directive."""
    if text is not None and file is not None:
        raise click.UsageError("give the text, or --file")
    if text is None:
        text = _read(file)
    run(_set(invocation.settings(), Slot.of(**slot), text, expected_version, as_json))


def _read(file: Path | None) -> str:
    try:
        return file.read_text(encoding="utf-8") if file else sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"the text is not UTF-8: {error}") from error


async def _set(settings: Settings, slot: Slot, text: str, expected: int | None, as_json: bool) -> None:
    async with connect(settings) as client:
        published = await _publish(client, settings, slot, text, expected)
    _tell(slot, published, as_json)


async def _publish(client: Client, settings: Settings, slot: Slot, text: str, expected: int | None) -> dict[str, Any]:
    body: dict[str, Any] = {"text": text}
    if expected is not None:
        body["expected_version"] = expected
    return await client.put(slot.path(settings), body, context=slot.context)


def _tell(slot: Slot, published: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(published)
    else:
        line(f"{slot}: version {published['version']} holds")


@command.command()
@slot_options
@json_option
@click.pass_obj
def edit(invocation: Invocation, /, as_json: bool, **slot: Any) -> None:
    """Open a directive in $EDITOR and publish what is saved.

    Where somebody else published meanwhile nothing is overwritten: the text is kept in a file.
    """
    run(_edit(invocation.settings(), Slot.of(**slot), as_json))


async def _edit(settings: Settings, slot: Slot, as_json: bool) -> None:
    text, version = "", 0
    async with connect(settings) as client:
        try:
            found = await client.get(slot.path(settings), context=slot.context)
            text, version = found["text"], found["version"]
        except ApiError as error:
            if error.status != 404 or error.code == "unknown_workspace":
                raise
            # One that was cleared has a version, though no text.
            versions = (await client.get(slot.path(settings, "history"), context=slot.context))["versions"]
            version = versions[0]["version"] if versions else 0
    # The stores are free while the person writes, which may take an hour.
    edited = await asyncio.to_thread(click.edit, text, extension=".md", require_save=True)
    if edited is None or edited == text:
        note("nothing changed")
        return
    async with connect(settings) as client:
        try:
            published = await _publish(client, settings, slot, edited, version)
        except ApiError as error:
            kept = Path(f"{str(slot).replace('/', '-')}.rejected.md")
            await asyncio.to_thread(kept.write_text, edited, encoding="utf-8")
            note(f"your text is kept in {kept}")
            raise error from None
    _tell(slot, published, as_json)


@command.command()
@slot_options
@json_option
@click.pass_obj
def history(invocation: Invocation, /, as_json: bool, **slot: Any) -> None:
    """Show a directive's versions."""
    run(_history(invocation.settings(), Slot.of(**slot), as_json))


async def _history(settings: Settings, slot: Slot, as_json: bool) -> None:
    async with connect(settings) as client:
        found = await client.get(slot.path(settings, "history"), context=slot.context)
    if as_json:
        print_json(found)
        return
    table(
        ["version", "since", "author", "origin", "bytes", "sha256"],
        [
            [
                row["version"],
                row["at"][:19],
                row["author"],
                row.get("origin") or "",
                row.get("bytes", ""),
                str(row.get("sha256", ""))[:12],
            ]
            for row in found["versions"]
        ],
        right=["version", "bytes"],
    )


@command.command()
@click.argument("a", type=int)
@click.argument("b", type=int)
@slot_options
@json_option
@click.pass_obj
def diff(invocation: Invocation, /, a: int, b: int, as_json: bool, **slot: Any) -> None:
    """Compare versions A and B of a directive."""
    run(_diff(invocation.settings(), Slot.of(**slot), a, b, as_json))


async def _diff(settings: Settings, slot: Slot, a: int, b: int, as_json: bool) -> None:
    async with connect(settings) as client:
        found = await client.get(slot.path(settings, "diff"), context=slot.context, a=a, b=b)
    if as_json:
        print_json(found)
        return
    if not found["diff"]:
        note(f"versions {a} and {b} are the same")
    show_diff(found["diff"])


@command.command()
@click.argument("version", type=int)
@slot_options
@json_option
@click.pass_obj
def rollback(invocation: Invocation, /, version: int, as_json: bool, **slot: Any) -> None:
    """Publish an earlier VERSION again."""
    run(_rollback(invocation.settings(), Slot.of(**slot), version, as_json))


async def _rollback(settings: Settings, slot: Slot, version: int, as_json: bool) -> None:
    async with connect(settings) as client:
        published = await client.post(slot.path(settings, "rollback"), {"version": version}, context=slot.context)
    _tell(slot, published, as_json)


@command.command()
@slot_options
@click.option("--expected-version", type=int, help="Fail where another version holds.")
@json_option
@click.pass_obj
def clear(invocation: Invocation, /, as_json: bool, expected_version: int | None, **slot: Any) -> None:
    """Take a directive away; its history stays."""
    run(_clear(invocation.settings(), Slot.of(**slot), expected_version, as_json))


async def _clear(settings: Settings, slot: Slot, expected: int | None, as_json: bool) -> None:
    async with connect(settings) as client:
        cleared = await client.delete(slot.path(settings), context=slot.context, expected_version=expected)
    if as_json:
        print_json(cleared)
    else:
        line(f"{slot} is cleared; its history stays")


command.add_command(condense)
