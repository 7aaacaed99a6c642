"""Workspaces, routes, directives, people, budgets, events and health over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from connectors.message import Author, InboundMessage, Scope
from runtime.billing import TERMS, BudgetTerm
from runtime.billing.budgets import Cost
from tests.emulators.face import Face, sse
from tests.emulators.openai import FakeOpenAI

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_workspaces_are_created_once_listed_and_deleted(face: Face) -> None:
    """201 the first time, 200 after; a deleted one is unknown, with all that it held."""
    created = await face.client.post("/v1/workspaces", json={"id": "short-lived"})
    assert (face.runtime.settings.data_dir / "workspaces" / "short-lived" / "docs").is_dir()
    assert (created.status_code, created.json()) == (201, {"id": "short-lived", "created": True})
    again = await face.client.post("/v1/workspaces", json={"id": "short-lived"})
    assert (again.status_code, again.json()["created"]) == (200, False)
    here = "/v1/workspaces/short-lived"
    await face.client.put(f"{here}/documents/yak.md?wait=true", content=b"The yak.")
    await face.client.put(f"{here}/prompts/workspace/soul", json={"text": "Be a yak."})
    await face.client.put(f"{here}/codex/yak.md", content=b"The yak.")
    await face.client.put(f"{here}/budget", json={"workspace_tokens_per_day": 50_000})
    for owner in ({}, {"user": "http:u1"}):
        await face.client.post(f"{here}/global-context", json={"content": "a yak", **owner})
        await face.client.post(f"{here}/records", json={"type": "fact", "text": "a yak is here", **owner})
    await face.client.post(f"{here}/messages", json={"text": "hello yak"})
    await face.event("turn.answered", workspace_id="short-lived")
    token = await face.token("short-lived", "member")
    listed = (await face.client.get("/v1/workspaces")).json()["workspaces"]
    assert {"short-lived", "sample"} <= {one["id"] for one in listed}
    keys = face.runtime.store.client.scan_iter
    assert len([key async for key in keys(match="ar:*{w.short-lived}*", count=1000)]) > 10
    assert (await face.client.delete(here)).json() == {"id": "short-lived", "deleted": True}
    for path in ("", "/documents", "/turns", "/prompts"):
        assert (await face.client.request("DELETE" if not path else "GET", here + path)).status_code == 404
    async with face.as_token(token) as client:
        assert (await client.get("/v1/workspaces")).status_code == 401
    assert [key async for key in keys(match="ar:*{w.short-lived}*", count=1000)] == []
    await face.client.post("/v1/workspaces", json={"id": "short-lived"})
    assert (await face.client.get(f"{here}/documents")).json() == {"documents": [], "skipped": []}
    assert (await face.client.get(f"{here}/global-context", params={"user": "http:u1"})).json()["lines"] == []
    assert (await face.client.get(f"{here}/global-context/history")).json() == {"edits": []}
    for query in ({}, {"q": "yak"}):
        records = await face.client.get(f"{here}/records", params={"user": "http:u1", **query})
        assert records.json()["records"] == []
    assert (await face.client.get(f"{here}/search?q=yak")).json()["results"] == []
    assert (await face.client.get(f"{here}/prompts/workspace/soul")).status_code == 404
    assert (await face.client.get(f"{here}/turns")).json() == {"turns": []}


async def test_documents_read_again_while_their_workspace_goes_are_gone_too(
    face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever follows the disk may look at a file between the index's end and the file's."""
    here = await face.workspace("short-lived")
    await face.client.put(f"{here}/documents/yak.md?wait=true", content=b"The yak.")
    forget = face.runtime.access.forget_workspace

    async def read_again(workspace_id: str) -> None:
        await face.runtime.knowledge.sync(Scope(workspace_id))
        assert (await face.runtime.knowledge.status(Scope(workspace_id))).documents == 1
        await forget(workspace_id)

    monkeypatch.setattr(face.runtime.access, "forget_workspace", read_again)
    assert (await face.client.delete(here)).status_code == 200
    await face.client.post("/v1/workspaces", json={"id": "short-lived"})
    assert (await face.client.get(f"{here}/search?q=yak")).json()["results"] == []


