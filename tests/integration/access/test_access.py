"""Who may talk, on a real Redis."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from typing import Any

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from config.settings import Settings
from connectors.message import CALLER_PREFIX, Author, InboundKind, InboundMessage, Role
from runtime.access import (
    Access,
    AlreadyDecided,
    ApiTokens,
    Decision,
    TooManyAttempts,
    Unauthenticated,
    UnknownCode,
)
from runtime.access.pairing import (
    ATTEMPT_SECONDS,
    CODE_ALPHABET,
    CODE_LENGTH,
    CODE_SECONDS,
    MAX_BYTES,
    MAX_MESSAGES,
    MAX_PENDING,
    MAX_WRONG_CODES,
    Pairing,
)
from runtime.access.roles import ASK_HERE, MAX_NOTICES, WAIT_HERE

DIRECT = InboundMessage(
    connector="telegram", external_id="42", message_id="1", author=Author("42", "Ann"), text="hi", direct=True
)
GROUP = replace(DIRECT, external_id="-100", direct=False)


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def access(redis: Redis, clock: Clock | None = None, **settings: Any) -> Access:
    return Access(redis, Settings.model_validate(settings), ApiTokens(redis, "admin-token"), clock=clock or Clock())


def code_in(notice: str) -> str:
    match = re.search(rf"\b[{CODE_ALPHABET}]{{{CODE_LENGTH}}}\b", notice)
    assert match is not None
    return match[0]


async def everything(redis: Redis) -> str:
    """All keys, fields and values that are stored."""
    found: list[str] = []
    for key in await redis.keys("*"):
        kind = await redis.type(key)
        read: Any = {"string": redis.get, "hash": redis.hgetall, "set": redis.smembers}[str(kind)]
        found.append(str((key, await read(key))))
    return "\n".join(found)


async def test_open_lets_everybody_in_as_a_member(redis: Redis) -> None:
    """Under the open policy a stranger is a member, in groups and directly."""
    people = access(redis, access_policy="open")
    for message in (DIRECT, GROUP):
        assert await people.authorise(message, "acme") == Decision(True, Role.MEMBER)


async def test_allowlist_lets_only_the_listed_in(redis: Redis) -> None:
    """Under the allowlist the listed are members; others are refused, and told so only directly."""
    people = access(redis, access_policy="allowlist", access_allowlist="telegram:42,slack:U1")
    assert await people.authorise(DIRECT, "acme") == Decision(True, Role.MEMBER)
    stranger = replace(DIRECT, author=Author("43"))
    refused = await people.authorise(stranger, "acme")
    assert (refused.allowed, refused.why) == (False, "not_on_allowlist")
    assert "telegram:43" in refused.notice
    assert (await people.authorise(replace(GROUP, author=Author("43")), "acme")).notice == ""


async def test_the_same_id_on_another_platform_is_another_person(redis: Redis) -> None:
    """A listed person of one platform gives nothing to whoever has that id on another."""
    people = access(redis, access_policy="allowlist", access_allowlist="telegram:42", access_admins="slack:42")
    assert not (await people.authorise(replace(DIRECT, connector="discord"), "acme")).allowed


async def test_admins_of_the_settings_are_admins_everywhere(redis: Redis) -> None:
    """ACCESS_ADMINS are admins in each workspace, under each policy, whatever role is stored."""
    for policy in ("open", "allowlist", "pairing"):
        people = access(redis, access_policy=policy, access_admins="telegram:42")
        await people.set_role("telegram:42", Role.VIEWER, "acme")
        assert await people.authorise(GROUP, "acme") == Decision(True, Role.ADMIN)


async def test_pairing_from_stranger_to_member(redis: Redis) -> None:
    """A stranger gets a code directly, an admin approves it, and the stranger is a member of that workspace only."""
    people = access(redis)
    refused = await people.authorise(DIRECT, "acme")
    assert (refused.allowed, refused.why) == (False, "unpaired")
    code = code_in(refused.notice)
    assert f"`./agent-runtime access approve {code}`" in refused.notice
    assert [(who.user, who.name, who.workspace_id) for who in await people.pending()] == [
        ("telegram:42", "Ann", "acme")
    ]
    let_in = await people.approve(f" {code.lower()} ", by="slack:U1", by_name="Boss")
    assert (let_in.user, let_in.name, let_in.role, let_in.workspace_id) == ("telegram:42", "Ann", Role.MEMBER, "acme")
    assert await people.people("acme") == [let_in]
    assert let_in.given_by == "slack:U1"
    assert await people.authorise(GROUP, "acme") == Decision(True, Role.MEMBER)
    assert await people.pending() == []
    assert not (await people.authorise(GROUP, "other")).allowed
    with pytest.raises(UnknownCode):
        await people.approve(code)


async def test_a_stranger_who_speaks_to_the_bot_in_a_group_waits_and_is_told_so_there_once(redis: Redis) -> None:
    """Without the code, which others could read; in each place once, and again where the platform brings it again."""
    people = access(redis)
    asked = [
        replace(GROUP, message_id="1"),
        replace(GROUP, message_id="2"),
        replace(GROUP, message_id="1"),
        replace(GROUP, external_id="-200", message_id="1"),
    ]
    assert [(await people.authorise(one, "acme")).notice for one in asked] == [ASK_HERE, "", ASK_HERE, ASK_HERE]
    (waits,) = await people.pending()
    assert waits.asked_in == ("telegram:-100", "telegram:-200")
    assert len(waits.messages) == 3
    assert waits.code not in ASK_HERE + WAIT_HERE
    assert waits.code in (await people.authorise(DIRECT, "acme")).notice


async def test_threads_of_a_place_are_one_place(redis: Redis) -> None:
    people = access(redis)
    threads = [replace(GROUP, external_id=f"C1/{n}", message_id=str(n), place="C1") for n in range(3)]
    assert [(await people.authorise(one, "acme")).notice for one in threads] == [ASK_HERE, "", ""]


async def test_a_stranger_who_keeps_on_asking_is_told_a_bounded_number_of_times(redis: Redis) -> None:
    people = access(redis)
    places = [replace(GROUP, external_id=str(-n)) for n in range(MAX_NOTICES + 3)]
    for asked in (places, [DIRECT] * (MAX_NOTICES + 3)):
        notices = [(await people.authorise(one, "acme")).notice for one in asked]
        assert [bool(notice) for notice in notices] == [True] * MAX_NOTICES + [False] * 3
        await redis.flushall()


async def test_what_the_bot_overhears_is_no_request(redis: Redis) -> None:
    """Where it answers everything, strangers' chatter is not kept, nor are admins told of it; a command is meant."""
    people = access(redis)
    chatter = replace(GROUP, addressed=False)
    assert (await people.authorise(chatter, "acme")).notice == ""
    assert await people.pending() == []
    assert (await people.authorise(replace(chatter, kind=InboundKind.COMMAND, text="help"), "acme")).notice == ASK_HERE


