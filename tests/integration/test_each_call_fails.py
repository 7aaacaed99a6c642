"""Each call to Redis that a message causes fails once: it is answered once and recorded once all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Literal

import pytest

from config.settings import Settings
from connectors.message import ConversationKey, StoreUnavailable
from grounding.transcript import EntryRole
from runtime import stores
from runtime.delivery import deliverer
from runtime.turns import worker
from tests.emulators.bot import running_bot
from tests.emulators.openai import FakeOpenAI
from tests.emulators.paper import Paper, say, until_over, written

Lost = Literal["request", "answer"]
MOST = 200
"""More calls than one message could cause."""


class Wire:
    """Counts the calls that name a place, and loses one of them."""

    def __init__(self) -> None:
        self.place, self.fails_at, self.lost = "", 0, "request"
        self.seen = 0

    def breaks(self, args: Sequence[Any]) -> bool:
        if not self.place or not any(self.place in str(arg) for arg in args):
            return False
        self.seen += 1
        return self.seen == self.fails_at

    async def carry(self, breaks: bool, call: Callable[[], Any]) -> Any:
        if breaks and self.lost == "request":
            raise StoreUnavailable("Redis: lost on the way there")
        answer = await call()
        if breaks:
            raise StoreUnavailable("Redis: lost on the way back")
        return answer


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    made = Wire()
    command, pipeline = stores.Client.execute_command, stores._Pipeline.execute

    async def execute_command(self: Any, *args: Any, **options: Any) -> Any:
        return await made.carry(made.breaks(args), lambda: command(self, *args, **options))

    async def execute(self: Any, raise_on_error: bool = True) -> Any:
        said = [arg for one in self.command_stack for arg in one[0]]
        return await made.carry(made.breaks(said), lambda: pipeline(self, raise_on_error))

    monkeypatch.setattr(stores.Client, "execute_command", execute_command)
    monkeypatch.setattr(stores._Pipeline, "execute", execute)
    monkeypatch.setattr(worker, "_RETRY_SECONDS", (0.01, 0.02))
    monkeypatch.setattr(stores, "RETRY_SECONDS", (0.01, 0.02))
    monkeypatch.setattr(worker, "SWEEP_SECONDS", 0.1)
    monkeypatch.setattr(deliverer, "SWEEP_SECONDS", 0.1)
    return made


@pytest.mark.parametrize("lost", ["request", "answer"])
async def test_each_call_may_fail_once_and_the_message_is_answered_and_recorded_once(
    lost: Lost, wire: Wire, model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    paper = Paper()
    settings = model_settings(access_policy="open", default_workspace="acme", turn_lease_seconds=1)
    async with running_bot(settings, openai_server, [paper]) as bot, asyncio.timeout(120):
        for number in range(MOST):  # the first without trouble
            place = f"place{number}x"
            key = ConversationKey("acme", "paper", place)
            wire.place, wire.fails_at, wire.lost, wire.seen = place, number, lost, 0
            await say(bot, written(place))
            await until_over(bot)
            wire.place = ""
            entries = await bot.runtime.transcript.newest(key, 10)

            assert len(paper.texts(place)) == 1, f"call {number}"
            assert [entry.role for entry in entries] == [EntryRole.INBOUND, EntryRole.OUTBOUND], f"call {number}"
            assert paper.texts(place) == [entries[-1].text]
            if number > wire.seen:
                break
        else:
            raise AssertionError("the calls of one message never end")
    assert number > 10
