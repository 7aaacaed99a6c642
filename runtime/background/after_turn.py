"""Three jobs after a turn's reply: refresh the conversation's context document, index the turn for recall, and give it
its deeper vectors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

import structlog

from config.settings import Settings
from connectors.message import ConversationKey, Scope
from grounding.memory.context_document import (
    ContextDocument,
    ContextDocuments,
    DocumentLimits,
    DocumentLine,
    Problem,
    Refreshed,
    Rejected,
    Unchanged,
    accept,
    extract_document,
    has_same_lines,
    is_due,
    kept_lines,
    plan,
    within_bytes,
)
from grounding.prompt_input import speaker, speaker_text
from grounding.retrieval import TurnText
from grounding.transcript import EntryRole, Reach, Transcript, TranscriptEntry, Turn
from runtime.background.contexts import JOB as INDEX_CONTEXT
from runtime.background.contexts import ContextSync, now
from runtime.billing import BudgetExceeded, Spending
from runtime.coordination import Job
from runtime.llm import Model, ModelFailed

DEEPEN_TURNS = "turns.deepen"
"""The job of `DeepenTurns`."""
_BATCHES_AT_ONCE = 8
_STEPS = 6
"""The most versions of one job. A step reads as much of the conversation as fits into the model's window; if somebody
changes the document meanwhile, it is repeated. What is left then is read after the next turn."""
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Draft:
    """The text of a new document, None if the old one still holds; and how many entries were read for it.

    ``problem`` says why the model did not write it, ``cut`` how many lines had no room.
    """

    text: str | None
    entries: int
    made_by: Literal["model", "extraction"]
    author: str = ""
    cut: int = 0
    problem: Rejected | None = None


class SummaryRefresh:
    """Writes a new version of a conversation's context document when it is due.

    A provider's model writes it, and its answer is validated. The document is extracted without a model if

    - the model is a bundled one, which cannot write such a document;
    - the workspace's budget is used up;
    - the model fails, and there is no document yet or only an extracted one.

    If the model fails otherwise, the old document stays. Why it failed is noted on the document, and logged.

    An old entry in the index is made good after every turn; a file that is missing or could not be written (a full
    disk), with the next version. `due` says for many jobs at once which have work to do; usually none has.
    """

    def __init__(
        self,
        settings: Settings,
        transcript: Transcript,
        contexts: ContextDocuments,
        sync: ContextSync,
        model: Model,
        spending: Spending,
        limits: DocumentLimits,
        index_later: Callable[[Job], Awaitable[object]],
    ) -> None:
        """*index_later* enqueues the job that indexes the document."""
        self._settings = settings
        self._transcript = transcript
        self._contexts = contexts
        self._sync = sync
        self._model = model
        self._spending = spending
        self._limits = limits
        self._index_later = index_later

    async def due(self, jobs: Sequence[Job]) -> list[Job]:
        """Return the jobs that have work to do: of each conversation the first, which does the work of all."""
        first = {job.key: job for job in reversed(jobs)}
        keys = list(first)
        reaches, marks = await asyncio.gather(self._transcript.reaches(keys), self._contexts.marks(keys))
        return [
            first[key]
            for key, reach, mark in zip(keys, reaches, marks, strict=True)
            if self._is_due(reach, mark.reach if mark else None) or (mark and not mark.is_indexed)
        ]

    def _is_due(self, reach: Reach, covered: Reach | None) -> bool:
        return is_due(reach, covered, self._settings.llm_grounding_memory_summary_refresh_turns)

    async def __call__(self, job: Job) -> None:
        document = await self._refresh(job)
        if document is None:
            return
        await self._sync.copy(job.key, document)
        (mark,) = await self._contexts.marks([job.key])
        if mark is not None and not mark.is_indexed:
            await self._index_later(Job(INDEX_CONTEXT, job.key, mark.id or job.turn_id))

    async def _refresh(self, job: Job) -> ContextDocument | None:
        """Return the document after *job*. If somebody changes it meanwhile, theirs is refreshed."""
        for _ in range(_STEPS):
            reach = await self._transcript.reach(job.key)
            current = await self._contexts.latest(job.key)
            is_due_now = self._is_due(reach, current.due_from if current else None)
            if not is_due_now or not await self._take_step(job, reach, current):
                return current
        return await self._contexts.latest(job.key)

    async def _take_step(self, job: Job, reach: Reach, current: ContextDocument | None) -> bool:
        """Write the next version, unless something changed meanwhile. Returns False if the model failed."""
        unread = max(1, reach.entries - (current.reach.entries if current else 0))
        count = min(self._settings.llm_grounding_memory_summary_source_max_lines, unread)
        entries = await self._transcript.newest(job.key, count)
        if await self._transcript.reach(job.key) != reach:  # the newest entries are others now
            return True
        draft = await self._draft(job, current, entries)
        if isinstance(draft, Rejected):
            await self._note_failure(job.key, current, draft)
            return False
        covered = _covered(reach, count, entries, draft.entries)
        if draft.text is None:
            if current is not None and await self._contexts.cover(job.key, current, covered):
                _log.info("summary.unchanged", turns=covered.turns, version=current.version)
                await self._note_problem(job.key, current, current, draft.problem)
            return True
        document = ContextDocument(
            text=draft.text,
            version=(current.version if current else 0) + 1,
            turns=covered.turns,
            entries=covered.entries,
            made_by=draft.made_by,
            at=now(),
            turn_ids=tuple(sorted({entry.turn_id for entry in entries[: draft.entries]})),
            author=draft.author,
            kept=kept_lines(draft.text, current.kept if current else ()),
        )
        if stored := await self._contexts.store(job.key, document, current.id if current else ""):
            _log.info(
                "summary.refreshed",
                turns=covered.turns,
                version=stored.version,
                made_by=stored.made_by,
                cut=draft.cut,
                left=reach.entries - covered.entries,
            )
            await self._note_problem(job.key, stored, current, draft.problem)
        return True

    async def _note_failure(self, key: ConversationKey, current: ContextDocument | None, why: Rejected) -> None:
        problem = _problem_after(current, why)
        if current is not None:
            await self._contexts.note_problem(key, current, problem)
        _log.warning(
            "summary.kept",
            kind=problem.kind,
            why=why.why,
            turns=current.turns if current else 0,
            failures=problem.failures,
            advice=problem.advice,
        )

    async def _note_problem(
        self, key: ConversationKey, document: ContextDocument, before: ContextDocument | None, why: Rejected | None
    ) -> None:
        """Note on the refreshed *document* that the model did not write it, or that people's lines are too long."""
        problem = _problem_after(before, why) if why else await asyncio.to_thread(self._limits.crowding, document.kept)
        if problem is not None:
            await self._contexts.note_problem(key, document, problem)
            _log.warning(
                "summary.problem",
                kind=problem.kind,
                why=problem.detail,
                failures=problem.failures,
                advice=problem.advice,
            )

    async def _draft(
        self, job: Job, current: ContextDocument | None, entries: list[TranscriptEntry]
    ) -> _Draft | Rejected:
        """Return the new text and its author, or why the old one stays."""
        if not self._settings.has_provider_model:
            return await self._extract(current, entries)
        try:
            draft = await self._ask_model(job, current, entries)
        except BudgetExceeded:
            return await self._extract(current, entries)
        if isinstance(draft, Rejected) and (current is None or current.made_by == "extraction"):
            return await self._extract(current, entries, draft)
        return draft

    async def _ask_model(
        self, job: Job, current: ContextDocument | None, entries: list[TranscriptEntry]
    ) -> _Draft | Rejected:
        """Have the model write the document. Raises `BudgetExceeded`."""
        previous, kept = (current.text, current.kept) if current else ("", ())
        room = await self._model.window_tokens() - self._settings.llm_max_output_tokens
        failures = current.problem.failures if current and current.problem else 0
        question = await asyncio.to_thread(plan, previous, entries, self._limits, kept, room, failures)
        if isinstance(question, Rejected):
            return question
        try:
            completion = await self._spending.ask(job.key.scope, "summary", question.messages)
        except ModelFailed as error:
            return Rejected(error.why, "model")
        if completion.finish_reason == "length":  # nobody could tell what is missing
            return Rejected("cut off", "cut_off")
        verdict = await asyncio.to_thread(accept, completion.text, question, previous, self._limits, kept)
        match verdict:
            case Refreshed(text, cut):
                return _Draft(text, question.entries, "model", f"model:{completion.model}", cut)
            case Unchanged():
                return _Draft(None, question.entries, "model")
        return verdict

    async def _extract(
        self, current: ContextDocument | None, entries: list[TranscriptEntry], problem: Rejected | None = None
    ) -> _Draft | Rejected:
        """Extract the document without a model; *problem* says why the model did not write it."""
        previous, kept = (current.text, current.kept) if current else ("", ())
        text = await asyncio.to_thread(self._extracted, previous, entries, kept)  # a long document takes a while
        if not text:
            return Rejected("no room beside the lines that people wrote", "full")
        is_same = current is not None and has_same_lines(text, previous)
        return _Draft(None if is_same else text, len(entries), "extraction", problem=problem)

    def _extracted(self, previous: str, entries: list[TranscriptEntry], kept: Sequence[DocumentLine]) -> str:
        text = extract_document(previous, entries, self._limits.items, kept)
        return within_bytes(text, kept, self._limits.bytes)


