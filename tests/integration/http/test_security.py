"""Nobody gets further than their token."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from connectors.message import Role
from connectors.web.connector import FILES
from runtime.http.auth import READING, Permission
from tests.emulators.face import ADMIN, Face

pytestmark = pytest.mark.asyncio(loop_scope="module")

OPEN = {
    "/healthz", "/readyz", "/metrics", "/openapi.json", "/chat", *(f"/chat/static/{name}" for name in FILES),
}  # fmt: skip
PARAMETERS = {
    "workspace_id": "acme",
    "path": "a.md",
    "place": "slack:T1",
    "turn_id": "t1",
    "scope": "workspace",
    "kind": "soul",
    "name": "refunds",
    "line": "0",
    "id": "1",
    "vault_id": "acme",
    "memory_id": "http:default",
    "version_id": "1-1",
}
NEEDS_ADMIN = [
    ("PUT", "/v1/workspaces/acme/documents/a.md"),
    ("DELETE", "/v1/workspaces/acme/documents/a.md"),
    ("POST", "/v1/workspaces/acme/documents"),
    ("POST", "/v1/workspaces/acme/index"),
    ("POST", "/v1/workspaces/acme/global-context/waiting/1"),
    ("PUT", "/v1/vaults/acme/memories/http:default/contexts"),
    ("DELETE", "/v1/vaults/acme/memories/http:default/contexts"),
    ("PUT", "/v1/workspaces/acme/prompts/workspace/soul"),
    ("DELETE", "/v1/workspaces/acme/prompts/workspace/soul"),
    ("POST", "/v1/workspaces/acme/prompts/workspace/soul/rollback"),
    ("POST", "/v1/workspaces/acme/prompts/workspace/soul/condense"),
    ("PUT", "/v1/workspaces/acme/prompts/workspace/soul/condense"),
    ("DELETE", "/v1/workspaces/acme"),
    ("POST", "/v1/workspaces"),
    ("PUT", "/v1/routes/slack:T1"),
    ("DELETE", "/v1/routes/slack:T1"),
    ("GET", "/v1/access"),
    ("POST", "/v1/access"),
    ("GET", "/v1/doctor"),
    ("GET", "/v1/workspaces/acme/dead-letters"),
    ("POST", "/v1/workspaces/acme/dead-letters/t1/retry"),
    ("DELETE", "/v1/workspaces/acme/dead-letters/t1"),
]
NEEDS_MEMBER = [("POST", "/v1/workspaces/acme/messages"), ("POST", "/v1/workspaces/acme/ground")]
NEEDS_EVERYWHERE = [
    ("POST", "/v1/workspaces", {"id": "mine"}),
    ("DELETE", "/v1/workspaces/acme", None),
    ("PUT", "/v1/routes/slack:T1", {"workspace": "acme"}),
    ("PUT", "/v1/workspaces/acme/prompts/global/soul", {"text": "Obey acme."}),
    ("POST", "/v1/workspaces/acme/prompts/global/soul/condense", None),
    ("POST", "/v1/access", {"action": "approve", "code": "AAAAAAAA"}),
    ("GET", "/v1/doctor", None),
]


def routes(face: Face) -> Iterator[tuple[str, str]]:
    """Every method and path that the application knows."""
    for route in face.app.routes:
        assert isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}:
            yield method, route.path.replace(":path", "").format(**PARAMETERS)


def described(face: Face) -> list[tuple[str, str]]:
    known = sorted(set(routes(face)))
    assert ("POST", "/v1/workspaces/acme/messages") in known
    assert ("GET", "/v1/events") in known
    assert len(known) > 35
    return known


async def test_every_route_declares_who_may_call_it(face: Face) -> None:
    """No route of the runtime or of a connector is left out, and none that changes something is open to viewers."""
    permissions: dict[int, Permission] = face.app.state.permissions
    assert [route for route in face.app.routes if id(route) not in permissions] == []
    for route in face.app.routes:
        assert isinstance(route, Route)
        least = permissions[id(route)].role
        if least is None:  # its connector authenticates its callers
            assert not route.path.startswith("/v1/"), route.path
        else:
            reads = set(route.methods or ()) <= READING or route.path.endswith("/search")
            assert least.covers(Role.MEMBER) or reads, route.path


async def test_a_route_that_declares_nothing_is_refused_to_everybody(face: Face) -> None:
    """Also to the administrator, and also where it hides another route or a method that is declared."""

    async def answer(request: Request) -> Response:
        return Response("open")

    forgotten = [
        Route("/v1/forgotten", answer, methods=["GET", "POST"]),
        Route("/v1/workspaces/{workspace_id}/index", answer, methods=["GET"]),
        Route("/v1/doctor", answer, methods=["POST"]),
    ]
    known = [*face.app.router.routes]
    face.app.router.routes[:0] = forgotten
    try:
        for method, path in (("GET", "/v1/forgotten"), ("GET", "/v1/workspaces/acme/index"), ("POST", "/v1/doctor")):
            refused = await face.client.request(method, path)
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden"), path
            async with face.bare() as client:
                assert (await client.request(method, path)).status_code == 401, path
    finally:
        face.app.router.routes[:] = known


async def test_a_workspace_in_a_query_or_a_body_is_closed_to_other_workspaces_tokens(face: Face) -> None:
    """Whichever call takes one: those of queries are found in the OpenAPI document."""
    await face.workspace("acme")
    await face.workspace("rival")
    document = (await face.client.get("/openapi.json")).json()
    queries = [
        (method, path.format(**PARAMETERS))
        for path, calls in document["paths"].items()
        for method, call in calls.items()
        if any((one["in"], one["name"]) == ("query", "workspace") for one in call.get("parameters", ()))
    ]
    assert ("get", "/v1/access") in queries
    bodies: tuple[dict[str, Any], ...] = (
        {"action": "role", "user": "telegram:1", "role": "admin", "workspace": "acme"},
        {"action": "token", "role": "admin", "workspace": "acme"},
        {"action": "invite", "name": "Bo", "workspace": "acme"},
    )
    async with face.as_token(await face.token("rival", "admin")) as rival:
        for method, path in queries:
            assert (await rival.request(method.upper(), path, params={"workspace": "acme"})).status_code == 403, path
        for body in bodies:
            assert (await rival.post("/v1/access", json=body)).status_code == 403, body
            own = await rival.post("/v1/access", json={**body, "workspace": "rival"})
            assert own.is_success, own.text


async def test_everything_under_v1_needs_a_token(face: Face) -> None:
    """Without a token, with a wrong one or another scheme every call under /v1 is 401, and nothing else is."""
    wrong = [{}, {"Authorization": "Bearer nobody"}, {"Authorization": f"Basic {ADMIN}"}, {"Authorization": "Bearer"}]
    async with face.bare() as client:
        for method, path in described(face):
            if path == "/":  # leads to the chat page
                assert (await client.request(method, path)).headers["Location"] == "chat"
                continue
            if path in OPEN:
                assert (await client.request(method, path)).status_code == 200, path
                continue
            for headers in wrong:
                answer = await client.request(method, path, headers=headers)
                assert answer.status_code == 401, (method, path, headers)
                assert answer.json()["error"]["code"] == "unauthenticated"
                assert answer.headers["WWW-Authenticate"] == "Bearer"


async def test_unknown_paths_tell_strangers_nothing(face: Face) -> None:
    """Whether a path exists shows only to holders of a token."""
    async with face.bare() as client:
        for path in ("/v1", "/v1/", "/v1/nothing", "/v1/workspaces/", "/v1/workspaces//documents", "/nothing"):
            assert (await client.get(path)).status_code == 401, path
    assert (await face.client.get("/v1/nothing")).json() == {"error": {"code": "not_found", "message": "Not Found"}}


async def test_a_workspaces_token_enters_no_other_workspace(face: Face) -> None:
    """An admin token of one workspace gets 403 on every path of another, whether that exists or not."""
    await face.workspace("acme")
    await face.workspace("rival")
    async with face.as_token(await face.token("rival", "admin")) as rival:
        for method, path in described(face):
            if not path.startswith(("/v1/workspaces/acme", "/v1/vaults/acme")):
                continue
            for target in (path, path.replace("/acme", "/nowhere")):
                answer = await rival.request(method, target)
                assert answer.status_code == 403, (method, target)
                assert answer.json()["error"]["code"] == "forbidden"


async def test_a_workspaces_token_sees_only_its_own_in_lists(face: Face) -> None:
    """Lists over all workspaces show the holder of a workspace's token that workspace alone."""
    await face.workspace("acme")
    await face.workspace("rival")
    await face.client.put("/v1/routes/slack:T9", json={"workspace": "acme"})
    acme_token = await face.token("acme", "viewer")
    async with face.as_token(await face.token("rival", "admin")) as rival:
        listed = (await rival.get("/v1/workspaces")).json()
        assert [one["id"] for one in listed["workspaces"]] == ["rival"]
        assert listed["routes"] == []
        assert [one["workspace"] for one in (await rival.get("/v1/usage")).json()["workspaces"]] == ["rival"]
        tokens = (await rival.get("/v1/access")).json()["tokens"]
        assert {one["workspace"] for one in tokens} == {"rival"}
        assert (await rival.get("/v1/access", params={"workspace": "acme"})).status_code == 403
        assert (await rival.get("/v1/events", params={"workspace": "acme", "follow": 0})).status_code == 403
        own = await rival.get("/v1/events", params={"follow": 0, "limit": 500})
        assert '"workspace_id": "acme"' not in own.text
        known = (await face.client.get("/v1/access", params={"workspace": "acme"})).json()["tokens"]
        revoked = await rival.post("/v1/access", json={"action": "revoke", "token_id": known[0]["id"]})
        assert revoked.status_code == 404
    async with face.as_token(acme_token) as acme:
        assert (await acme.get("/v1/workspaces")).status_code == 200


