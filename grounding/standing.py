"""Where the beginning of a user message may stand unchanged in the next prompt of the same conversation. Pure."""

from __future__ import annotations

import re

from grounding.blocks import SEPARATOR, Prompt, Volatility

_NEW_LINE = re.compile(r"\n(?=\S)")
"""An entry of the tail begins at the left; its further lines are indented."""


def standing_ends(prompt: Prompt) -> tuple[int, ...]:
    """Numbers of characters of the user message, ascending: so much of it the next prompt may begin with, too.

    One after each block in front of the volatile boundary and, within the block that grows at its end, one before each
    entry and before what closes it: the next prompt has further entries there. Each is where it was in the prompt
    before, so that what a provider has kept up to one of them is found again. Empty where what changes with every turn
    comes first.
    """
    ends: list[int] = []
    at = 0
    for block in prompt.blocks:
        place = block.place
        if place.message != "user" or not block.used:
            continue
        if place.volatility is Volatility.TURN:
            break
        if place.volatility is Volatility.APPENDED:
            ends += [at + found.end() for found in _NEW_LINE.finditer(block.text)]
        else:
            ends.append(at + len(block.text) + len(SEPARATOR))
        at += len(block.text) + len(SEPARATOR)
    return tuple(end for end in ends if end < len(prompt.user))
