"""While Redis is away nothing is accepted anywhere: HTTP says so, platforms are not acknowledged; then all goes on.

So it does where Redis has lost everything, as after FLUSHALL or a fail-over to an empty server, in the middle of turns.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from config.settings import Settings
from connectors.connector import Connector
from connectors.message import ConversationKey
from grounding.transcript import EntryRole
from tests.conftest import MakeSettings
from tests.contract.discord_harness import discord_connector
from tests.contract.slack_harness import slack_connector
from tests.contract.telegram_harness import telegram_connector
from tests.emulators import discord_nouns as emulated_discord
from tests.emulators import slack_nouns as emulated_slack
from tests.emulators import telegram_nouns as emulated_telegram
from tests.emulators.bot import QUICK, Bot, running_bot
from tests.emulators.discord import DiscordEmulator
from tests.emulators.face import ADMIN, Face, serving_face
from tests.emulators.openai import FakeOpenAI
from tests.emulators.own_redis import OwnRedis
from tests.emulators.paper import Paper, say, until_over, written
from tests.emulators.slack import SlackEmulator
from tests.emulators.telegram import TelegramEmulator

NEED_NO_STORE = {
    ("GET", "/v1/doctor"),  # it looks what is wrong
}
PLACES = {
    "workspace_id": "sample",
    "path": "a.md",
    "place": "http:default",
    "scope": "workspace",
    "kind": "soul",
    "vault_id": "sample",
    "memory_id": "http:default",
    "version_id": "1-1",
    "id": "1",
}


@pytest.fixture
def own_redis(data_dir: Path) -> Iterator[OwnRedis]:
    server = OwnRedis(data_dir / "own")
    server.start()
    yield server
    server.kill()


async def calls(face: Face) -> list[tuple[str, str]]:
    """Every method and path under ``/v1``, with something in the place of each parameter."""
    async with face.bare() as client:
        paths: dict[str, Any] = (await client.get("/openapi.json")).json()["paths"]
    names = {word: word for path in paths for word in ("turn_id", "name", "record", "line") if f"{{{word}}}" in path}
    return [
        (method.upper(), path.format(**PLACES, **names))
        for path, operations in paths.items()
        if path.startswith("/v1/")
        for method in operations
    ]


async def test_every_call_says_503_and_when_to_come_back(own_redis: OwnRedis, model_settings: MakeSettings) -> None:
    """For whoever calls: what a token of a workspace may do cannot be known, either."""
    settings = model_settings(admin_token=ADMIN, redis_url=own_redis.url, redis_timeout_seconds=1)
    async with serving_face(settings) as face:
        token = await face.token("sample", "admin")
        known = await calls(face)
        assert len(known) > 35
        own_redis.kill()
        async with face.as_token(token) as caller:
            answers = await asyncio.gather(*(caller.request(method, path, content=b"") for method, path in known))
        for call, refused in zip(known, answers, strict=True):
            assert (call, refused.status_code, refused.headers.get("Retry-After")) == (call, 503, "1")
            assert refused.json()["error"]["code"] == "store_unavailable"
        looks = [path for method, path in known if method == "GET" and (method, path) not in NEED_NO_STORE]
        asked = {"q": "harbour", "context": "http:default", "a": "1", "b": "2", "with": "other"}
        answers = await asyncio.gather(*(face.client.get(path, params=asked) for path in looks))
        assert {path: answer.status_code for path, answer in zip(looks, answers, strict=True)} == dict.fromkeys(
            looks, 503
        )
        own_redis.start()
        async with asyncio.timeout(20):
            while (await face.client.get("/v1/workspaces")).status_code != 200:
                await asyncio.sleep(0.05)


async def test_what_is_said_on_platforms_meanwhile_is_answered_afterwards(
    own_redis: OwnRedis, model_settings: MakeSettings, openai_server: FakeOpenAI
) -> None:
    """Each platform brings it again, or is asked for it, because it was not acknowledged; in its order, and once."""
    settings = model_settings(access_policy="open", redis_url=own_redis.url, redis_timeout_seconds=1)
    async with TelegramEmulator() as telegram, SlackEmulator() as slack, DiscordEmulator() as discord:
        platforms: list[Connector] = [telegram_connector(telegram), slack_connector(slack), discord_connector(discord)]
        async with running_bot(settings, openai_server, platforms) as bot:
            ann, bea, cy = emulated_telegram.SOMEBODY, emulated_slack.SOMEBODY, emulated_discord.SOMEBODY
            async with asyncio.timeout(20):
                while not all(health.state == "connected" for health in bot.runtime.connector_health().values()):
                    await asyncio.sleep(0.02)
            own_redis.kill()
            for number in (1, 2):
                await telegram.say(f"telegram {number}", by=ann)
                slack.say(f"slack {number}", by=bea)
                await discord.say(f"discord {number}", by=cy)
            await asyncio.sleep(0.5)
            assert telegram.confirmed == 0
            assert slack.acknowledged == set()
            assert bot.replies_asked == []
            own_redis.start()
            said = [f"{name} {number}" for name in ("discord", "slack", "telegram") for number in (1, 2)]
            async with asyncio.timeout(20):
                while len(heard := questions(bot)) < len(said):
                    await asyncio.sleep(0.02)
            await bot.settle()
            assert sorted(heard) == sorted(questions(bot)) == said
            assert [heard.index(one) < heard.index(two) for one, two in zip(said[::2], said[1::2], strict=True)] == [
                True, True, True,
            ]  # fmt: skip
            await telegram.until(lambda one: bool(one.shown(ann)))
            await slack.until(lambda one: bool(one.shown(bea)))
            await discord.until(lambda one: bool(one.shown(cy)))


def questions(bot: Bot) -> list[str]:
    """What the model was asked, message by message, without what was said before, and without the hint."""
    asked = [str(body["messages"][-1]["content"]).rpartition("</now>")[2] for body in bot.replies_asked]
    return [line for text in asked for line in text.splitlines() if re.fullmatch(r"[a-z]+ \d", line)]


ROOMS = ("here", "there", "elsewhere")


@pytest.mark.parametrize("scripts_too", [False, True])
async def test_turns_in_hand_end_and_the_next_message_is_answered(
    scripts_too: bool,
    model_settings: Callable[..., Settings],
    openai_server: FakeOpenAI,
) -> None:
    """Those whose message was being answered hear nothing, for nobody knows of it any more; they can say it again."""
    paper = Paper()
    settings = model_settings(access_policy="open", default_workspace="acme", turn_lease_seconds=1)
    async with running_bot(settings, openai_server, [paper], timings=QUICK) as bot, asyncio.timeout(60):
        openai_server.will(*["hang"] * len(ROOMS))
        for place in ROOMS:
            await say(bot, written(place))
        while len(bot.replies_asked) < len(ROOMS):
            await asyncio.sleep(0.01)
        client = bot.runtime.store.client
        await client.flushall()
        if scripts_too:
            await client.script_flush()

        await say(bot, written("new"))
        while not paper.texts("new"):
            await asyncio.sleep(0.01)
        while bot.runtime.worker._held.tasks:  # the lease is lost, which ends them
            await asyncio.sleep(0.01)
        for place in ROOMS:
            await say(bot, written(place))  # the platform, or the person, brings it again
        await until_over(bot)

        for place in ("new", *ROOMS):
            entries = await bot.runtime.transcript.newest(ConversationKey("acme", "paper", place), 10)
            assert [entry.role for entry in entries] == [EntryRole.INBOUND, EntryRole.OUTBOUND]
            assert paper.texts(place) == [entries[-1].text]
