"""Scores retrieval on a set of questions, through the real index, in a folder of its own.

Each question is put to each arm. Documents are ranked by their best passage. What is timed is a search for `ASKED`
passages, with the embedding of the question; deeper ones follow untimed, until enough different documents are there.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any, get_args

from connectors.message import AgentRuntimeError, ConversationKey, Scope
from grounding.documents import is_document_path, passage_of_chunk
from grounding.evaluation.datasets import Asked, BadQuestionSet, Conversation, Question, QuestionSet, Text, rough_tokens
from grounding.evaluation.metrics import Ranking, ndcg_at, percentile, recall_at
from grounding.pipeline import Deciding
from grounding.prompt_input import DegradedBlock, TailEntry
from grounding.retrieval import (
    Chunk,
    CountTokens,
    Deeper,
    Embedder,
    Entry,
    Hit,
    Kind,
    Passage,
    PassageIndex,
    Reranker,
    Search,
    Sizes,
    SparseVector,
    Vector,
    chunk_document,
    encode_chunk,
    encoded,
    shorten,
    term_set,
)
from grounding.strategy import ASSISTANT, LANGUAGES, Choice, Cues, Reason, Strategy, spoken

BM25 = "bm25"
DENSE = "dense"
RRF = "rrf, k=60"
"""Plain reciprocal rank fusion of the first `RRF_DEPTH` passages of both arms with equal weights, for reference: what
Cormack, Clarke and Büttcher (SIGIR 2009) propose, and most hybrid searches do."""
ALONE = "fused, alone"
"""As `FUSED`, of the question as it stands. Only for sets in which something was said before some questions."""
QUICK = "fused, quick"
"""As `FUSED`, without the second look by deeper vectors. Only where there is one."""
FUSED = "fused"
"""What turns use: with what people said before the question, where the set has it."""
RERANKED = "reranked"
ASKED = 10
ENOUGH_DOCUMENTS = 50
ENOUGH_TOKENS = 1500
DEPTHS = (100, 400, 1600)
"""How many passages are asked for until enough documents are among them: one may have hundreds."""
SHOWN = 3
RRF_K = 60
RRF_DEPTH = 100
GROUP = 64
"""Documents that are indexed together."""

Progress = Callable[[str, int, int], None]
"""Hears what is done, how much of it, and of how many."""
OpenIndex = Callable[[], PassageIndex]
Ask = Callable[[int], Awaitable[list[Hit]]]


@dataclass(slots=True)
class Evaluation:
    """What was found. ``arms`` has for each arm, in the order in which they are shown, a ranking for each question by
    its id. ``lost`` counts what failed on the way, by what it was and why; the others' results stand."""

    arms: dict[str, dict[str, Ranking]]
    chunks: int = 0
    lost: dict[tuple[str, str], int] = field(default_factory=dict)
    first: dict[str, list[Hit]] = field(default_factory=dict)
    """The first `SHOWN` hits of `main`, by question."""

    @property
    def main(self) -> str:
        """The arm that turns use with the settings in force."""
        return list(self.arms)[-1]


@asynccontextmanager
async def _opened(open_index: OpenIndex) -> AsyncIterator[PassageIndex]:
    index = open_index()
    try:
        await index.ensure()
        yield index
    finally:
        await index.close()


