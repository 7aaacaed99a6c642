"""Every embedder gives unit vectors of one size, the same for the same text."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import wordllama

from grounding.retrieval import (
    Embedder,
    EmbedderUnavailable,
    MiniLMEmbedder,
    MultilingualEmbedder,
    WordLlamaEmbedder,
)
from tests.emulators.embedder import HashedWords


@pytest.fixture(params=[HashedWords, WordLlamaEmbedder, MiniLMEmbedder, MultilingualEmbedder], scope="module")
def embedder(request: pytest.FixtureRequest) -> Embedder:
    made: Embedder = request.param()
    return made


TEXTS = ["Refunds take thirty days.", "", " \n", "退款政策", "🙂" * 50, "word " * 9000]


async def test_every_text_gets_one_unit_vector_or_zeros(embedder: Embedder) -> None:
    vectors = await embedder.embed_documents(TEXTS)
    assert len(vectors) == len(TEXTS)
    for vector in vectors:
        assert len(vector) == embedder.dimensions
        length = math.sqrt(sum(number * number for number in vector))
        assert length == 0.0 or length == pytest.approx(1.0, abs=1e-4)
    assert vectors[1] == [0.0] * embedder.dimensions
    assert await embedder.embed_documents([]) == []


async def test_the_static_model_gives_what_its_library_gives() -> None:
    """Its code is not imported by us, to save 40 MB."""
    embedder = WordLlamaEmbedder()
    assert wordllama.__file__ is not None
    library = wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)
    for text in ("Refunds take thirty days.", "退款政策", "word " * 700):
        (ours,) = await embedder.embed_documents([text])
        assert ours == pytest.approx(library.embed([text], norm=True)[0].tolist(), abs=1e-6)


async def test_a_batch_gives_what_each_text_gives_alone(embedder: Embedder) -> None:
    texts = [f"refund number {number} " * (number % 7 + 1) for number in range(150)]
    together = await embedder.embed_documents(texts)
    for place in (0, 63, 64, 149):
        assert together[place] == pytest.approx(await embedder.embed_query(texts[place]), abs=1e-4)


async def test_several_questions_get_the_vectors_that_each_gets_alone(embedder: Embedder) -> None:
    questions = ["refunds?", "and what about the window of refunds", ""]
    alone = [await embedder.embed_query(question) for question in questions]
    assert await embedder.embed_queries(questions) == [pytest.approx(one, abs=1e-4) for one in alone]


async def test_texts_that_share_their_meaning_are_nearer_than_others(embedder: Embedder) -> None:
    refund, money, storm = await embedder.embed_documents(["refund of money", "money refund rules", "storm at sea"])
    assert _cosine(refund, money) > _cosine(refund, storm)


def _cosine(left: list[float], right: list[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("bundled", [WordLlamaEmbedder, MiniLMEmbedder, MultilingualEmbedder])
async def test_a_missing_wheel_says_what_to_install_or_set(
    monkeypatch: pytest.MonkeyPatch, bundled: Callable[[], Embedder]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EmbedderUnavailable, match="EMBEDDING_MODEL") as refused:
        await bundled().embed_query("x")
    assert not refused.value.retryable
