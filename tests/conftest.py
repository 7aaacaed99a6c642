"""Fixtures that tests of all rooms share."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from blockbuster import BlockBuster, blockbuster_ctx
from pydantic import SecretStr
from redis.asyncio import Redis

from config.settings import Settings
from runtime import stores
from tests.emulators import openai, valkey

OURS = ["config", "connectors", "grounding", "promptpolicy", "runtime"]
TIMEOUT_SECONDS = 5.0

MakeSettings = Callable[..., Settings]


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
    """Makes settings on a temporary DATA_DIR; arguments are fields. Secrets may be given as plain strings."""

    def make(**fields: Any) -> Settings:
        return Settings.model_validate({"data_dir": data_dir, **fields})

    return make


@pytest.fixture
def model_settings(settings: MakeSettings, openai_server: openai.FakeOpenAI) -> MakeSettings:
    """Makes settings whose model is the emulator."""

    def make(**fields: Any) -> Settings:
        model = {"llm_model": "openai/fake", "llm_api_base": openai_server.base_url, "llm_api_key": SecretStr("key")}
        return settings(**{**model, "llm_timeout_seconds": 10.0, **fields})

    return make


@pytest.fixture(autouse=True)
def no_blocking_calls(request: pytest.FixtureRequest) -> Iterator[BlockBuster | None]:
    """Our code must not block the event loop: file, socket and sleep calls that do raise `BlockingError`.

    Only calls that our rooms make, directly or through others, count; calls made by tests and by
    third parties on their own do not. Acceptance tests run without it, as users do.
    """
    if "acceptance" in request.path.parts:
        yield None
        return
    with blockbuster_ctx(OURS) as guard:
        # Imports read files wherever they happen first; the linter and start-up times watch those.
        for function in guard.functions.values():
            function.can_block_in("<frozen importlib._bootstrap>", {"_find_and_load"})
            function.can_block_in("asyncio/base_events.py", {"subprocess_exec"})
        yield guard
