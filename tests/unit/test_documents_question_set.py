"""Question sets of two forms are read, or refused with the file, the line and what was expected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import runtime
from grounding.evaluation.datasets import BadQuestionSet, load

SAMPLE = Path(runtime.__file__).parent / "sample"


def lines(*records: object) -> str:
    return "\n".join(json.dumps(record) for record in records)


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    (tmp_path / "qrels").mkdir()
    (tmp_path / "corpus.jsonl").write_text(
        lines(
            {"_id": "d1", "title": "Refunds", "text": "thirty days", "metadata": {"workspace": "one"}},
            {"_id": 2, "title": "", "text": "refunds elsewhere", "metadata": {"workspace": "two"}},
        )
    )
    history = [{"role": "user", "text": "hello"}, {"role": "agent", "text": "hi"}]
    (tmp_path / "queries.jsonl").write_text(
        lines(
            {"_id": "q1", "text": "refunds", "metadata": {"workspace": "one", "history": history}},
            {"_id": "q2", "text": "unjudged", "metadata": {"workspace": "one"}},
        )
    )
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\t2\t0\n")
    return tmp_path


def test_a_beir_folder_keeps_judged_questions_with_their_workspace_and_history(beir: Path) -> None:
    [question] = load(beir).questions
    assert (question.id, question.text, question.workspace) == ("q1", "refunds", "one")
    assert question.expected == {"d1"}
    assert question.history == (("user", "hello"), ("agent", "hi"))


def test_documents_are_read_with_their_title_and_cost_what_is_below_it(beir: Path) -> None:
    assert [(one.id, one.path, one.text, one.tokens) for one in load(beir).documents] == [
        ("d1", "0.txt", "Refunds\n\nthirty days", len("thirty days") // 4 + 1),
        ("2", "1.txt", "refunds elsewhere", len("refunds elsewhere") // 4 + 1),
    ]


def test_expected_documents_that_the_corpus_lacks_are_told(beir: Path) -> None:
    (beir / "qrels" / "test.tsv").write_text("q1\td1\t1\nq1\tgone\t2\n")
    questions = load(beir)
    assert questions.absent == {"gone"}
    assert questions.questions[0].expected == {"d1", "gone"}


def test_the_only_judgements_there_are_will_do(beir: Path) -> None:
    (beir / "qrels" / "test.tsv").rename(beir / "qrels" / "dev.tsv")
    assert len(load(beir).questions) == 1
    (beir / "qrels" / "train.tsv").write_text("")
    with pytest.raises(BadQuestionSet, match=r"no qrels/test\.tsv"):
        load(beir)


def test_half_a_character_is_replaced(beir: Path) -> None:
    (beir / "corpus.jsonl").write_text('{"_id": "d1", "text": "\\ud83d half"}\n')
    assert load(beir).documents[0].text == "? half"


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("corpus.jsonl", '{"_id": "d1", "text": "x"}\n{', "corpus.jsonl, line 2: no JSON"),
        ("corpus.jsonl", '{"_id": "d1"}', r'line 1: expected an object with "_id" and "text"'),
        ("corpus.jsonl", '{"_id": "d1", "text": 7}', 'line 1: expected "text" to be a text, got int'),
        ("corpus.jsonl", '{"_id": "a", "text": ""}\n\n{"_id": "a", "text": ""}', "line 3: the id 'a' was given before"),
        ("corpus.jsonl", '{"_id": [], "text": ""}', 'expected "_id" to be a text or a whole number'),
        ("corpus.jsonl", '{"_id": "a", "text": "", "metadata": "x"}', 'expected "metadata" to be an object'),
        ("queries.jsonl", '{"_id": "q1", "text": "", "metadata": {"history": ["x"]}}', 'expected "history" to be'),
        ("qrels/test.tsv", "q1\td1\t1\nq1 d1 1\n", "line 2: expected query id, document id and a relevance"),
        ("qrels/test.tsv", "q1\td1\t1\t4\n", "line 1: expected three cells"),
    ],
)
def test_what_is_wrong_is_named(beir: Path, file: str, text: str, said: str) -> None:
    (beir / file).write_text(text)
    with pytest.raises(BadQuestionSet, match=said):
        load(beir)


def test_a_file_of_another_encoding_is_named(beir: Path) -> None:
    (beir / "corpus.jsonl").write_bytes(b'{"_id": "d1", "text": "x"}\n{"_id": "d2", "text": "\xe9"}\n')
    with pytest.raises(BadQuestionSet, match=r"corpus\.jsonl: expected UTF-8 .* at byte"):
        load(beir)


def test_the_sample_that_ships_is_a_valid_set_with_every_document_asked_about() -> None:
    questions = load(SAMPLE)
    assert len(questions.questions) >= 25
    expected = {path for item in questions.questions for path in item.expected}
    assert expected == {one.id for one in questions.documents}


def test_markdown_may_lie_beside_its_questions(tmp_path: Path) -> None:
    (tmp_path / "refunds.md").write_text("# Refunds\n")
    (tmp_path / "questions.jsonl").write_text(lines({"question": "refunds?", "expected": "refunds.md"}))
    [question] = load(tmp_path).questions
    assert (question.id, set(question.expected)) == ("refunds?", {"refunds.md"})


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([{"question": "x", "expected": "gone.md"}], r"line 1: 'gone\.md' is expected"),
        ([{"question": "x", "expected": []}], 'expected "expected" to be a path or a list of paths'),
        ([{"question": "x", "expected": ["a.md"]}] * 2, "line 2: the same question was asked before"),
        ([[]], "expected an object"),
        ([{"question": 1}], "expected an object"),
    ],
)
def test_a_wrong_question_is_named(tmp_path: Path, records: list[object], said: str) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("a")
    (tmp_path / "questions.jsonl").write_text(lines(*records))
    with pytest.raises(BadQuestionSet, match=said):
        load(tmp_path / "questions.jsonl")


def test_a_folder_that_is_no_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadQuestionSet, match="neither"):
        load(tmp_path)
