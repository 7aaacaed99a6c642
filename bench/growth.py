"""Whether a turn stays as fast as a conversation grows, and as there are more conversations.

What there is before is written by the real modules, many entries at a time: the transcript and, for what is recalled
of earlier turns, the index. (Manifests and usage, which a turn only adds to by its own key, are not filled.) Nothing is
measured before what the index does in the background is over.

A conversation of ten messages has a short prompt, for its tail shows only these. So each place is measured twice: as it
is, and when people have talked in it until the tail is full everywhere. The second says what the history itself costs;
beside both stands how long the prompts were.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.bots import NOWHERE, bot, settings
from bench.children import child
from bench.cost import QUIET_SECONDS
from bench.figures import Spread, Verdict, title
from bench.overhead import MESSAGES, Scene
from bench.provider import provider
from connectors.message import PARTITIONS, ConversationKey
from grounding.retrieval import TURN_AVERAGE_TERMS, Kind, Passage, WordLlamaEmbedder, encode_document
from grounding.retrieval import IndexEntry as Indexed
from grounding.retrieval.qdrant_edge import EmbeddedIndex
from grounding.transcript import EntryRole, Transcript, TranscriptEntry
from runtime import stores
from tests.emulators.own_redis import OwnRedis

MESSAGES_BEFORE = (10, 100, 1_000, 10_000, 100_000)
CONVERSATIONS_BEFORE = (10, 100, 1_000, 10_000)
EACH = 10
"""Messages of each of many conversations."""
PLACES = 10
"""Conversations that go on, among however many there are: a conversation's first turn in a while is dearer than its
next (its context document is due, nothing of it is in memory), so that there are as many first ones each time."""
AT_ONCE = 500
"""Turns that are written together."""
KINDS = ("none", "tail")
TAIL_FILLS = 12
"""Turns after which a tail of the standard settings shows as much as it ever does."""
_SUBJECTS = ("harbour", "lighthouse", "refund", "invoice", "roof", "garden", "printer", "meeting", "contract", "train")


def key_of(place: str) -> ConversationKey:
    return ConversationKey("sample", "http", place)


def turn(number: int) -> tuple[str, list[TranscriptEntry]]:
    """The id and the entries of the n-th turn of a history; no two say the same."""
    turn_id = f"t-history-{number:08}"
    subject, other = _SUBJECTS[number % 10], _SUBJECTS[number // 10 % 10]
    at = "2026-01-01T00:00:00.000Z"
    asked = f"What about the {subject} and the {other}, case {number}?"
    told = f"Case {number}: the {subject} waits for the {other}, which comes in week {number % 52}."
    return turn_id, [
        TranscriptEntry(EntryRole.INBOUND, asked, turn_id, at, "Ann", "http:ann", f"m-{number}"),
        TranscriptEntry(EntryRole.OUTBOUND, told, turn_id, at, "agent-runtime"),
    ]


class Filling:
    """Writes histories into the stores of a bot that does not run."""

    def __init__(self, redis_url: str, data_dir: Path) -> None:
        self._redis = stores.connect(redis_url, 60.0)
        self._data_dir = data_dir

    async def histories(self, places: Iterable[tuple[str, int]]) -> None:
        """So many messages in each place; what would be copied to Markdown is taken as copied."""
        waiting: list[tuple[ConversationKey, int]] = []
        for place, messages in places:
            waiting += [(key_of(place), number) for number in range(messages // 2)]
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

    async def recall(self, places: Iterable[tuple[str, int]]) -> None:
        """The turns of these histories, findable."""
        embedder = WordLlamaEmbedder()
        await embedder.embed_query("warm")
        index = EmbeddedIndex(self._data_dir / "qdrant", embedder.name, embedder.dimensions, timeout_seconds=60.0)
        try:
            await index.ensure()
            for place, messages in places:
                for start in range(0, messages // 2, AT_ONCE):
                    numbers = range(start, min(start + AT_ONCE, messages // 2))
                    await index.upsert(key_of(place).scope, await _entries(embedder, numbers))
        finally:
            await index.close()

    async def close(self) -> None:
        await self._redis.aclose()


async def _entries(embedder: WordLlamaEmbedder, numbers: Sequence[int]) -> list[Indexed]:
    passages = []
    for number in numbers:
        turn_id, entries = turn(number)
        text = "\n".join(entry.text for entry in entries)
        passages.append(Passage(f"{turn_id}:0", Kind.TURN, turn_id, text, said_at=entries[0].at))
    vectors = await embedder.embed_documents([passage.text for passage in passages])
    return [
        Indexed(passage, vector, encode_document(passage.text, TURN_AVERAGE_TERMS))
        for passage, vector in zip(passages, vectors, strict=True)
    ]


async def measure(
    folder: Path,
    turns: int,
    repeats: int,
    messages: Sequence[int] = MESSAGES_BEFORE,
    conversations: Sequence[int] = CONVERSATIONS_BEFORE,
) -> list[Verdict]:
    """Both growths, each figure as a ratio to that of the smallest."""
    title("c. As history grows: medians of overhead and CPU, and the ratio to the smallest")
    verdicts = []
    histories = {f"history-{count}": count for count in messages}
    async with own_redis(folder / "redis") as redis_url:
        await _know_the_index(folder, redis_url)
        filling = Filling(redis_url, folder / "data")
        print("  messages of one conversation")
        for kind in KINDS:
            places = {f"{place}-{kind}": [f"{place}-{kind}"] for place in histories}
            given = [(f"{place}-{kind}", count) for place, count in histories.items()]
            await filling.histories(given)
            await filling.recall(given)
            first, full = await _rounds(folder, redis_url, kind, places, turns, repeats, fills=True)
            _show(f"{kind}, first turns", messages, [first[place] for place in places])
            verdicts += _show(f"{kind}, {messages[-1]:,} messages", messages, [full[place] for place in places])
        known = 0
        print("  conversations")
        grown: list[list[Round]] = []
        for count in conversations:
            more = [(f"place-{number}", EACH) for number in range(known, count)]
            await filling.histories(more)
            await filling.recall(more)
            known = count
            spread = [f"place-{number * count // PLACES}" for number in range(PLACES)]
            _, found = await _rounds(folder, redis_url, "none", {"all": spread}, max(1, turns // PLACES), repeats)
            grown.append(found["all"])
        verdicts += _show(f"none, {conversations[-1]:,} conversations", conversations, grown)
        await filling.close()
    return verdicts


async def _know_the_index(folder: Path, redis_url: str) -> None:
    """Have a bot note that the index, over nothing, has all that was said. The first one over a history would put all
    of it into an index that was never told of, in the background, while turns are measured."""
    async with bot(settings(NOWHERE, folder / "data", REDIS_URL=redis_url)) as running:
        await running.told("index.remembered")


@asynccontextmanager
async def own_redis(folder: Path) -> AsyncIterator[str]:
    """A server as long as the block lasts; its URL."""
    server = OwnRedis(folder)
    await asyncio.to_thread(server.start)
    try:
        yield server.url
    finally:
        server.kill()


@dataclass(frozen=True)
class Round:
    """Of the turns of one round: the median overhead and CPU of a turn, in milliseconds, and the last prompt."""

    wall: float
    cpu: float
    prompt_characters: int


async def _rounds(
    folder: Path,
    redis_url: str,
    kind: str,
    groups: dict[str, list[str]],
    turns: int,
    repeats: int,
    *,
    fills: bool = False,
) -> tuple[dict[str, list[Round]], dict[str, list[Round]]]:
    """Of each group of places the first turns in it, where the tail *fills* before more is measured, and each repeat.
    Every other time the groups come in the other order, so that none has the machine's best minute."""
    first: dict[str, list[Round]] = {group: [] for group in groups}
    found: dict[str, list[Round]] = {group: [] for group in groups}
    async with (
        provider() as (model, base_url),
        child("bench.people") as people,
        bot(settings(base_url, folder / "data", REDIS_URL=redis_url)) as running,
    ):
        await running.ready()  # What the first process indexes of the sample is done before the warm-up ends.
        made = Scene(running, model, people, folder / "none")
        await made.talk(MESSAGES[kind], turns, "warm-up")
        for group, places in groups.items() if fills else ():
            first[group].append(await _round(made, kind, places, TAIL_FILLS))
        for repeat in range(repeats):
            for group in [*groups][:: 1 if repeat % 2 == 0 else -1]:
                found[group].append(await _round(made, kind, groups[group], turns))
    return first, found


