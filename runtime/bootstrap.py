"""The only wiring: opens the stores, builds every part and hands each what it needs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Literal

import structlog

from config.settings import Settings
from connectors.connector import Accept, Connector, Health
from connectors.http.connector import HttpConnector
from connectors.message import ConversationKey, StoreUnavailable
from connectors.web.connector import WebConnector
from connectors.web.sessions import Said
from grounding.memory.contexts import ContextDocuments
from grounding.memory.copy import ContextCopy
from grounding.pipeline import Pipeline
from grounding.tokens import Tokens, load_tokens
from grounding.transcript.copy import MarkdownCopy
from grounding.transcript.log import Transcript
from promptpolicy.directives import Directives
from promptpolicy.files import FilingPublisher
from promptpolicy.tree import DirectiveTree
from runtime.access import Access
from runtime.admin_token import admin_token
from runtime.after_turn import RememberTurn, SummaryRefresh
from runtime.api.security import Security
from runtime.attachments.files import Files
from runtime.attachments.reading import Reading
from runtime.budgets import Budgets
from runtime.commands.docs import docs_command
from runtime.commands.registry import Commands
from runtime.commands.runner import CommandTurns
from runtime.commands.wiring import build_commands
from runtime.dead_letters import DeadLetters
from runtime.deliverer import Deliverer
from runtime.delivery import Delivery
from runtime.embedded.child import beside
from runtime.embedded.model_server import LocalModelServer, local_model
from runtime.event_stream import EventStream
from runtime.forgetting import JOB as FORGET_TURNS
from runtime.forgetting import Forgetting, ForgetTurns
from runtime.gateway import Gateway
from runtime.governor import Governors
from runtime.hub import Hub
from runtime.jobs import Job, Jobs
from runtime.journal import Journal
from runtime.knowledge import Knowledge
from runtime.leadership import Leadership
from runtime.limits import RateLimit
from runtime.locating import Locator
from runtime.mailbox import Lane, Mailbox
from runtime.manifests import Manifests
from runtime.model import Model
from runtime.outbox import Outbox
from runtime.places import Places
from runtime.prices import Prices
from runtime.prompting import Prompting
from runtime.shows import Shows
from runtime.spending import Spending, held_seconds
from runtime.stops import Stops
from runtime.stores import RedisStore, open_redis
from runtime.supervisor import Supervisor
from runtime.tokens import Tokens as ApiTokens
from runtime.turn import Turns
from runtime.usage import Usage
from runtime.web_history import recent
from runtime.web_sessions import WebSessions
from runtime.worker import Answers, Worker
from runtime.workspaces import SAMPLE, Workspaces, install_sample

Part = Literal["gateway", "worker", "jobs", "follow"]
Role = Literal["all", "gateway", "worker"]
ROLES: Mapping[Role, frozenset[Part]] = {
    "all": frozenset(("gateway", "worker", "jobs", "follow")),
    "gateway": frozenset(("gateway",)),
    "worker": frozenset(("worker", "jobs", "follow")),
}
"""What each role of a process does."""
ALL_PARTS = ROLES["all"]
_log = structlog.get_logger()


@dataclass(frozen=True)
class Runtime:
    """Everything that one process is made of. Built by `open_runtime`."""

    settings: Settings
    admin_token: str
    store: RedisStore
    events: EventStream
    tokens: Tokens
    workspaces: Workspaces
    access: Access
    api_tokens: ApiTokens
    security: Security
    limit: RateLimit
    mailbox: Mailbox
    commands: Commands
    places: Places
    outbox: Outbox
    transcript: Transcript
    copy: MarkdownCopy
    contexts: ContextDocuments
    directives: Directives
    publisher: FilingPublisher
    knowledge: Knowledge
    manifests: Manifests
    model: Model
    local_model: LocalModelServer
    jobs: Jobs
    usage: Usage
    budgets: Budgets
    prompting: Prompting
    turns: Turns
    hub: Hub
    dead_letters: DeadLetters
    shows: Shows
    deliverer: Deliverer
    locator: Locator
    stops: Stops
    worker: Worker
    command_worker: Worker
    gateway: Gateway
    http: HttpConnector
    connectors: Mapping[str, Connector]
    supervisor: Supervisor

    @property
    def accept(self) -> Accept:
        """The gateway's door, for connectors."""
        return self.gateway.accept

    async def store_health(self) -> dict[str, Health]:
        """How each store is now, by name."""
        return await _store_health(self.store, self.knowledge)

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
) -> AsyncIterator[Runtime]:
    """The runtime of one process, running as long as the block.

    *platforms* are the connectors beside HTTP; `Supervisor.run` starts them. *parts* says what runs in
    the background: what delivers replies and runs commands, the worker that answers turns, the jobs that follow
    them, and following the disk; a command that only looks needs none. Raises
    `runtime.embedded.child.ChildFailed` and `OSError` when the embedded stores cannot be opened.

    It stops in the order opposite to the data's: intake is the caller's and has ended by then; turns in
    hand are finished, what they left is copied, then the stores close.
    """
    await asyncio.to_thread(settings.data_dir.mkdir, parents=True, exist_ok=True)
    tokens = await asyncio.to_thread(load_tokens)
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_redis(settings))
        model_server = await stack.enter_async_context(local_model(settings.data_dir))
        runtime = await _build(
            settings,
            events,
            store,
            model_server,
            tokens,
            platforms,
            has_faces="worker" not in parts or "gateway" in parts,
        )
        stack.push_async_callback(runtime.knowledge.close)
        stack.push_async_callback(runtime.model.close)
        await stack.enter_async_context(beside(events.run(store.client), "events"))
        await stack.enter_async_context(beside(runtime.hub.run(), "hub"))
        await _first_start(runtime)
        if "follow" in parts and settings.redis_url is None:
            runtime.knowledge.will_follow()
        await stack.enter_async_context(beside(runtime.knowledge.open(), "knowledge"))
        for connector in runtime.connectors.values():  # after the worker: turns in hand are still delivered
            stack.push_async_callback(connector.close)
        if "jobs" in parts:
            stack.push_async_callback(_last_copy, runtime.copy)
        if "jobs" in parts or "follow" in parts:
            leadership = Leadership(store.client, runtime.hub.name, lambda: _duties(runtime, parts))
            await stack.enter_async_context(beside(leadership.run(), "duties"))
        if "gateway" in parts:
            await stack.enter_async_context(runtime.shows.running())
            await stack.enter_async_context(beside(runtime.deliverer.run(), "deliverer"))
            await stack.enter_async_context(beside(runtime.locator.run(), "locator"))
            await stack.enter_async_context(beside(runtime.command_worker.run(), "commands"))
        if "worker" in parts:
            await stack.enter_async_context(beside(runtime.model.warm(), "model"))
            await stack.enter_async_context(beside(runtime.worker.run(), "worker"))
        yield runtime


