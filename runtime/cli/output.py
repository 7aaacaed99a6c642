"""What commands print: tables and lines for people, JSON for programs, progress on standard error."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from connectors.console import neutralise
from connectors.message import AgentRuntimeError
from runtime.cli.client import Client, segment
from runtime.cli.invocation import as_typed

_CLEAR_LINE = "\r\x1b[K"
_NARROWEST = 20


def print_json(value: Any) -> None:
    """One object as one line, or indented where a person looks."""
    click.echo(json_text(value, indent=2 if sys.stdout.isatty() else None))


def json_text(value: Any, indent: int | None = None) -> str:
    """*value* as JSON that people can read. What a terminal would obey, or no encoder takes, is escaped. Pure."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return "".join(one if neutralise(one) == one else f"\\u{ord(one):04x}" for one in text)


def line(text: str = "", **style: Any) -> None:
    """Print *text*, without anything that a terminal obeys; *style* is click's, for terminals only."""
    clean = neutralise(as_typed(text))
    click.echo(click.style(clean, **style) if style else clean)


def note(text: str) -> None:
    """Say something beside the output proper."""
    click.echo(neutralise(as_typed(text)), err=True)


def show_diff(diff: str) -> None:
    """Print a unified diff."""
    for each in diff.splitlines():
        colour = {"+": "green", "-": "red", "@": "cyan"}.get(each[:1])
        line(each, **({"fg": colour} if colour else {}))


def table(headers: Sequence[str], rows: Sequence[Sequence[Any]], *, right: Sequence[str] = ()) -> None:
    """Print *rows*; the columns named in *right* are aligned to the right.

    On a terminal cells are folded to its width; elsewhere nothing is cut, so that it can be searched.
    """
    cells = [[neutralise(str(cell)) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _rich_table(headers, cells, right)
        return
    for text in plain_table(headers, cells, right):
        click.echo(text)


def plain_table(headers: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> list[str]:
    """The lines of a table in plain text. Pure."""
    flat = [[" ".join(cell.split()) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headers, *flat, strict=True)]
    lines = []
    for row in (list(headers), *flat):
        padded = [
            cell.rjust(width) if header in right else cell.ljust(width)
            for cell, width, header in zip(row, widths, headers, strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
    return lines


def _rich_table(headers: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for header in headers:
        shown.add_column(header, justify="right" if header in right else "left", overflow="fold")
    for row in rows:
        shown.add_row(*(Text(cell) for cell in row))
    Console().print(shown)


class StatusLine:
    """One line on standard error that says what is going on; nothing where nobody looks."""

    def __init__(self) -> None:
        self._on = sys.stderr.isatty()
        self._shown = False

    def show(self, text: str) -> None:
        if not self._on:
            return
        width = max(shutil.get_terminal_size().columns - 1, _NARROWEST)
        clean = " ".join(neutralise(text).split())
        cut = clean if len(clean) <= width else clean[: width - 1] + "…"
        sys.stderr.write(f"{_CLEAR_LINE}{cut}")
        sys.stderr.flush()
        self._shown = True

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write(_CLEAR_LINE)
            sys.stderr.flush()
            self._shown = False


@contextmanager
def status_line(text: str = "") -> Iterator[StatusLine]:
    """A status line that is gone after the block, whatever happens."""
    status = StatusLine()
    if text:
        status.show(text)
    try:
        yield status
    finally:
        status.clear()


def count(number: int, noun: str) -> str:
    """``1 document``, ``2 documents``. Pure."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def milliseconds(value: float | None) -> str:
    """A duration for people. Pure."""
    if value is None:
        return "–"
    return f"{value / 1000:.1f} s" if value >= 1000 else f"{value:.0f} ms"


def dollars(value: float) -> str:
    """A cost for people: cents need four more places. Pure."""
    return f"${value:.2f}" if value >= 1 or value == 0 else f"${value:.6f}".rstrip("0")


# ---- indexing ----
#
# Indexing with its progress shown, for the commands that need an index in step with the disk.


class IndexingEnded(AgentRuntimeError):
    """The stream of an index run ended before it said that it was done."""

    retryable = True


async def index(
    client: Client, workspace: str, status: StatusLine, *, paths: Sequence[str] | None = None, fresh: bool = False
) -> dict[str, Any]:
    """Bring the index of *workspace* in step with its files; what was done. Raises `ApiError`, `IndexingEnded`."""
    body: dict[str, Any] = {"fresh": fresh}
    if paths is not None:
        body["paths"] = list(paths)
    status.show(f"indexing {workspace} …")
    async for name, data in client.events("POST", f"/v1/workspaces/{segment(workspace)}/index", body):
        if name == "progress":
            status.show(f"indexing {workspace}: {data['done']}/{data['total']}  {data['path']}")
        elif name == "done":
            status.clear()
            return data
    raise IndexingEnded("the index run ended without a result; run `agent-runtime index` again")


async def ensure_indexed(client: Client, workspace: str, status: StatusLine) -> None:
    """Index what is on disk and not yet in the index, so that a first search finds something."""
    state = await client.get(f"/v1/workspaces/{segment(workspace)}/index")
    if state["pending"]:
        await index(client, workspace, status)


async def rebuild(client: Client, path: str, body: dict[str, Any], what: str, status: StatusLine) -> dict[str, Any]:
    """Have the runtime do what *path* does, with its progress shown; what was done. Raises `ApiError`,
    `IndexingEnded`."""
    status.show(f"{what} …")
    async for name, data in client.events("POST", path, body):
        if name == "progress":
            status.show(f"{what} {data['workspace']}: {data['done']}/{data['total']}  {data['path']}")
        elif name == "done":
            status.clear()
            return data
    raise IndexingEnded("the runtime stopped before the index was done; run the command again")
