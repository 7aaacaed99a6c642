"""Whether material is given whole or searched. Pure.

Whole (cache-augmented generation) as long as its tokens stay below ``CODEX_WINDOW_RATIO`` of the model's window, its
characters within ``PROMPT_MAX_CHARACTERS``, both leave room for everything else, and a model on this machine has the
memory for it; else it is searched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from grounding.codex.material import Size
from grounding.window import WINDOW_SAFETY

Mode = Literal["whole", "search"]
Why = Literal["below_line", "over_line", "over_budget", "over_window", "over_memory", "near_line"]

RETURN = 0.9
"""What was searched is given whole again only when it is below this part of each limit, so that it does not flip."""


@dataclass(frozen=True, slots=True)
class Room:
    """What there is room for. ``window`` and ``output`` are the model's own tokens; ``beside`` are those, as we count
    them, of what stands there whatever is asked, with what a message needs at least; ``characters`` is what a prompt
    may have beside that. ``memory`` is for how many tokens of the model there is memory, None where that is not known.
    """

    window: int
    output: int
    beside: int
    characters: int
    memory: int | None = None
    is_crowded: bool = False
    """Whether what is never cut was found to have no room beside material."""

    @property
    def left(self) -> int:
        """What the window has left for material, in the model's own tokens."""
        return self._left(self.window)

    @property
    def left_in_memory(self) -> int:
        """What the memory has left for it, which may be more than the window has."""
        return self.left if self.memory is None else self._left(self.memory)

    def _left(self, tokens: int) -> int:
        return max(0, tokens - self.output - int(self.beside * WINDOW_SAFETY))


@dataclass(frozen=True, slots=True)
class Chosen:
    """``limit`` is the line in tokens below which material may be given whole."""

    mode: Mode
    why: Why
    limit: int


def choose(size: Size, room: Room, ratio: float, before: Mode | None) -> Chosen:
    """How material of *size* is given to a model. It stays below *ratio* of the window; *before* is what was chosen
    last for such a window."""
    line = int(ratio * room.window)
    over = _over(size, room, line, 1.0)
    if over is not None:
        return Chosen("search", over, line)
    if before == "search" and _over(size, room, line, RETURN):
        return Chosen("search", "near_line", line)
    return Chosen("whole", "below_line", line)


def _over(size: Size, room: Room, line: int, part: float) -> Why | None:
    """Which limit *size* reaches, of each of which it may have *part*."""
    if size.tokens >= line * part:
        return "over_line"
    if size.characters > room.characters * part:
        return "over_budget"
    if room.is_crowded or size.weight > room.left * part:
        return "over_window"
    return "over_memory" if size.weight > room.left_in_memory * part else None