async def _duties(runtime: Runtime, parts: frozenset[Part]) -> None:
    """What one of several processes does for all: what follows turns, the Markdown copies, following the disk."""
    async with asyncio.TaskGroup() as duties:
        if "jobs" in parts:
            duties.create_task(runtime.copy.run(), name="chat logs")
            duties.create_task(runtime.jobs.run(), name="jobs")
        if "follow" in parts:
            duties.create_task(runtime.knowledge.follow(), name="follow")


async def _build(
    settings: Settings,
    events: EventStream,
    store: RedisStore,
    model_server: LocalModelServer,
    tokens: Tokens,
    platforms: Sequence[Connector],
    *,
    has_faces: bool,
) -> Runtime:
    redis = store.client
    token = await admin_token(settings)
    access, api_tokens = Access(redis, settings), ApiTokens(redis, token)
    security = Security(settings, api_tokens)
    http = HttpConnector.of(settings, security)
    workspaces = Workspaces(redis, settings)

    async def history(key: ConversationKey, limit: int) -> list[Said]:
        return await recent(transcript, outbox, key, limit)

    sessions = WebSessions(redis, api_tokens)
    web = WebConnector.of(settings, security, security.check_place, sessions, history, workspaces.exists)
    all_connectors: list[Connector] = [http, web, *platforms] if has_faces else []
    connectors = {connector.name: connector for connector in all_connectors}
    hub = Hub(redis, shared=settings.redis_url is not None)
    mailboxes = {lane: Mailbox(redis, lane) for lane in Lane}
    outbox, dead_letters = Outbox(redis, hub), DeadLetters(redis, mailboxes, hub)
    transcript, contexts, manifests = Transcript(redis), ContextDocuments(redis), Manifests(redis)
    copy = MarkdownCopy(transcript, settings.data_dir)
    directives = Directives(redis, settings.redis_timeout_seconds)
    publisher = FilingPublisher(directives, tokens.count, settings.policy_max_tokens, DirectiveTree(settings.data_dir))
    knowledge = Knowledge(settings, redis, tokens, workspaces, publisher)
    model = Model(settings, model_server)
    usage, places, stops = Usage(redis), Places(redis), Stops(hub, mailboxes[Lane.TURNS])
    budgets = Budgets(redis, settings, held_seconds(settings, len(model.names)))
    spending = Spending(settings, budgets, usage, model, Prices(), tokens)

    async def remember(job: Job) -> None:
        await RememberTurn(transcript, await knowledge.turns())(job)

    context_copy = ContextCopy(settings.data_dir)
    jobs = Jobs(
        redis,
        {
            "summary.refresh": SummaryRefresh(settings, transcript, contexts, context_copy, model, spending),
            "turn.remember": remember,
            FORGET_TURNS: ForgetTurns(knowledge.turns),
        },
    )
    locator = Locator(connectors, hub)
    files = Files(settings, locator)
    pipeline = Pipeline(transcript, contexts, knowledge, knowledge, _layer_timeout(settings))
    prompting = Prompting(settings, pipeline=pipeline, directives=directives, model=model, tokens=tokens)
    turns = Turns(
        settings,
        prompting=prompting,
        model=model,
        outbox=outbox,
        journal=Journal(redis),
        transcript=transcript,
        copy=copy,
        manifests=manifests,
        jobs=jobs,
        spending=spending,
        stops=stops,
        places=places,
        reading=Reading(settings, files, model),
        hub=hub,
    )

    async def stores() -> dict[str, Health]:
        return await _store_health(store, knowledge)

    def health() -> dict[str, Health]:
        return {name: supervisor.health(connector) for name, connector in connectors.items()}

    commands = build_commands(
        settings,
        transcript=transcript,
        contexts=contexts,
        manifests=manifests,
        usage=usage,
        budgets=budgets,
        access=access,
        publisher=publisher,
        model=model,
        places=places,
        forgetting=Forgetting(
            redis,
            transcript=transcript,
            copy=copy,
            contexts=contexts,
            context_copy=context_copy,
            manifests=manifests,
            outbox=outbox,
            dead_letters=dead_letters,
            jobs=jobs,
        ),
        stop=stops.stop,
        at_hand=mailboxes[Lane.TURNS].at_hand,
        stores=stores,
        connectors=health,
        index=knowledge.status,
        further=(docs_command(knowledge.library, knowledge, files, settings.document_max_bytes),),
    )
    supervisor = Supervisor(connectors.values(), mailboxes[Lane.TURNS], commands.hints())
    alone = settings.redis_url is None
    answers: dict[Lane, Answers] = {Lane.TURNS: turns, Lane.COMMANDS: CommandTurns(commands, outbox)}
    workers = {
        lane: Worker(settings, mailboxes[lane], answers[lane], hub, dead_letters.of(lane), lane=lane, alone=alone)
        for lane in Lane
    }
    governors = Governors()
    shows = Shows(
        connectors,
        outbox.states,
        governors,
        hub,
        streams=settings.stream_replies,
        acknowledgement=settings.acknowledgement_reaction,
    )
    delivery = Delivery(outbox.states, connectors, governors, settings.delivery_ambiguous)
    deliverer = Deliverer(settings, redis, connectors, delivery, shows, hub, alone=alone)
    limit = RateLimit(redis, settings)
    return Runtime(
        settings=settings,
        admin_token=token,
        store=store,
        events=events,
        tokens=tokens,
        workspaces=workspaces,
        access=access,
        api_tokens=api_tokens,
        security=security,
        limit=limit,
        mailbox=mailboxes[Lane.TURNS],
        commands=commands,
        places=places,
        outbox=outbox,
        transcript=transcript,
        copy=copy,
        contexts=contexts,
        directives=directives,
        publisher=publisher,
        knowledge=knowledge,
        manifests=manifests,
        model=model,
        local_model=model_server,
        jobs=jobs,
        usage=usage,
        budgets=budgets,
        prompting=prompting,
        turns=turns,
        hub=hub,
        dead_letters=dead_letters,
        shows=shows,
        deliverer=deliverer,
        locator=locator,
        stops=stops,
        worker=workers[Lane.TURNS],
        command_worker=workers[Lane.COMMANDS],
        gateway=Gateway(
            settings,
            workspaces=workspaces,
            access=access,
            limit=limit,
            mailboxes=mailboxes,
            outbox=outbox,
            transcript=transcript,
            commands=commands,
            places=places,
            connectors=connectors,
            shows=shows,
            hub=hub,
        ),
        http=http,
        connectors=connectors,
        supervisor=supervisor,
    )


async def _store_health(store: RedisStore, knowledge: Knowledge) -> dict[str, Health]:
    redis, qdrant = await asyncio.gather(store.health(), knowledge.health())
    return {"redis": redis, "qdrant": qdrant}


def _layer_timeout(settings: Settings) -> float:
    """A layer asks Redis, or the embedder and then Qdrant."""
    remote = settings.embedding_timeout_seconds if settings.embedding_model else 0.0
    return max(settings.redis_timeout_seconds, settings.qdrant_timeout_seconds + remote)


async def _first_start(runtime: Runtime) -> None:
    """Make the sample workspace, and read the directives of all workspaces from their files."""
    try:
        if await runtime.workspaces.exists(SAMPLE):  # it may have been deleted for good
            await install_sample(runtime.settings.data_dir)
        await runtime.publisher.import_all()
    except StoreUnavailable as error:
        _log.warning("store.degraded", store="redis", why=str(error))


async def _last_copy(copy: MarkdownCopy) -> None:
    """What the last turns said goes to the chat logs before the store closes."""
    with contextlib.suppress(StoreUnavailable, OSError, TimeoutError):  # it waits in Redis for the next start
        async with asyncio.timeout(2.0):
            await copy.flush()
