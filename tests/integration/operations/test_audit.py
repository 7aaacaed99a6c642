"""The audit log on a real Redis: what was done is shown, and what was changed in the store is noticed."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from config.settings import Settings
from connectors.message import AgentRuntimeError, redis_key
from runtime.operations import (
    Actor,
    AuditEntry,
    AuditFilter,
    AuditLink,
    AuditLog,
    AuditRow,
    Verdict,
    audit_key,
    prune_daily,
    verify_export,
)
from runtime.workspaces import Workspaces

KEY = b"a key of sufficient length"
ANN, EVE = Actor("slack:U1", "Ann"), Actor("telegram:7", "Eve")
ROWS, HEAD, ANCHOR = (redis_key("audit", "{w.acme}", name) for name in ("rows", "head", "anchor"))
DAY = 24 * 3600


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def audit(redis: Redis, clock: Clock | None = None, key: bytes = KEY) -> AuditLog:
    return AuditLog(redis, key, clock=clock or Clock())


def act(
    operation: str = "directive.publish", actor: Actor = ANN, workspace: str | None = "acme", **rest: Any
) -> AuditEntry:
    return AuditEntry(operation=operation, actor=actor, face="http", workspace_id=workspace, **rest)


async def append_rows(log: AuditLog, count: int) -> list[AuditLink]:
    return [await log.append(act(target=f"directive {number}")) for number in range(1, count + 1)]


async def all_rows(log: AuditLog, workspace: str | None = "acme", only: AuditFilter | None = None) -> list[AuditRow]:
    return (await log.read(workspace, only)).rows


async def entry(redis: Redis, number: int) -> tuple[str, Any]:
    """The id and the fields of the row with that number, as the store has it."""
    return next((id_, values) for id_, values in await stored_rows(redis) if id_.endswith(f"-{number}"))


async def stored_rows(redis: Redis, key: str = ROWS) -> list[tuple[str, Any]]:
    rows: Any = await redis.xrange(key)
    return list(rows)


async def everything(redis: Redis) -> str:
    """All keys, fields and values that are stored."""
    found: list[str] = []
    for key in await redis.keys("*"):
        kind = str(await redis.type(key))
        if kind == "zset":
            found.append(str((key, await redis.zrange(key, 0, -1))))
        else:
            read: Any = {"string": redis.get, "hash": redis.hgetall, "stream": redis.xrange}[kind]
            found.append(str((key, await read(key))))
    return "\n".join(found)


# What is shown


async def test_a_row_says_who_did_what_when_from_where_and_what_it_changed(redis: Redis) -> None:
    clock = Clock()
    log = audit(redis, clock)
    link = await log.append(
        act(
            "access.role",
            caller="token ab12",
            outcome="refused",
            error="forbidden",
            target="role",
            target_person=EVE,
            before="viewer",
            after="a" * 501,
            note="she asked",
            origin="10.0.0.1",
        )
    )
    (row,) = await all_rows(log)
    assert (row.sequence, row.hash) == (link.sequence, link.hash) == (1, link.hash)
    assert row.is_genuine
    assert row.at == datetime.fromtimestamp(clock.now, UTC)
    assert (row.operation, row.actor, row.caller, row.face) == ("access.role", ANN, "token ab12", "http")
    assert (row.outcome, row.error, row.target, row.target_person) == ("refused", "forbidden", "role", EVE)
    assert row.before is not None
    assert row.before.text == "viewer"
    assert row.after is not None
    assert (row.after.text, row.after.bytes, len(row.after.sha256)) == (None, 501, 64)
    assert (row.note, row.origin) == ("she asked", "10.0.0.1")


async def test_each_workspace_and_the_runtime_have_a_log_of_their_own(redis: Redis) -> None:
    log = audit(redis)
    for workspace in ("acme", "other", None):
        await log.append(act(workspace=workspace, target=str(workspace)))
    for name in ("acme", "other", None):
        assert [(row.sequence, row.target) for row in await all_rows(log, name)] == [(1, str(name))]
        assert (await log.verify(name)).is_intact


async def test_rows_are_read_by_pages_the_newest_first(redis: Redis) -> None:
    log = audit(redis)
    await append_rows(log, 7)
    numbers, before = [], ""
    while True:
        page = await log.read("acme", limit=3, before=before)
        numbers.append([row.sequence for row in page.rows])
        before = page.next
        if not before:
            break
    assert numbers == [[7, 6, 5], [4, 3, 2], [1]]
    with pytest.raises(AgentRuntimeError, match="next"):
        await log.read("acme", before="yesterday")


async def test_rows_are_found_by_actor_operation_target_outcome_and_time(redis: Redis) -> None:
    clock = Clock()
    log = audit(redis, clock)
    await log.append(act(target="workspace/soul"))
    clock.now += 60
    await log.append(act("access.role", EVE, target_person=ANN, outcome="failed"))
    clock.now += 60
    await log.append(act("access.role", target="role"))
    middle = datetime.fromtimestamp(1_800_000_060, UTC)

    async def numbers(**only: Any) -> list[int]:
        return [row.sequence for row in await all_rows(log, only=AuditFilter(**only))]

    assert await numbers(actor="slack:U1") == [3, 1]
    assert await numbers(actor="slack:nobody") == []
    assert await numbers(operation="access.role") == [3, 2]
    assert await numbers(target="SOUL") == [1]
    assert await numbers(target="slack:U1") == [2]
    assert await numbers(outcome="failed") == [2]
    assert await numbers(since=middle) == [3, 2]
    assert await numbers(until=middle) == [2, 1]
    assert await numbers(since=middle, until=middle) == [2]
    assert await numbers(actor="slack:U1", operation="access.role") == [3]


async def test_a_rare_row_among_many_costs_bounded_reads(redis: Redis) -> None:
    """A page ends after so many rows, and says where to go on; no row is left out in between."""
    log = audit(redis)
    await log.append(act("rare"))
    ((id_, values),) = await stored_rows(redis)
    milliseconds = id_.partition("-")[0]
    async with redis.pipeline() as pipe:
        for number in range(2, 6002):
            pipe.xadd(ROWS, values | {"row": "{}"}, id=f"{milliseconds}-{number}")
        await pipe.execute()
    pages = [await log.read("acme", AuditFilter(operation="rare"))]
    while pages[-1].next:
        pages.append(await log.read("acme", AuditFilter(operation="rare"), before=pages[-1].next))
    assert [[row.sequence for row in page.rows] for page in pages] == [[], [], [], [1]]


async def test_a_head_is_also_told_outside(redis: Redis) -> None:
    log = audit(redis)
    with capture_logs() as events:
        link = await log.append(act())
        await log.append(act(workspace=None))
    told = [event for event in events if event["event"] == "audit.appended"]
    assert (told[0]["workspace_id"], told[0]["sequence"], told[0]["hash"]) == ("acme", 1, link.hash)
    assert "workspace_id" not in told[1]
    assert await log.head("acme") == link
    assert await log.head("other") == AuditLink(0, "")


async def test_the_same_entry_appended_again_adds_nothing(redis: Redis) -> None:
    """As a caller does that got no answer."""
    log, same = audit(redis), act()
    first = await log.append(same)
    await log.append(act())
    assert await log.append(same) == first
    assert len(await all_rows(log)) == 2


async def test_what_cannot_be_stored_as_it_is_is_stored_readably(redis: Redis) -> None:
    log = audit(redis)
    await log.append(act(target="\ud800" + "x" * 400, before="\ud800", note="Grüße 🙂"))
    (row,) = await all_rows(log)
    assert (len(row.target), row.target[0], row.target[-1]) == (300, "?", "…")
    assert row.before is not None
    assert (row.before.text, row.note) == ("?", "Grüße 🙂")
    assert (await log.verify("acme")).is_intact


# What is noticed


async def test_processes_that_append_at_once_make_one_chain(redis: Redis) -> None:
    logs = [audit(redis) for _ in range(4)]
    links = await asyncio.gather(*(logs[number % 4].append(act(target=str(number))) for number in range(40)))
    assert sorted(link.sequence for link in links) == list(range(1, 41))
    assert {row.target for row in (await logs[0].read("acme", limit=100)).rows} == set(map(str, range(40)))
    verdict = await logs[0].verify("acme")
    assert verdict.is_intact
    assert verdict.head.sequence == 40


async def test_a_log_longer_than_a_page_is_intact(redis: Redis) -> None:
    log = audit(redis)
    links = await append_rows(log, 1003)
    assert await log.verify("acme") == Verdict(AuditLink(0, ""), links[-1])
    assert await log.verify("acme", links[700]) == Verdict(AuditLink(0, ""), links[-1])
    assert (await log.verify("empty")).is_intact


async def change_text(redis: Redis, log: AuditLog) -> None:
    id_, values = await entry(redis, 3)
    await replace_row(redis, id_, values | {"row": values["row"].replace("directive 3", "directive 9")})


async def change_to_no_row(redis: Redis, log: AuditLog) -> None:
    id_, _ = await entry(redis, 3)
    await replace_row(redis, id_, {"row": '{"v":99}', "hash": "0"})


async def change_time(redis: Redis, log: AuditLog) -> None:
    """The row itself stays as it was signed; only its place in the index by time is another."""
    rows = await stored_rows(redis)
    await redis.delete(ROWS)
    for id_, values in rows:
        milliseconds, _, number = id_.partition("-")
        moved = int(milliseconds) + (1 if int(number) >= 3 else 0)
        await redis.xadd(ROWS, values, id=f"{moved}-{number}")


async def put_row_of_other_workspace(redis: Redis, log: AuditLog) -> None:
    for _ in range(3):
        await log.append(act(workspace="other"))
    *_, (_, foreign) = await stored_rows(redis, redis_key("audit", "{w.other}", "rows"))
    await replace_row(redis, (await entry(redis, 3))[0], foreign)


async def remove_middle(redis: Redis, log: AuditLog) -> None:
    await redis.xdel(ROWS, (await entry(redis, 3))[0], (await entry(redis, 4))[0])


async def remove_beginning(redis: Redis, log: AuditLog) -> None:
    await redis.xdel(ROWS, (await entry(redis, 1))[0], (await entry(redis, 2))[0])


async def remove_end(redis: Redis, log: AuditLog) -> None:
    await redis.xdel(ROWS, (await entry(redis, 5))[0])


async def remove_end_and_head(redis: Redis, log: AuditLog) -> None:
    await remove_end(redis, log)
    await redis.delete(HEAD)


async def remove_all_rows(redis: Redis, log: AuditLog) -> None:
    await redis.delete(ROWS)


async def forge_head(redis: Redis, log: AuditLog) -> None:
    await remove_end(redis, log)
    stored = str(await redis.get(HEAD))
    await redis.set(HEAD, stored.replace('"sequence":5', '"sequence":4'))


async def forge_anchor(redis: Redis, log: AuditLog) -> None:
    await redis.set(ANCHOR, str(await redis.get(HEAD)))


async def add_row(redis: Redis, log: AuditLog) -> None:
    """One that was signed with another key, and so can only be put there, not into the chain."""
    await audit(redis, key=b"another key of some length").append(act(workspace="else"))
    ((_, values),) = await stored_rows(redis, redis_key("audit", "{w.else}", "rows"))
    last = int((await entry(redis, 5))[0].partition("-")[0])
    await redis.xadd(ROWS, values, id=f"{last}-6")


async def replace_row(redis: Redis, place: str, values: Any) -> None:
    """A stream does not let rows change: write it anew."""
    rows = [(id_, values if id_ == place else old) for id_, old in await stored_rows(redis)]
    await redis.delete(ROWS)
    for id_, fields in rows:
        await redis.xadd(ROWS, fields, id=id_)


TAMPERING: list[tuple[Callable[[Redis, AuditLog], Any], int, str]] = [
    (change_text, 3, "Row 3 was changed."),
    (change_to_no_row, 3, "Row 3 was changed."),
    (change_time, 3, "Another row stands in the place of row 3."),
    (put_row_of_other_workspace, 3, "Another row stands in the place of row 3."),
    (remove_middle, 3, "Rows 3 to 4 are missing."),
    (remove_beginning, 1, "Rows 1 to 2 are missing."),
    (remove_end, 5, "The log was cut: it had 5 rows, and it ends after row 4."),
    (remove_end_and_head, 4, "The head, which says where the log ends, is missing or not genuine."),
    (remove_all_rows, 1, "The log was cut: it had 5 rows, and it ends after row 0."),
    (forge_head, 4, "The head, which says where the log ends, is missing or not genuine."),
    (forge_anchor, 0, "The anchor, which says where the log begins, is not genuine."),
    (add_row, 6, "Row 6 was changed, or written with another key: AUDIT_KEY must be the same everywhere."),
]


@pytest.mark.parametrize(("tamper", "row", "problem"), TAMPERING, ids=[case[0].__name__ for case in TAMPERING])
async def test_who_has_only_redis_changes_nothing_unnoticed(
    redis: Redis, tamper: Callable[[Redis, AuditLog], Any], row: int, problem: str
) -> None:
    log = audit(redis)
    await append_rows(log, 5)
    assert (await log.verify("acme")).is_intact
    await tamper(redis, log)
    with capture_logs() as events:
        verdict = await log.verify("acme")
    assert (verdict.row, verdict.problem, verdict.is_intact) == (row, problem, False)
    assert [event["why"] for event in events if event["event"] == "audit.broken"] == [problem]
    if tamper not in (change_time, add_row):  # neither is in an export: the index by time, and what no head knows
        assert verify_export([line async for line in log.export("acme")], KEY).problem == problem
    assert len(await all_rows(log)) <= 6  # it can still be read


@pytest.mark.parametrize("tamper", [forge_head, remove_end_and_head], ids=lambda tamper: str(tamper.__name__))
async def test_what_is_appended_after_a_cut_does_not_hide_it(
    redis: Redis, tamper: Callable[[Redis, AuditLog], Any]
) -> None:
    """Acts go on and are logged, and the cut stays visible."""
    log = audit(redis)
    await append_rows(log, 5)
    await tamper(redis, log)
    assert (await log.append(act())).sequence == 5
    assert (await log.append(act())).sequence == 6
    verdict = await log.verify("acme")
    assert verdict.problem == "The log was cut before row 5: its head was removed or changed."


async def test_a_former_state_put_back_is_noticed_by_the_head_that_is_known_outside(redis: Redis) -> None:
    """Nothing within the store can show it: all of it was genuine once."""
    log = audit(redis)
    await append_rows(log, 3)
    rows, head = await stored_rows(redis), str(await redis.get(HEAD))
    outside = await log.append(act())
    await redis.delete(ROWS)
    for id_, values in rows:
        await redis.xadd(ROWS, values, id=id_)
    await redis.set(HEAD, head)
    assert (await log.verify("acme")).is_intact
    verdict = await log.verify("acme", outside)
    assert verdict.problem == "Row 4 was logged outside, and the log ends after row 3."
    await log.append(act("another"))
    verdict = await log.verify("acme", outside)
    assert verdict.problem == "Row 4 is not the one that was logged outside."


async def test_a_row_that_was_changed_is_marked_in_the_list(redis: Redis) -> None:
    log = audit(redis)
    await append_rows(log, 3)
    await change_text(redis, log)
    assert [(row.target, row.is_genuine) for row in await all_rows(log)] == [
        ("directive 9", False),
        ("directive 2", True),
        ("directive 1", True),
    ]


# The key


async def test_the_key_lies_in_a_file_for_the_owner_alone(settings: Callable[..., Settings]) -> None:
    chosen = settings()
    keys = await asyncio.gather(*(audit_key(chosen) for _ in range(4)))
    assert len(set(keys)) == 1
    assert len(keys[0]) >= 32
    path = chosen.data_dir / "audit-key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text().strip().encode() == keys[0]
    assert await audit_key(settings(audit_key="chosen by an operator")) == b"chosen by an operator"


# The export


async def test_an_export_is_checked_anywhere_with_the_key(redis: Redis) -> None:
    log = audit(redis)
    links = await append_rows(log, 502)
    lines = [line async for line in log.export("acme")]
    assert len(lines) == 503
    assert json.loads(lines[1])["names"].popitem()[1] == "Ann"
    assert verify_export(lines, KEY) == Verdict(AuditLink(0, ""), links[-1])
    assert verify_export([*lines, "\n"], KEY, links[-1]).is_intact
    assert verify_export(lines[:-1], KEY).problem == "The log was cut: it had 502 rows, and it ends after row 501."
    assert verify_export([lines[0], *lines[2:]], KEY).problem == "Row 1 is missing."
    changed = [*lines[:2], lines[2].replace("directive 2", "directive 3"), *lines[3:]]
    assert verify_export(changed, KEY).row == 2
    assert verify_export(lines, b"another key of some length").row == 1
    for no_export in ([], ["{}"], ["[]"], [lines[0], "{}"], ["text"]):
        with pytest.raises(ValueError, match=r"export|Expecting"):
            verify_export(no_export, KEY)


# People


async def test_an_erased_person_is_nobody_and_the_rows_still_verify(redis: Redis) -> None:
    log = audit(redis)
    await log.append(act(actor=EVE, origin="telegram:7"))
    await log.append(act(actor=EVE, origin="10.0.0.7", workspace="other"))
    await log.append(act("access.role", target_person=EVE))
    assert await log.erase_actor("telegram:7")
    assert not await log.erase_actor("telegram:7")
    erased, by_her = await all_rows(log)
    assert erased.target_person is not None
    assert erased.target_person.name == by_her.actor.name == "somebody who was erased"
    assert erased.actor == ANN
    assert (erased.target_person.id, by_her.actor.id, by_her.origin) == ("", "", "")
    assert (await log.verify("acme")).is_intact
    left = await everything(redis)
    for trace in ("telegram:7", "telegram%3A7", "Eve", "10.0.0.7"):
        assert trace not in left


async def test_who_acts_again_after_being_erased_is_not_tied_to_the_former_rows(redis: Redis) -> None:
    log = audit(redis)
    await log.append(act(actor=EVE))
    await log.erase_actor("telegram:7")
    await log.append(act(actor=EVE))
    assert [row.actor.name for row in await all_rows(log)] == ["Eve", "somebody who was erased"]
    assert [row.sequence for row in await all_rows(log, only=AuditFilter(actor="telegram:7"))] == [2]


async def test_to_erase_a_person_takes_nobody_elses_name_away(redis: Redis) -> None:
    log = audit(redis)
    others = [Actor("telegram:70", "Kim"), Actor("telegram:7/x", "Mia"), Actor("telegram:*", "Al")]
    for other in others:
        await log.append(act(actor=other, origin="here"))
    assert await log.erase_actor("telegram:*")
    await log.append(act(actor=EVE, origin="there"))
    assert await log.erase_actor("telegram:7")
    names = [(row.actor.name, row.origin) for row in await all_rows(log)]
    assert names == [
        ("somebody who was erased", ""),
        ("somebody who was erased", ""),
        ("Mia", "here"),
        ("Kim", "here"),
    ]


async def test_a_person_has_the_newest_name_that_is_known(redis: Redis) -> None:
    log = audit(redis)
    await log.append(act(actor=Actor("slack:U1", "Annie")))
    await log.append(act(actor=ANN))
    await log.append(act(actor=Actor("slack:U1")))
    assert [row.actor.name for row in await all_rows(log)] == ["Ann"] * 3


# Retention


async def test_old_rows_go_and_the_rest_verifies_from_the_anchor_on(redis: Redis) -> None:
    clock = Clock()
    log = audit(redis, clock)
    assert await log.retention("acme") == 400
    old = await append_rows(log, 502)
    clock.now += 401 * DAY
    young = await append_rows(log, 2)
    assert await log.prune("acme") == 502
    assert await log.prune("acme") == 0
    assert [row.sequence for row in await all_rows(log)] == [504, 503]
    assert await log.verify("acme") == Verdict(old[-1], young[-1])
    assert verify_export([line async for line in log.export("acme")], KEY) == Verdict(old[-1], young[-1])
    await redis.xdel(ROWS, (await entry(redis, 503))[0])
    assert (await log.verify("acme")).problem == "Row 503 is missing."


async def test_a_log_of_which_all_is_pruned_goes_on(redis: Redis) -> None:
    clock = Clock()
    log = audit(redis, clock)
    old = await append_rows(log, 2)
    clock.now += 500 * DAY
    await log.prune("acme")
    assert await log.verify("acme") == Verdict(old[-1], old[-1])
    assert (await log.append(act())).sequence == 3
    assert (await log.verify("acme")).is_intact


async def test_each_workspace_has_its_own_retention(redis: Redis) -> None:
    clock = Clock()
    log = audit(redis, clock)
    for workspace in ("acme", "other"):
        await log.append(act(workspace=workspace))
    await log.set_retention("acme", 30)
    clock.now += 31 * DAY
    assert (await log.prune("acme"), await log.prune("other")) == (1, 0)
    for days in (0, 40_000):
        with pytest.raises(AgentRuntimeError, match="1 to 36500 days"):
            await log.set_retention("acme", days)
    assert await log.retention("acme") == 30


async def test_pruning_does_not_hide_what_was_changed_before(redis: Redis) -> None:
    """It is an event at once, and the log tells it for as long as rows are kept."""
    clock = Clock()
    log = audit(redis, clock)
    await append_rows(log, 5)
    await remove_middle(redis, log)
    clock.now += 401 * DAY
    await log.append(act())
    with capture_logs() as events:
        await log.prune("acme")
    assert [event["why"] for event in events if event["event"] == "audit.broken"] == ["Rows 3 to 4 are missing."]
    assert (await log.verify("acme")).problem == "Rows 3 to 4 are missing."
    clock.now += 401 * DAY
    await log.append(act())
    await log.prune("acme")
    assert (await log.verify("acme")).is_intact


async def test_rows_that_are_pruned_during_a_check_are_no_problem(redis: Redis) -> None:
    clock = Clock()
    log = audit(redis, clock)
    await append_rows(log, 1200)
    clock.now += 401 * DAY
    await append_rows(log, 1)
    verdicts = await asyncio.gather(*(log.verify("acme") for _ in range(3)), log.prune("acme"))
    assert all(verdict.is_intact for verdict in verdicts[:3] if isinstance(verdict, Verdict))
    assert verdicts[3] == 1200


async def test_names_go_with_the_last_row_that_needs_them(redis: Redis) -> None:
    clock = Clock()
    log = audit(redis, clock)
    await log.append(act(actor=EVE, origin="10.0.0.7"))
    await log.append(act(workspace="other", actor=ANN))
    await log.set_retention("other", 500)
    clock.now += 450 * DAY
    await log.prune_all(["acme", "other"])
    assert "Eve" in await everything(redis)  # a log that is kept for longer may have rows of hers
    assert await all_rows(log) == []
    clock.now += 60 * DAY
    await log.append(act(actor=ANN))
    await log.prune_all(["acme", "other"])
    left = await everything(redis)
    assert not any(trace in left for trace in ("Eve", "telegram", "10.0.0.7"))
    assert [row.actor for row in await all_rows(log)] == [ANN]


async def test_all_logs_are_pruned_every_day(redis: Redis) -> None:
    clock = Clock()
    log, workspaces = audit(redis, clock), Workspaces(redis, Settings())
    await workspaces.create("acme")
    for workspace in ("acme", None):
        await log.append(act(workspace=workspace))
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.now += timedelta(days=401).total_seconds()
        if len(slept) > 1:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await prune_daily(log, workspaces, sleep)
    assert slept == [DAY, DAY]
    assert await all_rows(log) == await all_rows(log, None) == []
