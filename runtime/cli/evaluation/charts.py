"""Line charts as inline SVG, and plain HTML tables. Pure; every text is escaped here.

Colours are CSS variables of the page (``--line-0`` …), so that light and dark are its affair. Lines differ by dashes as
well as by colour, and each chart stands beside a table with its figures: nobody needs to see colours, or the picture.
"""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 420, 270
LEFT, RIGHT, TOP, BOTTOM = 52, 22, 12, 48
"""Room for the axes, in the units of the picture."""
MOST_WORDS = 8
"""Of the steps of a logarithmic axis."""
DASHES = ("", "7 3", "2 3", "10 3 2 3", "5 5", "1 4")
"""One for each line, after which they repeat; the order of the page's colours."""


def text(value: object) -> str:
    """*value* as HTML text. Titles and questions are strangers' words, also where they turn the writing round."""
    shown = "".join(one if one.isprintable() or one in "\n\t" else "�" for one in str(value))
    return html.escape(shown, quote=True)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart: its name, its points from left to right, and which colour and dashes it has."""

    name: str
    points: Sequence[tuple[float, float]]
    style: int


@dataclass(frozen=True, slots=True)
class Axis:
    """From *low* to *high*, with a mark and its words at each of *marks*. A logarithmic one begins above 0."""

    title: str
    low: float
    high: float
    marks: Sequence[tuple[float, str]]
    logarithmic: bool = False

    def share(self, value: float) -> float:
        """Where *value* lies between the ends, from 0 to 1; values beyond them lie at the end."""
        scale: Callable[[float], float] = math.log if self.logarithmic else float
        within = min(max(value, self.low), self.high)
        span = scale(self.high) - scale(self.low)
        return (scale(within) - scale(self.low)) / span if span else 0.0


def shares_axis(title: str, highest: float) -> Axis:
    """An axis of shares from 0 to the first tenth above *highest*."""
    top = min(max(math.ceil(highest * 10), 2), 10)
    step = 1 if top <= 5 else 2
    return Axis(title, 0.0, top / 10, [(at / 10, f"{at / 10:.1f}") for at in range(0, top + 1, step)])


def even_axis(title: str, high: int, step: int) -> Axis:
    """An axis from 0 to *high* with a mark every *step*."""
    return Axis(title, 0, high, [(at, f"{at:,}") for at in range(0, high + 1, step)])


def logarithmic_axis(title: str, low: float, high: float) -> Axis:
    """An axis over whole steps of 1, 2, 5, 10 … that holds *low* and *high*, both above 0. Of many steps only powers of
    ten have words, or these would run into each other."""
    steps = [base * 10.0**power for power in range(-3, 7) for base in (1, 2, 5)]
    first = max((step for step in steps if step <= low), default=steps[0])
    last = min((step for step in steps if step >= high and step > first), default=steps[-1])
    marks = [step for step in steps if first <= step <= last]
    told = marks if len(marks) <= MOST_WORDS else [mark for mark in marks if f"{mark:g}".strip("0.") == "1"]
    return Axis(title, first, last, [(mark, f"{mark:g}" if mark in told else "") for mark in marks], logarithmic=True)


def line_chart(name: str, title: str, description: str, across: Axis, up: Axis, lines: Sequence[Line]) -> str:
    """The chart called *name* (its ids begin with that), with a legend below."""
    drawn = "".join(_polyline(line, across, up) for line in lines)
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="{name}-title {name}-desc">'
        f'<title id="{name}-title">{text(title)}</title><desc id="{name}-desc">{text(description)}</desc>'
        f"{_grid(across, up)}{drawn}</svg>{legend(lines)}"
    )


def legend(lines: Sequence[Line]) -> str:
    """The names of *lines*, each beside a piece of it."""
    entries = "".join(
        f'<li><svg viewBox="0 0 30 8" aria-hidden="true"><line x1="0" y1="4" x2="30" y2="4" {_stroke(line)}/></svg>'
        f"{text(line.name)}</li>"
        for line in lines
    )
    return f'<ul class="legend">{entries}</ul>'


def _x(axis: Axis, value: float) -> float:
    return LEFT + axis.share(value) * (WIDTH - LEFT - RIGHT)


def _y(axis: Axis, value: float) -> float:
    return HEIGHT - BOTTOM - axis.share(value) * (HEIGHT - TOP - BOTTOM)


def _stroke(line: Line) -> str:
    dashes = DASHES[line.style % len(DASHES)]
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'class="line line-{line.style % len(DASHES)}"{dashed}'


def _polyline(line: Line, across: Axis, up: Axis) -> str:
    points = " ".join(f"{_x(across, x):.1f},{_y(up, y):.1f}" for x, y in line.points)
    return f'<polyline points="{points}" {_stroke(line)}/>'


def _grid(across: Axis, up: Axis) -> str:
    bottom = HEIGHT - BOTTOM
    parts = []
    for value, words in up.marks:
        y = _y(up, value)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text(words)}</text>')
    for value, words in across.marks:
        x = _x(across, value)
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{text(words)}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle:.0f}" y="{HEIGHT - 6}" text-anchor="middle">{text(across.title)}</text>')
    beside = f'x="12" y="{(TOP + bottom) / 2:.0f}"'
    turned = f'transform="rotate(-90 12 {(TOP + bottom) / 2:.0f})"'
    parts.append(f'<text {beside} text-anchor="middle" {turned}>{text(up.title)}</text>')
    return "".join(parts)


def table(caption: str, headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table whose first column names its rows; *caption* says what it holds."""
    head = "".join(f'<th scope="col">{text(one)}</th>' for one in headers)
    body = "".join(
        f'<tr><th scope="row">{text(row[0])}</th>{"".join(f"<td>{text(cell)}</td>" for cell in row[1:])}</tr>'
        for row in rows
    )
    return (
        f'<div class="wide" role="region" tabindex="0" aria-label="{text(caption)}"><table><caption>{text(caption)}'
        f"</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def steps(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """*points* as a staircase: each value holds until the next point."""
    if not points:
        return []
    stairs = [points[0]]
    for (_, before), (x, y) in itertools.pairwise(points):
        stairs += [(x, before), (x, y)]
    return stairs
