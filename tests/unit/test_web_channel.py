"""What open pages are told, and what they can have again."""

import asyncio
import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from connectors.text import Node, to_page_tree
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
    """At the next look at it, which comes within five seconds if nothing else is said."""
    assert inspect.signature(stream).parameters["check_seconds"].default <= 5
    channel = Channel("e")

    async def gone() -> bool:
        return False

    events = stream(channel, channel.cursor, running=lambda: True, lasts=gone, check_seconds=0.0)
    async with asyncio.timeout(20):
        assert [event async for event in events] == [b": open\n\n", b": waiting\n\n"]
