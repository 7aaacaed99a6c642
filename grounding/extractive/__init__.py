"""Answers made of quotations from the prompt, for a bot without a language model: `reply`."""

from grounding.extractive.answer import quotation, reply
from grounding.extractive.quotable import text_of

__all__ = ["quotation", "reply", "text_of"]
