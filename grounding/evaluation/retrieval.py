"""``eval retrieval``: scores retrieval on a set of questions, through the real index, in a folder of its own.

Each question is put to each arm. Documents are ranked by their best passage. The time of a search for `TIMED_HITS`
passages is measured, with the embedding of the question; deeper searches follow untimed, until enough different
documents are there.

`fill` and `load_documents` serve other trials on documents: ``eval strategy`` and the benches.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

from connectors.message import AgentRuntimeError, Scope
from grounding.documents import is_document_path, passage_of_chunk
from grounding.evaluation.datasets import BadQuestionSet, Question, QuestionSet, Text, rough_tokens
from grounding.evaluation.metrics import Ranking
from grounding.prompt_input import DegradedBlock
from grounding.retrieval import (
    Chunk,
    CountTokens,
    DeepEmbedder,
    Embedder,
    Hit,
    IndexEntry,
    Kind,
    PassageIndex,
    Reranker,
    Search,
    Sizes,
    SparseVector,
    Vector,
    chunk_document,
    encode_chunk,
    encode_question,
    shorten,
)

BM25 = "bm25"
DENSE = "dense"
RRF = "rrf, k=60"
"""Plain reciprocal rank fusion of the first `RRF_DEPTH` passages of both arms with equal weights, for reference: most
hybrid searches do what Cormack, Clarke and Büttcher (SIGIR 2009) propose."""
ALONE = "fused, alone"
"""As `FUSED`, without what people said before. Only for sets with such questions."""
QUICK = "fused, quick"
"""As `FUSED`, without the second look by deeper vectors. Only if there is one."""
FUSED = "fused"
"""What turns use: with what people said before the question, if the set has it."""
RERANKED = "reranked"

TIMED_HITS = 10
ENOUGH_DOCUMENTS = 50
ENOUGH_TOKENS = 1500
DEPTHS = (100, 400, 1600)
"""So many passages are searched until enough documents are among them: a document may have hundreds."""
SHOWN = 3
RRF_K = 60
RRF_DEPTH = 100
GROUP = 64
"""So many documents are indexed together."""

Progress = Callable[[str, int, int], None]
"""Hears the name of the step, how much of it is done, and of how much."""
SearchTo = Callable[[int], Awaitable[list[Hit]]]
"""Searches for the best so many hits."""


@dataclass(slots=True)
class Evaluation:
    """The result. ``arms`` has for each arm, in the order in which they are shown, a ranking for each question by its
    id. ``lost`` counts failures by part and reason; all other results stand."""

    arms: dict[str, dict[str, Ranking]]
    chunks: int = 0
    lost: Counter[tuple[str, str]] = field(default_factory=Counter)
    first: dict[str, list[Hit]] = field(default_factory=dict)
    """The first `SHOWN` hits of `main`, by question."""

    @property
    def main(self) -> str:
        """The arm that turns use with the settings in force."""
        return list(self.arms)[-1]


async def evaluate_retrieval(
    questions: QuestionSet,
    embedder: Embedder,
    count: CountTokens,
    open_index: Callable[[], PassageIndex],
    *,
    reranker: Reranker | None = None,
    deep: DeepEmbedder | None = None,
    sizes: Sizes | None = None,
    progress: Progress = lambda step, done, total: None,
) -> Evaluation:
    """Index the set in the empty index of *open_index*, with deeper vectors by *deep*, put each question to each arm,
    and close the index.

    Raises `BadQuestionSet` for a set without questions, `IndexUnavailable` and `EmbedderUnavailable`.
    """
    if not questions.questions:
        raise BadQuestionSet("the set has no question with an expected document")
    names = {known.workspace for known in questions.known.values()} | {one.workspace for one in questions.questions}
    scopes = {name: Scope(f"set-{number}") for number, name in enumerate(sorted(names))}
    index = open_index()
    try:
        await index.ensure()
        total = len(questions.known)
        chunks = await _fill(
            index,
            scopes,
            questions.documents(),
            embedder,
            count,
            deep,
            sizes,
            lambda n: progress("documents", n, total),
        )
        run = _Run(index, questions, scopes, embedder, reranker, deep)
        run.evaluation.chunks = chunks
        await embedder.embed_query("warm up")
        for done, question in enumerate(questions.questions, start=1):
            await run.ask(question)
            progress("questions", done, len(questions.questions))
        return run.evaluation
    finally:
        await index.close()


class _Run:
    """Puts questions to the arms of one index."""

    def __init__(
        self,
        index: PassageIndex,
        questions: QuestionSet,
        scopes: Mapping[str, Scope],
        embedder: Embedder,
        reranker: Reranker | None,
        deep: DeepEmbedder | None,
    ) -> None:
        self._index = index
        self._known = questions.known
        self._scopes = scopes
        self._embedder = _LastQuery(embedder)
        self._fused = Search(index, self._embedder, deep=deep)
        self._quick = Search(index, self._embedder) if deep is not None and index.deepens else None
        self._reranked = Search(index, self._embedder, reranker=reranker, deep=deep) if reranker else None
        self._candidates = reranker.candidates if reranker else 0
        self._has_history = any(question.history for question in questions.questions)
        arms = {
            BM25: True,
            DENSE: True,
            RRF: True,
            ALONE: self._has_history,
            QUICK: self._quick is not None,
            FUSED: True,
            RERANKED: reranker is not None,
        }
        self.evaluation = Evaluation({arm: {} for arm, is_shown in arms.items() if is_shown})

    async def ask(self, question: Question) -> None:
        """Put *question* to each arm. The fused one goes first, so that its time includes the costs of a first
        question."""
        scope, earlier = self._scopes[question.workspace], _earlier(question)
        fused = partial(self._fused.search, scope, question.text, earlier=earlier)
        hits = await self._rank(FUSED, question, fused, fused)
        if self._reranked is not None:
            hits = await self._rank(RERANKED, question, partial(self._rerank, self._reranked, question), fused)
        self.evaluation.first[question.id] = hits[:SHOWN]
        if self._has_history:
            alone = partial(self._fused.search, scope, question.text)
            await self._rank(ALONE, question, alone, alone)
        if self._quick is not None:
            quick = partial(self._quick.search, scope, question.text, earlier=earlier)
            await self._rank(QUICK, question, quick, quick)
        both = []
        for arm in (BM25, DENSE):
            single = partial(self._search_arm, arm, question)
            both.append((await self._rank(arm, question, single, single))[:RRF_DEPTH])
        self._note(RRF, question, reciprocal_rank_fusion(both), None)

    async def _rank(self, arm: str, question: Question, timed: SearchTo, deeper: SearchTo) -> list[Hit]:
        """Note the ranking of *arm*: the hits of the *timed* search, and behind them those of *deeper* ones. Return
        all."""
        self._embedder.forget()
        began = time.perf_counter()
        hits = await timed(TIMED_HITS)
        took = (time.perf_counter() - began) * 1000
        found = {(hit.passage.source, hit.passage.id): hit for hit in hits}
        for depth in DEPTHS:
            more = await deeper(depth)
            for hit in more:
                found.setdefault((hit.passage.source, hit.passage.id), hit)
            if len(more) < depth or _is_enough(found.values()):
                break
        self._note(arm, question, found.values(), took)
        return list(found.values())

    async def _rerank(self, search: Search, question: Question, _: int) -> list[Hit]:
        """Ask the reranker once, for all its candidates: the other hits follow in the fused order."""
        lost: list[DegradedBlock] = []
        scope = self._scopes[question.workspace]
        hits = await search.search(scope, question.text, self._candidates, lost=lost, earlier=_earlier(question))
        self.evaluation.lost.update((part.block, part.why) for part in lost)
        return hits

    async def _search_arm(self, arm: str, question: Question, top_k: int) -> list[Hit]:
        query = shorten(question.text)
        if not query.strip():
            return []
        sparse = await encode_question(query) if arm == BM25 else None
        dense = await self._embedder.embed_query(query) if arm == DENSE else None
        return await self._index.search(self._scopes[question.workspace], Kind.DOCUMENT, dense, sparse, top_k)

    def _note(self, arm: str, question: Question, hits: Iterable[Hit], took: float | None) -> None:
        passages = [(self._known[hit.passage.source], hit.passage) for hit in hits]
        documents = {document.id: document.tokens for document, _ in passages}
        self.evaluation.arms[arm][question.id] = Ranking(
            tuple(documents.items())[:ENOUGH_DOCUMENTS],
            tuple((document.id, rough_tokens(passage.text)) for document, passage in passages),
            question.expected,
            took,
        )


class _LastQuery:
    """An embedder that remembers the last question, so that a deeper search costs no provider a second call."""

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


def _earlier(question: Question) -> list[str]:
    return [text for role, text in question.history if role == "user"]


def _is_enough(hits: Iterable[Hit]) -> bool:
    passages = [hit.passage for hit in hits]
    tokens = sum(rough_tokens(passage.text) for passage in passages)
    return len({passage.source for passage in passages}) >= ENOUGH_DOCUMENTS and tokens >= ENOUGH_TOKENS


def reciprocal_rank_fusion(arms: Sequence[Sequence[Hit]]) -> list[Hit]:
    """Return the hits of all *arms* by the sum of 1 / (60 + rank), ranks from 1; equal sums by source and ordinal."""
    scores: dict[tuple[str, str], float] = {}
    hits: dict[tuple[str, str], Hit] = {}
    for arm in arms:
        for rank, hit in enumerate(arm, start=1):
            key = hit.passage.source, hit.passage.id
            hits.setdefault(key, hit)
            scores[key] = scores.get(key, 0.0) + 1 / (RRF_K + rank)
    order = sorted(scores, key=lambda key: (-scores[key], hits[key].passage.source, hits[key].passage.ordinal))
    return [hits[key] for key in order]


# Filling an index


class BadDocuments(AgentRuntimeError):
    """Documents that cannot be read; the text says what was expected."""


def load_documents(path: Path) -> dict[str, str]:
    """Return texts by name: of a ``corpus.jsonl`` (``_id``, ``title``, ``text``), of a folder with one, or of a folder
    of Markdown. Raises `BadDocuments`."""
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
    documents: Mapping[str, str],
    embedder: Embedder,
    count: CountTokens,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Index *documents* (text by name) in *scope*. Raises `IndexUnavailable` and `EmbedderUnavailable`."""
    texts = (Text(name, name, text, "") for name, text in documents.items())
    total = len(documents)
    await _fill(index, {"": scope}, texts, embedder, count, None, None, lambda done: progress(done, total))


