"""What reactions and commands are given to, over a real store."""

from __future__ import annotations

from redis.asyncio import Redis

from config.settings import Settings
from grounding.memory.karma import Karma, Likeness, MarkStore
from grounding.memory.records import Records
from grounding.prompt_input import load_tokens
from grounding.retrieval import Embedder
from grounding.transcript import Transcript
from promptpolicy.sigils import Sigils
from runtime.access import Access, ApiTokens
from runtime.background import Marking
from runtime.coordination import Hub
from runtime.delivery import Outbox
from runtime.turns.manifest import Manifests
from tests.emulators.embedder import HashedWords
from tests.emulators.records import RememberedRecords


def karma_on(redis: Redis, embedder: Embedder | None = None) -> Karma:
    """What turns are shown."""

    async def embedding() -> Embedder:
        return embedder or HashedWords()

    return Karma(MarkStore(redis), Likeness(embedding))


def marking_on(
    redis: Redis,
    *,
    records: Records | None = None,
    marks: MarkStore | None = None,
    today: str = "2026-11-22",
    **settings: object,
) -> Marking:
    """Marks as they are kept; everybody may mark unless *settings* say otherwise."""
    chosen = Settings.model_validate({"access_policy": "open", **settings})
    return Marking(
        marks or MarkStore(redis),
        transcript=Transcript(redis),
        manifests=Manifests(redis),
        outbox=Outbox(redis, Hub(redis, shared=False)),
        access=Access(redis, chosen, ApiTokens(redis, "admin-token")),
        records=records or RememberedRecords(),
        sigils=Sigils.from_settings(chosen),
        tokens=load_tokens(),
        today=lambda: today,
    )
