"""How earlier turns are judged and ordered: ``python -m bench.fit_recall SET… [--statements FILE] [--nothing FILE]``.

A SET is a folder of long conversations, as `grounding.evaluation.datasets` reads it. Each conversation is remembered in
an index of its own, with deeper vectors, and its questions are put to it. Two things are fitted and printed as
``grounding/retrieval/turn_weights.toml`` has them:

- The order (`Features`): a linear model, by the likelihood of the evidence under a softmax over the candidates
  (ListNet: Cao et al., ICML 2007), every set weighing the same, with a little ridge. First the figures of each set are
  printed where its conversations had no part in the fit (fivefold over conversations), with the weights in force, and
  by the search's own order.
- The floor (`TurnFloor.deeper`): a logistic regression on the best turn for each message. Right are the turns that are
  evidence; wrong is whatever is found for the questions of the next conversation, and for the messages of
  ``--nothing`` (JSON lines with ``text``; only those that cues leave open count). ``--statements`` is a file like
  ``tests/data/said_in_other_words.json``, the first half of which takes part. Every group of messages weighs the same.
  The weight of the deeper cosine is 1; what turns have to reach is printed for some log-odds, with the shares of
  messages that then recall something, and of questions that recall their evidence.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from config.settings import Settings
from connectors.message import Scope
from grounding.evaluation import Conversation, ConversationMessage, ConversationQuestion
from grounding.evaluation.datasets import UNDATED, load_conversations
from grounding.evaluation.memory import ADVERSARIAL
from grounding.evaluation.metrics import ndcg_at, recall_at
from grounding.prompt_input import speaker, speaker_text
from grounding.retrieval import (
    Embedder,
    Hit,
    MiniLMEmbedder,
    Passage,
    PassageQuery,
    TurnFloor,
    TurnIndex,
    TurnText,
)
from grounding.retrieval.qdrant_edge import EmbeddedIndex
from grounding.retrieval.turn_ranking import ASSISTANT, WEIGHTS, Features, turn_features
from grounding.strategy import choose
from runtime.llm import open_embedder

Floats = NDArray[np.float64]
FOLDS = 5
RIDGE = 0.003
STEPS = 300
ROUNDS = 5
NAMES = [*Features._fields]
BOOSTS = [name != "asks" for name in NAMES]
"""Features that may only raise a turn: what is beside it never speaks against it."""


LOG_ODDS = (0.0, 0.5, 1.0, 1.5, 2.0)
"""What is printed for the floor."""
JUDGED = {
    "deep_weight": TurnFloor(0.0, 0.0, deep_weight=1.0, dense_weight=0.0, coverage_weight=0.0),
    "dense_weight": TurnFloor(0.0, 0.0, dense_weight=1.0, coverage_weight=0.0),
    "coverage_weight": TurnFloor(0.0, 0.0, dense_weight=0.0, coverage_weight=1.0),
    "own_weight": TurnFloor(0.0, 0.0, own_weight=1.0, dense_weight=0.0, coverage_weight=0.0),
}
"""Floors that give one figure of a turn each."""
NO_FLOOR = TurnFloor(float("-inf"), float("-inf"))


@dataclass(frozen=True)
class Row:
    """One question: a row of features for each candidate, the message that each is a part of, and the evidence."""

    rows: Floats
    messages: list[str]
    evidence: frozenset[str]


@dataclass
class Judged:
    """For each message of a group the figures of the turns that were found, and which of them are evidence."""

    found: list[tuple[Floats, NDArray[np.bool_]]] = field(default_factory=list)
    is_right: bool = False
    """Whether the messages have evidence."""


@dataclass
class Measured:
    """What was found in all conversations: the rows of each conversation by set, and the groups of the floor."""

    order: dict[str, list[list[Row]]] = field(default_factory=lambda: defaultdict(list))
    floor: dict[str, Judged] = field(default_factory=lambda: defaultdict(Judged))


class Listening(EmbeddedIndex):
    """Keeps what was found last, and the turns around it."""

    seen: tuple[list[Hit], list[Passage]] = ([], [])

    async def search(self, query: PassageQuery) -> list[Hit]:
        hits = await super().search(query)
        self.seen = hits, []
        return hits

    async def neighbours(self, *about: Any) -> list[Passage]:
        neighbours = await super().neighbours(*about)
        self.seen = self.seen[0], neighbours
        return neighbours


class Memory:
    """One conversation in an index of its own."""

    def __init__(self, embedder: Embedder, deep: MiniLMEmbedder, folder: Path) -> None:
        self._index = Listening(
            folder, embedder.name, embedder.dimensions, timeout_seconds=60, deep_dimensions=deep.dimensions
        )
        self._turns = TurnIndex(self._index, embedder, floor=NO_FLOOR, deep=deep)
        self._scope = Scope("fit", "conversation")

    async def fill(self, said: Iterable[ConversationMessage]) -> None:
        """Remember what was *said*, each message as a turn."""
        await self._index.ensure()
        memories: list[TurnText] = []
        for one in said:
            before = memories[-1].turn_id if memories else ""
            memories.append(TurnText(self._scope, one.id, _text(one), one.at, before))
        for start in range(0, len(memories), 64):
            await self._turns.remember(memories[start : start + 64])
        while await self._turns.deepen(self._scope):
            pass

    async def find(self, text: str) -> tuple[list[Hit], list[Passage]]:
        """Return what is found for *text*, and the turns around it."""
        self._index.seen = ([], [])
        await self._turns.recall(self._scope, text, 1)
        return self._index.seen

    async def close(self) -> None:
        await self._index.close()


def _text(message: ConversationMessage) -> str:
    """Return the text of a turn. A message without a speaker is a whole turn already."""
    if not message.speaker:
        return message.text
    return speaker_text(ASSISTANT if message.speaker == ASSISTANT else speaker(message.speaker), message.text)


def judge(text: str, hits: list[Hit], evidence: frozenset[str]) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the figures of each of *hits* that has a deeper vector, and which are *evidence*."""
    deep = [hit for hit in hits if hit.deep is not None]
    figures = [[floor.relevance_of(text, hit) for floor in JUDGED.values()] for hit in deep]
    is_evidence = np.array([hit.passage.source in evidence for hit in deep], dtype=bool)
    return np.array(figures, dtype=float).reshape(len(deep), len(JUDGED)), is_evidence


