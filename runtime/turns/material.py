"""Codex material: stored by admins, put into prompts whole or searched, and followed by the index.

A file is rendered and counted when it is stored, not in a turn. Its text is read once per process and revision; after
that every turn gets the same objects.
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
from connectors.redis_calls import Answer, RoundTrip
from grounding.codex import (
    SCOPE,
    SEARCH_CODEX,
    Chosen,
    CodexEntry,
    CodexStore,
    MaterialTotals,
    Room,
    Size,
    choose,
    prompt_path,
    size_of,
)
from grounding.pipeline import error_word
from grounding.prompt import CODEX_FRAME, codex_text, file_text, passages_room, room_tokens
from grounding.prompt_input import (
    CodexFile,
    CodexInput,
    DegradedBlock,
    Injected,
    ModelMemory,
    Passage,
    PromptLimits,
    Tokens,
)
from grounding.retrieval import IndexUnavailable
from runtime.coordination import Hub, News
from runtime.search import Collection, Knowledge, log_index_error
from runtime.turns.tools import OfferedTools, Tooling
from runtime.turns.turn_state import Question
from runtime.workspaces import Workspaces

REMEMBERED_CHARACTERS = 32_000_000
"""The limit of the texts in memory. Those of the places that were used last stay."""
RESERVED_CHARACTERS = 20_000
"""The characters of a prompt that are reserved for everything but material, directives and formatters' blocks: a
message of 8,000 bytes, and twice the characters that English has in the tokens of the system message's other blocks."""
RESERVED_MESSAGES = 2
"""The window that is reserved for the other blocks, in messages of the longest kind: the blocks before a message leave
it at least half of what remains beside directives and material (`grounding.prompt_input.budgets.message_reserve`). With
less room than their budgets they are cut; material never is."""
NO_LIMIT = 2**40
MEMORY_STEPS = 8
"""The model's free memory counts in steps of this part of a window, so that small changes decide nothing."""
_FOLLOW_SECONDS = 30.0
"""How often the index looks for changes without news: news may be lost."""
_QUIET_SECONDS = 0.25
"""The pause after news of a change: files that are stored one after the other are indexed together."""
_ATTEMPTS = 3
TOPIC = "codex"
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Texts:
    """The texts of one revision of the material in a place: the workspace's and the context's own. ``revision`` is None
    if the material changed during every attempt to read it."""

    revision: tuple[str, str] | None
    holding: MaterialTotals
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
        self._cache: OrderedDict[tuple[str, str | None], _Texts] = OrderedDict()
        self._locks: dict[tuple[str, str | None], asyncio.Lock] = {}

    async def put(self, scope: Scope, path: str, raw: bytes) -> CodexEntry:
        """Store a file of the scope's own material and have it indexed.

        Raises `DocumentRefused` and `grounding.codex.codex.CodexFull`.
        """
        text = self.store.readable(path, raw)
        rendered = file_text(prompt_path(scope, path), text) + "\n"
        size = await asyncio.to_thread(size_of, rendered, self._tokens)
        entry = await self.store.put(scope, path, text, size)
        await self._hub.tell(TOPIC, {"workspace_id": scope.workspace_id})
        return entry

    async def delete(self, scope: Scope, path: str) -> None:
        """Delete a file of the scope's own material. Raises `DocumentMissing` and `DocumentRefused`."""
        await self.store.delete(scope, path)
        await self._hub.tell(TOPIC, {"workspace_id": scope.workspace_id})

    def size(self, holding: MaterialTotals) -> Size:
        """Return the size of *holding* in a prompt that has it whole."""
        return self._frame + holding.every.size + holding.own.size

    def chosen(self, holding: MaterialTotals, room: Room) -> Chosen:
        """Decide whether *holding* goes into a prompt whole, if there is *room*."""
        return choose(self.size(holding), room, self._ratio, holding.before)

    async def given(self, scope: Scope, holding: MaterialTotals, room: Room, *, keep: bool) -> CodexInput | None:
        """Return the prompt's input about *holding*, with its texts if it goes in whole; None if there is no material.

        With *keep* the choice is stored, so that the next turn does not change it for a small difference.
        """
        files: tuple[CodexFile, ...] = ()
        if holding.files and self.chosen(holding, room).mode == "whole":
            texts = await self._texts(scope, holding)
            # If the material changed since *holding* was read, its present size decides.
            files, holding = texts.files, replace(texts.holding, before=holding.before)
        if not holding.files:
            return None
        chosen, size = self.chosen(holding, room), self.size(holding)
        if keep and chosen.mode != (holding.before or "whole"):
            with suppress(StoreUnavailable):  # without it the next turn decides from scratch
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

    async def _texts(self, scope: Scope, holding: MaterialTotals) -> _Texts:
        """Return the texts of *holding*, sorted by path: the same objects as long as nothing changes."""
        place = (scope.workspace_id, scope.context_id if holding.own.files else None)
        async with self._locks.setdefault(place, asyncio.Lock()):
            texts = self._cache.get(place)
            if texts is None or texts.revision != _revision(holding):
                texts = await self._read_texts(scope, holding)
                self._add_to_cache(place, texts)
            self._cache.move_to_end(place)
            return texts

    async def _read_texts(self, scope: Scope, holding: MaterialTotals) -> _Texts:
        """Read the texts of *holding*, or of a newer revision if the material changes meanwhile."""
        revision: tuple[str, str] | None = None
        for _ in range(_ATTEMPTS):
            files = []
            for owner, part in ((Scope(scope.workspace_id), holding.every), (scope, holding.own)):
                if part.files:
                    texts = await self.store.texts(owner, list(await self.store.entries(owner)))
                    files += [CodexFile(path=prompt_path(owner, path), text=text) for path, text in texts.items()]
            newest = await self.store.held(scope)
            if _revision(newest) == _revision(holding):
                revision = _revision(newest)
                break
            holding = newest
        ordered = tuple(sorted(files, key=lambda file: file.path))
        await asyncio.to_thread(codex_text, ordered)  # it caches the rendered text
        return _Texts(revision, holding, ordered, sum(len(file.text) for file in ordered))

    def _add_to_cache(self, place: tuple[str, str | None], texts: _Texts) -> None:
        self._cache[place] = texts
        characters = sum(cached.characters for cached in self._cache.values())
        while characters > REMEMBERED_CHARACTERS and len(self._cache) > 1:
            oldest = next(name for name in self._cache if name != place)
            characters -= self._cache.pop(oldest).characters
            self._locks.pop(oldest, None)

    async def find(
        self, scope: Scope, query: str, top_k: int, excerpt_bytes: int, max_tokens: int
    ) -> tuple[list[Passage], bool]:
        """See `grounding.codex.codex.FindsMaterial`.

        If the index is behind, leaves out files that were removed or changed: they must be in no further prompt,
        however long the index takes to follow.
        """
        collection = await self._knowledge.collections.answering(scope)
        is_behind = await self._is_collection_behind(collection, scope)
        passages = await collection.material_search.passages(scope, query, top_k, excerpt_bytes, max_tokens)
        if is_behind:
            unchanged = await collection.material.unchanged(scope, {passage.source for passage in passages})
            passages = [passage for passage in passages if passage.source in unchanged]
        return passages, not is_behind

    async def is_behind(self, scope: Scope) -> bool:
        """Whether the index lacks some of the material yet. Raises `IndexUnavailable`."""
        return await self._is_collection_behind(await self._knowledge.ready(), scope)

    async def _is_collection_behind(self, collection: Collection, scope: Scope) -> bool:
        holding = await self.store.held(scope)
        revisions = {Scope(scope.workspace_id): holding.every.revision}
        if scope.context_id:
            revisions[Scope(scope.workspace_id, scope.context_id)] = holding.own.revision
        return await collection.material.is_behind(scope, revisions)


