"""The relevance of passages as log-odds: ``python -m bench.calibrate COLLECTION… --messages FOLDER``.

A COLLECTION is a folder with ``corpus.jsonl``, ``queries.jsonl`` and ``qrels/test.tsv``: its questions, after their
``metadata.history``, are answerable in its own corpus and, by assumption, in no other one. FOLDER's ``queries.jsonl``
has messages with ``metadata.needs_documents``: those that need none (by ``metadata.source``) are answerable nowhere,
neither alone nor behind the history of one of the collection's questions.

Fits the weights of `grounding.retrieval.relevance` by logistic regression on the best passage of each message, every
group of messages weighing the same, and prints how well they part the answerable from each group: by the area under
the ROC curve, also where that group had no part in the fit. With ``--write`` the weights go into the data file; with
``--model M`` another embedding model is measured, with ``--deep`` bundled/minilm beside it. ``--across`` measures the
cosine alone, too: across languages a passage cannot have the words of a question.

With ``--sizes`` it checks the weight of the corpus size instead. From each collection corpora of some documents are
drawn (the same in every run), a part of which answer questions, and each is asked these questions and messages that
need no document. For each size the shares at or above the limit of the strategy and that of prompts are printed,
without and with that weight.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from config.settings import BUNDLED_EMBEDDING_MODELS, Settings
from connectors.message import Scope
from grounding.evaluation import fill, load_documents
from grounding.prompt_input import TailEntry, load_tokens
from grounding.retrieval import DeepEmbedder, Embedder, Kind, MiniLMEmbedder, Search
from grounding.retrieval.qdrant_edge import EmbeddedIndex
from grounding.retrieval.query import used_turns
from grounding.retrieval.relevance import (
    SHOWN_LOG_ODDS,
    WEIGHTS_FILE,
    Relevance,
    Weights,
    across_languages,
    features,
    pair,
    weights_of,
)
from grounding.retrieval.search import CANDIDATES_PER_PASSAGE
from grounding.strategy import earlier_for, search_text, tail_of
from grounding.strategy.strategy import MATCH_LOG_ODDS
from runtime.llm import open_embedder

Floats = NDArray[np.float64]
ROUNDS = 8
RIDGE = 0.3
LIMITS = (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0)
FIGURES = ("dense", "deep", "coverage", "rarity", "earlier", "conversation")
WORDS = ["coverage", "rarity", "earlier", "conversation"]
FIRST = {"dense": 7.0, "deep": 7.0, "coverage": 3.0, "rarity": 1.5, "earlier": 3.0, "conversation": -1.0}
"""Where the fit begins."""
SIZE_WEIGHTS = {"words": 0.2, "wordllama-l2-supercat": 0.8}
SIZE_WEIGHT = 0.5
"""The weight of the corpus size, of these tables and of all others, is not fitted but checked with ``--sizes``."""
PASSAGES = 3
"""Passages of a prompt by default."""
DRAWS = {20: 6, 60: 4, 200: 2, 600: 2}
"""Documents of a corpus, and how many corpora of that size are drawn."""
QUESTIONS_PER_DOCUMENT = 0.25
MESSAGES = 300


@dataclass(frozen=True)
class Message:
    """A text, and what was said before."""

    text: str
    before: tuple[TailEntry, ...] = ()


@dataclass(frozen=True)
class Group:
    """Messages of one kind in one collection; ``hits`` has a row of `FIGURES` for each passage of each of them."""

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


def message_of(record: Mapping[str, Any]) -> Message:
    """The message of a line of ``queries.jsonl``, with its history."""
    history = record.get("metadata", {}).get("history") or ()
    return Message(record["text"], tail_of((turn["role"], turn["text"]) for turn in history))


def answerable(folder: Path) -> list[Message]:
    """The questions of *folder* that have an answer in its corpus."""
    known = judged(folder)
    return [message_of(record) for record in records(folder / "queries.jsonl") if record["_id"] in known]


def needless(folder: Path) -> dict[str, list[Message]]:
    """The messages of *folder* that need no document, by their source."""
    found: dict[str, list[Message]] = {}
    for record in records(folder / "queries.jsonl"):
        if not record["metadata"]["needs_documents"]:
            found.setdefault(record["metadata"]["source"], []).append(Message(record["text"]))
    return found


def put_behind(messages: Mapping[str, Sequence[Message]], talk: Sequence[Message]) -> dict[str, list[Message]]:
    """*messages*, each behind what was said before some message of *talk*, the same in every run."""
    chance = random.Random(7)
    histories = [one.before for one in talk if one.before]
    if not histories:
        return {}
    return {
        f"{name}, behind": [replace(one, before=chance.choice(histories)) for one in group]
        for name, group in messages.items()
    }


async def groups(
    collections: list[Path], messages: Path, folder: Path, embedder: Embedder, deep: DeepEmbedder | None
) -> list[Group]:
    """All groups, through an index in *folder*."""
    index = EmbeddedIndex(
        folder,
        embedder.name,
        embedder.dimensions,
        timeout_seconds=60,
        deep_dimensions=deep.dimensions if deep else None,
    )
    await index.ensure()
    search, tokens = Search(index, embedder, deep=deep), load_tokens()
    alone = needless(messages)
    questions = {collection.name: answerable(collection) for collection in collections}
    found = []
    for number, collection in enumerate(collections):
        scope, name = Scope(f"c{number}"), collection.name
        await fill(index, scope, load_documents(collection), embedder, tokens.count, deep=deep)
        size = await index.count(scope, Kind.DOCUMENT)

        async def rows(message: Message, scope: Scope = scope, size: int = size) -> Floats:
            text, earlier = search_text(message.text), earlier_for(message.text, message.before)
            hits = await search.search(scope, text, PASSAGES * CANDIDATES_PER_PASSAGE, scores=True, earlier=earlier)
            earlier = used_turns(text, earlier)
            figures = [features(text, hit, size, earlier) for hit in hits] or [dict.fromkeys(FIGURES, 0.0)]
            return np.array([[one[figure] for figure in FIGURES] for one in figures])

        texts = {**alone, **put_behind(alone, questions[name]), **questions}
        for group, several in texts.items():
            found.append(Group(group, name, group == name, [await rows(one) for one in several]))
    await index.close()
    return found


def best(weights: Floats, hits: Floats, columns: list[int]) -> tuple[float, Floats]:
    """The log-odds and the figures of the best passage."""
    scores = hits[:, columns] @ weights[:-1] + weights[-1]
    return float(scores.max()), hits[int(scores.argmax())][columns]


def fit(found: Iterable[Group], columns: list[int]) -> Floats:
    """Weights of *columns* and a constant; which passage is the best one is decided anew in each round."""
    weights = np.array([FIRST[FIGURES[column]] for column in columns] + [-8.0])
    found = list(found)
    for _ in range(ROUNDS):
        rows = [np.array([best(weights, hits, columns)[1] for hits in group.hits]) for group in found]
        labels = np.concatenate([np.full(len(group.hits), float(group.answerable)) for group in found])
        shares = np.concatenate([np.full(len(group.hits), 300 / len(group.hits)) for group in found])
        shares[labels == 1] *= shares[labels == 0].sum() / shares[labels == 1].sum()
        weights = regression(np.concatenate(rows), labels, shares)
    return np.asarray(weights)


def regression(rows: Floats, labels: Floats, shares: Floats, ridge: float = RIDGE) -> Floats:
    """Ridge logistic regression by Newton's method; the last weight is the constant."""
    rows = np.c_[rows, np.ones(len(rows))]
    weights = np.zeros(rows.shape[1])
    penalty = np.r_[np.full(rows.shape[1] - 1, ridge), 1e-6]
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


