"""The overhead of turns through Telegram: from the update being queued to the whole reply being accepted.

The emulated Telegram is a process of its own. Several people write in turn, so that each chat stays below the one
message a second that Telegram asks for; nobody is ever held back by that. Beside our reply Telegram gets nothing.
Between two of our messages one is said to each bare bot (`bench.bare`) and one asked of LiteLLM by itself, so that all
figures are of the same machine in the same minute: the ratio to a bare bot holds where the machine is another or busy.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Mapping
from pathlib import Path

from bench.bare import bare_bots
from bench.bots import bot, settings
from bench.children import Child, child
from bench.figures import Spread, Verdict, row, share, title
from bench.overhead import MESSAGES, Overhead, overheads
from bench.platforms import platforms
from bench.provider import CHUNK_CHARACTERS, provider

CHAT_SECONDS = 1.1
"""Between two messages of one chat."""
CHUNKS = 20
"""Of a reply: what the peers were measured with had 20 tokens."""
WARM_UP = 5
ENDS = 10


Spans = list[list[tuple[float, float]]]
"""Of each chat: when each message was queued, and when its whole reply was accepted."""


async def measure(folder: Path, turns: int, repeats: int) -> list[Verdict]:
    """Each repeat is a chat of its own."""
    title("a. Overhead of a turn through Telegram, ms: median over chats [lowest … highest]")
    async with (
        provider() as (model, base_url),
        platforms("telegram") as (there, addresses),
        bare_bots(base_url) as bare,
        child("bench.alone") as alone,
    ):
        await model.ask("chunks", count=CHUNKS)
        await alone.ask("start", base_url=base_url)
        async with bot(settings(base_url, folder / "data", **addresses)) as running:
            await running.ready()
            await running.connected("telegram")
            await running.told("index.updated")
            talkers = {"ours": there, **{kind: one.there for kind, one in bare.items()}}
            await _talk(talkers, alone, model, WARM_UP, 0, repeats)
            await model.ask("times")
            spans = await _talk(talkers, alone, model, turns, repeats, repeats)
            requests = await model.ask("times")
    found = {kind: [overheads(one, requests) for one in chats] for kind, chats in spans.items()}
    return _report(found, {kind: one.about for kind, one in bare.items()})


async def _talk(
    talkers: Mapping[str, Child], alone: Child, model: Child, turns: int, first: int, people: int
) -> dict[str, Spans]:
    """What came of it by talker, and of ``alone``."""
    found: dict[str, Spans] = {kind: [[] for _ in range(people)] for kind in (*talkers, "alone")}
    messages = [{"role": "user", "content": MESSAGES["none"]}]
    pause = CHAT_SECONDS / people / (len(talkers) + 1)
    for number in range(turns):
        for person in range(people):
            for kind, there in talkers.items():
                spans = await there.ask(
                    "talk", text=MESSAGES["none"].format(n=number), characters=CHUNKS * CHUNK_CHARACTERS,
                    turns=1, people=1, first=first + person, pause_seconds=pause,
                )  # fmt: skip
                found[kind][person] += [tuple(span) for span in spans[0]]
                if kind == "ours":
                    messages = (await model.ask("last"))["messages"]
            spans = await alone.ask("spans", messages=messages, stream=True, calls=1)
            found["alone"][person] += [tuple(span) for span in spans]
            await asyncio.sleep(pause)
    return found


def _report(found: Mapping[str, list[list[Overhead]]], about: Mapping[str, str]) -> list[Verdict]:
    chats = found["ours"]
    print(f"  {len(chats)} chats of {len(chats[0])} turns, of which the first is left out; {CHUNKS} chunks")
    p50, p95 = _show(chats)
    begin = Spread.of([statistics.median(one.whole for one in turns[:ENDS]) for turns in _later(chats)])
    end = Spread.of([statistics.median(one.whole for one in turns[-ENDS:]) for turns in _later(chats)])
    row(f"first {ENDS} turns", begin)
    row(f"last {ENDS} turns", end)
    for kind, said in about.items():
        print(f"\n a bare bot of {said}, in turn with it")
        bare50, bare95 = _show(found[kind])
        print(f"  ours against it: p50 × {p50 / bare50:.2f}, p95 × {p95 / bare95:.2f}")
    print("\n LiteLLM alone, streamed, with our last prompt, in turn with it")
    _show(found["alone"], ("call → request sent", "answer → whole stream read"))
    return [
        Verdict("overhead through Telegram, p50", p50, 22.0, "ms"),
        Verdict("overhead through Telegram, p95", p95, 35.0, "ms"),
        Verdict("Telegram, last turns against first", end.median / begin.median, 1.1, "×"),
    ]


def _later(chats: list[list[Overhead]]) -> list[list[Overhead]]:
    return [turns[1:] for turns in chats]


def _show(
    chats: list[list[Overhead]],
    ends: tuple[str, str] = ("update queued → request sent", "answer → whole reply accepted"),
) -> tuple[float, float]:
    """Print what *chats* took; the p50 and the p95 of the whole."""
    later = _later(chats)
    p50, p95 = (Spread.of([share([one.whole for one in turns], part) for turns in later]) for part in (0.5, 0.95))
    row(ends[0], Spread.of([statistics.median(t.before for t in turns) for turns in later]))
    row(ends[1], Spread.of([statistics.median(t.after for t in turns) for turns in later]))
    row("overhead, p50", p50)
    row("overhead, p95", p95)
    return p50.median, p95.median
