"""Wires one process: `open_runtime` goes from the settings to a running `Runtime`.

Nothing else in the code connects the parts with each other. `Runtime` builds all of them, in the order in which they
need each other; `open_runtime` opens the stores before and starts what the process's role asks for after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Literal

import structlog

from config.settings import Settings
from connectors.connector import Accept, Connector, Health
from connectors.http import HttpConnector
from connectors.message import Scope, StoreUnavailable
from connectors.web import WebConnector
from grounding.codex import FindsMaterial, search_codex
from grounding.lookup_tools import read_section, search_documents
from grounding.memory.context_document import ContextCopy, ContextDocuments, DocumentLimits
from grounding.memory.frames import problem_in as problem_in_frames
from grounding.memory.global_context import GlobalContexts, append_context, delete_context, replace_context
from grounding.memory.karma import Karma, Likeness, MarkStore
from grounding.memory.records import (
    Record,
    RecordHit,
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
from grounding.memory.selection import (
    Floor,
    LastSelections,
    Level,
    RecordSelector,
    RuleSelector,
    as_selected,
    floor_for,
)
from grounding.pipeline import Pipeline, StrategyChooser
from grounding.prompt import PrefixPolicy, SessionContinuity, Sessions, global_context_frame_tokens, record_line
from grounding.prompt_input import LineByLine, Tokens, load_tokens
from grounding.retrieval import EmbedderUnavailable
from grounding.strategy import problem_in as problem_in_cues
from grounding.tools import Toolbox
from grounding.transcript import MarkdownCopy, Transcript
from promptpolicy.directives import Directives
from promptpolicy.file_sync import FileSyncPublisher
from promptpolicy.file_tree import DirectiveTree
from promptpolicy.policy import Kind
from promptpolicy.sigils import Sigils
from runtime.access import Access, ApiTokens, RateLimit, admin_token
from runtime.attachments import AttachmentReader, Files, Locator, UploadedFiles
from runtime.background import (
    DAY_SECONDS,
    DEEPEN_TURNS,
    FORGET_TURNS,
    INDEX_CONTEXT,
    ContextEditor,
    ContextSync,
    DeepenTurns,
    DirectiveCondenser,
    ExtractionMarks,
    Forgetting,
    ForgetTurns,
    IndexRebuilder,
    Marking,
    ModelMigration,
    RecordsAndManifests,
    RecordsExtraction,
    RecordSummaries,
    RecordSweep,
    RememberTurns,
    SummaryRefresh,
)
from runtime.billing import Budgets, RerankCosts, Spending, UsageCounters
from runtime.commands import CommandTurns, build_commands
from runtime.coordination import Hub, Job, Jobs, Leadership
from runtime.delivery import Deliverer, Delivery, Outbox, Previews, RateLimiters
from runtime.embedded import LocalModelServer, background_task, local_model
from runtime.embedded.index_client import (
    COMMAND_SECONDS,
    QUESTION_SECONDS,
    DeepModel,
    IndexProcess,
    has_embedded,
    index_process,
)
from runtime.formatters import Formatters, Installed, load_formatters
from runtime.http import ChatPage, Security, WebSessions
from runtime.ingress import Audiences, Gateway
from runtime.llm import (
    EMBEDDING_SECONDS,
    IMPORT_SECONDS,
    RERANK_SECONDS,
    LiteLLMReranker,
    Model,
    begin_loading,
    needs_litellm,
)
from runtime.machine import Gpus, MachineMonitor, ModelMemories
from runtime.observability import EventStream
from runtime.operations import AuditLog, audit_key, prune_daily
from runtime.preview import PreviewAnswers, TurnReplayer
from runtime.process.connectors import Supervisor
from runtime.search import TRANSLATION_SECONDS, Deepening, Knowledge, QueryTranslator, deepening_unavailable_reason
from runtime.stores import RedisStore, open_redis, prepare_data_dir
from runtime.turns import (
    EXTRACT_RECORDS,
    Answers,
    Cancellations,
    Checkpoints,
    DeadLetters,
    Lane,
    Mailbox,
    Manifests,
    MaterialChooser,
    MaterialIndexer,
    Materials,
    PromptBuilder,
    RecordAccounting,
    Tooling,
    Turns,
    Worker,
)
from runtime.workspaces import SAMPLE, ConversationList, Places, Workspaces, install_sample, make_document_folder

Part = Literal["gateway", "worker", "jobs", "follow"]
Role = Literal["all", "gateway", "worker"]
ROLES: Mapping[Role, frozenset[Part]] = {
    "all": frozenset(("gateway", "worker", "jobs", "follow")),
    "gateway": frozenset(("gateway",)),
    "worker": frozenset(("worker", "jobs", "follow")),
}
"""The parts that run in a process of each role: "gateway" delivers replies and runs commands, "worker" answers turns,
"jobs" does the work after turns, "follow" keeps the search index in step with the files."""
ALL_PARTS = ROLES["all"]
LAST_COPY_SECONDS = 2.0
INDEX_SECONDS = 5.0
"""How long `_warm_up` waits for the index. A start is not held up longer by a store that is away."""
_log = structlog.get_logger()


@dataclass(frozen=True)
class Timings:
    """How often the parts of a process look for what nobody announced, and a worker's pauses between two attempts."""

    sweep_seconds: float = 2.0
    jobs_sweep_seconds: float = 5.0
    retry_seconds: tuple[float, float] = (0.5, 5.0)


