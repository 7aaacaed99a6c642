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
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import takewhile
from typing import Any, Literal, NamedTuple, cast

import structlog
from pydantic import TypeAdapter

from connectors.connector import (
    AppendsText,
    Connector,
    EditsMessages,
    LetsGo,
    Reacts,
    SendFailed,
    ShowsTyping,
    StreamsText,
)
from connectors.message import ConversationKey, OutboundMessage, OutboundPart, Receipt, StoreUnavailable, Superseded
from runtime.coordination import Hub, News
from runtime.delivery.outbox import NotNext, PartState, PartStates, Stage, drafted
from runtime.delivery.rate_limiter import Extra, RateLimiter, RateLimiters
from runtime.delivery.sender import rendered
from runtime.delivery.typing import Signs

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


# ---- progress ----
#
# What a worker tells of an answer while it is made: that it was begun, how it grows, that it is over.
#
# All of it may be lost (`runtime.coordination.hub`); who shows it is `runtime.delivery.preview`, in the process that
# has the connector.


PROGRESS = "progress"
"""The hub's topic."""
NONE_COMES = "superseded"
"""The hub's topic for messages that get no answer: a newer one took their place, or their workspace is gone."""
What = Literal["begun", "delta", "restart", "ended"]
BEGUN: What = "begun"
DELTA: What = "delta"
RESTART: What = "restart"
ENDED: What = "ended"
FLUSH_SECONDS = 0.05
"""How long pieces for another process are gathered: each costs both processes a message."""
_MESSAGE = TypeAdapter(OutboundMessage)


class Watched(StrEnum):
    """Whether people see an answer while it is written, and whether what they saw can be replaced."""

    NOT = ""
    ADDED_TO = "added_to"
    REPLACEABLE = "replaceable"


@dataclass(frozen=True, slots=True)
class Progress:
    """One thing that is told. ``message`` is the reply without its text, where it was begun."""

    turn_id: str
    what: What
    text: str = ""
    message: OutboundMessage | None = None

    def news(self, *, within: bool) -> dict[str, Any]:
        """As it is told; *within* this process the message goes as it is."""
        message: Any = self.message
        if message is not None and not within:
            message = _MESSAGE.dump_python(message, mode="json")
        return {"turn": self.turn_id, "what": self.what, "text": self.text, "message": message}

    @classmethod
    def of(cls, news: News) -> Progress:
        """The inverse of `news`."""
        message = news["message"]
        if isinstance(message, dict):
            message = _MESSAGE.validate_python(message)
        return cls(news["turn"], news["what"], news["text"], message)


async def tell_none_comes(hub: Hub, key: ConversationKey, message_ids: tuple[str, ...], *, gone: bool = False) -> None:
    """Tell whoever waits for an answer to one of these messages, in whichever process, that a newer one gets it (if
    that is lost, the reply says so in the end), or that their workspace is *gone*."""
    if message_ids:
        await hub.tell(NONE_COMES, {"key": key.encoded, "messages": message_ids, "gone": gone})


class Telling:
    """Tells the process *to* of the reply that *message* will be. ``text`` is what was written of it so far."""

    def __init__(self, hub: Hub, to: str, message: OutboundMessage, watched: Watched) -> None:
        self._hub = hub
        self._to = to
        self._message = message
        self._within = to == hub.name
        self._pieces: list[str] = []
        self._told = 0
        self._told_at = 0.0
        self.is_watched = watched is not Watched.NOT
        """Whether anybody sees it grow; if not, `show` need not be called."""
        self.can_restart = watched is Watched.REPLACEABLE

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    async def show(self, delta: str) -> None:
        """The next piece."""
        self._pieces.append(delta)
        if self._within or asyncio.get_running_loop().time() - self._told_at >= FLUSH_SECONDS:
            await self.flush()

    async def flush(self) -> None:
        """Tell what was gathered: nothing may come for a while."""
        piece = "".join(self._pieces[self._told :])
        if piece:
            self._told, self._told_at = len(self._pieces), asyncio.get_running_loop().time()
            await self._tell(Progress(self._message.turn_id, DELTA, piece))

    async def restart(self) -> None:
        """What was shown was not the answer: it begins again."""
        self._pieces.clear()
        self._told = 0
        await self._tell(Progress(self._message.turn_id, RESTART))

    async def _tell(self, progress: Progress) -> None:
        await self._hub.tell(PROGRESS, progress.news(within=self._within), self._to)


@asynccontextmanager
async def telling(hub: Hub, to: str, message: OutboundMessage, watched: Watched) -> AsyncIterator[Telling]:
    """While inside, the people who wait for *message* are told that it is on its way."""
    told = Telling(hub, to, message, watched)
    await told._tell(Progress(message.turn_id, BEGUN, message=message))
    try:
        yield told
    finally:
        await told._tell(Progress(message.turn_id, ENDED))


# ---- shows ----
#
# Shows people that an answer is on its way and how it grows, by the connectors of this process.
#
# What workers tell (`runtime.delivery.preview`) may be lost; the reply itself comes by the outbox.


SILENT_SECONDS = 120.0
"""A worker that tells nothing for so long will not tell any more."""
_FINISH_SECONDS = 40.0
_REMEMBERED = 4096


class _Show(NamedTuple):
    queue: asyncio.Queue[Progress]
    task: asyncio.Task[None]
    signs: Signs

    async def over(self, seconds: float) -> None:
        """Wait until the platform is not called any more, but no longer than so many *seconds*."""
        await asyncio.wait({self.task}, timeout=seconds)
        await self.signs.over()


