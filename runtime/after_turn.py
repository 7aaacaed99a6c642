"""What is done with a turn once its reply is out: the context document, and recall."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import structlog

from config.settings import Settings
from connectors.message import ConversationKey
from grounding.documents.turns import Memory
from grounding.documents.turns import Turns as TurnIndex
from grounding.memory import extract, refresh
from grounding.memory.contexts import ContextDocument, ContextDocuments
from grounding.memory.copy import ContextCopy
from grounding.sections import speaker, spoken
from grounding.transcript.entry import Entry, EntryRole, Reach
from grounding.transcript.log import Transcript, Turn
from runtime.budget_terms import BudgetExceeded
from runtime.jobs import Job
from runtime.model import Model
from runtime.model_errors import ModelFailed
from runtime.spending import Spending

_log = structlog.get_logger()


class SummaryRefresh:
    """Makes a conversation's context document anew when it is due.

    With a configured model the model writes it; its answer is validated. Where no valid document exists
    and the model cannot make one, where the only model is the small local one (which cannot write such a
    document), or where the workspace's budget is used up, it is extracted. A failed refresh leaves a document
    that a model made as it is.

    After every turn the document's file is brought in step, so that one that could not be written (a full
    disk, a crash in between) comes back.

    `due` says of many jobs at once which of them have anything to do; mostly that is none.
    """

    def __init__(
        self,
        settings: Settings,
        transcript: Transcript,
        contexts: ContextDocuments,
        copy: ContextCopy,
        model: Model,
        spending: Spending,
    ) -> None:
        self._settings = settings
        self._transcript = transcript
        self._contexts = contexts
        self._copy = copy
        self._model = model
        self._spending = spending
        self._copy_failing = False

    async def due(self, jobs: Sequence[Job]) -> list[Job]:
        """Those of *jobs* that a document is to be made for, or a file to be written: of each conversation its first,
        after which nothing is left to do for the others."""
        first = {job.key: job for job in reversed(jobs)}
        keys = list(first)
        reaches = await self._transcript.reaches(keys)
        marks = dict(zip(keys, await self._contexts.marks(keys), strict=True))
        in_step = await self._copy.in_step({key: mark for key, mark in marks.items() if mark})
        due: list[Job] = []
        for key, reach in zip(keys, reaches, strict=True):
            mark = marks[key]
            if self._is_due(reach, mark.reach if mark else None) or (mark and key not in in_step):
                due.append(first[key])
        return due

    def _is_due(self, reach: Reach, covered: Reach | None) -> bool:
        return refresh.is_due(reach, covered, self._settings.llm_grounding_memory_summary_refresh_turns)

    async def __call__(self, job: Job) -> None:
        document = await self._refresh(job)
        if document is None or not await self._copy_for_people(job.key, document):
            return
        if await self._contexts.latest(job.key) is None:  # forgotten in between
            await self._copy.remove(job.key)

    async def _copy_for_people(self, key: ConversationKey, document: ContextDocument) -> bool:
        """Whether the file was written."""
        try:
            written = await self._copy.write(key, document.text, document.mark)
        except OSError as error:
            if not self._copy_failing:
                _log.warning("store.degraded", store="context_copies", why=type(error).__name__, detail=str(error))
            self._copy_failing = True
            return False
        self._copy_failing = False
        return written

    async def _refresh(self, job: Job) -> ContextDocument | None:
        """The document as it is after *job*."""
        settings = self._settings
        reach = await self._transcript.reach(job.key)
        current = await self._contexts.latest(job.key)
        covered = Reach(current.turns, current.entries) if current else None
        if not self._is_due(reach, covered):
            return current
        entries = await self._transcript.newest(
            job.key, min(settings.llm_grounding_memory_summary_source_max_lines, _unread(reach, covered))
        )
        previous = current.text if current else ""
        text, made_by = await self._text(job, previous, current, entries)
        if text is None:
            _log.warning("summary.kept", why=made_by, turns=current.turns if current else 0)
            return current
        document = ContextDocument(
            text=text,
            version=(current.version if current else 0) + 1,
            turns=reach.turns,
            entries=reach.entries,
            made_by="model" if made_by == "model" else "extraction",
            at=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            turn_ids=tuple(sorted({entry.turn_id for entry in entries})),
        )
        if not await self._contexts.store(job.key, document):
            return await self._contexts.latest(job.key)
        _log.info("summary.refreshed", turns=reach.turns, version=document.version, made_by=document.made_by)
        return document

    async def _text(
        self, job: Job, previous: str, current: ContextDocument | None, entries: list[Entry]
    ) -> tuple[str | None, str]:
        """The new document and who made it, or None and why the old one stays."""
        settings = self._settings
        items = settings.llm_grounding_memory_summary_max_items
        extracted = extract.document(previous, entries, items)
        if settings.llm_model is None:
            return extracted, "extraction"
        why = ""
        try:
            asked = refresh.plan(previous, entries, items, settings.llm_grounding_memory_summary_max_tokens)
            await self._spending.reserve_background(job.key.scope, job.turn_id, "summary", asked)
            completion = await self._model.complete(asked, purpose="summary")
            await self._spending.settle(job.key.scope, job.turn_id, "summary", completion.model, completion.usage)
            verdict = refresh.accept(completion.text, previous, settings.context_document_max_bytes)
            if isinstance(verdict, str):
                return verdict, "model"
            if isinstance(verdict, refresh.Unchanged):
                return previous, "model"
            why = verdict.why
        except BudgetExceeded:
            return extracted, "extraction"
        except ModelFailed as error:
            await self._spending.release(job.key.scope, job.turn_id, "summary")
            why = error.why
        if current is None or current.made_by == "extraction":
            return extracted, "extraction"
        return None, why


class RememberTurns:
    """Makes turns findable for later turns of their conversations."""

    def __init__(self, transcript: Transcript, turns: TurnIndex) -> None:
        self._transcript = transcript
        self._turns = turns

    async def __call__(self, jobs: Sequence[Job]) -> None:
        """Raises `grounding.documents.index.IndexUnavailable` and
        `grounding.documents.embedding.EmbedderUnavailable`; then none, some or all of them can be found."""
        said = await self._transcript.of_turns([(job.key, job.turn_id) for job in jobs])
        memories: dict[Turn, Memory] = {}
        for turn, entries in said.items():
            if (memory := memory_of(*turn, entries)) is not None:
                memories[turn] = memory
        if memories:
            await self._turns.remember(list(memories.values()))
        there = await self._transcript.recorded(list(memories))
        # Forgotten in between, or before: then an interrupted attempt may have made it findable.
        for key, turn_id in {(job.key, job.turn_id) for job in jobs} - there:
            await self._turns.forget(key.scope, [turn_id])


def memory_of(key: ConversationKey, turn_id: str, entries: Sequence[Entry]) -> Memory | None:
    """A turn's *entries* as they are recalled; None where nothing was spoken."""
    said = [entry for entry in entries if entry.role is not EntryRole.TOOL]
    if not said:
        return None
    return Memory(key.scope, turn_id, "\n".join(map(_line, said)), datetime.fromisoformat(said[0].at))


def _unread(reach: Reach, covered: Reach | None) -> int:
    """Log entries since the document was made; one more than none."""
    return max(1, reach.entries - (covered.entries if covered else 0))


def _line(entry: Entry) -> str:
    return spoken("assistant" if entry.role is EntryRole.OUTBOUND else speaker(entry.author), entry.text)
