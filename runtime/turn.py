"""Answers one turn: from the messages of a batch to a reply that is stored for delivery. Straight down.

Each step leaves something behind by which another worker, should this one die, goes on from there (`runtime.journal`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import structlog

from config.settings import Settings
from connectors.message import AgentRuntimeError, OutboundMessage
from grounding import assemble
from grounding.pipeline import why
from grounding.transcript.copy import MarkdownCopy
from grounding.transcript.entry import Entry, EntryRole
from grounding.transcript.log import Transcript
from runtime import replies
from runtime.attachments.reading import Contents, Reading, written
from runtime.budget_terms import BudgetExceeded
from runtime.exchange import Message
from runtime.hub import Hub
from runtime.jobs import Job, Jobs
from runtime.journal import Done, Journal
from runtime.mailbox import Batch, Merged
from runtime.manifests import Manifests, UnknownTurn
from runtime.model import Completion, Model
from runtime.model_errors import ModelFailed
from runtime.outbox import Outbox
from runtime.places import Places
from runtime.progress import Telling, telling
from runtime.prompting import Prompting
from runtime.question import Built, Question
from runtime.senses import Heard, with_images
from runtime.spending import Spending, user_of
from runtime.stops import Stops, Wishes
from runtime.turn_events import log_answer, log_grounding, outcome
from runtime.usage import REPLY

BOT = "agent-runtime"
REMEMBER = ("turn.remember",)
AFTER_TURN = ("summary.refresh", *REMEMBER)
_log = structlog.get_logger()


class _Made:
    """A reply, and what it was made of as far as that came."""

    def __init__(self, batch: Batch, done: Done) -> None:
        self.reply: OutboundMessage = replies.draft(batch)
        self.built: Built | None = None
        self.completion: Completion | None = done.rounds[-1] if done.rounds else None
        self.batch = _as_heard(batch, done)
        """With the words of its voice messages."""
        self.heard: tuple[Heard, ...] = ()


class Turns:
    """Answers batches. Holds what a turn needs; keeps nothing between turns."""

    def __init__(
        self,
        settings: Settings,
        *,
        prompting: Prompting,
        model: Model,
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
    ) -> None:
        self._settings = settings
        self._prompting = prompting
        self._model = model
        self._outbox = outbox
        self._journal = journal
        self._transcript = transcript
        self._copy = copy
        self._manifests = manifests
        self._jobs = jobs
        self._spending = spending
        self._stops = stops
        self._places = places
        self._reading = reading
        self._hub = hub

    async def answer(self, batch: Batch) -> None:
        """Answer *batch*, whatever fails on the way: then the reply says so.

        Raises only `connectors.message.StoreUnavailable` and `connectors.message.Superseded`: nothing is lost then,
        and the batch is to be answered again under the same turn id; and `runtime.mailbox.Merged`: then a larger one.
        """
        started = time.perf_counter()
        # Only a turn that was interrupted can have come anywhere.
        done = await self._journal.read(batch) if batch.resumed else Done()
        made = _Made(batch, done)
        last = batch.envelopes[-1]
        async with telling(self._hub, last.origin, made.reply, last.watched) as told:
            reply = await self._outbox.load(batch.key, batch.turn_id) if batch.resumed else None
            if reply is None or done.rounds:  # what an interrupted turn has not accounted for is in its journal
                await self._make(made, told)
                reply = made.reply
            # Each of them once, however often: who sees the reply finds it in the conversation, too.
            await asyncio.gather(self._account(made), self._send(reply, batch), self._record(made.batch, reply))
        # Whose budget is used up shall not spend the workspace's on summaries of being told so.
        kinds = REMEMBER if reply.error_code == replies.BUDGET_EXCEEDED else AFTER_TURN
        await self._jobs.enqueue(*(Job(kind, batch.key, batch.turn_id) for kind in kinds))
        if batch.resumed or made.completion is not None or made.heard:
            await self._journal.forget(batch)
        if made.completion is not None and made.built is not None:
            log_answer(made.completion, made.built, (time.perf_counter() - started) * 1000)

    async def apologise(self, batch: Batch) -> None:
        """Answer *batch*, which broke in a way that nobody foresaw, with an apology, and record it.

        Raises only `connectors.message.StoreUnavailable` and `connectors.message.Superseded`.
        """
        # A reply that was stored before it broke is the better answer, and may have been shown.
        reply = await self._outbox.load(batch.key, batch.turn_id)
        if reply is None:
            reply = replies.broken(batch)
            await self._send(reply, batch)
        await self._record(batch, reply)

    async def _make(self, made: _Made, told: Telling) -> None:
        """Make the reply: the model's, or why there is none."""
        batch = made.batch
        with self._stops.heard(batch.turn_id) as wishes:
            first = await self._first_model(batch)
            grounded = await self._grounded_before(batch)
            if grounded is not None and made.completion is not None:
                made.built = grounded
                made.reply = replies.answer(batch, grounded, made.completion)
                return
            try:
                made.batch, contents = await self._read(batch, first)
                made.heard = contents.heard
                if contents.unheard:
                    made.reply = replies.unheard(batch, contents)
                    return
                made.built = await self._ground(made.batch, contents, first)
                made.completion = await self._ask(made.batch, made.built, contents, told, wishes, first)
                await self._journal.completed(batch, 0, made.completion)
                made.reply = replies.answer(batch, made.built, made.completion)
            except BudgetExceeded as error:
                made.reply = replies.spent(batch, error)
            except (assemble.ContextTooLarge, ModelFailed) as error:
                made.reply = replies.apology(batch, made.built, error)
                _log.error("turn.failed", why=made.reply.error_code, detail=str(error), attempts=batch.attempt)

    async def _read(self, batch: Batch, first: str | None) -> tuple[Batch, Contents]:
        """What came with the messages. Speech is written down once, however often the turn is taken up again.
        Raises `BudgetExceeded` where there is speech and nothing left to have it written down with."""
        if any(one.kind == "voice" for envelope in batch.envelopes for one in envelope.message.attachments):
            await self._spending.check(batch, "transcription")
        read, contents = await self._reading.read(batch, first)
        if contents.heard:
            pairs = enumerate(zip(batch.envelopes, read.envelopes, strict=True))
            said = {place: now.message.text for place, (before, now) in pairs if now.message != before.message}
            await self._journal.heard(batch, said)
        return read, contents

    async def _ground(self, batch: Batch, contents: Contents, first: str | None) -> Built:
        """The prompt; kept, so that whoever goes on with this turn asks the same. Raises `ContextTooLarge`."""
        question = Question.of(batch, contents)
        built = await self._grounded_before(batch)
        if built is None or not question.is_asked_by(built.context):  # it may have grown since
            built = await self._prompting.build(question, batch.turn_id, first=first)
            await self._manifests.keep(built.context, built.prompt, _now())
            log_grounding(built)
        return built

    async def _grounded_before(self, batch: Batch) -> Built | None:
        """What an interrupted attempt has built."""
        if not batch.resumed:
            return None
        try:
            manifest = await self._manifests.get(batch.key.scope, batch.turn_id)
        except UnknownTurn:
            return None
        return await self._prompting.rebuild(manifest.context)

    async def _first_model(self, batch: Batch) -> str | None:
        """The model that was chosen for the place; without the store the settings decide."""
        try:
            async with asyncio.timeout(self._settings.redis_timeout_seconds):
                chosen = (await self._places.of_message(batch.key, batch.envelopes[-1].message)).model
        except (AgentRuntimeError, TimeoutError) as error:
            _log.warning("store.degraded", store="places", why=why(error))
            return None
        return chosen if chosen in self._model.names else None  # the settings may have changed since

    async def _ask(
        self, batch: Batch, built: Built, contents: Contents, told: Telling, wishes: Wishes, first: str | None
    ) -> Completion:
        """What `_complete` gives, within the budget. Raises `BudgetExceeded`, `ModelFailed` and `Merged`."""
        if wishes.more:
            await self._stops.merge(batch, wishes)
        await self._spending.reserve_reply(batch, built.prompt, len(contents.images), first)
        messages = with_images(built.prompt.messages, contents.images)
        try:
            return await self._complete(batch, messages, told, wishes, first)
        except Merged:
            await self._spending.settle_interrupted(batch, built.prompt, told.text, first)
            raise
        except ModelFailed:
            await self._spending.release(batch.key.scope, batch.turn_id, REPLY)
            raise

    async def _complete(
        self, batch: Batch, messages: Sequence[Message], told: Telling, wishes: Wishes, first: str | None
    ) -> Completion:
        """The model's answer, or as much of it as was written when people wished it to stop.

        Raises `runtime.mailbox.Merged` where they said more in the meantime.
        """
        asking = asyncio.create_task(
            self._model.complete(
                messages,
                on_delta=told.show if told.is_watched else None,
                on_restart=told.restart if told.can_restart else None,
                first=first,
            )
        )
        try:
            while not wishes.stop:
                await _first_of(asking, wishes.changed)
                wishes.changed.clear()
                if wishes.more and not wishes.stop:
                    await self._stops.merge(batch, wishes)
                if asking.done():
                    return asking.result()
        finally:
            asking.cancel()
            await asyncio.wait({asking})
        return replies.cut_short(told.text, first or self._model.name)

    async def _account(self, made: _Made) -> None:
        """Keep what came of the turn and what it cost; again does no harm."""
        reply, completion = made.reply, made.completion
        if made.built is not None:
            await self._manifests.finish(reply.key.scope, reply.turn_id, outcome(reply, completion))
        if completion is not None:
            await self._spending.settle_reply(made.batch, completion, made.built.prompt if made.built else None)
        for number, heard in enumerate(made.heard):
            purpose, user = f"transcription.{number}", user_of(made.batch)
            await self._spending.settle(reply.key.scope, reply.turn_id, purpose, heard.model, heard.usage, user)

    async def _send(self, reply: OutboundMessage, batch: Batch) -> None:
        await self._outbox.put(reply, (envelope.address for envelope in batch.envelopes), batch.fence)

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
        await self._transcript.append(batch.key, batch.turn_id, [*said, answered], batch.fence)
        self._copy.appended(batch.key)


def _as_heard(batch: Batch, done: Done) -> Batch:
    """*batch* with what its voice messages were found to say; they need not be listened to again."""
    if not done.words:
        return batch
    envelopes = list(batch.envelopes)
    for place, words in done.words.items():
        message = envelopes[place].message
        silent = tuple(one for one in message.attachments if one.kind != "voice")
        envelopes[place] = replace(envelopes[place], message=replace(message, text=words, attachments=silent))
    return replace(batch, envelopes=tuple(envelopes))


async def _first_of(asking: asyncio.Task[Completion], changed: asyncio.Event) -> None:
    """Wait until the one is done or the other is set."""
    changing = asyncio.create_task(changed.wait())
    try:
        await asyncio.wait({asking, changing}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        changing.cancel()
        await asyncio.wait({changing})


def _rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _now() -> str:
    return _rfc3339(time.time())
