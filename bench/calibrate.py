"""The relevance of passages as log-odds: ``python -m bench.calibrate COLLECTION… --messages FOLDER [--sizes]``.

A COLLECTION is a folder with ``corpus.jsonl``, ``queries.jsonl`` and ``qrels/test.tsv``: its questions are answerable
in its own corpus and, by assumption, in no other one's. FOLDER's ``queries.jsonl`` has messages with
``metadata.needs_documents``: those that need none (by ``metadata.source``) are answerable nowhere.

Fits the constants of `grounding.retrieval.relevance` by logistic regression on the best passage of each message, every
group of messages weighing the same, and prints how well they part the answerable from each group: by the area under
the ROC curve, also where that group had no part in the fit.

With ``--sizes`` it checks ``size_weight`` instead. From each collection corpora of some documents are drawn (the same
in every run), a part of which answer questions, and each is asked these questions and messages that need no document.
For each size the shares at or above the threshold of the vocabulary and at or above the floor of prompts are printed,
without and with ``size_weight``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from config.settings import BUNDLED_EMBEDDING_MODELS, Settings
from connectors.message import Scope
from grounding.evaluation import fill, load_documents
from grounding.prompt_input import load_tokens
from grounding.retrieval import Embedder, Kind, Vocabulary
from grounding.retrieval.qdrant_edge import EmbeddedIndex
from grounding.retrieval.relevance import Floor, features, floor_for
from grounding.retrieval.search import VOCABULARY_NOTHING
from grounding.strategy.strategy import MATCH_LOG_ODDS
from runtime.llm import open_embedder

Floats = NDArray[np.float64]
ROUNDS = 8
RIDGE = 0.3
MINIMA = (-2.0, -1.0, 0.0, 1.0, 2.0)
ARMS = {"all": [0, 1, 2], "words": [1, 2]}
DRAWS = {20: 6, 60: 4, 200: 2, 600: 2}
"""Documents of a corpus, and how many corpora of that size are drawn."""
QUESTIONS_PER_DOCUMENT = 0.25
MESSAGES = 300


@dataclass(frozen=True)
class Group:
    """Messages of one kind in one collection; ``hits`` has a row of features for each passage of each of them."""

    name: str
    collection: str
    answerable: bool
    hits: list[Floats]


def records(file: Path) -> list[dict[str, Any]]:
    """The lines of *file*."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line.strip()]


def judged(folder: Path) -> dict[str, list[str]]:
    """The documents that answer each question of *folder*."""
    found: dict[str, list[str]] = {}
    for row in (folder / "qrels" / "test.tsv").read_text(encoding="utf-8").splitlines():
        parts = row.split("\t")
        if len(parts) == 3 and parts[2].isdigit() and int(parts[2]) > 0:
            found.setdefault(parts[0], []).append(parts[1])
    return found


def answerable(folder: Path) -> list[str]:
    """The questions of *folder* that have an answer in its corpus."""
    known = judged(folder)
    return [record["text"] for record in records(folder / "queries.jsonl") if record["_id"] in known]


async def groups(collections: list[Path], messages: Path, folder: Path, embedder: Embedder) -> list[Group]:
    """All groups, through an index in *folder*."""
    index = EmbeddedIndex(folder, embedder.name, embedder.dimensions, timeout_seconds=60)
    await index.ensure()
    # Any floor that weighs cosines: under that of a model that was not measured nothing would be embedded.
    vocabulary = Vocabulary(index, embedder, floor=Floor(0.0, dense_weight=1.0, coverage_weight=0.3, sparse_weight=0.1))
    scopes = {collection.name: Scope(f"c{number}") for number, collection in enumerate(collections)}
    tokens = load_tokens()
    for collection in collections:
        await fill(index, scopes[collection.name], load_documents(collection), embedder, tokens.count)

    async def looked_up(scope: Scope, text: str) -> Floats:
        hits = await vocabulary.hits(scope, text)
        size = await index.count(scope, Kind.DOCUMENT, exact=False)
        return np.array([features(text, hit, size) for hit in hits] or [(0.0, 0.0, 0.0)])

    sources: dict[str, list[str]] = {}
    for record in records(messages / "queries.jsonl"):
        if not record["metadata"]["needs_documents"]:
            sources.setdefault(record["metadata"]["source"], []).append(record["text"])
    sources |= {collection.name: answerable(collection) for collection in collections}
    found = [
        Group(name, where, name == where, [await looked_up(scope, text) for text in texts])
        for where, scope in scopes.items()
        for name, texts in sources.items()
    ]
    await index.close()
    return found


def best(weights: Floats, hits: Floats, columns: list[int]) -> tuple[float, Floats]:
    """The log-odds and the features of the best passage."""
    scores = hits[:, columns] @ weights[:-1] + weights[-1]
    return float(scores.max()), hits[int(scores.argmax())][columns]


def fit(found: Iterable[Group], columns: list[int]) -> Floats:
    """Weights of *columns* and a constant; which passage is the best one is decided anew in each round."""
    weights = np.r_[np.array([8.0, 4.0, 2.0])[columns], -6.0]
    found = list(found)
    for _ in range(ROUNDS):
        rows = [np.array([best(weights, hits, columns)[1] for hits in group.hits]) for group in found]
        labels = np.concatenate([np.full(len(group.hits), float(group.answerable)) for group in found])
        shares = np.concatenate([np.full(len(group.hits), 300 / len(group.hits)) for group in found])
        shares[labels == 1] *= shares[labels == 0].sum() / shares[labels == 1].sum()
        weights = regression(np.concatenate(rows), labels, shares)
    return np.asarray(weights)


