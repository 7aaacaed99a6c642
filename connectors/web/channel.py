"""The channel to one person's open chat pages: numbered events, which a page can resume, and growing replies.

All of it is in memory and bounded. A page that missed events which are no longer in memory reloads its conversations.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from connectors.http_requests import sse_event
from connectors.text import Node, to_page_tree

EVENTS_KEPT = 300
ITEMS_KEPT = 100
"""Messages kept of each conversation."""
CONVERSATIONS_KEPT = 50
CHANNELS_KEPT = 500
LONG_TEXT_CHARACTERS = 4_000
"""A longer text is rendered in a thread."""

Event = tuple[int, str, dict[str, Any]]


async def render(text: str) -> list[Node]:
    """Render *text* (Markdown) as a tree of elements."""
    return await asyncio.to_thread(to_page_tree, text) if len(text) > LONG_TEXT_CHARACTERS else to_page_tree(text)


class Draft:
    """A growing reply to the messages *answers*."""

    def __init__(self, answers: tuple[str, ...]) -> None:
        self.answers = answers
        self.length = 0
        self._pieces: list[str] = []
        self._nodes: tuple[int, list[Node]] = (0, [])

    def add(self, delta: str) -> None:
        self._pieces.append(delta)
        self.length += len(delta)

    async def nodes(self) -> list[Node]:
        """Return the text so far as a tree of elements. Returns the same list until text is added."""
        length = self.length
        if self._nodes[0] != length:
            self._nodes = (length, await render("".join(self._pieces)))
        return self._nodes[1]


class Subscription:
    """One open page. ``changed`` is set when there is something to send to it."""

    def __init__(self, cursor: int) -> None:
        self.cursor = cursor
        self.changed = asyncio.Event()
        self.typing: set[str] = set()
        self.closed = False
        self._sent: dict[str, tuple[Draft, list[Node], int]] = {}

    def close(self) -> None:
        self.closed = True
        self.changed.set()

    async def progress(self, conversation: str, draft: Draft) -> dict[str, Any] | None:
        """Return the top-level elements of *draft*, from the first that this page does not have. None if it has all."""
        sent_draft, sent, length = self._sent.get(conversation, (None, [], -1))
        if sent_draft is not draft:
            sent, length = [], -1
        if length == draft.length:
            return None
        length = draft.length
        nodes = await draft.nodes()
        same = 0
        while same < min(len(sent), len(nodes)) and sent[same] == nodes[same]:
            same += 1
        self._sent[conversation] = (draft, nodes, length)
        return {"conversation": conversation, "answers": list(draft.answers), "from": same, "nodes": nodes[same:]}


class Channel:
    """Events and growing replies for one person in one workspace.

    An event id is ``<epoch>.<number>``. *epoch* is new for each channel, so that ids of different channels differ.
    """

    def __init__(self, epoch: str) -> None:
        self._epoch = epoch
        self._number = 0
        self._events: deque[Event] = deque(maxlen=EVENTS_KEPT)
        self._items: OrderedDict[str, OrderedDict[str, dict[str, Any]]] = OrderedDict()
        self._unanswered: dict[tuple[str, str], None] = {}
        self.drafts: dict[str, Draft] = {}
        self.subscriptions: set[Subscription] = set()
        self.pages = 0
        """Number of streams that are open or about to open."""

    @property
    def cursor(self) -> str:
        """The id of the newest event, for `resume`."""
        return self.event_id(self._number)

    @property
    def last(self) -> int:
        """The number of the newest event."""
        return self._number

    def event_id(self, number: int) -> str:
        return f"{self._epoch}.{number}"

    def resume(self, cursor: str) -> int | None:
        """Return the number of the event *cursor*, or None if some of the events after it are no longer in memory."""
        epoch, _, number = cursor.rpartition(".")
        if epoch != self._epoch or not number.isdecimal() or len(number) > 15:
            return None
        oldest = self._events[0][0] - 1 if self._events else self._number
        return int(number) if oldest <= int(number) <= self._number else None

    def since(self, number: int) -> Iterator[Event]:
        """Return the events after *number*, oldest first."""
        return iter([event for event in self._events if event[0] > number])

    @property
    def waits(self) -> bool:
        """Whether an answer is still expected."""
        return bool(self._unanswered)

    def items(self, conversation: str) -> list[dict[str, Any]]:
        """Return the messages of *conversation* that are in memory, oldest first."""
        return list(self._items.get(conversation, {}).values())

    def said(self, item: dict[str, Any], *, stored: bool) -> None:
        """Publish a person's accepted message. If it was *stored*, an answer will follow."""
        if item["id"] in self._items.get(item["conversation"], {}):
            return
        if stored:
            self._unanswered[item["conversation"], item["id"]] = None
            if len(self._unanswered) > EVENTS_KEPT:
                del self._unanswered[next(iter(self._unanswered))]
        self._remember(item)
        self._publish("message", item)

    def answered(self, item: dict[str, Any]) -> None:
        """Publish a message of the bot. Publishing it twice does no harm."""
        conversation = item["conversation"]
        for message_id in item["answers"]:
            self._unanswered.pop((conversation, message_id), None)
        draft = self.drafts.get(conversation)
        if draft is not None and (item["kind"] != "notice" or set(draft.answers) & set(item["answers"])):
            del self.drafts[conversation]
        self._remember(item)
        self._publish("message", item)

    def settled(self, conversation: str, answers: tuple[str, ...]) -> None:
        """Publish that no answer to the messages *answers* will come."""
        for message_id in answers:
            self._unanswered.pop((conversation, message_id), None)
        self.drafts.pop(conversation, None)
        self._publish("settled", {"conversation": conversation, "answers": list(answers)})

    def edited(self, item: dict[str, Any]) -> None:
        """Publish the new text of a message of the bot."""
        known = self._items.get(item["conversation"], OrderedDict())
        if item["id"] in known:
            item = {**item, "at": known[item["id"]]["at"], "mark": known[item["id"]].get("mark")}
            known[item["id"]] = item
        self._publish("edited", item)

    def removed(self, conversation: str, item_id: str) -> None:
        """Publish that a message was removed."""
        self._items.get(conversation, OrderedDict()).pop(item_id, None)
        self._publish("removed", {"conversation": conversation, "id": item_id})

    def replaced(self, conversation: str, ids: Collection[str]) -> None:
        """Publish that the messages *ids* and their answers were removed."""
        items = self._items.get(conversation, OrderedDict())
        answers = [item["id"] for item in items.values() if not set(ids).isdisjoint(item.get("answers", ()))]
        self.settled(conversation, tuple(ids))
        for item_id in dict.fromkeys([*ids, *answers]):
            self.removed(conversation, item_id)

    def marked(self, conversation: str, turn_id: str, mark: str | None) -> None:
        """Publish the person's new mark of an answer."""
        for item in self._items.get(conversation, OrderedDict()).values():
            if item.get("turn") == turn_id:
                item["mark"] = mark
        self._publish("marked", {"conversation": conversation, "turn": turn_id, "mark": mark})

    def listed(self, conversation: dict[str, str]) -> None:
        """Publish a conversation that is new, was renamed or has a new message."""
        self._publish("conversation", conversation)

    def deleted(self, conversation: str) -> None:
        """Publish that a conversation was deleted."""
        self._items.pop(conversation, None)
        self.drafts.pop(conversation, None)
        for name in [name for name in self._unanswered if name[0] == conversation]:
            del self._unanswered[name]
        self._publish("deleted", {"conversation": conversation})

    def grow(self, conversation: str, answers: tuple[str, ...], delta: str) -> None:
        """Add *delta* to the growing reply to the messages *answers*."""
        draft = self.drafts.get(conversation)
        if draft is None or draft.answers != answers:
            draft = self.drafts[conversation] = Draft(answers)
        draft.add(delta)
        self.wake()

    def typing(self, conversation: str) -> None:
        for subscription in self.subscriptions:
            subscription.typing.add(conversation)
        self.wake()

    def close(self) -> None:
        for subscription in self.subscriptions:
            subscription.close()

    def _remember(self, item: dict[str, Any]) -> None:
        items = self._items.setdefault(item["conversation"], OrderedDict())
        self._items.move_to_end(item["conversation"])
        items[item["id"]] = item
        if len(items) > ITEMS_KEPT:
            items.popitem(last=False)
        if len(self._items) > CONVERSATIONS_KEPT:
            self._items.popitem(last=False)

    def _publish(self, name: str, data: dict[str, Any]) -> None:
        self._number += 1
        self._events.append((self._number, name, data))
        self.wake()

    def wake(self) -> None:
        """Wake all pages, because there is something to send to them or the state of the connector has changed."""
        for subscription in self.subscriptions:
            subscription.changed.set()


