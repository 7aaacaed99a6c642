"""Prints figures: medians with their spread over repeats, the machine they come from, and who else used it."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ADDITIONS = 100_000


def spread(values: Sequence[float]) -> str:
    """The median of several repeats, with the lowest and highest."""
    return f"{statistics.median(values):8.2f}  [{min(values):.2f} … {max(values):.2f}]"


def share(values: Sequence[float], part: float) -> float:
    """The value below which *part* of them lie, e.g. 0.95."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def row(name: str, values: Sequence[float], unit: str = "") -> None:
    print(f"  {name:<46}{spread(values)} {unit}", flush=True)


def title(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}", flush=True)


@contextmanager
def on_this_machine() -> Iterator[None]:
    """Print before the block what kind of machine this is, and behind it how much other programs computed meanwhile.
    Times by the clock mean little where that is much; processor time still does."""
    started, total = time.thread_time(), 0
    for number in range(ADDITIONS):
        total += number
    took = (time.thread_time() - started) * 1000
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    print(f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, load {load}")
    print(f"{ADDITIONS:,} additions in Python: {took:.2f} ms of processor time", flush=True)
    began = _computed()
    yield
    print(f"\nOther programs had {others_share(began, _computed()):.0%} of the cores meanwhile.")


def others_share(began: tuple[float, float, float], ended: tuple[float, float, float]) -> float:
    """Which part of all cores other programs had; of `_computed` before and after."""
    whole, busy, ours = (b - a for a, b in zip(began, ended, strict=True))
    return max(0.0, busy - ours) / whole if whole else 0.0


def _computed() -> tuple[float, float, float]:
    """Seconds of all cores so far: altogether, at work, and at work for this process and those it has waited for."""
    fields = [int(one) for one in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    ticks = os.sysconf("SC_CLK_TCK")
    whole, idle = sum(fields) / ticks, (fields[3] + fields[4]) / ticks
    return whole, whole - idle, sum(os.times()[:4])
