"""``agent-runtime prompt``: directives, their versions, and the way back."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from config.settings import Settings
from runtime.cli.client import ApiError, Client, connect, segment
from runtime.cli.directives import Slot, condense, slot_options
from runtime.cli.invocation import Invocation, json_option, run, workspace_of, workspace_option
from runtime.cli.output import line, note, print_json, show_diff, table


@click.group()
def command() -> None:
    """Manage directives: texts that say how the model must behave."""


@command.command(name="list")
@workspace_option
@json_option
@click.pass_obj
def list_(invocation: Invocation, workspace: str | None, as_json: bool) -> None:
    """List the directives in force, and the directive files that were not published."""
    run(_list(invocation.settings(), workspace, as_json))


async def _list(settings: Settings, workspace: str | None, as_json: bool) -> None:
    async with connect(settings) as client:
        found = await client.get(f"/v1/workspaces/{segment(workspace_of(settings, workspace))}/prompts")
    if as_json:
        print_json(found)
        return
    rows = [
        [
            row["scope"] + (f" {row['context_id']}" if row.get("context_id") else ""),
            " ".join(filter(None, (row["kind"], row["name"]))),
            row["version"],
            row["author"],
            row["at"][:10],
            row["begins"],
        ]
        for row in found["prompts"]
    ]
    if rows:
        table(["scope", "kind", "version", "by", "since", "text"], rows, right=["version"])
    else:
        line("No directive is set. `agent-runtime prompt set system TEXT` sets one.")
    for note_ in found["refused"]:
        line(f"NOT PUBLISHED  {note_['path']}: {note_['why']}", fg="red")
        line(f"               → {note_['advice']}")


@command.command()
@slot_options()
@click.option("--version", type=int, help="Show this version instead of the current one.")
@json_option
@click.pass_context
def show(context: click.Context, /, as_json: bool, version: int | None, **slot: Any) -> None:
    """Print a directive's text. Without KIND, list all directives.

    KIND is system, soul, skill NAME, cues or frames: `prompt show skill refunds`.
    """
    settings = context.obj.settings()
    named = ("words", "scope", "kind", "name", "context", "version")
    if all(context.get_parameter_source(name) is ParameterSource.DEFAULT for name in named):
        run(_list(settings, slot["workspace"], as_json))
    else:
        run(_show(settings, Slot.alone(**slot), version, as_json))


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
@click.option("--context", metavar="CONTEXT_ID", default="", help="Those of one conversation, e.g. telegram:-10001.")
@json_option
@click.pass_obj
def cues(invocation: Invocation, workspace: str | None, context: str, as_json: bool) -> None:
    """Show the cues: the words and phrases that decide the strategy. `prompt set cues` changes them."""
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
@click.option("--context", metavar="CONTEXT_ID", default="", help="Those of one conversation, e.g. telegram:-10001.")
@json_option
@click.pass_obj
def frames(invocation: Invocation, workspace: str | None, context: str, as_json: bool) -> None:
    """Show the frames: how each kind of message is approached. `prompt set frames` changes them."""
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
@slot_options("[TEXT]")
@click.option(
    "--file", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Read the text from this file."
)
@click.option("--expected-version", type=int, help="Fail unless this is the current version (0: none).")
@json_option
@click.pass_obj
def set_(
    invocation: Invocation,
    /,
    as_json: bool,
    file: Path | None,
    expected_version: int | None,
    **slot: Any,
) -> None:
    """Publish a new version of a directive: TEXT, the text in --file, or standard input.

    KIND is system (also without KIND), soul, skill NAME, cues or frames: `prompt set soul "Be brief."`.
    """
    chosen, rest = Slot.of(**slot)
    if len(rest) > 1:
        raise click.UsageError('TEXT is one argument, in quotation marks: prompt set soul "Be brief."')
    if rest and file is not None:
        raise click.UsageError("give TEXT or --file, not both")
    text = rest[0] if rest else _read(file)
    run(_set(invocation.settings(), chosen, text, expected_version, as_json))


def _read(file: Path | None) -> str:
    if file is None and sys.stdin.isatty():
        note("Type the text; Ctrl-D on a line of its own ends it.")
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
        line(f"Published version {published['version']} of {slot}.")


@command.command()
@slot_options()
@json_option
@click.pass_obj
def edit(invocation: Invocation, /, as_json: bool, **slot: Any) -> None:
    """Edit a directive in $EDITOR and publish the new version.

    If somebody else has published a version meanwhile, nothing is overwritten: your text is saved in a file.
    """
    run(_edit(invocation.settings(), Slot.alone(**slot), as_json))


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
        note("Nothing was changed.")
        return
    async with connect(settings) as client:
        try:
            published = await _publish(client, settings, slot, edited, version)
        except ApiError as error:
            kept = Path(f"{str(slot).replace('/', '-')}.rejected.md")
            await asyncio.to_thread(kept.write_text, edited, encoding="utf-8")
            note(f"Your text is saved in {kept}.")
            raise error from None
    _tell(slot, published, as_json)


@command.command()
@slot_options()
@json_option
@click.pass_obj
def history(invocation: Invocation, /, as_json: bool, **slot: Any) -> None:
    """List a directive's versions."""
    run(_history(invocation.settings(), Slot.alone(**slot), as_json))


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
@slot_options("A B")
@json_option
@click.pass_obj
def diff(invocation: Invocation, /, as_json: bool, **slot: Any) -> None:
    """Compare versions A and B of a directive: `prompt diff soul 1 2`."""
    chosen, rest = Slot.of(**slot)
    if len(rest) != 2:
        raise click.UsageError("give two versions: prompt diff soul 1 2")
    a, b = map(_version, rest)
    run(_diff(invocation.settings(), chosen, a, b, as_json))