@pytest.mark.parametrize("name", ["", "UPPER", "../up", "a b", "x" * 65, ".dot"])
async def test_names_that_can_be_no_workspace_are_refused(face: Face, name: str) -> None:
    """400 with what a name looks like."""
    answer = await face.client.post("/v1/workspaces", json={"id": name})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_workspace_id")


async def test_places_are_routed_and_unrouted(face: Face) -> None:
    """A place may hold slashes; routing creates the workspace that it names."""
    routed = await face.client.put("/v1/routes/discord:G9/C7", json={"workspace": "support"})
    assert routed.json() == {"place": "discord:G9/C7", "workspace": "support"}
    listed = (await face.client.get("/v1/workspaces")).json()
    assert {"place": "discord:G9/C7", "workspace": "support", "from": "stored"} in listed["routes"]
    assert "support" in {one["id"] for one in listed["workspaces"]}
    assert (await face.client.delete("/v1/routes/discord:G9/C7")).status_code == 200
    assert (await face.client.delete("/v1/routes/discord:G9/C7")).status_code == 404
    assert (await face.client.put("/v1/routes/nonsense", json={"workspace": "support"})).status_code == 400


async def test_a_directive_is_published_seen_by_turns_and_rolled_back(face: Face) -> None:
    """Versions count from 1, an unseen change is 409, and the next dry run uses what holds."""
    here = await face.workspace("voice")
    slot = f"{here}/prompts/workspace/soul"
    assert (await face.client.get(slot)).status_code == 404
    first = await face.client.put(slot, json={"text": "Speak like a pirate.", "expected_version": 0})
    assert (first.status_code, first.json()["version"], first.json()["author"]) == (200, 1, "Admin")
    moved = await face.client.put(slot, json={"text": "Speak like a monk.", "expected_version": 0})
    assert (moved.status_code, moved.json()["error"]["code"]) == (409, "version_moved")
    await face.client.put(slot, json={"text": "Speak like a monk.", "expected_version": 1})
    assert await system_of(face, here, "monk")
    diff = (await face.client.get(f"{slot}/diff", params={"a": 1, "b": 2})).json()["diff"]
    assert "-Speak like a pirate." in diff
    assert "+Speak like a monk." in diff
    restored = (await face.client.post(f"{slot}/rollback", json={"version": 1})).json()
    assert (restored["version"], restored["restores"], restored["text"]) == (3, 1, "Speak like a pirate.")
    assert (await face.client.get(slot, params={"version": 2})).json()["text"] == "Speak like a monk."
    history = (await face.client.get(f"{slot}/history", params={"limit": 2})).json()["versions"]
    assert [one["version"] for one in history] == [3, 2]
    assert (await face.client.delete(slot, params={"expected_version": 2})).status_code == 409
    assert (await face.client.delete(slot, params={"expected_version": 3})).json()["cleared"] is True
    assert (await face.client.get(slot)).status_code == 404
    assert not await system_of(face, here, "pirate")


async def system_of(face: Face, here: str, word: str) -> bool:
    """Whether *word* is in the system message of a dry run."""
    answer = await face.client.post(f"{here}/ground", json={"text": "hello"})
    return word in answer.json()["messages"][0]["content"]


async def test_skills_may_be_called_like_actions(face: Face) -> None:
    """A skill named history has a history of its own."""
    here = await face.workspace("skilled")
    skill = f"{here}/prompts/workspace/skill/history"
    assert (await face.client.put(skill, json={"text": "How to tell history."})).status_code == 200
    assert (await face.client.get(skill)).json()["name"] == "history"
    assert len((await face.client.get(f"{skill}/history")).json()["versions"]) == 1