async def evaluate(
    questions: QuestionSet,
    embedder: Embedder,
    count: CountTokens,
    open_index: OpenIndex,
    *,
    reranker: Reranker | None = None,
    deep: Deeper | None = None,
    sizes: Sizes | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Evaluation:
    """Index the set with *open_index* (an empty index, which is closed at the end), with deeper vectors where *deep*
    makes them, and put each question to each arm.

    Raises `BadQuestionSet` for a set without questions, `IndexUnavailable` and `EmbedderUnavailable`.
    """
    if not questions.questions:
        raise BadQuestionSet("the set has no question with an expected document")
    scopes = _scopes(questions)
    async with _opened(open_index) as index:
        chunks = await _fill(index, questions, scopes, embedder, deep, count, sizes, progress)
        run = _Run(index, questions, scopes, embedder, reranker, deep)
        evaluation = Evaluation({arm: {} for arm in run.arms}, chunks, run.lost, run.first)
        await embedder.embed_query("warm up")
        for done, question in enumerate(questions.questions, start=1):
            for arm, ranking in (await run.ask(question)).items():
                evaluation.arms[arm][question.id] = ranking
            progress("questions", done, len(questions.questions))
        return evaluation


def _scopes(questions: QuestionSet) -> dict[str, Scope]:
    names = {one.workspace for one in questions.known.values()} | {one.workspace for one in questions.questions}
    return {name: Scope(f"set-{number}") for number, name in enumerate(sorted(names))}


async def _fill(
    index: PassageIndex,
    questions: QuestionSet,
    scopes: dict[str, Scope],
    embedder: Embedder,
    deep: Deeper | None,
    count: CountTokens,
    sizes: Sizes | None,
    progress: Progress,
) -> int:
    """Index all documents; how many chunks they have."""
    total, done, chunks = len(questions.known), 0, 0
    documents = questions.documents()
    while group := await asyncio.to_thread(lambda: list(islice(documents, GROUP))):
        cut, texts = await asyncio.to_thread(_cut, group, count, sizes)
        vectors = await embedder.embed_documents(texts)
        deeper: Sequence[Vector | None] = [None] * len(texts)
        if deep is not None:
            deeper = await deep.embed_documents(texts)
        entries = await asyncio.to_thread(_entries, cut, texts, vectors, deeper)
        for workspace, batch in entries.items():
            await index.upsert(scopes[workspace], batch)
        done, chunks = done + len(group), chunks + len(cut)
        progress("documents", done, total)
    return chunks


def _cut(group: Sequence[Text], count: CountTokens, sizes: Sizes | None) -> tuple[list[tuple[str, Chunk]], list[str]]:
    """The chunks of *group* with their workspaces, and what of each is searched."""
    cut = [
        (document.workspace, chunk)
        for document in group
        for chunk in chunk_document(document.path, document.text, count, sizes)
    ]
    return cut, [_searched(chunk.indexed_text, chunk.path) for _, chunk in cut]


def _entries(
    cut: Sequence[tuple[str, Chunk]], texts: Sequence[str], vectors: Sequence[Vector], deeper: Sequence[Vector | None]
) -> dict[str, list[Entry]]:
    """What the index keeps of the chunks, by workspace."""
    entries: dict[str, list[Entry]] = {}
    for (workspace, chunk), text, vector, deep in zip(cut, texts, vectors, deeper, strict=True):
        entry = Entry(passage_of_chunk(chunk), vector, encode_chunk(text), deep)
        entries.setdefault(workspace, []).append(entry)
    return entries


def _searched(text: str, path: str) -> str:
    """*text* without the title that a plain file takes from its name, which in a BEIR set is a bare number."""
    return text.removeprefix(path.removesuffix(".txt") + "\n") if path.endswith(".txt") else text


class _LastQuery:
    """An embedder that remembers the last question, so that looking deeper costs no provider a second call."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._last: tuple[Sequence[str], list[Vector]] | None = None
        self.name, self.dimensions = embedder.name, embedder.dimensions

    def forget(self) -> None:
        self._last = None

    async def embed_documents(self, texts: Sequence[str]) -> list[Vector]:
        return await self._embedder.embed_documents(texts)

    async def embed_query(self, text: str) -> Vector:
        return (await self.embed_queries([text]))[0]

    async def embed_queries(self, texts: Sequence[str]) -> list[Vector]:
        if self._last is None or self._last[0] != texts:
            self._last = (texts, await self._embedder.embed_queries(texts))
        return self._last[1]


class _Run:
    """Puts questions to the arms of one index."""

    def __init__(
        self,
        index: PassageIndex,
        questions: QuestionSet,
        scopes: dict[str, Scope],
        embedder: Embedder,
        reranker: Reranker | None,
        deep: Deeper | None,
    ) -> None:
        self._index = index
        self._known = questions.known
        self._scopes = scopes
        self._embedder = _LastQuery(embedder)
        self._fused = Search(index, self._embedder, deep=deep)
        self._quick = Search(index, self._embedder) if deep is not None and index.deepens else None
        self._reranked = Search(index, self._embedder, reranker=reranker, deep=deep) if reranker else None
        self._candidates = reranker.candidates if reranker else 0
        alone = any(question.history for question in questions.questions)
        told = {ALONE: alone, QUICK: self._quick is not None, FUSED: True, RERANKED: reranker is not None}
        self.arms = (BM25, DENSE, RRF, *(arm for arm, is_told in told.items() if is_told))
        self.lost: dict[tuple[str, str], int] = {}
        self.first: dict[str, list[Hit]] = {}

    async def ask(self, question: Question) -> dict[str, Ranking]:
        """What each arm finds. The fused one goes first, so that its time holds what a first question costs."""
        scope, found = self._scopes[question.workspace], {}
        ask = self._fusing(self._fused, question.text, scope, _earlier(question))
        found[FUSED], fused = await self._ranked(question, ask)
        self.first[question.id] = fused[:SHOWN]
        if self._reranked is not None:
            found[RERANKED], reranked = await self._ranked_again(question, scope, self._reranked, ask)
            self.first[question.id] = reranked[:SHOWN]
        if ALONE in self.arms:
            found[ALONE], _ = await self._ranked(question, self._fusing(self._fused, question.text, scope))
        if self._quick is not None:
            quick = self._fusing(self._quick, question.text, scope, _earlier(question))
            found[QUICK], _ = await self._ranked(question, quick)
        found[BM25], sparse = await self._ranked(question, self._alone(BM25, question.text, scope))
        found[DENSE], dense = await self._ranked(question, self._alone(DENSE, question.text, scope))
        both = reciprocal_rank_fusion([sparse[:RRF_DEPTH], dense[:RRF_DEPTH]])
        found[RRF] = self._ranking(question, both, None)
        return {arm: found[arm] for arm in self.arms}

    def _fusing(self, search: Search, text: str, scope: Scope, earlier: Sequence[str] = ()) -> Ask:
        async def ask(top_k: int) -> list[Hit]:
            return await search.search(scope, text, top_k, earlier=earlier)

        return ask

    def _alone(self, arm: str, text: str, scope: Scope) -> Ask:
        async def ask(top_k: int) -> list[Hit]:
            query = shorten(text)
            if not query.strip():
                return []
            sparse = await encoded(query) if arm == BM25 else None
            dense = await self._embedder.embed_query(query) if arm == DENSE else None
            return await self._index.search(scope, Kind.DOCUMENT, dense, sparse, top_k)

        return ask

    async def _ranked(self, question: Question, ask: Ask) -> tuple[Ranking, list[Hit]]:
        self._embedder.forget()
        began = time.perf_counter()
        hits = await ask(ASKED)
        took = (time.perf_counter() - began) * 1000
        hits = await self._deeper(hits, ask)
        return self._ranking(question, hits, took), hits

    async def _ranked_again(
        self, question: Question, scope: Scope, search: Search, fused: Ask
    ) -> tuple[Ranking, list[Hit]]:
        """The reranker is asked once: what it does not see follows in the fused order."""
        self._embedder.forget()
        lost: list[DegradedBlock] = []
        began = time.perf_counter()
        hits = await search.search(scope, question.text, self._candidates, lost=lost, earlier=_earlier(question))
        took = (time.perf_counter() - began) * 1000
        for part in lost:
            self.lost[part.block, part.why] = self.lost.get((part.block, part.why), 0) + 1
        hits = await self._deeper(hits, fused)
        return self._ranking(question, hits, took), hits

    async def _deeper(self, hits: list[Hit], ask: Ask) -> list[Hit]:
        """*hits*, and what a deeper search finds behind them. Their own order stays what a shallow search says."""
        found = {(hit.passage.source, hit.passage.id): hit for hit in hits}
        for depth in DEPTHS:
            more = await ask(depth)
            for hit in more:
                found.setdefault((hit.passage.source, hit.passage.id), hit)
            if len(more) < depth or _is_enough(found.values()):
                break
        return list(found.values())

    def _ranking(self, question: Question, hits: Iterable[Hit], took: float | None) -> Ranking:
        passages = [(self._known[hit.passage.source], hit.passage) for hit in hits]
        documents = {document.id: document.tokens for document, _ in passages}
        return Ranking(
            tuple(documents.items())[:ENOUGH_DOCUMENTS],
            tuple((document.id, rough_tokens(passage.text)) for document, passage in passages),
            question.expected,
            took,
        )


def _earlier(question: Question) -> list[str]:
    return [text for role, text in question.history if role == "user"]


def _is_enough(hits: Iterable[Hit]) -> bool:
    passages = [hit.passage for hit in hits]
    tokens = sum(rough_tokens(passage.text) for passage in passages)
    return len({passage.source for passage in passages}) >= ENOUGH_DOCUMENTS and tokens >= ENOUGH_TOKENS


def reciprocal_rank_fusion(arms: Sequence[Sequence[Hit]]) -> list[Hit]:
    """The hits of all *arms* by the sum of 1 / (60 + rank), ranks from 1; equal sums by source and ordinal. Pure."""
    scores: dict[str, float] = {}
    hits: dict[str, Hit] = {}
    for arm in arms:
        for rank, hit in enumerate(arm, start=1):
            key = f"{hit.passage.source}\0{hit.passage.id}"
            hits.setdefault(key, hit)
            scores[key] = scores.get(key, 0.0) + 1 / (RRF_K + rank)
    order = sorted(scores, key=lambda key: (-scores[key], hits[key].passage.source, hits[key].passage.ordinal))
    return [hits[key] for key in order]


# ---- trial ----
#
# Fills an index of its own with the documents of a question set, to try things on them.


"""Documents that are embedded together."""


class BadDocuments(AgentRuntimeError):
    """Documents that cannot be read; the text says what was expected."""


def load_documents(path: Path) -> dict[str, str]:
    """Text by name: of a ``corpus.jsonl`` (``_id``, ``title``, ``text``), of a folder with one, or of a folder of
    Markdown. Raises `BadDocuments`."""
    file = path / "corpus.jsonl" if path.is_dir() and (path / "corpus.jsonl").is_file() else path
    try:
        if file.is_dir():
            found = ((item, item.relative_to(file).as_posix()) for item in sorted(file.rglob("*")) if item.is_file())
            documents = {name: item.read_text(encoding="utf-8") for item, name in found if is_document_path(name)}
        else:
            documents = {}
            for number, line in enumerate(file.read_text(encoding="utf-8").split("\n")):
                if line.strip():
                    record = json.loads(line)
                    title = f"{record.get('title') or ''}\n\n"
                    documents[f"{number}.txt"] = f"{title}{record['text']}".strip()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadDocuments(
            f"{path} holds no documents: expected corpus.jsonl (_id, title, text) or a folder of Markdown ({error})"
        ) from error
    if not documents:
        raise BadDocuments(f"{path} holds no documents")
    return documents


async def fill(
    index: PassageIndex,
    scope: Scope,
    documents: dict[str, str],
    embedder: Embedder,
    count: CountTokens,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Index *documents* in *scope*. Raises `IndexUnavailable` and `EmbedderUnavailable`."""
    names = list(documents)
    for start in range(0, len(names), GROUP):
        group = names[start : start + GROUP]

        def cut(group: list[str] = group) -> tuple[list[Passage], list[str], list[SparseVector]]:
            chunks = [chunk for name in group for chunk in chunk_document(name, documents[name], count)]
            # A plain file's title is its name, which in a corpus.jsonl is a bare number.
            texts = [chunk.indexed_text.removeprefix(f"{Path(chunk.path).stem}\n") for chunk in chunks]
            return [passage_of_chunk(chunk) for chunk in chunks], texts, [encode_chunk(text) for text in texts]

        passages, texts, sparse = await asyncio.to_thread(cut)
        vectors = await embedder.embed_documents(texts)
        await index.upsert(scope, [Entry(*each) for each in zip(passages, vectors, sparse, strict=True)])
        progress(min(start + GROUP, len(names)), len(names))


# ---- evaluate memory ----
#
# Scores the recall of what was said in long conversations: what is found, and what of it a prompt holds. Pure.


MEMORY_TOKENS = 1000
"""What of earlier turns a prompt may hold where recall@1000tok is measured."""
STANDS = 0.6
"""A message stands in a prompt with so much of its content words."""
ADVERSARIAL = "adversarial"
"""Questions of this category are asked about the wrong speaker, on purpose; they are scored apart."""


@dataclass(frozen=True, slots=True)
class Recalled:
    """What came of one question. ``ranked`` are the messages found, the best first, however little they bear on it;
    ``told`` is what the prompt says of earlier turns, in ``tokens`` tokens, of ``turns`` turns."""

    asked: Asked
    ranked: tuple[str, ...]
    told: str
    tokens: int
    turns: int
    latency_ms: float
    elsewhere_turns: int
    elsewhere_tokens: int
    """The same for this question put to another conversation, which says nothing about it."""


@dataclass(frozen=True, slots=True)
class MemoryScores:
    """Means over questions; shares from 0 to 1."""

    questions: int
    recall_at_5: float
    recall_at_10: float
    ndcg_at_10: float
    recall_at_1000_tokens: float


@dataclass(frozen=True, slots=True)
class MemoryResult:
    """All figures of a set. ``scores`` leaves `ADVERSARIAL` questions out, ``with_adversarial`` does not."""

    conversations: int
    messages: int
    scores: MemoryScores
    with_adversarial: MemoryScores
    categories: Mapping[str, MemoryScores]
    turns: float
    """Turns in a prompt."""
    tokens: float
    elsewhere_turns: float
    elsewhere_tokens: float
    p50_ms: float
    p95_ms: float


def stands_in(text: str, told: frozenset[str]) -> bool:
    """Whether at least `STANDS` of the different content words of *text* are among *told*; never without any."""
    words = term_set(text)
    return bool(words) and len(words & told) >= STANDS * len(words)


def score_memory(conversations: Sequence[Conversation], answers: Sequence[Recalled]) -> MemoryResult:
    """The figures for *answers* to the questions about *conversations*. Raises `ValueError` where there is none."""
    if not answers:
        raise ValueError("there must be a question")
    texts = {one.id: one.text for conversation in conversations for one in conversation.said}
    figures = [(one.asked.category, _figures(one, texts)) for one in answers]
    everything = [row for _, row in figures]
    fair = [row for category, row in figures if category != ADVERSARIAL]
    return MemoryResult(
        conversations=len(conversations),
        messages=len(texts),
        scores=_means(fair or everything),
        with_adversarial=_means(everything),
        categories={
            name: _means([row for category, row in figures if category == name])
            for name in sorted({category for category, _ in figures})
        },
        turns=fmean(one.turns for one in answers),
        tokens=fmean(one.tokens for one in answers),
        elsewhere_turns=fmean(one.elsewhere_turns for one in answers),
        elsewhere_tokens=fmean(one.elsewhere_tokens for one in answers),
        p50_ms=percentile([one.latency_ms for one in answers], 0.5),
        p95_ms=percentile([one.latency_ms for one in answers], 0.95),
    )


def _figures(one: Recalled, texts: Mapping[str, str]) -> tuple[float, ...]:
    evidence, told = one.asked.evidence, term_set(one.told)
    standing = sum(stands_in(texts.get(name, ""), told) for name in evidence)
    return (
        recall_at(one.ranked, evidence, 5),
        recall_at(one.ranked, evidence, 10),
        ndcg_at(one.ranked, evidence, 10),
        standing / len(evidence),
    )


def _means(rows: Sequence[tuple[float, ...]]) -> MemoryScores:
    return MemoryScores(len(rows), *(fmean(column) for column in zip(*rows, strict=True)))


# ---- evaluate strategy ----
#
# Scores the strategy on a set of labelled messages.
#
# Two kinds of sets are read. JSON lines of ``{"text", "strategy"?, "reason"?, "needs_history"?, "needs_documents"?,
# "history"?: [{"role", "text"}], "languages"?}``; what a line does not say is not scored. Or a folder with
# ``queries.jsonl`` whose ``metadata`` says ``label``, ``needs_history``, ``needs_documents``, ``history`` and
# ``gold_in_pool``: a question whose answer is not among the documents (false) does not count for the need of documents.


LABELS = ("strategy", "reason", "needs_history", "needs_documents")
"""What may be said of a message."""
REASONS: tuple[str, ...] = get_args(Reason)
ROLES = {"user": "user", "assistant": ASSISTANT, "agent": ASSISTANT}


class BadMessages(AgentRuntimeError):
    """A set that cannot be read; the text names the file, the line and what was expected."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message and what should be decided; None where nobody said."""

    text: str
    strategy: str | None = None
    reason: str | None = None
    needs_history: bool | None = None
    needs_documents: bool | None = None
    counts_documents: bool = True
    """Whether it counts for the need of documents."""
    history: tuple[TailEntry, ...] = ()
    languages: tuple[str, ...] = ()

    @property
    def labels(self) -> tuple[str | bool | None, ...]:
        """What the set says of it."""
        return self.strategy, self.reason, self.needs_history, self.needs_documents


@dataclass(frozen=True, slots=True)
class Share:
    """Precision and recall (0 to 1) of one label or need, their harmonic mean, and how many messages have it."""

    precision: float
    recall: float
    f1: float
    count: int


@dataclass(frozen=True, slots=True)
class Wrong:
    """A message that was decided otherwise than the set says."""

    text: str
    expected: dict[str, Any]
    got: dict[str, Any]


@dataclass(frozen=True, slots=True)
class StrategyScores:
    """``accuracy``, ``macro_f1`` (over the labels that the set has), ``labels`` and ``confusion`` (expected, then
    decided) are those of the strategy; None or empty where the set does not say it."""

    messages: int
    accuracy: float | None
    macro_f1: float | None
    reason_accuracy: float | None
    labels: dict[str, Share]
    confusion: dict[str, dict[str, int]]
    needs_documents: Share | None
    needs_documents_scored: int
    needs_history: Share | None
    wrong: tuple[Wrong, ...]


def load_messages(path: Path) -> tuple[Message, ...]:
    """The set at *path*. Raises `BadMessages`."""
    file = path / "queries.jsonl" if path.is_dir() else path
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BadMessages(f"{file} cannot be read: {error}") from error
    messages = [_message(file, number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not messages:
        raise BadMessages(f"{file} holds no message")
    if not any(said is not None for one in messages for said in one.labels):
        raise BadMessages(f"{file} says nothing to score: give its lines {', '.join(LABELS)}, or some of these")
    return tuple(messages)


def _message(file: Path, number: int, line: str) -> Message:
    where = f"{file}, line {number}"
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadMessages(f"{where}: no JSON: {error}") from error
    if not isinstance(record, dict) or not isinstance(record.get("text"), str):
        raise BadMessages(f'{where}: expected an object with "text"')
    if not isinstance(record.get("metadata") or {}, dict):
        raise BadMessages(f"{where}: metadata is an object")
    said: dict[str, Any] = {**(record.get("metadata") or {}), **record}
    strategy = said.get("strategy", said.get("label"))
    if strategy not in (None, *Strategy):
        raise BadMessages(f"{where}: the strategy is none, tail or qmd, not {strategy!r}")
    bits = [said.get(need) for need in ("needs_history", "needs_documents")]
    if any(bit not in (None, True, False) for bit in bits):
        raise BadMessages(f"{where}: needs_history and needs_documents are true or false")
    if (reason := said.get("reason")) not in (None, *REASONS):
        raise BadMessages(f"{where}: the reason is one of {', '.join(REASONS)}, not {reason!r}")
    languages = said.get("languages") or []
    if not isinstance(languages, list):
        raise BadMessages(f'{where}: languages is a list, such as ["german"]')
    if unknown := [one for one in languages if not isinstance(one, str) or one not in LANGUAGES]:
        raise BadMessages(f"{where}: no cues ship for {unknown[0]!r}: use {', '.join(LANGUAGES)}")
    counts = not (bits[1] and said.get("gold_in_pool") is False)
    history = _history(where, said.get("history") or [])
    return Message(record["text"], strategy, reason, bits[0], bits[1], counts, history, tuple(languages))


def _history(where: str, given: Any) -> tuple[TailEntry, ...]:
    try:
        return tuple(TailEntry(speaker=ROLES[one["role"]], text=one["text"], turn_id="") for one in given)
    except (KeyError, TypeError, ValueError) as error:
        raise BadMessages(f'{where}: history is a list of {{"role": "user"|"assistant", "text"}}') from error


async def evaluate_strategy(
    messages: Sequence[Message],
    deciding: Deciding,
    cues: Cues,
    key: ConversationKey,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> StrategyScores:
    """Decide each of *messages*, said in *key*'s workspace under *cues* and the message's own languages, and score."""
    decided: list[Choice] = []
    for number, message in enumerate(messages, start=1):
        spoken_here = cues.joined(spoken(message.languages)) if message.languages else cues
        decided.append(await deciding.choose(key, message.text, spoken_here, history=message.history))
        progress(number, len(messages))
    return score_strategy(messages, decided)


def score_strategy(messages: Sequence[Message], decided: Sequence[Choice]) -> StrategyScores:
    """The figures for *decided*, one for each of *messages*. Pure."""
    both = list(zip(messages, decided, strict=True))
    named = [(one.strategy, choice.strategy.value) for one, choice in both if one.strategy is not None]
    labels = {
        label: _share([expected == label for expected, _ in named], [got == label for _, got in named])
        for label in sorted({expected for expected, _ in named})
    }
    reasons = [one.reason == choice.reason for one, choice in both if one.reason is not None]
    documents = [
        (one.needs_documents, choice.wants_documents)
        for one, choice in both
        if one.needs_documents is not None and one.counts_documents
    ]
    history = [(one.needs_history, choice.wants_history) for one, choice in both if one.needs_history is not None]
    pairs = Counter(named)
    return StrategyScores(
        messages=len(both),
        accuracy=_mean([expected == got for expected, got in named]),
        macro_f1=sum(share.f1 for share in labels.values()) / len(labels) if labels else None,
        reason_accuracy=_mean(reasons),
        labels=labels,
        confusion={label: {got.value: pairs[label, got.value] for got in Strategy} for label in labels},
        needs_documents=_needed(documents),
        needs_documents_scored=len(documents),
        needs_history=_needed(history),
        wrong=tuple(wrong for one, choice in both if (wrong := _wrong(one, choice)) is not None),
    )


def _needed(pairs: Sequence[tuple[bool | None, bool]]) -> Share | None:
    return _share([bool(expected) for expected, _ in pairs], [got for _, got in pairs]) if pairs else None


def _share(expected: Sequence[bool], got: Sequence[bool]) -> Share:
    hits = sum(one and other for one, other in zip(expected, got, strict=True))
    precision = hits / sum(got) if any(got) else 0.0
    recall = hits / sum(expected) if any(expected) else 0.0
    f1 = 2 * precision * recall / (precision + recall) if hits else 0.0
    return Share(precision, recall, f1, sum(expected))


def _mean(right: Sequence[bool]) -> float | None:
    return sum(right) / len(right) if right else None


def _wrong(message: Message, choice: Choice) -> Wrong | None:
    said = {
        "strategy": (message.strategy, choice.strategy.value),
        "reason": (message.reason, choice.reason),
        "needs_history": (message.needs_history, choice.wants_history),
        "needs_documents": (message.needs_documents if message.counts_documents else None, choice.wants_documents),
    }
    differs = {name: pair for name, pair in said.items() if pair[0] is not None and pair[0] != pair[1]}
    if not differs:
        return None
    expected = {name: pair[0] for name, pair in differs.items()}
    return Wrong(message.text, expected, {name: pair[1] for name, pair in said.items()})