@asynccontextmanager
async def open_runtime(
    settings: Settings,
    events: EventStream,
    *,
    platforms: Sequence[Connector] = (),
    parts: frozenset[Part] = ALL_PARTS,
    engine: IndexProcess | None = None,
    timings: Timings | None = None,
) -> AsyncIterator[Runtime]:
    """Open the stores, wire one process and run its *parts* as long as the block lasts.

    *platforms* are the connectors beside HTTP and the chat page; `Supervisor.run` starts them. A command that only
    reads needs no parts. *engine* is the process of the embedded index if the caller has started it.

    Stops in the order opposite to the data's: the caller has closed the intake by then; turns in progress are
    finished, their transcripts copied, then the stores closed. Raises `runtime.stores.DataDirUnusable`,
    `runtime.embedded.child.ChildFailed` and `OSError` if the embedded stores, the administrator's token or the key
    of the audit log cannot be opened, and `runtime.formatters.FormattersRefused`.
    """
    await prepare_data_dir(settings.data_dir)
    # Threads load them while the store's server starts.
    loop = asyncio.get_running_loop()
    if "worker" in parts and needs_litellm(settings):
        begin_loading()
    tokens = loop.run_in_executor(None, load_tokens)
    formatters = loop.run_in_executor(None, load_formatters, settings)
    async with AsyncExitStack() as stack:
        child = engine if engine is not None else await stack.enter_async_context(index_process(settings.data_dir))
        is_embedded = await asyncio.to_thread(has_embedded, settings)
        if parts and is_embedded:
            engine = child
            engine.begin()
        store = await stack.enter_async_context(open_redis(settings))
        model_server = await stack.enter_async_context(local_model(settings.data_dir))
        deep = None
        if not await asyncio.to_thread(deepening_unavailable_reason, settings):
            deep = DeepModel(child, QUESTION_SECONDS if parts else COMMAND_SECONDS)
        runtime = Runtime(
            settings,
            events,
            store,
            model_server,
            deep,
            engine,
            await tokens,
            await formatters,
            await admin_token(settings),
            await audit_key(settings),
            platforms,
            timings or Timings(),
            has_connectors="worker" not in parts or "gateway" in parts,
        )
        stack.push_async_callback(runtime.knowledge.close)
        stack.push_async_callback(runtime.model.close)
        await stack.enter_async_context(background_task(events.run(store.client), "events"))
        await stack.enter_async_context(background_task(runtime.hub.run(), "hub"))
        await _prepare_workspaces(runtime)
        if "follow" in parts and settings.redis_url is None:
            runtime.knowledge.will_follow()
        await stack.enter_async_context(background_task(runtime.knowledge.open(), "knowledge"))
        await stack.enter_async_context(background_task(runtime.surroundings.run(), "environment"))
        await _start_parts(stack, runtime, parts)
        yield runtime


