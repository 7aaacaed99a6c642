"""HTTP bodies and the nouns."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.http import convert
from connectors.http.convert import OPENAPI, MessageRequest
from connectors.http_requests import RequestError, failure, refusal
from connectors.message import (
    CALLER_PREFIX,
    Accepted,
    AgentRuntimeError,
    Author,
    ConversationKey,
    Degraded,
    OutboundMessage,
    Role,
    Source,
    StoreUnavailable,
    Usage,
)

ANSWER = OutboundMessage(
    key=ConversationKey("acme", "http", "default"),
    turn_id="t1",
    text="Within 30 days.",
    sources=(Source("refunds.md", "Windows"),),
    strategy="qmd",
    reason="workspace_retrieval_cue",
    degraded=(Degraded("summary", "timeout"),),
    usage=Usage(10, 4, 3, 0.5),
)


def parse(value: Any) -> MessageRequest:
    return convert.parse_body(json.dumps(value).encode())


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"text": "hi"}, MessageRequest("hi")),
        ({"text": " hi\n"}, MessageRequest(" hi\n")),
        ({"text": "hi", "context": "a/../b", "direct": True}, MessageRequest("hi", "a/../b", direct=True)),
        ({"text": "hi", "context": None, "author": None}, MessageRequest("hi")),
        ({"text": "hi", "author": "ann"}, MessageRequest("hi", author=Author("ann"))),
        ({"text": "hi", "author": {"id": "7", "name": " Ann \n B"}}, MessageRequest("hi", author=Author("7", "Ann B"))),
        ({"text": "hi", "unknown": 1}, MessageRequest("hi")),
        ({"text": "👋 grüß"}, MessageRequest("👋 grüß")),
    ],
)
def test_a_body_becomes_a_request(body: Any, expected: MessageRequest) -> None:
    """Fields are taken as they are; what is left out has its default; unknown ones are let be."""
    assert parse(body) == expected


def test_a_byte_order_mark_is_let_be() -> None:
    """A body that begins with a byte order mark is read without it."""
    assert convert.parse_body(b'\xef\xbb\xbf{"text": "hi"}') == MessageRequest("hi")


@pytest.mark.parametrize(
    ("body", "code", "named"),
    [
        (b"", "empty", "body is empty"),
        (b"  \n", "empty", "body is empty"),
        (b"hello", "bad_request", "not JSON"),
        (b'{"text": "hi"', "bad_request", "line 1"),
        (b"\xff\xfe", "bad_request", "not UTF-8: byte 0"),
        (b"[1]", "bad_request", "JSON object"),
        (b"null", "bad_request", "JSON object"),
        (b"{}", "bad_request", '"text" is missing'),
        (b'{"text": null}', "bad_request", '"text" is missing'),
        (b'{"text": ""}', "empty", '"text" is empty'),
        (b'{"text": " \\n\\t"}', "empty", '"text" is empty'),
        (b'{"text": 7}', "bad_request", "must be a string"),
        (b'{"text": true}', "bad_request", "must be a string"),
        (b'{"text": ["a"]}', "bad_request", "must be a string"),
        (b'{"text": {"a": 1}}', "bad_request", "must be a string"),
        (b'{"text": "\\ud800"}', "bad_request", "surrogate"),
        (b'{"text": "a", "context": 7}', "bad_request", '"context"'),
        (b'{"text": "a", "context": ""}', "bad_request", '"context" is empty'),
        (b'{"text": "a", "context": "' + b"x" * 201 + b'"}', "bad_request", "longer than 200"),
        ('{"text": "a", "context": "' + "ä" * 40 + '"}', "bad_request", "longer than 200"),
        (b'{"text": "a", "author": 7}', "bad_request", '"author"'),
        (b'{"text": "a", "author": {}}', "bad_request", '"author" needs an "id"'),
        (b'{"text": "a", "author": {"id": 7}}', "bad_request", '"author"'),
        (b'{"text": "a", "user": "7"}', "bad_request", '"author"'),
        (b'{"text": "a", "author": {"id": "7", "name": 1}}', "bad_request", '"author.name"'),
        (b'{"text": "a", "author": {"id": "7", "name": "' + b"x" * 201 + b'"}}', "bad_request", '"author.name"'),
        (b'{"text": "a", "author": "token:admin"}', "bad_request", "'token:'"),
        (b'{"text": "a", "direct": "yes"}', "bad_request", '"direct"'),
        (b"[" * 100_000, "bad_request", "nesting"),
        (b'{"text": ' + b"9" * 10_000 + b"}", "bad_request", "number"),
    ],
)
def test_a_wrong_body_is_a_400_that_names_what_is_wrong(body: bytes | str, code: str, named: str) -> None:
    """Each mistake is told by field and by what is expected."""
    with pytest.raises(RequestError) as caught:
        convert.parse_body(body.encode() if isinstance(body, str) else body)
    assert caught.value.status == 400
    assert caught.value.code == code
    assert named in caught.value.message
    assert caught.value.body == {"error": {"code": code, "message": caught.value.message}}


@given(st.binary(max_size=200) | st.builds(lambda v: json.dumps(v).encode(), st.dictionaries(st.text(), st.text())))
def test_no_body_is_anything_but_a_request_or_a_clear_error(body: bytes) -> None:
    """Whatever is sent is a request with text, or a 400."""
    try:
        request = convert.parse_body(body)
    except RequestError as error:
        status = error.status
    else:
        status = 200 if request.text.strip() else 0
    assert status in (200, 400)


def test_without_an_author_the_caller_stands_for_one() -> None:
    """A message carries workspace, place, the caller's role, and the caller's id where nobody is named."""

    def inbound(request: MessageRequest) -> Any:
        return convert.to_inbound(
            request,
            workspace_id="acme",
            message_id="m",
            caller_id=CALLER_PREFIX + "1",
            caller_role=Role.VIEWER,
            sent_at=datetime(2026, 1, 1, tzinfo=UTC),
        )

    message = inbound(MessageRequest("hi", "c"))
    assert (message.author.id, message.caller_role) == (CALLER_PREFIX + "1", Role.VIEWER)
    assert (message.workspace_id, message.external_id, message.direct) == ("acme", "c", False)
    assert inbound(MessageRequest("hi", author=Author("ann"))).author.id == "ann"


def test_a_key_names_the_same_message_for_the_same_caller_only() -> None:
    """A repeated key is the same message; another key, or another caller's, is another."""
    assert convert.message_id_of("k", "a") == convert.message_id_of("k", "a")
    assert len({convert.message_id_of(k, c) for k in ("k", "l", "a\tk"[2:] + "k") for c in ("a", "b")}) == 6
    for wrong in ("", "x" * 256, "ä", "a\nb", "\x00"):
        with pytest.raises(RequestError, match="Idempotency-Key"):
            convert.message_id_of(wrong, "a")


