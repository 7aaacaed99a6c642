"""What open pages are told, and what the chat page's JSON means."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.http_requests import sse_event
from connectors.message import (
    CALLER_PREFIX,
    ConversationKey,
    InboundKind,
    OutboundMessage,
    Role,
)
from connectors.text import Node, to_page_tree
from connectors.web import PastMessage, RequestError, Session, convert
from connectors.web import channel as channels
from connectors.web.channel import Channel, Channels, Subscription, stream
from tests.emulators.face import sse


def reply(
    number: int, conversation: str = "main", kind: str = "reply", answers: tuple[str, ...] = ()
) -> dict[str, Any]:
    return {
        "id": f"r{number}",
        "conversation": conversation,
        "by": "bot",
        "kind": kind,
        "answers": list(answers),
        "at": "",
    }


def said(number: int, conversation: str = "main") -> dict[str, Any]:
    return {"id": f"m{number}", "conversation": conversation, "by": "you", "text": "x", "at": ""}


@asynccontextmanager
async def reading(channel: Channel, cursor: str, *, running: bool = True) -> AsyncIterator[AsyncIterator[bytes]]:
    async def lasts() -> bool:
        return True

    events = stream(channel, cursor, running=lambda: running, lasts=lasts)
    async with asyncio.timeout(20):
        yield events
    await events.aclose()  # type: ignore[attr-defined]


async def until_open(events: AsyncIterator[bytes]) -> list[str]:
    """The names of the events that come before the stream is open."""
    names: list[str] = []
    async for event in events:
        if event.startswith(b":"):
            return names
        names.append(sse(event.decode())[0][0])
    return names


async def test_a_page_that_comes_back_has_what_it_missed_and_nothing_twice() -> None:
    """From its place on it gets every event once, in order."""
    channel = Channel("e")
    for number in range(5):
        channel.answered(reply(number))
    async with reading(channel, "e.2") as events:
        assert await until_open(events) == []
        assert [sse((await anext(events)).decode())[0][1]["id"] for _ in range(3)] == ["r2", "r3", "r4"]


async def test_a_page_whose_place_is_not_known_is_told_to_begin_anew() -> None:
    """After a restart, or when too much has happened, the first event is ``reset``."""
    channel = Channel("e")
    for number in range(channels.EVENTS_KEPT + 2):
        channel.answered(reply(number))
    for cursor in ("other.3", "e.1", "e.99999", "", "e.x", "e." + "9" * 30):
        async with reading(channel, cursor) as events:
            assert await until_open(events) == ["reset"], cursor
    assert not channel.subscriptions


@given(
    st.lists(st.text(max_size=20) | st.sampled_from(["\n\n", "**", "# ", "- ", "```\n", "|a|b|\n|-|-|\n"]), max_size=20)
)
def test_what_a_page_is_told_of_a_draft_makes_the_whole(deltas: list[str]) -> None:
    """The pieces, put together as the page does it, are the text so far, also for a page that comes late."""

    async def grow() -> None:
        channel, early, late = Channel("e"), Subscription(0), Subscription(0)
        page: list[Node] = []
        for delta in deltas:
            channel.grow("main", ("m1",), delta)
            told = await early.progress("main", channel.drafts["main"])
            if told is not None:
                page[told["from"] :] = told["nodes"]
        assert page == to_page_tree("".join(deltas))
        if deltas:
            told = await late.progress("main", channel.drafts["main"])
            assert told is not None
            assert (told["from"], told["nodes"]) == (0, page)
            assert await late.progress("main", channel.drafts["main"]) is None

    asyncio.run(grow())


def test_a_draft_ends_with_its_reply_and_not_with_a_notice_about_something_else() -> None:
    """A command's answer leaves the reply that is being written alone."""
    channel = Channel("e")
    channel.grow("main", ("m1",), "Hel")
    channel.answered(reply(1, kind="notice", answers=("m2",)))
    assert "main" in channel.drafts
    channel.answered(reply(2, answers=("m1",)))
    assert channel.drafts == {}


def test_an_answer_is_awaited_until_it_comes() -> None:
    """A stored message waits for its answer; one that is ignored does not."""
    channel = Channel("e")
    channel.said(said(1), stored=False)
    assert not channel.waits
    channel.said(said(2), stored=True)
    assert channel.waits
    channel.answered(reply(1, answers=("m2",)))
    assert not channel.waits


def test_a_reply_can_be_edited_and_taken_back() -> None:
    """An edit keeps the place and the time; what was taken back is gone; both may be repeated."""
    channel = Channel("e")
    channel.answered({**reply(1), "at": "then"})
    for _ in range(2):
        channel.edited({**reply(1), "at": "now", "text": "better"})
    assert [(item["at"], item["text"]) for item in channel.items("main")] == [("then", "better")]
    for _ in range(2):
        channel.removed("main", "r1")
    assert channel.items("main") == []


def test_a_message_without_an_answer_is_no_more_waited_for() -> None:
    channel = Channel("e")
    channel.said({**reply(1), "id": "m1", "by": "you"}, stored=True)
    channel.grow("main", ("m1",), " ")
    channel.settled("main", ("m1",))
    assert not channel.waits
    assert not channel.drafts
    assert [item["id"] for item in channel.items("main")] == ["m1"]
    assert [event[1:] for event in channel.since(1)] == [("settled", {"conversation": "main", "answers": ["m1"]})]


def test_memory_is_bounded() -> None:
    """Messages, conversations and people beyond the limits push the oldest out; who is watched stays."""
    channel = Channel("e")
    for number in range(channels.ITEMS_KEPT + 5):
        channel.answered(reply(number))
    assert len(channel.items("main")) == channels.ITEMS_KEPT
    for number in range(channels.CONVERSATIONS_KEPT + 5):
        channel.answered(reply(0, f"c{number}"))
    assert channel.items("main") == []
    everybody = Channels()
    watched = everybody.of("acme", "ann")
    watched.subscriptions.add(Subscription(0))
    for number in range(channels.CHANNELS_KEPT + 5):
        everybody.of("acme", f"p{number}")
    assert len(list(everybody)) == channels.CHANNELS_KEPT
    assert everybody.known("acme", "ann") is watched
    assert everybody.known("acme", "p0") is None


async def test_a_page_is_let_go_when_the_runtime_stops_but_not_before_its_answer() -> None:
    """Once nothing runs any more a stream ends; while an answer is to come it goes on."""
    channel = Channel("e")
    channel.said(said(1), stored=True)
    async with reading(channel, channel.cursor, running=False) as events:
        assert await until_open(events) == []
        channel.answered(reply(1, answers=("m1",)))
        assert [sse(event.decode())[0][0] async for event in events] == ["message"]


async def test_a_page_is_let_go_when_its_channel_is_closed() -> None:
    """Signing out ends the stream."""
    channel = Channel("e")
    async with reading(channel, channel.cursor) as events:
        assert await until_open(events) == []
        channel.close()
        assert [event async for event in events] == []
    assert not channel.subscriptions


async def test_a_page_is_let_go_when_its_session_is_gone() -> None:
    """At the next look at it."""
    channel = Channel("e")

    async def gone() -> bool:
        return False

    events = stream(channel, channel.cursor, running=lambda: True, lasts=gone, check_seconds=0.0)
    async with asyncio.timeout(20):
        assert [event async for event in events] == [b": open\n\n", b": waiting\n\n"]


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
