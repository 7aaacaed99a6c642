"""The weights by which earlier turns are recalled: ``python -m bench.fit_recall SET… [--model M]``.

A SET is a folder of long conversations, as `grounding.evaluation.datasets` reads it. Each conversation is
remembered in an index of its own making and its questions are put to it; what may be told (see
`grounding.retrieval.turn_ranking`) has its features. A linear model is fitted to them by the likelihood of the evidence
under a softmax over the candidates (ListNet: Cao et al., ICML 2007), every set weighing the same, with a little ridge.

Printed are the figures of each set where its conversations had no part in the fit (fivefold over conversations), with
the weights in force and by the search's own order, and then the weights of all together, the own score's being 1.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from config.settings import BUNDLED_EMBEDDING_MODELS, Settings
from connectors.message import Scope
from grounding.evaluation import Conversation
from grounding.evaluation.datasets import load_conversations
from grounding.evaluation.memory import ADVERSARIAL
from grounding.evaluation.metrics import ndcg_at, recall_at
from grounding.prompt_input import speaker, speaker_text
from grounding.retrieval import Embedder, Hit, Passage, PassageQuery, TurnIndex, TurnText
from grounding.retrieval.qdrant_edge import EmbeddedIndex
from grounding.retrieval.recall import POOL
from grounding.retrieval.turn_ranking import ASSISTANT, WEIGHTS, Features, turn_features
from runtime.llm import open_embedder

Floats = NDArray[np.float64]
FOLDS = 5
RIDGE = 0.003
STEPS = 300
NAMES = [*Features._fields]
BOOSTS = [name != "asks" for name in NAMES]
"""Features that may only raise a turn: what is beside it never speaks against it."""


@dataclass(frozen=True)
class Row:
    """One question: a row of features for each candidate, the message that each is a part of, and the evidence."""

    rows: Floats
    messages: list[str]
    evidence: frozenset[str]


class Listening(EmbeddedIndex):
    """Keeps what was found last, and what stood beside it: of those a look back chooses."""

    seen: tuple[list[Hit], list[Passage]] = ([], [])

    async def search(self, query: PassageQuery) -> list[Hit]:
        hits = await super().search(query)
        self.seen = hits[:POOL], []
        return hits

    async def neighbours(self, *about: Any) -> list[Passage]:
        neighbours = await super().neighbours(*about)
        self.seen = self.seen[0], neighbours
        return neighbours


async def rows_of(conversation: Conversation, embedder: Embedder, folder: Path) -> list[Row]:
    """What may be told for each question of *conversation*."""
    index = Listening(folder, embedder.name, embedder.dimensions, timeout_seconds=60)
    await index.ensure()
    turns, scope, before = TurnIndex(index, embedder), Scope("fit", "conversation"), ""
    memories: list[TurnText] = []
    for said in conversation.said:
        by = ASSISTANT if said.speaker == ASSISTANT else speaker(said.speaker)
        memories.append(TurnText(scope, said.id, speaker_text(by, said.text), said.at, before))
        before = said.id
    for start in range(0, len(memories), 64):
        await turns.remember(memories[start : start + 64])
    found: list[Row] = []
    for asked in conversation.asked:
        if asked.category == ADVERSARIAL:
            continue
        index.seen = ([], [])
        await turns.recall(scope, asked.text, 1)
        given = turn_features(asked.text, *index.seen)
        rows = np.array([one for _, _, one in given]).reshape(len(given), len(NAMES))
        found.append(Row(rows, [passage.source for passage, _, _ in given], asked.evidence))
    await index.close()
    return found


def fit(groups: list[list[Row]]) -> Floats:
    """The weights, the own score's being 1, by Adam (Kingma and Ba, 2015)."""
    lists = [(row, 1 / len(group)) for group in groups for row in group]
    lists = [(row, share) for row, share in lists if row.evidence & set(row.messages)]
    longest = max(len(row.messages) for row, _ in lists)
    given = np.zeros((len(lists), longest, len(NAMES)))
    wanted, there = np.zeros((len(lists), longest)), np.zeros((len(lists), longest), dtype=bool)
    for number, (row, _) in enumerate(lists):
        right = np.array([message in row.evidence for message in row.messages], dtype=float)
        given[number, : len(right)], wanted[number, : len(right)] = row.rows, right / right.sum()
        there[number, : len(right)] = True
    scale = given[there].std(axis=0) + 1e-9
    given /= scale
    shares = np.array([share for _, share in lists]) / len(groups)
    weights, mean, spread = np.zeros(len(NAMES)), np.zeros(len(NAMES)), np.zeros(len(NAMES))
    for step in range(1, STEPS + 1):
        scores = np.where(there, given @ weights, -np.inf)
        likely = np.exp(scores - scores.max(axis=1, keepdims=True))
        likely /= likely.sum(axis=1, keepdims=True)
        slope = np.einsum("q,qc,qcf->f", shares, likely - wanted, given, optimize=True) + RIDGE * weights
        mean, spread = 0.9 * mean + 0.1 * slope, 0.99 * spread + 0.01 * slope**2
        weights -= 0.05 * (mean / (1 - 0.9**step)) / (np.sqrt(spread / (1 - 0.99**step)) + 1e-8)
        weights = np.where(BOOSTS, np.maximum(weights, 0), weights)
    weights = weights / scale
    return np.asarray(weights / weights[0])


