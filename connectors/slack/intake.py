"""One event after the other, understood and passed on to the runtime. I/O; what an event means is in `convert`."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Mapping
from typing import Any

import structlog

from connectors.connector import Accept
from connectors.message import InboundKind, InboundMessage, StoreUnavailable
from connectors.slack import convert
from connectors.slack.api import Api
from connectors.slack.lookups import People, Recent, Threads
from connectors.slack.vitals import Backoff, Vitals

log = structlog.get_logger()

_ATTEMPTS_PER_EVENT = 3
"""How often an event is offered when accepting it fails for another reason than an absent store."""

_TOKEN_EVENTS = frozenset({"tokens_revoked", "app_uninstalled"})


class Intake:
    """Where events go, however they came. ``doubt`` is set when an event says that the token may be void."""

    def __init__(self, api: Api, vitals: Vitals, doubt: asyncio.Event) -> None:
        self._people = People(api)
        self._threads = Threads(api)
        self._vitals = vitals
        self._doubt = doubt
        self._open: tuple[Accept, convert.Identity] | None = None
        self._order = asyncio.Lock()
        self._accepted: Recent[str, None] = Recent()
        self._places: Recent[tuple[str, str], str] = Recent()

    def open(self, accept: Accept, me: convert.Identity) -> None:
        """Pass on to *accept* from now on."""
        self._open = (accept, me)

    def close(self) -> None:
        """Take nothing any more."""
        self._open = None

    def sent(self, external_id: str, message_id: str) -> None:
        """The bot said something in a place."""
        channel, thread = convert.to_place(external_id)
        self._places.put((channel, message_id), external_id)
        if thread is not None:
            self._threads.joined(channel, thread)

    async def take(self, payload: dict[str, Any]) -> bool:
        """Whether the event was accepted or is none of ours.

        Raises `connectors.message.StoreUnavailable`: then, as where it is False, it must not be acknowledged.
        """
        if self._open is None:
            raise StoreUnavailable("the connector is not receiving")
        accept, me = self._open
        async with self._order:
            try:
                await self._pass_on(payload, accept, me)
            except StoreUnavailable:
                self._vitals.trouble("store", "the store is unavailable; messages wait")
                raise
            except Exception as error:  # noqa: BLE001 - the boundary: one message must not stop all others
                self._report(error)
                return False
        self._vitals.well("store")
        self._vitals.well("message")
        return True

    async def take_until_accepted(self, payload: dict[str, Any], backoff: Backoff) -> None:
        """Keeps the event for as long as the store is away: Slack itself gives up after three attempts."""
        faults = 0
        while True:
            try:
                if await self.take(payload):
                    return
                faults += 1
                if faults >= _ATTEMPTS_PER_EVENT:
                    self._vitals.well("message")
                    return
            except StoreUnavailable:
                faults = 0  # waits for as long as it takes
            await asyncio.sleep(backoff.next_seconds())

    async def _pass_on(self, payload: Mapping[str, Any], accept: Accept, me: convert.Identity) -> None:
        if payload.get("type") != "event_callback":
            log.warning("message.ignored", connector=convert.CONNECTOR, why=f"unsupported: {payload.get('type')}")
            return
        try:
            identity = convert.identity_of(payload)
            if identity in self._accepted:
                return
            event = payload["event"]
            if event["type"] in _TOKEN_EVENTS:
                self._doubt.set()
            message = convert.to_inbound(event, me, await self._known(event, me))
        except (KeyError, TypeError, ValueError, AttributeError):
            log.warning("message.ignored", connector=convert.CONNECTOR, why="unreadable")
            return
        if message is not None:
            await accept(message)
            self._remember(message)
        self._accepted.put(identity, None)

    async def _known(self, event: convert.Event, me: convert.Identity) -> convert.Known:
        asked = convert.thread_in_question(event, me)
        takes_part = await self._threads.takes_part(*asked, me) if asked is not None else False
        names = await self._people.names(convert.people_of(event) - {me.user_id})
        item = event.get("item") or {}
        place = self._places.get((str(item.get("channel")), str(item.get("ts")))) if item else None
        return convert.Known(names, takes_part, place)

    def _remember(self, message: InboundMessage) -> None:
        if message.kind is not InboundKind.MESSAGE or "/" not in message.external_id:
            return
        channel, _, thread = message.external_id.partition("/")
        self._places.put((channel, message.message_id), message.external_id)
        if message.addressed:
            self._threads.joined(channel, thread)

    def _report(self, error: Exception) -> None:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        log.error(
            "message.failed",
            connector=convert.CONNECTOR,
            why=type(error).__name__,  # without the error's own words, which may quote the message
            where=f"{frame.name}:{frame.lineno}",
        )
        self._vitals.trouble("message", f"a message could not be accepted ({type(error).__name__})")
