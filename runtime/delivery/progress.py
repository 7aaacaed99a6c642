"""What a worker reports of an answer while it is written: that it was begun, how it grows, that it has ended.

The reports go over the hub to the process that has the connector, where `runtime.delivery.preview` shows them. All of
them may be lost; the reply itself comes by the outbox.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import TypeAdapter

from connectors.message import ConversationKey, OutboundMessage
from runtime.coordination import Hub, News

PROGRESS = "progress"
"""The hub's topic for reports."""
UNANSWERED = "superseded"
"""The hub's topic for messages that get no answer: a newer one took their place, or their workspace is gone."""
FLUSH_SECONDS = 0.05
"""How long pieces for another process are gathered: each report costs both processes a message."""
_MESSAGE = TypeAdapter(OutboundMessage)


class PreviewMode(StrEnum):
    """Whether people see an answer while it is written, and whether what they saw can be replaced."""

    NOT = ""
    ADDED_TO = "added_to"
    REPLACEABLE = "replaceable"


class Step(StrEnum):
    """What a report says."""

    BEGUN = "begun"
    DELTA = "delta"
    RESTART = "restart"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Progress:
    """One report. ``text`` is the next piece for `Step.DELTA`, ``message`` the reply without text for `Step.BEGUN`."""

    turn_id: str
    step: Step
    text: str = ""
    message: OutboundMessage | None = None

    def news(self) -> dict[str, Any]:
        """Return the report as the hub carries it."""
        message = None if self.message is None else _MESSAGE.dump_python(self.message, mode="json")
        return {"turn": self.turn_id, "what": self.step.value, "text": self.text, "message": message}

    @classmethod
    def of(cls, news: News) -> Progress:
        """Return the inverse of `news`."""
        message = None if news["message"] is None else _MESSAGE.validate_python(news["message"])
        return cls(news["turn"], Step(news["what"]), news["text"], message)


class ProgressReporter:
    """Reports to the process *to* how the reply *message* is written. ``text`` is what was written so far."""

    def __init__(self, hub: Hub, to: str, message: OutboundMessage, watched: PreviewMode) -> None:
        self._hub = hub
        self._to = to
        self._message = message
        self._pieces: list[str] = []
        self._reported = 0
        """Number of pieces that were reported."""
        self._reported_at = 0.0
        self.is_watched = watched is not PreviewMode.NOT
        """Whether anybody sees the answer grow; if not, `show` need not be called."""
        self.can_restart = watched is PreviewMode.REPLACEABLE

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    async def begin(self) -> None:
        """Report that the answer was begun."""
        await self._report(Step.BEGUN, message=self._message)

    async def show(self, delta: str) -> None:
        """Report the next piece; for another process, pieces are gathered for `FLUSH_SECONDS`."""
        self._pieces.append(delta)
        is_local = self._to == self._hub.name
        if is_local or asyncio.get_running_loop().time() - self._reported_at >= FLUSH_SECONDS:
            await self.flush()

    async def flush(self) -> None:
        """Report the gathered pieces now: no other may come for a while."""
        piece = "".join(self._pieces[self._reported :])
        if piece:
            self._reported, self._reported_at = len(self._pieces), asyncio.get_running_loop().time()
            await self._report(Step.DELTA, piece)

    async def restart(self) -> None:
        """Report that what was shown was not the answer, which begins again."""
        self._pieces.clear()
        self._reported = 0
        await self._report(Step.RESTART)

    async def end(self) -> None:
        """Report that the answer is written, or given up."""
        await self._report(Step.ENDED)

    async def _report(self, step: Step, text: str = "", message: OutboundMessage | None = None) -> None:
        progress = Progress(self._message.turn_id, step, text, message)
        await self._hub.tell(PROGRESS, progress.news(), self._to)


@asynccontextmanager
async def report_progress(
    hub: Hub, to: str, message: OutboundMessage, watched: PreviewMode
) -> AsyncIterator[ProgressReporter]:
    """Report that *message* is being written while inside, and yield the reporter."""
    reporter = ProgressReporter(hub, to, message, watched)
    await reporter.begin()
    try:
        yield reporter
    finally:
        await reporter.end()


async def notify_unanswered(
    hub: Hub, key: ConversationKey, message_ids: tuple[str, ...], *, gone: bool = False
) -> None:
    """Tell all processes that these messages get no answer: a newer one gets it, or their workspace is *gone*.

    If this is lost, the reply to the newer message says so in the end.
    """
    if message_ids:
        await hub.tell(UNANSWERED, {"key": key.encoded, "messages": message_ids, "gone": gone})