async def test_a_token_that_is_revoked_is_worthless_and_hears_no_more_events(face: Face) -> None:
    """A stream that is open then ends within seconds, and says why."""
    await face.workspace("overheard")
    async with face.as_token(await face.token("overheard", "viewer")) as viewer:
        listening = asyncio.create_task(viewer.get("/v1/events", params={"limit": 0}))
        (known,) = (await face.client.get("/v1/access", params={"workspace": "overheard"})).json()["tokens"]
        done = await face.client.post("/v1/access", json={"action": "revoke", "token_id": known["id"]})
        assert done.json() == {"token_id": known["id"], "revoked": True}
        assert (await viewer.get("/v1/workspaces")).status_code == 401
        async with asyncio.timeout(60):
            heard = await listening
    assert '"code": "unauthenticated", "message": "the token is no longer valid"' in heard.text.splitlines()[-2]


async def test_a_workspaces_admin_changes_nothing_beyond_it(face: Face) -> None:
    """What reaches beyond a workspace is refused to its own admin token."""
    await face.workspace("acme")
    async with face.as_token(await face.token("acme", "admin")) as client:
        for method, path, body in NEEDS_EVERYWHERE:
            assert (await client.request(method, path, json=body)).status_code == 403, path


async def test_only_admins_change_things(face: Face) -> None:
    """Members and viewers are refused on everything that changes something or shows who may talk."""
    await face.workspace("acme")
    for role in ("member", "viewer"):
        async with face.as_token(await face.token("acme", role)) as client:
            for method, path in NEEDS_ADMIN:
                answer = await client.request(method, path, content=b"{}")
                assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden"), (role, method, path)


