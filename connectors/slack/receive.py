"""Passes events, commands and button presses on to the runtime, in order and each once. I/O.

`connectors.slack.bolt` brings them, `connectors.slack.events` says what they mean and `connectors.slack.lookups` what
they leave out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

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

BUTTON_SECONDS = 0.7
"""Time to remove the buttons after a press was stored: Slack waits 3 s for its acknowledgement."""

_ATTEMPTS_PER_EVENT = 3
"""Attempts to have an event accepted, if another reason than an absent store makes them fail."""

_MAX_PENDING = 1000
"""The most events that wait to be accepted. Slack keeps the others."""


class Intake:
    """Passes on what Slack delivers while it is open.

    The messages of one conversation are accepted one after the other, in the order in which `take` was called; no
    conversation waits for another. *command_seconds* bounds the time until a command or press is stored.
    """

    def __init__(
        self,
        api: Api,
        vitals: ConnectionHealth,
        streams: Streams,
        responses: CommandResponses,
        lookups: Lookups,
        backoff: Backoff,
        command_seconds: float,
    ) -> None:
        self._api = api
        self._vitals = vitals
        self._streams = streams
        self._responses = responses
        self._lookups = lookups
        self._backoff = backoff
        self._command_seconds = command_seconds
        self._runtime: tuple[Accept, Identity, asyncio.TaskGroup] | None = None
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By conversation. A lock lets those who wait pass in their order, and is forgotten when nobody does."""
        self._pending: dict[str, asyncio.Task[bool]] = {}
        """By identity: the events that are not accepted yet."""
        self._is_full = False
        self._accepted: Recent[str, None] = Recent()
        self._places: Recent[tuple[str, str], str] = Recent()
        """The conversations of messages, by channel and timestamp."""

    def open(self, accept: Accept, me: Identity, tasks: asyncio.TaskGroup) -> None:
        """Pass on to *accept* from now on, in *tasks*."""
        self._runtime = (accept, me, tasks)

    def close(self) -> None:
        """Take nothing any more."""
        self._runtime = None

    def note_sent(self, external_id: str, message_id: str) -> None:
        """Remember the conversation of a message that the bot sent, and that the bot takes part in its thread."""
        channel, thread = payloads.split_place(external_id)
        self._places.put((channel, message_id), external_id)
        if thread is not None:
            self._lookups.note_participation(channel, thread)

    # Events

    async def take(self, payload: Mapping[str, Any], within_seconds: float | None = None) -> bool:
        """Pass on an event. Returns True once it is accepted or is not for the runtime: it may be acknowledged.

        After *within_seconds* returns False. The event is still offered for as long as the store is away, and holds
        its place: Slack tries only a few times, and later than what is said meanwhile.
        """
        if self._runtime is None:
            return False
        accept, me, tasks = self._runtime
        try:
            identity, conversation = events.event_identity(payload), self._conversation(payload["event"], me)
        except MALFORMED:
            log.warning("message.ignored", connector=CONNECTOR, why="unreadable")
            return True
        if identity in self._accepted:
            return True
        task = self._pending.get(identity)
        if task is None:
            if len(self._pending) >= _MAX_PENDING:
                if not self._is_full:  # one warning for a flood, not one for each of its events
                    log.warning("connector.overrun", connector=CONNECTOR, waiting=len(self._pending))
                self._is_full = True
                return False
            self._is_full = False
            work = self._take_in_order(conversation, identity, payload["event"], accept, me)
            task = self._pending[identity] = tasks.create_task(work, name="slack event")
            task.add_done_callback(lambda _: self._pending.pop(identity, None))
        await asyncio.wait([task], timeout=within_seconds)
        return task.done() and not task.cancelled() and task.result()

    def _conversation(self, event: events.Event, me: Identity) -> str:
        return self._places.get(events.reacted_to(event)) or events.conversation_of(event, me)

    async def _take_in_order(
        self, conversation: str, identity: str, event: events.Event, accept: Accept, me: Identity
    ) -> bool:
        backoff, faults = self._backoff.fresh(), 0
        async with self._locks.setdefault(conversation, asyncio.Lock()):
            while True:
                try:
                    await self._pass_on(event, accept, me)
                    self._accepted.put(identity, None)
                    self._vitals.well("store")
                    break
                except StoreUnavailable:
                    self._vitals.trouble("store", "the store is unavailable; messages wait")
                except Exception as error:  # noqa: BLE001 - the boundary: one message must not stop all others
                    self._report(error)
                    faults += 1
                    if faults == _ATTEMPTS_PER_EVENT:
                        break
                await asyncio.sleep(backoff.next_seconds())
        self._vitals.well("message")
        return True

    async def _pass_on(self, event: events.Event, accept: Accept, me: Identity) -> None:
        try:
            if event["type"] in {"tokens_revoked", "app_uninstalled"}:
                self._api.token_suspect.set()
            details = await self._details(event, me)
            message = events.to_inbound(await self._lookups.complete_files(event), me, details)
        except MALFORMED:
            log.warning("message.ignored", connector=CONNECTOR, why="unreadable")
            return
        if message is None:
            return
        if message.kind is InboundKind.MESSAGE:  # before it is accepted, as the reply may come at once
            self._streams.note_asker(message.place, message.message_id, *events.author_and_team(event, me))
        await accept(message)
        self._remember(message)

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
        channel, ts = events.reacted_to(event)
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

    def _report(self, error: Exception) -> None:
        """Log *error* without its text, which may quote the message."""
        log.error("message.failed", connector=CONNECTOR, why=type(error).__name__, where=origin(error))
        self._vitals.trouble("message", f"a message could not be accepted ({type(error).__name__})")

    # Commands and buttons, which Slack delivers once, to be acknowledged within 3 s

    async def take_command(self, payload: Mapping[str, Any]) -> str:
        """Pass on a slash command. Returns the text to show its giver at once; empty if a reply will follow."""
        if self._runtime is None:
            return StoreUnavailable.user_text
        accept, me, _ = self._runtime
        try:
            command = events.to_command(payload, me)
        except MALFORMED:
            log.warning("message.ignored", connector=CONNECTOR, why="unreadable")
            return AgentRuntimeError.user_text
        command_id = command.message_id
        if command_id in self._accepted:
            return ""
        # Before it is accepted, as the reply may come at once.
        self._responses.expect(command_id, str(payload.get("response_url") or ""))
        try:
            async with asyncio.timeout(self._command_seconds):
                await accept(replace(command, public=await self._lookups.is_public(command.place)))
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
        """Pass on the press of a button, and remove the buttons within `BUTTON_SECONDS`.

        Returns True if the press was stored or is not for the runtime. Otherwise it must not be acknowledged: Slack
        then shows the person that it failed.
        """
        if self._runtime is None:
            return False
        accept, me, _ = self._runtime
        try:
            message = events.to_press(payload, me)
        except MALFORMED:
            log.warning("message.ignored", connector=CONNECTOR, why="unreadable")
            return True
        if message is None or message.message_id in self._accepted:
            return True
        try:
            async with asyncio.timeout(self._command_seconds):
                accepted = await accept(replace(message, public=await self._lookups.is_public(message.place)))
        except (StoreUnavailable, TimeoutError) as error:
            log.warning("message.failed", connector=CONNECTOR, why=type(error).__name__, where="button")
            return False
        except Exception as error:  # noqa: BLE001 - the boundary: one press must not stop all others
            self._report(error)
            return False
        self._vitals.well("store")
        if accepted.outcome not in ("stored", "duplicate"):
            return False
        self._accepted.put(message.message_id, None)
        if accepted.outcome == "stored":
            await self._remove_buttons(message.place, payload["message"])
        return True

    async def _remove_buttons(self, channel: str, message: Mapping[str, Any]) -> None:
        arguments = payloads.to_remove_buttons(channel, message)
        try:
            async with asyncio.timeout(BUTTON_SECONDS):
                await self._api.request(lambda client: client.chat_update(**arguments))
        except (SendFailed, TimeoutError) as error:  # whoever presses them again is told what was decided
            log.debug("connector.sign_lost", connector=CONNECTOR, why=str(error))
