"""Connectors side by side: which are on, what is done when one breaks, and what was missed is read in order."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest
import structlog
from redis.asyncio import Redis
from starlette.routing import Route
from structlog.testing import capture_logs

from config.settings import Settings
from connectors.connector import Accept, Capabilities, ConnectionState, ConnectorFailed, Health, MountsRoutes
from connectors.message import (
    Accepted,
    AgentRuntimeError,
    Author,
    ConversationKey,
    InboundMessage,
    OutboundMessage,
    OutboundPart,
    Receipt,
    Role,
    StoreUnavailable,
)
from runtime.embedded import background_task
from runtime.ingress import open_platforms
from runtime.process.connectors import CONCURRENT_FETCHES, Backfill, Supervisor
from runtime.turns import Envelope, Mailbox
from tests.contract.connector_suite import eventually

TOKENS = {"telegram_bot_token": "1:none", "discord_bot_token": "none", "slack_bot_token": "xoxb-none"}


@pytest.mark.parametrize("name", ["telegram", "discord", "slack"])
async def test_a_platform_is_on_when_its_token_is_set(settings: Callable[..., Settings], name: str) -> None:
    """It is made, not connected: that is for `run`."""
    variable = f"{name}_bot_token"
    (connector,) = await open_platforms(settings(**{variable: TOKENS[variable]}))
    assert connector.name == name
    assert connector.health.state is ConnectionState.CONNECTING
    await connector.close()


async def test_without_tokens_no_platform_is_on(settings: Callable[..., Settings]) -> None:
    assert await open_platforms(settings()) == []


async def test_telegram_is_heard_by_webhook_where_a_secret_is_set(settings: Callable[..., Settings]) -> None:
    """Then it has a route of its own on the runtime's face; else it has none."""
    options = {"telegram_bot_token": TOKENS["telegram_bot_token"], "http_public_url": "https://bot.example"}
    for secret, paths in ((None, []), ("a-secret", ["/telegram/webhook"])):
        (connector,) = await open_platforms(settings(**options, telegram_webhook_secret=secret))
        assert isinstance(connector, MountsRoutes)
        assert [route.path for route in connector.routes() if isinstance(route, Route)] == paths
        await connector.close()


class FailingRadio:
    """A platform that fails as told each time it is run, then receives for ever."""

    capabilities = Capabilities(max_part_units=10)

    def __init__(self, name: str, *failures: Exception) -> None:
        self.name = name
        self.health = Health(ConnectionState.CONNECTED)
        self.failures = list(failures)
        self.started: list[float] = []
        self.ends = False

    async def run(self, accept: Accept) -> None:
        self.started.append(asyncio.get_running_loop().time())
        if self.failures:
            raise self.failures.pop(0)
        if not self.ends:
            await asyncio.Event().wait()

    def render(self, message: OutboundMessage) -> Sequence[OutboundPart]:
        return []

    async def send(self, message: OutboundMessage, part: OutboundPart) -> Receipt:
        raise NotImplementedError

    async def close(self) -> None:
        return None


async def refuse(message: InboundMessage) -> Accepted:
    return Accepted("ignored", "test", key=ConversationKey("acme", message.connector, "x"))


def quick(*radios: FailingRadio) -> Supervisor:
    return Supervisor(radios, restart_seconds=(0.02, 0.05), watch_seconds=0.01)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_connector_that_breaks_is_named_and_started_again() -> None:
    radio, other = FailingRadio("radio", ValueError("static")), FailingRadio("other")
    watch = quick(radio, other)
    with structlog.testing.capture_logs() as logs:
        async with background_task(watch.run(refuse), "connectors"):
            await until(lambda: len(radio.started) == 2)
            await until(lambda: watch.health(radio).state is ConnectionState.CONNECTED)
            await asyncio.sleep(0.05)

    assert len(other.started) == 1
    told = [(one["connector"], one["state"]) for one in logs if one["event"] == "connector.state"]
    assert [state for name, state in told if name == "radio"] == ["connected", "failed", "connected"]
    assert [state for name, state in told if name == "other"] == ["connected"]  # a state is told when it changes


async def test_a_connector_that_failed_for_good_stays_so() -> None:
    radio = FailingRadio("radio", ConnectorFailed("the token was revoked"))
    watch = quick(radio)
    async with background_task(watch.run(refuse), "connectors"):
        await until(lambda: watch.health(radio).state is ConnectionState.FAILED)
        await asyncio.sleep(0.1)

    assert len(radio.started) == 1
    assert watch.health(radio).why == "the token was revoked"


