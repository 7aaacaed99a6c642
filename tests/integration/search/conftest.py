"""What the tests of searching have in common: the whole of it on a real Redis, with models of words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from redis.asyncio import Redis

from config.settings import Settings
from connectors.message import Scope
from grounding.documents import Identity
from grounding.prompt_input import DegradedBlock, Passage, load_tokens
from grounding.retrieval import Embedder, PassageIndex, PassageRoom
from grounding.retrieval.qdrant_server import ServerIndex
from promptpolicy.directives import Directives
from promptpolicy.file_sync import FileSyncPublisher
from promptpolicy.file_tree import DirectiveTree
from runtime.search import CollectionFactory, Knowledge
from runtime.search.knowledge import Searcher
from runtime.workspaces import Workspaces
from tests.emulators.qdrant import SharedQdrant


def factory_with(models: Mapping[str, Embedder], server: SharedQdrant | None = None) -> type[CollectionFactory]:
    """What opens *models* by their names, the first where another one is set; and indexes on *server* if given."""

    class WithFakes(CollectionFactory):
        async def open_embedder(self) -> Embedder:
            return models.get(self.settings.embedding_model or "") or next(iter(models.values()))

        def former_embedder(self, identity: Identity) -> Embedder:
            return models.get(identity.model) or CollectionFactory.former_embedder(self, identity)

        def index(self, identity: Identity, deep_dimensions: int | None) -> PassageIndex:
            if server is None:
                return CollectionFactory.index(self, identity, deep_dimensions)
            return ServerIndex("local", identity.model, identity.dimensions, timeout_seconds=60, client=server)

    return WithFakes


async def make_knowledge(
    redis: Redis, settings: Settings, *workspace_ids: str, **options: Any
) -> tuple[Knowledge, Workspaces]:
    """Search over these workspaces, which are made if there are none."""
    tokens, workspaces = load_tokens(), Workspaces(redis, settings)
    for workspace_id in workspace_ids:
        await workspaces.create(workspace_id)
    directives = Directives(redis, settings.redis_timeout_seconds)
    publisher = FileSyncPublisher(directives, tokens.count, 3000, DirectiveTree(settings.data_dir))
    return Knowledge(settings, redis, tokens, workspaces, publisher, **options), workspaces


async def passages_for(
    finding: Searcher,
    scope: Scope,
    query: str,
    top_k: int,
    excerpt_bytes: int,
    max_tokens: int,
    *,
    lost: list[DegradedBlock],
) -> Sequence[Passage]:
    """The passages that a prompt shows for *query*."""
    await finding.awake(scope)
    found = await finding.look(scope, query, top_k)
    return await finding.pack(scope, found, PassageRoom(top_k, excerpt_bytes, max_tokens), lost=lost)
