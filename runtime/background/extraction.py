"""Looks through conversations for records, in the background.

How far each conversation was looked through is its mark. Keys (owner ``extraction``, in the conversation's partition):
``mark`` a hash with the turns and entries that were looked through, and the records that were found in the last of them
until all are stored. So a job that is repeated does not ask the model again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import structlog
from pydantic import TypeAdapter

from config.settings import Settings
from connectors.message import ConversationKey, Scope, redis_key
from grounding.memory.context_document import Rejected, is_due
from grounding.memory.global_context import foreign_text_in
from grounding.memory.records import (
    Candidate,
    NoSuchRecord,
    Origin,
    Record,
    RecordBusy,
    RecordRefused,
    Records,
    Type,
    Window,
    extraction,
)
from grounding.prompt_input import audience_of
from grounding.retrieval import EmbedderUnavailable, IndexUnavailable
from grounding.transcript import EntryRole, Reach, Transcript, TranscriptEntry
from runtime.billing import BudgetExceeded, Spending
from runtime.coordination import Job
from runtime.llm import Model, ModelFailed
from runtime.stores import pack, unpack
from runtime.turns import EXTRACT_RECORDS, Manifests

if TYPE_CHECKING:
    from redis.asyncio import Redis


JOB = EXTRACT_RECORDS

_OWNER = "extraction"
_VERSION = 1
_TYPES = (Type.FACT, Type.DECISION, Type.PROCEDURE, Type.EPISODE, Type.RULE)
_KNOWN_NEWEST = 50
"""Newest records that are compared beside those that a search finds: the index may be behind, or away."""
_QUERY_CHARACTERS = 1000
_CANDIDATES = TypeAdapter(tuple[Candidate, ...])
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a conversation was looked through, and the records that are still to be stored."""

    reach: Reach = field(default_factory=Reach)
    waiting: tuple[Candidate, ...] = ()


class ExtractionMarks:
    """The marks of all conversations. Raises `connectors.message.StoreUnavailable` and `runtime.stores.NewerFormat`."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def read(self, keys: Sequence[ConversationKey]) -> list[Mark]:
        """Return the mark of each of *keys*; an empty one if there is none."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.hmget(_key(key), ["turns", "entries", "waiting"])
            rows: Any = await pipe.execute() if keys else []
        return [Mark(Reach(int(turns or 0), int(entries or 0)), _unpack(waiting)) for turns, entries, waiting in rows]

    async def looked(self, key: ConversationKey, reach: Reach, found: Sequence[Candidate]) -> None:
        """Store that *key* was looked through as far as *reach*, and that *found* is to be stored."""
        mark: dict[Any, Any] = {
            "turns": reach.turns,
            "entries": reach.entries,
            "waiting": pack(_VERSION, found=_CANDIDATES.dump_python(tuple(found), mode="json")) if found else "",
        }
        await self._redis.hset(_key(key), mapping=mark)

    async def kept(self, key: ConversationKey) -> None:
        """Note that all that was found is stored."""
        await self._redis.hset(_key(key), "waiting", "")

    async def forget_turn(self, key: ConversationKey, turn_id: str, reach: Reach) -> None:
        """Shorten the mark to *reach* after a turn was forgotten, and drop what was found in that turn."""
        (mark,) = await self.read([key])
        if mark != Mark():
            shorter = Reach(min(mark.reach.turns, reach.turns), min(mark.reach.entries, reach.entries))
            waiting = [found for found in mark.waiting if found.by.turn_id != turn_id]
            await self.looked(key, shorter, waiting)

    async def forget(self, key: ConversationKey) -> None:
        """Delete the mark, and what was found and is not stored yet."""
        await self._redis.delete(_key(key))


def _key(key: ConversationKey) -> str:
    return redis_key(_OWNER, key.tag, "mark", key.encoded)


def _unpack(packed: str | None) -> tuple[Candidate, ...]:
    return (
        _CANDIDATES.validate_python(unpack(packed, _VERSION, "what was found in a conversation")["found"])
        if packed
        else ()
    )


