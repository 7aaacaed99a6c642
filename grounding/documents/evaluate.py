"""Scores retrieval on a set of questions, through the real index, in a folder of its own.

Each question is put to each arm. Documents are ranked by their best passage. What is timed is a search for `ASKED`
passages, with the embedding of the question; deeper ones follow untimed, until enough different documents are there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice

from connectors.message import Scope
from grounding.documents.chunking import Chunk, CountTokens, Sizes, chunk_document
from grounding.documents.deeper import Deeper
from grounding.documents.embedding import Embedder, Vector
from grounding.documents.index import Entry, Hit, Kind, PassageIndex
from grounding.documents.metrics import Ranking
from grounding.documents.question_set import BadQuestionSet, Question, QuestionSet, Text, rough_tokens
from grounding.documents.rerank import Reranker
from grounding.documents.runs import passage_of_chunk
from grounding.documents.search import Search, encoded, shorten
from grounding.documents.sparse import encode_chunk
from grounding.run_context import DegradedBlock

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