async def test_a_contexts_directive_holds_there_alone(face: Face) -> None:
    """The slot is named by scope context and the context's id."""
    here = await face.workspace("rooms")
    slot = f"{here}/prompts/context/system"
    assert (await face.client.put(slot, json={"text": "Room rule."})).status_code == 400
    put = await face.client.put(slot, json={"text": "Room rule."}, params={"context": "http:room"})
    assert put.json()["context_id"] == "http:room"
    listed = (await face.client.get(f"{here}/prompts")).json()["prompts"]
    assert [one.get("context_id") for one in listed if one["scope"] == "context"] == ["http:room"]
    inside = await face.client.post(f"{here}/ground", json={"text": "hi", "context": "room"})
    outside = await face.client.post(f"{here}/ground", json={"text": "hi", "context": "hall"})
    assert "Room rule." in inside.json()["messages"][0]["content"]
    assert "Room rule." not in outside.json()["messages"][0]["content"]


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("workspace/poem", {"text": "x"}, 400, "invalid_directive"),
        ("planet/soul", {"text": "x"}, 400, "invalid_directive"),
        ("workspace/skill", {"text": "x"}, 400, "invalid_directive"),
        ("workspace/skill/Bad%20Name", {"text": "x"}, 400, "invalid_directive"),
        ("workspace/soul", {"text": "  "}, 400, "invalid_directive"),
        ("workspace/soul", {"text": "a\x07b"}, 400, "invalid_directive"),
        ("workspace/soul", {"texts": "x"}, 400, "bad_request"),
        ("workspace/soul", {"text": "word " * 4000}, 413, "policy_too_large"),
    ],
)
async def test_what_cannot_be_a_directive_is_refused(
    face: Face, path: str, body: dict[str, Any], status: int, code: str
) -> None:
    """A clear error when publishing, and nothing changes."""
    here = await face.workspace("strict")
    answer = await face.client.put(f"{here}/prompts/{path}", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    listed = (await face.client.get(f"{here}/prompts")).json()["prompts"]
    assert [one for one in listed if one["scope"] == "workspace"] == []


async def test_a_shorter_text_is_proposed_paid_for_and_published_in_a_second_step(
    face: Face, provider: FakeOpenAI
) -> None:
    """Nothing changes until a person sends the text back with the version that it was made of."""
    here = await face.workspace("dense")
    prompt = f"{here}/prompts/workspace/system"
    long = "If at all possible, please keep each and every one of your answers below 40 words in total, always."
    await face.client.put(prompt, json={"text": long})
    provider.will("Answer in fewer than 40 words.")
    made = (await face.client.post(f"{prompt}/condense")).json()
    assert (made["version"], made["text"]) == (1, "Answer in fewer than 40 words.")
    assert (await face.client.get(prompt)).json()["text"] == long
    [total] = await face.runtime.usage.totals(Scope("dense"))
    assert (total.calls, total.replies) == (1, 0)
    wanted = {"text": made["text"], "expected_version": 1}
    lost = await face.client.put(f"{prompt}/condense", json={**wanted, "text": "Be brief."})
    assert (lost.status_code, lost.json()["error"]["code"]) == (422, "not_condensed")
    assert "it lost the number '40'" in lost.json()["error"]["message"]
    published = await face.client.put(f"{prompt}/condense", json=wanted)
    assert (published.status_code, published.json()["version"]) == (200, 2)
    again = await face.client.put(f"{prompt}/condense", json=wanted)
    assert (again.status_code, again.json()["error"]["code"]) == (409, "version_moved")
    member = await face.token("dense", "member")
    async with face.as_token(member) as client:
        assert (await client.post(f"{prompt}/condense")).status_code == 403
        assert (await client.put(f"{prompt}/condense", json=wanted)).status_code == 403
    assert (await face.client.post(f"{here}/prompts/workspace/soul/condense")).status_code == 404
    provider.will("unauthorized")
    silent = await face.client.post(f"{prompt}/condense")
    assert (silent.status_code, silent.json()["error"]["code"]) == (503, "model_failed")
    await face.client.put(f"{here}/budget", json={"workspace_tokens_per_day": 1})
    used_up = await face.client.post(f"{prompt}/condense")
    assert (used_up.status_code, used_up.json()["error"]["code"]) == (402, "budget_exceeded")
    used, state = await face.runtime.usage.totals(Scope("dense")), await face.runtime.budgets.state(Scope("dense"))
    charged = state.spent[BudgetTerm("workspace", "tokens", "day")]
    assert charged == sum(one.prompt + one.completion for one in used)  # what was refused, or not asked, costs nothing


async def test_a_stranger_is_paired_and_given_a_role(face: Face) -> None:
    """Who waits is listed; approval makes a member; a role is given and taken."""
    await face.workspace("club")
    stranger = InboundMessage("telegram", "7", "m1", Author("7", "Sam"), "hello", direct=True)
    notice = (await face.runtime.access.authorise(stranger, "club")).notice
    waiting = (await face.client.get("/v1/access", params={"workspace": "club"})).json()
    assert waiting["policy"] == "pairing"
    assert [(one["user"], one["name"], one["workspace"], one["asked_in"]) for one in waiting["pending"]] == [
        ("telegram:7", "Sam", "club", [""])
    ]
    code = notice.partition("code is ")[2][:8]
    wrong = await face.client.post("/v1/access", json={"action": "approve", "code": "WRONG"})
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (404, "unknown_code")
    approved = (await face.client.post("/v1/access", json={"action": "approve", "code": code})).json()["approved"]
    assert approved.pop("given_at")
    assert approved == {
        "user": "telegram:7",
        "name": "Sam",
        "role": "member",
        "workspace": "club",
        "given_by": "Admin",
    }
    role = {"action": "role", "user": "telegram:7", "role": "viewer", "workspace": "club"}
    assert (await face.client.post("/v1/access", json=role)).status_code == 200
    people = (await face.client.get("/v1/access", params={"workspace": "club"})).json()["people"]
    assert [(one["user"], one["role"], one["sigil"], one["scopes"]) for one in people] == [
        ("telegram:7", "viewer", "viewer", ["*:read"])
    ]
    bound = (await face.client.get("/v1/access", params={"workspace": "club"})).json()["sigils"]
    assert bound[0] == {"bound": "role:admin", "sigil": "admin", "scopes": ["*"]}
    token = {"action": "token", "workspace": "club", "role": "viewer", "name": "feed", "owner": "Sam"}
    made = (await face.client.post("/v1/access", json=token)).json()["token"]
    await face.client.post("/v1/access", json={**token, "owner": ""})
    listed = (await face.client.get("/v1/access", params={"workspace": "club"})).json()["tokens"]
    assert {one["owner"] for one in listed} == {"telegram:7", "Admin"}
    assert (await face.client.post("/v1/access", json={**token, "owner": "x" * 400})).status_code == 400
    taken = (await face.client.post("/v1/access", json={**role, "role": None})).json()
    assert taken["revoked_tokens"] == [one["id"] for one in listed if one["owner"] == "telegram:7"]
    async with face.bare() as client:
        refused = await client.get("/v1/access", headers={"Authorization": f"Bearer {made}"})
    assert refused.status_code == 401
    assert (await face.client.get("/v1/access", params={"workspace": "club"})).json()["people"] == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "'action'"),
        ({"action": "dance"}, "'approve', 'deny', 'role', 'token', 'invite', 'revoke'"),
        ({"action": "role", "user": "nobody", "role": "member", "workspace": "club"}, ""),
        ({"action": "role", "user": "telegram:7", "role": "king", "workspace": "club"}, ""),
        ({"action": "token", "workspace": "club"}, ""),
    ],
)
async def test_changes_of_access_that_make_no_sense_are_refused(face: Face, body: dict[str, Any], said: str) -> None:
    """400, and the text says what was expected."""
    await face.workspace("club")
    refused = await face.client.post("/v1/access", json=body)
    assert refused.status_code == 400
    assert said in refused.json()["error"]["message"]


