"""Answers one turn: from the messages of a batch to a delivered reply. Straight down, each layer once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime

import structlog

from config.settings import Settings
from connectors.connector import SendFailed
from connectors.message import (
    AgentRuntimeError,
    OutboundMessage,
    Role,
    Scope,
    StoreUnavailable,
)
from grounding import assemble
from grounding.layers.query import LONGEST_TOKEN_CHARACTERS
from grounding.pipeline import Grounds, Pipeline, why
from grounding.run_context import Budgets, DegradedBlock, RunContext, TailEntry
from grounding.strategy import Choice, Strategy, choose
from grounding.tokens import Tokens
from grounding.transcript.copy import MarkdownCopy
from grounding.transcript.entry import Entry, EntryRole
from grounding.transcript.log import Transcript
from promptpolicy import policy
from promptpolicy.directives import Directives
from promptpolicy.policy import Policy, PolicyTooLarge
from runtime import replies
from runtime.attachments.reading import Reading, written
from runtime.exchange import Message
from runtime.jobs import Job, Jobs
from runtime.mailbox import Batch
from runtime.manifests import Manifests
from runtime.model import Completion, Model
from runtime.model_errors import ModelFailed
from runtime.outbox import NoConnector, Outbox
from runtime.places import Places
from runtime.preview import Preview
from runtime.question import Built, Question
from runtime.senses import Heard, with_images
from runtime.stops import Stops
from runtime.turn_events import log_answer, log_grounding, outcome
from runtime.usage import Usage

BOT = "agent-runtime"
AFTER_TURN = ("summary.refresh", "turn.remember")
LONG_TEXT_CHARACTERS = 20_000
"""Beyond this a prompt is put together off the event loop."""
_log = structlog.get_logger()


class _Made:
    """A reply, and what it was made of as far as that came."""

    def __init__(self, batch: Batch) -> None:
        self.reply: OutboundMessage = replies.draft(batch)
        self.built: Built | None = None
        self.completion: Completion | None = None
        self.batch = batch
        """With the words of its voice messages."""
        self.heard: tuple[Heard, ...] = ()


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
        stops: Stops,
        places: Places,
        reading: Reading,
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
        self._stops = stops
        self._places = places
        self._reading = reading

    async def answer(self, batch: Batch) -> None:
        """Answer *batch*, whatever fails on the way: then the reply says so.

        Raises only `connectors.message.StoreUnavailable`: nothing is lost then, and the batch is to be
        answered again under the same turn id.
        """
        started = time.perf_counter()
        made: _Made | None = None
        async with self._outbox.typing(batch.key, replies.answered(batch)):
            # Only a turn that was interrupted can have a reply already.
            reply = await self._outbox.load(batch.key, batch.turn_id) if batch.attempt > 1 else None
            if reply is None:
                made = await self._make(batch)
                batch, reply = made.batch, made.reply
                await self._account(made)
            else:  # what was said by voice belongs in the log
                batch = await self._reading.words(batch)
        await self._deliver(reply)
        await self._record(batch, reply)
        await self._jobs.enqueue(*(Job(kind, batch.key, batch.turn_id) for kind in AFTER_TURN))
        if made is not None and made.completion is not None and made.built is not None:
            log_answer(made.completion, made.built, (time.perf_counter() - started) * 1000)

    async def _make(self, batch: Batch) -> _Made:
        """The reply to *batch*: the model's, or why there is none."""
        made = _Made(batch)
        with self._stops.heard(batch.key) as stop:
            first = await self._first_model(batch)
            made.batch, contents = await self._reading.read(batch, first)
            made.heard = contents.heard
            if contents.unheard:
                made.reply = replies.unheard(batch, contents)
                return made
            try:
                made.built = await self.build(Question.of(made.batch, contents), batch.turn_id, first=first)
                log_grounding(made.built)
                messages = with_images(made.built.prompt.messages, contents.images)
                made.completion = await self._complete(batch, messages, stop, first)
                made.reply = replies.answer(batch, made.built, made.completion)
            except (assemble.ContextTooLarge, ModelFailed) as error:
                made.reply = replies.apology(batch, made.built, error)
                _log.error("turn.failed", why=made.reply.error_code, detail=str(error), attempts=batch.attempt)
        return made

    async def _first_model(self, batch: Batch) -> str | None:
        """The model that was chosen for the place; without the store the settings decide."""
        try:
            async with asyncio.timeout(self._settings.redis_timeout_seconds):
                chosen = (await self._places.of_message(batch.key, batch.envelopes[-1].message)).model
        except (AgentRuntimeError, TimeoutError) as error:
            _log.warning("store.degraded", store="places", why=why(error))
            return None
        return chosen if chosen in self._model.names else None  # the settings may have changed since

    async def apologise(self, batch: Batch) -> None:
        """Answer *batch*, which broke in a way that nobody foresaw, with an apology, and record it.

        Raises only `connectors.message.StoreUnavailable`.
        """
        # A reply that was stored before it broke is the better answer, and may have been shown.
        reply = await self._outbox.load(batch.key, batch.turn_id) or replies.broken(batch)
        await self._deliver(reply)
        await self._record(batch, reply)

    async def build(
        self,
        question: Question,
        turn_id: str,
        history: Sequence[TailEntry] | None = None,
        *,
        first: str | None = None,
    ) -> Built:
        """The prompt for *question*. Nothing is stored. Raises `grounding.assemble.ContextTooLarge`.

        *history* stands in for the stored conversation where it is given; *first* is the model that will be asked
        first, if not the one of the settings.
        """
        window = await self._model.window_tokens(first)  # the first time it may wait for LiteLLM's import
        started = time.perf_counter()
        choice = choose(question.text)
        budgets = Budgets.from_settings(self._settings, window)
        async with asyncio.TaskGroup() as parts:
            identity = parts.create_task(self._identity(question.key.scope, question.role))
            grounds = parts.create_task(
                self._pipeline.ground(question.key, question.text, choice, budgets, turn_id, history)
            )
        context = self._context(question, turn_id, choice, budgets, grounds.result(), identity.result())
        if question.characters > LONG_TEXT_CHARACTERS:
            prompt = await asyncio.to_thread(assemble.prompt, context, self._tokens)
        else:
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
            return policy.measure(role, remembered, count), (DegradedBlock(block="identity", why=why(error)),)

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
            degraded=(*degraded, *grounds.degraded, *question.degraded),
            layout=self._settings.llm_grounding_layout,
            budgets=budgets,
        )

    async def _complete(
        self, batch: Batch, messages: Sequence[Message], stop: asyncio.Event, first: str | None
    ) -> Completion:
        """The model's answer, or as much of it as was written when *stop* was set."""
        async with self._outbox.preview(replies.draft(batch)) as preview:
            return await self._until_stopped(messages, preview, stop, first)

    async def _until_stopped(
        self, messages: Sequence[Message], preview: Preview | None, stop: asyncio.Event, first: str | None
    ) -> Completion:
        asking = asyncio.create_task(
            self._model.complete(
                messages,
                on_delta=preview.show if preview else None,
                on_restart=preview.restart if preview else None,
                first=first,
            )
        )
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({asking, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return asking.result()
        finally:
            for task in (asking, stopped):
                task.cancel()
            await asyncio.wait({asking, stopped})
        return replies.cut_short(preview.text if preview else "", first or self._model.name)

    async def _account(self, made: _Made) -> None:
        """Keep what the reply was made of and what it cost. Before it is delivered: a turn that is interrupted
        later is taken up again with its stored reply, when nobody knows that any more."""
        reply, built, completion = made.reply, made.built, made.completion
        if built is not None:
            await self._manifests.keep(built.context, built.prompt, _now(), outcome(reply, completion))
        if completion is not None:
            await self._usage.record(reply.key.scope, reply.turn_id, "reply", completion.model, completion.usage)
        for number, heard in enumerate(made.heard):
            purpose = f"transcription.{number}"
            await self._usage.record(reply.key.scope, reply.turn_id, purpose, heard.model, heard.usage)

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
                text=written(envelope.message),
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


def _rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _now() -> str:
    return _rfc3339(time.time())
