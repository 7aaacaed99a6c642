"""Speed of indexing and searching in the embedded engine, which has a process of its own as in ``serve``:
``python -m bench.retrieval [--workspaces N] [--model M] [--deeper M] [--in-process] [CHUNKS …]``.

Passages are made of English words in Zipf-like shares, 110 words each, twenty to a document, in one workspace or spread
over *N*. ``search`` is the embedding of the question, its sparse vector, one hybrid query for ten chunks and, where
there is a deeper model, as there is by default, the second look with the question's vector from the child process;
``prompt`` is what a turn asks for: the same with raw scores, the relevance floor, neighbours and packing. Passages'
deeper vectors are drawn by lot, because to compare them takes as long whatever they say. ``without`` counts the
searches and prompts of these whose question's deeper vector did not come in time. ``hold`` is the longest that the
event loop was kept from coming round while searches, prompts, indexing and, with a deeper model, the looks for
what lacks its vectors went on at once for `BUSY_SECONDS`; ``late`` is how late it then came round at p99. Both also
grow with what other threads and programs compute. ``own`` does not: the most processor time that one callback of the
loop took meanwhile. Garbage is looked for and threads take turns as in ``serve``. ``engine`` is how much memory the
process of the index has at the end, beside the peak of this one. With ``--in-process`` this one has the engine, as
short commands do.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import resource
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from bench.children import memory_mb
from config.settings import BUNDLED_EMBEDDING_MODELS, Settings
from connectors.message import Scope
from grounding.documents.indexer import GROUP_CHUNKS
from grounding.evaluation.metrics import percentile
from grounding.prompt_input import DegradedBlock, LineByLine, load_tokens
from grounding.retrieval import (
    Embedder,
    IndexEntry,
    Kind,
    Passage,
    PassageIndex,
    Search,
    SparseVector,
    Vector,
    encode_document,
)
from grounding.retrieval.minilm import VOCABULARY
from grounding.retrieval.qdrant_edge import EmbeddedIndex
from runtime.embedded.index_client import DeepModel, IndexProcess, RemoteIndex, index_process
from runtime.llm import open_embedder
from runtime.search import deepening, deepening_unavailable_reason
from runtime.search.deepening import NONE

QUERIES = 400
BATCH = GROUP_CHUNKS
PARTS = 20
BUSY_SECONDS = 10.0
BUSY_BATCHES = 16
"""Batches that are indexed meanwhile, over and over: made before, as making one holds the loop for 40 ms by itself."""
TICK_SECONDS = 0.002
WORDS = 1248
DEEPENING_SECONDS = 1.2
"""What the model takes for `runtime.search.deepening.BATCH` passages."""


def passages(count: int, dice: random.Random) -> list[str]:
    """*count* texts of 110 words."""
    known = VOCABULARY.read_text(encoding="utf-8").split()
    vocabulary = [word for word in known if len(word) > 3 and word.isascii() and word.isalpha()][:WORDS]
    weights = [1 / rank for rank in range(1, len(vocabulary) + 1)]
    return [" ".join(dice.choices(vocabulary, weights, k=110)) for _ in range(count)]


def encoded(texts: list[str]) -> list[SparseVector]:
    """The sparse vectors of *texts*."""
    return [encode_document(text) for text in texts]


def entries_of(
    texts: list[str], vectors: list[Vector], sparse: list[SparseVector], first: int, workspaces: int
) -> list[IndexEntry]:
    """*texts*, numbered from *first*, as they are stored: `PARTS` of each workspace are one document."""
    found = []
    for number, (text, vector, words) in enumerate(zip(texts, vectors, sparse, strict=True), start=first):
        document, part = divmod(number // workspaces, PARTS)
        place = Passage(
            str(number), Kind.DOCUMENT, f"{document}.md", text, ordinal=part, start=part * 10_000,
            end=part * 10_000 + len(text),
        )  # fmt: skip
        found.append(IndexEntry(place, vector, words))
    return found


async def indexed(index: PassageIndex, embedder: Embedder, texts: list[str], workspaces: int, first: int = 0) -> None:
    """Store *texts*, numbered from *first*, in groups, as the indexer does."""
    for start in range(0, len(texts), BATCH):
        group = texts[start : start + BATCH]
        vectors = await embedder.embed_documents(group)
        sparse = await asyncio.to_thread(encoded, group)
        entries = await asyncio.to_thread(entries_of, group, vectors, sparse, first + start, workspaces)
        for workspace in range(workspaces):
            await index.upsert(Scope(f"w{workspace}"), entries[workspace::workspaces])


def by_lot(count: int, dimensions: int, seed: int) -> list[Vector]:
    """*count* unit vectors."""
    drawn = np.random.default_rng(seed).normal(size=(count, dimensions))
    found: list[Vector] = (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).tolist()
    return found


async def deepened(index: PassageIndex, deep: DeepModel, count: int, workspaces: int) -> None:
    """Give all *count* passages a deeper vector."""
    for start in range(0, count, BATCH):
        numbers = range(start, min(start + BATCH, count))
        vectors = await asyncio.to_thread(by_lot, len(numbers), deep.dimensions, start)
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
    return [f"{percentile(took, share):>8.2f}" for share in (0.5, 0.95)]


async def busy(*works: Callable[[int], Awaitable[object]]) -> list[str]:
    """The loop's worst hold, how late it is at p99, and its dearest callback, in ms, while all *works* go on."""
    late: list[float] = []
    dearest = 0.0
    until = time.perf_counter() + BUSY_SECONDS
    run_as_it_is = asyncio.Handle._run

    def run(handle: asyncio.Handle) -> None:
        nonlocal dearest
        began = time.thread_time()
        run_as_it_is(handle)
        dearest = max(dearest, (time.thread_time() - began) * 1000)

    async def again(work: Callable[[int], Awaitable[object]]) -> None:
        number = 0
        while time.perf_counter() < until:
            await work(number)
            await asyncio.sleep(0)  # the next one is somebody else's
            number += 1

    with patch.object(asyncio.Handle, "_run", run):
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(again(work))
            while time.perf_counter() < until:
                ticked = time.perf_counter()
                await asyncio.sleep(TICK_SECONDS)
                late.append((time.perf_counter() - ticked - TICK_SECONDS) * 1000)
    return [f"{max(late):>8.2f}", f"{percentile(late, 0.99):>8.2f}", f"{dearest:>8.2f}"]


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
    await indexed(index, embedder, texts, workspaces)
    rate = count / (time.perf_counter() - began)
    if deep is not None:
        await deepened(index, deep, count, workspaces)
    await index.close()
    index = opened()
    began = time.perf_counter()
    await index.check()
    reopen = (time.perf_counter() - began) * 1000
    for number in range(workspaces):  # as `serve` does at its start, to find what lies in no folder any more
        await index.sources(Scope(f"w{number}"), Kind.DOCUMENT)
    tokens = LineByLine(await asyncio.to_thread(load_tokens))
    search = Search(index, embedder, count=tokens.count, deep=deep)
    lost: list[DegradedBlock] = []

    def question(number: int) -> str:
        return " ".join(dice.sample(texts[number % count].split(), 6))

    async def searching(number: int) -> None:
        await search.search(Scope(f"w{number % workspaces}"), question(number), 10, lost=lost)

    async def prompting(number: int) -> None:
        await search.passages(Scope(f"w{number % workspaces}"), question(number), 3, 1200, 840, lost=lost)

    batches = [passages(BATCH, random.Random(number)) for number in range(BUSY_BATCHES)]

    async def indexing(number: int) -> None:
        await indexed(index, embedder, batches[number % BUSY_BATCHES], workspaces, first=count + number * BATCH)

    async def deepening_them(number: int) -> None:
        scope = Scope(f"w{number % workspaces}")
        if some := await index.shallow(scope, Kind.DOCUMENT, deepening.BATCH):
            await asyncio.sleep(DEEPENING_SECONDS)
            vectors = dict(zip([one.id for one in some], lots, strict=False))
            await index.deepen(scope, Kind.DOCUMENT, vectors)

    works = [searching, prompting, indexing]
    lots = by_lot(deepening.BATCH, deep.dimensions, 0) if deep else []
    if deep is not None:
        works.append(deepening_them)
    cells = [f"{count:>7}", f"{workspaces:>10}", f"{rate:>8.0f}", f"{reopen:>9.0f}"]
    cells += await timed(searching) + await timed(prompting)
    cells.append(f"{len(lost):>7}")
    cells += await busy(*works)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    cells.append(f"{memory:>8.0f}")
    if engine is not None and engine.pid is not None:
        cells.append(f"{memory_mb(engine.pid)[0]:>6.0f}")
    print(" | ".join(cells), flush=True)
    await index.close()


