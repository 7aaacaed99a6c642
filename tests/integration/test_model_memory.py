"""What the memory of models that run here is known from: Ollama's own answers, settings, the bundled file; and nothing
where none answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import structlog
from aiohttp import web

from config.settings import SMOLLM2
from grounding.prompt_input import Device, EnvironmentInput
from runtime.machine import MachineState, ModelMemories
from runtime.machine.hardware import DRIVER_BROKEN, NO_GPU
from runtime.machine.model_memory import is_here
from runtime.machine.sampling import SILENT
from tests.conftest import MakeSettings
from tests.emulators.loopback import serving

BUNDLED = SMOLLM2
SEEN = MachineState(EnvironmentInput(), 4000)
CARD = MachineState(
    EnvironmentInput(devices=(Device(name="A10", total_mib=24_000, used_mib=21_000, free_mib=3_000),)), 4000
)
ABOUT = {
    "general.architecture": "qwen2",
    "qwen2.block_count": 24,
    "qwen2.embedding_length": 896,
    "qwen2.attention.head_count": 14,
    "qwen2.attention.head_count_kv": 2,
    "tokenizer.ggml.tokens": None,
}


class Ollama:
    """``/api/show`` and ``/api/ps`` of an Ollama server, in its documented forms."""

    def __init__(self) -> None:
        self.url = ""
        self.shown: Any = {"details": {"family": "qwen2"}, "model_info": ABOUT, "capabilities": ["completion"]}
        self.running: Any = {"models": []}
        self.asked: list[str] = []

    async def show(self, request: web.Request) -> web.Response:
        self.asked.append((await request.json())["model"])
        return web.json_response(self.shown)

    async def ps(self, request: web.Request) -> web.Response:
        return web.json_response(self.running)


@asynccontextmanager
async def ollama() -> AsyncIterator[Ollama]:
    server = Ollama()
    app = web.Application()
    app.add_routes([web.post("/api/show", server.show), web.get("/api/ps", server.ps)])
    async with serving(app) as server.url:
        yield server


async def test_ollama_says_what_a_model_takes_and_what_it_has_set_aside(settings: MakeSettings) -> None:
    name = "ollama_chat/qwen2.5:0.5b"
    async with ollama() as server:
        made = settings(llm_model=name, llm_api_base=server.url, model_memory_buffer_mib=100)
        memories = ModelMemories(made, (name, "openai/elsewhere"))
        assert memories.of(name, SEEN) is None
        await memories.look()
        found = memories.of(name, CARD)
        assert found is not None
        assert found.bytes_per_token == 2 * 24 * 2 * 64 * 2
        assert (found.where, found.free_mib, found.buffer_mib, found.source) == ("gpu", 3000, 100, "ollama")
        assert found.reserved_tokens == 0
        assert memories.of(name, SEEN) == found.model_copy(update={"where": "ram", "free_mib": 4000})
        assert memories.of("openai/elsewhere", SEEN) is None

        server.running = {
            "models": [{"model": "other", "context_length": 9}, {"model": "qwen2.5:0.5b", "context_length": 4096}]
        }
        await memories.look()
        loaded = memories.of(name, SEEN)
        assert loaded is not None
        assert loaded.reserved_tokens == 4096
        assert server.asked == ["qwen2.5:0.5b"]


@pytest.mark.parametrize("shown", [[], {}, {"model_info": None}, {"model_info": {"general.architecture": "qwen2"}}])
async def test_an_answer_that_says_too_little_leaves_the_memory_unknown(shown: Any, settings: MakeSettings) -> None:
    async with ollama() as server:
        server.shown = shown
        memories = ModelMemories(settings(llm_model="ollama/m", llm_api_base=server.url), ("ollama/m",))
        await memories.look()
        assert memories.of("ollama/m", SEEN) is None


async def test_a_server_that_is_away_leaves_the_memory_unknown_and_what_was_known_stands(
    settings: MakeSettings,
) -> None:
    async with ollama() as server:
        memories = ModelMemories(settings(llm_model="ollama/m", llm_api_base=server.url), ("ollama/m",))
        await memories.look()
    await memories.look()
    assert memories.of("ollama/m", SEEN) is not None
    away = ModelMemories(settings(llm_model="ollama/m", llm_api_base=server.url), ("ollama/m",))
    await away.look()
    assert away.of("ollama/m", SEEN) is None


async def test_each_cause_of_not_knowing_is_told_once_as_a_warning(settings: MakeSettings) -> None:
    async with ollama() as server:
        server.shown = {}
        memories = ModelMemories(settings(llm_model="ollama/m", llm_api_base=server.url), ("ollama/m",))
        with structlog.testing.capture_logs() as told:
            await memories.look()
            await memories.look()
    with structlog.testing.capture_logs() as told_later:
        await memories.look()
        await memories.look()
    assert [(one["log_level"], one["event"], one["why"]) for one in told] == [
        ("warning", "memory.unknown", "too_little")
    ]
    assert [one["event"] for one in told_later] == ["memory.unknown"]
    assert told_later[0]["why"] != "too_little"


async def test_another_machines_memory_is_not_ours_to_know(settings: MakeSettings) -> None:
    memories = ModelMemories(settings(llm_model="ollama/m", llm_api_base="http://gpu.example:11434"), ("ollama/m",))
    await memories.look()
    assert memories.of("ollama/m", SEEN) is None


async def test_settings_say_what_a_server_of_ones_own_does_not(settings: MakeSettings) -> None:
    made = settings(
        llm_model="openai/mine", llm_kv_layers=32, llm_kv_heads=8, llm_kv_head_size=128, llm_kv_cache_type="q8_0"
    )
    memories = ModelMemories(made, ("openai/mine", "openai/other"))
    await memories.look()
    found = memories.of("openai/mine", SEEN)
    assert found is not None
    assert (found.bytes_per_token, found.source) == (69_632, "settings")
    assert memories.of("openai/other", SEEN) is None


async def test_the_bundled_model_takes_working_memory_whatever_cards_there_are(settings: MakeSettings) -> None:
    memories = ModelMemories(settings(), (SMOLLM2,))
    await memories.look()
    found = memories.of(SMOLLM2, CARD)
    assert found is not None
    assert (found.where, found.free_mib, found.source) == ("ram", 4000, "gguf")


@pytest.mark.parametrize(
    ("url", "here"),
    [
        ("http://127.0.0.1:11434", True),
        ("http://localhost:1234/v1", True),
        ("http://[::1]:11434", True),
        ("http://models.localhost", True),
        ("http://10.0.0.5:11434", False),
        ("https://localhost.example", False),
        ("", False),
    ],
)
def test_only_loopback_is_this_machine(url: str, here: bool) -> None:
    assert is_here(url) is here


@pytest.mark.parametrize(
    "address", ["http://localhost:abc", "http://localhost:99999999", "http://localhost:11434/\x7f"]
)
async def test_an_address_that_is_none_leaves_a_model_unknown_and_ends_nothing(
    settings: MakeSettings, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings refuse such an address; Ollama's own variable may name one."""
    monkeypatch.setenv("OLLAMA_API_BASE", address)
    memories = ModelMemories(settings(llm_model="ollama/m"), ("ollama/m",))
    await memories.look()
    assert memories.of("ollama/m", SEEN) is None


async def test_an_answer_that_nothing_reads_leaves_a_model_unknown_and_ends_nothing(settings: MakeSettings) -> None:
    async def nested(request: web.Request) -> web.Response:
        return web.Response(body=b"[" * 200_000, content_type="application/json")

    app = web.Application()
    app.add_routes([web.post("/api/show", nested)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        memories = ModelMemories(settings(llm_model="ollama/m", llm_api_base=url), ("ollama/m",))
        await memories.look()
        assert memories.of("ollama/m", SEEN) is None
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("note", "is_known"),
    [(NO_GPU, True), (SILENT.note, False), (DRIVER_BROKEN, False), ("0 of 1 does not answer", False)],
)
async def test_where_no_card_answers_working_memory_is_not_taken_for_theirs(
    settings: MakeSettings, note: str, is_known: bool
) -> None:
    own = settings(llm_model="openai/x", llm_kv_layers=2, llm_kv_heads=2, llm_kv_head_size=64)
    memories = ModelMemories(own, ("openai/x", BUNDLED))
    await memories.look()
    seen = MachineState(EnvironmentInput(note=note), 100)
    assert (memories.of("openai/x", seen) is not None) is is_known
    assert memories.of(BUNDLED, seen) is not None