async def test_one_that_has_nothing_more_to_receive_is_left_alone() -> None:
    console = FailingRadio("console")
    console.ends = True
    async with background_task(quick(console).run(refuse), "connectors"):
        await until(lambda: console.started)
        await asyncio.sleep(0.1)

    assert len(console.started) == 1


KEY = ConversationKey("acme", "radio", "D1")
OTHER = ConversationKey("acme", "radio", "D2")


class CannotBeRead(AgentRuntimeError):
    retryable = True


class Radio:
    """A platform that keeps what was said in each place; it can be told not to hand it out."""

    name = "radio"
    capabilities = Capabilities(max_part_units=10)

    def __init__(self) -> None:
        self.sessions = 1
        self.health = Health(ConnectionState.CONNECTED)
        self.said: defaultdict[str, list[str]] = defaultdict(list)
        self.silent: set[str] = set()
        """Places whose history never answers."""
        self.slow: dict[str, asyncio.Event] = {}
        """Places whose history answers with what is there when it is asked, but only once the event is set."""
        self.begun: defaultdict[str, list[str]] = defaultdict(list)
        """The threads whose first message is found in the history of a place."""
        self.broken: dict[str, Exception] = {}
        self.read: list[str] = []

    async def missed(self, external_id: str, after_message_id: str) -> AsyncIterator[InboundMessage]:
        self.read.append(external_id)
        await asyncio.sleep(0)
        if external_id in self.silent:
            await asyncio.Event().wait()
        if external_id in self.broken:
            raise self.broken[external_id]
        found = [message_id for message_id in self.said[external_id] if message_id > after_message_id]
        if external_id in self.slow:
            await self.slow[external_id].wait()
        for message_id in found:
            yield said(external_id, message_id)
        for thread in self.begun[external_id]:
            yield said(thread, self.said[thread][0])

    async def run(self, accept: Accept) -> None:
        await asyncio.Event().wait()

    def render(self, message: OutboundMessage) -> Sequence[OutboundPart]:
        return []

    async def send(self, message: OutboundMessage, part: OutboundPart) -> Receipt:
        raise NotImplementedError

    async def close(self) -> None:
        return None


class Store:
    """Stores each message once, in the order in which it was accepted."""

    def __init__(self, known: Mapping[ConversationKey, str]) -> None:
        self.known = known
        self.stored: list[str] = []
        self.is_away = False

    async def last_seen(self, connector: str) -> Mapping[ConversationKey, str]:
        if self.is_away:
            raise StoreUnavailable("the store is away")
        return self.known

    async def accept(self, message: InboundMessage) -> Accepted:
        if self.is_away:
            raise StoreUnavailable("the store is away")
        mark = f"{message.external_id} {message.message_id}"
        if mark in self.stored:
            return Accepted("duplicate")
        self.stored.append(mark)
        return Accepted("stored")


def said(place: str, message_id: str) -> InboundMessage:
    return InboundMessage("radio", place, message_id, Author("7", "Ann"), "now", direct=True)


@asynccontextmanager
async def reading(
    radio: Radio, store: Store, *, wait_seconds: float = 20.0, retry_seconds: float = 0.01
) -> AsyncIterator[Backfill]:
    backfill = Backfill(
        radio,
        store.last_seen,
        store.accept,
        wait_seconds=wait_seconds,
        retry_seconds=(retry_seconds, retry_seconds),
        watch_seconds=0.005,
    )
    async with background_task(backfill.run(), "backfill"):
        yield backfill


async def test_a_new_message_waits_for_the_missed_ones_of_its_own_place_only() -> None:
    radio, store = Radio(), Store({KEY: "m1", OTHER: "m1"})
    radio.said["D1"], radio.said["D2"] = ["m1", "m2", "m3"], ["m1"]
    radio.broken["D1"] = CannotBeRead("not now")
    async with reading(radio, store) as backfill:
        waiting = asyncio.create_task(backfill.accept(said("D1", "m4")))
        await backfill.accept(said("D3", "m1"))
        await backfill.accept(said("D2", "m2"))
        assert store.stored == ["D3 m1", "D2 m2"]
        await eventually(lambda: "not now" in backfill.trouble)

        radio.broken.clear()
        await waiting
        await eventually(lambda: not backfill.trouble)
    assert store.stored[2:] == ["D1 m2", "D1 m3", "D1 m4"]


