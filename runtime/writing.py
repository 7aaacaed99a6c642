"""Writes the answer of one turn: reads what came with the question, grounds it, asks the model. Straight down.

People may change their mind at every moment of it: then what is being done is broken off at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import structlog

from config.settings import Settings
from connectors.message import AgentRuntimeError, StoreUnavailable, Superseded
from grounding import assemble, extractive
from grounding.documents.embedding import WordLlamaEmbedder
from grounding.pipeline import why
from runtime import replies
from runtime.asking import Asking
from runtime.attachments.reading import Contents, Reading
from runtime.budget_terms import BudgetExceeded
from runtime.envelopes import Batch
from runtime.journal import Begun, Done, Journal, surely
from runtime.llm import Model, ModelFailed, Transcription
from runtime.made import Made
from runtime.manifests import Manifests, UnknownTurn
from runtime.outbox import Outbox
from runtime.places import Places
from runtime.progress import Telling
from runtime.prompting import Prompting
from runtime.question import Built, Question
from runtime.spending import Spending, prompt_tokens
from runtime.stops import Stops, Wishes
from runtime.turn_events import log_grounding
from runtime.usage import REPLY, TRANSCRIPTION

FRESH_SECONDS = 1.0
"""A message that was accepted at most so long ago is answered by the model that was chosen then."""
LOOK_SECONDS = 2.0
"""How often it is looked whether an answer is to stop, should the news of it have been lost."""
_log = structlog.get_logger()


class Writing:
    """Writes answers. Holds what that needs; keeps nothing between them."""

    def __init__(
        self,
        settings: Settings,
        *,
        prompting: Prompting,
        model: Model,
        asking: Asking,
        journal: Journal,
        manifests: Manifests,
        spending: Spending,
        stops: Stops,
        places: Places,
        reading: Reading,
        outbox: Outbox,
    ) -> None:
        self._redis_timeout_seconds = settings.redis_timeout_seconds
        self._prompting = prompting
        self._model = model
        self._asking = asking
        self._journal = journal
        self._manifests = manifests
        self._spending = spending
        self._stops = stops
        self._places = places
        self._reading = reading
        self._outbox = outbox
        self._embedder = WordLlamaEmbedder()  # it is loaded when it is first used

    async def write(self, made: Made, done: Done, told: Telling, *, stored: bool = False) -> None:
        """Make the reply of a turn of which *done* was there: the model's, as much of it as was written when people
        wished it to stop, or why there is none. Where it is *stored* already, what else they said is left to the next
        turn. Raises `connectors.message.StoreUnavailable`, `connectors.message.Superseded`, and
        `runtime.envelopes.Merged` when they said more in the meantime.
        """
        batch = made.batch
        if batch.resumed:
            await self.count_unseen(made, done)
        with self._stops.heard(batch.turn_id) as wishes:
            writing = asyncio.create_task(self._write(made, told))
            is_paid = False
            try:
                if batch.resumed and made.completion is None:  # it may have been stopped before it was taken up
                    await self._stops.look(batch, wishes)
                ended = await self._unless_stopped(writing, batch, wishes, told, stored=stored)
                is_paid = not ended or writing.exception() is None
            finally:
                # Wherever it was broken off: because people said more, or the process ends.
                await _break_off(writing)
                if not is_paid:
                    made.cut_off()
                await self._count_heard(made)
                await self._count(self._asking.count_earlier, made)
        if not ended:
            await self._cut_short(made, told)
            if not wishes.stop:  # what it answers was deleted: of neither is anything kept
                made.reply = replace(made.reply, text="", silent=True)
            return
        try:
            writing.result()
            await self._still_stopped(made, wishes)
        except BudgetExceeded as error:
            made.reply = replies.spent(batch, error, made.rounds, made.lost)
        except (assemble.ContextTooLarge, ModelFailed) as error:
            quotation = await self._quotation(made.built) if isinstance(error, ModelFailed) else ""
            made.reply = replies.apology(batch, made.built, error, quotation, made.rounds, made.lost)
            _log.error("turn.failed", why=made.reply.error_code, detail=str(error), attempts=batch.attempt)

    async def _quotation(self, built: Built | None) -> str:
        """What the prompt brings to answer its question, where no model does: as `config.settings.EXTRACTIVE` would."""
        return await extractive.quotation(built.prompt.messages, self._embedder) if built is not None else ""

    async def _unless_stopped(
        self, writing: asyncio.Task[None], batch: Batch, wishes: Wishes, told: Telling, *, stored: bool
    ) -> bool:
        """Wait until *writing* has ended; False where people wish it to stop, or have deleted what it answers and have
        seen nothing of it. Raises `runtime.envelopes.Merged`."""
        writing.add_done_callback(lambda _: wishes.changed.set())
        while not (wishes.stop or await self._is_dropped(batch, wishes, told)):
            if wishes.more and not stored:  # the reply that is there would count as the answer to that, too
                await surely(lambda: self._stops.merge(batch, wishes))
            if writing.done():
                return True
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await wishes.changed.wait()
            except TimeoutError:
                await self._stops.look(batch, wishes)
            wishes.changed.clear()
        return writing.done()

    async def _is_dropped(self, batch: Batch, wishes: Wishes, told: Telling) -> bool:
        """Whether what is answered was deleted before people could see anything of the answer. While the store is away
        nobody knows what an interrupted attempt has shown."""
        # Whose rest came after it was deleted is not all that is asked any more.
        if not wishes.dropped or told.text or len(batch.envelopes) > 1:
            return False
        try:
            return not (batch.resumed and await self._outbox.states.of_turn(batch.key, batch.turn_id))
        except StoreUnavailable:
            return False

    async def _still_stopped(self, made: Made, wishes: Wishes) -> None:
        """Of an answer that an interrupted attempt was told to stop no more is shown than it would have shown. Raises
        `connectors.message.StoreUnavailable`."""
        if made.completion is not None and made.completion.finish_reason == replies.STOPPED:
            await surely(lambda: self._stops.learn(made.batch, wishes))
            dropped = wishes.dropped and not wishes.stop
            made.reply = replace(made.reply, text="", silent=True) if dropped else replies.stopped(made.reply)

    async def _cut_short(self, made: Made, told: Telling) -> None:
        asked = made.tries.open if made.asked else None  # none is, between two attempts
        written, model = made.written(told.text), made.first or self._model.name
        completion = replies.cut_short(written, model, asked=asked is not None)
        if asked is not None:
            came = await self._spending.counted(asked.so_far(), made.sent)
            completion = replace(completion, model=came.model, usage=came.usage, call=made.tries.name)
        if (asked or made.rounds or made.lost.prompt) and made.built is not None:
            made.completion = completion
            made.reply = replies.stopped(replies.answer(made.batch, made.built, completion, made.rounds, made.lost))
            return
        made.reply = replies.stopped(replace(made.reply, text=completion.text))
        await self._spending.release(made.batch.key.scope, made.batch.turn_id, REPLY)

    async def _write(self, made: Made, told: Telling) -> None:
        batch = made.batch
        made.first = await self._first_model(batch)
        grounded = await self._grounded_before(batch)
        if grounded is not None and made.completion is not None:
            made.built = grounded
            made.reply = replies.answer(batch, grounded, made.completion, made.rounds, made.lost)
            return
        made.batch, contents = await self._read(made)
        if contents.unheard:
            made.reply = replies.unheard(batch, contents)
            return
        question = Question.of(made.batch, contents)
        built = await self._ground(made, question)
        try:
            await self._pay(made, built, contents)
            await self._asking.answer(made, built, question, contents, told)
        finally:
            await made.kept()
        assert made.completion is not None
        if made.built is not None and made.built is not built:  # a fallback read less
            built = made.built
            smaller = built
            await surely(
                lambda: self._manifests.keep_anew(smaller.context, smaller.prompt, now(), prefix=smaller.prefix)
            )
        made.reply = replies.answer(batch, built, made.completion, made.rounds, made.lost)

    async def _first_model(self, batch: Batch) -> str | None:
        """The model that was chosen for the place; without the store the settings decide."""
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

    async def _read(self, made: Made) -> tuple[Batch, Contents]:
        """What came with the messages. Speech is written down once, however often the turn is taken up again.
        Raises `BudgetExceeded` where there is speech and nothing left to have it written down with."""
        batch = made.batch
        if any(one.kind == "voice" for envelope in batch.envelopes for one in envelope.message.attachments):
            await self._spending.check(batch, TRANSCRIPTION)

        async def heard(one: Transcription) -> None:
            made.heard.append(one)
            await self._count_heard(made)

        read, contents = await self._reading.read(batch, made.first, heard)
        pairs = enumerate(zip(batch.envelopes, read.envelopes, strict=True))
        words = {place: now.message.text for place, (before, now) in pairs if now.message != before.message}
        if words:
            await surely(
                lambda: self._journal.heard(batch, words)
            )  # counted before: whoever finds the words here pays no more for them
        return read, contents

    async def _count_heard(self, made: Made) -> None:
        """Count what the recordings cost that were written down so far; again does no harm. While the store is away
        nothing is counted, and the turn cannot go on either."""
        with suppress(StoreUnavailable):
            await asyncio.gather(*(self._spending.settle_heard(made.batch, one) for one in made.heard))

    async def count(self, made: Made) -> None:
        """Count what was asked for *made*, which is broken off: whoever takes its turn up may not find it. While the
        store is away nothing is counted; where another worker has the turn, it is at least not told with it."""
        await self._count(self._asking.count, made)

    async def count_unseen(self, made: Made, done: Done) -> None:
        """Count what the model was asked for *made* by a process that died meanwhile. Raises
        `connectors.message.Superseded` and `connectors.message.StoreUnavailable`."""
        try:
            asked = (await self._manifests.get(made.batch.key.scope, made.batch.turn_id)).asked
        except UnknownTurn:
            asked = None
        await self._asking.count_unseen(made, done, Begun(**asked) if asked else None)

    async def _count(self, how: Callable[[Made], Awaitable[None]], made: Made) -> None:
        with suppress(StoreUnavailable, Superseded):
            await how(made)

    async def _ground(self, made: Made, question: Question) -> Built:
        """The prompt; `Made.keep` keeps it, so that whoever goes on with this turn asks the same. Raises
        `grounding.assemble.ContextTooLarge`."""
        batch = made.batch
        before = await self._grounded_before(batch)
        if before is not None and question.is_asked_by(before.context):  # it may have grown since
            made.built = before
            return before
        made.built = built = await self._prompting.build(question, batch.turn_id, first=made.first)
        made.keeps = lambda: self._keep(made, built)
        return built

    def _keep(self, made: Made, built: Built) -> asyncio.Future[Any]:
        if made.keeping is None:  # said once: it may be kept again
            log_grounding(built)
        # Not in a group: that would give it up where the model fails, and what it was asked is to be explained.
        keeping = asyncio.gather(
            self._manifests.keep(built.context, built.prompt, now(), prefix=built.prefix, asked=self._is_asking(made)),
            self._prompting.keep(made.batch.key, built),
        )
        # Behind the two: a model that answers just now is heard for a while, and waits for them then.
        asyncio.get_running_loop().call_soon(self._manifests.hasten)
        return keeping

    def _is_asking(self, made: Made) -> dict[str, Any] | None:
        """What is known of the call that is being made, once its request is; see `runtime.journal.Begun`."""
        if not made.asked:
            return None
        made.noted = made.tries.id
        return {"id": made.tries.id, "model": made.first or self._model.name, "sent": made.sent}

    async def _pay(self, made: Made, built: Built, contents: Contents) -> None:
        """Hold what the first call may take. Raises `BudgetExceeded`."""
        made.sent = prompt_tokens(built.prompt, len(contents.images)) + built.context.budgets.tools_tokens
        await self._spending.reserve_reply(made.batch, made.sent, made.first)

    async def _grounded_before(self, batch: Batch) -> Built | None:
        """What an interrupted attempt has built."""
        if not batch.resumed:
            return None
        try:
            manifest = await self._manifests.get(batch.key.scope, batch.turn_id)
        except UnknownTurn:
            return None
        return await self._prompting.rebuild(manifest.context)


def now() -> str:
    return rfc3339(datetime.now(UTC).timestamp())


def rfc3339(seconds: float) -> str:
    """Epoch *seconds* as people and programs read them, to the millisecond."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


async def _break_off(writing: asyncio.Task[None]) -> None:
    """Have *writing* end, if it has not; what it raises then is nobody's concern."""
    if not writing.done():
        writing.cancel()
        await asyncio.wait({writing})
        if not writing.cancelled():
            writing.exception()