def report(found: list[Group], names: Sequence[str], size_weight: float) -> Weights:
    """Print the weights of the figures *names*, and how well they part; return them."""
    columns = [FIGURES.index(name) for name in names]
    weights = fit(found, columns)
    fitted = Weights(
        constant=round(float(weights[-1]), 2),
        size=size_weight,
        **{name: round(float(value), 2) for name, value in zip(names, weights, strict=False)},
    )
    print(fitted)
    print(
        "group                        in            AUC    left out | share at or above " + " ".join(map(str, LIMITS))
    )
    for group in found:
        scores = scored(group, weights, columns)
        reached = " ".join(f"{(scores >= minimum).mean():.3f}" for minimum in LIMITS)
        areas = " " * 17
        if not group.answerable:
            rest = [other for other in found if other.name != group.name or other.answerable]
            own = next(other for other in found if other.answerable and other.collection == group.collection)
            without = fit(rest, columns)
            areas = f"{area(scored(own, weights, columns), scores):.3f}  "
            areas += f"{area(scored(own, without, columns), scored(group, without, columns)):.3f}       "
        print(f"{group.name:<28} {group.collection:<12} {areas}| {reached}")
    return fitted


def scored(group: Group, weights: Floats, columns: list[int]) -> Floats:
    """The log-odds of each message's best passage."""
    return np.array([best(weights, hits, columns)[0] for hits in group.hits])


