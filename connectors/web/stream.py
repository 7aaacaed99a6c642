"""What an open page is told, as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from connectors.web.channel import Channel, Subscription
from connectors.web.convert import sse

KEEP_ALIVE_SECONDS = 15.0
"""A stream carries a comment this often, so that proxies keep it open; then its session is looked at, too."""
DRAFT_SECONDS = 0.08
"""How often a growing reply is shown: as often as eyes tell apart, and more slowly the longer it is."""
DRAFT_CHARACTERS_PER_SECOND = 40_000


class OpenPage(StreamingResponse):
    """A stream of *events*. It counts among the pages of *channel* from here on: before its first event others ask."""

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
    """The events of *channel* from *cursor* on; ``reset`` first where not all of them are known any more.

    It ends when the channel is closed, when the session does not last, and once the connector is not *running* and
    no answer is awaited.
    """
    resumed = channel.resume(cursor)
    page = Subscription(channel.last if resumed is None else resumed)
    channel.subscriptions.add(page)
    try:
        if resumed is None:
            yield sse("reset", {}, channel.event_id(page.cursor))
        yield b": open\n\n"
        loop = asyncio.get_running_loop()
        drafts_at, looked_at = 0.0, loop.time()
        while True:
            page.changed.clear()
            for event in _news(channel, page):
                yield event
            patience = KEEP_ALIVE_SECONDS
            if channel.drafts and loop.time() < drafts_at:
                patience = drafts_at - loop.time()
            else:
                async for event in _progress(channel, page):
                    yield event
                drafts_at = loop.time() + _pace_seconds(channel)
            if page.closed or not (running() or channel.waits):
                return
            if loop.time() - looked_at > KEEP_ALIVE_SECONDS:
                looked_at = loop.time()
                yield b": waiting\n\n"
                if not await lasts():
                    return
            await _changed(page, patience)
    finally:
        channel.subscriptions.discard(page)


def _news(channel: Channel, page: Subscription) -> list[bytes]:
    news = []
    for number, name, data in channel.since(page.cursor):
        page.cursor = number
        news.append(sse(name, data, channel.event_id(number)))
    news += [sse("typing", {"conversation": conversation}) for conversation in page.typing]
    page.typing.clear()
    return news


async def _progress(channel: Channel, page: Subscription) -> AsyncIterator[bytes]:
    for conversation, draft in list(channel.drafts.items()):
        progress = await page.progress(conversation, draft)
        if progress is not None and channel.drafts.get(conversation) is draft:
            yield sse("draft", progress)


def _pace_seconds(channel: Channel) -> float:
    longest = max((draft.length for draft in channel.drafts.values()), default=0)
    return DRAFT_SECONDS + longest / DRAFT_CHARACTERS_PER_SECOND


async def _changed(page: Subscription, patience_seconds: float) -> None:
    try:
        async with asyncio.timeout(patience_seconds):
            await page.changed.wait()
    except TimeoutError:
        return
