"""Everything around a bot: the model server, people over HTTP, the emulated platforms. Each is a process of its own.

``python -m bench.actors model|people|platforms`` runs one as a child (see `bench.processes`).
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import aiohttp

from bench.processes import TOKEN, Child, Command, child, obey
from tests.emulators import openai
from tests.emulators.play.discord import DiscordPlay
from tests.emulators.play.slack import SlackPlay
from tests.emulators.play.telegram import TelegramPlay
from tests.emulators.play.world import Crew
from tests.emulators.telegram import Person

MESSAGES = {
    "small talk": "thanks!",
    "none": "what is the tallest lighthouse in the world, number {n}?",
    "tail": "as we discussed, what was it again, number {n}?",
    "qmd": "what does the refund policy say about windows, number {n}?",
}
"""What people say, by the strategy that it asks for. ``{n}`` is the message's number."""
CHUNK_CHARACTERS = 5
"""Of each piece of a streamed reply."""
TIMEOUT_SECONDS = 120
REPLY_SECONDS = 60.0
FIRST_PERSON = 5001
Spans = list[tuple[float, float]]
"""Of each turn two times by the monotonic clock, which all processes share."""


# The model server


@asynccontextmanager
async def model_server() -> AsyncIterator[tuple[Child, str]]:
    """The process, and the base URL of what it serves. It answers at once, and notes when."""
    async with child("bench.actors", "model") as process:
        yield process, await process.ask("start")


class _ModelServer:
    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._chunks = 1
        self._times: Spans = []
        self._last: dict[str, Any] = {}
        self._asked = 0

    async def start(self) -> str:
        fake = await self._stack.enter_async_context(openai.serving())
        self._fake = fake
        fake.answer, fake.timed = self._answer, self._timed
        return fake.base_url

    def _answer(self, body: dict[str, Any]) -> str:
        self._fake.requests[:] = [body]  # nothing is looked through that grows with the run
        self._asked += 1
        words = f"{self._asked % 10**CHUNK_CHARACTERS:0{CHUNK_CHARACTERS}}"
        return words + " word" * (self._chunks - 1)

    def _timed(self, body: dict[str, Any], started: float) -> None:
        if not openai.in_background(body):
            self._times.append((started, time.monotonic()))
            self._last = body

    async def chunks(self, count: int) -> None:
        """From now on replies have so many pieces."""
        self._chunks = count

    async def times(self) -> Spans:
        """When each request for a reply came and was answered, since the last time."""
        times, self._times = self._times, []
        return times

    async def last(self) -> dict[str, Any]:
        """The newest request for a reply."""
        return self._last

    def commands(self) -> dict[str, Command]:
        return {"start": self.start, "chunks": self.chunks, "times": self.times, "last": self.last}


# People over HTTP


@dataclass
class Talk:
    """What came of messages: of each answered one when it was sent and when its answer was there. ``wrong`` are the
    first few answers that were none."""

    spans: Spans = field(default_factory=list)
    asked: int = 0
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)

    async def say(self, session: aiohttp.ClientSession, url: str, text: str, place: str, stream: bool) -> None:
        body = {"text": text, "context": place, "author": {"id": place, "name": "Ann"}}
        headers = {"Accept": "text/event-stream"} if stream else {}
        self.asked += 1
        started = time.monotonic()
        async with session.post(f"{url}/v1/workspaces/sample/messages", json=body, headers=headers) as response:
            answer = await response.text()
        ended = time.monotonic()
        if response.status == 200 and is_reply(answer, stream):
            self.spans.append((started, ended))
        elif len(self.wrong) < 3:
            self.wrong.append(f"{response.status} {answer[:300]}")


def is_reply(answer: str, stream: bool) -> bool:
    """Whether the body of an answer has a text, and no apology."""
    if stream:
        _, _, done = answer.partition("event: done\ndata: ")
        answer = done.partition("\n")[0] or "{}"
    found: dict[str, Any] = json.loads(answer)
    return bool(found.get("text")) and not found.get("error_code")


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS),
        headers={"Authorization": f"Bearer {TOKEN}"},
        connector=aiohttp.TCPConnector(limit=0),
    )


