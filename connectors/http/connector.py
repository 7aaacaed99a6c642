"""The HTTP connector: ``POST /v1/workspaces/{w}/messages``."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from config.settings import Settings
from connectors.connector import Accept, Capabilities, ConnectionState, Health
from connectors.http import convert
from connectors.http.convert import OPENAPI
from connectors.http_requests import (
    HANDLED_ERRORS,
    STREAM_HEADERS,
    RequestError,
    error_response,
    json_response,
    read_body,
    refusal,
    sse_event,
)
from connectors.message import (
    Accepted,
    ConversationKey,
    InboundMessage,
    OutboundMessage,
    OutboundPart,
    Receipt,
    Role,
)

# ---- waiting ----
#
# HTTP requests that wait for an answer, and their lookup when the answer arrives.


Question = tuple[str, str, str]
"""Workspace, external id, message id."""


def question(key: ConversationKey, message_id: str) -> Question:
    return (key.workspace_id, key.external_id, message_id)


class Closed(Exception):
    """The process stops, so this request will get no answer."""


class Waiter:
    """A request that waits for an answer: it receives the streamed deltas and then the answer.

    Unread deltas are concatenated, so a slow reader needs no more memory than the reply.
    """

    def __init__(self, *, reads_deltas: bool = False) -> None:
        self.reads_deltas = reads_deltas
        self._delta = ""
        self._answer: OutboundMessage | None = None
        self._closed = False
        self._changed = asyncio.Event()

    def add(self, delta: str) -> None:
        if not self.reads_deltas:
            return
        self._delta += delta
        self._changed.set()

    def finish(self, answer: OutboundMessage) -> None:
        self._answer = answer
        self._changed.set()

    def close(self) -> None:
        self._closed = True
        self._changed.set()

    async def next(self) -> str | OutboundMessage:
        """Wait for and return the new text since the last call, or the answer after all text was returned.

        Raises `Closed`.
        """
        while True:
            if self._delta:
                delta, self._delta = self._delta, ""
                return delta
            if self._answer is not None:
                return self._answer
            if self._closed:
                raise Closed
            self._changed.clear()
            await self._changed.wait()

    async def answer(self) -> OutboundMessage:
        """Wait for and return the answer. Raises `Closed`."""
        while True:
            update = await self.next()
            if isinstance(update, OutboundMessage):
                return update


class Waiters:
    """All waiters, by their question. A question that was sent several times has several waiters."""

    def __init__(self) -> None:
        self._waiters: dict[Question, set[Waiter]] = {}
        self._closed = False

    @contextmanager
    def wait(self, asked: Question, *, reads_deltas: bool = False) -> Iterator[Waiter]:
        """Register a waiter inside the context. Enter it before submitting the question, to not miss the answer."""
        waiter = Waiter(reads_deltas=reads_deltas)
        if self._closed:
            waiter.close()
        self._waiters.setdefault(asked, set()).add(waiter)
        try:
            yield waiter
        finally:
            same = self._waiters[asked]
            same.discard(waiter)
            if not same:
                del self._waiters[asked]

    def of(self, key: ConversationKey, message_ids: tuple[str, ...]) -> list[Waiter]:
        """Return all waiters for the answer to any of these messages."""
        return [waiter for message_id in message_ids for waiter in self._waiters.get(question(key, message_id), ())]

    def close(self) -> None:
        """Close all waiters, and every waiter registered later."""
        self._closed = True
        for same in self._waiters.values():
            for waiter in same:
                waiter.close()

    def __len__(self) -> int:
        return sum(len(same) for same in self._waiters.values())


# ---- connector ----


MARGIN_SECONDS = 15.0
"""Time that a turn may need besides its model calls."""
KEEP_ALIVE_SECONDS = 15.0
"""Interval between the comments on a quiet stream, which make proxies keep it open."""
MAX_PART_CHARACTERS = 100_000_000
"""HTTP has no limit, so a reply is always one part."""


class HttpCaller(Protocol):
    """The authenticated sender of a request."""

    @property
    def role(self) -> Role: ...

    @property
    def workspace_id(self) -> str | None:
        """The only workspace that the caller may use; None for all."""

    @property
    def id(self) -> str:
        """The author's id if a message names no author. Begins with `connectors.message.CALLER_PREFIX`."""