def _revision(holding: MaterialTotals) -> tuple[str, str]:
    return holding.every.revision, holding.own.revision


class MaterialIndexer:
    """Keeps the index in step with the material of all workspaces."""

    def __init__(self, store: CodexStore, knowledge: Knowledge, workspaces: Workspaces, hub: Hub) -> None:
        self._store = store
        self._knowledge = knowledge
        self._workspaces = workspaces
        self._changed = asyncio.Event()
        self._pending: set[str] = set()
        """Workspaces that are to be indexed or whose indexing failed, even if the store could not note that."""
        hub.hear(TOPIC, self._hear)

    def _hear(self, news: News) -> None:
        self._changed.set()

    async def run(self) -> None:
        """Index changed material until cancelled. First all workspaces are looked at: the index may be a new one."""
        await self._knowledge.opened()
        has_listed = False
        while True:
            self._changed.clear()
            try:
                if not has_listed:
                    self._pending.update([workspace.id for workspace in await self._workspaces.all()])
                    has_listed = True
                await self._index_pending()
            except Exception as error:  # noqa: BLE001 - see `log_index_error`
                log_index_error(error)
            with suppress(TimeoutError):
                async with asyncio.timeout(_FOLLOW_SECONDS):
                    await self._changed.wait()
                    await asyncio.sleep(_QUIET_SECONDS)

    async def _index_pending(self) -> None:
        collection = await self._knowledge.ready()
        for workspace_id in sorted({*await self._store.waiting(), *self._pending}):
            self._pending.add(workspace_id)
            await self._store.unmark_changed(workspace_id)
            try:
                files = await collection.material.sync(Scope(workspace_id))
            except Exception as error:
                await self._store.mark_changed(workspace_id)
                if isinstance(error, IndexUnavailable | StoreUnavailable):
                    raise
                log_index_error(error, workspace_id=workspace_id)  # other workspaces may succeed
                continue
            self._pending.discard(workspace_id)
            if files:
                self._knowledge.stored.set()
                _log.info("codex.indexed", workspace_id=workspace_id, files=files)