async def test_who_was_turned_away_hears_nothing_in_a_group(redis: Redis) -> None:
    people = access(redis)
    await people.authorise(GROUP, "acme")
    (waits,) = await people.pending()
    await people.deny(waits.code)
    for place in ("-100", "-200"):
        assert (await people.authorise(replace(GROUP, external_id=place, message_id="2"), "acme")).notice == ""


async def test_messages_of_two_places_that_have_the_same_number_are_two(redis: Redis) -> None:
    """One that is deleted is kept no longer, though the platform does not say who wrote it."""
    people = access(redis)
    for message in (DIRECT, GROUP):
        await people.authorise(message, "acme")
    deleted = replace(GROUP, author=Author(""), kind=InboundKind.DELETE)
    assert [one.asked_in for one in await people.pending()] == [("", "telegram:-100")]
    await people.withdraw(deleted, "acme")
    assert [one.asked_in for one in await people.pending()] == [("",)]


async def test_a_person_is_let_in_with_the_role_that_was_said_whatever_became_of_the_process(redis: Redis) -> None:
    clock = Clock()
    people = access(redis, clock)
    code = code_in((await people.authorise(DIRECT, "acme")).notice)
    await Pairing(redis, clock=clock).decide(code, None, "approved", "Bo", Role.ADMIN)
    await people.unsettled()
    assert await people.role_of("telegram:42", "acme") is Role.ADMIN
    other = code_in((await people.authorise(replace(DIRECT, author=Author("43", "Kai")), "acme")).notice)
    let_in = await people.approve(other, role=Role.VIEWER)
    assert (let_in.user, let_in.name, let_in.role, let_in.workspace_id) == ("telegram:43", "Kai", Role.VIEWER, "acme")


