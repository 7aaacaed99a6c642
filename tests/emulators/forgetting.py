"""All that keeps what was said, and what makes it forget."""

from __future__ import annotations

from pathlib import Path

from redis.asyncio import Redis

from connectors.message import ConversationKey
from grounding.memory.context_document import ContextCopy, ContextDocuments
from grounding.prompt import Sessions
from grounding.transcript import EntryRole, MarkdownCopy, Transcript, TranscriptEntry, markdown
from runtime.attachments import UploadedFiles
from runtime.background import ExtractionMarks, Forgetting
from runtime.coordination import Hub, Jobs
from runtime.delivery import Outbox
from runtime.turns.dead_letters import DeadLetters
from runtime.turns.manifest import Manifests
from runtime.workspaces import ConversationList
from tests.emulators.marking import marking_on
from tests.emulators.prompts import build, context
from tests.emulators.records import RememberedRecords

KEY = ConversationKey("acme", "http", "default")
OTHER = ConversationKey("acme", "http", "other")


def turn(number: int) -> list[TranscriptEntry]:
    at = "2026-11-21T10:00:00.000Z"
    return [
        TranscriptEntry(
            EntryRole.INBOUND, f"question {number}\n## not a header", f"t{number}", at, "Lena", "http:u1", f"m{number}"
        ),
        TranscriptEntry(EntryRole.OUTBOUND, f"answer {number}", f"t{number}", at, "agent-runtime"),
    ]


class House:
    """All that keeps what was said."""

    def __init__(self, redis: Redis, data_dir: Path) -> None:
        self.redis = redis
        self.data_dir = data_dir
        self.transcript = Transcript(redis)
        self.copy = MarkdownCopy(self.transcript, data_dir)
        self.contexts = ContextDocuments(redis)
        self.context_copy = ContextCopy(data_dir)
        self.sessions = Sessions(redis, 1800)
        self.manifests = Manifests(redis)
        self.letters = DeadLetters(redis, {}, Hub(redis, shared=False))
        self.outbox = Outbox(redis, Hub(redis, shared=False))
        self.records = RememberedRecords()
        self.marks = ExtractionMarks(redis)
        self.marking = marking_on(redis)
        self.forgetting = Forgetting(
            redis,
            transcript=self.transcript,
            copy=self.copy,
            contexts=self.contexts,
            context_copy=self.context_copy,
            sessions=self.sessions,
            manifests=self.manifests,
            outbox=self.outbox,
            files=UploadedFiles(redis, data_dir),
            conversation_list=ConversationList(redis),
            dead_letters=self.letters,
            records=self.records,
            extraction_marks=self.marks,
            marking=self.marking,
            jobs=Jobs(redis, {}),
        )

    async def say(self, number: int, key: ConversationKey = KEY) -> None:
        await self.transcript.append(key, f"t{number}", turn(number))
        prompt = build(turn_id=f"t{number}", context_id=key.context_id)
        await self.manifests.keep(context(turn_id=f"t{number}"), prompt, "2026-11-21T10:00:00Z")

    async def log(self, key: ConversationKey = KEY) -> list[str]:
        await self.copy.flush()
        path = self.data_dir / markdown.path(key)
        return [entry.text for entry in markdown.read(path.read_text())] if path.exists() else []

    async def everything_stored(self) -> str:
        """All values in the store as one text."""
        found: list[str] = []
        async for key in self.redis.scan_iter():
            kind = await self.redis.type(key)
            match kind:
                case "string":
                    found.append(str(await self.redis.get(key)))
                case "hash":
                    found.append(str(await self.redis.hgetall(key)))
                case "stream":
                    found.append(str(await self.redis.xrange(key)))
        return "\n".join(found)
