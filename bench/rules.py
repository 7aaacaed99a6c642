"""How often a standing rule is in the prompt: ``python -m bench.rules FOLDER [--plan FILE] [--answers FILE] [--json]``.

FOLDER is a set of long conversations (`grounding.evaluation.datasets`) with questions of the categories
``instruction_following`` and ``preference_following``: their evidence is the message that states the rule. Each
conversation is one person's direct messages, looked through for records in windows of as many messages of that person
as `RECORDS_EXTRACTION_TURNS` says: by patterns, as without a model; or, with ``--answers``, by a capable model's
recorded answers (JSON lines ``{"window", "answer"}``), where a window has one, and by patterns where it has none.
``--plan`` writes what such a model is to be asked (``{"window", "messages"}``), of the windows with rules alone:
elsewhere the model's part is not played, so that its records have fewer rivals than in truth. Then each question is
asked, and counted is how often a record of its evidence stands in the prompt, and how often enough of its words do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from config.settings import Settings
from connectors.message import Author, ConversationKey, Fence, InboundMessage, Role, Scope
from grounding.evaluation import Conversation, ConversationMessage, ConversationQuestion
from grounding.evaluation.datasets import load_conversations
from grounding.evaluation.memory import stands_in
from grounding.memory.context_document import Rejected
from grounding.memory.records import Candidate, Record, Type, Window, extraction
from grounding.retrieval import term_set
from grounding.transcript import EntryRole, TranscriptEntry
from runtime.observability import EventStream, Redaction, events
from runtime.process import Runtime, open_runtime
from runtime.turns import Batch, Envelope, Question
from runtime.turns.censors import shown_records

CATEGORIES = ("instruction_following", "preference_following")
ASSISTANT = "assistant"
PERSON = "lena"
KNOWN = 50
WORKSPACE = "bench"
TYPES = (Type.FACT, Type.DECISION, Type.PROCEDURE, Type.EPISODE)


def conversations_in(folder: Path) -> list[Conversation]:
    """Those in which rules are asked for."""
    found = load_conversations(folder)
    return [one for one in found if any(asked.category in CATEGORIES for asked in one.asked)]


def key_of(conversation: Conversation) -> ConversationKey:
    return ConversationKey(WORKSPACE, "console", conversation.name)


def user_of(conversation: Conversation) -> str:
    return f"console:{conversation.name}"


def entry(said: ConversationMessage, user: str) -> TranscriptEntry:
    if said.speaker == ASSISTANT:
        return TranscriptEntry(EntryRole.OUTBOUND, said.text, said.id, said.at.isoformat(), author=ASSISTANT)
    return TranscriptEntry(EntryRole.INBOUND, said.text, said.id, said.at.isoformat(), author=PERSON, user=user)


def windows(conversation: Conversation, turns: int) -> Iterator[Window]:
    """*conversation* in pieces of *turns* messages of the person, with what was answered."""
    piece: list[ConversationMessage] = []
    for said in conversation.said:
        if said.speaker != ASSISTANT and sum(one.speaker != ASSISTANT for one in piece) == turns:
            yield window(conversation, piece)
            piece = []
        piece.append(said)
    if piece:
        yield window(conversation, piece)


def window(conversation: Conversation, piece: Sequence[ConversationMessage]) -> Window:
    user = user_of(conversation)
    entries = tuple(entry(said, user) for said in piece)
    return Window(key_of(conversation).context_id, entries, user, {})


def name_of(window: Window) -> str:
    return window.entries[0].turn_id


def rules_of(conversation: Conversation) -> set[str]:
    """The messages that state rules."""
    return {name for asked in conversation.asked if asked.category in CATEGORIES for name in asked.evidence}


def plan(conversations: Sequence[Conversation], turns: int, file: Path) -> int:
    """Write what a model is to be asked; how many questions that are."""
    asked = [
        json.dumps({"window": name_of(one), "messages": extraction.plan(one, ())}, ensure_ascii=False)
        for conversation in conversations
        for one in windows(conversation, turns)
        if rules_of(conversation) & {said.turn_id for said in one.said}
    ]
    file.write_text("\n".join(asked) + "\n", encoding="utf-8")
    return len(asked)


class Living:
    """Has conversations looked through, and asks about their rules."""

    def __init__(self, runtime: Runtime, answers: dict[str, str], turns: int) -> None:
        self._runtime = runtime
        self._answers = answers
        self._turns = turns
        self.counts: Counter[str] = Counter()

    async def look_through(self, conversation: Conversation) -> None:
        """Keep what is found in *conversation*."""
        key = key_of(conversation)
        scope = Scope(WORKSPACE, key.context_id, user_of(conversation))
        rules = rules_of(conversation)
        for one in windows(conversation, self._turns):
            known = [
                *await self._runtime.records.list(scope, TYPES, limit=KNOWN),
                *(record for record in await self._runtime.records.standing(scope) if record.type in TYPES),
            ]
            known = list({record.id: record for record in known}.values())
            for found in self._found(one, known):
                by = found.by.model_copy(update={"context_id": key.context_id})
                await self._runtime.records.add(scope, found.new, by, f"extract/{found.key}")
                self.counts["records"] += 1
                self.counts["records of rules"] += found.by.turn_id in rules

    def _found(self, one: Window, known: Sequence[Record]) -> list[Candidate]:
        answer = self._answers.get(name_of(one))
        if answer is None:
            return extraction.found_in(one, known)
        accepted = extraction.accept(answer, one, ())
        if isinstance(accepted, Rejected):
            self.counts[f"answers refused: {accepted.why}"] += 1
            return extraction.found_in(one, known)
        self.counts["answers accepted"] += 1
        return accepted

    async def ask(self, conversation: Conversation, asked: ConversationQuestion, number: int) -> tuple[bool, bool]:
        """Whether a record of the rule stands in the prompt, and whether the rule's words do."""
        key = key_of(conversation)
        author = Author(conversation.name, PERSON)
        message = InboundMessage(
            "console", key.external_id, f"m{number}", author, asked.text, workspace_id=WORKSPACE, direct=True
        )
        batch = Batch(key, "", 1, (Envelope(message, Role.MEMBER, 0.0),), Fence("", ""))
        built = await self._runtime.prompting.build(Question.of(batch), "")
        scope = Scope(WORKSPACE, audience=user_of(conversation))
        texts = {one.id: one.text for one in conversation.said}
        made = [await self._runtime.records.get(scope, one.id) for one in shown_records(built)]
        by_record = any(record.provenance.turn_id in asked.evidence for record in made)
        block = built.prompt.block("records")
        told = term_set(block.text if block else "")
        return by_record, any(stands_in(texts[name], told) for name in asked.evidence)


