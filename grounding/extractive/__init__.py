"""Answers made of quotations from the prompt, for a bot without a language model."""

from grounding.extractive.quotable import text_of

__all__ = [
    "text_of",
]
