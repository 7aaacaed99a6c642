"""Speed of indexing and searching in process: ``python -m bench.retrieval [CHUNKS …]``.

Passages are made of words of a Zipf-like vocabulary, 110 words each, over ten workspaces. A search is the
embedding of the question, its sparse vector and one hybrid query; ``explain`` adds both arms' raw scores.
"""

from __future__ import annotations

import asyncio
import random
import resource
import sys
import tempfile
import time
from pathlib import Path

from connectors.message import Scope
from grounding.documents.embedding import WordLlamaEmbedder
from grounding.documents.index import Entry, Kind, Passage
from grounding.documents.metrics import percentile
from grounding.documents.qdrant_embedded import EmbeddedIndex
from grounding.documents.search import Search
from grounding.documents.sparse import encode_document

WORKSPACES = 10
QUERIES = 400
BATCH = 512


def passages(count: int, dice: random.Random) -> list[str]:
    """*count* texts of 110 words."""
    vocabulary = [
        f"{a}{b}{c}" for a in "bcdfgklmnprst" for b in ("a", "ei", "o", "ul") for c in ("ber", "nd", "tor", "x")
    ]
    vocabulary += [f"{word}{tail}" for word in vocabulary for tail in ("ing", "y", "ment", "less", "way")]
    weights = [1 / rank for rank in range(1, len(vocabulary) + 1)]
    return [" ".join(dice.choices(vocabulary, weights, k=110)) for _ in range(count)]


async def measure(count: int, folder: Path) -> None:
    """Print one line for *count* chunks."""
    dice = random.Random(7)
    texts = passages(count, dice)
    embedder = WordLlamaEmbedder()
    await embedder.embed_query("warm up")
    index = EmbeddedIndex(folder, embedder.name, embedder.dimensions, timeout_seconds=60)
    await index.ensure()
    began = time.perf_counter()
    for start in range(0, count, BATCH):
        group = texts[start : start + BATCH]
        vectors = await embedder.embed_documents(group)
        entries = [
            Entry(Passage(str(start + n), Kind.DOCUMENT, f"{start + n}.md", text), vector, encode_document(text))
            for n, (text, vector) in enumerate(zip(group, vectors, strict=True))
        ]
        for workspace in range(WORKSPACES):
            await index.upsert(Scope(f"w{workspace}"), entries[workspace::WORKSPACES])
    rate = count / (time.perf_counter() - began)
    await index.close()
    index = EmbeddedIndex(folder, embedder.name, embedder.dimensions, timeout_seconds=60)
    began = time.perf_counter()
    await index.check()
    reopen = (time.perf_counter() - began) * 1000
    search = Search(index, embedder)
    cells = [f"{count:>7}", f"{rate:>9.0f}", f"{reopen:>9.0f}"]
    for explain in (False, True):
        took = []
        for number in range(QUERIES):
            words = " ".join(dice.sample(texts[number % count].split(), 6))
            began = time.perf_counter()
            await search.search(Scope(f"w{number % WORKSPACES}"), words, 10, explain=explain)
            took.append((time.perf_counter() - began) * 1000)
        cells += [f"{percentile(took, 0.5):>8.2f}", f"{percentile(took, 0.95):>8.2f}"]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(" | ".join([*cells, f"{memory:>8.0f}"]))
    await index.close()


async def main(counts: list[int]) -> None:
    """Print the table."""
    print(" chunks | chunks/s  | reopen ms | p50 ms   | p95 ms   | p50 expl | p95 expl | peak MiB")
    for count in counts:
        with tempfile.TemporaryDirectory() as folder:
            await measure(count, Path(folder))


if __name__ == "__main__":
    asyncio.run(main([int(argument) for argument in sys.argv[1:]] or [1_000, 10_000]))
