"""One event after the other, understood and passed on to the runtime. I/O; what an event means is in `convert`."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import structlog
from slack_sdk.web.async_slack_response import AsyncSlackResponse

from connectors.connector import Accept, SendFailed
from connectors.health import Backoff, Vitals
from connectors.message import AgentRuntimeError, ConversationKey, InboundKind, InboundMessage, StoreUnavailable
from connectors.slack import errors, events, payloads
from connectors.slack import events as slack_events
from connectors.slack.api import Api, Recent
from connectors.slack.events import Identity
from connectors.slack.send import Responses, Streams

# ---- lookups ----
#
# What Slack's events leave out and has to be asked for: names, files, which channels are public, and who takes part in
# a thread. I/O.
#
# A question that is not answered soon delays no message: the message goes on with less known about it.


log = structlog.get_logger()

NAME_LASTS_SECONDS = 3600.0
FAILURE_LASTS_SECONDS = 60.0
CHANNEL_LASTS_SECONDS = 60.0
ANSWER_WITHIN_SECONDS = 1.0
"""Slack waits 3 s for an acknowledgement, and the message has to be stored in that time, too."""

_REPLIES_READ = 200


class People:
    """Names by user id, remembered for `NAME_LASTS_SECONDS`."""

    def __init__(self, api: Api, now: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._now = now
        self._names: Recent[str, tuple[str, float]] = Recent()
        self._silent_until = 0.0

    async def names(self, user_ids: Iterable[str]) -> dict[str, str]:
        """The names that are known, or can be had within `ANSWER_WITHIN_SECONDS`."""
        found: dict[str, str] = {}
        unknown: list[str] = []
        for user_id in sorted(set(user_ids)):
            known = self._names.get(user_id)
            if known is None or known[1] < self._now():
                unknown.append(user_id)
            if known is not None and known[0]:
                found[user_id] = known[0]
        if unknown and self._silent_until <= self._now():
            try:
                async with asyncio.timeout(ANSWER_WITHIN_SECONDS):
                    for user_id in unknown:
                        found[user_id] = await self._ask(user_id) or found.get(user_id, "")
            except TimeoutError:
                log.debug("connector.lookup_failed", connector="slack", what="users.info", why="no answer in time")
                self._silent_until = self._now() + FAILURE_LASTS_SECONDS
        return {user_id: name for user_id, name in found.items() if name}

    async def _ask(self, user_id: str) -> str:
        if self._silent_until > self._now():
            return ""
        try:
            answer = await self._api.call(lambda client: client.users_info(user=user_id))
        except TimeoutError:
            raise
        except errors.SLACK_ERRORS as error:
            log.debug("connector.lookup_failed", connector="slack", what="users.info", why=self._api.describe(error))
            if errors.meaning(error).retryable:
                self._silent_until = self._now() + (errors.retry_after_seconds(error) or FAILURE_LASTS_SECONDS)
            else:  # this person cannot be known: somebody of another workspace, or a scope is missing
                self._names.put(user_id, ("", self._now() + FAILURE_LASTS_SECONDS))
            return ""
        name = _name(answer)
        self._names.put(user_id, (name, self._now() + NAME_LASTS_SECONDS))
        return name


def _name(answer: AsyncSlackResponse) -> str:
    """As Slack shows the person: the display name, which may be empty, else the real one."""
    user: dict[str, Any] = answer.get("user") or {}
    profile: dict[str, Any] = user.get("profile") or {}
    candidates = (profile.get("display_name"), profile.get("real_name"), user.get("real_name"), user.get("name"))
    return next((str(name) for name in candidates if name), "")


class Threads:
    """In which threads the bot takes part: where it was called or has spoken."""

    def __init__(self, api: Api, now: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._now = now
        self._known: Recent[tuple[str, str], bool] = Recent()
        self._silent_until = 0.0

    def joined(self, channel: str, thread: str) -> None:
        """The bot takes part from now on."""
        self._known.put((channel, thread), True)

    async def takes_part(self, channel: str, thread: str, me: Identity) -> bool:
        """Whether the bot takes part, as far as can be found out within `ANSWER_WITHIN_SECONDS`.

        Slack is asked once for a thread that this process does not know yet, for its first messages.
        """
        known = self._known.get((channel, thread))
        if known is not None or self._silent_until > self._now():
            return bool(known)
        try:
            async with asyncio.timeout(ANSWER_WITHIN_SECONDS):
                answer = await self._api.call(
                    lambda client: client.conversations_replies(channel=channel, ts=thread, limit=_REPLIES_READ)
                )
        except errors.SLACK_ERRORS as error:
            why = self._api.describe(error)
            log.debug("connector.lookup_failed", connector="slack", what="conversations.replies", why=why)
            self._silent_until = self._now() + (errors.retry_after_seconds(error) or FAILURE_LASTS_SECONDS)
            return False
        said: list[dict[str, Any]] = answer.get("messages") or []
        found = any(_is_part(message, me) for message in said)
        self._known.put((channel, thread), found)
        return found

    async def holding(self, channel: str, ts: str) -> str | None:
        """The thread in which a message stands, empty where it is in none; None where Slack does not say within
        `ANSWER_WITHIN_SECONDS`."""
        if self._silent_until > self._now():
            return None
        try:
            async with asyncio.timeout(ANSWER_WITHIN_SECONDS):
                answer = await self._api.call(
                    lambda client: client.conversations_replies(channel=channel, ts=ts, limit=1)
                )
        except errors.SLACK_ERRORS as error:
            why = self._api.describe(error)
            log.debug("connector.lookup_failed", connector="slack", what="conversations.replies", why=why)
            if errors.meaning(error).retryable:
                self._silent_until = self._now() + (errors.retry_after_seconds(error) or FAILURE_LASTS_SECONDS)
            return None
        said: list[dict[str, Any]] = answer.get("messages") or []
        threads = [str(one.get("thread_ts") or "") for one in said if one.get("ts") == ts]
        return next(("" if thread == ts else thread for thread in threads), None)  # what begins one is in none


def _is_part(message: dict[str, Any], me: Identity) -> bool:
    return (
        message.get("user") == me.user_id
        or (bool(me.bot_id) and message.get("bot_id") == me.bot_id)
        or me.user_id in (message.get("reply_users") or ())
        or events.names_person(message.get("text") or "", me.user_id)
    )


class Channels:
    """Which channels are public. What Slack does not say is private."""

    def __init__(self, api: Api, now: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._now = now
        self._known: Recent[str, tuple[bool, float]] = Recent()

    def says(self, channel: str, public: bool) -> None:
        """An event named the channel's type."""
        self._known.put(channel, (public, self._now() + CHANNEL_LASTS_SECONDS))

    async def is_public(self, channel: str) -> bool:
        """Whether everybody of the Slack workspace may read *channel*, as far as can be found out within
        `ANSWER_WITHIN_SECONDS`. A channel may become private: what is known lasts `CHANNEL_LASTS_SECONDS`."""
        if channel.startswith("D"):
            return False
        known = self._known.get(channel)
        if known is not None and known[1] > self._now():
            return known[0]
        try:
            async with asyncio.timeout(ANSWER_WITHIN_SECONDS):
                answer = await self._api.call(lambda client: client.conversations_info(channel=channel))
        except errors.SLACK_ERRORS as error:
            why = self._api.describe(error)
            log.debug("connector.lookup_failed", connector="slack", what="conversations.info", why=why)
            return False
        told: dict[str, Any] = answer.get("channel") or {}
        public = bool(told.get("is_channel")) and not any(told.get(f"is_{one}") for one in ("private", "mpim", "im"))
        self.says(channel, public)
        return public


