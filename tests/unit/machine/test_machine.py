"""The machine: cards, power, free memory, what models take of it, and when the model is told of it anew."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from config.settings import SMOLLM2
from connectors.connector import ConnectionState, Health
from grounding.prompt import stable_environment
from grounding.prompt_input import Device, EnvironmentInput, Link, ModelMemory
from runtime.http.doctor import machine_check
from runtime.http.routes.admin import machine_gauges
from runtime.machine import MIB, Gpus, MachineMonitor, MachineState, ModelMemories
from runtime.machine.hardware import DRIVER_BROKEN, NO_GPU, Cards, Supply, free_memory_mib, supply
from runtime.machine.sampling import SILENT, ReadsCards
from runtime.observability import Metrics
from tests.conftest import MakeSettings
from tests.emulators.loopback import serving

BUFFER = 512


class NvmlError(Exception):
    pass


class FakeNvml:
    """pynvml with two cards; ``broken`` is what a call raises by its name, ``lost`` the cards that do not answer."""

    NVMLError = NvmlError
    nvmlClocksThrottleReasonHwThermalSlowdown = 0x40  # noqa: N815
    nvmlClocksThrottleReasonSwThermalSlowdown = 0x20  # noqa: N815

    def __init__(self, cards: int = 2) -> None:
        self.cards = cards
        self.broken: dict[str, Exception] = {}
        self.lost: set[int] = set()
        self.reasons = 0x4  # a power cap, which is no trouble
        self.open = 0

    def _call(self, name: str) -> None:
        if name in self.broken:
            raise self.broken[name]

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's names
        self._call("init")
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1
        self._call("shutdown")

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        self._call("count")
        return self.cards

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        if index in self.lost:
            raise NvmlError("GPU is lost")
        return index

    def nvmlDeviceGetName(self, handle: int) -> str | bytes:  # noqa: N802
        return b"A10" if handle else "A10"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(total=24_000 * MIB, used=(20_000 + handle) * MIB, free=(4_000 - handle) * MIB)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:  # noqa: N802
        self._call("throttle")
        return self.reasons


def test_each_card_says_its_memory_and_is_told_from_others_of_its_kind() -> None:
    assert Gpus(FakeNvml()).read() == Cards(
        (
            Device(name="0 A10", total_mib=24_000, used_mib=20_000, free_mib=4_000),
            Device(name="1 A10", total_mib=24_000, used_mib=20_001, free_mib=3_999),
        )
    )
    assert [one.name for one in Gpus(FakeNvml(cards=1)).read().devices] == ["A10"]


@pytest.mark.parametrize(
    ("reasons", "throttled"), [(0x0, False), (0x1, False), (0x4, False), (0x20, True), (0x44, True)]
)
def test_heat_slows_a_card_down_and_a_power_cap_does_not(reasons: int, throttled: bool) -> None:
    nvml = FakeNvml(cards=1)
    nvml.reasons = reasons
    assert Gpus(nvml).read().devices[0].throttled is throttled


def test_without_a_driver_there_is_no_gpu_and_with_one_later_there_is() -> None:
    nvml = FakeNvml(cards=1)
    gpus = Gpus(nvml)
    nvml.broken["init"] = type("NVMLError_LibraryNotFound", (NvmlError,), {})()
    assert gpus.read() == Cards(note=NO_GPU)
    nvml.broken.clear()
    assert len(gpus.read().devices) == 1


@pytest.mark.parametrize("error", [NvmlError("unknown"), OSError("broken library"), ValueError("not a number")])
def test_a_broken_driver_is_said_to_be_so_and_begun_with_anew(error: Exception) -> None:
    nvml = FakeNvml(cards=1)
    gpus = Gpus(nvml)
    assert len(gpus.read().devices) == 1
    nvml.broken["count"] = nvml.broken["shutdown"] = error
    assert gpus.read() == Cards(note=DRIVER_BROKEN)
    assert nvml.open == 0
    nvml.broken.clear()
    assert len(gpus.read().devices) == 1


def test_a_card_that_vanishes_leaves_the_others_and_is_found_when_it_is_back() -> None:
    nvml = FakeNvml()
    gpus = Gpus(nvml)
    gpus.read()
    nvml.lost = {0}
    found = gpus.read()
    assert ([one.name for one in found.devices], found.note) == (["1 A10"], "0 of 2 does not answer")
    nvml.lost = set()
    assert len(gpus.read().devices) == 2
    assert nvml.open == 1


class Held:
    """A driver that answers when it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.asked = 0

    def read(self) -> Cards:
        self.asked += 1
        self.let_go.wait(60)
        return Cards(note="awake")