def _version(word: str) -> int:
    try:
        return int(word)
    except ValueError:
        raise click.UsageError(
            f"{word!r} is no version, which is a whole number; `prompt history` lists them"
        ) from None


async def _diff(settings: Settings, slot: Slot, a: int, b: int, as_json: bool) -> None:
    async with connect(settings) as client:
        found = await client.get(slot.path(settings, "diff"), context=slot.context, a=a, b=b)
    if as_json:
        print_json(found)
        return
    if not found["diff"]:
        note(f"Versions {a} and {b} are the same.")
    show_diff(found["diff"])


@command.command()
@slot_options("VERSION")
@json_option
@click.pass_obj
def rollback(invocation: Invocation, /, as_json: bool, **slot: Any) -> None:
    """Publish an earlier VERSION again: `prompt rollback soul 1`."""
    chosen, rest = Slot.of(**slot)
    if len(rest) != 1:
        raise click.UsageError("give one version: prompt rollback soul 1")
    run(_rollback(invocation.settings(), chosen, _version(rest[0]), as_json))


async def _rollback(settings: Settings, slot: Slot, version: int, as_json: bool) -> None:
    async with connect(settings) as client:
        published = await client.post(slot.path(settings, "rollback"), {"version": version}, context=slot.context)
    _tell(slot, published, as_json)


@command.command()
@slot_options()
@click.option("--expected-version", type=int, help="Fail unless this is the current version.")
@json_option
@click.pass_obj
def clear(invocation: Invocation, /, as_json: bool, expected_version: int | None, **slot: Any) -> None:
    """Remove a directive. Its history stays."""
    run(_clear(invocation.settings(), Slot.alone(**slot), expected_version, as_json))


async def _clear(settings: Settings, slot: Slot, expected: int | None, as_json: bool) -> None:
    async with connect(settings) as client:
        cleared = await client.delete(slot.path(settings), context=slot.context, expected_version=expected)
    if as_json:
        print_json(cleared)
    else:
        line(f"Cleared {slot}. Its history stays.")


command.add_command(condense)
