"""Answers one turn: from the messages of a batch to a delivered reply. Straight down, each layer once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import structlog

from config.settings import Settings
from connectors.connector import SendFailed
from connectors.message import (
    AgentRuntimeError,
    ConversationKey,
    Degraded,
    OutboundMessage,
    Role,
    Scope,
    Source,
    StoreUnavailable,
)
from grounding import assemble
from grounding.blocks import Prompt
from grounding.layers.query import LONGEST_TOKEN_CHARACTERS
from grounding.layers.retrieval import label
from grounding.pipeline import Grounds, Pipeline
from grounding.run_context import Budgets, DegradedBlock, Participant, Query, QuotedMessage, RunContext, TailEntry
from grounding.sections import speaker, spoken
from grounding.strategy import Choice, Strategy, choose
from grounding.tokens import Tokens
from grounding.transcript.copy import MarkdownCopy
from grounding.transcript.entry import Entry, EntryRole
from grounding.transcript.log import Transcript
from promptpolicy import policy
from promptpolicy.directives import Directives
from promptpolicy.policy import Policy, PolicyTooLarge
from runtime.jobs import Job, Jobs
from runtime.mailbox import Batch
from runtime.manifests import Manifests
from runtime.model import Completion, Model
from runtime.model_errors import ModelFailed
from runtime.outbox import NoConnector, Outbox
from runtime.usage import Usage

BOT = "agent-runtime"
AFTER_TURN = ("summary.refresh", "turn.remember")
MAX_EXCERPT_CHARACTERS = 280
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be answered: the batch's messages as one, and who wrote them."""

    key: ConversationKey
    text: str
    query: Query
    authors: tuple[Participant, ...]
    role: Role
    direct: bool
    hint: str

    @classmethod
    def of(cls, batch: Batch) -> Question:
        """The question in *batch*; in a group of several authors each part is named."""
        messages = [envelope.message for envelope in batch.envelopes]
        authors = {
            message.author.user(message.connector): Participant(
                user=message.author.user(message.connector), name=message.author.name, role=envelope.role.value
            )
            for message, envelope in zip(messages, batch.envelopes, strict=True)
        }
        named = len(authors) > 1
        texts = [
            spoken(speaker(message.author.name, message.author.id), message.text) if named else message.text
            for message in messages
            if message.text.strip()
        ]
        lowest = min(
            (envelope.role for envelope in batch.envelopes), key=lambda role: sum(role.covers(r) for r in Role)
        )
        return cls(
            key=batch.key,
            text="\n\n".join(message.text for message in messages if message.text.strip()),
            query=Query(
                text="\n\n".join(texts),
                quotes=tuple(
                    QuotedMessage(author=message.quote.author, text=message.quote.text)
                    for message in messages
                    if message.quote
                ),
                attachments=tuple(attachment.name for message in messages for attachment in message.attachments),
            ),
            authors=tuple(authors.values()),
            role=lowest,
            direct=all(message.direct for message in messages),
            hint=next((message.reply_hint for message in messages if message.reply_hint), ""),
        )


@dataclass(frozen=True, slots=True)
class Built:
    """A prompt and all that it was built from. ``grounding_ms`` is how long that took."""

    context: RunContext
    prompt: Prompt
    grounding_ms: float