class Runtime:
    """All parts of one process, connected with each other; nothing runs yet.

    HTTP routes, the command line and `open_runtime` use its attributes. Without *has_connectors* the process has
    neither *platforms* nor HTTP nor the chat page.
    """

    def __init__(
        self,
        settings: Settings,
        events: EventStream,
        store: RedisStore,
        model_server: LocalModelServer,
        deep: DeepModel | None,
        engine: IndexProcess | None,
        tokens: Tokens,
        installed_formatters: Sequence[Installed],
        admin_token: str,
        audit_key: bytes,
        platforms: Sequence[Connector],
        timings: Timings,
        *,
        has_connectors: bool,
    ) -> None:
        self.settings = settings
        self.tokens = tokens
        self.events = events
        self.store = store
        self.admin_token = admin_token
        self.deep = deep
        self.engine = engine
        self.is_warm = False
        """Whether all is loaded that turns need. A process that answers no turns is warm from the start."""

        redis = store.client
        single_process = settings.redis_url is None
        self.hub = Hub(redis, shared=not single_process)

        # The owners of the keys in Redis, and the copies on disk
        self.workspaces = Workspaces(redis, settings)
        self.places = Places(redis)
        mailboxes = {lane: Mailbox(redis, lane) for lane in Lane}
        self.mailbox = mailboxes[Lane.TURNS]
        checkpoints = Checkpoints(redis)
        outbox = Outbox(redis, self.hub)
        self.dead_letters = DeadLetters(redis, mailboxes, self.hub)
        conversation_list = ConversationList(redis)
        kept_files = UploadedFiles(redis, settings.data_dir)
        self.transcript = Transcript(redis)
        self.copy = MarkdownCopy(self.transcript, settings.data_dir, alone=single_process)
        self.contexts = ContextDocuments(redis)
        context_copy = ContextCopy(settings.data_dir)
        self.global_contexts = GlobalContexts(
            redis,
            tokens,
            max_tokens=max(0, settings.global_context_max_tokens - global_context_frame_tokens(tokens)),
            idle_seconds=settings.session_idle_seconds,
        )
        sessions = Sessions(redis, settings.session_idle_seconds)
        marks = MarkStore(redis)
        extraction_marks = ExtractionMarks(redis)
        self.manifests = Manifests(redis)
        self.usage = UsageCounters(redis)
        self.budgets = Budgets(redis, settings)
        self.directives = Directives(redis, settings.redis_timeout_seconds)
        self.publisher = FileSyncPublisher(
            self.directives,
            tokens.count,
            settings.policy_max_tokens,
            DirectiveTree(settings.data_dir),
            {Kind.CUES: problem_in_cues, Kind.FRAMES: problem_in_frames},
        )

        # Who may come in, and through which connectors
        self.api_tokens = ApiTokens(redis, admin_token)
        self.access = Access(redis, settings, self.api_tokens)
        self.audit = AuditLog(redis, audit_key)
        self.security = Security(settings, self.api_tokens)
        self.http = HttpConnector.of(settings, self.security)
        web = WebConnector.of(settings, self.security, self.security.check_host, WebSessions(redis, self.api_tokens))
        own: tuple[Connector, ...] = (self.http, web)
        self.connectors = {connector.name: connector for connector in (*own, *platforms)} if has_connectors else {}

        # Delivery. Previews and replies share one rate limiter per connector, so that a platform's limits hold for both
        rate_limiters = RateLimiters()
        self.shows = Previews(
            self.connectors,
            outbox,
            rate_limiters,
            self.hub,
            streams=settings.stream_replies,
            acknowledgement=settings.acknowledgement_reaction,
        )
        delivery = Delivery(outbox, self.connectors, rate_limiters, settings.delivery_ambiguous)
        self.deliverer = Deliverer(
            settings,
            outbox,
            self.connectors,
            delivery,
            self.shows,
            self.hub,
            alone=single_process,
            sweep_seconds=timings.sweep_seconds,
        )
        self.locator = Locator(self.connectors, self.hub)
        files = Files(settings, self.locator)

        # Search, the model and the machine
        self.model = Model(settings, model_server)
        spending = Spending(settings, redis, self.budgets, self.usage, self.model, tokens)
        reranker = LiteLLMReranker(settings, RerankCosts(spending)) if settings.rerank_model is not None else None
        self.knowledge = Knowledge(
            settings,
            redis,
            tokens,
            self.workspaces,
            self.publisher,
            reranker,
            deep,
            engine,
            _query_translator(settings, spending),
            self.hub.name,
        )

        async def links() -> dict[str, Health]:
            return {"model": self.model.health, **await self.store_health()}

        self.rebuilding = IndexRebuilder(
            settings.data_dir, self.knowledge, self.transcript, self.contexts, self.copy, self.workspaces
        )
        self.surroundings = MachineMonitor(settings, Gpus(), ModelMemories(settings, self.model.names), links)

        # Typed records, and the jobs after a turn
        record_store = RecordStore(redis)
        self.audiences = Audiences(record_store, self.global_contexts, marks, self.manifests)
        self.records = RecordsAndManifests(
            record_store,
            tokens,
            LazyRecordIndex(self.knowledge),
            _record_rules(settings),
            manifests=self.manifests,
            summarise=RecordSummaries(spending) if settings.has_provider_model else None,
        )
        context_sync = ContextSync(
            self.contexts, context_copy, self.workspaces.exists, self.knowledge.contexts_everywhere
        )

        async def remember(batch: Sequence[Job]) -> Sequence[Job]:
            await RememberTurns(self.transcript, await self.knowledge.turns_everywhere())(batch)
            if self.deep is not None:
                for job in {job.key: job for job in batch}.values():
                    await self.jobs.enqueue(Job(DEEPEN_TURNS, job.key, job.turn_id))
            return ()

        async def remember_one(job: Job) -> None:
            await remember([job])

        async def index_later(job: Job) -> None:
            await self.jobs.enqueue(job)

        document_limits = DocumentLimits(
            settings.llm_grounding_memory_summary_max_items,
            settings.llm_grounding_memory_summary_max_tokens,
            settings.context_document_max_bytes,
            tokens,
        )
        summaries = SummaryRefresh(
            settings, self.transcript, self.contexts, context_sync, self.model, spending, document_limits, index_later
        )
        extraction = RecordsExtraction(
            settings, self.transcript, self.manifests, extraction_marks, self.records, self.model, spending
        )
        self.jobs = Jobs(
            redis,
            {
                "summary.refresh": summaries,
                EXTRACT_RECORDS: extraction,
                "turn.remember": remember_one,
                DEEPEN_TURNS: DeepenTurns(self.knowledge.turns_everywhere),
                INDEX_CONTEXT: context_sync,
                FORGET_TURNS: ForgetTurns(self.knowledge.turns_everywhere, context_sync.index),
            },
            together={"summary.refresh": summaries.due, EXTRACT_RECORDS: extraction.due, "turn.remember": remember},
            alone=single_process,
            sweep_seconds=timings.jobs_sweep_seconds,
        )
        layer_timeout = _layer_timeout(settings)
        self.context_editor = ContextEditor(
            self.contexts, self.transcript, context_sync, self.jobs, document_limits, layer_timeout
        )

        # One turn: grounding, tools, prompt, answer
        karma = Karma(marks, Likeness(self.knowledge.embedder))
        selector, rules = _record_selectors(
            self.records, LastSelections(redis, settings.session_idle_seconds), self.knowledge, tokens
        )
        pipeline = Pipeline(
            self.transcript,
            SessionContinuity(self.contexts, PrefixPolicy(LineByLine(tokens), settings.llm_grounding_layout), sessions),
            self.global_contexts,
            self.knowledge.finding,
            self.knowledge.finding,
            layer_timeout,
            selector,
            karma,
            rules,
        )
        deciding = StrategyChooser(
            self.knowledge.finding, asked_seconds=layer_timeout, vocabulary=settings.strategy_vocabulary
        )
        self.materials = Materials(settings, self.knowledge.material, self.knowledge, tokens, self.hub)
        toolbox = build_tools(
            settings, self.contexts, self.global_contexts, self.knowledge, tokens, self.records, self.materials
        )
        self.tooling = Tooling(settings, toolbox, self.model, checkpoints, tokens)
        for name, scopes in self.tooling.unused_scopes().items():
            _log.warning("sigil.unneeded", sigil=name, scopes=scopes)
        self.formatters = Formatters(installed_formatters, timeout_seconds=settings.formatter_timeout_seconds)
        self.prompting = PromptBuilder(
            settings,
            redis,
            deciding=deciding,
            pipeline=pipeline,
            directives=self.directives,
            model=self.model,
            tooling=self.tooling,
            formatters=self.formatters,
            attaching=MaterialChooser(self.materials, self.tooling),
            tokens=tokens,
            surroundings=self.surroundings,
        )
        self.condensing = DirectiveCondenser(settings, self.publisher, self.model, spending, tokens)
        self.replayer = TurnReplayer(settings, self.manifests, self.directives, self.transcript, tokens)
        self.preview_answers = PreviewAnswers(self.model, spending)
        self.stops = Cancellations(self.hub, self.mailbox)
        self.turns = Turns(
            settings,
            redis,
            prompts=self.prompting,
            model=self.model,
            tooling=self.tooling,
            tokens=tokens,
            outbox=outbox,
            checkpoints=checkpoints,
            transcript=self.transcript,
            copy=self.copy,
            manifests=self.manifests,
            sessions=sessions,
            jobs=self.jobs,
            spending=spending,
            cancellations=self.stops,
            places=self.places,
            reading=AttachmentReader(settings, files, self.model),
            hub=self.hub,
            record_accounting=RecordAccounting(self.records, self.manifests),
        )

        # What people meet: marks on answers, forgetting, the chat page, commands, the gateway
        self.marking = Marking(
            marks,
            transcript=self.transcript,
            manifests=self.manifests,
            outbox=outbox,
            access=self.access,
            records=self.records,
            sigils=Sigils.from_settings(settings),
            tokens=tokens,
        )
        forgetting = Forgetting(
            redis,
            transcript=self.transcript,
            copy=self.copy,
            contexts=self.contexts,
            context_copy=context_copy,
            sessions=sessions,
            manifests=self.manifests,
            outbox=outbox,
            files=kept_files,
            conversation_list=conversation_list,
            dead_letters=self.dead_letters,
            records=self.records,
            extraction_marks=extraction_marks,
            marking=self.marking,
            jobs=self.jobs,
        )
        web.backend = ChatPage(
            redis,
            workspaces=self.workspaces,
            conversation_list=conversation_list,
            transcript=self.transcript,
            outbox=outbox,
            files=kept_files,
            marking=self.marking,
            manifests=self.manifests,
            forgetting=forgetting,
            stops=self.stops,
            knowledge=self.knowledge,
        )
        commands = build_commands(
            settings,
            transcript=self.transcript,
            contexts=self.contexts,
            global_contexts=self.global_contexts,
            sessions=sessions,
            records=self.records,
            manifests=self.manifests,
            usage=self.usage,
            budgets=self.budgets,
            access=self.access,
            publisher=self.publisher,
            model=self.model,
            places=self.places,
            forgetting=forgetting,
            marking=self.marking,
            cancellations=self.stops,
            knowledge=self.knowledge,
            files=files,
            stores=self.store_health,
            connectors=lambda: self.supervisor.all_health(),
        )
        self.supervisor = Supervisor(self.connectors.values(), self.mailbox, commands.hints())
        self.gateway = Gateway(
            settings,
            workspaces=self.workspaces,
            access=self.access,
            limit=RateLimit(redis, settings),
            mailboxes=mailboxes,
            outbox=outbox,
            transcript=self.transcript,
            commands=commands,
            places=self.places,
            connectors=self.connectors,
            shows=self.shows,
            hub=self.hub,
            marking=self.marking,
            dead_letters=self.dead_letters,
        )

        # The workers that empty the mailboxes of messages and of commands
        def worker(lane: Lane, answers: Answers) -> Worker:
            return Worker(
                settings,
                mailboxes[lane],
                answers,
                self.hub,
                self.dead_letters,
                lane=lane,
                alone=single_process,
                sweep_seconds=timings.sweep_seconds,
                retry_seconds=timings.retry_seconds,
            )

        self.worker = worker(Lane.TURNS, self.turns)
        self.command_worker = worker(Lane.COMMANDS, CommandTurns(commands, outbox))

    @property
    def accept(self) -> Accept:
        """Takes a message from a connector."""
        return self.gateway.accept

    async def store_health(self) -> dict[str, Health]:
        """Return the health of each store by name."""
        redis, qdrant = await asyncio.gather(self.store.health(), self.knowledge.health())
        return {"redis": redis, "qdrant": qdrant}

    def connector_health(self) -> dict[str, Health]:
        """Return the health of each connector of this process by name."""
        return self.supervisor.all_health()


