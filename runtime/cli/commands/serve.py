"""``agent-runtime serve``: run the bot."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import sys
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from runtime.cli.invocation import Invocation

if TYPE_CHECKING:
    from config.load import LoadedSettings


@click.command()
@click.option(
    "--role",
    type=click.Choice(["all", "gateway", "worker"]),
    default="all",
    show_default=True,
    help="gateway: connectors, delivery and HTTP. worker: answers. all: both in one process.",
)
# These are global options too, but people who start a server write them after `serve`.
@click.option("--config", type=click.Path(path_type=Path, dir_okay=False), help="TOML file with settings.")
@click.option("--log-format", type=click.Choice(["json", "console"]), help="Format of the printed events.")
@click.option("--json", "as_json", is_flag=True, help="Print events as JSON on a terminal, too.")
@click.pass_obj
def command(
    invocation: Invocation,
    role: Literal["all", "gateway", "worker"],
    config: Path | None,
    log_format: Literal["json", "console"] | None,
    as_json: bool,
) -> None:
    """Run the bot until Ctrl-C or SIGTERM: connectors, answers and the HTTP interface.

    Events are printed to standard output: as readable lines on a terminal, else as JSON, one event a line.
    """
    _limit_memory()
    default: Literal["json", "console"] = "console" if sys.stdout.isatty() else "json"
    chosen = "json" if as_json else log_format or invocation.log_format or default
    asyncio.run(_serve(Invocation(config or invocation.config).load(), role, chosen))


def _limit_memory() -> None:
    """Let glibc return memory soon, here and in the child processes, and look for garbage less often: the start makes a
    million objects that stay.

    Saves 20 MB here, 70 MB in the process of the index and half a second of the start. Source: ``man 3 mallopt``.
    """
    gc.set_threshold(10_000, 10, 10)
    for variable, option, value in (("MALLOC_TRIM_THRESHOLD_", -1, 128 * 1024), ("MALLOC_ARENA_MAX", -8, 2)):
        if os.environ.setdefault(variable, str(value)) == str(value):
            with suppress(AttributeError, OSError):  # no other C library has it
                ctypes.CDLL(None).mallopt(option, value)


async def _serve(
    loaded: LoadedSettings, role: Literal["all", "gateway", "worker"], log_format: Literal["json", "console"]
) -> None:
    """Check that the data folder is free, start the process of the search index, and serve.

    The index gets ready while this process imports the rest. Separate roles have no such process: they share a server.
    """
    from runtime.embedded.index_client import start_index_process as begun
    from runtime.stores import check_unused, prepare_data_dir

    if role != "worker":
        await prepare_data_dir(loaded.settings.data_dir)
        await check_unused(loaded.settings.data_dir)
    async with begun(loaded.settings) if role == "all" else nullcontext() as engine:
        from runtime.process.serve import serve

        await serve(loaded.settings, role, log_format, loaded.defaulted_numbers, engine)
