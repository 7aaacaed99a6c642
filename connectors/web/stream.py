"""The stream of server-sent events to an open page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from connectors.web.channel import Channel, Subscription
from connectors.web.convert import sse

KEEP_ALIVE_SECONDS = 15.0
"""Interval between a stream's comments, which make proxies keep it open. Each time, the session is checked too."""
DRAFT_SECONDS = 0.08
"""Shortest interval between updates of a growing reply; faster ones would not be visible."""
DRAFT_CHARACTERS_PER_SECOND = 40_000
"""The interval grows by a second for each so many characters of the reply."""


class OpenPage(StreamingResponse):
    """The response with the stream of *events*.

    It counts as a page of *channel* from its creation, not only from its first event, so that many simultaneous
    requests cannot exceed the limit of pages.
    """

    def __init__(self, channel: Channel, events: AsyncIterator[bytes], headers: Mapping[str, str]) -> None:
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._channel = channel
        channel.pages += 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._channel.pages -= 1


async def stream(
    channel: Channel, cursor: str, *, running: Callable[[], bool], lasts: Callable[[], Awaitable[bool]]
) -> AsyncIterator[bytes]:
    """Yield the events of *channel* after *cursor*. Yields ``reset`` first if some of them are no longer in memory.

    Ends when the channel is closed, when the session is no longer valid (*lasts*), or when the connector is not
    *running* and no answer is expected.
    """
    resumed = channel.resume(cursor)
    page = Subscription(channel.last if resumed is None else resumed)
    channel.subscriptions.add(page)
    try:
        if resumed is None:
            yield sse("reset", {}, channel.event_id(page.cursor))
        yield b": open\n\n"
        loop = asyncio.get_running_loop()
        next_draft_at, checked_at = 0.0, loop.time()
        while True:
            page.changed.clear()
            for event in _new_events(channel, page):
                yield event
            wait_for_seconds = KEEP_ALIVE_SECONDS
            if channel.drafts and loop.time() < next_draft_at:
                wait_for_seconds = next_draft_at - loop.time()
            else:
                async for event in _progress(channel, page):
                    yield event
                next_draft_at = loop.time() + _pace_seconds(channel)
            if page.closed or not (running() or channel.waits):
                return
            if loop.time() - checked_at > KEEP_ALIVE_SECONDS:
                checked_at = loop.time()
                yield b": waiting\n\n"
                if not await lasts():
                    return
            await _wait_for_change(page, wait_for_seconds)
    finally:
        channel.subscriptions.discard(page)


def _new_events(channel: Channel, page: Subscription) -> list[bytes]:
    events = []
    for number, name, data in channel.since(page.cursor):
        page.cursor = number
        events.append(sse(name, data, channel.event_id(number)))
    events += [sse("typing", {"conversation": conversation}) for conversation in page.typing]
    page.typing.clear()
    return events


async def _progress(channel: Channel, page: Subscription) -> AsyncIterator[bytes]:
    for conversation, draft in list(channel.drafts.items()):
        progress = await page.progress(conversation, draft)
        if progress is not None and channel.drafts.get(conversation) is draft:
            yield sse("draft", progress)


def _pace_seconds(channel: Channel) -> float:
    longest = max((draft.length for draft in channel.drafts.values()), default=0)
    return DRAFT_SECONDS + longest / DRAFT_CHARACTERS_PER_SECOND


async def _wait_for_change(page: Subscription, timeout_seconds: float) -> None:
    try:
        async with asyncio.timeout(timeout_seconds):
            await page.changed.wait()
    except TimeoutError:
        return
