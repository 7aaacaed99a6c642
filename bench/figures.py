"""Figures as they are printed: medians with their spread over repeats, and against what was to be reached."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """The same figure of several repeats."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(tuple(values))

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def __str__(self) -> str:
        return f"{self.median:8.2f}  [{min(self.values):.2f} … {max(self.values):.2f}]"


@dataclass(frozen=True)
class Verdict:
    """A figure and what it was to be: at most *limit*, or at least where ``at_least``."""

    what: str
    value: float
    limit: float
    unit: str
    at_least: bool = False

    @property
    def factor(self) -> float:
        """By how much it is missed; 1 or less where it is reached."""
        worse, better = (self.limit, self.value) if self.at_least else (self.value, self.limit)
        return worse / better if better else (float("inf") if worse else 1.0)

    def __str__(self) -> str:
        wanted = f"{'≥' if self.at_least else '≤'} {self.limit:g} {self.unit}"
        came = "reached" if self.factor <= 1 else f"MISSED by a factor of {self.factor:.2f}"
        return f"  {self.what:<58}{self.value:>9.2f}  {wanted:<16}{came}"


def share(values: Sequence[float], part: float) -> float:
    """The value below which *part* of them lie, e.g. 0.95."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def row(name: str, spread: Spread, unit: str = "") -> None:
    print(f"  {name:<46}{spread} {unit}")


def title(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}")
