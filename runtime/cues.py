"""The cues that hold for a turn: those that ship, and what the directives of kind ``cues`` change about them."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from grounding.cues.english import ENGLISH
from grounding.cues.file import InvalidCues, cues_of
from grounding.cues.kinds import Cues
from promptpolicy.slot import Directive, Kind

log = structlog.get_logger()


def cues_in(held: Sequence[Directive]) -> Cues:
    """The cues that the directives *held* make, the least specific first; always the same object for the same ones."""
    changing = sorted((one for one in held if one.slot.kind is Kind.CUES), key=lambda one: one.slot.place.level.rank)
    try:
        return cues_of(tuple(one.text for one in changing))
    except InvalidCues as error:
        # They were checked when they were published: by a release that knew more than this one.
        log.warning("cues.unreadable", why=str(error), **changing[-1].slot.place.ids)
        return ENGLISH
