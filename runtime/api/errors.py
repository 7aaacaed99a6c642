"""What our errors are over HTTP: one table, one form ``{"error": {"code", "message"}}``."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from http import HTTPStatus

import structlog
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from connectors.message import AgentRuntimeError, InvalidWorkspaceId, StoreUnavailable
from grounding.assemble import ContextTooLarge
from grounding.codex.material import CodexFull, CodexTooNew
from grounding.documents.embedding import EmbedderUnavailable
from grounding.documents.index import IndexUnavailable
from grounding.documents.library import DocumentMissing, DocumentRefused
from grounding.memory.global_context_lines import (
    GlobalContextFull,
    LineChanged,
    NoSuchLine,
    NothingWaits,
    TooManyWaiting,
    UnfitLine,
)
from grounding.memory.records.record import NeverDeleted, NoSuchRecord, RecordBusy, RecordRefused
from promptpolicy.condensing import NotCondensed
from promptpolicy.policy import PolicyTooLarge
from promptpolicy.publishing import VersionMoved
from promptpolicy.slot import InvalidDirective
from promptpolicy.versions import NoSuchVersion
from runtime.api.replies import reply
from runtime.budget_terms import BudgetExceeded
from runtime.condensing import ModelSilent
from runtime.context_keeping import ContextMoved
from runtime.pairing import AlreadyDecided, TooManyAttempts, UnknownCode
from runtime.stored import NewerFormat
from runtime.turns import MailboxFull, UnknownLetter, UnknownTurn
from runtime.workspaces import UnknownWorkspace, WorkspaceInSettings

_log = structlog.get_logger()

RETRY_AFTER_SECONDS = 1


@dataclass
class ApiError(Exception):
    """A request that is answered with an error: status, a word for programs, a sentence for people."""

    status: int
    code: str
    message: str
    retry_after_seconds: int | None = None
    close: bool = False
    """Whether the connection cannot be used again, because the body was not read."""

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
    (ModelSilent, 503, "model_failed"),
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
"""Errors whose text is for whoever called; any other is logged, and only its ``user_text`` is shown."""

_CODES = {
    400: "bad_request",
    401: "unauthenticated",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
}
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def error_response(error: Exception) -> Response:
    """The answer for *error*, whatever it is. What nobody foresaw is logged whole and says nothing outside."""
    known = as_api_error(error)
    headers = known.headers()
    if isinstance(error, HTTPException) and error.headers:
        headers |= error.headers
    return reply({"error": {"code": known.code, "message": known.message}}, known.status, headers)


def as_api_error(error: Exception) -> ApiError:
    """*error* by the table."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, HTTPException):
        return ApiError(error.status_code, _code(error.status_code), error.detail)
    if isinstance(error, ClientDisconnect):
        return ApiError(400, "bad_request", "the body ended early", close=True)
    if isinstance(error, RequestValidationError):
        return ApiError(400, "bad_request", _mistakes(error))
    if isinstance(error, AgentRuntimeError):
        return _of_ours(error)
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        _log.error("http.failed", why="the disk is full")
        return ApiError(507, "disk_full", "the disk is full; make room under AGENT_RUNTIME_DATA_DIR and try again")
    _log.error("http.failed", exc_info=error)
    return ApiError(500, "internal", AgentRuntimeError.user_text)


def _of_ours(error: AgentRuntimeError) -> ApiError:
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
    """The first few mistakes, each as ``query.top_k: what was expected``; values are never repeated."""
    return "; ".join(f"{'.'.join(str(part) for part in one['loc'])}: {one['msg']}" for one in error.errors()[:5])


def _code(status: int) -> str:
    return _CODES.get(status) or HTTPStatus(status).phrase.lower().replace(" ", "_")