class Turns:
    """Answers batches. Holds what a turn needs; keeps nothing between turns."""

    def __init__(
        self,
        settings: Settings,
        *,
        pipeline: Pipeline,
        directives: Directives,
        model: Model,
        outbox: Outbox,
        transcript: Transcript,
        copy: MarkdownCopy,
        manifests: Manifests,
        jobs: Jobs,
        usage: Usage,
        tokens: Tokens,
    ) -> None:
        self._settings = settings
        self._pipeline = pipeline
        self._directives = directives
        self._model = model
        self._outbox = outbox
        self._transcript = transcript
        self._copy = copy
        self._manifests = manifests
        self._jobs = jobs
        self._usage = usage
        self._tokens = tokens

    async def answer(self, batch: Batch) -> None:
        """Answer *batch*, whatever fails on the way: then the reply says so.

        Raises only `connectors.message.StoreUnavailable`: nothing is lost then, and the batch is to be
        answered again under the same turn id.
        """
        started = time.perf_counter()
        question = Question.of(batch)
        built: Built | None = None
        completion: Completion | None = None
        async with self._outbox.typing(batch.key):
            # Only a turn that was interrupted can have a reply already.
            reply = await self._outbox.load(batch.key, batch.turn_id) if batch.attempt > 1 else None
            if reply is None:
                try:
                    built = await self.build(question, batch.turn_id)
                    _log_grounding(built)
                    completion = await self._complete(batch, built.prompt)
                    reply = _reply(batch, built, completion)
                except (assemble.ContextTooLarge, ModelFailed) as error:
                    reply = _apology(batch, built, error)
                    _log.error("turn.failed", why=reply.error_code, detail=str(error), attempts=batch.attempt)
                await self._account(reply, built, completion)
        await self._deliver(reply)
        await self._record(batch, reply)
        await self._jobs.enqueue(*(Job(kind, batch.key, batch.turn_id) for kind in AFTER_TURN))
        if completion is not None and built is not None:
            _log_answer(completion, built, (time.perf_counter() - started) * 1000)

    async def apologise(self, batch: Batch) -> None:
        """Answer *batch*, which broke in a way that nobody foresaw, with an apology, and record it.

        Raises only `connectors.message.StoreUnavailable`.
        """
        reply = OutboundMessage(
            key=batch.key,
            turn_id=batch.turn_id,
            text=AgentRuntimeError.user_text,
            kind="apology",
            answers=_answered(batch),
            reply_to=_reply_to(batch),
            error_code="internal",
        )
        await self._deliver(reply)
        await self._record(batch, reply)

    async def build(self, question: Question, turn_id: str, history: Sequence[TailEntry] | None = None) -> Built:
        """The prompt for *question*. Nothing is stored. Raises `grounding.assemble.ContextTooLarge`.

        *history* stands in for the stored conversation where it is given.
        """
        window = await self._model.window_tokens()  # the first time it may wait for LiteLLM's import
        started = time.perf_counter()
        choice = choose(question.text)
        budgets = Budgets.from_settings(self._settings, window)
        async with asyncio.TaskGroup() as parts:
            identity = parts.create_task(self._identity(question.key.scope, question.role))
            grounds = parts.create_task(
                self._pipeline.ground(question.key, question.text, choice, budgets, turn_id, history)
            )
        context = self._context(question, turn_id, choice, budgets, grounds.result(), identity.result())
        prompt = assemble.prompt(context, self._tokens)
        return Built(context, prompt, (time.perf_counter() - started) * 1000)

    async def _identity(self, scope: Scope, role: Role) -> tuple[Policy, tuple[DegradedBlock, ...]]:
        """How the model must behave. Without the store the baseline and the action policy still hold."""
        count, limit = self._tokens.count, self._settings.policy_max_tokens
        try:
            async with asyncio.timeout(self._settings.redis_timeout_seconds):
                directives = await self._directives.load(scope)
            return policy.compose(role, directives, count, limit), ()
        except PolicyTooLarge as error:
            return error.policy, (DegradedBlock(block="identity", why="over_policy_max_tokens"),)
        except (AgentRuntimeError, TimeoutError) as error:
            # What held a moment ago is better than no rules at all.
            remembered = self._directives.last_loaded(scope) or ()
            return policy.measure(role, remembered, count), (DegradedBlock(block="identity", why=type(error).__name__),)

    def _context(
        self,
        question: Question,
        turn_id: str,
        choice: Choice,
        budgets: Budgets,
        grounds: Grounds,
        identity: tuple[Policy, tuple[DegradedBlock, ...]],
    ) -> RunContext:
        composed, degraded = identity
        return RunContext(
            turn_id=turn_id,
            workspace_id=question.key.workspace_id,
            context_id=question.key.context_id,
            connector=question.key.connector,
            external_id=question.key.external_id,
            direct=question.direct,
            authors=question.authors,
            identity=composed.text,
            identity_versions=tuple(
                f"{one.scope}/{one.kind}{'/' + one.name if one.name else ''}@{one.version}" for one in composed.used
            ),
            query=question.query.model_copy(
                # What is beyond can never be shown, and would be kept with every turn.
                update={"text": question.query.text[: budgets.query_tokens * LONGEST_TOKEN_CHARACTERS]}
            ),
            strategy=choice.strategy.value,
            reason=choice.reason,
            small_talk=choice.small_talk,
            wants_history=choice.wants_history,
            wants_documents=choice.wants_documents,
            summary=grounds.summary,
            tail=grounds.tail,
            recalled=grounds.recalled,
            passages=grounds.passages,
            # The acknowledgement is for replies that people wait for because something is looked up.
            hint=question.hint if choice.strategy is not Strategy.NONE else "",
            degraded=(*degraded, *grounds.degraded),
            layout=self._settings.llm_grounding_layout,
            budgets=budgets,
        )

    async def _complete(self, batch: Batch, prompt: Prompt) -> Completion:
        answers = _answered(batch)

        async def show(delta: str) -> None:
            await self._outbox.stream(batch.key, answers, delta)

        watched = self._outbox.is_watched(batch.key, answers)
        return await self._model.complete(prompt.messages, on_delta=show if watched else None)

    async def _account(self, reply: OutboundMessage, built: Built | None, completion: Completion | None) -> None:
        """Keep what the reply was made of and what it cost. Before it is delivered: a turn that is interrupted
        later is taken up again with its stored reply, when nobody knows that any more."""
        if built is not None:
            await self._manifests.keep(built.context, built.prompt, _now(), _outcome(reply, completion))
        if completion is not None:
            await self._usage.record(reply.key.scope, reply.turn_id, "reply", completion.model, completion.usage)

    async def _deliver(self, reply: OutboundMessage) -> None:
        """Deliver; a reply that the platform refuses for good, or chokes on, is recorded all the same."""
        try:
            await self._outbox.deliver(reply)
        except (SendFailed, NoConnector) as error:
            _log.error("turn.failed", why="undeliverable", detail=str(error))
        except StoreUnavailable:
            raise
        except Exception:  # noqa: BLE001 - a broken adapter; to answer again would break again, for ever
            _log.exception("turn.failed", why="undeliverable")

    async def _record(self, batch: Batch, reply: OutboundMessage) -> None:
        said = [
            Entry(
                role=EntryRole.INBOUND,
                text=envelope.message.text or _attached(envelope.message.attachments),
                turn_id=batch.turn_id,
                at=_rfc3339(envelope.accepted_at),
                author=envelope.message.author.name,
                user=envelope.message.author.user(envelope.message.connector),
                message_id=envelope.message.message_id,
            )
            for envelope in batch.envelopes
        ]
        answered = Entry(EntryRole.OUTBOUND, reply.text, batch.turn_id, _now(), author=BOT)
        await self._transcript.append(batch.key, batch.turn_id, [*said, answered])
        self._copy.appended(batch.key)


