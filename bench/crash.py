"""``kill -9`` with ten messages in hand: all answered after the restart, none twice, and nobody else written to."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

from bench.figures import Spread, Verdict, row, title
from tests.emulators.storm import PLATFORMS, Storm, conversations, storm, until

IN_HAND = 10
BYSTANDERS = 6
"""People who were answered before, and say nothing any more."""
CHUNK_SECONDS = 0.5
LONGEST_SECONDS = 120.0
QUIET_SECONDS = 3.0
"""After the last answer, for anything that nobody asked for."""


async def measure(folder: Path, repeats: int) -> list[Verdict]:
    """So many crashes, each of a bot of its own."""
    title(f"f. kill -9 with {IN_HAND} in hand, on all platforms: sum over {repeats} crashes")
    # A bot that is killed in the middle of a call is nothing that an emulator need tell.
    logging.getLogger("aiohttp").setLevel(logging.CRITICAL)
    seconds, answered, twice, strangers = [], 0, 0, 0
    for number in range(repeats):
        own = folder / f"crash-{number}"
        own.mkdir()
        took, once, more, others = await _crash(own, number)
        seconds.append(took)
        answered, twice, strangers = answered + once, twice + more, strangers + others
    row("seconds from the kill to the last answer", Spread.of(seconds))
    print(f"  in hand {IN_HAND * repeats}, answered {answered}, answered twice {twice}, said to others {strangers}")
    return [
        Verdict("answered after kill -9", answered, IN_HAND * repeats, "", True),
        Verdict("answered twice, or said to nobody who asked", twice + strangers, 0, ""),
    ]


async def _crash(folder: Path, seed: int) -> tuple[float, int, int, int]:
    """Seconds until all was answered; how many of those in hand were, how many twice, how much was said to others."""
    everybody = conversations(IN_HAND + BYSTANDERS, PLATFORMS[:3])
    async with storm(folder, None, everybody, seed=seed) as weather:
        weather.crew.start("alone", "all")
        await weather.ready("alone")
        talking, quiet = everybody[:IN_HAND], everybody[IN_HAND:]
        weather.model.chunk_delay_seconds = 0.0
        weather.conversations = quiet
        await weather.talk(1, (0.0, 0.1))
        await _answered(weather)
        before = {one.number: len(weather.seen(one)) for one in quiet}
        weather.conversations = talking
        weather.model.chunk_delay_seconds = CHUNK_SECONDS  # nothing is answered before the end comes
        asked = len(weather.model.requests)
        await weather.talk(1, (0.0, 0.1))
        async with asyncio.timeout(LONGEST_SECONDS):
            await until(lambda: len(weather.model.requests) >= asked + IN_HAND)
        killed = time.monotonic()
        weather.crew.kill("alone")
        weather.model.chunk_delay_seconds = 0.0
        weather.crew.start("alone", "all")
        await _answered(weather)
        took = time.monotonic() - killed
        await asyncio.sleep(QUIET_SECONDS)
        await weather.crew.stop("alone")
        done = [weather.done(one) for one in talking]
        others = sum(len(weather.seen(one)) - before[one.number] for one in quiet)
        weather.conversations = everybody
        return (
            took,
            sum(bool(set(one.said) <= set(marks)) for one, marks in zip(talking, done, strict=True)),
            sum(len(marks) - len(set(marks)) for marks in done),
            max(0, others) + len(weather.strangers()),
        )


async def _answered(weather: Storm) -> None:
    """Wait for it; what is not answered in time is counted as not answered."""
    try:
        async with asyncio.timeout(LONGEST_SECONDS):
            await until(lambda: all(set(one.said) <= set(weather.done(one)) for one in weather.conversations))
    except TimeoutError:
        return
