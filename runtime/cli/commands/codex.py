"""``agent-runtime codex``: material that the model is given whole, or searches if it is too much."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from connectors.message import AgentRuntimeError
from runtime.cli.client import ApiError, Client, api_path, request, run_with_client
from runtime.cli.invocation import Invocation, data_command, workspace_option
from runtime.cli.output import count, emit, line, note, table
from runtime.cli.progress import status_line

BATCH_FILES = 8
"""How many files are sent at a time."""
MODES = {"whole": "given whole", "search": "searched", "withheld": "withheld", "none": "not given"}
REASONS = {
    "below_line": "it has less than {limit} tokens, its share of the model's window",
    "over_line": "it has {tokens} tokens; it would be given whole below {limit} tokens (the window has {window})",
    "over_budget": "the prompt would be longer than AGENT_RUNTIME_PROMPT_MAX_CHARACTERS",
    "over_window": "it does not fit into the model's window of {window} tokens with the rest of the prompt",
    "over_memory": "this machine has too little memory for a prompt with all of it",
    "near_line": "it was above the limit of {limit} tokens, and is still close to it",
    "sigil": "the sigil of this conversation does not allow codex:read",
    "empty": "no file was added",
}
context_option = click.option(
    "--context", metavar="CONNECTOR:ID", default=None, help="Material of one conversation only, e.g. slack:C123."
)
paths_argument = click.argument("paths", nargs=-1, required=True, metavar="PATH…")


class NothingToAdd(AgentRuntimeError):
    """A path is missing, or no file below it can be read."""


@click.group()
def command() -> None:
    """Manage the codex: files, source code or documentation that the model is given whole.

    If it is too much for the model's window, the model gets a tool that searches it.
    """


@command.command()
@paths_argument
@context_option
@workspace_option
@data_command
def add(invocation: Invocation, paths: tuple[str, ...], context: str | None, workspace: str) -> None:
    """Add files, or folders with everything in them.

    Hidden files (.git) are left out. Links and files that are binary, not UTF-8 or unreadable are left out and named.
    """
    files = each_once([file for path in paths for file in files_at(path)])
    with status_line("opening the stores …") as status:

        async def upload(client: Client) -> list[dict[str, Any]]:
            rows = []
            for start in range(0, len(files), BATCH_FILES):
                batch = files[start : start + BATCH_FILES]
                status.show(f"adding {batch[0].path}")
                rows += await asyncio.gather(*(_upload(client, workspace, context, file) for file in batch))
            return rows

        rows = run_with_client(invocation, upload)
    added = [row for row in rows if "tokens" in row]
    refused = [row for row in rows if "tokens" not in row]
    if not invocation.as_json:
        for row in refused:
            note(f"left out {row['path']}: {row['message']}")
    tokens = sum(row["tokens"] for row in added)
    answer = {"added": added, "refused": refused}
    emit(invocation, answer, f"{workspace}: {count(len(added), 'file')} added, {tokens} tokens")
    if not added:
        raise NothingToAdd("nothing was added; the lines above say why")


async def _upload(client: Client, workspace: str, context: str | None, file: LocalFile) -> dict[str, Any]:
    """Store *file* and return its row, or return why it is left out (``code`` and ``message``)."""
    if file.why:
        return {"path": file.path, "code": "left_out", "message": file.why}
    try:
        path, content = _path(workspace, file.path), await asyncio.to_thread(file.file.read_bytes)
    except UnicodeEncodeError:
        return {"path": file.path, "code": "encoding", "message": "its name is not UTF-8"}
    except OSError as error:
        return {"path": file.path, "code": "unreadable", "message": f"it cannot be read: {error.strerror}"}
    try:
        headers = {"Content-Type": "text/plain"}
        return await client.call("PUT", path, content, headers=headers, context=context)
    except ApiError as error:
        if error.status not in (400, 413):
            raise
        return {"path": file.path, "code": error.code, "message": str(error)}


@dataclass(frozen=True)
class LocalFile:
    """A file on this machine, its path in the codex, and, if it is left out, why."""

    file: Path
    path: str
    why: str = ""


def files_at(path: str) -> list[LocalFile]:
    """Return the files at or below *path*, sorted, without hidden ones. No link is followed. Raises `NothingToAdd`."""
    start = Path(os.path.abspath(Path(path).expanduser()))
    if start.is_symlink():
        raise NothingToAdd(f"{path} is a link; give the file or folder that it points to")
    if not start.exists():
        raise NothingToAdd(f"{path}: no such file or folder")
    files = []
    for file in sorted(start.rglob("*")) if start.is_dir() else [start]:
        name = file.relative_to(start.parent).as_posix()
        if any(part.startswith(".") for part in file.relative_to(start).parts):
            continue
        if file.is_symlink():
            files.append(LocalFile(file, name, "it is a link"))
        elif not file.is_dir():
            files.append(LocalFile(file, name, "" if file.is_file() else "it is not an ordinary file"))
    return files


def each_once(files: Sequence[LocalFile]) -> list[LocalFile]:
    """Return *files* without duplicates. Raises `NothingToAdd` if two different files would have the same path."""
    by_path: dict[str, LocalFile] = {}
    for file in files:
        other = by_path.setdefault(file.path, file)
        if other.file != file.file and not (file.why or other.why):
            raise NothingToAdd(f"{other.file} and {file.file} would both be {file.path}: give a folder that has both")
    return list(by_path.values())


@command.command(name="list")
@context_option
@workspace_option
@data_command
def list_(invocation: Invocation, context: str | None, workspace: str) -> None:
    """List the files, and say whether they are given whole or searched, and why."""
    emit(invocation, request(invocation, "GET", _path(workspace), context=context), _show_codex)


def _show_codex(codex: dict[str, Any]) -> None:
    if codex["files"]:
        table(
            ["path", "bytes", "tokens"], [[file["shown_as"], file["bytes"], file["tokens"]] for file in codex["files"]]
        )
    why = REASONS.get(codex["why"], codex["why"]).format(**codex)
    line(f"{count(len(codex['files']), 'file')}, {codex['tokens']} tokens: {MODES[codex['mode']]}, because {why}")
    if codex["mode"] == "search" and not codex["indexed"]:
        note("it is still being indexed")


@command.command()
@paths_argument
@context_option
@workspace_option
@data_command
def remove(invocation: Invocation, paths: tuple[str, ...], context: str | None, workspace: str) -> None:
    """Remove files, or folders with everything in them."""

    async def delete(client: Client) -> list[str]:
        files = (await client.get(_path(workspace), context=context))["files"]
        files = [file for file in files if file["context"] == (context or "")]
        removed: dict[str, None] = {}
        for path in (path.rstrip("/") for path in paths):
            matches = [file["path"] for file in files if _is_at(path, file)]
            if not matches:
                raise NothingToAdd(
                    f"{path}: no such file or folder was added; `agent-runtime codex list` shows what there is"
                )
            removed |= dict.fromkeys(matches)
        for path in removed:
            await client.call("DELETE", _path(workspace, path), context=context)
        return list(removed)

    removed = run_with_client(invocation, delete)
    emit(invocation, {"removed": removed}, f"{workspace}: {count(len(removed), 'file')} removed")


def _is_at(path: str, file: dict[str, Any]) -> bool:
    """Return whether *file* is at or below *path*, by its stored path or as `list` shows it."""
    return any(f"{name}/".startswith(f"{path}/") for name in (file["path"], file["shown_as"]))


def _path(workspace: str, file: str = "") -> str:
    return api_path("workspaces", workspace, "codex", *(file.split("/") if file else []))
