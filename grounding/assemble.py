"""Builds the prompt from a RunContext: budgets, clipping, order. Pure: same input, same bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from grounding import constitutive, evidence
from grounding.blocks import PLACES, SEPARATOR, Block, Layout, Prompt, Volatility
from grounding.budgets import Budgets
from grounding.draft import NO_CEILING_BYTES, Draft
from grounding.layers import query
from grounding.run_context import RunContext
from grounding.tokens import Remembered, Tokens, utf8_length
from grounding.window import (
    JOINT_TOKENS,
    ContextTooLarge,
    front_bytes,
    front_room,
    require_room,
    taken,
    uncounted,
    window_room,
)

__all__ = ["ContextTooLarge", "prompt", "rounds_room"]

YIELDS = ("retrieved", "records", "karma", "summary", "tail", "hint", "now", "frame", "query")
"""Who gives up room first when the whole is too large; the user's own words come last."""


@dataclass(frozen=True, slots=True)
class _Ceilings:
    """What several blocks may have together."""

    tokens: int
    bytes: int = NO_CEILING_BYTES
    characters: int = NO_CEILING_BYTES

    def over(self, text: str, tokens: Tokens) -> tuple[int, int]:
        """Tokens and bytes that *text* has too many; 0 and 0 where it fits."""
        # A character has at least one byte: so many bytes fewer are at least as many characters fewer, or the next
        # round sees to it.
        size = utf8_length(text)
        surplus = max(size - self.bytes, len(text) - self.characters, 0)
        if size <= self.tokens:  # a token has at least one byte
            return 0, surplus
        return max(tokens.count(text) - self.tokens, 0), surplus


def prompt(context: RunContext, tokens: Tokens) -> Prompt:
    """The prompt of *context*: one system and one user message.

    Each block is cut to its own budget, then blocks give up room in the order of `YIELDS`: until message, summary,
    tail, passages and hint keep their common ceilings in tokens and bytes, and then until all keep what a prompt may
    have in tokens and characters. To these neither the message gives way nor what is kept word for word: where they do
    not fit, `ContextTooLarge` is raised.
    """
    tokens = Remembered(tokens)
    budgets = context.budgets
    drafts = evidence.drafts(context, tokens)
    kept = sum(tokens.count(draft.least) + JOINT_TOKENS for draft in drafts.values() if draft.least)
    system = constitutive.blocks(context, tokens, kept)
    order = _order(context.layout, drafts)
    _require_floor(context, system, drafts, order, tokens)
    free = {name for name in drafts if name in evidence.FREE or drafts[name].placed}
    bounded = [name for name in order if name not in free]  # the blocks that keep the common ceilings
    texts: dict[str, str] = {}
    for name, draft in drafts.items():
        most_bytes = budgets.prompt_bytes if name in bounded else NO_CEILING_BYTES
        texts[name] = draft.section.fit(tokens, draft.budget, most_bytes)
    _reserve(texts, drafts, order, bounded, tokens, budgets, taken(system))

    told = SEPARATOR.join(block.text for block in system if block.used)
    ceiling = min(budgets.context_tokens, window_room(budgets) - taken(system))
    four = _Ceilings(min(ceiling, budgets.prompt_tokens), budgets.prompt_bytes)
    _shrink(texts, drafts, bounded, tokens, four)
    characters = budgets.prompt_characters - len(told) + uncounted(budgets, system)
    whole = _shrink(texts, drafts, order, tokens, _Ceilings(ceiling, characters=characters))
    blocks = [*system, *(drafts[name].block(name, texts[name], tokens) for name in order)]
    return Prompt(tuple(blocks), context.layout, told, whole, tokens.count(whole))


def rounds_room(context: RunContext, prompt: Prompt) -> int:
    """Tokens that the window has for what the model and its tools say after *prompt*, before the reply."""
    system = [block for block in prompt.blocks if block.place.message == "system"]
    return max(0, window_room(context.budgets) - taken(system) - prompt.tokens_total)


