"""What a conversation's last prompt showed, so that the next one can begin with the same bytes. Pure."""

from __future__ import annotations

from typing import Literal

from pydantic import AliasChoices, Field

from grounding.blocks import PLACES, Prompt
from grounding.budgets import Strict
from grounding.run_context import ContextLine, EnvironmentInput, Injected, RunContext, SessionInput
from grounding.sessions.prefix import Stood, stood


class Shown(Strict):
    """The session up to its last turn, and what that turn's prompt showed.

    If it is lost or out of date, an engine only has to read more tokens again.
    """

    v: Literal[1] = 1
    id: str
    """The id of its first turn."""
    began_on: str
    """A day."""
    turns: int = Field(ge=1)
    """The number of turns, including the last."""
    turn_id: str
    """The last turn."""
    audience: str = Field(default="", validation_alias=AliasChoices("audience", "person"))
    """The audience whose lines were among the global context."""
    begins: str = ""
    """The first turn of the tail."""
    document: str = ""
    """The id of the context document in the summary."""
    global_context: tuple[ContextLine, ...] | None = None
    environment: EnvironmentInput | None = None
    karma_floor: tuple[str, ...] = ()
    """The turns of the good answers that stay for the session."""
    injected: tuple[Injected, ...] = ()
    """The texts that formatters made for the session."""
    blocks: tuple[Stood, ...] = ()


def session(before: Shown | None, turn_id: str, today: str) -> SessionInput | None:
    """Return the session of a turn. *before* is None for its first turn. None if there is neither."""
    if before is None and not turn_id:
        return None
    if before is None:
        return SessionInput(id=turn_id, began_on=today, turns=0)
    again = before.turn_id == turn_id  # the turn was interrupted and is answered again
    return SessionInput(id=before.id, began_on=before.began_on, turns=before.turns - (1 if again else 0))


def after(
    context: RunContext,
    prompt: Prompt,
    before: Shown | None,
    audience: str | None,
    whole: RunContext | None = None,
    stands: tuple[Stood, ...] | None = None,
) -> Shown | None:
    """Return the state of the session after a turn; None if the turn belongs to no session.

    *whole* is *context* before parts were dropped to save memory; the next turn starts from it. *stands* are the
    fingerprints of *prompt*, if known.
    """
    if context.session is None or not context.turn_id:
        return None
    blocks = stood(prompt) if stands is None else stands
    whole = whole or context
    begins = whole.tail[0].turn_id if whole.tail else ""
    document = whole.summary.id if whole.summary else ""
    if context.small_talk and before is not None:
        # The user message of small talk is only its text, so the next turn reuses the prompt before it.
        begins, document, blocks = before.begins, before.document, _combined(blocks, before.blocks)
    return Shown(
        id=context.session.id,
        began_on=context.session.began_on,
        turns=context.session.turns + 1,
        turn_id=context.turn_id,
        audience=audience or "",
        begins=begins,
        document=document,
        global_context=context.global_context,
        environment=context.environment,
        karma_floor=_standing(context, before),
        injected=tuple(one for one in context.injected if one.name not in PLACES and one.volatility == "session"),
        blocks=blocks,
    )


def _standing(context: RunContext, before: Shown | None) -> tuple[str, ...]:
    """Return the standing good answers. Deleted ones stay away; if karma was unavailable, the list does not change."""
    if before is not None and any(part.block == "karma" for part in context.degraded):
        return before.karma_floor
    return tuple(trace.turn_id for trace in context.karma_floor)


def _combined(now: tuple[Stood, ...], before: tuple[Stood, ...]) -> tuple[Stood, ...]:
    """Return the system blocks of *now*, with the other blocks of *before* if the system blocks are the same."""
    return before if _of_system(before) == _of_system(now) else _of_system(now)


def _of_system(blocks: tuple[Stood, ...]) -> tuple[Stood, ...]:
    return tuple(block for block in blocks if block.system)
