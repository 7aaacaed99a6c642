"""Asks the model for one answer: a call, the tools that it wants, the next call, until it answers.

Every round is reserved, journaled and settled by itself; the last call may want no tools.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

from config.settings import Settings
from connectors.message import Usage
from grounding import assemble
from grounding.assemble import rounds_room
from grounding.blocks import SEPARATOR
from grounding.tokens import Tokens
from runtime import censoring
from runtime.attachments.reading import Contents
from runtime.budget_terms import BudgetExceeded
from runtime.journal import Begun, Done, Journal, call_of, surely
from runtime.llm import Completion, Message, Model, ModelFailed, ModelUnavailable, StablePrefix, Tries, with_images
from runtime.made import Made
from runtime.progress import Telling
from runtime.question import Built, Question
from runtime.rounds import Round, as_one, asked, said, total
from runtime.spending import Spending, prompt_tokens, user_of
from runtime.tools import NOTHING, Asked, Offer, Tooling
from runtime.usage import REPLY

LEAST_ROOM_TOKENS = 64
"""Where a window has less room for what tools tell, the model has to answer with what there is."""


class Asking:
    """Asks for answers. Holds what that needs; keeps nothing between them."""

    def __init__(
        self,
        settings: Settings,
        *,
        model: Model,
        tooling: Tooling,
        journal: Journal,
        spending: Spending,
        tokens: Tokens,
    ) -> None:
        self._max_rounds = settings.tool_max_rounds
        self._model = model
        self._tooling = tooling
        self._journal = journal
        self._spending = spending
        self._tokens = tokens

    async def answer(self, made: Made, built: Built, question: Question, contents: Contents, told: Telling) -> None:
        """Bring *made* from its prompt, or from the round that an interrupted attempt came to, to its completion.

        The first call was paid for beforehand. Raises `ModelFailed`, `runtime.budget_terms.BudgetExceeded`,
        `connectors.message.Superseded` and `connectors.message.StoreUnavailable`.
        """
        offer = self._tooling.offered(built.context.tools, question)
        voice = _Voice(told, holds_back=censoring.holds_back(built.context))
        await voice.repeat(said(made.rounds))
        if made.rounds and not made.rounds[-1].is_over:
            await self._run_tools(made, built, question, offer)
        while True:
            number = len(made.rounds)
            warned = number > 0 and bool(made.rounds[-1].completion.warned)
            is_last = number > 0 and (
                warned or number >= self._max_rounds or not offer.tools or self._room(made, built) < LEAST_ROOM_TOKENS
            )
            try:
                completion = await self._ask(made, built, contents, NOTHING if is_last else offer, voice)
                if completion.tool_calls and (is_last or (completion.text.strip() and not offer.tools)):
                    completion = await self._without_calls(made, question, completion)
            except (ModelFailed, BudgetExceeded):
                if not warned:
                    raise
                completion = self._as_it_was(made)
            if not completion.tool_calls and await self._puts_back(made, built, completion):
                continue
            if not completion.tool_calls:
                made.completion = completion
                await voice.checked(built, as_one(made.rounds, completion).text)
                return
            await self._keep_round(made, completion)
            await voice.goes_on(said(made.rounds))
            await self._run_tools(made, built, question, offer)

    async def _ask(self, made: Made, built: Built, contents: Contents, offer: Offer, voice: _Voice) -> Completion:
        """The model's next word. Raises `ModelFailed` and `runtime.budget_terms.BudgetExceeded`."""
        sent = prompt_tokens(built.prompt, len(contents.images)) + built.context.budgets.tools_tokens
        made.sent = sent + self._taken(made)
        if made.rounds:
            await self._spending.reserve_reply(made.batch, made.sent, made.first)
        made.asked, made.tries = True, Tries(made.sent)
        if made.keeps is None or made.keeping is not None:  # else it is told with the prompt
            await self._note(made)
        narrow = _Narrow(made, built, contents, self._tokens)
        made.keep()  # before the call, and the model need not wait for it
        try:
            completion = await self._model.complete(
                asked(with_images(built.prompt.messages, contents.images), made.rounds),
                on_delta=voice.show if voice.is_watched else None,
                on_restart=voice.restart if voice.is_watched and voice.told.can_restart else None,
                tools=offer.schemas,
                first=made.first,
                stable_prefix=StablePrefix.of(built.prompt, made.batch.key),
                fit_prompt=narrow.fit,
                tries=made.tries,
            )
        except ModelFailed:
            made.asked = False
            await made.kept()
            await surely(lambda: self._note_end(made))
            await self._count_lost(made)
            await self._spending.release(made.batch.key.scope, made.batch.turn_id, REPLY)
            raise

        # Before anything is kept of the answer; and again where the store was away: it is paid for.
        await surely(made.kept)
        await surely(lambda: self._count_lost(made))
        if narrow.built is not None and not made.rounds:
            made.built = narrow.built
        return await self._spending.counted(completion, made.sent)

    async def _note(self, made: Made) -> None:
        """Keep that the model is asked. Raises `connectors.message.Superseded`."""
        begun = Begun(made.tries.id, made.first or self._model.name, made.sent)
        await surely(lambda: self._journal.asked(made.batch, begun))
        made.noted = begun.id

    async def _note_end(self, made: Made) -> None:
        """Keep of a call that is over that nothing came of it, where it was noted: whoever takes the turn up would
        count it. Of one that was paid for `_count_lost` keeps what it took. Raises
        `connectors.message.Superseded`."""
        tries = made.tries
        if made.noted == tries.id and tries.open is None and not (tries.lost or tries.counted):
            await self._journal.lost(made.batch, tries.name, Usage())

    async def count_unseen(self, made: Made, done: Done, first: Begun | None) -> None:
        """Count the calls that were begun for *made*, of which *done* was there, and nobody has seen the end of: their
        process died. What they were sent is counted, as an estimate, and once by their names. *first* is the one that
        the turn's manifest tells. Raises as `count`."""
        begun = [one for one in (*((first,) if first else ()), *done.asked) if one.id not in done.ended]
        if not begun:
            return
        answered = call_of(await self._spending.answered_by(made.batch))  # it may have been counted, and not kept
        for one in begun:
            if one.id != answered:
                unseen = Tries(one.sent, lost=[Completion("", one.model)], id=one.id)
                await self._count_tries(made, unseen)

    async def _count_lost(self, made: Made) -> None:
        """Count the attempts of the last call that brought no answer; again does no harm. Raises
        `connectors.message.Superseded` and `connectors.message.StoreUnavailable`."""
        if made.tries.lost:
            await self._count_tries(made, made.tries)

    async def _count_tries(self, made: Made, tries: Tries) -> None:
        batch = made.batch

        async def keep(name: str, usage: Usage) -> None:
            await self._journal.lost(batch, name, usage)
            made.lost = total([made.lost, usage])

        scope, user = batch.key.scope, user_of(batch)
        await self._spending.settle_lost(scope, batch.turn_id, REPLY, tries, user, keep)

    async def _puts_back(self, made: Made, built: Built, completion: Completion) -> bool:
        """Put an answer that sets off warnings back to the model, once, where there is room for it; whether that was
        done."""
        objection = censoring.objection(built.context.censors, as_one(made.rounds, completion).text)
        if not objection or any(one.completion.warned for one in made.rounds):
            return False
        draft = replace(completion, warned=objection)
        if self._room(made, built) < Round(draft).count(self._tokens) + LEAST_ROOM_TOKENS:
            return False
        await self._keep_round(made, draft)
        return True

    async def _keep_round(self, made: Made, completion: Completion) -> None:
        """Keep *completion*, after which the model is asked again, and count it. Raises
        `connectors.message.Superseded`."""
        batch, number = made.batch, len(made.rounds)
        await surely(lambda: self._journal.completed(batch, number, completion))
        made.asked = False  # from now on whoever takes the turn up counts it
        made.rounds.append(Round(completion))
        await surely(lambda: self._count_rounds(made))

    async def count(self, made: Made) -> None:
        """Count what was asked for *made*, which is broken off, as far as that was not done: its last answer as one,
        because it may be kept. Raises `connectors.message.Superseded` and `connectors.message.StoreUnavailable`."""
        if made.asked and made.completion is not None:
            await self._spending.settle_reply(made.batch, made.completion, made.sent)
        else:
            made.cut_off()
        await self.count_earlier(made)

    async def count_earlier(self, made: Made) -> None:
        """Count the rounds of *made*, and the attempts of its last call that brought no answer, as far as that was not
        done. Raises as `count`."""
        await self._count_rounds(made)
        await self._note_end(made)
        await self._count_lost(made)

    async def _count_rounds(self, made: Made) -> None:
        while made.settled < len(made.rounds):
            one = made.rounds[made.settled].completion
            await self._spending.settle_round(made.batch, made.settled, one, made.sent)
            made.settled += 1

    def _as_it_was(self, made: Made) -> Completion:
        """The draft as the answer after all, with what was said before it, where no other can be had: its call is paid
        for."""
        made.asked = False
        *before, draft = made.rounds
        whole = as_one(before, draft.completion)
        return replace(whole, warned="", usage=Usage(), first_token_ms=None, latency_ms=0, attempts=0)

    async def _without_calls(self, made: Made, question: Question, completion: Completion) -> Completion:
        """*completion*, whose calls are not made, as the answer. Raises `ModelFailed` where it says nothing besides."""
        self._tooling.refuse(question, completion.tool_calls)
        if completion.text.strip():
            return replace(completion, tool_calls=())
        made.cut_off()
        await surely(lambda: self._count_lost(made))
        await self._spending.release(made.batch.key.scope, made.batch.turn_id, REPLY)
        raise ModelUnavailable(f"{completion.model}: wants tools and says nothing", why="empty", model=completion.model)

    async def _run_tools(self, made: Made, built: Built, question: Question, offer: Offer) -> None:
        """Have the calls of the last round made, as far as they were not."""
        number = len(made.rounds) - 1
        this = made.rounds[number]
        known = {place: result for (of, place), result in made.known.items() if of == number}
        started = time.perf_counter()
        whose = Asked(made.batch, question, built.context, tuple(made.rounds[:number]))
        results = await self._tooling.run(whose, offer, this.completion.tool_calls, self._room(made, built), known)
        made.rounds[number] = replace(this, results=results, tools_ms=round((time.perf_counter() - started) * 1000))

    def _room(self, made: Made, built: Built) -> int:
        """Tokens that the window has left for what is said before the answer."""
        return max(0, rounds_room(built.context, built.prompt) - self._taken(made))

    def _taken(self, made: Made) -> int:
        return sum(one.count(self._tokens) for one in made.rounds)


