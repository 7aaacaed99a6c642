"""``agent-runtime index``: bring the search index in step with Markdown on disk."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from config.settings import Settings
from connectors.message import AgentRuntimeError
from grounding.documents import is_document_path
from runtime.cli.client import Client, api_path, connect
from runtime.cli.invocation import Invocation, data_command, run
from runtime.cli.output import count, emit, line, milliseconds, note, print_json
from runtime.cli.progress import index_documents, status_line
from runtime.process import Part
from runtime.workspaces import console_workspace

WATCH_PARTS: frozenset[Part] = frozenset(("follow",))


class NothingToIndex(AgentRuntimeError):
    """A path is missing, or holds no Markdown."""


@click.command()
@click.argument("paths", nargs=-1, metavar="[PATH]…")
@click.option("-w", "--workspace", metavar="W", help="The workspace; default: AGENT_RUNTIME_DEFAULT_WORKSPACE.")
@click.option("--fresh", is_flag=True, help="Index everything again, also what has not changed.")
@click.option("--watch", is_flag=True, help="Keep indexing what changes, until Ctrl-C.")
@data_command
def command(invocation: Invocation, paths: tuple[str, ...], workspace: str | None, fresh: bool, watch: bool) -> None:
    """Index a workspace's Markdown documents for search.

    PATH is a document or folder in the workspace's docs/ folder. A PATH elsewhere on this machine is first copied
    into that folder under its own name. Without PATH, all documents of the workspace are indexed.
    """
    settings = invocation.settings()
    # New documents are for everybody. Without PATHs, the documents that the terminal chat uses are indexed.
    workspace = workspace or (settings.default_workspace if paths else console_workspace(settings))
    run(_index(invocation, settings, paths, workspace, fresh=fresh, watch=watch))


async def _index(
    invocation: Invocation, settings: Settings, paths: Sequence[str], workspace: str, *, fresh: bool, watch: bool
) -> None:
    docs = settings.data_dir / "workspaces" / workspace / "docs"
    inside, outside = await asyncio.to_thread(sort_paths, paths, docs)
    with status_line("opening the stores …") as status:
        async with connect(settings, WATCH_PARTS if watch else frozenset()) as client:
            for document in outside:
                status.show(f"copying {document.path}")
                path = api_path("workspaces", workspace, "documents", *document.path.split("/"))
                text = await asyncio.to_thread(document.file.read_bytes)
                await client.call("PUT", path, text, headers={"Content-Type": "text/markdown"})
            changed = [*inside, *(document.path for document in outside)] if paths else None
            result = await index_documents(client, workspace, status, paths=changed, fresh=fresh)
            emit(invocation, result, lambda result: _show(workspace, result))
            if watch:
                await _watch(invocation, client, workspace)


def _show(workspace: str, result: dict[str, Any]) -> None:
    line(
        f"{workspace}: {count(result['documents'], 'document')} indexed ({count(result['chunks'], 'chunk')}, "
        f"{result['chunks_embedded']} embedded), {result['unchanged']} unchanged, {result['deleted']} deleted"
    )
    for skipped in result["skipped"]:
        note(f"skipped {skipped['path']}: {skipped['why']}")


async def _watch(invocation: Invocation, client: Client, workspace: str) -> None:
    """Print what is indexed when files change, until the command is stopped."""
    if not invocation.as_json:
        note("watching the files; Ctrl-C stops")
    async for name, event in client.events("GET", api_path("events"), limit=0, workspace=workspace, follow=True):
        if name not in ("index.updated", "index.skipped"):
            continue
        if invocation.as_json:
            print_json(event)
        elif name == "index.skipped":
            note(f"skipped {event.get('path')}: {event.get('why')}")
        else:
            line(
                f"{workspace}: {count(event.get('documents', 0), 'document')} indexed, {event.get('deleted', 0)} "
                f"deleted, found after {milliseconds(event.get('lag_ms'))}"
            )


@dataclass(frozen=True)
class OutsideFile:
    """A file outside of the workspace, and its path after it is copied there."""

    file: Path
    path: str


def sort_paths(paths: Sequence[str], docs: Path) -> tuple[list[str], list[OutsideFile]]:
    """Sort *paths* into paths below the workspace's folder *docs* and files to copy there. Raises `NothingToIndex`."""
    inside: list[str] = []
    outside: list[OutsideFile] = []
    root = docs.resolve()
    for path in paths:
        here = Path(path).expanduser().resolve()
        below_docs = (root / path.removeprefix("docs/")).resolve()
        if here.exists() and not here.is_relative_to(root):
            outside += _markdown_files(here)
        elif here.is_relative_to(root):
            inside.append(here.relative_to(root).as_posix())
        elif below_docs.is_relative_to(root) and below_docs.exists():
            inside.append(below_docs.relative_to(root).as_posix())
        else:
            raise NothingToIndex(f"{path}: no such file or folder here or in {docs}")
    return inside, outside


def _markdown_files(start: Path) -> list[OutsideFile]:
    if start.is_file():
        if not is_document_path(start.name):
            raise NothingToIndex(f"{start} is not a Markdown file (.md)")
        return [OutsideFile(start, start.name)]
    files = [
        OutsideFile(file, path)
        for file in sorted(start.rglob("*"))
        if file.is_file()
        and not file.is_symlink()
        and is_document_path(path := f"{start.name}/{file.relative_to(start).as_posix()}")
    ]
    if not files:
        raise NothingToIndex(f"{start} contains no Markdown files (.md)")
    return files
