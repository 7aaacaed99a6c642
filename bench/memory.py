"""How long it takes to put a prompt together in a workspace of 10,000 records: ``python -m bench.memory [--json]``.

Seeds 2,000 decisions, 5,000 facts, 1,500 episodes, 200 procedures, 100 censors and 1,200 items through the store into
the embedded Redis and the embedded index of a new DATA_DIR, then builds the prompts of questions, each in a
conversation of its own, so that nothing is reused:

- warm: the whole prompt (`Prompting.build`), and what gathering it takes (`Pipeline.ground`), of which the records take
  `RecordSelector.look` and `.selected`, in a process that has built prompts before;
- first: gathering for the first prompt of a new process whose index is open, and beside it loading the embedding model,
  which a process does at its start, or the first prompt has to wait for.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench import stages
from bench.stages import timed
from config.settings import Settings
from connectors.message import Author, ConversationKey, Fence, InboundMessage, Role, Scope
from grounding.memory.records import NewRecord, Provenance, Type
from grounding.memory.selection import RecordSelector
from grounding.pipeline import Gathering
from grounding.strategy import phrases
from runtime.observability import EventStream, Redaction, events
from runtime.process import Runtime, open_runtime
from runtime.turns import Batch, Envelope, Question

MIX = {
    Type.DECISION: 2000,
    Type.FACT: 5000,
    Type.EPISODE: 1500,
    Type.PROCEDURE: 200,
    Type.CENSOR: 100,
    Type.ITEM: 1200,
}
SIDE_BY_SIDE = 24
QUESTIONS = 100
FRESH_PROCESSES = 5
SCOPE = Scope("bench")
WHO = phrases("Ann, Bo, Carla, Dev, Eli, Fay, Gus, Hana, Ivo, Jun, Kim, Lena, Max, Nia, Olu, Pia, Quin, Rosa, Sam, Tim")
WHAT = phrases("""
    billing, search, mail, login, export, import, cache, queue, backup, index, editor, calendar, invoice, report
    payroll, archive, scanner, router, sensor, booking, ledger, survey, roster, kiosk, portal, wallet, parser, crawler
    player, tracker
""")
DID = phrases(
    "chose, rejected, moved, repaired, measured, renamed, tested, documented, postponed, shipped, rewrote, audited"
)
WITH = phrases(
    "Postgres, Redis, Kafka, nginx, Terraform, pgvector, Grafana, SQLite, Ansible, Vault, Kotlin, Rust, gRPC, Parquet"
)
QUESTION_FORMS = (
    "Should we use {with_} for the {what}?",
    "What did {who} say about the {what}?",
    "How do I set up {with_} for the {what} service?",
    "Why does the {what} fail with {with_}?",
    "What is due for the {what}?",
)


def said(chance: random.Random) -> str:
    """A sentence that another one hardly ever repeats."""
    who, other = chance.sample(WHO, 2)
    return (
        f"{who} {chance.choice(DID)} the {chance.choice(WHAT)} with {chance.choice(WITH)} after {other} saw "
        f"{chance.randrange(2, 9999)} {chance.choice(WHAT)} entries in week {chance.randrange(1, 53)}"
    )


def records(chance: random.Random) -> Iterator[NewRecord]:
    for of, count in MIX.items():
        for number in range(count):
            trigger = f"forbidden {of} {number}" if of is Type.CENSOR else ""
            yield NewRecord(type=of, text=f"{said(chance)} ({of} {number})", trigger=trigger)


async def seed(runtime: Runtime) -> float:
    """Seconds that it took."""
    started, waiting = time.perf_counter(), records(random.Random(7))

    async def add() -> None:
        for one in waiting:
            await runtime.records.add(SCOPE, one, Provenance())

    async with asyncio.TaskGroup() as group:
        for _ in range(SIDE_BY_SIDE):
            group.create_task(add())
    return time.perf_counter() - started


def question(number: int) -> Question:
    chance = random.Random(number)
    text = QUESTION_FORMS[number % len(QUESTION_FORMS)].format(
        with_=chance.choice(WITH), what=chance.choice(WHAT), who=chance.choice(WHO)
    )
    key = ConversationKey("bench", "http", f"c{number}")
    message = InboundMessage("http", key.external_id, f"m{number}", Author("1", "Ann"), text, workspace_id="bench")
    return Question.of(Batch(key, "", 1, (Envelope(message, Role.MEMBER, time.time()),), Fence("", "")))


async def build(runtime: Runtime, number: int) -> tuple[float, int]:
    """Milliseconds of one prompt, and how many records it shows."""
    started = time.perf_counter()
    built = await runtime.prompting.build(question(number), f"t{number}")
    return (time.perf_counter() - started) * 1000, len(built.context.records)


def settings_of(folder: Path) -> Settings:
    return Settings(data_dir=folder)


async def first(folder: Path) -> dict[str, float]:
    """Gathering for the first prompt of this process, in milliseconds."""
    watch()
    async with open_runtime(settings_of(folder), EventStream(), parts=frozenset()) as runtime:
        await runtime.knowledge.opened()
        started = time.perf_counter()
        await runtime.knowledge.warm()  # as `serve` does beside its start
        loaded = (time.perf_counter() - started) * 1000
        await build(runtime, QUESTIONS + 100)
    return {"load": loaded, "ground": stages._times["ground"][0]}


def watch() -> None:
    """Time the stages of gathering."""
    Gathering.gather = timed("ground", Gathering.gather)  # type: ignore[method-assign]
    RecordSelector.look = timed("records_look", RecordSelector.look)  # type: ignore[method-assign]
    RecordSelector.selected = timed("records_chosen", RecordSelector.selected)  # type: ignore[method-assign]


async def warm(folder: Path) -> dict[str, Any]:
    watch()
    async with open_runtime(settings_of(folder), EventStream(), parts=frozenset()) as runtime:
        await runtime.knowledge.opened()
        await runtime.workspaces.create("bench")
        seeded = await seed(runtime)
        for number in range(QUESTIONS, QUESTIONS + 10):
            await build(runtime, number)
        stages._times.clear()
        done = [await build(runtime, number) for number in range(QUESTIONS)]
        held = await runtime.records.count(SCOPE)
    return {
        "records": held,
        "seed_seconds": round(seeded, 1),
        "shown_mean": round(statistics.mean(count for _, count in done), 1),
        "build_ms": spread([elapsed for elapsed, _ in done]),
        **{f"{name}_ms": spread(times) for name, times in stages._times.items()},
    }


def spread(times: Sequence[float]) -> dict[str, float]:
    ordered = sorted(times)
    return {
        "p50": round(statistics.median(ordered), 1),
        "p95": round(ordered[min(len(ordered) - 1, round(0.95 * (len(ordered) - 1)))], 1),
        "most": round(ordered[-1], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--first", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    events.configure(Redaction.of(Settings()), silent=True)
    if given.first is not None:
        print(json.dumps(asyncio.run(first(given.first))))
        return
    with tempfile.TemporaryDirectory(prefix="bench-memory-") as folder:
        report = asyncio.run(warm(Path(folder)))
        colds = []
        for _ in range(FRESH_PROCESSES):
            command = [sys.executable, "-m", "bench.memory", "--first", folder]
            told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            colds.append(json.loads(told.strip().splitlines()[-1]))
        report["first_ground_of_a_process_ms"] = spread([one["ground"] for one in colds])
        report["embedding_model_loaded_ms"] = spread([one["load"] for one in colds])
    if given.json:
        print(json.dumps(report))
        return
    for name, value in report.items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    main()
