"""Fixtures that tests of all rooms share."""

from __future__ import annotations

import inspect
import os
import sysconfig
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import blockbuster
import hypothesis
import pytest
import pytest_asyncio
import structlog
from blockbuster import BlockBuster
from pydantic import SecretStr
from redis.asyncio import Redis

from config.settings import Settings
from runtime import stores
from tests.emulators import openai, valkey
from tests.emulators.face import let_go_of_apps

OURS = ["config", "connectors", "grounding", "promptpolicy", "runtime"]
TIMEOUT_SECONDS = 5.0

MakeSettings = Callable[..., Settings]

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the console script does, before numpy is imported

# On a shared machine the clock says nothing. Where a change is judged the examples are the same each time;
# at a desk each run looks at new ones.
hypothesis.settings.register_profile("desk", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "desk")


@pytest.fixture(scope="session")
def redis_socket() -> Iterator[Path]:
    """The unix socket of one real server for the whole run."""
    with valkey.running() as path:
        yield path


@pytest_asyncio.fixture
async def redis(redis_socket: Path) -> AsyncIterator[Redis]:
    """A clean client as the runtime makes it; everything stored is gone before the next test."""
    client = stores.connect(f"unix://{redis_socket}", TIMEOUT_SECONDS)
    await client.flushall()
    await client.script_flush()
    try:
        yield client
    finally:
        await client.aclose()


@pytest_asyncio.fixture
async def openai_server() -> AsyncIterator[openai.FakeOpenAI]:
    """A model provider on loopback, recording what it is sent."""
    async with openai.serving() as fake:
        yield fake


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """An empty folder with a path short enough for a unix socket, which pytest's own need not have."""
    with tempfile.TemporaryDirectory(prefix="ar-") as folder:
        yield Path(folder)


@pytest.fixture
def settings(data_dir: Path) -> MakeSettings:
    """Makes settings on a temporary DATA_DIR; arguments are fields. Secrets may be given as plain strings. Without the
    deeper embedding model: it would be a process of its own for each test."""

    def make(**fields: Any) -> Settings:
        return Settings.model_validate({"data_dir": data_dir, "deep_embedding_model": "none", **fields})

    return make


@pytest.fixture
def model_settings(settings: MakeSettings, openai_server: openai.FakeOpenAI) -> MakeSettings:
    """Makes settings whose model is the emulator. It is asked for no records: what it made of them would stand in the
    prompts of tests about something else."""

    def make(**fields: Any) -> Settings:
        model = {"llm_model": "openai/fake", "llm_api_base": openai_server.base_url, "llm_api_key": SecretStr("key")}
        return settings(**{**model, "llm_timeout_seconds": 10.0, "records_extraction": False, **fields})

    return make


@pytest.fixture
def printed_events() -> Iterator[None]:
    """Events are printed as by default, whatever a test before this one configured."""
    configured = structlog.get_config()
    structlog.reset_defaults()
    try:
        yield
    finally:
        structlog.configure(**configured)


@pytest.fixture(autouse=True)
def no_apps_kept() -> Iterator[None]:
    """What a test made of an application does not stay in memory for all tests after it."""
    yield
    let_go_of_apps()


@pytest.fixture(autouse=True)
def no_blocking_calls(request: pytest.FixtureRequest) -> Iterator[None]:
    """A file, socket or sleep call by which our code blocks the event loop raises `BlockingError`.

    What third parties do when they are called, what tests do, and imports do not count.
    Acceptance tests run without it, as users do.
    """
    if "acceptance" in request.path.parts:
        yield
        return
    guard = BlockBuster(OURS)
    for function in guard.functions.values():
        function.can_block_predicate = _excused(function.can_block_predicate)
    guard.activate()
    try:
        yield
    finally:
        guard.deactivate()


def _excused(otherwise: Callable[..., bool]) -> Callable[..., bool]:
    """Whether a call that blocks is not our code's doing: neither made by it nor awaited in it."""

    def excused(*args: Any, **options: Any) -> bool:
        frame = inspect.currentframe()
        called_by_us = False
        while frame := frame.f_back if frame else None:
            file = frame.f_code.co_filename
            if file.startswith(_IMPORT_SYSTEM) or file.endswith("asyncio/base_events.py"):
                return True
            if not called_by_us:
                if _is_machinery(file):
                    continue
                if not file.startswith(_OUR_FOLDERS):
                    return True
                called_by_us = True
            if frame.f_code.co_flags & _ASYNC:
                # Called from a test directly, a blocking function of ours blocks nobody.
                return not file.startswith(_OUR_FOLDERS) or otherwise(*args, **options)
        return True

    return excused


def _is_machinery(file: str) -> bool:
    """The standard library (frozen modules too), blockbuster and this file stand between a call and its caller."""
    if file.startswith((_BLOCKBUSTER, "<frozen")) or file == __file__:
        return True
    return file.startswith(_STANDARD_LIBRARY) and "site-packages" not in file


_ROOT = Path(__file__).parents[1]
_OUR_FOLDERS = tuple(f"{_ROOT / room}{os.sep}" for room in OURS)
_BLOCKBUSTER = str(Path(blockbuster.__file__).parent)
_IMPORT_SYSTEM = "<frozen importlib._bootstrap"
_ASYNC = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_STANDARD_LIBRARY = sysconfig.get_path("stdlib")
