"""The parts that every command shares: global options, settings, common options, and an event loop that ends in order.

Nothing heavy is imported here, so that help comes at once.
"""

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
"""How the program was started. The script of a checkout sets it."""
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class Invocation:
    """The options of one command line that every command has."""

    config: Path | None = None
    log_format: Literal["json", "console"] | None = None
    """None: readable lines on a terminal, else JSON."""
    as_json: bool = False
    """True if the command prints JSON (`json_option`)."""

    def load(self) -> LoadedSettings:
        """Return the settings and their origin. Raises `config.load.ConfigurationError`."""
        from config.load import load

        return load(os.environ, self.config)

    def settings(self) -> Settings:
        """Return the settings, and name on standard error the grounding numbers that fell back to their default."""
        loaded = self.load()
        for number in loaded.defaulted_numbers:
            click.echo(
                f"agent-runtime: {number.variable}={number.value!r} is not a positive integer; using {number.default}",
                err=True,
            )
        return loaded.settings


def json_option(function: F) -> F:
    """Add ``--json``, which sets ``Invocation.as_json``."""

    def store(context: click.Context, _parameter: click.Parameter, as_json: bool) -> None:
        context.obj.as_json = as_json

    option = click.option("--json", is_flag=True, expose_value=False, callback=store, help="Print JSON.")
    return option(function)


def data_command(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--json``, and pass the `Invocation` as the first argument."""
    return json_option(click.pass_obj(function))


def workspace_option(function: F) -> F:
    """Add ``--workspace``; the default is the workspace of the terminal chat."""

    def default(settings: Settings) -> str:
        from runtime.workspaces import console_workspace

        return console_workspace(settings)

    return _add_workspace_option(function, default, "AGENT_RUNTIME_DEFAULT_WORKSPACE, or sample while it is empty")


def default_workspace_option(function: F) -> F:
    """Add ``--workspace`` for commands that add documents or people; the default is ``DEFAULT_WORKSPACE``."""
    return _add_workspace_option(
        function, lambda settings: settings.default_workspace, "AGENT_RUNTIME_DEFAULT_WORKSPACE"
    )


def _add_workspace_option(function: F, default: Callable[[Settings], str], default_name: str) -> F:
    def resolve(context: click.Context, _parameter: click.Parameter, workspace: str | None) -> str | None:
        return workspace if workspace or context.resilient_parsing else default(context.obj.load().settings)

    help_text = f"The workspace; default: {default_name}."
    return click.option("-w", "--workspace", metavar="W", callback=resolve, help=help_text)(function)


only_workspace_option = click.option("-w", "--workspace", metavar="W", help="Only this workspace.")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run *work* to its end. SIGTERM and SIGHUP cancel it, so that it cleans up, and then raise `Terminated`."""
    return asyncio.run(_run_until_signal(work))


class Terminated(Exception):
    """The process got SIGTERM or SIGHUP and has cleaned up."""


async def _run_until_signal(work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.current_task()
    assert task is not None
    signalled = False

    def end() -> None:
        nonlocal signalled
        signalled = True
        task.cancel()

    if threading.current_thread() is threading.main_thread():
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, end)
    try:
        return await work
    except asyncio.CancelledError:
        if signalled:
            raise Terminated from None
        raise


def silence_events(settings: Settings) -> None:
    """Print no events: the command reports in its own words."""
    from runtime.observability import Redaction, configure_events

    configure_events(Redaction.of(settings), silent=True)


def command_name() -> str:
    """Return what a person types to start this program, e.g. ``./agent-runtime`` in a checkout."""
    if name := os.environ.get(COMMAND_VARIABLE):
        return name
    is_module = Path(sys.argv[0]).parts[-2:] == ("runtime", "__main__.py")
    return "python -m runtime" if is_module else "agent-runtime"


def as_typed(text: str) -> str:
    """Return *text* with each command in backticks as a person has to type it here."""
    return text.replace("`agent-runtime ", f"`{command_name()} ")
