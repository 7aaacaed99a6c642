"""People who talk to a bot over HTTP, in a process of their own (see `bench.children`)."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from bench.bots import TOKEN
from bench.children import obey

TIMEOUT_SECONDS = 120


@dataclass
class Talk:
    """What came of it: of each answered message when it was sent and when its answer was there, by the monotonic
    clock. ``wrong`` are the first few answers that were none."""

    spans: list[tuple[float, float]] = field(default_factory=list)
    asked: int = 0
    seconds: float = 0.0
    cpu_ms: float = 0.0
    wrong: list[str] = field(default_factory=list)

    async def say(self, session: aiohttp.ClientSession, url: str, text: str, place: str, stream: bool) -> None:
        body = {"text": text, "context": place, "author": {"id": place, "name": "Ann"}}
        headers = {"Accept": "text/event-stream"} if stream else {}
        self.asked += 1
        started = time.monotonic()
        async with session.post(f"{url}/v1/workspaces/sample/messages", json=body, headers=headers) as response:
            answer = await response.text()
        ended = time.monotonic()
        if response.status == 200 and _said(answer, stream):
            self.spans.append((started, ended))
        elif len(self.wrong) < 3:
            self.wrong.append(f"{response.status} {answer[:300]}")


def _said(answer: str, stream: bool) -> bool:
    """Whether there is a text in it, and no apology."""
    if stream:
        _, _, done = answer.partition("event: done\ndata: ")
        answer = done.partition("\n")[0] or "{}"
    found: dict[str, Any] = json.loads(answer)
    return bool(found.get("text")) and not found.get("error_code")


async def talk(
    url: str, text: str, turns: int, places: list[str], stream: bool = False, pause_seconds: float = 0.0
) -> dict[str, Any]:
    """In each of *places* at once, *turns* messages one after the other. ``{n}`` in *text* is the message's number."""
    came = Talk()
    started, computed = time.monotonic(), time.process_time()
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, headers=headers, connector=connector) as session:

        async def one(place: str) -> None:
            for number in range(turns):
                await came.say(session, url, text.format(n=number), place, stream)
                if pause_seconds:
                    await asyncio.sleep(pause_seconds)

        async with asyncio.TaskGroup() as tasks:
            for place in places:
                tasks.create_task(one(place))
    came.seconds = time.monotonic() - started
    came.cpu_ms = (time.process_time() - computed) * 1000
    return vars(came)


async def first(url: str, text: str) -> float:
    """Say *text* until it is answered, however early that is; when that was, by the monotonic clock."""
    came = Talk()
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session:
        while not came.spans:
            try:
                await came.say(session, url, text, "first", False)
            except aiohttp.ClientError:
                await asyncio.sleep(0.01)
    return came.spans[0][1]


if __name__ == "__main__":
    sys.exit(asyncio.run(obey({"talk": talk, "first": first})))