class LazyRecordIndex:
    """`grounding.memory.records.RecordSearch` over an index that may still be opening."""

    def __init__(self, knowledge: Knowledge) -> None:
        self._knowledge = knowledge

    async def find(
        self, scope: Scope, query: str, searches: Sequence[tuple[int, Collection[Type]]], *, deep: bool = False
    ) -> Sequence[RecordHit]:
        return await self._knowledge.finding.find_records(scope, query, searches, deep=deep)

    async def follow(self, scope: Scope, ids: Sequence[str]) -> None:
        await (await self._knowledge.records_everywhere()).follow(scope, ids)


def build_tools(
    settings: Settings,
    contexts: ContextDocuments,
    global_contexts: GlobalContexts,
    knowledge: Knowledge,
    tokens: Tokens,
    records: Records,
    material: FindsMaterial,
) -> Toolbox:
    """Build all tools that the model may be offered, one line each; docs/tools.md describes them."""
    approval = settings.global_context_approval
    limits = (
        settings.llm_grounding_top_k,
        settings.llm_grounding_max_doc_excerpt_bytes,
        settings.llm_grounding_qmd_max_tokens,
    )
    return Toolbox(
        append_context(global_contexts, approval),
        create_item(records),
        delete_context(global_contexts, approval),
        delete_item(records),
        expand(records),
        query_items(records),
        read_section(contexts),
        replace_context(global_contexts, approval),
        search_codex(material, tokens, *limits),
        search_documents(knowledge.finding, tokens, *limits),
        update_item(records),
    )