async def no_links() -> dict[str, Health]:
    return {"redis": Health(ConnectionState.CONNECTED), "qdrant": Health(ConnectionState.DEGRADED, "away")}


def around(make: MakeSettings, gpus: ReadsCards, root: Path, every_seconds: float = 30.0) -> MachineMonitor:
    settings = make()
    memories = ModelMemories(settings, ("openai/fake",))
    return MachineMonitor(settings, gpus, memories, no_links, root, every_seconds=every_seconds)


async def test_a_driver_that_hangs_is_said_to_be_silent_asked_once_and_heard_when_it_wakes(
    settings: MakeSettings, tmp_path: Path
) -> None:
    driver = Held()
    machine = around(settings, driver, tmp_path, every_seconds=0.05)
    try:
        for _ in range(3):
            await machine.look()
            assert machine.seen is not None
            assert machine.seen.environment.note == SILENT.note
        assert driver.asked == 1
    finally:
        driver.let_go.set()
    while (told := machine.environment(None)) is None or told.note == SILENT.note:
        await machine.look()
    assert told.note == "awake"


async def test_what_is_seen_is_what_turns_are_given_and_nothing_before_the_first_look(
    settings: MakeSettings, tmp_path: Path
) -> None:
    memory = {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 4096000 kB\n"}
    write(tmp_path, memory | {"sys/firmware/acpi/platform_profile": "low-power\n"})
    machine = around(settings, Gpus(FakeNvml(cards=1)), tmp_path)
    assert (machine.environment(None), machine.memory("openai/fake")) == (None, None)
    await machine.look()
    told = machine.environment(None)
    assert told is not None
    assert told.links == (Link(name="qdrant", state="degraded"), Link(name="redis", state="connected"))
    assert (told.devices[0].free_mib, told.low_power, told.power) == (4_000, True, "")
    assert machine.seen is not None
    assert machine.seen.free_memory_mib == 4000


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")


POWER = "sys/class/power_supply/"
MAINS = {POWER + "AC/type": "Mains\n", POWER + "AC/online": "1\n"}
UNPLUGGED = MAINS | {POWER + "AC/online": "0\n"}
BATTERY = {POWER + "BAT0/type": "Battery\n", POWER + "BAT0/status": "Discharging\n", POWER + "BAT0/capacity": "80\n"}
MOUSE = {POWER + "m/type": "Battery\n", POWER + "m/scope": "Device\n", POWER + "m/status": "Discharging\n"}
SAVER = {"sys/firmware/acpi/platform_profile": "low-power\n"}


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, Supply("", False)),
        (MAINS, Supply("mains", False)),
        (MAINS | BATTERY, Supply("mains", False)),
        (UNPLUGGED | BATTERY, Supply("battery", False)),
        (UNPLUGGED | BATTERY | {POWER + "BAT0/capacity": "20\n"}, Supply("battery", True)),
        (BATTERY | {POWER + "BAT0/status": "Full\n"}, Supply("mains", False)),
        (BATTERY | {POWER + "BAT0/capacity": "?\n"}, Supply("battery", False)),
        (MOUSE, Supply("", False)),
        (MAINS | SAVER, Supply("mains", True)),
        (SAVER, Supply("", True)),
    ],
)
def test_power_is_what_the_kernel_says_and_nothing_where_it_says_nothing(
    files: dict[str, str], found: Supply, tmp_path: Path
) -> None:
    write(tmp_path, files)
    assert supply(tmp_path) == found


MEMINFO = {"proc/meminfo": "MemTotal: 8192000 kB\nMemAvailable: 4096000 kB\n"}
GROUP = "sys/fs/cgroup/"