class SharedFiles:
    """What Slack tells of files of other organisations only when it is asked (``check_file_info``)."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def told(self, event: Mapping[str, Any]) -> Mapping[str, Any]:
        """*event* with its files as they are, as far as that can be had within `ANSWER_WITHIN_SECONDS`."""
        files = event.get("files")
        if not isinstance(files, list) or not any(_is_bare(file) for file in files):
            return event
        told = list(files)
        try:
            async with asyncio.timeout(ANSWER_WITHIN_SECONDS):
                for at, file in enumerate(files):
                    if _is_bare(file):
                        told[at] = await self._ask(file)
        except TimeoutError:
            log.debug("connector.lookup_failed", connector="slack", what="files.info", why="no answer in time")
        return {**event, "files": told}

    async def _ask(self, file: Mapping[str, Any]) -> Mapping[str, Any]:
        file_id = str(file["id"])
        try:
            answer = await self._api.call(lambda client: client.files_info(file=file_id))
        except TimeoutError:
            raise
        except errors.SLACK_ERRORS as error:
            log.debug("connector.lookup_failed", connector="slack", what="files.info", why=self._api.describe(error))
            return file
        return answer.get("file") or file


def _is_bare(file: Any) -> bool:
    return isinstance(file, Mapping) and file.get("file_access") == "check_file_info" and "id" in file


# ---- intake ----


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
        self._open: tuple[Accept, events.Identity] | None = None
        self._order = asyncio.Lock()
        self._accepted: Recent[str, None] = Recent()
        self._places: Recent[tuple[str, str], str] = Recent()

    def open(self, accept: Accept, me: events.Identity) -> None:
        """Pass on to *accept* from now on."""
        self._open = (accept, me)

    def close(self) -> None:
        """Take nothing any more."""
        self._open = None

    def sent(self, external_id: str, message_id: str) -> None:
        """The bot said something in a place."""
        channel, thread = payloads.to_place(external_id)
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
            public = await self._channels.is_public(payloads.channel_of(payload))
            command = payloads.to_command(payload, me, public=public)
        except (KeyError, TypeError, ValueError, AttributeError):
            log.warning("message.ignored", connector=events.CONNECTOR, why="unreadable")
            return AgentRuntimeError.user_text
        asked = command.message.message_id
        if asked in self._accepted:
            return ""
        self._responses.expect(asked, command.response_url)  # before, as the reply may come at once
        try:
            async with asyncio.timeout(COMMAND_SECONDS):
                await accept(command.message)
        except (StoreUnavailable, TimeoutError) as error:
            log.warning("message.failed", connector=events.CONNECTOR, why=type(error).__name__, where="command")
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
            log.warning("message.failed", connector=events.CONNECTOR, why=type(error).__name__, where="button")
            return False
        except Exception as error:  # noqa: BLE001 - the boundary: one press must not stop all others
            self._report(error)
            return False
        self._vitals.well("store")
        if accepted.outcome not in ("stored", "duplicate"):
            return False
        arguments = payloads.without_buttons(str(payload["channel"]["id"]), payload["message"])
        try:
            async with asyncio.timeout(BUTTON_SECONDS):
                await self._api.ask(lambda client: client.chat_update(**arguments))
        except (SendFailed, TimeoutError) as error:  # whoever presses them again is told what was decided
            log.debug("connector.sign_lost", connector=events.CONNECTOR, why=str(error))
        return True

    async def _press(self, payload: Mapping[str, Any], me: events.Identity) -> InboundMessage | None:
        try:
            message = payloads.to_press(payload, me)
        except (KeyError, TypeError, ValueError, AttributeError):
            log.warning("message.ignored", connector=events.CONNECTOR, why="unreadable")
            return None
        if message is None:  # shortcuts, dialogues: nothing of ours has any
            log.info("message.ignored", connector=events.CONNECTOR, why="unsupported: interactive")
            return None
        return replace(message, public=await self._channels.is_public(message.place))

    async def _pass_on(self, payload: Mapping[str, Any], accept: Accept, me: events.Identity) -> None:
        if payload.get("type") != "event_callback":
            log.warning("message.ignored", connector=events.CONNECTOR, why=f"unsupported: {payload.get('type')}")
            return
        try:
            identity = events.identity_of(payload)
            if identity in self._accepted:
                return
            event = payload["event"]
            if event["type"] in _TOKEN_EVENTS:
                self._doubt.set()
            known = await self._known(event, me)
            message = events.to_inbound(await self._files.told(event), me, known)
        except (KeyError, TypeError, ValueError, AttributeError):
            log.warning("message.ignored", connector=events.CONNECTOR, why="unreadable")
            return
        if message is not None:
            self._streams_to(event, message, me)
            await accept(message)
            self._remember(message)
        self._accepted.put(identity, None)

    async def _known(self, event: events.Event, me: events.Identity) -> events.Known:
        asked = events.thread_in_question(event, me)
        takes_part = await self._threads.takes_part(*asked, me) if asked is not None else False
        names = await self._people.names(events.people_of(event) - {me.user_id})
        place, public = await self._place(event, me), events.is_public(event)
        channel = str(event.get("channel") or (event.get("item") or {}).get("channel") or "")
        if public is not None:
            self._channels.says(channel, public)
        elif event["type"] in {"message", "app_mention"}:
            public = await self._channels.is_public(channel)
        return events.Known(names, takes_part, place, bool(public))

    async def _place(self, event: events.Event, me: events.Identity) -> str | None:
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

    def _streams_to(self, event: events.Event, message: InboundMessage, me: events.Identity) -> None:
        """Before it is accepted, as the reply may come at once."""
        if message.kind is InboundKind.MESSAGE:
            channel, _, _ = message.external_id.partition("/")
            self._streams.asked(channel, message.message_id, *events.asker_of(event, me))

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
            connector=events.CONNECTOR,
            why=type(error).__name__,  # without the error's own words, which may quote the message
            where=f"{frame.name}:{frame.lineno}",
        )
        self._vitals.trouble("message", f"a message could not be accepted ({type(error).__name__})")


# ---- history ----
#
# What was said in a place after a moment, from Slack's history. I/O.


_PAGES = 10
_MESSAGES = 200
SCAN_SECONDS = 24 * 3600.0
"""How far back a channel is read for calls that began a thread which nobody here has heard of."""

MISSED_SECONDS = 7 * 24 * 3600.0
"""Conversations that were silent for longer are not read: one that knows thousands would be held back by Slack for
long, and what was heard so long ago is not known to have been answered."""

_UNREADABLE = frozenset({"channel_not_found", "not_in_channel", "thread_not_found", "missing_scope", "is_archived"})


class History:
    """Messages of a place, oldest first, bounded to `_PAGES` pages."""

    def __init__(self, api: Api, channels: Channels, now: Callable[[], float] = time.time) -> None:
        self._api = api
        self._channels = channels
        self._now = now
        self._scanned: Recent[str, None] = Recent()

    async def after(self, channel: str, thread: str | None, ts: str) -> list[dict[str, Any]]:
        """What was said after *ts*, as events. Raises `connectors.connector.SendFailed`."""
        found: list[dict[str, Any]] = []
        cursor = ""
        for _ in range(_PAGES):
            page: dict[str, Any] = {"oldest": ts, "limit": _MESSAGES, "cursor": cursor or None}
            if thread is None:
                answer = await self._api.ask(lambda client: client.conversations_history(channel=channel, **page))  # noqa: B023
            else:
                answer = await self._api.ask(
                    lambda client: client.conversations_replies(channel=channel, ts=thread, **page)  # noqa: B023
                )
            found += answer.get("messages") or []
            cursor = str((answer.get("response_metadata") or {}).get("next_cursor") or "")
            if not cursor:
                break
        else:
            log.warning("connector.history_cut", connector=slack_events.CONNECTOR, found=len(found))
        # A page has the newest first, or not; and a thread's first message comes with every page.
        newer = {str(said["ts"]): said for said in found if float(said["ts"]) > float(ts)}
        return [as_event(newer[at], channel) for at in sorted(newer, key=float)]

    async def missed(
        self, key: ConversationKey, after_message_id: str, me: slack_events.Identity
    ) -> AsyncIterator[InboundMessage]:
        """What was said in a conversation after a message, and calls in its channel that began another.

        Nothing where Slack does not let the bot read. Raises `connectors.connector.SendFailed` where it may later.
        """
        channel, thread = payloads.place_of(key.external_id)
        if not payloads.is_ts(after_message_id):
            return  # a command, of which Slack keeps nothing
        if self._now() - float(after_message_id) > MISSED_SECONDS:
            return
        public = await self._channels.is_public(channel)
        for event in await self._readable(channel, thread, after_message_id):
            message = _understood(event, me, slack_events.Known(takes_part=thread is not None, public=public))
            if message is not None:
                yield message
        if thread is None or channel.startswith("D") or channel in self._scanned:
            return
        since = max(float(after_message_id), self._now() - SCAN_SECONDS)
        events = await self._readable(channel, None, f"{since:.6f}")
        self._scanned.put(channel, None)
        for event in events:
            message = _understood(event, me, slack_events.Known(public=public))
            if message is not None and message.addressed:
                yield message

    async def _readable(self, channel: str, thread: str | None, ts: str) -> list[dict[str, Any]]:
        try:
            return await self.after(channel, thread, ts)
        except SendFailed as failed:
            if failed.retryable:
                raise
            why = errors.word(failed.__cause__)
            level = log.info if why in _UNREADABLE else log.warning
            level("connector.lookup_failed", connector=slack_events.CONNECTOR, what="history", why=why or "refused")
            return []


def as_event(said: dict[str, Any], channel: str) -> dict[str, Any]:
    """A message of the history as the event by which it would have come."""
    kind = {"channel_type": "im"} if channel.startswith("D") else {}
    return {"type": "message", **said, "channel": channel, **kind}


def _understood(event: dict[str, Any], me: slack_events.Identity, known: slack_events.Known) -> InboundMessage | None:
    try:
        return slack_events.to_inbound(event, me, known)
    except (KeyError, TypeError, ValueError, AttributeError):
        log.warning("message.ignored", connector=slack_events.CONNECTOR, why="unreadable")
        return None


# ---- hearing ----
#
# Whether a connection that looks alive still brings events: judged by its own baseline. Pure.


SPOKEN = frozenset({None, "file_share", "thread_broadcast", "me_message", "bot_message"})
_WEIGHT = 0.1
_PATIENCE = 5.0
PLACES = 5
GRACE_SECONDS = 15.0
"""A message that is younger may still be on its way as an event."""


class Hearing:
    """What was heard last, where, and how often something is heard usually.

    A silence is overdue once it lasts ``quiet_seconds`` and five times the usual gap between two events
    (an exponential moving average with weight 0.1).
    """

    def __init__(self, quiet_seconds: float) -> None:
        self._quiet_seconds = quiet_seconds
        self._last: float | None = None
        self._usual_seconds = 0.0
        self._asked = 0.0
        self._places: Recent[tuple[str, str | None], str] = Recent(1000)

    def heard(self, payload: Mapping[str, Any], now: float) -> None:
        """An event came, of whatever kind; *now* by a clock that never goes back."""
        if self._last is not None:
            gap = now - self._last
            self._usual_seconds += _WEIGHT * (gap - self._usual_seconds)
        self._last = now
        event = payload.get("event")
        # An ``app_mention`` alone says nothing about whether messages of the channel are subscribed to.
        if isinstance(event, Mapping) and event.get("type") == "message" and event.get("subtype") in SPOKEN:
            self.reached(event)

    def reached(self, event: Mapping[str, Any]) -> None:
        """What was said in a place until this message is known."""
        channel, ts, thread = event.get("channel"), event.get("ts"), event.get("thread_ts")
        if not isinstance(channel, str) or not isinstance(ts, str) or not ts.replace(".", "").isdecimal():
            return
        place = (channel, thread if isinstance(thread, str) and thread != ts else None)
        if float(ts) > float(self._places.get(place) or 0):
            self._places.put(place, ts)

    def is_overdue(self, now: float) -> bool:
        """Whether it is time to ask whether something was said that was not heard."""
        if self._last is None:
            return False
        return now - max(self._last, self._asked) > max(self._quiet_seconds, _PATIENCE * self._usual_seconds)

    def asked(self, now: float) -> None:
        """It was asked."""
        self._asked = now

    def places(self) -> list[tuple[str, str | None, str]]:
        """Channel, thread and newest heard timestamp of the places where something was heard last."""
        return [(channel, thread, ts) for (channel, thread), ts in self._places.newest(PLACES)]


def is_unheard(said: Mapping[str, Any], now_seconds: float) -> bool:
    """Whether *said*, newer than all that was heard in its place, should have come as an event by now.

    What apps say is left out: of its own messages an app need not hear, such as those that it streams.
    """
    if said.get("bot_id"):
        return False
    return said.get("subtype") in SPOKEN and now_seconds - float(said["ts"]) > GRACE_SECONDS


# ---- gaps ----
#
# What a connection that broke may have swallowed, read from the history and put in its place. I/O.
#
# Slack delivers again what was not acknowledged, but later than what is said meanwhile: without this a conversation's
# messages would change places. Over HTTP a request that was not acknowledged is such a break.


PATIENCE_SECONDS = 5.0
"""How long all that was said waits for one place's history."""
_PAUSE_SECONDS = 0.2
_REST_SECONDS = 5.0
"""For how long nothing is looked for after the history could not be had, unless Slack asks for a longer pause."""
_Place = tuple[str, str | None]


