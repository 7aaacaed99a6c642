"""What the connectors that answer HTTP requests share: error responses, JSON, request bodies, server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from connectors.message import INTERNAL_ERROR, Accepted, AgentRuntimeError, InvalidWorkspaceId, StoreUnavailable

BODY_SECONDS = 30.0
"""How long a request's body may take to arrive."""
DISCARDED_BYTES = 8_000_000
"""How many bytes of a too large body are read beyond the limit and discarded: a client that is still sending when the
connection closes does not see the response."""
STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
"""The headers of a stream of server-sent events."""

REFUSALS = {
    "rate_limit": (429, "You are writing faster than I can answer. Please wait a moment."),
    "mailbox_full": (429, "Too many messages are waiting in this conversation. Please wait until some are answered."),
    "unknown_workspace": (404, "There is no such workspace."),
    "budget_exceeded": (402, "The budget of this workspace is used up."),
    "superseded": (409, "A newer message replaced this one."),
    "context_too_large": (422, "The fixed part of the prompt is larger than the model's window."),
    "too_large": (413, "The message is too large."),
    "empty": (400, "The message is empty."),
    INTERNAL_ERROR: (500, "Something went wrong here."),
}
"""HTTP status and text by the reason why a message gets no answer. Any other reason gives 403."""

_CODES = {401: "unauthenticated", 403: "forbidden", 404: "not_found", 413: "too_large", 503: "store_unavailable"}

log = structlog.get_logger()


class RequestError(Exception):
    """An error response: its HTTP status, a code for programs and a text for people.

    *close* is whether to close the connection, because part of the request's body was not read.
    """

    def __init__(
        self, status: int, code: str, message: str, *, retry_after_seconds: int | None = None, close: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retry_after_seconds = retry_after_seconds
        self.close = close

    @property
    def body(self) -> dict[str, Any]:
        return {"error": {"code": self.code, "message": self.message}}

    @property
    def headers(self) -> dict[str, str]:
        headers = {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}
        if self.retry_after_seconds is not None:
            headers["Retry-After"] = str(max(1, self.retry_after_seconds))
        if self.close:
            headers["Connection"] = "close"
        return headers


HANDLED_ERRORS = (RequestError, HTTPException, AgentRuntimeError)
"""The errors that `error_response` turns into a response."""


def error_response(error: Exception, connector: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return the response for one of `HANDLED_ERRORS`. Logs an error that is not the caller's mistake."""
    match error:
        case RequestError():
            refused = error
        case HTTPException():
            refused = RequestError(error.status_code, _CODES.get(error.status_code, "refused"), error.detail)
        case AgentRuntimeError():
            refused = failure(error)
            if refused.status >= 500:
                log.warning("http.failed", error=type(error).__name__, connector=connector)
        case _:
            raise TypeError(type(error))
    return json_response(refused.body, refused.status, {**(headers or {}), **refused.headers})


def refusal(accepted: Accepted) -> RequestError:
    """Return the error response for a message that the gateway refused or ignored."""
    why, retry_after = accepted.why or "refused", accepted.retry_after_seconds
    status, text = REFUSALS.get(why, (403, f"The message is not answered here: {why}."))
    return RequestError(status, why, text, retry_after_seconds=(retry_after or 1) if status == 429 else retry_after)


def failure(error: AgentRuntimeError) -> RequestError:
    """Return the error response for an error of the runtime.

    The status is 503 if the store is unavailable, else the one of `REFUSALS` for the error's ``code``, else 503 if the
    error is retryable, else 500.
    """
    if isinstance(error, StoreUnavailable):
        return RequestError(503, "store_unavailable", error.user_text, retry_after_seconds=1)
    code = "unknown_workspace" if isinstance(error, InvalidWorkspaceId) else getattr(error, "code", "")
    if code in REFUSALS:
        return RequestError(REFUSALS[code][0], code, str(error))
    return RequestError(503 if error.retryable else 500, code or "failed", error.user_text)


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    # An unpaired surrogate in a model's text becomes a JSON escape; a strict encoder would fail.
    body = json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace")
    return Response(body, status, headers, media_type="application/json")


async def read_body(request: Request, limit: int, too_large: str) -> bytes:
    """Return a body of at most *limit* bytes. Raises `RequestError`, with *too_large* as text if it is larger."""
    length = request.headers.get("content-length", "")
    size = int(length[:20]) if length.isdecimal() else 0
    most = limit + DISCARDED_BYTES
    body = bytearray()
    if size <= most:
        size = 0
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for chunk in request.stream():
                    size += len(chunk)
                    if size <= limit:
                        body += chunk
                    elif size > most:
                        break
        except TimeoutError:
            raise RequestError(408, "timeout", "the body did not come in time", close=True) from None
        except ClientDisconnect:
            raise RequestError(400, "bad_request", "the body ended early", close=True) from None
    if size > limit:
        raise RequestError(413, "too_large", too_large, close=size > most)
    return bytes(body)


def sse_event(name: str, data: dict[str, Any], event_id: str = "") -> bytes:
    """Encode one server-sent event. JSON in ASCII has no line breaks, so it always fits one ``data`` line."""
    first = f"id: {event_id}\n" if event_id else ""
    return f"{first}event: {name}\ndata: {json.dumps(data)}\n\n".encode("ascii")
