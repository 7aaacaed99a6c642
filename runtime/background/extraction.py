"""Looks through conversations for what is worth keeping as records, off the reply's path."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import structlog

from config.settings import Settings
from connectors.message import ConversationKey, Scope, redis_key
from grounding.memory.context_document import summarise
from grounding.memory.global_context import shown_in
from grounding.memory.records import (
    Added,
    Candidate,
    KeepsRecords,
    NewRecord,
    NoSuchRecord,
    Origin,
    Provenance,
    Record,
    RecordBusy,
    RecordRefused,
    Type,
    Window,
    extraction,
)
from grounding.memory.records import extraction as records_extraction
from grounding.prompt_input import RunContext, audience_of
from grounding.retrieval import EmbedderUnavailable, IndexUnavailable
from grounding.transcript import Entry, EntryRole, Reach, Transcript
from runtime.billing import BudgetExceeded, Spending
from runtime.coordination import Job
from runtime.llm import Model, ModelFailed
from runtime.stores import pack, unpack
from runtime.turns import EXTRACT_RECORDS, Manifests

if TYPE_CHECKING:
    from redis.asyncio import Redis


# ---- extraction marks ----
#
# How far each conversation was looked through for records, and what of that is still to be kept.
#
# Keys (owner ``extraction``, in the conversation's partition): ``mark`` a hash with the turns and entries that were
# looked through, and what was found in the last of them until all of it is kept. So a job that is done again asks
# nobody
# again.


_OWNER = "extraction"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Found:
    """A record that was found, and whose it is to be: a person's, or, empty, the workspace's."""

    owner: str
    record: Candidate


@dataclass(frozen=True, slots=True)
class Mark:
    """What was looked through, and what is still to be kept of it."""

    reach: Reach = field(default_factory=Reach)
    waiting: tuple[Found, ...] = ()


class ExtractionMarks:
    """The marks of all conversations. Raises `connectors.message.StoreUnavailable` and `runtime.stores.NewerFormat`."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def read(self, keys: Sequence[ConversationKey]) -> list[Mark]:
        """The mark of each of *keys*; an empty one where there is none."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.hmget(_name(key), ["turns", "entries", "waiting"])
            found: Any = await pipe.execute() if keys else []
        return [Mark(Reach(int(turns or 0), int(entries or 0)), _read(waiting)) for turns, entries, waiting in found]

    async def looked(self, key: ConversationKey, reach: Reach, found: Sequence[Found]) -> None:
        """*key* was looked through as far as *reach*, and *found* is to be kept."""
        mark: dict[Any, Any] = {
            "turns": reach.turns,
            "entries": reach.entries,
            "waiting": _packed(found) if found else "",
        }
        await self._redis.hset(_name(key), mapping=mark)

    async def kept(self, key: ConversationKey) -> None:
        """What was found is kept."""
        await self._redis.hset(_name(key), "waiting", "")

    async def forget_turn(self, key: ConversationKey, turn_id: str, reach: Reach) -> None:
        """*key* is *reach* since that turn of it was forgotten: what is said from now on is not looked through yet, and
        what was found in the turn is not kept."""
        (mark,) = await self.read([key])
        if mark != Mark():
            shorter = Reach(min(mark.reach.turns, reach.turns), min(mark.reach.entries, reach.entries))
            await self.looked(key, shorter, [one for one in mark.waiting if one.record.by.turn_id != turn_id])

    async def forget(self, key: ConversationKey) -> None:
        """Drop the mark, and what was found and is not kept yet."""
        await self._redis.delete(_name(key))


def _name(key: ConversationKey) -> str:
    return redis_key(_OWNER, key.tag, "mark", key.encoded)


def _packed(found: Sequence[Found]) -> str:
    rows = [
        {
            "owner": one.owner,
            "new": asdict(one.record.new),
            "by": one.record.by.model_dump(mode="json"),
            "key": one.record.key,
        }
        for one in found
    ]
    return pack(_VERSION, found=rows)


def _read(packed: str | None) -> tuple[Found, ...]:
    if not packed:
        return ()
    rows: list[dict[str, Any]] = unpack(packed, _VERSION, "what was found in a conversation")["found"]
    return tuple(
        Found(
            row["owner"],
            Candidate(
                NewRecord(**{**row["new"], "type": Type(row["new"]["type"])}),
                Provenance.model_validate_json(json.dumps(row["by"])),
                row["key"],
            ),
        )
        for row in rows
    )


# ---- extracting ----


JOB = EXTRACT_RECORDS
_TYPES = (Type.FACT, Type.DECISION, Type.PROCEDURE, Type.EPISODE)
_KNOWN_NEWEST = 50
"""Records that are looked at beside those that a search finds: the index may be behind, or away."""
_QUERY_CHARACTERS = 1000
_log = structlog.get_logger()


class RecordsExtraction:
    """Finds records in what was said since it last looked.

    With a configured model it asks that, every ``RECORDS_EXTRACTION_TURNS`` turns; where there is none, or it fails,
    answers something else than it was asked for, or the workspace's budget is used up, plain patterns look instead,
    and without a model they look after every turn. What is found belongs to the audience of its turn; a turn of which
    nobody knows any more where it was said is left out.
    """

    def __init__(
        self,
        settings: Settings,
        transcript: Transcript,
        manifests: Manifests,
        marks: ExtractionMarks,
        records: KeepsRecords,
        model: Model,
        spending: Spending,
    ) -> None:
        self._is_on = settings.records_extraction
        self._asks = settings.has_provider_model
        self._every_turns = settings.records_extraction_turns if self._asks else 1
        self._max_output_tokens = settings.llm_max_output_tokens
        self._max_entries = settings.llm_grounding_memory_summary_source_max_lines
        self._transcript = transcript
        self._manifests = manifests
        self._marks = marks
        self._records = records
        self._model = model
        self._spending = spending

    async def due(self, jobs: Sequence[Job]) -> list[Job]:
        """Those of *jobs* after which there is something to do: of each conversation its last."""
        if not self._is_on:
            return []
        last = {job.key: job for job in jobs}
        keys = list(last)
        reaches, marks = await asyncio.gather(self._transcript.reaches(keys), self._marks.read(keys))
        rows = zip(keys, reaches, marks, strict=True)
        return [last[key] for key, reach, mark in rows if mark.waiting or self._is_due(reach, _looked(reach, mark))]

    def _is_due(self, reach: Reach, looked: Reach) -> bool:
        return summarise.is_due(reach, looked, self._every_turns)

    async def __call__(self, job: Job) -> None:
        """Raises `connectors.message.StoreUnavailable` and `RecordBusy`: then it is done again, and goes on where it
        stopped."""
        (mark,) = await self._marks.read([job.key])
        if mark.waiting:
            await self._keep(job.key, mark.waiting)
        reach = await self._transcript.reach(job.key)
        looked = _looked(reach, mark)
        if not self._is_on or not self._is_due(reach, looked):
            return
        count = min(self._max_entries, max(1, reach.entries - looked.entries))
        entries = await self._transcript.newest(job.key, count)
        found = await self._found(job, entries)
        await self._marks.looked(job.key, reach, found)
        if found:
            await self._keep(job.key, found)
        if (await self._transcript.reach(job.key)).entries < reach.entries:  # forgotten meanwhile: it begins anew
            await self._marks.forget(job.key)

    async def _found(self, job: Job, entries: Sequence[Entry]) -> list[Found]:
        if not self._asks and not await asyncio.to_thread(records_extraction.may_state, entries):
            return []
        found: list[Found] = []
        for window in await self._windows(job.key, entries):
            made_by, some = await self._extracted(job, window)
            found += [Found(window.owner, one) for one in some]
            _log.info("records.extracted", turns=window.turns, found=len(some), made_by=made_by)
        return found

    async def _windows(self, key: ConversationKey, entries: Sequence[Entry]) -> list[Window]:
        """*entries* by whose records may come of them."""
        turn_ids = list(dict.fromkeys(one.turn_id for one in entries if one.role is EntryRole.INBOUND))
        contexts = await self._manifests.contexts(key.scope, turn_ids)
        shown = {turn_id: _shown(context) for turn_id, context in contexts.items()}
        of_owner: dict[str, list[Entry]] = {}
        for entry in entries:
            if (one := shown.get(entry.turn_id)) is not None:
                of_owner.setdefault(one[0], []).append(entry)
        origins: Mapping[str, Origin] = {turn_id: one[1] for turn_id, one in shown.items()}
        return [Window(key.context_id, tuple(some), owner, origins) for owner, some in of_owner.items()]

    async def _extracted(self, job: Job, window: Window) -> tuple[str, list[Candidate]]:
        """Who found what in *window*."""
        known = await self._known(job.key, window)
        if self._asks:
            answer = await self._answer(job, window, known)
            if isinstance(answer, list):
                return "model", answer
            _log.warning("records.rejected", why=answer.why)
        return "patterns", await asyncio.to_thread(records_extraction.found_in, window, known)

    async def _answer(self, job: Job, window: Window, known: Sequence[Record]) -> list[Candidate] | extraction.Rejected:
        scope = job.key.scope
        room = await self._model.window_tokens() - self._max_output_tokens
        told = extraction.fitting(window, known, room)
        if told is None:
            return extraction.Rejected("no room in the model's window")
        asked = extraction.plan(told, known)
        try:
            completion = await self._spending.ask(scope, "extraction", asked)
        except BudgetExceeded:
            return extraction.Rejected("budget")
        except ModelFailed as error:
            return extraction.Rejected(error.why)
        return await asyncio.to_thread(extraction.accept, completion.text, told, known)

    async def _known(self, key: ConversationKey, window: Window) -> list[Record]:
        """What is kept that bears on *window*, and what was kept last."""
        scope = _scope(key, window.owner)
        said = "\n".join(one.text for one in window.said)[-_QUERY_CHARACTERS:]
        newest = await self._records.list(scope, _TYPES, limit=_KNOWN_NEWEST)
        try:
            found = [one.record for one in await self._records.search(scope, said, extraction.MAX_KNOWN, _TYPES)]
        except (IndexUnavailable, EmbedderUnavailable, TimeoutError):
            found = []
        # What is kept word for word is counted, however old it is.
        standing = [one for one in await self._records.standing(scope) if one.type in _TYPES]
        return list({one.id: one for one in (*found, *newest, *standing)}.values())

    async def _keep(self, key: ConversationKey, found: Sequence[Found]) -> None:
        """Keep *found*, each once, but for what was forgotten meanwhile."""
        turns = list(dict.fromkeys((key, one.record.by.turn_id) for one in found))
        there = await self._transcript.recorded(turns)
        came: Counter[str] = Counter()
        for one in found:
            if (key, one.record.by.turn_id) in there:
                came[await self._add(_scope(key, one.owner), one.record)] += 1
        gone = there - await self._transcript.recorded(list(there))
        for owner in {one.owner for one in found} if gone else ():
            await self._records.forget_said(_scope(key, owner), [turn_id for _, turn_id in gone])
        await self._marks.kept(key)
        _log.info("records.kept", **{came_: came[came_] for came_ in ("new", "confirmed", "superseded", "refused")})

    async def _add(self, scope: Scope, one: Candidate) -> str:
        by = one.by.model_copy(update={"context_id": scope.context_id or ""})
        try:
            try:
                return (await self._added(scope, one.new, by, one.key)).came
            except NoSuchRecord:  # what it replaces is gone
                return (await self._added(scope, replace(one.new, supersedes=""), by, one.key)).came
        except RecordBusy:
            raise
        except RecordRefused as error:
            _log.warning("records.refused", why=str(error)[:200])
            return "refused"

    async def _added(self, scope: Scope, new: NewRecord, by: Provenance, key: str) -> Added:
        return await self._records.add(scope, new, by, f"extract/{key}")


def _shown(context: RunContext) -> tuple[str, Origin]:
    """Whose the words of a turn are to be, and what its prompt showed beside them."""
    return audience_of(context) or "", shown_in(context) or "extraction"


def _looked(reach: Reach, mark: Mark) -> Reach:
    """How far a conversation was looked through: not at all, if it was forgotten and began anew since."""
    return mark.reach if mark.reach.entries <= reach.entries else Reach()


def _scope(key: ConversationKey, owner: str) -> Scope:
    return Scope(key.workspace_id, key.context_id, owner or None)