@dataclass(frozen=True, slots=True)
class MaterialRequest:
    """The turn that material is chosen for. ``first`` is the model that is asked first, ``identity`` the directives'
    text; ``offer`` are the tools and ``injected`` the blocks that the turn has in any case. Without ``keep`` nothing is
    stored."""

    question: Question
    first: str | None
    budgets: PromptLimits
    identity: str
    identity_tokens: int
    offer: OfferedTools
    injected: Sequence[Injected]
    small_talk: bool
    keep: bool
    memory: ModelMemory | None = None
    """The memory for the model's cache, if it is known."""


@dataclass(frozen=True, slots=True)
class ChosenMaterial:
    """``input`` is None if there is no material; ``offer`` are all tools of the turn."""

    offer: OfferedTools
    input: CodexInput | None = None
    passages: tuple[Passage, ...] = ()
    degraded: tuple[DegradedBlock, ...] = ()


class MaterialChooser:
    """Chooses for each turn whether its prompt gets material whole, by a search tool or as passages. Keeps nothing
    between turns."""

    def __init__(self, materials: Materials, tooling: Tooling) -> None:
        self._materials = materials
        self._tooling = tooling

    def read(self, trip: RoundTrip, scope: Scope, window: int) -> Answer[MaterialTotals]:
        """Add to *trip* the call that reads what material *scope* has. *window* is the model's, in tokens."""
        return trip.add(self._materials.store.held_call(scope, window))

    async def attach(
        self, totals: Answer[MaterialTotals], turn: MaterialRequest, *, crowded: bool = False
    ) -> ChosenMaterial:
        """Choose the material of *turn*, of which there is *totals* (see `read`). If the prompt is *crowded*, none goes
        in whole. A failure is named in ``degraded``, and the turn goes on without material."""
        scope = turn.question.key.scope
        try:
            holding = totals.result()
            if not holding.files:
                return ChosenMaterial(turn.offer)
            if not self._tooling.sigil(turn.question).allows(SCOPE):
                return ChosenMaterial(turn.offer, self._withheld(holding))
            room = replace(material_room(turn), is_crowded=crowded)
            codex = await self._materials.given(scope, holding, room, keep=turn.keep)
        except Exception as error:  # noqa: BLE001 - a lost layer degrades the turn, whatever broke it
            return ChosenMaterial(turn.offer, degraded=(DegradedBlock(block="codex", why=error_word(error)),))
        if codex is None or codex.mode == "whole" or turn.small_talk:
            return ChosenMaterial(turn.offer, codex)
        offer = await self._tooling.offer(
            turn.question, window_tokens=turn.budgets.window_tokens, first=turn.first, with_material=True
        )
        if SEARCH_CODEX in offer.tools:
            return ChosenMaterial(offer, codex)
        passages, degraded = await self._search(scope, turn)
        return ChosenMaterial(turn.offer, codex, passages, degraded)

    def _withheld(self, holding: MaterialTotals) -> CodexInput:
        """Return the input for a turn whose sigil does not allow reading *holding*: its size only."""
        size = self._materials.size(holding)
        return CodexInput(
            mode="withheld",
            why="sigil",
            tokens=size.tokens,
            weight=size.weight,
            limit=0,
            count=holding.files,
        )

    async def _search(
        self, scope: Scope, turn: MaterialRequest
    ) -> tuple[tuple[Passage, ...], tuple[DegradedBlock, ...]]:
        """Find passages for the message, for a model that cannot call the search tool."""
        budgets, text = turn.budgets, turn.question.text
        try:
            passages, is_complete = await self._materials.find(
                scope, text, budgets.top_k, budgets.excerpt_bytes, passages_room(budgets.retrieved_tokens)
            )
        except AgentRuntimeError as error:
            return (), (DegradedBlock(block="codex", why=error_word(error)),)
        return tuple(passages), () if is_complete else (DegradedBlock(block="codex", why="indexing"),)


