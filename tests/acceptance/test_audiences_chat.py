"""What is said in private stays there: nothing of it stands in a prompt, a reply or an answer over HTTP elsewhere."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from connectors.message import EVERYONE, Scope
from runtime.http import create_app
from runtime.llm import Completion
from tests.contract.slack_harness import slack_connector
from tests.contract.telegram_harness import telegram_connector
from tests.emulators import slack as on_slack
from tests.emulators import telegram as on_telegram
from tests.emulators.bot import Bot, bot_on
from tests.emulators.slack import SlackEmulator
from tests.emulators.telegram import TelegramEmulator

BOARD = on_slack.Channel("C900", "board", private=True)
TOWN = on_slack.Channel("C100", "town")
LENA, BO = on_slack.Person("U501", "Lena"), on_slack.Person("U502", "Bo")
CLUB = on_telegram.Room(id=-100900, title="The club")
SECRET = "We decided to close the plant in Lyon."
ASKED = "What did we decide about the plant in Lyon?"


class Talk:
    """A bot on Slack and on Telegram, with one workspace, and all that its model was sent."""

    def __init__(self, bot: Bot, slack: SlackEmulator, telegram: TelegramEmulator) -> None:
        self.bot = bot
        self.slack = slack
        self.telegram = telegram
        self.sent: list[str] = []

    async def on_slack(self, text: str, to: on_slack.Channel | None = None, by: on_slack.Person = LENA) -> str:
        """All that the model was sent for what *by* says."""
        place, said = to or by, f"{self.slack.at_bot} {text}" if to else text
        before, asked = len(self.slack.shown(place)), len(self.sent)
        self.slack.say(said, to=to, by=by)
        await self.slack.until(lambda slack: len(slack.shown(place)) > before)
        await self.bot.settle()
        return "\n".join(self.sent[asked:])

    async def on_telegram(self, text: str, to: on_telegram.Room | None = None) -> str:
        place = to or on_telegram.Person()
        before, asked = len(self.telegram.shown(place)), len(self.sent)
        await self.telegram.say(f"@{self.telegram.me.username} {text}" if to else text, to=to)
        await self.telegram.until(lambda telegram: len(telegram.shown(place)) > before)
        await self.bot.settle()
        return "\n".join(self.sent[asked:])


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def talk() -> AsyncIterator[Talk]:
    async with (
        SlackEmulator() as slack,
        TelegramEmulator() as telegram,
        bot_on(
            slack_connector(slack),
            telegram_connector(telegram),
            llm_model=None,
            records_extraction=True,
            rate_limit_messages=1000,
        ) as bot,
    ):
        talk = Talk(bot, slack, telegram)

        async def answer(messages: Any, *_: Any, **__: Any) -> Completion:
            talk.sent.append(json.dumps(messages, ensure_ascii=False))
            return Completion("Noted.", "local/none")

        bot.runtime.model.complete = answer  # type: ignore[method-assign]
        yield talk


async def test_a_decision_of_a_private_channel_is_in_no_prompt_of_a_public_one(talk: Talk) -> None:
    await talk.on_slack(SECRET, BOARD)
    await talk.on_telegram("We decided to sell the barge.", CLUB)
    await talk.on_slack("We decided to open on Sundays.", TOWN)
    await talk.on_slack("The launch date is 12 March.")

    stranger = await talk.on_slack(ASKED, TOWN, BO)
    assert "close the plant" not in stranger
    assert "close the plant" not in await talk.on_slack(ASKED, by=BO)
    assert "close the plant" not in await talk.on_telegram(ASKED, CLUB)
    assert "close the plant" in await talk.on_slack(ASKED, BOARD, BO)
    assert "sell the barge" not in await talk.on_slack("What did we decide about the barge?", TOWN)
    assert "sell the barge" in await talk.on_telegram("What did we decide about the barge?", CLUB)
    assert "12 March" not in await talk.on_slack("When is the launch date?", TOWN)
    assert "12 March" in await talk.on_slack("When is the launch date?")
    for place in (BOARD, TOWN):
        assert "open on Sundays" in await talk.on_slack("What did we decide about Sundays?", place, BO)

    kept = await talk.bot.runtime.records.list(Scope("acme", None, EVERYONE))
    whose = {one.audience for one in kept}
    assert {"place:slack:C900", "place:telegram:-100900", "slack:U501", ""} <= whose

    transport = httpx.ASGITransport(create_app(talk.bot.runtime))
    token = {"Authorization": f"Bearer {talk.bot.runtime.admin_token}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=token) as face:
        for channel, is_there in (("C100", False), ("C900", True)):
            body = {"text": ASKED, "connector": "slack", "external_id": channel}
            given = await face.post("/v1/workspaces/acme/ground", json=body)
            assert given.status_code == 200
            assert ("close the plant" in given.text) is is_there

    await check_sharing(talk)


async def check_sharing(talk: Talk) -> None:
    """What somebody of a private channel shares is the workspace's."""
    (record,) = await talk.bot.runtime.records.list(Scope("acme", None, "place:slack:C900"), own=True)

    await talk.on_slack(f"!memory share {record.id}", TOWN, BO)
    assert "close the plant" not in await talk.on_slack(ASKED, TOWN, BO)
    await talk.on_slack(f"!memory share {record.id}", BOARD)
    assert "close the plant" in await talk.on_slack(ASKED, TOWN, BO)
    (event,) = talk.bot.told("record.shared")
    assert (event["record_id"], event["by"]) == (record.id, "slack:U501")
    assert "plant" not in json.dumps(event)