Authenticate = Callable[[Request], Awaitable[HttpCaller]]
"""Authenticates a request. Raises `starlette.exceptions.HTTPException` (401, 403) if the request is not allowed, and
`connectors.message.StoreUnavailable` if the store cannot be asked."""


def wait_seconds(settings: Settings) -> float:
    """Return how long a request waits for its answer: the time of all attempts of all models, plus a margin."""
    models = 1 + len(settings.llm_fallback_models)
    return settings.llm_timeout_seconds * settings.llm_max_attempts * models + MARGIN_SECONDS


class HttpConnector:
    """The connector for programs: each HTTP request waits for the answer to its message.

    The turn continues without the request. A client that disconnects or gets a timeout can repeat the request with
    the same ``Idempotency-Key`` to get the answer.
    """

    name = convert.NAME
    capabilities = Capabilities(max_part_units=MAX_PART_CHARACTERS, local=True)
    openapi = OPENAPI
    """The description of `routes` in ``/openapi.json``."""

    def __init__(
        self,
        authenticate: Authenticate,
        *,
        max_body_bytes: int,
        wait_seconds: float,
        keep_alive_seconds: float = KEEP_ALIVE_SECONDS,
    ) -> None:
        self._authenticate = authenticate
        self._max_body_bytes = max_body_bytes
        self._wait_seconds = wait_seconds
        self._keep_alive_seconds = keep_alive_seconds
        self._accept: Accept | None = None
        self._waiting = Waiters()
        self._state = ConnectionState.CONNECTING

    @classmethod
    def of(cls, settings: Settings, authenticate: Authenticate) -> HttpConnector:
        """Create the connector with the limits of *settings*."""
        return cls(authenticate, max_body_bytes=settings.http_max_body_bytes, wait_seconds=wait_seconds(settings))

    @property
    def health(self) -> Health:
        return Health(
            self._state, "" if self._state is ConnectionState.CONNECTED else f"the HTTP interface is {self._state}"
        )

    async def run(self, accept: Accept) -> None:
        self._accept = accept
        self._state = ConnectionState.CONNECTED
        try:
            await asyncio.Event().wait()
        finally:
            self._accept = None
            self._state = ConnectionState.STOPPED

    def render(self, message: OutboundMessage) -> Sequence[OutboundPart]:
        if not message.text:
            return ()
        return (OutboundPart(0, 1, message.text, token=f"{message.turn_id}:{message.kind}:0"),)

    async def send(self, message: OutboundMessage, part: OutboundPart) -> Receipt:
        """Give the answer to the requests that wait for it.

        The answer counts as sent even if no request waits: the runtime stores it for a repeated request.
        """
        for waiter in self._waiting.of(message.key, message.answers):
            waiter.finish(message)
        return Receipt(part.token)

    def is_watched(self, key: ConversationKey, answers: tuple[str, ...]) -> bool:
        return any(waiter.reads_deltas for waiter in self._waiting.of(key, answers))

    async def stream(self, key: ConversationKey, answers: tuple[str, ...], delta: str) -> None:
        for waiter in self._waiting.of(key, answers):
            waiter.add(delta)

    def let_go(self, key: ConversationKey, messages: tuple[str, ...], *, gone: bool) -> None:
        message = OutboundMessage(key, "", "", answers=messages, superseded=messages)
        if gone:
            message = convert.no_workspace(key, messages)
        for waiter in self._waiting.of(key, messages):
            waiter.finish(message)

    def release(self) -> None:
        """Answer all waiting requests with an error that says that the runtime stops and how to get the answer."""
        self._waiting.close()

    async def close(self) -> None:
        self._state = ConnectionState.STOPPED
        self.release()

    def routes(self) -> Sequence[BaseRoute]:
        return (Route("/v1/workspaces/{workspace_id}/messages", self._post, methods=["POST"]),)

    async def _post(self, request: Request) -> Response:
        try:
            return await self._answer_request(request)
        except HANDLED_ERRORS as error:
            return error_response(error, self.name)

    async def _answer_request(self, request: Request) -> Response:
        caller = await self._authenticate(request)
        workspace_id = request.path_params["workspace_id"]
        if caller.workspace_id not in (None, workspace_id):
            raise RequestError(403, "forbidden", "the token is for another workspace")
        message = await self._read_message(request, workspace_id, caller)
        if "text/event-stream" in request.headers.get("accept", ""):
            return await self._start_stream(message)
        key = ConversationKey(workspace_id, self.name, message.external_id)
        with self._waiting.wait(question(key, message.message_id)) as waiter:
            earlier_answer = await self._submit(message)
            answer = earlier_answer or await self._wait(waiter)
        return json_response(convert.outcome(answer, message.message_id))

    async def _read_message(self, request: Request, workspace_id: str, caller: HttpCaller) -> InboundMessage:
        limit = self._max_body_bytes
        too_large = f"the body is larger than {limit} bytes (AGENT_RUNTIME_HTTP_MAX_BODY_BYTES)"
        body = convert.parse_body(await read_body(request, limit, too_large))
        idempotency_key = request.headers.get("idempotency-key")
        return convert.to_inbound(
            body,
            workspace_id=workspace_id,
            message_id=(
                uuid.uuid4().hex if idempotency_key is None else convert.message_id_of(idempotency_key, caller.id)
            ),
            caller_id=caller.id,
            caller_role=caller.role,
            sent_at=datetime.now(UTC),
        )

    async def _submit(self, message: InboundMessage) -> OutboundMessage | None:
        """Submit *message* to the gateway. Returns the answer if an earlier copy of *message* was already answered."""
        if self._accept is None:
            raise RequestError(503, "not_ready", "the runtime is starting or stopping", retry_after_seconds=1)
        accepted: Accepted = await self._accept(message)
        if accepted.outcome == "duplicate":
            return accepted.reply
        if accepted.outcome != "stored":
            raise refusal(accepted)
        return None

    async def _wait(self, waiter: Waiter) -> OutboundMessage:
        try:
            async with asyncio.timeout(self._wait_seconds):
                return await waiter.answer()
        except TimeoutError:
            raise _pending_error() from None
        except Closed:
            raise _stopping_error() from None

    async def _start_stream(self, message: InboundMessage) -> Response:
        """Start a stream of events. An error before the first event becomes an error response with its own status."""
        assert message.workspace_id is not None
        key = ConversationKey(message.workspace_id, self.name, message.external_id)
        with ExitStack() as waiting:
            waiter = waiting.enter_context(self._waiting.wait(question(key, message.message_id), reads_deltas=True))
            earlier_answer = await self._submit(message)
            if earlier_answer is not None:
                convert.outcome(earlier_answer, message.message_id)  # raises if it is no answer
                waiter.finish(earlier_answer)
            return _EventResponse(self._events(waiter, message.message_id), waiting.pop_all())

    async def _events(self, waiter: Waiter, message_id: str) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._wait_seconds
        try:
            while True:
                left = deadline - loop.time()
                try:
                    async with asyncio.timeout(min(self._keep_alive_seconds, left)):
                        update = await waiter.next()
                except TimeoutError:
                    if loop.time() >= deadline:
                        raise _pending_error() from None
                    yield b": waiting\n\n"
                    continue
                except Closed:
                    raise _stopping_error() from None
                if isinstance(update, OutboundMessage):
                    yield sse_event("done", convert.outcome(update, message_id))
                    return
                yield sse_event("delta", {"text": update})
        except RequestError as error:
            yield sse_event("error", error.body)


class _EventResponse(StreamingResponse):
    """A response of server-sent events. Closes *waiting* at its end, even if the client leaves before any event."""

    def __init__(self, events: AsyncIterator[bytes], waiting: ExitStack) -> None:
        super().__init__(events, media_type="text/event-stream", headers=STREAM_HEADERS)
        self._waiting = waiting

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._waiting:
            await super().__call__(scope, receive, send)


def _pending_error() -> RequestError:
    return RequestError(
        504,
        "answer_pending",
        "The answer is not ready yet; the turn continues. Repeat the request with the same Idempotency-Key to get it.",
    )


def _stopping_error() -> RequestError:
    return RequestError(
        503,
        "stopping",
        "The runtime is stopping; the message is stored. "
        "Repeat the request with the same Idempotency-Key to get the answer.",
        retry_after_seconds=5,
    )
