"""Typed records over HTTP and by command line."""

from __future__ import annotations

from typing import Any

import pytest

from tests.emulators.face import Face

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def add(face: Face, here: str, text: str, type_: str = "fact", **more: Any) -> dict[str, Any]:
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
    row = await add(
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
    await add(face, here, "The port is 5433.")
    body = {"type": "fact", "text": "the port is 5433"}
    for _ in range(2):
        again = await face.client.post(f"{here}/records", json=body, headers={"Idempotency-Key": "k"})
        assert again.status_code == 200

    assert (again.json()["came"], again.json()["confirmations"]) == ("unchanged", 1)
    one = f"{here}/records/{again.json()['id']}"
    assert (await face.client.patch(one, json={"confirm": True})).json()["state"] == "confirmed"
    assert (await face.client.patch(one, json={"confirm": True})).json()["state"] == "core"
    old = again.json()["id"]
    await add(face, here, "The port is 5434.", supersedes=old)
    assert (await face.client.get(one)).json()["state"] == "superseded"


async def test_lists_are_by_type_and_state_in_pages_and_leave_hidden_ones_out(face: Face) -> None:
    here = await face.workspace("rec-lists")
    for day in (1, 2, 3):
        row = await add(face, here, f"fact of day {day}", created_at=f"2026-11-0{day}")
    item = await add(face, here, "buy milk", "item", due="2026-11-27", status="done")
    assert (item["status"], item["due"], item["kind"]) == ("done", "2026-11-27", "task")
    censor = await add(face, here, "no push", "censor", trigger="push", reason="broke", severity="block")
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


async def test_what_cannot_be_is_refused_with_what_to_do(face: Face) -> None:
    here = await face.workspace("rec-refused")
    item = (await add(face, here, "buy milk", "item"))["id"]
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
    await add(face, here, "tea is free")
    row = await add(face, here, "Ada likes tea", user="http:ada")
    await add(face, here, "Ada chose tea", "decision", user="http:ada")
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
    fact = (await add(face, here, "tea is free"))["id"]
    slack = (await add(face, here, "likes tea", user="slack:U1"))["id"]
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


async def test_a_deleted_workspace_has_no_records_when_it_is_made_again(face: Face) -> None:
    here = await face.workspace("rec-gone")
    await add(face, here, "tea is free")
    await add(face, here, "Ada likes tea", user="http:ada")
    await face.client.delete(here)
    await face.workspace("rec-gone")

    assert await listed(face, here, user="http:ada") == []
    assert await listed(face, here, user="http:ada", q="tea") == []
