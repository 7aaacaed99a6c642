"""Two jobs after a turn's reply: refresh the conversation's context document, and index the turn for recall."""

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
    DocumentLine,
    has_same_lines,
    kept_lines,
    summarise,
)
from grounding.prompt_input import speaker, speaker_text
from grounding.retrieval import TurnText
from grounding.transcript import EntryRole, Reach, Transcript, TranscriptEntry, Turn
from runtime.background.contexts import JOB as INDEX_CONTEXT
from runtime.background.contexts import ContextSync, now
from runtime.billing import BudgetExceeded, Spending
from runtime.coordination import Job
from runtime.llm import Model, ModelFailed

_ATTEMPTS = 2
"""If somebody changes a document while the model writes the next one, it is written once more; then the next turn's job
tries again."""
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Draft:
    """The text of a new document, and its author."""

    text: str
    made_by: Literal["model", "extraction"]
    author: str


class SummaryRefresh:
    """Writes a new version of a conversation's context document when it is due.

    A provider's model writes it, and its answer is validated. The document is extracted without a model if

    - the model is a bundled one, which cannot write such a document;
    - the workspace's budget is used up;
    - the model fails, and there is no document yet or only an extracted one.

    If the model fails otherwise, the old document stays.

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
        index_later: Callable[[Job], Awaitable[object]],
    ) -> None:
        """*index_later* enqueues the job that indexes the document."""
        self._settings = settings
        self._transcript = transcript
        self._contexts = contexts
        self._sync = sync
        self._model = model
        self._spending = spending
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
        return summarise.is_due(reach, covered, self._settings.llm_grounding_memory_summary_refresh_turns)

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
        for _ in range(_ATTEMPTS):
            reach = await self._transcript.reach(job.key)
            current = await self._contexts.latest(job.key)
            if not self._is_due(reach, current.due_from if current else None):
                return current
            document = await self._next_version(job, reach, current)
            if document is None or document is current:
                return current
            if stored := await self._contexts.store(job.key, document, current.id if current else ""):
                _log.info("summary.refreshed", turns=reach.turns, version=stored.version, made_by=stored.made_by)
                return stored
        return await self._contexts.latest(job.key)

    async def _next_version(self, job: Job, reach: Reach, current: ContextDocument | None) -> ContextDocument | None:
        """Return the next version, or *current* if nothing was changed."""
        unread = max(1, reach.entries - (current.reach.entries if current else 0))
        count = min(self._settings.llm_grounding_memory_summary_source_max_lines, unread)
        entries = await self._transcript.newest(job.key, count)
        draft = await self._draft(job, current, entries)
        if isinstance(draft, summarise.Rejected):
            _log.warning("summary.kept", why=draft.why, turns=current.turns if current else 0)
            return current
        if isinstance(draft, summarise.Unchanged):
            if current is not None and await self._contexts.cover(job.key, current, reach):
                _log.info("summary.unchanged", turns=reach.turns, version=current.version)
            return current
        return ContextDocument(
            text=draft.text,
            version=(current.version if current else 0) + 1,
            turns=reach.turns,
            entries=reach.entries,
            made_by=draft.made_by,
            at=now(),
            turn_ids=tuple(sorted({entry.turn_id for entry in entries})),
            author=draft.author,
            kept=kept_lines(draft.text, current.kept if current else ()),
        )

    async def _draft(
        self, job: Job, current: ContextDocument | None, entries: list[TranscriptEntry]
    ) -> _Draft | summarise.Unchanged | summarise.Rejected:
        """Return the new text and its author, or why the old one stays."""
        previous, kept = (current.text, current.kept) if current else ("", ())
        if not self._settings.has_provider_model:
            return await self._extract(current, entries)
        try:
            verdict = await self._ask_model(job, previous, entries, kept)
        except BudgetExceeded:
            return await self._extract(current, entries)
        if isinstance(verdict, summarise.Rejected) and (current is None or current.made_by == "extraction"):
            return await self._extract(current, entries)
        return verdict

    async def _ask_model(
        self, job: Job, previous: str, entries: list[TranscriptEntry], kept: Sequence[DocumentLine]
    ) -> _Draft | summarise.Unchanged | summarise.Rejected:
        """Have the model write the document. Raises `BudgetExceeded`."""
        settings = self._settings
        window = await self._model.window_tokens()
        messages = summarise.plan(
            previous,
            entries,
            settings.llm_grounding_memory_summary_max_items,
            settings.llm_grounding_memory_summary_max_tokens,
            kept,
            window - settings.llm_max_output_tokens,
        )
        if not messages:
            return summarise.Rejected("no room in the model's window")
        try:
            completion = await self._spending.ask(job.key.scope, "summary", messages)
        except ModelFailed as error:
            return summarise.Rejected(error.why)
        if completion.finish_reason == "length":  # nobody could tell what is missing
            return summarise.Rejected("cut off")
        verdict = summarise.accept(completion.text, previous, settings.context_document_max_bytes, kept)
        return _Draft(verdict, "model", f"model:{completion.model}") if isinstance(verdict, str) else verdict

    async def _extract(
        self, current: ContextDocument | None, entries: list[TranscriptEntry]
    ) -> _Draft | summarise.Unchanged | summarise.Rejected:
        settings = self._settings
        previous, kept = (current.text, current.kept) if current else ("", ())
        items = settings.llm_grounding_memory_summary_max_items
        text = await asyncio.to_thread(
            summarise.document, previous, entries, items, kept
        )  # a long document takes a while
        if current is not None and has_same_lines(text, previous):
            return summarise.Unchanged()
        if len(text.encode("utf-8", "surrogatepass")) > settings.context_document_max_bytes:
            return summarise.Rejected("too long")
        return _Draft(text, "extraction", "")


class TurnIndex(Protocol):
    """The recall index; see `grounding.retrieval.recall.TurnIndex`."""

    async def remember(self, memories: Sequence[TurnText]) -> None: ...

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


def memory_of(key: ConversationKey, turn_id: str, entries: Sequence[TranscriptEntry], previous: str) -> TurnText | None:
    """Return the memory of a turn, linked to the turn *previous*; None if nothing was said in it."""
    spoken_entries = [entry for entry in entries if entry.role is not EntryRole.TOOL]
    if not spoken_entries:
        return None
    text = "\n".join(map(_line, spoken_entries))
    return TurnText(key.scope, turn_id, text, datetime.fromisoformat(spoken_entries[0].at), previous)


def _line(entry: TranscriptEntry) -> str:
    return speaker_text("assistant" if entry.role is EntryRole.OUTBOUND else speaker(entry.author), entry.text)
