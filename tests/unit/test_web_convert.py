"""Between the chat page's JSON and the nouns."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.message import (
    CALLER_PREFIX,
    Accepted,
    ConversationKey,
    InboundKind,
    OutboundMessage,
    Role,
    StoreUnavailable,
)
from connectors.web import convert
from connectors.web.convert import RequestError
from connectors.web.sessions import Said, Session

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SESSION = Session("token:0123456789ab", Role.VIEWER, "acme", "Lena")
MESSAGE: dict[str, Any] = {"id": "0123456789abcdef", "conversation": "plans-1", "text": "Hello"}


def test_what_is_said_carries_the_tokens_role_and_the_persons_place() -> None:
    """The author is the token's holder by that name, so that its role bounds them; the place is theirs alone."""
    message = convert.to_inbound(MESSAGE, SESSION, NOW)
    assert message.external_id == "0123456789ab.lena/plans-1"
    assert message.message_id == MESSAGE["id"]
    assert message.author.id == f"{CALLER_PREFIX}0123456789ab.lena"
    assert message.author.name == "Lena"
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


@given(st.text(max_size=60), st.text(max_size=60))
def test_a_name_never_reaches_into_anothers_conversations(one: str, other: str) -> None:
    """However people call themselves: the same person only for the same name but for case, and no slash in it."""
    people = []
    for name in (one, other):
        try:
            shown, _ = convert.parse_sign_in({"name": name}, "acme", "sample")
        except RequestError:
            return  # too long
        people.append((convert.person(Session("token:ab", Role.MEMBER, "acme", shown)), shown.casefold()))
    assert all("/" not in person for person, _ in people)
    assert (people[0][0] == people[1][0]) == (people[0][1] == people[1][1])


def test_a_workspaces_token_signs_in_there_and_nowhere_else() -> None:
    """Without a named workspace it is the token's own, for the admin the default; another one is 403."""
    assert convert.parse_sign_in({}, "acme", "sample") == ("", "acme")
    assert convert.parse_sign_in({}, None, "sample") == ("", "sample")
    assert convert.parse_sign_in({"workspace": " acme "}, None, "sample") == ("", "acme")
    with pytest.raises(RequestError) as caught:
        convert.parse_sign_in({"workspace": "rival"}, "acme", "sample")
    assert caught.value.status == 403


@pytest.mark.parametrize("body", [b"[1]", b"{", b'"x"', b"\xff", b"[" * 100_000])
def test_bodies_that_are_no_objects_are_refused(body: bytes) -> None:
    """What is no JSON object is 400."""
    with pytest.raises(RequestError) as caught:
        convert.parse_object(body)
    assert caught.value.status == 400


def test_refusals_say_how_long_to_wait() -> None:
    """A limit is 429 with the seconds; an unknown reason is 403 and named."""
    limited = convert.refusal(Accepted("refused", "rate_limit", retry_after_seconds=7))
    assert (limited.status, limited.headers) == (429, {"Retry-After": "7"})
    assert convert.refusal(Accepted("refused", "mystery")).status == 403
    assert convert.failure(StoreUnavailable("away")).status == 503


def test_a_message_in_transcript_and_memory_is_shown_once_as_it_is_in_memory() -> None:
    """The past and what is remembered become one list by time, without doubles."""
    past = [{"id": "a", "at": "2026-01-01T00:00:01.000Z", "text": "old"}, {"id": "b", "at": "2026-01-01T00:00:02.000Z"}]
    kept = [{"id": "c", "at": "2026-01-01T00:00:01.500Z"}, {"id": "a", "at": "2026-01-01T00:00:01.000Z", "text": "new"}]
    found = convert.merged(past, kept, 10)
    assert [item["id"] for item in found] == ["a", "c", "b"]
    assert found[0]["text"] == "new"
    assert [item["id"] for item in convert.merged(past, kept, 2)] == ["c", "b"]


def test_a_reply_of_the_past_has_the_id_under_which_it_was_sent() -> None:
    """So that a page which has it already does not show it twice."""
    reply = OutboundMessage(ConversationKey("acme", "web", "ab/main"), "t1", "Hi", kind="apology")
    assert convert.past_item(Said("", "Hi", "2026-01-01T00:00:00Z", reply), "main", [])["id"] == "t1.apology.0"


@given(st.text())
def test_an_event_is_one_line_of_data(text: str) -> None:
    """Whatever the text, an event has three lines, and gives the text back."""
    lines = convert.sse("message", {"text": text}, "e.1").decode().split("\n")
    assert lines[:2] == ["id: e.1", "event: message"]
    assert lines[3:] == ["", ""]
    assert json.loads(lines[2].removeprefix("data: ")) == {"text": text}