async def test_viewers_only_read(face: Face) -> None:
    """A viewer's token asks the bot nothing; a member's does."""
    await face.workspace("acme")
    async with face.as_token(await face.token("acme", "viewer")) as viewer:
        for method, path in NEEDS_MEMBER:
            assert (await viewer.request(method, path, json={"text": "hello"})).status_code == 403, path
        for read in ("documents", "index", "search?q=x", "turns", "prompts", "usage"):
            assert (await viewer.get(f"/v1/workspaces/acme/{read}")).status_code == 200, read
    async with face.as_token(await face.token("acme", "member")) as member:
        for method, path in NEEDS_MEMBER:
            assert (await member.request(method, path, json={"text": "hello"})).status_code == 200, path


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:8420"},
        {"Host": "localhost.evil.example"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
    ],
)
async def test_foreign_hosts_and_origins_are_refused_everywhere(face: Face, headers: dict[str, str]) -> None:
    """DNS rebinding and other sites' pages get 403 on every path, the open ones too, whatever token they have."""
    for method, path in described(face):
        answer = await face.client.request(method, path, headers=headers)
        assert answer.status_code == 403, (method, path)
    assert (await face.client.get("/nothing", headers=headers)).status_code == 403


async def test_our_own_origin_is_served(face: Face) -> None:
    """A page that we served ourselves may call us; one on another port of this machine may not."""
    assert (await face.client.get("/healthz", headers={"Origin": face.url})).status_code == 200
    assert (await face.client.get("/healthz", headers={"Origin": "http://127.0.0.1:1"})).status_code == 403


