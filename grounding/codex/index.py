"""The codex material in the passage index, separate from the documents. It is searched if it is too large to give in
full.

Progress is stored after each write to the index, so that the next run continues an interrupted one and nothing
unchanged is embedded twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence

from connectors.message import Scope
from grounding.codex.material import HERE, owner_of, sha256_of, shown_path
from grounding.codex.store import CodexStore
from grounding.documents.chunking import CHUNKER_VERSION, Chunk, CountTokens, chunk_document
from grounding.documents.embedding import Embedder
from grounding.documents.index import Entry, Kind, PassageIndex, Source
from grounding.documents.runs import passage_of_chunk
from grounding.documents.sparse import encode_chunk
from grounding.documents.stored import collection_name

_BATCH = 8
"""Files that are read, cut, embedded and stored together."""
_BEGUN = "begun"
"""Stored instead of a revision while an owner's material is being indexed: the index may hold only a part of it."""
_MARKDOWN = (".md", ".markdown", ".mdx", ".rst")


class CodexIndex:
    """One collection of the index. Raises `IndexUnavailable`, `EmbedderUnavailable` and `StoreUnavailable`."""

    def __init__(self, store: CodexStore, index: PassageIndex, embedder: Embedder, count: CountTokens) -> None:
        self._store = store
        self._index = index
        self._embedder = embedder
        self._count = count
        self._collection = f"{collection_name(embedder.name, embedder.dimensions)}-{CHUNKER_VERSION}"

    async def sync(self, scope: Scope) -> int:
        """Index all changed material of the scope's workspace and return the number of changed files."""
        held = await self._store.all_held(scope)
        synced = await self._store.synced(scope, self._collection)
        gone = [Scope(scope.workspace_id, None if owner == "*" else owner) for owner in synced]
        changed = 0
        for owner in sorted({*held, *gone}, key=owner_of):
            revision = held[owner].revision if owner in held else ""
            # Checked first, because the stored progress is wrong if the index was lost.
            is_lost = await self._is_lost(owner)
            if synced.get(owner_of(owner)) == revision and not is_lost:
                continue
            # Without this mark an interruption would leave deleted files in the index.
            await self._store.has_synced(owner, self._collection, _BEGUN)
            changed += await self._sync_owner(owner)
            await self._store.has_synced(owner, self._collection, revision)
        return changed

    async def rebuild(self, scope: Scope) -> int:
        """Cut and embed all material of the scope's workspace anew; return the number of files. It stays searchable
        meanwhile."""
        for owner in await self._store.all_held(scope):
            # The paths are kept, so that files removed meanwhile are still deleted.
            noted = await self._store.indexed(owner, self._collection)
            await self._store.has_indexed(owner, self._collection, dict.fromkeys(noted, ""), ())
            await self._store.has_synced(owner, self._collection, _BEGUN)
        return await self.sync(scope)

    async def is_behind(self, scope: Scope, revisions: Mapping[Scope, str]) -> bool:
        """Say whether the index differs from *revisions*, the present revision of each owner."""
        synced = await self._store.synced(scope, self._collection)
        return any(synced.get(owner_of(owner), "") != revision for owner, revision in revisions.items())

    async def unchanged(self, scope: Scope, sources: Collection[str]) -> set[str]:
        """Return those of *sources*, found by a search in *scope*, that still exist with the indexed text."""
        every = Scope(scope.workspace_id)
        owners = {every: [one for one in sources if not one.startswith(HERE)]}
        if scope.context_id:
            own = [one.removeprefix(HERE) for one in sources if one.startswith(HERE)]
            owners[Scope(scope.workspace_id, scope.context_id)] = own
        return {
            shown_path(owner, path)
            for owner, paths in owners.items()
            for path in await self._store.unchanged(owner, self._collection, paths)
        }

    async def _is_lost(self, owner: Scope) -> bool:
        """Say whether the index lost everything that the progress says it has (another server, a deleted folder)."""
        if await self._index.estimate(owner, Kind.CODEX):
            return False
        noted = await self._store.indexed(owner, self._collection)
        await self._store.has_indexed(owner, self._collection, {}, list(noted))
        return bool(noted)

    async def _sync_owner(self, owner: Scope) -> int:
        entries = await self._store.entries(owner)
        noted = await self._store.indexed(owner, self._collection)
        gone = sorted(noted.keys() - entries.keys())
        if gone:
            await self._index.replace([_source(owner, path, ()) for path in gone])
            await self._store.has_indexed(owner, self._collection, {}, gone)
        new = [path for path, entry in entries.items() if noted.get(path) != entry.sha256]
        for start in range(0, len(new), _BATCH):
            texts = await self._store.texts(owner, new[start : start + _BATCH])
            await self._put(owner, texts)
        return len(gone) + len(new)

    async def _put(self, owner: Scope, texts: Mapping[str, str]) -> None:
        """Store the passages of *texts*. A file that changes meanwhile gets another digest and is indexed again."""
        chunks = await asyncio.to_thread(
            lambda: {path: cut(shown_path(owner, path), text, self._count) for path, text in texts.items()}
        )
        every = [chunk.indexed_text for some in chunks.values() for chunk in some]
        vectors = iter(await self._embedder.embed_documents(every) if every else [])

        def entry(path: str, chunk: Chunk) -> Entry:
            passage = passage_of_chunk(chunk, Kind.CODEX, shown_path(owner, path))
            return Entry(passage, next(vectors), encode_chunk(chunk.indexed_text))

        def sources() -> list[Source]:
            return [_source(owner, path, [entry(path, one) for one in some]) for path, some in chunks.items()]

        await self._index.replace(await asyncio.to_thread(sources))
        digests = {path: sha256_of(text) for path, text in texts.items()}
        await self._store.has_indexed(owner, self._collection, digests, ())


def cut(path: str, text: str, count: CountTokens) -> list[Chunk]:
    """Return the chunks of a file, cut at headings if it is Markdown, else at paragraphs."""
    is_markdown = path.lower().endswith(_MARKDOWN)
    return chunk_document(path if is_markdown else f"{path}.txt", text, count)


def _source(owner: Scope, path: str, entries: Sequence[Entry]) -> Source:
    return Source(owner, Kind.CODEX, shown_path(owner, path), entries)
