"""The HTTP interface without a runtime: bodies, errors, documents that arrive together, events."""

from __future__ import annotations

import asyncio
import errno
import importlib
import json
import pkgutil
from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message

import connectors
import grounding
import promptpolicy
import runtime
from connectors.message import AgentRuntimeError, InvalidWorkspaceId, Scope, StoreUnavailable
from grounding.documents import DocumentMissing, DocumentRefused
from grounding.prompt import ContextTooLarge
from grounding.retrieval import IndexUnavailable
from promptpolicy.directives import NoSuchVersion
from promptpolicy.policy import InvalidDirective
from runtime.access import TooManyAttempts, UnknownCode
from runtime.http.doctor import files_check
from runtime.http.errors import ApiError, Body, as_api_error, body_lines, error_response, read_body, read_json
from runtime.http.routes.documents import Indexing
from runtime.http.sse import Emit, EventResponse
from runtime.turns.manifest import UnknownTurn
from runtime.workspaces import UnknownWorkspace, WorkspaceInSettings


class Wanted(Body):
    text: str
    number: int = 1


def request(pieces: list[bytes]) -> Request:
    """A request whose body comes in *pieces*."""
    waiting = list(pieces)

    async def receive() -> Message:
        body = waiting.pop(0) if waiting else b""
        return {"type": "http.request", "body": body, "more_body": bool(waiting)}

    return Request({"type": "http", "method": "POST", "headers": []}, receive)


def cut(body: bytes, at: list[int]) -> list[bytes]:
    """*body* in pieces that end at *at*."""
    places = sorted({0, len(body), *(place % (len(body) + 1) for place in at)})
    return [body[start:end] for start, end in pairwise(places)]


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=6), st.integers(0, 200))
async def test_a_body_is_whole_or_too_large(body: bytes, at: list[int], limit: int) -> None:
    """Within the limit every byte arrives; beyond it the answer is 413 and names the setting."""
    if len(body) <= limit:
        assert await read_body(request(cut(body, at)), limit, "LIMIT") == body
        return
    with pytest.raises(ApiError) as raised:
        await read_body(request(cut(body, at)), limit, "LIMIT")
    assert raised.value.status == 413
    assert "AGENT_RUNTIME_LIMIT" in raised.value.message


@given(st.lists(st.binary(max_size=20)), st.lists(st.integers(0, 400), max_size=9))
async def test_lines_do_not_depend_on_the_pieces(parts: list[bytes], at: list[int]) -> None:
    """The lines are those of the whole body, blank ones left out."""
    body = b"\n".join(parts)
    got = [line async for line in body_lines(request(cut(body, at)), 1000)]
    assert got == [line for line in body.split(b"\n") if line.strip()]


async def test_a_line_without_end_is_refused_early() -> None:
    """Not more than the limit and a piece is ever held."""
    endless = request([b"x" * 100] * 50)
    with pytest.raises(ApiError) as raised:
        async for _ in body_lines(endless, 250):
            pass
    assert (raised.value.status, raised.value.close) == (413, True)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", '"text"'),
        (b"[]", "object"),
        (b"{", "JSON"),
        (b"\xff", "JSON"),
        (b'{"text": "\\ud800"}', "JSON"),
        (b'{"text": 1}', '"text"'),
        (b'{"text": "a", "nubmer": 2}', '"nubmer"'),
        (b"[" * 100_000, "JSON"),
        (b'{"number": ' + b"9" * 10_000 + b', "text": ""}', "number"),
    ],
)
async def test_wrong_bodies_are_400_and_name_the_field(body: bytes, told: str) -> None:
    """The text names what is wrong and never repeats a value."""
    with pytest.raises(ApiError) as raised:
        await read_json(request([body]), Wanted, 1_000_000)
    assert raised.value.status == 400
    assert told in raised.value.message
    assert len(raised.value.message) < 300


async def test_a_byte_order_mark_is_no_mistake() -> None:
    """Editors write one."""
    assert await read_json(request([b'\xef\xbb\xbf {"text": "a"}']), Wanted, 100) == Wanted(text="a")


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ApiError(418, "teapot", "short and stout"), 418, "teapot"),
        (UnknownWorkspace("acme"), 404, "unknown_workspace"),
        (InvalidWorkspaceId("bad"), 404, "unknown_workspace"),
        (WorkspaceInSettings("fixed"), 409, "in_settings"),
        (UnknownTurn("t1"), 404, "unknown_turn"),
        (DocumentMissing("gone"), 404, "not_found"),
        (DocumentRefused("bad", why="path"), 400, "document_path"),
        (DocumentRefused("bad", why="size"), 413, "too_large"),
        (InvalidDirective("bad"), 400, "invalid_directive"),
        (NoSuchVersion("none"), 404, "not_found"),
        (ContextTooLarge("identity", 9000, 8192), 422, "context_too_large"),
        (UnknownCode("none"), 404, "unknown_code"),
        (TooManyAttempts("wait"), 429, "too_many_attempts"),
        (IndexUnavailable("away"), 503, "index_unavailable"),
        (StoreUnavailable("redis://user:hunter2@host"), 503, "store_unavailable"),
        (HTTPException(404), 404, "not_found"),
        (HTTPException(415), 415, "unsupported_media_type"),
        (OSError(errno.ENOSPC, "No space left on device"), 507, "disk_full"),
        (OSError(errno.EIO, "hunter2"), 500, "internal"),
        (RuntimeError("hunter2"), 500, "internal"),
    ],
)
def test_the_table(error: Exception, status: int, code: str) -> None:
    """Status and word of each error; secrets in the texts of failures stay inside."""
    response = error_response(error)
    body = json.loads(bytes(response.body))
    assert (response.status_code, body["error"]["code"]) == (status, code)
    assert body["error"]["message"]
    assert "hunter2" not in str(body)
    if code in ("store_unavailable", "index_unavailable"):
        assert response.headers["Retry-After"] == "1"


