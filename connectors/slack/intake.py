"""One event after the other, understood and passed on to the runtime. I/O; what an event means is in `convert`."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import structlog

from connectors.connector import Accept, SendFailed
from connectors.message import AgentRuntimeError, InboundKind, InboundMessage, StoreUnavailable
from connectors.slack import commands, convert, outgoing
from connectors.slack.api import Api
from connectors.slack.lookups import Channels, People, SharedFiles, Threads
from connectors.slack.recent import Recent
from connectors.slack.responses import Responses
from connectors.slack.streaming import Streams
from connectors.vitals import Backoff, Vitals

log = structlog.get_logger()

_ATTEMPTS_PER_EVENT = 3
"""How often an event is offered when accepting it fails for another reason than an absent store."""

COMMAND_SECONDS, BUTTON_SECONDS = 2.0, 0.7
"""Slack waits 3 s for the acknowledgement of a command or a pressed button, and repeats none."""

_TOKEN_EVENTS = frozenset({"tokens_revoked", "app_uninstalled"})


class Intake:
    """Where events and commands go, however they came."""

    def __init__(self, api: Api, vitals: Vitals, streams: Streams, responses: Responses, channels: Channels) -> None:
        self._api = api
        self._people = People(api)
        self._channels = channels
        self._threads = Threads(api)
        self._files = SharedFiles(api)
        self._vitals = vitals
        self._doubt = api.doubt
        self._streams = streams
        self._responses = responses
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
        channel, thread = outgoing.to_place(external_id)
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

    async def take_command(self, payload: Mapping[str, Any]) -> str:
        """What its giver has to be told at once; nothing where a reply follows. Takes `COMMAND_SECONDS` at most."""
        if self._open is None:
            return StoreUnavailable.user_text
        accept, me = self._open
        try:
            public = await self._channels.is_public(commands.channel_of(payload))
            command = commands.to_command(payload, me, public=public)
        except (KeyError, TypeError, ValueError, AttributeError):
            log.warning("message.ignored", connector=convert.CONNECTOR, why="unreadable")
            return AgentRuntimeError.user_text
        asked = command.message.message_id
        if asked in self._accepted:
            return ""
        self._responses.expect(asked, command.response_url)  # before, as the reply may come at once
        try:
            async with asyncio.timeout(COMMAND_SECONDS):
                await accept(command.message)
        except (StoreUnavailable, TimeoutError) as error:
            log.warning("message.failed", connector=convert.CONNECTOR, why=type(error).__name__, where="command")
            self._responses.forget(asked)
            return StoreUnavailable.user_text
        except Exception as error:  # noqa: BLE001 - the boundary: one command must not stop all others
            self._report(error)
            self._responses.forget(asked)
            return error.user_text if isinstance(error, AgentRuntimeError) else AgentRuntimeError.user_text
        self._accepted.put(asked, None)
        self._vitals.well("store")
        return ""

    async def take_press(self, payload: Mapping[str, Any]) -> bool:
        """Whether an interaction may be acknowledged: it is a press that was stored, whose buttons then go, or none of
        ours. Else Slack shows who pressed that it failed. Takes `COMMAND_SECONDS` and `BUTTON_SECONDS` at most."""
        if self._open is None:
            return False
        accept, me = self._open
        try:
            async with asyncio.timeout(COMMAND_SECONDS):
                message = await self._press(payload, me)
                if message is None:
                    return True
                accepted = await accept(message)
        except (StoreUnavailable, TimeoutError) as error:
            log.warning("message.failed", connector=convert.CONNECTOR, why=type(error).__name__, where="button")
            return False
        except Exception as error:  # noqa: BLE001 - the boundary: one press must not stop all others
            self._report(error)
            return False
        self._vitals.well("store")
        if accepted.outcome not in ("stored", "duplicate"):
            return False
        arguments = outgoing.without_buttons(str(payload["channel"]["id"]), payload["message"])
        try:
            async with asyncio.timeout(BUTTON_SECONDS):
                await self._api.ask(lambda client: client.chat_update(**arguments))
        except (SendFailed, TimeoutError) as error:  # whoever presses them again is told what was decided
            log.debug("connector.sign_lost", connector=convert.CONNECTOR, why=str(error))
        return True

    async def _press(self, payload: Mapping[str, Any], me: convert.Identity) -> InboundMessage | None:
        try:
            message = commands.to_press(payload, me)
        except (KeyError, TypeError, ValueError, AttributeError):
            log.warning("message.ignored", connector=convert.CONNECTOR, why="unreadable")
            return None
        if message is None:  # shortcuts, dialogues: nothing of ours has any
            log.info("message.ignored", connector=convert.CONNECTOR, why="unsupported: interactive")
            return None
        return replace(message, public=await self._channels.is_public(message.place))

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
            known = await self._known(event, me)
            message = convert.to_inbound(await self._files.told(event), me, known)
        except (KeyError, TypeError, ValueError, AttributeError):
            log.warning("message.ignored", connector=convert.CONNECTOR, why="unreadable")
            return
        if message is not None:
            self._streams_to(event, message, me)
            await accept(message)
            self._remember(message)
        self._accepted.put(identity, None)

    async def _known(self, event: convert.Event, me: convert.Identity) -> convert.Known:
        asked = convert.thread_in_question(event, me)
        takes_part = await self._threads.takes_part(*asked, me) if asked is not None else False
        names = await self._people.names(convert.people_of(event) - {me.user_id})
        place, public = await self._place(event, me), convert.is_public(event)
        channel = str(event.get("channel") or (event.get("item") or {}).get("channel") or "")
        if public is not None:
            self._channels.says(channel, public)
        elif event["type"] in {"message", "app_mention"}:
            public = await self._channels.is_public(channel)
        return convert.Known(names, takes_part, place, bool(public))

    async def _place(self, event: convert.Event, me: convert.Identity) -> str | None:
        """The conversation of the message that a reaction is on, which the event does not say. For the bot's own, said
        before a start or by another process, Slack is asked once."""
        item = event.get("item") or {}
        channel, ts = str(item.get("channel")), str(item.get("ts"))
        place = self._places.get((channel, ts))
        if place is not None or item.get("type") != "message" or event.get("item_user") != me.user_id:
            return place
        thread = await self._threads.holding(channel, ts)
        if thread is None:
            return None
        place = f"{channel}/{thread}" if thread else channel
        self._places.put((channel, ts), place)
        return place

    def _streams_to(self, event: convert.Event, message: InboundMessage, me: convert.Identity) -> None:
        """Before it is accepted, as the reply may come at once."""
        if message.kind is InboundKind.MESSAGE:
            channel, _, _ = message.external_id.partition("/")
            self._streams.asked(channel, message.message_id, *convert.asker_of(event, me))

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
