"""Answers one turn: from the messages of a batch to a reply that is stored for delivery. Straight down.

Each step leaves something behind by which another worker, should this one die, goes on from there (`runtime.journal`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from functools import partial

import structlog

from config.settings import Settings
from connectors.message import OutboundMessage, StoreUnavailable, Superseded
from grounding.memory.global_context_origin import shown_in
from grounding.tokens import Tokens
from grounding.transcript.copy import MarkdownCopy
from grounding.transcript.entry import Entry, EntryRole
from grounding.transcript.log import Transcript
from runtime import replies
from runtime.ahead import Foresight
from runtime.asking import Asking
from runtime.attachments.reading import Reading, written
from runtime.censoring import CENSORED, Accounting
from runtime.envelopes import Batch
from runtime.extracting import JOB as EXTRACT
from runtime.hub import Hub
from runtime.jobs import Job, Jobs
from runtime.journal import Done, Journal, surely
from runtime.llm import Completion, Model
from runtime.made import Made
from runtime.manifests import Manifests
from runtime.outbox import Outbox
from runtime.places import Places
from runtime.progress import Telling, telling
from runtime.prompting import Prompting
from runtime.rounds import rest
from runtime.spending import Spending, prompt_tokens
from runtime.stops import Stops
from runtime.tools import Tooling
from runtime.turn_events import log_answer, outcome
from runtime.usage import REPLY
from runtime.writing import Writing, now, rfc3339

BOT = "agent-runtime"
REMEMBER = ("turn.remember",)
AFTER_TURN = ("summary.refresh", EXTRACT, *REMEMBER)
Step = Callable[[], Awaitable[object]]
_log = structlog.get_logger()


class Turns:
    """Answers batches. Holds what a turn needs; keeps nothing between turns."""

    def __init__(
        self,
        settings: Settings,
        *,
        prompting: Prompting,
        model: Model,
        tooling: Tooling,
        tokens: Tokens,
        outbox: Outbox,
        journal: Journal,
        transcript: Transcript,
        copy: MarkdownCopy,
        manifests: Manifests,
        jobs: Jobs,
        spending: Spending,
        stops: Stops,
        places: Places,
        reading: Reading,
        hub: Hub,
        accounting: Accounting,
        foresight: Foresight | None = None,
    ) -> None:
        self._writing = Writing(
            settings,
            prompting=prompting,
            model=model,
            asking=Asking(settings, model=model, tooling=tooling, journal=journal, spending=spending, tokens=tokens),
            journal=journal,
            manifests=manifests,
            spending=spending,
            stops=stops,
            places=places,
            reading=reading,
            outbox=outbox,
        )
        self._model = model
        self._tooling = tooling
        self._outbox = outbox
        self._journal = journal
        self._transcript = transcript
        self._copy = copy
        self._manifests = manifests
        self._jobs = jobs
        self._spending = spending
        self._hub = hub
        self._accounting = accounting
        self._foresight = foresight

    async def answer(self, batch: Batch) -> None:
        """Answer *batch*, whatever fails on the way: then the reply says so.

        Raises only `connectors.message.StoreUnavailable` and `connectors.message.Superseded`: nothing is lost then,
        and the batch is to be answered again under the same turn id; and `runtime.envelopes.Merged`: then a larger one.
        """
        with self._foresight.turn(batch.key, batch.ahead) if self._foresight else nullcontext():
            await self._answer(batch)

    async def _answer(self, batch: Batch) -> None:
        started = time.perf_counter()
        # Only a turn that was interrupted can have come anywhere.
        done = await self._journal.read(batch) if batch.resumed else Done()
        made = Made.of(batch, done)
        last = batch.envelopes[-1]
        async with telling(self._hub, last.origin, made.reply, last.watched) as told:
            try:
                await self._keep(made, done, told)
            except BaseException:
                await self._writing.count(made)
                raise
        reply = made.reply
        # Whose budget is used up shall not spend the workspace's on summaries of being told so.
        kinds = REMEMBER if reply.error_code == replies.BUDGET_EXCEEDED else AFTER_TURN
        jobs = [Job(kind, batch.key, batch.turn_id) for kind in kinds]
        over: list[Awaitable[object]] = [surely(lambda: self._jobs.enqueue(*jobs))]
        if batch.resumed or made.noted or made.completion is not None or made.heard or made.rounds or made.lost.prompt:
            over.append(surely(lambda: self._journal.forget(batch)))
        await asyncio.gather(*over)
        if made.completion is not None and made.built is not None:
            await self._accounting.account(made.batch, made.built, made.rounds, made.completion)
            elapsed_ms = (time.perf_counter() - started) * 1000
            log_answer(made.completion, made.built, elapsed_ms, made.rounds, made.lost)

    async def _keep(self, made: Made, done: Done, told: Telling) -> None:
        """Bring *made*, of which *done* was there, to its reply, and keep that and what it cost."""
        batch = made.batch
        reply = await self._outbox.load(batch.key, batch.turn_id) if batch.resumed else None
        if reply is None or done.last:  # what an interrupted turn has not accounted for is in its journal
            await self._writing.write(made, done, told, stored=reply is not None)
        else:
            made.reply, made.completion = reply, self._asked_for(reply, made)
        reply = made.reply
        # Each of them once, however often: who sees the reply finds it in the conversation, too. First in the
        # journal: what was paid for is not paid for again, whichever of the others comes to pass.
        # And again where the store was away: the answer is here, and would be asked for anew.
        steps: list[Step] = [
            lambda: self._send(reply, batch),
            lambda: self._record(made.batch, reply, self._foreign(made)),
            *self._accounts(made),
        ]
        if (answer := made.completion) is not None and done.last is None:
            steps.insert(0, lambda: self._journal.completed(made.batch, len(made.rounds), answer))
        await asyncio.gather(*map(surely, steps))

    def _asked_for(self, reply: OutboundMessage, made: Made) -> Completion | None:
        """The model's last call behind a *reply* that was stored by a process that ended before it could account for
        it; None where the reply is not the model's: all that was paid for it was counted as it was lost."""
        if reply.error_code and reply.error_code != CENSORED:
            return None
        counted = rest(reply.usage, made.rounds, made.lost)
        return Completion(reply.text, self._model.name, usage=counted) if counted.prompt or counted.completion else None

    async def apologise(self, batch: Batch) -> None:
        """Answer *batch*, which broke in a way that nobody foresaw, with an apology, and record it.

        Raises only `connectors.message.StoreUnavailable` and `connectors.message.Superseded`.
        """
        # A reply that was stored before it broke is the better answer, and may have been shown.
        reply = await self._outbox.load(batch.key, batch.turn_id)
        if reply is None:
            reply = replies.broken(batch)
            await self._count_unseen(batch)
        await self._send(reply, batch)
        await self._record(batch, reply)

    async def _count_unseen(self, batch: Batch) -> None:
        """Count what was asked for *batch*, which is given up, as far as that can be read, and hold nothing for it."""
        try:
            done = await self._journal.read(batch)
            await self._writing.count_unseen(Made.of(batch, done), done)
            await self._spending.release(batch.key.scope, batch.turn_id, REPLY)
        except (StoreUnavailable, Superseded):
            raise
        except Exception:  # noqa: BLE001 - what cannot be read may be why it is given up; it is logged whole
            _log.exception("turn.failed", why="uncounted")

    def _accounts(self, made: Made) -> list[Step]:
        """What keeps what came of the turn and what it cost; again does no harm."""
        batch, reply, completion = made.batch, made.reply, made.completion
        steps: list[Step] = []
        if made.built is not None:
            ended = outcome(reply, completion, made.built, made.rounds)
            steps.append(lambda: self._manifests.finish(reply.key.scope, reply.turn_id, ended))
        sent = made.sent or (prompt_tokens(made.built.prompt, 0) if made.built else 0)
        steps += [
            partial(self._spending.settle_round, batch, number, one.completion, sent)
            for number, one in enumerate(made.rounds[made.settled :], made.settled)
        ]
        if completion is not None:
            steps.append(lambda: self._spending.settle_reply(batch, completion, sent))
        return steps

    async def _send(self, reply: OutboundMessage, batch: Batch) -> None:
        await self._outbox.put(reply, (envelope.address for envelope in batch.envelopes), batch.fence)

    def _foreign(self, made: Made) -> str:
        """What the reply was made of that nobody who asks has written. Where that is not known any more it is taken for
        the worst."""
        if made.built is None:
            return "retrieved" if made.batch.resumed else ""
        return "retrieved" if self._tooling.has_read_untrusted(made.rounds) else shown_in(made.built.context)

    async def _record(self, batch: Batch, reply: OutboundMessage, foreign: str = "") -> None:
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
