"""Forgets turns and conversations in all stores that hold something of them.

Keys (owner ``forgetting``, in the conversation's partition): ``asked`` one key per message that asked to forget, with
the turn it was about. So the same message, delivered again, forgets the same turn and nothing that was said since.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Any

from connectors.message import ConversationKey, Scope, encode_id, place_audience, redis_key
from grounding.memory.context_document import ContextCopy, ContextDocuments
from grounding.memory.records import Records
from grounding.prompt import Sessions
from grounding.transcript import MarkdownCopy, Transcript
from runtime.attachments import UploadedFiles
from runtime.background.after_turn import TurnIndex
from runtime.background.extraction import ExtractionMarks
from runtime.background.karma import Marking
from runtime.coordination import Job, Jobs
from runtime.delivery import Outbox
from runtime.turns import DeadLetters, Manifests
from runtime.workspaces import ConversationList

if TYPE_CHECKING:
    from redis.asyncio import Redis


JOB = "turns.forget"
"""The background job that removes turns from the recall index, which may be away when they are forgotten."""

_OWNER = "forgetting"
_ASKED_SECONDS = 7 * 24 * 3600
_EVERYTHING = "*"
_NEWEST = 500
"""Turns from which a context document may be written right now: more than
`LLM_GROUNDING_MEMORY_SUMMARY_SOURCE_MAX_LINES`."""


class Forgetting:
    """Forgets turns and conversations.

    Raises `connectors.message.StoreUnavailable` and OSError; the same message, handled again, then completes it.
    """

    def __init__(
        self,
        redis: Redis,
        *,
        transcript: Transcript,
        copy: MarkdownCopy,
        contexts: ContextDocuments,
        context_copy: ContextCopy,
        sessions: Sessions,
        manifests: Manifests,
        outbox: Outbox,
        files: UploadedFiles,
        conversation_list: ConversationList,
        dead_letters: DeadLetters,
        records: Records,
        extraction_marks: ExtractionMarks,
        marking: Marking,
        jobs: Jobs,
    ) -> None:
        self._redis = redis
        self._transcript = transcript
        self._copy = copy
        self._contexts = contexts
        self._context_copy = context_copy
        self._sessions = sessions
        self._manifests = manifests
        self._outbox = outbox
        self._files = files
        self._conversation_list = conversation_list
        self._dead_letters = dead_letters
        self._records = records
        self._extraction_marks = extraction_marks
        self._marking = marking
        self._jobs = jobs

    async def last(self, key: ConversationKey, message_id: str, audience: str | None = None) -> bool:
        """Forget the newest turn of *key*, as *message_id* asks; False if there is none.

        *audience* is who reads the conversation. A context document that was made of the turn is replaced by the one
        before, and written again when it is due.
        """
        newest = await self._transcript.last_turn(key)
        turn_id = (
            await self._note_request(key, message_id, newest)
            if newest
            else await self._earlier_request(key, message_id)
        )
        if not turn_id:
            return False
        entries = await self._transcript.of_turn(key, turn_id)
        message_ids = [entry.message_id for entry in entries if entry.message_id]
        await self._files.forget(key, message_ids)
        await self._conversation_list.forget(key, message_ids)
        await self._transcript.forget_turn(key, turn_id)
        self._copy.forgotten(key)
        if await self._contexts.forget_turn(key, turn_id):
            await self._context_copy.remove(key)
        await self._sessions.end(key)
        await self._marking.unsay(
            key.scope, [turn_id]
        )  # before the manifest, which names the records that the reply used
        await self._manifests.forget(key.scope, [turn_id])
        await self._marking.forget(key.scope, [turn_id])
        await self._outbox.forget(key, [turn_id])
        await self._dead_letters.forget(key, turn_id)
        await self._extraction_marks.forget_turn(key, turn_id, await self._transcript.reach(key))
        await self._forget_records(key, audience, [turn_id])
        await self._jobs.enqueue(Job(JOB, key, turn_id), Job("summary.refresh", key, f"after-forgetting-{turn_id}"))
        return True

    async def skip_extraction(self, key: ConversationKey) -> None:
        """Mark all of *key* as looked through, so that no records come of it. Nothing is deleted."""
        await self._extraction_marks.looked(key, await self._transcript.reach(key), [])

    async def everything(self, key: ConversationKey, message_id: str, audience: str | None = None) -> None:
        """Forget the whole conversation *key*, as *message_id* asks, with its document, session and records.

        *audience* is who reads the conversation.
        """
        if await self._earlier_request(key, message_id):
            return
        turn_ids = await self._transcript.turn_ids(key)
        await self._contexts.forget(key, turn_ids[:_NEWEST])
        await self._context_copy.remove(key)
        await self._sessions.end(key)
        await self._marking.unsay(key.scope, turn_ids)
        await self._manifests.forget(key.scope, turn_ids)  # before the marks, so that no new mark can come of it
        await self._marking.forget_conversation(key)
        await self._outbox.forget(key)
        await self._dead_letters.forget(key)
        await self._files.forget_conversation(key)
        await self._conversation_list.delete(key)
        await self._transcript.forget(key)  # late, because it names the turns if this is interrupted
        # After the transcript: a running extraction finds its turns gone, and deletes the records it has stored.
        await self._extraction_marks.forget(key)
        await self._forget_records(key, audience, None)
        self._copy.forgotten(key)
        await self._jobs.enqueue(Job(JOB, key, _EVERYTHING + encode_id(message_id)))
        await self._note_request(key, message_id, _EVERYTHING)

    async def _forget_records(
        self, key: ConversationKey, audience: str | None, turn_ids: Collection[str] | None
    ) -> None:
        """Delete the records that came of the conversation, or of those turns.

        They belong to *audience*, to everybody, or to the place, if it was open earlier or kept apart from its threads.
        """
        for owner in dict.fromkeys((None, audience, place_audience(key.context_id))):
            await self._records.forget_said(Scope(key.workspace_id, key.context_id, owner), turn_ids)

    async def _note_request(self, key: ConversationKey, message_id: str, turn_id: str) -> str:
        """Store that *message_id* asks to forget *turn_id*; return the stored turn if it has asked before."""
        if await self._redis.set(_key(key, message_id), turn_id, nx=True, ex=_ASKED_SECONDS):
            return turn_id
        return await self._earlier_request(key, message_id)

    async def _earlier_request(self, key: ConversationKey, message_id: str) -> str:
        turn_id: Any = await self._redis.get(_key(key, message_id))
        return str(turn_id or "")


class ForgetTurns:
    """The job that removes what was forgotten from the recall index, and updates the index of the context document."""

    def __init__(
        self,
        index: Callable[[], Awaitable[TurnIndex]],
        index_document: Callable[[ConversationKey], Awaitable[None]],
    ) -> None:
        self._open_index = index
        self._index_document = index_document

    async def __call__(self, job: Job) -> None:
        """Raises `grounding.retrieval.IndexUnavailable`; then the job is repeated."""
        index = await self._open_index()
        everything = job.turn_id.startswith(_EVERYTHING)
        await index.forget(job.key.scope, None if everything else [job.turn_id])
        await self._index_document(job.key)


def _key(key: ConversationKey, message_id: str) -> str:
    return redis_key(_OWNER, key.tag, "asked", key.encoded, encode_id(message_id))
