"""Server-sent events."""

import asyncio
from typing import Any

from runtime.http.sse import Emit, EventResponse


async def test_who_has_gone_is_sent_no_more_though_there_is_plenty_to_send() -> None:
    gone = asyncio.Event()
    sent: list[Any] = []

    async def produce(emit: Emit) -> None:
        for number in range(1000):
            await emit("one", {"number": number})

    async def receive() -> Any:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)
        if len(sent) == 3:  # the beginning, and two events
            gone.set()

    async with asyncio.timeout(5):
        await EventResponse(produce, asyncio.Event())({"type": "http"}, receive, send)
    assert 3 <= len(sent) < 20
