"""Whether messages lean on their conversation: ``python -m bench.fit_leaning MESSAGES [--write]``.

MESSAGES is a folder whose ``queries.jsonl`` has messages with ``metadata`` of ``label``, ``history`` and
``needs_documents``: those labelled ``tail`` lean on their history; those without a history that need no document are
put behind the history of another one, and stand for themselves. ``tests/data/leaning.jsonl`` has messages of both kinds
behind talk about other things. Messages labelled ``qmd`` that have a history are left out: what parts them from the
others is not in their words.

Fits the weights of `grounding.strategy.leaning` by logistic regression and prints, by five folds, how well they part:
the area under the ROC curve and the share of each group at or above `LEANS_LOG_ODDS`. With ``--write`` it writes the
data file.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.calibrate import Floats, area, records, regression
from grounding.prompt_input import TailEntry
from grounding.strategy import tail_of
from grounding.strategy.leaning import LEANS_LOG_ODDS, WEIGHTS_FILE, features

OWN = Path("tests/data/leaning.jsonl")
FOLDS = 5
RIDGE = 0.3
SHARES = {"follow-ups": 200, "put behind others": 200, "own, leaning": 100, "own, standing": 100}
"""The weight of each group in the fit."""


@dataclass(frozen=True)
class Example:
    """A message behind its history. Those of one ``conversation`` are in one fold."""

    group: str
    leans: bool
    text: str
    before: tuple[TailEntry, ...]
    conversation: int


def turns(history: Sequence[Mapping[str, str]]) -> tuple[TailEntry, ...]:
    """The entries of *history*."""
    return tail_of((turn["role"], turn["text"]) for turn in history)


def examples(messages: Path) -> list[Example]:
    """All messages, in an order that is the same each time."""
    chance = random.Random(7)
    rows = records(messages / "queries.jsonl")
    histories = [turns(row["metadata"]["history"]) for row in rows if row["metadata"]["history"]]
    found = []
    for number, row in enumerate(rows):
        facts: dict[str, Any] = row["metadata"]
        if facts["label"] == "tail":
            found.append(Example("follow-ups", True, row["text"], turns(facts["history"]), number))
        elif not facts["needs_documents"]:
            found.append(Example("put behind others", False, row["text"], chance.choice(histories), number))
    for line in OWN.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        group = "own, leaning" if row["needs_history"] else "own, standing"
        found.append(Example(group, row["needs_history"], row["text"], turns(row["history"]), row["conversation"]))
    return found


def fit(rows: Floats, found: Sequence[Example], chosen: Floats) -> Floats:
    """The weights and the constant, by the *chosen* ones."""
    groups = np.array([one.group for one in found])
    shares = np.array([SHARES[group] / np.sum(groups[chosen] == group) for group in groups])
    labels = np.array([float(one.leans) for one in found])
    return regression(rows[chosen], labels[chosen], shares[chosen], RIDGE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("messages", type=Path, metavar="MESSAGES")
    parser.add_argument("--write", action="store_true", help="write the data file")
    given = parser.parse_args()
    found = examples(given.messages)
    figures = [features(one.text, one.before) for one in found]
    rows = np.array([list(one.values()) for one in figures])
    folds = np.array([one.conversation % FOLDS for one in found])
    odds = np.zeros(len(found))
    for fold in range(FOLDS):
        weights = fit(rows, found, folds != fold)
        odds[folds == fold] = rows[folds == fold] @ weights[:-1] + weights[-1]
    groups = np.array([one.group for one in found])
    for group in SHARES:
        of = groups == group
        print(f"{group:<18} {of.sum():4}  at or above {LEANS_LOG_ODDS}: {np.mean(odds[of] >= LEANS_LOG_ODDS):.2f}")
    for leaning, standing in (("follow-ups", "put behind others"), ("own, leaning", "own, standing")):
        print(f"AUC {leaning} / {standing}: {area(odds[groups == leaning], odds[groups == standing]):.3f}")
    weights = fit(rows, found, np.full(len(found), True))
    table = {"constant": weights[-1], **dict(zip(figures[0], weights, strict=False))}
    text = "# Made by `python -m bench.fit_leaning MESSAGES --write`.\n"
    text += "".join(f"{name} = {value:.2f}\n" for name, value in table.items())
    print(text)
    if given.write:
        WEIGHTS_FILE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
