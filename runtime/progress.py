"""What a worker tells of an answer while it is made: that it was begun, how it grows, that it is over.

All of it may be lost (`runtime.hub`); who shows it is `runtime.shows`, in the process that has the connector.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from pydantic import TypeAdapter

from connectors.message import ConversationKey, OutboundMessage
from runtime.hub import Hub, News

PROGRESS = "progress"
"""The hub's topic."""
NONE_COMES = "superseded"
"""The hub's topic for messages that get no answer: a newer one took their place, or their workspace is gone."""
What = Literal["begun", "delta", "restart", "ended"]
BEGUN: What = "begun"
DELTA: What = "delta"
RESTART: What = "restart"
ENDED: What = "ended"
FLUSH_SECONDS = 0.05
"""How long pieces for another process are gathered: each costs both processes a message."""
_MESSAGE = TypeAdapter(OutboundMessage)


class Watched(StrEnum):
    """Whether people see an answer while it is written, and whether what they saw can be replaced."""

    NOT = ""
    ADDED_TO = "added_to"
    REPLACEABLE = "replaceable"


@dataclass(frozen=True, slots=True)
class Progress:
    """One thing that is told. ``message`` is the reply without its text, where it was begun."""

    turn_id: str
    what: What
    text: str = ""
    message: OutboundMessage | None = None

    def news(self, *, within: bool) -> dict[str, Any]:
        """As it is told; *within* this process the message goes as it is."""
        message: Any = self.message
        if message is not None and not within:
            message = _MESSAGE.dump_python(message, mode="json")
        return {"turn": self.turn_id, "what": self.what, "text": self.text, "message": message}

    @classmethod
    def of(cls, news: News) -> Progress:
        """The inverse of `news`."""
        message = news["message"]
        if isinstance(message, dict):
            message = _MESSAGE.validate_python(message)
        return cls(news["turn"], news["what"], news["text"], message)


async def tell_none_comes(hub: Hub, key: ConversationKey, message_ids: tuple[str, ...], *, gone: bool = False) -> None:
    """Tell whoever waits for an answer to one of these messages, in whichever process, that a newer one gets it (if
    that is lost, the reply says so in the end), or that their workspace is *gone*."""
    if message_ids:
        await hub.tell(NONE_COMES, {"key": key.encoded, "messages": message_ids, "gone": gone})


class Telling:
    """Tells the process *to* of the reply that *message* will be. ``text`` is what was written of it so far."""

    def __init__(self, hub: Hub, to: str, message: OutboundMessage, watched: Watched) -> None:
        self._hub = hub
        self._to = to
        self._message = message
        self._within = to == hub.name
        self._pieces: list[str] = []
        self._told = 0
        self._told_at = 0.0
        self.is_watched = watched is not Watched.NOT
        """Whether anybody sees it grow; if not, `show` need not be called."""
        self.can_restart = watched is Watched.REPLACEABLE

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    async def show(self, delta: str) -> None:
        """The next piece."""
        self._pieces.append(delta)
        if self._within or asyncio.get_running_loop().time() - self._told_at >= FLUSH_SECONDS:
            await self.flush()

    async def flush(self) -> None:
        """Tell what was gathered: nothing may come for a while."""
        piece = "".join(self._pieces[self._told :])
        if piece:
            self._told, self._told_at = len(self._pieces), asyncio.get_running_loop().time()
            await self._tell(Progress(self._message.turn_id, DELTA, piece))

    async def restart(self) -> None:
        """What was shown was not the answer: it begins again."""
        self._pieces.clear()
        self._told = 0
        await self._tell(Progress(self._message.turn_id, RESTART))

    async def _tell(self, progress: Progress) -> None:
        await self._hub.tell(PROGRESS, progress.news(within=self._within), self._to)


@asynccontextmanager
async def telling(hub: Hub, to: str, message: OutboundMessage, watched: Watched) -> AsyncIterator[Telling]:
    """While inside, the people who wait for *message* are told that it is on its way."""
    told = Telling(hub, to, message, watched)
    await told._tell(Progress(message.turn_id, BEGUN, message=message))
    try:
        yield told
    finally:
        await told._tell(Progress(message.turn_id, ENDED))