async def main(counts: list[int], workspaces: int, settings: Settings, *, in_process: bool) -> None:
    """Print the table."""
    why = deepening_unavailable_reason(settings)
    print(f"second look: {why or settings.deep_embedding_model}")
    print(
        " chunks | workspaces | chunks/s | reopen ms | search   |      p95 | prompt   |      p95 | without | hold ms  "
        "| late p99 | own ms   | peak MiB | engine"
    )
    await (await open_embedder(settings)).embed_query("warm up")
    gc.freeze()  # as in `serve`
    for count in counts:
        with tempfile.TemporaryDirectory() as folder:
            async with index_process(Path(folder)) as process:
                deep = None if why else DeepModel(process)
                if deep is not None:
                    await deep.embed_documents(["warm up"])  # waits until the model is there
                await measure(count, workspaces, Path(folder), settings, deep, None if in_process else process)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("chunks", nargs="*", type=int, default=[1_000, 10_000])
    parser.add_argument("--workspaces", type=int, default=1)
    parser.add_argument("--model", default=BUNDLED_EMBEDDING_MODELS[0], metavar="EMBEDDING_MODEL")
    parser.add_argument(
        "--deeper", default=Settings().deep_embedding_model, metavar="DEEP_EMBEDDING_MODEL", help=f"or {NONE}"
    )
    parser.add_argument("--in-process", action="store_true", help="no process of its own for the engine")
    asked = parser.parse_args()
    chosen = Settings(embedding_model=asked.model, deep_embedding_model=asked.deeper)
    asyncio.run(main(asked.chunks, asked.workspaces, chosen, in_process=asked.in_process))
