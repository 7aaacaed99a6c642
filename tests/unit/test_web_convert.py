"""Between the chat page's JSON and the nouns."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.http_requests import failure, refusal, sse_event
from connectors.message import (
    CALLER_PREFIX,
    Accepted,
    ConversationKey,
    InboundKind,
    OutboundMessage,
    Role,
    StoreUnavailable,
)
from connectors.web import PastMessage, RequestError, Session, convert

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SESSION = Session("token:0123456789ab", Role.VIEWER, "acme", "Lena", "a1b2c3")
MESSAGE: dict[str, Any] = {"id": "0123456789abcdef", "conversation": "plans-1", "text": "Hello"}


def test_what_is_said_carries_the_tokens_role_and_the_persons_place() -> None:
    """The author is the person for whom the token was made, vouched for by it; the place is theirs alone."""
    message = convert.to_inbound(MESSAGE, SESSION, NOW)
    assert message.external_id == "a1b2c3/plans-1"
    assert message.message_id == MESSAGE["id"]
    assert message.author.user("web") == "web:a1b2c3"
    assert message.author.name == "Lena"
    assert message.is_vouched_for
    assert message.caller_role is Role.VIEWER
    assert message.workspace_id == "acme"
    assert message.direct
    assert message.addressed


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": "short"}, {"id": None}, {"id": "x" * 65}, {"id": "with/slash12"}, {"id": 12345678},
        {"conversation": "a/b"}, {"conversation": ""}, {"conversation": None}, {"conversation": "Ä"},
        {"conversation": "x" * 65}, {"text": None}, {"text": " \n "}, {"text": 7},
    ],
)  # fmt: skip
def test_wrong_fields_are_refused_in_words(wrong: dict[str, Any]) -> None:
    """A field that is wrong is 400 with a text."""
    with pytest.raises(RequestError) as caught:
        convert.to_inbound({**MESSAGE, **wrong}, SESSION, NOW)
    assert caught.value.status == 400
    assert caught.value.message


def test_a_token_of_nobody_speaks_as_itself() -> None:
    """The admin's, and those that were made for programs."""
    message = convert.to_inbound(MESSAGE, Session("token:admin", Role.ADMIN, "acme", "Admin"), NOW)
    assert (message.external_id, message.author.id) == ("admin/plans-1", f"{CALLER_PREFIX}admin")


def test_files_are_attachments_by_what_the_browser_says_of_them() -> None:
    """A picture is an image, sound a voice message, all else a document; a text is not needed then."""
    kinds = ["image/png", "image/svg+xml", "audio/webm", "application/pdf", "NO TYPE"]
    files = [
        {"id": f"{number:032x}", "name": f" a\n{number} ", "media_type": kind, "size": 7}
        for number, kind in enumerate(kinds)
    ]
    message = convert.to_inbound({**MESSAGE, "text": "", "files": files}, SESSION, NOW)
    assert [one.kind for one in message.attachments] == ["image", "document", "voice", "document", "document"]
    assert message.attachments[1].name == "a 1"
    assert convert.parse_handle(message.attachments[0].handle) == (
        "0" * 32,
        ConversationKey("acme", "web", message.external_id),
    )


@pytest.mark.parametrize("files", ["x", [1], [{}] * 11])
def test_lists_of_files_that_are_none_are_refused(files: Any) -> None:
    with pytest.raises(RequestError) as caught:
        convert.to_inbound({**MESSAGE, "files": files}, SESSION, NOW)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("text", "kind", "heard"),
    [
        ("/help new", InboundKind.COMMAND, "help new"),
        ("/Help", InboundKind.COMMAND, "Help"),
        ("/helpme", InboundKind.MESSAGE, "/helpme"),
        ("/etc/hosts is empty", InboundKind.MESSAGE, "/etc/hosts is empty"),
        (" /help", InboundKind.MESSAGE, " /help"),
    ],
)
def test_the_commands_that_the_page_lists_are_commands(text: str, kind: InboundKind, heard: str) -> None:
    """A slash and a listed word; everything else is a message as it was written."""
    message = convert.to_inbound({**MESSAGE, "text": text}, SESSION, NOW, ["help"])
    assert (message.kind, message.text) == (kind, heard)


