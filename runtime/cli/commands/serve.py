"""``agent-runtime serve``: the bot."""

from __future__ import annotations

import sys
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
# Global options, too; who starts a server writes them where they are looked for: behind `serve`.
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
    import asyncio

    printed: Literal["json", "console"] = "console" if sys.stdout.isatty() else "json"
    printed = "json" if as_json else log_format or invocation.log_format or printed
    _import_structlog()
    asyncio.run(_serve(Invocation(config or invocation.config).load(), role, printed))


async def _serve(
    loaded: LoadedSettings, role: Literal["all", "gateway", "worker"], log_format: Literal["json", "console"]
) -> None:
    """The process of the search index first: it gets ready while this one imports all that it serves with. Roles apart
    have none: they share a server. Nothing is begun on a folder that another process serves."""
    from contextlib import nullcontext

    from runtime.embedded.index_client import begun
    from runtime.stores import check_unused, prepare_data_dir

    if role != "worker":
        await prepare_data_dir(loaded.settings.data_dir)
        await check_unused(loaded.settings.data_dir)
    async with begun(loaded.settings) if role == "all" else nullcontext() as engine:
        from runtime.process.serve import serve

        await serve(loaded.settings, role, log_format, loaded.fallen_back, engine)


def _import_structlog() -> None:
    """Without rich, which it would bring to print tracebacks: that takes 40 ms of processor time, and
    `runtime.observability.events`
    tells of errors itself."""
    if "structlog" in sys.modules or "rich" in sys.modules:
        return
    sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        import structlog  # noqa: F401
    finally:
        del sys.modules["rich"]