def ours() -> Iterator[type[AgentRuntimeError]]:
    """Every error class of the project."""
    for room in (connectors, grounding, promptpolicy, runtime):
        for module in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    stack = [AgentRuntimeError]
    while stack:
        kind = stack.pop()
        yield kind
        stack += kind.__subclasses__()


def test_every_error_of_ours_is_answered_without_its_inside() -> None:
    """Whatever class comes later: a status of 4xx or 5xx, 503 where a repeat may help, and a text for people."""
    kinds = list(ours())
    assert len(kinds) > 20
    for kind in kinds:
        error = kind.__new__(kind)  # constructors differ; the class alone decides
        error.args = ("inside",)
        if kind is DocumentRefused:
            continue  # decided by its reason, see the table
        known = as_api_error(error)
        assert 400 <= known.status < 600, kind
        assert known.code, kind
        assert known.message, kind


SCOPE = Scope("acme")


class Slow:
    """An index whose runs take until they are let go; ``runs`` are the paths of each."""

    def __init__(self) -> None:
        self.runs: list[set[str]] = []
        self.go = asyncio.Event()
        self.error: IndexUnavailable | None = None

    async def index(self, scope: Scope, paths: Collection[str] | None = None) -> None:
        assert scope == SCOPE
        self.runs.append(set(paths or ()))
        gate = self.go
        await gate.wait()
        if self.error is not None:
            raise self.error


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_what_arrives_during_a_run_becomes_one_further_run() -> None:
    """A hundred documents are two runs, and each caller waits for the run that has its document."""
    index = Slow()
    indexing = Indexing(index)
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(indexing.index(SCOPE, ["0.md"]))
        await settled()
        others = [tasks.create_task(indexing.index(SCOPE, [f"{number}.md"])) for number in range(1, 100)]
        await settled()
        assert index.runs == [{"0.md"}]
        assert not first.done()
        assert not any(task.done() for task in others)
        index.go.set()
    assert index.runs == [{"0.md"}, {f"{number}.md" for number in range(1, 100)}]


async def test_a_failed_run_fails_everybody_in_it_and_nobody_after() -> None:
    """The error reaches each caller of that run; the next run starts clean."""
    index = Slow()
    indexing = Indexing(index)
    index.error = IndexUnavailable("away")
    index.go.set()
    failed = await asyncio.gather(*[indexing.index(SCOPE, [name]) for name in "ab"], return_exceptions=True)
    assert [type(one) for one in failed] == [IndexUnavailable, IndexUnavailable]
    index.error = None
    await indexing.index(SCOPE, ["c"])
    assert index.runs[-1] == {"c"}


async def test_a_caller_that_leaves_takes_nobodys_document_along() -> None:
    """Where the caller that runs the index is cancelled, the next one runs it for all."""
    index = Slow()
    indexing = Indexing(index)
    running = asyncio.ensure_future(indexing.index(SCOPE, ["now.md"]))
    await settled()
    leaving = asyncio.ensure_future(indexing.index(SCOPE, ["left.md"]))
    await settled()
    staying = asyncio.ensure_future(indexing.index(SCOPE, ["stays.md"]))
    await settled()
    first, index.go = index.go, asyncio.Event()
    first.set()
    await running
    await settled()
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    await settled()
    assert not staying.done()
    index.go.set()
    await staying
    assert index.runs == [{"now.md"}, {"left.md", "stays.md"}, {"left.md", "stays.md"}]


def test_the_doctor_says_that_files_cannot_be_followed_and_which_limits_to_raise() -> None:
    check = files_check("files cannot be followed: OS file watch limit reached.")
    assert (check.ok, "watch limit" in check.detail, "max_user_watches" in check.advice) == (False, True, True)
    assert files_check("").ok


async def test_who_has_gone_is_sent_no_more_though_there_is_plenty_to_send() -> None:
    gone = asyncio.Event()
    sent: list[Any] = []

    async def produce(emit: Emit) -> None:
        for number in range(1000):
            await emit("one", {"number": number})

    async def receive() -> Any:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)
        if len(sent) == 3:  # the beginning, and two events
            gone.set()

    async with asyncio.timeout(5):
        await EventResponse(produce, asyncio.Event())({"type": "http"}, receive, send)
    assert 3 <= len(sent) < 20
