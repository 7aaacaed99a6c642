"""Each arm is asked through the real index; documents are ranked by their best passage."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from connectors.message import Scope
from grounding.evaluation import QuestionSet, evaluate_retrieval, score
from grounding.evaluation.datasets import BadQuestionSet, load
from grounding.evaluation.retrieval import BM25, DENSE, FUSED, RERANKED
from grounding.retrieval import RerankUnavailable
from grounding.retrieval.qdrant_edge import EmbeddedIndex
from tests.emulators.embedder import HashedWords


def words(text: str) -> int:
    return len(text.split())


@pytest.fixture
def open_index(tmp_path: Path) -> Callable[[], EmbeddedIndex]:
    embedder = HashedWords()
    return lambda: EmbeddedIndex(tmp_path / "index", embedder.name, embedder.dimensions, timeout_seconds=10)


def beir(folder: Path, texts: dict[str, str], asked: dict[str, tuple[str, str]]) -> QuestionSet:
    """A set of documents by id, and questions by id with the document that each expects."""
    (folder / "qrels").mkdir()
    corpus = [{"_id": name, "title": "", "text": text} for name, text in texts.items()]
    queries = [{"_id": name, "text": text} for name, (text, _) in asked.items()]
    (folder / "corpus.jsonl").write_text("\n".join(map(json.dumps, corpus)))
    (folder / "queries.jsonl").write_text("\n".join(map(json.dumps, queries)))
    rows = "".join(f"{name}\t{expected}\t1\n" for name, (_, expected) in asked.items())
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + rows)
    return load(folder)


class Backwards:
    """A reranker that turns the order round, or fails."""

    name = "backwards"

    def __init__(self, candidates: int = 2, why: str = "") -> None:
        self.candidates = candidates
        self.why = why
        self.asked: list[str] = []

    async def scores(self, scope: Scope, query: str, texts: Sequence[str]) -> list[float]:
        if self.why:
            raise RerankUnavailable("away", why=self.why, retryable=True)
        self.asked.append(query)
        return [float(at) for at in range(len(texts))]


async def test_each_arm_is_asked_each_question(tmp_path: Path, open_index: Callable[[], EmbeddedIndex]) -> None:
    questions = beir(tmp_path, {"d1": "refunds in thirty days", "d2": "the kayak"}, {"q": ("refunds", "d1")})
    told: list[tuple[str, int, int]] = []
    found = await evaluate_retrieval(
        questions, HashedWords(), words, open_index, progress=lambda *news: told.append(news)
    )
    assert list(found.arms) == [BM25, DENSE, FUSED]
    assert found.main == FUSED
    assert all(score(list(rankings.values())).mrr == 1.0 for rankings in found.arms.values())
    assert (found.arms[FUSED]["q"].latency_ms or 0) > 0
    assert told == [("documents", 2, 2), ("questions", 1, 1)]


async def test_a_question_is_asked_with_what_was_said_before_it(
    tmp_path: Path, open_index: Callable[[], EmbeddedIndex]
) -> None:
    """The window of the office is found alone, that of the refunds after talk of them."""
    texts = {"office": "the window of the office", "refunds": "refunds have a window of thirty long and many days"}
    # Of two passages alone, scores say no more than their order does: arms that disagree would tie.
    texts |= {"kayak": "a kayak and its paddle", "pool": "the pool opens at noon"}
    questions = beir(tmp_path, texts, {"q": ("the window?", "refunds")})
    said = (("user", "how do refunds work?"), ("agent", "the office window knows"))
    after = replace(questions, questions=(replace(questions.questions[0], history=said),))
    reranker = Backwards()

    found = await evaluate_retrieval(after, HashedWords(), words, open_index, reranker=reranker)

    assert list(found.arms) == [BM25, DENSE, FUSED, RERANKED]
    first = {arm: rankings["q"].found[0] for arm, rankings in found.arms.items()}
    assert (first[BM25], first[FUSED]) == ("office", "refunds")
    assert reranker.asked == ["how do refunds work?\nthe window?"]


async def test_a_question_is_put_to_its_own_workspace_only(
    tmp_path: Path, open_index: Callable[[], EmbeddedIndex]
) -> None:
    (tmp_path / "qrels").mkdir()
    corpus = [{"_id": name, "text": "refunds", "metadata": {"workspace": name}} for name in ("one", "two")]
    (tmp_path / "corpus.jsonl").write_text("\n".join(map(json.dumps, corpus)))
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "refunds", "metadata": {"workspace": "two"}}')
    (tmp_path / "qrels" / "test.tsv").write_text("q\ttwo\t1\n")
    found = await evaluate_retrieval(load(tmp_path), HashedWords(), words, open_index)
    assert [rankings["q"].found for rankings in found.arms.values()] == [["two"]] * len(found.arms)


async def test_ten_documents_are_found_behind_one_that_fills_every_shallow_search(
    tmp_path: Path, open_index: Callable[[], EmbeddedIndex]
) -> None:
    long = "\n\n".join(f"# Part {n}\n\nrefunds refunds " + "filler " * 250 for n in range(150))
    texts = {"long": long} | {f"d{n}": f"{'filler ' * 20 * n} refunds" for n in range(1, 13)}
    found = await evaluate_retrieval(beir(tmp_path, texts, {"q": ("refunds", "d12")}), HashedWords(), words, open_index)
    for arm in (BM25, DENSE, FUSED):
        assert len(found.arms[arm]["q"].documents) == 13, arm
        costs = dict(found.arms[arm]["q"].documents)
        assert costs["long"] == len(long) // 4 + 1
    assert sum(document == "long" for document, _ in found.arms[BM25]["q"].passages) > 100


async def test_the_reranker_has_an_arm_of_its_own_which_counts(
    tmp_path: Path, open_index: Callable[[], EmbeddedIndex]
) -> None:
    texts = {"d1": "refunds refunds", "d2": "refunds and " + "more " * 9, "d3": "refunds of " + "many " * 50}
    questions = beir(tmp_path, texts, {"q": ("refunds", "d2")})
    found = await evaluate_retrieval(questions, HashedWords(), words, open_index, reranker=Backwards())
    fused = found.arms[FUSED]["q"].found
    assert found.main == RERANKED
    assert found.arms[RERANKED]["q"].found == [fused[1], fused[0], fused[2]]
    assert found.lost == {}


async def test_a_reranker_that_fails_is_counted_and_not_hidden(
    tmp_path: Path, open_index: Callable[[], EmbeddedIndex]
) -> None:
    asked = {"q1": ("refunds", "d1"), "q2": ("kayak", "d2")}
    questions = beir(tmp_path, {"d1": "refunds", "d2": "kayak"}, asked)
    found = await evaluate_retrieval(questions, HashedWords(), words, open_index, reranker=Backwards(why="timeout"))
    assert found.lost == {("rerank", "timeout"): 2}
    assert [one.found for one in found.arms[RERANKED].values()] == [one.found for one in found.arms[FUSED].values()]


async def test_a_set_without_questions_is_refused(tmp_path: Path) -> None:
    questions = beir(tmp_path, {"d1": "refunds"}, {})
    with pytest.raises(BadQuestionSet, match="no question"):
        await evaluate_retrieval(questions, HashedWords(), words, lambda: pytest.fail("opened"))
