"""Answers one turn: from the messages of a batch to a reply that is stored for delivery. Read it top to bottom.

Each step leaves something behind from which another worker goes on if this one dies (`runtime.turns.checkpoint`).
People may change their mind at any moment of it: then what is being done is broken off at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

import structlog

from config.settings import Settings
from connectors.message import AgentRuntimeError, OutboundMessage, StoreUnavailable
from grounding.extractive import quotation
from grounding.memory.global_context import shown_in
from grounding.pipeline import why
from grounding.prompt import ContextTooLarge
from grounding.prompt_input import Tokens
from grounding.retrieval import WordLlamaEmbedder
from grounding.transcript import Entry, EntryRole, MarkdownCopy, Transcript
from runtime.attachments import Contents, Reading, written
from runtime.billing import TRANSCRIPTION, BudgetExceeded, Spending
from runtime.coordination import Hub, Job, Jobs
from runtime.delivery import Outbox, Telling, telling
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

BOT = "agent-runtime"
REMEMBER = ("turn.remember",)
EXTRACT_RECORDS = "records.extract"
AFTER_TURN = ("summary.refresh", EXTRACT_RECORDS, *REMEMBER)
"""The jobs that follow a turn."""
FRESH_SECONDS = 1.0
"""A message that was accepted at most so long ago is answered by the model that was chosen then."""
SIGNAL_SECONDS = 2.0
"""How often the store is asked whether an answer is to stop: the news of it may be lost."""
Step = Callable[[], Awaitable[object]]
_log = structlog.get_logger()


class Turns:
    """Answers batches. Keeps nothing between turns."""

    def __init__(
        self,
        settings: Settings,
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
        jobs: Jobs,
        spending: Spending,
        cancellations: Cancellations,
        places: Places,
        reading: Reading,
        hub: Hub,
        record_accounting: RecordAccounting,
    ) -> None:
        self._redis_timeout_seconds = settings.redis_timeout_seconds
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
        self._jobs = jobs
        self._spending = spending
        self._cancellations = cancellations
        self._places = places
        self._reading = reading
        self._hub = hub
        self._record_accounting = record_accounting
        self._embedder = WordLlamaEmbedder()  # it is loaded when it is first used

    async def answer(self, batch: Batch) -> None:
        """Answer *batch*, whatever fails on the way: then the reply says so.

        Raises only `connectors.message.StoreUnavailable` and `connectors.message.Superseded`: nothing is lost then,
        and the batch is to be answered again under the same turn id; and `runtime.turns.batch.BatchGrown`: then a
        larger one is.
        """
        started = time.perf_counter()
        # Only a turn that was interrupted can have come anywhere.
        checkpoint = await self._checkpoints.load(batch) if batch.resumed else TurnCheckpoint()
        state = TurnState.of(batch, checkpoint, replies.draft(batch))
        last = batch.envelopes[-1]
        async with telling(self._hub, last.origin, state.reply, last.watched) as progress:
            reply = await self._outbox.load(batch.key, batch.turn_id) if batch.resumed else None
            if reply is None or checkpoint.last:  # what an interrupted turn has not settled is in its checkpoint
                await self._reply(state, progress, is_stored=reply is not None)
            else:
                state.reply = reply
            await self._store(state, checkpoint)
        await self._finish(state)
        if state.completion is not None and state.built is not None:
            await self._record_accounting.account(state.batch, state.built, state.rounds, state.completion)
            log_answer(state.completion, state.built, (time.perf_counter() - started) * 1000, state.rounds)

    async def apologise(self, batch: Batch) -> None:
        """Answer *batch*, which broke in a way that nobody foresaw, with an apology, and record it.

        Raises only `connectors.message.StoreUnavailable` and `connectors.message.Superseded`.
        """
        # A reply that was stored before it broke is the better answer, and may have been shown.
        reply = await self._outbox.load(batch.key, batch.turn_id) or replies.broken(batch)
        await self._send(reply, batch)
        await self._record(batch, reply)

    # The reply

    async def _reply(self, state: TurnState, progress: Telling, *, is_stored: bool) -> None:
        """Make the reply: the model's, as much of it as was written when people wished it to stop, or why there is
        none. If one *is_stored* already, what else people said is left to the next turn. Raises as `answer`.
        """
        batch = state.batch
        with self._cancellations.listen(batch.turn_id) as signals:
            writing = asyncio.create_task(self._write(state, progress))
            try:
                if batch.resumed and state.completion is None:  # it may have been stopped before it was taken up
                    await self._cancellations.refresh(batch, signals)
                if not await self._wait(writing, batch, signals, progress, is_stored=is_stored):
                    await _cancel(writing)
                    self._cut_short(state, progress)
                    if not signals.stop:  # what it answers was deleted: of neither is anything kept
                        state.reply = replace(state.reply, text="", silent=True)
                    return
                writing.result()
                await self._respect_earlier_stop(state, signals)
            except BudgetExceeded as error:
                state.reply = replies.spent(batch, error, state.rounds)
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

    async def _write(self, state: TurnState, progress: Telling) -> None:
        """Read, ground, ask: the reply of the model."""
        batch = state.batch
        state.first = await self._first_model(batch)
        rebuilt = await self._rebuild(batch)
        if rebuilt is not None and state.completion is not None:
            state.built = rebuilt
            state.reply = replies.answer(batch, rebuilt, state.completion, state.rounds)
            return
        contents = await self._read(state)
        if contents.unheard:
            state.reply = replies.unheard(batch, contents)
            return
        question = Question.of(state.batch, contents)
        if rebuilt is not None and question.is_asked_by(rebuilt.context):  # it may have grown since
            built = rebuilt
        else:
            built = await self._prompts.build(question, batch.turn_id, first=state.first)
            await self._save_prompt(batch, built)
        state.built = built
        await self._agent_loop.run(state, built, question, contents, progress)
        assert state.completion is not None
        answered = state.built
        if answered is not built:  # a fallback read less
            await retry_until_stored(
                lambda: self._manifests.keep_anew(answered.context, answered.prompt, now(), prefix=answered.prefix)
            )
        state.reply = replies.answer(batch, answered, state.completion, state.rounds)

    async def _first_model(self, batch: Batch) -> str | None:
        """Find the model that was chosen for the place; without the store the settings decide."""
        newest = batch.envelopes[-1]
        chosen = newest.model
        has_waited = abs(datetime.now(UTC).timestamp() - newest.accepted_at) > FRESH_SECONDS
        if chosen is None or batch.resumed or has_waited:  # another may have been chosen since: that one was too slow
            try:
                async with asyncio.timeout(self._redis_timeout_seconds):
                    chosen = (await self._places.of_message(batch.key, newest.message)).model
            except (AgentRuntimeError, TimeoutError) as error:
                _log.warning("store.degraded", store="places", why=why(error))
                return None
        return chosen if chosen in self._model.names else None  # the settings may have changed since

    async def _rebuild(self, batch: Batch) -> BuiltPrompt | None:
        """Rebuild the prompt that an interrupted attempt has saved."""
        if not batch.resumed:
            return None
        try:
            manifest = await self._manifests.get(batch.key.scope, batch.turn_id)
        except UnknownTurn:
            return None
        return await self._prompts.rebuild(manifest.context)

    async def _read(self, state: TurnState) -> Contents:
        """Read what came with the messages. Speech is transcribed once, however often the turn is taken up again.
        Raises `BudgetExceeded` if there is speech, and nothing left to have it transcribed with."""
        batch = state.batch
        before = [envelope.message for envelope in batch.envelopes]
        if any(one.kind == "voice" for message in before for one in message.attachments):
            await self._spending.check(state.payer, TRANSCRIPTION)

        async def heard(one: Transcription) -> None:
            state.heard.append(one)
            await self._settle_heard(state)

        read, contents = await self._reading.read(before, state.first, heard)
        words = {place: read[place].text for place in range(len(read)) if read[place] != before[place]}
        if words:  # settled before: who finds the words here pays no more for them
            await retry_until_stored(lambda: self._checkpoints.save_words(batch, words))
        envelopes = [replace(one, message=message) for one, message in zip(batch.envelopes, read, strict=True)]
        state.batch = replace(batch, envelopes=tuple(envelopes))
        return contents

    async def _save_prompt(self, batch: Batch, built: BuiltPrompt) -> None:
        """Save the prompt, so that whoever goes on with this turn asks the same, and what the next one builds on."""
        log_grounding(built)
        await asyncio.gather(
            self._manifests.keep(built.context, built.prompt, now(), prefix=built.prefix),
            self._prompts.save_session(batch.key, built),
        )

    async def _apology(self, state: TurnState, error: ContextTooLarge | ModelFailed) -> OutboundMessage:
        """Return the reply for a turn that no model answered. If a model failed, quote what answers the question, as
        `config.settings.EXTRACTIVE` does."""
        if isinstance(error, ContextTooLarge):
            return replies.too_large(state.batch, error, state.rounds)
        assert state.built is not None  # no model is asked before there is a prompt
        quoted = await quotation(state.built.prompt.messages, self._embedder)
        return replies.apology(state.batch, state.built, error, quoted, state.rounds)

    # What people wish meanwhile

    async def _wait(
        self, writing: asyncio.Task[None], batch: Batch, signals: TurnSignals, progress: Telling, *, is_stored: bool
    ) -> bool:
        """Wait until *writing* has ended; False if people wish it to stop, or have deleted what it answers and have
        seen nothing of it. Raises `runtime.turns.batch.BatchGrown`."""
        writing.add_done_callback(lambda _: signals.changed.set())
        while not (signals.stop or await self._is_dropped(batch, signals, progress)):
            if signals.more and not is_stored:  # the reply that is there would count as the answer to that, too
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

    async def _is_dropped(self, batch: Batch, signals: TurnSignals, progress: Telling) -> bool:
        """Whether what is answered was deleted before people could see anything of the answer. While the store is away
        nobody knows what an interrupted attempt has shown."""
        # If its rest came after it was deleted, it is not all that is asked any more.
        if not signals.dropped or progress.text or len(batch.envelopes) > 1:
            return False
        try:
            return not (batch.resumed and await self._outbox.part_states(batch.key, batch.turn_id))
        except StoreUnavailable:
            return False

    async def _respect_earlier_stop(self, state: TurnState, signals: TurnSignals) -> None:
        """Show no more of an answer that an interrupted attempt was told to stop than it would have shown. Raises
        `connectors.message.StoreUnavailable`."""
        if state.completion is not None and state.completion.finish_reason == replies.STOPPED:
            await retry_until_stored(lambda: self._cancellations.read(state.batch, signals))
            dropped = signals.dropped and not signals.stop
            state.reply = replace(state.reply, text="", silent=True) if dropped else replies.stopped(state.reply)

    def _cut_short(self, state: TurnState, progress: Telling) -> None:
        """Make the reply of what was written so far. The call that was being made costs what was reserved for it."""
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

    # What it costs

    async def _settle_heard(self, state: TurnState) -> None:
        """Settle the recordings that were transcribed so far; again does no harm. While the store is away nothing is
        settled, and the turn cannot go on either."""
        with suppress(StoreUnavailable):
            await asyncio.gather(*(self._spending.settle_heard(state.payer, one) for one in state.heard))

    async def _settle_rounds(self, state: TurnState) -> None:
        """Settle the calls that wanted tools. All but the last were settled before; again does no harm."""
        for one in state.rounds:
            await self._spending.settle_answer(state.payer, one.completion)

    async def _settle_broken_off(self, state: TurnState) -> None:
        """Settle the calls of a turn whose answer nobody will see."""
        with suppress(StoreUnavailable):  # then a reservation stands in the budget, and is missing in the usage
            await self._settle_rounds(state)
            if state.completion is not None:
                await self._spending.settle_answer(state.payer, state.completion)
            elif state.pending is not None:
                await self._spending.settle_unknown(state.payer, state.pending)

    # What is kept of it

    async def _store(self, state: TurnState, checkpoint: TurnCheckpoint) -> None:
        """Store the reply for delivery, in the conversation, and what it cost; *checkpoint* was there before.

        Each of them once, however often this is asked. Repeated while the store is away: the answer is here, and would
        be paid for again.
        """
        batch, reply = state.batch, state.reply
        steps: list[Step] = [
            lambda: self._send(reply, batch),
            lambda: self._record(batch, reply, self._foreign(state)),
            lambda: self._settle_rounds(state),
        ]
        if state.built is not None:
            ended = outcome(reply, state.completion, state.built, state.rounds)
            steps.append(lambda: self._manifests.finish(reply.key.scope, reply.turn_id, ended))
        if (answer := state.completion) is not None:
            steps.append(lambda: self._spending.settle_answer(state.payer, answer, is_reply=True))
            if checkpoint.last is None:
                steps.append(lambda: self._checkpoints.save_answer(batch, len(state.rounds), answer))
        await asyncio.gather(*map(retry_until_stored, steps))

    async def _finish(self, state: TurnState) -> None:
        """Enqueue the jobs that follow the turn, and delete its checkpoint."""
        batch = state.batch
        # Whose budget is used up shall not spend the workspace's on summaries of being told so.
        kinds = REMEMBER if state.reply.error_code == replies.BUDGET_EXCEEDED else AFTER_TURN
        jobs = [Job(kind, batch.key, batch.turn_id) for kind in kinds]
        steps: list[Step] = [lambda: self._jobs.enqueue(*jobs)]
        if batch.resumed or state.completion is not None or state.heard or state.rounds:
            steps.append(lambda: self._checkpoints.delete(batch))
        await asyncio.gather(*map(retry_until_stored, steps))

    async def _send(self, reply: OutboundMessage, batch: Batch) -> None:
        await self._outbox.put(reply, (envelope.address for envelope in batch.envelopes), batch.fence)

    def _foreign(self, state: TurnState) -> str:
        """What the reply was made of that nobody who asks has written. If that is not known any more it is taken for
        the worst."""
        if state.built is None:
            return "retrieved" if state.batch.resumed else ""
        return "retrieved" if self._tooling.has_read_untrusted(state.rounds) else shown_in(state.built.context)

    async def _record(self, batch: Batch, reply: OutboundMessage, foreign: str = "") -> None:
        """Append the messages and the reply to the conversation's transcript."""
        said = [
            Entry(
                role=EntryRole.INBOUND,
                text=written(envelope.message),
                turn_id=batch.turn_id,
                at=rfc3339(envelope.accepted_at),
                author=envelope.message.author.name,
                user=envelope.message.author.user(envelope.message.connector),
                message_id=envelope.message.message_id,
                foreign="others" if envelope.message.relayed else "",
            )
            for envelope in batch.envelopes
        ]
        answered = Entry(EntryRole.OUTBOUND, reply.text, batch.turn_id, now(), author=BOT, foreign=foreign)
        await self._transcript.append(batch.key, batch.turn_id, [*said, answered], batch.fence)
        self._copy.appended(batch.key)


def now() -> str:
    """Give the time as `rfc3339`."""
    return rfc3339(datetime.now(UTC).timestamp())


def rfc3339(seconds: float) -> str:
    """Write epoch *seconds* as people and programs read them, to the millisecond."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


async def _cancel(writing: asyncio.Task[None]) -> None:
    """Have *writing* end, if it has not; what it raises then is nobody's concern."""
    if not writing.done():
        writing.cancel()
        await asyncio.wait({writing})
        if not writing.cancelled():
            writing.exception()
