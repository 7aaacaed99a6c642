"""Embeddings of a provider, through LiteLLM."""

from __future__ import annotations

import math
from typing import Any

import pytest

from grounding.retrieval import Embedder, EmbedderUnavailable
from runtime.llm import open_embedder
from runtime.llm.embeddings import BATCH
from tests.conftest import MakeSettings
from tests.emulators.openai import EMBEDDING_DIMENSIONS, FakeOpenAI, Reply


async def test_texts_become_unit_vectors_in_their_order(
    model_settings: MakeSettings, openai_server: FakeOpenAI
) -> None:
    embedder: Embedder = await open_embedder(model_settings(embedding_model="openai/fake-embedding"))
    assert (embedder.name, embedder.dimensions) == ("openai/fake-embedding", EMBEDDING_DIMENSIONS)
    texts = [f"word{n} Grüße 👋" for n in range(BATCH + 3)] + [""]
    vectors = await embedder.embed_documents(texts)
    assert len(vectors) == len(texts)
    assert all(math.isclose(math.hypot(*vector), 1) for vector in vectors[:-1])
    assert vectors[1] == await embedder.embed_query(texts[1])
    assert not any(vectors[-1])
    assert len(openai_server.embedding_requests) == 4


async def test_several_questions_are_one_request(model_settings: MakeSettings, openai_server: FakeOpenAI) -> None:
    embedder = await open_embedder(model_settings(embedding_model="openai/fake-embedding"))
    questions = ["refunds?", "and the window?"]
    before = len(openai_server.embedding_requests)
    vectors = await embedder.embed_queries(questions)
    assert len(openai_server.embedding_requests) == before + 1
    assert vectors == [await embedder.embed_query(question) for question in questions]


@pytest.mark.parametrize(
    ("trouble", "retryable"), [("unauthorized", False), ("server_error", True), ("not_found", False)]
)
async def test_a_provider_that_fails_is_an_embedder_that_is_away(
    model_settings: MakeSettings, openai_server: FakeOpenAI, trouble: Any, retryable: bool
) -> None:
    embedder = await open_embedder(model_settings(embedding_model="openai/fake-embedding"))
    openai_server.will(Reply(trouble=trouble))
    with pytest.raises(EmbedderUnavailable) as failed:
        await embedder.embed_query("a private question")
    assert failed.value.retryable is retryable
    assert "private" not in str(failed.value)
