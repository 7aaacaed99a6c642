"""Messages over HTTP, through a real server on loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request

from connectors.http import HttpConnector, wait_seconds
from connectors.message import (
    Accepted,
    AgentRuntimeError,
    ConversationKey,
    Degraded,
    InboundMessage,
    OutboundMessage,
    Role,
    Source,
    StoreUnavailable,
    Usage,
)

URL = "/v1/workspaces/acme/messages"


@dataclass(frozen=True)
class Caller:
    role: Role
    workspace_id: str | None
    id: str


CALLERS = {
    "admin": Caller(Role.ADMIN, None, "token:admin"),
    "acme": Caller(Role.MEMBER, "acme", "token:acme"),
    "other": Caller(Role.MEMBER, "other", "token:other"),
}


async def authenticate(request: Request) -> Caller:
    bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
    if bearer == "away":
        raise StoreUnavailable("away")
    if bearer not in CALLERS:
        raise HTTPException(401, "a valid bearer token is needed", {"WWW-Authenticate": "Bearer"})
    return CALLERS[bearer]


class Runtime:
    """Stands in for gateway and worker: accepts, remembers answers, and answers when told to."""

    def __init__(self) -> None:
        self.connector: HttpConnector
        self.accepted: list[InboundMessage] = []
        self.arrived = asyncio.Event()
        self.answers: dict[tuple[str, str], OutboundMessage] = {}
        self.verdict: Callable[[InboundMessage], Awaitable[Accepted | None]] | None = None

    async def accept(self, message: InboundMessage) -> Accepted:
        if self.verdict is not None:
            verdict = await self.verdict(message)
            if verdict is not None:
                return verdict
        place = (message.external_id, message.message_id)
        if any((m.external_id, m.message_id) == place for m in self.accepted):
            return Accepted("duplicate", reply=self.answers.get(place))
        self.accepted.append(message)
        self.arrived.set()
        return Accepted("stored")

    async def next(self) -> InboundMessage:
        async with asyncio.timeout(20):
            await self.arrived.wait()
        self.arrived.clear()
        return self.accepted[-1]

    def reply(self, message: InboundMessage, text: str = "It is 30 days.", **fields: Any) -> OutboundMessage:
        key = ConversationKey(message.workspace_id or "", "http", message.external_id)
        return OutboundMessage(key, f"turn-{len(self.accepted)}", text, answers=(message.message_id,), **fields)

    async def say(self, message: InboundMessage, text: str = "It is 30 days.", **fields: Any) -> None:
        answer = self.reply(message, text, **fields)
        self.answers[message.external_id, message.message_id] = answer
        for part in self.connector.render(answer):
            await self.connector.send(answer, part)


@asynccontextmanager
async def served(runtime: Runtime, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    connector = HttpConnector(authenticate, **{"max_body_bytes": 10_000, "wait_seconds": 20.0, **options})
    runtime.connector = connector
    app = Starlette(routes=list(connector.routes()))
    config = uvicorn.Config(app, port=0, log_config=None, timeout_graceful_shutdown=1, lifespan="off")
    server = uvicorn.Server(config)
    running = asyncio.create_task(connector.run(runtime.accept))
    serving = asyncio.create_task(server.serve())
    try:
        async with asyncio.timeout(20):
            while not server.started:
                await asyncio.sleep(0.005)
        port = server.servers[0].sockets[0].getsockname()[1]
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", headers={"Authorization": "Bearer admin"}, timeout=20, trust_env=False
        ) as client:
            yield client
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        await connector.close()
        server.should_exit = True
        await serving


@pytest.fixture
def runtime() -> Runtime:
    return Runtime()


async def posted(client: httpx.AsyncClient, **options: Any) -> asyncio.Task[httpx.Response]:
    return asyncio.create_task(client.post(URL, **{"json": {"text": "how long?"}, **options}))


def events_of(body: str) -> list[tuple[str, Any]]:
    events = []
    for block in body.strip().split("\n\n"):
        if block.startswith("event: "):
            name, data = block.split("\n", 1)
            events.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return events


async def test_a_question_is_answered_with_all_that_is_documented(runtime: Runtime) -> None:
    """A message is accepted with its author and place, and the request returns the turn's answer."""
    async with served(runtime) as client:
        asking = await posted(
            client, json={"text": "how long?", "context": "C/1", "author": {"id": "ann", "name": "Ann"}, "direct": True}
        )
        message = await runtime.next()
        assert (message.workspace_id, message.external_id, message.text) == ("acme", "C/1", "how long?")
        assert (message.author.id, message.author.name, message.direct) == ("ann", "Ann", True)
        assert message.caller_role is Role.ADMIN
        await runtime.say(
            message,
            "30 days 🕐 \ud800",
            strategy="qmd",
            reason="workspace_retrieval_cue",
            sources=(Source("refunds.md", "Windows"),),
            degraded=(Degraded("summary", "timeout"),),
            usage=Usage(10, 4, 3, 0.25),
        )
        response = await asking
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert response.json() == {
        "turn_id": "turn-1",
        "text": "30 days 🕐 \ud800",
        "sources": [{"source": "refunds.md", "heading": "Windows"}],
        "strategy": "qmd",
        "reason": "workspace_retrieval_cue",
        "degraded": [{"block": "summary", "why": "timeout"}],
        "usage": {"prompt": 10, "cached": 4, "completion": 3, "cost_usd": 0.25},
    }


