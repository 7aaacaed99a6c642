"""Opens the stores, has every part wired by `runtime.wiring`, the only wiring, and runs what a role asks."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Literal

import structlog

from config.settings import Settings
from connectors.connector import Accept, Connector, Health
from connectors.http.connector import HttpConnector
from connectors.message import Scope, StoreUnavailable
from grounding.memory.contexts import ContextDocuments
from grounding.memory.global_context import GlobalContexts
from grounding.memory.records.records import Records
from grounding.memory.records.store import RecordStore
from grounding.tokens import Tokens, load_tokens
from grounding.transcript.copy import MarkdownCopy
from grounding.transcript.log import Transcript
from promptpolicy.directives import Directives
from promptpolicy.files import FilingPublisher
from runtime.access import Access
from runtime.api.security import Security
from runtime.audiences import Audiences
from runtime.budgets import Budgets
from runtime.condensing import Condensing
from runtime.context_keeping import ContextKeeping
from runtime.data_dir import prepare_data_dir
from runtime.deeper import why_not
from runtime.embedded.child import beside
from runtime.embedded.index_client import (
    COMMAND_SECONDS,
    QUESTION_SECONDS,
    DeepModel,
    IndexProcess,
    has_embedded,
    index_process,
)
from runtime.embedded.model_server import local_model
from runtime.environment.sampling import Surroundings
from runtime.event_stream import EventStream
from runtime.formatters import Formatters, installed
from runtime.jobs import Jobs
from runtime.knowledge import Knowledge
from runtime.llm import Model
from runtime.marking import Marking
from runtime.places import Places
from runtime.stores import RedisStore, open_redis
from runtime.supervisor import Supervisor
from runtime.tokens import Tokens as ApiTokens
from runtime.turns import (
    Cancellations,
    DeadLetters,
    Lane,
    Mailbox,
    Manifests,
    Materials,
    PromptBuilder,
    Tooling,
    Turns,
    Worker,
)
from runtime.usage import Usage
from runtime.wiring.process import Process, store_health, wire_process
from runtime.wiring.working import wire_duties
from runtime.workspaces import SAMPLE, Workspaces, install_sample, make_document_folder

Part = Literal["gateway", "worker", "jobs", "follow"]
Role = Literal["all", "gateway", "worker"]
ROLES: Mapping[Role, frozenset[Part]] = {
    "all": frozenset(("gateway", "worker", "jobs", "follow")),
    "gateway": frozenset(("gateway",)),
    "worker": frozenset(("worker", "jobs", "follow")),
}
"""What each role of a process does."""
ALL_PARTS = ROLES["all"]
INDEX_SECONDS = 5.0
DOOR_SECONDS = 0.1
"""How long the index, and then the doors, may take to open before seconds of imports begin in a thread, which would
hold them up: threads share one interpreter."""
_log = structlog.get_logger()


@dataclass(frozen=True)
class Runtime:
    """What one process is made of, as its faces see it. Built by `open_runtime`."""

    settings: Settings
    admin_token: str
    store: RedisStore
    events: EventStream
    tokens: Tokens
    workspaces: Workspaces
    access: Access
    api_tokens: ApiTokens
    security: Security
    mailbox: Mailbox
    places: Places
    transcript: Transcript
    copy: MarkdownCopy
    contexts: ContextDocuments
    global_contexts: GlobalContexts
    context_keeping: ContextKeeping
    records: Records
    marking: Marking
    audiences: Audiences
    materials: Materials
    directives: Directives
    publisher: FilingPublisher
    knowledge: Knowledge
    deep: DeepModel | None
    manifests: Manifests
    model: Model
    surroundings: Surroundings
    jobs: Jobs
    usage: Usage
    budgets: Budgets
    prompting: PromptBuilder
    tooling: Tooling
    formatters: Formatters
    condensing: Condensing
    stops: Cancellations
    turns: Turns
    dead_letters: DeadLetters
    worker: Worker
    http: HttpConnector
    connectors: Mapping[str, Connector]
    supervisor: Supervisor
    accept: Accept
    """The gateway's door, for connectors."""

    async def store_health(self) -> dict[str, Health]:
        """How each store is now, by name."""
        return await store_health(self.store, self.knowledge)

    def connector_health(self) -> dict[str, Health]:
        """How each connector of this process is now, by name."""
        return {name: self.supervisor.health(connector) for name, connector in self.connectors.items()}


