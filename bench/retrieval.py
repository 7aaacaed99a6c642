"""Speed of indexing and searching in process: ``python -m bench.retrieval [--workspaces N] [--model M] [CHUNKS …]``.

Passages are made of words of a Zipf-like vocabulary, 110 words each, twenty to a document, in one workspace or spread
over *N*. ``search`` is the embedding of the question, its sparse vector and one hybrid query for ten chunks; ``prompt``
is what a turn asks for: the same with raw scores, the relevance floor, neighbours and packing. ``hold`` is the longest
that the event loop was kept from coming round while searches, prompts and indexing went on at once for `BUSY_SECONDS`;
``late`` is how late it then came round at p99. Both also grow with what other threads and programs compute. ``own``
does not: the most processor time that one callback of the loop took meanwhile. Peak memory is the process's.
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
from unittest.mock import patch

from config.settings import BUNDLED_EMBEDDING_MODELS, Settings
from connectors.message import Scope
from grounding.documents.embedding import Embedder
from grounding.documents.index import Entry, Kind, Passage
from grounding.documents.metrics import percentile
from grounding.documents.qdrant_embedded import EmbeddedIndex
from grounding.documents.search import Search
from grounding.documents.sparse import SparseVector, encode_document
from grounding.tokens import LineByLine, load_tokens
from runtime.embedder import open_embedder

QUERIES = 400
BATCH = 512
PARTS = 20
BUSY_SECONDS = 10.0
BUSY_BATCHES = 8
"""Batches that are indexed meanwhile, over and over: made before, as making one holds the loop for 40 ms by itself."""
TICK_SECONDS = 0.002


def passages(count: int, dice: random.Random) -> list[str]:
    """*count* texts of 110 words."""
    vocabulary = [
        f"{a}{b}{c}" for a in "bcdfgklmnprst" for b in ("a", "ei", "o", "ul") for c in ("ber", "nd", "tor", "x")
    ]
    vocabulary += [f"{word}{tail}" for word in vocabulary for tail in ("ing", "y", "ment", "less", "way")]
    weights = [1 / rank for rank in range(1, len(vocabulary) + 1)]
    return [" ".join(dice.choices(vocabulary, weights, k=110)) for _ in range(count)]


def encoded(texts: list[str]) -> list[SparseVector]:
    """The sparse vectors of *texts*."""
    return [encode_document(text) for text in texts]


async def indexed(index: EmbeddedIndex, embedder: Embedder, texts: list[str], workspaces: int, first: int = 0) -> None:
    """Store *texts*, numbered from *first*."""
    for start in range(0, len(texts), BATCH):
        group = texts[start : start + BATCH]
        vectors = await embedder.embed_documents(group)
        sparse = await asyncio.to_thread(encoded, group)
        entries = []
        for n, text in enumerate(group):
            number = (first + start + n) // workspaces
            place = Passage(
                str(first + start + n), Kind.DOCUMENT, f"{number // PARTS}.md", text, ordinal=number % PARTS,
                start=number % PARTS * 10_000, end=number % PARTS * 10_000 + len(text),
            )  # fmt: skip
            entries.append(Entry(place, vectors[n], sparse[n]))
        for workspace in range(workspaces):
            await index.upsert(Scope(f"w{workspace}"), entries[workspace::workspaces])


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


async def measure(count: int, workspaces: int, folder: Path, model: str) -> None:
    """Print one line for *count* chunks in *workspaces*."""
    dice = random.Random(7)
    texts = passages(count, dice)
    embedder = await open_embedder(Settings(embedding_model=model))
    await embedder.embed_query("warm up")
    index = EmbeddedIndex(folder, embedder.name, embedder.dimensions, timeout_seconds=60)
    await index.ensure()
    began = time.perf_counter()
    await indexed(index, embedder, texts, workspaces)
    rate = count / (time.perf_counter() - began)
    await index.close()
    index = EmbeddedIndex(folder, embedder.name, embedder.dimensions, timeout_seconds=60)
    began = time.perf_counter()
    await index.check()
    reopen = (time.perf_counter() - began) * 1000
    tokens = LineByLine(await asyncio.to_thread(load_tokens))
    search = Search(index, embedder, count=tokens.count)

    def question(number: int) -> str:
        return " ".join(dice.sample(texts[number % count].split(), 6))

    async def searching(number: int) -> None:
        await search.search(Scope(f"w{number % workspaces}"), question(number), 10)

    async def prompting(number: int) -> None:
        await search.passages(Scope(f"w{number % workspaces}"), question(number), 3, 1200, 840)

    batches = [passages(BATCH, random.Random(number)) for number in range(BUSY_BATCHES)]

    async def indexing(number: int) -> None:
        await indexed(index, embedder, batches[number % BUSY_BATCHES], workspaces, first=count + number * BATCH)

    cells = [f"{count:>7}", f"{workspaces:>10}", f"{rate:>8.0f}", f"{reopen:>9.0f}"]
    cells += await timed(searching) + await timed(prompting) + await busy(searching, prompting, indexing)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(" | ".join([*cells, f"{memory:>8.0f}"]), flush=True)
    await index.close()


async def main(counts: list[int], workspaces: int, model: str) -> None:
    """Print the table."""
    print(
        " chunks | workspaces | chunks/s | reopen ms | search   |      p95 | prompt   |      p95 | hold ms  | late p99 "
        "| own ms   | peak MiB"
    )
    for count in counts:
        with tempfile.TemporaryDirectory() as folder:
            await measure(count, workspaces, Path(folder), model)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("chunks", nargs="*", type=int, default=[1_000, 10_000])
    parser.add_argument("--workspaces", type=int, default=1)
    parser.add_argument("--model", default=BUNDLED_EMBEDDING_MODELS[0], metavar="EMBEDDING_MODEL")
    asked = parser.parse_args()
    asyncio.run(main(asked.chunks, asked.workspaces, asked.model))
