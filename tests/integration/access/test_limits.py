"""The rate limit, on a real Redis."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from typing import Any

import pytest
from redis.asyncio import Redis

from config.settings import Settings
from connectors.message import Author, ConversationKey, InboundMessage, Role
from runtime.access import Access, Admission, ApiTokens, RateLimit

KEY = ConversationKey("acme", "telegram", "-100")
MESSAGE = InboundMessage(connector="telegram", external_id="-100", message_id="1", author=Author("42"), text="hi")
SETTINGS = Settings(rate_limit_messages=3, rate_limit_window_seconds=60)


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


NUMBERS = itertools.count()


async def admit(limit: RateLimit, message: InboundMessage = MESSAGE, key: ConversationKey = KEY) -> Admission:
    """What becomes of one more message like that."""
    return await limit.admit(key, replace(message, message_id=f"m{next(NUMBERS)}"), Role.MEMBER)


async def test_the_window_slides(redis: Redis) -> None:
    """So many messages are let through per window; each makes room again when it is a window old."""
    clock = Clock()
    limit = RateLimit(redis, SETTINGS, clock=clock)
    for _ in range(3):
        assert await admit(limit) == Admission(True)
        clock.now += 10
    assert await admit(limit) == Admission(False, 30, first_refusal=True)
    clock.now += 29.5
    assert await admit(limit) == Admission(False, 1)
    clock.now += 0.5
    assert await admit(limit) == Admission(True)
    assert (await admit(limit)).retry_after_seconds == 10


async def test_a_message_that_comes_again_counts_once(redis: Redis) -> None:
    """Its platform brings it again where it was not told that the message was taken."""
    limit = RateLimit(redis, SETTINGS)
    again = [await limit.admit(KEY, MESSAGE, Role.MEMBER) for _ in range(10)]
    assert again == [Admission(True)] * 10
    assert [(await admit(limit)).allowed for _ in range(3)] == [True, True, False]


async def test_refused_messages_do_not_lengthen_the_wait(redis: Redis) -> None:
    """Whoever keeps on while refused waits no longer for it."""
    clock = Clock()
    limit = RateLimit(redis, SETTINGS, clock=clock)
    for _ in range(50):
        await admit(limit)
    clock.now += 60
    assert (await admit(limit)).allowed


async def test_a_person_is_told_once_in_a_window(redis: Redis) -> None:
    """Of all refusals within a window exactly one asks for a notice."""
    limit = RateLimit(redis, SETTINGS)
    admissions = [await admit(limit) for _ in range(10)]
    assert [a.allowed for a in admissions] == [True] * 3 + [False] * 7
    assert [a.first_refusal for a in admissions] == [False] * 3 + [True] + [False] * 6
    assert all(1 <= a.retry_after_seconds <= 60 for a in admissions[3:])


async def test_messages_at_once_do_not_slip_through(redis: Redis) -> None:
    """Of many messages at the same moment no more than the limit are let through, and one refusal is the first."""
    limit = RateLimit(redis, SETTINGS)
    admissions = await asyncio.gather(*(admit(limit) for _ in range(40)))
    assert sum(a.allowed for a in admissions) == 3
    assert sum(a.first_refusal for a in admissions) == 1


async def test_people_and_conversations_have_limits_of_their_own(redis: Redis) -> None:
    """What one person sends into one conversation counts for nobody else and nowhere else."""
    limit = RateLimit(redis, SETTINGS)
    for _ in range(4):
        await admit(limit)
    assert not (await admit(limit)).allowed
    assert (await admit(limit, replace(MESSAGE, author=Author("43")))).allowed
    for key in (
        ConversationKey("other", "telegram", "-100"),
        ConversationKey("acme", "discord", "-100"),
        ConversationKey("acme", "telegram", "-100/7"),
        ConversationKey("acme", "telegram", "100"),
    ):
        assert (await admit(limit, key=key)).allowed


async def test_admins_and_their_tokens_are_exempt(redis: Redis) -> None:
    """An admin is never limited, nor a caller with an admin's token, whatever author they name."""
    limit = RateLimit(redis, SETTINGS)
    over_http = replace(MESSAGE, caller_role=Role.ADMIN)
    for _ in range(5):
        assert (await limit.admit(KEY, MESSAGE, Role.ADMIN)).allowed
        assert (await limit.admit(KEY, over_http, Role.MEMBER)).allowed
    assert await redis.keys("*") == []


async def test_nothing_is_kept_for_longer_than_the_window(redis: Redis) -> None:
    """All keys of the limit expire by themselves and lie in the conversation's own partition."""
    limit = RateLimit(redis, SETTINGS)
    for _ in range(4):
        await admit(limit)
    keys = await redis.keys("*")
    assert len(keys) == 2
    for key in keys:
        assert 0 < await redis.pttl(key) <= 60_000
        assert str(key).startswith("ar:limits:" + KEY.tag)


CALL = InboundMessage(
    connector="http",
    external_id="default",
    message_id="1",
    author=Author("ann"),
    text="hi",
    workspace_id="nowhere",
    caller_role=Role.ADMIN,
)


@pytest.mark.parametrize(("bound", "allowed"), [(Role.ADMIN, True), (Role.MEMBER, False), (Role.VIEWER, False)])
async def test_the_tokens_role_decides_over_the_limit_whatever_the_author(
    redis: Redis, bound: Role, allowed: bool
) -> None:
    """An admin's token is not limited under any author's name; a member's is, for an admin's name as well."""
    settings = Settings(rate_limit_messages=1, access_admins=("http:ann",))
    access, limit = Access(redis, settings, ApiTokens(redis, "admin-token")), RateLimit(redis, settings)
    admissions: list[Any] = []
    for number in range(2):
        message = replace(CALL, workspace_id="acme", caller_role=bound, message_id=str(number))
        decision = await access.authorise(message, "acme")
        assert decision.role is bound
        admissions.append(await limit.admit(ConversationKey("acme", "http", "default"), message, decision.role))
    assert [admission.allowed for admission in admissions] == [True, allowed]
