"""What breaks is told and made good; what was accepted is never lost."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from config.settings import Settings
from connectors.message import Author, ConversationKey, InboundMessage, Role, Scope, redis_key
from runtime.turns.batch import Envelope
from tests.emulators.bot import Bot, running_bot
from tests.emulators.openai import FakeOpenAI
from tests.emulators.own_redis import OwnRedis

shares_the_bot = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def own_redis(data_dir: Path) -> Iterator[OwnRedis]:
    server = OwnRedis(data_dir / "own")
    server.start()
    yield server
    server.kill()


async def test_with_redis_stopped_http_answers_503_and_resumes_by_itself(
    own_redis: OwnRedis, model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    settings = model_settings(access_policy="open", redis_url=own_redis.url, redis_timeout_seconds=1)
    async with running_bot(settings, openai_server) as bot:
        await bot.say("the anchor is rusty")
        await bot.settle()

        own_redis.kill()
        refused = await bot.post("are you there?")
        assert refused.status_code == 503
        assert refused.json()["error"]["code"]

        own_redis.start()
        answer = await _until_answered(bot, "as I said, what is rusty?")
        assert answer["degraded"] == []
        assert "the anchor is rusty" in bot.sent["user"]


async def _until_answered(bot: Bot, text: str) -> dict[str, object]:
    async with asyncio.timeout(20):
        while True:
            response = await bot.post(text)
            if response.status_code == 200:
                return dict(response.json())
            assert (response.status_code, response.json()["error"]["code"]) == (503, "store_unavailable")
            await asyncio.sleep(0.1)


async def test_the_embedded_redis_killed_comes_back_with_all_that_was_said(bot: Bot) -> None:
    await bot.say("the mast is painted green")
    await bot.settle()
    embedded = bot.runtime.store.embedded
    assert embedded is not None
    assert embedded.pid is not None

    os.kill(embedded.pid, signal.SIGKILL)

    await _until_answered(bot, "as I said, what colour is the mast?")
    assert "the mast is painted green" in bot.sent["user"]


async def test_after_a_restart_a_conversation_goes_on_and_what_was_accepted_before_is_answered(
    model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    settings = model_settings(access_policy="open")
    quay = ConversationKey("acme", "http", "quay")
    waiting = InboundMessage("http", "quay", "m1", Author("u1", "Lena"), "never forget the harbour fee")
    async with running_bot(settings, openai_server) as bot:
        await bot.say("the cook is called Ines")
        await bot.settle()
        # Nobody is told of it, and the process ends before the sweep finds it.
        await bot.runtime.mailbox.store(quay, Envelope(waiting, Role.MEMBER, time.time()))
    async with running_bot(settings, openai_server) as bot, asyncio.timeout(60):
        while not await bot.runtime.mailbox.known(quay, "m1"):
            await asyncio.sleep(0.02)
        assert "never forget the harbour fee" in bot.sent["user"]
        await bot.say("as I said, who cooks?")
        assert "the cook is called Ines" in bot.sent["user"]
        assert "user's" not in bot.sent["system"]
        await bot.settle()
        log = bot.chat_logs / "acme/logs/chats/http/quay.md"
        assert log.read_text().count("never forget the harbour fee") >= 1


@shares_the_bot
async def test_a_model_that_says_nothing_is_asked_again_then_apologised_for(own_bot: Bot) -> None:
    own_bot.model.will("empty", "empty")
    answer = await own_bot.say("what is the refund policy?")

    assert answer["degraded"] == [{"block": "model", "why": "empty"}]
    assert "30 days" in answer["text"]


async def test_a_model_that_hangs_is_given_up_in_time(
    model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    settings = model_settings(access_policy="open", llm_timeout_seconds=0.5, llm_max_attempts=2)
    openai_server.will("hang", "hang")
    async with running_bot(settings, openai_server) as bot:
        answer = await bot.say("what is the refund policy?")

        assert answer["degraded"] == [{"block": "model", "why": "timeout"}]
        assert (await bot.say("and now?"))["degraded"] == []


async def test_while_the_model_server_is_not_there_people_get_whole_sentences_and_admins_its_address(
    model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    settings = model_settings(access_policy="open", access_admins="http:u1", llm_api_base="http://127.0.0.1:1/v1")
    async with running_bot(settings, openai_server) as bot:
        for person, names_it in (("u1", True), ("u2", False)):
            answer = await bot.say("how much is the ocean plan?", author={"id": person, "name": "Lena"})

            why, quoted = answer["text"].split("\n\n")
            assert quoted.endswith("The ocean plan costs 40. [pricing.md › Pricing policy › Plans]")
            assert answer["sources"] == [{"source": "pricing.md", "heading": "Pricing policy › Plans"}]
            assert answer["degraded"] == [{"block": "model", "why": "unreachable"}]
            assert "cannot be reached" in why
            assert why.endswith("I can only quote what the documents and my memory say:")
            assert ("http://127.0.0.1:1/v1" in why) is names_it
            # What is asked of the model is saved before it is asked.
            [saved] = await bot.runtime.manifests.newest(Scope("acme"), 1)
            assert saved.context.query.text == "how much is the ocean plan?"


@shares_the_bot
async def test_a_prompt_is_saved_before_the_model_is_asked_so_that_whoever_goes_on_asks_the_same(own_bot: Bot) -> None:
    own_bot.model.will("word " * 400)
    own_bot.model.chunk_delay_seconds = 0.05
    saying = asyncio.create_task(own_bot.post("what is it like?", headers={"Accept": "text/event-stream"}))
    while not own_bot.replies_asked:
        await asyncio.sleep(0.001)
    [saved] = await own_bot.runtime.manifests.newest(Scope(own_bot.workspace), 1)
    assert saved.context.query.text == "what is it like?"
    assert not saying.done()
    own_bot.model.chunk_delay_seconds = 0.0
    await saying


@pytest.mark.parametrize(
    "text",
    [
        "\x00\x01binary\x02",
        "مرحبا 你好 שלום hello",
        "👩‍👩‍👧‍👦" * 200,
        "## 2026 `INBOUND` x",
        "\ud800 lone surrogate",
        "a" * 900_000,
    ],
    ids=["binary", "mixed scripts", "emoji", "forged header", "surrogate", "900 kB"],
)
@shares_the_bot
async def test_odd_text_is_answered_or_refused_and_never_breaks_the_bot(own_bot: Bot, text: str) -> None:
    body = json.dumps({"text": text, "context": "odd"})
    response = await own_bot.http.post(f"/v1/workspaces/{own_bot.workspace}/messages", content=body.encode())

    assert response.status_code in (200, 400)
    assert (await own_bot.say("still there?"))["degraded"] == []


@pytest.mark.parametrize(("owner", "part", "block"), [("directives", "stamp", "identity"), ("codex", "held", "codex")])
@shares_the_bot
async def test_what_cannot_be_read_costs_its_layer_and_not_the_turn(
    own_bot: Bot, owner: str, part: str, block: str
) -> None:
    key = redis_key(owner, Scope(own_bot.workspace).tag, part)
    await own_bot.runtime.store.client.delete(key)
    await own_bot.runtime.store.client.sadd(key, "of another type")

    assert (await own_bot.say("hello"))["degraded"] == [{"block": block, "why": "response_error"}]


@pytest.mark.parametrize(
    "place", ["../../etc/passwd", "..", ".", "a/b\\c", "%2e%2e", "x" * 400, "con:{p1}", "né\u2028w"]
)
@shares_the_bot
async def test_path_like_places_stay_inside_the_workspace(own_bot: Bot, place: str) -> None:
    mark = f"mark of {own_bot.workspace}"
    response = await own_bot.post(mark, context=place)
    await own_bot.settle()

    assert response.status_code in (200, 400)
    written = [path for path in own_bot.runtime.settings.data_dir.rglob("*.md") if mark in path.read_text()]
    parents = sorted(path.parent.relative_to(own_bot.chat_logs / own_bot.workspace).as_posix() for path in written)
    assert parents == (["logs/chats/http", "memory/contexts"] if response.status_code == 200 else [])
