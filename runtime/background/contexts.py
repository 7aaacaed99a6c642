"""What people and programs do with context documents, and what follows a document that changed: its file, its place in
the search index."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Protocol

import structlog

from connectors.message import AgentRuntimeError, ConversationKey
from grounding.memory.context_document import ContextCopy, ContextDocument, ContextDocuments, Mark, written
from grounding.retrieval import EmbedderUnavailable, IndexUnavailable
from grounding.transcript import Transcript
from runtime.coordination import Job, Jobs

JOB = "context.index"
"""The background job that lets searches find a context document."""

_ATTEMPTS = 5
"""Somebody else may write at the same moment, as often as this."""
_PUT_ATTEMPTS = 100
"""Each attempt that comes too late is another's that came in time: as many may put a document at once, whoever does not
say which one is to be replaced."""
_log = structlog.get_logger()


class ContextMoved(AgentRuntimeError):
    """The document is not the one any more that the caller has seen."""

    retryable = False
    user_text = "The document has changed meanwhile. Look at it again and repeat your change."


class KeepsContexts(Protocol):
    """What lets context documents be found; see `grounding.retrieval.chunking.ContextField`."""

    async def put(self, key: ConversationKey, text: str, at: str) -> None: ...

    async def forget(self, key: ConversationKey) -> None: ...


class ContextFollowing:
    """Brings the file and the index in step with a document. *exists* says whether there is a workspace of that id:
    documents of other vaults have no file."""

    def __init__(
        self,
        contexts: ContextDocuments,
        copy: ContextCopy,
        exists: Callable[[str], Awaitable[bool]],
        field: Callable[[], Awaitable[KeepsContexts]],
    ) -> None:
        self._contexts = contexts
        self._copy = copy
        self._exists = exists
        self._field = field
        self._copy_failing = False

    async def in_step(self, marks: Mapping[ConversationKey, Mark]) -> set[ConversationKey]:
        """Those whose file is as it should be, and whose document can be found."""
        written_ones = await self._copy.in_step(marks)
        return {key for key in written_ones if marks[key].is_indexed}

    async def copy(self, key: ConversationKey, document: ContextDocument) -> None:
        """Write *document* into its file. If that fails it is said once, and done after a later turn."""
        if not await self._exists(key.workspace_id):
            return
        try:
            is_new = await self._copy.write(key, document.text, document.mark)
        except OSError as error:
            if not self._copy_failing:
                _log.warning("store.degraded", store="context_copies", why=type(error).__name__, detail=str(error))
            self._copy_failing = True
            return
        self._copy_failing = False
        if is_new and await self._contexts.latest(key) is None:  # forgotten in between
            await self._copy.remove(key)

    async def index(self, key: ConversationKey) -> None:
        """Let searches find the latest document of *key*, or none where there is none.

        Raises `IndexUnavailable` and `EmbedderUnavailable`.
        """
        await index_latest(self._contexts, await self._field(), key)

    async def __call__(self, job: Job) -> None:
        """The job `JOB`."""
        await self.index(job.key)

    async def forgotten(self, key: ConversationKey) -> None:
        """Take the file of *key* away. Raises OSError."""
        await self._copy.remove(key)


async def index_latest(contexts: ContextDocuments, field: KeepsContexts, key: ConversationKey) -> None:
    """Let searches find the latest document of *key*, also where another comes meanwhile; none where there is none.

    Raises `IndexUnavailable`, `EmbedderUnavailable` and `StoreUnavailable`.
    """
    for _ in range(_ATTEMPTS):
        document = await contexts.latest(key)
        if document is None:
            await field.forget(key)
            if await contexts.latest(key) is None:
                return
            continue
        await field.put(key, document.text, document.at)
        if await contexts.was_indexed(key, document):
            return


class ContextKeeping:
    """Puts documents as they are given, byte for byte, and forgets them. Raises `StoreUnavailable` throughout."""

    def __init__(
        self,
        contexts: ContextDocuments,
        transcript: Transcript,
        following: ContextFollowing,
        jobs: Jobs,
        index_seconds: float,
    ) -> None:
        """*index_seconds* bounds how long a caller waits until what was put can be found; then a job goes on."""
        self._contexts = contexts
        self._transcript = transcript
        self._following = following
        self._jobs = jobs
        self._index_seconds = index_seconds

    async def put(
        self, key: ConversationKey, text: str, author: str, holds: Callable[[ContextDocument | None], bool]
    ) -> ContextDocument:
        """Make *text* the document of *key*; as it was stored.

        *holds* says whether the one there is now may be replaced. Raises `ContextMoved` where it may not.
        """
        for _ in range(_PUT_ATTEMPTS):
            base = await self._contexts.latest(key)
            if not holds(base):
                break
            document = await self._contexts.store(
                key, await self._made(key, text, author, base), base.id if base else ""
            )
            if document is not None:
                await self._follow(key, document)
                size = len(text.encode("utf-8", "surrogatepass"))
                _log.info("summary.put", workspace_id=key.workspace_id, context_id=key.context_id, bytes=size)
                return document
        raise ContextMoved("the context document has changed meanwhile: get the latest version, and put yours again")

    async def _made(
        self, key: ConversationKey, text: str, author: str, base: ContextDocument | None
    ) -> ContextDocument:
        reach = await self._transcript.reach(key)
        return ContextDocument(
            text=text,
            version=(base.version if base else 0) + 1,
            turns=base.turns if base else 0,
            entries=base.entries if base else 0,
            made_by="person",
            at=now(),
            author=author,
            kept=written(text, base.text if base else "", base.kept if base else ()),
            put=reach,
            after_turn=(await self._transcript.last_turn(key)) or "" if reach.turns else "",
        )

    async def _follow(self, key: ConversationKey, document: ContextDocument) -> None:
        await self._jobs.enqueue(Job(JOB, key, document.id))
        await self._following.copy(key, document)
        try:
            async with asyncio.timeout(self._index_seconds):
                await self._following.index(key)
        except (IndexUnavailable, EmbedderUnavailable, TimeoutError) as error:
            why = str(error) or "timeout"
            _log.warning("index.failed", workspace_id=key.workspace_id, context_id=key.context_id, why=why)

    async def forget(self, key: ConversationKey) -> bool:
        """Drop the document of *key* with all its versions; False where there is none. Raises OSError where its file
        stays."""
        existed = await self._contexts.forget(key)
        if existed:
            await self._jobs.enqueue(Job(JOB, key, f"after-forgetting-{now()}"))
        await self._following.forgotten(key)
        return existed


def now() -> str:
    """The time as versions carry it: RFC 3339 in UTC, in milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
