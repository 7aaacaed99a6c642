"""One collection of passages: its index, what embeds for it, and all that asks or fills it."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from config.settings import BUNDLED_EMBEDDING_MODELS, Settings
from connectors.message import AgentRuntimeError, ConversationKey, Scope, StoreUnavailable
from grounding.codex import CodexIndex, CodexStore
from grounding.documents import Backlog, Catalogue, Exclusive, Identity, Indexer, Lacks, Shelf
from grounding.memory.records import RecordIndex, RecordStore
from grounding.prompt_input import DegradedBlock
from grounding.retrieval import (
    ContextField,
    CountTokens,
    Deeper,
    Embedder,
    EmbedderUnavailable,
    Fusion,
    IndexUnavailable,
    Kind,
    Memory,
    PassageIndex,
    Reranker,
    Search,
    Turns,
    Vector,
    Vocabulary,
)
from runtime.coordination import KEY as LEADER
from runtime.embedded.index_client import IndexProcess, RemoteIndex
from runtime.llm import LiteLLMEmbedder, bundled_embedders

if TYPE_CHECKING:
    from redis.asyncio import Redis


# ---- doubts ----
#
# Whether what a search finds may be out of date: cheap enough to be asked in every turn.


STALE = "index_stale"
"""Documents changed, and the index does not have them yet."""
REBUILDING = "index_rebuilding"
"""The index of this embedding model is being filled, and has less than half of the documents; or a former model's
answers until then, and could not be told of a change, or be asked by more than words."""
LOOK_SECONDS = 1.0
"""How long what was seen of a workspace is not asked for again."""
LEADERLESS_SECONDS = 20.0
"""How long nobody may follow the files before that counts: a lease passes on within 15."""
APART = (
    "another process with the same Redis follows the documents, for an index of its own, and nobody for the one that "
    "is embedded here"
)
_REMEMBERED = 1000
log = structlog.get_logger()


class Doubts:
    """Of the workspaces in which something is searched."""

    def __init__(
        self,
        redis: Redis,
        backlog: Backlog,
        stale_seconds: float,
        *,
        is_shared: bool,
        own: str = "",
        now: Callable[[], float] = time.time,
    ) -> None:
        """*own* is the name of this process where its index is no other one's: whoever follows the files fills its own
        alone."""
        self._redis = redis
        self._backlog = backlog
        self._stale_seconds = stale_seconds
        self._is_shared = is_shared
        self._own = own
        self._now = now
        self._since: dict[str, float] = {}
        """Since when the oldest change of a workspace waits, in seconds since the epoch; 0 if none does."""
        self._looked: dict[str, float] = {}
        self._leaderless_since: float | None = None
        self._apart_since: float | None = None
        self._is_told = False

    async def look(self, scope: Scope) -> None:
        """See how the workspace is, if that was not seen just now. Never raises: without Redis there is no turn."""
        now, workspace_id = self._now(), scope.workspace_id
        if now - self._looked.get(workspace_id, 0.0) < LOOK_SECONDS:
            return
        if len(self._looked) >= _REMEMBERED:
            self._looked.clear()
            self._since.clear()
        self._looked[workspace_id] = now
        try:
            (waiting,) = await self._backlog.waiting([scope])
            has_leader = not self._is_shared or await self.look_for_leader()
        except StoreUnavailable:
            return
        self._since[workspace_id] = waiting.since
        if has_leader:
            self._leaderless_since = None
        elif self._leaderless_since is None:
            self._leaderless_since = now

    async def look_for_leader(self) -> bool:
        """Whether a process follows the files; `is_apart` is known from then on. Raises `StoreUnavailable`."""
        leader = await self._redis.get(LEADER)
        if not (self._own and leader) or leader == self._own:
            self._apart_since = None
        elif self._apart_since is None:
            self._apart_since = self._now()
        if self.is_apart and not self._is_told:
            log.warning("store.degraded", store="qdrant", why=APART)
        self._is_told = self.is_apart
        return bool(leader)

    @property
    def is_apart(self) -> bool:
        """Whether another process follows the files, and fills another index than this one's: for so long that it is
        not one that ended and whose lease runs out."""
        return self._apart_since is not None and self._now() - self._apart_since > LEADERLESS_SECONDS

    async def why_apart(self) -> str:
        """What is wrong where it `is_apart`; empty where it is not. Never raises."""
        if self._own:
            with suppress(StoreUnavailable):  # which is told of Redis
                await self.look_for_leader()
        return APART if self.is_apart else ""

    def doubt(self, scope: Scope) -> str:
        """`STALE`, or empty where nothing is known against what was found."""
        now, since = self._now(), self._since.get(scope.workspace_id, 0.0)
        return STALE if self.is_unfollowed or (since and now - since > self._stale_seconds) else ""

    @property
    def is_unfollowed(self) -> bool:
        """Whether nobody followed the files for too long, or for another index alone."""
        if self._leaderless_since is not None and self._now() - self._leaderless_since > LEADERLESS_SECONDS:
            return True
        return self.is_apart


def with_doubt(noted: Sequence[DegradedBlock], doubt: str) -> list[DegradedBlock]:
    """*noted* and *doubt*, if that says more."""
    said = any(one.block == "retrieved" for one in noted)
    return [*noted, *([DegradedBlock(block="retrieved", why=doubt)] if doubt and not said else [])]


# ---- collection ----


MUTE_SECONDS = 30.0
"""How long the model of a former collection is not asked again after it failed: until then words alone are searched."""


@dataclass(frozen=True, slots=True)
class Collection:
    """The collection of *identity*. Nothing is opened before it is asked for the first time."""

    identity: Identity
    index: PassageIndex
    embedder: Embedder
    search: Search
    vocabulary: Vocabulary
    turns: Turns
    contexts: ContextField
    records: RecordIndex
    material: CodexIndex
    material_search: Search
    indexer: Indexer

    @property
    def name(self) -> str:
        return self.identity.name


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes collections of what is common to all of them. Its methods block: they import an adapter's package."""

    settings: Settings
    redis: Redis
    shelf: Shelf
    count: CountTokens
    backlog: Backlog
    exclusive: Exclusive
    reranker: Reranker | None
    material: CodexStore
    deep: Deeper | None = None
    """The model of deeper vectors, which the collection of the model that is set has."""
    engine: IndexProcess | None = None
    """The process that has the embedded engine; without it this one has it."""

    def target(self, embedder: Embedder) -> Collection:
        """The collection of the model that is set."""
        return self._made(identity_of(embedder), embedder, is_former=False)

    def former(self, identity: Identity) -> Collection:
        """That of another model: where a question cannot be embedded, words alone are searched, and that is named."""
        return self._made(identity, former_embedder(self.settings, identity), is_former=True)

    def _made(self, identity: Identity, embedder: Embedder, *, is_former: bool) -> Collection:
        deep, words_alone = (None, REBUILDING) if is_former else (self.deep, "")
        index = adapter(self.settings, identity, deep.dimensions if deep else None, self.engine)
        backlog = None if is_former else self.backlog
        return Collection(
            identity,
            index,
            embedder,
            Search(index, embedder, count=self.count, reranker=self.reranker, words_alone=words_alone, deep=deep),
            Vocabulary(index, embedder),
            Turns(index, embedder, words_alone=words_alone),
            ContextField(index, embedder, words_alone=is_former),
            RecordIndex(index, embedder, RecordStore(self.redis), is_former=is_former),
            CodexIndex(self.material, index, embedder, self.count),
            Search(
                index,
                embedder,
                count=self.count,
                reranker=self.reranker,
                kind=Kind.CODEX,
                words_alone=words_alone,
                deep=deep,
            ),
            Indexer(
                self.shelf,
                index,
                embedder,
                self.redis,
                self.count,
                backlog=backlog,
                exclusive=self.exclusive,
                leaves=is_former,
            ),
        )


