"""Connectors side by side: one that breaks is named and started again, and the others go on."""

import asyncio
import random
from collections.abc import Callable, Sequence

import pytest
import structlog

from connectors.connector import Accept, Capabilities, ConnectionState, ConnectorFailed, Health
from connectors.message import Accepted, ConversationKey, InboundMessage, OutboundMessage, OutboundPart, Receipt
from runtime.embedded import background_task
from runtime.process.connectors import Supervisor


class Radio:
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


def quick(*radios: Radio) -> Supervisor:
    return Supervisor(radios, restart_seconds=(0.02, 0.05), watch_seconds=0.01)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_connector_that_breaks_is_named_and_started_again() -> None:
    radio, other = Radio("radio", ValueError("static")), Radio("other")
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
    radio = Radio("radio", ConnectorFailed("the token was revoked"))
    watch = quick(radio)
    async with background_task(watch.run(refuse), "connectors"):
        await until(lambda: watch.health(radio).state is ConnectionState.FAILED)
        await asyncio.sleep(0.1)

    assert len(radio.started) == 1
    assert watch.health(radio).why == "the token was revoked"


async def test_one_that_has_nothing_more_to_receive_is_left_alone() -> None:
    console = Radio("console")
    console.ends = True
    async with background_task(quick(console).run(refuse), "connectors"):
        await until(lambda: console.started)
        await asyncio.sleep(0.1)

    assert len(console.started) == 1


async def test_the_pause_before_another_start_grows_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: high)
    radio = Radio("radio", *(ValueError("static") for _ in range(5)))
    async with background_task(Supervisor([radio], restart_seconds=(0.02, 0.1)).run(refuse), "connectors"):
        await until(lambda: len(radio.started) == 6)
    pauses = [later - earlier for earlier, later in zip(radio.started, radio.started[1:], strict=False)]

    for pause, wanted in zip(pauses, (0.02, 0.04, 0.08, 0.1, 0.1), strict=True):
        assert wanted <= pause < wanted + 0.5
