"""The global context, typed records and the marks of replies over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from tests.emulators import openai
from tests.emulators.face import Face

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def contents(face: Face, here: str, **query: str) -> list[tuple[int, str]]:
    answer = await face.client.get(f"{here}/global-context", params=query)
    assert answer.status_code == 200
    return [(one["line"], one["content"]) for one in answer.json()["lines"]]


async def add_line(face: Face, here: str, content: str, **more: Any) -> dict[str, Any]:
    answer = await face.client.post(f"{here}/global-context", json={"content": content, **more})
    assert answer.status_code == 201, answer.text
    row: dict[str, Any] = answer.json()
    return row


async def test_lines_are_added_listed_changed_and_deleted_and_numbers_stay(face: Face) -> None:
    here = await face.workspace("gc-lines")
    assert await contents(face, here) == []
    for one in ("a", "b", "c"):
        row = await add_line(face, here, one)
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
    await add_line(face, here, "a")
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
    row = await add_line(face, here, "a")
    line = f"{here}/global-context/0"
    await face.client.put(line, json={"content": "b", "expected_version": row["version"]})

    stale = await face.client.put(line, json={"content": "c", "expected_version": row["version"]})
    assert (stale.status_code, stale.json()["error"]["code"]) == (409, "line_changed")
    assert "now says: b" in stale.json()["error"]["message"]
    assert (await face.client.delete(line, params={"expected_version": 1})).status_code == 409
    assert await contents(face, here) == [(0, "b")]

    other = await add_line(face, here, "another")  # a version is of one line only
    assert other["version"] != row["version"]
    wrong = await face.client.delete(f"{here}/global-context/1", params={"expected_version": row["version"]})
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
    await add_line(face, here, "Ships on Mondays")
    await add_line(face, here, "Allergic to nuts", user="http:u1")

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
    await add_line(face, here, "Ships on Mondays")
    for one in ("Stand-up at nine", "Door code 1234"):
        await add_line(face, here, one, context="slack:C1")
    await add_line(face, here, "Allergic to nuts", user="slack:U 1")

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


async def add_record(face: Face, here: str, text: str, type_: str = "fact", **more: Any) -> dict[str, Any]:
    answer = await face.client.post(f"{here}/records", json={"type": type_, "text": text, **more})
    assert answer.status_code == 201, answer.text
    row: dict[str, Any] = answer.json()
    return row


async def listed(face: Face, here: str, **query: Any) -> list[str]:
    answer = await face.client.get(f"{here}/records", params=query)
    assert answer.status_code == 200, answer.text
    return [one["text"] for one in answer.json()["records"]]


async def test_a_record_is_kept_read_in_full_and_tells_what_became_of_it(face: Face) -> None:
    here = await face.workspace("rec-one")
    row = await add_record(
        face, here, "Chose Postgres. One backup.", "decision", confidence=0.85, created_at="2026-11-01T10:00:00+01:00"
    )
    assert row.keys() >= {"id", "type", "text", "micro", "summary", "state", "confirmations", "activations"}
    assert (row["state"], row["created_at"]) == ("recorded", "2026-11-01T09:00:00.000Z")
    assert row["provenance"] == {"author": "token:admin", "turn_id": "", "context_id": "", "origin": "person"}

    one = f"{here}/records/{row['id']}"
    changed = await face.client.patch(one, json={"outcome": "success"})
    assert (changed.json()["state"], changed.json()["outcome"]) == ("reviewed", "success")
    full = (await face.client.get(one)).json()
    assert full["text"] == "Chose Postgres. One backup."
    assert [(one["from"], one["to"], one["why"]) for one in full["history"]] == [
        ("recorded", "reviewed", "outcome"),
        ("", "recorded", "added"),
    ]
    refused = await face.client.delete(one)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "never_deleted")
    assert (await face.client.patch(one, json={"state": "inactive"})).status_code == 409


async def test_the_same_text_again_confirms_and_the_same_request_again_does_nothing(face: Face) -> None:
    here = await face.workspace("rec-again")
    await add_record(face, here, "The port is 5433.")
    body = {"type": "fact", "text": "the port is 5433"}
    for _ in range(2):
        again = await face.client.post(f"{here}/records", json=body, headers={"Idempotency-Key": "k"})
        assert again.status_code == 200

    assert (again.json()["came"], again.json()["confirmations"]) == ("unchanged", 1)
    one = f"{here}/records/{again.json()['id']}"
    assert (await face.client.patch(one, json={"confirm": True})).json()["state"] == "confirmed"
    assert (await face.client.patch(one, json={"confirm": True})).json()["state"] == "core"
    old = again.json()["id"]
    await add_record(face, here, "The port is 5434.", supersedes=old)
    assert (await face.client.get(one)).json()["state"] == "superseded"


async def test_lists_are_by_type_and_state_in_pages_and_leave_hidden_ones_out(face: Face) -> None:
    here = await face.workspace("rec-lists")
    for day in (1, 2, 3):
        row = await add_record(face, here, f"fact of day {day}", created_at=f"2026-11-0{day}")
    item = await add_record(face, here, "buy milk", "item", due="2026-11-27", status="done")
    assert (item["status"], item["due"], item["kind"]) == ("done", "2026-11-27", "task")
    censor = await add_record(face, here, "no push", "censor", trigger="push", reason="broke", severity="block")
    assert (censor["severity"], censor["trigger"], censor["reason"]) == ("block", "push", "broke")

    page = (await face.client.get(f"{here}/records", params={"type": "fact", "limit": 2})).json()
    assert [one["text"] for one in page["records"]] == ["fact of day 3", "fact of day 2"]
    assert await listed(face, here, type="fact", limit=2, before=page["next"]) == ["fact of day 1"]
    await face.client.patch(f"{here}/records/{row['id']}", json={"state": "inactive"})
    assert await listed(face, here, type="fact") == ["fact of day 2", "fact of day 1"]
    assert await listed(face, here, state="inactive") == ["fact of day 3"]
    assert await listed(face, here, state=["done", "created"]) == ["no push", "buy milk"]
    assert await listed(face, here, q="what is due on friday", limit=1) == ["buy milk"]
    assert (await face.client.delete(f"{here}/records/{row['id']}")).json() == {"id": row["id"], "deleted": True}
    assert await listed(face, here, state="inactive") == []


async def test_what_cannot_be_a_record_is_refused_with_what_to_do(face: Face) -> None:
    here = await face.workspace("rec-refused")
    item = (await add_record(face, here, "buy milk", "item"))["id"]
    for refused in (
        {"type": "fact", "text": " "},
        {"type": "idea", "text": "x"},
        {"type": "item", "text": "x", "due": "s"},
    ):
        assert (await face.client.post(f"{here}/records", json=refused)).status_code == 400
    changes: list[dict[str, Any]] = [
        {},
        {"state": "core"},
        {"false_positive": True},
        {"colour": "red"},
        {"confirm": False},
    ]
    for body in changes:
        assert (await face.client.patch(f"{here}/records/{item}", json=body)).status_code == 400
    assert (
        "open" in (await face.client.patch(f"{here}/records/{item}", json={"state": "core"})).json()["error"]["message"]
    )
    missing = await face.client.get(f"{here}/records/none")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "no_such_record")
    assert (await face.client.get(f"{here}/records", params={"type": "idea"})).status_code == 400
    impossible = await face.client.get(f"{here}/records", params={"type": "decision", "state": "open"})
    assert impossible.status_code == 400
    assert "recorded, pending, reviewed" in impossible.json()["error"]["message"]
    assert (await face.client.get(f"{here}/records", params={"before": "yesterday"})).status_code == 400
    assert (await face.client.get("/v1/workspaces/rec-none/records")).status_code == 404


async def test_a_persons_records_are_seen_with_their_name_only_and_can_be_forgotten(face: Face) -> None:
    here = await face.workspace("rec-people")
    await add_record(face, here, "tea is free")
    row = await add_record(face, here, "Ada likes tea", user="http:ada")
    await add_record(face, here, "Ada chose tea", "decision", user="http:ada")
    assert row["user"] == "http:ada"

    assert set(await listed(face, here)) == {"tea is free", "Ada likes tea", "Ada chose tea"}
    assert await listed(face, here, user="http:ben") == ["tea is free"]
    async with face.as_token(await face.token("rec-people", "admin")) as admin:
        seen = (await admin.get(f"{here}/records")).json()["records"]
        assert [(one["text"], one["audience"]) for one in seen] == [("tea is free", "workspace")]
        assert (await admin.get(f"{here}/records/{row['id']}")).status_code == 404
        assert (await admin.get(f"{here}/records", params={"user": "slack:U1"})).status_code == 403
    assert set(await listed(face, here, user="http:ada")) == {"tea is free", "Ada likes tea", "Ada chose tea"}
    assert (await face.client.get(f"{here}/records/{row['id']}")).json()["audience"] == "http:ada"
    assert (await face.client.get(f"{here}/records/{row['id']}", params={"user": "http:ada"})).status_code == 200
    forgotten = await face.client.delete(f"{here}/records", params={"user": "http:ada"})
    assert forgotten.json() == {"user": "http:ada", "forgotten": 2}
    assert await listed(face, here, user="http:ada") == ["tea is free"]
    assert (await face.client.delete(f"{here}/records")).status_code == 400


async def test_members_write_their_own_and_have_opinions_and_admins_write_the_workspaces(face: Face) -> None:
    here = await face.workspace("rec-roles")
    fact = (await add_record(face, here, "tea is free"))["id"]
    slack = (await add_record(face, here, "likes tea", user="slack:U1"))["id"]
    async with face.as_token(await face.token("rec-roles", "member")) as member:
        own = await member.post(f"{here}/records", json={"type": "fact", "text": "I like tea", "user": "http:ada"})
        assert own.status_code == 201
        assert (await member.patch(f"{here}/records/{fact}", json={"confirm": True})).status_code == 200
        for answer in (
            await member.post(f"{here}/records", json={"type": "fact", "text": "tea is dear"}),
            await member.patch(f"{here}/records/{fact}", json={"text": "tea is dear"}),
            await member.patch(f"{here}/records/{fact}", json={"confirm": True, "state": "inactive"}),
            await member.delete(f"{here}/records/{fact}"),
            await member.get(f"{here}/records/{slack}", params={"user": "slack:U1"}),
            await member.delete(f"{here}/records", params={"user": "slack:U1"}),
        ):
            assert answer.status_code == 403
        assert (await member.delete(f"{here}/records", params={"user": "http:ada"})).json()["forgotten"] == 1
    async with face.as_token(await face.token("rec-roles", "viewer")) as viewer:
        assert (await viewer.get(f"{here}/records")).status_code == 200
        assert (await viewer.patch(f"{here}/records/{fact}", json={"confirm": True})).status_code == 403


ASKED, ANSWER = "How do I moor the Petrel at the pier?", "Bow to the swell, with two springs."


async def answered(face: Face, provider: openai.FakeOpenAI, here: str, text: str = ASKED, **more: Any) -> str:
    """The turn in which *text* was answered."""
    provider.will(ANSWER)
    body = {"text": text, "context": "marks", "author": {"id": "u1", "name": "Lena"}, **more}
    answer = await face.client.post(f"{here}/messages", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["turn_id"])


async def said(face: Face, here: str, text: str) -> str:
    body = {"text": text, "context": "marks", "author": {"id": "u1", "name": "Lena"}}
    return str((await face.client.post(f"{here}/messages", json=body)).json()["text"])


async def test_a_mark_is_put_seen_taken_back_and_removed(face: Face, provider: openai.FakeOpenAI) -> None:
    here = await face.workspace("marks-one")
    turn = await answered(face, provider, here)
    mark = f"{here}/turns/{turn}/mark"
    for _ in range(2):  # however often
        put = await face.client.post(mark, json={"mark": "good"})
        assert (put.status_code, put.json()) == (200, {"turn_id": turn, "mark": "good", "good": 1, "bad": 0})
    other = await face.client.post(mark, json={"mark": "bad", "user": "http:u7"})
    assert other.json() == {"turn_id": turn, "mark": "bad", "good": 1, "bad": 1}
    assert (await face.client.get(f"{here}/turns/{turn}")).json()["marks"] == {"good": 1, "bad": 1}
    assert (await face.client.get(f"{here}/karma")).json()["karma"][0]["trace"] is None

    await face.client.post(mark, json={"mark": "none", "user": "http:u7"})
    (row,) = (await face.client.get(f"{here}/karma")).json()["karma"]
    assert row["trace"] == {"asked": ASKED, "answered": ANSWER}
    assert (row["context_id"], row["audience"]) == ("http:marks", "place:http:marks")
    assert (await face.client.delete(f"{here}/karma/{turn}")).json() == {"turn_id": turn, "removed": True}
    assert (await face.client.get(f"{here}/karma")).json()["karma"] == []
    assert (await face.client.delete(f"{here}/karma/{turn}")).status_code == 404


async def test_who_may_not_mark_is_told_so(face: Face, provider: openai.FakeOpenAI) -> None:
    here = await face.workspace("marks-two")
    turn = await answered(face, provider, here)
    viewer, member = await face.token("marks-two", "viewer"), await face.token("marks-two", "member")
    async with face.as_token(viewer) as as_viewer, face.as_token(member) as as_member:
        assert (await as_viewer.post(f"{here}/turns/{turn}/mark", json={"mark": "good"})).status_code == 403
        assert (await as_member.post(f"{here}/turns/{turn}/mark", json={"mark": "good"})).status_code == 200
        theirs = {"mark": "good", "user": "telegram:42"}
        assert (await as_member.post(f"{here}/turns/{turn}/mark", json=theirs)).status_code == 403
        assert (await as_member.get(f"{here}/karma")).status_code == 403
    unknown = await face.client.post(f"{here}/turns/t0/mark", json={"mark": "good"})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "unknown_turn")
    assert (await face.client.post(f"{here}/turns/{turn}/mark", json={"mark": "fine"})).status_code == 400


async def test_commands_mark_the_last_reply_or_the_turn_that_is_named(face: Face, provider: openai.FakeOpenAI) -> None:
    here = await face.workspace("marks-three")
    assert "not answered" in await said(face, here, "/good")
    first = await answered(face, provider, here)
    last = await answered(face, provider, here, "And how do I reef her sail?")

    assert last in await said(face, here, "/good")
    assert first in await said(face, here, f"/bad {first}")
    rows = (await face.client.get(f"{here}/karma")).json()["karma"]
    assert [(one["turn_id"], one["good"], one["bad"]) for one in rows] == [(last, 1, 0), (first, 0, 1)]
    explained = await said(face, here, "/explain")
    assert "Marked as good by 1, as bad by 0" in explained

    assert "Marked as good" in await said(face, here, "/good")
    assert "mark is removed" in await said(face, here, "/unmark")
    assert "not marked" in await said(face, here, "/unmark")
    assert "mark is removed" in await said(face, here, f"/unmark {first}")
    assert (await face.client.get(f"{here}/karma")).json()["karma"] == []
    assert "do not know this turn" in await said(face, here, "/good t0")


async def test_what_an_admin_calls_good_stands_from_the_next_session_on(
    face: Face, provider: openai.FakeOpenAI
) -> None:
    here = await face.workspace("marks-four")
    turn = await answered(face, provider, here, context="one", public=True)
    await face.client.post(f"{here}/turns/{turn}/mark", json={"mark": "good"})

    ground = await face.client.post(f"{here}/ground", json={"text": "What is a halyard?", "context": "another"})
    blocks = {one["name"]: one for one in ground.json()["blocks"]}
    assert blocks["karma_floor"]["used"]
    assert not blocks["karma"]["used"]
    system = next(one["content"] for one in ground.json()["messages"] if one["role"] == "system")
    assert f"- Asked: {ASKED}\n  Answered: {ANSWER}" in system
