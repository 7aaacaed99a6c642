"""Opens the stores, has every part wired by `runtime.wiring`, the only wiring, and runs what a role asks."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Literal

import structlog

from config.settings import Settings
from connectors.connector import Accept, Connector, Health
from connectors.http import HttpConnector
from connectors.message import Scope, StoreUnavailable
from connectors.web import WebConnector
from grounding.codex import FindsMaterial, search_codex
from grounding.lookup_tools import read_section, search_documents
from grounding.memory.context_document import ContextCopy, ContextDocuments
from grounding.memory.frames import problem_in as problem_in_frames
from grounding.memory.global_context import GlobalContexts, append_context, delete_context, replace_context
from grounding.memory.karma import Karma, Likeness, MarkStore
from grounding.memory.records import (
    KeepsRecords,
    ReadsRecords,
    Record,
    Records,
    RecordStore,
    Rules,
    Type,
    create_item,
    delete_item,
    expand,
    query_items,
    update_item,
)
from grounding.memory.selection import Floor, LastSelections, Level, RecordSelector, Weights, as_shown, floor_for
from grounding.pipeline import Deciding, Pipeline, Remembering
from grounding.prompt import Continuing, Freezing, Sessions, layers, line
from grounding.prompt_input import LineByLine, Tokens, load_tokens
from grounding.retrieval import Deeper
from grounding.strategy import problem_in
from grounding.tools import Toolbox
from grounding.transcript import MarkdownCopy, Transcript
from promptpolicy.directives import Directives
from promptpolicy.file_sync import FileSyncPublisher
from promptpolicy.file_tree import DirectiveTree
from promptpolicy.policy import Kind
from promptpolicy.sigils import Sigils
from runtime.access import Access, RateLimit, admin_token
from runtime.access import Tokens as ApiTokens
from runtime.attachments import Files, KeptFiles, Locator, Reading
from runtime.background import (
    DAY_SECONDS,
    Changeover,
    Condensing,
    ContextFollowing,
    ContextKeeping,
    ErasedEverywhere,
    ExtractionMarks,
    Forgetting,
    ForgetTurns,
    MarkEffects,
    Marking,
    Rebuilding,
    RecordKeeping,
    RecordsExtraction,
    RememberTurns,
    SummaryRefresh,
)
from runtime.background.contexts import JOB as INDEX_CONTEXT
from runtime.background.extraction import JOB as EXTRACT
from runtime.background.forgetting import JOB as FORGET_TURNS
from runtime.billing import Budgets, Prices, RerankCosts, Spending, Usage
from runtime.commands import Commands, CommandTurns, build_commands, docs_command
from runtime.coordination import Hub, Job, Jobs, Leadership
from runtime.delivery import Deliverer, Delivery, Outbox, RateLimiters, Shows
from runtime.embedded import LocalModelServer, beside, local_model
from runtime.embedded.index_client import (
    COMMAND_SECONDS,
    QUESTION_SECONDS,
    DeepModel,
    IndexProcess,
    has_embedded,
    index_process,
)
from runtime.formatters import Formatters, Installed, installed
from runtime.http import ChatPage, Security, WebSessions
from runtime.ingress import Audiences, Gateway
from runtime.llm import IMPORT_SECONDS, LiteLLMReranker, Model
from runtime.machine import Gpus, ModelMemories, Surroundings
from runtime.observability import EventStream
from runtime.process.connectors import Supervisor
from runtime.search import Deepening, Knowledge, why_not
from runtime.stores import RedisStore, open_redis, prepare_data_dir
from runtime.turns import (
    Answers,
    Cancellations,
    Checkpoints,
    DeadLetters,
    Lane,
    Mailbox,
    Manifests,
    MaterialChooser,
    MaterialFollowing,
    Materials,
    PromptBuilder,
    RecordAccounting,
    Tooling,
    Turns,
    Worker,
)
from runtime.workspaces import SAMPLE, ConversationList, Places, Workspaces, install_sample, make_document_folder

# ---- kept ----
#
# What is kept: all that owns keys in Redis, and the copies of it on disk.


LAST_COPY_SECONDS = 2.0


@dataclass(frozen=True)
class Kept:
    """The owners of what outlives a process, and the news between processes."""

    store: RedisStore
    hub: Hub
    workspaces: Workspaces
    limit: RateLimit
    mailboxes: Mapping[Lane, Mailbox]
    checkpoints: Checkpoints
    outbox: Outbox
    files: KeptFiles
    conversation_list: ConversationList
    dead_letters: DeadLetters
    transcript: Transcript
    copy: MarkdownCopy
    contexts: ContextDocuments
    context_copy: ContextCopy
    global_contexts: GlobalContexts
    extraction_marks: ExtractionMarks
    selections: LastSelections
    marks: MarkStore
    sessions: Sessions
    manifests: Manifests
    directives: Directives
    publisher: FileSyncPublisher
    usage: Usage
    places: Places

    @property
    def turns(self) -> Mailbox:
        """The mailbox of what is to be answered."""
        return self.mailboxes[Lane.TURNS]

    async def last_copy(self) -> None:
        """What the last turns said goes to the chat logs before the store closes. Never raises, bounded."""
        with contextlib.suppress(StoreUnavailable, OSError, TimeoutError):  # it waits in Redis for the next start
            async with asyncio.timeout(LAST_COPY_SECONDS):
                await self.copy.flush()


def wire_kept(settings: Settings, store: RedisStore, tokens: Tokens) -> Kept:
    """All of it, on one store."""
    redis, alone = store.client, settings.redis_url is None
    hub = Hub(redis, shared=not alone)
    mailboxes = {lane: Mailbox(redis, lane) for lane in Lane}
    transcript = Transcript(redis)
    directives = Directives(redis, settings.redis_timeout_seconds)
    tree = DirectiveTree(settings.data_dir)
    return Kept(
        store=store,
        hub=hub,
        workspaces=Workspaces(redis, settings),
        limit=RateLimit(redis, settings),
        mailboxes=mailboxes,
        checkpoints=Checkpoints(redis),
        outbox=Outbox(redis, hub),
        files=KeptFiles(redis, settings.data_dir),
        conversation_list=ConversationList(redis),
        dead_letters=DeadLetters(redis, mailboxes, hub),
        transcript=transcript,
        copy=MarkdownCopy(transcript, settings.data_dir, alone=alone),
        contexts=ContextDocuments(redis),
        context_copy=ContextCopy(settings.data_dir),
        global_contexts=GlobalContexts(
            redis,
            tokens,
            max_tokens=max(0, settings.global_context_max_tokens - layers.frame_tokens(tokens)),
            idle_seconds=settings.session_idle_seconds,
        ),
        extraction_marks=ExtractionMarks(redis),
        selections=LastSelections(redis, settings.session_idle_seconds),
        marks=MarkStore(redis),
        sessions=Sessions(redis, settings.session_idle_seconds),
        manifests=Manifests(redis),
        directives=directives,
        publisher=FileSyncPublisher(
            directives,
            tokens.count,
            settings.policy_max_tokens,
            tree,
            {Kind.CUES: problem_in, Kind.FRAMES: problem_in_frames},
        ),
        usage=Usage(redis),
        places=Places(redis),
    )


# ---- records ----
#
# The typed records: their store, and the index, which opens later than they are needed.


class OpeningIndex:
    """`grounding.memory.records.records.FollowsRecords` over an index that may still be opening."""

    def __init__(self, knowledge: Knowledge) -> None:
        self._knowledge = knowledge

    async def find(
        self, scope: Scope, query: str, top_k: int, types: Collection[Type]
    ) -> Sequence[tuple[str, str, float, float]]:
        return await self._knowledge.finding.find_records(scope, query, top_k, types)

    async def follow(self, scope: Scope, ids: Sequence[str]) -> None:
        await (await self._knowledge.told_records()).follow(scope, ids)


def wire_records(settings: Settings, kept: Kept, knowledge: Knowledge, tokens: Tokens) -> Records:
    """By the numbers of *settings*."""
    rules = Rules(
        core_confirmations=settings.fact_core_confirmations,
        effectiveness_activations=settings.procedure_judged_activations,
        block_activations=settings.censor_block_activations,
        retired_false_positives=settings.censor_retired_false_positives,
        summarized_days=settings.episode_summarized_days,
        archived_days=settings.episode_archived_days,
    )
    store, index = RecordStore(kept.store.client), OpeningIndex(knowledge)
    return ErasedEverywhere(store, tokens, index, rules, manifests=kept.manifests)


# ---- remembering ----
#
# How records come into prompts: what they weigh, and what they may take.


def wire_remembering(
    settings: Settings, records: ReadsRecords, kept: LastSelections, knowledge: Knowledge, tokens: Tokens
) -> Remembering:
    """By the numbers of *settings*."""

    def costs(record: Record, level: Level) -> int:
        return tokens.count(line(as_shown(record, level), with_id=True)) + 1  # and the end of its line

    def floor(scope: Scope) -> Floor:
        measured = floor_for(knowledge.finding.answering_model(scope))
        minimum = settings.record_relevance_floor
        return measured if minimum is None else replace(measured, minimum=minimum)

    selecting = RecordSelector(
        records, kept, weights=_weights(settings), budgets=_budgets(settings), costs=costs, floor=floor
    )
    return Remembering(selecting)


def _weights(settings: Settings) -> Weights:
    return Weights(
        similarity=settings.record_weight_similarity,
        type=settings.record_weight_type,
        recency=settings.record_weight_recency,
        outcome=settings.record_weight_outcome,
        usage=settings.record_weight_usage,
        confidence=settings.record_weight_confidence,
    )


def _budgets(settings: Settings) -> dict[Type, int]:
    return {
        Type.DECISION: settings.records_decisions_max_tokens,
        Type.FACT: settings.records_facts_max_tokens,
        Type.PROCEDURE: settings.records_procedures_max_tokens,
        Type.EPISODE: settings.records_episodes_max_tokens,
        Type.ITEM: settings.records_items_max_tokens,
    }


# ---- tools ----
#
# The tools that the model may be offered: a line for each.


def wire_tools(
    settings: Settings, kept: Kept, knowledge: Knowledge, tokens: Tokens, records: KeepsRecords, material: FindsMaterial
) -> Toolbox:
    """All of them; see docs/tools.md."""
    lines, approval = kept.global_contexts, settings.global_context_approval
    return Toolbox(
        append_context(lines, approval),
        create_item(records),
        delete_context(lines, approval),
        delete_item(records),
        expand(records),
        query_items(records),
        read_section(kept.contexts),
        replace_context(lines, approval),
        search_codex(
            material,
            tokens,
            settings.llm_grounding_top_k,
            settings.llm_grounding_max_doc_excerpt_bytes,
            settings.llm_grounding_qmd_max_tokens,
        ),
        search_documents(
            knowledge.finding,
            tokens,
            settings.llm_grounding_top_k,
            settings.llm_grounding_max_doc_excerpt_bytes,
            settings.llm_grounding_qmd_max_tokens,
        ),
        update_item(records),
    )


# ---- answering ----
#
# What answers turns: the model and what it may cost, the prompt, the turn, and the jobs that follow it.


_log = structlog.get_logger()


@dataclass(frozen=True)
class Answering:
    """The parts that meet in a turn."""

    model: Model
    tooling: Tooling
    formatters: Formatters
    condensing: Condensing
    budgets: Budgets
    jobs: Jobs
    keeping: ContextKeeping
    records: Records
    karma: Karma
    materials: Materials
    prompting: PromptBuilder
    stops: Cancellations
    turns: Turns


def wire_answering(
    settings: Settings,
    kept: Kept,
    knowledge: Knowledge,
    files: Files,
    tokens: Tokens,
    formatters: Sequence[Installed],
    model: Model,
    surroundings: Surroundings,
) -> Answering:
    """*files* are what comes with messages; *surroundings* is the machine."""
    records = wire_records(settings, kept, knowledge, tokens)
    budgets = Budgets(kept.store.client, settings)
    spending = Spending(settings, budgets, kept.usage, model, Prices(), tokens)
    following = ContextFollowing(kept.contexts, kept.context_copy, kept.workspaces.exists, knowledge.told_contexts)
    jobs = _jobs(settings, kept, knowledge, following, records, model, spending)
    pipeline = Pipeline(
        kept.transcript,
        Continuing(kept.contexts, Freezing(LineByLine(tokens), settings.llm_grounding_layout), kept.sessions),
        kept.global_contexts,
        knowledge.finding,
        knowledge.finding,
        _layer_timeout(settings),
        wire_remembering(settings, records, kept.selections, knowledge, tokens),
        karma := Karma(kept.marks, Likeness(knowledge.embedder)),
    )
    deciding = Deciding(
        kept.transcript, knowledge.finding, settings.strategy_vocabulary_timeout_seconds, settings.strategy_vocabulary
    )
    materials = Materials(settings, knowledge.material, knowledge, tokens, kept.hub)
    toolbox = wire_tools(settings, kept, knowledge, tokens, records, materials)
    tooling = Tooling(settings, toolbox, model, kept.checkpoints, tokens)
    for name, scopes in tooling.unneeded().items():
        _log.warning("sigil.unneeded", sigil=name, scopes=scopes)
    making = Formatters(formatters, timeout_seconds=settings.formatter_timeout_seconds)
    prompting = PromptBuilder(
        settings,
        deciding=deciding,
        pipeline=pipeline,
        directives=kept.directives,
        model=model,
        tooling=tooling,
        formatters=making,
        attaching=MaterialChooser(settings, materials, tooling),
        tokens=tokens,
        surroundings=surroundings,
    )
    condensing = Condensing(settings, kept.publisher, model, spending, tokens)
    cancellations = Cancellations(kept.hub, kept.turns)
    turns = Turns(
        settings,
        prompts=prompting,
        model=model,
        tooling=tooling,
        tokens=tokens,
        outbox=kept.outbox,
        checkpoints=kept.checkpoints,
        transcript=kept.transcript,
        copy=kept.copy,
        manifests=kept.manifests,
        jobs=jobs,
        spending=spending,
        cancellations=cancellations,
        places=kept.places,
        reading=Reading(settings, files, model),
        hub=kept.hub,
        record_accounting=RecordAccounting(records, kept.manifests),
    )
    return Answering(
        model=model,
        tooling=tooling,
        formatters=making,
        condensing=condensing,
        budgets=budgets,
        jobs=jobs,
        keeping=ContextKeeping(kept.contexts, kept.transcript, following, jobs, _layer_timeout(settings)),
        records=records,
        karma=karma,
        materials=materials,
        prompting=prompting,
        stops=cancellations,
        turns=turns,
    )


def wire_reranker(settings: Settings, kept: Kept) -> LiteLLMReranker | None:
    """What puts found passages in order, where a model is set for it."""
    if settings.rerank_model is None:
        return None
    budgets = Budgets(kept.store.client, settings)
    return LiteLLMReranker(settings, RerankCosts(kept.usage, budgets))


def _jobs(
    settings: Settings,
    kept: Kept,
    knowledge: Knowledge,
    following: ContextFollowing,
    records: Records,
    model: Model,
    spending: Spending,
) -> Jobs:
    async def remember(jobs: Sequence[Job]) -> Sequence[Job]:
        await RememberTurns(kept.transcript, await knowledge.told_turns())(jobs)
        return ()

    async def remember_one(job: Job) -> None:
        await remember([job])

    async def index_later(job: Job) -> None:
        await jobs.enqueue(job)

    summaries = SummaryRefresh(settings, kept.transcript, kept.contexts, following, model, spending, index_later)
    extraction = RecordsExtraction(
        settings, kept.transcript, kept.manifests, kept.extraction_marks, records, model, spending
    )
    jobs = Jobs(
        kept.store.client,
        {
            "summary.refresh": summaries,
            EXTRACT: extraction,
            "turn.remember": remember_one,
            INDEX_CONTEXT: following,
            FORGET_TURNS: ForgetTurns(knowledge.told_turns, following.index),
        },
        together={"summary.refresh": summaries.due, EXTRACT: extraction.due, "turn.remember": remember},
        alone=settings.redis_url is None,
    )
    return jobs


def _layer_timeout(settings: Settings) -> float:
    """A layer asks Redis, or the embedder, then Qdrant, and then the reranker."""
    remote = 0.0 if settings.bundled_embedding_model else settings.embedding_timeout_seconds
    remote += settings.rerank_timeout_seconds + IMPORT_SECONDS if settings.rerank_model else 0.0
    return max(settings.redis_timeout_seconds, settings.qdrant_timeout_seconds + remote)


# ---- entrance ----
#
# Who may come in, and by which connectors.


@dataclass(frozen=True)
class Entrance:
    """The rules of admittance, and the connectors of this process by name."""

    admin_token: str
    access: Access
    api_tokens: ApiTokens
    security: Security
    http: HttpConnector
    web: WebConnector
    connectors: Mapping[str, Connector]


async def wire_entrance(settings: Settings, kept: Kept, platforms: Sequence[Connector], *, has_faces: bool) -> Entrance:
    """*platforms* are the connectors beside HTTP and the chat page; without *has_faces* there are none at all.

    Raises `OSError` where the administrator's token can be neither read nor written.
    """
    redis = kept.store.client
    token = await admin_token(settings)
    api_tokens = ApiTokens(redis, token)
    security = Security(settings, api_tokens)
    http = HttpConnector.of(settings, security)
    web = WebConnector.of(settings, security, security.check_place, WebSessions(redis, api_tokens))
    connectors: list[Connector] = [http, web, *platforms] if has_faces else []
    return Entrance(
        admin_token=token,
        access=Access(redis, settings),
        api_tokens=api_tokens,
        security=security,
        http=http,
        web=web,
        connectors={connector.name: connector for connector in connectors},
    )


# ---- conversing ----
#
# What people meet: the door for their messages, the commands, and the connectors kept running.


@dataclass(frozen=True)
class Conversing:
    """The parts between the platforms and the mailbox."""

    commands: Commands
    supervisor: Supervisor
    gateway: Gateway
    marking: Marking


def wire_conversing(
    settings: Settings,
    kept: Kept,
    entrance: Entrance,
    knowledge: Knowledge,
    answering: Answering,
    files: Files,
    shows: Shows,
    stores: Callable[[], Awaitable[dict[str, Health]]],
    tokens: Tokens,
) -> Conversing:
    """*stores* says how the stores are."""
    marking = Marking(
        kept.marks,
        answering.karma,
        transcript=kept.transcript,
        manifests=kept.manifests,
        outbox=kept.outbox,
        access=entrance.access,
        effects=MarkEffects(answering.records),
        sigils=Sigils.from_settings(settings),
        tokens=tokens,
    )

    def connectors() -> dict[str, Health]:
        return {name: supervisor.health(connector) for name, connector in entrance.connectors.items()}

    forgetting = _forgetting(kept, answering, marking)
    entrance.web.backend = ChatPage(
        kept.store.client,
        workspaces=kept.workspaces,
        conversation_list=kept.conversation_list,
        transcript=kept.transcript,
        outbox=kept.outbox,
        files=kept.files,
        marking=marking,
        manifests=kept.manifests,
        forgetting=forgetting,
        stops=answering.stops,
        knowledge=knowledge,
    )
    commands = _commands(settings, kept, entrance, knowledge, answering, files, stores, connectors, marking, forgetting)
    supervisor = Supervisor(entrance.connectors.values(), kept.turns, commands.hints())
    gateway = Gateway(
        settings,
        workspaces=kept.workspaces,
        access=entrance.access,
        limit=kept.limit,
        mailboxes=kept.mailboxes,
        outbox=kept.outbox,
        transcript=kept.transcript,
        commands=commands,
        places=kept.places,
        connectors=entrance.connectors,
        shows=shows,
        hub=kept.hub,
        marking=marking,
        dead_letters=kept.dead_letters,
    )
    return Conversing(commands, supervisor, gateway, marking)


def _commands(
    settings: Settings,
    kept: Kept,
    entrance: Entrance,
    knowledge: Knowledge,
    answering: Answering,
    files: Files,
    stores: Callable[[], Awaitable[dict[str, Health]]],
    connectors: Callable[[], dict[str, Health]],
    marking: Marking,
    forgetting: Forgetting,
) -> Commands:
    return build_commands(
        settings,
        transcript=kept.transcript,
        contexts=kept.contexts,
        global_contexts=kept.global_contexts,
        sessions=kept.sessions,
        records=answering.records,
        manifests=kept.manifests,
        usage=kept.usage,
        budgets=answering.budgets,
        access=entrance.access,
        publisher=kept.publisher,
        model=answering.model,
        places=kept.places,
        forgetting=forgetting,
        marking=marking,
        stop=answering.stops.stop,
        end_turn=answering.stops.end_turn,
        stores=stores,
        connectors=connectors,
        index=knowledge.status,
        further=(docs_command(knowledge.shelf, knowledge, files, settings.document_max_bytes),),
    )


def _forgetting(kept: Kept, answering: Answering, marking: Marking) -> Forgetting:
    return Forgetting(
        kept.store.client,
        transcript=kept.transcript,
        copy=kept.copy,
        contexts=kept.contexts,
        context_copy=kept.context_copy,
        sessions=kept.sessions,
        manifests=kept.manifests,
        outbox=kept.outbox,
        files=kept.files,
        conversation_list=kept.conversation_list,
        dead_letters=kept.dead_letters,
        records=answering.records,
        extraction_marks=kept.extraction_marks,
        marking=marking,
        jobs=answering.jobs,
    )


# ---- delivering ----
#
# What brings answers to the platforms, and shows there that one is on its way.


@dataclass(frozen=True)
class Delivering:
    """The parts between the outbox and the platforms."""

    shows: Shows
    deliverer: Deliverer
    locator: Locator

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Replies are delivered, growing ones shown and files located, as long as the block lasts."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.shows.running())
            await stack.enter_async_context(beside(self.deliverer.run(), "deliverer"))
            await stack.enter_async_context(beside(self.locator.run(), "locator"))
            yield


def wire_delivering(settings: Settings, kept: Kept, entrance: Entrance) -> Delivering:
    """All of it shares one rate limiter per connector, so that a platform's limits hold for previews and replies."""
    connectors, states, rate_limiters = entrance.connectors, kept.outbox.states, RateLimiters()
    shows = Shows(
        connectors,
        states,
        rate_limiters,
        kept.hub,
        streams=settings.stream_replies,
        acknowledgement=settings.acknowledgement_reaction,
    )
    delivery = Delivery(states, connectors, rate_limiters, settings.delivery_ambiguous)
    alone = settings.redis_url is None
    deliverer = Deliverer(settings, kept.outbox, connectors, delivery, shows, kept.hub, alone=alone)
    return Delivering(shows, deliverer, Locator(connectors, kept.hub))