async def test_events_are_followed_as_they_come(face: Face) -> None:
    """A follower sees what happens after it began, by name and workspace; a limit bounds what was stored."""
    await face.workspace("watched")
    query: dict[str, str | int] = {"workspace": "watched", "event": "turn.answered", "limit": 0}
    async with face.client.stream("GET", "/v1/events", params=query) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        asked = asyncio.create_task(face.client.post("/v1/workspaces/watched/messages", json={"text": "hello"}))
        text = ""
        async for piece in answer.aiter_text():
            text += piece
            if text.endswith("\n\n"):
                break
    await asked
    [(name, event)] = sse(text)
    assert (name, event["event"], event["workspace_id"]) == ("turn.answered", "turn.answered", "watched")
    stored = await face.client.get("/v1/events", params={"follow": 0, "limit": 2, "workspace": "watched"})
    assert len(sse(stored.text)) == 2


async def test_alive_ready_and_measured(face: Face) -> None:
    """Health needs no token; the numbers count the turns that were answered."""
    await face.workspace("measured")
    await face.client.post("/v1/workspaces/measured/messages", json={"text": "hello"})
    await face.event("turn.answered", workspace_id="measured")
    async with face.bare() as client:
        ready = (await client.get("/readyz")).json()
        assert ready["ready"] is True
        assert ready["connectors"]["http"] == {"state": "connected"}
        assert {name: one["state"] for name, one in ready["stores"].items()} == {
            "redis": "connected",
            "qdrant": "connected",
        }
        metrics = (await client.get("/metrics")).text
    assert 'agent_runtime_turns_total{outcome="answered",strategy="none"}' in metrics
    assert 'agent_runtime_connector_up{connector="http",state="connected"} 1' in metrics
    assert "agent_runtime_turn_seconds_bucket" in metrics
    assert "agent_runtime_conversations_waiting 0" in metrics
    assert 'agent_runtime_model_up{model="openai/fake",state="connected"} 1' in metrics


