"""Workspaces and routes on a real Redis."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from config.settings import Settings
from connectors.message import Author, InboundMessage, InvalidWorkspaceId, Scope, redis_key
from runtime.ingress.removal import forget_keys
from runtime.stores import NewerFormat, pack
from runtime.workspaces import (
    SAMPLE,
    UnknownWorkspace,
    WorkspaceInSettings,
    Workspaces,
    install_sample,
    make_document_folder,
)
from runtime.workspaces.workspaces import Route, console_workspace

MESSAGE = InboundMessage(
    connector="discord",
    external_id="991",
    message_id="1",
    author=Author("7"),
    text="hello",
    routes=("discord:G9/C7", "discord:G9"),
    default_workspace="discord-g9",
)


def workspaces(redis: Redis, **settings: object) -> Workspaces:
    return Workspaces(redis, Settings.model_validate(settings))


async def ids(register: Workspaces) -> list[str]:
    return [workspace.id for workspace in await register.all()]


async def test_a_workspace_is_made_once_listed_and_removed(redis: Redis) -> None:
    """A workspace is made once, is listed with the time of its making, and is gone once deleted."""
    register = workspaces(redis)
    with capture_logs() as events:
        assert await register.create("acme")
        assert not await register.create("acme")
    assert [(one["event"], one["workspace_id"]) for one in events] == [("workspace.created", "acme")]
    assert await register.exists("acme")
    acme = next(w for w in await register.all() if w.id == "acme")
    assert acme.created_at is not None
    assert await register.delete("acme")
    assert not await register.exists("acme")
    assert not await register.delete("acme")
    assert await ids(register) == ["default", SAMPLE]


async def test_the_sample_is_there_from_the_start_until_it_is_deleted(redis: Redis) -> None:
    """The sample workspace exists without being made, stays away once deleted, and can be made again."""
    register = workspaces(redis)
    assert await register.exists(SAMPLE)
    assert await register.delete(SAMPLE)
    assert not await register.exists(SAMPLE)
    assert await ids(register) == ["default"]
    assert await register.create(SAMPLE)
    assert await register.exists(SAMPLE)
    assert not await register.create(SAMPLE)


@pytest.mark.parametrize("name", ["", "Acme", "../etc", "a/b", ".x", "a" * 65, "ä", "a b", "a\n"])
async def test_a_name_that_is_none_is_refused(redis: Redis, name: str) -> None:
    """A workspace cannot be made, routed to or found under a name that is none."""
    register = workspaces(redis)
    with pytest.raises(InvalidWorkspaceId):
        await register.create(name)
    with pytest.raises(InvalidWorkspaceId):
        await register.route("slack:T1", name)
    assert not await register.exists(name)
    with pytest.raises(UnknownWorkspace):
        await register.resolve(replace(MESSAGE, workspace_id=name))


async def test_a_message_to_a_workspace_that_does_not_exist_says_how_to_make_it(redis: Redis) -> None:
    """An unknown workspace is an error that names the command which creates it, and is not made."""
    register = workspaces(redis)
    with pytest.raises(UnknownWorkspace, match="Did you mean sample"):
        await register.require("sampel")
    with pytest.raises(UnknownWorkspace, match="agent-runtime workspace create nowhere"):
        await register.resolve(replace(MESSAGE, workspace_id="nowhere"))
    assert not await register.exists("nowhere")
    await register.create("nowhere")
    assert await register.resolve(replace(MESSAGE, workspace_id="nowhere")) == "nowhere"


async def test_without_any_route_all_places_share_a_workspace(redis: Redis) -> None:
    """Unrouted places belong to `default`; with WORKSPACE_PER_PLACE each to its own. Only to ask makes none."""
    assert await workspaces(redis).resolve(MESSAGE) == "default"
    assert await workspaces(redis, workspace_per_place=True).resolve(MESSAGE) == "discord-g9"
    assert not await workspaces(redis).exists("discord-g9")


async def test_a_place_that_had_a_workspace_of_its_own_keeps_it_until_the_operator_decides(redis: Redis) -> None:
    """A route, the name of the shared workspace in the settings, or deleting its own moves it; nothing else does."""
    await workspaces(redis, workspace_per_place=True).create("discord-g9")
    register = workspaces(redis)
    assert await register.resolve(MESSAGE) == "discord-g9"
    former = await register.former_places({"discord-g9": "discord:G9"}.get)
    assert former == [Route("discord:G9", "discord-g9")]
    assert await workspaces(redis, default_workspace="default").resolve(MESSAGE) == "default"
    await register.route("discord:G9", "default")
    assert await register.resolve(MESSAGE) == "default"
    assert await register.former_places({"discord-g9": "discord:G9"}.get) == []
    await register.unroute("discord:G9")
    await register.delete("discord-g9")
    assert await register.resolve(MESSAGE) == "default"


async def test_the_terminal_talks_to_the_sample_until_the_shared_workspace_has_documents(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    assert console_workspace(settings) == SAMPLE
    await install_sample(tmp_path)
    make_document_folder(settings, "default")
    assert console_workspace(settings) == SAMPLE
    (tmp_path / "workspaces" / "default" / "docs" / "crew.md").write_text("# Crew")
    assert console_workspace(settings) == "default"


async def test_without_a_sample_the_terminal_talks_to_the_shared_workspace(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    make_document_folder(settings, "default")
    assert console_workspace(settings) == "default"


async def test_default_workspace_takes_what_no_route_names(redis: Redis) -> None:
    """DEFAULT_WORKSPACE comes after every route."""
    register = workspaces(redis, default_workspace="everyone", routes={"discord:G1": "one"})
    assert await register.resolve(MESSAGE) == "everyone"
    assert await register.resolve(replace(MESSAGE, routes=("discord:G1",))) == "one"


async def test_the_most_specific_route_wins_wherever_it_is_kept(redis: Redis) -> None:
    """The most specific routed key decides, whether it was stored or stands in the settings."""
    stored = workspaces(redis, routes={"discord:G9": "from-settings"})
    await stored.route("discord:G9/C7", "stored-channel")
    assert await stored.resolve(MESSAGE) == "stored-channel"
    configured = workspaces(redis, routes={"discord:G9/C7": "settings-channel"})
    await workspaces(redis).route("discord:G9", "stored-guild")
    assert await configured.resolve(MESSAGE) == "settings-channel"
    assert await configured.resolve(replace(MESSAGE, routes=("discord:G9/C8", "discord:G9"))) == "stored-guild"


async def test_a_route_that_another_process_changes_holds_for_the_next_message(redis: Redis) -> None:
    here, elsewhere = workspaces(redis), workspaces(redis)
    await here.route("discord:G9", "first")
    assert await here.resolve(MESSAGE) == "first"
    await elsewhere.route("discord:G9", "second")
    assert await here.resolve(MESSAGE) == "second"
    await elsewhere.unroute("discord:G9")
    assert await here.resolve(MESSAGE) == "default"


async def test_settings_win_over_a_stored_route_of_the_same_place(redis: Redis) -> None:
    """For the same place the settings' route counts, is listed, and cannot be changed by command."""
    await workspaces(redis).route("slack:T1", "stored")
    register = workspaces(redis, routes={"slack:T1": "configured"})
    assert await register.resolve(replace(MESSAGE, routes=("slack:T1",))) == "configured"
    assert await register.routes() == [Route("slack:T1", "configured", from_settings=True)]
    with pytest.raises(WorkspaceInSettings, match="configured"):
        await register.route("slack:T1", "other")


