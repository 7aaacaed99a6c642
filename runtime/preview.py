"""Shows a reply while it is written, by whichever means the platform has.

What was shown is stored as `Stage.SHOWN`, so that the delivery gives it its last form also after the process ended in
between. Until the first message has a receipt, the part is stored as `Stage.DRAFTING`. If a turn begins again in that
stage, nothing more is shown of it: the delivery can find what may be there, and a second beginning would hide it. A
preview never fails a turn and never keeps a reply waiting: what it may not show now it leaves out, and the delivery
shows the whole.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import takewhile

import structlog

from connectors.connector import AppendsText, Connector, EditsMessages, SendFailed, StreamsText
from connectors.message import OutboundMessage, OutboundPart, Receipt, StoreUnavailable, Superseded
from runtime.delivery import rendered
from runtime.part_states import PartStates
from runtime.parts import NotNext, PartState, Stage, drafted
from runtime.rate_limiter import Extra, RateLimiter

FIRST_SECONDS = 0.7
"""How long the first words wait for more: a reply that is done by then is sent once, whole."""
_LONGEST_CALL_SECONDS = 30.0
_TURN_SECONDS = 0.3
"""How often first words ask whether the replies before theirs have been delivered."""
_STREAM_CHARACTERS = 3_500
"""A reply that is added to is shown up to here; its last form, which may be several messages, shows the rest."""
_log = structlog.get_logger()


class Preview(ABC):
    """A reply that is being written. `show` and, where it is not None, `restart` are called by who writes it."""

    def __init__(self, message: OutboundMessage) -> None:
        self._message = message
        self._pieces: list[str] = []

    @property
    def restart(self) -> Callable[[], Awaitable[None]] | None:
        """Begin again: what was shown was not the answer."""
        return None

    @property
    def text(self) -> str:
        """What was written so far."""
        return "".join(self._pieces)

    @abstractmethod
    async def show(self, delta: str) -> None:
        """The next piece."""

    @asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        """While inside, what is written appears."""
        yield


class Passing(Preview):
    """Each piece goes on as it comes."""

    def __init__(self, connector: StreamsText, message: OutboundMessage) -> None:
        super().__init__(message)
        self._connector = connector

    async def show(self, delta: str) -> None:
        self._pieces.append(delta)
        answers = tuple(one for one in self._message.answers if one not in self._message.superseded)
        await self._connector.stream(self._message.key, answers, delta)


class _InDoubt(Exception):
    """Nobody knows whether people see the first words of an earlier attempt."""


class _Paced(Preview):
    """Pieces are collected, and shown at the pace that the platform allows."""

    def __init__(
        self, connector: Connector, message: OutboundMessage, states: PartStates, rate_limiter: RateLimiter
    ) -> None:
        super().__init__(message)
        self._states = states
        self._address = "" if connector.capabilities.local else connector.name
        """Where older replies of the conversation may still wait."""
        self._rate_limiter = rate_limiter
        self._per_second = connector.capabilities.edits_per_second
        self._news = asyncio.Event()
        self._ended = False
        self._stopping = asyncio.Event()

    async def show(self, delta: str) -> None:
        self._pieces.append(delta)
        self._news.set()

    @property
    def restart(self) -> Callable[[], Awaitable[None]]:
        return self._restart

    async def _restart(self) -> None:
        self._pieces.clear()

    @asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        # Not in a TaskGroup: that would wrap what the body raises. This block owns the task and ends it.
        showing = asyncio.create_task(self._run())
        try:
            yield
        finally:
            self._ended = True
            self._stopping.set()
            self._news.set()
            # A call in hand ends by itself: its receipt says which message gets the last form.
            _, late = await asyncio.wait({showing}, timeout=_LONGEST_CALL_SECONDS)
            for task in late:
                task.cancel()

    async def _run(self) -> None:
        try:
            await self._gather()
            if self._ended:
                return  # the reply is there: the delivery shows it
            await self._look()
            while not self._ended:
                self._news.clear()
                await self._show_paced()
                await self._news.wait()
        except (SendFailed, StoreUnavailable, Superseded, _InDoubt) as error:
            _log.info("preview.ended", why=str(error))
        except Exception:  # noqa: BLE001 - a broken preview must not cost the reply; it is logged whole
            _log.exception("preview.ended", why="internal")

    async def _look(self) -> None:
        """Take up what an interrupted turn has shown. Raises `_InDoubt`."""
        states = await self._states.of_turn(self._message.key, self._message.turn_id)
        if any(state.stage is Stage.DRAFTING for state in states.values()):
            raise _InDoubt("first words of an earlier attempt may be there")
        await self._take_up(states)

    async def _gather(self) -> None:
        """Wait for first words that are worth a call to the platform, but no longer than the reply is written."""
        await self._news.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_SECONDS):
                while not self._ended:
                    self._news.clear()
                    await self._news.wait()

    @property
    @abstractmethod
    def _call(self) -> Extra:
        """What the next call to the platform is."""

    async def _show_paced(self) -> None:
        if not self.text.strip() or self._ended:
            return
        if seconds := self._rate_limiter.take_extra(self._message.key, self._call):
            self._news.set()  # what is written until then goes with it
            await self._pause(seconds)
            return
        try:
            await self._show_now()
        except NotNext:  # people would see them above what was answered before
            self._news.set()
            await self._pause(_TURN_SECONDS)
        except SendFailed as error:
            if not error.retryable or error.ambiguous:
                raise
            self._rate_limiter.hold(self._message.key, error)
            await self._pause(error.retry_after_seconds or 1.0 / self._per_second)

    async def _pause(self, seconds: float) -> None:
        """Wait, but no longer than the reply is written."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return

    @abstractmethod
    async def _take_up(self, states: Mapping[int, PartState]) -> None:
        """Go on with what an interrupted turn has shown."""

    @abstractmethod
    async def _show_now(self) -> None:
        """Show what there is. Raises `SendFailed`, and `NotNext` where an older reply is not delivered yet."""


