"""What a prompt takes of a model's window in the model's own tokens, where those may be far more than ours. Pure.

All else reckons with `grounding.window.WINDOW_SAFETY` for each of our tokens, which is enough for prose and code.
It is not for tables of numbers, Korean, or a message of nothing but line ends: what is put together is weighed
(`grounding.vocabularies`), and where it is too much, put together once more for a smaller window.
"""

from __future__ import annotations

import math

from grounding.blocks import Prompt
from grounding.budgets import Budgets
from grounding.tokens import Tokens, utf8_length
from grounding.window import WINDOW_SAFETY, ContextTooLarge, taken, window_room

TEMPLATE_TOKENS = 32
"""Of what a chat template puts around two messages and in front of the reply: SmolLM2's takes 15."""
MOST_ATTEMPTS = 12
_TIGHTER = 0.98
"""So much less than what seems to be needed is aimed at: cuts are made at natural edges, and loads are not even."""


def load(text: str, tokens: Tokens) -> int:
    """What *text* takes of `grounding.window.window_room`: our tokens, or more where a model's own are far more."""
    return max(tokens.count(text), math.ceil(tokens.weigh(text) / WINDOW_SAFETY)) if text else 0


class Loads:
    """Counts as *tokens* does, or in loads where these are more than *part* of them: so a text can be cut to some
    tokens and to another number of loads at once."""

    def __init__(self, tokens: Tokens, part: float = 1.0) -> None:
        self._tokens = tokens
        self._part = part

    def count(self, text: str) -> int:
        return max(self._tokens.count(text), math.ceil(load(text, self._tokens) * self._part))

    def fits(self, text: str, limit: int) -> bool:
        return self._tokens.fits(text, limit) and self.count(text) <= limit

    def weigh(self, text: str) -> int:
        return self._tokens.weigh(text)


def own_room(budgets: Budgets, prompt: Prompt) -> int:
    """Tokens of the model's own that the window has for *prompt* beside material, tools and the reply."""
    room = budgets.window_tokens - budgets.output_tokens - math.ceil(budgets.tools_tokens * WINDOW_SAFETY)
    return room - math.ceil(_of_material(prompt) * WINDOW_SAFETY) - TEMPLATE_TOKENS


def weight(prompt: Prompt, tokens: Tokens) -> int:
    """Tokens of the model's own that *prompt* takes at most, beside material, which was weighed when it was put."""
    system = (block.text for block in prompt.blocks if block.place.message == "system" and not block.weighs)
    return sum(tokens.weigh(text) for text in (*system, prompt.user) if text)


def is_small(prompt: Prompt, room: int) -> bool:
    """Whether *prompt* needs not be weighed: a token has at least one byte."""
    system = (block.text for block in prompt.blocks if block.place.message == "system" and not block.weighs)
    return sum(utf8_length(text) for text in (*system, prompt.user)) + len(prompt.blocks) <= room


def narrowed(budgets: Budgets, prompt: Prompt, part: float) -> Budgets:
    """*budgets* with a window in which all but material has *part* of its room."""
    material = _of_material(prompt)
    left = max(0, int((window_room(budgets) - material) * part * _TIGHTER))
    needed = math.ceil((material + left + budgets.tools_tokens) * WINDOW_SAFETY) + budgets.output_tokens
    return budgets.model_copy(update={"window_tokens": min(needed, budgets.window_tokens)})


def too_large(budgets: Budgets, prompt: Prompt, tokens: Tokens) -> ContextTooLarge:
    """What is said of a *prompt* that does not fit however it is cut, in the model's own tokens."""
    blocks = [block for block in prompt.blocks if block.used and not block.weighs]
    largest = max(blocks, key=lambda block: tokens.weigh(block.text))
    room, needed = own_room(budgets, prompt), weight(prompt, tokens)
    size = tokens.weigh(largest.text)
    return ContextTooLarge(largest.name, size, budgets.window_tokens, needed=needed, room=max(room, 0))


def _of_material(prompt: Prompt) -> int:
    return taken(block for block in prompt.blocks if block.weighs)
