"""From the start of ``serve`` to being ready and to the first reply over HTTP. ``python -m bench.start [REPEATS]``

Once without platforms, once with all three. The first start, with an empty folder, is shown by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path

from bench.actors import MESSAGES, model_server, platforms
from bench.figures import on_this_machine, row, title
from bench.processes import Child, bot, child, settings

PLATFORMS = ("telegram", "slack", "discord")


async def measure(folder: Path, repeats: int) -> None:
    """Print all times, in seconds."""
    title("Start, s: median over repeats [lowest … highest]")
    async with (
        model_server() as (_, base_url),
        child("bench.actors", "people") as people,
        platforms(*PLATFORMS) as (_, addresses),
    ):
        await _starts("without platforms", settings(base_url, folder / "plain"), people, repeats)
        given = settings(base_url, folder / "platforms", **addresses)
        await _starts("with all three platforms", given, people, repeats, PLATFORMS)


async def _starts(
    what: str, given: Mapping[str, str], people: Child, repeats: int, connectors: tuple[str, ...] = ()
) -> None:
    ready, replied, connected = [], [], []
    for _ in range(repeats + 1):
        async with bot(given) as running:
            first = asyncio.create_task(people.ask("first", url=running.url, text=MESSAGES["none"].format(n=0)))
            ready.append(await running.ready())
            connected.append(await running.connected(*connectors))
            replied.append(await first - running.started)
    print(f"\n {what} (very first start: ready after {ready[0]:.2f} s, first reply {replied[0]:.2f} s)")
    row("process start → ready", ready[1:], "s")
    if connectors:
        row("process start → all connected", connected[1:], "s")
    row("process start → first reply", replied[1:], "s")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.start", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("repeats", metavar="REPEATS", type=int, nargs="?", default=3, help="(%(default)s)")
    repeats = parser.parse_args().repeats
    with on_this_machine(), tempfile.TemporaryDirectory(prefix="ar-start-") as name:
        asyncio.run(measure(Path(name), repeats))


if __name__ == "__main__":
    main()
