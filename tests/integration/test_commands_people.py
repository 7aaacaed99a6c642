"""Admins let people in to their own workspace, and to no other; those of the settings to every one."""

import pytest
from redis.asyncio import Redis

from connectors.message import Author, ConversationKey, InboundMessage, Role
from runtime.access import Access, ApiTokens, UnknownCode
from runtime.access.pairing import Pairing
from runtime.commands.people import People
from runtime.commands.registry import CommandRefused, Invocation
from tests.conftest import MakeSettings

KEY = ConversationKey("acme", "telegram", "501")


async def code_of(redis: Redis, user: str, name: str, workspace_id: str) -> str:
    """The code of a person who asks to be let in."""
    request = await Pairing(redis).ask(user, name, workspace_id)
    assert request is not None
    return request.code


def given(rest: str, by: str = "501", caller: Role | None = None) -> Invocation:
    message = InboundMessage("telegram", by, "m1", Author(by, "Lena"), "", direct=True, caller_role=caller)
    return Invocation(KEY, message, Role.ADMIN, rest)


@pytest.fixture
def access(redis: Redis, settings: MakeSettings) -> Access:
    return Access(redis, settings(access_admins=("telegram:500",)), ApiTokens(redis, "admin-token"))


async def test_a_code_for_another_workspace_is_no_code_here_and_stays_good(redis: Redis, access: Access) -> None:
    code = await code_of(redis, "telegram:7", "Kai", "umbrella")
    people = People(access)

    assert await people.pair(given("list")) == "Nobody is waiting to be let in."
    for word in ("approve", "deny"):
        with pytest.raises(UnknownCode):
            await people.pair(given(f"{word} {code}"))
    assert await access.role_of("telegram:7", "acme") is None

    assert (await access.approve(code)).workspace_id == "umbrella"


async def test_who_is_admin_everywhere_lets_people_in_to_every_workspace(redis: Redis, access: Access) -> None:
    """Where nothing routes direct messages, a stranger has a workspace of their own, with no admin in it."""
    code = await code_of(redis, "telegram:7", "Kai", "telegram-7")
    people = People(access)

    assert f"Kai (`telegram:7`) to `telegram-7`: `/pair approve {code}`" in await people.pair(given("list", by="500"))
    with pytest.raises(UnknownCode):  # the holder of a workspace's token is not who they say they are
        await people.pair(given(f"approve {code}", by="500", caller=Role.ADMIN))
    assert "may now talk to me, as a member" in await people.pair(given(f"approve {code}", by="500"))
    assert await access.role_of("telegram:7", "telegram-7") is Role.MEMBER
    assert await access.role_of("telegram:7", "acme") is None


async def test_a_code_is_used_once_whatever_its_case(redis: Redis, access: Access) -> None:
    code = await code_of(redis, "telegram:7", "Kai", "acme")
    people = People(access)

    assert f"Kai (`telegram:7`): `/pair approve {code}`" in await people.pair(given(""))
    assert "may now talk to me, as a member" in await people.pair(given(f"Approve {code.lower()}"))
    with pytest.raises(UnknownCode):
        await people.pair(given(f"approve {code}"))
    assert await access.role_of("telegram:7", "acme") is Role.MEMBER
    assert await access.role_of("telegram:7", "umbrella") is None


async def test_a_denied_code_is_worthless(redis: Redis, access: Access) -> None:
    code = await code_of(redis, "telegram:7", "", "acme")
    people = People(access)

    assert "(`telegram:7`) is not let in" in await people.pair(given(f"deny {code}"))
    with pytest.raises(UnknownCode):
        await people.pair(given(f"approve {code}"))


async def test_a_role_is_given_and_taken_away_in_this_workspace_alone(access: Access) -> None:
    people = People(access)

    assert "`telegram:7` is viewer here now." in await people.role(given("7 Viewer"))
    assert "`discord:9` is admin here now." in await people.role(given("discord:9 admin"))
    assert await access.role_of("discord:9", "umbrella") is None
    assert "`telegram:7` has no role here now." in await people.role(given("@7 none"))
    assert await access.role_of("telegram:7", "acme") is None


async def test_a_role_is_given_by_the_name_of_somebody_who_was_let_in(redis: Redis, access: Access) -> None:
    people = People(access)
    for user, name in (("telegram:7", "Kai Mars"), ("slack:U7", "Kai Mars"), ("slack:U8", "Bo"), ("slack:U9", "Bo")):
        await access.approve(await code_of(redis, user, name, "acme"))

    for role in ("viewer", "admin"):
        assert f"`telegram:7` is {role} here now." in await people.role(given(f"@kai Mars {role}"))
    with pytest.raises(CommandRefused, match="Several people are called Bo: `slack:U8`, `slack:U9`"):
        await people.role(given("Bo admin"))


async def test_a_name_that_somebody_gave_themselves_gets_nobody_elses_role(access: Access) -> None:
    await access.set_role("telegram:9", Role.VIEWER, "acme")
    mallory = InboundMessage("telegram", "9", "m1", Author("9", "Lena Vale"), "hi", direct=True)
    await access.authorise(mallory, "acme")
    with pytest.raises(CommandRefused, match="Nobody here is called Lena Vale"):
        await People(access).role(given("Lena Vale admin"))


@pytest.mark.parametrize("name", ["42", "slack:U0BOSS", "U0BOSS"])
async def test_who_is_called_like_the_id_of_another_does_not_get_their_role(
    redis: Redis, access: Access, name: str
) -> None:
    await access.approve(await code_of(redis, "telegram:7", name, "acme"))
    if ":" in name:
        assert "`slack:U0BOSS` is admin here now." in await People(access).role(given(f"{name} admin"))
    else:
        with pytest.raises(CommandRefused, match=f"Do you mean `telegram:{name}`, or `telegram:7`, who is called"):
            await People(access).role(given(f"{name} admin"))
    assert await access.role_of("telegram:7", "acme") is Role.MEMBER


@pytest.mark.parametrize("rest", ["@bo admin", "Bo Stern admin", "Bo admin"])
async def test_a_name_that_nobody_has_is_no_id(access: Access, rest: str) -> None:
    with pytest.raises(CommandRefused, match="Give the person's id, for example `telegram:42`"):
        await People(access).role(given(rest))
    assert [one.user for one in await access.people("acme")] == ["telegram:500"]


async def test_where_ids_are_words_a_word_is_an_id(access: Access) -> None:
    assert "`telegram:bo` is viewer here now." in await People(access).role(given("bo viewer", by="lena"))


async def test_what_the_settings_say_is_not_changed_by_a_command(access: Access) -> None:
    told = await People(access).role(given("telegram:500 viewer"))

    assert "is admin here now" in told
    assert "settings" in told


@pytest.mark.parametrize("rest", ["", "7", "7 king", "7 admin please", "telegram:token:x admin", ": admin"])
async def test_what_names_no_person_or_no_role_is_refused(access: Access, rest: str) -> None:
    with pytest.raises(CommandRefused):
        await People(access).role(given(rest))