def regression(rows: Floats, labels: Floats, shares: Floats) -> Floats:
    """Ridge logistic regression by Newton's method; the last weight is the constant."""
    rows = np.c_[rows, np.ones(len(rows))]
    weights = np.zeros(rows.shape[1])
    penalty = np.r_[np.full(rows.shape[1] - 1, RIDGE), 1e-6]
    for _ in range(40):
        odds = 1 / (1 + np.exp(-rows @ weights))
        slope = rows.T @ (shares * (labels - odds)) - penalty * weights
        curve = (rows * (shares * odds * (1 - odds))[:, None]).T @ rows + np.diag(penalty)
        weights = weights + np.linalg.solve(curve, slope)
    return weights


def area(positive: Floats, negative: Floats) -> float:
    """Area under the ROC curve."""
    ordered = np.sort(positive)
    below = np.searchsorted(ordered, negative, "left") + np.searchsorted(ordered, negative, "right")
    return float(1 - np.mean(below) / 2 / len(ordered))


def report(found: list[Group], columns: list[int]) -> None:
    """Print the constants, and how well they part."""
    weights = fit(found, columns)
    names = np.array(["dense_weight", "coverage_weight", "sparse_weight"])[columns]
    constants = ", ".join(f"{name}={value:.2f}" for name, value in zip(names, weights, strict=False))
    print(f"{constants}, constant={weights[-1]:.2f}")
    print("group                    in            AUC    left out | share at or above " + " ".join(map(str, MINIMA)))
    for group in found:
        scores = scored(group, weights, columns)
        reached = " ".join(f"{(scores >= minimum).mean():.2f}" for minimum in MINIMA)
        areas = " " * 17
        if not group.answerable:
            rest = [other for other in found if other.name != group.name or other.answerable]
            own = next(other for other in found if other.answerable and other.collection == group.collection)
            without = fit(rest, columns)
            areas = f"{area(scored(own, weights, columns), scores):.3f}  "
            areas += f"{area(scored(own, without, columns), scored(group, without, columns)):.3f}       "
        print(f"{group.name:<24} {group.collection:<12} {areas}| {reached}")


def scored(group: Group, weights: Floats, columns: list[int]) -> Floats:
    """The log-odds of each message's best passage."""
    return np.array([best(weights, hits, columns)[0] for hits in group.hits])


# The weight of the size


@dataclass
class Size:
    """The best passages' relevance: for each floor, of questions and of messages that need no document."""

    chunks: list[int] = field(default_factory=list)
    answerable: list[list[float]] = field(default_factory=list)
    others: list[list[float]] = field(default_factory=list)


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


async def measure_sizes(
    folder: Path, messages: Sequence[str], embedder: Embedder, floors: Sequence[Floor]
) -> list[Size]:
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


def show_size(name: str, size: Size, lines: Sequence[float], floors: int) -> None:
    """Print a row: of each floor, for each of *lines*, the share of questions and of messages at or above it."""
    cells = [f"{name:<14} {np.mean(size.chunks):6.0f}"]
    for number in range(floors):
        for line in lines:
            shares = (np.mean(np.array(group)[:, number] >= line) for group in (size.answerable, size.others))
            cells.append(" ".join(f"{share:.3f}" for share in shares))
    print(" | ".join(cells), flush=True)


async def check_sizes(collections: Sequence[Path], messages: Path, embedder: Embedder) -> None:
    """Print the figures of all *collections*."""
    needless = [one["text"] for one in records(messages / "queries.jsonl") if not one["metadata"]["needs_documents"]]
    for name in (embedder.name, "words alone"):
        floor = floor_for(name)
        lines = (MATCH_LOG_ODDS, floor.minimum)
        print(f"\n{name}: shares of questions, and of messages that need none, at or above {lines[0]} and {lines[1]}")
        print(f"{'collection':<14} chunks | without the size            | with it")
        for collection in collections:
            for size in await measure_sizes(collection, needless, embedder, (replace(floor, size_weight=0.0), floor)):
                show_size(collection.name, size, lines, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collections", type=Path, nargs="+", metavar="COLLECTION")
    parser.add_argument("--messages", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--model", default=BUNDLED_EMBEDDING_MODELS[0], metavar="EMBEDDING_MODEL")
    parser.add_argument("--sizes", action="store_true", help="check the weight of the size")
    given = parser.parse_args()

    asyncio.run(run(given))


async def run(given: argparse.Namespace) -> None:
    """Print the constants with and without the cosine, or check the sizes."""
    embedder = await open_embedder(Settings(embedding_model=given.model))
    if given.sizes:
        await check_sizes(given.collections, given.messages, embedder)
        return
    with tempfile.TemporaryDirectory() as folder:
        found = await groups(given.collections, given.messages, Path(folder), embedder)
    for name, columns in ARMS.items():
        print(f"\n{name}")
        report(found, columns)


if __name__ == "__main__":
    main()
