"""``agent-runtime index``: bring the search index in step with Markdown on disk."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from config.settings import Settings
from connectors.message import AgentRuntimeError
from grounding.documents import is_document_path
from runtime.cli.client import Client, connect
from runtime.cli.invocation import Invocation, default_workspace_option, json_option, run, workspace_of
from runtime.cli.output import count, index, line, milliseconds, note, print_json, status_line

if TYPE_CHECKING:
    from runtime.cli.output import StatusLine
    from runtime.process import Part

WATCH: frozenset[Part] = frozenset(("follow",))


class NothingToIndex(AgentRuntimeError):
    """A path was given that is not there, or that holds no Markdown."""


@click.command()
@click.argument("paths", nargs=-1, metavar="[PATH]…")
@default_workspace_option
@click.option("--fresh", is_flag=True, help="Index everything again, also what has not changed.")
@click.option("--watch", is_flag=True, help="Keep indexing what changes, until Ctrl-C.")
@json_option
@click.pass_obj
def command(
    invocation: Invocation, paths: tuple[str, ...], workspace: str | None, fresh: bool, watch: bool, as_json: bool
) -> None:
    """Index a workspace's Markdown documents for search.

    PATH is a document or folder in the workspace's docs/ folder. A PATH elsewhere on this machine is first copied
    into that folder under its own name. Without PATH, all documents of the workspace are indexed.
    """
    settings = invocation.settings()
    # What is brought in is for everybody; without PATHs it is what the terminal chat is answered from.
    name = workspace or (settings.default_workspace if paths else workspace_of(settings, None))
    run(_index(settings, paths, name, fresh=fresh, watch=watch, as_json=as_json))


async def _index(
    settings: Settings,
    paths: Sequence[str],
    name: str,
    *,
    fresh: bool,
    watch: bool,
    as_json: bool,
) -> None:
    docs = settings.data_dir / "workspaces" / name / "docs"
    wanted = await asyncio.to_thread(sort_out, paths, docs)
    with status_line("opening the stores …") as status:
        async with connect(settings, WATCH if watch else frozenset()) as client:
            await _upload(client, name, wanted.outside, status)
            inside = [*wanted.inside, *(document.path for document in wanted.outside)]
            done = await index(client, name, status, paths=inside if paths else None, fresh=fresh)
            _tell(name, done, as_json)
            if watch:
                await _watch(client, name, as_json)


def _tell(workspace: str, done: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(done)
        return
    line(
        f"{workspace}: {count(done['documents'], 'document')} indexed ({count(done['chunks'], 'chunk')}, "
        f"{done['chunks_embedded']} embedded), {done['unchanged']} unchanged, {done['deleted']} deleted"
    )
    for skipped in done.get("skipped") or ():
        note(f"skipped {skipped}" if isinstance(skipped, str) else f"skipped {skipped['path']}: {skipped['why']}")


async def _watch(client: Client, workspace: str, as_json: bool) -> None:
    if not as_json:
        note("watching the files; Ctrl-C stops")
    async for name, event in client.events("GET", "/v1/events", limit=0, workspace=workspace, follow=True):
        if name not in ("index.updated", "index.skipped"):
            continue
        if as_json:
            print_json(event)
        elif name == "index.skipped":
            note(f"skipped {event.get('path')}: {event.get('why')}")
        else:
            line(
                f"{workspace}: {count(event.get('documents', 0), 'document')} indexed, {event.get('deleted', 0)} "
                f"deleted, found after {milliseconds(event.get('lag_ms'))}"
            )


async def _upload(client: Client, workspace: str, documents: Iterable[Outside], status: StatusLine) -> None:
    for document in documents:
        status.show(f"copying {document.path}")
        text = await asyncio.to_thread(document.file.read_bytes)
        await client.put_text(f"/v1/workspaces/{workspace}/documents/{_quoted(document.path)}", text)


def _quoted(path: str) -> str:
    from urllib.parse import quote

    return quote(path)


@dataclass(frozen=True)
class Outside:
    """A file that is no part of the workspace yet, and the path that it gets there."""

    file: Path
    path: str


@dataclass(frozen=True)
class Wanted:
    """What the PATHs of a command line mean: paths under ``docs/``, and files to be copied there."""

    inside: tuple[str, ...]
    outside: tuple[Outside, ...]


def sort_out(paths: Sequence[str], docs: Path) -> Wanted:
    """What *paths* mean, with *docs* the workspace's folder. Raises `NothingToIndex`."""
    inside: list[str] = []
    outside: list[Outside] = []
    root = docs.resolve()
    for path in paths:
        found = Path(path).expanduser().resolve()
        under = (root / path.removeprefix("docs/")).resolve()
        if found.exists() and not found.is_relative_to(root):
            outside += _documents(found)
        elif found.is_relative_to(root):
            inside.append(found.relative_to(root).as_posix())
        elif under.is_relative_to(root) and under.exists():
            inside.append(under.relative_to(root).as_posix())
        else:
            raise NothingToIndex(f"{path}: no such file or folder here or in {docs}")
    return Wanted(tuple(inside), tuple(outside))


def _documents(found: Path) -> list[Outside]:
    if found.is_file():
        if not is_document_path(found.name):
            raise NothingToIndex(f"{found} is not a Markdown file (.md)")
        return [Outside(found, found.name)]
    files = [
        Outside(file, path)
        for file in sorted(found.rglob("*"))
        if file.is_file()
        and not file.is_symlink()
        and is_document_path(path := f"{found.name}/{file.relative_to(found).as_posix()}")
    ]
    if not files:
        raise NothingToIndex(f"{found} contains no Markdown files (.md)")
    return files
