"""Puts and forgets context documents on request, and keeps each document's file and search index entry up to date."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Protocol

import structlog

from connectors.message import AgentRuntimeError, ConversationKey
from grounding.memory.context_document import (
    ContextCopy,
    ContextDocument,
    ContextDocuments,
    DocumentLimits,
    lines_by_people,
)
from grounding.retrieval import EmbedderUnavailable, IndexUnavailable
from grounding.transcript import Transcript
from runtime.coordination import Job, Jobs

JOB = "context.index"
"""The background job that indexes a context document."""

_INDEX_ATTEMPTS = 5
"""An attempt fails if somebody else stores a new version at the same moment."""
_PUT_ATTEMPTS = 100
"""An attempt fails if another one succeeds: so many callers may put a document at once without naming the version to
replace."""
_log = structlog.get_logger()


class ContextMoved(AgentRuntimeError):
    """The document is not the one that the caller has seen."""

    retryable = False
    user_text = "The document has changed meanwhile. Look at it again and repeat your change."


class ContextIndex(Protocol):
    """The search index of context documents; see `grounding.retrieval.chunking.ContextField`."""

    async def put(self, key: ConversationKey, text: str, at: str) -> None: ...

    async def forget(self, key: ConversationKey) -> None: ...


class ContextSync:
    """Brings a document's file and its index entry up to date.

    *exists* says whether there is a workspace with an id: other documents get no file. *index* opens the index.
    """

    def __init__(
        self,
        contexts: ContextDocuments,
        copy: ContextCopy,
        exists: Callable[[str], Awaitable[bool]],
        index: Callable[[], Awaitable[ContextIndex]],
    ) -> None:
        self._contexts = contexts
        self._copy = copy
        self._exists = exists
        self._open_index = index

    async def copy(self, key: ConversationKey, document: ContextDocument) -> None:
        """Write *document* to its file. A failure is logged; the next version is written again."""
        if not await self._exists(key.workspace_id):
            return
        try:
            is_new = await self._copy.write(key, document.text)
        except OSError as error:
            _log.warning("store.degraded", store="context_copies", why=type(error).__name__, detail=str(error))
            return
        if is_new and await self._contexts.latest(key) is None:  # it was forgotten meanwhile
            await self._copy.remove(key)

    async def index(self, key: ConversationKey) -> None:
        """Bring the index up to date with the document of *key*. Raises as `index_latest`."""
        await index_latest(self._contexts, await self._open_index(), key)

    async def __call__(self, job: Job) -> None:
        """Do the job `JOB`."""
        await self.index(job.key)

    async def forgotten(self, key: ConversationKey) -> None:
        """Delete the file of *key*. Raises OSError."""
        await self._copy.remove(key)


async def index_latest(contexts: ContextDocuments, index: ContextIndex, key: ConversationKey) -> None:
    """Index the latest document of *key*, or remove it from the index if there is none.

    Raises `IndexUnavailable`, `EmbedderUnavailable` and `StoreUnavailable`.
    """
    for _ in range(_INDEX_ATTEMPTS):
        document = await contexts.latest(key)
        if document is None:
            await index.forget(key)
            if await contexts.latest(key) is None:
                return
            continue
        await index.put(key, document.text, document.at)
        if await contexts.note_indexed(key, document):
            return


class ContextEditor:
    """Puts documents byte for byte, and forgets them. Every method raises `StoreUnavailable`."""

    def __init__(
        self,
        contexts: ContextDocuments,
        transcript: Transcript,
        sync: ContextSync,
        jobs: Jobs,
        limits: DocumentLimits,
        index_seconds: float,
    ) -> None:
        """*index_seconds*: how long a caller waits for the index; after that a background job does it."""
        self._contexts = contexts
        self._transcript = transcript
        self._sync = sync
        self._jobs = jobs
        self._limits = limits
        self._index_seconds = index_seconds

    async def put(
        self, key: ConversationKey, text: str, author: str, holds: Callable[[ContextDocument | None], bool]
    ) -> ContextDocument:
        """Make *text* the document of *key*, and return it as stored.

        *holds* says whether the current document may be replaced. Raises `ContextMoved` if it may not.
        """
        for _ in range(_PUT_ATTEMPTS):
            current = await self._contexts.latest(key)
            if not holds(current):
                break
            version = await self._next_version(key, text, author, current)
            document = await self._contexts.store(key, version, current.id if current else "")
            if document is not None:
                document = await self._note_crowding(key, document)
                await self._publish(key, document)
                size = len(text.encode("utf-8", "surrogatepass"))
                _log.info("summary.put", workspace_id=key.workspace_id, context_id=key.context_id, bytes=size)
                return document
        raise ContextMoved("the context document has changed meanwhile: get the latest version, and put yours again")

    async def _next_version(
        self, key: ConversationKey, text: str, author: str, current: ContextDocument | None
    ) -> ContextDocument:
        reach = await self._transcript.reach(key)
        return ContextDocument(
            text=text,
            version=(current.version if current else 0) + 1,
            turns=current.turns if current else 0,
            entries=current.entries if current else 0,
            made_by="person",
            at=now(),
            author=author,
            kept=lines_by_people(text, current.text if current else "", current.kept if current else ()),
            put=reach,
            after_turn=(await self._transcript.last_turn(key)) or "" if reach.turns else "",
        )

    async def _note_crowding(self, key: ConversationKey, document: ContextDocument) -> ContextDocument:
        """Return *document* with the problem that people's lines alone are too long for a prompt, if they are."""
        problem = await asyncio.to_thread(self._limits.crowding, document.kept)
        if problem is not None:
            await self._contexts.note_problem(key, document, problem)
        return replace(document, problem=problem)

    async def _publish(self, key: ConversationKey, document: ContextDocument) -> None:
        """Write the file, and index *document* now if that takes little time; else the job does it."""
        await self._jobs.enqueue(Job(JOB, key, document.id))
        await self._sync.copy(key, document)
        try:
            async with asyncio.timeout(self._index_seconds):
                await self._sync.index(key)
        except (IndexUnavailable, EmbedderUnavailable, TimeoutError) as error:
            why = str(error) or "timeout"
            _log.warning("index.failed", workspace_id=key.workspace_id, context_id=key.context_id, why=why)

    async def forget(self, key: ConversationKey) -> bool:
        """Delete the document of *key* with all its versions; False if there is none.

        Raises OSError if its file cannot be deleted.
        """
        existed = await self._contexts.forget(key)
        if existed:
            await self._jobs.enqueue(Job(JOB, key, f"after-forgetting-{now()}"))
        await self._sync.forgotten(key)
        return existed


def now() -> str:
    """Return the time of a version: RFC 3339 in UTC, in milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
