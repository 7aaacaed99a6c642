"""What the bot takes of a machine, and how that grows. ``python -m bench.scale [--only memory cost …] [--repeats N]``

The bot is ``serve`` with embedded stores and the sample documents indexed. People talk to it over HTTP, and the model
server answers at once. Every process of the bot counts.

``memory``: after 300 turns in 50 conversations, the memory of each process with its share of shared pages (PSS).
``cost``: processor time a turn, (a) of 50 conversations at once, and (b) of one conversation with a turn every 1.5 s,
what the bot does in the background meanwhile included. Background work that the turns leave is waited for.
``growth``: the overhead and the processor time of a turn as a conversation grows from 100 messages to 100,000, and as
there are more conversations. Histories are written by the real modules, many entries at a time: the transcript and the
index of earlier turns. A conversation of few messages has a short prompt, so people first talk until the tail is full
everywhere; how long the prompts were is printed, too.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.actors import MESSAGES, model_server
from bench.figures import on_this_machine, row, spread, title
from bench.processes import NOWHERE, Bot, Child, bot, child, own_redis, settings
from bench.turns import Overhead, overheads
from connectors.message import PARTITIONS, ConversationKey
from grounding.retrieval import TURN_AVERAGE_TERMS, IndexEntry, Kind, Passage, WordLlamaEmbedder, encode_document
from grounding.retrieval.qdrant_edge import EmbeddedIndex
from grounding.transcript import EntryRole, Transcript, TranscriptEntry
from runtime import stores

CONVERSATIONS, TURNS_EACH = 50, 6
ALONE_TURNS, ALONE_SECONDS = 40, 1.5
WARM_UP = 5
MESSAGES_BEFORE = (100, 1_000, 10_000, 100_000)
CONVERSATIONS_BEFORE = (10, 100, 1_000, 10_000)
MESSAGES_EACH = 10
"""Of each of many conversations."""
PLACES = 10
"""Conversations that go on, among however many there are: the first turn in a while costs more than the next, so that
there are as many first ones each time."""
GROWTH_TURNS = 40
KINDS = ("none", "tail")
TAIL_FILLS = 12
"""Turns after which a tail of the standard settings shows as much as it ever does."""
AT_ONCE = 500
"""Turns that are written together."""
SUBJECTS = ("harbour", "lighthouse", "refund", "invoice", "roof", "garden", "printer", "meeting", "contract", "train")


@dataclass
class Scene:
    """A bot, its model server and people, each a process."""

    bot: Bot
    model: Child
    people: Child

    async def talk(self, texts: Sequence[str], turns: int, places: Sequence[str], **more: Any) -> dict[str, Any]:
        """What came of it. Fails if a message was not answered."""
        came = await self.people.ask("talk", url=self.bot.url, texts=texts, turns=turns, places=places, **more)
        assert len(came["spans"]) == came["asked"], came["wrong"]
        found: dict[str, Any] = came
        return found


@asynccontextmanager
async def scene(folder: Path, *, is_first: bool = True, **more: str) -> AsyncIterator[Scene]:
    """A bot that has answered and has indexed its documents, and does nothing now. *is_first*: no bot of this *folder*
    has indexed them before."""
    async with (
        model_server() as (model, base_url),
        child("bench.actors", "people") as people,
        bot(settings(base_url, folder, **more)) as running,
    ):
        await running.ready()
        if is_first:
            await running.printed("index.updated")
        made = Scene(running, model, people)
        for text in MESSAGES.values():
            await made.talk([text], WARM_UP, ["warm-up"])
        await running.quiet()
        yield made


# Memory and cost


async def measure_memory(folder: Path, _: int) -> None:
    title(f"Memory after {CONVERSATIONS * TURNS_EACH} turns in {CONVERSATIONS} conversations, MB (PSS)")
    async with scene(folder) as made:
        await made.talk([*MESSAGES.values()], TURNS_EACH, places("crowd"))
        await made.bot.quiet()
        found = made.bot.memory_mb()
    for name, size in found.items():
        print(f"  {name:<46}{size:8.0f}")
    print(f"  {'all processes':<46}{sum(found.values()):8.0f}", flush=True)


async def measure_cost(folder: Path, repeats: int) -> None:
    title("Processor time of all processes, ms a turn: median over repeats [lowest … highest]")
    crowd: list[dict[str, float]] = []
    alone: list[dict[str, float]] = []
    async with scene(folder) as made:
        for repeat in range(repeats):
            crowd.append(await _cost(made, TURNS_EACH, places(f"crowd-{repeat}"), 0.0))
            alone.append(await _cost(made, ALONE_TURNS, [f"alone-{repeat}"], ALONE_SECONDS))
        before, started = sum(made.bot.cpu_ms().values()), time.monotonic()
        await asyncio.sleep(ALONE_TURNS * ALONE_SECONDS / 2)
        idle = (sum(made.bot.cpu_ms().values()) - before) / (time.monotonic() - started)
    _show_cost(f"{CONVERSATIONS} conversations at once, {TURNS_EACH} turns each", crowd)
    _show_cost(f"one conversation, {ALONE_TURNS} turns, one every {ALONE_SECONDS} s", alone)
    print(f"\n  with nobody talking: {idle:.1f} ms a second", flush=True)


def places(name: str) -> list[str]:
    return [f"{name}-{number}" for number in range(CONVERSATIONS)]


async def _cost(made: Scene, turns: int, where: Sequence[str], every_seconds: float) -> dict[str, float]:
    """Processor time a turn by process, until the bot is quiet again."""
    before = made.bot.cpu_ms()
    await made.talk([*MESSAGES.values()], turns, where, every_seconds=every_seconds)
    await made.bot.quiet()
    return {name: (spent - before.get(name, 0.0)) / turns / len(where) for name, spent in made.bot.cpu_ms().items()}


def _show_cost(what: str, found: Sequence[Mapping[str, float]]) -> None:
    print(f"\n {what}")
    for name in found[0]:
        row(name, [one.get(name, 0.0) for one in found], "ms")
    row("all processes", [sum(one.values()) for one in found], "ms")


# Growth of histories


def key_of(place: str) -> ConversationKey:
    return ConversationKey("sample", "http", place)


def turn(number: int) -> tuple[str, list[TranscriptEntry]]:
    """The id and the entries of the n-th turn of a history; no two say the same."""
    turn_id = f"t-history-{number:08}"
    subject, other = SUBJECTS[number % 10], SUBJECTS[number // 10 % 10]
    at = "2026-01-01T00:00:00.000Z"
    asked = f"What about the {subject} and the {other}, case {number}?"
    answered = f"Case {number}: the {subject} waits for the {other}, which comes in week {number % 52}."
    return turn_id, [
        TranscriptEntry(EntryRole.INBOUND, asked, turn_id, at, "Ann", "http:ann", f"m-{number}"),
        TranscriptEntry(EntryRole.OUTBOUND, answered, turn_id, at, "agent-runtime"),
    ]


class Filling:
    """Writes histories into the stores of a bot that does not run."""

    def __init__(self, redis_url: str, data_dir: Path) -> None:
        self._redis = stores.connect(redis_url, 60.0)
        self._data_dir = data_dir

    async def write(self, histories: Iterable[tuple[str, int]]) -> None:
        """So many messages in each place, said and remembered; none waits to be copied to Markdown."""
        histories = list(histories)
        await self._say(histories)
        await self._remember(histories)

    async def _say(self, histories: Iterable[tuple[str, int]]) -> None:
        waiting = [(key_of(place), number) for place, messages in histories for number in range(messages // 2)]
        for start in range(0, len(waiting), AT_ONCE):
            async with self._redis.pipeline(transaction=False) as pipe:
                transcript = Transcript(pipe)
                for key, number in waiting[start : start + AT_ONCE]:
                    await transcript.append(key, *turn(number))
                await pipe.execute()
        transcript = Transcript(self._redis)
        for partition in range(PARTITIONS):
            while done := await transcript.to_copy([partition], AT_ONCE):
                await transcript.copied({partition: [one.export_id for one in done[partition]]})

    async def _remember(self, histories: Iterable[tuple[str, int]]) -> None:
        embedder = WordLlamaEmbedder()
        await embedder.embed_query("warm")
        index = EmbeddedIndex(self._data_dir / "qdrant", embedder.name, embedder.dimensions, timeout_seconds=60.0)
        try:
            await index.ensure()
            for place, messages in histories:
                for start in range(0, messages // 2, AT_ONCE):
                    numbers = range(start, min(start + AT_ONCE, messages // 2))
                    await index.upsert(key_of(place).scope, await _entries(embedder, numbers))
        finally:
            await index.close()

    async def close(self) -> None:
        await self._redis.aclose()


async def _entries(embedder: WordLlamaEmbedder, numbers: Sequence[int]) -> list[IndexEntry]:
    passages = []
    for number in numbers:
        turn_id, entries = turn(number)
        text = "\n".join(entry.text for entry in entries)
        passages.append(Passage(f"{turn_id}:0", Kind.TURN, turn_id, text, said_at=entries[0].at))
    vectors = await embedder.embed_documents([passage.text for passage in passages])
    return [
        IndexEntry(passage, vector, encode_document(passage.text, TURN_AVERAGE_TERMS))
        for passage, vector in zip(passages, vectors, strict=True)
    ]


async def measure_growth(folder: Path, repeats: int) -> None:
    title("A turn as history grows: medians of overhead and processor time, and the ratio to the smallest")
    async with own_redis(folder / "redis") as redis_url:
        # A bot notes first that the index, over nothing, has all that was said. Else it would put the whole history
        # into the index in the background, while turns are measured.
        async with bot(settings(NOWHERE, folder, REDIS_URL=redis_url)) as running:
            await running.printed("index.remembered")
            await running.printed("index.updated")
        filling = Filling(redis_url, folder / "data")
        for kind in KINDS:
            groups = {f"history-{count}-{kind}": count for count in MESSAGES_BEFORE}
            await filling.write(groups.items())
            found = await _rounds(folder, redis_url, kind, {place: [place] for place in groups}, repeats)
            _show_growth(f"{kind}, by messages of the conversation", MESSAGES_BEFORE, [found[name] for name in groups])
        known, grown = 0, []
        for count in CONVERSATIONS_BEFORE:
            await filling.write((f"place-{number}", MESSAGES_EACH) for number in range(known, count))
            known = count
            spread = [f"place-{number * count // PLACES}" for number in range(PLACES)]
            grown.append((await _rounds(folder, redis_url, "none", {"all": spread}, repeats))["all"])
        _show_growth("none, by conversations", CONVERSATIONS_BEFORE, grown)
        await filling.close()


@dataclass(frozen=True)
class Round:
    """Of the turns of one round: the median overhead and the processor time of a turn, in milliseconds, and the last
    prompt."""

    wall: float
    cpu: float
    prompt_characters: int


async def _rounds(
    folder: Path, redis_url: str, kind: str, groups: Mapping[str, Sequence[str]], repeats: int
) -> dict[str, list[Round]]:
    """Of each group of places each repeat, once their tails are full. Every other time the groups come in the other
    order, so that none has the machine's best minute."""
    found: dict[str, list[Round]] = {group: [] for group in groups}
    async with scene(folder, is_first=False, REDIS_URL=redis_url) as made:
        for where in groups.values():
            await made.talk([MESSAGES[kind]], TAIL_FILLS // len(where) + 1, where)
        for repeat in range(repeats):
            for group in [*groups][:: 1 if repeat % 2 == 0 else -1]:
                found[group].append(await _round(made, kind, groups[group]))
    return found


async def _round(made: Scene, kind: str, where: Sequence[str]) -> Round:
    turns = max(1, GROWTH_TURNS // len(where))
    await made.bot.quiet()
    before = sum(made.bot.cpu_ms().values())
    walls: list[Overhead] = []
    for place in where:
        await made.model.ask("times")
        came = await made.talk([MESSAGES[kind]], turns, [place])
        walls += overheads(came["spans"], await made.model.ask("times"))
    await made.bot.quiet()
    cpu = (sum(made.bot.cpu_ms().values()) - before) / (turns * len(where))
    messages = (await made.model.ask("last"))["messages"]
    characters = sum(len(str(one["content"])) for one in messages)
    return Round(statistics.median(one.whole for one in walls), cpu, characters)


def _show_growth(what: str, sizes: Sequence[int], rounds: Sequence[Sequence[Round]]) -> None:
    print(f"\n {what}")
    first_wall, first_cpu = (statistics.median(getattr(one, of) for one in rounds[0]) for of in ("wall", "cpu"))
    for size, figures in zip(sizes, rounds, strict=True):
        wall, cpu = [one.wall for one in figures], [one.cpu for one in figures]
        print(
            f"  {size:>9,}: overhead{spread(wall)} ms, × {statistics.median(wall) / first_wall:.2f};"
            f"  processor{spread(cpu)} ms, × {statistics.median(cpu) / first_cpu:.2f};"
            f"  prompt {figures[-1].prompt_characters:,} characters",
            flush=True,
        )


SECTIONS: dict[str, Callable[[Path, int], Awaitable[None]]] = {
    "memory": measure_memory,
    "cost": measure_cost,
    "growth": measure_growth,
}


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.scale", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ", ".join(SECTIONS)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, metavar="SECTION", help=f"of {names} (all)")
    parser.add_argument("--repeats", type=int, default=3, help="of each figure (%(default)s)")
    return parser.parse_args(given)


async def main(asked: argparse.Namespace) -> None:
    with on_this_machine(), tempfile.TemporaryDirectory(prefix="ar-bench-") as name:
        for section in asked.only or SECTIONS:
            await SECTIONS[section](Path(name) / section, asked.repeats)


if __name__ == "__main__":
    asyncio.run(main(arguments()))
