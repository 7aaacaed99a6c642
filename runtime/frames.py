"""The frames that hold for a turn: those that ship, and what the directives of kind ``frames`` change about them."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from grounding.memory.frames.file import InvalidFrames, frames_of
from grounding.memory.frames.frame import Frames
from grounding.memory.frames.shipped import SHIPPED
from promptpolicy.slot import Directive, Kind

log = structlog.get_logger()


def frames_in(held: Sequence[Directive]) -> Frames:
    """The frames that the directives *held* make, the least specific first; the same object for the same ones."""
    changing = sorted((one for one in held if one.slot.kind is Kind.FRAMES), key=lambda one: one.slot.place.level.rank)
    try:
        return frames_of(tuple(one.text for one in changing))
    except InvalidFrames as error:
        # They were checked when they were published: by a release that knew more than this one.
        log.warning("frames.unreadable", why=str(error), **changing[-1].slot.place.ids)
        return SHIPPED