class Gaps:
    """Where something may be missing: in each conversation that has not been looked at since a connection broke.

    A conversation is a direct message's channel, or a thread; of those that nobody spoke in yet, what is missing is
    looked for from the newest message on that was heard anywhere when the connection broke.
    """

    def __init__(self, history: History, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._history = history
        self._patience_seconds = patience_seconds
        self.breaks = 0
        """Connections that broke so far."""
        self._complete: Recent[_Place, int] = Recent()
        """After how many of them it was last looked whether something is missing in a place."""
        self._newest: Recent[_Place, str] = Recent()
        """The timestamp of what people said last in a place, of what was passed on."""
        self._latest = self._since = ""
        self._rests_until = 0.0

    def broke(self, bringing: Mapping[str, Any] | None = None) -> None:
        """A connection broke: what it brought last may not have come, *bringing* among it where that is known."""
        self.breaks += 1
        self._since = self._latest
        spoken = None if bringing is None else _spoken(bringing)
        if spoken is not None and spoken[0] not in self._newest:  # what is missing there begins with it
            self._newest.put(spoken[0], f"{float(spoken[1]) - 0.000_001:.6f}")

    def passed_on(self, event: Mapping[str, Any]) -> None:
        """*event* was passed on."""
        spoken = _spoken(event)
        if spoken is None:
            return
        place, ts = spoken
        if float(ts) > float(self._newest.get(place) or 0):
            self._newest.put(place, ts)
        if float(ts) > float(self._latest or 0):
            self._latest = ts

    def is_late(self, event: Mapping[str, Any]) -> bool:
        """Whether something was passed on that was said after *event* in the same place."""
        spoken = _spoken(event)
        return spoken is not None and float(spoken[1]) < float(self._newest.get(spoken[0]) or 0)

    async def filled(self, event: dict[str, Any], follows: int) -> list[dict[str, Any]]:
        """*event*, which came by a connection that follows so many that broke, among all that people said in its
        conversation and nobody heard, oldest first.

        What was said after it, too: what it repeats may be older than the last that was swallowed.
        """
        spoken = _spoken(event)
        if spoken is None:
            return [event]
        place, ts = spoken
        since, now = self._newest.get(place) or self._since, asyncio.get_running_loop().time()
        if place[1] == ts or not follows or not since or (self._complete.get(place) or 0) >= follows:
            return [event]
        if now < self._rests_until:
            return [event]
        try:
            async with asyncio.timeout(self._patience_seconds):
                said = await self._after(*place, since)
        except (SendFailed, TimeoutError) as error:
            asked = getattr(error, "retry_after_seconds", None) or 0.0
            self._rests_until = now + max(_REST_SECONDS, asked)
            log.warning("connector.lookup_failed", connector="slack", what="history", why=str(error) or "no answer")
            return [event]
        self._complete.put(place, follows)
        missing = [one for one in said if not one.get("bot_id") and one["ts"] != ts]
        return sorted([*missing, event], key=lambda one: float(one["ts"]))

    async def _after(self, channel: str, thread: str | None, ts: str) -> list[dict[str, Any]]:
        while True:
            try:
                return await self._history.after(channel, thread, ts)
            except SendFailed as error:
                if not error.retryable or error.retry_after_seconds:
                    raise
            await asyncio.sleep(_PAUSE_SECONDS)


def as_payload(event: dict[str, Any]) -> dict[str, Any]:
    """*event*, which the history told of, as Slack would have delivered it."""
    return {"type": "event_callback", "event_id": f"history-{event['channel']}-{event['ts']}", "event": event}


def _spoken(event: Mapping[str, Any]) -> tuple[_Place, str] | None:
    """Channel and thread, and the timestamp, of what a person said; in a channel it begins a thread of its own."""
    if event.get("type") not in ("message", "app_mention") or event.get("subtype") not in SPOKEN or event.get("bot_id"):
        return None
    channel, ts, thread = event.get("channel"), event.get("ts"), event.get("thread_ts")
    if not isinstance(channel, str) or not isinstance(ts, str) or not ts.replace(".", "", 1).isdecimal():
        return None
    if isinstance(thread, str) and thread:
        return (channel, thread), ts
    return (channel, None if channel.startswith("D") else ts), ts
