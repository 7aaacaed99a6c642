"""Many people talk on every platform while processes are killed; afterwards it is counted what came of every message.

Each message says ``ask c7m2``; the emulated model answers with words, and at the very end ``done c7m2``. What people
see that holds no ``done`` is what is left of a preview, which is no reply.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import socket
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import httpx
from redis.asyncio import Redis

from connectors.message import ConversationKey, StoreUnavailable
from grounding.transcript import EntryRole, Transcript
from runtime import stores
from runtime.coordination import WorkStreams
from runtime.delivery.outbox import PartStage, PartState, streams_of
from runtime.turns.batch import Lane
from runtime.turns.mailbox import Mailbox
from tests.emulators import discord as discord_emulator
from tests.emulators import openai
from tests.emulators import slack as slack_emulator
from tests.emulators import telegram as telegram_emulator
from tests.emulators.crew import ADMIN, Crew

Platform = Literal["telegram", "slack", "discord", "http"]
PLATFORMS: tuple[Platform, ...] = ("telegram", "slack", "discord", "http")
LEASE_SECONDS = 2
_ASKED = re.compile(r"^ask (c\d+m\d+)", re.MULTILINE)
_DONE = re.compile(r"done (c\d+m\d+)")
_FILLING = "Let me see what I can find about that, it will not take long at all. "
_WORKSPACE = "sample"


@dataclass
class Conversation:
    """One person and the bot: what was said so far, and what the bot said, both oldest first."""

    number: int
    platform: Platform
    said: list[str] = field(default_factory=list)
    heard: list[str] = field(default_factory=list)
    """Over HTTP: the texts of the answers."""

    @property
    def next(self) -> str:
        return f"c{self.number}m{len(self.said)}"


@dataclass
class Outcome:
    """What came of everything. Each is a list of messages, or of conversations, by their marks."""

    said: int = 0
    lost: list[str] = field(default_factory=list)
    """Said, and not in the log, or not answered there."""
    out_of_order: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    """Answered twice, on a platform that can tell or in the log."""
    doubled_untold: list[str] = field(default_factory=list)
    """Shown twice where the platform cannot tell."""
    unseen: list[str] = field(default_factory=list)
    """In the log, and never shown to anybody."""
    ambiguous: int = 0
    """Parts of which nobody knows whether they were sent."""
    left_over: int = 0
    """First words of a reply that stayed behind."""
    kills: Counter[str] = field(default_factory=Counter)
    asked: int = 0
    """Requests that the model got."""

    def __str__(self) -> str:
        figures = {
            "said": self.said,
            "lost": len(self.lost),
            "out of order": len(self.out_of_order),
            "doubled": len(self.doubled),
            "shown twice where the platform cannot tell": len(self.doubled_untold),
            "ambiguous": self.ambiguous,
            "of them never seen": len(self.unseen),
            "left over from previews": self.left_over,
            "model requests": self.asked,
        }
        wrong = {"lost": self.lost, "out of order": self.out_of_order, "doubled": self.doubled, "unseen": self.unseen}
        killed = ", ".join(f"{name} {times}x" for name, times in sorted(self.kills.items()))
        return "\n".join(
            [
                *(f"{name:>44}: {figure}" for name, figure in figures.items()),
                *(f"{name}: {', '.join(marks)}" for name, marks in wrong.items() if marks),
                f"killed: {killed}",
            ]
        )


def answer(body: dict[str, Any]) -> str:
    """Words, and then which messages they answer."""
    user = next(message["content"] for message in reversed(body["messages"]) if message["role"] == "user")
    marks = _ASKED.findall(user if isinstance(user, str) else user[0]["text"])
    return _FILLING + ", ".join(f"done {mark}" for mark in marks) + "."


class Storm:
    """People, platforms, a model and the processes between them. Made by `storm`."""

    def __init__(
        self,
        crew: Crew,
        redis: Redis,
        model: openai.FakeOpenAI,
        telegram: telegram_emulator.TelegramEmulator,
        slack: slack_emulator.SlackEmulator,
        discord: discord_emulator.DiscordEmulator,
        conversations: list[Conversation],
        http_port: int,
        seed: int,
    ) -> None:
        self.crew = crew
        self.redis = redis
        self.conversations = conversations
        self.kills: Counter[str] = Counter()
        self.chance = random.Random(seed)
        self.model = model
        self.own_settings: defaultdict[str, dict[str, str]] = defaultdict(dict)
        """By process: what only that one is told."""
        self.telegram = telegram
        self.slack = slack
        self.discord = discord
        self._http_port = http_port
        self._client = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{http_port}", headers={"Authorization": f"Bearer {ADMIN}"}, timeout=30
        )
        self._transcript = Transcript(redis)

    # The processes

    def start_gateway(self) -> None:
        self.crew.start("gateway", "gateway", HTTP_PORT=str(self._http_port), **self.own_settings["gateway"])

    def start_worker(self, number: int) -> None:
        name = f"worker-{number}"
        self.crew.start(name, "worker", **self.own_settings[name])

    def kill_worker(self, number: int) -> None:
        self.crew.kill(f"worker-{number}")
        self.kills["worker"] += 1

    def kill_gateway(self) -> None:
        self.crew.kill("gateway")
        self.kills["gateway"] += 1

    async def ready(self, *names: str) -> None:
        """Wait until the gateway takes messages on all platforms, and the processes called *names* serve."""
        for name in names or ("gateway",):
            await self.crew.told(name, "http.listening")
        await self.discord.until(lambda discord: discord.has_session, 60)
        await self.slack.until(lambda slack: slack.sockets > 0, 60)

    async def at_work(self, name: str, seconds: float) -> None:
        """Wait until the process called *name* has done something since it was started last: a worker has answered, a
        gateway has delivered; at most so many *seconds*."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.crew.has_told(name, "reply.delivered" if name == "gateway" else "turn.answered")

    # The people

    async def say(self, one: Conversation) -> None:
        """The next message of a conversation; over HTTP until it is answered."""
        mark = one.next
        one.said.append(mark)
        text = f"ask {mark}"
        match one.platform:
            case "telegram":
                await self.telegram.say(text, by=telegram_emulator.Person(one.number, f"P{one.number}"))
            case "slack":
                self.slack.say(text, by=slack_emulator.Person(f"U{one.number}", f"P{one.number}"))
            case "discord":
                person = discord_emulator.Person(one.number, f"P{one.number}")
                await self.discord.say(f"{self.discord.at_bot} {text}", by=person, to=room(one.number))
            case "http":
                one.heard.append(await self._ask(one, text, mark))

    async def _ask(self, one: Conversation, text: str, mark: str) -> str:
        body = {"text": text, "context": f"c{one.number}", "author": {"id": f"p{one.number}", "name": "Ann"}}
        while True:
            try:
                response = await self._client.post(
                    f"/v1/workspaces/{_WORKSPACE}/messages", json=body, headers={"Idempotency-Key": mark}
                )
                if response.status_code == 200:
                    return str(response.json()["text"])
                assert response.status_code in (409, 429, 503, 504), response.text
            except httpx.TransportError:
                pass  # the gateway is gone, or was while it answered: that is what the key is for
            await asyncio.sleep(0.2)

    async def talk(self, messages: int, wait_seconds: tuple[float, float]) -> None:
        """Every person says so many messages more, mostly without waiting for what the bot says."""
        async with asyncio.TaskGroup() as people:
            for one in self.conversations:
                pauses = [self.chance.uniform(*wait_seconds) for _ in range(messages)]
                people.create_task(self._talk(one, pauses))

    async def _talk(self, one: Conversation, pauses: list[float]) -> None:
        for seconds in pauses:
            await asyncio.sleep(seconds)
            await self.say(one)

    # What came of it

    async def recorded(self) -> None:
        """Wait until everything that was said is in the log. A store that is away is waited for."""
        while True:
            with contextlib.suppress(StoreUnavailable):
                logged = {mark for marks in (await self._logged(EntryRole.INBOUND)).values() for mark in marks}
                if all(mark in logged for one in self.conversations for mark in one.said):
                    return
            await asyncio.sleep(0.3)

    async def settled(self) -> None:
        """Wait until everything is recorded, and nothing waits to be answered or delivered."""
        await self.recorded()
        mailbox = Mailbox(self.redis, Lane.TURNS)
        waiting = WorkStreams(self.redis)
        while True:
            with contextlib.suppress(StoreUnavailable):
                if not await mailbox.ready() and not await waiting.all(streams_of(PLATFORMS[:3])):
                    return
            await asyncio.sleep(0.1)

    async def outcome(self) -> Outcome:
        """What came of everything that was said."""
        found = Outcome(said=sum(len(one.said) for one in self.conversations), kills=self.kills)
        found.asked = len(self.model.requests)
        inbound, outbound = await self._logged(EntryRole.INBOUND), await self._logged(EntryRole.OUTBOUND)
        found.ambiguous = await self._ambiguous()
        for one in self.conversations:
            heard, answered = inbound[one.number], outbound[one.number]
            found.lost += [mark for mark in one.said if mark not in heard or mark not in answered]
            found.doubled += _twice(heard) + _twice(answered)
            shown = self.seen(one)
            done = self.done(one)
            found.unseen += [mark for mark in one.said if mark not in done]
            (found.doubled_untold if one.platform == "telegram" else found.doubled).extend(_twice(done))
            found.left_over += sum(not _DONE.search(text) for text in shown)
            if any(_unordered(marks) for marks in (heard, answered, done)):
                found.out_of_order.append(f"c{one.number}")
        return found

    def done(self, one: Conversation) -> list[str]:
        """The messages of a conversation to which people saw the answer, in the order in which they see them."""
        return [mark for text in self.seen(one) for mark in _DONE.findall(text)]

    def strangers(self) -> list[str]:
        """What was shown in a conversation and is an answer to something that was said elsewhere."""
        return [mark for one in self.conversations for mark in self.done(one) if mark not in one.said]

    def seen(self, one: Conversation) -> list[str]:
        """All that the bot shows in a conversation, oldest first."""
        match one.platform:
            case "telegram":
                return [seen.text for seen in self.telegram.shown(telegram_emulator.Person(one.number))]
            case "slack":
                return [seen.text for seen in self.slack.shown(slack_emulator.Person(f"U{one.number}"))]
            case "discord":
                return [seen.text for seen in self.discord.shown(room(one.number))]
            case "http":
                return one.heard

    async def _logged(self, role: EntryRole) -> Mapping[int, list[str]]:
        """The marks in the entries of *role*, by the number of their conversation."""
        pattern = _ASKED if role is EntryRole.INBOUND else _DONE
        found: defaultdict[int, list[str]] = defaultdict(list)
        async for name in self.redis.scan_iter(match="ar:transcript:*:log:*", count=1000):
            key = ConversationKey.decode(name.rpartition(":log:")[2])
            for entry in await self._transcript.newest(key, 1000):
                if entry.role is role:
                    for mark in pattern.findall(entry.text):
                        found[int(mark[1:].partition("m")[0])].append(mark)
        return found

    async def _ambiguous(self) -> int:
        count = 0
        async for name in self.redis.scan_iter(match="ar:outbox:*:turn:*", count=1000):
            fields: Any = await self.redis.hgetall(name)
            states = [PartState.parse(text) for part, text in fields.items() if part.startswith("part:")]
            count += sum(state.stage is PartStage.AMBIGUOUS for state in states)
        return count

    async def close(self) -> None:
        await self._client.aclose()


