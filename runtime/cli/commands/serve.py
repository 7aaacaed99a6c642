"""``agent-runtime serve``: the bot."""

from __future__ import annotations

import click

from runtime.cli.invocation import Invocation


@click.command()
@click.option(
    "--role",
    type=click.Choice(["all", "gateway", "worker"]),
    default="all",
    show_default=True,
    help="A gateway runs connectors, delivery and HTTP; a worker answers turns; all is both in one process.",
)
@click.pass_obj
def command(invocation: Invocation, role: str) -> None:
    """Run the bot until SIGTERM or Ctrl-C: connectors, answers and the HTTP face. Events go to standard output."""
    import asyncio

    from runtime.serve import serve

    loaded = invocation.load()
    asyncio.run(serve(loaded.settings, role, invocation.log_format, loaded.fallen_back))
