"""What commands print on standard output: JSON for programs, or tables and lines for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from connectors.console import neutralise
from runtime.cli.invocation import Invocation, as_typed


def emit(invocation: Invocation, answer: Any, show: Callable[[Any], None] | str) -> None:
    """Print *answer*: with --json as JSON (a list as one object a line), else *show* prints it for people."""
    if invocation.as_json:
        for value in answer if isinstance(answer, list) else [answer]:
            print_json(value)
    elif isinstance(show, str):
        line(show)
    else:
        show(answer)


def print_json(value: Any) -> None:
    """Print *value* on one line, or indented on a terminal."""
    click.echo(json_text(value, indent=2 if sys.stdout.isatty() else None))


def json_text(value: Any, indent: int | None = None) -> str:
    """Return *value* as JSON. Only characters that a terminal obeys or that have no encoding are escaped. Pure."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return "".join(
        character if neutralise(character) == character else f"\\u{ord(character):04x}" for character in text
    )


def line(text: str = "", **style: Any) -> None:
    """Print *text* without anything that a terminal obeys; *style* is click's, for terminals only."""
    clean = neutralise(as_typed(text))
    click.echo(click.style(clean, **style) if style else clean)


def note(text: str) -> None:
    """Print *text* on standard error."""
    click.echo(neutralise(as_typed(text)), err=True)


def show_diff(diff: str) -> None:
    """Print a unified diff."""
    for text in diff.splitlines():
        colour = {"+": "green", "-": "red", "@": "cyan"}.get(text[:1])
        line(text, **({"fg": colour} if colour else {}))


def table(headers: Sequence[str], rows: Sequence[Sequence[Any]], *, right: Sequence[str] = (), empty: str = "") -> None:
    """Print *rows*; the columns named in *right* are aligned to the right. Without rows, print *empty* if it is set.

    On a terminal, cells are folded to its width. Elsewhere nothing is cut, so that programs can search the output.
    """
    if empty and not rows:
        line(empty)
        return
    cells = [[neutralise(str(cell)) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _print_rich_table(headers, cells, right)
    else:
        for text in plain_table(headers, cells, right):
            click.echo(text)


def plain_table(headers: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> list[str]:
    """Return the lines of a table in plain text. Pure."""
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


def _print_rich_table(headers: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for header in headers:
        grid.add_column(header, justify="right" if header in right else "left", overflow="fold")
    for row in rows:
        grid.add_row(*(Text(cell) for cell in row))
    Console().print(grid)


def count(number: int, noun: str) -> str:
    """Return *number* with its noun: ``1 document``, ``2 documents``. Pure."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def milliseconds(value: float | None) -> str:
    """Return a duration for people. Pure."""
    if value is None:
        return "–"
    return f"{value / 1000:.1f} s" if value >= 1000 else f"{value:.0f} ms"


def dollars(value: float) -> str:
    """Return a cost for people: amounts below one dollar have up to six places. Pure."""
    return f"${value:.2f}" if value >= 1 or value == 0 else f"${value:.6f}".rstrip("0")