PLACES: list[dict[str, Any]] = [
    {"context": "town", "public": True},
    {"context": "yard", "public": True},
    *({"context": f"room {number}", "public": False} for number in range(3)),
    *({"context": f"dm {who} {number}", "direct": True} for who in ("u1", "u2") for number in range(2)),
]


@pytest.mark.parametrize("seed", range(3))
async def test_over_random_places_and_people_nothing_leaks_and_all_is_there(talk: Talk, seed: int) -> None:
    chance = random.Random(seed)
    bot = await talk.bot.in_workspace(f"seed-{seed}")

    def audience_of(place: dict[str, Any], who: str) -> str:
        return who if place.get("direct") else "" if place["public"] else place["context"]

    def somewhere() -> tuple[dict[str, Any], str]:
        place = chance.choice(PLACES)
        return place, place["context"].split()[1] if place.get("direct") else chance.choice(("u1", "u2", "u3"))

    said: dict[str, str] = {}
    missed = 0
    for number in range(16):
        place, who = somewhere()
        word = f"zq{seed}x{number:02}w"
        said[word] = audience_of(place, who)
        await bot.say(f"We decided to buy the lighthouse {word}.", **place, author={"id": who, "name": who})
        if chance.random() < 0.2:
            await bot.say("/good", **place, author={"id": who, "name": who})
        if chance.random() < 0.3:
            await bot.say(f"/context add Remember {word}", **place, author={"id": who, "name": who})
        await bot.settle()

        place, who = somewhere()
        reader, before = audience_of(place, who), len(talk.sent)
        asked = chance.choice(["What did we decide about the lighthouse?", "Which lighthouse do we buy?"])
        looks = (asked, "/memory list", "/context", "/explain", "/memory")
        replies = [(await bot.say(one, **place, author={"id": who, "name": who}))["text"] for one in looks]
        shown = "\n".join([*talk.sent[before:], *replies])
        leaked = {one for one, of in said.items() if one in shown and of not in ("", reader)}
        assert leaked == set(), f"{leaked} in a place of {reader!r}"
        missed += not any(one in shown for one, of in said.items() if of in ("", reader))
        await bot.settle()
    assert missed < 9  # what may be seen is seen
