"""Fixtures of the integration tests."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from config.settings import Settings
from tests.emulators import openai
from tests.emulators.face import ADMIN, Face, serving_face


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def provider() -> AsyncIterator[openai.FakeOpenAI]:
    """A model provider for all tests of a module."""
    async with openai.serving() as fake:
        yield fake


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def face(provider: openai.FakeOpenAI) -> AsyncIterator[Face]:
    """One running HTTP face, with embedded stores, for all tests of a module."""
    with tempfile.TemporaryDirectory(prefix="ar-") as folder:
        settings = Settings.model_validate(
            {
                "data_dir": Path(folder),
                "admin_token": ADMIN,
                "llm_model": "openai/fake",
                "llm_api_base": provider.base_url,
                "llm_api_key": "key",
                "llm_max_attempts": 1,
                "llm_timeout_seconds": 10.0,
                "document_max_bytes": 20_000,
                "codex_max_bytes": 56_000,
                "http_max_body_bytes": 30_000,
                "shutdown_grace_seconds": 5.0,
                "deep_embedding_model": "none",
            }
        )
        async with serving_face(settings) as running:
            yield running
