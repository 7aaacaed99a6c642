"""What earlier versions kept for a whole workspace is given to the places and people that it came from."""

from __future__ import annotations

from typing import Any

import pytest

from connectors.message import Scope, redis_key
from grounding.memory.global_context import Editor, EditOrigin
from grounding.memory.records import NewRecord, Provenance, Type
from tests.emulators.face import Face

pytestmark = pytest.mark.asyncio(loop_scope="module")

FORMER = Scope("former")
SAID = Provenance(author="slack:U7", origin="extraction", context_id="slack:C9/17.1", turn_id="t0")
SAYS = {
    "The plant in Lyon is closed.": SAID,
    "The barge is for sale.": SAID.model_copy(update={"context_id": "telegram:-5", "author": "telegram:7"}),
    "The safe opens with 4711.": Provenance(author="slack:U7", origin="person"),
    "The canteen opens at 7:45.": Provenance(author="token:admin", origin="person"),
}
OWNERS = ("place:slack:C9", "place:telegram:-5", "slack:U7", None)


async def records_of(face: Face, audience: str | None) -> set[str]:
    scope = Scope(FORMER.workspace_id, None, audience)
    found = await face.runtime.records.search(scope, "Lyon plant barge sale safe opens canteen", 10)
    listed = {one.text for one in await face.runtime.records.list(scope)}
    assert {one.record.text for one in found} <= listed
    return listed


async def lines_of(face: Face, audience: str | None) -> set[str]:
    editor = Editor(Scope(FORMER.workspace_id, "slack:C9/17.1", audience), "api")
    return {one.content for one in await face.runtime.global_contexts.open(editor, store=False)}


async def as_before(face: Face) -> None:
    """What the runtime keeps of the workspace, in the format of a version that knew no places."""
    redis: Any = face.runtime.store.client
    kept = redis_key("records", FORMER.tag, "kept", "")
    for record_id, packed in (await redis.hgetall(kept)).items():
        old = packed.replace('{"v":2,', '{"v":1,').replace('"audience":', '"user":').replace('"shared_by":"",', "")
        assert old != packed
        await redis.hset(kept, record_id, old)
    lines = redis_key("global_context", FORMER.tag, "lines", "")
    for number, packed in (await redis.hgetall(lines)).items():
        if number != "last":
            await redis.hset(lines, number, packed.replace('"f":2', '"f":1'))


async def test_what_was_everybodys_goes_to_where_it_was_said_and_is_nobodys_before(face: Face) -> None:
    """What administrators wrote stays everybody's. `doctor` counts the rest; what is shared again it counts no more."""
    here = await face.workspace(FORMER.workspace_id)
    runtime = face.runtime
    for text, by in SAYS.items():
        await runtime.records.add(FORMER, NewRecord(Type.FACT, text), by)
    for line, author in (("Lena likes mornings.", "slack:U7"), ("We sell in euros.", "token:admin")):
        await runtime.global_contexts.append(Editor(FORMER, "api"), line, EditOrigin(author))
    await as_before(face)

    everybodys, lines = {"The canteen opens at 7:45."}, {"We sell in euros."}
    for audience in OWNERS:
        assert (await records_of(face, audience), await lines_of(face, audience)) == (everybodys, lines)

    for _ in range(2):
        await runtime.audiences.settle(FORMER)
        assert await runtime.records.catch_up(FORMER)
        for text, audience in zip(SAYS, OWNERS, strict=True):
            assert await records_of(face, audience) == everybodys | {text}
        assert await lines_of(face, "slack:U7") == lines | {"Lena likes mornings."}
        assert await lines_of(face, "place:slack:C9") == await lines_of(face, None) == lines
        private = await runtime.audiences.private(FORMER)
        assert (private.records, private.lines) == (3, 1)

    (plant,) = await runtime.records.list(Scope(FORMER.workspace_id, None, "place:slack:C9"), own=True)
    shared = await face.client.patch(f"{here}/records/{plant.id}", json={"audience": "workspace"})
    assert (shared.status_code, shared.json()["audience"]) == (200, "workspace")
    assert plant.text in await records_of(face, "telegram:8")
    assert (await runtime.audiences.private(FORMER)).records == 2
