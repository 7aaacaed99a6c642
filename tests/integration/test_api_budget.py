"""A workspace's budget over HTTP, for Prometheus, and after the workspace is gone."""

from __future__ import annotations

from typing import Any

import pytest

from connectors.message import Scope
from runtime.billing import TERMS
from runtime.billing.budgets import Cost
from tests.emulators.face import Face

pytestmark = pytest.mark.asyncio(loop_scope="module")


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
    here = await face.workspace("measured")
    await face.client.put(f"{here}/budget", json={"workspace_tokens_per_day": 50})
    answer = await face.client.post(f"{here}/messages", json={"text": "hello there"})
    await face.event("budget.exceeded", workspace_id="measured")

    text = (await face.client.get("/metrics")).text
    assert answer.status_code == 402
    assert 'agent_runtime_budget_limit{period="day",what="tokens",workspace="measured"} 50\n' in text
    assert 'agent_runtime_budget_left{period="day",what="tokens",workspace="measured"} 50\n' in text
    assert 'agent_runtime_budget_exceeded_total{period="day",scope="workspace",what="tokens"} ' in text


async def test_nothing_of_a_budget_outlives_its_workspace(face: Face) -> None:
    here, scope = await face.workspace("gone"), Scope("gone")
    await face.client.put(f"{here}/budget", json={"workspace_tokens_per_day": 50})
    await face.runtime.budgets.reserve(scope, "t1", Cost(10), "http:lena")
    await face.runtime.budgets.settle(scope, "t2", Cost(10), "http:lena")
    redis = face.runtime.store.client
    before = [key async for key in redis.scan_iter(match="ar:budgets:{w.gone}:*")]

    await face.client.delete(here)

    assert len(before) == 5
    assert [key async for key in redis.scan_iter(match="ar:budgets:{w.gone}:*")] == []


async def test_the_budget_is_described(face: Face) -> None:
    document = (await face.client.get("/openapi.json")).json()

    path = document["paths"]["/v1/workspaces/{workspace_id}/budget"]
    assert path.keys() == {"get", "put"}
    assert "user_usd_per_month" in str(path["put"]["requestBody"])
