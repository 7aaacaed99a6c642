"""The benches measure what they say: every event reaches the door, and what holds up the loop is found and named."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from bench import adapters, loop
from connectors.message import InboundMessage

STEPS = [adapters.telegram_step, adapters.slack_step, adapters.http_step, adapters.web_step]
WIRES: list[Callable[[], AbstractAsyncContextManager[adapters.Round]]] = [
    lambda: adapters._said(adapters._telegram),
    lambda: adapters._said(adapters._slack),
    lambda: adapters._said(adapters._discord),
    adapters._http,
    adapters._web,
]


@pytest.mark.parametrize("step", STEPS)
def test_what_is_converted_over_and_over_is_a_message_for_the_bot(
    step: Callable[[], Callable[[], InboundMessage | None]],
) -> None:
    message = step()()
    assert message is not None
    assert "**refund policy**" in message.text


async def test_a_message_as_discord_tells_it_is_converted_over_and_over() -> None:
    step = await adapters.discord_step()
    message = step()
    assert message is not None
    assert message.text == adapters.TEXT


@pytest.mark.parametrize("wire", WIRES, ids=["telegram", "slack", "discord", "http", "web"])
async def test_every_event_of_every_round_reaches_the_door(
    wire: Callable[[], AbstractAsyncContextManager[adapters.Round]],
) -> None:
    """A round ends when its last one has; else it would not end at all."""
    async with wire() as run:
        rates = await adapters.rates(run, adapters.AT_ONCE, 2)
    assert len(rates) == 2
    assert min(rates) > 0


async def test_what_holds_up_the_loop_is_timed_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio.Handle, "_run", asyncio.Handle.__dict__["_run"])  # put back afterwards
    probe = loop.Probe()
    threading.Thread(target=probe.look, daemon=True).start()
    ticking = asyncio.create_task(probe.tick())
    await asyncio.sleep(0)
    probe.is_on = True
    asyncio.get_running_loop().call_soon(hold_up)
    async with asyncio.timeout(20):
        while not probe.late_ms:
            await asyncio.sleep(0.001)
    probe.is_on = False
    ticking.cancel()
    report = probe.report()
    assert max(report["blocked_ms"]) >= 300
    assert max(report["late_ms"]) >= 200
    assert "hold_up" in report["culprits"][0][0]


def hold_up() -> None:
    end = time.perf_counter() + 1.5
    while time.perf_counter() < end:
        pass


async def test_people_say_all_that_they_are_to_say_in_order() -> None:
    said: list[int] = []

    async def say(number: int) -> None:
        said.append(number)

    await loop.paced(say, 5, 1000.0)
    assert said == [0, 1, 2, 3, 4]
