"""Records in prompts: ``python -m bench.records refresh FOLDER``, ``… rules FOLDER`` or ``… speed``.

FOLDER is a set of long conversations (`grounding.evaluation`). Nothing is asked of a model.

``refresh``: how often records are chosen anew. What one person says in each conversation is said to the bot in its
order; every fifth message becomes a record (of all types in turn) once two more were said, so that no message finds
itself. Printed is in which share of the turns the records were chosen anew, and why; which share of the records shown
bears on the message at hand, as the relevance floor has it; and in which share of the turns on which any record bears
the best of them was shown.

``rules``: how often a standing rule is in the prompt. The questions are those of the categories of `RULES`: their
evidence is the message that states the rule. Each conversation is one person's direct messages. Patterns look it
through for records, in windows of as many messages of that person as ``RECORDS_EXTRACTION_TURNS`` says. Then each
question is asked, and counted is how often a record of its evidence is in the prompt, and how often 60 % of the words
of its evidence are.

``speed``: how long it takes to build a prompt in a workspace of 10,000 records, each in a conversation of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from bench.figures import share
from config.settings import Settings
from connectors.message import Author, ConversationKey, Fence, InboundMessage, Role, Scope
from grounding.evaluation import Conversation, ConversationMessage, ConversationQuestion, load_conversations
from grounding.evaluation.memory import stands_in
from grounding.memory.records import NewRecord, Provenance, Type, Window
from grounding.memory.records.extraction import found_in
from grounding.memory.selection import floor_for
from grounding.retrieval import term_set
from grounding.transcript import EntryRole, TranscriptEntry
from runtime.observability import EventStream, Redaction, events
from runtime.process import Runtime, open_runtime
from runtime.turns import Batch, BuiltPrompt, Envelope, Question, record_rows

ASSISTANT = "assistant"
MESSAGES = 130
EVERY, AFTER = 5, 2
TYPES = (Type.FACT, Type.FACT, Type.DECISION, Type.PROCEDURE, Type.EPISODE, Type.FACT)
RECORD_CHARACTERS = 600
FOUND = 50
CHOSEN_ANEW = ("frame", "topic", "acting", "changed")
RULES = ("instruction_following", "preference_following")
WORKSPACE = "bench"
KNOWN = 50
MANY = {
    Type.DECISION: 2000,
    Type.FACT: 5000,
    Type.EPISODE: 1500,
    Type.PROCEDURE: 200,
    Type.CENSOR: 100,
    Type.ITEM: 1200,
}
WRITERS = 24
QUESTIONS, WARM_UP = 100, 5
THINGS = ("harbour", "lighthouse", "refund", "invoice", "roof", "garden", "printer", "meeting", "contract", "train")


async def build(runtime: Runtime, message: InboundMessage, key: ConversationKey, turn_id: str) -> BuiltPrompt:
    """The prompt for *message*; with a *turn_id* the choice of records is kept for the next one."""
    batch = Batch(key, "", 1, (Envelope(message, Role.MEMBER, 0.0),), Fence("", ""))
    return await runtime.prompting.build(Question.of(batch), turn_id)


# How often records are chosen anew


class Watch:
    """Sums of what prompts show."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.whys: Counter[str] = Counter()
        self.sums: Counter[str] = Counter()

    async def see(self, scope: Scope, text: str, built: BuiltPrompt) -> None:
        """Add a prompt for *text*."""
        if (selection := built.context.selection) is None:
            return
        if selection.why not in ("nothing_kept", "cold"):
            self.whys[selection.why] += 1
        records = self._runtime.records
        floor = floor_for(self._runtime.knowledge.finding.answering_model(scope))
        count = await records.count(scope)
        found = await records.search(scope, text, FOUND, set(TYPES))
        relevances = {one.record.id: floor.relevance(text, one, count) for one in found}
        bears = {name: relevance for name, relevance in relevances.items() if relevance >= floor.minimum}
        shown = {one.id for one in built.context.records}
        self.sums["turns"] += 1
        self.sums["shown"] += len(shown)
        self.sums["tokens"] += sum(one.tokens for one in built.context.records)
        self.sums["shown that bear"] += len(shown & bears.keys())
        if bears:
            self.sums["turns on which any bears"] += 1
            self.sums["best shown"] += max(bears, key=lambda name: bears[name]) in shown

    def report(self) -> dict[str, float]:
        sums, turns = self.sums, max(1, sum(self.whys.values()))
        return {
            "turns": turns,
            "chosen anew": sum(self.whys[why] for why in CHOSEN_ANEW) / turns,
            **{f"  {why}": count / turns for why, count in self.whys.most_common()},
            "records shown": sums["shown"] / max(1, sums["turns"]),
            "tokens": sums["tokens"] / max(1, sums["turns"]),
            "bear on the message": sums["shown that bear"] / max(1, sums["shown"]),
            "best shown": sums["best shown"] / max(1, sums["turns on which any bears"]),
        }


