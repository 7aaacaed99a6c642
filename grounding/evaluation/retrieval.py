"""``eval retrieval``: scores retrieval on a set of questions, through the real index, in a folder of its own.

Each question is put to each arm. Documents are ranked by their best passage. The time of a search for `TIMED_HITS`
passages is measured, with the embedding of the question; a deeper search follows untimed.

After that the strategy decides about each question, as in a turn, and the passages of its prompt are noted.

`fill` serves other trials on documents: ``eval strategy`` and the benches.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean

from connectors.message import ConversationKey, Scope
from grounding.documents import passage_of_chunk
from grounding.evaluation.datasets import BadQuestionSet, Question, QuestionSet, Text, rough_tokens
from grounding.evaluation.metrics import Ranking, recall_at
from grounding.pipeline import StrategyChooser
from grounding.prompt import passages_room
from grounding.prompt_input import DegradedBlock
from grounding.prompt_input import Passage as PromptPassage
from grounding.retrieval import (
    Chunk,
    CountTokens,
    DeepEmbedder,
    Embedder,
    Found,
    Hit,
    IndexEntry,
    Kind,
    Passage,
    PassageIndex,
    PassageQuery,
    PassageRoom,
    Reranker,
    Search,
    SparseVector,
    Vector,
    chunk_document,
    encode_chunk,
    encode_question,
    shorten,
)
from grounding.strategy import ENGLISH, earlier_for, tail_of

BM25 = "bm25"
DENSE = "dense"
FUSED = "fused"
"""What turns use: with what people said before the question, if the set has it."""
RERANKED = "reranked"

TIMED_HITS = 10
MOST_DOCUMENTS = 50
MOST_HITS = 400
"""So many passages are ranked, because a document may have hundreds."""
DECIDING_SECONDS = 60.0
"""Nobody waits for a reply here, and a slow machine must not change the figures."""
GROUP = 64
"""So many documents are indexed together."""

Progress = Callable[[str, int, int], None]
"""Hears the name of the step, how much of it is done, and of how much."""
SearchTo = Callable[[int], Awaitable[list[Hit]]]
"""Searches for the best so many hits."""


DEFAULT_ROOM = PassageRoom(3, 1200, passages_room(900))


class SearchedDocuments:
    """Documents as a turn searches them, through *search*."""

    def __init__(self, search: Search) -> None:
        self._search = search

    async def awake(self, scope: Scope) -> None:
        """Return at once: they are indexed."""

    async def look(self, scope: Scope, query: str, top_k: int, *, earlier: Sequence[str] = ()) -> Found:
        """See `grounding.pipeline.SearchesDocuments`."""
        return await self._search.look(scope, query, top_k, earlier=earlier)

    async def pack(
        self, scope: Scope, found: Found, room: PassageRoom, *, lost: list[DegradedBlock]
    ) -> Sequence[PromptPassage]:
        """See `grounding.pipeline.SearchesDocuments`."""
        return await self._search.pack(scope, found, room, lost=lost)


@dataclass(slots=True)
class Evaluation:
    """The result. ``arms`` has for each arm, in the order in which they are shown, a ranking for each question by its
    id. ``lost`` counts failures by part and reason; all other results stand."""

    arms: dict[str, dict[str, Ranking]]
    chunks: int = 0
    prompts: dict[str, frozenset[str]] = field(default_factory=dict)
    """The documents of which a passage stands in the prompt, for each question by its id."""
    lost: Counter[tuple[str, str]] = field(default_factory=Counter)
    room: PassageRoom = DEFAULT_ROOM

    def in_prompt(self) -> tuple[float, float]:
        """Return the mean share of expected documents of which a passage stands in the prompt, and, to compare, the
        mean recall of the main ranking at as many documents as a prompt may show."""
        rankings = self.arms[self.main]
        shown = [self.share_in_prompt(name) for name in rankings]
        first = [recall_at(one.found, one.gold, self.room.top_k) for one in rankings.values()]
        return fmean(shown), fmean(first)

    def share_in_prompt(self, question: str) -> float:
        """Return the share of the expected documents of a *question*, named by its id, of which a passage stands in the
        prompt."""
        gold = self.arms[self.main][question].gold
        return len(gold & self.prompts[question]) / len(gold)

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
    room: PassageRoom = DEFAULT_ROOM,
    progress: Progress = lambda step, done, total: None,
) -> Evaluation:
    """Index the set in the empty index of *open_index*, with deeper vectors by *deep*, put each question to each arm,
    and close the index. Prompts have *room* for passages.

    Raises `BadQuestionSet` for a set without questions, `IndexUnavailable` and `EmbedderUnavailable`.
    """
    if not questions.questions:
        raise BadQuestionSet("the set has no question with an expected document")
    names = {text.workspace for text in questions.documents} | {one.workspace for one in questions.questions}
    scopes = {name: Scope(f"set-{number}") for number, name in enumerate(sorted(names))}
    index = open_index()
    try:
        await index.ensure()
        total = len(questions.documents)
        run = _Run(index, questions, scopes, embedder, count, reranker, deep, room)
        run.evaluation.chunks = await _fill(
            index, scopes, questions.documents, embedder, count, deep, lambda done: progress("documents", done, total)
        )
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
        count: CountTokens,
        reranker: Reranker | None,
        deep: DeepEmbedder | None,
        room: PassageRoom,
    ) -> None:
        self._index = index
        self._documents = {text.path: text for text in questions.documents}
        self._scopes = scopes
        self._embedder = embedder
        self._fused = Search(index, embedder, deep=deep)
        self._reranked = Search(index, embedder, reranker=reranker, deep=deep) if reranker else None
        self._candidates = reranker.candidates if reranker else 0
        arms = (BM25, DENSE, FUSED, RERANKED) if reranker else (BM25, DENSE, FUSED)
        self.evaluation = Evaluation({arm: {} for arm in arms}, room=room)
        self._shown = SearchedDocuments(Search(index, embedder, count=count, reranker=reranker, deep=deep))
        self._deciding = StrategyChooser(self._shown, DECIDING_SECONDS, DECIDING_SECONDS)

    async def ask(self, question: Question) -> None:
        """Put *question* to each arm. The fused one goes first, so that its time includes the costs of a first
        question."""
        scope = self._scopes[question.workspace]
        fused = partial(self._fused.search, scope, question.text, earlier=_earlier(question))
        await self._rank(FUSED, question, fused, fused)
        if self._reranked is not None:
            await self._rank(RERANKED, question, partial(self._rerank, self._reranked, question), fused)
        for arm in (BM25, DENSE):
            single = partial(self._search_arm, arm, question)
            await self._rank(arm, question, single, single)
        self.evaluation.prompts[question.id] = await self._in_prompt(question)

    async def _in_prompt(self, question: Question) -> frozenset[str]:
        """Return the documents of which a turn would show a passage."""
        room, key = (
            self.evaluation.room,
            ConversationKey(self._scopes[question.workspace].workspace_id, "eval", "asked"),
        )
        history = tail_of(question.history)
        choice, found, _ = await self._deciding.choose(key, question.text, ENGLISH, history, top_k=room.top_k)
        if not choice.wants_documents or found is None:
            return frozenset()
        passages = await self._shown.pack(key.scope, found, room, lost=[])
        return frozenset(self._documents[passage.source].id for passage in passages)

    async def _rank(self, arm: str, question: Question, timed: SearchTo, deeper: SearchTo) -> None:
        """Store the ranking of *arm*: the hits of the *timed* search, and behind them those of the *deeper* one."""
        began = time.perf_counter()
        hits = await timed(TIMED_HITS)
        took = (time.perf_counter() - began) * 1000
        found: dict[tuple[str, str], Passage] = {}
        for hit in [*hits, *await deeper(MOST_HITS)]:
            found.setdefault((hit.passage.source, hit.passage.id), hit.passage)
        passages = [(self._documents[passage.source], passage) for passage in found.values()]
        documents = {document.id: document.tokens for document, _ in passages}
        self.evaluation.arms[arm][question.id] = Ranking(
            tuple(documents.items())[:MOST_DOCUMENTS],
            tuple((document.id, rough_tokens(passage.text)) for document, passage in passages),
            question.expected,
            took,
        )

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
        scope = self._scopes[question.workspace]
        return await self._index.search(PassageQuery(scope, Kind.DOCUMENT, dense, sparse, top_k))


def _earlier(question: Question) -> tuple[str, ...]:
    return earlier_for(question.text, tail_of(question.history))


async def fill(
    index: PassageIndex,
    scope: Scope,
    documents: Mapping[str, str],
    embedder: Embedder,
    count: CountTokens,
    progress: Callable[[int, int], None] = lambda done, total: None,
    *,
    deep: DeepEmbedder | None = None,
) -> None:
    """Index *documents* (text by name) in *scope*, with deeper vectors by *deep*. Raises `IndexUnavailable` and
    `EmbedderUnavailable`."""
    texts = [Text(name, name, text, "", rough_tokens(text)) for name, text in documents.items()]
    await _fill(index, {"": scope}, texts, embedder, count, deep, lambda done: progress(done, len(texts)))


async def _fill(
    index: PassageIndex,
    scopes: Mapping[str, Scope],
    documents: Sequence[Text],
    embedder: Embedder,
    count: CountTokens,
    deep: DeepEmbedder | None,
    progress: Callable[[int], None],
) -> int:
    """Index *documents*, each in the scope of its workspace, and return the number of their chunks."""
    chunk_count = 0
    for start in range(0, len(documents), GROUP):
        group = documents[start : start + GROUP]
        chunks, texts, sparse = await asyncio.to_thread(_cut, group, count)
        dense = await embedder.embed_documents(texts)
        deeper: Sequence[Vector | None] = [None] * len(texts)
        if deep is not None:
            deeper = await deep.embed_documents(texts)
        entries: dict[str, list[IndexEntry]] = {}
        for (workspace, chunk), vector, terms, deep_vector in zip(chunks, dense, sparse, deeper, strict=True):
            entries.setdefault(workspace, []).append(IndexEntry(passage_of_chunk(chunk), vector, terms, deep_vector))
        for workspace, batch in entries.items():
            await index.upsert(scopes[workspace], batch)
        chunk_count += len(chunks)
        progress(start + len(group))
    return chunk_count


def _cut(group: Sequence[Text], count: CountTokens) -> tuple[list[tuple[str, Chunk]], list[str], list[SparseVector]]:
    """Return the chunks of *group* with their workspaces, and the searched text and sparse vector of each."""
    chunks = [(one.workspace, chunk) for one in group for chunk in chunk_document(one.path, one.text, count)]
    texts = [_searched_text(chunk.indexed_text, chunk.path) for _, chunk in chunks]
    return chunks, texts, [encode_chunk(text) for text in texts]


def _searched_text(text: str, path: str) -> str:
    """Return *text* without the title that a plain file takes from its name, which in a BEIR set is a bare number."""
    return text.removeprefix(path.removesuffix(".txt") + "\n") if path.endswith(".txt") else text
