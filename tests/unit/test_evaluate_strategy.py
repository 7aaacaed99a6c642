"""Figures for the strategy on labelled messages."""

import json
from pathlib import Path
from typing import Any

import pytest

from grounding.evaluation import Message
from grounding.evaluation.datasets import BadQuestionSet
from grounding.evaluation.strategy import load_messages, score_strategy
from grounding.strategy import Choice, Strategy, choose

QMD = Choice(Strategy.QMD, "workspace_retrieval_cue", wants_documents=True)
NONE = Choice(Strategy.NONE, "no_retrieval_cue")


def lines(file: Path, *records: dict[str, Any]) -> Path:
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return file


def test_a_file_says_what_it_says_and_the_rest_is_not_scored(tmp_path: Path) -> None:
    messages = load_messages(
        lines(
            tmp_path / "m.jsonl",
            {"text": "hi", "strategy": "none", "reason": "small_talk"},
            {"text": "and?", "needs_history": True, "history": [{"role": "user", "text": "what is it?"}]},
        )
    )
    scores = score_strategy(messages, [choose(message.text) for message in messages])

    assert (scores.accuracy, scores.reason_accuracy, scores.needs_documents) == (1.0, 1.0, None)
    assert messages[1].history[0].text == "what is it?"
    assert scores.needs_history is not None
    assert scores.needs_history.recall == 0.0


def test_a_folder_labels_in_metadata_and_unanswerable_questions_do_not_count(tmp_path: Path) -> None:
    qmd = {"label": "qmd", "needs_documents": True, "needs_history": False}
    lines(
        tmp_path / "queries.jsonl",
        {"_id": "1", "text": "a", "metadata": {**qmd, "gold_in_pool": True}},
        {"_id": "2", "text": "b", "metadata": {**qmd, "gold_in_pool": False}},
        {"_id": "3", "text": "c", "metadata": {"label": "none", "needs_documents": False, "needs_history": False}},
    )
    scores = score_strategy(load_messages(tmp_path), [QMD, NONE, NONE])

    assert scores.needs_documents is not None
    assert (scores.needs_documents.precision, scores.needs_documents.recall) == (1.0, 1.0)
    assert (scores.needs_documents.count, scores.needs_documents_scored) == (1, 2)
    assert scores.accuracy == pytest.approx(2 / 3)
    assert scores.confusion == {
        "none": {"none": 1, "tail": 0, "qmd": 0},
        "qmd": {"none": 1, "tail": 0, "qmd": 1},
    }
    assert scores.macro_f1 == pytest.approx((2 / 3 + 2 / 3) / 2)


def test_what_was_decided_otherwise_is_listed_with_what_was_decided() -> None:
    (wrong,) = score_strategy([Message("a", strategy="none", needs_documents=False)], [QMD]).wrong

    assert wrong.expected == {"strategy": "none", "needs_documents": False}
    assert wrong.got["reason"] == "workspace_retrieval_cue"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 1: no JSON"),
        ("[]", 'expected an object with "text"'),
        ('{"text": "a", "strategy": "search"}', "the strategy is none, tail or qmd, not 'search'"),
        ('{"text": "a", "needs_history": "yes"}', "are true or false"),
        ('{"text": "a", "history": [{"text": "b"}]}', 'expected "history" to be a list of'),
        ('{"text": "a", "languages": ["klingon"]}', "no cues ship for 'klingon'"),
        ('{"text": "a", "languages": "german"}', "languages is a list"),
        ('{"text": "a", "languages": [["german"]]}', "no cues ship for ['german']"),
        ('{"text": "a", "metadata": "none"}', 'expected "metadata" to be an object'),
        ('{"text": "a", "history": [{"role": "user", "text": 5}]}', 'expected "history" to be a list of'),
        ('{"text": "a", "reason": "smalltalk"}', "not 'smalltalk'"),
        ("[" * 100_000, "no JSON"),
        ('{"text": "a", "stratgy": "none"}', "says nothing to score"),
        ("", "holds no message"),
    ],
)
def test_a_bad_set_is_refused_with_its_line(tmp_path: Path, line: str, said: str) -> None:
    file = tmp_path / "m.jsonl"
    file.write_text(line)

    with pytest.raises(BadQuestionSet, match=r"m\.jsonl") as refused:
        load_messages(file)

    assert said in str(refused.value)