def identity_of(embedder: Embedder) -> Identity:
    """The collection of *embedder*."""
    return Identity(embedder.name, embedder.dimensions)


def default_identity() -> Identity:
    """The collection of the model that embeds where none is set."""
    return identity_of(bundled_embedders()[0])


def model_of(settings: Settings) -> str:
    """The name of the model that *settings* ask for, as it is in identities."""
    if settings.bundled_embedding_model is None:
        return str(settings.embedding_model)
    return bundled_embedders()[BUNDLED_EMBEDDING_MODELS.index(settings.bundled_embedding_model)].name


def former_embedder(settings: Settings, identity: Identity) -> Embedder:
    """What embeds for the collection of *identity*, though another model is set now."""
    for model in bundled_embedders():
        if identity_of(model) == identity:
            return model
    return FormerEmbedder(settings, LiteLLMEmbedder(settings, identity.model, identity.dimensions))


def adapter(
    settings: Settings,
    identity: Identity,
    deep_dimensions: int | None = None,
    engine: IndexProcess | None = None,
) -> PassageIndex:
    """The index's adapter; its package is imported here, so that only the one in use costs anything. Blocking."""
    if settings.qdrant_url is None:
        about = settings.data_dir / "qdrant", identity.model, identity.dimensions
        how: dict[str, Any] = {
            "timeout_seconds": settings.qdrant_timeout_seconds,
            "fusion": Fusion.from_settings(settings),
            "version": identity.payload_version,
            "deep_dimensions": deep_dimensions,
        }
        if engine is not None:
            return RemoteIndex(engine, *about, **how)
        from grounding.retrieval.qdrant_edge import EmbeddedIndex

        return EmbeddedIndex(*about, **how)
    from grounding.retrieval.qdrant_server import ServerIndex

    key = settings.qdrant_api_key
    return ServerIndex(
        settings.qdrant_url,
        identity.model,
        identity.dimensions,
        timeout_seconds=settings.qdrant_timeout_seconds,
        api_key=key.get_secret_value() if key else None,
        fusion=Fusion.from_settings(settings),
        version=identity.payload_version,
        deep_dimensions=deep_dimensions,
    )