@given(
    st.sampled_from(["admin", "0123456789ab"]),
    st.text(max_size=40),
    st.from_regex(r"[a-z0-9][a-z0-9-]{0,9}", fullmatch=True),
)
def test_a_conversation_is_found_again_by_its_id_also_under_a_former_name(person: str, name: str, own: str) -> None:
    """What people said when they still gave themselves a name is theirs, and nobody else's."""
    name = name.replace("/", "")
    key = ConversationKey("acme", "web", f"{person}.{name}/{own}" if name else f"{person}/{own}")
    assert convert.place(key)[0] == person
    assert convert.conversation_in("acme", *convert.place(key)) == key


def test_a_workspaces_token_signs_in_there_and_nowhere_else() -> None:
    """Without a named workspace it is the token's own, for the admin the default; another one is 403."""
    assert convert.parse_workspace({}, "acme", "sample") == "acme"
    assert convert.parse_workspace({}, None, "sample") == "sample"
    assert convert.parse_workspace({"workspace": " acme "}, None, "sample") == "acme"
    with pytest.raises(RequestError) as caught:
        convert.parse_workspace({"workspace": "rival"}, "acme", "sample")
    assert caught.value.status == 403


@pytest.mark.parametrize("body", [b"[1]", b"{", b'"x"', b"\xff", b"[" * 100_000])
def test_bodies_that_are_no_objects_are_refused(body: bytes) -> None:
    """What is no JSON object is 400."""
    with pytest.raises(RequestError) as caught:
        convert.parse_object(body)
    assert caught.value.status == 400


def test_refusals_say_how_long_to_wait() -> None:
    """A limit is 429 with the seconds; an unknown reason is 403 and named."""
    limited = refusal(Accepted("refused", "rate_limit", retry_after_seconds=7))
    assert (limited.status, limited.headers) == (429, {"Retry-After": "7"})
    assert refusal(Accepted("refused", "mystery")).status == 403
    assert failure(StoreUnavailable("away")).status == 503


def test_a_message_in_transcript_and_memory_is_shown_once_as_it_is_in_memory() -> None:
    """The past and what is remembered become one list by time, without doubles."""
    past = [{"id": "a", "at": "2026-01-01T00:00:01.000Z", "text": "old"}, {"id": "b", "at": "2026-01-01T00:00:02.000Z"}]
    kept = [{"id": "c", "at": "2026-01-01T00:00:01.500Z"}, {"id": "a", "at": "2026-01-01T00:00:01.000Z", "text": "new"}]
    found = convert.merge_items(past, kept, 10)
    assert [item["id"] for item in found] == ["a", "c", "b"]
    assert found[0]["text"] == "new"
    assert [item["id"] for item in convert.merge_items(past, kept, 2)] == ["c", "b"]


def test_a_reply_of_the_past_has_the_id_under_which_it_was_sent() -> None:
    """So that a page which has it already does not show it twice."""
    reply = OutboundMessage(ConversationKey("acme", "web", "ab/main"), "t1", "Hi", kind="apology")
    assert convert.past_item(PastMessage("", "Hi", "2026-01-01T00:00:00Z", reply), "main", [])["id"] == "t1.apology.0"


@given(st.text())
def test_an_event_is_one_line_of_data(text: str) -> None:
    """Whatever the text, an event has three lines, and gives the text back."""
    lines = sse_event("message", {"text": text}, "e.1").decode().split("\n")
    assert lines[:2] == ["id: e.1", "event: message"]
    assert lines[3:] == ["", ""]
    assert json.loads(lines[2].removeprefix("data: ")) == {"text": text}
