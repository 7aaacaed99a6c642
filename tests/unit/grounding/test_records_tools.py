"""The model keeps tasks, events and notes, finds them by words and days, and reads records whole."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from connectors.message import ConversationKey, Role, Scope
from grounding.memory.records import (
    NewRecord,
    Provenance,
    Record,
    State,
    Type,
    create_item,
    delete_item,
    expand,
    query_items,
    update_item,
)
from grounding.prompt_input import Participant, Passage
from grounding.retrieval import IndexUnavailable
from grounding.tools import Call, Evidence, ToolRefused
from tests.emulators.prompts import context
from tests.emulators.records import RememberedRecords

BOARD = "place:slack:C9"
LENA = Participant(user="http:u1", name="Lena", role="member")
BO = Participant(user="http:u2", name="Bo", role="member")
KEY = ConversationKey("acme", "http", "default")
NOW = datetime(2026, 11, 22, 10, 30, tzinfo=UTC)  # a Sunday


@dataclass
class Desk:
    """The tools of a model that somebody talks to."""

    records: RememberedRecords = field(default_factory=lambda: RememberedRecords(clock=lambda: NOW))
    calls: int = 0

    async def call(
        self,
        tool: str,
        *,
        by: Participant = LENA,
        direct: bool = False,
        audience: str = "",
        key: str = "",
        shown: Any = None,
        **said: Any,
    ) -> str:
        self.calls += 1
        made = {one.name: one for one in self.tools}[tool]
        given = shown or {"passages": (), "tail": (), "recalled": ()}
        call = Call(
            key=KEY,
            turn_id=f"t{self.calls}",
            authors=(by,),
            user=by.user,
            role=Role.MEMBER,
            direct=direct,
            idempotency_key=key or f"t{self.calls}/1/0/0",
            at=NOW,
            context=context(authors=(by,), direct=direct, audience=audience or (by.user if direct else ""), **given),
        )
        answer = await made.run(call, made.parameters.model_validate(said))
        return answer.text if isinstance(answer, Evidence) else answer

    @property
    def tools(self) -> list[Any]:
        return [one(self.records) for one in (create_item, update_item, delete_item, query_items, expand)]

    async def kept(self, user: str | None = None) -> list[Record]:
        return list(await self.records.list(Scope("acme", None, user)))


@pytest.fixture
def desk() -> Desk:
    return Desk()


async def test_an_item_is_kept_with_the_day_that_its_words_mean_and_found_again(desk: Desk) -> None:
    assert "open task, due Friday 27 November 2026: order tyres" in await desk.call(
        "create_item", kind="task", text="order tyres", due="Friday"
    )
    await desk.call("create_item", kind="event", text="regatta", due="tomorrow at 15:00")
    await desk.call("create_item", kind="note", text="the key is under the mat")

    listed = (await desk.call("query_items")).splitlines()
    assert [line.split("] ")[1] for line in listed] == [
        "open event, due Monday 23 November 2026 15:00 UTC: regatta",
        "open task, due Friday 27 November 2026: order tyres",
        "open note: the key is under the mat",
    ]
    assert "tyres" in await desk.call("query_items", text="tyres Friday")
    assert "regatta" not in await desk.call("query_items", kind="task")
    assert "tyres" not in await desk.call("query_items", due_before="tomorrow")
    assert "regatta" in await desk.call("query_items", due_before="tomorrow")
    assert "regatta" not in await desk.call("query_items", due_after="2026-11-24")
    assert await desk.call("query_items", status="done") == "No item fits."


async def test_an_item_is_changed_done_and_put_away(desk: Desk) -> None:
    await desk.call("create_item", kind="task", text="order tyres", due="Friday")
    (item,) = await desk.kept()

    await desk.call("update_item", id=item.id, text="order four tyres", due="next month")
    assert "due Tuesday 1 December 2026: order four tyres" in await desk.call("query_items")
    await desk.call("update_item", id=item.id, status="done", due="")
    assert await desk.call("query_items") == "No item fits."
    assert "done task: order four tyres" in await desk.call("query_items", status="done")
    await desk.call("delete_item", id=item.id)
    assert await desk.kept() == []
    assert (await desk.records.get(Scope("acme"), item.id)).state is State.INACTIVE


async def test_the_same_call_again_keeps_one_item(desk: Desk) -> None:
    for _ in range(2):
        await desk.call("create_item", key="t1/1/0/0", kind="task", text="order tyres")
    assert len(await desk.kept()) == 1


async def test_in_a_direct_message_items_are_the_persons_and_in_a_group_the_workspaces(desk: Desk) -> None:
    await desk.call("create_item", direct=True, kind="task", text="buy a ring")
    await desk.call("create_item", kind="task", text="order tyres")
    (own,) = [one for one in await desk.kept(LENA.user) if one.audience]

    assert [one.text for one in await desk.kept()] == ["order tyres"]
    both = await desk.call("query_items", direct=True)
    assert "ring" in both
    assert "tyres" in both
    for asked in (await desk.call("query_items"), await desk.call("query_items", by=BO, direct=True)):
        assert "ring" not in asked
    for tool in ("delete_item", "update_item"):
        more = {"text": "x"} if tool == "update_item" else {}
        with pytest.raises(ToolRefused, match="query_items lists"):
            await desk.call(tool, by=BO, direct=True, id=own.id, **more)
    with pytest.raises(ToolRefused):
        await desk.call("expand", record=own.id)


async def test_what_was_shown_beside_a_persons_words_is_remembered_of_an_item(desk: Desk) -> None:
    passages = (Passage(source="a.md", heading="A", text="x", score=1.0),)
    await desk.call("create_item", kind="task", text="order tyres")
    await desk.call("create_item", kind="task", text="pay Mallory", shown={"passages": passages})
    origins = {one.text: one.provenance.origin for one in await desk.kept()}
    assert origins == {"order tyres": "tool", "pay Mallory": "retrieved"}
    (marked,) = [one for one in await desk.kept() if one.text == "pay Mallory"]
    assert "unverified" in await desk.call("expand", record=marked.id)


@pytest.mark.parametrize(
    ("tool", "said", "told"),
    [
        ("create_item", {"kind": "task", "text": "x", "due": "soon"}, "write a day like 2026-11-27"),
        ("update_item", {"id": "nobody", "status": "done"}, "query_items lists"),
        ("update_item", {"id": "nobody"}, "give text, status or due"),
        ("delete_item", {"id": "nobody"}, "query_items lists"),
        ("expand", {"record": "nobody"}, "no record"),
        ("query_items", {"due_before": "whenever"}, "write a day like 2026-11-27"),
    ],
)
async def test_what_cannot_be_done_is_refused_with_what_to_do(
    desk: Desk, tool: str, said: dict[str, Any], told: str
) -> None:
    with pytest.raises(ToolRefused, match=told):
        await desk.call(tool, **said)
    assert await desk.kept() == []


async def test_only_items_are_the_models_to_change(desk: Desk) -> None:
    by = Provenance(author="http:u1", turn_id="t0")
    fact = (await desk.records.add(Scope("acme"), NewRecord(Type.FACT, "The boat is Petrel."), by)).record
    with pytest.raises(ToolRefused, match="no item"):
        await desk.call("update_item", id=fact.id, text="x")
    with pytest.raises(ToolRefused, match="no item"):
        await desk.call("delete_item", id=fact.id)
    whole = await desk.call("expand", record=fact.id)
    assert whole.startswith(f"fact {fact.id}, new, of 2026-11-22")
    assert whole.endswith("\n\nThe boat is Petrel.")


async def test_while_the_search_is_away_items_are_found_by_their_words(desk: Desk) -> None:
    await desk.call("create_item", kind="task", text="order tyres")
    await desk.call("create_item", kind="task", text="buy milk")
    desk.records.fails = IndexUnavailable("away")
    found = await desk.call("query_items", text="the tyre")
    assert "The search does not work just now" in found
    assert "tyres" in found
    assert "milk" not in found


async def test_of_many_items_the_next_ones_are_listed_and_the_rest_counted(desk: Desk) -> None:
    for number in range(25):
        await desk.call("create_item", kind="task", text=f"job {number}", due=f"in {number + 1} days")
    lines = (await desk.call("query_items")).splitlines()
    assert lines[0].endswith(": job 0")
    assert lines[-1] == "(5 more: ask for a shorter time or by text.)"


async def test_in_a_private_place_items_are_its_own_and_the_workspaces_are_not_reworded(desk: Desk) -> None:
    await desk.call("create_item", kind="task", text="order tyres")
    (shared,) = await desk.kept()
    await desk.call("create_item", audience=BOARD, kind="task", text="close the plant in Lyon")

    assert [one.text for one in await desk.kept()] == ["order tyres"]
    assert "Lyon" in await desk.call("query_items", audience=BOARD)
    assert "Lyon" not in await desk.call("query_items")
    with pytest.raises(ToolRefused, match="private"):
        await desk.call("update_item", audience=BOARD, id=shared.id, text="close the plant in Lyon")
    await desk.call("update_item", audience=BOARD, id=shared.id, status="done")
    assert [(one.text, one.state) for one in await desk.kept()] == [("order tyres", State.DONE)]
