"""Answers one turn: from the messages of a batch to a reply that is stored for delivery. Read it top to bottom.

Each step leaves a checkpoint, from which another worker resumes the turn if this one dies
(`runtime.turns.checkpoint`). People may stop the turn or change its question at any moment: then it is interrupted at
once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog

from config.settings import Settings
from connectors.message import AgentRuntimeError, OutboundMessage, StoreUnavailable
from connectors.redis_calls import RoundTrip
from grounding.extractive import quotation
from grounding.memory.global_context import foreign_text_in
from grounding.pipeline import error_word
from grounding.prompt import ContextTooLarge, Sessions
from grounding.prompt_input import Tokens
from grounding.retrieval import WordLlamaEmbedder
from grounding.transcript import EntryRole, MarkdownCopy, Transcript, TranscriptEntry
from runtime.attachments import AttachmentContents, AttachmentReader, transcript_text
from runtime.billing import TRANSCRIPTION, BudgetExceeded, Spending
from runtime.coordination import Hub, Job, Jobs
from runtime.delivery import Outbox, ProgressReporter, report_progress
from runtime.llm import Model, ModelFailed, Transcription
from runtime.stores import retry_until_stored
from runtime.turns import replies
from runtime.turns.agent_loop import AgentLoop
from runtime.turns.batch import Batch
from runtime.turns.cancel import Cancellations, TurnSignals
from runtime.turns.censors import RecordAccounting
from runtime.turns.checkpoint import Checkpoints, TurnCheckpoint
from runtime.turns.events import log_answer, log_grounding, outcome
from runtime.turns.manifest import Manifests, UnknownTurn
from runtime.turns.prompt import PromptBuilder
from runtime.turns.tools import Tooling
from runtime.turns.turn_state import BuiltPrompt, Question, TurnState
from runtime.workspaces import Places

if TYPE_CHECKING:
    from redis.asyncio import Redis

BOT = "agent-runtime"
REMEMBER = ("turn.remember",)
EXTRACT_RECORDS = "records.extract"
AFTER_TURN = ("summary.refresh", EXTRACT_RECORDS, *REMEMBER)
"""The jobs that follow a turn."""
SIGNAL_SECONDS = 2.0
"""How often the turn reads its stored signals: news of them may be lost."""
Step = Callable[[], Awaitable[object]]
_log = structlog.get_logger()


class Turns:
    """Answers batches. Keeps nothing between turns."""

    def __init__(
        self,
        settings: Settings,
        redis: Redis,
        *,
        prompts: PromptBuilder,
        model: Model,
        tooling: Tooling,
        tokens: Tokens,
        outbox: Outbox,
        checkpoints: Checkpoints,
        transcript: Transcript,
        copy: MarkdownCopy,
        manifests: Manifests,
        sessions: Sessions,
        jobs: Jobs,
        spending: Spending,
        cancellations: Cancellations,
        places: Places,
        reading: AttachmentReader,
        hub: Hub,
        record_accounting: RecordAccounting,
    ) -> None:
        self._redis = redis
        self._prompts = prompts
        self._model = model
        self._tooling = tooling
        self._agent_loop = AgentLoop(
            settings, model=model, tooling=tooling, checkpoints=checkpoints, spending=spending, tokens=tokens
        )
        self._outbox = outbox
        self._checkpoints = checkpoints
        self._transcript = transcript
        self._copy = copy
        self._manifests = manifests
        self._sessions = sessions
        self._jobs = jobs
        self._spending = spending
        self._cancellations = cancellations
        self._places = places
        self._reading = reading
        self._hub = hub
        self._record_accounting = record_accounting
        self._embedder = WordLlamaEmbedder()  # it is loaded when it is first used

    async def answer(self, batch: Batch) -> None:
        """Answer *batch*. If the model, a budget or a layer fails, the reply says so.

        Raises `connectors.message.StoreUnavailable` and `connectors.message.Superseded`: then nothing is lost, and the
        batch must be answered again under the same turn id. Raises `runtime.turns.batch.BatchGrown` if the same turn
        must answer a larger batch.
        """
        started = time.perf_counter()
        # Only an interrupted turn has a checkpoint.
        checkpoint = await self._checkpoints.load(batch) if batch.resumed else TurnCheckpoint()
        state = TurnState.of(batch, checkpoint, replies.draft(batch))
        last = batch.envelopes[-1]
        async with report_progress(self._hub, last.origin, state.reply, last.watched) as progress:
            reply = await self._outbox.load(batch.key, batch.turn_id) if batch.resumed else None
            if reply is None:
                await self._reply(state, progress)
            else:
                state.reply = reply
            await self._store(state)
        await self._finish(state)
        if state.completion is not None and state.built is not None:
            await self._record_accounting.account(state.batch, state.built, state.rounds, state.completion)
            log_answer(state.completion, state.built, (time.perf_counter() - started) * 1000, state.rounds)

    async def apologise(self, batch: Batch) -> None:
        """Answer *batch*, which failed by an unexpected error, with an apology, and record it.

        Raises only `connectors.message.StoreUnavailable` and `connectors.message.Superseded`.
        """
        # A reply that was stored before the error is better, and may have been shown.
        reply = await self._outbox.load(batch.key, batch.turn_id) or replies.unexpected_error(batch)
        await self._store_reply(batch, reply, RoundTrip(self._redis))

    # The reply

    async def _reply(self, state: TurnState, progress: ProgressReporter) -> None:
        """Make the reply: the model's answer, the part that was written before people stopped it, or an apology. Raises
        as `answer`."""
        batch = state.batch
        with self._cancellations.listen(batch.turn_id) as signals:
            # News of more messages may have come before this: they wait in the mailbox.
            signals.more = batch.envelopes[-1].queue == "interrupt"
            await self._cancellations.refresh(batch, signals)  # it may have been stopped before it began here
            writing = asyncio.create_task(self._write(state, progress))
            try:
                if not await self._wait(writing, batch, signals, progress):
                    await _cancel(writing)
                    self._cut_short(state, progress)
                    if not signals.stop:  # the question was deleted, so the answer is, too
                        state.reply = replace(state.reply, text="", silent=True)
                    return
                writing.result()
            except BudgetExceeded as error:
                state.reply = replies.budget_notice(batch, error, state.rounds)
            except (ContextTooLarge, ModelFailed) as error:
                state.reply = await self._apology(state, error)
                # ``attempts`` counts the attempts of the turn, not the calls of the model.
                _log.error("turn.failed", why=state.reply.error_code, detail=str(error), attempts=batch.attempt)
            except BaseException:  # people said more, the process ends, or something broke
                await _cancel(writing)
                await self._settle_broken_off(state)
                raise
            finally:
                await self._settle_heard(state)

    async def _write(self, state: TurnState, progress: ProgressReporter) -> None:
        """Read the attachments, build the prompt, ask the model, and make its answer the reply."""
        batch = state.batch
        state.first = await self._first_model(batch)
        rebuilt = await self._rebuild(batch)
        contents = await self._read(state)
        if contents.unheard:
            state.reply = replies.voice_apology(batch, contents)
            return
        question = Question.of(state.batch, contents)
        if rebuilt is not None and question.matches_context(rebuilt.context):  # it may have grown since
            built = rebuilt
        else:
            built = await self._prompts.build(question, batch.turn_id, first=state.first)
            await self._save_prompt(built)
        state.built = built
        await self._agent_loop.run(state, built, question, contents, progress)
        assert state.completion is not None
        answered = state.built
        if answered is not built:  # a fallback read less
            await retry_until_stored(
                lambda: self._manifests.keep_again(answered.context, answered.prompt, now(), prefix=answered.prefix)
            )
        state.reply = replies.answer(batch, answered, state.completion, state.rounds)

    async def _first_model(self, batch: Batch) -> str | None:
        """Return the model that was chosen for the place; None if the settings decide, or if the store is away."""
        try:
            chosen = (await self._places.settings_for(batch.key, batch.envelopes[-1].message)).model
        except AgentRuntimeError as error:
            _log.warning("store.degraded", store="places", why=error_word(error))
            return None
        return chosen if chosen in self._model.names else None  # the settings may have changed since

    async def _rebuild(self, batch: Batch) -> BuiltPrompt | None:
        """Rebuild the prompt that an interrupted attempt has saved; None if there is none."""
        if not batch.resumed:
            return None
        try:
            manifest = await self._manifests.get(batch.key.scope, batch.turn_id)
        except UnknownTurn:
            return None
        return await self._prompts.rebuild(manifest.context)

    async def _read(self, state: TurnState) -> AttachmentContents:
        """Read the attachments of the messages. Speech is transcribed once, however often the turn is resumed. Raises
        `BudgetExceeded` if there is speech and the budget leaves nothing for a transcription."""
        batch = state.batch
        before = [envelope.message for envelope in batch.envelopes]
        if any(attachment.kind == "voice" for message in before for attachment in message.attachments):
            await self._spending.check(state.payer, TRANSCRIPTION)

        async def settle(transcription: Transcription) -> None:
            state.heard.append(transcription)
            await self._settle_heard(state)

        after, contents = await self._reading.read(before, state.first, settle)
        words = {place: after[place].text for place in range(len(after)) if after[place] != before[place]}
        if words:  # they are paid for by now: an attempt that finds them does not pay again
            state.has_checkpoint = True
            await retry_until_stored(lambda: self._checkpoints.save_words(batch, words))
        envelopes = [
            replace(envelope, message=message) for envelope, message in zip(batch.envelopes, after, strict=True)
        ]
        state.batch = replace(batch, envelopes=tuple(envelopes))
        return contents

    async def _save_prompt(self, built: BuiltPrompt) -> None:
        """Save the prompt, so that a resumed turn asks the same."""
        log_grounding(built)
        await self._manifests.keep(built.context, built.prompt, now(), prefix=built.prefix)

    async def _apology(self, state: TurnState, error: ContextTooLarge | ModelFailed) -> OutboundMessage:
        """Return the reply for a turn that no model answered. If a model failed, quote what answers the question, as
        `config.settings.EXTRACTIVE` does."""
        if isinstance(error, ContextTooLarge):
            return replies.too_large(state.batch, error, state.rounds)
        assert state.built is not None  # no model is asked before there is a prompt
        quoted = await quotation(state.built.prompt.messages, self._embedder)
        return replies.apology(state.batch, state.built, error, quoted, state.rounds)

    # Signals of people

    async def _wait(
        self,
        writing: asyncio.Task[None],
        batch: Batch,
        signals: TurnSignals,
        progress: ProgressReporter,
    ) -> bool:
        """Wait until *writing* has ended. Return False if people stopped it, or deleted the question before they saw
        any of the answer. Raises `runtime.turns.batch.BatchGrown`."""
        writing.add_done_callback(lambda _: signals.changed.set())
        while not (signals.stop or await self._is_dropped(batch, signals, progress)):
            if signals.more:
                await retry_until_stored(lambda: self._cancellations.grow_batch(batch, signals))
            if writing.done():
                return True
            try:
                async with asyncio.timeout(SIGNAL_SECONDS):
                    await signals.changed.wait()
            except TimeoutError:
                await self._cancellations.refresh(batch, signals)
            signals.changed.clear()
        return writing.done()

    async def _is_dropped(self, batch: Batch, signals: TurnSignals, progress: ProgressReporter) -> bool:
        """Whether the question was deleted before people could see any of the answer. False if that is not known: while
        the store is away, for a resumed turn."""
        # If further messages joined the question, they still want an answer.
        if not signals.dropped or progress.text or len(batch.envelopes) > 1:
            return False
        try:
            return not (batch.resumed and await self._outbox.part_states(batch.key, batch.turn_id))
        except StoreUnavailable:
            return False

    def _cut_short(self, state: TurnState, progress: ProgressReporter) -> None:
        """Make the reply from the text so far. The interrupted model call costs what was reserved for it."""
        pending, state.pending = state.pending, None
        text, model = state.written(progress.text), state.first or self._model.name
        completion = replies.cut_short(text, model, asked=pending is not None)
        if pending is not None:
            completion = replace(completion, model=pending.model, usage=pending.usage, call=pending.call)
        if (pending or state.rounds) and state.built is not None:
            state.completion = completion
            state.reply = replies.stopped(replies.answer(state.batch, state.built, completion, state.rounds))
        else:
            state.reply = replies.stopped(replace(state.reply, text=completion.text))

    # Costs

    async def _settle_heard(self, state: TurnState) -> None:
        """Settle the transcriptions so far; doing it twice does no harm. While the store is away nothing is settled,
        and the turn cannot go on either."""
        with suppress(StoreUnavailable):
            await asyncio.gather(*(self._spending.settle_transcription(state.payer, heard) for heard in state.heard))

    async def _settle_broken_off(self, state: TurnState) -> None:
        """Settle the calls of an interrupted turn whose answer nobody will see."""
        with suppress(StoreUnavailable):  # then the reservation stays in the budget, and the usage lacks the call
            for past in state.rounds:  # all but the last were settled before; doing it twice does no harm
                await self._spending.settle_answer(state.payer, past.completion)
            if state.completion is not None:
                await self._spending.settle_answer(state.payer, state.completion)
            elif state.pending is not None:
                await self._spending.settle_unknown(state.payer, state.pending)

    # Storing

    async def _store(self, state: TurnState) -> None:
        """Store the reply for delivery and in the conversation, with its costs, the turn's outcome and the session that
        the next prompt builds on, in one round trip.

        Each call takes effect once, however often it is repeated. While the store is away all are repeated: otherwise
        the answer would be paid for again.
        """
        costs = RoundTrip(self._redis)
        for past in state.rounds:
            self._spending.add_settling(costs, state.payer, past.completion)
        if state.completion is not None:
            self._spending.add_settling(costs, state.payer, state.completion, is_reply=True)
        if state.built is not None:
            result = outcome(state.reply, state.completion, state.built, state.rounds)
            batch, attempt = state.batch, state.batch.attempt + state.batch.crashes
            costs.add(self._manifests.finish_call(batch.key.scope, batch.turn_id, result, attempt))
            if state.built.shown is not None:
                costs.add(self._sessions.keep_call(batch.key, state.built.shown, batch.fence))
        await retry_until_stored(lambda: self._store_reply(state.batch, state.reply, costs, self._foreign(state)))

    async def _finish(self, state: TurnState) -> None:
        """Enqueue the jobs that follow the turn, and delete its checkpoint."""
        batch = state.batch
        # If a budget is used up, the notice of it must not cost more by summaries.
        kinds = REMEMBER if state.reply.error_code == replies.BUDGET_EXCEEDED else AFTER_TURN
        jobs = [Job(kind, batch.key, batch.turn_id) for kind in kinds]
        steps: list[Step] = [lambda: self._jobs.enqueue(*jobs)]
        if batch.resumed or state.has_checkpoint:
            steps.append(lambda: self._checkpoints.delete(batch))
        await asyncio.gather(*map(retry_until_stored, steps))

    def _foreign(self, state: TurnState) -> str:
        """Return the kind of text in the prompt that none of the authors wrote. If that is not known, assume the
        least trusted kind."""
        if state.built is None:
            return "retrieved" if state.batch.resumed else ""
        return "retrieved" if self._tooling.has_read_untrusted(state.rounds) else foreign_text_in(state.built.context)

    async def _store_reply(self, batch: Batch, reply: OutboundMessage, costs: RoundTrip, foreign: str = "") -> None:
        """Store *reply* for delivery, append the messages and the reply to the conversation's transcript, and send the
        calls of *costs*, in one round trip. *foreign* is that of the reply's `TranscriptEntry`."""
        said = [
            TranscriptEntry(
                role=EntryRole.INBOUND,
                text=transcript_text(envelope.message),
                turn_id=batch.turn_id,
                at=rfc3339(envelope.accepted_at),
                author=envelope.message.author.name,
                user=envelope.message.author.user(envelope.message.connector),
                message_id=envelope.message.message_id,
                foreign="others" if envelope.message.relayed else "",
            )
            for envelope in batch.envelopes
        ]
        answered = TranscriptEntry(EntryRole.OUTBOUND, reply.text, batch.turn_id, now(), author=BOT, foreign=foreign)
        rest = RoundTrip(self._redis)
        rest.add(self._transcript.append_call(batch.key, batch.turn_id, [*said, answered], batch.fence))
        rest.join(costs)
        await self._outbox.put(reply, (envelope.address for envelope in batch.envelopes), batch.fence, rest)
        rest.check()
        self._copy.appended(batch.key)


def now() -> str:
    """Return the present time as `rfc3339`."""
    return rfc3339(datetime.now(UTC).timestamp())


def rfc3339(seconds: float) -> str:
    """Return epoch *seconds* as an RFC 3339 time in UTC, with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


async def _cancel(writing: asyncio.Task[None]) -> None:
    """Cancel *writing* if it has not ended, and ignore what it raises then."""
    if not writing.done():
        writing.cancel()
        await asyncio.wait({writing})
        if not writing.cancelled():
            writing.exception()
