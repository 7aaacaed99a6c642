"""Question sets are read, or refused with the file, the line and what was expected; and what they are scored with."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import runtime
from connectors.message import Scope
from grounding.evaluation import (
    BadQuestionSet,
    Conversation,
    ConversationQuestion,
    MemoryAnswer,
    Message,
    QuestionSet,
    bootstrap_intervals,
    evaluate_retrieval,
    load,
    load_conversations,
    load_messages,
    score,
    score_memory,
)
from grounding.evaluation.memory import stands_in
from grounding.evaluation.metrics import Ranking, area_under_curve
from grounding.evaluation.retrieval import BM25, DENSE, FUSED, RERANKED
from grounding.evaluation.strategy import score_strategy
from grounding.pipeline import Decision
from grounding.retrieval import Found, Hit, Kind, Passage, RerankUnavailable
from grounding.retrieval.qdrant_edge import EmbeddedIndex
from grounding.strategy import Choice, Strategy, choose
from tests.emulators.embedder import HashedWords

SAMPLE = Path(runtime.__file__).parent / "sample"


def lines(*records: object) -> str:
    return "\n".join(json.dumps(record) for record in records)


# Question sets for retrieval


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


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("corpus.jsonl", '{"_id": "d1", "text": "x"}\n{', "corpus.jsonl, line 2: no JSON"),
        ("corpus.jsonl", '{"_id": "d1"}', r'line 1: expected an object with "_id" and "text"'),
        ("corpus.jsonl", '{"_id": "d1", "text": 7}', 'line 1: expected "text" to be a text, got int'),
        ("corpus.jsonl", '{"_id": "a", "text": ""}\n\n{"_id": "a", "text": ""}', "line 3: the id 'a' was given before"),
        ("corpus.jsonl", '{"_id": [], "text": ""}', 'expected "_id" to be a text or a whole number'),
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


# Figures of retrieval


def ranking(*found: str, gold: str, latency_ms: float | None = 1.0) -> Ranking:
    priced = tuple((one, 300) for one in found)
    return Ranking(priced, priced, frozenset(gold), latency_ms)


def test_figures_are_the_textbooks() -> None:
    scores = score([ranking(*"abcd", gold="bdx")])
    assert scores.recall_at_5 == pytest.approx(2 / 3)
    best = 1 + 1 / math.log2(3) + 1 / math.log2(4)
    assert scores.ndcg_at_10 == pytest.approx((1 / math.log2(3) + 1 / math.log2(5)) / best)
    assert scores.mrr == pytest.approx(1 / 2)


def test_a_budget_ends_before_the_item_that_would_pass_it_and_an_item_is_found_with_its_first_piece() -> None:
    found = score([Ranking((("long", 9000), ("b", 10)), (("long", 90), ("long", 90), ("b", 10)), frozenset("b"))])
    assert (found.recall_at_1000_tokens, found.recall_at_1000_tokens_of_passages) == (0.0, 1.0)


def test_scores_are_means_over_questions_and_percentiles_are_values_that_occurred() -> None:
    scores = score([ranking("a", gold="a"), ranking("b", gold="a", latency_ms=3.0)])
    assert (scores.questions, scores.recall_at_5, scores.ndcg_at_10, scores.mrr) == (2, 0.5, 0.5, 0.5)
    assert (scores.recall_at_1000_tokens, scores.p50_ms, scores.p95_ms) == (0.5, 1.0, 3.0)
    assert score([ranking("a", gold="a", latency_ms=None)]).p95_ms is None


@pytest.mark.parametrize("rankings", [[], [ranking("a", gold="")]])
def test_nothing_to_find_cannot_be_scored(rankings: list[Ranking]) -> None:
    with pytest.raises(ValueError, match=r"there must be|at least one"):
        score(rankings)


@given(st.lists(st.sampled_from("abcdefgh"), unique=True), st.sets(st.sampled_from("abcdefgh"), min_size=1))
def test_figures_lie_between_none_and_all(found: list[str], gold: set[str]) -> None:
    some = score([ranking(*found, gold="".join(gold))])
    for figure in (some.recall_at_5, some.ndcg_at_10, some.mrr):
        assert 0.0 <= figure <= 1.0 + 1e-9
    assert score([ranking(*sorted(gold), gold="".join(gold))]).ndcg_at_10 == pytest.approx(1.0)


def words(text: str) -> int:
    return len(text.split())


@pytest.fixture
def open_index(tmp_path: Path) -> Callable[[], EmbeddedIndex]:
    embedder = HashedWords()
    return lambda: EmbeddedIndex(tmp_path / "index", embedder.name, embedder.dimensions, timeout_seconds=10)


def beir_folder(folder: Path, texts: dict[str, str], asked: dict[str, tuple[str, str]]) -> QuestionSet:
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


async def test_a_question_is_asked_with_what_was_said_before_it(
    tmp_path: Path, open_index: Callable[[], EmbeddedIndex]
) -> None:
    """The window of the office is found alone, that of the refunds after talk of them."""
    texts = {"office": "the window of the office", "refunds": "refunds have a window of thirty long and many days"}
    # Of two passages alone, scores say no more than their order does: arms that disagree would tie.
    texts |= {"kayak": "a kayak and its paddle", "pool": "the pool opens at noon"}
    questions = beir_folder(tmp_path, texts, {"q": ("the window?", "refunds")})
    said = (("user", "how do refunds work?"), ("agent", "the office window knows"))
    after = replace(questions, questions=(replace(questions.questions[0], history=said),))
    reranker = Backwards()

    found = await evaluate_retrieval(after, HashedWords(), words, open_index, reranker=reranker)

    assert list(found.arms) == [BM25, DENSE, FUSED, RERANKED]
    first = {arm: rankings["q"].found[0] for arm, rankings in found.arms.items()}
    assert (first[BM25], first[FUSED]) == ("office", "refunds")
    # Once for the ranking, and once for the prompt.
    assert reranker.asked == ["how do refunds work?\nthe window?"] * 2


async def test_what_stands_in_the_prompt_is_what_the_strategy_lets_in(
    tmp_path: Path, open_index: Callable[[], EmbeddedIndex]
) -> None:
    """One question leads to its document; a greeting leads to none, however well it is found."""
    texts = {"office": "the window of the office", "hello": "hello and welcome", "pool": "the pool opens at noon"}
    questions = beir_folder(
        tmp_path, texts, {"q": ("when does the pool open at noon?", "pool"), "h": ("hello", "hello")}
    )

    found = await evaluate_retrieval(questions, HashedWords(), words, open_index)

    assert found.prompts == {"q": frozenset({"pool"}), "h": frozenset()}
    assert found.in_prompt() == (0.5, 1.0)


def test_the_area_under_the_curve_is_the_chance_of_a_right_order() -> None:
    assert area_under_curve([2.0, 3.0], [1.0, 2.5]) == 0.75
    assert area_under_curve([1.0], [1.0]) == 0.5
    with pytest.raises(ValueError, match="both kinds"):
        area_under_curve([], [1.0])


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
    found = await evaluate_retrieval(
        beir_folder(tmp_path, texts, {"q": ("refunds", "d12")}), HashedWords(), words, open_index
    )
    for arm in (BM25, DENSE, FUSED):
        assert len(found.arms[arm]["q"].documents) == 13, arm
        costs = dict(found.arms[arm]["q"].documents)
        assert costs["long"] == len(long) // 4 + 1
    assert sum(document == "long" for document, _ in found.arms[BM25]["q"].passages) > 100


async def test_the_reranker_has_an_arm_of_its_own_which_counts(
    tmp_path: Path, open_index: Callable[[], EmbeddedIndex]
) -> None:
    texts = {"d1": "refunds refunds", "d2": "refunds and " + "more " * 9, "d3": "refunds of " + "many " * 50}
    questions = beir_folder(tmp_path, texts, {"q": ("refunds", "d2")})
    found = await evaluate_retrieval(questions, HashedWords(), words, open_index, reranker=Backwards())
    fused = found.arms[FUSED]["q"].found
    assert found.main == RERANKED
    assert found.arms[RERANKED]["q"].found == [fused[1], fused[0], fused[2]]
    assert found.lost == {}


async def test_a_reranker_that_fails_is_counted_and_not_hidden(
    tmp_path: Path, open_index: Callable[[], EmbeddedIndex]
) -> None:
    asked = {"q1": ("refunds", "d1"), "q2": ("kayak", "d2")}
    questions = beir_folder(tmp_path, {"d1": "refunds", "d2": "kayak"}, asked)
    found = await evaluate_retrieval(questions, HashedWords(), words, open_index, reranker=Backwards(why="timeout"))
    assert found.lost == {("rerank", "timeout"): 2}
    assert [one.found for one in found.arms[RERANKED].values()] == [one.found for one in found.arms[FUSED].values()]


async def test_a_set_without_questions_and_a_folder_that_is_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadQuestionSet, match="neither"):
        load(tmp_path)
    questions = beir_folder(tmp_path, {"d1": "refunds"}, {})
    with pytest.raises(BadQuestionSet, match="no question"):
        await evaluate_retrieval(questions, HashedWords(), words, lambda: pytest.fail("opened"))


# Long conversations


def said(name: str, text: str, session: int = 1, date: str = "", speaker: str = "Ann") -> dict[str, Any]:
    metadata = {"workspace": "c", "session": session, "date": date, "speaker": speaker}
    return {"_id": name, "text": text, "metadata": metadata}


def conversation_set(folder: Path, *messages: dict[str, Any], evidence: str = "m1") -> Path:
    """A set in which one question is asked."""
    (folder / "qrels").mkdir()
    (folder / "corpus.jsonl").write_text("".join(json.dumps(one) + "\n" for one in messages))
    question = {"_id": "q", "text": "Which boat?", "metadata": {"workspace": "c", "category": "open"}}
    (folder / "queries.jsonl").write_text(json.dumps(question) + "\n")
    (folder / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\nq\t{evidence}\t1\n")
    return folder


def test_messages_are_said_one_after_the_other_on_the_dates_of_their_sessions(tmp_path: Path) -> None:
    [conversation] = load_conversations(
        conversation_set(
            tmp_path,
            said("m1", "Ann: the red boat", 1, "1:56 pm on 8 May, 2023"),
            said("m2", "assistant: noted", 1, "1:56 pm on 8 May, 2023", "assistant"),
            said("m3", "a new day", 2, "May-15-2023"),
            said("m4", "the same day again", 3, "May-15-2023"),
            said("m5", "nobody knows when", 4),
        )
    )
    assert [(one.speaker, one.text) for one in conversation.said[:2]] == [
        ("Ann", "the red boat"),
        ("assistant", "noted"),
    ]
    assert [one.at.isoformat(timespec="seconds") for one in conversation.said] == [
        "2023-05-08T13:56:00+00:00",
        "2023-05-08T13:56:30+00:00",
        "2023-05-15T00:00:00+00:00",
        "2023-05-15T00:00:30+00:00",
        "2023-05-15T00:01:00+00:00",
    ]
    assert conversation.asked == (ConversationQuestion("q", "Which boat?", "open", frozenset({"m1"})),)


def test_a_set_that_asks_nothing_about_its_conversations_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadQuestionSet, match=r"corpus\.jsonl"):
        load_conversations(tmp_path)
    with pytest.raises(BadQuestionSet, match="no question with evidence"):
        load_conversations(conversation_set(tmp_path, said("m1", "the red boat"), evidence="elsewhere"))


def test_a_message_stands_in_a_prompt_with_three_fifths_of_its_content_words() -> None:
    told = frozenset({"red", "boat", "harbour"})

    assert stands_in("The red boats, in the harbour of Kiel, sank", told)
    assert not stands_in("The red boat of Kiel sank", told)
    assert not stands_in("We were there", told)


def test_what_was_twisted_on_purpose_is_scored_apart() -> None:
    found = _recalled("open", ranked=("m1",), told="")
    twisted = _recalled("adversarial", ranked=("m2",), told="")

    result = score_memory([Conversation("c", (), ())], [found, twisted])

    assert (result.scores.recall_at_10, result.with_adversarial.recall_at_10) == (1.0, 0.5)
    assert sorted(result.categories) == ["adversarial", "open"]


def test_the_intervals_of_a_set_hold_its_figures_and_leave_out_what_is_scored_apart() -> None:
    found = [_recalled("open", ranked=("m1",) if number % 4 else (), told="") for number in range(40)]
    twisted = [_recalled("adversarial", ranked=("m2",), told="") for _ in range(40)]

    result = score_memory([Conversation("c", (), ())], [*found, *twisted])

    low, high = result.intervals["recall_at_10"]
    assert 0.5 < low < result.scores.recall_at_10 < high < 1.0  # a standard deviation is .07
    assert result.intervals["recall_at_1000_tokens"] == (0.0, 0.0)


def _recalled(category: str, ranked: tuple[str, ...], told: str) -> MemoryAnswer:
    return MemoryAnswer(
        ConversationQuestion(category, "Which boat?", category, frozenset({"m1"})), ranked, told, 0, 0, 1.0, 0, 0
    )


def test_an_interval_narrows_with_more_samples_and_is_the_same_each_time() -> None:
    def interval(count: int) -> tuple[float, float]:
        ((low, high),) = bootstrap_intervals([0.0, 1.0] * count, lambda found: [sum(found) / len(found)])
        return low, high

    (low, high), (closer_low, closer_high) = interval(10), interval(250)

    assert low < closer_low < 0.5 < closer_high < high
    assert interval(10) == (low, high)
    with pytest.raises(ValueError, match="something to draw from"):
        interval(0)


# Labelled messages for the strategy

QMD = Decision(Choice(Strategy.QMD, "workspace_retrieval_cue", wants_documents=True))
NONE = Decision(Choice(Strategy.NONE, "no_retrieval_cue"))


def relevant(decision: Decision, relevance: float) -> Decision:
    """*decision* after a search whose best passage has this *relevance*."""
    hit = Hit(Passage("1", Kind.DOCUMENT, "a.md", "…"), 1.0)
    return decision._replace(found=Found("a", (), (hit,), (relevance,), 1))


def test_a_file_says_what_it_says_and_the_rest_is_not_scored(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text(
        lines(
            {"text": "hi", "strategy": "none", "reason": "small_talk"},
            {"text": "and?", "needs_history": True, "history": [{"role": "user", "text": "what is it?"}]},
        )
    )
    messages = load_messages(tmp_path / "m.jsonl")
    scores = score_strategy(messages, [Decision(choose(message.text)) for message in messages])

    assert (scores.accuracy, scores.reason_accuracy, scores.needs_documents) == (1.0, 1.0, None)
    assert messages[1].history[0].text == "what is it?"
    assert scores.needs_history is not None
    assert scores.needs_history.recall == 0.0


def test_a_folder_labels_in_metadata_and_unanswerable_questions_do_not_count(tmp_path: Path) -> None:
    qmd = {"label": "qmd", "needs_documents": True, "needs_history": False}
    none = {"label": "none", "needs_documents": False, "needs_history": False}
    (tmp_path / "queries.jsonl").write_text(
        lines(
            {"_id": "1", "text": "a", "metadata": {**qmd, "gold_in_pool": True}},
            {"_id": "2", "text": "b", "metadata": {**qmd, "gold_in_pool": False}},
            {"_id": "3", "text": "c", "metadata": none},
        )
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


def test_relevance_is_measured_against_what_needs_no_document_and_what_none_answers() -> None:
    answered, needless = Message("a", needs_documents=True), Message("c", needs_documents=False)
    unanswered = Message("b", needs_documents=True, counts_documents=False)
    decided = [relevant(QMD, 2.0), relevant(NONE, -1.0), relevant(NONE, 1.0), relevant(QMD, 3.0), QMD]
    scores = score_strategy([answered, answered, needless, unanswered, needless], decided)

    assert (scores.needless_auc, scores.unanswered_auc) == (0.5, 0.0)
    assert scores.intervals["needless_auc"].low == 0.0
    assert score_strategy([answered], [QMD]).needless_auc is None


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
