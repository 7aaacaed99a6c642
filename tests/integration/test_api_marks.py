"""Marks of replies over HTTP and by command."""

from __future__ import annotations

from typing import Any

import pytest

from tests.emulators import openai
from tests.emulators.face import Face

pytestmark = pytest.mark.asyncio(loop_scope="module")
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
