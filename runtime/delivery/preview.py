"""Shows a reply while it is written, by the means that the platform has.

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
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
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
from runtime.delivery.typing import TypingIndicator

FIRST_SECONDS = 0.7
"""How long the first words wait for more: a reply that is complete by then is sent once, whole."""
SILENT_SECONDS = 120.0
"""A worker that reports nothing for so long has stopped."""
_LONGEST_CALL_SECONDS = 30.0
_FINISH_SECONDS = 40.0
_TURN_SECONDS = 0.3
"""How often a first message checks whether the older replies of its conversation are delivered."""
_APPENDED_CHARACTERS = 3_500
"""A message that is added to grows up to here, below what any platform allows. The parts of the finished reply
replace it and show the rest."""
_REMEMBERED_TURNS = 4096
_log = structlog.get_logger()


class _Show(NamedTuple):
    reports: asyncio.Queue[Progress]
    task: asyncio.Task[None]
    typing: TypingIndicator


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
    ) -> None:
        self._connectors = connectors
        self._outbox = outbox
        self._rate_limiters = rate_limiters
        self._streams = streams
        self._acknowledgement = acknowledgement
        self._shows: dict[str, _Show] = {}
        self._finished: OrderedDict[str, None] = OrderedDict()
        """Turns whose reply is being delivered or was: late reports about them are ignored."""
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
        edits = isinstance(connector, EditsMessages) and connector.capabilities.edits_per_second > 0
        return PreviewMode.REPLACEABLE if self._streams and edits else PreviewMode.NOT

    async def finish(self, turn_id: str) -> None:
        """End the preview of a turn and let none begin: its reply is to be delivered."""
        self._finished[turn_id] = None
        if len(self._finished) > _REMEMBERED_TURNS:
            self._finished.popitem(last=False)
        show = self._shows.get(turn_id)
        if show is not None:
            show.reports.put_nowait(Progress(turn_id, Step.ENDED))
            await asyncio.wait({show.task}, timeout=_FINISH_SECONDS)
            await show.typing.close()

    def _hear(self, news: News) -> None:
        progress = Progress.of(news)
        show = self._shows.get(progress.turn_id)
        if progress.message is not None:
            if self._is_open and progress.turn_id not in self._finished:
                self._begin(progress.turn_id, progress.message, show)
        elif show is not None:
            show.reports.put_nowait(progress)

    def _hear_unanswered(self, news: News) -> None:
        key = ConversationKey.decode(news["key"])
        connector = self._connectors.get(key.connector)
        if isinstance(connector, ReleasesWaiters):
            connector.let_go(key, tuple(news["messages"]), gone=news.get("gone", False))

    def _begin(self, turn_id: str, message: OutboundMessage, former: _Show | None) -> None:
        """Show the answer *message*, after the *former* show of the same turn has ended."""
        if former is not None:
            former.reports.put_nowait(Progress(turn_id, Step.ENDED))
        connector = self._connectors.get(message.key.connector)
        if connector is None:
            return
        preview = self._preview(connector, message)
        has_signs = isinstance(connector, ShowsTyping) or (self._acknowledgement and isinstance(connector, Reacts))
        if preview is None and not has_signs:
            return
        reports: asyncio.Queue[Progress] = asyncio.Queue()
        typing = TypingIndicator(connector, message, self._rate_limiters.of(connector), self._acknowledgement)

        async def show() -> None:
            if former is not None:
                await asyncio.wait({former.task}, timeout=_FINISH_SECONDS)
            await _show(typing, preview, reports)

        task = asyncio.create_task(show(), name=f"show of {turn_id}")
        self._shows[turn_id] = _Show(reports, task, typing)
        task.add_done_callback(lambda ended: self._forget(turn_id, ended))

    def _forget(self, turn_id: str, task: asyncio.Task[None]) -> None:
        show = self._shows.get(turn_id)
        if show is not None and show.task is task:
            del self._shows[turn_id]

    def _preview(self, connector: Connector, message: OutboundMessage) -> _Preview | None:
        if self.watched(connector, message) is PreviewMode.NOT:
            return None
        if isinstance(connector, StreamsText):
            return _StreamedPreview(connector, message)
        if isinstance(connector, AppendsText) and connector.appends(message):
            return _AppendedPreview(connector, message, self._outbox, self._rate_limiters.of(connector))
        return _EditedPreview(connector, message, self._outbox, self._rate_limiters.of(connector))


async def _show(typing: TypingIndicator, preview: _Preview | None, reports: asyncio.Queue[Progress]) -> None:
    typing.begin()
    try:
        if preview is None:
            while (await _next_report(reports)).step is not Step.ENDED:
                pass
        else:
            async with preview.running():
                while (progress := await _next_report(reports)).step is not Step.ENDED:
                    if progress.step is Step.DELTA:
                        await preview.show(progress.text)
                    else:
                        preview.restart()
                typing.end()
    except Exception:  # noqa: BLE001 - a broken preview must not cost the reply; it is logged whole
        _log.exception("preview.ended", why="internal")
    finally:
        await typing.close()


async def _next_report(reports: asyncio.Queue[Progress]) -> Progress:
    try:
        async with asyncio.timeout(SILENT_SECONDS):
            return await reports.get()
    except TimeoutError:
        return Progress("", Step.ENDED)


class _Preview(ABC):
    """A reply that is being written."""

    @abstractmethod
    async def show(self, delta: str) -> None:
        """Show the next piece."""

    @abstractmethod
    def restart(self) -> None:
        """Begin again: what was shown was not the answer."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep the preview up to date while inside."""
        yield