async def measure(
    name: str, conversations: list[Conversation], nothing: list[str], embedder: Embedder, folder: Path
) -> Measured:
    """Put the questions of *conversations* to their own and to the next one, and the messages *nothing* to all in
    turn."""
    measured, deep = Measured(), MiniLMEmbedder(only_english=True)
    for number, conversation in enumerate(conversations):
        memory = Memory(embedder, deep, folder / f"{name}-{number}")
        await memory.fill(conversation.said)
        rows: list[Row] = []
        for asked in conversation.asked:
            hits, neighbours = await memory.find(asked.text)
            own = measured.floor[f"{name}: {asked.category}"]
            own.is_right = True
            own.found.append(judge(asked.text, hits, asked.evidence))
            if asked.category != ADVERSARIAL:
                told = turn_features(asked.text, hits, neighbours)
                features = np.array([one for _, _, one in told]).reshape(len(told), len(NAMES))
                rows.append(Row(features, [passage.source for passage, _, _ in told], asked.evidence))
        measured.order[name].append(rows)
        elsewhere = conversations[number - 1].asked if len(conversations) > 1 else ()
        for text in [*(asked.text for asked in elsewhere), *nothing[number :: len(conversations)]]:
            hits, _ = await memory.find(text)
            group = "nothing" if text in nothing else "of another conversation"
            measured.floor[f"{name}: {group}"].found.append(judge(text, hits, frozenset()))
        await memory.close()
    return measured


