"""What belongs to one conversation or workspace is found from nowhere else, however alike their names are."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis

from connectors.message import Author, ConversationKey, InboundMessage, Role, Scope
from connectors.message import Usage as Tokens
from connectors.redis_calls import ask
from grounding.memory.context_document import ContextDocument, ContextDocuments
from grounding.prompt import build_prompt
from grounding.prompt_input import load_tokens
from grounding.retrieval import TurnIndex, TurnText
from grounding.retrieval.qdrant_edge import EmbeddedIndex
from grounding.transcript import EntryRole, Transcript, TranscriptEntry, markdown
from runtime.billing import UsageCounters
from runtime.turns.batch import Envelope
from runtime.turns.mailbox import Mailbox
from runtime.turns.manifest import Manifests, UnknownTurn
from tests.emulators.embedder import HashedWords
from tests.emulators.prompts import context

WORKSPACES = ("acme", "acme-2", "acme.", "a.cme")
CONNECTORS = ("http", "httpx")
PLACES = (
    "1", "-1", "1/7", "1:7", "1%2F7", "1 ", " 1", "C1", "c1", "caf\u00e9", "cafe\u0301", "*", "1*", "{p1}", "}:1",
    "../1", "..", ".", "x:1", "1\n2", "\x00", "acme/http/1", "http:1",
)  # fmt: skip
KEYS = [ConversationKey(*parts) for parts in itertools.product(WORKSPACES, CONNECTORS, PLACES)]
AT = "2026-11-21T10:00:00.000Z"


def secret(key: ConversationKey) -> str:
    """A text that only the conversation *key* holds."""
    return f"lighthouse {KEYS.index(key):04d}"


async def test_no_conversation_sees_the_log_summary_or_messages_of_another(redis: Redis) -> None:
    """Transcripts, counts, context documents and waiting messages under many look-alike names."""
    transcript, contexts, mailbox = Transcript(redis), ContextDocuments(redis), Mailbox(redis)
    for key in KEYS:
        await transcript.append(key, "t1", [TranscriptEntry(EntryRole.INBOUND, secret(key), "t1", AT)])
        await contexts.store(key, ContextDocument(secret(key), 1, 1, 1, "extraction", AT))
        said = InboundMessage(key.connector, key.external_id, "m1", Author("u"), secret(key))
        assert (await mailbox.store(key, Envelope(said, Role.MEMBER, 0.0))).new, key
    for key in KEYS:
        assert [entry.text for entry in await transcript.tail(key, 100)] == [secret(key)]
        assert (await transcript.reach(key)).entries == 1
        document = await contexts.latest(key)
        assert document is not None
        assert document.text == secret(key)
    for partition in {key.partition for key in KEYS}:
        for one in (await transcript.to_copy([partition], 1000))[partition]:
            assert isinstance(one.what, TranscriptEntry)
            assert one.what.text == secret(one.key)


async def test_no_conversation_recalls_the_turns_of_another(tmp_path: Path) -> None:
    """The same words everywhere, searched from every place: each finds its own turn alone."""
    embedder = HashedWords()
    index = EmbeddedIndex(tmp_path / "qdrant", embedder.name, embedder.dimensions, timeout_seconds=20)
    await index.ensure()
    turns = TurnIndex(index, embedder)
    some = KEYS[:: len(KEYS) // 60]
    for key in some:
        await turns.remember([TurnText(key.scope, "t1", secret(key), datetime.now(UTC))])
    for key in some:
        found = await turns.recall(key.scope, "lighthouse", 50)
        assert [turn.text for turn in found] == [secret(key)], key
    unused = ConversationKey("acme", "http", "nobody was here")
    assert await turns.recall(unused.scope, "lighthouse", 50) == []
    await index.close()


async def test_no_workspace_sees_the_turns_or_the_usage_of_another(redis: Redis) -> None:
    """Manifests and counters under look-alike workspaces; an id that is known elsewhere is unknown here."""
    manifests, usage, tokens = Manifests(redis), UsageCounters(redis), load_tokens()
    for number, workspace in enumerate(WORKSPACES, start=1):
        kept = context(workspace_id=workspace, turn_id=f"t{number}")
        await manifests.keep(kept, build_prompt(kept, tokens), AT)
        await ask(redis, usage.record_call(Scope(workspace), "c1", "fake", Tokens(prompt=number)))
    for number, workspace in enumerate(WORKSPACES, start=1):
        scope = Scope(workspace)
        assert [one.turn_id for one in await manifests.newest(scope, 100)] == [f"t{number}"]
        assert [one.prompt for one in await usage.totals(scope)] == [number]
        for other in range(1, len(WORKSPACES) + 1):
            try:
                assert (await manifests.get(scope, f"t{other}")).context.workspace_id == workspace
            except UnknownTurn:
                assert other != number


KEY = st.builds(
    ConversationKey,
    st.from_regex(r"[a-z0-9][a-z0-9._-]{0,5}", fullmatch=True),
    st.sampled_from(["http", "telegram", "slack", "console"]),
    st.text(min_size=1, max_size=12) | st.text(st.sampled_from("a/.:%2F{}*-"), min_size=1, max_size=8),
)


@given(KEY, KEY)
def test_different_conversations_share_no_key_and_no_file(one: ConversationKey, other: ConversationKey) -> None:
    """Whatever platforms call their places: names in Redis and on disk meet only where the conversations do."""
    same = one == other
    assert (one.encoded == other.encoded) == same
    assert ConversationKey.decode(one.encoded) == one
    assert (markdown.path(one) == markdown.path(other)) == same
    assert markdown.path(one).parts[:4] == ("workspaces", one.workspace_id, "logs", "chats")
    assert len(markdown.path(one).parts) == 6
    assert not set(":{}") & set(one.encoded)
