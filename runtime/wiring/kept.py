"""What is kept: all that owns keys in Redis, and the copies of it on disk."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

from config.settings import Settings
from connectors.message import StoreUnavailable
from grounding.cues.file import problem_in
from grounding.layers import global_context
from grounding.memory.contexts import ContextDocuments
from grounding.memory.copy import ContextCopy
from grounding.memory.frames.file import problem_in as problem_in_frames
from grounding.memory.global_context import GlobalContexts
from grounding.memory.karma.store import MarkStore
from grounding.memory.selection.kept import KeptSelections
from grounding.sessions.store import Sessions
from grounding.tokens import Tokens
from grounding.transcript.copy import MarkdownCopy
from grounding.transcript.log import Transcript
from promptpolicy.directives import Directives
from promptpolicy.files import FilingPublisher
from promptpolicy.slot import Kind
from promptpolicy.tree import DirectiveTree
from runtime.attachments.kept import KeptFiles
from runtime.conversation_list import ConversationList
from runtime.extraction_marks import ExtractionMarks
from runtime.hub import Hub
from runtime.limits import RateLimit
from runtime.outbox import Outbox
from runtime.places import Places
from runtime.stores import RedisStore
from runtime.turns import Checkpoints, DeadLetters, Lane, Mailbox, Manifests
from runtime.usage import Usage
from runtime.workspaces import Workspaces

LAST_COPY_SECONDS = 2.0


@dataclass(frozen=True)
class Kept:
    """The owners of what outlives a process, and the news between processes."""

    store: RedisStore
    hub: Hub
    workspaces: Workspaces
    limit: RateLimit
    mailboxes: Mapping[Lane, Mailbox]
    checkpoints: Checkpoints
    outbox: Outbox
    files: KeptFiles
    conversation_list: ConversationList
    dead_letters: DeadLetters
    transcript: Transcript
    copy: MarkdownCopy
    contexts: ContextDocuments
    context_copy: ContextCopy
    global_contexts: GlobalContexts
    extraction_marks: ExtractionMarks
    selections: KeptSelections
    marks: MarkStore
    sessions: Sessions
    manifests: Manifests
    directives: Directives
    publisher: FilingPublisher
    usage: Usage
    places: Places

    @property
    def turns(self) -> Mailbox:
        """The mailbox of what is to be answered."""
        return self.mailboxes[Lane.TURNS]

    async def last_copy(self) -> None:
        """What the last turns said goes to the chat logs before the store closes. Never raises, bounded."""
        with contextlib.suppress(StoreUnavailable, OSError, TimeoutError):  # it waits in Redis for the next start
            async with asyncio.timeout(LAST_COPY_SECONDS):
                await self.copy.flush()


def wire_kept(settings: Settings, store: RedisStore, tokens: Tokens) -> Kept:
    """All of it, on one store."""
    redis, alone = store.client, settings.redis_url is None
    hub = Hub(redis, shared=not alone)
    mailboxes = {lane: Mailbox(redis, lane) for lane in Lane}
    transcript = Transcript(redis)
    directives = Directives(redis, settings.redis_timeout_seconds)
    tree = DirectiveTree(settings.data_dir)
    return Kept(
        store=store,
        hub=hub,
        workspaces=Workspaces(redis, settings),
        limit=RateLimit(redis, settings),
        mailboxes=mailboxes,
        checkpoints=Checkpoints(redis),
        outbox=Outbox(redis, hub),
        files=KeptFiles(redis, settings.data_dir),
        conversation_list=ConversationList(redis),
        dead_letters=DeadLetters(redis, mailboxes, hub),
        transcript=transcript,
        copy=MarkdownCopy(transcript, settings.data_dir, alone=alone),
        contexts=ContextDocuments(redis),
        context_copy=ContextCopy(settings.data_dir),
        global_contexts=GlobalContexts(
            redis,
            tokens,
            max_tokens=max(0, settings.global_context_max_tokens - global_context.frame_tokens(tokens)),
            idle_seconds=settings.session_idle_seconds,
        ),
        extraction_marks=ExtractionMarks(redis),
        selections=KeptSelections(redis, settings.session_idle_seconds),
        marks=MarkStore(redis),
        sessions=Sessions(redis, settings.session_idle_seconds),
        manifests=Manifests(redis),
        directives=directives,
        publisher=FilingPublisher(
            directives,
            tokens.count,
            settings.policy_max_tokens,
            tree,
            {Kind.CUES: problem_in, Kind.FRAMES: problem_in_frames},
        ),
        usage=Usage(redis),
        places=Places(redis),
    )