def _covered(reach: Reach, count: int, entries: Sequence[TranscriptEntry], read: int) -> Reach:
    """Return how much of the conversation a document covers that was made of the first *read* of the newest *entries*.

    *count* is how many entries were asked for: deleted messages among them count, too. So a document never covers an
    entry that was not read; some may be read twice.
    """
    left = entries[read:]
    if not left:
        return reach
    turns = {entry.turn_id for entry in left if entry.role is EntryRole.INBOUND}
    begun = {entry.turn_id for entry in entries[:read]}
    return Reach(reach.turns - len(turns - begun), reach.entries - count + read)


def _problem_after(document: ContextDocument | None, why: Rejected) -> Problem:
    failures = document.problem.failures if document and document.problem else 0
    return Problem(why.kind, why.why, failures + 1)


class TurnIndex(Protocol):
    """The recall index; see `grounding.retrieval.recall.TurnIndex`."""

    async def remember(self, memories: Sequence[TurnText]) -> None: ...

    async def deepen(self, scope: Scope) -> int: ...

    async def forget(self, scope: Scope, turn_ids: Sequence[str] | None = None) -> None: ...


class RememberTurns:
    """Indexes turns, so that later turns of their conversations find them."""

    def __init__(self, transcript: Transcript, index: TurnIndex) -> None:
        self._transcript = transcript
        self._index = index

    async def __call__(self, jobs: Sequence[Job]) -> None:
        """Index the turns of *jobs*.

        Raises `grounding.retrieval.IndexUnavailable` and `grounding.retrieval.EmbedderUnavailable`; then none, some or
        all of the turns can be found.
        """
        turns = [(job.key, job.turn_id) for job in jobs]
        entries_of, previous = await asyncio.gather(self._transcript.of_turns(turns), self._transcript.preceding(turns))
        memories: dict[Turn, TurnText] = {}
        for turn, entries in entries_of.items():
            if (memory := memory_of(*turn, entries, previous.get(turn, ""))) is not None:
                memories[turn] = memory
        if memories:
            await self._index.remember(list(memories.values()))
        # A turn may have been forgotten meanwhile, or before: then an interrupted attempt may have indexed it.
        recorded = await self._transcript.recorded(list(memories))
        for key, turn_id in set(turns) - recorded:
            await self._index.forget(key.scope, [turn_id])


