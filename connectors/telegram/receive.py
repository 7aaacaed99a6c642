"""Receive Telegram's updates and hand them to the runtime. I/O; `connectors.telegram.updates` converts them.

`Polling` asks Telegram for updates (`connectors.telegram.webhook` is the other way in), `Intake` accepts each of them,
and `Places` remembers what later updates and replies need to know.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import suppress
from dataclasses import replace
from typing import Any

import structlog
from aiogram.exceptions import TelegramConflictError
from aiogram.methods import DeleteWebhook, TelegramMethod
from aiogram.types import CallbackQuery, Update
from pydantic import ValidationError

from connectors.connector import Accept, SendFailed
from connectors.health import Backoff, ConnectionHealth
from connectors.message import Accepted, InboundKind, InboundMessage, StoreUnavailable
from connectors.sdk_errors import origin
from connectors.telegram import payloads, updates
from connectors.telegram.api import Api
from connectors.telegram.errors import AIOGRAM_ERRORS
from connectors.telegram.payloads import CONNECTOR
from connectors.telegram.updates import ALLOWED_UPDATES, Identity

log = structlog.get_logger()

_ATTEMPTS_PER_UPDATE = 3
"""How often an update is offered if it fails for any reason but an unavailable store."""

_REMEMBERED_MESSAGES = 4096
_REMEMBERED_ALBUMS = 256


class _GetRawUpdates(TelegramMethod[list[dict[str, Any]]]):
    """``getUpdates`` with plain JSON as its result, so that one update that aiogram cannot read spoils no others."""

    __returning__ = list[dict[str, Any]]
    __api_method__ = "getUpdates"

    offset: int | None = None
    timeout: int
    allowed_updates: list[str]


class Polling:
    """Receives updates by long polling. Telegram may hold each poll for ``poll_seconds`` while nothing happens.

    aiogram's Dispatcher asks for the next updates, which confirms the last ones, before their handlers are done. This
    class confirms an update only after it was accepted.
    """

    def __init__(self, api: Api, vitals: ConnectionHealth, backoff: Backoff, intake: Intake, poll_seconds: int) -> None:
        self._api = api
        self._vitals = vitals
        self._backoff = backoff
        self._intake = intake
        self._poll_seconds = poll_seconds
        self._in_conflict = False

    async def run(self) -> None:
        """Receive until cancelled. Telegram refuses polling while there is a webhook, and keeps the waiting updates."""
        await self._api.call_until_answered(DeleteWebhook(drop_pending_updates=False))
        self._vitals.connected()
        offset: int | None = None
        while_store_is_away = self._backoff.fresh()
        while True:
            for raw in await self._poll(offset):
                try:
                    await self._intake.take(raw)
                except StoreUnavailable:
                    # Telegram repeats this update and the later ones, which are not confirmed.
                    await asyncio.sleep(while_store_is_away.next_seconds())
                    break
                while_store_is_away.failures = 0
                offset = raw["update_id"] + 1

    async def _poll(self, offset: int | None) -> list[dict[str, Any]]:
        """Return the next updates. After a failure, wait as long as it demands and return none."""
        # After a failure the first poll is short, so that health recovers before somebody writes. Not after a
        # conflict: each short poll would interrupt the other process and look like a success.
        wait_seconds = 0 if self._backoff.failures and not self._in_conflict else self._poll_seconds
        request = _GetRawUpdates(offset=offset, timeout=wait_seconds, allowed_updates=ALLOWED_UPDATES)
        try:
            found = await self._api.call(request, wait_seconds + self._api.timeout_seconds)
        except AIOGRAM_ERRORS as error:
            self._in_conflict = isinstance(error, TelegramConflictError)
            await self._api.recover(error)
            return []
        self._in_conflict = False
        self._vitals.well("connection")
        self._backoff.failures = 0
        if not found:  # also if Telegram has dropped what waited too long
            self._vitals.well("store")
        return found


class Intake:
    """Accepts updates, however they came."""

    def __init__(self, api: Api, vitals: ConnectionHealth, places: Places, backoff: Backoff) -> None:
        self._api = api
        self._vitals = vitals
        self._places = places
        self._backoff = backoff
        self._receiver: tuple[Accept, Identity] | None = None

    def open(self, accept: Accept, me: Identity) -> None:
        """Hand messages to *accept* from now on."""
        self._receiver = (accept, me)

    def close(self) -> None:
        """Refuse all updates from now on."""
        self._receiver = None

    async def take(self, raw: dict[str, Any]) -> None:
        """Have an update accepted, if it is for us. After some failures of ours, give it up.

        Raises `connectors.message.StoreUnavailable`. Then the update must not be confirmed.
        """
        if self._receiver is None:
            raise StoreUnavailable("the connector is not receiving")
        accept, me = self._receiver
        update_id = raw["update_id"]
        try:
            update = Update.model_validate(raw)
        except ValidationError:
            log.warning("message.ignored", connector=CONNECTOR, why="unreadable", update_id=update_id)
            return
        backoff = self._backoff.fresh()
        while backoff.failures < _ATTEMPTS_PER_UPDATE:
            try:
                await self._accept(update, accept, me)
                break
            except StoreUnavailable:
                self._vitals.trouble("store", "the store is unavailable; messages wait at Telegram")
                raise
            except Exception as error:  # noqa: BLE001 - the boundary: one message must not stop all others
                seconds = backoff.next_seconds()
                gives_up = backoff.failures == _ATTEMPTS_PER_UPDATE
                _log_fault(error, update_id, gives_up)
                if not gives_up:
                    self._vitals.trouble("message", f"a message could not be accepted ({type(error).__name__})")
                    await asyncio.sleep(seconds)
        self._vitals.well("message")

    async def _accept(self, update: Update, accept: Accept, me: Identity) -> None:
        self._note_places(update)
        message = updates.to_inbound(update, me, self._places.topic_of)
        if message is not None:
            accepted = await accept(self._address_album(update, message))
            self._vitals.well("store")
            if update.callback_query is not None:
                await self._answer_button(update.callback_query, accepted)

    async def _answer_button(self, query: CallbackQuery, accepted: Accepted) -> None:
        """Tell Telegram that a pressed button was noticed, and remove the buttons if it was accepted."""
        is_accepted = accepted.outcome in ("stored", "duplicate")
        with suppress(SendFailed):
            await self._api.ask_lossy(lambda: payloads.to_button_answer(query.id, accepted=is_accepted))
            if is_accepted and (message := query.message) is not None:
                await self._api.ask(lambda: payloads.to_remove_buttons(message.chat.id, message.message_id))

    def _note_places(self, update: Update) -> None:
        message = update.message
        if message is not None:
            self._places.note_topic(message.chat.id, message.message_id, updates.topic_of_message(message))
        migration = updates.chat_migration(update)
        if migration is not None:
            old, new = migration
            log.warning("connector.place_moved", connector=CONNECTOR, old=str(old), new=str(new))

    def _address_album(self, update: Update, message: InboundMessage) -> InboundMessage:
        """Return *message*, addressed to the bot if another file of its album is."""
        source = update.message
        if source is None or source.media_group_id is None or message.kind is not InboundKind.MESSAGE:
            return message
        album = source.chat.id, source.media_group_id
        if message.addressed:
            self._places.note_addressed_album(*album)
        return replace(message, addressed=message.addressed or self._places.is_addressed_album(*album))


def _log_fault(error: Exception, update_id: int, dropped: bool) -> None:
    log.error(
        "message.failed",
        connector=CONNECTOR,
        why=type(error).__name__,  # not the error's text, which may quote the message
        where=origin(error),
        update_id=update_id,
        dropped=dropped,
    )


class Places:
    """What this process has seen of places and Telegram does not repeat.

    - The topic of a message: a reaction to it does not name the topic.
    - Albums that are addressed to the bot: only the file with the caption says so.
    """

    def __init__(self) -> None:
        self._topics: OrderedDict[tuple[int, int], int] = OrderedDict()
        self._albums: OrderedDict[tuple[int, str], None] = OrderedDict()

    def note_topic(self, chat: int, message_id: int, topic: int | None) -> None:
        """Remember the topic of a message. Keeps the newest few thousand."""
        if topic is None:
            return
        self._topics[chat, message_id] = topic
        self._topics.move_to_end((chat, message_id))
        if len(self._topics) > _REMEMBERED_MESSAGES:
            self._topics.popitem(last=False)

    def topic_of(self, chat: int, message_id: int) -> int | None:
        """Return the topic of a message if it is known."""
        return self._topics.get((chat, message_id))

    def note_addressed_album(self, chat: int, album: str) -> None:
        """Remember that *album* is addressed to the bot. Keeps the newest few hundred."""
        self._albums[chat, album] = None
        if len(self._albums) > _REMEMBERED_ALBUMS:
            self._albums.popitem(last=False)

    def is_addressed_album(self, chat: int, album: str) -> bool:
        """Return whether a file of *album* was addressed to the bot."""
        return (chat, album) in self._albums