def room(number: int) -> discord_emulator.Room:
    """The Discord channel of a conversation."""
    return discord_emulator.Room(channel_id=910_000 + number, name=f"room-{number}")


async def until(holds: Callable[[], bool]) -> None:
    """Wait until *holds*; the test's own time-out bounds it."""
    while not holds():
        await asyncio.sleep(0.02)


def _twice(marks: list[str]) -> list[str]:
    return [mark for mark, times in Counter(marks).items() if times > 1]


def _unordered(marks: list[str]) -> bool:
    numbers = [int(mark.partition("m")[2]) for mark in dict.fromkeys(marks)]
    return numbers != sorted(numbers)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def conversations(count: int, platforms: tuple[Platform, ...] = PLATFORMS) -> list[Conversation]:
    """So many, spread over *platforms*."""
    return [Conversation(1000 + number, platforms[number % len(platforms)]) for number in range(count)]


def _environment(url: str | None, model: openai.FakeOpenAI) -> Iterator[tuple[str, str]]:
    if url is not None:
        yield "REDIS_URL", url
        yield "QDRANT_URL", "http://127.0.0.1:1"  # nothing is there: documents are degraded
    yield "QDRANT_TIMEOUT_SECONDS", "1"
    yield "ADMIN_TOKEN", ADMIN
    yield "ACCESS_POLICY", "open"
    yield "DEFAULT_WORKSPACE", _WORKSPACE
    yield "RATE_LIMIT_MESSAGES", "1000000"
    yield "TURN_LEASE_SECONDS", str(LEASE_SECONDS)
    yield "TURN_MAX_ATTEMPTS", "50"  # the storm kills what nothing ails
    yield "LLM_MODEL", "openai/fake"
    yield "LLM_API_BASE", model.base_url
    yield "LLM_API_KEY", "key"
    yield "HTTP_PORT", "0"
    yield "TELEGRAM_POLL_SECONDS", "2"


