"""Updates by long polling. I/O.

aiogram's own Dispatcher asks for the next updates, and thereby confirms the last ones, before their
handlers are done. So the polling here is ours: an update is confirmed only after it was accepted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from aiogram.exceptions import TelegramConflictError
from aiogram.methods import DeleteWebhook, TelegramMethod

from connectors.message import StoreUnavailable
from connectors.telegram.api import Api
from connectors.telegram.convert import ALLOWED_UPDATES
from connectors.telegram.errors import AIOGRAM_ERRORS
from connectors.telegram.intake import Intake
from connectors.telegram.vitals import Vitals

Recover = Callable[[Exception], Awaitable[None]]
"""Waits as an error calls for. Raises `connectors.connector.ConnectorFailed` when waiting cannot help."""


class _GetRawUpdates(TelegramMethod[list[dict[str, Any]]]):
    """``getUpdates`` as plain JSON: one update that aiogram cannot read must not take the batch with it."""

    __returning__ = list[dict[str, Any]]
    __api_method__ = "getUpdates"

    offset: int | None = None
    timeout: int
    allowed_updates: list[str]


class Polling:
    """Asks for updates. ``poll_seconds``: how long Telegram may hold a poll while nothing happens.

    A poll that is not answered within that and the time of a call is a failed one.
    """

    def __init__(self, api: Api, vitals: Vitals, intake: Intake, recover: Recover, poll_seconds: int) -> None:
        self._api = api
        self._vitals = vitals
        self._intake = intake
        self._recover = recover
        self._poll_seconds = poll_seconds
        self._in_conflict = False

    async def run(self) -> None:
        """Receives until cancelled."""
        await self._take_webhook_down()
        self._vitals.connected()
        offset: int | None = None
        while True:
            for raw in await self._poll(offset):
                if not await self._take(raw):
                    break  # this one and those after it are not confirmed: Telegram gives them again
                offset = raw["update_id"] + 1

    async def _take_webhook_down(self) -> None:
        """Telegram refuses long polling while a webhook is set; what waits there is kept."""
        while True:
            try:
                await self._api.call(DeleteWebhook(drop_pending_updates=False))
            except AIOGRAM_ERRORS as error:
                await self._recover(error)
            else:
                return

    async def _poll(self, offset: int | None) -> list[dict[str, Any]]:
        """The next updates; none after a failure and the wait that it calls for."""
        # After a failure the first poll is a short one, so that health need not wait for somebody to speak.
        # Not after a conflict: each short poll would throw the other process out and look like success.
        wait_seconds = 0 if self._vitals.failures and not self._in_conflict else self._poll_seconds
        ask = _GetRawUpdates(offset=offset, timeout=wait_seconds, allowed_updates=ALLOWED_UPDATES)
        try:
            updates = await self._api.call(ask, wait_seconds + self._api.timeout_seconds)
        except AIOGRAM_ERRORS as error:
            self._in_conflict = isinstance(error, TelegramConflictError)
            await self._recover(error)
            return []
        self._in_conflict = False
        self._vitals.well("connection")
        if not updates:  # also when Telegram has dropped what waited too long
            self._intake.nothing_waits()
        if not self._intake.is_troubled:  # else what is wrong lies with us, and is not over
            self._vitals.failures = 0
        return updates

    async def _take(self, raw: dict[str, Any]) -> bool:
        """Whether the update may be confirmed. Waits before saying no."""
        try:
            if await self._intake.take(raw):
                return True
        except StoreUnavailable:
            pass  # told by the intake; the update waits at Telegram for as long as it takes
        await asyncio.sleep(self._vitals.next_wait_seconds())
        return False
