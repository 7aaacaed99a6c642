"""``agent-runtime context-doc``: the summary of a conversation (its context document), and its versions."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from runtime.cli.client import ApiError, Client, api_path, request, run_with_client
from runtime.cli.invocation import F, Invocation, data_command, workspace_option
from runtime.cli.output import count, emit, line, note, table

DEFAULTS = ("http:default", "console:default")
"""The conversations of HTTP messages that name no context, and of `chat` when it runs alone."""


def document_options(function: F) -> F:
    """Add ``--workspace`` and ``--context``."""
    context_option = click.option(
        "--context",
        metavar="CONTEXT_ID",
        help="The conversation, e.g. slack:C123. Default: that of HTTP, or of chat.",
    )
    return workspace_option(context_option(function))


@click.group()
def command() -> None:
    """Show and replace a conversation's context document: its rolling summary."""


@command.command()
@document_options
@click.option("--section", help="Only this section, e.g. Progress. The beginning of its name is enough.")
@click.option("--version", metavar="ID", help="Show this version instead of the latest. `history` lists the versions.")
@data_command
def show(invocation: Invocation, workspace: str, context: str | None, section: str | None, version: str | None) -> None:
    """Print a context document."""
    if section and version:
        raise click.UsageError("give --section or --version, not both: sections are only of the latest version")

    def show(document: dict[str, Any]) -> None:
        if sys.stdout.isatty():
            line(document["text"].rstrip("\n"))
            note(f"(version {document['id']} by {document['author']}, {document['created_at'][:19]})")
        else:
            click.echo(document["text"].encode("utf-8", "surrogatepass"), nl=bool(section))
        _warn(document)

    emit(invocation, _get(invocation, workspace, context, version or "latest", section=section), show)


@command.command()
@click.argument("text", required=False)
@document_options
@click.option(
    "--file", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Read the text from this file."
)
@click.option(
    "--if-match", metavar="ETAG", help="Fail unless the latest version has this ETag. `show --json` shows it."
)
@data_command
def put(
    invocation: Invocation,
    text: str | None,
    workspace: str,
    context: str | None,
    file: Path | None,
    if_match: str | None,
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
    context = context or DEFAULTS[0]
    headers = {"Content-Type": "text/plain; charset=utf-8"} | ({"If-Match": if_match} if if_match else {})
    stored = request(invocation, "PUT", _path(workspace, context), body, headers=headers)

    def show(stored: dict[str, Any]) -> None:
        line(f"{context}: stored version {stored['id']} ({count(stored['bytes'], 'byte')}).")
        _warn(stored)

    emit(invocation, stored, show)


@command.command()
@document_options
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=100,
    show_default=True,
    help="Number of versions, the newest first.",
)
@data_command
def history(invocation: Invocation, workspace: str, context: str | None, limit: int) -> None:
    """List a document's versions, with time and author."""

    def show(versions: dict[str, Any]) -> None:
        table(
            ["version", "since", "by", "bytes"],
            [[row["id"], row["created_at"][:19], row["author"], row["bytes"]] for row in versions["contexts"]],
            right=["bytes"],
        )

    emit(invocation, _get(invocation, workspace, context, limit=limit), show)


def _warn(document: dict[str, Any]) -> None:
    """Say why *document* is not refreshed, or not shown whole in prompts, and what to do."""
    if problem := document.get("problem"):
        note(f"{problem} To do: {document['advice']}.")


def _get(invocation: Invocation, workspace: str, context: str | None, *more: str, **parameters: Any) -> dict[str, Any]:
    """Return what the API has at the document's path and *more*. Without *context*, try each of `DEFAULTS`."""

    async def get(client: Client) -> dict[str, Any]:
        names = [context] if context else list(DEFAULTS)
        while True:
            try:
                path = _path(workspace, names.pop(0), *more)
                return await client.get(path, headers={"Accept": "application/json"}, **parameters)
            except ApiError as error:
                if error.status != 404 or not names:
                    raise

    return run_with_client(invocation, get)


def _path(workspace: str, context: str, *more: str) -> str:
    return api_path("vaults", workspace, "memories", context, "contexts", *more)
