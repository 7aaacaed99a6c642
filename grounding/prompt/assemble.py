"""Builds the prompt from a RunContext: budgets, clipping, order. Pure: same input, same bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from grounding.prompt import layers
from grounding.prompt.session_prefix import last_turns
from grounding.prompt_input import (
    CONDENSED,
    JOINT_TOKENS,
    NO_CEILING_BYTES,
    PLACES,
    SEPARATOR,
    WINDOW_SAFETY,
    Block,
    Budgets,
    ContextTooLarge,
    Draft,
    Layout,
    Prompt,
    Remembered,
    RunContext,
    Section,
    Tokens,
    Two,
    Volatility,
    front_bytes,
    front_room,
    message_reserve,
    neutral,
    require_room,
    taken,
    uncounted,
    utf8_length,
    window_room,
)

# ---- constitutive ----
#
# The blocks of the system message: what the model is, and what always holds. Pure.


def system_blocks(context: RunContext, tokens: Tokens, kept: int = 0) -> list[Block]:
    """The blocks in their order. Identity and codex are whole. The others yield to a small window, so that a message
    and what is *kept* word for word, in tokens, have room; each says so (``why``), the global context in its text, too,
    and censors act whether or not they stand there."""
    budgets = context.budgets
    identity = Block("identity", context.identity, tokens.count(context.identity), budgets.policy_tokens, "policy")
    material = _codex(context)
    made = [identity, *([material] if material else [])]
    reserve = message_reserve(budgets, made, kept)
    if known := _global_context(context, made, reserve, tokens):
        made.insert(1, known)
    for name, draft in _drafts(context).items():
        room = window_room(budgets) - taken(made) - reserve
        text = draft.section.fit(tokens, max(0, min(draft.budget, room)), NO_CEILING_BYTES)
        made.append(draft.block(name, text, tokens))
    return _with_injected(context, made, reserve, tokens)


def _with_injected(context: RunContext, made: list[Block], reserve: int, tokens: Tokens) -> list[Block]:
    """*made*, and what formatters made: after all others in getting room, at most half of what a prompt may have in
    characters, and each where it stands."""
    budgets = context.budgets
    for name, draft in layers.drafts(context, "system").items():
        room = window_room(budgets) - taken(made) - reserve
        told = sum(len(block.text) for block in made) - uncounted(budgets, made)
        characters = budgets.prompt_characters // 2 - told
        text = draft.section.fit(tokens, max(0, min(draft.budget, room)), max(0, characters))
        made.append(draft.block(name, text, tokens))
    return sorted(made, key=lambda block: block.place.prefix_stable)


def _codex(context: RunContext) -> Block | None:
    material = context.codex
    if material is None:
        failed = _failed(context, "codex")
        return Block("codex", "", 0, context.budgets.codex_tokens, f"degraded: {failed}") if failed else None
    text = layers.codex_text(material.files) if material.mode == "whole" else ""
    why = f"{material.count} files, {material.mode}: {material.why.replace('_', ' ')}"
    if not text:
        return Block("codex", "", 0, context.budgets.codex_tokens, why)
    # Counted when it was put: to count it in each turn takes longer than all the rest of the prompt.
    weighs = math.ceil(material.weight / WINDOW_SAFETY)
    return Block("codex", text, material.tokens, context.budgets.codex_tokens, why, weighs=weighs)


def _global_context(context: RunContext, made: list[Block], reserve: int, tokens: Tokens) -> Block | None:
    lines, budget = context.global_context, context.budgets.global_context_tokens
    if lines is None:
        failed = _failed(context, "global_context")
        return Block("global_context", "", 0, budget, f"degraded: {failed}") if failed else None
    room = window_room(context.budgets) - taken(made) - reserve
    text = layers.text(lines, tokens, min(budget, max(room, 0)))
    said = sum(1 for line in lines if line.content)
    why = f"{said} lines" if said else "no lines yet, only what belongs there"
    if layers.GUIDANCE not in text:
        why += "; little room" if text else "; no room"
    return Block("global_context", text, tokens.count(text), budget, why)


def _drafts(context: RunContext) -> dict[str, Draft]:
    """The blocks behind the codex, those of which there is something to say."""
    budgets, found = context.budgets, {}
    if context.censors:
        shown = layers.censors_section(context.censors)
        found["censors"] = Draft(shown, budgets.censors_tokens, f"{len(context.censors)} in force")
    elif failed := _failed(context, "censors"):
        found["censors"] = Draft(Section(), budgets.censors_tokens, f"degraded: {failed}")
    if context.environment is not None or context.sigil is not None:
        shown = layers.environment_section(context.environment, context.sigil)
        found["environment"] = Draft(shown, budgets.environment_tokens, "as the session began")
    if context.karma_floor:
        shown = layers.karma_section(context.karma_floor)
        found["karma_floor"] = Draft(shown, budgets.karma_floor_tokens, f"{len(context.karma_floor)} standing")
    return found


def _failed(context: RunContext, block: str) -> str | None:
    return next((part.why for part in context.degraded if part.block == block), None)


# ---- evidence ----
#
# The blocks of the user message before they are cut: what is known, and what is asked. Pure.


NAMES = ("query", "summary", "tail", "frame", "records", "karma", "retrieved", "now", "hint")
FREE = ("frame", "records", "karma", "now")
"""Those with budgets of their own, beside the ceilings of the four sections."""


def evidence_drafts(context: RunContext, tokens: Tokens) -> dict[str, Draft]:
    """A draft for each of `NAMES`, and for what formatters made. Small talk sends the text alone."""
    own = {name: layers.rendered(context, name, draft) for name, draft in _evidence_drafts(context, tokens).items()}
    return own if context.small_talk else own | layers.drafts(context, "user")


def bodies(context: RunContext, tokens: Tokens) -> dict[str, str]:
    """What the blocks say that may be said in another form, without the lines around it; those that say something."""
    made = evidence_drafts(context.model_copy(update={"injected": ()}), tokens)
    sections = {"summary": bool(context.summary), "retrieved": bool(context.passages), "hint": bool(context.hint)}
    found = {name: made[name].section for name, says in sections.items() if says and not context.small_talk}
    return {name: section.body for name, section in found.items() if isinstance(section, Section) and section.body}


def _evidence_drafts(context: RunContext, tokens: Tokens) -> dict[str, Draft]:
    budgets = context.budgets
    message = layers.query_section(context.query, tokens, budgets.query_tokens)
    made = {"query": Draft(message, budgets.query_tokens, "the message")}
    if context.small_talk:
        return made | dict.fromkeys(NAMES[1:], Draft(Section(), 1, "small talk"))
    document = context.summary
    made["summary"] = Draft(
        layers.summary_section(document.text) if document else Section(),
        budgets.summary_tokens,
        f"version {document.version}, to turn {document.turns}" if document else "no summary yet",
    )
    said = last_turns(context.tail, budgets.history_turns)
    made["tail"] = Draft(
        layers.section(said, budgets.tail_lines, budgets.tail_bytes),
        budgets.tail_tokens,
        f"{len(said)} earlier messages" if said else "no earlier messages",
    )
    made["frame"] = Draft(
        layers.frame_section(context.frame, context.calibration),
        budgets.frame_tokens,
        f"{context.frame.name}: {context.frame.reason.replace('_', ' ')}" if context.frame else "no frame",
    )
    made["records"] = _records(context)
    made["karma"] = Draft(
        layers.karma_section(context.karma),
        budgets.karma_tokens,
        f"{len(context.karma)} good answers" if context.karma else "none that bear on it",
    )
    made["retrieved"] = _retrieved(context, tokens)
    made["now"] = Draft(
        layers.now_section(context.today, context.deltas),
        budgets.now_tokens,
        f"the day, {len(context.deltas)} changes" if context.today else "no day",
    )
    made["hint"] = Draft(
        Section(pieces=(neutral(context.hint),) if context.hint else ()),
        budgets.hint_tokens,
        _why_hint(context),
    )
    return made


def _why_hint(context: RunContext) -> str:
    if context.hint:
        return context.connector
    return "unused: the strategy is none" if context.strategy == "none" else "none for this connector"


def _records(context: RunContext) -> Draft:
    """Earlier turns of the conversation, and the records that bear on the message."""
    chosen, recalled = context.selection, context.recalled
    budget = context.budgets.records_tokens + (chosen.budget if chosen else 0)
    failed = next((part.why for part in context.degraded if part.block == "records"), None)
    said = [
        f"{len(recalled)} earlier turns" if recalled else "nothing recalled",
        f"{len(context.records)} records of {chosen.found} found, {chosen.why.replace('_', ' ')}" if chosen else "",
        f"degraded: {failed}" if failed else "",
    ]
    with_ids = layers.EXPAND in context.tools
    shown = layers.records_section(context.records, with_ids=with_ids)
    floor = layers.records_section([one for one in context.records if one.verbatim], with_ids=with_ids)
    section = Two(layers.recall_section(recalled), shown, context.budgets.records_tokens, floor)
    return Draft(section, budget, ", ".join(one for one in said if one))


def _retrieved(context: RunContext, tokens: Tokens) -> Draft:
    budget = context.budgets.retrieved_tokens
    missing = [part for part in context.degraded if part.block == "retrieved"]
    failed = next((part for part in missing if part.why != CONDENSED), None)
    if context.passages:
        section = layers.retrieval_section(
            context.passages[: context.budgets.top_k],
            tokens,
            context.budgets.excerpt_bytes,
            is_incomplete=failed is not None,
        )
        return Draft(section, budget, f"{len(section.pieces)} passages{f', degraded: {failed.why}' if failed else ''}")
    if not context.wants_documents:
        return Draft(Section(), budget, "not wanted")
    if missing and not failed:
        return Draft(Section(), budget, f"degraded: {CONDENSED}")
    if failed:
        return Draft(Section(pieces=(layers.NOT_SEARCHED,), cut="never"), budget, f"degraded: {failed.why}")
    return Draft(Section(pieces=(layers.NOTHING_FOUND,), cut="never"), budget, "nothing relevant")


# ---- assemble ----


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
    drafts = evidence_drafts(context, tokens)
    kept = sum(tokens.count(draft.least) + JOINT_TOKENS for draft in drafts.values() if draft.least)
    system = system_blocks(context, tokens, kept)
    order = _order(context.layout, drafts)
    _require_floor(context, system, drafts, order, tokens)
    free = {name for name in drafts if name in FREE or drafts[name].placed}
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
    (`grounding.prompt_input.budgets.front_room`), and the message to the bytes that are left."""
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
    words = layers.query_section(layers.words(context.query), tokens, budgets.query_tokens)
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
