"""The emulated platforms in a process of their own (see `bench.children`), and people who write on Telegram."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from bench.children import Child, child, obey
from tests.emulators import telegram
from tests.emulators.play.discord import DiscordPlay
from tests.emulators.play.slack import SlackPlay
from tests.emulators.play.telegram import TelegramPlay
from tests.emulators.play.world import Crew
from tests.emulators.telegram_nouns import Json, Params

LONGEST_SECONDS = 60.0
FIRST_PERSON = 5001


@asynccontextmanager
async def platforms(*names: str) -> AsyncIterator[tuple[Child, dict[str, str]]]:
    """The process, and the settings by which a bot finds the platforms called *names*."""
    async with child("bench.platforms") as process:
        yield process, await process.ask("start", names=names)


class _Seen(telegram.TelegramEmulator):
    """Notes when people see a whole reply."""

    def __init__(self) -> None:
        super().__init__()
        self.whole_characters = 0
        self._whole: defaultdict[int, asyncio.Queue[float]] = defaultdict(asyncio.Queue)
        """By chat: when each whole reply was there."""

    async def answer(self, text: str, by: telegram.Person) -> tuple[float, float]:
        """Say *text*, and wait for the whole reply; when the message was queued and when the reply was accepted."""
        started = time.monotonic()
        await self.say(text, by=by)
        async with asyncio.timeout(LONGEST_SECONDS):
            seen_at = await self._whole[by.id].get()
        # What was taken is of no use any more, and is gone through for each poll.
        self._updates[:] = [one for one in self._updates if one["update_id"] >= self.confirmed]
        return started, seen_at

    def _send_message(self, params: Params) -> Json:
        message = super()._send_message(params)
        self._look(params)
        return message

    def _edit_message(self, params: Params) -> Json:
        message = super()._edit_message(params)
        self._look(params)
        return message

    def _look(self, params: Params) -> None:
        if len(str(params["text"])) >= self.whole_characters:
            self._whole[int(params["chat_id"])].put_nowait(time.monotonic())


class _Platforms:
    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._telegram = _Seen()

    async def start(self, names: list[str]) -> dict[str, str]:
        crew = Crew()
        on_telegram = TelegramPlay(crew)
        on_telegram.emulator = self._telegram
        made: dict[str, SlackPlay | TelegramPlay | DiscordPlay] = {
            "slack": SlackPlay(crew),
            "telegram": on_telegram,
            "discord": DiscordPlay(crew),
        }
        for name in names:
            await self._stack.enter_async_context(made[name])
        return {name: value for one in names for name, value in made[one].environment().items()}

    async def talk(
        self, text: str, turns: int, people: int, characters: int, pause_seconds: float, first: int
    ) -> list[list[tuple[float, float]]]:
        """So many *people*, from number *first* on, say *turns* messages each, one person after the other, each once
        the last reply is whole; of each person when a message was queued and when its whole reply was accepted."""
        self._telegram.whole_characters = characters
        spans: list[list[tuple[float, float]]] = [[] for _ in range(people)]
        for number in range(turns):
            for person in range(people):
                spans[person].append(await self._telegram.answer(text.format(n=number), _person(first + person)))
                await asyncio.sleep(pause_seconds)
        return spans

    async def crowd(
        self, text: str, turns: int, people: int, characters: int, first: int
    ) -> list[list[tuple[float, float]]]:
        """The same, of *people* who all write at once, each the next message the moment the last reply is whole."""
        self._telegram.whole_characters = characters

        async def one(number: int) -> list[tuple[float, float]]:
            return [await self._telegram.answer(text.format(n=turn), _person(number)) for turn in range(turns)]

        return await asyncio.gather(*(one(first + person) for person in range(people)))

    async def signs(self) -> dict[str, Any]:
        return {"calls": len(self._telegram.calls)}


def _person(number: int) -> telegram.Person:
    return telegram.Person(FIRST_PERSON + number, "Ann")


async def _main() -> None:
    async with AsyncExitStack() as stack:
        it = _Platforms(stack)
        await obey({"start": it.start, "talk": it.talk, "crowd": it.crowd, "signs": it.signs})


if __name__ == "__main__":
    sys.exit(asyncio.run(_main()))
