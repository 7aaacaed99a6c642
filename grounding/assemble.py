"""Builds the prompt from a RunContext: budgets, clipping, order. Pure: same input, same bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from grounding import constitutive, evidence, weighing
from grounding.blocks import PLACES, SEPARATOR, Block, Layout, Prompt, Volatility
from grounding.budgets import Budgets
from grounding.draft import NO_CEILING_BYTES, Draft
from grounding.layers import query
from grounding.run_context import RunContext
from grounding.tokens import Remembered, Tokens, utf8_length
from grounding.window import (
    JOINT_TOKENS,
    WINDOW_SAFETY,
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
    not fit, `ContextTooLarge` is raised. So it is where that takes more of the model's window than our tokens tell
    (`grounding.weighing`); else what stands before all that comes with a turn is cut until there is room for a message
    behind it, whatever this one is, and then the rest in the order of `YIELDS`.
    """
    tokens = Remembered(tokens)
    budgets = context.budgets
    begun = _begun(context, budgets, tokens)
    made = _finished(context, begun, tokens)
    room = weighing.own_room(budgets, made.blocks)
    if context.memory is None and weighing.is_small(budgets, made, room):
        return made
    narrow = _narrowed(context, begun, room, tokens)
    made = made if narrow is begun else _finished(context, narrow, tokens)
    weight = weighing.weight(made, tokens)
    if weight > room:
        left = room - weighing.of_system(narrow.system, tokens)
        texts = _floor(context, narrow.drafts, narrow.order, tokens)
        if tokens.weigh(_join(texts, narrow.order)) > left:
            floor = [narrow.drafts[name].block(name, text, tokens) for name, text in texts.items() if text]
            raise weighing.too_large(budgets, [*narrow.system, *floor], tokens)
        made = _finished(context, narrow, tokens, left)
        weight = weighing.weight(made, tokens)
    return replace(made, weighs=weight)


@dataclass(frozen=True, slots=True)
class _Begun:
    """A prompt of which is cut what no message moves: the system message, and what stands in front of a turn's own."""

    system: list[Block]
    drafts: dict[str, Draft]
    order: list[str]
    texts: dict[str, str]

    def bounded(self) -> list[str]:
        """The blocks that keep the common ceilings."""
        free = {name for name in self.drafts if name in evidence.FREE or self.drafts[name].placed}
        return [name for name in self.order if name not in free]

    def front(self) -> str:
        """What stands in the user message before all that comes with the turn."""
        return _join(self.texts, list(takewhile(lambda name: not _changes(self.drafts, name), self.order)))

    def kept(self) -> str:
        """What stands there whatever else has to go, beside the message."""
        return _join({name: draft.least for name, draft in self.drafts.items()}, self.order)


def _begun(context: RunContext, budgets: Budgets, tokens: Tokens) -> _Begun:
    """The prompt of *context* begun within *budgets*: its own, or those of a smaller window. Raises `ContextTooLarge`
    where its own do not do."""
    drafts = evidence.drafts(context, tokens)
    kept = sum(tokens.count(draft.least) + JOINT_TOKENS for draft in drafts.values() if draft.least)
    is_own = budgets is context.budgets
    standing = context if is_own else context.model_copy(update={"budgets": budgets})
    system = constitutive.blocks(standing, tokens, kept)
    order = _order(context.layout, drafts)
    if is_own:
        _require_floor(context, system, drafts, order, tokens)
    begun = _Begun(system, drafts, order, {})
    bounded = begun.bounded()
    for name, draft in drafts.items():
        most_bytes = budgets.prompt_bytes if name in bounded else NO_CEILING_BYTES
        begun.texts[name] = draft.section.fit(tokens, draft.budget, most_bytes)
    _reserve(begun.texts, drafts, order, bounded, tokens, budgets, taken(system))
    return begun


def _narrowed(context: RunContext, begun: _Begun, room: int, tokens: Tokens) -> _Begun:
    """*begun*, or begun once more for a smaller window, so that in *room* tokens of the model's own there is room for a
    message behind it. Whether there is, and how small the window is, depends on no message."""
    part = 1.0
    for _ in range(weighing.MOST_ATTEMPTS):
        share = weighing.share(context.budgets, begun.system, begun.front(), begun.kept(), room, tokens)
        if share >= 1:
            break
        part *= share
        begun = _begun(context, weighing.narrowed(context.budgets, begun.system, part), tokens)
    return begun


def _finished(context: RunContext, begun: _Begun, tokens: Tokens, most_own: int | None = None) -> Prompt:
    """The prompt of *context* that was *begun*, within its budgets as we count; its user message takes at most
    *most_own* tokens of the model's own, too."""
    budgets, system, drafts, order = context.budgets, begun.system, begun.drafts, begun.order
    texts = dict(begun.texts)
    told = SEPARATOR.join(block.text for block in system if block.used)
    ceiling = min(budgets.context_tokens, window_room(budgets) - taken(system))
    four = _Ceilings(min(ceiling, budgets.prompt_tokens), budgets.prompt_bytes)
    _shrink(texts, drafts, begun.bounded(), tokens, four)
    characters = budgets.prompt_characters - len(told) + uncounted(budgets, system)
    whole = _shrink(texts, drafts, order, tokens, _Ceilings(ceiling, characters=characters))
    if most_own is not None:
        whole = _lighten(texts, drafts, order, tokens, most_own)
    blocks = [*system, *(drafts[name].block(name, texts[name], tokens) for name in order)]
    return Prompt(tuple(blocks), context.layout, told, whole, tokens.count(whole))


def rounds_room(context: RunContext, prompt: Prompt) -> int:
    """Tokens that the window has for what the model and its tools say after *prompt*, before the reply."""
    system = [block for block in prompt.blocks if block.place.message == "system"]
    room = window_room(context.budgets) - taken(system) - prompt.tokens_total
    if prompt.weighs:
        room = min(room, int((weighing.own_room(context.budgets, prompt.blocks) - prompt.weighs) / WINDOW_SAFETY))
    return max(0, room)


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


def _lighten(
    texts: dict[str, str], drafts: Mapping[str, Draft], order: Sequence[str], tokens: Tokens, most: int
) -> str:
    """As `_shrink`, to *most* tokens of the model's own. No block gets more of ours than it had."""
    whole = _join(texts, order)
    for name in _yielding(order, drafts):
        weights = weighing.Weights(tokens, tokens.count(texts[name]))
        allowed, most_bytes = tokens.weigh(texts[name]), utf8_length(texts[name])
        while texts[name] != drafts[name].least:
            over = tokens.weigh(whole) - most
            if over <= 0:
                return whole
            allowed -= over
            texts[name] = drafts[name].section.fit(weights, max(allowed, 0), most_bytes)
            whole = _join(texts, order)
    return whole
