"""The next poll of Telegram: what the last one brought goes before it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from connectors.telegram.polling import Polling
from connectors.telegram.vitals import Vitals

_PASSES = 20
"""Of the event loop: a turn needs some until its model is asked."""


class _Telegram:
    """Has one update, and notes what happens."""

    timeout_seconds = 1.0

    def __init__(self, happened: list[str]) -> None:
        self._happened = happened

    async def call(self, method: Any, within_seconds: float | None = None) -> Any:
        if method.__api_method__ != "getUpdates":
            return True
        self._happened.append("polled")
        if self._happened.count("polled") == 1:
            return [{"update_id": 7}]
        raise _Enough


class _Intake:
    is_troubled = False

    def __init__(self, happened: list[str]) -> None:
        self._happened = happened
        self._turns: set[asyncio.Task[None]] = set()

    async def take(self, raw: dict[str, Any]) -> bool:
        self._turns.add(asyncio.create_task(self._answer()))
        return True

    async def _answer(self) -> None:
        for _ in range(_PASSES):
            await asyncio.sleep(0)
        self._happened.append("answered")


class _Enough(Exception):
    """The second poll: the test is over."""


async def test_what_an_update_has_begun_goes_before_the_next_poll() -> None:
    happened: list[str] = []

    async def recover(error: Exception) -> None:
        raise error

    vitals = Vitals(1.0, 1.0)
    vitals.start()
    polling = Polling(cast("Any", _Telegram(happened)), vitals, cast("Any", _Intake(happened)), recover, 30)
    with pytest.raises(_Enough):
        await polling.run()
    assert happened == ["polled", "answered", "polled"]
