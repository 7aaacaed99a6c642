"""Keeps connectors running: one that fails is named, and the others go on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Sequence

import structlog

from connectors.connector import (
    Accept,
    CommandHint,
    Connector,
    ConnectorFailed,
    Health,
    RegistersCommands,
    SendFailed,
    State,
)
from runtime.missed import Order, hear_missed
from runtime.turns import Mailbox

_WATCH_SECONDS = 0.5
_RESTART_SECONDS = (1.0, 60.0)
_log = structlog.get_logger()


class Supervisor:
    """Runs connectors side by side and says aloud when the state of one changes.

    With a *mailbox*, platforms that keep what was said meanwhile are asked for it once they are connected; those that
    show commands to people are told *commands*.
    """

    def __init__(
        self,
        connectors: Iterable[Connector],
        mailbox: Mailbox | None = None,
        commands: Sequence[CommandHint] = (),
    ) -> None:
        self._connectors = tuple(connectors)
        self._mailbox = mailbox
        self._commands = tuple(commands)
        self._failed: dict[str, str] = {}
        self._told: dict[str, Health] = {}
        self.settled = asyncio.Event()
        """Set once it was said of each connector how its first connecting ended."""

    def health(self, connector: Connector) -> Health:
        """The connector's own word, or that it failed for good."""
        why = self._failed.get(connector.name)
        return Health(State.FAILED, why) if why is not None else connector.health

    async def run(self, accept: Accept) -> None:
        """Run all connectors until cancelled."""
        async with asyncio.TaskGroup() as group:
            for connector in self._connectors:
                live = accept
                if self._mailbox is not None:
                    order = Order(accept)
                    missed = hear_missed(connector, self._mailbox, accept, order)
                    group.create_task(missed, name=f"missed {connector.name}")
                    live = order.accept
                group.create_task(self._keep_running(connector, live), name=f"connector {connector.name}")
                if self._commands:
                    group.create_task(self._register_commands(connector), name=f"commands {connector.name}")
            while True:
                self._tell()
                await asyncio.sleep(_WATCH_SECONDS)

    async def _keep_running(self, connector: Connector, accept: Accept) -> None:
        wait, longest = _RESTART_SECONDS
        while True:
            try:
                await connector.run(accept)
            except ConnectorFailed as error:
                self._failed[connector.name] = str(error)
                self._tell()
                return
            except Exception as error:  # noqa: BLE001 - logged whole; a broken connector is started again
                self._failed[connector.name] = f"broke: {type(error).__name__}: {error}"
                self._tell()
                _log.exception("connector.broke", connector=connector.name)
            else:
                return  # it has nothing more to receive: a console whose person left
            await asyncio.sleep(random.uniform(wait / 2, wait))  # noqa: S311 - jitter, no secret
            self._failed.pop(connector.name, None)
            wait = min(wait * 2, longest)

    async def _register_commands(self, connector: Connector) -> None:
        if not isinstance(connector, RegistersCommands):
            return None
        wait, longest = _RESTART_SECONDS
        while True:
            if connector.health.state is State.CONNECTED:
                try:
                    return await connector.register_commands(self._commands)
                except SendFailed as error:
                    _log.warning("connector.commands_refused", connector=connector.name, why=str(error))
                    if not error.retryable:
                        return None  # people can still write them out
                    await asyncio.sleep(error.retry_after_seconds or random.uniform(wait / 2, wait))  # noqa: S311 - jitter
                    wait = min(wait * 2, longest)
            await asyncio.sleep(_WATCH_SECONDS)

    def _tell(self) -> None:
        for connector in self._connectors:
            health = self.health(connector)
            if self._told.get(connector.name) != health:
                self._told[connector.name] = health
                level = _log.error if health.state is State.FAILED else _log.info
                level("connector.state", connector=connector.name, state=health.state.value, why=health.why)
        if all(health.state is not State.CONNECTING for health in self._told.values()):
            self.settled.set()
