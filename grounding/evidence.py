"""The blocks of the user message before they are cut: what is known, and what is asked. Pure."""

from __future__ import annotations

from grounding.draft import Draft, Two
from grounding.history import last_turns
from grounding.layers import frame, injected, karma, now, query, recall, records, retrieval, summary, tail
from grounding.run_context import CONDENSED, RunContext
from grounding.sections import Section, neutral
from grounding.tokens import Tokens

NAMES = ("query", "summary", "tail", "frame", "records", "karma", "retrieved", "now", "hint")
FREE = ("frame", "records", "karma", "now")
"""Those with budgets of their own, beside the ceilings of the four sections."""


def drafts(context: RunContext, tokens: Tokens) -> dict[str, Draft]:
    """A draft for each of `NAMES`, and for what formatters made. Small talk sends the text alone."""
    own = {name: injected.rendered(context, name, draft) for name, draft in _drafts(context, tokens).items()}
    return own if context.small_talk else own | injected.drafts(context, "user")


def bodies(context: RunContext, tokens: Tokens) -> dict[str, str]:
    """What the blocks say that may be said in another form, without the lines around it; those that say something."""
    made = drafts(context.model_copy(update={"injected": ()}), tokens)
    sections = {"summary": bool(context.summary), "retrieved": bool(context.passages), "hint": bool(context.hint)}
    found = {name: made[name].section for name, says in sections.items() if says and not context.small_talk}
    return {name: section.body for name, section in found.items() if isinstance(section, Section) and section.body}


def _drafts(context: RunContext, tokens: Tokens) -> dict[str, Draft]:
    budgets = context.budgets
    message = query.section(context.query, tokens, budgets.query_tokens)
    made = {"query": Draft(message, budgets.query_tokens, "the message")}
    if context.small_talk:
        return made | dict.fromkeys(NAMES[1:], Draft(Section(), 1, "small talk"))
    document = context.summary
    made["summary"] = Draft(
        summary.section(document.text) if document else Section(),
        budgets.summary_tokens,
        f"version {document.version}, to turn {document.turns}" if document else "no summary yet",
    )
    said = last_turns(context.tail, budgets.history_turns)
    made["tail"] = Draft(
        tail.section(said, budgets.tail_lines, budgets.tail_bytes),
        budgets.tail_tokens,
        f"{len(said)} earlier messages" if said else "no earlier messages",
    )
    made["frame"] = Draft(
        frame.section(context.frame, context.calibration),
        budgets.frame_tokens,
        f"{context.frame.name}: {context.frame.reason.replace('_', ' ')}" if context.frame else "no frame",
    )
    made["records"] = _records(context)
    made["karma"] = Draft(
        karma.section(context.karma),
        budgets.karma_tokens,
        f"{len(context.karma)} good answers" if context.karma else "none that bear on it",
    )
    made["retrieved"] = _retrieved(context, tokens)
    made["now"] = Draft(
        now.section(context.today, context.deltas),
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
    with_ids = records.EXPAND in context.tools
    shown = records.section(context.records, with_ids=with_ids)
    floor = records.section([one for one in context.records if one.verbatim], with_ids=with_ids)
    section = Two(recall.section(recalled), shown, context.budgets.records_tokens, floor)
    return Draft(section, budget, ", ".join(one for one in said if one))


def _retrieved(context: RunContext, tokens: Tokens) -> Draft:
    budget = context.budgets.retrieved_tokens
    missing = [part for part in context.degraded if part.block == "retrieved"]
    failed = next((part for part in missing if part.why != CONDENSED), None)
    if context.passages:
        section = retrieval.section(
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
        return Draft(Section(pieces=(retrieval.NOT_SEARCHED,), cut="never"), budget, f"degraded: {failed.why}")
    return Draft(Section(pieces=(retrieval.NOTHING_FOUND,), cut="never"), budget, "nothing relevant")
