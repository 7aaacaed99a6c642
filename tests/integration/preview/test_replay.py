"""Recorded turns under a draft: what stays, what changes, what is named as gone, and both answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from connectors.message import ConversationKey, Scope
from promptpolicy.policy import EVERYWHERE, InvalidDirective, Kind, Place, Slot
from runtime.billing import BudgetExceeded, BudgetTerm, Payer
from runtime.preview import AnswerRequest, Replay
from runtime.turns import Manifest
from tests.emulators import openai
from tests.emulators.face import Face
from tests.emulators.openai import Reply, in_background

pytestmark = pytest.mark.asyncio(loop_scope="module")

WORKSPACE = Slot(Place(Scope("shop")), Kind.SYSTEM)
QUESTION = "What does our documentation say about the refund window?"
A_DAY = BudgetTerm("workspace", "tokens", "day")


def answering(provider: openai.FakeOpenAI, answer: Callable[[str], Reply | str]) -> None:
    """Answer by the system message. What is asked in the background is refused, so that it costs nothing."""

    def reply(body: dict[str, Any]) -> Reply | str:
        return Reply(trouble="unauthorized") if in_background(body) else answer(str(body["messages"][0]["content"]))

    provider.answer = reply


@pytest.fixture(autouse=True)
def plain_answers(provider: openai.FakeOpenAI) -> None:
    answering(provider, lambda _: "Fourteen days.")


def anybody(_: Manifest) -> bool:
    return True


async def shop(face: Face) -> str:
    here = await face.workspace("shop")
    text = b"# Refunds\n\nThe refund window is 14 days from delivery.\n"
    assert (await face.client.put(f"{here}/documents/refunds.md?wait=true", content=text)).status_code == 200
    return here


async def said(face: Face, here: str, place: str, *texts: str) -> list[str]:
    """The turns that answer *texts*, said in *place*, with their outcomes stored."""
    ids = []
    for text in texts:
        answer = await face.client.post(f"{here}/messages", json={"text": text, "context": place})
        ids.append(answer.json()["turn_id"])
        await face.event("turn.answered", turn_id=ids[-1])
    return ids


async def replayed(face: Face, place: str, drafts: dict[Slot, str | None], count: int = 10, **more: Any) -> Replay:
    key = ConversationKey("shop", "http", place)
    return await face.runtime.replayer.replay_place(key, count, drafts, more.pop("may_read", anybody), **more)


async def test_only_the_identity_of_recorded_turns_changes(face: Face) -> None:
    here = await shop(face)
    first, second, third = await said(face, here, "place", QUESTION, "and by post?", "Thanks a lot!")
    steps: list[tuple[int, int]] = []
    replay = await replayed(
        face, "place", {WORKSPACE: "Answer in German."}, progress=lambda done, total: steps.append((done, total))
    )

    assert [turn.turn_id for turn in replay.turns] == [third, second, first]
    assert steps == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert replay.missing == ()
    for turn in replay.turns:
        assert turn.comparison is not None
        assert (turn.is_as_sent, turn.notes, turn.model) == (True, (), "openai/fake")
        assert {block.name for block in turn.comparison.blocks if block.change != "same"} == {"identity"}
        assert turn.identity_tokens == turn.comparison.blocks[0].tokens
        added = "".join(one.text for one in turn.comparison.blocks[0].segments if one.kind == "insert")
        assert "Answer in German." in added
    row = replay.turns[2].row()
    stored = (await face.client.get(f"{here}/turns/{first}/replay")).json()
    assert row["question"] == QUESTION
    assert row["comparison"]["before"]["messages"] == stored["messages"]
    assert row["comparison"]["before"]["sha256"] == stored["stored_sha256"]
    assert row["comparison"]["after"]["messages"][1] == stored["messages"][1]
    assert [turn.turn_id for turn in (await replayed(face, "place", {}, count=2)).turns] == [third, second]


async def test_a_draft_is_compared_with_what_is_live_now_and_changes_since_the_turn_are_named(face: Face) -> None:
    here = await shop(face)
    [turn_id] = await said(face, here, "since", QUESTION)
    tone = Slot(Place(Scope("shop", "http:since")), Kind.SOUL)
    await face.runtime.publisher.publish(tone, "Be brief.", author="ann", origin="api")
    [turn] = (await replayed(face, "since", {WORKSPACE: "Answer in German."})).turns

    assert turn.turn_id == turn_id
    assert not turn.is_as_sent
    assert turn.notes == ("The instructions have changed since the turn: now context/soul@1.",)
    assert turn.comparison is not None
    assert "Be brief." in turn.comparison.before.system
    [cleared] = (await replayed(face, "since", {tone: None})).turns
    assert cleared.comparison is not None
    assert "Be brief." not in cleared.comparison.after.system
    assert cleared.comparison.after.sha256 == (await face.runtime.manifests.get(Scope("shop"), turn_id)).prompt_sha256


async def test_what_is_gone_or_not_for_the_caller_is_named_as_unknown(face: Face) -> None:
    here = await shop(face)
    hidden, gone = await said(face, here, "gone", QUESTION, "and by post?")
    await face.runtime.manifests.forget(Scope("shop"), [gone])
    replay = await replayed(face, "gone", {}, may_read=lambda manifest: manifest.turn_id != hidden)

    assert replay.turns == ()
    assert [(one.turn_id, one.why) for one in replay.missing] == [
        (name, f"no turn {name!r} is known in workspace 'shop'") for name in (gone, hidden)
    ]


async def test_a_draft_says_where_it_has_no_effect_and_a_text_that_cannot_be_published_is_refused(face: Face) -> None:
    here = await shop(face)
    await said(face, here, "effect", QUESTION)
    elsewhere, cues = Slot(Place(Scope("shop", "http:other")), Kind.SOUL), Slot(EVERYWHERE, Kind.CUES)
    [turn] = (await replayed(face, "effect", {elsewhere: "Be brief.", cues: "[add]"})).turns
    [long] = (await replayed(face, "effect", {WORKSPACE: "long " * 4000})).turns

    assert turn.comparison is not None
    assert turn.comparison.is_same
    assert turn.notes == (
        "The draft for soul (context) has no effect in this place.",
        "Strategy and frame are as recorded; a dry run shows what a draft of cues or frames changes.",
    )
    assert [note for note in long.notes if "too large to be published" in note]
    with pytest.raises(InvalidDirective, match="control character"):
        await replayed(face, "effect", {WORKSPACE: "bell \a"})


async def spent(face: Face) -> int:
    return (await face.runtime.budgets.state(Scope("shop"))).spent[A_DAY]


async def comparisons(face: Face, place: str, draft: str) -> list[AnswerRequest]:
    replay = await replayed(face, place, {WORKSPACE: draft})
    return [AnswerRequest(turn.comparison, turn.model) for turn in replay.turns if turn.comparison is not None]


async def test_both_answers_come_from_the_turns_own_model_and_nothing_is_kept_of_them(
    face: Face, provider: openai.FakeOpenAI
) -> None:
    here = await shop(face)
    [turn_id] = await said(face, here, "answers", QUESTION)
    requests = await comparisons(face, "answers", "Answer in German.")
    answering(provider, lambda system: "Vierzehn Tage." if "German" in system else "Fourteen days.")
    before, listed = (
        await spent(face),
        await face.runtime.transcript.turn_ids(ConversationKey("shop", "http", "answers")),
    )
    steps: list[tuple[int, int]] = []
    estimate = await face.runtime.preview_answers.estimate(requests)
    [pair] = await face.runtime.preview_answers.answer(
        Payer(Scope("shop")), requests, lambda done, total: steps.append((done, total))
    )

    assert (pair.before.text, pair.after.text) == ("Fourteen days.", "Vierzehn Tage.")
    assert (pair.before.model, pair.before.problem) == ("openai/fake", "")
    used = sum(one.usage.prompt + one.usage.completion for one in (pair.before, pair.after))
    assert (estimate.calls, estimate.models, estimate.usd) == (2, ("openai/fake",), None)
    assert used < estimate.tokens
    assert await spent(face) - before == used
    assert steps == [(0, 2), (1, 2), (2, 2)]
    assert listed == [turn_id]
    assert await face.runtime.transcript.turn_ids(ConversationKey("shop", "http", "answers")) == listed
    asked = [body for body in provider.requests if not in_background(body)][-2:]
    assert not any(body.get("tools") for body in asked)


async def test_prompts_that_are_the_same_are_asked_once(face: Face, provider: openai.FakeOpenAI) -> None:
    here = await shop(face)
    await said(face, here, "once", QUESTION)
    requests = [AnswerRequest(turn.comparison) for turn in (await replayed(face, "once", {})).turns if turn.comparison]
    [pair] = await face.runtime.preview_answers.answer(Payer(Scope("shop")), requests)

    assert pair.before is pair.after
    assert (await face.runtime.preview_answers.estimate(requests)).calls == 1


async def test_a_budget_without_room_for_all_answers_refuses_them_before_the_first(
    face: Face, provider: openai.FakeOpenAI
) -> None:
    here = await shop(face)
    await said(face, here, "budget", QUESTION, "and by post?")
    requests = await comparisons(face, "budget", "Answer in French.")
    estimate, before = await face.runtime.preview_answers.estimate(requests), await spent(face)
    asked = len([body for body in provider.requests if not in_background(body)])
    await face.runtime.budgets.set(Scope("shop"), {A_DAY.name: before + estimate.tokens - 1})
    try:
        with pytest.raises(BudgetExceeded):
            await face.runtime.preview_answers.answer(Payer(Scope("shop")), requests)
    finally:
        await face.runtime.budgets.set(Scope("shop"), {})

    assert await spent(face) == before
    assert len([body for body in provider.requests if not in_background(body)]) == asked


async def test_a_model_that_fails_is_named_and_costs_nothing(face: Face, provider: openai.FakeOpenAI) -> None:
    here = await shop(face)
    await said(face, here, "fails", QUESTION)
    requests = await comparisons(face, "fails", "Answer in Danish.")
    before = await spent(face)
    answering(provider, lambda system: Reply(trouble="unauthorized") if "Danish" in system else "Yes.")
    [pair] = await face.runtime.preview_answers.answer(Payer(Scope("shop")), requests)

    assert (pair.before.text, pair.before.problem) == ("Yes.", "")
    assert (pair.after.text, pair.after.usage.prompt) == ("", 0)
    assert "openai/fake" in pair.after.problem
    assert await spent(face) - before == pair.before.usage.prompt + pair.before.usage.completion


async def test_answers_that_are_cancelled_give_back_what_was_held_for_calls_not_begun(
    face: Face, provider: openai.FakeOpenAI
) -> None:
    here = await shop(face)
    await said(face, here, "stop", QUESTION, "and by post?", "and in person?")
    requests = await comparisons(face, "stop", "Answer in Finnish.")
    estimate, before = await face.runtime.preview_answers.estimate(requests), await spent(face)
    answering(provider, lambda _: Reply(trouble="hang"))
    held = asyncio.create_task(face.runtime.preview_answers.answer(Payer(Scope("shop")), requests))
    while len([body for body in provider.requests if "Finnish" in str(body)]) < 2:
        await asyncio.sleep(0.01)
    assert await spent(face) - before == estimate.tokens
    held.cancel()
    await asyncio.wait([held])

    assert 0 < await spent(face) - before < estimate.tokens