class _Narrow:
    """The prompt of *built* for fallbacks that read less. ``built`` is the last that was made: what answered was given
    that one."""

    def __init__(self, made: Made, built: Built, contents: Contents, tokens: Tokens) -> None:
        self.built: Built | None = None
        self._made = made
        self._whole = built
        self._contents = contents
        self._tokens = tokens

    async def fit(self, window: int) -> tuple[Sequence[Message], StablePrefix] | None:
        """See `runtime.llm.prompt_caching.FitPrompt`. In a thread: everything is cut and counted again."""
        built = self.built = await asyncio.to_thread(self._for, window)
        if built is None:
            return None
        messages = asked(with_images(built.prompt.messages, self._contents.images), self._made.rounds)
        return messages, StablePrefix.of(built.prompt, self._made.batch.key)

    def _for(self, window: int) -> Built | None:
        whole = self._whole
        if window >= whole.context.budgets.window_tokens:
            return whole
        budgets = whole.context.budgets.model_copy(update={"window_tokens": window})
        context = whole.context.model_copy(update={"budgets": budgets})
        try:
            prompt = assemble.prompt(context, self._tokens)
        except assemble.ContextTooLarge:
            return None
        taken = sum(one.count(self._tokens) for one in self._made.rounds)
        return replace(whole, context=context, prompt=prompt) if rounds_room(context, prompt) >= taken else None


