"""What is done with a turn once its reply is out: the context document, and recall."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

import structlog

from config.settings import Settings
from connectors.message import ConversationKey, Scope
from grounding.memory.context_document import ContextDocument, ContextDocuments, Line, same, summarise, surviving
from grounding.prompt_input import speaker, spoken
from grounding.retrieval import Memory
from grounding.transcript import Entry, EntryRole, Reach, Transcript, Turn
from runtime.background.contexts import JOB as INDEX
from runtime.background.contexts import ContextFollowing, now
from runtime.billing import BudgetExceeded, Spending
from runtime.coordination import Job
from runtime.llm import Model, ModelFailed

_ATTEMPTS = 2
"""Somebody may change a document while the model writes the next one; a second time is left for the next turn."""
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Written:
    """A new document, and who made it."""

    text: str
    made_by: Literal["model", "extraction"]
    author: str


class SummaryRefresh:
    """Makes a conversation's context document anew when it is due.

    With a provider's model the model writes it; its answer is validated. Where no valid document exists and the
    model cannot make one, where the model is a bundled one (which cannot write such a document), or where the
    workspace's budget is used up, it is extracted. A failed refresh leaves a document that a model made as it is.

    After every turn the document's file and its place in the index are brought in step, so that what could not be
    written (a full disk, a crash in between) comes back.

    `due` says of many jobs at once which of them have anything to do; mostly that is none.
    """

    def __init__(
        self,
        settings: Settings,
        transcript: Transcript,
        contexts: ContextDocuments,
        following: ContextFollowing,
        model: Model,
        spending: Spending,
        index_later: Callable[[Job], Awaitable[object]],
    ) -> None:
        """*index_later* keeps the job that lets searches find the document."""
        self._settings = settings
        self._transcript = transcript
        self._contexts = contexts
        self._following = following
        self._model = model
        self._spending = spending
        self._index_later = index_later

    async def due(self, jobs: Sequence[Job]) -> list[Job]:
        """Those of *jobs* that a document is to be made for, or one to be followed up: of each conversation its first,
        after which nothing is left to do for the others."""
        first = {job.key: job for job in reversed(jobs)}
        keys = list(first)
        reaches = await self._transcript.reaches(keys)
        marks = dict(zip(keys, await self._contexts.marks(keys), strict=True))
        in_step = await self._following.in_step({key: mark for key, mark in marks.items() if mark})
        due: list[Job] = []
        for key, reach in zip(keys, reaches, strict=True):
            mark = marks[key]
            if self._is_due(reach, mark.reach if mark else None) or (mark and key not in in_step):
                due.append(first[key])
        return due

    def _is_due(self, reach: Reach, covered: Reach | None) -> bool:
        return summarise.is_due(reach, covered, self._settings.llm_grounding_memory_summary_refresh_turns)

    async def __call__(self, job: Job) -> None:
        document = await self._refresh(job)
        if document is None:
            return
        await self._following.copy(job.key, document)
        (mark,) = await self._contexts.marks([job.key])
        if mark is not None and not mark.is_indexed:
            await self._index_later(Job(INDEX, job.key, mark.id or job.turn_id))

    async def _refresh(self, job: Job) -> ContextDocument | None:
        """The document as it is after *job*. Where somebody changed it meanwhile, theirs is what it is made of."""
        for _ in range(_ATTEMPTS):
            reach = await self._transcript.reach(job.key)
            current = await self._contexts.latest(job.key)
            if not self._is_due(reach, current.due_from if current else None):
                return current
            made = await self._made(job, reach, current)
            if made is None or made is current:
                return current
            if stored := await self._contexts.store(job.key, made, current.id if current else ""):
                _log.info("summary.refreshed", turns=reach.turns, version=stored.version, made_by=stored.made_by)
                return stored
        return await self._contexts.latest(job.key)

    async def _made(self, job: Job, reach: Reach, current: ContextDocument | None) -> ContextDocument | None:
        """The next version; *current* where nothing had to be changed, or could be."""
        unread = _unread(reach, current.reach if current else None)
        count = min(self._settings.llm_grounding_memory_summary_source_max_lines, unread)
        entries = await self._transcript.newest(job.key, count)
        written = await self._text(job, current, entries)
        if isinstance(written, summarise.Rejected):
            _log.warning("summary.kept", why=written.why, turns=current.turns if current else 0)
            return current
        if isinstance(written, summarise.Unchanged):
            if current is not None and await self._contexts.cover(job.key, current, reach):
                _log.info("summary.unchanged", turns=reach.turns, version=current.version)
            return current
        return ContextDocument(
            text=written.text,
            version=(current.version if current else 0) + 1,
            turns=reach.turns,
            entries=reach.entries,
            made_by=written.made_by,
            at=now(),
            turn_ids=tuple(sorted({entry.turn_id for entry in entries})),
            author=written.author,
            kept=surviving(written.text, current.kept if current else ()),
        )

    async def _text(
        self, job: Job, current: ContextDocument | None, entries: list[Entry]
    ) -> _Written | summarise.Unchanged | summarise.Rejected:
        """The new document and who made it, or why the old one stays."""
        previous, kept = (current.text, current.kept) if current else ("", ())
        if not self._settings.has_provider_model:
            return await self._extracted(current, entries)
        try:
            verdict = await self._answered(job, previous, entries, kept)
        except BudgetExceeded:
            return await self._extracted(current, entries)
        if isinstance(verdict, summarise.Rejected) and (current is None or current.made_by == "extraction"):
            return await self._extracted(current, entries)
        return verdict

    async def _answered(
        self, job: Job, previous: str, entries: list[Entry], kept: Sequence[Line]
    ) -> _Written | summarise.Unchanged | summarise.Rejected:
        """What the model makes of *entries*. Raises `BudgetExceeded`."""
        settings = self._settings
        window = await self._model.window_tokens()
        asked = summarise.plan(
            previous,
            entries,
            settings.llm_grounding_memory_summary_max_items,
            settings.llm_grounding_memory_summary_max_tokens,
            kept,
            window - settings.llm_max_output_tokens,
        )
        if not asked:
            return summarise.Rejected("no room in the model's window")
        try:
            completion = await self._spending.ask(job.key.scope, "summary", asked)
        except ModelFailed as error:
            return summarise.Rejected(error.why)
        if completion.finish_reason == "length":  # the end of a section is missing, and nobody could tell which
            return summarise.Rejected("cut off")
        verdict = summarise.accept(completion.text, previous, settings.context_document_max_bytes, kept)
        return _Written(verdict, "model", f"model:{completion.model}") if isinstance(verdict, str) else verdict

    async def _extracted(
        self, current: ContextDocument | None, entries: list[Entry]
    ) -> _Written | summarise.Unchanged | summarise.Rejected:
        settings = self._settings
        previous, kept = (current.text, current.kept) if current else ("", ())
        items = settings.llm_grounding_memory_summary_max_items
        text = await asyncio.to_thread(summarise.document, previous, entries, items, kept)  # long ones take a while
        if current is not None and same(text, previous):
            return summarise.Unchanged()
        if len(text.encode("utf-8", "surrogatepass")) > settings.context_document_max_bytes:
            return summarise.Rejected("too long")
        return _Written(text, "extraction", "")


class TellsTurns(Protocol):
    """What makes turns findable, and takes them back; see `grounding.retrieval.recall.Turns`."""

    async def remember(self, memories: Sequence[Memory]) -> None: ...

    async def forget(self, scope: Scope, turn_ids: Sequence[str] | None = None) -> None: ...


class RememberTurns:
    """Makes turns findable for later turns of their conversations."""

    def __init__(self, transcript: Transcript, turns: TellsTurns) -> None:
        self._transcript = transcript
        self._turns = turns

    async def __call__(self, jobs: Sequence[Job]) -> None:
        """Raises `grounding.retrieval.index.IndexUnavailable` and
        `grounding.retrieval.embedding.EmbedderUnavailable`; then none, some or all of them can be found."""
        turns = [(job.key, job.turn_id) for job in jobs]
        said, before = await asyncio.gather(self._transcript.of_turns(turns), self._transcript.preceding(turns))
        memories: dict[Turn, Memory] = {}
        for turn, entries in said.items():
            if (memory := memory_of(*turn, entries, before.get(turn, ""))) is not None:
                memories[turn] = memory
        if memories:
            await self._turns.remember(list(memories.values()))
        there = await self._transcript.recorded(list(memories))
        # Forgotten in between, or before: then an interrupted attempt may have made it findable.
        for key, turn_id in {(job.key, job.turn_id) for job in jobs} - there:
            await self._turns.forget(key.scope, [turn_id])


def memory_of(key: ConversationKey, turn_id: str, entries: Sequence[Entry], previous: str) -> Memory | None:
    """A turn's *entries* as they are recalled, with the *previous* turn's id; None where nothing was spoken."""
    said = [entry for entry in entries if entry.role is not EntryRole.TOOL]
    if not said:
        return None
    return Memory(key.scope, turn_id, "\n".join(map(_line, said)), datetime.fromisoformat(said[0].at), previous)


def _unread(reach: Reach, covered: Reach | None) -> int:
    """Log entries since the document was made; one more than none."""
    return max(1, reach.entries - (covered.entries if covered else 0))


def _line(entry: Entry) -> str:
    return spoken("assistant" if entry.role is EntryRole.OUTBOUND else speaker(entry.author), entry.text)
