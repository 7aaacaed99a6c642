"""What a workspace's documents speak of, through the embedded index and the bundled model."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from connectors.message import Scope
from grounding.evaluation.retrieval import fill
from grounding.prompt_input import load_tokens
from grounding.retrieval import Vector, Vocabulary, WordLlamaEmbedder
from grounding.retrieval.qdrant_edge import EmbeddedIndex
from grounding.retrieval.search import VOCABULARY_NOTHING
from grounding.strategy.strategy import MATCH_LOG_ODDS

ACME = Scope("acme")
DOCUMENTS = {
    "kiln.md": "# Kiln\n\nThe kiln is fired to cone six over eleven hours. Never open the lid above 300 degrees.",
    "glaze.md": "# Glaze\n\nThe celadon glaze is mixed from feldspar, silica, whiting and red iron oxide.",
    "rent.md": "# Studio rent\n\nMembers pay 80 euros a month for a shelf, and 15 euros for each extra shelf.",
}


class Unmeasured(WordLlamaEmbedder):
    """The bundled model under a name of which no cosines were measured; counts what it embeds for questions."""

    asked = 0

    @property
    def name(self) -> str:
        return "some/model"

    async def embed_query(self, text: str) -> Vector:
        self.asked += 1
        return await super().embed_query(text)


def opened(folder: Path, embedder: WordLlamaEmbedder) -> EmbeddedIndex:
    return EmbeddedIndex(folder, embedder.name, embedder.dimensions, timeout_seconds=20)


@pytest_asyncio.fixture
async def index(tmp_path: Path) -> AsyncIterator[EmbeddedIndex]:
    index = opened(tmp_path, WordLlamaEmbedder())
    await index.ensure()
    await fill(index, ACME, DOCUMENTS, WordLlamaEmbedder(), load_tokens().count)
    yield index
    await index.close()


async def test_what_the_documents_speak_of_is_told_from_what_they_do_not(index: EmbeddedIndex) -> None:
    vocabulary = Vocabulary(index, WordLlamaEmbedder())

    known = [await vocabulary.best_match(ACME, text) for text in ("how hot is the kiln fired?", "celadon glaze recipe")]
    strange = [await vocabulary.best_match(ACME, text) for text in ("who won the cup in 1990?", "tell me a joke")]

    assert {match.passages for match in known} == {3}
    assert min(match.relevance for match in known) > MATCH_LOG_ODDS
    assert max(match.relevance for match in strange) < MATCH_LOG_ODDS


async def test_another_workspaces_documents_have_no_say(index: EmbeddedIndex) -> None:
    assert await Vocabulary(index, WordLlamaEmbedder()).best_match(Scope("other"), "kiln") == (VOCABULARY_NOTHING, 0)


async def test_a_message_without_words_speaks_of_nothing(index: EmbeddedIndex) -> None:
    assert await Vocabulary(index, WordLlamaEmbedder()).best_match(ACME, "?!") == (VOCABULARY_NOTHING, 3)


async def test_a_model_whose_cosines_nobody_measured_is_not_asked(tmp_path: Path) -> None:
    embedder = Unmeasured()
    index = opened(tmp_path, embedder)
    await index.ensure()
    await fill(index, ACME, DOCUMENTS, embedder, load_tokens().count)
    vocabulary = Vocabulary(index, embedder)

    known = await vocabulary.best_match(ACME, "celadon glaze feldspar")
    strange = await vocabulary.best_match(ACME, "who won the world cup in 1990?")
    await index.close()

    assert known > strange
    assert embedder.asked == 0
