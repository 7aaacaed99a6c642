"""The walk of one Telegram message. ``python -m bench.one_message [MESSAGES]``

Counts, from the update being queued until the whole reply stands in the chat: calls of functions of this project,
the functions and modules that they belong to, asyncio tasks created, requests that Redis read, and calls of the
Telegram API. Platform, model and bot work in one process; functions of other packages are not counted. Redis's figure
contains what its workers poll for meanwhile. Printed are the medians over MESSAGES (20), with the lowest and highest.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from pydantic import SecretStr
from redis.asyncio import Redis

from config.settings import Settings
from runtime.embedded import socket_path
from tests.contract.telegram_harness import telegram_connector
from tests.emulators.bot import running_bot
from tests.emulators.openai import FakeOpenAI, serving
from tests.emulators.telegram import Person, TelegramEmulator

ROOT = Path(__file__).parents[1]
ROOMS = ("config", "connectors", "grounding", "promptpolicy", "runtime")
QUESTION = "What does the harbour plan cost, number {n}?"
WARM_UP = 5
PAUSE_SECONDS = 1.5
"""Between two messages, so that background work of the one before is over and no rate limit holds the reply back."""


@dataclass
class Walk:
    """What one message set off. ``functions`` has the calls of each."""

    functions: dict[CodeType, int] = field(default_factory=dict)
    tasks: int = 0
    redis_reads: int = 0
    platform_calls: int = 0

    @property
    def modules(self) -> set[str]:
        return {code.co_filename for code in self.functions}


class Tracer:
    """Counts in all threads while it is entered; see `sys.setprofile`."""

    def __init__(self) -> None:
        self.walk = Walk()
        self._is_ours: dict[str, bool] = {}
        self._folders = tuple(f"{ROOT / room}/" for room in ROOMS)

    def __enter__(self) -> Walk:
        self.walk = Walk()
        asyncio.get_running_loop().set_task_factory(self._task)
        threading.setprofile(self._call)
        sys.setprofile(self._call)
        return self.walk

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)
        asyncio.get_running_loop().set_task_factory(None)

    def _call(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        ours = self._is_ours.get(code.co_filename)
        if ours is None:
            ours = self._is_ours[code.co_filename] = code.co_filename.startswith(self._folders)
        if ours:
            self.walk.functions[code] = self.walk.functions.get(code, 0) + 1

    def _task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **how: Any) -> Any:
        self.walk.tasks += 1
        return asyncio.Task(coroutine, loop=loop, **how)


async def redis_reads(redis: Redis) -> int:
    """Times that Redis has read from a connection, as it counts them itself."""
    return int((await redis.info("stats"))["total_reads_processed"])


async def walk_of(redis: Redis, telegram: TelegramEmulator, number: int) -> Walk:
    """Says the message *number*, and waits until its reply stands."""
    lena = Person(id=501, name="Lena")
    said = len(telegram.said(lena))
    reads, calls = await redis_reads(redis), len(telegram.calls)
    with Tracer() as walk:
        await telegram.say(QUESTION.format(n=number), by=lena)
        async with asyncio.timeout(30):
            while len(telegram.said(lena)) == said or not telegram.said(lena)[-1].text.endswith("Done."):
                await asyncio.sleep(0.002)
    walk.redis_reads = await redis_reads(redis) - reads - 1
    walk.platform_calls = sum(call != "getupdates" for call in telegram.calls[calls:])
    return walk


async def measure(messages: int) -> list[Walk]:
    with tempfile.TemporaryDirectory() as folder:
        async with serving() as model, TelegramEmulator() as telegram:
            model.answer = lambda _: "The harbour plan costs 12 euros a month. Done."
            settings = _settings(model, Path(folder))
            async with running_bot(settings, model, [telegram_connector(telegram)]):
                redis = Redis(unix_socket_path=str(socket_path(settings.data_dir, "redis/redis.sock")))
                walks = []
                for number in range(WARM_UP + messages):
                    walks.append(await walk_of(redis, telegram, number))
                    await asyncio.sleep(PAUSE_SECONDS)
                await redis.aclose()
    return walks[WARM_UP:]


def _settings(model: FakeOpenAI, folder: Path) -> Settings:
    return Settings(
        data_dir=folder,
        access_policy="open",
        default_workspace="acme",
        rate_limit_messages=1_000_000,
        show_sources=False,
        llm_model="openai/fake",
        llm_api_base=model.base_url,
        llm_api_key=SecretStr("key"),
    )


def report(walks: list[Walk]) -> None:
    rows = {
        "calls of our functions": [sum(walk.functions.values()) for walk in walks],
        "functions called": [len(walk.functions) for walk in walks],
        "modules entered": [len(walk.modules) for walk in walks],
        "tasks created": [walk.tasks for walk in walks],
        "reads of Redis": [walk.redis_reads for walk in walks],
        "calls of Telegram": [walk.platform_calls for walk in walks],
    }
    for name, values in rows.items():
        print(f"  {name:<26}{statistics.median(values):>8.0f}  [{min(values)} … {max(values)}]")


def main() -> None:
    started = time.monotonic()
    walks = asyncio.run(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 20))
    print(f"One message on Telegram, {len(walks)} times, {time.monotonic() - started:.0f} s:")
    report(walks)


if __name__ == "__main__":
    main()