async def test_the_doctor_looks_at_everything(face: Face) -> None:
    """Each check has a name, a verdict, what was seen, and advice where it is not well."""
    await face.client.post("/v1/workspaces/sample/index")
    checks = (await face.client.get("/v1/doctor")).json()["checks"]
    assert {one["name"] for one in checks} >= {
        "settings",
        "sigils",
        "redis",
        "qdrant",
        "model",
        "local model",
        "embedding",
        "machine",
        "disk",
        "connector http",
        "files",
        "index sample",
    }
    assert all(set(one) == {"name", "ok", "detail", "advice"} for one in checks)
    assert all(one["ok"] or one["advice"] for one in checks)
    assert {one["name"]: one["ok"] for one in checks}["model"] is True
    assert {one["name"]: one["detail"] for one in checks}["embedding"] == "bundled/wordllama"


async def test_the_document_of_the_interface_is_whole(face: Face) -> None:
    """OpenAPI names every path, and every reference in it leads somewhere."""
    async with face.bare() as client:
        document = (await client.get("/openapi.json")).json()
    assert "/v1/workspaces/{workspace_id}/messages" in document["paths"]
    assert "/v1/workspaces/{workspace_id}/ground" in document["paths"]
    assert "requestBody" in document["paths"]["/v1/access"]["post"]
    assert "user_usd_per_month" in str(document["paths"]["/v1/workspaces/{workspace_id}/budget"]["put"]["requestBody"])
    schemas = document["components"]["schemas"]
    for reference in references(document):
        assert reference.removeprefix("#/components/schemas/") in schemas, reference
    ids = [operation["operationId"] for path in document["paths"].values() for operation in path.values()]
    assert len(ids) == len(set(ids))