def _record_rules(settings: Settings) -> Rules:
    return Rules(
        block_activations=settings.censor_block_activations,
        archived_days=settings.episode_archived_days,
    )


def _record_selectors(
    records: Records, selections: LastSelections, knowledge: Knowledge, tokens: Tokens
) -> tuple[RecordSelector, RuleSelector]:
    def costs(record: Record, level: Level) -> int:
        return tokens.count(record_line(as_selected(record, level), with_id=True)) + 1  # and the end of its line

    def floor(scope: Scope) -> Floor:
        return floor_for(knowledge.finding.answering_model(scope))

    rules = RuleSelector(records, costs=costs, model=knowledge.finding.answering_model)
    return RecordSelector(records, selections, costs=costs, floor=floor), rules


def _query_translator(settings: Settings, spending: Spending) -> QueryTranslator | None:
    """Return the translator of questions; None if all are searched for as they are."""
    if not settings.query_translation:
        return None
    if settings.has_provider_model:
        return QueryTranslator(spending)
    return None if settings.bundled_embedding_model == "bundled/multilingual" else QueryTranslator(None)


def _layer_timeout(settings: Settings) -> float:
    """Return the seconds for one layer, which asks Redis, or the translator, the embedder, then Qdrant, and then the
    reranker."""
    remote = TRANSLATION_SECONDS if settings.query_translation else 0.0
    remote += 0.0 if settings.bundled_embedding_model else EMBEDDING_SECONDS
    remote += RERANK_SECONDS + IMPORT_SECONDS if settings.rerank_model else 0.0
    return max(settings.redis_timeout_seconds, settings.qdrant_timeout_seconds + remote)