class RecordsExtraction:
    """Finds records in what was said since it last looked.

    A configured model is asked every ``RECORDS_EXTRACTION_TURNS`` turns. If it fails, answers in another form than
    asked for, or the workspace's budget is used up, plain patterns look instead. Without a model the patterns look
    after every turn. They look for standing rules after every turn in any case, because a person expects a rule to hold
    at once. A record belongs to the audience of its turn; turns whose audience is unknown are left out.
    """

    def __init__(
        self,
        settings: Settings,
        transcript: Transcript,
        manifests: Manifests,
        marks: ExtractionMarks,
        records: Records,
        model: Model,
        spending: Spending,
    ) -> None:
        self._is_on = settings.records_extraction
        self._asks_model = settings.has_provider_model
        self._every_turns = settings.records_extraction_turns if self._asks_model else 1
        self._max_output_tokens = settings.llm_max_output_tokens
        self._max_entries = settings.llm_grounding_memory_summary_source_max_lines
        self._transcript = transcript
        self._manifests = manifests
        self._marks = marks
        self._records = records
        self._model = model
        self._spending = spending

    async def due(self, jobs: Sequence[Job]) -> list[Job]:
        """Return the jobs that have work to do: the last of each conversation."""
        if not self._is_on:
            return []
        last = {job.key: job for job in jobs}
        keys = list(last)
        reaches, marks = await asyncio.gather(self._transcript.reaches(keys), self._marks.read(keys))
        rows = zip(keys, reaches, marks, strict=True)
        return [last[key] for key, reach, mark in rows if mark.waiting or reach.entries > _looked(reach, mark).entries]

    def _is_due(self, reach: Reach, looked: Reach) -> bool:
        return is_due(reach, looked, self._every_turns)

    async def __call__(self, job: Job) -> None:
        """Find and store new records.

        Raises `connectors.message.StoreUnavailable` and `RecordBusy`; a repetition goes on from there.
        """
        (mark,) = await self._marks.read([job.key])
        if mark.waiting:
            await self._store(job.key, mark.waiting)
        reach = await self._transcript.reach(job.key)
        looked = _looked(reach, mark)
        if not self._is_on or reach.entries <= looked.entries:
            return
        count = min(self._max_entries, max(1, reach.entries - looked.entries))
        entries = await self._transcript.newest(job.key, count)
        if await self._transcript.reach(job.key) != reach:  # the newest entries are others now
            await self(job)
            return
        if not self._is_due(reach, looked):
            await self._keep_rules(job, entries)
            return
        found = await self._find(job, entries)
        await self._marks.looked(job.key, reach, found)
        if found:
            await self._store(job.key, found)
        if (await self._transcript.reach(job.key)).entries < reach.entries:  # forgotten meanwhile: start over
            await self._marks.forget(job.key)

    async def _keep_rules(self, job: Job, entries: Sequence[TranscriptEntry]) -> None:
        """Store the standing rules in *entries*. These are looked through again when the model is asked, and a rule
        that is stored twice is one rule."""
        if not await asyncio.to_thread(extraction.may_state_rule, entries):
            return
        found: list[Candidate] = []
        for window in await self._windows(job.key, entries):
            known = await self._known(job.key, window)
            stated = await asyncio.to_thread(extraction.found_in, window, known)
            found += [replace(one, owner=window.owner) for one in stated if one.new.type is Type.RULE]
        if found:
            await self._add_all(job.key, found)

    async def _find(self, job: Job, entries: Sequence[TranscriptEntry]) -> list[Candidate]:
        if not self._asks_model and not await asyncio.to_thread(extraction.may_state, entries):
            return []
        found: list[Candidate] = []
        for window in await self._windows(job.key, entries):
            made_by, records = await self._extract(job, window)
            found += [replace(record, owner=window.owner) for record in records]
            _log.info("records.extracted", turns=window.turns, found=len(records), made_by=made_by)
        return found

    async def _windows(self, key: ConversationKey, entries: Sequence[TranscriptEntry]) -> list[Window]:
        """Divide *entries* by the owner of the records that may come of them."""
        turn_ids = list(dict.fromkeys(entry.turn_id for entry in entries if entry.role is EntryRole.INBOUND))
        contexts = await self._manifests.contexts(key.scope, turn_ids)
        owners = {turn_id: audience_of(context) or "" for turn_id, context in contexts.items()}
        origins: Mapping[str, Origin] = {
            turn_id: foreign_text_in(context) or "extraction" for turn_id, context in contexts.items()
        }
        by_owner: dict[str, list[TranscriptEntry]] = {}
        for entry in entries:
            if (owner := owners.get(entry.turn_id)) is not None:
                by_owner.setdefault(owner, []).append(entry)
        return [Window(key.context_id, tuple(of_owner), owner, origins) for owner, of_owner in by_owner.items()]

    async def _extract(self, job: Job, window: Window) -> tuple[str, list[Candidate]]:
        """Return who looked, the model or the patterns, and what was found in *window*."""
        known = await self._known(job.key, window)
        if self._asks_model:
            answer = await self._ask_model(job, window, known)
            if isinstance(answer, list):
                return "model", answer
            _log.warning("records.rejected", why=answer.why)
        return "patterns", await asyncio.to_thread(extraction.found_in, window, known)

    async def _ask_model(self, job: Job, window: Window, known: Sequence[Record]) -> list[Candidate] | Rejected:
        room = await self._model.window_tokens() - self._max_output_tokens
        fitting = extraction.fitting(window, known, room)
        if fitting is None:
            return Rejected("no room in the model's window")
        messages = extraction.plan(fitting, known)
        try:
            completion = await self._spending.ask(job.key.scope, "extraction", messages)
        except BudgetExceeded:
            return Rejected("budget")
        except ModelFailed as error:
            return Rejected(error.why)
        return await asyncio.to_thread(extraction.accept, completion.text, fitting, known)

    async def _known(self, key: ConversationKey, window: Window) -> list[Record]:
        """Return the records that bear on *window*, the newest ones, and those that are always shown."""
        scope = _scope(key, window.owner)
        said = "\n".join(entry.text for entry in window.said)[-_QUERY_CHARACTERS:]
        newest = await self._records.list(scope, _TYPES, limit=_KNOWN_NEWEST)
        try:
            hits = await self._records.search(scope, said, extraction.MAX_KNOWN, _TYPES)
        except (IndexUnavailable, EmbedderUnavailable, TimeoutError):
            hits = []
        standing = [record for record in await self._records.standing(scope) if record.type in _TYPES]
        found = [hit.record for hit in hits]
        return list({record.id: record for record in (*found, *newest, *standing)}.values())

    async def _store(self, key: ConversationKey, found: Sequence[Candidate]) -> None:
        """Store *found*, and note that nothing waits any more."""
        await self._add_all(key, found)
        await self._marks.kept(key)

    async def _add_all(self, key: ConversationKey, found: Sequence[Candidate]) -> None:
        """Store *found*, each record once, but not those of turns that were forgotten meanwhile."""
        turns = list(dict.fromkeys((key, one.by.turn_id) for one in found))
        recorded = await self._transcript.recorded(turns)
        results: Counter[str] = Counter()
        for one in found:
            if (key, one.by.turn_id) in recorded:
                results[await self._add(_scope(key, one.owner), one)] += 1
        gone = recorded - await self._transcript.recorded(list(recorded))
        for owner in {one.owner for one in found} if gone else ():
            await self._records.forget_said(_scope(key, owner), [turn_id for _, turn_id in gone])
        _log.info("records.kept", **{name: results[name] for name in ("new", "confirmed", "superseded", "refused")})

    async def _add(self, scope: Scope, record: Candidate) -> str:
        """Return how the record came: new, confirmed, superseded or refused."""
        by = record.by.model_copy(update={"context_id": scope.context_id or ""})
        name = f"extract/{record.key}"
        try:
            try:
                return (await self._records.add(scope, record.new, by, name)).came
            except NoSuchRecord:  # the record that it replaces is gone
                return (await self._records.add(scope, replace(record.new, supersedes=""), by, name)).came
        except RecordBusy:
            raise
        except RecordRefused as error:
            _log.warning("records.refused", why=str(error)[:200])
            return "refused"


def _looked(reach: Reach, mark: Mark) -> Reach:
    """Return how far a conversation was looked through: not at all if it was forgotten and started over since."""
    return mark.reach if mark.reach.entries <= reach.entries else Reach()


def _scope(key: ConversationKey, owner: str) -> Scope:
    return Scope(key.workspace_id, key.context_id, owner or None)
