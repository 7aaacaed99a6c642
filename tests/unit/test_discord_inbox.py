"""What waits to be accepted, and what is known to be missing."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from connectors.discord.receive import MAX_CHANNELS, SLACK_MILLISECONDS, Gap, Inbox
from connectors.message import Author, InboundMessage

MESSAGE = InboundMessage("discord", "1", "0", Author("501"), "hello")
SLACK = SLACK_MILLISECONDS << 22


def hear(inbox: Inbox, channel: int, message: int) -> None:
    inbox.put(replace(MESSAGE, external_id=str(channel), message_id=str(message)))
    inbox.note_seen(channel, message)


async def test_what_comes_first_is_given_first() -> None:
    inbox = Inbox()
    for number in range(1, 4):
        hear(inbox, 1, number)
    got = [await inbox.get() for _ in range(3)]
    assert [item.message_id for item in got if isinstance(item, InboundMessage)] == ["1", "2", "3"]


async def test_only_so_many_messages_are_in_hand() -> None:
    """The next is given out when one is done with."""
    inbox = Inbox(max_in_hand=2)
    for number in range(1, 4):
        hear(inbox, 1, number)
    await inbox.get()
    await inbox.get()
    third = asyncio.create_task(inbox.get())
    await asyncio.sleep(0)
    assert not third.done()
    inbox.done()
    item = await third
    assert isinstance(item, InboundMessage)
    assert item.message_id == "3"


async def test_the_first_session_misses_nothing() -> None:
    inbox = Inbox()
    inbox.put_gap()
    assert len(inbox) == 0


async def test_a_gap_knows_the_newest_of_each_channel_and_a_floor_for_the_others() -> None:
    inbox = Inbox()
    inbox.start_at(SLACK)
    hear(inbox, 1, SLACK + 5)
    hear(inbox, 2, SLACK + 9)
    inbox.put_gap()
    hear(inbox, 1, SLACK + 20)
    items = [await inbox.get() for _ in range(4)]
    assert items[2] == Gap(seen={1: SLACK + 5, 2: SLACK + 9}, floor=9)


async def test_before_anything_was_heard_the_floor_is_the_beginning() -> None:
    inbox = Inbox()
    inbox.start_at(SLACK + 7)
    inbox.start_at(SLACK + 900)
    inbox.put_gap()
    assert await inbox.get() == Gap(seen={}, floor=7)


@given(st.integers(1, 6), st.lists(st.tuples(st.integers(1, 3), st.booleans()), max_size=30))
async def test_whatever_overflows_lies_after_a_gap(limit: int, steps: list[tuple[int, bool]]) -> None:
    """Each message heard is either given, or newer than what the next gap remembers of its channel."""
    inbox = Inbox(limit)
    inbox.start_at(1)
    heard: list[tuple[int, int]] = []
    found: set[tuple[int, int]] = set()

    async def take() -> None:
        item = await inbox.get()
        if isinstance(item, Gap):
            found.update((c, m) for c, m in heard if m > item.seen.get(c, item.floor))
        else:
            found.add((int(item.external_id), int(item.message_id)))

    for number, (channel, takes) in enumerate(steps, start=1):
        hear(inbox, channel, number)
        heard.append((channel, number))
        if takes:
            await take()
        assert len(inbox) <= limit + 1
    while len(inbox):
        await take()
    assert found == set(heard)


def test_the_memory_of_channels_is_bounded() -> None:
    inbox = Inbox()
    inbox.start_at(1)
    for channel in range(MAX_CHANNELS + 5):
        inbox.note_seen(channel, channel + 1)
    inbox.put_gap()
    assert len(inbox._gap().seen) == MAX_CHANNELS
