"""How much of a model's window a prompt may have."""

from __future__ import annotations

from grounding.budgets import Budgets

WINDOW_SAFETY = 1.8
"""Tokens of a model's own vocabulary per token that we count, for the guard of the model's window. Measured
with the 49,000-word vocabulary of SmolLM2: English 1.11 to 1.15, Python 1.12, German 1.37, Japanese 1.64,
Russian 1.75."""

MIN_USER_TOKENS = 64
"""Below this no useful question fits, and the turn is refused instead."""


def window_room(budgets: Budgets) -> int:
    """Tokens, as we count them, that the window has for messages."""
    return int((budgets.window_tokens - budgets.output_tokens) / WINDOW_SAFETY) - budgets.tools_tokens