async def test_a_stream_tells_the_text_as_it_comes_and_ends_with_the_answer(runtime: Runtime) -> None:
    """Deltas arrive before the answer does; the last event is the same object that a plain request gets."""
    async with (
        served(runtime) as client,
        client.stream("POST", URL, json={"text": "hi"}, headers={"Accept": "text/event-stream"}) as response,
    ):
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        message = await runtime.next()
        key = ConversationKey("acme", "http", "default")
        chunks = response.aiter_text()
        await runtime.connector.stream(key, (message.message_id,), "It is\n\nevent: done")
        first = await anext(chunks)
        assert events_of(first) == [("delta", {"text": "It is\n\nevent: done"})]
        await runtime.connector.stream(key, (message.message_id,), " x")
        await runtime.connector.stream(key, (message.message_id,), "y")
        await runtime.say(message, "the end")
        events = events_of("".join([chunk async for chunk in chunks]))
    assert "".join(data["text"] for name, data in events if name == "delta") == " xy"
    assert events[-1][0] == "done"
    assert events[-1][1]["text"] == "the end"
    assert [name for name, _ in events].count("done") == 1


async def test_only_a_stream_watches_an_answer_grow(runtime: Runtime) -> None:
    """A plain request does not want pieces; a stream does, for its own answer and as long as it is there."""
    async with served(runtime) as client:
        key = ConversationKey("acme", "http", "default")
        plain = await posted(client)
        message = await runtime.next()
        assert not runtime.connector.is_watched(key, (message.message_id,))
        await runtime.connector.stream(key, (message.message_id,), "lost")
        await runtime.say(message)
        assert (await plain).json()["text"] == "It is 30 days."
        streamed = await posted(client, headers={"Accept": "text/event-stream"})
        message = await runtime.next()
        assert runtime.connector.is_watched(key, (message.message_id,))
        assert not runtime.connector.is_watched(ConversationKey("other", "http", "default"), (message.message_id,))
        await runtime.say(message)
        await streamed
        assert not runtime.connector.is_watched(key, (message.message_id,))


async def test_an_answer_reaches_only_who_asked(runtime: Runtime) -> None:
    """Answers of one conversation, workspace or message do not reach requests of another."""
    async with served(runtime) as client:
        first = await posted(client, json={"text": "one", "context": "a"})
        one = await runtime.next()
        second = await posted(client, json={"text": "two", "context": "b"})
        two = await runtime.next()
        strange = replace(runtime.reply(one), key=ConversationKey("other", "http", "a"))
        await runtime.connector.send(strange, runtime.connector.render(strange)[0])
        await runtime.say(two, "second")
        await runtime.say(one, "first")
        assert [(await first).json()["text"], (await second).json()["text"]] == ["first", "second"]


async def test_messages_collected_into_one_turn_all_get_its_answer(runtime: Runtime) -> None:
    """An answer to several messages is returned to each request."""
    async with served(runtime) as client:
        first = await posted(client)
        one = await runtime.next()
        second = await posted(client)
        two = await runtime.next()
        answer = replace(runtime.reply(one, "both"), answers=(one.message_id, two.message_id))
        await runtime.connector.send(answer, runtime.connector.render(answer)[0])
        responses = [(await first).json(), (await second).json()]
    assert responses[0] == responses[1]


async def test_repeating_a_key_returns_the_same_turn(runtime: Runtime) -> None:
    """A repeat waits for a turn that is under way, and has the stored answer of one that is done."""
    key = {"Idempotency-Key": "abc"}
    async with served(runtime) as client:
        first = await posted(client, headers=key)
        message = await runtime.next()
        repeats = [await posted(client, headers=key) for _ in range(2)]
        streamed = await posted(client, headers={**key, "Accept": "text/event-stream"})
        await runtime.say(message)
        answers = [(await task).json() for task in (first, *repeats)]
        later = (await client.post(URL, json={"text": "how long?"}, headers=key)).json()
        later_stream = await client.post(URL, json={"text": "x"}, headers={**key, "Accept": "text/event-stream"})
        assert events_of((await streamed).text)[-1] == ("done", later)
    assert answers == [later] * 3
    assert events_of(later_stream.text) == [("done", later)]
    assert len(runtime.accepted) == 1


