"""One update after the other, understood and passed on to the runtime. I/O; what an update means is in `convert`."""

from __future__ import annotations

import asyncio
import traceback
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import replace
from typing import Any

import structlog
from aiogram.exceptions import TelegramConflictError
from aiogram.methods import DeleteWebhook, TelegramMethod
from aiogram.types import CallbackQuery, Update
from pydantic import ValidationError

from connectors import health
from connectors.connector import Accept
from connectors.message import Accepted, InboundKind, InboundMessage, StoreUnavailable
from connectors.telegram import updates
from connectors.telegram.api import Api
from connectors.telegram.errors import AIOGRAM_ERRORS
from connectors.telegram.payloads import CONNECTOR
from connectors.telegram.updates import ALLOWED_UPDATES, Identity, Places

# ---- vitals ----
#
# How the connection fares, and how long to wait before the next attempt.


class Vitals(health.Vitals):
    """`connectors.health.Vitals` with the failures since the last success, as far as the next wait goes by them.

    After each failure the waits grow from ``first_backoff_seconds`` to ``longest_backoff_seconds``.
    """

    def __init__(self, first_backoff_seconds: float, longest_backoff_seconds: float) -> None:
        super().__init__()
        self._backoff = health.Backoff(first_backoff_seconds, longest_backoff_seconds)

    @property
    def failures(self) -> int:
        return self._backoff.failures

    @failures.setter
    def failures(self, failures: int) -> None:
        self._backoff.failures = failures

    def start(self) -> None:
        super().start()
        self.failures = 0

    def next_wait_seconds(self, asked_seconds: float | None = None) -> float:
        """How long to wait now: what was asked for, else exponentially more, with jitter."""
        return self._backoff.next_seconds(asked_seconds)


# ---- intake ----


log = structlog.get_logger()

AnswerPress = Callable[[CallbackQuery, Accepted], Awaitable[None]]
"""Tells Telegram that a pressed button was heard. Never raises."""

_ATTEMPTS_PER_UPDATE = 3
"""How often an update is offered when accepting it fails for another reason than an absent store."""


class Intake:
    """Where updates go, however they came."""

    def __init__(self, vitals: Vitals, places: Places, answer_press: AnswerPress) -> None:
        self._answer_press = answer_press
        self._vitals = vitals
        self._places = places
        self._open: tuple[Accept, Identity] | None = None
        self._store_is_away = False
        self._attempts: Counter[int] = Counter()

    @property
    def is_troubled(self) -> bool:
        """Whether something that was offered was not accepted, and is still to come again."""
        return self._store_is_away or bool(self._attempts)

    def open(self, accept: Accept, me: Identity) -> None:
        """Pass on to *accept* from now on."""
        self._open = (accept, me)

    def close(self) -> None:
        """Take nothing any more."""
        self._open = None

    def nothing_waits(self) -> None:
        """Telegram has nothing more to tell: what was not accepted will not come again."""
        self._attempts.clear()
        self._store_is_away = False
        self._tell()

    async def take(self, raw: dict[str, Any]) -> bool:
        """Whether the update may be confirmed: it was accepted, is none of ours, or failed often enough.

        Raises `connectors.message.StoreUnavailable`: then, as where it is False, it must not be confirmed.
        """
        if self._open is None:
            raise StoreUnavailable("the connector is not receiving")
        accept, me = self._open
        update_id = raw["update_id"]
        try:
            update = Update.model_validate(raw)
        except ValidationError:
            log.warning("message.ignored", connector=CONNECTOR, why="unreadable", update_id=update_id)
            return True
        try:
            await self._pass_on(update, accept, me)
        except StoreUnavailable:
            self._store_is_away = True
            self._tell()
            raise
        except Exception as error:  # noqa: BLE001 - the boundary: one message must not stop all others
            return self._gives_up(update_id, error)
        self._attempts.pop(update_id, None)
        self._tell()
        return True

    async def _pass_on(self, update: Update, accept: Accept, me: Identity) -> None:
        self._note_places(update)
        message = updates.to_inbound(update, me, self._places.topic_of)
        if message is not None:
            accepted = await accept(self._in_album(update, message))
            self._store_is_away = False
            if update.callback_query is not None:
                await self._answer_press(update.callback_query, accepted)

    def _in_album(self, update: Update, message: InboundMessage) -> InboundMessage:
        """*message*, addressed to the bot where the album is to which it belongs."""
        said = update.message
        if said is None or said.media_group_id is None or message.kind is not InboundKind.MESSAGE:
            return message
        album = said.chat.id, said.media_group_id
        if message.addressed:
            self._places.addresses(*album)
        return replace(message, addressed=message.addressed or self._places.is_addressed(*album))

    def _note_places(self, update: Update) -> None:
        message = update.message
        if message is not None:
            self._places.stands(message.chat.id, message.message_id, updates.topic(message))
        ids = updates.moved(update)
        if ids is not None:
            self._places.moved(*ids)
            log.warning("connector.place_moved", connector=CONNECTOR, old=str(ids[0]), new=str(ids[1]))

    def _gives_up(self, update_id: int, error: Exception) -> bool:
        """Whether an update that fails for a fault of ours was tried often enough."""
        self._attempts[update_id] += 1
        gives_up = self._attempts[update_id] >= _ATTEMPTS_PER_UPDATE
        frame = traceback.extract_tb(error.__traceback__)[-1]
        log.error(
            "message.failed",
            connector=CONNECTOR,
            why=type(error).__name__,  # without the error's own words, which may quote the message
            where=f"{frame.name}:{frame.lineno}",
            update_id=update_id,
            dropped=gives_up,
        )
        if gives_up:
            del self._attempts[update_id]
        self._tell(type(error).__name__)
        return gives_up

    def _tell(self, fault: str = "") -> None:
        """Makes health say how it is."""
        if self._store_is_away:
            self._vitals.trouble("store", "the store is unavailable; messages wait at Telegram")
        else:
            self._vitals.well("store")
        if not self._attempts:
            self._vitals.well("message")
        elif fault:
            self._vitals.trouble("message", f"a message could not be accepted ({fault})")