async def test_a_place_that_cannot_be_read_holds_its_new_messages_for_a_limited_time_and_loses_nothing() -> None:
    radio, store = Radio(), Store({KEY: "m1"})
    radio.said["D1"] = ["m1", "m2"]
    radio.broken["D1"] = CannotBeRead("not now")
    async with reading(radio, store, wait_seconds=0.05) as backfill:
        with capture_logs() as logs:
            await backfill.accept(said("D1", "m3"))
            await backfill.accept(said("D1", "m4"))
        assert store.stored == ["D1 m3", "D1 m4"]
        assert [(one["event"], one["external_id"]) for one in logs] == [("message.overtakes", "D1")]
        radio.broken.clear()
        await eventually(lambda: len(store.stored) == 3)
    assert store.stored[2:] == ["D1 m2"]


async def test_a_history_that_never_answers_holds_up_nothing_for_long() -> None:
    """However many places there are: the time is that of the session, not of each message."""
    places = [f"D{number}" for number in range(30)]
    radio, store = Radio(), Store({ConversationKey("acme", "radio", place): "m1" for place in places})
    radio.silent.update(places)
    async with reading(radio, store, wait_seconds=0.1) as backfill, asyncio.timeout(5):
        for place in places:  # one after the other, as some platforms hand them over
            await backfill.accept(said(place, "m2"))
    assert store.stored == [f"{place} m2" for place in places]


async def test_what_was_missed_between_two_sessions_is_read_from_the_newest_message_on() -> None:
    radio, store = Radio(), Store({KEY: "m1"})
    radio.said["D1"], radio.said["D2"] = ["m1"], []
    async with reading(radio, store) as backfill:
        await backfill.accept(said("D1", "m2"))
        await backfill.accept(said("D2", "m1"))  # a place that nothing is stored of
        radio.said["D1"], radio.said["D2"] = ["m0", "m1", "m2", "m3", "m5"], ["m0", "m1", "m2"]
        radio.sessions = 2
        await backfill.accept(said("D1", "m5"))
        await eventually(lambda: "D2 m2" in store.stored)
    assert [mark for mark in store.stored if mark.startswith("D1")] == ["D1 m2", "D1 m3", "D1 m5"]
    assert [mark for mark in store.stored if mark.startswith("D2")] == ["D2 m1", "D2 m2"]


async def test_what_one_session_could_not_read_the_next_one_reads() -> None:
    radio, store = Radio(), Store({KEY: "m1"})
    radio.said["D1"] = ["m1", "m2"]
    radio.silent.add("D1")
    async with reading(radio, store, wait_seconds=0.02) as backfill:
        await backfill.accept(said("D1", "m3"))
        radio.said["D1"] += ["m3", "m4"]
        radio.silent.clear()
        radio.sessions = 2
        await eventually(lambda: len(store.stored) == 3)
    assert store.stored == ["D1 m3", "D1 m2", "D1 m4"]


@pytest.mark.parametrize("is_busy", [False, True])
async def test_a_reading_that_ends_in_the_next_session_leaves_the_place_to_that_session(is_busy: bool) -> None:
    """Whether the next one has read the place by then, or still waits, because as many others are read."""
    others = [f"D{number}" for number in range(2, 2 + CONCURRENT_FETCHES)]
    places = [*others, "D1"]
    radio, store = Radio(), Store({ConversationKey("acme", "radio", place): "m1" for place in places})
    async with reading(radio, store) as backfill:
        await eventually(lambda: len(radio.read) == len(places))
        stale = radio.slow["D1"] = asyncio.Event()
        radio.said["D1"] += ["m2", "m3"]
        radio.sessions = 2
        live = asyncio.create_task(backfill.accept(said("D1", "m3")))
        await eventually(lambda: len(radio.read) == 2 * len(places))
        del radio.slow["D1"]

        busy = asyncio.Event()
        if is_busy:
            radio.slow.update(dict.fromkeys(others, busy))
        radio.said["D1"].append("m4")
        radio.sessions = 3
        await eventually(lambda: len(radio.read) == 3 * len(places) - is_busy)
        stale.set()
        await live
        busy.set()
        await eventually(lambda: "D1 m4" in store.stored)
        radio.said["D1"].append("m5")
        radio.sessions = 4
        await eventually(lambda: "D1 m5" in store.stored)
    assert store.stored == ["D1 m2", "D1 m3", "D1 m4", "D1 m5"]