class _Voice:
    """Shows what the model says of the rounds of one answer, below each other; where it *holds_back* only when all of
    it was checked."""

    def __init__(self, told: Telling, *, holds_back: bool = False) -> None:
        self.told = told
        self.is_watched = told.is_watched and not holds_back
        self._waits = told.is_watched and holds_back
        self._before = ""
        self._held = ""
        """What stands before the first words of a round; a round without words shows nothing."""

    async def repeat(self, text: str) -> None:
        """Show *text*, which an interrupted attempt has said."""
        if text and self.is_watched:
            await self.told.show(text)
        await self.goes_on(text)

    async def checked(self, built: Built, text: str) -> None:
        """Show all of an answer that was held back, unless a censor stops it."""
        if self._waits and censoring.stopping(built.context.censors, text) is None:
            await self.told.show(text)
            await self.told.flush()

    async def goes_on(self, text: str) -> None:
        """What comes next, perhaps after a while, stands below *text*, which was shown."""
        await self.told.flush()
        self._before, self._held = text, SEPARATOR if text else ""

    async def show(self, delta: str) -> None:
        self._held += delta
        if delta.strip() or self.told.text != self._before:
            shown, self._held = self._held, ""
            await self.told.show(shown)

    async def restart(self) -> None:
        await self.told.restart()
        if self._before:
            await self.told.show(self._before)
        self._held = SEPARATOR if self._before else ""