# ---- polling ----
#
# Updates by long polling. I/O.
#
# aiogram's own Dispatcher asks for the next updates, and thereby confirms the last ones, before their
# handlers are done. So the polling here is ours: an update is confirmed only after it was accepted.


Recover = Callable[[Exception], Awaitable[None]]
"""Waits as an error calls for. Raises `connectors.connector.ConnectorFailed` when waiting cannot help."""


class _GetRawUpdates(TelegramMethod[list[dict[str, Any]]]):
    """``getUpdates`` as plain JSON: one update that aiogram cannot read must not take the batch with it."""

    __returning__ = list[dict[str, Any]]
    __api_method__ = "getUpdates"

    offset: int | None = None
    timeout: int
    allowed_updates: list[str]


class Polling:
    """Asks for updates. ``poll_seconds``: how long Telegram may hold a poll while nothing happens.

    A poll that is not answered within that and the time of a call is a failed one.
    """

    def __init__(self, api: Api, vitals: Vitals, intake: Intake, recover: Recover, poll_seconds: int) -> None:
        self._api = api
        self._vitals = vitals
        self._intake = intake
        self._recover = recover
        self._poll_seconds = poll_seconds
        self._in_conflict = False

    async def run(self) -> None:
        """Receives until cancelled."""
        await self._take_webhook_down()
        self._vitals.connected()
        offset: int | None = None
        while True:
            for raw in await self._poll(offset):
                if not await self._take(raw):
                    break  # this one and those after it are not confirmed: Telegram gives them again
                offset = raw["update_id"] + 1

    async def _take_webhook_down(self) -> None:
        """Telegram refuses long polling while a webhook is set; what waits there is kept."""
        while True:
            try:
                await self._api.call(DeleteWebhook(drop_pending_updates=False))
            except AIOGRAM_ERRORS as error:
                await self._recover(error)
            else:
                return

    async def _poll(self, offset: int | None) -> list[dict[str, Any]]:
        """The next updates; none after a failure and the wait that it calls for."""
        # After a failure the first poll is a short one, so that health need not wait for somebody to speak.
        # Not after a conflict: each short poll would throw the other process out and look like success.
        wait_seconds = 0 if self._vitals.failures and not self._in_conflict else self._poll_seconds
        ask = _GetRawUpdates(offset=offset, timeout=wait_seconds, allowed_updates=ALLOWED_UPDATES)
        try:
            updates = await self._api.call(ask, wait_seconds + self._api.timeout_seconds)
        except AIOGRAM_ERRORS as error:
            self._in_conflict = isinstance(error, TelegramConflictError)
            await self._recover(error)
            return []
        self._in_conflict = False
        self._vitals.well("connection")
        if not updates:  # also when Telegram has dropped what waited too long
            self._intake.nothing_waits()
        if not self._intake.is_troubled:  # else what is wrong lies with us, and is not over
            self._vitals.failures = 0
        return updates

    async def _take(self, raw: dict[str, Any]) -> bool:
        """Whether the update may be confirmed. Waits before saying no."""
        try:
            if await self._intake.take(raw):
                return True
        except StoreUnavailable:
            pass  # told by the intake; the update waits at Telegram for as long as it takes
        await asyncio.sleep(self._vitals.next_wait_seconds())
        return False


# ---- order ----
#
# Keeps what came at once and belongs together in its order.


class OvertookAnother(Exception):
    """What stood before it, and was in hand too, is not done: doing it now would be out of order."""


class InOrder:
    """One at a time of each place, the one with the smallest number in hand first."""

    def __init__(self) -> None:
        self._waiting: defaultdict[Hashable, list[tuple[int, asyncio.Future[None]]]] = defaultdict(list)
        self._busy: set[Hashable] = set()

    async def take_turn(self, place: Hashable, number: int, do: Callable[[], Awaitable[bool]]) -> bool:
        """What *do* says, in the turn of *number* in *place*.

        Where that is False or it raises, what waits behind *number* does not get its turn: `OvertookAnother` is
        raised there.
        """
        if place in self._busy:
            await self._queue(place, number)
        self._busy.add(place)
        done = False
        try:
            done = await do()
        finally:
            if not done:
                self._refuse_later(place, number)
            self._next(place)
        return done

    async def _queue(self, place: Hashable, number: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (number, turn)
        self._waiting[place].append(entry)
        try:
            await turn
        except BaseException:
            if entry in self._waiting.get(place, ()):
                self._waiting[place].remove(entry)
            elif turn.done() and not turn.cancelled() and turn.exception() is None:
                self._next(place)  # it was its turn just when it was called off
            raise

    def _refuse_later(self, place: Hashable, number: int) -> None:
        for entry in [entry for entry in self._waiting.get(place, ()) if entry[0] > number]:
            self._waiting[place].remove(entry)
            if not entry[1].done():
                entry[1].set_exception(OvertookAnother())

    def _next(self, place: Hashable) -> None:
        """Hands *place* on to who waits for it, else gives it free."""
        waiting = sorted(self._waiting.get(place, ()), key=lambda entry: entry[0])
        for entry in waiting:
            self._waiting[place].remove(entry)
            if not entry[1].done():
                entry[1].set_result(None)
                return  # stays busy, in the other's hands
        self._waiting.pop(place, None)
        self._busy.discard(place)
