"""What is settled for a place holds there and nowhere else."""

import json

import pytest
from redis.asyncio import Redis

from connectors.message import Author, ConversationKey, InboundMessage, Scope, redis_key
from runtime.stores import NewerFormat
from runtime.workspaces import Places, PlaceSettings
from tests.emulators.face import Face

THREAD = ConversationKey("acme", "slack", "C1/1712.0001")
OTHER_THREAD = ConversationKey("acme", "slack", "C1/1712.0002")
CHANNEL = ("slack:T1/C1", "slack:T1")


def said(key: ConversationKey, *routes: str) -> InboundMessage:
    return InboundMessage(key.connector, key.external_id, "m1", Author("U1"), "hello", routes=routes)


async def test_what_is_said_in_a_thread_is_settled_for_its_channel(redis: Redis) -> None:
    places = Places(redis)

    assert await places.settle(THREAD, said(THREAD, *CHANNEL), answering="all") == "slack:T1/C1"

    assert (await places.settings_for(OTHER_THREAD, said(OTHER_THREAD, *CHANNEL))).answering == "all"
    elsewhere = ConversationKey("acme", "slack", "C2")
    assert await places.settings_for(elsewhere, said(elsewhere, "slack:T1/C2", "slack:T1")) == PlaceSettings()


async def test_what_another_process_settles_holds_for_the_next_message(redis: Redis) -> None:
    here, elsewhere = Places(redis), Places(redis)
    await here.settle(THREAD, said(THREAD, *CHANNEL), answering="all")
    assert (await here.settings_for(THREAD, said(THREAD, *CHANNEL))).answering == "all"
    await elsewhere.settle(THREAD, said(THREAD, *CHANNEL), answering="never")
    assert (await here.settings_for(THREAD, said(THREAD, *CHANNEL))).answering == "never"


async def test_without_routes_the_conversation_is_the_place(redis: Redis) -> None:
    places = Places(redis)
    web = ConversationKey("acme", "http", "default")

    assert await places.settle(web, said(web), model="openai/b") == "http:default"
    assert await places.settle(web, said(web), answering="never") == "http:default"

    assert await places.settings_for(web, said(web)) == PlaceSettings("never", "openai/b")


async def test_each_setting_comes_from_the_most_specific_place_that_has_it(redis: Redis) -> None:
    places = Places(redis)
    scope = Scope("acme")
    await places.put(scope, "slack:T1", PlaceSettings("never", "openai/a"))
    await places.put(scope, "slack:T1/C1", PlaceSettings("all"))

    assert await places.settings_for(THREAD, said(THREAD, *CHANNEL)) == PlaceSettings("all", "openai/a")

    await places.put(scope, THREAD.context_id, PlaceSettings("addressed"))
    assert (await places.settings_for(THREAD, said(THREAD, *CHANNEL))).answering == "addressed"
    await places.settle(THREAD, said(THREAD, *CHANNEL), answering="never")
    assert (await places.settings_for(THREAD, said(THREAD, *CHANNEL))).answering == "never"


async def test_a_place_of_one_workspace_is_none_of_anothers(redis: Redis) -> None:
    places = Places(redis)
    await places.settle(THREAD, said(THREAD, *CHANNEL), answering="all")
    same_place = ConversationKey("umbrella", "slack", "C1/1712.0001")

    assert await places.settings_for(same_place, said(same_place, *CHANNEL)) == PlaceSettings()
    await places.forget_workspace(Scope("acme"))
    assert await places.all(Scope("acme")) == {}


async def test_a_place_with_nothing_settled_is_forgotten(redis: Redis) -> None:
    places = Places(redis)
    await places.put(Scope("acme"), "slack:T1", PlaceSettings("all"))
    await places.put(Scope("acme"), "slack:T1", PlaceSettings())

    assert [key async for key in redis.scan_iter()] == []


async def test_settings_of_a_newer_format_are_refused_by_name(redis: Redis) -> None:
    await redis.hset(redis_key("places", Scope("acme").tag, "settled"), "slack:T1", json.dumps({"v": 2}))

    with pytest.raises(NewerFormat, match="a place's settings"):
        await Places(redis).get(Scope("acme"), "slack:T1")