async def test_who_writes_again_has_the_same_code_until_it_is_used(redis: Redis) -> None:
    """One code per person: whichever notice they pass on, it lets them in, and only once."""
    people = access(redis)
    again = [replace(DIRECT, message_id=str(number)) for number in range(3)]
    codes = [code_in((await people.authorise(message, "acme")).notice) for message in again]
    other = code_in((await people.authorise(replace(DIRECT, author=Author("43")), "acme")).notice)
    assert len(set(codes)) == 1
    assert [(who.user, len(who.messages)) for who in await people.pending()] == [("telegram:42", 3), ("telegram:43", 1)]
    assert (await people.approve(codes[0], by="slack:U1", by_name="Bo")).user == "telegram:42"
    with pytest.raises(AlreadyDecided, match="Ann was let in already, by Bo"):
        await people.deny(codes[0])
    assert [who.user for who in await people.pending()] == ["telegram:43"]
    assert (await people.deny(other)).user == "telegram:43"


async def test_what_a_stranger_says_is_kept_within_bounds_and_as_they_last_said_it(redis: Redis) -> None:
    """The first few messages, of a bounded size, once each; edits hold, and what is deleted is kept no longer."""
    people = access(redis)
    for number in [1, 1, 2, 3, 4]:
        await people.authorise(replace(DIRECT, message_id=str(number), text=f"question {number}"), "acme")
    huge = replace(DIRECT, author=Author("43"), text="x" * MAX_BYTES)
    assert code_in((await people.authorise(huge, "acme")).notice)
    await people.authorise(replace(DIRECT, message_id="2", text="changed", kind=InboundKind.EDIT), "acme")
    await people.withdraw(replace(DIRECT, message_id="3", kind=InboundKind.DELETE), "acme")
    kept = {who.user: [(one.kind, one.text) for one in who.messages] for who in await people.pending()}
    said = InboundKind.MESSAGE
    assert kept == {"telegram:42": [(said, "question 1"), (said, "changed")], "telegram:43": []}
    assert MAX_MESSAGES == 3


async def test_a_person_who_was_turned_away_is_told_nothing_more_and_their_code_lets_nobody_in(redis: Redis) -> None:
    people = access(redis)
    code = code_in((await people.authorise(DIRECT, "acme")).notice)
    assert (await people.deny(code)).user == "telegram:42"
    with pytest.raises(UnknownCode):
        await people.approve(code)
    again = await people.authorise(replace(DIRECT, message_id="2"), "acme")
    assert (again.allowed, again.notice) == (False, "")
    assert await people.pending() == []


async def test_a_role_that_is_given_to_who_waits_lets_them_in_like_approving(redis: Redis) -> None:
    people = access(redis)
    await people.authorise(DIRECT, "acme")
    await people.set_role("telegram:42", Role.ADMIN, "acme", by="slack:U1")
    assert await people.pending() == []
    assert [(one.user, one.state) for one in await people.unsettled()] == [("telegram:42", "approved")]
    assert await people.role_of("telegram:42", "acme") is Role.ADMIN


async def test_who_was_let_in_is_a_member_though_the_process_ended_in_between(redis: Redis) -> None:
    clock = Clock()
    people = access(redis, clock)
    code = code_in((await people.authorise(DIRECT, "acme")).notice)
    await Pairing(redis, clock=clock).decide(code, None, "approved", "Bo")
    (request,) = await people.unsettled()
    assert await people.role_of("telegram:42", "acme") is Role.MEMBER
    await people.settled(request)
    assert await people.unsettled() == []
    assert '"text":"hi"' not in await everything(redis)


async def test_a_code_is_valid_for_its_time(redis: Redis) -> None:
    """A code that is older than its time cannot be approved and is not listed."""
    clock = Clock()
    people = access(redis, clock)
    code = code_in((await people.authorise(DIRECT, "acme")).notice)
    clock.now += CODE_SECONDS - 1
    assert [who.expires_in_seconds for who in await people.pending()] == [1]
    clock.now += 1
    assert await people.pending() == []
    with pytest.raises(UnknownCode):
        await people.approve(code)


async def test_of_two_who_use_a_code_at_once_one_wins(redis: Redis) -> None:
    """Approving and denying the same code at once succeeds exactly once."""
    people = access(redis)
    code = code_in((await people.authorise(DIRECT, "acme")).notice)
    results = await asyncio.gather(*(people.deny(code) for _ in range(5)), return_exceptions=True)
    assert sum(not isinstance(result, UnknownCode) for result in results) == 1


async def test_guessing_codes_is_bounded(redis: Redis) -> None:
    """After a number of wrong codes not even the right one is looked at."""
    people = access(redis)
    code = code_in((await people.authorise(DIRECT, "acme")).notice)
    for _ in range(MAX_WRONG_CODES):
        with pytest.raises(UnknownCode):
            await people.approve("WRONG234")
    with pytest.raises(TooManyAttempts):
        await people.approve(code)
    assert 0 < await redis.ttl("ar:pairing:{access}:attempts") <= ATTEMPT_SECONDS


