"""Material for the model: put by admins, given to turns whole or searched, and kept in step in the index.

What was rendered and counted when it was put is only read in a turn; its texts are read when they changed, once in a
process, and are the same objects from then on.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import structlog

from config.settings import Settings
from connectors.message import AgentRuntimeError, Scope, StoreUnavailable
from grounding.codex import (
    SCOPE,
    SEARCH_CODEX,
    Chosen,
    CodexEntry,
    CodexStore,
    CodexTooNew,
    Holding,
    Room,
    Size,
    choose,
    shown_path,
    size_of,
)
from grounding.pipeline import why
from grounding.prompt import CODEX_FRAME, codex_text, file_text, passages_room, room_tokens
from grounding.prompt_input import Budgets, CodexFile, CodexInput, DegradedBlock, Injected, ModelMemory, Passage, Tokens
from grounding.retrieval import EmbedderUnavailable, IndexUnavailable
from runtime.coordination import Hub, News
from runtime.search import Collection, Knowledge, tell_index_failed
from runtime.turns.tools import OfferedTools, Tooling
from runtime.turns.turn_state import Question
from runtime.workspaces import Workspaces

REMEMBERED_CHARACTERS = 32_000_000
"""Texts that are kept in memory, of the places that were asked about last."""
_LOOK_SECONDS = 30.0
"""News of a change may be lost: then it is seen after so long."""
_QUIET_SECONDS = 0.25
"""Many files are put one after the other: they are indexed together, and not while each is put."""
_ATTEMPTS = 3
TOPIC = "codex"
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Read:
    """The texts of one revision of a workspace's material and of a context's; of none, if it changed all the while
    it was read."""

    revision: tuple[str, str] | None
    holding: Holding
    files: tuple[CodexFile, ...]
    characters: int


class Materials:
    """The material of all workspaces. Raises `StoreUnavailable` throughout."""

    def __init__(self, settings: Settings, store: CodexStore, knowledge: Knowledge, tokens: Tokens, hub: Hub) -> None:
        self.store = store
        self._knowledge = knowledge
        self._tokens = tokens
        self._hub = hub
        self._ratio = settings.codex_window_ratio
        self._frame = size_of(CODEX_FRAME, tokens)
        self._read: OrderedDict[tuple[str, str | None], _Read] = OrderedDict()
        self._reading: dict[tuple[str, str | None], asyncio.Lock] = {}

    async def put(self, scope: Scope, path: str, raw: bytes) -> CodexEntry:
        """Keep a file of the scope's own material.

        Raises `DocumentRefused` and `grounding.codex.codex.CodexFull`.
        """
        text = self.store.readable(path, raw)
        rendered = file_text(shown_path(scope, path), text) + "\n"
        size = await asyncio.to_thread(size_of, rendered, self._tokens)
        entry = await self.store.put(scope, path, text, size)
        await self._hub.tell(TOPIC, {"workspace_id": scope.workspace_id})
        return entry

    async def delete(self, scope: Scope, path: str) -> None:
        """Raises `DocumentMissing` and `DocumentRefused`."""
        await self.store.delete(scope, path)
        await self._hub.tell(TOPIC, {"workspace_id": scope.workspace_id})

    def size(self, holding: Holding) -> Size:
        """What *holding* takes when it is given whole."""
        return self._frame + holding.every.size + holding.own.size

    def chosen(self, holding: Holding, room: Room) -> Chosen:
        """How *holding* is given if there is *room*."""
        return choose(self.size(holding), room, self._ratio, holding.before)

    async def given(self, scope: Scope, holding: Holding, room: Room, *, keep: bool) -> CodexInput | None:
        """*holding*, as it is given if there is *room*; None if there is nothing. With *keep* the next turn is
        told what was chosen."""
        files: tuple[CodexFile, ...] = ()
        if holding.files and self.chosen(holding, room).mode == "whole":
            read = await self._texts(scope, holding)
            # Where it changed since *holding* was read, it is judged by what it has become.
            files, holding = read.files, replace(read.holding, before=holding.before)
        if not holding.files:
            return None
        chosen, size = self.chosen(holding, room), self.size(holding)
        if keep and chosen.mode != (holding.before or "whole"):
            with suppress(StoreUnavailable):  # it only steadies what comes next
                await self.store.keep_mode(scope, room.window, chosen.mode)
        return CodexInput(
            mode=chosen.mode,
            why=chosen.why,
            tokens=size.tokens,
            weight=size.weight,
            limit=chosen.limit,
            count=holding.files,
            files=files if chosen.mode == "whole" else (),
        )

    async def _texts(self, scope: Scope, holding: Holding) -> _Read:
        """The texts of *holding*, by path; the same objects as long as nothing changes."""
        place = (scope.workspace_id, scope.context_id if holding.own.files else None)
        revision = _revision(holding)
        async with self._reading.setdefault(place, asyncio.Lock()):
            read = self._read.get(place)
            if read is None or read.revision != revision:
                read = await self._read_anew(scope, holding)
                self._remember(place, read)
            self._read.move_to_end(place)
            return read

    async def _read_anew(self, scope: Scope, holding: Holding) -> _Read:
        """What *holding* says, or what there is now if it changes while it is read."""
        revision: tuple[str, str] | None = None
        for _ in range(_ATTEMPTS):
            files = []
            for owner, held in ((Scope(scope.workspace_id), holding.every), (scope, holding.own)):
                if held.files:
                    texts = await self.store.texts(owner, list(await self.store.entries(owner)))
                    files += [CodexFile(path=shown_path(owner, path), text=text) for path, text in texts.items()]
            now = await self.store.held(scope)
            if _revision(now) == _revision(holding):
                revision = _revision(now)
                break
            holding = now
        ordered = tuple(sorted(files, key=lambda file: file.path))
        await asyncio.to_thread(codex_text, ordered)  # remembered there
        return _Read(revision, holding, ordered, sum(len(file.text) for file in ordered))

    def _remember(self, place: tuple[str, str | None], read: _Read) -> None:
        self._read[place] = read
        kept = sum(one.characters for one in self._read.values())
        while kept > REMEMBERED_CHARACTERS and len(self._read) > 1:
            oldest, gone = next((name, one) for name, one in self._read.items() if name != place)
            del self._read[oldest]
            self._reading.pop(oldest, None)
            kept -= gone.characters

    async def find(
        self, scope: Scope, query: str, top_k: int, excerpt_bytes: int, max_tokens: int
    ) -> tuple[list[Passage], bool]:
        """See `grounding.codex.codex.FindsMaterial`."""
        answering = await self._knowledge.collections.answering(scope)
        behind = await self._lacks(answering, scope)
        if behind:  # the one that is being filled while that of another model answers may have all of it by now
            with suppress(IndexUnavailable):
                target = await self._knowledge.ready()
                if target.name != answering.name and not await self._lacks(target, scope):
                    return await self._found(target, scope, query, top_k, excerpt_bytes, max_tokens), True
        found = await self._found(answering, scope, query, top_k, excerpt_bytes, max_tokens, behind=behind)
        return found, not behind

    async def _found(
        self,
        collection: Collection,
        scope: Scope,
        query: str,
        top_k: int,
        excerpt_bytes: int,
        max_tokens: int,
        *,
        behind: bool = False,
    ) -> list[Passage]:
        """What *collection* has. If it is *behind*, what was removed or changed is left out: that is in no further
        prompt, however long the index takes to follow."""
        found = await collection.material_search.passages(scope, query, top_k, excerpt_bytes, max_tokens)
        if not behind:
            return found
        still = await collection.material.unchanged(scope, {one.source for one in found})
        return [one for one in found if one.source in still]

    async def is_behind(self, scope: Scope) -> bool:
        """Whether not all of the material can be found yet. Raises `IndexUnavailable`."""
        return await self._lacks(await self._knowledge.ready(), scope)

    async def _lacks(self, collection: Collection, scope: Scope) -> bool:
        """Whether *collection* has not all of it as it is now."""
        holding = await self.store.held(scope)
        revisions = {Scope(scope.workspace_id): holding.every.revision}
        if scope.context_id:
            revisions[Scope(scope.workspace_id, scope.context_id)] = holding.own.revision
        return await collection.material.is_behind(scope, revisions)


def _revision(holding: Holding) -> tuple[str, str]:
    return holding.every.revision, holding.own.revision


class MaterialFollowing:
    """Keeps the index in step with the material of all workspaces."""

    def __init__(self, store: CodexStore, knowledge: Knowledge, workspaces: Workspaces, hub: Hub) -> None:
        self._store = store
        self._knowledge = knowledge
        self._workspaces = workspaces
        self._changed = asyncio.Event()
        self._owed: set[str] = set()
        """Workspaces that were looked at in vain, also if the store could not be told."""
        hub.hear(TOPIC, self._hear)

    def _hear(self, news: News) -> None:
        self._changed.set()

    async def run(self) -> None:
        """Until cancelled. All workspaces are looked at once: the index may be a new one."""
        await self._knowledge.opened()
        begun = False
        while True:
            self._changed.clear()
            try:
                if not begun:
                    self._owed.update([workspace.id for workspace in await self._workspaces.all()])
                    begun = True
                await self._follow()
            except Exception as error:  # noqa: BLE001 - see `tell_index_failed`
                tell_index_failed(error)
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._changed.wait()
                    await asyncio.sleep(_QUIET_SECONDS)

    async def _follow(self) -> None:
        collection = await self._knowledge.ready()
        for workspace_id in sorted({*await self._store.waiting(), *self._owed}):
            self._owed.add(workspace_id)
            await self._store.wait_no_more(workspace_id)
            try:
                files = await collection.material.sync(Scope(workspace_id))
            except (EmbedderUnavailable, CodexTooNew) as error:  # others' may be indexed
                await self._store.wait_again(workspace_id)
                _log.warning("index.failed", workspace_id=workspace_id, why=str(error))
                continue
            except (IndexUnavailable, StoreUnavailable):
                await self._store.wait_again(workspace_id)
                raise
            except Exception as error:  # noqa: BLE001 - see `tell_index_failed`
                await self._store.wait_again(workspace_id)
                tell_index_failed(error, workspace_id=workspace_id)
                continue
            self._owed.discard(workspace_id)
            if files:
                self._knowledge.note_stored(Scope(workspace_id))
                _log.info("codex.indexed", workspace_id=workspace_id, files=files)


BESIDE_CHARACTERS = 20_000
"""Of a prompt, for everything but material, directives and what formatters put in: a message of 8,000 bytes, and twice
the characters that English has in the tokens of the system message's other blocks."""
BESIDE_MESSAGES = 2
"""Of a window everything else is left so many messages of the longest kind: the blocks before a message leave it at
least half of what there is beside directives and material (`grounding.prompt_input.budgets.message_reserve`). With
less room than
their budgets they are cut, which material is not."""
NO_LIMIT = 2**40
MEMORY_STEPS = 8
"""Of a window: memory decides anew only when it is more or less by one of so many."""


