"""What only one of several processes may do."""

import asyncio

import pytest
from redis.asyncio import Redis

from runtime.coordination import Leadership


class Office:
    """Counts who is at work."""

    def __init__(self) -> None:
        self.at_work: list[str] = []

    def duties_of(self, name: str) -> "Duties":
        return Duties(self, name)


class Duties:
    def __init__(self, office: Office, name: str) -> None:
        self._office = office
        self._name = name

    async def __call__(self) -> None:
        self._office.at_work.append(self._name)
        try:
            await asyncio.Event().wait()
        finally:
            self._office.at_work.remove(self._name)


async def until(office: Office, *names: str) -> None:
    async with asyncio.timeout(5):
        while office.at_work != list(names):
            await asyncio.sleep(0.01)


async def test_one_of_two_processes_does_the_duties_and_the_other_follows_it(redis: Redis) -> None:
    """Who ends resigns, so that the next need not wait."""
    office = Office()
    first = asyncio.create_task(Leadership(redis, "one", office.duties_of("one"), lease_seconds=0.5).run())
    await until(office, "one")
    second = asyncio.create_task(Leadership(redis, "two", office.duties_of("two"), lease_seconds=0.5).run())
    await asyncio.sleep(0.6)
    assert office.at_work == ["one"]
    first.cancel()
    await asyncio.wait([first])
    await until(office, "two")
    second.cancel()
    await asyncio.wait([second])
    assert office.at_work == []


async def test_who_was_silent_too_long_stops_before_it_goes_on(redis: Redis) -> None:
    """Another has taken the duties over meanwhile."""
    office = Office()
    first = asyncio.create_task(Leadership(redis, "one", office.duties_of("one"), lease_seconds=0.5).run())
    await until(office, "one")
    await redis.set("ar:leader:{leader}:process", "another")
    await until(office)
    first.cancel()
    await asyncio.wait([first])
    assert await redis.get("ar:leader:{leader}:process") == "another"


async def test_duties_that_break_end_the_process_that_has_them(redis: Redis) -> None:
    """Their owner is told, not left without them."""

    async def broken() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        async with asyncio.timeout(5):
            await Leadership(redis, "one", broken, lease_seconds=0.5).run()