def statements_of(file: Path) -> tuple[Conversation, list[str]]:
    """Return the conversation of *file*, with the questions of the first half, and its messages that should recall
    nothing."""
    told = json.loads(file.read_text(encoding="utf-8"))
    exchanges = [(one["said"], one["reply"]) for one in told["statements"]] + told["chatter"]
    said = tuple(
        ConversationMessage(f"{n}", "", f"Ines: {text}\nassistant: {reply}", UNDATED + n * timedelta(hours=3))
        for n, (text, reply) in enumerate(exchanges)
    )
    half = told["statements"][: len(told["statements"]) // 2]
    asked = tuple(
        ConversationQuestion(f"{kind} {n}", one[kind], kind, frozenset([f"{n}"]))
        for kind in ("question", "asked")
        for n, one in enumerate(half)
    )
    return Conversation("statements", said, asked), list(told["nothing"])


def fit_floor(groups: dict[str, Judged]) -> Floats:
    """Return the weights of `JUDGED` and the constant, by logistic regression on the best turn of each message (right:
    the best of the evidence), every group weighing the same."""
    weights = np.array([1.0, *([0.0] * len(JUDGED))])
    for _ in range(ROUNDS):  # which turn is the best depends on the weights
        rows, right, shares = [], [], []
        for judged in groups.values():
            best = [figures[wanted] if judged.is_right else figures for figures, wanted in judged.found]
            best = [figures[np.argmax(figures @ weights[:-1])] for figures in best if len(figures)]
            rows += best
            right += [judged.is_right] * len(best)
            shares += [1 / len(best)] * len(best)
        weights = _logistic(np.c_[np.array(rows), np.ones(len(rows))], np.array(right, dtype=float), np.array(shares))
    return weights


def _logistic(rows: Floats, right: Floats, shares: Floats) -> Floats:
    """Return the weights by Newton's method, both classes weighing the same."""
    for is_right in (0.0, 1.0):
        shares = np.where(right == is_right, shares / shares[right == is_right].sum(), shares)
    shares, weights = shares * len(rows), np.zeros(rows.shape[1])
    ridge = 0.001 * np.eye(rows.shape[1])
    for _ in range(STEPS // 10):
        likely = 1 / (1 + np.exp(-rows @ weights))
        slope = rows.T @ (shares * (likely - right)) + ridge @ weights
        curve = rows.T @ (rows * (shares * likely * (1 - likely) + 1e-9)[:, None]) + ridge
        weights = weights - np.linalg.solve(curve, slope)
    return weights


def report_floor(groups: dict[str, Judged]) -> None:
    """Print the floor, and for some log-odds the share of each group that recalls something (or its evidence)."""
    weights = fit_floor(groups)
    print("\n[floors.….deeper]")
    for name, weight in zip(JUDGED, weights[:-1] / weights[0], strict=True):
        print(f"{name} = {weight:.2f}")
    print(f"{'needed':<40}" + "".join(f"{(odds - weights[-1]) / weights[0]:>8.2f}" for odds in LOG_ODDS))
    for name, judged in sorted(groups.items()):
        best = np.array(
            [
                np.max(figures[wanted if judged.is_right else ...] @ weights[:-1], initial=-np.inf) + weights[-1]
                for figures, wanted in judged.found
            ]
        )
        print(f"{name:<40}" + "".join(f"{np.mean(best >= odds):>8.2f}" for odds in LOG_ODDS))


def fit_order(groups: list[list[Row]]) -> Floats:
    """Return the weights, the own score's being 1, by Adam (Kingma and Ba, 2015)."""
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
    """Return recall@5, recall@10 and nDCG@10 of each of *rows* by *weights*."""
    found = []
    for row in rows:
        order = np.argsort(-(row.rows @ weights), kind="stable")
        ranking = list(dict.fromkeys(row.messages[place] for place in order))
        gold = row.evidence
        found.append((recall_at(ranking, gold, 5), recall_at(ranking, gold, 10), ndcg_at(ranking, gold, 10)))
    return np.array(found).reshape(len(found), 3)


def report_order(sets: dict[str, list[list[Row]]]) -> None:
    """Print figures and weights; *sets* have the rows of each of their conversations."""
    held: dict[str, list[Floats]] = {name: [] for name in sets}
    for fold in range(FOLDS):
        weights = fit_order([[row for rows in _others(found, fold) for row in rows] for found in sets.values()])
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
    together = fit_order([[row for rows in found for row in rows] for found in sets.values()])
    print("\n[order]")
    for name, weight in zip(NAMES, together, strict=True):
        print(f"{name} = {weight:.2f}")


def _others(found: list[list[Row]], fold: int) -> list[list[Row]]:
    return [rows for number, rows in enumerate(found) if number % FOLDS != fold]


def main() -> None:
    """Fit and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", type=Path, nargs="+", metavar="SET")
    parser.add_argument("--statements", type=Path, metavar="FILE")
    parser.add_argument("--nothing", type=Path, metavar="FILE")
    given = parser.parse_args()
    nothing = []
    if given.nothing is not None:
        lines = given.nothing.read_text(encoding="utf-8").splitlines()
        nothing = [text for line in lines if choose(text := json.loads(line)["text"]).open]

    async def run(folder: Path) -> Measured:
        embedder, everything = await open_embedder(Settings()), Measured()
        for path in given.sets:
            name = path.resolve().name
            measured = await measure(name, load_conversations(path), nothing, embedder, folder)
            everything.order |= measured.order
            everything.floor |= measured.floor
        if given.statements is not None:
            conversation, own_nothing = statements_of(given.statements)
            measured = await measure("statements", [conversation], own_nothing + nothing, embedder, folder)
            everything.floor |= measured.floor
        return everything

    with tempfile.TemporaryDirectory() as folder:
        measured = asyncio.run(run(Path(folder)))
    report_order(measured.order)
    report_floor(measured.floor)


if __name__ == "__main__":
    main()
