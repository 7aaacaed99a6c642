"""Shows a reply while it is written, by the means that the platform has, and that somebody is writing.

`Previews` receives the reports of workers (`runtime.delivery.progress`) and runs one preview for each turn: text goes
straight on (web, HTTP, console), a message is sent and edited, or a message is added to. A preview never fails a turn
and never keeps a reply waiting: what it may not show now it leaves out, and the delivery shows the whole reply.

What people see is stored as `PartStage.SHOWN`, so the delivery gives it its last form even after the process has ended.
Until the first message has a receipt, the part is `PartStage.DRAFTING`. A turn that begins again in that stage has no
preview: the delivery can find the lost message, but a second first message would hide it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import takewhile
from typing import NamedTuple

import structlog

from connectors.connector import (
    AppendsText,
    Connector,
    EditsMessages,
    Reacts,
    ReleasesWaiters,
    SendFailed,
    ShowsTyping,
    StreamsText,
)
from connectors.message import ConversationKey, OutboundMessage, OutboundPart, Receipt, StoreUnavailable, Superseded
from runtime.coordination import Hub, News
from runtime.delivery.outbox import OlderReplyWaits, Outbox, PartStage, PartState
from runtime.delivery.progress import PROGRESS, UNANSWERED, PreviewMode, Progress, Step
from runtime.delivery.rate_limiter import Extra, RateLimiter, RateLimiters
from runtime.delivery.sender import draft_of, render_reply

FIRST_TEXT_SECONDS = 0.7
"""How long the first words wait for more: a reply that is complete by then is sent once, whole."""
FIRST_SIGN_SECONDS = 1.0
"""How long an answer may take before the platform is called for a typing sign."""
LAST_SIGN_SECONDS = 0.5
"""How long a reply waits for a typing call in hand. A typing sign that the platform handles after the reply would say
for some seconds more that somebody is writing; a slow platform must not hold up the reply."""
SILENT_SECONDS = 120.0
"""A worker that reports nothing for so long has stopped."""
_LONGEST_CALL_SECONDS = 30.0
_FINISH_SECONDS = 40.0
_TURN_SECONDS = 0.3
"""How often a first message checks whether the older replies of its conversation are delivered."""
_APPENDED_CHARACTERS = 3_500
"""A message that is added to grows up to here, below what any platform allows. The parts of the finished reply
replace it and show the rest."""
_log = structlog.get_logger()


class _Show(NamedTuple):
    reports: asyncio.Queue[Progress]
    task: asyncio.Task[None]


class _Text:
    """What is written so far of the answer *message*."""

    def __init__(self, message: OutboundMessage) -> None:
        self.message = message
        self.written = ""
        self.has_news = asyncio.Event()
        self.has_ended = asyncio.Event()

    def take(self, report: Progress) -> None:
        """Add the next piece, or begin again if what was written is not the answer."""
        if report.step is Step.DELTA:
            self.written += report.text
            self.has_news.set()
        else:
            self.written = ""

    def end(self) -> None:
        self.has_ended.set()
        self.has_news.set()


class Previews:
    """The previews and typing signs of this process; *acknowledgement* is an emoji for received messages, or empty.

    *streams* says whether previews are wanted on platforms that edit messages.
    """

    def __init__(
        self,
        connectors: Mapping[str, Connector],
        outbox: Outbox,
        rate_limiters: RateLimiters,
        hub: Hub,
        *,
        streams: bool = True,
        acknowledgement: str = "",
        first_text_seconds: float = FIRST_TEXT_SECONDS,
        first_sign_seconds: float = FIRST_SIGN_SECONDS,
        last_sign_seconds: float = LAST_SIGN_SECONDS,
        turn_seconds: float = _TURN_SECONDS,
    ) -> None:
        self._connectors = connectors
        self._outbox = outbox
        self._rate_limiters = rate_limiters
        self._streams = streams
        self._acknowledgement = acknowledgement
        self._first_text_seconds = first_text_seconds
        self._first_sign_seconds = first_sign_seconds
        self._last_sign_seconds = last_sign_seconds
        self._turn_seconds = turn_seconds
        self._shows: dict[str, _Show] = {}
        """By turn."""
        self._is_open = False
        hub.hear(PROGRESS, self._hear)
        hub.hear(UNANSWERED, self._hear_unanswered)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Show what workers report while inside."""
        self._is_open = True
        try:
            yield
        finally:
            self._is_open = False
            tasks = {show.task for show in self._shows.values()}
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=1.0)

    def watched(self, connector: Connector, message: OutboundMessage) -> PreviewMode:
        """Return whether people would see the answer *message* while it is written."""
        if isinstance(connector, StreamsText):
            return PreviewMode.ADDED_TO if connector.is_watched(message.key, message.answers) else PreviewMode.NOT
        if not self._streams or not isinstance(connector, EditsMessages):
            return PreviewMode.NOT
        can_grow = connector.capabilities.edits_per_second > 0 and connector.edits(message)
        return PreviewMode.REPLACEABLE if can_grow else PreviewMode.NOT

    async def finish(self, turn_id: str) -> None:
        """End the preview of a turn: its reply is to be delivered."""
        show = self._shows.get(turn_id)
        if show is not None:
            show.reports.put_nowait(Progress(turn_id, Step.ENDED))
            await asyncio.wait({show.task}, timeout=_FINISH_SECONDS)

    def _hear(self, news: News) -> None:
        progress = Progress.of(news)
        show = self._shows.get(progress.turn_id)
        if show is not None:
            show.reports.put_nowait(progress)
        elif progress.message is not None and self._is_open:
            self._begin(progress.message)

    def _hear_unanswered(self, news: News) -> None:
        key = ConversationKey.decode(news["key"])
        connector = self._connectors.get(key.connector)
        if isinstance(connector, ReleasesWaiters):
            connector.let_go(key, tuple(news["messages"]), gone=news.get("gone", False))

    def _begin(self, message: OutboundMessage) -> None:
        """Begin to show the answer *message*, if there is anything to show."""
        turn_id, connector = message.turn_id, self._connectors.get(message.key.connector)
        if connector is None:
            return
        mode = self.watched(connector, message)
        has_signs = isinstance(connector, ShowsTyping) or (self._acknowledgement and isinstance(connector, Reacts))
        if mode is PreviewMode.NOT and not has_signs:
            return
        reports: asyncio.Queue[Progress] = asyncio.Queue()
        task = asyncio.create_task(self._show(connector, message, mode, reports), name=f"show of {turn_id}")
        self._shows[turn_id] = _Show(reports, task)
        task.add_done_callback(lambda _: self._shows.pop(turn_id, None))

    async def _show(
        self, connector: Connector, message: OutboundMessage, mode: PreviewMode, reports: asyncio.Queue[Progress]
    ) -> None:
        """Show what the *reports* say until the answer ends."""
        text, growing = _Text(message), None
        signs = asyncio.create_task(self._show_signs(connector, message, text.has_ended))
        if mode is PreviewMode.REPLACEABLE:
            growing = asyncio.create_task(self._grow(connector, text))
        answers = tuple(answered for answered in message.answers if answered not in message.superseded)
        try:
            while (report := await _next_report(reports)).step is not Step.ENDED:
                text.take(report)
                if mode is PreviewMode.ADDED_TO and isinstance(connector, StreamsText) and report.text:
                    await connector.stream(message.key, answers, report.text)
            text.end()
            if growing is not None:
                # A call in hand ends by itself: its receipt says which message gets the last form.
                await asyncio.wait({growing}, timeout=_LONGEST_CALL_SECONDS)
            await asyncio.wait({signs}, timeout=self._last_sign_seconds)
        except Exception:  # noqa: BLE001 - a broken preview must not cost the reply; it is logged whole
            _log.exception("preview.ended", why="internal")
        finally:
            tasks = {signs} if growing is None else {signs, growing}
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _grow(self, connector: Connector, text: _Text) -> None:
        """Show *text* as it grows, at the pace that the platform allows, until the answer ends."""
        by_appending = isinstance(connector, AppendsText) and connector.appends(text.message)
        reply = (_AppendedReply if by_appending else _EditedReply)(connector, text.message, self._outbox)
        try:
            await text.has_news.wait()
            if await _happens_within(text.has_ended, self._first_text_seconds):
                return  # the reply is complete: the delivery shows it
            states = await self._outbox.part_states(text.message.key, text.message.turn_id)
            if any(state.stage is PartStage.DRAFTING for state in states.values()):
                _log.info("preview.ended", why="first words of an earlier attempt may be there")
                return
            reply.continue_from(states)
            while not text.has_ended.is_set():
                text.has_news.clear()
                pause_seconds = await self._show_text(connector, reply, text)
                if pause_seconds is not None:
                    await _happens_within(text.has_ended, pause_seconds)
                    text.has_news.set()
                await text.has_news.wait()
        except (SendFailed, StoreUnavailable, Superseded) as error:
            _log.info("preview.ended", why=str(error))
        except Exception:  # noqa: BLE001 - a broken preview must not cost the reply; it is logged whole
            _log.exception("preview.ended", why="internal")

    async def _show_text(self, connector: Connector, reply: _GrowingReply, text: _Text) -> float | None:
        """Show *text*, unless the platform may not be called now. Return after how many seconds to go on, if at all."""
        key, limiter = text.message.key, self._rate_limiters.of(connector)
        if not text.written.strip():
            return None
        if seconds := limiter.take_extra(key, reply.next_call):
            return seconds
        try:
            has_more = await reply.show(text.written)
        except OlderReplyWaits:  # people would see this answer above an older one
            return self._turn_seconds
        except SendFailed as error:
            if not error.retryable or error.ambiguous:
                raise
            limiter.hold(key, error)
            return error.retry_after_seconds or 1.0 / connector.capabilities.edits_per_second
        return 0.0 if has_more else None

    async def _show_signs(self, connector: Connector, message: OutboundMessage, has_ended: asyncio.Event) -> None:
        """Put the acknowledgement on each message that is answered, and show that somebody is typing."""
        key, limiter = message.key, self._rate_limiters.of(connector)
        if self._acknowledgement and isinstance(connector, Reacts):
            for message_id in message.answers:
                if not has_ended.is_set() and not limiter.take_extra(key, Extra.SIGN):
                    await _call_for_sign(connector.react(key, message_id, self._acknowledgement), limiter, key)
        if isinstance(connector, ShowsTyping):
            pause_seconds = self._first_sign_seconds
            while not await _happens_within(has_ended, pause_seconds):
                if not limiter.take_extra(key, Extra.SIGN):  # else it could keep a final part waiting
                    await _call_for_sign(connector.typing(key), limiter, key)
                pause_seconds = connector.typing_lasts_seconds


