"""The overhead of turns through Telegram: from the update being queued to the whole reply being accepted.

The emulated Telegram is a process of its own. Several people write in turn, so that each chat stays below the one
message a second that Telegram asks for; nobody is ever held back by that. Beside our reply Telegram gets nothing.
"""

from __future__ import annotations

import statistics
from pathlib import Path

from bench.bots import bot, settings
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


async def measure(folder: Path, turns: int, repeats: int) -> list[Verdict]:
    """Each repeat is a chat of its own."""
    title("a. Overhead of a turn through Telegram, ms: median over chats [lowest … highest]")
    async with provider() as (model, base_url), platforms("telegram") as (there, addresses):
        await model.ask("chunks", count=CHUNKS)
        async with bot(settings(base_url, folder / "data", **addresses)) as running:
            await running.ready()
            await running.connected("telegram")
            await running.told("index.updated")

            async def talk(count: int, first: int) -> list[list[tuple[float, float]]]:
                said = {"text": MESSAGES["none"], "characters": CHUNKS * CHUNK_CHARACTERS, "people": repeats}
                pause = CHAT_SECONDS / repeats
                found: list[list[tuple[float, float]]] = await there.ask(
                    "talk", turns=count, pause_seconds=pause, first=first, **said
                )
                return found

            await talk(WARM_UP, 0)
            await model.ask("times")
            spans = await talk(turns, repeats)
            requests = await model.ask("times")
    return _report([overheads(one, requests) for one in spans])


def _report(chats: list[list[Overhead]]) -> list[Verdict]:
    whole = [[one.whole for one in turns[1:]] for turns in chats]
    p50, p95 = (Spread.of([share(one, part) for one in whole]) for part in (0.5, 0.95))
    begin = Spread.of([statistics.median(one[:ENDS]) for one in whole])
    end = Spread.of([statistics.median(one[-ENDS:]) for one in whole])
    print(f"  {len(chats)} chats of {len(chats[0])} turns, of which the first is left out; {CHUNKS} chunks")
    row("update queued → request sent", Spread.of([statistics.median(t.before for t in one) for one in chats]))
    row("answer → whole reply accepted", Spread.of([statistics.median(t.after for t in one) for one in chats]))
    row("overhead, p50", p50)
    row("overhead, p95", p95)
    row(f"first {ENDS} turns", begin)
    row(f"last {ENDS} turns", end)
    return [
        Verdict("overhead through Telegram, p50", p50.median, 22.0, "ms"),
        Verdict("overhead through Telegram, p95", p95.median, 35.0, "ms"),
        Verdict("Telegram, last turns against first", end.median / begin.median, 1.1, "×"),
    ]
