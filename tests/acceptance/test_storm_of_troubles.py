"""Processes stand still and connections break while people talk: nothing is lost, doubled, torn or out of order."""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.emulators import discord, slack, telegram
from tests.emulators.own_redis import OwnRedis
from tests.emulators.relay import Relay, relaying
from tests.emulators.storm import LEASE_SECONDS, Conversation, Storm, answer, conversations, storm

SECONDS = 480
WORKERS = (1, 2)
_PIECE = re.compile(r"(c\d+m\d+)#(\d+);")
_PIECES = 90
"""Of a long reply: more than a message of any platform holds."""


def is_long(mark: str) -> bool:
    """Whether the reply to a message is a long one."""
    return (int(mark[1:5]) + int(mark[-1])) % 8 == 0


def short_or_long(body: dict[str, Any]) -> str:
    """What the model answers: for some messages numbered pieces come before the usual words."""
    words = answer(body)
    marks = re.findall(r"done (c\d+m\d+)", words)
    pieces = [f"{mark}#{number}; and so it goes on. " for mark in marks if is_long(mark) for number in range(_PIECES)]
    return "".join(pieces) + words


def torn(weather: Storm, one: Conversation) -> list[str]:
    """The messages whose reply people do not see whole, in order and once; on Telegram a message may be there twice."""
    shown, seen = weather.seen(one), dict[str, list[int]]()
    if one.platform == "telegram":
        shown = _without_repetitions(shown)
    for mark, number in _PIECE.findall("\n".join(shown)):
        seen.setdefault(mark, []).append(int(number))
    return [mark for mark in one.said if seen.get(mark, []) != list(range(_PIECES if is_long(mark) else 0))]


def _without_repetitions(shown: list[str]) -> list[str]:
    """*shown* without messages that a later one repeats, whole or longer."""
    return [text for at, text in enumerate(shown) if not any(one.startswith(text) for one in shown[at + 1 :])]


def left_over(weather: Storm, one: Conversation) -> list[str]:
    """What people see and is no reply, nor a part of one."""
    return [text for text in weather.seen(one) if "done c" not in text and not _PIECE.search(text)]


class Troubles:
    """What befalls a storm, by its own chance: the same for the same seed, but for when it meets whom."""

    def __init__(self, weather: Storm, redis: OwnRedis, relays: list[Relay]) -> None:
        self._weather = weather
        self._redis = redis
        self._relays = relays
        self._still: set[str] = set()

    async def rage(self, seconds: float) -> None:
        """Bring trouble for so long, and end when all of it is over."""
        chance, end = self._weather.chance, asyncio.get_running_loop().time() + seconds
        kinds = [self._stand_still, self._break, self._break, self._fail, self._drop]
        async with asyncio.TaskGroup() as group:
            while asyncio.get_running_loop().time() < end:
                await asyncio.sleep(chance.uniform(0.2, 1.2))
                group.create_task(chance.choice(kinds)())

    async def _stand_still(self) -> None:
        """For less than a lease, or for longer."""
        chance = self._weather.chance
        name = chance.choice(["gateway", "gateway", "redis", *(f"worker-{number}" for number in WORKERS)])
        seconds = LEASE_SECONDS * chance.choice([chance.uniform(0.1, 1.0), chance.uniform(1.0, 2.0)])
        if name in self._still:
            return
        self._still.add(name)
        crew = self._weather.crew
        self._redis.freeze() if name == "redis" else crew.freeze(name)
        await asyncio.sleep(seconds)
        self._redis.thaw() if name == "redis" else crew.thaw(name)
        self._still.discard(name)

    async def _break(self) -> None:
        chance = self._weather.chance
        await chance.choice(self._relays).any_of_these(chance, chance.uniform(0.2, 2.0))

    async def _fail(self) -> None:
        """A platform does what it is asked, or not, and nobody is told which."""
        chance, weather = self._weather.chance, self._weather
        done = chance.random() < 0.5
        match chance.choice(["telegram", "slack", "discord"]):
            case "telegram":
                call = chance.choice(["sendMessage", "editMessageText"])
                weather.telegram.fail_next(call, telegram.Fault(lost="after" if done else "before"))
            case "slack":
                call = chance.choice(["chat.postMessage", "chat.update"])
                weather.slack.fail_next(call, slack.LOST_ANSWER if done else slack.LOST_REQUEST)
            case "discord":
                call = chance.choice(["send", "edit"])
                weather.discord.fail_next(call, discord.LOST_ANSWER if done else discord.LOST_REQUEST)

    async def _drop(self) -> None:
        """The sockets by which a platform tells what was said break without a word."""
        await self._weather.chance.choice([self._weather.slack.kill, self._weather.discord.drop])()


async def break_in(stack: AsyncExitStack, weather: Storm, redis: OwnRedis, folder: Path) -> list[Relay]:
    """Relays between each process and all that it calls but the model, whose being away is answered by an apology."""
    relays: list[Relay] = []

    async def relayed(process: str, setting: str, url: str) -> None:
        relay, address = await stack.enter_async_context(relaying(url, folder, f"{process}.sock"))
        weather.own_settings[process][setting] = address
        relays.append(relay)

    for process in ("gateway", *(f"worker-{number}" for number in WORKERS)):
        await relayed(process, "REDIS_URL", redis.url)
    await relayed("gateway", "TELEGRAM_API_BASE", weather.telegram.base_url)
    await relayed("gateway", "SLACK_API_BASE", weather.slack.base_url)
    await relayed("gateway", "DISCORD_API_BASE", weather.discord.base_url)
    return relays


@pytest.mark.storm
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("mode", "seed"), [("collect", 1), ("followup", 2), ("interrupt", 3)])
async def test_troubles_of_all_kinds_lose_double_tear_and_reorder_nothing(data_dir: Path, mode: str, seed: int) -> None:
    """On Telegram, which cannot be asked, a message or a preview may be there twice; nothing is anywhere else."""
    redis = OwnRedis(data_dir / "redis")
    redis.start()
    talking, settings = conversations(24), {"QUEUE_MODE": mode, "REDIS_TIMEOUT_SECONDS": "3"}
    try:
        async with asyncio.timeout(SECONDS), AsyncExitStack() as stack:
            weather = await stack.enter_async_context(storm(data_dir, redis.url, talking, settings, seed))
            weather.model.answer = short_or_long
            relays = await break_in(stack, weather, redis, data_dir)
            weather.start_gateway()
            for number in WORKERS:
                weather.start_worker(number)
            await weather.ready("gateway", *(f"worker-{number}" for number in WORKERS))
            await weather.talk(1, (0.0, 0.5))
            await weather.recorded()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(Troubles(weather, redis, relays).rage(20.0))
                tasks.create_task(weather.talk(5, (0.2, 7.0)))
            weather.model.chunk_delay_seconds = 0.002
            await weather.settled()
            outcome = await weather.outcome()
            print(outcome)
    finally:
        redis.kill()

    assert outcome.said == 144
    assert (outcome.lost, outcome.out_of_order, outcome.doubled) == ([], [], [])
    assert (outcome.unseen, weather.strangers()) == ([], [])
    assert [mark for one in talking for mark in torn(weather, one)] == []
    assert [text for one in talking if one.platform != "telegram" for text in left_over(weather, one)] == []
