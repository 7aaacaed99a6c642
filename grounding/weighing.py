"""What a prompt takes of a model's window in the model's own tokens, where those may be far more than ours. Pure.

All else reckons with `grounding.window.WINDOW_SAFETY` for each of our tokens, which is enough for prose and code.
It is not for tables of numbers, Korean, or a message of nothing but line ends: what is put together is weighed
(`grounding.vocabularies`), and where it is too much, put together once more for a smaller window.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from grounding.blocks import Block, Prompt
from grounding.budgets import Budgets
from grounding.tokens import Tokens, utf8_length
from grounding.window import FIXED, JOINT_TOKENS, WINDOW_SAFETY, ContextTooLarge, taken, window_room

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


class Weights:
    """Counts tokens of a model's own; what fits has at most *most* of ours besides."""

    def __init__(self, tokens: Tokens, most: int) -> None:
        self._tokens = tokens
        self._most = most

    def count(self, text: str) -> int:
        return self._tokens.weigh(text)

    def fits(self, text: str, limit: int) -> bool:
        return self._tokens.fits(text, self._most) and self.count(text) <= limit

    def weigh(self, text: str) -> int:
        return self.count(text)


def own_room(budgets: Budgets, blocks: Iterable[Block]) -> int:
    """Tokens of the model's own that the window has for a prompt of *blocks* beside material, tools and the reply."""
    room = budgets.window_tokens - budgets.output_tokens - math.ceil(budgets.tools_tokens * WINDOW_SAFETY)
    return room - math.ceil(_of_material(blocks) * WINDOW_SAFETY) - TEMPLATE_TOKENS


def of_system(blocks: Iterable[Block], tokens: Tokens) -> int:
    """Tokens of the model's own that those *blocks* take at most that are of the system message, beside material, which
    was weighed when it was put."""
    return sum(tokens.weigh(block.text) for block in blocks if _is_of_system(block) and block.text)


def weight(prompt: Prompt, tokens: Tokens) -> int:
    """Tokens of the model's own that *prompt* takes at most, beside material."""
    return of_system(prompt.blocks, tokens) + tokens.weigh(prompt.user)


def is_small(budgets: Budgets, prompt: Prompt, room: int) -> bool:
    """Whether *prompt* needs not be weighed, nor what stands before a message in it: a token has at least one byte."""
    system = (block.text for block in prompt.blocks if _is_of_system(block))
    return sum(utf8_length(text) for text in (*system, prompt.user)) + len(prompt.blocks) + _a_message(budgets) <= room


def share(budgets: Budgets, system: Sequence[Block], front: str, kept: str, room: int, tokens: Tokens) -> float:
    """Which part of what no message moves there is *room* for in a model's own tokens, 1 and more where for all: the
    blocks of the *system* message and the *front* of the other, beside what is *kept* word for word and a message.

    As in `grounding.window` the measure is a message that fills its budget, at most half of what there is.
    """
    left = room - tokens.weigh(kept)
    fixed = of_system((block for block in system if block.name in FIXED), tokens)
    of_all, of_front = of_system(system, tokens), tokens.weigh(front)
    if of_all == fixed and not of_front:
        return 1.0  # none of it yields
    before, beside = (left - min(_a_message(budgets), (left - known) // 2) for known in (fixed, of_all))
    return max(0.0, min(before / max(of_all, 1), beside / max(of_all + of_front, 1)))


def narrowed(budgets: Budgets, system: Sequence[Block], part: float) -> Budgets:
    """*budgets* with a window in which all but material has *part* of its room beside the *system* message."""
    material = _of_material(system)
    left = max(0, int((window_room(budgets) - material) * part * _TIGHTER))
    needed = math.ceil((material + left + budgets.tools_tokens) * WINDOW_SAFETY) + budgets.output_tokens
    return budgets.model_copy(update={"window_tokens": min(needed, budgets.window_tokens)})


def too_large(budgets: Budgets, blocks: Sequence[Block], tokens: Tokens) -> ContextTooLarge:
    """What is said where *blocks*, which are all that yields to no message, do not fit, in the model's own tokens. It
    names the largest of those that yield to nothing."""
    sizes = {block.name: tokens.weigh(block.text) for block in blocks if block.text and not block.weighs}
    named = [block.name for block in blocks if block.name in sizes and _yields_to_nothing(block)]
    largest = max(named, key=sizes.__getitem__)
    needed, room = sum(sizes.values()), max(own_room(budgets, blocks), 0)
    return ContextTooLarge(largest, sizes[largest], budgets.window_tokens, needed=needed, room=room)


def _a_message(budgets: Budgets) -> int:
    """What a message that fills its budget is reckoned to take of a model's own tokens."""
    return math.ceil((budgets.query_tokens + JOINT_TOKENS) * WINDOW_SAFETY)


def _yields_to_nothing(block: Block) -> bool:
    return block.name in FIXED or block.place.message == "user"


def _is_of_system(block: Block) -> bool:
    return block.place.message == "system" and not block.weighs


def _of_material(blocks: Iterable[Block]) -> int:
    return taken(block for block in blocks if block.weighs)