@pytest.mark.parametrize(
    ("files", "mib"),
    [
        ({}, None),
        (MEMINFO, 4000),
        (MEMINFO | {GROUP + "memory.max": f"{900 * MIB}\n", GROUP + "memory.current": f"{300 * MIB}\n"}, 600),
        (
            MEMINFO
            | {GROUP + "memory.max": f"{900 * MIB}", GROUP + "memory.current": f"{800 * MIB}"}
            | {GROUP + "memory.stat": f"anon 5\ninactive_file {250 * MIB}\n"},
            350,
        ),
        ({"proc/meminfo": f"MemAvailable: {'9' * 5000} kB\n"}, None),
        (
            {
                GROUP + "memory/memory.limit_in_bytes": f"{700 * MIB}",
                GROUP + "memory/memory.usage_in_bytes": f"{100 * MIB}",
            },
            600,
        ),
        (
            MEMINFO
            | {GROUP + "memory/memory.limit_in_bytes": "9223372036854771712"}
            | {GROUP + "memory/memory.usage_in_bytes": "1"},
            4000,
        ),
    ],
)
def test_free_memory_is_the_machines_or_what_the_container_leaves(
    files: dict[str, str], mib: int | None, tmp_path: Path
) -> None:
    write(tmp_path, files)
    assert free_memory_mib(tmp_path) == mib


def machine(free: int = 4000, *, throttled: bool = False, **changes: Any) -> EnvironmentInput:
    card = Device(name="A10", total_mib=24_000, used_mib=24_000 - free, free_mib=free, throttled=throttled)
    return EnvironmentInput(**({"devices": (card,), "links": (Link(name="redis", state="connected"),)} | changes))


@given(st.lists(st.integers(BUFFER, 24_000), min_size=1))
def test_free_memory_that_wiggles_above_the_buffer_changes_nothing(frees: list[int]) -> None:
    told = machine()
    for free in frees:
        assert stable_environment(told, machine(free), BUFFER) is told


@pytest.mark.parametrize(
    "now",
    [
        machine(BUFFER - 1),
        machine(throttled=True),
        machine(devices=(), note="the driver does not answer"),
        machine(note="1 of 2 does not answer"),
        machine(links=(Link(name="redis", state="degraded"),)),
        machine(low_power=True),
        machine(power="battery"),
    ],
)
def test_what_may_change_what_is_done_is_told_at_once_and_so_is_its_end(now: EnvironmentInput) -> None:
    assert stable_environment(machine(), now, BUFFER) is now
    assert stable_environment(now, machine(), BUFFER) == machine()


@pytest.mark.parametrize("state", ["connected", "connecting"])
def test_a_link_that_is_being_made_is_not_lost(state: str) -> None:
    told = machine()
    assert stable_environment(told, machine(links=(Link(name="redis", state=state),)), BUFFER) is told


def test_memory_that_was_short_is_back_only_well_above_the_line() -> None:
    short = machine(BUFFER - 1)
    assert stable_environment(short, machine(BUFFER + 1), BUFFER) is short
    back = machine(2 * BUFFER)
    assert stable_environment(short, back, BUFFER) is back


def test_the_numbers_for_prometheus_have_each_card_by_name_and_only_what_the_machine_says() -> None:
    shown = Metrics().exposition(machine_gauges(MachineState(machine(throttled=True, low_power=True), 100)))
    for line in (
        f'agent_runtime_gpu_memory_bytes{{gpu="A10",kind="free"}} {4000 * MIB}',
        f'agent_runtime_gpu_memory_bytes{{gpu="A10",kind="total"}} {24_000 * MIB}',
        'agent_runtime_gpu_throttled{gpu="A10"} 1',
        f"agent_runtime_machine_memory_free_bytes {100 * MIB}",
        "agent_runtime_machine_low_power 1",
    ):
        assert line in shown.splitlines()
    assert "# TYPE agent_runtime_gpu_memory_bytes gauge" in shown
    silent = Metrics().exposition(machine_gauges(MachineState(EnvironmentInput())))
    assert "gpu" not in silent
    assert "free_bytes" not in silent
    assert list(machine_gauges(None)) == []


def test_the_doctor_says_what_the_machine_has_and_whether_the_model_has_room() -> None:
    seen = MachineState(machine(throttled=True, power="battery", low_power=True), 9000)
    alone = machine_check(seen, None, 1024)
    assert alone.ok
    assert alone.detail == (
        "GPU A10: 4000 of 24000 MiB free, slowed down; 9000 MiB of memory free; power: battery; low-power mode"
    )
    held = ModelMemory(bytes_per_token=MIB, free_mib=4000, buffer_mib=500, where="gpu", source="ollama")
    assert "room for 3500 tokens" in machine_check(seen, held, 1024).detail
    assert machine_check(seen, held, 1024).ok
    short = machine_check(seen, held.model_copy(update={"free_mib": 600}), 1024)
    assert (short.ok, "MODEL_MEMORY_BUFFER_MIB" in short.advice) == (False, True)
    assert machine_check(MachineState(EnvironmentInput(note="none")), None, 1024).detail == "GPU: none"


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