async def _call_for_sign(call: Awaitable[None], limiter: RateLimiter, key: ConversationKey) -> None:
    try:
        await call
    except SendFailed as error:
        limiter.hold(key, error)


async def _next_report(reports: asyncio.Queue[Progress]) -> Progress:
    try:
        async with asyncio.timeout(SILENT_SECONDS):
            return await reports.get()
    except TimeoutError:
        return Progress("", Step.ENDED)


async def _happens_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for *event*, *seconds* at most, and return whether it has happened."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


class _GrowingReply(ABC):
    """What people see of a reply that is being written, and how it grows."""

    def __init__(self, connector: Connector, message: OutboundMessage, outbox: Outbox) -> None:
        self.message = message
        self._connector = connector
        self._outbox = outbox

    @property
    @abstractmethod
    def next_call(self) -> Extra:
        """The kind of the next call to the platform, for the rate limiter."""

    @abstractmethod
    def continue_from(self, states: Mapping[int, PartState]) -> None:
        """Take over what an interrupted turn has shown."""

    @abstractmethod
    async def show(self, text: str) -> bool:
        """Show *text* by one call. Return whether more calls are needed to show all of it.

        Raises `SendFailed`, and `OlderReplyWaits` before the first message.
        """


class _EditedReply(_GrowingReply):
    """Sends a first message and edits it. A reply that outgrows a message goes on in the next one."""

    def __init__(self, connector: Connector, message: OutboundMessage, outbox: Outbox) -> None:
        super().__init__(connector, message, outbox)
        self._shown: dict[int, tuple[str, Receipt]] = {}
        """By part: the text that people see, and its message."""

    @property
    def next_call(self) -> Extra:
        return Extra.EDIT if self._shown else Extra.MESSAGE

    def continue_from(self, states: Mapping[int, PartState]) -> None:
        self._shown = {
            index: ("", Receipt(state.message_id)) for index, state in states.items() if state.stage is PartStage.SHOWN
        }

    async def show(self, text: str) -> bool:
        connector, message = self._connector, replace(self.message, text=text)
        assert isinstance(connector, EditsMessages)
        parts = takewhile(lambda part: not part.file_name, await render_reply(self._connector, message))
        stale = [part for part in parts if self._shown.get(part.index, (None,))[0] != part.text]
        if not stale:
            return False
        part = stale[0]
        if part.index in self._shown:
            receipt = self._shown[part.index][1]
            await connector.edit(message, part, receipt)
        else:
            receipt = await self._send_first(message, part)
        self._shown[part.index] = (part.text, receipt)
        return len(stale) > 1

    async def _send_first(self, message: OutboundMessage, part: OutboundPart) -> Receipt:
        address = "" if self._shown else self._connector.name  # at which older replies may still wait
        await self._outbox.mark(message, part.index, PartStage.DRAFTING, address=address)
        try:
            receipt = await self._connector.send(message, draft_of(part))
        except SendFailed as error:
            if not error.ambiguous:
                await self._outbox.mark(message, part.index, PartStage.UNSENT)
            raise
        await self._outbox.mark(message, part.index, PartStage.SHOWN, receipt.message_id)
        return receipt


