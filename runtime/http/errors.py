"""Reads request bodies and writes answers: JSON, and errors as ``{"error": {"code", "message"}}`` by one table."""

from __future__ import annotations

import errno
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal, TypeVar

import structlog
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from connectors.message import AgentRuntimeError, InvalidWorkspaceId, StoreUnavailable
from grounding.codex import CodexFull, CodexTooNew
from grounding.documents import DocumentMissing, DocumentRefused
from grounding.memory.global_context import (
    GlobalContextFull,
    LineChanged,
    NoSuchLine,
    NothingWaits,
    TooManyWaiting,
    UnfitLine,
)
from grounding.memory.records import NeverDeleted, NoSuchRecord, RecordBusy, RecordRefused
from grounding.prompt import ContextTooLarge
from grounding.retrieval import EmbedderUnavailable, IndexUnavailable
from promptpolicy.condense import NotCondensed
from promptpolicy.directives import NoSuchVersion
from promptpolicy.drafts import ApprovalNeeded, DraftMoved, NoSuchDraft
from promptpolicy.policy import InvalidDirective, PolicyTooLarge
from promptpolicy.publishing import VersionMoved
from runtime.access import AlreadyDecided, TooManyAttempts, UnknownCode
from runtime.background import ContextMoved, NoModelAnswer
from runtime.billing import BudgetExceeded
from runtime.stores import NewerFormat
from runtime.turns import MailboxFull, UnknownLetter, UnknownTurn
from runtime.workspaces import UnknownWorkspace, WorkspaceInSettings

RETRY_AFTER_SECONDS = 1
DISCARDED_BYTES = 8_000_000
"""How much of a too large body is read and thrown away: a client that is still sending sees no answer."""
_CODES = {
    400: "bad_request",
    401: "unauthenticated",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
}
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
B = TypeVar("B", bound=BaseModel)
_log = structlog.get_logger()


