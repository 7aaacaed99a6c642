"""Embeddings, and passages in the order of a cross-encoder, both of providers through LiteLLM."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from config.settings import Settings
from connectors.message import Scope
from grounding.prompt_input import DegradedBlock, load_tokens
from grounding.retrieval import (
    Embedder,
    EmbedderUnavailable,
    IndexEntry,
    Kind,
    Passage,
    RerankUnavailable,
    Search,
    encode_document,
)
from grounding.retrieval.qdrant_edge import EmbeddedIndex
from runtime.billing import Budgets, RerankCosts, Spending, UsageCounters
from runtime.llm import LiteLLMReranker, Model, open_embedder
from runtime.llm.embeddings import BATCH
from tests.conftest import MakeSettings
from tests.emulators.embedder import HashedWords
from tests.emulators.face import ADMIN, serving_face
from tests.emulators.openai import EMBEDDING_DIMENSIONS, FakeOpenAI, Reply, in_background

ACME = Scope("acme")
TEXTS = ("kayak", "where the kayak lies", "refund refund refund", "nothing of the kind")


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
    questions = ["refunds?", "and the window?"]
    together = await embedder.embed_queries(questions)
    assert len(openai_server.embedding_requests) == 5  # one request for all questions
    assert together == [await embedder.embed_query(question) for question in questions]


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


@pytest.fixture
def rerank_settings(settings: MakeSettings, openai_server: FakeOpenAI) -> MakeSettings:
    """Makes settings whose reranker is the emulator."""

    def make(**fields: Any) -> Settings:
        base = openai_server.base_url
        return settings(**{"rerank_model": "hosted_vllm/cross", "rerank_api_base": base, **fields})

    return make


@pytest_asyncio.fixture
async def index(tmp_path: Path) -> AsyncIterator[EmbeddedIndex]:
    embedder = HashedWords()
    opened = EmbeddedIndex(tmp_path / "index", embedder.name, embedder.dimensions, timeout_seconds=10)
    await opened.ensure()
    vectors = await embedder.embed_documents(TEXTS)
    entries = [
        IndexEntry(Passage(str(n), Kind.DOCUMENT, f"{n}.md", text), vector, encode_document(text))
        for n, (text, vector) in enumerate(zip(TEXTS, vectors, strict=True))
    ]
    await opened.upsert(ACME, entries)
    try:
        yield opened
    finally:
        await opened.close()


@pytest.mark.parametrize("model", ["hosted_vllm/cross", "cohere/rerank-v3.5", "infinity/cross", "jina_ai/cross"])
async def test_each_provider_s_scores_come_in_the_order_of_the_passages(
    rerank_settings: MakeSettings, openai_server: FakeOpenAI, model: str
) -> None:
    base = openai_server.base_url.removesuffix("/v1") if model.startswith("cohere") else openai_server.base_url
    settings = rerank_settings(rerank_model=model, rerank_api_base=base, rerank_api_key="rerank-key")
    scores = await LiteLLMReranker(settings).scores(ACME, "where lies the kayak", [*TEXTS, ""])
    assert sorted(range(5), key=lambda at: -scores[at])[:2] == [1, 0]
    assert openai_server.keys == ["rerank-key"]
    [request] = openai_server.rerank_requests
    assert request["documents"] == [*TEXTS, " "]


async def test_the_search_s_best_come_in_the_reranker_s_order_and_say_so(
    rerank_settings: MakeSettings, index: EmbeddedIndex, openai_server: FakeOpenAI
) -> None:
    plain = await Search(index, HashedWords()).search(ACME, "kayak lies", 4)
    reranker = LiteLLMReranker(rerank_settings(), candidates=2)
    hits = await Search(index, HashedWords(), reranker=reranker).search(ACME, "kayak lies", 4, explain=True)
    [request] = openai_server.rerank_requests
    assert request["documents"] == [hit.passage.text for hit in plain[:2]]
    assert hits[0].passage.text == "where the kayak lies"
    assert hits[0].rerank is not None
    assert hits[0].rerank.rank == 1
    assert hits[0].rerank.score > 0.9
    assert {hit.passage.id: (hit.fused.rank, hit.score) for hit in hits if hit.fused} == {
        hit.passage.id: (rank, hit.score) for rank, hit in enumerate(plain, start=1)
    }
    assert [hit.rerank for hit in hits[2:]] == [None] * len(plain[2:])
    assert await Search(index, HashedWords(), reranker=reranker).search(Scope("empty"), "kayak", 4) == []
    assert len(openai_server.rerank_requests) == 1  # for nothing that was found it is not asked


@pytest.mark.parametrize(
    ("trouble", "why"),
    [("unauthorized", "auth"), ("server_error", "unavailable"), ("rate_limited", "rate_limited"), ("hang", "timeout")],
)
async def test_a_reranker_that_fails_leaves_the_search_s_order_and_is_named(
    rerank_settings: MakeSettings, index: EmbeddedIndex, openai_server: FakeOpenAI, trouble: Any, why: str
) -> None:
    plain = await Search(index, HashedWords()).search(ACME, "kayak lies", 4)
    openai_server.will(Reply(trouble=trouble))
    reranker = LiteLLMReranker(rerank_settings(), timeout_seconds=0.5)
    lost: list[DegradedBlock] = []
    async with asyncio.timeout(20):
        hits = await Search(index, HashedWords(), reranker=reranker).search(ACME, "kayak lies", 4, lost=lost)
    assert [(hit.passage, hit.rerank) for hit in hits] == [(hit.passage, None) for hit in plain]
    assert lost == [DegradedBlock(block="rerank", why=why)]


async def test_an_answer_without_a_score_for_each_passage_counts_as_none(
    rerank_settings: MakeSettings, openai_server: FakeOpenAI
) -> None:
    openai_server.rerank_forgets = True
    with pytest.raises(RerankUnavailable, match="one score for each of 4") as failed:
        await LiteLLMReranker(rerank_settings()).scores(ACME, "a private question", TEXTS)
    assert failed.value.why == "bad_response"
    assert "private" not in str(failed.value)


async def test_what_reranking_costs_is_counted_for_the_workspace(
    rerank_settings: MakeSettings, redis: Redis, openai_server: FakeOpenAI
) -> None:
    settings = rerank_settings(budget_workspace_tokens_per_day=80)
    usage, budgets = UsageCounters(redis), Budgets(redis, settings)
    costs = RerankCosts(Spending(settings, redis, budgets, usage, Model(settings), load_tokens()))
    reranker = LiteLLMReranker(settings, costs)
    for _ in range(2):
        await reranker.scores(ACME, "kayak", TEXTS)
    [counted] = await usage.totals(ACME)
    assert (counted.model, counted.calls, counted.replies, counted.prompt) == ("hosted_vllm/cross", 2, 0, 84)
    with pytest.raises(RerankUnavailable) as refused:
        await reranker.scores(ACME, "kayak", TEXTS)
    assert refused.value.why == "budget"
    assert len(openai_server.rerank_requests) == 2

    base = openai_server.base_url.removesuffix("/v1")
    priced = rerank_settings(rerank_model="cohere/rerank-v3.5", rerank_api_base=base, rerank_api_key="key")
    costs = RerankCosts(Spending(priced, redis, Budgets(redis, priced), usage, Model(priced), load_tokens()))
    other = Scope("other")
    await LiteLLMReranker(priced, costs).scores(other, "kayak", TEXTS)
    [counted] = await usage.totals(other)
    assert counted.cost_usd > 0  # LiteLLM knows the price


def reranking_lost(answer: dict[str, Any]) -> list[str]:
    """Why the order of the search stood; how fresh the index is, on a busy machine, is another matter."""
    return [part["why"] for part in answer["degraded"] if part["block"] == "rerank"]


async def test_a_turn_whose_reranker_fails_is_answered_and_says_so(
    model_settings: MakeSettings, openai_server: FakeOpenAI
) -> None:
    settings = model_settings(
        rerank_model="hosted_vllm/cross", rerank_api_base=openai_server.base_url, admin_token=ADMIN
    )
    async with serving_face(settings) as face:
        here = await face.workspace("zoo")
        await face.client.put(f"{here}/documents/zebra.md?wait=true", content=b"# Stripes\n\nThe zebra has stripes.")
        found = (await face.client.get(f"{here}/search", params={"q": "zebra", "explain": 1})).json()
        assert reranking_lost(found) == []
        assert (found["results"][0]["rerank"]["rank"], found["results"][0]["fused"]["rank"]) == (1, 1)
        asked = {"text": "What do the docs say about the zebra?"}
        assert reranking_lost((await face.client.post(f"{here}/messages", json=asked)).json()) == []
        openai_server.rerank_forgets = True
        lost = (await face.client.post(f"{here}/messages", json=asked)).json()
        assert reranking_lost(lost) == ["bad_response"]
        assert [source["source"] for source in lost["sources"]] == ["zebra.md"]
        replies = [body for body in openai_server.requests if not in_background(body)]
        assert "zebra has stripes" in str(replies[-1])
        assert reranking_lost((await face.client.get(f"{here}/search", params={"q": "zebra"})).json()) == [
            "bad_response"
        ]
        usage = (await face.client.get(f"{here}/usage")).json()
        assert "hosted_vllm/cross" in str(usage)