def _reply(batch: Batch, built: Built, completion: Completion) -> OutboundMessage:
    return OutboundMessage(
        key=batch.key,
        turn_id=batch.turn_id,
        text=completion.text,
        answers=_answered(batch),
        reply_to=_reply_to(batch),
        strategy=built.context.strategy,
        reason=built.context.reason,
        sources=_sources(built),
        degraded=tuple(Degraded(part.block, part.why) for part in built.context.degraded),
        usage=completion.usage,
    )


def _apology(batch: Batch, built: Built | None, error: assemble.ContextTooLarge | ModelFailed) -> OutboundMessage:
    """What is said when no model answered: why, and what the documents say, where they were searched."""
    base = OutboundMessage(
        key=batch.key,
        turn_id=batch.turn_id,
        text="",
        kind="apology",
        answers=_answered(batch),
        reply_to=_reply_to(batch),
    )
    if isinstance(error, assemble.ContextTooLarge) or built is None:
        return replace(base, text=error.user_text, error_code="context_too_large")
    lines = [error.user_text]
    if built.context.passages:
        lines.append("This is what the documents of this workspace say about it:")
        lines += [
            f"[{passage.source}{' › ' + passage.heading if passage.heading else ''}] {_excerpt(passage.text)}"
            for passage in built.context.passages
        ]
    return replace(
        base,
        text="\n\n".join(lines),
        error_code=f"model_{error.why}",
        strategy=built.context.strategy,
        reason=built.context.reason,
        sources=_sources(built),
        degraded=(
            Degraded("model", error.why),
            *(Degraded(part.block, part.why) for part in built.context.degraded),
        ),
    )