def reply(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return *value* as JSON. Half a surrogate pair, which a model may write, becomes an escape; UTF-8 has none."""
    body = json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace")
    return Response(body, status, headers, media_type="application/json")


def text_reply(text: str, media_type: str = "text/plain", headers: Mapping[str, str] | None = None) -> Response:
    """Return *text* as it is."""
    body, headers = text.encode("utf-8", "surrogatepass"), {"X-Content-Type-Options": "nosniff", **(headers or {})}
    return Response(body, 200, headers, media_type=f"{media_type}; charset=utf-8")


@dataclass
class ApiError(Exception):
    """An answer that is an error: the status, a word for programs, a sentence for people."""

    status: int
    code: str
    message: str
    retry_after_seconds: int | None = None
    close: bool = False
    """True if the connection cannot be used again, because the body was not read."""

    def headers(self) -> dict[str, str]:
        headers = {} if self.retry_after_seconds is None else {"Retry-After": str(self.retry_after_seconds)}
        return headers | ({"Connection": "close"} if self.close else {})


_TABLE: tuple[tuple[type[AgentRuntimeError], int, str], ...] = (
    (UnknownWorkspace, 404, "unknown_workspace"),
    (InvalidWorkspaceId, 404, "unknown_workspace"),
    (WorkspaceInSettings, 409, "in_settings"),
    (UnknownTurn, 404, "unknown_turn"),
    (UnknownLetter, 404, "unknown_turn"),
    (MailboxFull, 429, "mailbox_full"),
    (DocumentMissing, 404, "not_found"),
    (CodexFull, 413, "codex_full"),
    (CodexTooNew, 500, "newer_format"),
    (NoSuchVersion, 404, "not_found"),
    (InvalidDirective, 400, "invalid_directive"),
    (PolicyTooLarge, 413, "policy_too_large"),
    (VersionMoved, 409, "version_moved"),
    (DraftMoved, 409, "draft_moved"),
    (ApprovalNeeded, 409, "approval_needed"),
    (NoSuchDraft, 404, "not_found"),
    (NoModelAnswer, 503, "model_failed"),
    (NotCondensed, 422, "not_condensed"),
    (BudgetExceeded, 402, "budget_exceeded"),
    (ContextMoved, 409, "version_moved"),
    (ContextTooLarge, 422, "context_too_large"),
    (NoSuchLine, 404, "no_such_line"),
    (NothingWaits, 404, "not_found"),
    (UnfitLine, 400, "bad_request"),
    (GlobalContextFull, 413, "global_context_full"),
    (LineChanged, 409, "line_changed"),
    (TooManyWaiting, 409, "too_many_waiting"),
    (NoSuchRecord, 404, "no_such_record"),
    (NeverDeleted, 409, "never_deleted"),
    (RecordBusy, 503, "busy"),
    (RecordRefused, 400, "bad_request"),
    (AlreadyDecided, 409, "already_decided"),
    (UnknownCode, 404, "unknown_code"),
    (TooManyAttempts, 429, "too_many_attempts"),
    (IndexUnavailable, 503, "index_unavailable"),
    (EmbedderUnavailable, 503, "index_unavailable"),
    (NewerFormat, 500, "newer_format"),
)
"""Errors whose text the caller gets. Any other is logged, and the caller gets only its ``user_text``."""


def error_response(error: Exception) -> Response:
    """Return the answer for any *error*."""
    known = as_api_error(error)
    headers = known.headers()
    if isinstance(error, HTTPException) and error.headers:
        headers |= error.headers
    return reply({"error": {"code": known.code, "message": known.message}}, known.status, headers)


def as_api_error(error: Exception) -> ApiError:
    """Return *error* as the table has it. An error that the table does not know is logged whole and tells the caller
    nothing."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, HTTPException):
        return ApiError(error.status_code, _code(error.status_code), error.detail)
    if isinstance(error, ClientDisconnect):
        return ApiError(400, "bad_request", "the body ended early", close=True)
    if isinstance(error, RequestValidationError):
        return ApiError(400, "bad_request", _mistakes(error))
    if isinstance(error, AgentRuntimeError):
        return _from_table(error)
    if isinstance(error, OSError) and error.errno in _DISK_FULL:
        _log.error("http.failed", why="the disk is full")
        return ApiError(507, "disk_full", "the disk is full; make room under AGENT_RUNTIME_DATA_DIR and try again")
    _log.error("http.failed", exc_info=error)
    return ApiError(500, "internal", AgentRuntimeError.user_text)


def _from_table(error: AgentRuntimeError) -> ApiError:
    if isinstance(error, StoreUnavailable):
        message = "the store cannot be reached now; try again in a moment"
        return ApiError(503, "store_unavailable", message, RETRY_AFTER_SECONDS)
    if isinstance(error, DocumentRefused):
        status = 413 if error.why == "size" else 400
        return ApiError(status, "too_large" if error.why == "size" else f"document_{error.why}", str(error))
    for kind, status, code in _TABLE:
        if isinstance(error, kind):
            later = status == 503 or (status == 429 and error.retryable)
            return ApiError(status, code, str(error), RETRY_AFTER_SECONDS if later else None)
    _log.error("http.failed", exc_info=error)
    status = 503 if error.retryable else 500
    return ApiError(status, "unavailable" if error.retryable else "failed", error.user_text)


def _mistakes(error: RequestValidationError) -> str:
    """Return the first five mistakes, each as ``query.top_k: what was expected``; values are never repeated."""
    return "; ".join(
        f"{'.'.join(str(part) for part in mistake['loc'])}: {mistake['msg']}" for mistake in error.errors()[:5]
    )


def _code(status: int) -> str:
    return _CODES.get(status) or HTTPStatus(status).phrase.lower().replace(" ", "_")


class Body(BaseModel):
    """Base of JSON bodies. An unknown field is an error: a misspelt one would be ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class EarlierMessage(Body):
    """A message that was said before, in a history. ``agent`` is another word for ``assistant``."""

    role: Literal["user", "assistant", "agent"]
    text: str


async def read_body(request: Request, limit: int, variable: str) -> bytes:
    """Return the whole body. Raises `ApiError` 413 beyond *limit* bytes, which the setting *variable* sets."""
    body, size = bytearray(), 0
    async for piece in request.stream():
        size += len(piece)
        if size <= limit:
            body += piece
        elif size > limit + DISCARDED_BYTES:
            break
    if size > limit:
        message = f"the body is larger than {limit} bytes (AGENT_RUNTIME_{variable})"
        raise ApiError(413, "too_large", message, close=size > limit + DISCARDED_BYTES)
    return bytes(body)


async def read_json(request: Request, kind: type[B], limit: int) -> B:
    """Return the JSON body as *kind*; an empty one counts as ``{}``. Raises `ApiError` 400, whose text names the
    field, and 413 beyond *limit* bytes."""
    body = await read_body(request, limit, "HTTP_MAX_BODY_BYTES")
    try:
        return kind.model_validate_json(body.removeprefix(b"\xef\xbb\xbf").strip() or b"{}")
    except ValidationError as error:
        raise ApiError(400, "bad_request", describe_mistakes(error)) from None


async def body_lines(request: Request, limit: int) -> AsyncIterator[bytes]:
    """Yield the body's lines, without blank ones, as they arrive. Raises `ApiError` 413 for a line beyond *limit*
    bytes."""
    rest = bytearray()
    async for piece in request.stream():
        rest += piece
        *whole, last = rest.split(b"\n")
        rest = bytearray(last)
        for line in whole:
            if line.strip():
                yield bytes(line)
        if len(rest) > limit:
            raise ApiError(413, "too_large", f"a line is longer than {limit} bytes", close=True)
    if rest.strip():
        yield bytes(rest)


def describe_mistakes(error: ValidationError) -> str:
    """Return the first five mistakes, each as ``"field": what was expected``; values are never repeated."""
    texts = []
    for mistake in error.errors(include_input=False, include_url=False)[:5]:
        field, message = ".".join(str(part) for part in mistake["loc"]), mistake["msg"].removeprefix("Value error, ")
        texts.append(f'"{field}": {message}' if field else message)
    return "; ".join(texts)