def write(fitted: Mapping[str, Weights]) -> None:
    """Put the *fitted* weights into the data file, by the names of their tables."""
    tables = tomllib.loads(WEIGHTS_FILE.read_text(encoding="utf-8"))
    tables |= {name: {key: value for key, value in asdict(one).items() if value} for name, one in fitted.items()}
    parts = ["# Made by `python -m bench.calibrate … --write`.\n"]
    for name, table in tables.items():
        parts.append(f'["{name}"]\n' + "".join(f"{key} = {value}\n" for key, value in table.items()))
    WEIGHTS_FILE.write_text("\n".join(parts), encoding="utf-8")


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
    documents: dict[str, str],
    groups: Sequence[Sequence[str]],
    embedder: Embedder,
    deep: DeepEmbedder | None,
    judges: Sequence[Relevance],
) -> tuple[int, list[list[list[float]]]]:
    """The chunks of *documents*, and for each text of each group what its best passage reaches, by each judge."""
    scope = Scope("bench")
    with tempfile.TemporaryDirectory() as folder:
        index = EmbeddedIndex(
            Path(folder),
            embedder.name,
            embedder.dimensions,
            timeout_seconds=60,
            deep_dimensions=deep.dimensions if deep else None,
        )
        await index.ensure()
        await fill(index, scope, documents, embedder, load_tokens().count, deep=deep)
        chunks = await index.count(scope, Kind.DOCUMENT)
        search = Search(index, embedder, deep=deep)

        async def best(text: str) -> list[float]:
            found = await search.look(scope, search_text(text), PASSAGES)
            return [max(judge.of(found.query, found.hits, chunks), default=-100.0) for judge in judges]

        reached = [[await best(text) for text in group] for group in groups]
        await index.close()
    return chunks, reached


async def measure_sizes(
    folder: Path,
    messages: Sequence[str],
    embedder: Embedder,
    deep: DeepEmbedder | None,
    judges: Sequence[Relevance],
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
        asked = ([texts[one] for one in questions], few)
        chunks, (answerable, others) = await ask(kept, asked, embedder, deep, judges)
        size.chunks.append(chunks)
        size.answerable += answerable
        size.others += others
    return list(sizes.values())


def show_size(name: str, size: Size, lines: Sequence[float], judges: int) -> None:
    """Print a row: of each judge, for each of *lines*, the share of questions and of messages at or above it."""
    cells = [f"{name:<14} {np.mean(size.chunks):6.0f}"]
    for number in range(judges):
        for line in lines:
            shares = (np.mean(np.array(group)[:, number] >= line) for group in (size.answerable, size.others))
            cells.append(" ".join(f"{share:.3f}" for share in shares))
    print(" | ".join(cells), flush=True)


async def check_sizes(
    collections: Sequence[Path], messages: Path, embedder: Embedder, deep: DeepEmbedder | None
) -> None:
    """Print the figures of all *collections*."""
    texts = [one["text"] for one in records(messages / "queries.jsonl") if not one["metadata"]["needs_documents"]]
    lines = (MATCH_LOG_ODDS, SHOWN_LOG_ODDS)
    weights = weights_of(embedder.name, deep.name if deep else None)
    judges = [Relevance(replace(weights, size=0.0)), Relevance(weights)]
    print(f"shares of questions, and of messages that need none, at or above {lines[0]} and {lines[1]}")
    print(f"{'collection':<14} chunks | without the size            | with it")
    for collection in collections:
        for size in await measure_sizes(collection, texts, embedder, deep, judges):
            show_size(collection.name, size, lines, len(judges))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collections", type=Path, nargs="+", metavar="COLLECTION")
    parser.add_argument("--messages", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--model", default=BUNDLED_EMBEDDING_MODELS[0], metavar="EMBEDDING_MODEL")
    parser.add_argument("--deep", action="store_true", help="with bundled/minilm beside it")
    parser.add_argument("--across", action="store_true", help="by the cosine alone, too, as across languages")
    parser.add_argument("--sizes", action="store_true", help="check the weight of the corpus size")
    parser.add_argument("--write", action="store_true", help="write the data file")
    given = parser.parse_args()

    asyncio.run(run(given))


async def run(given: argparse.Namespace) -> None:
    """Print the weights, with and without the cosines, or check the sizes."""
    embedder = await open_embedder(Settings(embedding_model=given.model))
    deep = MiniLMEmbedder(only_english=True) if given.deep else None
    if given.sizes:
        await check_sizes(given.collections, given.messages, embedder, deep)
        return
    with tempfile.TemporaryDirectory() as folder:
        found = await groups(given.collections, given.messages, Path(folder), embedder, deep)
    tables = {pair(embedder.name, deep.name if deep else None): [one for one in FIGURES if deep or one != "deep"]}
    if deep is None and given.model == BUNDLED_EMBEDDING_MODELS[0]:
        tables["words"] = WORDS
    if given.across:
        tables[across_languages(embedder.name)] = ["dense"]
    fitted = {}
    for name, figures in tables.items():
        print(f"\n{name}")
        fitted[name] = report(found, figures, SIZE_WEIGHTS.get(name, SIZE_WEIGHT))
    if given.write:
        write(fitted)


if __name__ == "__main__":
    main()
