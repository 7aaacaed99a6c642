"""Relevance in small corpora: ``python -m bench.small_corpora COLLECTION… --messages FOLDER [--model M]``.

Folders as in `bench.calibrate`. From each collection corpora of some documents are drawn, a part of which answer
questions, and each is asked these questions and messages that need no document. For each size the shares at or above
the threshold of the vocabulary and at or above the floor of prompts are printed, without and with ``size_weight``
(`grounding.retrieval.relevance`). The same draws in every run.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from bench.calibrate import records
from config.settings import BUNDLED_EMBEDDING_MODELS, Settings
from connectors.message import Scope
from grounding.evaluation import fill, load_documents
from grounding.prompt_input import load_tokens
from grounding.retrieval import Embedder, Kind, Vocabulary
from grounding.retrieval.qdrant_edge import EmbeddedIndex
from grounding.retrieval.relevance import Floor, floor_for
from grounding.retrieval.search import VOCABULARY_NOTHING
from grounding.strategy.strategy import MATCH_LOG_ODDS
from runtime.llm import open_embedder

DRAWS = {20: 6, 60: 4, 200: 2, 600: 2}
"""Documents of a corpus, and how many corpora of that size are drawn."""
QUESTIONS_PER_DOCUMENT = 0.25
MESSAGES = 300


@dataclass
class Size:
    """The best passages' relevance: for each floor, of questions and of messages that need no document."""

    chunks: list[int] = field(default_factory=list)
    answerable: list[list[float]] = field(default_factory=list)
    others: list[list[float]] = field(default_factory=list)


def judged(folder: Path) -> dict[str, list[str]]:
    """The documents that answer each question of *folder*."""
    found: dict[str, list[str]] = {}
    for row in (folder / "qrels" / "test.tsv").read_text(encoding="utf-8").splitlines():
        parts = row.split("\t")
        if len(parts) == 3 and parts[2].isdigit() and int(parts[2]) > 0:
            found.setdefault(parts[0], []).append(parts[1])
    return found


def draws(folder: Path) -> Iterator[tuple[int, set[str], list[str]]]:
    """How many documents were asked for, their ids, and the ids of questions that they answer."""
    ids = [record["_id"] for record in records(folder / "corpus.jsonl")]
    known = set(ids)
    answers = {
        question: kept for question, found in judged(folder).items() if (kept := [i for i in found if i in known])
    }
    for documents, times in DRAWS.items():
        for draw in range(times):
            chance = random.Random(f"{folder.name} {documents} {draw}")
            questions = chance.sample(sorted(answers), min(len(answers), round(documents * QUESTIONS_PER_DOCUMENT)))
            chosen = {chance.choice(answers[question]) for question in questions}
            rest = [one for one in ids if one not in chosen]
            yield documents, chosen | set(chance.sample(rest, documents - len(chosen))), questions
    yield len(ids), known, sorted(answers)


async def ask(
    documents: dict[str, str], groups: Sequence[Sequence[str]], embedder: Embedder, floors: Sequence[Floor]
) -> tuple[int, list[list[list[float]]]]:
    """The chunks of *documents*, and for each text of each group what its best passage reaches, by each floor."""
    scope = Scope("bench")
    with tempfile.TemporaryDirectory() as folder:
        index = EmbeddedIndex(Path(folder), embedder.name, embedder.dimensions, timeout_seconds=60)
        await index.ensure()
        await fill(index, scope, documents, embedder, load_tokens().count)
        chunks = await index.count(scope, Kind.DOCUMENT, exact=False)
        vocabulary = Vocabulary(index, embedder, floor=floors[0])

        async def best(text: str) -> list[float]:
            hits = await vocabulary.hits(scope, text)
            return [
                max((floor.relevance(text, hit, chunks) for hit in hits), default=VOCABULARY_NOTHING)
                for floor in floors
            ]

        reached = [[await best(text) for text in group] for group in groups]
        await index.close()
    return chunks, reached


async def measure(folder: Path, messages: Sequence[str], embedder: Embedder, floors: Sequence[Floor]) -> list[Size]:
    """The figures of the collection in *folder*, by size."""
    texts = {record["_id"]: record["text"] for record in records(folder / "queries.jsonl")}
    every = load_documents(folder)
    names = dict(zip((record["_id"] for record in records(folder / "corpus.jsonl")), every, strict=True))
    sizes: dict[int, Size] = {}
    for documents, ids, questions in draws(folder):
        size = sizes.setdefault(documents, Size())
        few = random.Random(len(size.chunks)).sample(messages, min(len(messages), MESSAGES))
        kept = {name: every[name] for one, name in names.items() if one in ids}
        chunks, (answerable, others) = await ask(kept, ([texts[one] for one in questions], few), embedder, floors)
        size.chunks.append(chunks)
        size.answerable += answerable
        size.others += others
    return list(sizes.values())


def show(name: str, size: Size, lines: Sequence[float], floors: int) -> None:
    """Print a row: of each floor, for each of *lines*, the share of questions and of messages at or above it."""
    cells = [f"{name:<14} {np.mean(size.chunks):6.0f}"]
    for number in range(floors):
        for line in lines:
            shares = (np.mean(np.array(group)[:, number] >= line) for group in (size.answerable, size.others))
            cells.append(" ".join(f"{share:.3f}" for share in shares))
    print(" | ".join(cells), flush=True)


async def run(collections: Sequence[Path], messages: Path, embedder: Embedder) -> None:
    """Print the figures of all *collections*."""
    needless = [one["text"] for one in records(messages / "queries.jsonl") if not one["metadata"]["needs_documents"]]
    for name in (embedder.name, "words alone"):
        floor = floor_for(name)
        lines = (MATCH_LOG_ODDS, floor.minimum)
        print(f"\n{name}: shares of questions, and of messages that need none, at or above {lines[0]} and {lines[1]}")
        print(f"{'collection':<14} chunks | without the size            | with it")
        for collection in collections:
            for size in await measure(collection, needless, embedder, (replace(floor, size_weight=0.0), floor)):
                show(collection.name, size, lines, 2)


def main() -> None:
    """Print the figures for one model, and for words alone."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collections", type=Path, nargs="+", metavar="COLLECTION")
    parser.add_argument("--messages", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--model", default=BUNDLED_EMBEDDING_MODELS[0], metavar="EMBEDDING_MODEL")
    given = parser.parse_args()

    async def measured() -> None:
        embedder = await open_embedder(Settings(embedding_model=given.model))
        await run(given.collections, given.messages, embedder)

    asyncio.run(measured())


if __name__ == "__main__":
    main()