async def _prepare_workspaces(runtime: Runtime) -> None:
    """Make the sample workspace and the shared one, give what earlier versions stored without an audience one, and read
    the directives of all workspaces from their files."""
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


async def _start_parts(stack: AsyncExitStack, runtime: Runtime, parts: frozenset[Part]) -> None:
    """Start *parts*; *stack* stops them in the opposite order."""
    for connector in runtime.connectors.values():  # after the worker: its last answers are still delivered
        stack.push_async_callback(connector.close)
    if "jobs" in parts:
        stack.push_async_callback(_copy_last_turns, runtime.copy)
    if "jobs" in parts or "follow" in parts:
        duties = Leadership(runtime.store.client, runtime.hub.name, lambda: _run_duties(runtime, parts))
        await stack.enter_async_context(background_task(duties.run(), "duties"))
    if "jobs" in parts:
        stack.push_async_callback(runtime.jobs.finish)  # before their runner ends
    if "gateway" in parts:
        await stack.enter_async_context(runtime.shows.running())
        await stack.enter_async_context(background_task(runtime.deliverer.run(), "deliverer"))
        await stack.enter_async_context(background_task(runtime.locator.run(), "locator"))
        await stack.enter_async_context(background_task(runtime.gateway.run(), "gateway"))
        await stack.enter_async_context(background_task(runtime.command_worker.run(), "commands"))
    if "worker" in parts:
        await stack.enter_async_context(background_task(_warm_up(runtime), "warm up"))
        await stack.enter_async_context(background_task(runtime.worker.run(), "worker"))
    else:
        _finish_start(runtime)


