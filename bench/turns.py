"""What a turn costs, against a model server that answers at once. ``python -m bench.turns [--only …] [--turns N]``

Every process is a real one: the bot as it is served, the model server, the people, the platforms. Printed are the
machine, medians with their spread over repeats, and each figure against what it was to reach. What other programs on
the machine computed meanwhile is printed, too: times by the clock mean little where that is much; CPU still does.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench import by_telegram, cost, crash, growth, machine, overhead, start, throughput
from bench.figures import Verdict, title

Section = Callable[[Path, int, int], Awaitable[list[Verdict]]]
DEFAULT_TURNS = 100
DEFAULT_REPEATS = 3


async def _crashes(folder: Path, _: int, repeats: int) -> list[Verdict]:
    return await crash.measure(folder, repeats)


async def _rates(folder: Path, turns: int, repeats: int) -> list[Verdict]:
    return await throughput.measure(folder, turns * 5, repeats)


SECTIONS: dict[str, tuple[Section, str]] = {
    "http": (overhead.measure, "overhead of a turn over HTTP, by stage"),
    "telegram": (by_telegram.measure, "overhead of a turn through Telegram"),
    "cpu": (cost.measure, "CPU of a turn, with LiteLLM's own taken off"),
    "growth": (growth.measure, "the same, as history and conversations grow"),
    "rate": (_rates, "turns a second with 1, 2 and 4 workers"),
    "start": (start.measure, "start to ready and to the first reply; memory"),
    "crash": (_crashes, "kill -9 with ten messages in hand"),
}


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Of the command line."""
    what = "\n".join(f"  {name:<10}{about}" for name, (_, about) in SECTIONS.items())
    parser = argparse.ArgumentParser(
        prog="python -m bench.turns", description=__doc__, epilog=f"sections:\n{what}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--only", nargs="+", choices=SECTIONS, metavar="SECTION", help="these sections (all)")
    parser.add_argument("--turns", type=int, default=DEFAULT_TURNS, help="of each kind in each repeat (%(default)s)")
    parser.add_argument("--repeats", type=int, default=DEFAULT_REPEATS, help="of each figure (%(default)s)")
    return parser.parse_args(given)


def others_share(began: tuple[float, float, float], ended: tuple[float, float, float]) -> float:
    """Which part of all cores other programs had; of `_computed` before and after."""
    whole, busy, ours = (b - a for a, b in zip(began, ended, strict=True))
    return max(0.0, busy - ours) / whole if whole else 0.0


def _computed() -> tuple[float, float, float]:
    """Seconds of all cores so far: altogether, at work, and at work for this process and those it has waited for."""
    fields = [int(one) for one in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    ticks = os.sysconf("SC_CLK_TCK")
    whole, idle = sum(fields) / ticks, (fields[3] + fields[4]) / ticks
    return whole, whole - idle, sum(os.times()[:4])


async def main(asked: argparse.Namespace) -> int:
    """0 where everything asked for was reached."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    verdicts: list[Verdict] = []
    with tempfile.TemporaryDirectory(prefix="ar-bench-") as name:
        await machine.describe(Path(name) / "machine")
        for section in asked.only or SECTIONS:
            own = Path(name) / section
            own.mkdir()
            began = _computed()
            verdicts += await SECTIONS[section][0](own, asked.turns, asked.repeats)
            print(f"\n  (other programs had {others_share(began, _computed()):.0%} of the cores meanwhile)", flush=True)
    title("Against what was to be reached")
    print(*verdicts, sep="\n")
    return 0 if all(one.factor <= 1 for one in verdicts) else 1


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main(arguments())))
