"""Vectors of documents that went, many or long ones at once, kept for a while: a folder that was unmounted comes back.

The documents themselves are deleted and found no more. What is kept is of no text: by the id of each chunk, which is a
digest of what was embedded, its vector. One file for each workspace and collection. To read the vectors of many takes
three times as long as to delete them, so that this is for models that are far away and cost money.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import structlog

from connectors.message import Scope
from grounding.documents.embedding import Vector
from grounding.documents.index import Kind, PassageIndex
from grounding.documents.runs import GROUP_CHUNKS

KEPT_SECONDS = 3600.0
"""After the last that went; what looks for it deletes it then, some minutes later at most."""
WORTH_CHUNKS = 64
"""Of documents that went at once: fewer are embedded again sooner than that is noticed."""
MOST_CHUNKS = 50_000
"""Of one workspace, 300 MB on disk where a vector has 1,536 dimensions: what goes beyond that is embedded again."""
_AT_ONCE = 500
_TABLE = "CREATE TABLE IF NOT EXISTS chunks (id BLOB PRIMARY KEY, vector BLOB NOT NULL) WITHOUT ROWID"
_log = structlog.get_logger()


class GoneVectors:
    """Of one *collection*, in *folder*. A file that cannot be read or written is named in an event, and holds nothing:
    then what comes back is embedded again."""

    def __init__(self, folder: Path, collection: str, *, now: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._collection = collection
        self._now = now

    async def keep(self, scope: Scope, vectors: Mapping[str, Vector]) -> None:
        """Keep *vectors*, by the ids of their chunks."""
        await asyncio.to_thread(self._keep, scope, vectors)

    async def take(self, index: PassageIndex, scope: Scope, chunks: Mapping[str, int]) -> None:
        """Keep the vectors of documents that are about to be deleted from *index*, by their paths with how many
        *chunks* each has; nothing where those are few. Raises `grounding.documents.index.IndexUnavailable`."""
        if sum(chunks.values()) < WORTH_CHUNKS:
            return
        found = await asyncio.gather(*(index.ids(scope, Kind.DOCUMENT, path) for path in chunks))
        ids = [one for some in found for one in some]
        for start in range(0, len(ids), GROUP_CHUNKS):
            some = ids[start : start + GROUP_CHUNKS]
            await self.keep(scope, await index.vectors(scope, Kind.DOCUMENT, some))

    async def find(self, scope: Scope, ids: Sequence[str]) -> dict[str, Vector]:
        """The vectors of those of *ids* that are kept."""
        return await asyncio.to_thread(self._find, scope, ids)

    async def forget(self, scope: Scope) -> None:
        """Keep nothing of the workspace, in no collection."""
        await asyncio.to_thread(self._forget, scope)

    async def expire(self) -> None:
        """Delete what is older than `KEPT_SECONDS`, of all workspaces and collections."""
        await asyncio.to_thread(self._expire)

    def _forget(self, scope: Scope) -> None:
        for file in self._folder.glob(f"*/{scope.workspace_id}.sqlite"):
            file.unlink(missing_ok=True)

    def _expire(self) -> None:
        for file in self._folder.glob("*/*.sqlite"):
            if self._is_old(file):
                file.unlink(missing_ok=True)

    def _is_old(self, file: Path) -> bool:
        try:
            return file.stat().st_mtime < self._now() - KEPT_SECONDS
        except FileNotFoundError:
            return True

    def _keep(self, scope: Scope, vectors: Mapping[str, Vector]) -> None:
        file = self._file(scope)
        with self._told(file):
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with closing(sqlite3.connect(file)) as base, base:
                base.execute(_TABLE)
                (there,) = base.execute("SELECT count(*) FROM chunks").fetchone()
                rows = [(bytes.fromhex(one), array("f", vector).tobytes()) for one, vector in vectors.items()]
                base.executemany("INSERT OR REPLACE INTO chunks VALUES (?, ?)", rows[: max(0, MOST_CHUNKS - there)])

    def _find(self, scope: Scope, ids: Sequence[str]) -> dict[str, Vector]:
        file, found = self._file(scope), dict[str, Vector]()
        if self._is_old(file):
            return found
        with self._told(file), closing(sqlite3.connect(file)) as base:
            for start in range(0, len(ids), _AT_ONCE):
                some = [bytes.fromhex(one) for one in ids[start : start + _AT_ONCE]]
                asked = f"SELECT id, vector FROM chunks WHERE id IN ({','.join('?' * len(some))})"  # noqa: S608 - question marks alone
                found |= {one.hex(): array("f", raw).tolist() for one, raw in base.execute(asked, some)}
        return found

    @contextmanager
    def _told(self, file: Path) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            _log.warning("index.failed", workspace_id=file.stem, why=f"{file.name}: {error}")
            if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
                file.unlink(missing_ok=True)  # damaged

    def _file(self, scope: Scope) -> Path:
        return self._folder / self._collection / f"{scope.workspace_id}.sqlite"
