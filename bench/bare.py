"""The least that a bot on Telegram can be, for comparison: aiogram's own polling, a client of the model, a dict.

It keeps nothing, orders nothing and forgets everything with its process (see `bench.processes`); what it takes on this
machine, in this minute, is what the libraries, the emulated platform and the model server take.
"""

from __future__ import annotations

import asyncio
import functools
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiogram import Bot, Dispatcher
from aiogram.client.session.aiohttp import AiohttpSession
from aiogram.client.telegram import TelegramAPIServer
from aiogram.types import Message

from bench.actors import platforms
from bench.processes import Child, child, obey
from runtime.llm import load_litellm

SYSTEM = "You are a helpful assistant."
Said = list[dict[str, str]]
Answer = Callable[[Said], Awaitable[str]]

KINDS = {"openai": "aiogram and the OpenAI SDK", "litellm": "aiogram and LiteLLM, streamed"}
"""The bare bots, by how they ask the model: the fewest libraries there are, and those of the runtime."""


@dataclass(frozen=True)
class Bare:
    """A running bare bot, and the platform on which people talk to it."""

    about: str
    there: Child


@asynccontextmanager
async def bare_bots(base_url: str) -> AsyncIterator[dict[str, Bare]]:
    """One of each of `KINDS`, each on an emulated Telegram of its own, in front of the model server at *base_url*."""
    async with AsyncExitStack() as stack:
        found = {}
        for kind, about in KINDS.items():
            there, addresses = await stack.enter_async_context(platforms("telegram"))
            process = await stack.enter_async_context(child("bench.bare"))
            token, api = addresses["TELEGRAM_BOT_TOKEN"], addresses["TELEGRAM_API_BASE"]
            await process.ask("start", kind=kind, token=token, api=api, base_url=base_url)
            found[kind] = Bare(about, there)
        yield found


def _by_openai(base_url: str) -> Answer:
    from openai import AsyncOpenAI

    client = AsyncOpenAI(base_url=base_url, api_key="bench-key")

    async def answer(said: Said) -> str:
        messages: Any = said
        given = await client.chat.completions.create(model="bench", messages=messages)
        return given.choices[0].message.content or ""

    return answer


async def _by_litellm(base_url: str) -> Answer:
    litellm = await load_litellm()

    async def answer(said: Said) -> str:
        stream = await litellm.acompletion(
            model="openai/bench", messages=said, api_base=base_url, api_key="bench-key", stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

    return answer


async def _start(tasks: set[asyncio.Task[None]], kind: str, token: str, api: str, base_url: str) -> None:
    answer = _by_openai(base_url) if kind == "openai" else await _by_litellm(base_url)
    said: defaultdict[int, Said] = defaultdict(lambda: [{"role": "system", "content": SYSTEM}])
    dispatcher = Dispatcher()

    @dispatcher.message()
    async def reply(message: Message) -> None:
        history = said[message.chat.id]
        history.append({"role": "user", "content": message.text or ""})
        history.append({"role": "assistant", "content": await answer(history)})
        await message.answer(history[-1]["content"])

    bot = Bot(token, session=AiohttpSession(api=TelegramAPIServer.from_base(api)))
    tasks.add(asyncio.create_task(dispatcher.start_polling(bot, handle_signals=False)))


async def _main() -> None:
    tasks: set[asyncio.Task[None]] = set()
    await obey({"start": functools.partial(_start, tasks)})
    for task in tasks:
        task.cancel()


if __name__ == "__main__":
    sys.exit(asyncio.run(_main()))
