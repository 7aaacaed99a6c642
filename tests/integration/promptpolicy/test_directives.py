"""Directives in a real Redis: versions, concurrency, isolation, caps."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from connectors.message import Role, Scope, StoreUnavailable
from promptpolicy.directives import Change, Directives, NoSuchVersion, UnknownFormat
from promptpolicy.policy import EVERYWHERE, InvalidDirective, Kind, Place, PolicyTooLarge, Slot, compose
from promptpolicy.publishing import Publisher, VersionMoved

NOW = datetime(2026, 11, 21, 9, 30, tzinfo=UTC)
ACME = Scope("acme")
ROOM = Scope("acme", "telegram:-10001")
OTHER = Scope("other")
SYSTEM = Slot(Place(ACME), Kind.SYSTEM)
LENA = "telegram:77"


def words(text: str) -> int:
    return len(text.split())


def directives(redis: Redis) -> Directives:
    return Directives(redis, timeout_seconds=5, now=lambda: NOW)


@pytest.fixture
def publisher(redis: Redis) -> Publisher:
    return Publisher(directives(redis), words, max_tokens=400)


async def texts(publisher: Publisher, scope: Scope) -> list[str]:
    return [directive.text for directive in await publisher.directives.load(scope)]


async def test_a_change_by_another_process_is_seen_by_the_next_load(redis: Redis, publisher: Publisher) -> None:
    other = Publisher(directives(redis), words, 400)
    await publisher.publish(SYSTEM, "mine", author=LENA, origin="command")
    assert await texts(publisher, ROOM) == ["mine"]
    await other.publish(SYSTEM, "theirs", author=LENA, origin="api")
    assert await texts(publisher, ROOM) == ["theirs"]
    await other.publish(Slot(EVERYWHERE, Kind.SOUL), "calm", author=LENA, origin="api")
    assert await texts(publisher, ROOM) == ["calm", "theirs"]


async def test_history_keeps_who_when_what_and_how_newest_first(publisher: Publisher) -> None:
    await publisher.publish(SYSTEM, "grüße", author=LENA, origin="command")
    await publisher.publish(SYSTEM, "two", author="token:ci", origin="api")
    newest, oldest = await publisher.directives.history(SYSTEM)
    assert (newest.version, newest.author, newest.origin) == (2, "token:ci", "api")
    assert (oldest.version, oldest.text, oldest.author, oldest.at) == (1, "grüße", LENA, NOW)
    assert oldest.bytes == len("grüße".encode())
    assert oldest.sha256 == hashlib.sha256("grüße".encode()).hexdigest()


async def test_history_is_read_in_pages(publisher: Publisher) -> None:
    for number in range(1, 8):
        await publisher.publish(SYSTEM, f"text {number}", author=LENA, origin="command")
    first = await publisher.directives.history(SYSTEM, limit=3)
    second = await publisher.directives.history(SYSTEM, limit=3, before=first[-1].version)
    assert [one.version for one in first] == [7, 6, 5]
    assert [one.text for one in second] == ["text 4", "text 3", "text 2"]
    assert await publisher.directives.history(SYSTEM, before=1) == []


async def test_a_cleared_directive_no_longer_holds_and_can_be_rolled_back(publisher: Publisher) -> None:
    await publisher.publish(SYSTEM, "rule", author=LENA, origin="command")
    cleared = await publisher.clear(SYSTEM, author=LENA, origin="command")
    assert cleared is not None
    assert (cleared.version, cleared.text) == (2, None)
    assert await texts(publisher, ACME) == []
    await publisher.rollback(SYSTEM, 1, author=LENA, origin="command")
    assert await texts(publisher, ACME) == ["rule"]


async def test_versions_that_never_were_are_named(publisher: Publisher) -> None:
    await publisher.publish(SYSTEM, "rule", author=LENA, origin="command")
    for number in (0, -1, 2):
        with pytest.raises(NoSuchVersion, match=str(number)):
            await publisher.rollback(SYSTEM, number, author=LENA, origin="command")


async def test_the_difference_of_two_versions_is_a_unified_diff(publisher: Publisher) -> None:
    await publisher.publish(SYSTEM, "Be kind.\nBe short.", author=LENA, origin="command")
    await publisher.publish(SYSTEM, "Be kind.\nBe brief.", author=LENA, origin="command")
    lines = (await publisher.diff(SYSTEM, 1, 2)).splitlines()
    assert lines[:2] == ["--- system (workspace) version 1", "+++ system (workspace) version 2"]
    assert lines[3:] == [" Be kind.", "-Be short.", "+Be brief."]


async def test_the_same_text_again_makes_no_version_and_no_event(publisher: Publisher) -> None:
    await publisher.publish(SYSTEM, "rule", author=LENA, origin="command")
    with capture_logs() as events:
        version = await publisher.publish(SYSTEM, " rule\r\n", author="telegram:5", origin="api")
    assert (version.version, version.author) == (1, LENA)
    assert events == []


async def test_a_change_is_one_event_without_its_text(publisher: Publisher) -> None:
    with capture_logs() as events:
        await publisher.publish(Slot(Place(ROOM), Kind.SKILL, "refunds"), "secret sauce", author=LENA, origin="command")
    assert events == [
        {
            "event": "directive.changed",
            "log_level": "info",
            "scope": "context",
            "kind": "skill",
            "name": "refunds",
            "version": 1,
            "author": LENA,
            "origin": "command",
            "cleared": False,
            "workspace_id": "acme",
            "context_id": "telegram:-10001",
        }
    ]


async def test_an_author_who_did_not_see_the_newest_version_is_told(publisher: Publisher) -> None:
    await publisher.publish(SYSTEM, "one", author=LENA, origin="api", expected_version=0)
    await publisher.publish(SYSTEM, "two", author=LENA, origin="api", expected_version=1)
    with pytest.raises(VersionMoved) as raised:
        await publisher.publish(SYSTEM, "three", author=LENA, origin="api", expected_version=1)
    assert (raised.value.expected, raised.value.current) == (1, 2)
    assert await texts(publisher, ACME) == ["two"]


async def test_of_many_at_once_who_saw_the_same_version_one_wins(redis: Redis) -> None:
    publishers = [Publisher(directives(redis), words, 400) for _ in range(8)]
    outcomes = await asyncio.gather(
        *(
            one.publish(SYSTEM, f"text {number}", author=LENA, origin="api", expected_version=0)
            for number, one in enumerate(publishers)
        ),
        return_exceptions=True,
    )
    assert sum(not isinstance(outcome, BaseException) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, VersionMoved) for outcome in outcomes) == 7
    assert len(await publishers[0].directives.history(SYSTEM)) == 1


async def test_concurrent_publishes_are_all_kept_each_under_its_own_number(redis: Redis) -> None:
    publishers = [Publisher(directives(redis), words, 400) for _ in range(10)]
    versions = await asyncio.gather(
        *(one.publish(SYSTEM, f"text {n}", author=LENA, origin="api") for n, one in enumerate(publishers))
    )
    assert sorted(one.version for one in versions) == list(range(1, 11))
    history = await publishers[0].directives.history(SYSTEM)
    assert {one.version: one.text for one in history} == {one.version: one.text for one in versions}
    assert await texts(publishers[0], ACME) == [history[0].text]


async def test_publishes_at_once_never_exceed_the_cap_together(redis: Redis) -> None:
    publishers = [Publisher(directives(redis), words, 400) for _ in range(6)]
    slots = [Slot(Place(ACME), Kind.SKILL, f"skill{number}") for number in range(6)]
    await asyncio.gather(
        *(
            one.publish(slot, "word " * 100, author=LENA, origin="api")
            for one, slot in zip(publishers, slots, strict=True)
        ),
        return_exceptions=True,
    )
    held = await publishers[0].directives.load(ACME)
    assert 1 <= len(held) < 6
    assert compose(Role.ADMIN, held, words, 400).tokens <= 400


async def test_two_workspaces_and_two_contexts_never_see_each_other(publisher: Publisher) -> None:
    await publisher.publish(Slot(EVERYWHERE, Kind.SYSTEM), "everywhere", author=LENA, origin="api")
    await publisher.publish(SYSTEM, "acme", author=LENA, origin="api")
    await publisher.publish(Slot(Place(ROOM), Kind.SYSTEM), "room", author=LENA, origin="api")
    await publisher.publish(Slot(Place(OTHER), Kind.SYSTEM), "other", author=LENA, origin="api")
    assert await texts(publisher, ROOM) == ["everywhere", "acme", "room"]
    assert await texts(publisher, Scope("acme", "telegram:10001")) == ["everywhere", "acme"]
    assert await texts(publisher, Scope("other", "telegram:-10001")) == ["everywhere", "other"]
    assert await texts(publisher, Scope("global", "workspace")) == ["everywhere"]


async def test_a_turn_in_a_context_without_directives_falls_back(publisher: Publisher) -> None:
    """FallsBackWhenContextMissing, through the store."""
    await publisher.publish(Slot(Place(ACME), Kind.SKILL, "refunds"), "workspace way", author=LENA, origin="api")
    await publisher.publish(Slot(Place(ROOM), Kind.SKILL, "refunds"), "room way", author=LENA, origin="api")
    await publisher.clear(Slot(Place(ROOM), Kind.SKILL, "refunds"), author=LENA, origin="api")
    assert await texts(publisher, ROOM) == ["workspace way"]


async def test_over_the_cap_nothing_is_published(publisher: Publisher) -> None:
    await publisher.publish(SYSTEM, "rule", author=LENA, origin="api")
    with (
        capture_logs() as events,
        pytest.raises(PolicyTooLarge, match=r"in the workspace acme: .* more than POLICY_MAX"),
    ):
        await publisher.publish(SYSTEM, "word " * 400, author=LENA, origin="api")
    assert events == []
    assert await texts(publisher, ACME) == ["rule"]


@pytest.mark.parametrize("author", ["", " ", "a\nb"])
async def test_a_directive_without_a_proper_author_is_refused(publisher: Publisher, author: str) -> None:
    with pytest.raises(InvalidDirective, match="author"):
        await publisher.publish(SYSTEM, "rule", author=author, origin="api")


async def test_a_forgotten_workspace_leaves_nothing_and_starts_anew(redis: Redis, publisher: Publisher) -> None:
    await publisher.publish(SYSTEM, "rule", author=LENA, origin="api")
    await publisher.publish(Slot(Place(ROOM), Kind.SKILL, "refunds"), "way", author=LENA, origin="api")
    await publisher.publish(Slot(Place(OTHER), Kind.SYSTEM), "other", author=LENA, origin="api")
    assert len(await texts(publisher, ROOM)) == 2
    await publisher.directives.forget_workspace(ROOM)
    assert await texts(publisher, ROOM) == []
    assert await texts(publisher, OTHER) == ["other"]
    assert [key async for key in redis.scan_iter("ar:directives:{w.acme}:*")] == []
    assert (await publisher.publish(SYSTEM, "anew", author=LENA, origin="api")).version == 1
    assert await texts(publisher, ROOM) == ["anew"]


async def test_all_keys_of_a_step_share_one_hash_tag(redis: Redis, publisher: Publisher) -> None:
    await publisher.publish(Slot(Place(ROOM), Kind.SKILL, "refunds"), "way", author=LENA, origin="api")
    keys = {key async for key in redis.scan_iter("*")}
    assert {key for key in keys if "{w.acme}" not in key} == {"ar:directives:{global}:workspaces"}


async def test_a_value_of_a_newer_release_is_named(redis: Redis, publisher: Publisher) -> None:
    entry = json.dumps({"v": 2, "sections": []})
    await cast("Awaitable[Any]", redis.hset("ar:directives:{w.acme}:current:workspace", "system", f"1 abc {entry}"))
    with pytest.raises(UnknownFormat, match="format 2"):
        await publisher.directives.load(ACME)


async def test_a_store_that_does_not_answer_in_time_is_unavailable(redis: Redis) -> None:
    store = Directives(redis, timeout_seconds=0.05)
    await redis.client_pause(400)
    with pytest.raises(StoreUnavailable):
        await store.append(SYSTEM, Change("rule", LENA, "api"), "")
    await redis.client_unpause()


async def test_what_was_loaded_last_can_be_had_without_the_store(redis: Redis, publisher: Publisher) -> None:
    await publisher.publish(SYSTEM, "rule", author=LENA, origin="api")
    assert publisher.directives.last_loaded(ROOM) is None
    loaded = await publisher.directives.load(ROOM)
    await redis.flushall()
    assert publisher.directives.last_loaded(ROOM) == loaded
    assert publisher.directives.last_loaded(OTHER) is None
