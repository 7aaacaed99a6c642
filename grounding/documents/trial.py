"""Fills an index of its own with the documents of a question set, to try things on them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

from connectors.message import AgentRuntimeError, Scope
from grounding.documents.chunking import CountTokens, chunk_document
from grounding.documents.embedding import Embedder
from grounding.documents.index import Entry, Passage, PassageIndex
from grounding.documents.library import is_document_path
from grounding.documents.runs import passage_of_chunk
from grounding.documents.sparse import SparseVector, encode_chunk

GROUP = 64
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
