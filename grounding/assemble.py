"""Builds the prompt from a RunContext: budgets, clipping, order. Pure: same input, same bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from connectors.message import AgentRuntimeError
from grounding.blocks import PLACES, SEPARATOR, Block, Layout, Prompt
from grounding.layers import censors, frame, global_context, query, recall, records, retrieval, summary, tail
from grounding.run_context import Budgets, RunContext
from grounding.sections import Section, neutral
from grounding.tokens import Remembered, Tokens, utf8_length

YIELDS = ("retrieved", "records", "karma", "summary", "tail", "hint", "frame", "query")
"""Who gives up room first when the whole is too large; the user's own words come last."""

NO_CEILING_BYTES = 2**31

WINDOW_SAFETY = 1.8
"""Tokens of a model's own vocabulary per token that we count, for the guard of the model's window. Measured
with the 49,000-word vocabulary of SmolLM2: English 1.11 to 1.15, Python 1.12, German 1.37, Japanese 1.64,
Russian 1.75."""

FREE = ("frame", "records")
"""Blocks of the user message that have budgets of their own, beside the ceilings of the four sections."""

MIN_USER_TOKENS = 64
"""Below this no useful question fits, and the turn is refused instead."""


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


@dataclass(frozen=True, slots=True)
class _Two:
    """Two sections in one block: the first may have *first_tokens*, the second what is left, and yields first."""

    first: Section
    second: Section
    first_tokens: int

    def fit(self, tokens: Tokens, max_tokens: int, max_bytes: int) -> str:
        """The text of both within both limits."""
        one = self.first.fit(tokens, min(self.first_tokens, max_tokens), max_bytes)
        if not one:
            return self.second.fit(tokens, max_tokens, max_bytes)
        left = max_tokens - tokens.count(one) - tokens.count(SEPARATOR)
        room = max_bytes - utf8_length(one) - utf8_length(SEPARATOR)
        while left > 0 and room > 0 and (other := self.second.fit(tokens, left, room)):
            both = one + SEPARATOR + other
            if tokens.fits(both, max_tokens):
                return both
            left -= 1  # tokens at the joint may merge or split
        return one

    @property
    def whole(self) -> str:
        return SEPARATOR.join(text for text in (self.first.whole, self.second.whole) if text)


@dataclass(frozen=True, slots=True)
class _Draft:
    section: Section | _Two
    budget: int
    why: str


def prompt(context: RunContext, tokens: Tokens) -> Prompt:
    """The prompt of *context*: one system and one user message.

    Each block is cut to its own budget, then blocks give up room in the order of `YIELDS`: until message, summary,
    tail, passages and hint keep their common ceilings in tokens and bytes, and then until all keep what a prompt may
    have. Raises `ContextTooLarge`.
    """
    tokens = Remembered(tokens)
    identity = Block(
        "identity", context.identity, tokens.count(context.identity), context.budgets.policy_tokens, "policy"
    )
    constitutive = _global_context(context, identity, tokens)
    system = [identity, *([constitutive] if constitutive else [])]
    if constraints := _censors(context, system, tokens):
        system.append(constraints)
    ceiling = _user_ceiling(context, system)
    drafts = _drafts(context, tokens)
    texts = {
        name: draft.section.fit(
            tokens, draft.budget, NO_CEILING_BYTES if name in FREE else context.budgets.prompt_bytes
        )
        for name, draft in drafts.items()
    }
    order = _order(context.layout)
    bounded = [name for name in order if name not in FREE]
    sections = min(ceiling, context.budgets.prompt_tokens)
    _shrink(texts, drafts, bounded, tokens, sections, context.budgets.prompt_bytes)
    whole = _shrink(texts, drafts, order, tokens, ceiling, NO_CEILING_BYTES)
    blocks = list(system)
    for name in order:
        draft = drafts[name]
        blocks.append(Block(name, texts[name], tokens.count(texts[name]), draft.budget, _why(draft, texts[name])))
    told = SEPARATOR.join(block.text for block in system if block.used)
    return Prompt(tuple(blocks), context.layout, told, whole, tokens.count(whole))


def _global_context(context: RunContext, identity: Block, tokens: Tokens) -> Block | None:
    """The block behind the identity; it yields to a small window, but never so much that a message has no room."""
    lines, budget = context.global_context, context.budgets.global_context_tokens
    if lines is None:
        failed = next((part.why for part in context.degraded if part.block == "global_context"), None)
        return Block("global_context", "", 0, budget, f"degraded: {failed}") if failed else None
    room = _window_room(context.budgets) - identity.tokens - MIN_USER_TOKENS
    text = global_context.text(lines, tokens, min(budget, max(room, 0)))
    said = sum(1 for line in lines if line.content)
    why = f"{said} lines" if said else "empty"
    if global_context.GUIDANCE not in text:
        why += "; little room" if text else "; no room"
    return Block("global_context", text, tokens.count(text), budget, why)


def _censors(context: RunContext, system: list[Block], tokens: Tokens) -> Block | None:
    """The block of what must not be said or done; it yields to a small window as the global context does."""
    budget = context.budgets.censors_tokens
    if not context.censors:
        failed = next((part.why for part in context.degraded if part.block == "censors"), None)
        return Block("censors", "", 0, budget, f"degraded: {failed}") if failed else None
    room = _window_room(context.budgets) - sum(block.tokens for block in system) - MIN_USER_TOKENS
    section = censors.section(context.censors)
    text = section.fit(tokens, max(0, min(budget, room)), NO_CEILING_BYTES)
    draft = _Draft(section, budget, f"{len(context.censors)} in force")
    return Block("censors", text, tokens.count(text), budget, _why(draft, text))


