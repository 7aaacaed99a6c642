"""Build the prompt from a `RunContext`: budgets, cutting, order. Pure: the same input gives the same bytes.

`build_prompt` is the procedure; `system_blocks` and `user_drafts` prepare what it cuts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from grounding.prompt import layers
from grounding.prompt.layers import TailLimits
from grounding.prompt.session_prefix import last_turns
from grounding.prompt_input import (
    CONDENSED,
    JOINT_TOKENS,
    NO_CEILING_BYTES,
    PLACES,
    SEPARATOR,
    WINDOW_SAFETY,
    Block,
    ContextTooLarge,
    Draft,
    Layout,
    Prompt,
    PromptLimits,
    RunContext,
    Section,
    SummaryInput,
    Tokens,
    TwoSections,
    Volatility,
    front_limits,
    message_reserve,
    neutral,
    require_room,
    unlimited_characters,
    utf8_length,
    window_load,
    window_room,
)

__all__ = ["ContextTooLarge", "build_prompt", "rounds_room", "template_inputs"]

YIELDS = ("retrieved", "records", "karma", "summary", "tail", "hint", "now", "frame", "query")
"""Which block gives up room first if the whole is too large; the user's own words come last."""
FREE = ("frame", "records", "karma", "now")
"""The blocks of the user message that only their own budgets limit, not the common ceilings of the others."""


def build_prompt(context: RunContext, tokens: Tokens) -> Prompt:
    """Return the prompt of *context*: one system and one user message.

    Each block is cut to its own budget; `tail_section` has kept the tail's lines and bytes. Then
    blocks give up room in the order of `YIELDS`: first until message, summary, tail, passages and hint keep their
    common ceilings in tokens and bytes, then until all blocks keep the ceilings of the prompt in tokens and
    characters. The message and verbatim records do not give way to the latter: if they do not fit, raises
    `ContextTooLarge`.
    """
    budgets = context.budgets
    drafts = user_drafts(context, tokens)
    verbatim_tokens = sum([tokens.count(draft.least) + JOINT_TOKENS for draft in drafts.values() if draft.least])
    system = system_blocks(context, tokens, verbatim_tokens)
    order = _order(context.layout, drafts)
    _require_floor(context, system, drafts, order, tokens)

    bounded = [name for name in order if name in PLACES and name not in FREE]  # keep the common ceilings
    texts = {
        name: draft.section.fit(tokens, draft.budget, budgets.prompt_bytes if name in bounded else NO_CEILING_BYTES)
        for name, draft in drafts.items()
    }
    system_tokens = window_load(system)
    _reserve_message_room(texts, drafts, order, bounded, tokens, budgets, system_tokens)

    room = min(budgets.context_tokens, window_room(budgets) - system_tokens)
    _shrink(texts, drafts, bounded, tokens, _Ceilings(min(room, budgets.prompt_tokens), budgets.prompt_bytes))
    system_text = SEPARATOR.join([block.text for block in system if block.text])
    characters = budgets.prompt_characters - len(system_text) + unlimited_characters(budgets, system)
    user_text = _shrink(texts, drafts, order, tokens, _Ceilings(room, characters=characters))
    blocks = (*system, *[drafts[name].block(texts[name], tokens) for name in order])
    return Prompt(blocks, context.layout, system_text, user_text, tokens.count(user_text))


def rounds_room(context: RunContext, prompt: Prompt) -> int:
    """Return the tokens that the window has for the rounds of model and tools after *prompt*, before the reply."""
    system = [block for block in prompt.blocks if block.place.message == "system"]
    return max(0, window_room(context.budgets) - window_load(system) - prompt.tokens_total)


# The system message


