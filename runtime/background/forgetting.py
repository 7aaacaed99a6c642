"""Takes what was said out of everything that keeps it.

Keys (owner ``forgetting``, in the conversation's partition): ``asked`` one key per message that asked for it, with what
it was about, so that the same message, delivered again, forgets the same once more and nothing that was said since.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from connectors.message import ConversationKey, Scope, encode_id, place_audience, redis_key
from grounding.memory.context_document import ContextCopy, ContextDocuments
from grounding.memory.records import ForgetsRecords
from grounding.prompt import Sessions
from grounding.transcript import MarkdownCopy, Transcript
from runtime.attachments import KeptFiles
from runtime.background.after_turn import TellsTurns
from runtime.background.extraction import ExtractionMarks
from runtime.coordination import Job, Jobs
from runtime.delivery import Outbox
from runtime.turns import DeadLetters, Manifests
from runtime.workspaces import ConversationList

if TYPE_CHECKING:
    from redis.asyncio import Redis


JOB = "turns.forget"
"""The background job that takes turns out of the recall index, which may be away when they are forgotten."""

_OWNER = "forgetting"
_ASKED_SECONDS = 7 * 24 * 3600
_EVERYTHING = "*"
_NEWEST = 500
"""Turns of which a document may be in the making: more than `LLM_GROUNDING_MEMORY_SUMMARY_SOURCE_MAX_LINES`."""


class ForgetsMarks(Protocol):
    """What keeps what people said of replies; see `runtime.background.karma.Marking`."""

    async def unsay(self, scope: Scope, turn_ids: Collection[str]) -> None: ...

    async def forget(self, scope: Scope, turn_ids: Sequence[str]) -> int: ...

    async def forget_conversation(self, key: ConversationKey) -> None: ...


class Forgetting:
    """Forgets turns and conversations. Raises `connectors.message.StoreUnavailable` and OSError; asked for again by
    the same message it then goes on where it stopped."""

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
        files: KeptFiles,
        conversation_list: ConversationList,
        dead_letters: DeadLetters,
        records: ForgetsRecords,
        extraction_marks: ExtractionMarks,
        marking: ForgetsMarks,
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
        """Forget the newest turn of *key*, as *message_id* asks; False where there is none. *audience* is
        who reads the conversation.

        A context document that was made of it gives way to the one before, and is made anew when it is due.
        """
        newest = await self._transcript.last_turn(key)
        turn_id = await self._asked(key, message_id, newest) if newest else await self._asked_before(key, message_id)
        if not turn_id:
            return False
        said = await self._transcript.of_turn(key, turn_id)
        message_ids = [entry.message_id for entry in said if entry.message_id]
        await self._files.forget(key, message_ids)
        await self._conversation_list.forget(key, message_ids)
        await self._transcript.forget_turn(key, turn_id)
        self._copy.forgotten(key)
        if await self._contexts.forget_turn(key, turn_id):
            await self._context_copy.remove(key)
        await self._sessions.end(key)
        await self._marking.unsay(key.scope, [turn_id])  # the manifest knows which records its reply used
        await self._manifests.forget(key.scope, [turn_id])
        await self._marking.forget(key.scope, [turn_id])
        await self._outbox.forget(key, [turn_id])
        await self._dead_letters.forget(key, turn_id)
        await self._extraction_marks.forget_turn(key, turn_id, await self._transcript.reach(key))
        await self._forget_records(key, audience, [turn_id])
        await self._jobs.enqueue(Job(JOB, key, turn_id), Job("summary.refresh", key, f"after-forgetting-{turn_id}"))
        return True

    async def records_to_come(self, key: ConversationKey) -> None:
        """Let no record come any more of what was said in *key* until now, though all of it stays."""
        await self._extraction_marks.looked(key, await self._transcript.reach(key), [])

    async def everything(self, key: ConversationKey, message_id: str, audience: str | None = None) -> None:
        """Forget all that was said in *key*, as *message_id* asks, with its context document, its session and the
        records that came of it. *audience* is who reads the conversation."""
        if await self._asked_before(key, message_id):
            return
        turn_ids = await self._transcript.turn_ids(key)
        await self._contexts.forget(key, turn_ids[:_NEWEST])
        await self._context_copy.remove(key)
        await self._sessions.end(key)
        await self._marking.unsay(key.scope, turn_ids)
        await self._manifests.forget(key.scope, turn_ids)  # before the marks: none is made anew of what is forgotten
        await self._marking.forget_conversation(key)
        await self._outbox.forget(key, turn_ids)  # of those that a former version stored the outbox has no list
        await self._outbox.forget(key)
        await self._dead_letters.forget(key)
        await self._files.forget_conversation(key)
        await self._conversation_list.delete(key)
        await self._transcript.forget(key)  # it knows the turns, should this be interrupted
        # After the transcript: what is being looked through now finds its turns gone, and takes back what it keeps.
        await self._extraction_marks.forget(key)
        await self._forget_records(key, audience, None)
        self._copy.forgotten(key)
        await self._jobs.enqueue(Job(JOB, key, _EVERYTHING + encode_id(message_id)))
        await self._asked(key, message_id, _EVERYTHING)

    async def _forget_records(
        self, key: ConversationKey, audience: str | None, turn_ids: Collection[str] | None
    ) -> None:
        """Take away the records that came of the conversation (of those turns): *audience*'s, those that were shared,
        and those of a time when the place was open or was kept apart from its threads."""
        for owner in dict.fromkeys((None, audience, place_audience(key.context_id))):
            await self._records.forget_said(Scope(key.workspace_id, key.context_id, owner), turn_ids)

    async def _asked(self, key: ConversationKey, message_id: str, what: str) -> str:
        """What *message_id* asked to forget: *what*, unless it asked before."""
        if await self._redis.set(_key(key, message_id), what, nx=True, ex=_ASKED_SECONDS):
            return what
        return await self._asked_before(key, message_id)

    async def _asked_before(self, key: ConversationKey, message_id: str) -> str:
        asked: Any = await self._redis.get(_key(key, message_id))
        return str(asked or "")


class ForgetTurns:
    """The job that takes what was forgotten out of the recall index, and out of what is found of the context document,
    which *index_document* brings in step."""

    def __init__(
        self,
        turns: Callable[[], Awaitable[TellsTurns]],
        index_document: Callable[[ConversationKey], Awaitable[None]],
    ) -> None:
        self._turns = turns
        self._index_document = index_document

    async def __call__(self, job: Job) -> None:
        """Raises `grounding.retrieval.index.IndexUnavailable`: then it is tried again."""
        index = await self._turns()
        everything = job.turn_id.startswith(_EVERYTHING)
        await index.forget(job.key.scope, None if everything else [job.turn_id])
        await self._index_document(job.key)


def _key(key: ConversationKey, message_id: str) -> str:
    return redis_key(_OWNER, key.tag, "asked", key.encoded, encode_id(message_id))
