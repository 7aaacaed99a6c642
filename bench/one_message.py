"""Counts the work for one Telegram message. ``python -m bench.one_message [MESSAGES]``

Platform, model and bot work in one process. Counted is, from the update being queued until the whole reply stands in
the chat: calls of functions of this project (of no other package), the functions and modules that they belong to,
asyncio tasks created, requests to Redis, and calls of the Telegram API.

Each count is printed twice. ``own`` is what the message itself sets off: the work from the gateway's accepting it to
the delivery of its reply. It is known by the fields that the runtime gives its events: gateway, worker and deliverer
bind the ``connector``, background jobs do not. ``all`` is everything that happens meanwhile: pollers and jobs, too,
and the conversion of the update before the gateway has it. For Redis it is the server's own count of reads.
Printed are the medians over MESSAGES (20), with the lowest and highest, and the goal.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import redis.asyncio.connection
from pydantic import SecretStr
from redis.asyncio import Redis
from structlog.contextvars import get_contextvars

from bench.processes import ROOT
from config.settings import Settings
from runtime.embedded import socket_path
from tests.contract.telegram_harness import telegram_connector
from tests.emulators.bot import running_bot
from tests.emulators.openai import FakeOpenAI, serving
from tests.emulators.telegram import Person, TelegramEmulator

ROOMS = ("config", "connectors", "grounding", "promptpolicy", "runtime")
QUESTION = "What does the harbour plan cost, number {n}?"
WARM_UP = 5
PAUSE_SECONDS = 1.5
"""Between two messages, so that background work of the one before is over and no rate limit holds the reply back."""
GOALS = {"calls of our functions": 1500, "modules": 70, "tasks": 15, "requests to Redis": 8, "calls of Telegram": 1}


@dataclass
class Counts:
    """Calls of our functions by their code, tasks created, and requests to Redis."""

    functions: dict[CodeType, int] = field(default_factory=dict)
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    redis: int = 0
    telegram: int = 0

    def figures(self) -> dict[str, int]:
        return {
            "calls of our functions": sum(self.functions.values()),
            "functions": len(self.functions),
            "modules": len({code.co_filename for code in self.functions}),
            "tasks": len(self.tasks),
            "requests to Redis": self.redis,
            "calls of Telegram": self.telegram,
        }


@dataclass
class Walk:
    """What happened for one message, and meanwhile."""

    own: Counts = field(default_factory=Counts)
    all: Counts = field(default_factory=Counts)


class Tracer:
    """Counts in all threads while it is entered; see `sys.setprofile`."""

    def __init__(self) -> None:
        self.walk = Walk()
        self._is_ours: dict[str, bool] = {}
        self._folders = tuple(f"{ROOT / room}/" for room in ROOMS)

    def __enter__(self) -> Walk:
        asyncio.get_running_loop().set_task_factory(self._create_task)
        threading.setprofile(self._count)
        sys.setprofile(self._count)
        return self.walk

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)
        asyncio.get_running_loop().set_task_factory(None)

    def _count(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code.co_name == "send_packed_command" and code.co_filename == redis.asyncio.connection.__file__:
            self.walk.own.redis += is_own()
            return
        ours = self._is_ours.get(code.co_filename)
        if ours is None:
            ours = self._is_ours[code.co_filename] = code.co_filename.startswith(self._folders)
        if not ours:
            return
        _add(self.walk.all, code)
        if is_own():
            _add(self.walk.own, code)
            if (task := _current_task()) in self.walk.all.tasks and task is not None:
                self.walk.own.tasks.add(task)

    def _create_task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **how: Any) -> Any:
        task = asyncio.Task(coroutine, loop=loop, **how)
        self.walk.all.tasks.add(task)
        if is_own():
            self.walk.own.tasks.add(task)
        return task


def is_own() -> bool:
    """Whether the code that runs here works for a message."""
    return "connector" in get_contextvars()


def _add(counts: Counts, code: CodeType) -> None:
    counts.functions[code] = counts.functions.get(code, 0) + 1


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # a thread without a loop
        return None


async def redis_reads(client: Redis) -> int:
    """Times that Redis has read from a connection, as it counts them itself."""
    return int((await client.info("stats"))["total_reads_processed"])


async def walk_of(client: Redis, telegram: TelegramEmulator, number: int) -> Walk:
    """Say the message *number*, and wait until its reply stands."""
    lena = Person(id=501, name="Lena")
    said = len(telegram.said(lena))
    reads, calls = await redis_reads(client), len(telegram.calls)
    with Tracer() as walk:
        await telegram.say(QUESTION.format(n=number), by=lena)
        async with asyncio.timeout(30):
            while len(telegram.said(lena)) == said or not telegram.said(lena)[-1].text.endswith("Done."):
                await asyncio.sleep(0.002)
    walk.all.redis = await redis_reads(client) - reads - 1
    walk.all.telegram = len(telegram.calls) - calls
    walk.own.telegram = sum(call != "getupdates" for call in telegram.calls[calls:])
    return walk


async def measure(messages: int) -> list[Walk]:
    """The walks of so many messages."""
    with tempfile.TemporaryDirectory() as folder:
        async with serving() as model, TelegramEmulator() as telegram:
            model.answer = lambda _: "The harbour plan costs 12 euros a month. Done."
            settings = _settings(model, Path(folder))
            async with running_bot(settings, model, [telegram_connector(telegram)]):
                client = Redis(unix_socket_path=str(socket_path(settings.data_dir, "redis/redis.sock")))
                walks = []
                for number in range(WARM_UP + messages):
                    walks.append(await walk_of(client, telegram, number))
                    await asyncio.sleep(PAUSE_SECONDS)
                await client.aclose()
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
    """Print medians, spread and goals."""
    print(f"One message on Telegram, {len(walks)} times")
    print(f"  {'':<26}{'own':>8}{'':<17}{'goal':>8}{'all':>8}")
    own, everything = ([getattr(walk, which).figures() for walk in walks] for which in ("own", "all"))
    for name in own[0]:
        wanted = str(GOALS.get(name, ""))
        print(
            f"  {name:<26}{_spread([one[name] for one in own])}{wanted:>8}{_spread([one[name] for one in everything])}"
        )


def _spread(values: list[int]) -> str:
    return f"{statistics.median(values):>8.0f} {f'[{min(values)} … {max(values)}]':<16}"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.one_message", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("messages", metavar="MESSAGES", type=int, nargs="?", default=20, help="(%(default)s)")
    report(asyncio.run(measure(parser.parse_args().messages)))


if __name__ == "__main__":
    main()