@dataclass(frozen=True, slots=True)
class FoundMaterial:
    """What there is, as far as that could be found out."""

    holding: Holding | None = None
    degraded: tuple[DegradedBlock, ...] = ()


@dataclass(frozen=True, slots=True)
class MaterialRequest:
    """For whom: *window* is that of the model that is asked *first*; ``identity`` how it must behave, in
    ``identity_tokens``; ``offer`` the tools and ``injected`` the blocks that it has in any case. Without *keep* nothing
    is stored."""

    question: Question
    first: str | None
    budgets: Budgets
    identity: str
    identity_tokens: int
    offer: OfferedTools
    injected: Sequence[Injected]
    small_talk: bool
    keep: bool
    memory: ModelMemory | None = None
    """What there is for the model's cache, if that is known."""


@dataclass(frozen=True, slots=True)
class ChosenMaterial:
    """``input`` is None if there is no material; ``offer`` are all tools of the turn."""

    offer: OfferedTools
    input: CodexInput | None = None
    passages: tuple[Passage, ...] = ()
    degraded: tuple[DegradedBlock, ...] = ()


class MaterialChooser:
    """Keeps nothing between turns."""

    def __init__(self, settings: Settings, materials: Materials, tooling: Tooling) -> None:
        self._timeout_seconds = settings.redis_timeout_seconds
        self._materials = materials
        self._tooling = tooling

    async def look(self, scope: Scope, window: int) -> FoundMaterial:
        """What there is in *scope*, for a model of *window* tokens. One command, beside what else a turn asks."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return FoundMaterial(await self._materials.store.held(scope, window))
        except (AgentRuntimeError, TimeoutError) as error:
            return FoundMaterial(degraded=(DegradedBlock(block="codex", why=why(error)),))

    async def attach(self, looked: FoundMaterial, turn: MaterialRequest, *, crowded: bool = False) -> ChosenMaterial:
        """What of it *turn* is given; if it is *crowded* it is not given whole. What fails is named, and the turn
        goes on without."""
        if looked.holding is None or not looked.holding.files:
            return ChosenMaterial(turn.offer, degraded=looked.degraded)
        if not self._tooling.sigil(turn.question).allows(SCOPE):
            return ChosenMaterial(turn.offer, self._withheld(looked.holding))
        scope = turn.question.key.scope
        try:
            room = replace(room_of(turn), is_crowded=crowded)
            given = await self._materials.given(scope, looked.holding, room, keep=turn.keep)
        except AgentRuntimeError as error:
            return ChosenMaterial(turn.offer, degraded=(DegradedBlock(block="codex", why=why(error)),))
        if given is None or given.mode == "whole" or turn.small_talk:
            return ChosenMaterial(turn.offer, given)
        offer = await self._tooling.offer(
            turn.question, window_tokens=turn.budgets.window_tokens, first=turn.first, with_material=True
        )
        if SEARCH_CODEX in offer.tools:
            return ChosenMaterial(offer, given)
        passages, degraded = await self._found(scope, turn)
        return ChosenMaterial(turn.offer, given, passages, degraded)

    def _withheld(self, holding: Holding) -> CodexInput:
        """What is told of *holding* if it may not be read for whoever asks."""
        size = self._materials.size(holding)
        return CodexInput(
            mode="withheld",
            why="sigil",
            tokens=size.tokens,
            weight=size.weight,
            limit=0,
            count=holding.files,
        )

    async def _found(
        self, scope: Scope, turn: MaterialRequest
    ) -> tuple[tuple[Passage, ...], tuple[DegradedBlock, ...]]:
        """For a model that cannot search: what bears on the message."""
        budgets, text = turn.budgets, turn.question.text
        try:
            found, is_whole = await self._materials.find(
                scope, text, budgets.top_k, budgets.excerpt_bytes, passages_room(budgets.retrieved_tokens)
            )
        except AgentRuntimeError as error:
            return (), (DegradedBlock(block="codex", why=why(error)),)
        return tuple(found), () if is_whole else (DegradedBlock(block="codex", why="indexing"),)


def merged(
    documents: Sequence[Passage], attached: ChosenMaterial, top_k: int
) -> tuple[tuple[Passage, ...], CodexInput | None]:
    """The best of both, and how many of them are material."""
    if attached.input is None or not attached.passages:
        return tuple(documents), attached.input
    best = sorted([*attached.passages, *documents], key=lambda one: -one.score)[:top_k]
    count = sum(1 for one in best if one in attached.passages)
    return tuple(best), attached.input.model_copy(update={"retrieved": count})


def room_of(turn: MaterialRequest) -> Room:
    """What there is room for in *turn*, whatever is asked."""
    budgets = turn.budgets
    beside = [one for one in turn.injected if one.message == "system"]
    return Room(
        budgets.window_tokens,
        budgets.output_tokens,
        turn.identity_tokens
        + turn.offer.tokens
        + BESIDE_MESSAGES * budgets.query_tokens
        + sum(one.budget for one in beside),
        _characters(turn, beside),
        room_tokens(turn.memory, max(1, budgets.window_tokens // MEMORY_STEPS)) if turn.memory is not None else None,
    )


def _characters(turn: MaterialRequest, beside: Sequence[Injected]) -> int:
    """What material may have of them: what a limit for the whole prompt leaves, else any number."""
    if not turn.budgets.bounds_material:
        return NO_LIMIT
    taken = len(turn.identity) + BESIDE_CHARACTERS + sum(len(one.text) for one in beside)
    return max(0, turn.budgets.prompt_characters - taken)