@pytest.mark.parametrize(
    ("accepted", "status", "retry_after"),
    [
        (Accepted("refused", "rate_limit", retry_after_seconds=17), 429, "17"),
        (Accepted("refused", "rate_limit"), 429, "1"),
        (Accepted("refused", "unknown_workspace"), 404, None),
        (Accepted("refused", "budget_exceeded"), 402, None),
        (Accepted("refused", "superseded"), 409, None),
        (Accepted("refused", "something_else"), 403, None),
        (Accepted("ignored", ""), 403, None),
    ],
)
def test_each_reason_of_a_refusal_has_its_status(accepted: Accepted, status: int, retry_after: str | None) -> None:
    """A refusal is told by the status that stands for its reason, with the wait where there is one."""
    error = refusal(accepted)
    assert error.status == status
    assert error.headers.get("Retry-After") == retry_after
    assert error.message


def test_an_error_of_ours_has_a_status_and_hides_its_inside() -> None:
    """No store is 503, a known code its own status, anything else 500 or 503 with a text for people."""

    class Unknown(AgentRuntimeError):
        code = "unknown_workspace"

    assert failure(StoreUnavailable("redis at 10.0.0.1")).status == 503
    assert "10.0.0.1" not in failure(StoreUnavailable("redis at 10.0.0.1")).message
    assert (failure(Unknown("no workspace 'x'")).status, failure(Unknown("say")).message) == (
        404,
        "say",
    )
    assert failure(AgentRuntimeError("inside")).status == 500
    assert "inside" not in failure(AgentRuntimeError("inside")).message


def test_an_answer_reads_as_documented() -> None:
    """The answer has exactly the documented fields."""
    assert convert.outcome(ANSWER, "m1") == {
        "turn_id": "t1",
        "text": "Within 30 days.",
        "sources": [{"source": "refunds.md", "heading": "Windows"}],
        "strategy": "qmd",
        "reason": "workspace_retrieval_cue",
        "degraded": [{"block": "summary", "why": "timeout"}],
        "usage": {"prompt": 10, "cached": 4, "completion": 3, "cost_usd": 0.5},
    }
    assert set(convert.outcome(ANSWER, "m1")) == set(OPENAPI["components"]["schemas"]["Answer"]["properties"])
