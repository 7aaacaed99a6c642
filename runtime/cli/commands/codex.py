"""``agent-runtime codex``: material that the model is given whole, or searches where it is too much."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from config.settings import Settings
from connectors.message import AgentRuntimeError
from runtime.cli.client import ApiError, Client, connect, segment
from runtime.cli.invocation import Invocation, json_option, run, workspace_of, workspace_option
from runtime.cli.output import count, line, note, print_json, status_line, table

TOGETHER = 8
"""Files that are sent at a time."""
WHY = {
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


class NothingToAdd(AgentRuntimeError):
    """A path is not there, or nothing below it can be read."""


@click.group()
def command() -> None:
    """Manage the codex: files, source code or documentation that the model is given whole.

    If it is too much for the model's window, the model gets a tool that searches it.
    """


@command.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH…")
@context_option
@workspace_option
@json_option
@click.pass_obj
def add(
    invocation: Invocation, paths: tuple[str, ...], context: str | None, workspace: str | None, as_json: bool
) -> None:
    """Add files, or folders with everything in them.

    Hidden files (.git) are left out. Links and files that are binary, not UTF-8 or unreadable are left out and named.
    """
    settings = invocation.settings()
    run(_add(settings, paths, workspace_of(settings, workspace), context, as_json))


async def _add(settings: Settings, paths: Sequence[str], workspace: str, context: str | None, as_json: bool) -> None:
    found = await asyncio.to_thread(lambda: each_once([one for path in paths for one in files_at(path)]))
    added: list[dict[str, Any]] = []
    refused: list[dict[str, Any]] = []
    with status_line("opening the stores …") as status:
        async with connect(settings) as client:
            for start in range(0, len(found), TOGETHER):
                some = found[start : start + TOGETHER]
                status.show(f"adding {some[0].path}")
                for row in await asyncio.gather(*(_put(client, workspace, context, file) for file in some)):
                    (added if "tokens" in row else refused).append(row)
    if as_json:
        print_json({"added": added, "refused": refused})
    else:
        for one in refused:
            note(f"left out {one['path']}: {one['message']}")
        line(f"{workspace}: {count(len(added), 'file')} added, {sum(one['tokens'] for one in added)} tokens")
    if not added:
        raise NothingToAdd("nothing was added; the lines above say why")


async def _put(client: Client, workspace: str, context: str | None, file: Found) -> dict[str, Any]:
    """The file as it was kept, or why it was not."""
    if file.why:
        return {"path": file.path, "code": file.code, "message": file.why}
    try:
        raw = await asyncio.to_thread(file.file.read_bytes)
    except OSError as error:
        return {"path": file.path, "code": "unreadable", "message": f"it cannot be read: {error.strerror}"}
    path = f"{_path(workspace)}/{segment_path(file.path)}{_query(context)}"
    try:
        return await client.put_text(path, raw, media_type="text/plain")
    except ApiError as error:
        if error.status not in (400, 413):
            raise
        return {"path": file.path, "code": error.code, "message": str(error)}


@command.command(name="list")
@context_option
@workspace_option
@json_option
@click.pass_obj
def list_(invocation: Invocation, context: str | None, workspace: str | None, as_json: bool) -> None:
    """List the files, and say whether they are given whole or searched, and why."""
    settings = invocation.settings()
    run(_list(settings, workspace_of(settings, workspace), context, as_json))


async def _list(settings: Settings, workspace: str, context: str | None, as_json: bool) -> None:
    async with connect(settings) as client:
        found = await client.get(_path(workspace), context=context)
    if as_json:
        print_json(found)
        return
    if found["files"]:
        rows = [[one["shown_as"], one["bytes"], one["tokens"]] for one in found["files"]]
        table(["path", "bytes", "tokens"], rows)
    why = WHY.get(found["why"], found["why"]).format(**found)
    line(f"{count(len(found['files']), 'file')}, {found['tokens']} tokens: {_WORDS[found['mode']]}, because {why}")
    if found["mode"] == "search" and not found["indexed"]:
        note("it is still being indexed")


_WORDS = {"whole": "given whole", "search": "searched", "withheld": "withheld", "none": "not given"}


@command.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH…")
@context_option
@workspace_option
@json_option
@click.pass_obj
def remove(
    invocation: Invocation, paths: tuple[str, ...], context: str | None, workspace: str | None, as_json: bool
) -> None:
    """Remove files, or folders with everything in them."""
    settings = invocation.settings()
    run(_remove(settings, paths, workspace_of(settings, workspace), context, as_json))


async def _remove(settings: Settings, paths: Sequence[str], workspace: str, context: str | None, as_json: bool) -> None:
    async with connect(settings) as client:
        found = await client.get(_path(workspace), context=context)
        own = [one for one in found["files"] if one["context"] == (context or "")]
        wanted = [path.rstrip("/") for path in paths]
        gone = [file["path"] for file in own if any(_names(one, file) for one in wanted)]
        for one in wanted:
            if not any(_names(one, file) for file in own):
                raise NothingToAdd(
                    f"{one}: no such file or folder was added; `agent-runtime codex list` shows what there is"
                )
        for path in gone:
            await client.delete(f"{_path(workspace)}/{segment_path(path)}", context=context)
    if as_json:
        print_json({"removed": gone})
    else:
        line(f"{workspace}: {count(len(gone), 'file')} removed")


def _names(given: str, file: dict[str, Any]) -> bool:
    """Whether *given* is the file or a folder above it, as it was put or as `list` shows it."""
    return any(f"{path}/".startswith(f"{given}/") for path in (file["path"], file["shown_as"]))


@dataclass(frozen=True)
class Found:
    """A file on this machine, the path that it gets, and why it is left out, if it is, with the word for programs."""

    file: Path
    path: str
    why: str = ""
    code: str = ""


def files_at(given: str) -> list[Found]:
    """The files at or below *given*, by path. No link is followed. Raises `NothingToAdd`."""
    start = Path(given).expanduser()
    if start.is_symlink():
        raise NothingToAdd(f"{given} is a link; give the file or folder that it points to")
    if not start.exists():
        raise NothingToAdd(f"{given}: no such file or folder")
    start = start.absolute()
    start = Path(os.path.normpath(start))
    if not _is_utf8(start.name):
        return [_misnamed(start, start.name)]
    if start.is_file():
        return [Found(start, start.name)]
    return list(_below(start, start.name))


def each_once(found: Sequence[Found]) -> list[Found]:
    """*found* without what was given twice. Raises `NothingToAdd` where files would take each other's place."""
    known: dict[str, Found] = {}
    for one in found:
        other = known.setdefault(one.path, one)
        if other.file != one.file and not (one.why or other.why):
            both = f"{_readable(str(other.file))} and {_readable(str(one.file))}"
            raise NothingToAdd(f"{both} would both be {one.path}: give a folder that has both")
    return list(dict.fromkeys(found))


def _below(folder: Path, name: str) -> Iterator[Found]:
    try:
        files = sorted(folder.iterdir())
    except OSError as error:
        yield Found(folder, name, f"it cannot be read: {error.strerror}", "unreadable")
        return
    for file in files:
        path = f"{name}/{file.name}"
        if file.name.startswith("."):
            continue
        if not _is_utf8(file.name):
            yield _misnamed(file, path)
        elif file.is_symlink():
            yield Found(file, path, "it is a link", "link")
        elif file.is_dir():
            yield from _below(file, path)
        elif file.is_file():
            yield Found(file, path)
        else:
            yield Found(file, path, "it is not an ordinary file", "special")


def _misnamed(file: Path, path: str) -> Found:
    return Found(file, _readable(path), "its name is not UTF-8", "encoding")


def _readable(path: str) -> str:
    return os.fsencode(path).decode(errors="replace")


def _is_utf8(name: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in name)


def segment_path(path: str) -> str:
    """*path* in an address, its slashes as they are."""
    return "/".join(segment(part) for part in path.split("/"))


def _path(workspace: str) -> str:
    return f"/v1/workspaces/{segment(workspace)}/codex"


def _query(context: str | None) -> str:
    return f"?context={segment(context)}" if context else ""