async def run(folder: Path, answers: dict[str, str]) -> dict[str, object]:
    conversations = conversations_in(folder)
    with tempfile.TemporaryDirectory(prefix="bench-rules-") as data:
        settings = Settings(data_dir=Path(data))
        async with open_runtime(settings, EventStream(), parts=frozenset()) as runtime:
            await runtime.knowledge.opened()
            await runtime.workspaces.create(WORKSPACE)
            living = Living(runtime, answers, settings.records_extraction_turns)
            for conversation in conversations:
                await living.look_through(conversation)
            results: dict[str, list[tuple[bool, bool]]] = {category: [] for category in CATEGORIES}
            for conversation in conversations:
                for number, asked in enumerate(conversation.asked):
                    if asked.category in CATEGORIES:
                        results[asked.category].append(await living.ask(conversation, asked, number))
    report: dict[str, object] = dict(sorted(living.counts.items()))
    for category, rows in results.items():
        report[category] = {
            "questions": len(rows),
            "a record of the rule is in the prompt": round(sum(row[0] for row in rows) / max(1, len(rows)), 3),
            "60 % of the rule's words are": round(sum(row[1] for row in rows) / max(1, len(rows)), 3),
        }
    return report


def recorded(file: Path | None) -> dict[str, str]:
    """The recorded answers by window."""
    if file is None:
        return {}
    rows = (json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip())
    return {row["window"]: row["answer"] for row in rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--plan", type=Path)
    parser.add_argument("--answers", type=Path)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    events.configure(Redaction.of(Settings()), silent=True)
    if given.plan is not None:
        turns = Settings().records_extraction_turns
        print(f"{plan(conversations_in(given.folder), turns, given.plan)} windows to be answered in {given.plan}")
        return
    report = asyncio.run(run(given.folder, recorded(given.answers)))
    print(json.dumps(report) if given.json else "\n".join(f"{name}: {value}" for name, value in report.items()))


if __name__ == "__main__":
    main()
