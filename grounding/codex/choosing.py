"""Decide whether material is given to the model in full or searched. Pure.

It is given in full (cache-augmented generation) if its tokens are below ``CODEX_WINDOW_RATIO`` of the model's window,
its characters fit into ``PROMPT_MAX_CHARACTERS``, both leave room for the rest of the prompt, and a model on this
machine has the memory for it. Otherwise it is searched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from grounding.codex.material import Size
from grounding.window import WINDOW_SAFETY

Mode = Literal["whole", "search"]
Why = Literal["below_line", "over_line", "over_budget", "over_window", "over_memory", "near_line"]

RETURN = 0.9
"""Hysteresis: searched material is given in full again only if it is below this share of each limit."""


@dataclass(frozen=True, slots=True)
class Room:
    """The space for material.

    ``window`` and ``output`` are in the model's own tokens. ``beside`` is the size, in our tokens, of the fixed rest of
    the prompt and of the smallest message. ``characters`` is the limit for a prompt's other characters. ``memory`` is
    the number of the model's tokens that fit into memory, None if unknown.
    """

    window: int
    output: int
    beside: int
    characters: int
    memory: int | None = None
    is_crowded: bool = False
    """Whether the parts of a prompt that are never cut were found to have no room next to material."""

    @property
    def left(self) -> int:
        """The part of the window that is left for material, in the model's own tokens."""
        return self._left(self.window)

    @property
    def left_in_memory(self) -> int:
        """The part of the memory that is left for material. It may be larger than `left`."""
        return self.left if self.memory is None else self._left(self.memory)

    def _left(self, tokens: int) -> int:
        return max(0, tokens - self.output - int(self.beside * WINDOW_SAFETY))


@dataclass(frozen=True, slots=True)
class Chosen:
    """The decision. ``limit`` is the number of tokens below which material may be given in full."""

    mode: Mode
    why: Why
    limit: int


def choose(size: Size, room: Room, ratio: float, before: Mode | None) -> Chosen:
    """Decide how a model gets material of *size*.

    *ratio* is its largest share of the window, *before* the last decision for such a window.
    """
    line = int(ratio * room.window)
    over = _over(size, room, line, 1.0)
    if over is not None:
        return Chosen("search", over, line)
    if before == "search" and _over(size, room, line, RETURN):
        return Chosen("search", "near_line", line)
    return Chosen("whole", "below_line", line)


def _over(size: Size, room: Room, line: int, part: float) -> Why | None:
    """Return the limit that *size* exceeds, if it may use *part* of each limit; None if it exceeds none."""
    if size.tokens >= line * part:
        return "over_line"
    if size.characters > room.characters * part:
        return "over_budget"
    if room.is_crowded or size.weight > room.left * part:
        return "over_window"
    return "over_memory" if size.weight > room.left_in_memory * part else None
