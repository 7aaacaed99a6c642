"""What answers turns: the model and what it may cost, the prompt, the turn, and the jobs that follow it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from config.settings import Settings
from grounding.continuing import Continuing
from grounding.deciding import Deciding
from grounding.memory.karma.likeness import Likeness
from grounding.memory.karma.reading import Karma
from grounding.memory.records.records import Records
from grounding.pipeline import Pipeline
from grounding.sessions.freezing import Freezing
from grounding.tokens import LineByLine, Tokens
from runtime.after_turn import RememberTurns, SummaryRefresh
from runtime.attachments.files import Files
from runtime.attachments.reading import Reading
from runtime.budgets import Budgets
from runtime.condensing import Condensing
from runtime.context_keeping import JOB as INDEX_CONTEXT
from runtime.context_keeping import ContextFollowing, ContextKeeping
from runtime.environment.sampling import Surroundings
from runtime.extracting import JOB as EXTRACT
from runtime.extracting import RecordsExtraction
from runtime.forgetting import JOB as FORGET_TURNS
from runtime.forgetting import ForgetTurns
from runtime.formatters import Formatters, Installed
from runtime.jobs import Job, Jobs
from runtime.knowledge import Knowledge
from runtime.llm import IMPORT_SECONDS, LiteLLMReranker, Model
from runtime.prices import Prices
from runtime.spending import RerankCosts, Spending
from runtime.turns import Cancellations, MaterialChooser, Materials, PromptBuilder, RecordAccounting, Tooling, Turns
from runtime.wiring.kept import Kept
from runtime.wiring.records import wire_records
from runtime.wiring.remembering import wire_remembering
from runtime.wiring.tools import wire_tools

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