class FormerEmbedder:
    """A provider's model that is not the one that is set any more, and may be gone for good.

    A question waits for it for at most half of ``QDRANT_TIMEOUT_SECONDS``, so that the layer of a turn still has time
    to search by words; where it failed it is not asked for `MUTE_SECONDS`.
    """

    def __init__(self, settings: Settings, model: Embedder) -> None:
        self._model = model
        self._seconds = min(settings.embedding_timeout_seconds, settings.qdrant_timeout_seconds / 2)
        self._mute_until = 0.0

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def dimensions(self) -> int:
        return self._model.dimensions

    async def embed_documents(self, texts: Sequence[str]) -> list[Vector]:
        """Raises `EmbedderUnavailable`."""
        self._check()
        try:
            return await self._model.embed_documents(texts)
        except EmbedderUnavailable:
            self._fall_mute()
            raise

    async def embed_query(self, text: str) -> Vector:
        """Raises `EmbedderUnavailable`."""
        return (await self.embed_queries([text]))[0]

    async def embed_queries(self, texts: Sequence[str]) -> list[Vector]:
        """Raises `EmbedderUnavailable`."""
        self._check()
        try:
            async with asyncio.timeout(self._seconds):
                return await self._model.embed_queries(texts)
        except TimeoutError:
            self._fall_mute()
            raise EmbedderUnavailable(f"{self.name}: no answer in {self._seconds:g} s", retryable=True) from None
        except EmbedderUnavailable:
            self._fall_mute()
            raise

    def _check(self) -> None:
        if asyncio.get_running_loop().time() < self._mute_until:
            raise EmbedderUnavailable(f"{self.name} failed a moment ago", retryable=True)

    def _fall_mute(self) -> None:
        self._mute_until = asyncio.get_running_loop().time() + MUTE_SECONDS


# ---- formers ----
#
# The collections of passages that are not the one that is set, open for as long as somebody needs them.
#
# While another embedding model's collection is filled, a workspace is answered from the one before
# (`grounding.documents.catalogue`), and told what changes; and what is forgotten is forgotten in all that are left.


"""How long what was seen of a workspace is not asked for again."""
IDLE_SECONDS = 60.0
"""After which one that nobody needed is closed: an embedded one takes memory for all that is in it."""
TEND_SECONDS = 10.0
_log = structlog.get_logger()


@dataclass(slots=True)
class _Open:
    collection: Collection
    users: int = 0
    used: float = 0.0


