"""``agent-runtime serve``: the bot."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from runtime.cli.invocation import Invocation

if TYPE_CHECKING:
    from config.load import Loaded


@click.command()
@click.option(
    "--role",
    type=click.Choice(["all", "gateway", "worker"]),
    default="all",
    show_default=True,
    help="A gateway runs connectors, delivery and HTTP; a worker answers turns; all is both in one process.",
)
# Global options, too; who starts a server writes them where they are looked for: behind `serve`.
@click.option("--config", type=click.Path(path_type=Path, dir_okay=False), help="TOML file with settings.")
@click.option("--log-format", type=click.Choice(["json", "console"]), help="How events are printed.")
@click.pass_obj
def command(
    invocation: Invocation,
    role: Literal["all", "gateway", "worker"],
    config: Path | None,
    log_format: Literal["json", "console"] | None,
) -> None:
    """Run the bot until SIGTERM or Ctrl-C: connectors, answers and the HTTP face. Events go to standard output."""
    import asyncio

    from runtime import collecting
    from runtime.allocation import share_arenas

    share_arenas()
    collecting.begin()
    invocation = Invocation(config or invocation.config, log_format or invocation.log_format)
    _import_structlog()
    asyncio.run(_serve(invocation.load(), role, invocation.log_format))


async def _serve(
    loaded: Loaded, role: Literal["all", "gateway", "worker"], log_format: Literal["json", "console"]
) -> None:
    """The process of the search index first: it gets ready while this one imports all that it serves with. Roles apart
    have none: they share a server."""
    from contextlib import nullcontext

    from runtime.embedded.index_process import begun

    async with begun(loaded.settings) if role == "all" else nullcontext() as engine:
        from runtime.serve import serve

        await serve(loaded.settings, role, log_format, loaded.fallen_back, engine)


def _import_structlog() -> None:
    """Without rich, which it would bring to print tracebacks: that takes 40 ms of processor time, and `runtime.events`
    tells of errors itself."""
    import sys

    if "structlog" in sys.modules or "rich" in sys.modules:
        return
    sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        import structlog  # noqa: F401
    finally:
        del sys.modules["rich"]