async def test_another_callers_key_is_another_message(runtime: Runtime) -> None:
    """A caller cannot have another caller's answer by guessing the key."""
    async with served(runtime) as client:
        first = await posted(client, headers={"Idempotency-Key": "abc"})
        await runtime.say(await runtime.next(), "for the admin")
        await first
        second = await posted(client, headers={"Idempotency-Key": "abc", "Authorization": "Bearer acme"})
        await runtime.say(await runtime.next(), "for acme")
        assert (await second).json()["text"] == "for acme"


async def test_a_client_that_leaves_does_not_stop_the_turn(runtime: Runtime) -> None:
    """Who goes away while waiting leaves nothing behind, and has the answer by the key afterwards."""
    key = {"Idempotency-Key": "abc"}
    async with served(runtime) as client:
        for accept in ("application/json", "text/event-stream"):
            with pytest.raises(httpx.ReadTimeout):
                await client.post(
                    URL, json={"text": "hi", "context": accept}, headers={**key, "Accept": accept}, timeout=0.2
                )
            message = runtime.accepted[-1]
            await runtime.say(message, "late")
            response = await client.post(URL, json={"text": "hi", "context": accept}, headers=key)
            assert response.json()["text"] == "late"
        async with asyncio.timeout(20):
            key_of_stream = ConversationKey("acme", "http", message.external_id)
            while runtime.connector.is_watched(key_of_stream, (message.message_id,)):
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("bearer", "status", "code"),
    [
        ("Basic YTpi", 401, "unauthenticated"),
        ("Bearer wrong", 401, "unauthenticated"),
        ("Bearer other", 403, "forbidden"),
        ("Bearer away", 503, "store_unavailable"),
    ],
)
async def test_only_who_may_enter_is_heard(runtime: Runtime, bearer: str, status: int, code: str) -> None:
    """Without a token of this workspace nothing is accepted, and the error says which it is."""
    async with served(runtime) as client:
        response = await client.post(URL, json={"text": "hi"}, headers={"Authorization": bearer})
    assert response.status_code == status
    assert response.json()["error"]["code"] == code
    assert runtime.accepted == []
    assert ("www-authenticate" in response.headers) == (status == 401)


async def test_a_token_of_the_workspace_bounds_the_message(runtime: Runtime) -> None:
    """A message carries the role of its caller's token, and the token's id where nobody is named."""
    async with served(runtime) as client:
        asking = await posted(client, headers={"Authorization": "Bearer acme"})
        message = await runtime.next()
        await runtime.say(message)
        await asking
    assert (message.caller_role, message.author.id) == (Role.MEMBER, "token:acme")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("verdict", "status", "code"),
    [
        (Accepted("refused", "rate_limit", retry_after_seconds=9), 429, "rate_limit"),
        (Accepted("refused", "unknown_workspace"), 404, "unknown_workspace"),
        (Accepted("refused", "budget_exceeded"), 402, "budget_exceeded"),
        (StoreUnavailable("away"), 503, "store_unavailable"),
        (AgentRuntimeError("inside"), 500, "failed"),
    ],
)
async def test_what_is_not_accepted_is_told_by_its_status(
    runtime: Runtime, verdict: Accepted | AgentRuntimeError, status: int, code: str, stream: bool
) -> None:
    """A refusal is a JSON error with its own status, for a stream as well, and nobody waits on."""

    async def refuse(_message: InboundMessage) -> Accepted:
        if isinstance(verdict, AgentRuntimeError):
            raise verdict
        return verdict

    runtime.verdict = refuse
    async with served(runtime) as client:
        headers = {"Accept": "text/event-stream"} if stream else {}
        response = await client.post(URL, json={"text": "hi"}, headers=headers)
    assert response.status_code == status
    assert response.json()["error"]["code"] == code
    assert ("retry-after" in response.headers) == (status in (429, 503))
    assert "inside" not in response.text


@pytest.mark.parametrize(("code", "status"), [("context_too_large", 422), ("internal", 500)])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_turn_that_cannot_be_is_told_as_an_error(
    runtime: Runtime, stream: bool, code: str, status: int
) -> None:
    """An apology with a known error code is that error; any other apology is a degraded answer."""
    async with served(runtime) as client:
        asking = await posted(client, headers={"Accept": "text/event-stream"} if stream else {})
        await runtime.say(await runtime.next(), "so sorry", kind="apology", error_code=code)
        response = await asking
        if stream:
            assert events_of(response.text) == [("error", {"error": {"code": code, "message": "so sorry"}})]
        else:
            assert (response.status_code, response.json()["error"]["code"]) == (status, code)
        asking = await posted(client)
        await runtime.say(await runtime.next(), "sorry", kind="apology", error_code="model_timeout")
        assert (await asking).json()["text"] == "sorry"


