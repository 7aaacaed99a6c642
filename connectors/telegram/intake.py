"""One update after the other, understood and passed on to the runtime. I/O; what an update means is in `convert`."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import structlog
from aiogram.types import CallbackQuery, Update
from pydantic import ValidationError

from connectors.connector import Accept
from connectors.message import Accepted, InboundKind, InboundMessage, StoreUnavailable
from connectors.telegram import convert
from connectors.telegram.calls import CONNECTOR
from connectors.telegram.mentions import Identity
from connectors.telegram.places import Places
from connectors.telegram.vitals import Vitals

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
        message = convert.to_inbound(update, me, self._places.topic_of)
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
            self._places.stands(message.chat.id, message.message_id, convert.topic(message))
        ids = convert.moved(update)
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
