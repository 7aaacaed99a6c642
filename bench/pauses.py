"""Chats without pauses on Telegram: ``python -m bench.pauses [TURNS]``

In one chat the next message comes the moment the reply is whole. Then fifty chats do the same at once, with the
overall rate lifted (``TELEGRAM_SENDS_PER_SECOND=0``). The emulated Telegram never asks to wait, so every wait is the
bot's own. Each bare bot (`bench.bare`) is told the same in turn: the ratio holds where the machine is another or busy.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path

from bench.actors import CHUNK_CHARACTERS, MESSAGES, model_server, platforms
from bench.bare import bare_bots
from bench.figures import on_this_machine, row, share, title
from bench.processes import Child, bot, settings

CHUNKS = 20
WARM_UP = 5
PORTION = 25
"""Turns of one chat that are measured before the next bot has its turn."""
PEOPLE = 50
EACH = 4
REPEATS = 3
CHARACTERS = CHUNKS * CHUNK_CHARACTERS
Took = list[float]
"""Milliseconds of each turn."""


async def measure(folder: Path, turns: int) -> None:
    """Print both figures."""
    async with (
        model_server() as (model, base_url),
        platforms("telegram") as (there, addresses),
        bare_bots(base_url) as bare,
    ):
        await model.ask("chunks", count=CHUNKS)
        given = settings(base_url, folder, TELEGRAM_SENDS_PER_SECOND="0", **addresses)
        async with bot(given) as running:
            await running.ready()
            await running.connected("telegram")
            await running.printed("index.updated")
            talkers = {"ours": there, **{kind: one.there for kind, one in bare.items()}}
            await _one_chat(talkers, WARM_UP, 0)
            _report_chat(await _one_chat(talkers, turns, 1))
            await _report_crowd(talkers)


async def _one_chat(talkers: Mapping[str, Child], turns: int, person: int) -> dict[str, Took]:
    took: dict[str, Took] = {kind: [] for kind in talkers}
    for done in range(0, turns, PORTION):
        for kind, there in talkers.items():
            spans = await there.ask(
                "talk", text=MESSAGES["none"], turns=min(PORTION, turns - done), people=1, first=person,
                characters=CHARACTERS,
            )  # fmt: skip
            took[kind] += [(seen - said) * 1000 for said, seen in spans[0]]
    return took


def _report_chat(took: Mapping[str, Took]) -> None:
    title(f"One chat of {len(took['ours'])} turns without a pause, ms from message to whole reply")
    for kind, times in took.items():
        print(f"  {kind:<46} p50 {share(times, 0.5):8.2f}  p95 {share(times, 0.95):8.2f}")
    for kind in took.keys() - {"ours"}:
        p50, p95 = (share(took["ours"], part) / share(took[kind], part) for part in (0.5, 0.95))
        print(f"  ours against {kind}: p50 × {p50:.2f}, p95 × {p95:.2f}")


async def _report_crowd(talkers: Mapping[str, Child]) -> None:
    title(f"{PEOPLE} chats at once, {EACH} turns each, turns a second: median over {REPEATS} repeats")
    rates: dict[str, list[float]] = {kind: [] for kind in talkers}
    for repeat in range(-1, REPEATS):  # the first time warms up
        for kind, there in talkers.items():
            spans = await there.ask(
                "talk", text=MESSAGES["none"], turns=EACH, people=PEOPLE, first=(repeat + 2) * PEOPLE,
                characters=CHARACTERS,
            )  # fmt: skip
            every = [span for one in spans for span in one]
            seconds = max(seen for _, seen in every) - min(said for said, _ in every)
            if repeat >= 0:
                rates[kind].append(len(every) / seconds)
    for kind, found in rates.items():
        row(kind, found, "/s")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.pauses", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("turns", metavar="TURNS", type=int, nargs="?", default=100, help="of one chat (%(default)s)")
    turns = parser.parse_args().turns
    with on_this_machine(), tempfile.TemporaryDirectory(prefix="ar-pauses-") as name:
        asyncio.run(measure(Path(name), turns))


if __name__ == "__main__":
    main()