class Formers:
    """*make* makes the collection of an identity, in a thread."""

    def __init__(self, catalogue: Catalogue, make: Callable[[Identity], Collection]) -> None:
        self._catalogue = catalogue
        self._make = make
        self._open: dict[str, _Open] = {}
        self._opening = asyncio.Lock()
        self._seen: dict[str, tuple[str, float]] = {}
        """By workspace the collection that answers it, and when that was seen."""

    @asynccontextmanager
    async def answering(self, scope: Scope, target: str) -> AsyncIterator[Collection | None]:
        """The collection that answers the scope's workspace; None where that is *target*, or cannot be asked. Raises
        nothing of its own."""
        name = await self._current(scope)
        if name in ("", target):
            yield None
            return
        try:
            opened = await self._opened(name)
        except (IndexUnavailable, StoreUnavailable) as error:
            _log.warning("store.degraded", store="qdrant", why=str(error))
            opened = None
        if opened is None:
            yield None
            return
        async with _using(opened) as collection:
            try:
                yield collection
            except IndexUnavailable:
                self._seen.pop(scope.workspace_id, None)  # another process may have dropped it
                raise

    @asynccontextmanager
    async def other_than(self, scope: Scope, model: str) -> AsyncIterator[Collection | None]:
        """The collection that answers the scope's workspace while that of *model* is not open yet; None where it may be
        that very one, which nobody must open twice. Raises nothing of its own."""
        try:
            identity = (await self._catalogue.known()).get(await self._catalogue.current(scope))
        except StoreUnavailable:
            identity = None
        if identity is None or identity.model == model:
            yield None
            return
        async with self.answering(scope, "") as former:
            yield former

    @asynccontextmanager
    async def using(self, name: str) -> AsyncIterator[Collection | None]:
        """The collection of that name; None if it is not there, or is nothing that this version reads. Raises
        `IndexUnavailable` and `StoreUnavailable`."""
        opened = await self._opened(name)
        if opened is None:
            yield None
            return
        async with _using(opened) as collection:
            yield collection

    def model_of(self, scope: Scope, target: str) -> str:
        """The model of the collection that answered the scope's workspace last; empty where that is *target*, or is not
        open. No look into the store."""
        name, _ = self._seen.get(scope.workspace_id, ("", 0.0))
        opened = None if name == target else self._open.get(name)
        return opened.collection.identity.model if opened is not None else ""

    def switched(self, scope: Scope) -> None:
        """Another collection answers the workspace now."""
        self._seen.pop(scope.workspace_id, None)

    async def drop(self, identity: Identity) -> bool:
        """Delete the collection, whatever it holds; False while somebody here still asks it. Raises
        `IndexUnavailable`."""
        async with self._opening:
            opened = self._open.get(identity.name)
            if opened is not None and opened.users:
                return False
            collection = opened.collection if opened else await asyncio.to_thread(self._make, identity)
            self._open.pop(identity.name, None)
            await collection.index.drop()
        return True

    async def tend(self, target: str) -> None:
        """Say that this process fills *target*, and close what nobody needs, until cancelled."""
        while True:
            with suppress(StoreUnavailable):  # said again in time
                await self._catalogue.keep(target)
            await self._close_idle(time.monotonic() - IDLE_SECONDS)
            await asyncio.sleep(TEND_SECONDS)

    async def close(self) -> None:
        """Close them all. Never raises."""
        for opened in self._open.values():
            await opened.collection.index.close()
        self._open.clear()

    async def _close_idle(self, before: float) -> None:
        async with self._opening:
            idle = [name for name, opened in self._open.items() if not opened.users and opened.used < before]
            for name in idle:
                await self._open.pop(name).collection.index.close()

    async def _current(self, scope: Scope) -> str:
        now, workspace_id = time.monotonic(), scope.workspace_id
        name, at = self._seen.get(workspace_id, ("", -LOOK_SECONDS))
        if now - at < LOOK_SECONDS:
            return name
        if len(self._seen) >= _REMEMBERED:
            self._seen.clear()
        try:
            name = await self._catalogue.current(scope)
        except StoreUnavailable:
            return name
        self._seen[workspace_id] = (name, now)
        return name

    async def _opened(self, name: str) -> _Open | None:
        async with self._opening:
            opened = self._open.get(name)
            if opened is None:
                identity = (await self._catalogue.known()).get(name)
                if identity is None or not identity.is_readable:
                    return None
                collection = await asyncio.to_thread(self._make, identity)
                if not await collection.index.exists():  # opened, an embedded one would be made, and be empty
                    await collection.index.close()
                    return None
                opened = self._open[name] = _Open(collection)
            opened.used = time.monotonic()
            return opened


@asynccontextmanager
async def _using(opened: _Open) -> AsyncIterator[Collection]:
    opened.users += 1
    try:
        yield opened.collection
    finally:
        opened.users -= 1
        opened.used = time.monotonic()


# ---- told ----
#
# What is said, noted and forgotten, told to every collection of passages that may have to answer with it.