def figures(rows: list[Row], weights: Floats) -> Floats:
    """recall@5, recall@10 and nDCG@10 of each of *rows* by *weights*."""
    found = []
    for row in rows:
        order = np.argsort(-(row.rows @ weights), kind="stable")
        ranking = list(dict.fromkeys(row.messages[place] for place in order))
        gold = row.evidence
        found.append((recall_at(ranking, gold, 5), recall_at(ranking, gold, 10), ndcg_at(ranking, gold, 10)))
    return np.array(found).reshape(len(found), 3)


def report(sets: dict[str, list[list[Row]]]) -> None:
    """Print figures and weights; *sets* have the rows of each of their conversations."""
    held: dict[str, list[Floats]] = {name: [] for name in sets}
    for fold in range(FOLDS):
        weights = fit([[row for rows in _others(found, fold) for row in rows] for found in sets.values()])
        for name, found in sets.items():
            held[name] += [figures(rows, weights) for rows in found[fold::FOLDS]]
    own = np.array([name == "own" for name in NAMES], dtype=float)
    print(f"{'':<30}{'recall@5':>10}{'recall@10':>10}{'nDCG@10':>10}")
    for name, found in sets.items():
        everything = [row for rows in found for row in rows]
        told = {
            "by the search": figures(everything, own),
            "fitted on others": np.concatenate(held[name]),
            "as they are": figures(everything, np.array(WEIGHTS)),
        }
        for what, scores in told.items():
            shares = "".join(f"{share:>10.3f}" for share in scores.mean(axis=0))
            print(f"{name[:12]:<13} {what:<16}{shares}")
    together = fit([[row for rows in found for row in rows] for found in sets.values()])
    print(", ".join(f"{name}={weight:.2f}" for name, weight in zip(NAMES, together, strict=True)))


def _others(found: list[list[Row]], fold: int) -> list[list[Row]]:
    return [rows for number, rows in enumerate(found) if number % FOLDS != fold]


def main() -> None:
    """Fit and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", type=Path, nargs="+", metavar="SET")
    parser.add_argument("--model", default=BUNDLED_EMBEDDING_MODELS[0], metavar="EMBEDDING_MODEL")
    given = parser.parse_args()

    async def run(folder: Path) -> dict[str, list[list[Row]]]:
        embedder = await open_embedder(Settings(embedding_model=given.model))
        found: dict[str, list[list[Row]]] = {}
        for path in given.sets:
            for number, conversation in enumerate(load_conversations(path)):
                rows = await rows_of(conversation, embedder, folder / f"{path.name}-{number}")
                found.setdefault(path.resolve().name, []).append(rows)
        return found

    with tempfile.TemporaryDirectory() as folder:
        report(asyncio.run(run(Path(folder))))


if __name__ == "__main__":
    main()