@asynccontextmanager
async def storm(
    folder: Path, redis_url: str | None, talking: list[Conversation], settings: Mapping[str, str] = {}, seed: int = 1
) -> AsyncIterator[Storm]:
    """Everything that a storm needs but the Redis, with no process of the runtime started yet.

    Without *redis_url* the process has its embedded stores, and only what people see can be asked for.
    """
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(openai.serving())
        model.answer, model.chunk_delay_seconds = answer, 0.03
        telegram = await stack.enter_async_context(telegram_emulator.TelegramEmulator())
        slack = await stack.enter_async_context(slack_emulator.SlackEmulator())
        rooms = tuple(room(one.number) for one in talking if one.platform == "discord")
        discord = await stack.enter_async_context(discord_emulator.DiscordEmulator(rooms=rooms))
        environment = {
            **dict(_environment(redis_url, model)),
            "DATA_DIR": str(folder / "data"),
            "TELEGRAM_BOT_TOKEN": telegram.token,
            "TELEGRAM_API_BASE": telegram.base_url,
            "SLACK_BOT_TOKEN": slack.token,
            "SLACK_APP_TOKEN": slack.app_token,
            "SLACK_API_BASE": slack.base_url,
            "DISCORD_BOT_TOKEN": discord.token,
            "DISCORD_API_BASE": discord.base_url,
            "DISCORD_GATEWAY_URL": discord.gateway_url,
            **settings,
        }
        crew = Crew(folder / "events", environment)
        stack.callback(crew.end)
        redis = stores.connect(redis_url or "unix:///nowhere", 5.0)
        stack.push_async_callback(redis.aclose)
        made = Storm(crew, redis, model, telegram, slack, discord, talking, _free_port(), seed)
        stack.push_async_callback(made.close)
        yield made