class Channels:
    """The channels of all persons. Above `CHANNELS_KEPT`, drops the least recently used channel without open pages."""

    def __init__(self) -> None:
        self._epoch = secrets.token_hex(4)
        self._channels: OrderedDict[tuple[str, str], Channel] = OrderedDict()

    def of(self, workspace_id: str, person: str) -> Channel:
        """Return the channel of *person* in the workspace. Creates it if necessary."""
        name = (workspace_id, person)
        channel = self._channels.get(name)
        if channel is None:
            self._make_room()
            # A new channel for the same person counts from one again. A new epoch keeps its event ids distinct.
            channel = self._channels[name] = Channel(f"{self._epoch}{secrets.token_hex(4)}")
        self._channels.move_to_end(name)
        return channel

    def known(self, workspace_id: str, person: str) -> Channel | None:
        """Return the channel of *person* in the workspace, or None if there is none."""
        return self._channels.get((workspace_id, person))

    def __iter__(self) -> Iterator[Channel]:
        return iter(list(self._channels.values()))

    def _make_room(self) -> None:
        if len(self._channels) < CHANNELS_KEPT:
            return
        for name, channel in self._channels.items():
            if not channel.subscriptions:
                del self._channels[name]
                return


# ---- stream ----
#
# The stream of server-sent events to an open page.