def _sources(built: Built) -> tuple[Source, ...]:
    """The sources of the passages that stand in the prompt, each once, the best first."""
    retrieved = built.prompt.block("retrieved")
    if retrieved is None or not built.context.passages:
        return ()
    shown = [
        Source(passage.source, passage.heading)
        for passage in built.context.passages
        if label(passage.source, passage.heading) in retrieved.text
    ]
    return tuple(dict.fromkeys(shown))


def _outcome(reply: OutboundMessage, completion: Completion | None) -> dict[str, Any]:
    usage = reply.usage
    return {
        "kind": reply.kind,
        "error_code": reply.error_code,
        "model": completion.model if completion else "",
        "attempts": completion.attempts if completion else 0,
        "first_token_ms": completion.first_token_ms if completion else None,
        "latency_ms": completion.latency_ms if completion else None,
        "usage": {
            "prompt": usage.prompt,
            "cached": usage.cached,
            "completion": usage.completion,
            "cost_usd": usage.cost_usd,
        },
        "sources": [{"source": source.source, "heading": source.heading} for source in reply.sources],
        "degraded": [{"block": part.block, "why": part.why} for part in reply.degraded],
    }


def _log_grounding(built: Built) -> None:
    """``grounding.assembled``: one a turn."""
    context, prompt = built.context, built.prompt
    tokens = {block.name: block.tokens for block in prompt.blocks}
    used = {block.name: block.used for block in prompt.blocks}
    further = {
        f"tokens_{name}": count
        for name, count in tokens.items()
        if name not in ("query", "summary", "tail", "retrieved")
    }
    _log.info(
        "grounding.assembled",
        strategy=context.strategy,
        reason=context.reason,
        used_summary=used.get("summary", False),
        used_tail=used.get("tail", False),
        used_qmd=bool(context.passages) and used.get("retrieved", False),
        qmd_results=len(context.passages),
        summary_turns=context.summary.turns if context.summary else 0,
        tokens_user=tokens.get("query", 0),
        tokens_summary=tokens.get("summary", 0),
        tokens_tail=tokens.get("tail", 0),
        tokens_qmd=tokens.get("retrieved", 0),
        tokens_total=prompt.tokens_total,
        **further,
        layout=prompt.layout,
        prefix_digest=prompt.prefix_digest,
        budget_tokens=context.budgets.prompt_tokens,
        degraded=[{"block": part.block, "why": part.why} for part in context.degraded],
        summary_refreshed=_summary_is_new(context),
        duration_ms=round(built.grounding_ms, 2),
    )


def _summary_is_new(context: RunContext) -> bool:
    """Whether the document was made after the last turn in the tail: that turn did not use it."""
    if context.summary is None or not context.tail:
        return context.summary is not None
    return context.summary.newest_turn_id >= context.tail[-1].turn_id


def _log_answer(completion: Completion, built: Built, elapsed_ms: float) -> None:
    """``turn.answered``: what it cost. ``overhead_ms`` is everything but the model."""
    _log.info(
        "turn.answered",
        model=completion.model,
        tokens_prompt=completion.usage.prompt,
        tokens_cached=completion.usage.cached,
        tokens_completion=completion.usage.completion,
        cost_usd=completion.usage.cost_usd,
        latency_ms=round(elapsed_ms, 1),
        overhead_ms=round(elapsed_ms - completion.latency_ms, 1),
        first_token_ms=completion.first_token_ms,
        attempts=completion.attempts,
        strategy=built.context.strategy,
    )


def _answered(batch: Batch) -> tuple[str, ...]:
    return tuple(envelope.message.message_id for envelope in batch.envelopes)


def _reply_to(batch: Batch) -> str | None:
    """In a group the reply hangs at the last message it answers."""
    last = batch.envelopes[-1].message
    return None if last.direct else last.message_id


def _attached(attachments: Sequence[Any]) -> str:
    return "[attachments] " + ", ".join(attachment.name for attachment in attachments)


def _excerpt(text: str) -> str:
    folded = " ".join(text.split())
    return folded if len(folded) <= MAX_EXCERPT_CHARACTERS else folded[:MAX_EXCERPT_CHARACTERS].rstrip() + " …"


def _rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _now() -> str:
    return _rfc3339(time.time())
