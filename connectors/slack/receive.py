"""Passes events, commands and button presses on to the runtime, however they came. I/O.

`connectors.slack.events` says what they mean, `connectors.slack.lookups` what they leave out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import structlog

from connectors.connector import Accept, SendFailed
from connectors.health import Backoff, ConnectionHealth
from connectors.message import AgentRuntimeError, InboundKind, InboundMessage, StoreUnavailable
from connectors.sdk_errors import origin
from connectors.slack import events, payloads
from connectors.slack.api import Api, Recent
from connectors.slack.events import CONNECTOR, MALFORMED, Identity
from connectors.slack.lookups import Lookups
from connectors.slack.send import CommandResponses, Streams

log = structlog.get_logger()

COMMAND_SECONDS, BUTTON_SECONDS = 2.0, 0.7
"""Slack waits 3 s for the acknowledgement of a command or a pressed button, and repeats none."""

_ATTEMPTS_PER_EVENT = 3
"""Attempts to have an event accepted, if another reason than an absent store makes them fail."""


class Intake:
    """Passes on what Slack delivers, each event once, and in the order in which `take` was called."""

    def __init__(
        self, api: Api, vitals: ConnectionHealth, streams: Streams, responses: CommandResponses, lookups: Lookups
    ) -> None:
        self._api = api
        self._vitals = vitals
        self._streams = streams
        self._responses = responses
        self._lookups = lookups
        self._runtime: tuple[Accept, Identity] | None = None
        self._order = asyncio.Lock()
        self._accepted: Recent[str, None] = Recent()
        self._places: Recent[tuple[str, str], str] = Recent()

    def open(self, accept: Accept, me: Identity) -> None:
        """Pass on to *accept* from now on."""
        self._runtime = (accept, me)

    def close(self) -> None:
        """Take nothing any more."""
        self._runtime = None

    def note_sent(self, external_id: str, message_id: str) -> None:
        """Remember the conversation of a message that the bot sent, and that the bot takes part in its thread."""
        channel, thread = payloads.split_place(external_id)
        self._places.put((channel, message_id), external_id)
        if thread is not None:
            self._lookups.note_participation(channel, thread)

    async def take(self, payload: dict[str, Any]) -> bool:
        """Pass on an event. Returns True if it was accepted or is not for the runtime.

        It must not be acknowledged if this returns False or raises `connectors.message.StoreUnavailable`.
        """
        if self._runtime is None:
            raise StoreUnavailable("the connector is not receiving")
        accept, me = self._runtime
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
        """Offer an event until it is accepted, for as long as the store is away: Slack tries only three times."""
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
                faults = 0
            await asyncio.sleep(backoff.next_seconds())

    async def _pass_on(self, payload: Mapping[str, Any], accept: Accept, me: Identity) -> None:
        if payload.get("type") != "event_callback":
            log.warning("message.ignored", connector=CONNECTOR, why=f"unsupported: {payload.get('type')}")
            return
        try:
            identity = events.event_identity(payload)
            if identity in self._accepted:
                return
            event = payload["event"]
            if event["type"] in {"tokens_revoked", "app_uninstalled"}:
                self._api.token_suspect.set()
            details = await self._details(event, me)
            message = events.to_inbound(await self._lookups.complete_files(event), me, details)
        except MALFORMED:
            log.warning("message.ignored", connector=CONNECTOR, why="unreadable")
            return
        if message is not None:
            if message.kind is InboundKind.MESSAGE:  # before it is accepted, as the reply may come at once
                self._streams.note_asker(message.place, message.message_id, *events.author_and_team(event, me))
            await accept(message)
            self._remember(message)
        self._accepted.put(identity, None)

    async def _details(self, event: events.Event, me: Identity) -> events.EventDetails:
        thread = events.thread_to_look_up(event, me)
        takes_part = thread is not None and await self._lookups.takes_part(*thread, me)
        names = await self._lookups.names(events.people_of(event) - {me.user_id})
        place, public = await self._reaction_place(event, me), events.is_public(event)
        channel = str(event.get("channel") or (event.get("item") or {}).get("channel") or "")
        if public is not None:
            self._lookups.note_channel(channel, public)
        elif event["type"] in {"message", "app_mention"}:
            public = await self._lookups.is_public(channel)
        return events.EventDetails(names, takes_part, place, bool(public))

    async def _reaction_place(self, event: events.Event, me: Identity) -> str | None:
        """Return the conversation of the message that a reaction is on.

        Asks Slack once for a message of the bot that another process sent, or this one before its last start.
        """
        item = event.get("item") or {}
        channel, ts = str(item.get("channel")), str(item.get("ts"))
        place = self._places.get((channel, ts))
        if place is not None or item.get("type") != "message" or event.get("item_user") != me.user_id:
            return place
        thread = await self._lookups.thread_of(channel, ts)
        if thread is None:
            return None
        place = f"{channel}/{thread}" if thread else channel
        self._places.put((channel, ts), place)
        return place

    def _remember(self, message: InboundMessage) -> None:
        channel, _, thread = message.external_id.partition("/")
        if message.kind is InboundKind.MESSAGE and thread:
            self._places.put((channel, message.message_id), message.external_id)
            if message.addressed:
                self._lookups.note_participation(channel, thread)

    async def take_command(self, payload: Mapping[str, Any]) -> str:
        """Pass on a slash command within `COMMAND_SECONDS`.

        Returns the text to show its giver at once; empty if a reply will follow.
        """
        if self._runtime is None:
            return StoreUnavailable.user_text
        accept, me = self._runtime
        try:
            public = await self._lookups.is_public(str(payload["channel_id"]))
            command = events.to_command(payload, me, public=public)
        except MALFORMED:
            log.warning("message.ignored", connector=CONNECTOR, why="unreadable")
            return AgentRuntimeError.user_text
        command_id = command.message_id
        if command_id in self._accepted:
            return ""
        # Before it is accepted, as the reply may come at once.
        self._responses.expect(command_id, str(payload.get("response_url") or ""))
        try:
            async with asyncio.timeout(COMMAND_SECONDS):
                await accept(command)
        except (StoreUnavailable, TimeoutError) as error:
            log.warning("message.failed", connector=CONNECTOR, why=type(error).__name__, where="command")
            self._responses.forget(command_id)
            return StoreUnavailable.user_text
        except Exception as error:  # noqa: BLE001 - the boundary: one command must not stop all others
            self._report(error)
            self._responses.forget(command_id)
            return error.user_text if isinstance(error, AgentRuntimeError) else AgentRuntimeError.user_text
        self._accepted.put(command_id, None)
        self._vitals.well("store")
        return ""

    async def take_press(self, payload: Mapping[str, Any]) -> bool:
        """Pass on the press of a button within `COMMAND_SECONDS`, and remove the buttons within `BUTTON_SECONDS`.

        Returns True if the press was stored or is not for the runtime. Otherwise it must not be acknowledged: Slack
        then shows the person that it failed.
        """
        if self._runtime is None:
            return False
        accept, me = self._runtime
        try:
            async with asyncio.timeout(COMMAND_SECONDS):
                message = await self._press(payload, me)
                if message is None:
                    return True
                accepted = await accept(message)
        except (StoreUnavailable, TimeoutError) as error:
            log.warning("message.failed", connector=CONNECTOR, why=type(error).__name__, where="button")
            return False
        except Exception as error:  # noqa: BLE001 - the boundary: one press must not stop all others
            self._report(error)
            return False
        self._vitals.well("store")
        if accepted.outcome not in ("stored", "duplicate"):
            return False
        arguments = payloads.to_remove_buttons(message.place, payload["message"])
        try:
            async with asyncio.timeout(BUTTON_SECONDS):
                await self._api.request(lambda client: client.chat_update(**arguments))
        except (SendFailed, TimeoutError) as error:  # whoever presses them again is told what was decided
            log.debug("connector.sign_lost", connector=CONNECTOR, why=str(error))
        return True

    async def _press(self, payload: Mapping[str, Any], me: Identity) -> InboundMessage | None:
        try:
            message = events.to_press(payload, me)
        except MALFORMED:
            log.warning("message.ignored", connector=CONNECTOR, why="unreadable")
            return None
        if message is None:  # shortcuts and dialogues, which our app does not have
            log.info("message.ignored", connector=CONNECTOR, why="unsupported: interactive")
            return None
        return replace(message, public=await self._lookups.is_public(message.place))

    def _report(self, error: Exception) -> None:
        """Log *error* without its text, which may quote the message."""
        log.error("message.failed", connector=CONNECTOR, why=type(error).__name__, where=origin(error))
        self._vitals.trouble("message", f"a message could not be accepted ({type(error).__name__})")