class Growing(_Paced):
    """By sending first words and editing them. A reply that outgrows a message goes on in the next one."""

    def __init__(
        self, connector: Connector, message: OutboundMessage, states: PartStates, rate_limiter: RateLimiter
    ) -> None:
        super().__init__(connector, message, states, rate_limiter)
        assert isinstance(connector, EditsMessages)
        self._connector = connector
        self._edits: EditsMessages = connector
        self._shown: dict[int, tuple[str, Receipt]] = {}

    @property
    def _call(self) -> Extra:
        return Extra.EDIT if self._shown else Extra.MESSAGE

    async def _take_up(self, states: Mapping[int, PartState]) -> None:
        self._shown = {
            index: ("", Receipt(state.message_id)) for index, state in states.items() if state.stage is Stage.SHOWN
        }

    async def _show_now(self) -> None:
        message = replace(self._message, text=self.text)
        parts = await rendered(self._connector, message)
        shown = list(takewhile(lambda part: not part.file_name, parts))
        stale = [part for part in shown if self._shown.get(part.index, (None,))[0] != part.text]
        if not stale:
            return
        if len(stale) > 1:
            self._news.set()  # one message at a time, at the pace
        part = stale[0]
        if part.index not in self._shown:
            await self._begin(message, part)
            return
        receipt = self._shown[part.index][1]
        await self._edits.edit(message, part, receipt)
        self._shown[part.index] = (part.text, receipt)

    async def _begin(self, message: OutboundMessage, part: OutboundPart) -> None:
        address = "" if self._shown else self._address
        await self._states.mark(message, part.index, Stage.DRAFTING, address=address)
        try:
            receipt = await self._connector.send(message, drafted(part))
        except SendFailed as error:
            if not error.ambiguous:  # nobody need wonder later whether it arrived
                await self._states.mark(message, part.index, Stage.UNSENT)
            raise
        await self._states.mark(message, part.index, Stage.SHOWN, receipt.message_id)
        self._shown[part.index] = (part.text, receipt)


class Appending(_Paced):
    """By the platform's own means, which only add."""

    def __init__(
        self, connector: Connector, message: OutboundMessage, states: PartStates, rate_limiter: RateLimiter
    ) -> None:
        super().__init__(connector, message, states, rate_limiter)
        assert isinstance(connector, AppendsText)
        self._appends: AppendsText = connector
        self._receipt: Receipt | None = None
        self._shown = ""
        self._taken_up = False

    @property
    def _call(self) -> Extra:
        return Extra.OPENING if self._receipt is None else Extra.ADDITION

    async def _take_up(self, states: Mapping[int, PartState]) -> None:
        self._taken_up = any(state.stage is Stage.SHOWN for state in states.values())

    async def _show_now(self) -> None:
        text = self.text[:_STREAM_CHARACTERS]
        if self._taken_up or not text.startswith(self._shown):
            return  # what an earlier attempt has shown cannot be taken back by adding; the last form puts it right
        if self._receipt is None:
            await self._states.mark(self._message, 0, Stage.DRAFTING, address=self._address)
            self._receipt = await self._appends.begin(self._message, text)
            await self._states.mark(self._message, 0, Stage.SHOWN, self._receipt.message_id)
        elif text != self._shown:
            await self._appends.append(self._message, self._receipt, text.removeprefix(self._shown))
        self._shown = text