def system_blocks(context: RunContext, tokens: Tokens, verbatim_tokens: int = 0) -> list[Block]:
    """Return the blocks of the system message in their order.

    Identity and codex are whole. The others yield to a small window, so that the message and the *verbatim_tokens* of
    records have room. A block that is cut says so in ``why``; the global context also says it in its text. Censors act
    even if they are not shown.
    """
    budgets = context.budgets
    size = tokens.count(context.identity)
    blocks = [Block("identity", PLACES["identity"], context.identity, size, budgets.policy_tokens, "policy", size)]
    if codex := _codex(context):
        blocks.append(codex)
    reserve = message_reserve(budgets, blocks, verbatim_tokens)

    def room() -> int:
        return max(0, window_room(budgets) - window_load(blocks) - reserve)

    if global_context := _global_context(context, room(), tokens):
        blocks.insert(1, global_context)
    for draft in _system_drafts(context):
        text = draft.section.fit(tokens, min(draft.budget, room()), NO_CEILING_BYTES)
        blocks.append(draft.block(text, tokens))
    # Blocks of formatters come last and may fill half of the prompt's characters.
    for draft in layers.formatter_drafts(context, "system").values():
        counted = sum([len(block.text) for block in blocks]) - unlimited_characters(budgets, blocks)
        characters = max(0, budgets.prompt_characters // 2 - counted)
        text = draft.section.fit(tokens, min(draft.budget, room()), characters)
        blocks.append(draft.block(text, tokens))
    return sorted(blocks, key=attrgetter("place.prefix_stable"))


def _codex(context: RunContext) -> Block | None:
    budget, material = context.budgets.codex_tokens, context.codex
    if material is None:
        failed = _failed(context, "codex")
        return Block("codex", PLACES["codex"], "", 0, budget, f"degraded: {failed}", 0) if failed else None
    text = layers.codex_text(material.files) if material.mode == "whole" else ""
    why = f"{material.count} files, {material.mode}: {material.why.replace('_', ' ')}"
    if not text:
        return Block("codex", PLACES["codex"], "", 0, budget, why, 0)
    # Counted when the material was stored: counting it in each turn would take longer than the rest of the prompt.
    load = math.ceil(material.weight / WINDOW_SAFETY) or material.tokens
    return Block("codex", PLACES["codex"], text, material.tokens, budget, why, load)


def _global_context(context: RunContext, room: int, tokens: Tokens) -> Block | None:
    lines, budget = context.global_context, context.budgets.global_context_tokens
    if lines is None:
        failed = _failed(context, "global_context")
        return (
            Block("global_context", PLACES["global_context"], "", 0, budget, f"degraded: {failed}", 0)
            if failed
            else None
        )
    text = layers.global_context_text(lines, tokens, min(budget, room))
    count = len([line for line in lines if line.content])
    why = f"{count} lines" if count else "no lines yet, only what belongs there"
    if layers.GUIDANCE not in text:
        why += "; little room" if text else "; no room"
    size = tokens.count(text)
    return Block("global_context", PLACES["global_context"], text, size, budget, why, size)


def _system_drafts(context: RunContext) -> list[Draft]:
    """Return the blocks behind the codex that have something to say, or are missing."""
    budgets = context.budgets
    drafts: list[Draft] = []
    if context.censors:
        section, why = layers.censors_section(context.censors), f"{len(context.censors)} in force"
        drafts.append(Draft(PLACES["censors"], section, budgets.censors_tokens, why))
    elif failed := _failed(context, "censors"):
        drafts.append(Draft(PLACES["censors"], Section(), budgets.censors_tokens, f"degraded: {failed}"))
    if context.environment is not None or context.sigil is not None:
        section = layers.environment_section(context.environment, context.sigil)
        drafts.append(Draft(PLACES["environment"], section, budgets.environment_tokens, "as the session began"))
    if context.karma_floor:
        section, why = layers.karma_section(context.karma_floor), f"{len(context.karma_floor)} standing"
        drafts.append(Draft(PLACES["karma_floor"], section, budgets.karma_floor_tokens, why))
    return drafts


def _failed(context: RunContext, block: str) -> str | None:
    for part in context.degraded:
        if part.block == block:
            return part.why
    return None


# The user message


def user_drafts(context: RunContext, tokens: Tokens) -> dict[str, Draft]:
    """Return a draft for each block of the user message, and for those of formatters. Small talk sends the text
    alone."""
    drafts = _drafts(context, tokens)
    if not context.injected:
        return drafts
    drafts = {name: layers.apply_template(context, name, draft) for name, draft in drafts.items()}
    return drafts if context.small_talk else drafts | layers.formatter_drafts(context, "user")


def template_inputs(context: RunContext, tokens: Tokens) -> dict[str, str]:
    """Return the texts that templates may render anew, by block, without head and foot; only those with content."""
    if context.small_talk:
        return {}
    drafts = _drafts(context, tokens)
    has_content = {"summary": context.summary, "retrieved": context.passages, "hint": context.hint}
    sections = {name: drafts[name].section for name, content in has_content.items() if content}
    return {name: section.body for name, section in sections.items() if isinstance(section, Section) and section.body}


def _about_summary(document: SummaryInput) -> str:
    about = f"version {document.version}, to turn {document.turns}"
    return f"{about}. {document.problem}" if document.problem else about


def _drafts(context: RunContext, tokens: Tokens) -> dict[str, Draft]:
    budgets = context.budgets
    message = layers.query_section(context.query, tokens, budgets.query_tokens)
    query = Draft(PLACES["query"], message, budgets.query_tokens, "the message")
    if context.small_talk:
        others = [place for place in PLACES.values() if place.message == "user" and place.name != "query"]
        return {"query": query} | {place.name: Draft(place, Section(), 1, "small talk") for place in others}
    document, frame = context.summary, context.frame
    entries = last_turns(context.tail, budgets.history_turns)
    drafts = (
        query,
        Draft(
            PLACES["summary"],
            layers.summary_section(document.text) if document else Section(),
            budgets.summary_tokens,
            _about_summary(document) if document else "no summary yet",
        ),
        Draft(
            PLACES["tail"],
            layers.tail_section(entries, TailLimits.of(budgets)),
            budgets.tail_tokens,
            f"{len(entries)} earlier messages" if entries else "no earlier messages",
        ),
        Draft(
            PLACES["frame"],
            layers.frame_section(frame, context.calibration),
            budgets.frame_tokens,
            f"{frame.name}: {frame.reason.replace('_', ' ')}" if frame else "no frame",
        ),
        _records(context),
        Draft(
            PLACES["karma"],
            layers.karma_section(context.karma),
            budgets.karma_tokens,
            f"{len(context.karma)} good answers" if context.karma else "none that bear on it",
        ),
        _retrieved(context, tokens),
        Draft(
            PLACES["now"],
            layers.now_section(context.today, context.deltas),
            budgets.now_tokens,
            f"the day, {len(context.deltas)} changes" if context.today else "no day",
        ),
        Draft(
            PLACES["hint"],
            Section(pieces=(neutral(context.hint),) if context.hint else ()),
            budgets.hint_tokens,
            _why_hint(context),
        ),
    )
    return {draft.place.name: draft for draft in drafts}


def _why_hint(context: RunContext) -> str:
    if context.hint:
        return context.connector
    return "unused: the strategy is none" if context.strategy == "none" else "none for this connector"


def _records(context: RunContext) -> Draft:
    """Return the standing rules, earlier turns of the conversation, and the records that bear on the message."""
    selection, recalled = context.selection, context.recalled
    rules = [record for record in context.records if record.type == layers.RULE]
    others = [record for record in context.records if record.type != layers.RULE]
    failed = _failed(context, "records")
    notes = [
        f"{len(rules)} standing rules" if rules else "",
        f"{len(recalled)} earlier turns" if recalled else "nothing recalled",
        f"{len(others)} records of {selection.found} found, {selection.why.replace('_', ' ')}" if selection else "",
        f"degraded: {failed}" if failed else "",
    ]
    with_ids = layers.EXPAND in context.tools
    section = TwoSections(
        layers.recall_section(recalled),
        layers.records_section(others, with_ids=with_ids),
        context.budgets.records_tokens,
        floor=layers.records_section([record for record in others if record.verbatim], with_ids=with_ids),
        before=layers.rules_section(rules),
    )
    budget = context.budgets.records_tokens + (selection.budget if selection else 0)
    budget += sum(record.tokens for record in rules)
    return Draft(PLACES["records"], section, budget, ", ".join(filter(None, notes)), least=section.least)


def _retrieved(context: RunContext, tokens: Tokens) -> Draft:
    reasons = [part.why for part in context.degraded if part.block == "retrieved"]
    failed = next(iter([why for why in reasons if why != CONDENSED]), None)
    if context.passages:
        section = layers.retrieval_section(
            context.passages[: context.budgets.top_k],
            tokens,
            context.budgets.excerpt_bytes,
            is_incomplete=failed is not None,
        )
        why = f"{len(section.pieces)} passages{f', degraded: {failed}' if failed else ''}"
    elif failed and not context.small_talk:
        section, why = Section(pieces=(layers.NOT_SEARCHED,), cut="never"), f"degraded: {failed}"
    elif not context.wants_documents:
        section, why = Section(), "not wanted"
    elif reasons:
        section, why = Section(), f"degraded: {CONDENSED}"
    else:
        section, why = Section(pieces=(layers.NOTHING_FOUND,), cut="never"), "nothing relevant"
    return Draft(PLACES["retrieved"], section, context.budgets.retrieved_tokens, why)


# Cutting


@dataclass(frozen=True, slots=True)
class _Ceilings:
    """The common limits of several blocks."""

    tokens: int
    bytes: int = NO_CEILING_BYTES
    characters: int = NO_CEILING_BYTES

    def excess(self, text: str, tokens: Tokens) -> tuple[int, int]:
        """Return the tokens and bytes that *text* has too many; 0 and 0 if it fits."""
        # A character has at least one byte: so many bytes fewer are at least as many characters fewer, or the next
        # round sees to it.
        size = utf8_length(text)
        excess_bytes = max(size - self.bytes, len(text) - self.characters, 0)
        if size <= self.tokens:  # a token has at least one byte
            return 0, excess_bytes
        return max(tokens.count(text) - self.tokens, 0), excess_bytes


def _order(layout: Layout, drafts: Mapping[str, Draft]) -> list[str]:
    places = sorted([draft.place for draft in drafts.values()], key=attrgetter(layout))
    return [place.name for place in places]


def _front(order: Sequence[str], drafts: Mapping[str, Draft]) -> list[str]:
    """Return the blocks in front of the first one that changes with every turn."""
    for number, name in enumerate(order):
        if drafts[name].place.volatility is Volatility.TURN:
            return list(order[:number])
    return list(order)


def _require_floor(
    context: RunContext, system: Sequence[Block], drafts: Mapping[str, Draft], order: Sequence[str], tokens: Tokens
) -> None:
    """Raise `ContextTooLarge` if the floor of the user message has no room beside the *system* message: the message,
    cut to its own ceilings and without the text of its files, and verbatim records."""
    budgets = context.budgets
    words = drafts["query"].section
    if context.query.files:
        words = layers.query_section(layers.without_file_texts(context.query), tokens, budgets.query_tokens)
    max_tokens = min(budgets.query_tokens, budgets.prompt_tokens, budgets.context_tokens)
    texts = {name: drafts[name].least for name in order}
    texts["query"] = words.fit(tokens, max_tokens, budgets.prompt_bytes)
    floor = [drafts[name].block(texts[name], tokens) for name in order if texts[name]]
    require_room(budgets, system, floor, tokens.count(_join(texts, order)))


def _reserve_message_room(
    texts: dict[str, str],
    drafts: dict[str, Draft],
    order: Sequence[str],
    bounded: Sequence[str],
    tokens: Tokens,
    budgets: PromptLimits,
    system_tokens: int,
) -> None:
    """Cut the blocks in front of the message in *texts*, so that a full message has room behind them, and the message
    to the remaining bytes.

    The tail, which grows, is cut to its own limits, and the blocks before it to the rest, whatever the tail takes now.
    Otherwise each turn would cut these a little more, and the model would have to read everything again.
    """
    front = _front(order, drafts)
    if not front:
        return
    limits = front_limits(budgets, system_tokens)
    if "tail" in texts:
        texts["tail"] = drafts["tail"].section.fit(tokens, limits.tail_tokens, limits.tail_bytes)
    common = [name for name in front if name in bounded]
    before_tail = [name for name in common if name != "tail"]
    beside_tail = _Ceilings(
        limits.tokens - limits.tail_tokens - JOINT_TOKENS, limits.bytes - limits.tail_bytes - JOINT_TOKENS
    )
    _shrink(texts, drafts, before_tail, tokens, beside_tail)
    front_bytes = utf8_length(_shrink(texts, drafts, common, tokens, _Ceilings(limits.tokens, limits.bytes)))

    room = min(budgets.context_tokens, window_room(budgets) - system_tokens)
    _shrink(texts, drafts, front, tokens, _Ceilings(room - min(budgets.query_tokens + JOINT_TOKENS, room // 2)))
    message_bytes = budgets.prompt_bytes - front_bytes - utf8_length(SEPARATOR)
    texts["query"] = drafts["query"].section.fit(tokens, drafts["query"].budget, message_bytes)


def _shrink(
    texts: dict[str, str], drafts: dict[str, Draft], order: Sequence[str], tokens: Tokens, ceilings: _Ceilings
) -> str:
    """Cut *texts* in place until their joined text keeps the *ceilings*; return that text."""
    whole = _join(texts, order)
    excess_tokens, excess_bytes = ceilings.excess(whole, tokens)
    if not excess_tokens and not excess_bytes:
        return whole
    for name in _by_worth(order, drafts):
        max_tokens, max_bytes = tokens.count(texts[name]), utf8_length(texts[name])
        while texts[name] != drafts[name].least:
            max_tokens -= excess_tokens
            max_bytes -= excess_bytes
            texts[name] = drafts[name].section.fit(tokens, max(max_tokens, 0), max(max_bytes, 0))
            whole = _join(texts, order)
            excess_tokens, excess_bytes = ceilings.excess(whole, tokens)
            if not excess_tokens and not excess_bytes:
                return whole
    return whole


def _by_worth(order: Sequence[str], drafts: Mapping[str, Draft]) -> list[str]:
    """Return the blocks of *order*, the first to give up room first: those of formatters, then in the order of
    `YIELDS`. Blocks in front of the message come after the others, because their bytes must not change with it."""
    front = _front(order, drafts)
    worth = [*[name for name in order if name not in PLACES], *[name for name in YIELDS if name in order]]
    return sorted(worth, key=lambda name: (name == "query", name in front))


def _join(texts: dict[str, str], order: Sequence[str]) -> str:
    return SEPARATOR.join([texts[name] for name in order if texts[name]])
