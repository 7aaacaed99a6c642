"""Looks at the machine at intervals, in the background. Turns read the last result without waiting."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Protocol

import structlog

from config.settings import Settings
from connectors.connector import ConnectionState, Health
from grounding.prompt import environment_changed, stable_environment
from grounding.prompt_input import EnvironmentInput, Link, ModelMemory
from runtime.machine.hardware import Cards, MachineState, Supply, free_memory_mib, supply
from runtime.machine.model_memory import ModelMemories

SILENT = Cards(note="the driver does not answer")
_log = structlog.get_logger()

Links = Callable[[], Awaitable[Mapping[str, Health]]]


class ReadsCards(Protocol):
    """Reads graphics cards; see `runtime.machine.hardware.Gpus`."""

    def read(self) -> Cards:
        """Return the cards now. May block for as long as the driver likes; raises nothing."""


class MachineMonitor:
    """The state of the machine, and the *memories* of models on it.

    *links* returns the health of the services that the runtime depends on, by name; *root* is the folder of the
    kernel's files. The machine is looked at *every_seconds*; a driver that takes longer counts as not answering.
    """

    def __init__(
        self,
        settings: Settings,
        gpus: ReadsCards,
        memories: ModelMemories,
        links: Links,
        root: Path = Path("/"),
        *,
        every_seconds: float = 10.0,
    ) -> None:
        self._every_seconds = every_seconds
        self._buffer_mib = settings.model_memory_buffer_mib
        self._memories = memories
        self._links = links
        self._root = root
        self._cards = _CardReader(gpus)
        self._looking = asyncio.Lock()
        self.seen: MachineState | None = None
        """None until the first look."""

    def environment(self, previous: EnvironmentInput | None) -> EnvironmentInput | None:
        """Return the machine's state for the prompt. *previous* is that of the session's turn before."""
        return stable_environment(previous, self.seen.environment if self.seen else None, self._buffer_mib)

    def memory(self, model: str) -> ModelMemory | None:
        """Return the memory for the attention cache of *model*; None if it does not run here."""
        return self._memories.of(model, self.seen)

    async def run(self) -> None:
        """Look, wait, and look again, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._memories.run(), name="model memory")
            while True:
                await self.look()
                await asyncio.sleep(self._every_seconds)

    async def look(self) -> None:
        """Look once, in bounded time. Unknown things are left out or named; raises nothing."""
        async with self._looking:
            await self._look()

    async def _look(self) -> None:
        cards, files, links = await asyncio.gather(
            self._cards.read(self._every_seconds), asyncio.to_thread(self._read_files), self._links_now()
        )
        power, free = files
        environment = EnvironmentInput(
            devices=cards.devices, note=cards.note, links=links, power=power.power, low_power=power.low
        )
        self._log_change(environment)
        self.seen = MachineState(environment, free)

    def _read_files(self) -> tuple[Supply, int | None]:
        return supply(self._root), free_memory_mib(self._root)

    async def _links_now(self) -> tuple[Link, ...]:
        try:
            async with asyncio.timeout(self._every_seconds):
                healths = await self._links()
        except TimeoutError:
            return self.seen.environment.links if self.seen else ()
        return tuple(Link(name=name, state=health.state.value) for name, health in sorted(healths.items()))

    def _log_change(self, now: EnvironmentInput) -> None:
        """Log ``environment.changed`` if something has crossed a threshold since the last look."""
        before = self.seen.environment if self.seen else None
        if before is None or not environment_changed(before, now, self._buffer_mib):
            return
        _log.info(
            "environment.changed",
            gpus=len(now.devices),
            gpu_note=now.note,
            free_mib=[device.free_mib for device in now.devices],
            throttled=sum(device.throttled for device in now.devices),
            lost=[link.name for link in now.links if ConnectionState(link.state) is not ConnectionState.CONNECTED],
            power=now.power,
            low_power=now.low_power,
        )


class _CardReader:
    """Reads *gpus* in daemon threads, because a driver may hang and the process must still end. While one hangs, no
    other is started."""

    def __init__(self, gpus: ReadsCards) -> None:
        self._gpus = gpus
        self._thread: threading.Thread | None = None

    async def read(self, seconds: float) -> Cards:
        if self._thread is not None and self._thread.is_alive():
            return SILENT
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Cards] = loop.create_future()

        def set_result(cards: Cards) -> None:
            if not done.done():
                done.set_result(cards)

        def run() -> None:
            cards = self._gpus.read()
            try:
                loop.call_soon_threadsafe(set_result, cards)
            except RuntimeError:  # the event loop has ended
                return

        self._thread = threading.Thread(target=run, name="gpus", daemon=True)
        self._thread.start()
        try:
            async with asyncio.timeout(seconds):
                return await done
        except TimeoutError:
            return SILENT
