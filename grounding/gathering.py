"""How the layers of one turn are gathered: all of them side by side, each once, each within its time.

A layer is a function of the `Gathering`. It reads from the `Sources`, and waits for the layers that it needs with
`Gathering.of`; what it asks of a store goes through `Gathering.bounded`, so that one that fails is named and left out
while the others come all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import structlog

from connectors.message import AgentRuntimeError, ConversationKey, Scope
from grounding.budgets import Budgets
from grounding.continuing import Continuing
from grounding.cues.kinds import Cues
from grounding.memory.frames.frame import Frames
from grounding.memory.global_context import GlobalContexts
from grounding.memory.karma.reading import Karma
from grounding.recalling import RecallsTurns
from grounding.remembering import Remembering
from grounding.run_context import DegradedBlock, Passage, TailEntry
from grounding.strategy import Choice
from grounding.transcript.log import Transcript

T = TypeVar("T")
Layer = Callable[["Gathering"], Coroutine[Any, Any, T]]
"""What a turn is given of one kind."""
Said = Callable[[], Awaitable[Sequence[TailEntry]]]
"""What was said last, as soon as it is known."""
Decides = Callable[[Said], Awaitable[Choice]]
"""Decides what a message needs that the cues leave open."""
_log = structlog.get_logger()


class FindsPassages(Protocol):
    """Finds what the workspace's documents say."""

    async def passages(
        self,
        scope: Scope,
        query: str,
        top_k: int,
        excerpt_bytes: int,
        max_tokens: int,
        *,
        lost: list[DegradedBlock],
        earlier: Sequence[str],
    ) -> Sequence[Passage]:
        """At most *top_k* relevant passages of *excerpt_bytes* bytes each and *max_tokens* tokens together, labels
        included, the best first; none where nothing is relevant. *lost* is given what could not be had while the rest
        answered. *earlier* is what people said just before, the oldest first: *query* may lean on it."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the layers come from. ``timeout_seconds`` bounds what each of them asks."""

    transcript: Transcript
    continuing: Continuing
    global_contexts: GlobalContexts
    documents: FindsPassages
    turns: RecallsTurns
    timeout_seconds: float
    remembering: Remembering | None = None
    """None where no records are kept."""
    karma: Karma | None = None
    """None where nothing is marked."""


@dataclass(frozen=True, slots=True)
class Message:
    """What layers are gathered for; see `grounding.pipeline.Pipeline.ground`. ``first`` is what the cues chose."""

    key: ConversationKey
    text: str
    first: Choice
    budgets: Budgets
    turn_id: str
    history: Sequence[TailEntry] | None
    audience: str | None
    cues: Cues
    frames: Frames
    today: str
    deciding: Decides | None


class Gathering:
    """The layers of one message while they are gathered, as tasks of *group*."""

    def __init__(self, sources: Sources, message: Message, group: asyncio.TaskGroup) -> None:
        self.sources = sources
        self.message = message
        self.degraded: list[DegradedBlock] = []
        self._group = group
        self._begun: dict[Layer[Any], asyncio.Task[Any]] = {}

    def begin(self, layers: Iterable[Layer[Any]]) -> None:
        """Begin all of *layers*, in their order."""
        for layer in layers:
            self.of(layer)

    def of(self, layer: Layer[T]) -> asyncio.Task[T]:
        """*layer*, which begins now if nobody has begun it. Who waits for it within a time of their own has to shield
        it: it is not theirs to give up."""
        task = self._begun.get(layer)
        if task is None:
            task = self._begun[layer] = self._group.create_task(layer(self))
        return task

    async def bounded(
        self, block: str, get: Callable[[], Awaitable[T]], lost: list[DegradedBlock] | None = None
    ) -> T | None:
        """What *get* gives in time; None where it fails, and then *lost* (the turn's ``degraded``) names *block*."""
        named = self.degraded if lost is None else lost
        try:
            async with asyncio.timeout(self.sources.timeout_seconds):
                return await get()
        except TimeoutError:
            named.append(DegradedBlock(block=block, why="timeout"))
        except AgentRuntimeError as error:
            named.append(DegradedBlock(block=block, why=why(error)))
        except Exception as error:  # noqa: BLE001 - a lost layer degrades the turn, whatever broke it
            _log.exception("layer.failed", block=block)
            named.append(DegradedBlock(block=block, why=why(error)))
        return None


def true_error(several: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error that ended a group of tasks, by whose class callers know what to do."""
    found: BaseException = several
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


def why(error: BaseException) -> str:
    """An error's class as a word of metrics: ``IndexUnavailable`` is ``index_unavailable``."""
    name = type(error).__name__
    return "".join("_" + letter.lower() if letter.isupper() else letter for letter in name).lstrip("_")
