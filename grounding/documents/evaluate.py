"""Scores retrieval on a set of questions, through the real index, in a folder of its own.

Two kinds of sets are read. A BEIR folder: ``corpus.jsonl`` (``_id``, ``title``, ``text``, optional
``metadata.workspace``), ``queries.jsonl`` (``_id``, ``text``) and ``qrels/test.tsv`` (query, document,
relevance). Or a JSON lines file of questions (``question``, ``expected``: a path or a list of paths) with a
folder ``docs`` of Markdown beside it.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from connectors.message import AgentRuntimeError, Scope
from grounding.documents.chunking import CountTokens, Sizes, chunk_document
from grounding.documents.embedding import Embedder, Vector
from grounding.documents.index import Entry, Kind, PassageIndex
from grounding.documents.indexer import passage_of_chunk
from grounding.documents.library import is_document_path
from grounding.documents.metrics import Scores, score
from grounding.documents.sparse import SparseVector, encode_document, encode_query

ARMS = ("bm25", "dense", "fused")
DEPTH = 50
"""Chunks asked for, so that at least ten different documents are among them."""


class BadQuestionSet(AgentRuntimeError):
    """A question set that cannot be read; the text names the file, the line and what was expected."""


@dataclass(frozen=True, slots=True)
class Text:
    """One document of a set."""

    id: str
    path: str
    text: str
    workspace: str


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and the ids of the documents that answer it."""

    text: str
    expected: frozenset[str]
    workspace: str


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """Documents and questions. Workspaces are the set's own names; each is searched alone."""

    documents: tuple[Text, ...]
    questions: tuple[Question, ...]


def load(path: Path) -> QuestionSet:
    """The set at *path*: a BEIR folder, a questions file, or a folder with ``questions.jsonl``.

    Raises `BadQuestionSet`.
    """
    if (path / "corpus.jsonl").is_file():
        return _load_beir(path)
    questions = path / "questions.jsonl" if path.is_dir() else path
    if not questions.is_file():
        raise BadQuestionSet(
            f"{path} is neither a BEIR folder (corpus.jsonl, queries.jsonl, qrels/) nor a questions file"
        )
    return _load_markdown(questions)


def _json_lines(file: Path, *fields: str) -> Iterator[dict[str, Any]]:
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BadQuestionSet(f"{file} cannot be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise BadQuestionSet(f"{file}, line {number}: no JSON: {error}") from error
        if not isinstance(record, dict) or any(field not in record for field in fields):
            raise BadQuestionSet(f"{file}, line {number}: expected an object with {', '.join(fields)}")
        yield record


def _workspace(record: dict[str, Any]) -> str:
    return str((record.get("metadata") or {}).get("workspace", ""))


def _load_beir(folder: Path) -> QuestionSet:
    documents = tuple(
        Text(
            str(record["_id"]),
            f"{number}.txt",
            f"{record.get('title') or ''}\n\n{record['text']}".strip(),
            _workspace(record),
        )
        for number, record in enumerate(_json_lines(folder / "corpus.jsonl", "_id", "text"))
    )
    gold: dict[str, set[str]] = {}
    try:
        rows = (folder / "qrels" / "test.tsv").read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise BadQuestionSet(f"{folder} has no qrels/test.tsv: {error}") from error
    for row in rows:
        cells = row.split("\t")
        if len(cells) == 3 and re.fullmatch(r"[1-9]\d*", cells[2]):
            gold.setdefault(cells[0], set()).add(cells[1])
    questions = tuple(
        Question(record["text"], frozenset(gold[str(record["_id"])]), _workspace(record))
        for record in _json_lines(folder / "queries.jsonl", "_id", "text")
        if str(record["_id"]) in gold
    )
    return QuestionSet(documents, questions)


def _load_markdown(file: Path) -> QuestionSet:
    root = file.parent / "docs"
    documents = tuple(
        Text(path, path, document.read_text(encoding="utf-8"), "")
        for document in sorted(root.rglob("*"))
        if document.is_file() and is_document_path(path := document.relative_to(root).as_posix())
    )
    known = {document.id for document in documents}
    questions = []
    for record in _json_lines(file, "question", "expected"):
        expected = record["expected"] if isinstance(record["expected"], list) else [record["expected"]]
        if missing := [path for path in expected if path not in known]:
            raise BadQuestionSet(f"{file}: {missing[0]!r} is expected, but there is no such document in {root}")
        questions.append(Question(record["question"], frozenset(expected), ""))
    return QuestionSet(documents, tuple(questions))


OpenIndex = Callable[[], PassageIndex]


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
    sizes: Sizes | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Scores]:
    """Index the set with *open_index* (an empty index, which is closed at the end) and score each of `ARMS`.

    *progress* hears how many of the documents are indexed. Raises `BadQuestionSet` for a set without questions,
    `IndexUnavailable` and `EmbedderUnavailable`.
    """
    if not questions.questions:
        raise BadQuestionSet("the set has no question with an expected document")
    scopes = _scopes(questions)
    async with _opened(open_index) as index:
        await _fill(index, questions, scopes, embedder, count, sizes, progress)
        ids = {(document.workspace, document.path): document.id for document in questions.documents}
        return {arm: await _run_arm(index, questions, scopes, embedder, arm, ids) for arm in ARMS}


