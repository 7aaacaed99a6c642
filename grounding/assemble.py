"""Builds the prompt from a RunContext: budgets, clipping, order. Pure: same input, same bytes."""

from __future__ import annotations

from collections.abc import Callable

from connectors.message import AgentRuntimeError
from grounding import constitutive, evidence
from grounding.blocks import PLACES, SEPARATOR, Block, Layout, Prompt
from grounding.draft import NO_CEILING_BYTES, Draft
from grounding.run_context import RunContext
from grounding.tokens import Remembered, Tokens, utf8_length
from grounding.window import MIN_USER_TOKENS, window_room

YIELDS = ("retrieved", "records", "karma", "summary", "tail", "hint", "now", "frame", "query")
"""Who gives up room first when the whole is too large; the user's own words come last."""


class ContextTooLarge(AgentRuntimeError):
    """The fixed part of a prompt leaves no room for the message. Nothing was sent."""

    def __init__(self, block: str, tokens: int, window: int) -> None:
        super().__init__(
            f"block {block!r} takes {tokens} tokens of a window of {window}: shorten it, or use a model with more room"
        )
        self.block, self.tokens, self.window = block, tokens, window
        self.user_text = (
            f"My instructions are too long for the model ({block}: {tokens} of {window} tokens). "
            "An admin has to shorten them."
        )


def prompt(context: RunContext, tokens: Tokens) -> Prompt:
    """The prompt of *context*: one system and one user message.

    Each block is cut to its own budget, then blocks give up room in the order of `YIELDS`: until message, summary,
    tail, passages and hint keep their common ceilings in tokens and bytes, and then until all keep what a prompt may
    have. Raises `ContextTooLarge`.
    """
    tokens = Remembered(tokens)
    budgets = context.budgets
    system = constitutive.blocks(context, tokens)
    ceiling = _user_ceiling(context, system)
    drafts = evidence.drafts(context, tokens)
    texts = {
        name: draft.section.fit(
            tokens, draft.budget, NO_CEILING_BYTES if name in evidence.FREE else budgets.prompt_bytes
        )
        for name, draft in drafts.items()
    }
    order = _order(context.layout)
    bounded = [name for name in order if name not in evidence.FREE]
    _shrink(texts, drafts, bounded, tokens, min(ceiling, budgets.prompt_tokens), budgets.prompt_bytes)
    whole = _shrink(texts, drafts, order, tokens, ceiling, NO_CEILING_BYTES)
    blocks = [*system, *(drafts[name].block(name, texts[name], tokens) for name in order)]
    told = SEPARATOR.join(block.text for block in system if block.used)
    return Prompt(tuple(blocks), context.layout, told, whole, tokens.count(whole))


def rounds_room(context: RunContext, prompt: Prompt) -> int:
    """Tokens that the window has for what the model and its tools say after *prompt*, before the reply."""
    system = sum(block.tokens for block in prompt.blocks if PLACES[block.name].message == "system")
    return max(0, window_room(context.budgets) - system - prompt.tokens_total)


def _order(layout: Layout) -> list[str]:
    present = [PLACES[name] for name in evidence.NAMES]
    rank: Callable[..., int] = (
        (lambda place: place.user_first) if layout == "user_first" else (lambda place: place.prefix_stable)
    )
    return [place.name for place in sorted(present, key=rank)]


def _user_ceiling(context: RunContext, system: list[Block]) -> int:
    """Tokens that the user message may have beside the blocks of the *system* message. Raises `ContextTooLarge`."""
    budgets = context.budgets
    room = window_room(budgets) - sum(block.tokens for block in system)
    if room < MIN_USER_TOKENS:
        largest = max(system, key=lambda block: block.tokens)
        raise ContextTooLarge(largest.name, largest.tokens, budgets.window_tokens)
    return min(budgets.context_tokens, room)


def _join(texts: dict[str, str], order: list[str]) -> str:
    return SEPARATOR.join(texts[name] for name in order if texts[name])


def _shrink(
    texts: dict[str, str], drafts: dict[str, Draft], order: list[str], tokens: Tokens, max_tokens: int, max_bytes: int
) -> str:
    """Cuts *texts* in place until their joined text keeps both ceilings; returns that text."""
    whole = _join(texts, order)
    if tokens.count(whole) <= max_tokens and utf8_length(whole) <= max_bytes:
        return whole
    for name in YIELDS:
        if name not in order:
            continue
        allowed_tokens, allowed_bytes = tokens.count(texts[name]), utf8_length(texts[name])
        while texts[name]:
            over_tokens = tokens.count(whole) - max_tokens
            over_bytes = utf8_length(whole) - max_bytes
            if over_tokens <= 0 and over_bytes <= 0:
                return whole
            allowed_tokens -= max(over_tokens, 0)
            allowed_bytes -= max(over_bytes, 0)
            texts[name] = drafts[name].section.fit(tokens, max(allowed_tokens, 0), max(allowed_bytes, 0))
            whole = _join(texts, order)
    return whole
