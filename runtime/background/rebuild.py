"""Rebuilds what can be rebuilt: the index from documents, transcripts and records, transcripts from the chat logs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from connectors.message import ConversationKey, Scope, StoreUnavailable, Superseded
from grounding.documents import Progress, Skipped
from grounding.memory.context_document import ContextDocuments
from grounding.retrieval import EmbedderUnavailable, IndexUnavailable, TurnIndex
from grounding.transcript import MarkdownCopy, Transcript, TranscriptEntry, UnreadableLog, read_log
from runtime.background.after_turn import memory_of
from runtime.background.contexts import index_latest
from runtime.search import Knowledge, log_index_error
from runtime.workspaces import Workspaces

TURNS_TOGETHER = 64
RETRY_SECONDS = (1.0, 30.0)
_log = structlog.get_logger()
ProgressCallback = Callable[[Progress], None]


@dataclass(slots=True)
class ReindexCounts:
    """How much was put into the index again, over all workspaces."""

    documents: int = 0
    chunks: int = 0
    deleted: int = 0
    conversations: int = 0
    turns: int = 0
    records: int = 0
    material: int = 0
    skipped: list[Skipped] = field(default_factory=list)


@dataclass(slots=True)
class RestoreCounts:
    """How much was put back into the transcripts, or would be in a dry run. ``refused`` files were not read."""

    files: int = 0
    conversations: int = 0
    turns: int = 0
    entries: int = 0
    refused: list[dict[str, str]] = field(default_factory=list)


class IndexRebuilder:
    """Rebuilds one workspace at a time. It can be done while people talk, be interrupted, and be done again."""

    def __init__(
        self,
        data_dir: Path,
        knowledge: Knowledge,
        transcript: Transcript,
        contexts: ContextDocuments,
        copy: MarkdownCopy,
        workspaces: Workspaces,
        *,
        retry_seconds: tuple[float, float] = RETRY_SECONDS,
    ) -> None:
        """*retry_seconds* is the first and the longest pause after something failed."""
        self._retry_seconds = retry_seconds
        self._data_dir = data_dir
        self._knowledge = knowledge
        self._transcript = transcript
        self._contexts = contexts
        self._copy = copy
        self._workspaces = workspaces
        self._filling = asyncio.Lock()

    async def reindex(self, scope: Scope, done: ReindexCounts, tell: ProgressCallback) -> None:
        """Embed all documents, context documents, records, material and turns again, and add to *done*.

        They can be found meanwhile. Raises `IndexUnavailable`, `EmbedderUnavailable`, `StoreUnavailable` and `OSError`.
        """
        target = await self._knowledge.ready()
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
        await self._knowledge.catalogue.mark_complete(scope, target.name)

    async def fill_new_index(self) -> None:
        """Put turns, context documents and records into the collection, once for each workspace and collection.

        It is tried again until it succeeds, and is done again if the collection lost them.
        """
        await self._knowledge.opened()
        wait, longest = self._retry_seconds
        while True:
            try:
                if await self._fill_workspaces():
                    return
            except Exception as error:  # noqa: BLE001 - see `log_index_error`
                log_index_error(error)
            await asyncio.sleep(wait)
            wait = min(wait * 2, longest)

    async def _fill_workspaces(self) -> bool:
        """Fill all workspaces; return whether all succeeded. An unexpected error in one does not stop the others.

        Raises `IndexUnavailable`, `EmbedderUnavailable` and `StoreUnavailable`.
        """
        name, workspaces = (await self._knowledge.ready()).name, await self._workspaces.all()
        for workspace in workspaces:  # first, so that recall says that turns may be missing
            scope = Scope(workspace.id)
            if not await self._is_complete(scope, name):
                await self._knowledge.catalogue.mark_filling(scope, name)
        is_whole = True
        for workspace in workspaces:
            try:
                await self.fill_workspace(Scope(workspace.id))
            except (IndexUnavailable, EmbedderUnavailable, StoreUnavailable):  # the same for all
                raise
            except Exception as error:  # noqa: BLE001 - see `log_index_error`
                is_whole = False
                log_index_error(error, workspace_id=workspace.id)
        return is_whole

    async def fill_workspace(self, scope: Scope) -> None:
        """Put the workspace's turns, context documents and records into the collection, unless it has them already.

        Raises `IndexUnavailable`, `EmbedderUnavailable` and `StoreUnavailable`.
        """
        async with self._filling:
            target, catalogue = await self._knowledge.ready(), self._knowledge.catalogue
            if await self._is_complete(scope, target.name):
                await target.records.heal(scope)
                return
            await catalogue.mark_filling(scope, target.name)
            await self._index_contexts(scope)
            await target.records.rebuild(scope)
            count = 0
            for key in await self._transcript.conversations(scope):
                count += await self._remember_all(target.turns, key, anew=False)
            await catalogue.mark_complete(scope, target.name)
        _log.info("index.remembered", workspace_id=scope.workspace_id, turns=count)

    async def _is_complete(self, scope: Scope, name: str) -> bool:
        """Return whether the collection is complete by the catalogue, and has some turn if there are conversations.

        It has none after somebody emptied it, or its files were damaged.
        """
        if not await self._knowledge.catalogue.is_complete(scope, name):
            return False
        turns, conversations = (await self._knowledge.ready()).turns, await self._transcript.conversations(scope)
        for key in conversations:
            if await turns.count(key.scope):
                return True
        return not conversations

    async def _index_contexts(self, scope: Scope) -> None:
        found = (await self._knowledge.ready()).contexts
        for key in await self._contexts.places(scope.workspace_id):
            await index_latest(self._contexts, found, key)

    async def _remember_all(self, turns: TurnIndex, key: ConversationKey, *, anew: bool = True) -> int:
        """Put all turns of a conversation into the index, and take out those that it does not have any more.

        Return how many were stored: all if *anew*, else those that are missing or differ.
        """
        entries: dict[str, list[TranscriptEntry]] = {}
        count, previous = 0, ""
        async for page in self._transcript.whole(key):
            for entry in await self._transcript.as_amended(key, [entry for _, entry in page]):
                entries.setdefault(entry.turn_id, []).append(entry)
            complete = list(entries)[:-1]  # the newest turn may go on in the next page
            turns_of_page = {turn_id: entries.pop(turn_id) for turn_id in complete}
            count += await self._remember(turns, key, turns_of_page, previous, anew=anew)
            previous = complete[-1] if complete else previous
        count += await self._remember(turns, key, entries, previous, anew=anew)
        recorded = set(await self._transcript.turn_ids(key))  # last: some may have been forgotten meanwhile
        await turns.forget(key.scope, sorted(await turns.known(key.scope) - recorded))
        return count

    async def _remember(
        self,
        turns: TurnIndex,
        key: ConversationKey,
        entries: dict[str, list[TranscriptEntry]],
        previous: str,
        *,
        anew: bool,
    ) -> int:
        """Store the turns of *entries*, which follow the turn *previous*; return how many were stored."""
        memories = []
        for turn_id, of_turn in entries.items():
            if (memory := memory_of(key, turn_id, of_turn, previous)) is not None:
                memories.append(memory)
            previous = turn_id
        count = 0
        for start in range(0, len(memories), TURNS_TOGETHER):
            some = memories[start : start + TURNS_TOGETHER]
            lacking = some if anew else await turns.lacking(some)
            if lacking:
                await turns.remember(lacking)
            count += len(lacking)
        return count

    def workspaces_with_logs(self) -> list[str]:
        """Return the workspaces under DATA_DIR that have chat logs, whether or not Redis knows them. Blocking."""
        return sorted(path.parent.parent.name for path in (self._data_dir / "workspaces").glob("*/logs/chats"))

    async def restore(self, scope: Scope, done: RestoreCounts, tell: ProgressCallback, *, dry_run: bool) -> None:
        """Put entries of the chat logs under DATA_DIR that Redis lacks back into the transcripts; add to *done*.

        A workspace that Redis has lost is created. Raises `StoreUnavailable` and `OSError`.
        """
        await self._copy.flush()  # turns that were forgotten have to leave the files first
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
