"""``agent-runtime context-doc``: what is noted about a conversation, and its versions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from config.settings import Settings
from runtime.cli.client import ApiError, Client, connect, segment
from runtime.cli.invocation import F, Invocation, json_option, run, workspace_of, workspace_option
from runtime.cli.output import count, line, note, print_json, table

DEFAULTS = ("http:default", "console:default")
"""Where messages over HTTP go that name no context, and what `chat` says when it runs alone."""


@dataclass(frozen=True)
class Place:
    """Whose document is meant; without a *context* the first of `DEFAULTS` that has one."""

    workspace: str | None
    context: str | None

    def path(self, settings: Settings, context: str) -> str:
        vault = segment(workspace_of(settings, self.workspace))
        return f"/v1/vaults/{vault}/memories/{segment(context)}/contexts"

    async def get(self, client: Client, settings: Settings, more: str = "", **parameters: Any) -> dict[str, Any]:
        """What the API tells of the document at its path followed by *more*. Raises `ApiError`."""
        contexts = [self.context] if self.context else [*DEFAULTS]
        while True:
            path = self.path(settings, contexts.pop(0)) + more
            try:
                return await client.get(path, headers={"Accept": "application/json"}, **parameters)
            except ApiError as error:
                if error.status != 404 or not contexts:
                    raise


def place_options(function: F) -> F:
    """The options that say whose document is meant."""
    options: list[Callable[[F], F]] = [
        workspace_option,
        click.option(
            "--context",
            metavar="CONTEXT_ID",
            help="The conversation, e.g. slack:C123. Default: that of HTTP, or of chat.",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


@click.group()
def command() -> None:
    """Show and replace a conversation's context document: its rolling summary."""


@command.command()
@place_options
@click.option("--section", help="Only this section, e.g. Progress. The beginning of its name is enough.")
@click.option("--version", metavar="ID", help="Show this version instead of the latest. `history` lists the versions.")
@json_option
@click.pass_obj
def show(
    invocation: Invocation,
    /,
    workspace: str | None,
    context: str | None,
    section: str | None,
    version: str | None,
    as_json: bool,
) -> None:
    """Print a context document."""
    if section and version:
        raise click.UsageError("give --section or --version, not both: sections are only of the latest version")
    run(_show(invocation.settings(), Place(workspace, context), section, version, as_json))


async def _show(settings: Settings, place: Place, section: str | None, version: str | None, as_json: bool) -> None:
    async with connect(settings) as client:
        found = await place.get(client, settings, f"/{segment(version) if version else 'latest'}", section=section)
    if as_json:
        print_json(found)
    elif sys.stdout.isatty():
        line(found["text"].rstrip("\n"))
        note(f"(version {found['id']} by {found['author']}, {found['created_at'][:19]})")
    else:
        click.echo(found["text"].encode("utf-8", "surrogatepass"), nl=bool(section))


@command.command()
@click.argument("text", required=False)
@place_options
@click.option(
    "--file", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Read the text from this file."
)
@click.option(
    "--if-match", metavar="ETAG", help="Fail unless the latest version has this ETag. `show --json` shows it."
)
@json_option
@click.pass_obj
def put(
    invocation: Invocation,
    /,
    text: str | None,
    workspace: str | None,
    context: str | None,
    file: Path | None,
    if_match: str | None,
    as_json: bool,
) -> None:
    """Replace the document with TEXT, the text in --file, or standard input.

    These lines stay when the document is refreshed, until a person removes them or corrects what they say.
    """
    if text is not None and file is not None:
        raise click.UsageError("give TEXT or --file, not both")
    if text is not None:
        body = text.encode("utf-8", "surrogatepass")
    else:
        body = file.read_bytes() if file else sys.stdin.buffer.read()
    run(_put(invocation.settings(), Place(workspace, context), body, if_match, as_json))


async def _put(settings: Settings, place: Place, body: bytes, if_match: str | None, as_json: bool) -> None:
    headers = {"If-Match": if_match} if if_match else {}
    async with connect(settings) as client:
        path = place.path(settings, place.context or DEFAULTS[0])
        stored = await client.put_text(path, body, media_type="text/plain; charset=utf-8", headers=headers)
    if as_json:
        print_json(stored)
    else:
        line(f"{place.context or DEFAULTS[0]}: stored version {stored['id']} ({count(stored['bytes'], 'byte')}).")


@command.command()
@place_options
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=100,
    show_default=True,
    help="Number of versions, the newest first.",
)
@json_option
@click.pass_obj
def history(invocation: Invocation, /, workspace: str | None, context: str | None, limit: int, as_json: bool) -> None:
    """List a document's versions, with time and author."""
    run(_history(invocation.settings(), Place(workspace, context), limit, as_json))


async def _history(settings: Settings, place: Place, limit: int, as_json: bool) -> None:
    async with connect(settings) as client:
        found = await place.get(client, settings, limit=limit)
    if as_json:
        print_json(found)
        return
    table(
        ["version", "since", "by", "bytes"],
        [[row["id"], row["created_at"][:19], row["author"], row["bytes"]] for row in found["contexts"]],
        right=["bytes"],
    )
