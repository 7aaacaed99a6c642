"""Events a second that each adapter normalises. ``python -m bench.adapters [EVENTS] [ROUNDS]``

``convert`` is the pure step alone: what the SDK makes of an event → `InboundMessage` (for Slack, HTTP and the web,
which have no such objects: the parsed body). ``wire`` is everything: from what somebody says to the runtime's door,
through real sockets, the real SDK and its acknowledgement. There the emulated platform works in the same process, so
that its share is in the figure too: a lower bound. HTTP and web are asked without a socket, by ASGI.
Printed are events a second: the median of the rounds, the slowest and the fastest; and how many times the 100 a second
that are asked of each platform.
"""

from __future__ import annotations

import asyncio
import gc
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import discord
import structlog
from aiogram.types import Update
from starlette.applications import Starlette

from connectors.connector import Connector
from connectors.discord import events as discord_convert
from connectors.http import convert as http_convert
from connectors.message import Accepted, ConversationKey, InboundMessage, Role
from connectors.slack import events as slack_convert
from connectors.telegram import updates as telegram_convert
from connectors.telegram.updates import Identity
from connectors.web import Session
from connectors.web import convert as web_convert
from connectors.web.backend import COOKIE
from runtime.embedded import background_task
from tests.contract.discord_harness import discord_connector
from tests.contract.http_harness import http_connector
from tests.contract.slack_harness import slack_connector
from tests.contract.telegram_harness import telegram_connector
from tests.contract.web_harness import MemorySessions, web_connector
from tests.emulators.discord import DiscordEmulator
from tests.emulators.slack import SlackEmulator
from tests.emulators.telegram import TelegramEmulator

ASKED_PER_SECOND = 100
TEXT = "What does the **refund policy** say about windows? See https://example.org/refunds, please."
NOW = datetime(2026, 1, 1, tzinfo=UTC)
AT_ONCE = 100
"""Requests over HTTP that wait at the same time."""

Round = Callable[[int], Awaitable[float]]
"""Takes that many events; the seconds it took."""


class Door:
    """The runtime's door: stores nothing, and counts."""

    def __init__(self) -> None:
        self.accepted = 0
        self._wanted = 0
        self._reached = asyncio.Event()

    async def accept(self, message: InboundMessage) -> Accepted:
        self.accepted += 1
        if self.accepted >= self._wanted:
            self._reached.set()
        return Accepted("stored", key=ConversationKey("acme", message.connector, message.external_id))

    async def timed(self, events: int, bring: Callable[[], Awaitable[None]]) -> float:
        """Seconds until *events* more were accepted, which *bring* sets off."""
        self._wanted = self.accepted + events
        self._reached.clear()
        started = time.perf_counter()
        await bring()
        async with asyncio.timeout(120):
            await self._reached.wait()
        return time.perf_counter() - started


def converting(step: Callable[[], InboundMessage | None]) -> Round:
    """*step*, over and over."""

    async def run(events: int) -> float:
        assert step() is not None
        started = time.perf_counter()
        for _ in range(events):
            step()
        return time.perf_counter() - started

    return run


# The pure steps


def telegram_step() -> Callable[[], InboundMessage | None]:
    person = {"id": 501, "is_bot": False, "first_name": "Lena"}
    chat = {"id": -100200, "type": "supergroup", "title": "The team"}
    said = f"@helper_bot {TEXT}"
    entities = [{"type": "mention", "offset": 0, "length": 11}]
    message = {"message_id": 7, "date": 1_700_000_000, "chat": chat, "from": person, "text": said, "entities": entities}
    update = Update.model_validate({"update_id": 1, "message": message})
    me = Identity(123456, "helper_bot")
    return lambda: telegram_convert.to_inbound(update, me)


def slack_step() -> Callable[[], InboundMessage | None]:
    place = {"channel": "C200", "channel_type": "channel", "ts": "1712.0001", "event_ts": "1712.0001"}
    event = {"type": "app_mention", "user": "U501", "text": f"<@U0BOT> {TEXT}", **place}
    me = slack_convert.Identity("T0TEAM", "U0BOT", "B0BOT", "helper")
    known = slack_convert.EventDetails(names={"U501": "Lena"})
    return lambda: slack_convert.to_inbound(event, me, known)


async def discord_step() -> Callable[[], InboundMessage | None]:
    """A message as discord.py tells it, caught on its way."""
    caught: list[discord.Message] = []
    module: Any = discord_convert
    original = discord_convert.from_message

    def catch(message: discord.Message, *more: Any) -> Any:
        caught.append(message)
        return original(message, *more)

    async with AsyncExitStack() as stack:
        say, door = await _discord(stack)
        module.from_message = catch
        try:
            await door.timed(1, say)
        finally:
            module.from_message = original
    return lambda: discord_convert.from_message(caught[0], 123)


def http_step() -> Callable[[], InboundMessage | None]:
    body = json.dumps({"text": TEXT, "context": "team", "author": {"id": "u1", "name": "Lena"}}).encode()
    return lambda: http_convert.to_inbound(
        http_convert.parse_body(body),
        workspace_id="acme",
        caller_id="token:bench",
        caller_role=Role.MEMBER,
        message_id="m1",
        sent_at=NOW,
    )


def web_step() -> Callable[[], InboundMessage | None]:
    body = json.dumps({"id": "message-0001", "conversation": "main", "text": TEXT}).encode()
    session = Session("token:bench", Role.MEMBER, "acme", "Lena")
    return lambda: web_convert.to_inbound(web_convert.parse_object(body), session, NOW)


# From the wire to the door


async def _listening(stack: AsyncExitStack, connector: Connector, door: Door) -> None:
    stack.push_async_callback(connector.close)
    await stack.enter_async_context(background_task(connector.run(door.accept), "connector"))


