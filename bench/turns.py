"""The overhead of a turn, and turns a second: ``python -m bench.turns [--only telegram rate] [--turns N] …``

Every process is a real one: the bot as it is served, the people, the platform, and a model server that answers at once.

``telegram``: from a message being queued at the emulated Telegram to its whole reply being accepted there, without the
time of the model server. Several people write in turn, so that each chat stays below the one message a second that
Telegram asks for, and nobody is ever held back. After each of our messages the same one is said to each bare bot
(`bench.bare`), so that all figures are of the same machine in the same minute: the ratio holds where the machine is
another or busy.

``rate``: turns a second of 50 conversations at once over HTTP, each waiting for its answer. A gateway and workers share
one Redis (``appendfsync always``). They have no Qdrant server: what a turn leaves to be recalled later waits in Redis.
One process with embedded stores does that work, too.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from bisect import bisect_left
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.actors import CHUNK_CHARACTERS, MESSAGES, Spans, model_server, platforms
from bench.bare import bare_bots
from bench.figures import on_this_machine, row, share, title
from bench.processes import NOWHERE, Child, bot, child, own_redis, settings

CHAT_SECONDS = 1.1
"""Between two messages of one chat."""
CHUNKS = 20
"""Of a reply on Telegram."""
WARM_UP = 5
WORKERS = (0, 1, 4)
"""0 is one process that is gateway and worker."""
AT_ONCE = 50
RATE_TURNS = 5
"""So many times the turns of the other section."""


@dataclass(frozen=True)
class Overhead:
    """Of one turn, in milliseconds: until the model is asked, and after its answer."""

    before: float
    after: float

    @property
    def whole(self) -> float:
        return self.before + self.after


def overheads(spans: Spans, requests: Spans) -> list[Overhead]:
    """Of turns that followed each other; of each its first request counts, and one without a request is left out."""
    ordered = sorted(requests)
    arrivals = [arrived for arrived, _ in ordered]
    found = []
    for said, heard in spans:
        place = bisect_left(arrivals, said)
        if place < len(ordered) and ordered[place][1] <= heard:
            arrived, answered = ordered[place]
            found.append(Overhead((arrived - said) * 1000, (heard - answered) * 1000))
    return found


# Through Telegram


async def measure_telegram(folder: Path, turns: int, repeats: int) -> None:
    """Each repeat is a chat of its own."""
    title("Overhead of a turn through Telegram, ms: median over chats [lowest … highest]")
    async with (
        model_server() as (model, base_url),
        platforms("telegram") as (there, addresses),
        bare_bots(base_url) as bare,
        bot(settings(base_url, folder, **addresses)) as running,
    ):
        await model.ask("chunks", count=CHUNKS)
        await running.ready()
        await running.connected("telegram")
        await running.printed("index.updated")
        talkers = {"ours": there, **{kind: one.there for kind, one in bare.items()}}
        await _talk(talkers, WARM_UP, 0, repeats)
        await model.ask("times")
        spans = await _talk(talkers, turns, repeats, repeats)
        requests = await model.ask("times")
        about = {kind: one.about for kind, one in bare.items()}
    found = {kind: [overheads(one, requests)[1:] for one in chats] for kind, chats in spans.items()}
    print(f"  {repeats} chats of {turns} turns, of which the first is left out; {CHUNKS} chunks")
    p50, p95 = _show(found["ours"])
    for kind, said in about.items():
        print(f"\n a bare bot of {said}, in turn with it")
        bare50, bare95 = _show(found[kind])
        print(f"  ours against it: p50 × {p50 / bare50:.2f}, p95 × {p95 / bare95:.2f}")


async def _talk(talkers: Mapping[str, Child], turns: int, first: int, people: int) -> dict[str, list[Spans]]:
    """By talker, what came of each chat."""
    found: dict[str, list[Spans]] = {kind: [[] for _ in range(people)] for kind in talkers}
    for number in range(turns):
        for person in range(people):
            for kind, there in talkers.items():
                [spans] = await there.ask(
                    "talk", text=MESSAGES["none"].format(n=number), characters=CHUNKS * CHUNK_CHARACTERS,
                    turns=1, people=1, first=first + person,
                )  # fmt: skip
                found[kind][person] += spans
                await asyncio.sleep(CHAT_SECONDS / people / len(talkers))
    return found


def _show(chats: Sequence[Sequence[Overhead]]) -> tuple[float, float]:
    """Print what *chats* took; the p50 and the p95 of the whole."""
    p50, p95 = ([share([one.whole for one in turns], part) for turns in chats] for part in (0.5, 0.95))
    row("update queued → request sent", [statistics.median(t.before for t in turns) for turns in chats])
    row("answer → whole reply accepted", [statistics.median(t.after for t in turns) for turns in chats])
    row("overhead, p50", p50)
    row("overhead, p95", p95)
    return statistics.median(p50), statistics.median(p95)


# Turns a second


@dataclass(frozen=True)
class Kind:
    """How answers are asked for, and in how many pieces the model gives them."""

    name: str
    stream: bool
    chunks: int


KINDS = (Kind("plain", False, 1), Kind("stream of 40 chunks", True, 40))


@dataclass
class _Rates:
    """Of each repeat."""

    rate: list[float] = field(default_factory=list)
    p50: list[float] = field(default_factory=list)
    p95: list[float] = field(default_factory=list)
    unanswered: int = 0


@asynccontextmanager
async def _crew(folder: Path, base_url: str, workers: int) -> AsyncIterator[str]:
    """A gateway and so many *workers*, or one process that is both; the URL to talk to."""
    async with AsyncExitStack() as stack:
        if not workers:
            alone = await stack.enter_async_context(bot(settings(base_url, folder)))
            await alone.ready()
            yield alone.url
            return
        redis_url = await stack.enter_async_context(own_redis(folder / "redis"))
        given = settings(base_url, folder, REDIS_URL=redis_url, QDRANT_URL=NOWHERE)
        gateway = await stack.enter_async_context(bot(given, "gateway"))
        for one in [gateway, *[await stack.enter_async_context(bot(given, "worker")) for _ in range(workers)]]:
            await one.ready()
        yield gateway.url


async def measure_rate(folder: Path, turns: int, repeats: int, workers: Sequence[int] = WORKERS) -> None:
    """Rates by worker count."""
    title(f"Turns a second, {AT_ONCE} conversations at once: median over repeats [lowest … highest]")
    for count in workers:
        async with (
            model_server() as (model, base_url),
            child("bench.actors", "people") as people,
            _crew(folder / f"workers-{count}", base_url, count) as url,
        ):
            for kind in KINDS:
                await model.ask("chunks", count=kind.chunks)
                rates = await _rates(url, people, kind, turns * RATE_TURNS, repeats)
                print(f"\n {f'gateway and {count} workers' if count else 'one process'}, {kind.name}")
                row("turns a second", rates.rate)
                row("until the answer, p50", rates.p50, "s")
                row("until the answer, p95", rates.p95, "s")
                print(f"  not answered: {rates.unanswered}")


async def _rates(url: str, people: Child, kind: Kind, turns: int, repeats: int) -> _Rates:
    found = _Rates()
    for repeat in range(-1, repeats):  # the first time warms up
        places = [f"{kind.name} {repeat} {number}" for number in range(AT_ONCE)]
        each = max(1, turns // AT_ONCE)
        came: dict[str, Any] = await people.ask(
            "talk", url=url, texts=[MESSAGES["none"]], turns=each, places=places, stream=kind.stream
        )
        if came["wrong"]:
            print("  wrong:", *came["wrong"], sep="\n    ")
        found.unanswered += came["asked"] - len(came["spans"])
        if repeat >= 0:
            took = [ended - started for started, ended in came["spans"]]
            found.rate.append(len(took) / came["seconds"])
            found.p50.append(statistics.median(took))
            found.p95.append(share(took, 0.95))
    return found


SECTIONS: dict[str, Callable[[Path, int, int], Awaitable[None]]] = {"telegram": measure_telegram, "rate": measure_rate}


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.turns", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ", ".join(SECTIONS)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, metavar="SECTION", help=f"of {names} (all)")
    parser.add_argument("--turns", type=int, default=100, help="of each chat; the rate takes more (%(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="of each figure (%(default)s)")
    return parser.parse_args(given)


async def main(asked: argparse.Namespace) -> None:
    with on_this_machine(), tempfile.TemporaryDirectory(prefix="ar-bench-") as name:
        for section in asked.only or SECTIONS:
            await SECTIONS[section](Path(name) / section, asked.turns, asked.repeats)


if __name__ == "__main__":
    asyncio.run(main(arguments()))
