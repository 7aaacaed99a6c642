"""Messages, dry runs, turns and their replay over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from connectors.discord import REPLY_HINT as DISCORD_HINT
from connectors.slack import REPLY_HINT as SLACK_HINT
from connectors.telegram import REPLY_HINT as TELEGRAM_HINT
from tests.emulators import openai
from tests.emulators.face import Face, sse

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUESTION = "What does our documentation say about the refund window?"


async def shop(face: Face) -> str:
    here = await face.workspace("shop")
    text = b"# Refunds\n\nThe refund window is 14 days from delivery.\n"
    assert (await face.client.put(f"{here}/documents/refunds.md?wait=true", content=text)).status_code == 200
    return here


async def test_a_message_is_answered_with_its_sources(face: Face, provider: openai.FakeOpenAI) -> None:
    """The answer's object has all that the interface promises."""
    here = await shop(face)
    provider.will("Fourteen days.")
    answer = (await face.client.post(f"{here}/messages", json={"text": QUESTION, "context": "answered"})).json()
    assert set(answer) == {"turn_id", "text", "sources", "strategy", "reason", "degraded", "usage"}
    assert (answer["text"], answer["strategy"]) == ("Fourteen days.", "qmd")
    assert answer["sources"] == [{"source": "refunds.md", "heading": "Refunds"}]
    assert set(answer["usage"]) == {"prompt", "cached", "completion", "cost_usd"}


async def test_a_streamed_answer_is_the_same_text_in_pieces(face: Face, provider: openai.FakeOpenAI) -> None:
    """Deltas add up to the text of done."""
    here = await shop(face)
    provider.will("Fourteen days from delivery, as the refund policy says.")
    headers = {"Accept": "text/event-stream"}
    answer = await face.client.post(f"{here}/messages", json={"text": QUESTION, "context": "s"}, headers=headers)
    events = sse(answer.text)
    assert [name for name, _ in events[-1:]] == ["done"]
    deltas = [data["text"] for name, data in events if name == "delta"]
    assert len(deltas) > 1
    assert "".join(deltas) == events[-1][1]["text"]


async def test_a_repeat_with_the_same_key_is_the_same_turn(face: Face, provider: openai.FakeOpenAI) -> None:
    """The model is asked once."""
    here = await shop(face)
    before = len(provider.requests)
    headers = {"Idempotency-Key": "once"}
    body = {"text": "Tell me about the refund policy document", "context": "repeat"}
    first = (await face.client.post(f"{here}/messages", json=body, headers=headers)).json()
    second = (await face.client.post(f"{here}/messages", json=body, headers=headers)).json()
    assert first == second
    asked = [
        request
        for request in provider.requests[before:]
        if "Tell me about" in str(request) and not openai.in_background(request)
    ]
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b'{"text": "  "}', 400, "empty"),
        (b"", 400, "empty"),
        (b"{", 400, "bad_request"),
        (b'{"text": "' + b"x" * 30_000 + b'"}', 413, "too_large"),
    ],
)
@pytest.mark.parametrize("call", ["messages", "ground"])
async def test_bad_bodies_are_refused_clearly(face: Face, call: str, body: bytes, status: int, code: str) -> None:
    """Empty, broken and oversized bodies get the same answers from both calls."""
    here = await shop(face)
    answer = await face.client.post(f"{here}/{call}", content=body)
    if call == "ground" and body == b"":
        code = "bad_request"  # "text" is missing
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


async def test_a_dry_run_shows_what_a_turn_would_send(face: Face, provider: openai.FakeOpenAI) -> None:
    """The messages of ground are, byte for byte, those that the model then gets; and it stores nothing."""
    here = await shop(face)
    body = {"text": QUESTION, "context": "dry", "author": {"id": "7", "name": "Ann"}}
    keys = await quiet_keys(face)
    asked = len(provider.requests)
    dry = (await face.client.post(f"{here}/ground", json=body)).json()
    assert await keys_of(face) - keys == set()
    assert len(provider.requests) == asked
    assert set(dry) >= {"strategy", "reason", "messages", "blocks", "tokens_total", "prefix_digest", "degraded"}
    assert [set(block) - {"items"} for block in dry["blocks"]] == [
        {"name", "tokens", "budget", "used", "sha256", "why"} for _ in dry["blocks"]
    ]
    assert dry["frame"] == "question"
    assert [block["items"] for block in dry["blocks"] if "items" in block] == [[]]
    await face.client.post(f"{here}/messages", json=body)
    sent = next(one for one in provider.requests[asked:] if QUESTION in str(one))
    assert [(one["role"], one["content"]) for one in sent["messages"]] == [
        (one["role"], one["content"]) for one in dry["messages"]
    ]