async def _round(made: Scene, kind: str, places: Sequence[str], turns: int) -> Round:
    await asyncio.sleep(QUIET_SECONDS / 2)
    before, walls = made.bot.cpu_ms, []
    for place in places:
        walls += [one.whole for one in (await made.talk(MESSAGES[kind], turns, place))[0]]
    await asyncio.sleep(QUIET_SECONDS / 2)
    cpu = (made.bot.cpu_ms - before) / (turns * len(places))
    messages = (await made.model.ask("last"))["messages"]
    return Round(statistics.median(walls), cpu, sum(len(str(one["content"])) for one in messages))


def _show(what: str, sizes: Sequence[int], rounds: Sequence[Sequence[Round]]) -> list[Verdict]:
    print(f"\n {what}")
    smallest: tuple[float, float] | None = None
    ratios = (1.0, 1.0)
    for size, figures in zip(sizes, rounds, strict=True):
        wall, cpu = Spread.of([one.wall for one in figures]), Spread.of([one.cpu for one in figures])
        smallest = smallest or (wall.median, cpu.median)
        ratios = wall.median / smallest[0], cpu.median / smallest[1]
        characters = statistics.median(one.prompt_characters for one in figures)
        print(
            f"  {size:>9,}: overhead{wall} ms, × {ratios[0]:.2f};  CPU{cpu} ms, × {ratios[1]:.2f};"
            f"  prompt {characters:,.0f} characters"
        )
    return [Verdict(f"{what}: overhead", ratios[0], 1.1, "×"), Verdict(f"{what}: CPU", ratios[1], 1.1, "×")]