class DeepenTurns:
    """Gives turns of a conversation their deeper vectors, by which they are recalled in other words.

    The index says which turns lack one, so that those of a conversation from before there were any follow when it goes
    on.
    """

    def __init__(self, index: Callable[[], Awaitable[TurnIndex]]) -> None:
        self._index = index

    async def __call__(self, job: Job) -> None:
        """Deepen what lacks a vector in the conversation of *job*: `_BATCHES_AT_ONCE` batches at most, so that no
        conversation keeps the others waiting for long.

        Raises `grounding.retrieval.IndexUnavailable` and `grounding.retrieval.EmbedderUnavailable`.
        """
        index = await self._index()
        for _ in range(_BATCHES_AT_ONCE):
            if not await index.deepen(job.key.scope):
                break


def memory_of(key: ConversationKey, turn_id: str, entries: Sequence[TranscriptEntry], previous: str) -> TurnText | None:
    """Return the memory of a turn, linked to the turn *previous*; None if nothing was said in it."""
    spoken_entries = [entry for entry in entries if entry.role is not EntryRole.TOOL]
    if not spoken_entries:
        return None
    text = "\n".join(map(_line, spoken_entries))
    return TurnText(key.scope, turn_id, text, datetime.fromisoformat(spoken_entries[0].at), previous)


def _line(entry: TranscriptEntry) -> str:
    return speaker_text("assistant" if entry.role is EntryRole.OUTBOUND else speaker(entry.author), entry.text)
