"""How often records are chosen anew in a conversation: ``python -m bench.refresh FOLDER [--conversations N] [--json]``.

FOLDER is a set of long conversations (`grounding.evaluation.datasets`). What one person says in each is said to
the bot in its order; every fifth message becomes a record (of all types in turn) once two more were said, so that no
message finds itself. Told is in which share of the turns the records were chosen anew, and why; which share of the
records shown bears on the message at hand, as the relevance floor has it; and in which share of the turns on which any
record bears the best of them was shown.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from bench.rules import ASSISTANT
from config.settings import Settings
from connectors.message import Author, ConversationKey, Fence, InboundMessage, Role, Scope
from grounding.evaluation import Conversation, ConversationMessage
from grounding.evaluation.datasets import load_conversations
from grounding.memory.records import NewRecord, Provenance, Type
from grounding.memory.selection import RecordLookup, RecordSelector, Selected
from runtime.observability import EventStream, Redaction, events
from runtime.process import Runtime, open_runtime
from runtime.turns import Batch, Envelope, Question

MESSAGES = 130
EVERY, AFTER = 5, 2
TYPES = (Type.FACT, Type.FACT, Type.DECISION, Type.PROCEDURE, Type.EPISODE, Type.FACT)
RECORD_CHARACTERS = 600
REBUILT = ("frame", "topic", "acting", "changed")


class Watch:
    """Sees what was found for a message and what was shown of it."""

    def __init__(self) -> None:
        self.whys: Counter[str] = Counter()
        self.sums: Counter[str] = Counter()
        own, select = self, RecordSelector.select

        def watched(selecting: RecordSelector, looked: RecordLookup, *rest: Any) -> Selected:
            selected = select(selecting, looked, *rest)
            own.see(looked, selected)
            return selected

        RecordSelector.select = watched  # type: ignore[assignment, method-assign]

    def see(self, looked: RecordLookup, selected: Selected) -> None:
        if selected.selection.why not in ("nothing_kept", "cold"):
            self.whys[selected.selection.why] += 1
        bears = {one.record.id: relevance for one, relevance in looked.found if relevance >= looked.minimum}
        shown = {one.id for one in selected.records}
        self.sums["shown"] += len(shown)
        self.sums["tokens"] += sum(one.tokens for one in selected.records)
        self.sums["turns"] += 1
        self.sums["shown that bear"] += len(shown & bears.keys())
        if bears:
            self.sums["turns on which any bears"] += 1
            self.sums["best shown"] += max(bears, key=lambda name: bears[name]) in shown


def of_one(conversation: Conversation) -> list[ConversationMessage]:
    """What the person says who begins, but for the assistant."""
    who = next(one.speaker for one in conversation.said if one.speaker != ASSISTANT)
    return [one for one in conversation.said if one.speaker == who][:MESSAGES]


async def talk(runtime: Runtime, workspace: str, said: list[ConversationMessage]) -> None:
    """Say all of *said* in one conversation of *workspace*."""
    await runtime.workspaces.create(workspace)
    key = ConversationKey(workspace, "http", "default")
    for number, one in enumerate(said):
        if number >= AFTER and (number - AFTER) % EVERY == 0:
            former = said[number - AFTER]
            new = NewRecord(TYPES[number // EVERY % len(TYPES)], former.text[:RECORD_CHARACTERS])
            await runtime.records.add(Scope(workspace), new, Provenance())
        message = InboundMessage(
            "http", key.external_id, f"m{number}", Author("1", "Ann"), one.text, workspace_id=workspace
        )
        batch = Batch(key, "", 1, (Envelope(message, Role.MEMBER, 0.0),), Fence("", ""))
        await runtime.prompting.build(Question.of(batch), f"t{number:06}")


async def run(folder: Path, conversations: int) -> dict[str, Any]:
    watch = Watch()
    with tempfile.TemporaryDirectory(prefix="bench-refresh-") as data:
        async with open_runtime(Settings(data_dir=Path(data)), EventStream(), parts=frozenset()) as runtime:
            await runtime.knowledge.opened()
            for number, one in enumerate(load_conversations(folder)[:conversations]):
                await talk(runtime, f"bench{number}", of_one(one))
    sums, turns = watch.sums, max(1, sum(watch.whys.values()))
    return {
        "turns": turns,
        "chosen anew": round(sum(watch.whys[why] for why in REBUILT) / turns, 3),
        **{why: round(count / turns, 3) for why, count in watch.whys.most_common()},
        "records shown": round(sums["shown"] / max(1, sums["turns"]), 1),
        "tokens": round(sums["tokens"] / max(1, sums["turns"])),
        "bear on the message": round(sums["shown that bear"] / max(1, sums["shown"]), 3),
        "best shown": round(sums["best shown"] / max(1, sums["turns on which any bears"]), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--conversations", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    events.configure(Redaction.of(Settings()), silent=True)
    report = asyncio.run(run(given.folder, given.conversations))
    print(json.dumps(report) if given.json else "\n".join(f"{name}: {value}" for name, value in report.items()))


if __name__ == "__main__":
    main()
