"""Where the documents of a workspace are kept: the port, and its adapter over files of this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from connectors.message import Scope
from grounding.documents.library import Document, Found, Library, Skipped

READ_BYTES = 1_000_000
"""Text that is read at once: what a run holds in memory of documents that it has not indexed yet."""
READ_DOCUMENTS = 64

Read = dict[str, Document | Found | Skipped | None]
"""By path what lies there: a document, one that reads as it is known to, something that is no document, or nothing."""


class Shelf(Protocol):
    """The documents of all workspaces. Every method may raise `connectors.message.StoreUnavailable` or `OSError`."""

    async def look_through(self, scope: Scope) -> tuple[list[Found], list[Skipped]]:
        """Everything that may be a document, by path, and what by its size or kind is none."""

    async def folders(self, scope: Scope, paths: Collection[str]) -> set[str]:
        """Those of *paths*, which are named like documents, that are folders."""

    async def size(self, scope: Scope) -> int:
        """How many documents there may be."""

    async def read(self, scope: Scope, paths: Sequence[str], known: Mapping[str, str]) -> Read:
        """What lies at the first of *paths*: as many of them as fit into about `READ_BYTES`, at least one. *known* are
        SHA-256 of texts that need not be read again."""

    async def changed(self, scope: Scope, documents: Sequence[Document]) -> set[str]:
        """The paths of those of *documents*, as they were read, that read otherwise by now."""

    async def get(self, scope: Scope, path: str) -> Document:
        """Raises `grounding.documents.library.DocumentMissing` and `DocumentRefused`."""

    async def put(self, scope: Scope, path: str, text: str | bytes) -> Found:
        """Keep *text* at *path*, whole or not at all. Raises `DocumentRefused`."""

    async def delete(self, scope: Scope, path: str) -> None:
        """Raises `DocumentMissing` and `DocumentRefused`."""


class FileShelf:
    """`Shelf` over the files of a `Library`: one process, or one folder that all processes share."""

    def __init__(self, library: Library) -> None:
        self._library = library

    async def look_through(self, scope: Scope) -> tuple[list[Found], list[Skipped]]:
        return await asyncio.to_thread(self._library.walk, scope)

    async def folders(self, scope: Scope, paths: Collection[str]) -> set[str]:
        return await asyncio.to_thread(lambda: {path for path in paths if self._library.is_folder(scope, path)})

    async def size(self, scope: Scope) -> int:
        return len((await self.look_through(scope))[0])

    async def read(self, scope: Scope, paths: Sequence[str], known: Mapping[str, str]) -> Read:
        """All that fit are read: a file's looks say nothing certain about its text."""
        return await asyncio.to_thread(self._read, scope, paths)

    def _read(self, scope: Scope, paths: Sequence[str]) -> Read:
        found: Read = {}
        size = 0
        for path in paths[:READ_DOCUMENTS]:
            found[path] = item = self._library.look(scope, path)
            size += item.size_bytes if isinstance(item, Document) else 0
            if size >= READ_BYTES:
                break
        return found

    async def changed(self, scope: Scope, documents: Sequence[Document]) -> set[str]:
        """None: who reads and stores them keeps others out, and whoever writes has them read again."""
        return set()

    async def get(self, scope: Scope, path: str) -> Document:
        return await asyncio.to_thread(self._library.get, scope, path)

    async def put(self, scope: Scope, path: str, text: str | bytes) -> Found:
        return await asyncio.to_thread(self._library.put, scope, path, text)

    async def delete(self, scope: Scope, path: str) -> None:
        await asyncio.to_thread(self._library.delete, scope, path)


def below(path: str, folders: Collection[str]) -> bool:
    """Whether *path* is one of *folders*, which is a set where they may be many, or lies in one of them."""
    end = len(path)
    while end > 0:
        if path[:end] in folders:
            return True
        end = path.rfind("/", 0, end)
    return False