@pytest.mark.parametrize(
    ("connector", "hint"), [("slack", SLACK_HINT), ("telegram", TELEGRAM_HINT), ("discord", DISCORD_HINT)]
)
async def test_a_dry_run_in_a_platforms_place_has_the_hint_that_turns_there_have(
    face: Face, connector: str, hint: str
) -> None:
    here = await shop(face)
    body = {"text": QUESTION, "connector": connector, "external_id": "C1"}
    dry = (await face.client.post(f"{here}/ground", json=body)).json()
    [block] = [block for block in dry["blocks"] if block["name"] == "hint"]
    assert (block["used"], block["why"]) == (True, connector)
    assert hint in dry["messages"][1]["content"]
    dry = (await face.client.post(f"{here}/ground", json=body | {"text": "What is 17 times 23?"})).json()
    [block] = [block for block in dry["blocks"] if block["name"] == "hint"]
    assert (dry["strategy"], block["used"], block["why"]) == ("none", False, "unused: the strategy is none")


async def keys_of(face: Face) -> set[str]:
    return {key async for key in face.runtime.store.client.scan_iter(count=1000)}


async def quiet_keys(face: Face) -> set[str]:
    """What is stored, once the work that earlier turns left behind adds nothing more to it."""
    before, now = set[str](), await keys_of(face)
    while now - before:
        await asyncio.sleep(0.7)
        before, now = now, await keys_of(face)
    return now


async def test_a_given_history_stands_in_for_the_stored_one(face: Face) -> None:
    """Only what was given is in the tail."""
    here = await shop(face)
    await face.client.post(f"{here}/messages", json={"text": "My parrot is called Kiki.", "context": "history"})
    history = [{"role": "user", "text": "My cat is called Mog."}, {"role": "assistant", "text": "A fine name."}]
    body: dict[str, Any] = {"text": "What did I say my pet is called?", "context": "history", "history": history}
    user = (await face.client.post(f"{here}/ground", json=body)).json()["messages"][1]["content"]
    assert "user: My cat is called Mog." in user
    assert "assistant: A fine name." in user
    assert "Kiki" not in user
    del body["history"]
    assert "Kiki" in (await face.client.post(f"{here}/ground", json=body)).json()["messages"][1]["content"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"connector": "slack"},
        {"external_id": "C1"},
        {"connector": "slack", "external_id": "C1", "context": "x"},
        {"history": [{"role": "system", "text": "x"}]},
        {"author": {"id": "token:admin"}},
        {"author": {"id": " "}},
        {"texts": "misspelt"},
        {"direct": "perhaps"},
    ],
)
async def test_a_dry_run_refuses_what_it_does_not_understand(face: Face, wrong: dict[str, Any]) -> None:
    """400, and the text says which field is wrong."""
    here = await shop(face)
    answer = await face.client.post(f"{here}/ground", json={"text": "hello", **wrong})
    assert answer.status_code == 400
    assert any(f'"{field}' in answer.json()["error"]["message"] for field in wrong)


