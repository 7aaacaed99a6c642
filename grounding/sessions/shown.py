"""What a conversation's last prompt showed, so that the next one can begin with the same bytes. Pure."""

from __future__ import annotations

from typing import Literal

from pydantic import AliasChoices, Field

from grounding.blocks import PLACES, Prompt
from grounding.budgets import Strict
from grounding.run_context import ContextLine, EnvironmentInput, Injected, RunContext, SessionInput
from grounding.sessions.prefix import Stood, stood


class Shown(Strict):
    """The session up to its last turn, and what that turn was shown. Whatever of it is lost or out of date costs an
    engine some reading, and nothing else."""

    v: Literal[1] = 1
    id: str
    """The id of its first turn."""
    began_on: str
    """A day."""
    turns: int = Field(ge=1)
    """How many there were, the last one included."""
    turn_id: str
    """The last one."""
    audience: str = Field(default="", validation_alias=AliasChoices("audience", "person"))
    """Whose own lines were among those of the global context."""
    begins: str = ""
    """The turn that the tail began with."""
    document: str = ""
    """The id of the context document that the summary was made of."""
    global_context: tuple[ContextLine, ...] | None = None
    environment: EnvironmentInput | None = None
    karma_floor: tuple[str, ...] = ()
    """The turns of the good answers that stand in the session."""
    injected: tuple[Injected, ...] = ()
    """What formatters made for the session."""
    blocks: tuple[Stood, ...] = ()


def session(before: Shown | None, turn_id: str, today: str) -> SessionInput | None:
    """The session that a turn belongs to; *before* is None where it is its first. None where there is neither."""
    if before is None and not turn_id:
        return None
    if before is None:
        return SessionInput(id=turn_id, began_on=today, turns=0)
    again = before.turn_id == turn_id  # it was interrupted, and is answered anew
    return SessionInput(id=before.id, began_on=before.began_on, turns=before.turns - (1 if again else 0))


def after(
    context: RunContext,
    prompt: Prompt,
    before: Shown | None,
    audience: str | None,
    whole: RunContext | None = None,
    stands: tuple[Stood, ...] | None = None,
) -> Shown | None:
    """What is known after a turn; None where it belongs to no session. *whole* is what *context* was before anything
    was taken out of it to save memory: the next turn goes on from there, should there be memory again. *stands* is what
    `stood` says of *prompt*."""
    if context.session is None or not context.turn_id:
        return None
    blocks = stood(prompt) if stands is None else stands
    whole = whole or context
    begins = whole.tail[0].turn_id if whole.tail else ""
    document = whole.summary.id if whole.summary else ""
    if context.small_talk and before is not None:
        # Its user message is the text alone: what an engine has read before goes on to be what was shown before.
        begins, document, blocks = before.begins, before.document, _beside(blocks, before.blocks)
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
    """What is gone from it stays gone; where it could not be had, it is as it was."""
    if before is not None and any(part.block == "karma" for part in context.degraded):
        return before.karma_floor
    return tuple(trace.turn_id for trace in context.karma_floor)


def _beside(now: tuple[Stood, ...], before: tuple[Stood, ...]) -> tuple[Stood, ...]:
    """The blocks of the system message as they are *now* and, where those are the same, the others as they were."""
    return before if _of_system(before) == _of_system(now) else _of_system(now)


def _of_system(blocks: tuple[Stood, ...]) -> tuple[Stood, ...]:
    return tuple(block for block in blocks if block.system)
