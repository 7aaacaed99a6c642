"""What the chat page shows of a conversation when it is opened again."""

from __future__ import annotations

from redis.asyncio import Redis

from connectors.message import ConversationKey
from grounding.transcript.entry import Entry, EntryRole
from grounding.transcript.log import Transcript
from runtime.hub import Hub
from runtime.outbox import Outbox
from runtime.replies import NOTHING_SAID
from runtime.web_history import recent

KEY = ConversationKey("acme", "web", "main")
AT = "2026-11-22T10:00:00.000Z"


async def test_an_answer_that_was_stopped_before_its_first_word_is_not_shown_again(redis: Redis) -> None:
    transcript = Transcript(redis)
    for turn_id, asked, answered in (("t1", "What is a halyard?", NOTHING_SAID), ("t2", NOTHING_SAID, "A line.")):
        said = [
            Entry(EntryRole.INBOUND, asked, turn_id, AT, "Lena", "web:lena", f"in-{turn_id}"),
            Entry(EntryRole.OUTBOUND, answered, turn_id, AT, "agent-runtime"),
        ]
        await transcript.append(KEY, turn_id, said)

    shown = await recent(transcript, Outbox(redis, Hub(redis, shared=False)), KEY, 10)

    assert [one.text for one in shown] == ["What is a halyard?", NOTHING_SAID, "A line."]