@asynccontextmanager
async def open_runtime(
    settings: Settings,
    events: EventStream,
    *,
    platforms: Sequence[Connector] = (),
    parts: frozenset[Part] = ALL_PARTS,
    engine: IndexProcess | None = None,
) -> AsyncIterator[Runtime]:
    """The runtime of one process, running as long as the block.

    *platforms* are the connectors beside HTTP; `Supervisor.run` starts them. *parts* says what runs in
    the background: what delivers replies and runs commands, the worker that answers turns, the jobs that follow
    them, and following the disk; a command that only looks needs none. *engine* is the process of the embedded
    index where the caller has started it. Raises
    `runtime.data_dir.DataDirUnusable`, `runtime.embedded.child.ChildFailed` and `OSError` when the embedded stores
    cannot be opened, and `runtime.formatters.FormattersRefused`.

    It stops in the order opposite to the data's: intake is the caller's and has ended by then; turns in
    hand are finished, what they left is copied, then the stores close.
    """
    await prepare_data_dir(settings.data_dir)
    # A thread's work while the store's server starts; awaited before anything counts.
    loop = asyncio.get_running_loop()
    loading = loop.run_in_executor(None, load_tokens)
    finding = loop.run_in_executor(None, installed, settings)
    has_faces = "worker" not in parts or "gateway" in parts
    async with AsyncExitStack() as stack:
        child = engine if engine is not None else await stack.enter_async_context(index_process(settings.data_dir))
        is_embedded = await asyncio.to_thread(has_embedded, settings)
        if parts and is_embedded:
            engine = child
            engine.begin()
        store = await stack.enter_async_context(open_redis(settings))
        model_server = await stack.enter_async_context(local_model(settings.data_dir))
        deep = None
        if not await asyncio.to_thread(why_not, settings):
            deep = DeepModel(child, QUESTION_SECONDS if parts else COMMAND_SECONDS)
        process = await wire_process(
            settings, store, model_server, deep, engine, await loading, await finding, platforms, has_faces=has_faces
        )
        runtime = _runtime(settings, events, process, deep)
        stack.push_async_callback(runtime.knowledge.close)
        stack.push_async_callback(runtime.model.close)
        await stack.enter_async_context(beside(events.run(store.client), "events"))
        await stack.enter_async_context(beside(process.kept.hub.run(), "hub"))
        await _first_start(runtime)
        if "follow" in parts and settings.redis_url is None:
            runtime.knowledge.will_follow()
        await stack.enter_async_context(beside(runtime.knowledge.open(), "knowledge"))
        await stack.enter_async_context(beside(runtime.surroundings.run(), "environment"))
        await _run_parts(stack, runtime, process, parts, deep)
        yield runtime


async def _run_parts(
    stack: AsyncExitStack, runtime: Runtime, process: Process, parts: frozenset[Part], deep: DeepModel | None
) -> None:
    for connector in runtime.connectors.values():  # after the worker: turns in hand are still delivered
        stack.push_async_callback(connector.close)
    if "jobs" in parts:
        stack.push_async_callback(process.kept.last_copy)
    if "jobs" in parts or "follow" in parts:
        jobs = runtime.jobs if "jobs" in parts else None
        knowledge = runtime.knowledge if "follow" in parts else None
        duties = wire_duties(runtime.settings, process.kept, jobs, knowledge, runtime.records, deep)
        await stack.enter_async_context(beside(duties.run(), "duties"))
    if "jobs" in parts:
        stack.push_async_callback(runtime.jobs.finish)  # before their runner ends
    if "gateway" in parts:
        await stack.enter_async_context(process.delivering.running())
        await stack.enter_async_context(beside(process.conversing.gateway.run(), "gateway"))
        await stack.enter_async_context(beside(process.workers[Lane.COMMANDS].run(), "commands"))
    if "worker" in parts:
        await stack.enter_async_context(beside(_warm_up(runtime), "warm up"))
        await stack.enter_async_context(beside(runtime.worker.run(), "worker"))
    else:
        _freeze()


@functools.cache
def _freeze() -> None:
    """Once a process: the garbage collector skips what the start imported. LiteLLM alone brings so many objects that a
    full collection held the event loop up for half a second."""
    gc.freeze()


async def _warm_up(runtime: Runtime) -> None:
    """Load what first turns need and readiness does not, once the process is ready. A turn that comes earlier loads
    it itself."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(INDEX_SECONDS):
            await runtime.knowledge.opened()
    await asyncio.sleep(DOOR_SECONDS)
    await runtime.knowledge.warm()
    await runtime.model.warm()
    _freeze()


def _runtime(settings: Settings, events: EventStream, process: Process, deep: DeepModel | None) -> Runtime:
    """Of all the parts those that faces ask for; nothing is made here."""
    kept, answering = process.kept, process.answering
    return Runtime(
        settings=settings,
        admin_token=process.entrance.admin_token,
        store=kept.store,
        events=events,
        tokens=process.tokens,
        workspaces=kept.workspaces,
        access=process.entrance.access,
        api_tokens=process.entrance.api_tokens,
        security=process.entrance.security,
        mailbox=kept.turns,
        places=kept.places,
        transcript=kept.transcript,
        copy=kept.copy,
        contexts=kept.contexts,
        global_contexts=kept.global_contexts,
        context_keeping=answering.keeping,
        records=answering.records,
        marking=process.conversing.marking,
        audiences=Audiences(RecordStore(kept.store.client), kept.global_contexts, kept.marks, kept.manifests),
        materials=answering.materials,
        directives=kept.directives,
        publisher=kept.publisher,
        knowledge=process.knowledge,
        deep=deep,
        manifests=kept.manifests,
        model=process.model,
        surroundings=process.surroundings,
        jobs=answering.jobs,
        usage=kept.usage,
        budgets=answering.budgets,
        prompting=answering.prompting,
        tooling=answering.tooling,
        formatters=answering.formatters,
        condensing=answering.condensing,
        stops=answering.stops,
        turns=answering.turns,
        dead_letters=kept.dead_letters,
        worker=process.workers[Lane.TURNS],
        http=process.entrance.http,
        connectors=process.entrance.connectors,
        supervisor=process.conversing.supervisor,
        accept=process.conversing.gateway.accept,
    )


async def _first_start(runtime: Runtime) -> None:
    """Make the sample workspace and the shared one, give what earlier versions kept an audience, and read the
    directives of all workspaces from their files."""
    try:
        for workspace in await runtime.workspaces.all():
            await runtime.audiences.settle(Scope(workspace.id))
        if await runtime.workspaces.exists(SAMPLE):  # it may have been deleted for good
            await install_sample(runtime.settings.data_dir)
        await runtime.workspaces.create(runtime.settings.default_workspace)
        await asyncio.to_thread(make_document_folder, runtime.settings, runtime.settings.default_workspace)
        await runtime.publisher.import_all()
    except StoreUnavailable as error:
        _log.warning("store.degraded", store="redis", why=str(error))
