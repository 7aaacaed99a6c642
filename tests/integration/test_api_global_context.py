"""The global context over HTTP and by command line."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.emulators.face import Face

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def contents(face: Face, here: str, **query: str) -> list[tuple[int, str]]:
    answer = await face.client.get(f"{here}/global-context", params=query)
    assert answer.status_code == 200
    return [(one["line"], one["content"]) for one in answer.json()["lines"]]


async def add(face: Face, here: str, content: str, **more: Any) -> dict[str, Any]:
    answer = await face.client.post(f"{here}/global-context", json={"content": content, **more})
    assert answer.status_code == 201, answer.text
    row: dict[str, Any] = answer.json()
    return row


async def test_lines_are_added_listed_changed_and_deleted_and_numbers_stay(face: Face) -> None:
    here = await face.workspace("gc-lines")
    assert await contents(face, here) == []
    for one in ("a", "b", "c"):
        row = await add(face, here, one)
    assert (row["line"], row["content"], row["author"], row["owner"]) == (2, "c", "Admin", "workspace")

    changed = await face.client.put(f"{here}/global-context/0", json={"content": "A"})
    assert (changed.json()["content"], changed.json()["version"]) == ("A", row["version"] + 1)
    deleted = await face.client.delete(f"{here}/global-context/1")
    assert deleted.json() == {"line": 1, "deleted": True}

    assert await contents(face, here) == [(0, "A"), (1, ""), (2, "c")]
    edits = (await face.client.get(f"{here}/global-context/history")).json()["edits"]
    assert [one["action"] for one in edits] == ["delete", "replace", "append", "append", "append"]


async def test_what_cannot_be_is_refused_with_what_to_do(face: Face) -> None:
    here = await face.workspace("gc-refused")
    await add(face, here, "a")
    put = await face.client.put(f"{here}/global-context/1", json={"content": "x"})
    assert (put.status_code, put.json()["error"]["code"]) == (404, "no_such_line")
    assert "the lines are 0 to 0" in put.json()["error"]["message"]
    assert (await face.client.delete(f"{here}/global-context/7")).status_code == 404
    full = await face.client.post(f"{here}/global-context", json={"content": "word " * 790})
    assert (full.status_code, full.json()["error"]["code"]) == (413, "global_context_full")
    assert "Merge lines" in full.json()["error"]["message"]
    assert (await face.client.post(f"{here}/global-context", json={"content": " \n"})).status_code == 400
    assert (await face.client.post(f"{here}/global-context", json={"content": "a", "user": "u1"})).status_code == 400
    assert (await face.client.get("/v1/workspaces/gc-none/global-context")).status_code == 404
    assert await contents(face, here) == [(0, "a")]


async def test_a_program_may_say_which_version_it_saw(face: Face) -> None:
    here = await face.workspace("gc-versions")
    row = await add(face, here, "a")
    line = f"{here}/global-context/0"
    await face.client.put(line, json={"content": "b", "expected_version": row["version"]})

    stale = await face.client.put(line, json={"content": "c", "expected_version": row["version"]})
    assert (stale.status_code, stale.json()["error"]["code"]) == (409, "line_changed")
    assert "now says: b" in stale.json()["error"]["message"]
    assert (await face.client.delete(line, params={"expected_version": 1})).status_code == 409
    assert await contents(face, here) == [(0, "b")]


async def test_a_version_is_of_one_line_only_so_that_no_number_of_before_hits_another(face: Face) -> None:
    here = await face.workspace("gc-own-versions")
    rows = [await add(face, here, one) for one in ("a", "b", "c")]
    assert len({row["version"] for row in rows}) == 3

    wrong = await face.client.delete(f"{here}/global-context/1", params={"expected_version": rows[0]["version"]})
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (409, "line_changed")


async def test_the_same_request_again_is_made_once(face: Face) -> None:
    here = await face.workspace("gc-again")
    for _ in range(2):
        await face.client.post(f"{here}/global-context", json={"content": "a"}, headers={"Idempotency-Key": "k1"})
    assert await contents(face, here) == [(0, "a")]


async def test_what_holds_is_in_the_prompt_of_a_dry_run_and_a_persons_lines_only_in_their_direct_messages(
    face: Face,
) -> None:
    here = await face.workspace("gc-ground")
    await add(face, here, "Ships on Mondays")
    await add(face, here, "Allergic to nuts", user="http:u1")

    async def system(**body: Any) -> str:
        answer = await face.client.post(f"{here}/ground", json={"text": "hello", **body})
        block = next(one for one in answer.json()["blocks"] if one["name"] == "global_context")
        assert block["used"]
        assert block["tokens"] <= block["budget"] == 800
        return str(answer.json()["messages"][0]["content"])

    assert "0-- Ships on Mondays\n1-- Allergic to nuts\n" in await system(author="u1", direct=True)
    assert "nuts" not in await system(author="u1")
    assert "nuts" not in await system(author="u2", direct=True)
    assert await contents(face, here) == [(0, "Ships on Mondays")]
    assert await contents(face, here, user="http:u1") == [(0, "Ships on Mondays"), (1, "Allergic to nuts")]


async def test_viewers_look_members_edit_and_admins_decide_and_see_people_of_platforms(face: Face) -> None:
    here = await face.workspace("gc-roles")
    viewer, member = await face.token("gc-roles", "viewer"), await face.token("gc-roles", "member")
    async with face.as_token(viewer) as client:
        assert (await client.get(f"{here}/global-context")).status_code == 200
        assert (await client.post(f"{here}/global-context", json={"content": "x"})).status_code == 403
    async with face.as_token(member) as client:
        assert (await client.post(f"{here}/global-context", json={"content": "x"})).status_code == 201
        assert (await client.get(f"{here}/global-context", params={"user": "slack:U1"})).status_code == 403
        assert (await client.get(f"{here}/global-context", params={"user": "http:u1"})).status_code == 200
        decided = await client.post(f"{here}/global-context/waiting/1", json={"decision": "approve"})
        assert decided.status_code == 403
    assert (await face.client.get(f"{here}/global-context", params={"user": "slack:U1"})).status_code == 200
    unknown = await face.client.post(f"{here}/global-context/waiting/1", json={"decision": "approve"})
    assert unknown.status_code == 404


async def test_the_runtimes_admin_sees_which_places_have_lines_shares_one_and_deletes_one(face: Face) -> None:
    here = await face.workspace("gc-places")
    lines = f"{here}/global-context"
    await add(face, here, "Ships on Mondays")
    for one in ("Stand-up at nine", "Door code 1234"):
        await add(face, here, one, context="slack:C1")
    await add(face, here, "Allergic to nuts", user="slack:U 1")

    assert (await face.client.get(f"{lines}/owners")).json()["owners"] == [
        {"context": "slack:C1", "lines": 2},
        {"user": "slack:U 1", "lines": 1},
    ]
    assert [one for _, one in await contents(face, here, context="slack:C1")][1:] == [
        "Stand-up at nine",
        "Door code 1234",
    ]
    shared = await face.client.post(f"{lines}/1/share", json={"context": "slack:C1"})
    assert (shared.status_code, shared.json()["content"]) == (200, "Stand-up at nine")
    assert [one for _, one in await contents(face, here)] == ["Ships on Mondays", "Stand-up at nine"]
    assert (await face.client.delete(f"{lines}/2", params={"context": "slack:C1"})).status_code == 200
    assert (await face.client.get(f"{lines}/owners")).json()["owners"] == [{"user": "slack:U 1", "lines": 1}]

    both = await face.client.get(lines, params={"context": "slack:C1", "user": "slack:U1"})
    assert (both.status_code, "not both" in both.json()["error"]["message"]) == (400, True)
    async with face.as_token(await face.token("gc-places", "admin")) as client:
        for path, asked in ((lines, {"context": "slack:C1"}), (f"{lines}/owners", {})):
            assert (await client.get(path, params=asked)).status_code == 403
        assert (await client.get(lines, params={"context": "http:room"})).status_code == 200
        assert (await client.post(f"{lines}/0/share", json={"context": "slack:C1"})).status_code == 403


async def test_a_deleted_workspace_takes_its_lines_along(face: Face) -> None:
    here = await face.workspace("gc-gone")
    await add(face, here, "a")
    await add(face, here, "b", user="http:u1")
    assert (await face.client.delete("/v1/workspaces/gc-gone")).status_code == 200
    await face.workspace("gc-gone")
    assert await contents(face, here, user="http:u1") == []
    assert (await face.client.get(f"{here}/global-context/history")).json() == {"edits": []}


async def test_fifty_callers_at_once_each_add_their_line(face: Face) -> None:
    here = await face.workspace("gc-fifty")
    rows = await asyncio.gather(*(add(face, here, f"n{number}") for number in range(50)))

    assert sorted(row["line"] for row in rows) == list(range(50))
    shown = dict(await contents(face, here))
    assert {row["line"]: row["content"] for row in rows} == shown
