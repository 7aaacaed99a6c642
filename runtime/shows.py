"""Shows people that an answer is on its way and how it grows, by the connectors of this process.

What workers tell (`runtime.progress`) may be lost; the reply itself comes by the outbox.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple, cast

import structlog

from connectors.connector import (
    AppendsText,
    Connector,
    EditsMessages,
    LetsGo,
    Reacts,
    ShowsTyping,
    StreamsText,
)
from connectors.message import ConversationKey, OutboundMessage
from runtime.hub import Hub, News
from runtime.part_states import PartStates
from runtime.preview import Appending, Growing, Passing, Preview
from runtime.progress import BEGUN, ENDED, NONE_COMES, PROGRESS, Progress, Watched
from runtime.rate_limiter import RateLimiters
from runtime.signs import Signs

SILENT_SECONDS = 120.0
"""A worker that tells nothing for so long will not tell any more."""
_FINISH_SECONDS = 40.0
_REMEMBERED = 4096
_log = structlog.get_logger()


class _Show(NamedTuple):
    queue: asyncio.Queue[Progress]
    task: asyncio.Task[None]
    signs: Signs

    async def over(self, seconds: float) -> None:
        """Wait until the platform is not called any more, but no longer than so many *seconds*."""
        await asyncio.wait({self.task}, timeout=seconds)
        await self.signs.over()


class Shows:
    """The answers that are on their way. *acknowledgement* is an emoji that is put on the messages, or empty."""

    def __init__(
        self,
        connectors: Mapping[str, Connector],
        states: PartStates,
        rate_limiters: RateLimiters,
        hub: Hub,
        *,
        streams: bool = True,
        acknowledgement: str = "",
    ) -> None:
        self._connectors = connectors
        self._states = states
        self._rate_limiters = rate_limiters
        self._streams = streams
        self._acknowledgement = acknowledgement
        self._shows: dict[str, _Show] = {}
        self._adding: dict[str, bool] = {}
        """By connector: whether it streams text."""
        self._over: OrderedDict[str, None] = OrderedDict()
        """Turns whose reply is being delivered or was: news of how it was written may come after it."""
        self._open = False
        hub.hear(PROGRESS, self._hear)
        hub.hear(NONE_COMES, self._hear_none_comes)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """While inside, what workers tell is shown."""
        self._open = True
        try:
            yield
        finally:
            self._open = False
            tasks = {show.task for show in self._shows.values()}
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=1.0)

    def watched(self, connector: Connector, message: OutboundMessage) -> Watched:
        """Whether people would see the answer that *message* will be while it is written."""
        adds = self._adding.get(connector.name)
        if adds is None:  # to find out what a connector can takes as long as all else here
            adds = self._adding[connector.name] = isinstance(connector, StreamsText)
        if adds:
            is_watched = cast("StreamsText", connector).is_watched(message.key, message.answers)
            return Watched.ADDED_TO if is_watched else Watched.NOT
        edits = isinstance(connector, EditsMessages) and connector.capabilities.edits_per_second > 0
        return Watched.REPLACEABLE if self._streams and edits else Watched.NOT

    async def finish(self, turn_id: str) -> None:
        """End the show of a turn, and let none begin: its reply is to be delivered."""
        self._over[turn_id] = None
        if len(self._over) > _REMEMBERED:
            self._over.popitem(last=False)
        show = self._shows.get(turn_id)
        if show is None:
            return
        show.queue.put_nowait(Progress(turn_id, ENDED))
        await show.over(_FINISH_SECONDS)

    def _hear(self, news: News) -> None:
        progress = Progress.of(news)
        show = self._shows.get(progress.turn_id)
        if progress.what == BEGUN and progress.message is not None:
            if self._open and progress.turn_id not in self._over:
                self._begin(progress.turn_id, progress.message, show)
        elif show is not None:
            show.queue.put_nowait(progress)

    def _hear_none_comes(self, news: News) -> None:
        key = ConversationKey.decode(news["key"])
        connector = self._connectors.get(key.connector)
        if isinstance(connector, LetsGo):
            connector.let_go(key, tuple(news["messages"]), gone=news.get("gone", False))

    def _begin(self, turn_id: str, message: OutboundMessage, before: _Show | None) -> None:
        """Show the answer that *message* will be, once the show of the turn *before* this one has ended."""
        if before is not None:
            before.queue.put_nowait(Progress(turn_id, ENDED))
        connector = self._connectors.get(message.key.connector)
        if connector is None:
            return
        preview = self._preview(connector, message)
        has_signs = isinstance(connector, ShowsTyping) or (self._acknowledgement and isinstance(connector, Reacts))
        if preview is None and not has_signs:
            return
        queue: asyncio.Queue[Progress] = asyncio.Queue()
        signs = Signs(connector, message, self._rate_limiters.of(connector), self._acknowledgement)

        async def show() -> None:
            if before is not None:
                await asyncio.wait({before.task}, timeout=_FINISH_SECONDS)
            await self._show(signs, preview, queue)

        task = asyncio.create_task(show(), name=f"show of {turn_id}")
        self._shows[turn_id] = _Show(queue, task, signs)
        task.add_done_callback(lambda ended: self._ended(turn_id, ended))

    def _ended(self, turn_id: str, task: asyncio.Task[None]) -> None:
        show = self._shows.get(turn_id)
        if show is not None and show.task is task:
            del self._shows[turn_id]

    def _preview(self, connector: Connector, message: OutboundMessage) -> Preview | None:
        if self.watched(connector, message) is Watched.NOT:
            return None
        if isinstance(connector, StreamsText):
            return Passing(connector, message)
        if isinstance(connector, AppendsText) and connector.appends(message):
            return Appending(connector, message, self._states, self._rate_limiters.of(connector))
        return Growing(connector, message, self._states, self._rate_limiters.of(connector))

    async def _show(self, signs: Signs, preview: Preview | None, queue: asyncio.Queue[Progress]) -> None:
        signs.begin()
        try:
            if preview is None:
                await _until_ended(queue)
            else:
                async with preview.shown():
                    await _show_all(preview, queue)
                    signs.end()
        except Exception:  # noqa: BLE001 - a broken show must not cost the reply; it is logged whole
            _log.exception("preview.ended", why="internal")
        finally:
            await signs.over()


async def _until_ended(queue: asyncio.Queue[Progress]) -> None:
    while True:
        if (await _next(queue)).what == ENDED:
            return


async def _show_all(preview: Preview, queue: asyncio.Queue[Progress]) -> None:
    while True:
        progress = await _next(queue)
        match progress.what:
            case "delta":
                await preview.show(progress.text)
            case "restart" if preview.restart is not None:
                await preview.restart()
            case "ended":
                return


async def _next(queue: asyncio.Queue[Progress]) -> Progress:
    try:
        async with asyncio.timeout(SILENT_SECONDS):
            return await queue.get()
    except TimeoutError:
        return Progress("", ENDED)