def _drafts(context: RunContext, tokens: Tokens) -> dict[str, _Draft]:
    """The user message's blocks before they are cut. Small talk sends the text alone."""
    budgets = context.budgets
    drafts = {"query": _Draft(query.section(context.query, budgets.query_tokens), budgets.query_tokens, "the message")}
    if context.small_talk:
        empty = _Draft(Section(), 1, "small talk")
        return drafts | dict.fromkeys(("summary", "tail", "frame", "records", "retrieved", "hint"), empty)
    document = context.summary
    drafts["summary"] = _Draft(
        summary.section(document.text) if document else Section(),
        budgets.summary_tokens,
        f"version {document.version}, to turn {document.turns}" if document else "no summary yet",
    )
    drafts["tail"] = _Draft(
        tail.section(context.tail, budgets.tail_lines, budgets.tail_bytes),
        budgets.tail_tokens,
        f"{len(context.tail)} earlier messages" if context.tail else "no earlier messages",
    )
    drafts["frame"] = _Draft(
        frame.section(context.frame, context.calibration),
        budgets.frame_tokens,
        f"{context.frame.name}: {context.frame.reason.replace('_', ' ')}" if context.frame else "no frame",
    )
    drafts["records"] = _records(context)
    drafts["retrieved"] = _retrieved(context, tokens)
    drafts["hint"] = _Draft(
        Section(pieces=(neutral(context.hint),) if context.hint else ()),
        budgets.hint_tokens,
        context.connector if context.hint else "none for this connector",
    )
    return drafts


def _records(context: RunContext) -> _Draft:
    """Earlier turns of the conversation, and the records that bear on the message."""
    chosen, recalled = context.selection, context.recalled
    budget = context.budgets.records_tokens + (chosen.budget if chosen else 0)
    failed = next((part.why for part in context.degraded if part.block == "records"), None)
    said = [
        f"{len(recalled)} earlier turns" if recalled else "nothing recalled",
        f"{len(context.records)} records of {chosen.found} found, {chosen.why.replace('_', ' ')}" if chosen else "",
        f"degraded: {failed}" if failed else "",
    ]
    shown = records.section(context.records, with_ids=records.EXPAND in context.tools)
    section = _Two(recall.section(recalled), shown, context.budgets.records_tokens)
    return _Draft(section, budget, ", ".join(one for one in said if one))


def _retrieved(context: RunContext, tokens: Tokens) -> _Draft:
    budget = context.budgets.retrieved_tokens
    failed = next((part for part in context.degraded if part.block == "retrieved"), None)
    if context.passages:
        section = retrieval.section(
            context.passages[: context.budgets.top_k],
            tokens,
            context.budgets.excerpt_bytes,
            is_incomplete=failed is not None,
        )
        return _Draft(section, budget, f"{len(section.pieces)} passages{f', degraded: {failed.why}' if failed else ''}")
    if not context.wants_documents:
        return _Draft(Section(), budget, "not wanted")
    if failed:
        return _Draft(Section(pieces=(retrieval.NOT_SEARCHED,), cut="never"), budget, f"degraded: {failed.why}")
    return _Draft(Section(pieces=(retrieval.NOTHING_FOUND,), cut="never"), budget, "nothing relevant")


def _order(layout: Layout) -> list[str]:
    present = [PLACES[name] for name in ("query", "summary", "tail", "frame", "records", "retrieved", "hint")]
    rank: Callable[..., int] = (
        (lambda place: place.user_first) if layout == "user_first" else (lambda place: place.prefix_stable)
    )
    return [place.name for place in sorted(present, key=rank)]


def _user_ceiling(context: RunContext, system: list[Block]) -> int:
    """Tokens that the user message may have beside the blocks of the *system* message. Raises `ContextTooLarge`."""
    budgets = context.budgets
    room = _window_room(budgets) - sum(block.tokens for block in system)
    if room < MIN_USER_TOKENS:
        largest = max(system, key=lambda block: block.tokens)
        raise ContextTooLarge(largest.name, largest.tokens, budgets.window_tokens)
    return min(budgets.context_tokens, room)


def rounds_room(context: RunContext, prompt: Prompt) -> int:
    """Tokens that the window has for what the model and its tools say after *prompt*, before the reply."""
    system = sum(block.tokens for block in prompt.blocks if PLACES[block.name].message == "system")
    return max(0, _window_room(context.budgets) - system - prompt.tokens_total)


def _window_room(budgets: Budgets) -> int:
    """Tokens, as we count them, that the window has for messages."""
    return int((budgets.window_tokens - budgets.output_tokens) / WINDOW_SAFETY) - budgets.tools_tokens


def _join(texts: dict[str, str], order: list[str]) -> str:
    return SEPARATOR.join(texts[name] for name in order if texts[name])


def _shrink(
    texts: dict[str, str], drafts: dict[str, _Draft], order: list[str], tokens: Tokens, max_tokens: int, max_bytes: int
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


def _why(draft: _Draft, text: str) -> str:
    whole = draft.section.whole
    if whole and not text:
        return f"{draft.why}; no room"
    return f"{draft.why}; cut to fit" if text != whole else draft.why