def _scopes(questions: QuestionSet) -> dict[str, Scope]:
    names = sorted(
        {document.workspace for document in questions.documents}
        | {question.workspace for question in questions.questions}
    )
    return {name: Scope(f"set-{number}") for number, name in enumerate(names)}


async def _fill(
    index: PassageIndex,
    questions: QuestionSet,
    scopes: dict[str, Scope],
    embedder: Embedder,
    count: CountTokens,
    sizes: Sizes | None,
    progress: Callable[[int, int], None],
) -> None:
    total = len(questions.documents)
    for start in range(0, total, 64):
        group = questions.documents[start : start + 64]
        chunks = [
            (document.workspace, chunk)
            for document in group
            for chunk in chunk_document(document.path, document.text, count, sizes)
        ]
        vectors = await embedder.embed_documents([_searched(chunk.indexed_text, chunk.path) for _, chunk in chunks])
        for name, scope in scopes.items():
            entries = [
                Entry(passage_of_chunk(chunk), vector, encode_document(_searched(chunk.indexed_text, chunk.path)))
                for (workspace, chunk), vector in zip(chunks, vectors, strict=True)
                if workspace == name
            ]
            if entries:
                await index.upsert(scope, entries)
        progress(min(start + 64, total), total)


def _searched(text: str, path: str) -> str:
    """*text* without the title that a plain file takes from its name, which in a BEIR set is a bare number."""
    return text.removeprefix(path.removesuffix(".txt") + "\n") if path.endswith(".txt") else text


async def _run_arm(
    index: PassageIndex,
    questions: QuestionSet,
    scopes: dict[str, Scope],
    embedder: Embedder,
    arm: str,
    ids: dict[tuple[str, str], str],
) -> Scores:
    rankings: list[tuple[Sequence[str], frozenset[str]]] = []
    latencies: list[float] = []
    await embedder.embed_query("warm up")
    for question in questions.questions:
        began = time.perf_counter()
        sparse: SparseVector | None = encode_query(question.text) if arm != "dense" else None
        dense: Vector | None = await embedder.embed_query(question.text) if arm != "bm25" else None
        hits = await index.search(scopes[question.workspace], Kind.DOCUMENT, dense, sparse, DEPTH)
        latencies.append((time.perf_counter() - began) * 1000)
        found = dict.fromkeys(ids[question.workspace, hit.passage.source] for hit in hits)
        rankings.append((list(found), question.expected))
    return score(rankings, latencies)
