"""People by name, the tokens that belong to them, and by which rule they may do something; on a real Redis."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from redis.asyncio import Redis

from config.settings import Settings
from connectors.message import Author, InboundMessage, Role, redis_key
from runtime.access import Access, ApiTokens, InvalidTokenName, Rule, Unauthenticated
from runtime.stores import pack

NOW = 1_800_000_000.0  # 15 January 2027
HELLO = InboundMessage(
    connector="telegram", external_id="42", message_id="1", author=Author("42", "Ann"), text="hi", direct=True
)


def house(redis: Redis, **settings: Any) -> tuple[Access, ApiTokens]:
    tokens = ApiTokens(redis, "the-admin-token", clock=lambda: NOW)
    return Access(redis, Settings.model_validate(settings), tokens, clock=lambda: NOW), tokens


async def names(access: Access, workspace_id: str = "acme") -> dict[str, str]:
    return {person.user: person.name for person in await access.people(workspace_id)}


async def valid(tokens: ApiTokens, *secrets: str) -> list[bool]:
    found = []
    for secret in secrets:
        try:
            await tokens.authenticate(secret)
            found.append(True)
        except Unauthenticated:
            found.append(False)
    return found


# Names


async def test_people_have_the_name_of_their_messages_until_an_admin_gives_one(redis: Redis) -> None:
    access, _ = house(redis, access_admins="telegram:42")
    assert await names(access) == {"telegram:42": ""}
    await access.authorise(HELLO, "acme")
    assert await names(access) == {"telegram:42": "Ann"}
    await access.authorise(replace(HELLO, author=Author("42", "Ann B.")), "acme")
    assert await names(access) == {"telegram:42": "Ann B."}
    await access.set_name("telegram:42", " Ann Beck ", "acme")
    await access.authorise(replace(HELLO, author=Author("42", "The Boss")), "acme")
    assert await names(access) == {"telegram:42": "Ann Beck"}
    await access.set_name("telegram:42", "", "acme")
    assert await names(access) == {"telegram:42": "The Boss"}
    assert await names(access, "other") == {"telegram:42": ""}
    for name in ("slack:U1", "x" * 65, "a\nb"):
        with pytest.raises(InvalidTokenName):
            await access.set_name("telegram:42", name, "acme")
    with pytest.raises(ValueError, match="telegram:42"):
        await access.set_name("Ann", "Ann", "acme")


async def test_a_name_is_stored_once_and_not_with_every_message(redis: Redis) -> None:
    access, _ = house(redis, access_admins="telegram:42")
    await access.authorise(HELLO, "acme")
    await redis.delete(redis_key("access", "{w.acme}", "own_names"))
    await access.authorise(HELLO, "acme")
    assert await names(access) == {"telegram:42": ""}


async def test_who_was_let_in_under_a_name_keeps_it_whatever_they_call_themselves(redis: Redis) -> None:
    access, _ = house(redis)
    await access.authorise(HELLO, "acme")
    (request,) = await access.pending()
    await access.approve(request.code)
    await access.authorise(replace(HELLO, author=Author("42", "Boss")), "acme")
    (person,) = await access.people("acme")
    assert (person.name, person.is_self_named) == ("Ann", False)


async def test_only_people_with_a_role_are_remembered_and_no_longer_than_that(redis: Redis) -> None:
    access, _ = house(redis)
    await access.authorise(HELLO, "acme")
    assert await access.people("acme") == []
    assert not await redis.exists(redis_key("access", "{w.acme}", "own_names"))
    await access.set_role("telegram:42", Role.MEMBER, "acme", name="Ann Beck")
    await access.authorise(HELLO, "acme")
    await access.set_role("telegram:42", None, "acme")
    assert await redis.keys("*names*") == []
    await access.set_role("telegram:42", Role.MEMBER, "acme")
    assert await names(access) == {"telegram:42": ""}


async def test_what_a_caller_says_about_an_author_names_nobody(redis: Redis) -> None:
    """The holder of a token may name anyone as the author."""
    access, _ = house(redis, access_admins="telegram:42")
    await access.authorise(replace(HELLO, caller_role=Role.MEMBER), "acme")
    assert await names(access) == {"telegram:42": ""}


# Who gave a role


async def test_a_role_says_who_gave_it_and_when_and_old_ones_say_that_nobody_knows(redis: Redis) -> None:
    access, _ = house(redis)
    await access.set_role("telegram:42", Role.ADMIN, "acme", by="slack:U1")
    (person,) = await access.people("acme")
    assert (person.given_by, person.given_at and person.given_at.timestamp()) == ("slack:U1", NOW)
    old = pack(1, user="telegram:42", name="Ann", role="member")
    await redis.hset(redis_key("access", "{w.acme}", "roles"), "telegram:42", old)
    (person,) = await access.people("acme")
    assert (person.name, person.role, person.given_by, person.given_at) == ("Ann", Role.MEMBER, "", None)


async def test_a_person_who_is_forgotten_leaves_no_trace_in_what_they_gave(redis: Redis) -> None:
    access, tokens = house(redis)
    await access.set_role("telegram:42", Role.ADMIN, "acme", name="Ann", by="slack:U1")
    await access.set_role("telegram:7", Role.MEMBER, "acme", by="telegram:42")
    await access.authorise(replace(HELLO, author=Author("8", "Kim")), "acme")
    secret = await tokens.create("acme", Role.ADMIN, owner="telegram:42")
    (revoked,) = await access.forget_person("telegram:42", "acme")
    assert (revoked.owner, await valid(tokens, secret)) == ("telegram:42", [False])
    await access.forget_person("telegram:8", "acme")
    assert await access.pending() == []
    left = str([await redis.hgetall(key) for key in await redis.keys("ar:access:{w.acme}:*")])
    assert "telegram:42" not in left
    assert await access.role_of("telegram:7", "acme") is Role.MEMBER


# Tokens belong to somebody


async def test_every_new_token_belongs_to_somebody(redis: Redis) -> None:
    _, tokens = house(redis)
    secrets = [
        await tokens.create("acme", Role.VIEWER, owner="slack:U1", by="Admin"),
        await tokens.create("acme", Role.VIEWER, owner="Ann Beck", by="Admin"),
        await tokens.create("acme", Role.VIEWER, by="slack:U2"),
        await tokens.create("acme", Role.VIEWER),
    ]
    owners = [(await tokens.authenticate(secret)).owner for secret in secrets]
    assert owners == ["slack:U1", "Ann Beck", "slack:U2", "Admin"]
    assert sorted(token.owner_text for token in await tokens.all()) == sorted(owners)
    link, invited = await tokens.invite("acme", "Mira", None)
    assert (await tokens.authenticate(link)).owner == invited.owner == invited.user
    with pytest.raises(InvalidTokenName):
        await tokens.create("acme", Role.VIEWER, owner="x" * 65)
    with pytest.raises(InvalidTokenName):
        await tokens.create("acme", Role.VIEWER, owner="slack:" + "x" * 400)
    assert (await tokens.authenticate("the-admin-token")).owner == "Admin"


async def test_a_token_of_an_earlier_version_belongs_to_nobody(redis: Redis) -> None:
    _, tokens = house(redis)
    await redis.hset(
        redis_key("tokens", "{tokens}", "by_digest"), "ab" * 32, pack(1, workspace_id="acme", role="member", name="CI")
    )
    (token,) = await tokens.all()
    assert (token.owner, token.owner_text) == ("", "nobody (made before tokens had owners)")


async def test_the_tokens_of_a_person_are_found_in_one_workspace_or_in_all(redis: Redis) -> None:
    _, tokens = house(redis)
    for workspace, owner in (("acme", "slack:U1"), ("other", "slack:U1"), ("acme", "slack:U10")):
        await tokens.create(workspace, Role.MEMBER, owner=owner)
    assert [token.workspace_id for token in await tokens.tokens_of("slack:U1", "acme")] == ["acme"]
    assert {token.workspace_id for token in await tokens.tokens_of("slack:U1")} == {"acme", "other"}


async def test_a_person_is_found_by_the_name_that_admins_know(redis: Redis) -> None:
    access, tokens = house(redis)
    await access.set_role("telegram:42", Role.MEMBER, "acme", name="Ann")
    await access.set_role("telegram:9", Role.VIEWER, "acme")
    await access.authorise(replace(HELLO, author=Author("9", "Boss")), "acme")
    _, mira = await tokens.invite("acme", "Mira", None)
    assert await access.account_of(" ann ", "acme") == "telegram:42"
    assert await access.account_of("Mira", "acme") == mira.user
    assert await access.account_of("slack:U7", "acme") == "slack:U7"
    assert await access.account_of("Nightly job", "acme") == "Nightly job"
    assert await access.account_of("Boss", "acme") == "Boss"  # nobody but themselves said so
    assert await access.account_of("", "acme") == ""
    await access.set_role("slack:U1", Role.MEMBER, "acme", name="Ann")
    with pytest.raises(ValueError, match="slack:U1, telegram:42"):
        await access.account_of("Ann", "acme")


async def test_tokens_go_with_the_role_of_their_owner(redis: Redis) -> None:
    """Those that allow more than the owner may do now; in this workspace only."""
    access, tokens = house(redis)
    await access.set_role("slack:U1", Role.ADMIN, "acme")
    admins = await tokens.create("acme", Role.ADMIN, owner="slack:U1")
    viewers = await tokens.create("acme", Role.VIEWER, owner="slack:U1")
    elsewhere = await tokens.create("other", Role.ADMIN, owner="slack:U1")
    somebodys = await tokens.create("acme", Role.ADMIN, owner="slack:U2")
    assert await access.set_role("slack:U1", Role.ADMIN, "acme") == []
    assert [token.role for token in await access.set_role("slack:U1", Role.MEMBER, "acme")] == [Role.ADMIN]
    assert await valid(tokens, admins, viewers, elsewhere, somebodys) == [False, True, True, True]
    assert [token.role for token in await access.set_role("slack:U1", None, "acme")] == [Role.VIEWER]
    assert await valid(tokens, admins, viewers, elsewhere, somebodys) == [False, False, True, True]


async def test_tokens_stay_if_the_settings_still_give_the_role(redis: Redis) -> None:
    access, tokens = house(redis, access_admins="slack:U1", access_policy="open")
    admins = await tokens.create("acme", Role.ADMIN, owner="slack:U1")
    members = await tokens.create("acme", Role.MEMBER, owner="slack:U2")
    assert await access.set_role("slack:U1", None, "acme") == []
    assert await access.set_role("slack:U2", None, "acme") == []
    assert await valid(tokens, admins, members) == [True, True]


async def test_tokens_of_a_person_of_the_chat_page_go_with_the_link(redis: Redis) -> None:
    _, tokens = house(redis)
    link, mira = await tokens.invite("acme", "Mira", Role.ADMIN)
    made = await tokens.create("acme", Role.ADMIN, owner=mira.user)
    viewers = await tokens.create("acme", Role.VIEWER, owner=mira.user)
    renewed, again = await tokens.invite("acme", "Mira", Role.ADMIN, renew=True)
    assert await valid(tokens, link, renewed, made) == [False, True, True]
    lowered, last = await tokens.invite("acme", "Mira", Role.MEMBER, renew=True)
    assert again.user == last.user == mira.user
    assert await valid(tokens, renewed, lowered, made, viewers) == [False, True, False, True]
    await tokens.revoke(last.id)
    assert await valid(tokens, lowered, viewers) == [False, False]


# By which rule


async def test_the_settings_decide_before_a_stored_role_and_all_rules_are_named(redis: Redis) -> None:
    access, _ = house(redis, access_admins="slack:U1", access_allowlist="slack:U1", access_policy="open")
    await access.set_role("slack:U2", Role.ADMIN, "acme", name="Boss")
    await access.set_role("slack:U1", Role.VIEWER, "acme", by="slack:U2")
    assert await access.standing("slack:U1", "acme") == [
        Rule(
            "ACCESS_ADMINS in the settings names slack:U1: an admin in every workspace.", Role.ADMIN, "settings", True
        ),
        Rule("Boss (slack:U2) gave slack:U1 the role viewer in the workspace acme on 2027-01-15.", Role.VIEWER, "role"),
        Rule("ACCESS_ALLOWLIST in the settings names slack:U1: a member in every workspace.", Role.MEMBER, "settings"),
        Rule("ACCESS_POLICY in the settings is open: everybody who writes is a member.", Role.MEMBER, "settings"),
        Rule("The sigil admin is bound to role:admin: for slack:U1, the model may use *.", Role.ADMIN, "sigil", True),
    ]


async def test_the_rule_that_decides_is_the_role_in_which_a_person_speaks(redis: Redis) -> None:
    """For every combination of the settings and a stored role."""
    for policy in ("pairing", "allowlist", "open"):
        for admins in ("", "telegram:42"):
            for allowlist in ("", "telegram:42"):
                for stored in (None, Role.VIEWER, Role.MEMBER, Role.ADMIN):
                    access, _ = house(redis, access_policy=policy, access_admins=admins, access_allowlist=allowlist)
                    await access.set_role("telegram:42", stored, "acme")
                    rules = await access.standing("telegram:42", "acme")
                    assert rules[0].decides
                    assert rules[0].role is await access.role_here(HELLO, "acme"), (policy, admins, allowlist, stored)


async def test_who_has_no_role_is_told_what_keeps_them_out(redis: Redis) -> None:
    for policy, said in (("pairing", "waits for an admin"), ("allowlist", "does not name them")):
        access, _ = house(redis, access_policy=policy)
        (rule,) = await access.standing("telegram:42", "acme")
        assert (rule.role, rule.source, rule.decides) == (None, "settings", True)
        assert said in rule.text


async def test_an_old_role_does_not_say_who_gave_it(redis: Redis) -> None:
    access, _ = house(redis)
    old = pack(1, user="telegram:42", name="Ann", role="member")
    await redis.hset(redis_key("access", "{w.acme}", "roles"), "telegram:42", old)
    first, *_ = await access.standing("telegram:42", "acme")
    assert first.text == "Somebody gave telegram:42 the role member in the workspace acme."


async def test_tokens_and_links_are_rules_too(redis: Redis) -> None:
    access, tokens = house(redis)
    await access.set_role("slack:U1", Role.MEMBER, "acme")
    secret = await tokens.create("acme", Role.VIEWER, name="CI", owner="slack:U1")
    _, mira = await tokens.invite("acme", "Mira", Role.ADMIN)
    caller = await tokens.authenticate(secret)
    (token,) = await tokens.tokens_of("slack:U1")
    text = f"The token 'CI' ({token.id}), which belongs to slack:U1: its holder is a viewer in acme."
    assert Rule(text, Role.VIEWER, "token") in await access.standing("slack:U1", "acme")
    assert (await access.standing(caller.id, "acme"))[0] == Rule(text, Role.VIEWER, "token", True)
    by_link, sigil = await access.standing(mira.user, "acme")
    assert by_link == Rule(f"The link 'Mira' ({mira.id}): its holder is an admin in acme.", Role.ADMIN, "token", True)
    assert sigil.source == "sigil"
    assert (await access.standing("token:admin", "acme"))[0].role is Role.ADMIN
    assert (await access.standing(caller.id, "other"))[0].role is None
    assert (await access.standing(mira.user, "other"))[0].role is None


async def test_the_sigil_names_the_binding_that_won(redis: Redis) -> None:
    bindings = {"user:slack:U1": "reader", "context:slack:C1": "writer"}
    sigils = {"reader": {"scopes": ["documents:read"]}, "writer": {"scopes": []}}
    access, _ = house(redis, sigils=sigils, sigil_bindings=bindings, access_policy="open")

    async def sigil(user: str, context_id: str = "") -> str:
        return (await access.standing(user, "acme", context_id))[-1].text

    assert await sigil("slack:U1", "slack:C1") == (
        "The sigil reader is bound to user:slack:U1: for slack:U1, the model may use documents:read."
    )
    assert await sigil("slack:U2", "slack:C1/1712") == (
        "The sigil writer is bound to context:slack:C1: for slack:U2, the model may use nothing."
    )
    assert (await sigil("slack:U2")).startswith("The sigil member is bound to role:member")
