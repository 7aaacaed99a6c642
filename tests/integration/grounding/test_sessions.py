"""What the last prompt of a conversation showed, and when that is not stored."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from connectors.message import ConversationKey, Fence, Superseded, redis_key
from connectors.redis_calls import ask
from grounding.prompt import Sessions, Shown

KEY = ConversationKey("acme", "http", "default")


def shown(turn_id: str, turns: int = 1) -> Shown:
    return Shown(id="t1", began_on="2026-11-21", turns=turns, turn_id=turn_id)


async def test_a_turn_in_whose_time_the_session_ended_does_not_bring_it_back(redis: Redis) -> None:
    sessions = Sessions(redis, idle_seconds=1800)
    for first in (None, shown("t1")):  # the first turn of a session, and a later one
        assert await ask(redis, sessions.get_call(KEY)) == first
        await sessions.end(KEY)
        await ask(redis, sessions.keep_call(KEY, shown("t2", 2)))

        assert await ask(redis, sessions.get_call(KEY)) is None  # the next turn begins a session
        await ask(redis, sessions.keep_call(KEY, shown("t1")))


async def test_a_worker_that_has_lost_the_conversation_does_not_store_what_it_showed(redis: Redis) -> None:
    sessions, lease = Sessions(redis, idle_seconds=1800), redis_key("mailbox", KEY.tag, "current", KEY.encoded)
    await redis.hset(lease, "token", "b")
    await ask(redis, sessions.keep_call(KEY, shown("t2", 2), Fence(lease, "b")))

    with pytest.raises(Superseded):
        await ask(redis, sessions.keep_call(KEY, shown("t1"), Fence(lease, "a")))

    assert await ask(redis, sessions.get_call(KEY)) == shown("t2", 2)
