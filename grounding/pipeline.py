"""Gathers what one turn may need to know; the only owner of memory assembly.

What a turn is given is a list of layers (`grounding.given`); they are begun together (`grounding.gathering`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from connectors.message import ConversationKey
from grounding import given
from grounding.budgets import Budgets
from grounding.continuing import Going
from grounding.cues.english import ENGLISH
from grounding.cues.kinds import Cues
from grounding.gathering import Decides, Gathering, Layer, Message, Sources, true_error, why
from grounding.memory.frames.frame import Frames
from grounding.memory.frames.shipped import SHIPPED
from grounding.memory.karma.choosing import preferred
from grounding.recalling import as_many
from grounding.remembering import NOTHING, Remembered
from grounding.run_context import (
    Censor,
    ContextLine,
    DegradedBlock,
    Passage,
    RecalledTurn,
    SummaryInput,
    TailEntry,
    Trace,
)
from grounding.sessions.shown import Shown
from grounding.strategy import Choice

__all__ = ["Grounds", "Pipeline", "true_error", "why"]

_LAYERS: tuple[Layer[Any], ...] = (
    given.session,
    given.global_context,
    given.documents,
    given.tail,
    given.standing,
    given.reach,
    given.choice,
    given.marks,
    given.looked,
    given.passages,
    given.going,
    given.recalled,
    given.remembered,
    given.censors,
)
"""What a turn is given. Those come first that wait for no other: what they ask goes out together."""
_SMALL_TALK: tuple[Layer[Any], ...] = (
    given.session,
    given.global_context,
    given.standing,
    given.standing_marks,
    given.going_on_with_small_talk,
    given.censors,
)
"""What it is given for small talk."""


@dataclass(frozen=True, slots=True)
class Grounds:
    """What was gathered for a turn, and what was decided that it needs. ``degraded`` names the blocks that failed."""

    summary: SummaryInput | None = None
    tail: tuple[TailEntry, ...] = ()
    recalled: tuple[RecalledTurn, ...] = ()
    passages: tuple[Passage, ...] = ()
    global_context: tuple[ContextLine, ...] | None = None
    degraded: tuple[DegradedBlock, ...] = ()
    remembered: Remembered = NOTHING
    censors: tuple[Censor, ...] | None = ()
    """None where the store is away and this process never knew them: then nothing may be said yet."""
    karma_floor: tuple[Trace, ...] = ()
    karma: tuple[Trace, ...] = ()
    deltas: tuple[str, ...] = ()
    going: Going | None = None
    """How the session goes on."""
    choice: Choice | None = None

    @property
    def before(self) -> Shown | None:
        """What the last prompt showed, if the session goes on."""
        return self.going.before if self.going else None


@dataclass(frozen=True, slots=True)
class Pipeline(Sources):
    """The layers of all turns."""

    async def ground(
        self,
        key: ConversationKey,
        text: str,
        choice: Choice,
        budgets: Budgets,
        turn_id: str = "",
        history: Sequence[TailEntry] | None = None,
        audience: str | None = None,
        cues: Cues = ENGLISH,
        frames: Frames = SHIPPED,
        today: str = "",
        *,
        deciding: Decides | None = None,
    ) -> Grounds:
        """Everything that *choice*, made by *cues*, asks for, or what *deciding* makes of it: never small talk. A
        *history* given stands in for the stored one.

        *audience* is who reads the answer: what is kept is shown where it is theirs, or the workspace's. Without a
        *turn_id* nothing is stored. A layer that fails is left out and named in ``degraded``; the others come all the
        same. What breaks outside of what a layer asks is raised as it is.
        """
        message = Message(key, text, choice, budgets, turn_id, history, audience, cues, frames, today, deciding)
        try:
            async with asyncio.TaskGroup() as group:
                gathered = Gathering(self, message, group)
                gathered.begin(_SMALL_TALK if choice.small_talk else _LAYERS)
        except BaseExceptionGroup as several:
            raise true_error(several) from several
        return _of_small_talk(gathered) if choice.small_talk else _grounds(gathered)


def _of_small_talk(gathered: Gathering) -> Grounds:
    going = gathered.of(given.going_on_with_small_talk).result()
    return Grounds(
        global_context=going.settled.global_context,
        degraded=_by_block(gathered.degraded),
        censors=gathered.of(given.censors).result(),
        karma_floor=gathered.of(given.standing_marks).result().floor,
        going=going,
        choice=gathered.message.first,
    )


def _grounds(gathered: Gathering) -> Grounds:
    going, marks = gathered.of(given.going).result(), gathered.of(given.marks).result()
    settled, found = going.settled, gathered.of(given.recalled).result()
    recalled = tuple(as_many(preferred(found, marks.turns), gathered.message.budgets.records_tokens))
    return Grounds(
        settled.summary,
        settled.tail,
        recalled,
        gathered.of(given.passages).result(),
        settled.global_context,
        remembered=gathered.of(given.remembered).result(),
        degraded=_by_block(gathered.degraded),
        censors=gathered.of(given.censors).result(),
        karma_floor=marks.floor,
        karma=marks.chosen({one.turn_id for one in settled.tail} | {one.turn_id for one in recalled}),
        deltas=settled.deltas,
        going=going,
        choice=gathered.of(given.choice).result(),
    )


def _by_block(degraded: Sequence[DegradedBlock]) -> tuple[DegradedBlock, ...]:
    return tuple(sorted(degraded, key=lambda part: part.block))