async def _run_duties(runtime: Runtime, parts: frozenset[Part]) -> None:
    """Do what one of several processes does for all: the work after turns, and keeping the index in step."""
    async with asyncio.TaskGroup() as group:
        if "jobs" in parts:
            group.create_task(runtime.copy.run(), name="chat logs")
            group.create_task(runtime.jobs.run(), name="jobs")
            keeping = RecordSweep(runtime.records, RecordStore(runtime.store.client), runtime.workspaces)
            group.create_task(keeping.run(), name="records")
            group.create_task(prune_daily(runtime.audit, runtime.workspaces), name="audit")
        if "follow" in parts:
            group.create_task(_keep_index(runtime), name="index")


async def _keep_index(runtime: Runtime) -> None:
    """Keep the index in step. If its files are found damaged, it is empty then, and is filled as at a start."""
    settings, workspaces, knowledge = runtime.settings, runtime.workspaces, runtime.knowledge
    material = MaterialIndexer(knowledge.material, knowledge, workspaces, runtime.hub)
    kept_seconds = settings.index_keep_former_days * DAY_SECONDS
    changeover = ModelMigration(knowledge, runtime.rebuilding, workspaces, kept_seconds)
    damaged = runtime.engine.found_damaged if runtime.engine is not None else asyncio.Event()
    await knowledge.opened()
    while True:
        damaged.clear()
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(knowledge.follow(), name="follow"),
                group.create_task(material.run(), name="material"),
                group.create_task(runtime.rebuilding.fill_new_index(), name="remembered turns"),
                group.create_task(changeover.run(), name="change-over"),
            ]
            if runtime.deep is not None:
                shared = settings.redis_url is not None
                deepening = Deepening(knowledge, runtime.deep, workspaces, knowledge.material, shared=shared)
                tasks.append(group.create_task(deepening.run(), name="deeper vectors"))
            await damaged.wait()
            knowledge.will_follow()
            for task in tasks:
                task.cancel()
        with contextlib.suppress(StoreUnavailable):  # to fill it meets the same, and is tried again
            scopes = [Scope(workspace.id) for workspace in await workspaces.all()]
            await knowledge.catalogue.lose((await knowledge.ready()).name, scopes)


async def _copy_last_turns(copy: MarkdownCopy) -> None:
    """Write the last turns to the chat logs before the store closes. Never raises."""
    with contextlib.suppress(StoreUnavailable, OSError, TimeoutError):  # the next start finds them in Redis
        async with asyncio.timeout(LAST_COPY_SECONDS):
            await copy.flush()


async def _warm_up(runtime: Runtime) -> None:
    """Load what turns need; then the process is ready. A turn that comes earlier waits for what it needs."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(INDEX_SECONDS):
            await runtime.knowledge.opened()
    await asyncio.gather(runtime.knowledge.warm(), runtime.model.warm(), _warm_deep_model(runtime.deep))
    await asyncio.to_thread(_trim_memory)
    _finish_start(runtime)


async def _warm_deep_model(deep: DeepModel | None) -> None:
    """Have the deeper embedding model loaded, if there is one and it does not take longer than `INDEX_SECONDS`."""
    if deep is None:
        return
    with contextlib.suppress(TimeoutError, EmbedderUnavailable):  # the first search goes without it
        async with asyncio.timeout(INDEX_SECONDS):
            await deep.embed_documents(["warm"])


def _trim_memory() -> None:
    """Give the memory back that loading took for a while: 30 MB of texts of vocabularies and of compiled modules."""
    with contextlib.suppress(AttributeError, OSError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)


def _finish_start(runtime: Runtime) -> None:
    """Say that the process is warm, and let the garbage collector skip what the start imported: with LiteLLM's objects
    one full collection stops the event loop for half a second."""
    runtime.is_warm = True
    if not gc.get_freeze_count():  # another runtime of this process may have done it
        gc.freeze()
