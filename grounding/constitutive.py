"""The blocks of the system message: what the model is, and what always holds. Pure."""

from __future__ import annotations

import math

from grounding.blocks import Block
from grounding.draft import NO_CEILING_BYTES, Draft
from grounding.layers import censors, codex, environment, global_context, injected, karma
from grounding.run_context import RunContext
from grounding.sections import Section
from grounding.tokens import Tokens
from grounding.window import WINDOW_SAFETY, message_reserve, taken, uncounted, window_room


def blocks(context: RunContext, tokens: Tokens, kept: int = 0) -> list[Block]:
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
    for name, draft in injected.drafts(context, "system").items():
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
    text = codex.text(material.files) if material.mode == "whole" else ""
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
    text = global_context.text(lines, tokens, min(budget, max(room, 0)))
    said = sum(1 for line in lines if line.content)
    why = f"{said} lines" if said else "no lines yet, only what belongs there"
    if global_context.GUIDANCE not in text:
        why += "; little room" if text else "; no room"
    return Block("global_context", text, tokens.count(text), budget, why)


def _drafts(context: RunContext) -> dict[str, Draft]:
    """The blocks behind the codex, those of which there is something to say."""
    budgets, found = context.budgets, {}
    if context.censors:
        shown = censors.section(context.censors)
        found["censors"] = Draft(shown, budgets.censors_tokens, f"{len(context.censors)} in force")
    elif failed := _failed(context, "censors"):
        found["censors"] = Draft(Section(), budgets.censors_tokens, f"degraded: {failed}")
    if context.environment is not None or context.sigil is not None:
        shown = environment.section(context.environment, context.sigil)
        found["environment"] = Draft(shown, budgets.environment_tokens, "as the session began")
    if context.karma_floor:
        shown = karma.section(context.karma_floor)
        found["karma_floor"] = Draft(shown, budgets.karma_floor_tokens, f"{len(context.karma_floor)} standing")
    return found


def _failed(context: RunContext, block: str) -> str | None:
    return next((part.why for part in context.degraded if part.block == block), None)
