"""A chat on a machine that is short of memory, with a driver that hangs, and with a model whose window is small."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from config.settings import Settings
from connectors.message import Scope
from grounding.memory.records import Type
from grounding.prompt_input import Device
from runtime.machine.hardware import Cards
from runtime.machine.sampling import SILENT
from runtime.process import bootstrap
from tests.acceptance.test_records_in_prompts import remember
from tests.emulators.bot import Bot, running_bot
from tests.emulators.openai import FakeOpenAI

KEPT = "Prices are never rounded, not even for friends"


async def known(bot: Bot) -> None:
    """Wait until the machine was looked at, and it is known what the model takes of it."""
    async with asyncio.timeout(30):
        while bot.runtime.surroundings.memory(bot.runtime.model.name) is None:
            await asyncio.sleep(0.01)


async def test_short_of_memory_the_model_gets_the_message_and_what_is_kept_word_for_word_and_replay_holds(
    model_settings: Callable[..., Settings], openai_server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once there is memory again, the conversation is shown as it was before."""
    settings = model_settings(
        access_policy="open",
        llm_kv_layers=32,
        llm_kv_heads=8,
        llm_kv_head_size=128,
        model_memory_buffer_mib=2**30,  # more than any machine has
    )
    async with running_bot(settings, openai_server) as bot:
        await known(bot)
        await remember(bot, Type.FACT, KEPT, verbatim=True)
        await remember(bot, Type.FACT, "The harbour plan was cheaper last year")
        await bot.say("my boat is called Vinga")
        await bot.say("and it is blue")
        answer = await bot.say("what does the harbour plan cost?")

        assert {("tail", "condensed"), ("retrieved", "condensed")} <= {
            (part["block"], part["why"]) for part in answer["degraded"]
        }
        assert "what does the harbour plan cost?" in bot.sent["user"]
        assert KEPT in bot.sent["user"]
        assert "Lena: and it is blue\nassistant: " in bot.sent["user"]
        assert "Vinga" not in bot.sent["user"]
        assert "12 euros" not in bot.sent["user"]
        told = bot.told("prompt.condensed")[-1]
        assert (told["is_over"], told["buffer_mib"]) == (True, 2**30)
        stored = await bot.runtime.manifests.get(Scope("acme"), answer["turn_id"])
        assert (await bot.runtime.prompting.rebuild(stored.context)).prompt.user == bot.sent["user"]

        monkeypatch.setattr(bot.runtime.surroundings, "memory", lambda model: None)
        await bot.say("what is it called?")
        assert "Lena: my boat is called Vinga" in bot.sent["user"]


class Driver:
    """A driver with one card of *free* MiB, which hangs while it is ``held``."""

    def __init__(self, free: int) -> None:
        self.free = free
        self.held = threading.Event()
        self.let_go = threading.Event()

    def read(self) -> Cards:
        if self.held.is_set():
            self.let_go.wait(120)
        return Cards((Device(name="A10", total_mib=24_000, used_mib=24_000 - self.free, free_mib=self.free),))


async def test_the_machine_is_told_of_as_the_session_began_until_it_matters_and_a_hanging_driver_holds_up_nothing(
    model_settings: Callable[..., Settings], openai_server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(4000)
    monkeypatch.setattr(bootstrap, "Gpus", lambda: driver)
    settings = model_settings(access_policy="open", model_memory_buffer_mib=500)
    async with running_bot(settings, openai_server) as bot:
        machine = bot.runtime.surroundings
        try:
            await machine.look()
            await bot.say("hello, what do you know about boats?")
            first = bot.sent["system"]
            assert "GPU A10: 20000 of 24000 MiB used, 4000 free." in first
            driver.free = 2900
            await machine.look()
            await bot.say("and about harbours?")
            assert bot.sent["system"] == first
            await bot.say("and here, what is known about boats?", context="another")
            assert "2900 free." in bot.sent["system"]
            driver.free = 400
            await machine.look()
            await bot.say("and about lighthouses?")
            assert "400 free." in bot.sent["system"]
            driver.held.set()
            looking = asyncio.create_task(machine.look())
            await bot.say("and about gulls?")
            assert not looking.done()
            await looking
            await bot.say("and about ferries?")
            assert f"GPU: {SILENT.note}." in bot.sent["system"]
        finally:
            driver.let_go.set()


async def test_a_message_that_no_window_holds_is_refused_by_its_size_and_no_model_is_asked(
    model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    settings = model_settings(access_policy="open", llm_context_window_tokens=2100, llm_max_output_tokens=1000)
    async with running_bot(settings, openai_server) as bot:
        response = await bot.post("a question about boats " * 200)

        assert (response.status_code, response.json()["error"]["code"]) == (422, "context_too_large")
        assert (
            "Your message is too long for the model (query: 650 of 2100 tokens)" in response.json()["error"]["message"]
        )
        assert bot.replies_asked == []
        assert (await bot.say("a short question about boats?"))["text"]


async def test_a_fallback_that_reads_less_gets_a_prompt_that_fits_or_is_passed_over(
    model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    settings = model_settings(
        access_policy="open",
        llm_model="openai/gpt-4o",
        llm_fallback_models="openai/gpt-4,openai/gpt-3.5-turbo",
        llm_max_attempts=1,
        llm_grounding_user_max_tokens=5000,
        llm_grounding_chat_tail_max_tokens=30_000,
        llm_grounding_chat_tail_lines=2000,
        llm_grounding_chat_tail_bytes=200_000,
        llm_grounding_max_prompt_tokens=40_000,
        context_max_tokens=40_000,
        llm_grounding_max_prompt_bytes=300_000,
    )
    async with running_bot(settings, openai_server) as bot:
        for part in range(12):  # far over what the second reads, and never so much that the tail is cut
            await bot.say(f"part {part}: " + "\n".join(f"the boat of row {part}.{n} is blue" for n in range(40)))
        bot.model.will("unauthorized", "From the second.")
        answer = await bot.say("which one is red?")
        first, second = bot.replies_asked[-2:]
        assert [first["model"], second["model"], answer["text"]] == ["gpt-4o", "gpt-4", "From the second."]
        sizes = [bot.runtime.tokens.count(asked["messages"][1]["content"]) for asked in (first, second)]
        assert sizes[1] < (8192 - 1024) / 1.8 < sizes[0]
        assert "which one is red?" in second["messages"][1]["content"]
        stored = await bot.runtime.manifests.get(Scope("acme"), answer["turn_id"])
        rebuilt = (await bot.runtime.prompting.rebuild(stored.context)).prompt
        assert (rebuilt.user, rebuilt.sha256) == (second["messages"][1]["content"], stored.prompt_sha256)

        bot.model.will("unauthorized", "From the third.")
        await bot.say("is it this one? " + "one more row of boats, " * 800)
        assert [one["model"] for one in bot.replies_asked[-2:]] == ["gpt-4o", "gpt-3.5-turbo"]
        assert [(one["model"], one["why"]) for one in bot.told("model.skipped")] == [("openai/gpt-4", "window")]
