"""Every error has a status, a word and a sentence, and nothing inside gets out."""

from __future__ import annotations

import errno
import importlib
import json
import pkgutil
from collections.abc import Iterator

import pytest
from starlette.exceptions import HTTPException

import connectors
import grounding
import promptpolicy
import runtime
from connectors.message import AgentRuntimeError, InvalidWorkspaceId, StoreUnavailable
from grounding.documents import DocumentMissing, DocumentRefused
from grounding.prompt import ContextTooLarge
from grounding.retrieval import IndexUnavailable
from promptpolicy.directives import NoSuchVersion
from promptpolicy.policy import InvalidDirective
from runtime.access import TooManyAttempts, UnknownCode
from runtime.http.errors import ApiError, as_api_error, error_response
from runtime.turns.manifest import UnknownTurn
from runtime.workspaces import UnknownWorkspace, WorkspaceInSettings


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


def test_a_context_that_is_too_large_is_told_in_full() -> None:
    """The block, its tokens and the window are in the text."""
    told = as_api_error(ContextTooLarge("identity", 9001, 8192)).message
    assert all(word in told for word in ("identity", "9001", "8192"))


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