async def test_waiting_requests_are_bounded_until_some_expire(redis: Redis) -> None:
    """When too many wait nobody gets a code, until those that wait expire."""
    clock = Clock()
    pairing = Pairing(redis, clock=clock)
    stored = [await pairing.ask(f"telegram:{n}", "", "acme") for n in range(MAX_PENDING)]
    assert all(stored)
    assert await pairing.ask("telegram:more", "", "acme") is None
    clock.now += CODE_SECONDS
    assert await pairing.ask("telegram:more", "", "acme")
    assert len(await pairing.pending()) == 1


async def test_tokens_are_never_stored_as_such(redis: Redis) -> None:
    """A token cannot be read in the store."""
    token = await ApiTokens(redis, "admin-token").create("acme", Role.MEMBER)
    stored = await everything(redis)
    assert "tokens" in stored
    assert token not in stored


async def test_each_refusal_is_one_event_without_text(redis: Redis) -> None:
    """A refusal is the event access.refused, once, with its reason and place and nothing that was said."""
    people = access(redis)
    with capture_logs() as events:
        decision = await people.authorise(DIRECT, "acme")
    assert events == [
        {
            "event": "access.refused",
            "log_level": "info",
            "why": "unpaired",
            "workspace_id": "acme",
            "context_id": "telegram:42",
            "connector": "telegram",
            "user": "telegram:42",
        }
    ]
    assert code_in(decision.notice) not in str(events)


async def test_whatever_changes_who_may_do_what_is_one_event_that_names_who_did_it(redis: Redis) -> None:
    """Codes and tokens themselves are in none of them."""
    people, tokens = access(redis), ApiTokens(redis, "the-admin-token")
    other = replace(DIRECT, external_id="43", author=Author("43", "Ben"))
    codes = [code_in((await people.authorise(message, "acme")).notice) for message in (DIRECT, other)]
    with capture_logs() as events:
        await people.approve(codes[0], by="slack:U1")
        await people.deny(codes[1], by="slack:U1")
        await people.set_role("telegram:42", Role.ADMIN, "acme", by="http:token:admin")
        await people.set_role("telegram:42", None, "acme", by="http:token:admin")
        token = await tokens.create("acme", Role.VIEWER, by="http:token:admin")
        (known,) = await tokens.of_workspace("acme")
        await tokens.revoke(known.id, by="http:token:admin")
        await tokens.revoke(known.id, by="http:token:admin")

    assert {one["event"] for one in events} == {"access.changed"}
    told = [(one["action"], one.get("user", one.get("token_id")), one.get("role"), one["by"]) for one in events]
    assert told == [
        ("approved", "telegram:42", "member", "slack:U1"),
        ("denied", "telegram:43", None, "slack:U1"),
        ("role", "telegram:42", "admin", "http:token:admin"),
        ("role", "telegram:42", "none", "http:token:admin"),
        ("token", known.id, "viewer", "http:token:admin"),
        ("revoked", known.id, None, "http:token:admin"),
    ]
    assert not {*codes, token} & set(re.findall(r"[\w-]+", str(events)))


@pytest.mark.parametrize("bound", list(Role))
@pytest.mark.parametrize("own", [*Role, None])
async def test_an_author_named_over_http_never_gains_a_role(redis: Redis, bound: Role, own: Role | None) -> None:
    """A named author has their own role (a member's by default), but never more than the caller's token."""
    people = access(redis)
    if own is not None:
        await people.set_role("http:ann", own, "acme")
    message = replace(DIRECT, connector="http", author=Author("ann"), caller_role=bound)
    decision = await people.authorise(message, "acme")
    expected = own or Role.MEMBER
    assert decision == Decision(True, expected if bound.covers(expected) else bound)


@pytest.mark.parametrize("bound", list(Role))
async def test_a_caller_who_names_no_author_has_the_role_of_the_token(redis: Redis, bound: Role) -> None:
    """Without a named author the role is the token's, under the strictest policy too."""
    people = access(redis, access_policy="allowlist")
    message = replace(DIRECT, connector="http", author=Author(CALLER_PREFIX + "abc"), caller_role=bound)
    assert await people.authorise(message, "acme") == Decision(True, bound)