class ToldTurns:
    """*turns* are those of *target*, the collection of the model that is set."""

    def __init__(self, target: str, turns: Turns, catalogue: Catalogue, formers: Formers) -> None:
        self._target = target
        self._turns = turns
        self._catalogue = catalogue
        self._formers = formers

    async def remember(self, memories: Sequence[Memory]) -> None:
        """See `grounding.retrieval.recall.Turns.remember`. Where a former collection still answers it is told too; what
        it does not take is written down, and named when it answers."""
        by_workspace: dict[str, list[Memory]] = defaultdict(list)
        for memory in memories:
            by_workspace[memory.scope.workspace_id].append(memory)
        for workspace_id, said in by_workspace.items():
            await self._tell_former(Scope(workspace_id), said)
        await self._turns.remember(memories)

    async def _tell_former(self, scope: Scope, said: Sequence[Memory]) -> None:
        async with self._formers.answering(scope, self._target) as former:
            if former is None:
                return
            try:
                await former.turns.remember(said)
            except (EmbedderUnavailable, IndexUnavailable) as error:
                _log.warning("index.failed", workspace_id=scope.workspace_id, why=str(error))
                await self._catalogue.fell_behind(scope, former.name, Lacks.TURNS)

    async def forget(self, scope: Scope, turn_ids: Sequence[str] | None = None) -> None:
        """See `grounding.retrieval.recall.Turns.forget`: in all collections that there are, also those that are only
        kept for a while. Raises `StoreUnavailable` too."""
        await self._turns.forget(scope, turn_ids)
        for name in (await self._catalogue.known()).keys() - {self._target}:
            async with self._formers.using(name) as former:
                if former is not None:
                    await former.turns.forget(scope, turn_ids)


class ToldContexts:
    """*field* is that of *target*, the collection of the model that is set."""

    def __init__(self, target: str, field: ContextField, catalogue: Catalogue, formers: Formers) -> None:
        self._target = target
        self._field = field
        self._catalogue = catalogue
        self._formers = formers

    async def put(self, key: ConversationKey, text: str, at: str) -> None:
        """See `grounding.retrieval.chunking.ContextField.put`. Where a former collection still answers it is told
        too; what it does not take is written down, and the version that it had is not found any more."""
        async with self._formers.answering(key.scope, self._target) as former:
            if former is not None:
                try:
                    await former.contexts.put(key, text, at)
                except (EmbedderUnavailable, IndexUnavailable) as error:
                    _log.warning("index.failed", workspace_id=key.workspace_id, why=str(error))
                    await self._catalogue.fell_behind(key.scope, former.name, Lacks.CONTEXTS)
                    with suppress(IndexUnavailable):
                        await former.contexts.forget(key)
        await self._field.put(key, text, at)

    async def forget(self, key: ConversationKey) -> None:
        """See `grounding.retrieval.chunking.ContextField.forget`: in all collections that there are. Raises
        `StoreUnavailable` too."""
        await self._field.forget(key)
        for name in (await self._catalogue.known()).keys() - {self._target}:
            async with self._formers.using(name) as former:
                if former is not None:
                    await former.contexts.forget(key)


class ToldRecords:
    """*records* are those of *target*, the collection of the model that is set."""

    def __init__(self, target: str, records: RecordIndex, catalogue: Catalogue, formers: Formers) -> None:
        self._target = target
        self._records = records
        self._catalogue = catalogue
        self._formers = formers

    async def follow(self, scope: Scope, ids: Sequence[str]) -> None:
        """See `grounding.memory.records.index.RecordIndex.follow`. Where a former collection still answers it follows
        too; what it does not take is written down. What is gone is forgotten in all collections that there are."""
        async with self._formers.answering(scope, self._target) as former:
            if former is not None:
                try:
                    await former.records.follow(scope, ids)
                except (EmbedderUnavailable, IndexUnavailable) as error:
                    _log.warning("index.failed", workspace_id=scope.workspace_id, why=str(error))
                    await self._catalogue.fell_behind(scope, former.name, Lacks.RECORDS)
        if gone := await self._records.gone(scope, ids):
            for name in (await self._catalogue.known()).keys() - {self._target}:
                async with self._formers.using(name) as kept:
                    if kept is not None:
                        await kept.records.forget(scope, gone)
        await self._records.follow(scope, ids)


# ---- unforeseen ----
#
# How work that goes on by itself tells what it could not do, and goes on.


def tell_index_failed(error: Exception, **of: str) -> None:
    """Tell what could not be indexed: whatever one file, turn or workspace breaks, the bot answers, and the others are
    seen to. What nobody foresaw is told with its traceback."""
    if isinstance(error, AgentRuntimeError | OSError):
        _log.warning("index.failed", why=str(error), **of)
    else:
        _log.error("index.failed", why=f"{type(error).__name__}: {error}", exc_info=error, **of)