class _StreamedPreview(_Preview):
    """Passes each piece on to people who are connected to this process."""

    def __init__(self, connector: StreamsText, message: OutboundMessage) -> None:
        self._connector = connector
        self._message = message

    async def show(self, delta: str) -> None:
        answers = tuple(one for one in self._message.answers if one not in self._message.superseded)
        await self._connector.stream(self._message.key, answers, delta)

    def restart(self) -> None:
        """Do nothing: streamed text cannot be replaced, and workers do not restart it."""


class _PacedPreview(_Preview):
    """Gathers pieces, and shows them at the pace that the platform allows."""

    def __init__(
        self, connector: Connector, message: OutboundMessage, outbox: Outbox, rate_limiter: RateLimiter
    ) -> None:
        self._message = message
        self._outbox = outbox
        self._address = connector.name
        """The address at which older replies of the conversation may still wait."""
        self._rate_limiter = rate_limiter
        self._edits_per_second = connector.capabilities.edits_per_second
        self._text = ""
        self._has_news = asyncio.Event()
        self._has_ended = asyncio.Event()

    async def show(self, delta: str) -> None:
        self._text += delta
        self._has_news.set()

    def restart(self) -> None:
        self._text = ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        # Not in a task group, which would wrap what the body raises. This block owns the task and ends it.
        showing = asyncio.create_task(self._run())
        try:
            yield
        finally:
            self._has_ended.set()
            self._has_news.set()
            # A call in hand ends by itself: its receipt says which message gets the last form.
            _, late = await asyncio.wait({showing}, timeout=_LONGEST_CALL_SECONDS)
            for task in late:
                task.cancel()

    async def _run(self) -> None:
        try:
            await self._has_news.wait()
            await self._pause(FIRST_SECONDS)
            if self._has_ended.is_set():
                return  # the reply is complete: the delivery shows it
            states = await self._outbox.part_states(self._message.key, self._message.turn_id)
            if any(state.stage is PartStage.DRAFTING for state in states.values()):
                _log.info("preview.ended", why="first words of an earlier attempt may be there")
                return
            self._continue_from(states)
            while not self._has_ended.is_set():
                self._has_news.clear()
                await self._show_paced()
                await self._has_news.wait()
        except (SendFailed, StoreUnavailable, Superseded) as error:
            _log.info("preview.ended", why=str(error))
        except Exception:  # noqa: BLE001 - a broken preview must not cost the reply; it is logged whole
            _log.exception("preview.ended", why="internal")

    async def _show_paced(self) -> None:
        if not self._text.strip() or self._has_ended.is_set():
            return
        if seconds := self._rate_limiter.take_extra(self._message.key, self._next_call):
            self._has_news.set()  # more may be written until then
            await self._pause(seconds)
            return
        try:
            await self._show_now()
        except OlderReplyWaits:  # people would see this answer above an older one
            self._has_news.set()
            await self._pause(_TURN_SECONDS)
        except SendFailed as error:
            if not error.retryable or error.ambiguous:
                raise
            self._rate_limiter.hold(self._message.key, error)
            await self._pause(error.retry_after_seconds or 1.0 / self._edits_per_second)

    async def _pause(self, seconds: float) -> None:
        """Wait, but not beyond the end of the answer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._has_ended.wait()

    @property
    @abstractmethod
    def _next_call(self) -> Extra:
        """The kind of the next call to the platform, for the rate limiter."""

    @abstractmethod
    def _continue_from(self, states: Mapping[int, PartState]) -> None:
        """Take over what an interrupted turn has shown."""

    @abstractmethod
    async def _show_now(self) -> None:
        """Show the text so far. Raises `SendFailed`, and `OlderReplyWaits` before the first message."""


class _EditedPreview(_PacedPreview):
    """Sends a first message and edits it. A reply that outgrows a message goes on in the next one."""

    def __init__(
        self, connector: Connector, message: OutboundMessage, outbox: Outbox, rate_limiter: RateLimiter
    ) -> None:
        super().__init__(connector, message, outbox, rate_limiter)
        assert isinstance(connector, EditsMessages)
        self._connector = connector
        self._editor: EditsMessages = connector
        self._shown: dict[int, tuple[str, Receipt]] = {}
        """By part: the text that people see, and its message."""

    @property
    def _next_call(self) -> Extra:
        return Extra.EDIT if self._shown else Extra.MESSAGE

    def _continue_from(self, states: Mapping[int, PartState]) -> None:
        self._shown = {
            index: ("", Receipt(state.message_id)) for index, state in states.items() if state.stage is PartStage.SHOWN
        }

    async def _show_now(self) -> None:
        message = replace(self._message, text=self._text)
        texts = takewhile(lambda part: not part.file_name, await render_reply(self._connector, message))
        stale = [part for part in texts if self._shown.get(part.index, (None,))[0] != part.text]
        if not stale:
            return
        if len(stale) > 1:
            self._has_news.set()  # one message at a time, at the pace
        part = stale[0]
        if part.index in self._shown:
            receipt = self._shown[part.index][1]
            await self._editor.edit(message, part, receipt)
        else:
            receipt = await self._send_first(message, part)
        self._shown[part.index] = (part.text, receipt)

    async def _send_first(self, message: OutboundMessage, part: OutboundPart) -> Receipt:
        address = "" if self._shown else self._address
        await self._outbox.mark(message, part.index, PartStage.DRAFTING, address=address)
        try:
            receipt = await self._connector.send(message, draft_of(part))
        except SendFailed as error:
            if not error.ambiguous:
                await self._outbox.mark(message, part.index, PartStage.UNSENT)
            raise
        await self._outbox.mark(message, part.index, PartStage.SHOWN, receipt.message_id)
        return receipt


class _AppendedPreview(_PacedPreview):
    """Begins a message and adds to it, by the platform's own means."""

    def __init__(
        self, connector: Connector, message: OutboundMessage, outbox: Outbox, rate_limiter: RateLimiter
    ) -> None:
        super().__init__(connector, message, outbox, rate_limiter)
        assert isinstance(connector, AppendsText)
        self._appender: AppendsText = connector
        self._receipt: Receipt | None = None
        self._shown = ""
        self._was_interrupted = False

    @property
    def _next_call(self) -> Extra:
        return Extra.OPENING if self._receipt is None else Extra.ADDITION

    def _continue_from(self, states: Mapping[int, PartState]) -> None:
        self._was_interrupted = any(state.stage is PartStage.SHOWN for state in states.values())

    async def _show_now(self) -> None:
        text = self._text[:_APPENDED_CHARACTERS]
        if self._was_interrupted or not text.startswith(self._shown):
            return  # adding cannot replace what an earlier attempt has shown; the last form does
        if self._receipt is None:
            await self._outbox.mark(self._message, 0, PartStage.DRAFTING, address=self._address)
            self._receipt = await self._appender.begin(self._message, text)
            await self._outbox.mark(self._message, 0, PartStage.SHOWN, self._receipt.message_id)
        elif text != self._shown:
            await self._appender.append(self._message, self._receipt, text.removeprefix(self._shown))
        self._shown = text
