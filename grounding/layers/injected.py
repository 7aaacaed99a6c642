"""Text made by formatters: additional blocks, or other renderings of existing blocks."""

from __future__ import annotations

from dataclasses import replace

from grounding.blocks import PLACES, Place, Volatility
from grounding.draft import Draft
from grounding.run_context import Injected, RunContext
from grounding.sections import Section, as_data


def drafts(context: RunContext, message: str) -> dict[str, Draft]:
    """Return the drafts of the additional blocks in *message*, by name."""
    return {
        one.name: Draft(Section(pieces=_lines(one.text)), one.budget, one.source, _place(one))
        for one in sorted(context.injected, key=lambda made: made.name)
        if one.name not in PLACES and one.message == message
    }


def rendered(context: RunContext, name: str, draft: Draft) -> Draft:
    """Return *draft* of the block *name* in a template's rendering, if there is one. Its head and foot stay."""
    one = next((made for made in context.injected if made.name == name), None)
    if one is None or not isinstance(draft.section, Section):
        return draft
    section = replace(draft.section, pieces=_lines(one.text), joint="\n", keep=None, cut="always", labels=())
    return Draft(section, draft.budget, f"{draft.why}, as {one.source} says it")


def _place(one: Injected) -> Place:
    behind = PLACES[one.place]
    return Place(one.name, behind.message, behind.prefix_stable, behind.user_first, Volatility(one.volatility))


def _lines(text: str) -> tuple[str, ...]:
    return tuple(as_data(text).strip().split("\n")) if text.strip() else ()
