"""The relevance floor of records: ``python -m bench.record_floor COLLECTION --messages FOLDER [--model M]``.

COLLECTION is a folder in the datasets' form whose documents are short and belong to workspaces (single things that were
said stand in for records): its questions are answerable in their own workspace and, by assumption, in no other one.
FOLDER's ``queries.jsonl`` has messages that are answerable nowhere.

Fits the constants of `grounding.memory.selection.selection` by logistic regression: the right documents of each
question against the five best of messages that the workspace does not answer, both sides weighing the same. Then it
prints, per floor, the share of right documents that are kept and how many a message brings that none answers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.calibrate import area, regression
from config.settings import BUNDLED_EMBEDDING_MODELS, Settings
from grounding.retrieval import TURN_AVERAGE_TERMS, Embedder, coverage, encode_document
from grounding.retrieval.bm25 import encode_query
from runtime.llm import open_embedder

Floats = NDArray[np.float64]
SHOWN = 5
OFFERED = 15
ROUNDS = 6
FLOORS = (-2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0)


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line.strip()]


class Place:
    """The documents of one workspace, and how they score for a text."""

    def __init__(self, ids: Sequence[str], texts: Sequence[str], vectors: Floats) -> None:
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

    def rows(self, text: str, vector: Floats, at: Sequence[int]) -> Floats:
        """A row of features for each document of *at*: cosine, coverage, BM25 / largest IDF."""
        cosines, query = self.vectors @ vector, encode_query(text)
        asked = list(zip(query.indices, query.values, strict=True))
        return np.array(
            [
                (
                    max(float(cosines[place]), 0.0),
                    coverage(text, self.texts[place]),
                    sum(value * self._terms[place].get(i, 0.0) * self._idf.get(i, 0.0) for i, value in asked)
                    / self._largest,
                )
                for place in at
            ]
        ).reshape(-1, 3)

    def candidates(self, text: str, vector: Floats) -> list[int]:
        """What a search would offer: the nearest by vectors and the best by words."""
        cosines, query = self.vectors @ vector, encode_query(text)
        words = np.zeros(len(self.ids))
        for index, value in zip(query.indices, query.values, strict=True):
            for at, count in self._holding.get(index, ()):
                words[at] += value * count * self._idf[index]
        offered = [*np.argsort(-cosines, kind="stable")[:OFFERED], *np.argsort(-words, kind="stable")[:OFFERED]]
        return list(dict.fromkeys(int(at) for at in offered))


async def measure(collection: Path, messages: Path, embedder: Embedder) -> None:
    documents = defaultdict(list)
    for one in lines(collection / "corpus.jsonl"):
        documents[one["metadata"]["workspace"]].append(one)
    places: dict[str, Place] = {}
    for name, held in documents.items():
        # Without the speakers: questions name theirs, whom no other workspace knows.
        texts = [one["text"].partition(": ")[2] or one["text"] for one in held]
        vectors = np.array(await embedder.embed_documents(texts))
        places[name] = Place([one["_id"] for one in held], texts, vectors)
    gold = defaultdict(set)
    for line in (collection / "qrels" / "test.tsv").read_text(encoding="utf-8").splitlines()[1:]:
        query, document, _ = line.split("\t")
        gold[query].add(document)
    right, wrong, elsewhere = [], [], []
    for one in lines(collection / "queries.jsonl"):
        vector = np.array(await embedder.embed_query(one["text"]))
        for name, place in places.items():
            if name == one["metadata"]["workspace"]:
                offered = place.candidates(one["text"], vector)
                at = [at for at in offered if place.ids[at] in gold[one["_id"]]]
                right.append(place.rows(one["text"], vector, at))
            else:
                elsewhere.append(place.rows(one["text"], vector, place.candidates(one["text"], vector)))
    for one in lines(messages / "queries.jsonl"):
        vector = np.array(await embedder.embed_query(one["text"]))
        wrong += [
            place.rows(one["text"], vector, place.candidates(one["text"], vector))
            for place in list(places.values())[:2]
        ]
    report(np.vstack(right), elsewhere, wrong)


def report(positive: Floats, elsewhere: list[Floats], wrong: list[Floats]) -> None:
    weights = np.array([9.0, 4.9, 1.5, -8.9])

    def scored(features: Floats) -> Floats:
        return np.asarray(features @ weights[:-1] + weights[-1])

    for _ in range(ROUNDS):  # which documents of a message that nothing answers come first depends on the weights
        negative = np.vstack([one[np.argsort(-scored(one))[:SHOWN]] for one in (*elsewhere, *wrong)])
        labels = np.r_[np.ones(len(positive)), np.zeros(len(negative))]
        shares = np.r_[np.full(len(positive), 0.5 / len(positive)), np.full(len(negative), 0.5 / len(negative))]
        weights = np.asarray(regression(np.vstack([positive, negative]), labels, shares * len(labels)))
    print(f"dense {weights[0]:.2f}, coverage {weights[1]:.2f}, sparse {weights[2]:.2f}, constant {weights[3]:.2f}")
    print(f"AUC {area(scored(positive), scored(negative)):.3f}")
    for floor in FLOORS:
        kept = float(np.mean(scored(positive) >= floor))
        brought = [
            float(np.mean([min(SHOWN, np.sum(scored(one) >= floor)) for one in group])) for group in (elsewhere, wrong)
        ]
        print(
            f"floor {floor:+.1f}: right kept {kept:.3f}; at most {SHOWN}: {brought[0]:.2f} elsewhere, {brought[1]:.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("collection", type=Path)
    parser.add_argument("--messages", type=Path, required=True)
    parser.add_argument("--model", default=BUNDLED_EMBEDDING_MODELS[0])
    given = parser.parse_args()

    async def run() -> None:
        await measure(given.collection, given.messages, await open_embedder(Settings(embedding_model=given.model)))

    asyncio.run(run())


if __name__ == "__main__":
    main()