# ---- working ----
#
# What takes work out of the mailboxes, and what one of several processes does for all.


def wire_workers(settings: Settings, kept: Kept, answering: Answering, conversing: Conversing) -> Mapping[Lane, Worker]:
    """One worker for what is to be answered, one for commands."""
    answers: dict[Lane, Answers] = {
        Lane.TURNS: answering.turns,
        Lane.COMMANDS: CommandTurns(conversing.commands, kept.outbox),
    }
    alone = settings.redis_url is None
    return {
        lane: Worker(
            settings,
            kept.mailboxes[lane],
            answers[lane],
            kept.hub,
            kept.dead_letters.of(lane),
            lane=lane,
            alone=alone,
        )
        for lane in Lane
    }


def wire_duties(
    settings: Settings,
    kept: Kept,
    jobs: Jobs | None,
    knowledge: Knowledge | None,
    records: Records,
    deep: Deeper | None,
) -> Leadership:
    """What follows turns and the Markdown copies, and what *records* need as time passes, where *jobs* are given;
    following the disk, and filling an index that is new, until it takes the place of the former, where *knowledge*
    is, by *deep* also with deeper vectors."""

    async def duties() -> None:
        async with asyncio.TaskGroup() as group:
            if jobs is not None:
                group.create_task(kept.copy.run(), name="chat logs")
                group.create_task(jobs.run(), name="jobs")
                keeping = RecordKeeping(records, RecordStore(kept.store.client), kept.workspaces)
                group.create_task(keeping.run(), name="records")
            if knowledge is not None:
                group.create_task(in_step(knowledge), name="index")

    async def in_step(knowledge: Knowledge) -> None:
        material = MaterialFollowing(knowledge.material, knowledge, kept.workspaces, kept.hub)
        rebuilding = Rebuilding(
            settings.data_dir, knowledge, kept.transcript, kept.contexts, kept.copy, kept.workspaces
        )
        keep = settings.index_keep_former_days * DAY_SECONDS
        changeover = Changeover(knowledge, rebuilding, kept.workspaces, keep)
        async with asyncio.TaskGroup() as group:
            group.create_task(knowledge.follow(), name="follow")
            group.create_task(material.run(), name="material")
            group.create_task(rebuilding.fill_new_index(), name="remembered turns")
            group.create_task(changeover.run(), name="change-over")
            if deep is not None:
                shared = settings.redis_url is not None
                deepening = Deepening(knowledge, deep, kept.workspaces, knowledge.material, shared=shared)
                group.create_task(deepening.run(), name="deeper vectors")

    return Leadership(kept.store.client, kept.hub.name, duties)


# ---- process ----
#
# All parts of one process, wired; nothing runs yet.


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


# ---- bootstrap ----


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
    publisher: FileSyncPublisher
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
    `runtime.stores.DataDirUnusable`, `runtime.embedded.child.ChildFailed` and `OSError` when the embedded stores
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
