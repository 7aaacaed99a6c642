"""All parts of one process, wired; nothing runs yet."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from config.settings import Settings
from connectors.connector import Connector, Health
from grounding.documents.deeper import Deeper
from grounding.tokens import Tokens
from runtime.attachments.files import Files
from runtime.embedded.index_client import IndexProcess
from runtime.embedded.model_server import LocalModelServer
from runtime.environment.gpus import Gpus
from runtime.environment.model_memory import ModelMemories
from runtime.environment.sampling import Surroundings
from runtime.formatters import Installed
from runtime.knowledge import Knowledge
from runtime.llm import Model
from runtime.stores import RedisStore
from runtime.turns import Lane, Worker
from runtime.wiring.answering import Answering, wire_answering, wire_reranker
from runtime.wiring.conversing import Conversing, wire_conversing
from runtime.wiring.delivering import Delivering, wire_delivering
from runtime.wiring.entrance import Entrance, wire_entrance
from runtime.wiring.kept import Kept, wire_kept
from runtime.wiring.working import wire_workers


@dataclass(frozen=True)
class Process:
    """What one process is made of, whatever its role."""

    tokens: Tokens
    kept: Kept
    entrance: Entrance
    delivering: Delivering
    knowledge: Knowledge
    model: Model
    surroundings: Surroundings
    answering: Answering
    conversing: Conversing
    workers: Mapping[Lane, Worker]


async def wire_process(
    settings: Settings,
    store: RedisStore,
    model_server: LocalModelServer,
    deep: Deeper | None,
    engine: IndexProcess | None,
    tokens: Tokens,
    formatters: Sequence[Installed],
    platforms: Sequence[Connector],
    *,
    has_faces: bool,
) -> Process:
    """*platforms* are the connectors beside HTTP and the chat page; without *has_faces* there are none at all.

    Raises `OSError` where the administrator's token can be neither read nor written.
    """
    kept = wire_kept(settings, store, tokens)
    entrance = await wire_entrance(settings, kept, platforms, has_faces=has_faces)
    delivering = wire_delivering(settings, kept, entrance)
    reranker = wire_reranker(settings, kept)
    knowledge = Knowledge(
        settings, store.client, tokens, kept.workspaces, kept.publisher, reranker, deep, engine, kept.hub.name
    )
    files = Files(settings, delivering.locator)
    model = Model(settings, model_server)

    async def stores() -> dict[str, Health]:
        return await store_health(store, knowledge)

    async def links() -> dict[str, Health]:
        return {"model": model.health, **await stores()}

    surroundings = Surroundings(settings, Gpus(), ModelMemories(settings, model.names), links)
    answering = wire_answering(settings, kept, knowledge, files, tokens, formatters, model, surroundings)
    conversing = wire_conversing(
        settings, kept, entrance, knowledge, answering, files, delivering.shows, stores, tokens
    )
    workers = wire_workers(settings, kept, answering, conversing)
    return Process(tokens, kept, entrance, delivering, knowledge, model, surroundings, answering, conversing, workers)


async def store_health(store: RedisStore, knowledge: Knowledge) -> dict[str, Health]:
    """How each store is now, by name."""
    redis, qdrant = await asyncio.gather(store.health(), knowledge.health())
    return {"redis": redis, "qdrant": qdrant}