async def _talk(
    url: str, texts: list[str], turns: int, places: list[str], stream: bool = False, every_seconds: float = 0.0
) -> dict[str, Any]:
    """In each of *places* at once, *turns* messages one after the other, at most one in so many seconds: the *texts* in
    turn."""
    came = Talk()
    started = time.monotonic()
    async with _session() as session:

        async def one(place: str) -> None:
            for number in range(turns):
                due = time.monotonic() + every_seconds
                await came.say(session, url, texts[number % len(texts)].format(n=number), place, stream)
                await asyncio.sleep(max(0.0, due - time.monotonic()))

        async with asyncio.TaskGroup() as tasks:
            for place in places:
                tasks.create_task(one(place))
    came.seconds = time.monotonic() - started
    return asdict(came)


async def _first(url: str, text: str) -> float:
    """Say *text* until it is answered, however early that is; when that was, by the monotonic clock."""
    came = Talk()
    async with _session() as session:
        while not came.spans:
            try:
                await came.say(session, url, text, "first", False)
            except aiohttp.ClientError:
                await asyncio.sleep(0.01)
    return came.spans[0][1]


# Platforms, and people on Telegram


@asynccontextmanager
async def platforms(*names: str) -> AsyncIterator[tuple[Child, dict[str, str]]]:
    """The process, and the settings by which a bot finds the platforms called *names*."""
    async with child("bench.actors", "platforms") as process:
        yield process, await process.ask("start", names=names)


class _Platforms:
    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        crew = Crew()
        on_telegram = TelegramPlay(crew)
        self._plays: dict[str, SlackPlay | TelegramPlay | DiscordPlay] = {
            "slack": SlackPlay(crew),
            "telegram": on_telegram,
            "discord": DiscordPlay(crew),
        }
        self._telegram = on_telegram.emulator
        self._telegram.on_text = self._note_reply
        self._whole_characters = 0
        self._replied: defaultdict[int, asyncio.Queue[float]] = defaultdict(asyncio.Queue)
        """By chat: when each whole reply was there."""

    async def start(self, names: list[str]) -> dict[str, str]:
        for name in names:
            await self._stack.enter_async_context(self._plays[name])
        return {key: value for name in names for key, value in self._plays[name].environment().items()}

    async def talk(self, text: str, turns: int, people: int, characters: int, first: int) -> list[Spans]:
        """So many *people* on Telegram, from number *first* on, write at once: *turns* messages each, each once the
        last reply has *characters*. Of each person, when messages were queued and when their replies were whole."""
        self._whole_characters = characters

        async def one(number: int) -> Spans:
            person = Person(FIRST_PERSON + number, "Ann")
            return [await self._say(text.format(n=turn), person) for turn in range(turns)]

        return await asyncio.gather(*(one(first + number) for number in range(people)))

    async def _say(self, text: str, by: Person) -> tuple[float, float]:
        started = time.monotonic()
        await self._telegram.say(text, by=by)
        async with asyncio.timeout(REPLY_SECONDS):
            whole_at = await self._replied[by.id].get()
        self._telegram.drop_confirmed()
        return started, whole_at

    def _note_reply(self, chat_id: int, text: str) -> None:
        if len(text) >= self._whole_characters:
            self._replied[chat_id].put_nowait(time.monotonic())


async def _main(name: str) -> None:
    async with AsyncExitStack() as stack:
        model, there = _ModelServer(stack), _Platforms(stack)
        commands: dict[str, dict[str, Command]] = {
            "model": model.commands(),
            "people": {"talk": _talk, "first": _first},
            "platforms": {"start": there.start, "talk": there.talk},
        }
        await obey(commands[name])


if __name__ == "__main__":
    sys.exit(asyncio.run(_main(sys.argv[1])))