async def test_a_message_that_waits_when_the_next_session_begins_waits_for_that_one() -> None:
    radio, store = Radio(), Store({KEY: "m1"})
    radio.said["D1"] = ["m1", "m2"]
    radio.broken["D1"] = CannotBeRead("not now")
    async with reading(radio, store, retry_seconds=0.3) as backfill:
        live = asyncio.create_task(backfill.accept(said("D1", "m3")))
        await eventually(lambda: bool(backfill.trouble))
        radio.broken.clear()
        slow = radio.slow["D1"] = asyncio.Event()
        radio.said["D1"] += ["m3", "m4"]
        radio.sessions = 2
        await eventually(lambda: not backfill.trouble)
        await asyncio.sleep(0.4)  # it looks again after a pause
        assert store.stored == []
        slow.set()
        await live
        await eventually(lambda: "D1 m4" in store.stored)
    assert store.stored == ["D1 m2", "D1 m3", "D1 m4"]


async def test_a_thread_that_a_missed_message_began_is_read_too_and_again_in_the_next_session() -> None:
    radio, store = Radio(), Store({KEY: "m1"})
    radio.said["D1"], radio.said["D1/2"], radio.begun["D1"] = ["m1"], ["m2", "m3"], ["D1/2"]
    async with reading(radio, store):
        await eventually(lambda: "D1/2 m3" in store.stored)
        radio.said["D1/2"].append("m4")
        radio.sessions = 2
        await eventually(lambda: "D1/2 m4" in store.stored)
    assert store.stored == ["D1/2 m2", "D1/2 m3", "D1/2 m4"]


async def test_a_place_where_somebody_waits_is_read_before_all_others() -> None:
    """Of many places a few are read at a time."""
    places = [f"D{number}" for number in range(20)]
    radio, store = Radio(), Store({ConversationKey("acme", "radio", place): "m1" for place in places})
    radio.silent.update(places[:10])
    async with reading(radio, store) as backfill, asyncio.timeout(5):
        await eventually(lambda: len(radio.read) > 0)
        await backfill.accept(said("D19", "m2"))
        assert len(radio.read) < 10
    assert store.stored == ["D19 m2"]


async def test_a_store_that_is_away_at_the_start_is_waited_for() -> None:
    radio, store = Radio(), Store({KEY: "m1"})
    radio.said["D1"] = ["m1", "m2"]
    store.is_away = True
    async with reading(radio, store) as backfill:
        waiting = asyncio.create_task(backfill.accept(said("D1", "m3")))
        await asyncio.sleep(0.02)
        store.is_away = False
        await waiting
    assert store.stored == ["D1 m2", "D1 m3"]


async def test_a_place_that_fails_for_good_does_not_stop_the_others() -> None:
    radio, store = Radio(), Store({KEY: "m1", OTHER: "m1"})
    radio.broken["D1"] = KeyError("odd")
    radio.said["D2"] = ["m1", "m2"]
    async with reading(radio, store) as backfill:
        await backfill.accept(said("D1", "m2"))
        await backfill.accept(said("D2", "m3"))
        assert not backfill.trouble
    assert store.stored == ["D1 m2", "D2 m2", "D2 m3"]


async def test_health_says_what_cannot_be_read_yet(redis: Redis) -> None:
    """And is well again once it was read."""
    radio, store, mailbox = Radio(), Store({}), Mailbox(redis)
    await mailbox.store(KEY, Envelope(said("D1", "m1"), Role.MEMBER, 0.0, origin="here", address="radio"))
    radio.said["D1"] = ["m1", "m2"]
    radio.broken["D1"] = CannotBeRead("no right to read")
    supervisor = Supervisor([radio], mailbox)
    async with background_task(supervisor.run(store.accept), "connectors"):
        await eventually(lambda: supervisor.health(radio).state is ConnectionState.DEGRADED)
        assert "no right to read" in supervisor.health(radio).why
        radio.broken.clear()
        await eventually(lambda: supervisor.health(radio).state is ConnectionState.CONNECTED)
    assert store.stored == ["D1 m2"]
