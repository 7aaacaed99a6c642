"""Rebuilds what can be rebuilt: the index from documents, transcripts and records, transcripts from the chat logs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from connectors.message import ConversationKey, Scope, StoreUnavailable, Superseded
from grounding.documents import Lacks, Progress, Skipped
from grounding.memory.context_document import ContextDocuments
from grounding.retrieval import EmbedderUnavailable, IndexUnavailable
from grounding.retrieval import Turns as TurnIndex
from grounding.transcript import Entry, MarkdownCopy, Transcript, UnreadableLog, read_log
from runtime.background.after_turn import memory_of
from runtime.background.contexts import index_latest
from runtime.search import Knowledge, tell_index_failed
from runtime.workspaces import Workspaces

TURNS_TOGETHER = 64
_RETRY_SECONDS = (1.0, 30.0)
_log = structlog.get_logger()
Tells = Callable[[Progress], None]


@dataclass(slots=True)
class Reindexed:
    """What was put into the index anew, over all workspaces that were asked for."""

    documents: int = 0
    chunks: int = 0
    deleted: int = 0
    conversations: int = 0
    turns: int = 0
    records: int = 0
    material: int = 0
    skipped: list[Skipped] = field(default_factory=list)


@dataclass(slots=True)
class Restored:
    """What was, or with a dry run would be, put back into the transcripts. ``refused`` are files that were not read."""

    files: int = 0
    conversations: int = 0
    turns: int = 0
    entries: int = 0
    refused: list[dict[str, str]] = field(default_factory=list)


class Rebuilding:
    """Of one workspace at a time. All of it can be done while people talk, interrupted, and done again."""

    def __init__(
        self,
        data_dir: Path,
        knowledge: Knowledge,
        transcript: Transcript,
        contexts: ContextDocuments,
        copy: MarkdownCopy,
        workspaces: Workspaces,
    ) -> None:
        self._data_dir = data_dir
        self._knowledge = knowledge
        self._transcript = transcript
        self._contexts = contexts
        self._copy = copy
        self._workspaces = workspaces
        self._filling = asyncio.Lock()

    async def reindex(self, scope: Scope, done: Reindexed, tell: Tells) -> None:
        """Cut and embed all documents, context documents, records, material and remembered turns anew; they can be
        found meanwhile. Adds to *done*.

        Raises `IndexUnavailable`, `EmbedderUnavailable`, `StoreUnavailable` and `OSError`.
        """
        target = await self._knowledge.opening.ready()
        await target.index.ensure()  # somebody may have deleted it
        synced = await self._knowledge.sync(scope, None, tell, fresh=True)
        done.documents += synced.documents
        done.chunks += synced.chunks
        done.deleted += synced.deleted
        done.skipped += synced.skipped
        await self._index_contexts(scope)
        done.records += await target.records.rebuild(scope)
        done.material += await target.material.rebuild(scope)
        conversations = await self._transcript.conversations(scope)
        for number, key in enumerate(conversations, start=1):
            done.turns += await self._remember_all(target.turns, key)
            done.conversations += 1
            tell(Progress(number, len(conversations), key.context_id))
        await self._knowledge.catalogue.caught_up(scope, target.name, Lacks.TURNS)

    async def fill_new_index(self) -> None:
        """Remember all that was said and noted, once in each workspace for each collection of the index: another
        embedding model has another. What was said, and records, are put into it again if it has none of them.

        It goes on until it is done, whatever is away or breaks meanwhile; begun again it does no harm.
        """
        await self._knowledge.opened()
        wait, longest = _RETRY_SECONDS
        while True:
            try:
                if await self._fill_workspaces():
                    return
            except Exception as error:  # noqa: BLE001 - see `tell_index_failed`
                tell_index_failed(error)
            await asyncio.sleep(wait)
            wait = min(wait * 2, longest)

    async def _fill_workspaces(self) -> bool:
        """`fill_workspace` of all; whether all have everything now. What breaks in one of them keeps no other waiting,
        and is told whoever asks there. Raises `fill_workspace`'s."""
        broken, workspaces = self._knowledge.finding.unremembered, await self._workspaces.all()
        broken.intersection_update([one.id for one in workspaces])  # nobody waits for one that was deleted
        name = (await self._knowledge.target()).name
        for workspace in workspaces:  # first: what is asked meanwhile may lack something
            if not await self._remembers(Scope(workspace.id), name):
                broken.add(workspace.id)
        for workspace in workspaces:
            try:
                await self.fill_workspace(Scope(workspace.id))
            except (IndexUnavailable, EmbedderUnavailable, StoreUnavailable):  # the same for all
                raise
            except Exception as error:  # noqa: BLE001 - see `tell_index_failed`
                broken.add(workspace.id)
                tell_index_failed(error, workspace_id=workspace.id)
            else:
                broken.discard(workspace.id)
        return not broken

    async def fill_workspace(self, scope: Scope) -> None:
        """Remember all that was said and noted in a workspace, unless the index has that already.

        Raises `IndexUnavailable`, `EmbedderUnavailable` and `StoreUnavailable`.
        """
        async with self._filling:
            name = (await self._knowledge.target()).name
            if await self._remembers(scope, name):
                await (await self._knowledge.records()).heal(scope)
                return
            await self._index_contexts(scope)
            await (await self._knowledge.records()).rebuild(scope)
            turns, count = await self._knowledge.turns(), 0
            for key in await self._transcript.conversations(scope):
                count += await self._remember_all(turns, key, anew=False)
            # Who still fills the former collection tells that alone what is said: then it is looked again before this
            # one takes its place. What it has already is not embedded again, but for records and context documents.
            former = await self._knowledge.catalogue.current(scope)
            if former in ("", name) or not await self._knowledge.catalogue.is_kept(former):
                await self._knowledge.catalogue.has_remembered(scope, name)
        _log.info("index.remembered", workspace_id=scope.workspace_id, turns=count)

    async def _remembers(self, scope: Scope, name: str) -> bool:
        """Whether the index has what was said in a workspace, as far as is written down; not if it has no turn of any
        conversation there, because somebody emptied it or its files were damaged, and that is written down."""
        catalogue = self._knowledge.catalogue
        if not await catalogue.remembers(scope, name):
            return False
        turns, conversations = await self._knowledge.turns(), await self._transcript.conversations(scope)
        for key in conversations:
            if await turns.count(key.scope):
                return True
        if conversations:
            await catalogue.fell_behind(scope, name, Lacks.TURNS)
        return not conversations

    async def _index_contexts(self, scope: Scope) -> None:
        found = await self._knowledge.contexts()
        for key in await self._contexts.places(scope.workspace_id):
            await index_latest(self._contexts, found, key)

    async def _remember_all(self, turns: TurnIndex, key: ConversationKey, *, anew: bool = True) -> int:
        """Make all turns of a conversation findable, and none that it has not; how many had to be stored: *anew* stores
        those too that are there as they should be."""
        said: dict[str, list[Entry]] = {}
        count, previous = 0, ""
        async for page in self._transcript.whole(key):
            for entry in await self._transcript.as_amended(key, [entry for _, entry in page]):
                said.setdefault(entry.turn_id, []).append(entry)
            # The newest may go on in the next page.
            whole = list(said)[:-1]
            count += await self._remember(turns, key, {one: said.pop(one) for one in whole}, previous, anew=anew)
            previous = whole[-1] if whole else previous
        count += await self._remember(turns, key, said, previous, anew=anew)
        recorded = set(await self._transcript.turn_ids(key))  # last: some may have been forgotten since
        await turns.forget(key.scope, sorted(await turns.known(key.scope) - recorded))
        return count

    async def _remember(
        self, turns: TurnIndex, key: ConversationKey, said: dict[str, list[Entry]], previous: str, *, anew: bool
    ) -> int:
        before = [previous, *said]
        found = (
            memory_of(key, turn_id, entries, before[number]) for number, (turn_id, entries) in enumerate(said.items())
        )
        memories = [memory for memory in found if memory is not None]
        count = 0
        for start in range(0, len(memories), TURNS_TOGETHER):
            some = memories[start : start + TURNS_TOGETHER]
            lacking = some if anew else await turns.lacking(some)
            if lacking:
                await turns.remember(lacking)
            count += len(lacking)
        return count

    def workspaces_with_logs(self) -> list[str]:
        """Workspaces under DATA_DIR that have chat logs, whether or not Redis knows of them. Blocking."""
        return sorted(path.parent.parent.name for path in (self._data_dir / "workspaces").glob("*/logs/chats"))

    async def restore(self, scope: Scope, done: Restored, tell: Tells, *, dry_run: bool) -> None:
        """Put what the chat logs under DATA_DIR hold and Redis does not back into the transcripts. Adds to *done*.

        A workspace that Redis has lost is created. Raises `StoreUnavailable` and `OSError`.
        """
        await self._copy.flush()  # what was forgotten has to leave the files before they are read
        files = await asyncio.to_thread(self._logs, scope)
        if files and not dry_run:
            await self._workspaces.create(scope.workspace_id)
        for number, file in enumerate(files, start=1):
            name = file.relative_to(self._data_dir).as_posix()
            try:
                key, logged = await asyncio.to_thread(read_log, self._data_dir, file, scope.workspace_id)
                merged = await self._transcript.restore(key, logged, round(time.time() * 1000), dry_run=dry_run)
            except (UnreadableLog, Superseded, OSError) as error:
                done.refused.append({"path": name, "why": str(error)})
            else:
                done.files += 1
                done.conversations += bool(merged.restored)
                done.turns += merged.turns
                done.entries += merged.restored
            tell(Progress(number, len(files), name))

    def _logs(self, scope: Scope) -> Sequence[Path]:
        return sorted((self._data_dir / "workspaces" / scope.workspace_id / "logs" / "chats").glob("*/*.md"))
