"""When a process that serves looks for garbage: not while it imports, then often and shortly.

Python looks through what was made since the last time, and now and then through everything. Both hold up the event loop
and every import (``python -m bench.loop``).
"""

from __future__ import annotations

import functools
import gc

STARTING_OBJECTS = 1_000_000
"""More than a start makes, with all that it imports: what it imports is no garbage. With 50,000 it looked twenty times,
a twentieth of the processor's time until it was ready and of LiteLLM's import, up to 0.1 s at a time."""
SERVING_OBJECTS = 10_000
"""A turn leaves some hundred that stay, and none in rings (`tests/integration/test_let_go.py`): a look every hundred
turns, which takes a few milliseconds."""


def begin() -> None:
    """The process starts to serve: `settle` follows."""
    gc.set_threshold(STARTING_OBJECTS)


@functools.cache
def settle() -> None:
    """Once a process: what was imported and made until now is no more looked through.

    LiteLLM alone brings so many objects that each full collection held the event loop up for half a second.
    """
    gc.freeze()
    gc.set_threshold(SERVING_OBJECTS)