async def test_roles_are_set_listed_and_taken_away_per_workspace(redis: Redis) -> None:
    """A role counts in its workspace, is listed with those of the settings, and can be taken away."""
    people = access(redis, access_admins="slack:U1", access_allowlist="slack:U2")
    await people.set_role("telegram:42", Role.ADMIN, "acme")
    assert [(who.user, who.role, who.workspace_id) for who in await people.people("acme")] == [
        ("slack:U1", Role.ADMIN, None),
        ("slack:U2", Role.MEMBER, None),
        ("telegram:42", Role.ADMIN, "acme"),
    ]
    assert await people.role_of("telegram:42", "other") is None
    await people.set_role("telegram:42", None, "acme")
    assert await people.role_of("telegram:42", "acme") is None


async def test_a_role_that_another_process_takes_away_is_gone_for_the_next_message(redis: Redis) -> None:
    """Nothing about access is remembered between two messages."""
    here, elsewhere = access(redis), access(redis)
    await here.set_role("telegram:42", Role.ADMIN, "acme")
    assert (await here.authorise(DIRECT, "acme")).role is Role.ADMIN
    await elsewhere.set_role("telegram:42", Role.VIEWER, "acme")
    assert (await here.authorise(DIRECT, "acme")).role is Role.VIEWER
    await elsewhere.set_role("telegram:42", None, "acme")
    assert not (await here.authorise(DIRECT, "acme")).allowed


@pytest.mark.parametrize("user", ["", "ann", "telegram:", ":42", "http:token:abc"])
async def test_a_role_needs_a_person(redis: Redis, user: str) -> None:
    """What is no person cannot be given a role; the holder of a token is none."""
    with pytest.raises(ValueError, match="connector:user_id"):
        await access(redis).set_role(user, Role.MEMBER, "acme")


async def test_odd_ids_of_people_do_not_meet(redis: Redis) -> None:
    """Ids with separators, spaces or halves of surrogate pairs are people of their own."""
    people = access(redis)
    odd = ["a:b", "a%3Ab", "a b", "a/b", "\ud800", "é", "e\u0301"]
    for user_id in odd[::2]:
        await people.set_role(f"slack:{user_id}", Role.MEMBER, "acme")
    roles = [await people.role_of(f"slack:{user_id}", "acme") for user_id in odd]
    assert roles == [Role.MEMBER, None, Role.MEMBER, None, Role.MEMBER, None, Role.MEMBER]


async def test_a_token_opens_its_workspace_as_its_role_until_revoked(redis: Redis) -> None:
    """A token is good for its workspace and role, differs from every other, and is worthless once revoked."""
    tokens = ApiTokens(redis, "the-admin-token")
    token, other = await tokens.create("acme", Role.VIEWER), await tokens.create("acme", Role.VIEWER)
    assert token != other
    caller = await tokens.authenticate(token)
    assert (caller.role, caller.workspace_id) == (Role.VIEWER, "acme")
    assert caller.id.startswith(CALLER_PREFIX)
    assert caller.may_enter("acme")
    assert not caller.may_enter("other")
    listed = await tokens.of_workspace("acme")
    assert len(listed) == 2
    assert await tokens.of_workspace("other") == []
    assert await tokens.revoke(caller.id.removeprefix(CALLER_PREFIX))
    with pytest.raises(Unauthenticated):
        await tokens.authenticate(token)
    assert (await tokens.authenticate(other)).workspace_id == "acme"


async def test_the_admins_token_opens_everything(redis: Redis) -> None:
    """The admin's token is an admin's in every workspace; anything else is nobody's."""
    tokens = ApiTokens(redis, "the-admin-token")
    caller = await tokens.authenticate("the-admin-token")
    assert caller.role is Role.ADMIN
    assert caller.may_enter("acme")
    for wrong in ("", "the-admin-token ", "the-admin-toke", "\ud800", "x" * 10_000):
        with pytest.raises(Unauthenticated):
            await tokens.authenticate(wrong)


async def test_deleting_a_workspace_takes_its_people_and_tokens_along(redis: Redis) -> None:
    """Roles, requests and tokens of a deleted workspace are gone; those of others stay."""
    people, tokens = access(redis), ApiTokens(redis, "the-admin-token")
    gone, stays = await tokens.create("acme", Role.MEMBER), await tokens.create("other", Role.MEMBER)
    for workspace_id in ("acme", "other"):
        await people.set_role("telegram:7", Role.MEMBER, workspace_id)
        await people.authorise(DIRECT, workspace_id)
    await people.forget_workspace("acme")
    await tokens.forget_workspace("acme")
    assert await people.role_of("telegram:7", "acme") is None
    assert await people.role_of("telegram:7", "other") is Role.MEMBER
    assert [who.workspace_id for who in await people.pending()] == ["other"]
    with pytest.raises(Unauthenticated):
        await tokens.authenticate(gone)
    assert (await tokens.authenticate(stays)).workspace_id == "other"