def said_by_one(conversation: Conversation) -> list[ConversationMessage]:
    """What the person says who begins, but for the assistant."""
    who = next(one.speaker for one in conversation.said if one.speaker != ASSISTANT)
    return [one for one in conversation.said if one.speaker == who][:MESSAGES]


async def talk(runtime: Runtime, workspace: str, said: list[ConversationMessage], watch: Watch) -> None:
    """Say all of *said* in one conversation of *workspace*."""
    await runtime.workspaces.create(workspace)
    key, scope = ConversationKey(workspace, "http", "default"), Scope(workspace)
    for number, one in enumerate(said):
        if number >= AFTER and (number - AFTER) % EVERY == 0:
            former = said[number - AFTER]
            new = NewRecord(TYPES[number // EVERY % len(TYPES)], former.text[:RECORD_CHARACTERS])
            await runtime.records.add(scope, new, Provenance())
        message = InboundMessage(
            "http", key.external_id, f"m{number}", Author("1", "Ann"), one.text, workspace_id=workspace
        )
        await watch.see(scope, one.text, await build(runtime, message, key, f"t{number:06}"))


async def measure_refresh(runtime: Runtime, folder: Path, conversations: int | None) -> dict[str, float]:
    watch = Watch(runtime)
    for number, one in enumerate(load_conversations(folder)[: conversations or 3]):
        await talk(runtime, f"bench{number}", said_by_one(one), watch)
    return watch.report()


# Standing rules


def user_of(conversation: Conversation) -> str:
    return f"console:{conversation.name}"


def key_of(conversation: Conversation) -> ConversationKey:
    return ConversationKey(WORKSPACE, "console", conversation.name)


def windows(conversation: Conversation, turns: int) -> Iterator[Window]:
    """*conversation* in pieces of *turns* messages of the person, with what was answered."""
    piece: list[ConversationMessage] = []
    for said in conversation.said:
        if said.speaker != ASSISTANT and sum(one.speaker != ASSISTANT for one in piece) == turns:
            yield _window(conversation, piece)
            piece = []
        piece.append(said)
    if piece:
        yield _window(conversation, piece)


def _window(conversation: Conversation, piece: list[ConversationMessage]) -> Window:
    user = user_of(conversation)
    entries = tuple(_entry(said, user) for said in piece)
    return Window(key_of(conversation).context_id, entries, user, {})


def _entry(said: ConversationMessage, user: str) -> TranscriptEntry:
    if said.speaker == ASSISTANT:
        return TranscriptEntry(EntryRole.OUTBOUND, said.text, said.id, said.at.isoformat(), author=ASSISTANT)
    return TranscriptEntry(EntryRole.INBOUND, said.text, said.id, said.at.isoformat(), author="lena", user=user)


async def look_through(runtime: Runtime, conversation: Conversation, turns: int) -> int:
    """Keep the records found in *conversation*; how many."""
    key, types, added = key_of(conversation), set(TYPES), 0
    scope = Scope(WORKSPACE, key.context_id, user_of(conversation))
    for window in windows(conversation, turns):
        newest = await runtime.records.list(scope, types, limit=KNOWN)
        standing = [one for one in await runtime.records.standing(scope) if one.type in types]
        known = {record.id: record for record in [*newest, *standing]}
        for found in found_in(window, [*known.values()]):
            by = found.by.model_copy(update={"context_id": key.context_id})
            await runtime.records.add(scope, found.new, by, f"extract/{found.key}")
            added += 1
    return added


async def ask(
    runtime: Runtime, conversation: Conversation, asked: ConversationQuestion, number: int
) -> tuple[bool, bool]:
    """Whether a record of the rule stands in the prompt, and whether the rule's words do."""
    key = key_of(conversation)
    author = Author(conversation.name, "lena")
    message = InboundMessage(
        "console", key.external_id, f"m{number}", author, asked.text, workspace_id=WORKSPACE, direct=True
    )
    built = await build(runtime, message, key, "")
    scope = Scope(WORKSPACE, audience=user_of(conversation))
    shown = [await runtime.records.get(scope, str(row["id"])) for row in record_rows(built)]
    block = built.prompt.block("records")
    words = term_set(block.text if block else "")
    texts = {one.id: one.text for one in conversation.said}
    return (
        any(record.provenance.turn_id in asked.evidence for record in shown),
        any(stands_in(texts[name], words) for name in asked.evidence),
    )


async def measure_rules(runtime: Runtime, folder: Path, conversations: int | None) -> dict[str, float]:
    chosen = [one for one in load_conversations(folder) if any(asked.category in RULES for asked in one.asked)]
    await runtime.workspaces.create(WORKSPACE)
    turns = runtime.settings.records_extraction_turns
    report: dict[str, float] = {"records": 0}
    for one in chosen[:conversations]:
        report["records"] += await look_through(runtime, one, turns)
    for category in RULES:
        rows = [
            await ask(runtime, one, asked, number)
            for one in chosen[:conversations]
            for number, asked in enumerate(one.asked)
            if asked.category == category
        ]
        report[f"{category}: questions"] = len(rows)
        report[f"{category}: a record of the rule is in the prompt"] = sum(by_record for by_record, _ in rows)
        report[f"{category}: 60 % of the rule's words are"] = sum(by_words for _, by_words in rows)
    return report


# Speed


def made_up_records(chance: random.Random) -> Iterator[NewRecord]:
    """Sentences that hardly any other one repeats."""
    for of, count in MANY.items():
        for number in range(count):
            first, second, third = chance.sample(THINGS, 3)
            case, week = chance.randrange(2, 9999), chance.randrange(1, 53)
            text = f"Case {case}: the {first} was moved with the {second} after the {third} was late in week {week}"
            trigger = f"forbidden {of} {number}" if of is Type.CENSOR else ""
            yield NewRecord(type=of, text=f"{text} ({of} {number})", trigger=trigger)


async def build_new(runtime: Runtime, number: int) -> float:
    """Milliseconds of a prompt in a new conversation."""
    chance = random.Random(number)
    first, second = chance.sample(THINGS, 2)
    text = f"Why was the {first} moved with the {second} in week {chance.randrange(1, 53)}?"
    key = ConversationKey(WORKSPACE, "http", f"c{number}")
    message = InboundMessage("http", key.external_id, f"m{number}", Author("1", "Ann"), text, workspace_id=WORKSPACE)
    return (await build(runtime, message, key, f"t{number}")).grounding_ms


async def measure_speed(runtime: Runtime, _folder: Path, _conversations: int | None) -> dict[str, float]:
    await runtime.knowledge.warm()
    await runtime.workspaces.create(WORKSPACE)
    waiting = made_up_records(random.Random(7))

    async def write() -> None:
        for one in waiting:
            await runtime.records.add(Scope(WORKSPACE), one, Provenance())

    async with asyncio.TaskGroup() as tasks:
        for _ in range(WRITERS):
            tasks.create_task(write())
    for number in range(WARM_UP):
        await build_new(runtime, QUESTIONS + number)
    started = time.process_time()
    took = [await build_new(runtime, number) for number in range(QUESTIONS)]
    cpu = (time.process_time() - started) * 1000 / QUESTIONS
    return {
        "records": sum(MANY.values()),
        "ms, p50": share(took, 0.5),
        "ms, p95": share(took, 0.95),
        "ms of processor": cpu,
    }


MEASURES = {"refresh": measure_refresh, "rules": measure_rules, "speed": measure_speed}


async def run(asked: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-records-") as data:
        async with open_runtime(Settings(data_dir=Path(data)), EventStream(), parts=frozenset()) as runtime:
            await runtime.knowledge.opened()
            report = await MEASURES[asked.measure](runtime, asked.folder, asked.conversations)
    for name, value in report.items():
        print(f"{name}: {round(value, 3):g}")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.records", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("measure", choices=MEASURES)
    parser.add_argument("folder", type=Path, metavar="FOLDER", nargs="?", help="needed for refresh and rules")
    parser.add_argument("--conversations", type=int, metavar="N", help="(3 for refresh, all for rules)")
    asked = parser.parse_args()
    if asked.folder is None and asked.measure != "speed":
        parser.error("no FOLDER")
    events.configure(Redaction.of(Settings()), silent=True)
    asyncio.run(run(asked))


if __name__ == "__main__":
    main()