class _AppendedReply(_GrowingReply):
    """Begins a message and adds to it, by the platform's own means."""

    def __init__(self, connector: Connector, message: OutboundMessage, outbox: Outbox) -> None:
        super().__init__(connector, message, outbox)
        self._receipt: Receipt | None = None
        self._shown = ""
        self._was_interrupted = False

    @property
    def next_call(self) -> Extra:
        return Extra.OPENING if self._receipt is None else Extra.ADDITION

    def continue_from(self, states: Mapping[int, PartState]) -> None:
        self._was_interrupted = any(state.stage is PartStage.SHOWN for state in states.values())

    async def show(self, text: str) -> bool:
        connector, text = self._connector, text[:_APPENDED_CHARACTERS]
        assert isinstance(connector, AppendsText)
        if self._was_interrupted or not text.startswith(self._shown):
            return False  # adding cannot replace what an earlier attempt has shown; the last form does
        if self._receipt is None:
            await self._outbox.mark(self.message, 0, PartStage.DRAFTING, address=self._connector.name)
            self._receipt = await connector.begin(self.message, text)
            await self._outbox.mark(self.message, 0, PartStage.SHOWN, self._receipt.message_id)
        elif text != self._shown:
            await connector.append(self.message, self._receipt, text.removeprefix(self._shown))
        self._shown = text
        return False