async def test_a_body_at_the_limit_passes_and_one_byte_more_does_not(runtime: Runtime) -> None:
    """HTTP_MAX_BODY_BYTES itself is allowed; what is above is 413, whether its length was told or not."""
    frame = len(b'{"text": ""}')

    async def chunks(size: int) -> AsyncIterator[bytes]:
        yield b'{"text": "'
        for _ in range(size // 1000):
            yield b"x" * 1000
        yield b'"}'

    async with served(runtime) as client:
        asking = await posted(client, json=None, content=b'{"text": "' + b"x" * (10_000 - frame) + b'"}')
        await runtime.say(await runtime.next())
        assert (await asking).status_code == 200
        told = await client.post(URL, content=b'{"text": "' + b"x" * (10_001 - frame) + b'"}')
        untold = await client.post(URL, content=chunks(20_000))
    for response in (told, untold):
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "too_large"
    assert len(runtime.accepted) == 1


async def test_a_body_without_end_is_cut_off(runtime: Runtime) -> None:
    """A body that never ends is read up to a bound, and refused."""
    async with served(runtime) as client:
        assert client.base_url.port is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
        writer.write(
            b"POST /v1/workspaces/acme/messages HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer admin\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )

        async def send_for_ever() -> None:
            with suppress(ConnectionError):
                while True:
                    writer.write(b"186a0\r\n" + b"x" * 100_000 + b"\r\n")
                    await writer.drain()

        sending = asyncio.create_task(send_for_ever())
        async with asyncio.timeout(60):
            answer = await reader.read(200)
        sending.cancel()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 413")


async def test_a_large_body_is_not_read_to_its_end(runtime: Runtime) -> None:
    """A body that says that it is too large is refused before it was sent."""
    async with served(runtime) as client:
        port = client.base_url.port
        assert port is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"POST /v1/workspaces/acme/messages HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer admin\r\n"
            b"Content-Length: 5000000000\r\n\r\n{"
        )
        async with asyncio.timeout(20):
            answer = await reader.read(200)
        writer.close()
    assert answer.startswith(b"HTTP/1.1 413")


async def test_waiting_is_bounded_and_the_answer_is_kept(runtime: Runtime) -> None:
    """A request that waits in vain ends with 504, says how to have the answer, and that way works."""
    key = {"Idempotency-Key": "abc"}
    async with served(runtime, wait_seconds=0.05) as client:
        plain = await client.post(URL, json={"text": "hi"}, headers=key)
        streamed = await client.post(URL, json={"text": "hi"}, headers={**key, "Accept": "text/event-stream"})
        await runtime.say(await runtime.next(), "late")
        later = await client.post(URL, json={"text": "hi"}, headers=key)
    assert plain.status_code == 504
    assert plain.json()["error"]["code"] == "answer_pending"
    assert "Idempotency-Key" in plain.json()["error"]["message"]
    assert events_of(streamed.text) == [("error", plain.json())]
    assert later.json()["text"] == "late"


async def test_a_quiet_stream_is_kept_open(runtime: Runtime) -> None:
    """While nothing comes a stream carries comments, so that nobody on the way closes it."""
    async with (
        served(runtime, keep_alive_seconds=0.01) as client,
        client.stream("POST", URL, json={"text": "hi"}, headers={"Accept": "text/event-stream"}) as response,
    ):
        message = await runtime.next()
        chunks = response.aiter_text()
        assert (await anext(chunks)).startswith(": ")
        await runtime.say(message)
        assert [name for name, _ in events_of("".join([chunk async for chunk in chunks]))] == ["done"]


async def test_stopping_lets_everybody_go(runtime: Runtime) -> None:
    """Who waits when the runtime stops is told at once that the message is kept; who comes then is refused."""
    async with served(runtime) as client:
        plain = await posted(client)
        await runtime.next()
        await runtime.connector.close()
        response = await plain
        assert (response.status_code, response.json()["error"]["code"]) == (503, "stopping")


async def test_before_it_runs_nothing_is_accepted() -> None:
    """A request that comes before the runtime is ready is 503 and may be repeated."""
    connector = HttpConnector(authenticate, max_body_bytes=100, wait_seconds=1)
    transport = httpx.ASGITransport(Starlette(routes=list(connector.routes())))
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        response = await client.post(URL, json={"text": "hi"}, headers={"Authorization": "Bearer admin"})
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")


def test_the_wait_covers_all_attempts_of_all_models(settings: Callable[..., Any]) -> None:
    """A request waits as long as the model calls of a turn may take, and a margin."""
    made = settings(llm_timeout_seconds=10, llm_max_attempts=2, llm_fallback_models="a,b")
    assert 10 * 2 * 3 < wait_seconds(made) < 2 * 10 * 2 * 3