async def _telegram(stack: AsyncExitStack) -> tuple[Callable[[], Awaitable[Any]], Door]:
    emulator, door = await stack.enter_async_context(TelegramEmulator()), Door()
    await _listening(stack, telegram_connector(emulator), door)
    await emulator.until(lambda one: "getupdates" in one.calls)
    return lambda: emulator.say(TEXT), door


async def _slack(stack: AsyncExitStack) -> tuple[Callable[[], Awaitable[Any]], Door]:
    emulator, door = await stack.enter_async_context(SlackEmulator(redeliver_seconds=60)), Door()
    await _listening(stack, slack_connector(emulator), door)
    await emulator.until(lambda one: one.sockets > 0)

    async def say() -> None:
        emulator.say(TEXT)
        emulator.deliveries[:] = [one for one in emulator.deliveries if not one.acknowledged]

    return say, door


async def _discord(stack: AsyncExitStack) -> tuple[Callable[[], Awaitable[Any]], Door]:
    emulator, door = await stack.enter_async_context(DiscordEmulator()), Door()
    await _listening(stack, discord_connector(emulator), door)
    await emulator.until(lambda one: one.has_session)
    await asyncio.sleep(0.5)
    return lambda: emulator.say(TEXT), door


def _asgi(app: Starlette, path: str, headers: dict[str, str], body: Callable[[int], bytes]) -> Callable[[int], Any]:
    """Asks *app* as a server does; who is still waiting for an answer in the end is left."""
    told = [(name.encode(), value.encode()) for name, value in {"host": "localhost", **headers}.items()]

    async def ask(number: int) -> None:
        content = body(number)
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
            "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "state": {},
            "headers": [*told, (b"content-length", str(len(content)).encode())],
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
        }  # fmt: skip
        pieces = [{"type": "http.request", "body": content, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if pieces:
                return pieces.pop()
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: dict[str, Any]) -> None:
            assert message.get("status", 200) < 300, message

        await app(scope, receive, send)  # type: ignore[arg-type]

    return ask


@asynccontextmanager
async def _asked(
    connector: Any, path: str, headers: dict[str, str], body: Callable[[int], bytes]
) -> AsyncIterator[Round]:
    door = Door()
    ask = _asgi(Starlette(routes=list(connector.routes())), path, headers, body)
    count = 0

    async def run(events: int) -> float:
        nonlocal count
        taken = 0.0
        for _ in range(events // AT_ONCE):
            waiting: list[asyncio.Task[None]] = []

            async def bring(waiting: list[asyncio.Task[None]] = waiting) -> None:
                nonlocal count
                for _ in range(AT_ONCE):
                    count += 1
                    waiting.append(asyncio.create_task(ask(count)))

            taken += await door.timed(AT_ONCE, bring)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        return taken

    async with background_task(connector.run(door.accept), "connector"):
        await asyncio.sleep(0.05)
        yield run
    await connector.close()


@asynccontextmanager
async def _said(open_platform: Callable[[AsyncExitStack], Awaitable[tuple[Any, Door]]]) -> AsyncIterator[Round]:
    async with AsyncExitStack() as stack:
        say, door = await open_platform(stack)

        async def run(events: int) -> float:
            async def bring() -> None:
                for _ in range(events):
                    await say()

            return await door.timed(events, bring)

        yield run


@asynccontextmanager
async def _http() -> AsyncIterator[Round]:
    body = json.dumps({"text": TEXT, "context": "team", "author": {"id": "u1", "name": "Lena"}}).encode()
    async with _asked(http_connector(), "/v1/workspaces/acme/messages", {}, lambda _: body) as run:
        yield run


@asynccontextmanager
async def _web() -> AsyncIterator[Round]:
    sessions = MemorySessions()
    secret = await sessions.begin("token", Session("token:bench", Role.MEMBER, "acme", "Lena"))

    def body(number: int) -> bytes:
        return json.dumps({"id": f"message-{number:08}", "conversation": "main", "text": TEXT}).encode()

    headers = {"cookie": f"{COOKIE}={secret}", "content-type": "application/json"}
    async with _asked(web_connector(sessions), "/chat/messages", headers, body) as run:
        yield run


async def rates(run: Round, events: int, rounds: int) -> list[float]:
    """Events a second of each round, after one that does not count."""
    await run(events)
    found = []
    for _ in range(rounds):
        gc.collect()
        found.append(events / await run(events))
    return found


def report(name: str, step: str, found: list[float]) -> None:
    middle = statistics.median(found)
    spread = f"{min(found):>10,.0f} –{max(found):>9,.0f}"
    print(f"{name:<10}{step:<9}{middle:>10,.0f}{spread}{middle / ASKED_PER_SECOND:>10,.0f} ×")


async def main(events: int, rounds: int) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    print(f"{'':<19}{'events/s':>10}{'slowest – fastest':>22}{'of 100/s':>12}")
    steps = {
        "telegram": (telegram_step(), _said(_telegram)),
        "slack": (slack_step(), _said(_slack)),
        "discord": (await discord_step(), _said(_discord)),
        "http": (http_step(), _http()),
        "web": (web_step(), _web()),
    }
    for name, (step, wire) in steps.items():
        pure = await rates(converting(step), events * 10, rounds)
        report(name, "convert", pure)
        async with wire as run:
            whole = await rates(run, events, rounds)
        report(name, "wire", whole)
        print(f"{'':<10}{'ratio':<9}{statistics.median(whole) / statistics.median(pure):>10.3f}")


if __name__ == "__main__":
    given = [int(one) for one in sys.argv[1:3]]
    asyncio.run(main(given[0] if given else 1000, given[1] if len(given) > 1 else 7))