@pytest.mark.asyncio(loop_scope="module")
async def test_an_admin_settles_a_place_over_http(face: Face) -> None:
    here = await face.workspace("settled")
    place = f"{here}/places/slack:T1/C1"
    nothing = {"place": "slack:T1/C1", "answering": None, "model": None, "queue": None, "sources": None}
    assert (await face.client.get(place)).json() == nothing

    settled = (await face.client.put(place, json={"answering": "all", "model": "openai/fake", "sources": False})).json()
    assert settled == nothing | {"answering": "all", "model": "openai/fake", "sources": False}
    assert (await face.client.get(place)).json() == settled
    assert (await face.client.get(f"{here}/places")).json() == {"places": [settled]}
    assert (await face.client.put(place, json={})).json() == nothing
    assert (await face.client.get(f"{here}/places")).json() == {"places": []}

    for body in ({"answering": "sometimes"}, {"model": "openai/other"}, {"answer": "all"}, {"sources": "off"}):
        assert (await face.client.put(place, json=body)).status_code == 400, body
    for wrong in ("nonsense", "slack:", ":x", "slack:" + "x" * 2000):
        assert (await face.client.put(f"{here}/places/{wrong}", json={})).status_code == 400, wrong
    async with face.as_token(await face.token("settled", "member")) as member:
        assert (await member.get(place)).status_code == 403
        assert (await member.put(place, json={"answering": "all"})).status_code == 403
    described = (await face.client.get("/openapi.json")).json()["paths"]
    assert "put" in described["/v1/workspaces/{workspace_id}/places/{place}"]


@pytest.mark.asyncio(loop_scope="module")
async def test_a_command_over_http_is_answered_like_a_message(face: Face) -> None:
    here = await face.workspace("commanded")
    key = {"Idempotency-Key": "once"}

    first = await face.client.post(f"{here}/messages", json={"text": "/help"}, headers=key)
    again = await face.client.post(f"{here}/messages", json={"text": "/help"}, headers=key)

    assert first.status_code == again.status_code == 200
    assert "`/prompt" in first.json()["text"]
    assert again.json() == first.json()
    async with face.as_token(await face.token("commanded", "member")) as member:
        as_member = (await member.post(f"{here}/messages", json={"text": "/help"})).json()["text"]
        assert "`/prompt" not in as_member
        refused = await member.post(f"{here}/messages", json={"text": "/prompt set soul Obey."})
        assert "Only admins can use" in refused.json()["text"]
        mine = await member.post(f"{here}/messages", json={"text": "/forget all"})
        assert "only admins" in mine.json()["text"]


@pytest.mark.asyncio(loop_scope="module")
async def test_a_command_is_streamed_as_an_answer(face: Face) -> None:
    here = await face.workspace("commanded")
    events = {"Accept": "text/event-stream"}

    answer = await face.client.post(f"{here}/messages", json={"text": "!status"}, headers=events)

    assert "event: done" in answer.text
    assert "redis: connected" in answer.text


async def test_the_whole_workspace_has_a_mode_until_a_place_has_its_own(redis: Redis) -> None:
    places = Places(redis)
    await places.put(Scope("acme"), "*", PlaceSettings(queue="followup"))
    assert (await places.settings_for(THREAD, said(THREAD, *CHANNEL))).queue == "followup"

    await places.settle(THREAD, said(THREAD, *CHANNEL), queue="interrupt")
    assert (await places.settings_for(OTHER_THREAD, said(OTHER_THREAD, *CHANNEL))).queue == "interrupt"
    web = ConversationKey("acme", "http", "default")
    assert (await places.settings_for(web, said(web))).queue == "followup"


@pytest.mark.asyncio(loop_scope="module")
async def test_an_admin_sets_the_mode_of_a_workspace_over_http(face: Face) -> None:
    here = await face.workspace("busy")
    assert (await face.client.put(f"{here}/places/*", json={"queue": "interrupt"})).json()["queue"] == "interrupt"
    assert (await face.client.get(f"{here}/places/*")).json()["queue"] == "interrupt"
    assert (await face.client.put(f"{here}/places/*", json={"queue": "sometimes"})).status_code == 400


@pytest.mark.asyncio(loop_scope="module")
async def test_nothing_of_a_deleted_workspace_holds_in_one_of_the_same_name(face: Face) -> None:
    here = await face.workspace("made-anew")
    # A message asks what holds, so that it is known when the workspace is deleted.
    await face.client.put(f"{here}/places/*", json={"model": "openai/fake", "queue": "followup"})
    await face.client.post(f"{here}/messages", json={"text": "/status"})
    before = ConversationKey("made-anew", "http", "default")
    places = face.runtime.places
    assert (await places.settings_for(before, said(before))).queue == "followup"

    assert (await face.client.delete(here)).status_code == 200
    await face.workspace("made-anew")

    assert await places.settings_for(before, said(before)) == PlaceSettings()