async def test_turns_are_listed_newest_first_and_replayed(face: Face) -> None:
    """Every turn has its manifest, from which the same bytes are built again."""
    here = await shop(face)
    ids = [
        (await face.client.post(f"{here}/messages", json={"text": f"{QUESTION} {n}", "context": "list"})).json()[
            "turn_id"
        ]
        for n in range(3)
    ]
    while ids[-1] not in (listed := await listed_turns(face, here)):
        continue  # the manifest follows the reply
    assert listed[:3] == ids[::-1]
    assert await listed_turns(face, here, limit=1, before=ids[2]) == [ids[1]]
    shown = (await face.client.get(f"{here}/turns/{ids[0]}", params={"prompt": 1})).json()
    assert shown["context"]["query"]["text"] == f"{QUESTION} 0"
    assert shown["sources"] == [{"source": "refunds.md", "heading": "Refunds"}]
    assert shown["outcome"]["kind"] == "reply"
    replayed = (await face.client.get(f"{here}/turns/{ids[0]}/replay")).json()
    assert replayed["identical"] is True
    assert replayed["sha256"] == replayed["stored_sha256"] == shown["prompt_sha256"]
    assert replayed["messages"] == shown["messages"]
    compared = (await face.client.get(f"{here}/turns/{ids[0]}/diff", params={"with": ids[1]})).json()
    assert (compared["a"], compared["b"], compared["identical"]) == (ids[0], ids[1], False)
    assert compared["diff"].startswith("--- ")
    assert (await face.client.get(f"{here}/turns/{ids[0]}/diff", params={"with": "t0"})).status_code == 404
    assert (await face.client.get(f"{here}/turns/{ids[0]}/diff")).status_code == 400
    assert (await face.client.get(f"{here}/turns/t0")).json()["error"]["code"] == "unknown_turn"


async def listed_turns(face: Face, here: str, **params: Any) -> list[str]:
    return [one["turn_id"] for one in (await face.client.get(f"{here}/turns", params=params)).json()["turns"]]


async def test_instructions_that_do_not_fit_the_window_are_named(
    face: Face, provider: openai.FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """422 context_too_large names the block, its tokens and the window, and no model is asked."""
    here, before = await shop(face), len(provider.requests)

    async def small(_first: str | None = None) -> int:
        return 1100

    monkeypatch.setattr(face.runtime.model, "window_tokens", small)
    for call in ("ground", "messages"):
        answer = await face.client.post(f"{here}/{call}", json={"text": QUESTION, "context": "small"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "context_too_large"), call
        message = answer.json()["error"]["message"]
        assert "identity" in message
        assert "1100" in message
    assert [body for body in provider.requests[before:] if not openai.in_background(body)] == []


async def test_usage_counts_turns_and_tokens(face: Face) -> None:
    """One turn is one turn, whatever runs in the background after it."""
    here = await face.workspace("counted")
    await face.client.post(f"{here}/messages", json={"text": "hello there"})
    await face.event("turn.answered", workspace_id="counted")
    row = (await face.client.get(f"{here}/usage")).json()["workspaces"][0]
    assert (row["workspace"], row["turns"]) == ("counted", 1)
    assert row["prompt"] > 0
    assert row["models"]["openai/fake"]["completion"] > 0


@pytest.mark.parametrize(
    ("path", "query", "says"),
    [
        ("turns", {"before": "garbage"}, "query.before: expected the turn_id"),
        ("turns", {"limit": -1}, "query.limit"),
        ("/v1/events", {"strategy": "nonsense", "follow": 0}, "query.strategy: expected one of none, tail, qmd"),
        ("/v1/events", {"event": "nonsense", "follow": 0}, "query.event: expected the name of an event"),
        ("/v1/events", {"limit": -1, "follow": 0}, "query.limit"),
    ],
)
async def test_a_list_that_is_asked_for_by_what_nothing_can_be_found_by_is_refused_with_what_there_is(
    face: Face, path: str, query: dict[str, str | int], says: str
) -> None:
    here = await shop(face)
    refused = await face.client.get(path if path.startswith("/") else f"{here}/{path}", params=query)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "bad_request")
    assert refused.json()["error"]["message"].startswith(says)
    assert "no parameters, and" not in refused.json()["error"]["message"]


async def test_a_misspelt_parameter_deletes_nothing(face: Face) -> None:
    """A person's line is meant, and the workspace's would go."""
    here = await shop(face)
    await face.client.post(f"{here}/global-context", json={"content": "we close at six"})
    refused = await face.client.delete(f"{here}/global-context/0", params={"usr": "http:ann"})
    assert refused.status_code == 400
    [line] = (await face.client.get(f"{here}/global-context")).json()["lines"]
    assert line["content"] == "we close at six"
