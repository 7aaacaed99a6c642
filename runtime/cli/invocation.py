"""What a command needs of its surroundings: settings, an event loop that ends in order, common options."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

if TYPE_CHECKING:
    from config.load import LoadedSettings
    from config.settings import Settings

COMMAND_VARIABLE = "AGENT_RUNTIME_COMMAND"
"""How the program was started. Set by the script of a checkout."""
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def command_name() -> str:
    """What a person types to start this program, e.g. ``./agent-runtime`` in a checkout."""
    if started := os.environ.get(COMMAND_VARIABLE):
        return started
    is_module = Path(sys.argv[0]).parts[-2:] == ("runtime", "__main__.py")
    return "python -m runtime" if is_module else "agent-runtime"


def as_typed(text: str) -> str:
    """*text* with the commands in it (in backticks) as a person here has to type them."""
    return text.replace("`agent-runtime ", f"`{command_name()} ")


class Terminated(Exception):
    """The process was told to end (SIGTERM, SIGHUP) and has cleaned up."""


@dataclass(frozen=True)
class Invocation:
    """The global options of one command line."""

    config: Path | None = None
    log_format: Literal["json", "console"] | None = None
    """None: readable lines on a terminal, else JSON."""

    def load(self) -> LoadedSettings:
        """Settings and where they came from. Raises `config.load.ConfigurationError`."""
        from config.load import load

        return load(os.environ, self.config)

    def settings(self) -> Settings:
        """Settings; grounding numbers that fell back to their default are named on standard error."""
        loaded = self.load()
        for number in loaded.fallen_back:
            click.echo(
                f"agent-runtime: {number.variable}={number.value!r} is not a positive integer; using {number.default}",
                err=True,
            )
        return loaded.settings


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run *work* to its end; SIGTERM and SIGHUP cancel it, so that it cleans up. Raises `Terminated` then."""
    return asyncio.run(_until_told(work))


async def _until_told(work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.current_task()
    assert task is not None
    told = False

    def end() -> None:
        nonlocal told
        told = True
        task.cancel()

    if threading.current_thread() is threading.main_thread():
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, end)
    try:
        return await work
    except asyncio.CancelledError:
        if told:
            raise Terminated from None
        raise


def workspace_option(function: F) -> F:
    """``--workspace``; where none is named, the one that the terminal chat uses."""
    return click.option(
        "-w",
        "--workspace",
        metavar="W",
        callback=_named_or_console,
        help="The workspace; default: AGENT_RUNTIME_DEFAULT_WORKSPACE, or sample while it is empty.",
    )(function)


def default_workspace_option(function: F) -> F:
    """``--workspace`` of commands that bring in documents or people; None is ``DEFAULT_WORKSPACE``."""
    return click.option(
        "-w", "--workspace", metavar="W", help="The workspace; default: AGENT_RUNTIME_DEFAULT_WORKSPACE."
    )(function)


def _named_or_console(context: click.Context, parameter: click.Parameter, workspace: str | None) -> str | None:
    if workspace or context.resilient_parsing:
        return workspace
    return workspace_of(context.obj.load().settings, None)


def json_option(function: F) -> F:
    """``--json``, as ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def workspace_of(settings: Settings, workspace: str | None) -> str:
    """*workspace*, or the one that the terminal chat uses. Touches the disk."""
    from runtime.workspaces.workspaces import console_workspace

    return workspace or console_workspace(settings)


def keep_events_off_the_screen(settings: Settings) -> None:
    """For commands that have no event stream to write to: what happens is told in their own words."""
    from runtime.observability import events
    from runtime.observability.redaction import Redaction

    events.configure(Redaction.of(settings), silent=True)
