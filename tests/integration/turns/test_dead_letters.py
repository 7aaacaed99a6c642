"""Turns that failed for good: kept, shown to admins, tried again or dropped."""

from __future__ import annotations

import asyncio
import functools
import json
from typing import Any

import pytest

from connectors.message import Author, ConversationKey, InboundMessage, Role
from runtime.turns import Batch, Envelope
from runtime.turns.mailbox import MAX_WAITING
from tests.emulators.face import Face
from tests.emulators.openai import FakeOpenAI, in_background

pytestmark = pytest.mark.asyncio(loop_scope="module")

POISON = "the message that breaks everything"


@pytest.fixture
def poisoned(face: Face, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Turns of messages with `POISON` break at once; undone, they are answered as any other."""
    answer = face.runtime.turns.answer

    async def breaks(batch: Batch) -> None:
        if any(POISON in envelope.message.text for envelope in batch.envelopes):
            raise ZeroDivisionError
        await answer(batch)

    monkeypatch.setattr(face.runtime.turns, "answer", breaks)
    monkeypatch.setattr(face.runtime.worker, "_max_attempts", 1)
    return monkeypatch


async def give_up(face: Face, here: str, context: str, key: str = "") -> dict[str, Any]:
    """Say what breaks its turn; the letter of it."""
    headers = {"Idempotency-Key": key} if key else {}
    body = {"text": f"Hello, {POISON}", "context": context, "author": "lena"}
    told = await face.client.post(f"{here}/messages", json=body, headers=headers)
    assert (told.status_code, told.json()["error"]["code"]) == (500, "internal"), told.text
    found = [one for one in await listed(face, here) if one["context_id"] == f"http:{context}"]
    assert len(found) == 1
    letter: dict[str, Any] = found[0]
    return letter


async def listed(face: Face, here: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await face.client.get(f"{here}/dead-letters")).json()["dead_letters"]
    return found


async def idle(face: Face) -> None:
    """Wait until nothing waits to be answered."""
    async with asyncio.timeout(20):
        while await face.runtime.mailbox.ready():
            await asyncio.sleep(0.01)


async def test_a_turn_that_was_given_up_is_shown_to_the_workspaces_admins_alone(
    face: Face, poisoned: pytest.MonkeyPatch
) -> None:
    """With why, how often it was tried, who said it and the beginning of what was said."""
    here = await face.workspace("letters-shown")
    letter = await give_up(face, here, "shown")
    assert (letter["why"], letter["attempts"], letter["messages"]) == ("ZeroDivisionError", 1, 1)
    assert (letter["text"], letter["authors"]) == (f"Hello, {POISON}", ["http:lena"])
    for role, status in (("admin", 200), ("member", 403), ("viewer", 403)):
        async with face.as_token(await face.token("letters-shown", role)) as caller:
            assert (await caller.get(f"{here}/dead-letters")).status_code == status
    await face.workspace("letters-elsewhere")
    async with face.as_token(await face.token("letters-elsewhere", "admin")) as stranger:
        path = f"{here}/dead-letters/{letter['turn_id']}"
        assert (await stranger.post(f"{path}/retry")).status_code == 403
        assert (await stranger.delete(path)).status_code == 403


async def test_a_turn_that_is_tried_again_is_answered_in_the_place_of_the_apology(
    face: Face, poisoned: pytest.MonkeyPatch, provider: FakeOpenAI
) -> None:
    """By a turn of its own; whoever repeats the request has the answer, and the letter is gone."""
    here = await face.workspace("letters-retried")
    letter = await give_up(face, here, "retried", key="again")
    poisoned.undo()
    provider.will("All is well again.")
    done = await face.client.post(f"{here}/dead-letters/{letter['turn_id']}/retry")
    assert (done.status_code, done.json()) == (
        200,
        {"turn_id": letter["turn_id"], "retried": True, "messages": 1},
    )
    assert await listed(face, here) == []
    await idle(face)
    body = {"text": f"Hello, {POISON}", "context": "retried", "author": "lena"}
    answer = (await face.client.post(f"{here}/messages", json=body, headers={"Idempotency-Key": "again"})).json()
    assert answer["text"] == "All is well again."
    assert answer["turn_id"] > letter["turn_id"]


@pytest.mark.parametrize("dropped", [False, True])
async def test_who_repeats_a_message_whose_turn_was_given_up_has_it_tried_again(
    face: Face, poisoned: pytest.MonkeyPatch, provider: FakeOpenAI, dropped: bool
) -> None:
    """By a new turn, once for all who repeat it, also where an admin dropped the letter; its answer stays then."""
    here = await face.workspace(f"letters-repeated-{dropped}".lower())
    letter = await give_up(face, here, "repeated", key="once more")
    body = {"text": f"Hello, {POISON}", "context": "repeated", "author": "lena"}
    headers = {"Idempotency-Key": "once more", "Accept": "text/event-stream"}
    streamed = await face.client.post(f"{here}/messages", json=body, headers=headers)
    assert "event: error" in streamed.text or streamed.status_code == 500
    (again,) = await listed(face, here)
    assert again["turn_id"] > letter["turn_id"]
    poisoned.undo()
    if dropped:
        await face.client.delete(f"{here}/dead-letters/{again['turn_id']}")
    provider.will("All is well again.")
    before = len(provider.requests)
    post = functools.partial(face.client.post, f"{here}/messages", json=body, headers={"Idempotency-Key": "once more"})
    answers = [answer.json() for answer in (*await asyncio.gather(post(), post()), await post())]
    assert [answer["text"] for answer in answers] == ["All is well again."] * 3
    assert len({answer["turn_id"] for answer in answers}) == 1
    assert len([one for one in provider.requests[before:] if not in_background(one)]) == 1
    assert await listed(face, here) == []


async def test_a_turn_that_is_tried_again_twice_at_once_is_answered_once(
    face: Face, poisoned: pytest.MonkeyPatch, provider: FakeOpenAI
) -> None:
    """Also where the first try ended before it could let go of the letter."""
    here = await face.workspace("letters-twice")
    letter = await give_up(face, here, "twice")
    poisoned.undo()
    before = len(provider.requests)
    redis, name = face.runtime.store.client, "ar:dead:{w.letters-twice}:letters"
    kept = await redis.hget(name, letter["turn_id"])
    path = f"{here}/dead-letters/{letter['turn_id']}/retry"
    done = await asyncio.gather(*(face.client.post(path) for _ in range(4)))
    assert {one.status_code for one in done} <= {200, 404}
    assert 200 in {one.status_code for one in done}
    await redis.hset(name, letter["turn_id"], kept)
    assert (await face.client.post(path)).status_code == 200
    await idle(face)
    asked = [
        one["messages"][-1]["content"]
        for one in provider.requests[before:]
        if POISON in json.dumps(one) and not in_background(one)
    ]
    assert len(asked) == 1, asked
    assert (await face.client.post(path)).json()["error"]["code"] == "unknown_turn"
    key = ConversationKey("letters-twice", "http", "twice")
    assert len(await face.runtime.transcript.turn_ids(key)) == 2  # the apology's and the answer's


async def test_a_turn_that_breaks_again_is_a_letter_again(face: Face, poisoned: pytest.MonkeyPatch) -> None:
    """Under its new id."""
    here = await face.workspace("letters-again")
    letter = await give_up(face, here, "again")
    await face.client.post(f"{here}/dead-letters/{letter['turn_id']}/retry")
    await idle(face)
    assert [one["turn_id"] > letter["turn_id"] for one in await listed(face, here)] == [True]


async def test_what_is_dropped_is_gone(face: Face, poisoned: pytest.MonkeyPatch) -> None:
    """A second time there is nothing to drop or to try."""
    here = await face.workspace("letters-dropped")
    path = f"{here}/dead-letters/{(await give_up(face, here, 'dropped'))['turn_id']}"
    assert (await face.client.delete(path)).json()["dropped"] is True
    assert await listed(face, here) == []
    for again in (await face.client.delete(path), await face.client.post(f"{path}/retry")):
        assert (again.status_code, again.json()["error"]["code"]) == (404, "unknown_turn")


async def test_operators_are_told_how_many_there_are_and_where(face: Face, poisoned: pytest.MonkeyPatch) -> None:
    """The numbers for Prometheus count them without naming tenants; the doctor names the workspace and what to do."""
    here = await face.workspace("letters-counted")
    before = _gauge((await face.client.get("/metrics")).text)
    letter = await give_up(face, here, "counted")
    metrics = (await face.client.get("/metrics")).text
    assert _gauge(metrics) == before + 1
    assert "letters-counted" not in metrics
    checks = {one["name"]: one for one in (await face.client.get("/v1/doctor")).json()["checks"]}
    check = checks["dead letters letters-counted"]
    assert (check["ok"], check["detail"]) == (False, "1 turn failed for good")
    assert "dead-letters list --workspace letters-counted" in check["advice"]
    await face.client.delete(f"{here}/dead-letters/{letter['turn_id']}")
    checks = {one["name"]: one for one in (await face.client.get("/v1/doctor")).json()["checks"]}
    assert "dead letters letters-counted" not in checks


def _gauge(metrics: str) -> float:
    return float(
        next(line for line in metrics.splitlines() if line.startswith("agent_runtime_dead_letters ")).split()[1]
    )


async def test_events_of_letters_hold_no_word_of_what_was_said(face: Face, poisoned: pytest.MonkeyPatch) -> None:
    """Neither when a turn is given up nor when it is tried again or dropped."""
    here = await face.workspace("letters-events")
    letter = await give_up(face, here, "events")
    await face.client.post(f"{here}/dead-letters/{letter['turn_id']}/retry")
    await idle(face)
    (again,) = await listed(face, here)
    await face.client.delete(f"{here}/dead-letters/{again['turn_id']}")
    for name, wanted in (
        ("turn.failed", {"turn_id": letter["turn_id"], "why": "given_up"}),
        ("letter.retried", {"turn_id": letter["turn_id"]}),
        ("letter.dropped", {"turn_id": again["turn_id"], "why": "asked"}),
    ):
        async with asyncio.timeout(10):
            event = await face.event(name, **wanted)
        assert event["workspace_id"] == "letters-events"
        assert POISON not in json.dumps(event)


async def test_letters_go_with_their_workspace(face: Face, poisoned: pytest.MonkeyPatch) -> None:
    """A workspace of the same name that is made later has none."""
    here = await face.workspace("letters-removed")
    await give_up(face, here, "removed")
    assert (await face.client.delete(here)).status_code == 200
    await face.workspace("letters-removed")
    assert await listed(face, here) == []
    assert await face.runtime.dead_letters.counts(["letters-removed"]) == {}


async def test_a_full_conversation_refuses_messages_and_another_try(
    face: Face, poisoned: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With when to come back; nothing is lost, and the letter stays."""
    here = await face.workspace("letters-full")
    letter = await give_up(face, here, "full")
    key = ConversationKey("letters-full", "http", "full")
    (kept,) = await face.runtime.dead_letters.all(key.scope)
    holding = asyncio.Event()

    answer = face.runtime.turns.answer

    async def hold(batch: Batch) -> None:
        await holding.wait()
        if batch.envelopes[0].message.text == "one":
            await answer(batch)

    monkeypatch.setattr(face.runtime.turns, "answer", hold)
    waiting = asyncio.create_task(face.client.post(f"{here}/messages", json={"text": "one", "context": "full"}))
    async with asyncio.timeout(10):
        while not await face.runtime.mailbox.current_turn(key):
            await asyncio.sleep(0.01)
    author = Author("lena", "Lena")
    for number in range(MAX_WAITING - 1):
        message = InboundMessage("http", "full", f"waits{number}", author, "and one more", workspace_id="letters-full")
        await face.runtime.mailbox.store(key, Envelope(message, Role.MEMBER, 1000.0))
    for refused in (
        await face.client.post(f"{here}/messages", json={"text": "two", "context": "full"}),
        await face.client.post(f"{here}/dead-letters/{letter['turn_id']}/retry"),
    ):
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "mailbox_full")
        assert int(refused.headers["Retry-After"]) > 0
    assert await face.runtime.dead_letters.all(key.scope) == [kept]
    holding.set()
    assert (await waiting).status_code == 200
    await idle(face)
