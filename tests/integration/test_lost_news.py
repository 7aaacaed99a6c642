"""News between a gateway and a worker are lost, some or all: everything comes to pass all the same, only later."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from config.settings import Settings
from connectors.message import ConversationKey
from grounding.transcript import EntryRole
from runtime.coordination import EVERYBODY, Hub
from runtime.observability import EventStream
from runtime.process import open_runtime
from runtime.process.bootstrap import ROLES
from tests.emulators.bot import QUICK, Bot, running_bot
from tests.emulators.openai import FakeOpenAI
from tests.emulators.paper import Paper, say, until_over, written

PLACES = [f"place{number}" for number in range(5)]
EACH = 3


@pytest.fixture
def lose(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], list[str]]:
    """Lose a share of all news between processes; the list is of the topics of what was lost."""

    def losing(share: float) -> list[str]:
        lost: list[str] = []
        tell, chance = Hub.tell, random.Random(7)

        async def maybe(self: Hub, topic: str, news: Mapping[str, Any], to: str = EVERYBODY) -> None:
            if chance.random() >= share:
                await tell(self, topic, news, to)
                return
            lost.append(topic)
            if to == EVERYBODY:  # in the same process nothing is lost
                await tell(self, topic, news, self.name)

        monkeypatch.setattr(Hub, "tell", maybe)
        return lost

    return losing


@asynccontextmanager
async def apart(
    redis_socket: Path, data_dir: Path, model_settings: Callable[..., Settings], model: FakeOpenAI, paper: Paper
) -> AsyncIterator[Bot]:
    """A gateway, and beside it a worker, with one Redis."""

    def settings(name: str) -> Settings:
        return model_settings(
            data_dir=data_dir / name,
            redis_url=f"unix://{redis_socket}",
            access_policy="open",
            default_workspace="acme",
            queue_mode="interrupt",
        )

    async with (
        open_runtime(settings("worker"), EventStream(), parts=ROLES["worker"], timings=QUICK),
        running_bot(settings("gateway"), model, [paper], {}, ROLES["gateway"], QUICK) as bot,
        asyncio.timeout(60),
    ):
        yield bot


@pytest.mark.parametrize("share", [0.4, 1.0])
async def test_all_are_answered_once_and_in_order(
    share: float,
    redis: Redis,
    redis_socket: Path,
    data_dir: Path,
    model_settings: Callable[..., Settings],
    openai_server: FakeOpenAI,
    lose: Callable[[float], list[str]],
) -> None:
    """Also what is to interrupt: where that is not heard, the next turn answers it."""
    lost, paper = lose(share), Paper()
    async with apart(redis_socket, data_dir, model_settings, openai_server, paper) as bot:
        for number in range(EACH):
            for place in PLACES:
                await say(bot, written(place, f"m{number}", f"question {number}"))
            await asyncio.sleep(0.05)
        await until_over(bot)
        for place in PLACES:
            entries = await bot.runtime.transcript.newest(ConversationKey("acme", "paper", place), 100)
            said = [entry.text for entry in entries if entry.role is EntryRole.INBOUND]
            answered = [entry.text for entry in entries if entry.role is EntryRole.OUTBOUND]
            assert said == [f"question {number}" for number in range(EACH)]
            assert paper.texts(place) == answered
            assert 1 <= len(answered) <= EACH

    assert lost


async def test_who_wishes_an_answer_to_stop_is_heard(
    redis: Redis,
    redis_socket: Path,
    data_dir: Path,
    model_settings: Callable[..., Settings],
    openai_server: FakeOpenAI,
    lose: Callable[[float], list[str]],
) -> None:
    lost, paper = lose(1.0), Paper()
    key = ConversationKey("acme", "paper", "desk")
    async with apart(redis_socket, data_dir, model_settings, openai_server, paper) as bot:
        openai_server.will("hang")
        await say(bot, written("desk"))
        while not bot.replies_asked:
            await asyncio.sleep(0.01)
        assert await bot.runtime.stops.stop(key)
        await until_over(bot)
        assert paper.texts("desk") == []  # who stops it is told by the command

        await say(bot, written("desk", "m2", "and now?"))  # which nobody stopped
        await until_over(bot)
        assert len(paper.texts("desk")) == 1
        assert not await redis.keys("ar:mailbox:*:current:*")

    assert "stop" in lost
