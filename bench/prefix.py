"""How much of prompts a cache has read before, in either layout. ``python -m bench.prefix [FOLDER] [--only …]``

Several conversations are held in turn with the whole bot (see `bench.prompts`), in both layouts; besides, the same
conversations with everything that was said in each prompt. Their prompts are then read by simulated caches that never
forget, and by the bundled model, which says itself what it had kept. Conversations are made up, or those of FOLDER (see
`bench.chats`). Shares of tokens do not depend on what else the machine does; times do.

The tail may grow to ``--tail`` tokens and is then cut. Published simulations of the same block sizes let a history grow
from 1,500 tokens to 3,000, which is then cut to 1,500 (passages in 30 % of the turns: .721 kept, 992 tokens read anew a
turn of 3,557), and from 3,000 to 6,000 (.807, 1,031 of 5,336): 3000 and 6000 are to be held against these, 1500 is a
window half as large.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench import layout_quality
from bench.caches import EXACT, OPENAI, VLLM, Counted, simulated
from bench.chats import Scene, made_up, read
from bench.engine import Engine, Timed, engine
from bench.figures import Verdict, share, title
from bench.kept import Kept
from bench.prompts import Sent, played, replayed
from grounding.prompt_input import ChatMessage, Layout, load_tokens

WAYS = ("prefix_stable", "user_first", "all replayed")
SECTIONS = ("simulation", "engine", "floor", "quality")
WINDOW_TOKENS = 8000
"""Longer prompts the bundled model does not read."""
FLOOR_TOKENS = 4000
FLOORS = 3
"""How many are read cold and warm."""
LEAST_SHARE, MOST_UNCACHED, MOST_APART, LEAST_FASTER = 0.75, 950, 0.03, 20

Read = Mapping[str, list[tuple[str, list[int]]]]
"""Of each way of prompting the prompts as tokens, each with the name of its conversation."""


@dataclass(frozen=True)
class Played:
    """Prompts by the way in which they were made, as text and as tokens."""

    sent: Mapping[str, list[Sent]]
    read: Read


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.prefix", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, help="of long chats; made up ones if none is given")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS, metavar="WAY", help=", ".join(WAYS))
    parser.add_argument("--tail", type=int, default=3000, help="tokens that it may grow to (%(default)s)")
    parser.add_argument("--keep", type=Path, help="what was done is kept there, and a run broken off goes on from it")
    parser.add_argument("--chats", type=int, default=6, help="held in turn (%(default)s)")
    parser.add_argument("--turns", type=int, default=15, help="of each (%(default)s)")
    parser.add_argument("--questions", type=int, default=layout_quality.QUESTIONS, help="of quality (%(default)s)")
    return parser.parse_args(given)


async def _played(scene: Scene, asked: argparse.Namespace, using: Engine) -> Played:
    sent: dict[str, list[Sent]] = {}
    for way in asked.ways:
        if way == "all replayed":
            sent[way] = replayed(scene.chats)
        else:
            layout: Layout = "user_first" if way == "user_first" else "prefix_stable"
            sent[way] = await Kept(asked.keep).prompts(way, partial(played, scene, layout, asked.tail))
    read = {way: [(one.chat, await using.tokens(one.messages)) for one in row] for way, row in sent.items()}
    for way, row in read.items():
        short = [place for place, (_, tokens) in enumerate(row) if len(tokens) <= WINDOW_TOKENS]
        if len(short) < len(row):
            print(f"  {way}: {len(row) - len(short)} of {len(row)} prompts are too long for the model, and left out")
        sent[way], read[way] = [sent[way][n] for n in short], [row[n] for n in short]
    return Played(sent, read)


def _show_blocks(sent: Mapping[str, Sequence[Sent]]) -> None:
    """What the prompts are made of, as the runtime counts it."""
    row = next(iter(sent.values()))
    title("Blocks, tokens as the runtime counts them (cl100k): mean and largest")
    for name in ("identity", "global_context", "summary", "tail", "qmd", "now", "frame", "user", "total"):
        sizes = [one.blocks.get(name, 0) for one in row]
        print(f"  {name:<18}{statistics.mean(sizes):8.0f}{max(sizes):8d}")
    print(f"  passages were retrieved in {statistics.mean(one.retrieved for one in row):.0%} of the turns")


def _row(way: str, what: str, counted: Counted) -> None:
    print(f"  {way:<16}{what:<34}{counted.share:7.3f}{counted.uncached:9.0f}{counted.sent:9.0f}")


def _simulate(read: Read) -> list[Verdict]:
    title("Simulated caches: share of tokens that were kept, tokens read anew a turn, tokens sent a turn")
    for way, row in read.items():
        for kind in (VLLM, OPENAI):
            _row(way, kind.name, simulated(kind, row, is_shared=False))
        _row(way, f"{VLLM.name}, one for all", simulated(VLLM, row, is_shared=True))
    if "prefix_stable" not in read:
        return []
    best = simulated(VLLM, read["prefix_stable"], is_shared=True)
    return [
        Verdict("simulated share, prefix_stable, one cache for all", best.share, LEAST_SHARE, "", at_least=True),
        Verdict("tokens read anew a turn", best.uncached, MOST_UNCACHED, "tokens"),
    ]


async def _read(folder: Path, row: Sequence[Sent]) -> Timed:
    async with engine(folder) as fresh:
        return await fresh.read(row)


async def _read_all(folder: Path, made: Played, kept: Kept) -> list[Verdict]:
    title("The bundled model: share kept, anew and sent a turn; ms to the first word, median and p95")
    verdicts = []
    for way, row in made.sent.items():
        timed = await kept.timed(f"engine {way}", partial(_read, folder / way.replace(" ", "-"), row))
        _row(way, "its own count", timed.counted)
        print(
            f"  {'':<16}{statistics.median(timed.first_ms):.0f} ms, p95 {share(timed.first_ms, 0.95):.0f} ms",
            flush=True,
        )
        best = simulated(EXACT, made.read[way], is_shared=True).share
        if way == "prefix_stable":
            apart = abs(simulated(VLLM, made.read[way], is_shared=True).share - timed.counted.share)
            verdicts.append(Verdict("its share, and the simulated one: apart", apart, MOST_APART, ""))
        print(f"  {'':<16}at best, to the token: {best:.3f}")
    return verdicts


async def _floors(using: Engine) -> list[Verdict]:
    """A long beginning, read for the first time and again."""
    title(f"A system message of {FLOOR_TOKENS:,} tokens, cold and warm: ms to the first word")
    cold, warm = Timed(), Timed()
    for number in range(FLOORS):
        text = await _floor(using, number)
        for timed, query in ((cold, "What is bound for the south?"), (warm, "Which gate is open?")):
            sent = Sent(f"floor-{number}", 0, _asking(text, query), retrieved=False, blocks={})
            found = await using.read([sent])
            timed.first_ms += found.first_ms
            timed.counted.add(found.counted.tokens[0], found.counted.cached[0])
    factor = statistics.median(cold.first_ms) / statistics.median(warm.first_ms)
    for how, timed in (("cold", cold), ("warm", warm)):
        print(f"  {how}: {sorted(timed.first_ms)} ms; of {timed.counted.tokens} tokens kept {timed.counted.cached}")
    return [Verdict("a warm first word is faster by a factor of", factor, LEAST_FASTER, "", at_least=True)]


def _asking(system: str, query: str) -> list[ChatMessage]:
    return [{"role": "system", "content": system}, {"role": "user", "content": query}]


async def _floor(using: Engine, number: int) -> str:
    lines: list[str] = [f"Harbour book {number} of the year."]
    while True:
        lines += [
            f"Ship {number}-{len(lines) + n} lies at gate {(len(lines) + n) % 7}, bound south." for n in range(20)
        ]
        if len(await using.tokens(_asking("\n".join(lines), ""))) >= FLOOR_TOKENS:
            return "\n".join(lines)


async def main(asked: argparse.Namespace) -> int:
    """0 where everything asked for was reached."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    verdicts: list[Verdict] = []
    only = asked.only or SECTIONS
    with tempfile.TemporaryDirectory(prefix="ar-bench-") as name:
        folder = Path(name)
        async with engine(folder / "model") as using:
            if "simulation" in only or "engine" in only:
                scene = (
                    read(asked.folder, asked.chats, asked.turns) if asked.folder else made_up(asked.chats, asked.turns)
                )
                made = await _played(scene, asked, using)
                _show_blocks(made.sent)
                verdicts += _simulate(made.read)
            if "floor" in only:
                verdicts += await _floors(using)
            if "quality" in only:
                await layout_quality.measure(using, load_tokens(), asked.questions)
        if "engine" in only:
            verdicts += await _read_all(folder, made, Kept(asked.keep))
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    print(f"\n  load of the machine at the end: {load}; {os.cpu_count()} cores")
    title("Against what was to be reached")
    print(*verdicts, sep="\n")
    return 0 if all(one.factor <= 1 for one in verdicts) else 1


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main(arguments())))