def merged(
    documents: Sequence[Passage], attached: ChosenMaterial, top_k: int
) -> tuple[tuple[Passage, ...], CodexInput | None]:
    """Return the *top_k* best passages of documents and material, and the codex input with the number of those that are
    material.

    The order is by score. It is exact if a reranker read the passages of both searches. If not, it is rough, because
    the scores of two searches are on the scales of their own candidates; but both searches are fused in the same way,
    and every passage is relevant, so that a worse choice is still one of relevant passages.
    """
    if attached.input is None or not attached.passages:
        return tuple(documents), attached.input
    best = sorted([*attached.passages, *documents], key=lambda passage: -passage.score)[:top_k]
    count = sum(1 for passage in best if passage in attached.passages)
    return tuple(best), attached.input.model_copy(update={"retrieved": count})


def material_room(turn: MaterialRequest) -> Room:
    """Return the room that *turn* has for material. It does not depend on the message, so that the choice is steady."""
    budgets = turn.budgets
    injected = [block for block in turn.injected if block.message == "system"]
    return Room(
        budgets.window_tokens,
        budgets.output_tokens,
        turn.identity_tokens
        + turn.offer.tokens
        + RESERVED_MESSAGES * budgets.query_tokens
        + sum(block.budget for block in injected),
        _characters(turn, injected),
        room_tokens(turn.memory, max(1, budgets.window_tokens // MEMORY_STEPS)) if turn.memory is not None else None,
    )


def _characters(turn: MaterialRequest, injected: Sequence[Injected]) -> int:
    """Return the characters that a limit of the whole prompt leaves for material; `NO_LIMIT` if there is no limit."""
    if not turn.budgets.bounds_material:
        return NO_LIMIT
    reserved = len(turn.identity) + RESERVED_CHARACTERS + sum(len(block.text) for block in injected)
    return max(0, turn.budgets.prompt_characters - reserved)