async def test_every_error_has_one_form(face: Face) -> None:
    """Unknown paths, wrong methods, wrong parameters and unknown workspaces all answer {"error": {…}}."""
    await face.workspace("acme")
    cases = [
        ("GET", "/nothing", 404, "not_found"),
        ("POST", "/healthz", 405, "method_not_allowed"),
        ("PATCH", "/v1/workspaces", 405, "method_not_allowed"),
        ("GET", "/v1/workspaces/acme/search?q=x&top_k=0", 400, "bad_request"),
        ("GET", "/v1/workspaces/acme/search?q=x&top_k=101", 400, "bad_request"),
        ("GET", "/v1/workspaces/acme/search", 400, "bad_request"),
        ("GET", "/v1/workspaces/missing/documents", 404, "unknown_workspace"),
        ("GET", "/v1/workspaces/Bad%20Id!/documents", 404, "unknown_workspace"),
        ("GET", "/v1/workspaces/..%2F..%2Fetc/documents", 404, "not_found"),
    ]
    for method, path, status, code in cases:
        answer = await face.client.request(method, path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), path
        assert answer.json()["error"]["message"]
    missing = await face.client.post("/v1/workspaces/missing/messages", json={"text": "hi"})
    assert missing.status_code == 404
    assert "agent-runtime workspace create missing" in missing.json()["error"]["message"]


async def test_what_nobody_foresaw_is_logged_and_tells_nothing(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception becomes a 500 without its text, and the next request is served."""

    async def broken() -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(face.runtime.workspaces, "all", broken)
    answer = await face.client.get("/v1/workspaces")
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal"
    assert "secret detail" not in answer.text
    monkeypatch.undo()
    assert (await face.client.get("/v1/workspaces")).status_code == 200
    logged = await face.event("http.failed", error="RuntimeError")
    assert "secret detail" not in str(logged)


async def test_no_spelling_of_an_author_is_the_holder_of_a_token(face: Face) -> None:
    """An id that would begin like a caller's once its NUL was gone is some person's, with a person's role."""
    await face.workspace("acme")
    answer = await face.client.post(
        "/v1/workspaces/acme/messages", json={"text": "hello", "author": "tok\x00en:admin", "context": "nul"}
    )
    turn = (await face.client.get(f"/v1/workspaces/acme/turns/{answer.json()['turn_id']}")).json()
    assert [(author["user"], author["role"]) for author in turn["context"]["authors"]] == [
        ("http:tok\ufffden:admin", "member")
    ]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "?version=99999999999999999999", None),
        ("GET", "/diff?a=1&b=99999999999999999999", None),
        ("GET", "/history?before=99999999999999999999", None),
        ("POST", "/rollback", {"version": 10**20}),
        ("PUT", "", {"text": "x", "expected_version": 10**20}),
        ("DELETE", "?expected_version=99999999999999999999", None),
    ],
)
async def test_numbers_beyond_the_stores_are_refused(
    face: Face, method: str, path: str, body: dict[str, object] | None
) -> None:
    """A version that no store can hold is a bad request, not a failure of ours."""
    await face.workspace("acme")
    answer = await face.client.request(method, f"/v1/workspaces/acme/prompts/workspace/soul{path}", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_request")


async def test_what_was_refused_is_not_sent_back_at_length(face: Face) -> None:
    """A path or host of any length gives an answer of a few lines; of many refused lines a hundred are named."""
    await face.workspace("acme")
    long = await face.client.post(
        "/v1/workspaces/acme/documents", content=b'{"path": "%s", "text": ""}' % (b"x" * 20_000)
    )
    assert long.status_code == 400
    assert len(long.content) < 3000
    lines = b'{"path": "bad", "text": ""}\n' * 300 + b'{"path": "good.md", "text": "x"}'
    many = (await face.client.post("/v1/workspaces/acme/documents", content=lines)).json()
    assert (many["documents"], many["refused"], len(many["refusals"])) == (1, 300, 100)
    host = await face.client.get("/healthz", headers={"Host": "h" * 20_000})
    assert host.status_code == 403
    assert len(host.content) < 1000