class Shows:
    """The answers that are on their way. *acknowledgement* is an emoji that is put on the messages, or empty."""

    def __init__(
        self,
        connectors: Mapping[str, Connector],
        states: PartStates,
        rate_limiters: RateLimiters,
        hub: Hub,
        *,
        streams: bool = True,
        acknowledgement: str = "",
    ) -> None:
        self._connectors = connectors
        self._states = states
        self._rate_limiters = rate_limiters
        self._streams = streams
        self._acknowledgement = acknowledgement
        self._shows: dict[str, _Show] = {}
        self._adding: dict[str, bool] = {}
        """By connector: whether it streams text."""
        self._over: OrderedDict[str, None] = OrderedDict()
        """Turns whose reply is being delivered or was: news of how it was written may come after it."""
        self._open = False
        hub.hear(PROGRESS, self._hear)
        hub.hear(NONE_COMES, self._hear_none_comes)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """While inside, what workers tell is shown."""
        self._open = True
        try:
            yield
        finally:
            self._open = False
            tasks = {show.task for show in self._shows.values()}
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=1.0)

    def watched(self, connector: Connector, message: OutboundMessage) -> Watched:
        """Whether people would see the answer that *message* will be while it is written."""
        adds = self._adding.get(connector.name)
        if adds is None:  # to find out what a connector can takes as long as all else here
            adds = self._adding[connector.name] = isinstance(connector, StreamsText)
        if adds:
            is_watched = cast("StreamsText", connector).is_watched(message.key, message.answers)
            return Watched.ADDED_TO if is_watched else Watched.NOT
        edits = isinstance(connector, EditsMessages) and connector.capabilities.edits_per_second > 0
        return Watched.REPLACEABLE if self._streams and edits else Watched.NOT

    async def finish(self, turn_id: str) -> None:
        """End the show of a turn, and let none begin: its reply is to be delivered."""
        self._over[turn_id] = None
        if len(self._over) > _REMEMBERED:
            self._over.popitem(last=False)
        show = self._shows.get(turn_id)
        if show is None:
            return
        show.queue.put_nowait(Progress(turn_id, ENDED))
        await show.over(_FINISH_SECONDS)

    def _hear(self, news: News) -> None:
        progress = Progress.of(news)
        show = self._shows.get(progress.turn_id)
        if progress.what == BEGUN and progress.message is not None:
            if self._open and progress.turn_id not in self._over:
                self._begin(progress.turn_id, progress.message, show)
        elif show is not None:
            show.queue.put_nowait(progress)

    def _hear_none_comes(self, news: News) -> None:
        key = ConversationKey.decode(news["key"])
        connector = self._connectors.get(key.connector)
        if isinstance(connector, LetsGo):
            connector.let_go(key, tuple(news["messages"]), gone=news.get("gone", False))

    def _begin(self, turn_id: str, message: OutboundMessage, before: _Show | None) -> None:
        """Show the answer that *message* will be, once the show of the turn *before* this one has ended."""
        if before is not None:
            before.queue.put_nowait(Progress(turn_id, ENDED))
        connector = self._connectors.get(message.key.connector)
        if connector is None:
            return
        preview = self._preview(connector, message)
        has_signs = isinstance(connector, ShowsTyping) or (self._acknowledgement and isinstance(connector, Reacts))
        if preview is None and not has_signs:
            return
        queue: asyncio.Queue[Progress] = asyncio.Queue()
        signs = Signs(connector, message, self._rate_limiters.of(connector), self._acknowledgement)

        async def show() -> None:
            if before is not None:
                await asyncio.wait({before.task}, timeout=_FINISH_SECONDS)
            await self._show(signs, preview, queue)

        task = asyncio.create_task(show(), name=f"show of {turn_id}")
        self._shows[turn_id] = _Show(queue, task, signs)
        task.add_done_callback(lambda ended: self._ended(turn_id, ended))

    def _ended(self, turn_id: str, task: asyncio.Task[None]) -> None:
        show = self._shows.get(turn_id)
        if show is not None and show.task is task:
            del self._shows[turn_id]

    def _preview(self, connector: Connector, message: OutboundMessage) -> Preview | None:
        if self.watched(connector, message) is Watched.NOT:
            return None
        if isinstance(connector, StreamsText):
            return Passing(connector, message)
        if isinstance(connector, AppendsText) and connector.appends(message):
            return Appending(connector, message, self._states, self._rate_limiters.of(connector))
        return Growing(connector, message, self._states, self._rate_limiters.of(connector))

    async def _show(self, signs: Signs, preview: Preview | None, queue: asyncio.Queue[Progress]) -> None:
        signs.begin()
        try:
            if preview is None:
                await _until_ended(queue)
            else:
                async with preview.shown():
                    await _show_all(preview, queue)
                    signs.end()
        except Exception:  # noqa: BLE001 - a broken show must not cost the reply; it is logged whole
            _log.exception("preview.ended", why="internal")
        finally:
            await signs.over()


async def _until_ended(queue: asyncio.Queue[Progress]) -> None:
    while True:
        if (await _next(queue)).what == ENDED:
            return


async def _show_all(preview: Preview, queue: asyncio.Queue[Progress]) -> None:
    while True:
        progress = await _next(queue)
        match progress.what:
            case "delta":
                await preview.show(progress.text)
            case "restart" if preview.restart is not None:
                await preview.restart()
            case "ended":
                return


async def _next(queue: asyncio.Queue[Progress]) -> Progress:
    try:
        async with asyncio.timeout(SILENT_SECONDS):
            return await queue.get()
    except TimeoutError:
        return Progress("", ENDED)
