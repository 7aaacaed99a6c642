"""Speed of indexing and searching in the embedded engine, which has a process of its own as in ``serve``:
``python -m bench.retrieval [--workspaces N] [--model M] [--deeper M] [--in-process] [CHUNKS …]``.

Passages are made of English words in Zipf-like shares, 110 words each, twenty to a document, in one workspace or spread
over *N*. ``search`` is the embedding of the question, its sparse vector, one hybrid query for ten chunks and, where
there is a deeper model, as there is by default, the second look with the question's vector from the child process;
``prompt`` is what a turn asks for: the same with raw scores, the relevance floor, neighbours and packing. Passages'
deeper vectors are drawn by lot, because to compare them takes as long whatever they say. ``without`` counts the
searches and prompts whose question's deeper vector did not come in time. ``engine`` is the memory (PSS) of the index's
process at the end, beside the peak of this one. With ``--in-process`` this one has the engine, as short commands do.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import resource
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.figures import share
from bench.processes import memory_mb
from config.settings import BUNDLED_EMBEDDING_MODELS, Settings
from connectors.message import Scope
from grounding.prompt_input import DegradedBlock, LineByLine, load_tokens
from grounding.retrieval import Embedder, IndexEntry, Kind, Passage, PassageIndex, Search, Vector, encode_document
from grounding.retrieval.minilm import VOCABULARY
from grounding.retrieval.qdrant_edge import EmbeddedIndex
from runtime.embedded.index_client import DeepModel, IndexProcess, RemoteIndex, index_process
from runtime.llm import open_embedder
from runtime.observability import Redaction, events
from runtime.search import deepening_unavailable_reason

QUERIES = 400
BATCH = 256
"""Passages that are stored together."""
PARTS = 20
"""Passages of a document."""
WORDS = 1248


def passages(count: int, dice: random.Random) -> list[str]:
    """*count* texts of 110 words."""
    known = VOCABULARY.read_text(encoding="utf-8").split()
    vocabulary = [word for word in known if len(word) > 3 and word.isascii() and word.isalpha()][:WORDS]
    weights = [1 / rank for rank in range(1, len(vocabulary) + 1)]
    return [" ".join(dice.choices(vocabulary, weights, k=110)) for _ in range(count)]


def entry(number: int, text: str, vector: Vector, workspaces: int) -> IndexEntry:
    """The *number*-th text as it is stored."""
    document, part = divmod(number // workspaces, PARTS)
    start = part * 10_000
    passage = Passage(
        str(number), Kind.DOCUMENT, f"{document}.md", text, ordinal=part, start=start, end=start + len(text)
    )
    return IndexEntry(passage, vector, encode_document(text))


async def store(index: PassageIndex, embedder: Embedder, texts: list[str], workspaces: int) -> None:
    """Store *texts* in groups, as the indexer does."""
    for start in range(0, len(texts), BATCH):
        group = texts[start : start + BATCH]
        vectors = await embedder.embed_documents(group)
        numbered = enumerate(zip(group, vectors, strict=True), start=start)
        entries = [entry(number, text, vector, workspaces) for number, (text, vector) in numbered]
        for workspace in range(workspaces):
            await index.upsert(Scope(f"w{workspace}"), entries[workspace::workspaces])


async def deepen(index: PassageIndex, deep: DeepModel, count: int, workspaces: int) -> None:
    """Give all *count* passages a deeper vector, drawn by lot."""
    chance = np.random.default_rng(0)
    for start in range(0, count, BATCH):
        numbers = range(start, min(start + BATCH, count))
        drawn = chance.normal(size=(len(numbers), deep.dimensions))
        vectors = (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).tolist()
        for workspace in range(workspaces):
            own = {str(number): vectors[number - start] for number in numbers if number % workspaces == workspace}
            if own:
                await index.deepen(Scope(f"w{workspace}"), Kind.DOCUMENT, own)


async def timed(ask: Callable[[int], Awaitable[object]]) -> list[str]:
    """Milliseconds at p50 and p95 of `QUERIES` calls, one after the other."""
    took = []
    for number in range(QUERIES):
        began = time.perf_counter()
        await ask(number)
        took.append((time.perf_counter() - began) * 1000)
    return [f"{share(took, part):>8.2f}" for part in (0.5, 0.95)]


async def measure(
    count: int, workspaces: int, folder: Path, settings: Settings, deep: DeepModel | None, engine: IndexProcess | None
) -> None:
    """Print one line for *count* chunks in *workspaces*, with *deep* as what embeds questions for the second look, and
    *engine* as the process that has the index."""
    dice = random.Random(7)
    texts = passages(count, dice)
    embedder = await open_embedder(settings)
    await embedder.embed_query("warm up")

    def opened() -> PassageIndex:
        about = folder, embedder.name, embedder.dimensions
        how: dict[str, Any] = {"timeout_seconds": 60, "deep_dimensions": deep.dimensions if deep else None}
        return RemoteIndex(engine, *about, **how) if engine else EmbeddedIndex(*about, **how)

    index = opened()
    await index.ensure()
    began = time.perf_counter()
    await store(index, embedder, texts, workspaces)
    rate = count / (time.perf_counter() - began)
    if deep is not None:
        await deepen(index, deep, count, workspaces)
    await index.close()
    index = opened()
    began = time.perf_counter()
    await index.check()
    reopen = (time.perf_counter() - began) * 1000
    search = Search(index, embedder, count=LineByLine(load_tokens()).count, deep=deep)
    lost: list[DegradedBlock] = []

    def question(number: int) -> str:
        return " ".join(dice.sample(texts[number % count].split(), 6))

    async def searching(number: int) -> None:
        await search.search(Scope(f"w{number % workspaces}"), question(number), 10, lost=lost)

    async def prompting(number: int) -> None:
        await search.passages(Scope(f"w{number % workspaces}"), question(number), 3, 1200, 840, lost=lost)

    cells = [f"{count:>7}", f"{workspaces:>10}", f"{rate:>8.0f}", f"{reopen:>9.0f}"]
    cells += await timed(searching) + await timed(prompting)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    cells += [f"{len(lost):>7}", f"{peak:>8.0f}"]
    if engine is not None and engine.pid is not None:
        cells.append(f"{memory_mb(engine.pid):>6.0f}")
    print(" | ".join(cells), flush=True)
    await index.close()


async def main(counts: list[int], workspaces: int, settings: Settings, *, in_process: bool) -> None:
    """Print the table."""
    events.configure(Redaction.of(settings), silent=True)
    why = deepening_unavailable_reason(settings)
    print(f"second look: {why or settings.deep_embedding_model}")
    print(
        " chunks | workspaces | chunks/s | reopen ms | search   |      p95 | prompt   |      p95 | without | peak MiB "
        "| engine"
    )
    for count in counts:
        with tempfile.TemporaryDirectory() as folder:
            async with index_process(Path(folder)) as process:
                deep = None if why else DeepModel(process)
                if deep is not None:
                    await deep.embed_documents(["warm up"])  # waits until the model is there
                await measure(count, workspaces, Path(folder), settings, deep, None if in_process else process)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("chunks", nargs="*", type=int, default=[1_000, 10_000])
    parser.add_argument("--workspaces", type=int, default=1)
    parser.add_argument("--model", default=BUNDLED_EMBEDDING_MODELS[0], metavar="EMBEDDING_MODEL")
    parser.add_argument(
        "--deeper", default=Settings().deep_embedding_model, metavar="DEEP_EMBEDDING_MODEL", help="or none"
    )
    parser.add_argument("--in-process", action="store_true", help="no process of its own for the engine")
    asked = parser.parse_args()
    chosen = Settings(embedding_model=asked.model, deep_embedding_model=asked.deeper)
    asyncio.run(main(asked.chunks, asked.workspaces, chosen, in_process=asked.in_process))
