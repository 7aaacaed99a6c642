"""The relevance floor of records: ``python -m bench.record_floor COLLECTION --messages FOLDER [--model M]``.

COLLECTION is a folder in the datasets' form whose documents are short and belong to workspaces (single things that were
said stand in for records): its questions are answerable in their own workspace and, by assumption, in no other one.
FOLDER's ``queries.jsonl`` has messages that are answerable nowhere.

Fits the constants of `grounding.memory.selection.relevance` by logistic regression: the right documents of each
question against the five best of messages that the workspace does not answer, both sides weighing the same. Then it
prints, per floor, the share of right documents that are kept and how many a message brings that none answers; first for
the quick vectors alone, then together with the deeper ones (if M is the default model), then for smaller workspaces:
random documents of each one, among them the right ones of a question.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.calibrate import area, regression
from config.settings import BUNDLED_EMBEDDING_MODELS, Settings
from grounding.retrieval import TURN_AVERAGE_TERMS, DeepEmbedder, Embedder, MiniLMEmbedder, coverage, encode_document
from grounding.retrieval.bm25 import encode_query
from runtime.llm import open_embedder

Floats = NDArray[np.float64]
SHOWN = 5
OFFERED = 15
ROUNDS = 6
FLOORS = (-2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0)
QUICK, BOTH = [0, 2, 3], [0, 1, 2, 3]
"""The columns of the features: quick cosine, deeper cosine, coverage, BM25 / largest IDF."""
NAMES = np.array(["dense", "deep", "covered", "sparse"])
SIZES = (10, 30, 100, 300)
Texts = tuple[Floats, Floats]
"""The quick and the deeper vectors of texts."""


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line.strip()]


class Place:
    """The documents of one workspace, and how they score for a text."""

    def __init__(self, ids: Sequence[str], texts: Sequence[str], vectors: Texts) -> None:
        self.ids, self.texts, self.vectors = list(ids), list(texts), vectors
        sparse = [encode_document(text, TURN_AVERAGE_TERMS) for text in texts]
        held = Counter(index for one in sparse for index in one.indices)
        self._terms = [dict(zip(one.indices, one.values, strict=True)) for one in sparse]
        self._idf = {index: math.log((len(ids) - n + 0.5) / (n + 0.5) + 1) for index, n in held.items()}
        self._holding: dict[int, list[tuple[int, float]]] = defaultdict(list)
        for at, one in enumerate(self._terms):
            for index, value in one.items():
                self._holding[index].append((at, value))
        self._largest = math.log((len(ids) + 0.5) / 0.5 + 1)

    def part(self, at: Sequence[int]) -> Place:
        """The same with the documents of *at* alone."""
        quick, deep = self.vectors
        vectors = quick[list(at)], deep[list(at)]
        return Place([self.ids[one] for one in at], [self.texts[one] for one in at], vectors)

    def rows(self, text: str, vectors: Texts, at: Sequence[int]) -> Floats:
        """A row of features for each document of *at*."""
        (quick, deep), (asked_quick, asked_deep), query = self.vectors, vectors, encode_query(text)
        asked = list(zip(query.indices, query.values, strict=True))
        return np.array(
            [
                (
                    max(float(quick[place] @ asked_quick), 0.0),
                    max(float(deep[place] @ asked_deep), 0.0),
                    coverage(text, self.texts[place]),
                    sum(value * self._terms[place].get(i, 0.0) * self._idf.get(i, 0.0) for i, value in asked)
                    / self._largest,
                )
                for place in at
            ]
        ).reshape(-1, 4)

    def candidates(self, text: str, vectors: Texts) -> list[int]:
        """What a search would offer: the nearest by vectors and the best by words."""
        cosines, query = self.vectors[0] @ vectors[0], encode_query(text)
        words = np.zeros(len(self.ids))
        for index, value in zip(query.indices, query.values, strict=True):
            for at, count in self._holding.get(index, ()):
                words[at] += value * count * self._idf[index]
        offered = [*np.argsort(-cosines, kind="stable")[:OFFERED], *np.argsort(-words, kind="stable")[:OFFERED]]
        return list(dict.fromkeys(int(at) for at in offered))

    def offered(self, text: str, vectors: Texts) -> Floats:
        """The rows of what a search would offer."""
        return self.rows(text, vectors, self.candidates(text, vectors))


@dataclass(frozen=True)
class Measured:
    """The rows of the right documents, and those of each message's candidates, which are all wrong: questions of other
    workspaces, and messages that are answerable nowhere."""

    right: Floats
    elsewhere: list[Floats]
    nowhere: list[Floats]


class Sets:
    """The workspaces, their questions with the right documents, and the messages, with all their vectors."""

    def __init__(self, collection: Path, messages: Path) -> None:
        self._collection = collection
        self._messages = [one["text"] for one in lines(messages / "queries.jsonl")]
        self._questions = lines(collection / "queries.jsonl")
        self.places: dict[str, Place] = {}
        self._gold: dict[str, set[str]] = defaultdict(set)
        for line in (collection / "qrels" / "test.tsv").read_text(encoding="utf-8").splitlines()[1:]:
            query, document, _ = line.split("\t")
            self._gold[query].add(document)

    async def embed(self, quick: Embedder, deep: DeepEmbedder | None) -> None:
        documents = defaultdict(list)
        for one in lines(self._collection / "corpus.jsonl"):
            documents[one["metadata"]["workspace"]].append(one)
        for name, held in documents.items():
            # Without the speakers: questions name theirs, whom no other workspace knows.
            texts = [one["text"].partition(": ")[2] or one["text"] for one in held]
            vectors = np.array(await quick.embed_documents(texts))
            deeper = np.array(await deep.embed_notes(texts)) if deep else vectors
            self.places[name] = Place([one["_id"] for one in held], texts, (vectors, deeper))
        asked = [*(one["text"] for one in self._questions), *self._messages]
        vectors = np.array(await quick.embed_queries(asked))
        deeper = np.array(await deep.embed_queries(asked)) if deep else vectors
        self._vectors = dict(zip(asked, zip(vectors, deeper, strict=True), strict=True))

    def measure(self, size: int | None = None) -> Measured:
        """Measure the whole workspaces, or *size* random documents of each one, with those that are right."""
        chance = np.random.default_rng(7)
        right, elsewhere, nowhere = [], [], []

        def part(place: Place, wanted: Sequence[int] = ()) -> Place:
            if size is None or size >= len(place.ids):
                return place
            others = chance.permutation(len(place.ids))[: max(size - len(wanted), 0)]
            return place.part(list(dict.fromkeys([*wanted, *map(int, others)])))

        parts = {name: part(place) for name, place in self.places.items()}
        for one in self._questions:
            text, vectors = one["text"], self._vectors[one["text"]]
            own, gold = self.places[one["metadata"]["workspace"]], self._gold[one["_id"]]
            place = part(own, [at for at, name in enumerate(own.ids) if name in gold])
            at = [at for at in place.candidates(text, vectors) if place.ids[at] in gold]
            right.append(place.rows(text, vectors, at))
            for name, other in parts.items():
                if name != one["metadata"]["workspace"]:
                    elsewhere.append(other.offered(text, vectors))
        for text in self._messages:
            nowhere += [place.offered(text, self._vectors[text]) for place in list(parts.values())[:2]]
        return Measured(np.vstack(right), elsewhere, nowhere)


def fit(measured: Measured, columns: list[int]) -> Floats:
    """The weights of *columns* and the constant."""
    weights: Floats = np.r_[np.array([9.0, 9.0, 4.9, 1.5])[columns], -8.9]
    positive, wrong = measured.right, [*measured.elsewhere, *measured.nowhere]
    for _ in range(ROUNDS):  # which documents of a message that nothing answers come first depends on the weights
        negative = np.vstack([one[np.argsort(-scores(one, weights, columns))[:SHOWN]] for one in wrong])
        labels = np.r_[np.ones(len(positive)), np.zeros(len(negative))]
        shares = np.r_[np.full(len(positive), 0.5 / len(positive)), np.full(len(negative), 0.5 / len(negative))]
        rows = np.vstack([positive, negative])[:, columns]
        weights = np.asarray(regression(rows, labels, shares * len(labels)), dtype=np.float64)
    constants = [f"{name} {value:.2f}" for name, value in zip([*NAMES[columns], "constant"], weights, strict=True)]
    area_of_all = area(scores(positive, weights, columns), scores(negative, weights, columns))
    print(f"{', '.join(constants)}; AUC {area_of_all:.3f}")
    return weights


def scores(features: Floats, weights: Floats, columns: list[int]) -> Floats:
    return np.asarray(features[:, columns] @ weights[:-1] + weights[-1], dtype=np.float64)


def report(measured: Measured, weights: Floats, columns: list[int]) -> None:
    """Print what each floor keeps and brings."""
    for floor in FLOORS:
        kept = float(np.mean(scores(measured.right, weights, columns) >= floor))
        brought = [
            float(np.mean([min(SHOWN, np.sum(scores(one, weights, columns) >= floor)) for one in group]))
            for group in (measured.elsewhere, measured.nowhere)
        ]
        print(
            f"floor {floor:+.1f}: right kept {kept:.3f}; at most {SHOWN}: {brought[0]:.2f} elsewhere, {brought[1]:.2f}"
        )


def show(sets: Sets, columns: list[int]) -> None:
    """Fit and print *columns*, for the whole workspaces and with the same weights for smaller ones."""
    whole = sets.measure()
    weights = fit(whole, columns)
    report(whole, weights, columns)
    for size in SIZES:
        print(f"{size} documents:")
        report(sets.measure(size), weights, columns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("collection", type=Path)
    parser.add_argument("--messages", type=Path, required=True)
    parser.add_argument("--model", default=BUNDLED_EMBEDDING_MODELS[0])
    given = parser.parse_args()

    async def run() -> None:
        deep = MiniLMEmbedder(only_english=True) if given.model == BUNDLED_EMBEDDING_MODELS[0] else None
        sets = Sets(given.collection, given.messages)
        await sets.embed(await open_embedder(Settings(embedding_model=given.model)), deep)
        for columns in (QUICK, BOTH) if deep else (QUICK,):
            show(sets, columns)

    asyncio.run(run())


if __name__ == "__main__":
    main()