def _reserve(
    texts: dict[str, str],
    drafts: dict[str, Draft],
    order: Sequence[str],
    bounded: Sequence[str],
    tokens: Tokens,
    budgets: Budgets,
    of_system: int,
) -> None:
    """Cuts what stands in front of all that comes with the turn, in place, so that a message has room behind it
    (`grounding.window.front_room`), and the message to the bytes that are left."""
    front = list(takewhile(lambda name: not _changes(drafts, name), order))
    if not front:
        return
    of_four = [name for name in front if name in bounded]
    most, of_tail = front_room(budgets, of_system)
    most_bytes, bytes_of_tail = front_bytes(budgets)
    both, tail = _Ceilings(most, most_bytes), _Ceilings(of_tail, bytes_of_tail)
    _steady(texts, drafts, of_four, tokens, both, tail)
    shown = utf8_length(_shrink(texts, drafts, of_four, tokens, both)) + utf8_length(SEPARATOR)
    ceiling = min(budgets.context_tokens, window_room(budgets) - of_system)
    message = min(budgets.query_tokens + JOINT_TOKENS, ceiling // 2)
    _shrink(texts, drafts, front, tokens, _Ceilings(ceiling - message))
    texts["query"] = drafts["query"].section.fit(tokens, drafts["query"].budget, budgets.prompt_bytes - shown)


def _steady(
    texts: dict[str, str],
    drafts: dict[str, Draft],
    front: Sequence[str],
    tokens: Tokens,
    both: _Ceilings,
    tail: _Ceilings,
) -> None:
    """Cuts the block of *front* that grows to its ceilings *tail*, and what stands before it to what is left of *both*
    beside these, in place. Else each turn would cut the former a little more, and all of it would be read again."""
    if "tail" in texts:
        texts["tail"] = drafts["tail"].section.fit(tokens, max(tail.tokens, 0), max(tail.bytes, 0))
    before = list(takewhile(lambda name: PLACES[name].volatility is not Volatility.APPENDED, front))
    beside = _Ceilings(both.tokens - tail.tokens - JOINT_TOKENS, both.bytes - tail.bytes - JOINT_TOKENS)
    _shrink(texts, drafts, before, tokens, beside)


def _changes(drafts: Mapping[str, Draft], name: str) -> bool:
    """Whether the block of that *name* is another with every turn."""
    return (drafts[name].placed or PLACES[name]).volatility is Volatility.TURN


def _order(layout: Layout, drafts: Mapping[str, Draft]) -> list[str]:
    present = [draft.placed or PLACES[name] for name, draft in drafts.items()]
    rank: Callable[..., int] = (
        (lambda place: place.user_first) if layout == "user_first" else (lambda place: place.prefix_stable)
    )
    return [place.name for place in sorted(present, key=rank)]


def _require_floor(
    context: RunContext, system: Sequence[Block], drafts: Mapping[str, Draft], order: Sequence[str], tokens: Tokens
) -> None:
    """Raises `ContextTooLarge` where the message (cut to its own ceilings, and without the text of its files) and what
    is kept word for word have no room beside the *system* message."""
    texts = _floor(context, drafts, order, tokens)
    floor = [drafts[name].block(name, texts[name], tokens) for name in order if texts[name]]
    require_room(context.budgets, system, floor, tokens.count(_join(texts, order)))


def _floor(context: RunContext, drafts: Mapping[str, Draft], order: Sequence[str], tokens: Tokens) -> dict[str, str]:
    """What of the user message yields to no window, by block: the message without the text of its files, and what is
    kept word for word."""
    budgets = context.budgets
    own = min(budgets.query_tokens, budgets.prompt_tokens, budgets.context_tokens)
    words = query.section(query.words(context.query), tokens, budgets.query_tokens)
    return {name: drafts[name].least for name in order} | {"query": words.fit(tokens, own, budgets.prompt_bytes)}


def _join(texts: dict[str, str], order: Sequence[str]) -> str:
    return SEPARATOR.join(texts[name] for name in order if texts[name])


def _yielding(order: Sequence[str], drafts: Mapping[str, Draft]) -> list[str]:
    """The blocks of *order*, who gives up room first: what formatters made, then in the order of `YIELDS`. What stands
    in front of all that comes with a turn does so behind that, for its bytes are not to move with it."""
    front = list(takewhile(lambda name: not _changes(drafts, name), order))
    worth = [*(name for name in order if drafts[name].placed), *(name for name in YIELDS if name in order)]
    return sorted(worth, key=lambda name: (name == "query", name in front))


def _shrink(
    texts: dict[str, str], drafts: dict[str, Draft], order: Sequence[str], tokens: Tokens, ceilings: _Ceilings
) -> str:
    """Cuts *texts* in place until their joined text keeps the *ceilings*; returns that text. What formatters made gives
    up room first."""
    whole = _join(texts, order)
    over_tokens, over_bytes = ceilings.over(whole, tokens)
    if not over_tokens and not over_bytes:
        return whole  # mostly, and then nothing else has to be known
    for name in _yielding(order, drafts):
        allowed_tokens, allowed_bytes = tokens.count(texts[name]), utf8_length(texts[name])
        while texts[name] != drafts[name].least:
            allowed_tokens -= over_tokens
            allowed_bytes -= over_bytes
            texts[name] = drafts[name].section.fit(tokens, max(allowed_tokens, 0), max(allowed_bytes, 0))
            whole = _join(texts, order)
            over_tokens, over_bytes = ceilings.over(whole, tokens)
            if not over_tokens and not over_bytes:
                return whole
    return whole