async def _fill(
    index: PassageIndex,
    scopes: Mapping[str, Scope],
    documents: Iterator[Text],
    embedder: Embedder,
    count: CountTokens,
    deep: DeepEmbedder | None,
    sizes: Sizes | None,
    progress: Callable[[int], None],
) -> int:
    """Index *documents*, each in the scope of its workspace, and return the number of their chunks."""
    done = chunk_count = 0
    while group := await asyncio.to_thread(lambda: list(islice(documents, GROUP))):
        chunks, texts, sparse = await asyncio.to_thread(_cut, group, count, sizes)
        dense = await embedder.embed_documents(texts)
        deeper: Sequence[Vector | None] = [None] * len(texts)
        if deep is not None:
            deeper = await deep.embed_documents(texts)
        entries: dict[str, list[IndexEntry]] = {}
        for (workspace, chunk), vector, terms, deep_vector in zip(chunks, dense, sparse, deeper, strict=True):
            entries.setdefault(workspace, []).append(IndexEntry(passage_of_chunk(chunk), vector, terms, deep_vector))
        for workspace, batch in entries.items():
            await index.upsert(scopes[workspace], batch)
        done, chunk_count = done + len(group), chunk_count + len(chunks)
        progress(done)
    return chunk_count


def _cut(
    group: Sequence[Text], count: CountTokens, sizes: Sizes | None
) -> tuple[list[tuple[str, Chunk]], list[str], list[SparseVector]]:
    """Return the chunks of *group* with their workspaces, and the searched text and sparse vector of each."""
    chunks = [(one.workspace, chunk) for one in group for chunk in chunk_document(one.path, one.text, count, sizes)]
    texts = [_searched_text(chunk.indexed_text, chunk.path) for _, chunk in chunks]
    return chunks, texts, [encode_chunk(text) for text in texts]


def _searched_text(text: str, path: str) -> str:
    """Return *text* without the title that a plain file takes from its name, which in a BEIR set is a bare number."""
    return text.removeprefix(path.removesuffix(".txt") + "\n") if path.endswith(".txt") else text
