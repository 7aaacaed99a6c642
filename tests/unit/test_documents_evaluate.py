"""Question sets of two forms are read, scored per arm, and refused with the line that is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import runtime
from grounding.documents.evaluate import ARMS, BadQuestionSet, QuestionSet, evaluate, load
from grounding.documents.qdrant_embedded import EmbeddedIndex
from tests.emulators.embedder import HashedWords

SAMPLE = Path(runtime.__file__).parent / "sample"


def lines(*records: object) -> str:
    return "\n".join(json.dumps(record) for record in records)


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    (tmp_path / "qrels").mkdir()
    (tmp_path / "corpus.jsonl").write_text(
        lines(
            {"_id": "d1", "title": "Refunds", "text": "thirty days", "metadata": {"workspace": "one"}},
            {"_id": "d2", "title": "", "text": "refunds elsewhere", "metadata": {"workspace": "two"}},
        )
    )
    (tmp_path / "queries.jsonl").write_text(
        lines(
            {"_id": "q1", "text": "refunds", "metadata": {"workspace": "one"}},
            {"_id": "q2", "text": "unjudged", "metadata": {"workspace": "one"}},
        )
    )
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td2\t0\n")
    return tmp_path


def test_a_beir_folder_keeps_judged_questions_and_their_workspace(beir: Path) -> None:
    questions = load(beir)
    assert [(item.text, item.expected, item.workspace) for item in questions.questions] == [
        ("refunds", frozenset({"d1"}), "one")
    ]
    assert [item.id for item in questions.documents] == ["d1", "d2"]


async def test_each_arm_is_scored_within_the_question_s_workspace(beir: Path, tmp_path: Path) -> None:
    embedder = HashedWords()

    def open_index() -> EmbeddedIndex:
        return EmbeddedIndex(tmp_path / "index", embedder.name, embedder.dimensions, timeout_seconds=10)

    scores = await evaluate(load(beir), embedder, lambda text: len(text.split()), open_index)
    assert tuple(scores) == ARMS
    assert all((arm.recall_at_5, arm.ndcg_at_10, arm.mrr) == (1.0, 1.0, 1.0) for arm in scores.values())


def test_the_sample_that_ships_is_a_valid_set_with_every_document_asked_about() -> None:
    questions = load(SAMPLE)
    assert len(questions.questions) >= 25
    assert {path for item in questions.questions for path in item.expected} == {item.id for item in questions.documents}


def test_a_question_whose_document_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "questions.jsonl").write_text(lines({"question": "x", "expected": "gone.md"}))
    with pytest.raises(BadQuestionSet, match=r"gone\.md"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("text", "said"), [("{", "line 1"), ("[]", "expected an object"), ('{"question": 1}', "expected")]
)
def test_a_broken_line_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "questions.jsonl").write_text(text)
    with pytest.raises(BadQuestionSet, match=said):
        load(tmp_path / "questions.jsonl")


def test_a_folder_that_is_no_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadQuestionSet, match="neither"):
        load(tmp_path)


async def test_a_set_without_questions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadQuestionSet, match="no question"):
        await evaluate(QuestionSet((), ()), HashedWords(), len, lambda: pytest.fail("opened"))
