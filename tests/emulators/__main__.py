"""The three platforms on loopback, the bot among them, and a terminal to talk to it. ``python -m tests.emulators``

See ``--help``, and ``/help`` once it runs. What people see is told line by line; with ``--script FILE``, or where
standard input is no terminal, lines are read from there. Exit code 0; 1 where a ``/wait`` or ``/expect`` of a script
did not hold or the bot did not start; 128 and the number of a signal that ended it (at the prompt, Ctrl-C is an end).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.emulators import openai
from tests.emulators.play.answers import in_short
from tests.emulators.play.bot_process import BotEnded, BotProcess, Event
from tests.emulators.play.discord import DiscordPlay
from tests.emulators.play.playground import START_SECONDS, Failed, Playground
from tests.emulators.play.screen import BAD, DIM, Screen, ScriptScreen, TerminalScreen
from tests.emulators.play.slack import SlackPlay
from tests.emulators.play.telegram import TelegramPlay
from tests.emulators.play.world import Crew, Platform

PREFIX = "AGENT_RUNTIME_"
PLATFORMS: dict[str, Callable[[Crew], Platform]] = {
    "telegram": TelegramPlay,
    "slack": SlackPlay,
    "discord": DiscordPlay,
}
_OFF = ("TELEGRAM_BOT_TOKEN", "TELEGRAM_WEBHOOK_SECRET", "SLACK_BOT_TOKEN", "SLACK_APP_TOKEN", "DISCORD_BOT_TOKEN")
"""Real platforms that the environment or a file names are left alone."""


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """What was asked for on the command line. Raises `SystemExit`."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.emulators", description="Play with the bot, no account needed."
    )
    parser.add_argument("platforms", nargs="*", metavar="PLATFORM", help=f"{', '.join(PLATFORMS)}; none: all of them")
    parser.add_argument("--data-dir", type=Path, help="the bot's DATA_DIR; else a temporary one")
    parser.add_argument(
        "--http-port", type=int, default=0, help="the bot's HTTP_PORT; 0, the default, takes a free one"
    )
    parser.add_argument("--fake-model", action="store_true", help="a model that echoes at once, instead of a real one")
    parser.add_argument("--script", type=Path, metavar="FILE", help="do what its lines say, and end")
    parser.add_argument("--no-bot", action="store_true", help="start no bot, print the settings for your own")
    asked = parser.parse_args(given)
    if unknown := set(asked.platforms) - PLATFORMS.keys():
        parser.error(f"no such platform: {', '.join(sorted(unknown))}; there are {', '.join(PLATFORMS)}")
    return asked


async def play(asked: argparse.Namespace) -> int:
    """The exit code."""
    crew = Crew()
    async with AsyncExitStack() as stack:
        platforms: list[Platform] = [PLATFORMS[name](crew) for name in asked.platforms or PLATFORMS]
        for platform in platforms:
            await stack.enter_async_context(platform)
        addresses = {PREFIX + name: value for one in platforms for name, value in one.environment().items()}
        if asked.fake_model:
            addresses |= await stack.enter_async_context(_model())
        settled: list[Playground] = []
        bot: BotProcess | None = None
        if not asked.no_bot:
            folder = await stack.enter_async_context(_folder(asked.data_dir))
            environment = _environment(addresses, folder, asked.http_port)
            bot = BotProcess(environment, lambda event: _heard(settled, event))
            stack.push_async_callback(bot.stop)
        playground = Playground(platforms, crew, bot)
        settled.append(playground)
        screen = await _screen(asked.script, playground)
        playground.screen = screen
        if bot is None:
            for name, value in addresses.items():
                screen.write((f"export {name}={value}", ""))
        elif not await _started(playground, bot, screen):
            return 1
        try:
            await playground.run(screen)
        except Failed as failed:
            screen.write((str(failed), BAD))
            return 1
        finally:
            if bot is not None and isinstance(screen, TerminalScreen):
                screen.write(("the bot is being stopped …", DIM))
    return 0


def _heard(settled: list[Playground], event: Event) -> None:
    if settled:
        settled[0].heard(event)


async def _started(playground: Playground, bot: BotProcess, screen: Screen) -> bool:
    screen.write(("starting the bot …", DIM))
    try:
        await playground.start(bot)
    except (BotEnded, TimeoutError) as error:
        screen.write((str(error) or f"not connected within {START_SECONDS:g} s", BAD))
        return False
    screen.write(("ready. Type what Ann says; /help tells the rest.", DIM))
    return True


async def _screen(script: Path | None, playground: Playground) -> Screen:
    if script is not None:
        return ScriptScreen(await asyncio.to_thread(script.open, "rb"))
    if sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb"):
        return TerminalScreen(playground.words, playground.prompt, playground.live)
    return ScriptScreen(sys.stdin.buffer)


def _environment(addresses: Mapping[str, str], folder: Path, port: int) -> dict[str, str]:
    """The bot's: what is set stays, except for where the platforms are."""
    usual = {"ACCESS_POLICY": "open", "DEFAULT_WORKSPACE": "sample", "RATE_LIMIT_MESSAGES": "1000"}
    fixed = {**dict.fromkeys(_OFF, ""), "DATA_DIR": str(folder), "HTTP_PORT": str(port)}
    return (
        {PREFIX + name: value for name, value in usual.items()}
        | dict(os.environ)
        | {PREFIX + name: value for name, value in fixed.items()}
        | dict(addresses)
    )


@asynccontextmanager
async def _model() -> AsyncIterator[dict[str, str]]:
    async with openai.serving() as fake:
        fake.answer = in_short
        fake.chunk_delay_seconds = 0.03
        settings = {"LLM_MODEL": "openai/fake", "LLM_API_BASE": fake.base_url, "LLM_API_KEY": "none"}
        yield {PREFIX + name: value for name, value in settings.items()}


@asynccontextmanager
async def _folder(given: Path | None) -> AsyncIterator[Path]:
    if given is not None:
        yield await asyncio.to_thread(given.absolute)
        return
    folder = await asyncio.to_thread(tempfile.TemporaryDirectory, prefix="ar-play-")
    try:
        yield Path(folder.name)
    finally:
        await asyncio.to_thread(folder.cleanup)


async def main(asked: argparse.Namespace) -> int:
    """Play until the end, a signal or Ctrl-C; the bot and all emulators have ended when it returns."""
    # A bot that is killed in the middle of a call is nothing that an emulator's server need tell the person.
    logging.getLogger("aiohttp").setLevel(logging.CRITICAL)
    playing = asyncio.create_task(play(asked))
    loop = asyncio.get_running_loop()
    codes: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, _end, playing, codes, 128 + number)
    with contextlib.suppress(asyncio.CancelledError):
        return await playing
    return codes[0] if codes else 1


def _end(playing: asyncio.Task[int], codes: list[int], code: int) -> None:
    if not codes:
        codes.append(code)
        playing.cancel()


if __name__ == "__main__":
    sys.exit(asyncio.run(main(arguments())))