def references(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [r for key, inner in value.items() for r in ([inner] if key == "$ref" else references(inner))]
    return [r for inner in value for r in references(inner)] if isinstance(value, list) else []


async def test_limits_that_are_set_hold_until_they_are_taken_back(face: Face) -> None:
    here = f"{await face.workspace('thrifty')}/budget"
    limits = {"workspace_tokens_per_day": 1000, "workspace_usd_per_month": 2.5, "user_tokens_per_day": "unlimited"}

    put = await face.client.put(here, json=limits)
    await face.runtime.budgets.settle(Scope("thrifty"), "t1", Cost(300, 0.5), "http:lena")
    held = (await face.client.get(here)).json()
    hers = (await face.client.get(here, params={"user": "http:lena"})).json()

    assert (put.status_code, put.json()["set"]) == (200, limits)
    assert held["set"] == limits
    assert held["budget"].keys() == {term.name for term in TERMS}
    assert held["budget"]["workspace_tokens_per_day"] == {"limit": 1000, "spent": 300, "left": 700}
    assert held["budget"]["workspace_usd_per_month"] == {"limit": 2.5, "spent": 0.5, "left": 2}
    assert held["budget"]["user_tokens_per_day"] == {"limit": None}
    assert hers["budget"]["user_usd_per_month"] == {"limit": None, "spent": 0.5, "left": None}
    usage = (await face.client.get("/v1/workspaces/thrifty/usage")).json()["workspaces"][0]
    assert usage["budget"]["workspace_tokens_per_day"]["left"] == 700
    assert (await face.event("budget.changed", workspace_id="thrifty"))["limits"] == limits
    taken_back = await face.client.put(here, json={"workspace_usd_per_month": None})
    assert taken_back.json()["set"] == {}


@pytest.mark.parametrize(
    "body",
    [
        {"workspace_tokens_per_day": -1},
        {"workspace_tokens_per_day": 1.5},
        {"workspace_tokens_per_day": True},
        {"workspace_tokens_per_day": 10**13},
        {"user_usd_per_day": "much"},
        {"users_tokens_per_day": 5},
    ],
)
async def test_what_is_no_limit_is_refused_and_changes_nothing(face: Face, body: dict[str, Any]) -> None:
    here = f"{await face.workspace('thrifty')}/budget"
    await face.client.put(here, json={"workspace_tokens_per_day": 7})

    refused = await face.client.put(here, json=body)

    assert refused.status_code == 400
    assert next(iter(body)) in refused.json()["error"]["message"]
    assert (await face.client.get(here)).json()["set"] == {"workspace_tokens_per_day": 7}


async def test_a_workspaces_own_admin_sees_the_budget_but_does_not_make_it(face: Face) -> None:
    here = f"{await face.workspace('thrifty')}/budget"
    statuses = []
    for role in ("admin", "member"):
        async with face.as_token(await face.token("thrifty", role)) as client:
            statuses.append((await client.get(here)).status_code)
            statuses.append((await client.put(here, json={})).status_code)

    assert statuses == [200, 403, 403, 403]
    assert (await face.client.get("/v1/workspaces/nowhere/budget")).status_code == 404


async def test_prometheus_reads_limits_what_is_left_and_how_often_they_were_reached(face: Face) -> None:
    here = await face.workspace("metered")
    await face.client.put(f"{here}/budget", json={"workspace_tokens_per_day": 50})
    answer = await face.client.post(f"{here}/messages", json={"text": "hello there"})
    await face.event("budget.exceeded", workspace_id="metered")

    text = (await face.client.get("/metrics")).text
    assert answer.status_code == 402
    assert 'agent_runtime_budget_limit{period="day",what="tokens",workspace="metered"} 50\n' in text
    assert 'agent_runtime_budget_left{period="day",what="tokens",workspace="metered"} 50\n' in text
    assert 'agent_runtime_budget_exceeded_total{period="day",scope="workspace",what="tokens"} ' in text