DRAFT_SECONDS = 0.08
"""Shortest interval between updates of a growing reply; faster ones would not be visible."""
DRAFT_CHARACTERS_PER_SECOND = 40_000
"""The interval grows by a second for each so many characters of the reply."""


class OpenPage(StreamingResponse):
    """The response with the stream of *events*.

    It counts as a page of *channel* from its creation, not only from its first event, so that many simultaneous
    requests cannot exceed the limit of pages.
    """

    def __init__(self, channel: Channel, events: AsyncIterator[bytes], headers: Mapping[str, str]) -> None:
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._channel = channel
        channel.pages += 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._channel.pages -= 1


async def stream(
    channel: Channel,
    cursor: str,
    *,
    running: Callable[[], bool],
    lasts: Callable[[], Awaitable[bool]],
    check_seconds: float = 5.0,
) -> AsyncIterator[bytes]:
    """Yield the events of *channel* after *cursor*. Yields ``reset`` first if some of them are no longer in memory.

    Ends when the channel is closed, when the session is no longer valid (*lasts*), or when the connector is not
    *running* and no answer is expected. Every *check_seconds* the session is checked, and a comment is sent, which
    makes proxies keep the stream open.
    """
    resumed = channel.resume(cursor)
    page = Subscription(channel.last if resumed is None else resumed)
    channel.subscriptions.add(page)
    try:
        if resumed is None:
            yield sse_event("reset", {}, channel.event_id(page.cursor))
        yield b": open\n\n"
        loop = asyncio.get_running_loop()
        next_draft_at, checked_at = 0.0, loop.time()
        while True:
            page.changed.clear()
            for event in _new_events(channel, page):
                yield event
            wait_for_seconds = check_seconds
            if channel.drafts and loop.time() < next_draft_at:
                wait_for_seconds = next_draft_at - loop.time()
            else:
                async for event in _progress(channel, page):
                    yield event
                next_draft_at = loop.time() + _pace_seconds(channel)
            if page.closed or not (running() or channel.waits):
                return
            if loop.time() - checked_at > check_seconds:
                checked_at = loop.time()
                yield b": waiting\n\n"
                if not await lasts():
                    return
            await _wait_for_change(page, wait_for_seconds)
    finally:
        channel.subscriptions.discard(page)


def _new_events(channel: Channel, page: Subscription) -> list[bytes]:
    events = []
    for number, name, data in channel.since(page.cursor):
        page.cursor = number
        events.append(sse_event(name, data, channel.event_id(number)))
    events += [sse_event("typing", {"conversation": conversation}) for conversation in page.typing]
    page.typing.clear()
    return events


async def _progress(channel: Channel, page: Subscription) -> AsyncIterator[bytes]:
    for conversation, draft in list(channel.drafts.items()):
        progress = await page.progress(conversation, draft)
        if progress is not None and channel.drafts.get(conversation) is draft:
            yield sse_event("draft", progress)


def _pace_seconds(channel: Channel) -> float:
    longest = max((draft.length for draft in channel.drafts.values()), default=0)
    return DRAFT_SECONDS + longest / DRAFT_CHARACTERS_PER_SECOND


async def _wait_for_change(page: Subscription, timeout_seconds: float) -> None:
    try:
        async with asyncio.timeout(timeout_seconds):
            await page.changed.wait()
    except TimeoutError:
        return