async def test_what_settings_name_exists_and_cannot_be_deleted(redis: Redis) -> None:
    """Workspaces named by the settings exist before anyone writes there, and only the settings remove them."""
    register = workspaces(redis, default_workspace="everyone", routes={"slack:T1": "acme"})
    assert await ids(register) == ["acme", "everyone", SAMPLE]
    for name in ("acme", "everyone"):
        assert await register.exists(name)
        with pytest.raises(WorkspaceInSettings, match="AGENT_RUNTIME_DEFAULT_WORKSPACE"):
            await register.delete(name)


async def test_routing_creates_and_deleting_unroutes(redis: Redis) -> None:
    """A route creates its workspace; deleting the workspace takes its routes along, and only those."""
    register = workspaces(redis)
    await register.route("slack:T1", "acme")
    await register.route("slack:T2", "other")
    assert await register.exists("acme")
    await register.delete("acme")
    assert await register.routes() == [Route("slack:T2", "other")]
    assert await register.unroute("slack:T2")
    assert not await register.unroute("slack:T2")


@pytest.mark.parametrize("place", ["", "slack", "slack:", ":T1", "Slack:T1", "sl ack:T1"])
async def test_a_place_that_is_none_is_refused(redis: Redis, place: str) -> None:
    """A route needs a connector and a place."""
    with pytest.raises(ValueError, match="connector:place"):
        await workspaces(redis).route(place, "acme")


async def test_a_record_of_a_newer_program_is_a_clear_error(redis: Redis) -> None:
    """A record whose format is newer than ours is named as such and not guessed at."""
    await redis.hset("ar:workspaces:{workspaces}:records", "acme", pack(2, created_at="?"))
    with pytest.raises(NewerFormat, match="newer version"):
        await workspaces(redis).exists("acme")


async def test_the_sample_is_copied_once_and_never_overwritten(tmp_path: Path) -> None:
    """Each of the sample's folders is copied where it is missing; what is there stays as it is."""
    mine = tmp_path / "workspaces" / SAMPLE / "docs" / "mine.md"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    made = await install_sample(tmp_path)
    assert mine.parent not in made
    assert [path.name for path in mine.parent.iterdir()] == ["mine.md"]
    assert await install_sample(tmp_path) == ()


async def test_concurrent_installations_leave_one_whole_copy(tmp_path: Path) -> None:
    """Installations at the same time make each folder exactly once and leave nothing half done."""
    made = await asyncio.gather(*(install_sample(tmp_path) for _ in range(4)))
    folders = [folder.name for each in made for folder in each]
    assert sorted(folders) == sorted(set(folders))
    assert [p.name for p in (tmp_path / "workspaces" / SAMPLE).iterdir() if p.name.startswith(".")] == []
    for folder in (tmp_path / "workspaces" / SAMPLE).iterdir():
        assert any(folder.rglob("*.md"))


async def test_all_keys_of_a_workspace_that_is_deleted_go_and_no_others(redis: Redis) -> None:
    """More of them than are looked through, or dropped, in one step."""
    gone = [redis_key("turns", f"{{p{number % 64}}}", "log", f"acme/web/c{number}") for number in range(1200)]
    stay = [key.replace("acme", "acme-2") for key in gone]
    for other in ("acme-2", "new-acme", "a"):
        stay += [redis_key("usage", Scope(other).tag, "models"), redis_key("turns", "{p1}", "log", f"{other}/web/acme")]
    stay += [redis_key("turns", "{p1}", "log", "a/acme/c"), redis_key("turns", "{p1}", "out", "acme"), "ar:acme"]
    waits = redis_key("outbox", "{p1}", "line", "telegram", "acme/telegram/1")
    await redis.mset(dict.fromkeys([*gone, waits, redis_key("usage", Scope("acme").tag, "models"), *stay], "1"))
    await forget_keys(redis, Scope("acme"))
    assert sorted([key async for key in redis.scan_iter()]) == sorted(stay)
