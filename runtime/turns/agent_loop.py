"""Asks the model for one answer: a call, the tools that it wants, the next call, until it answers.

Every round is reserved, saved and settled by itself; the last call may want no tools.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

from config.settings import Settings
from connectors.message import Usage
from grounding.prompt import ContextTooLarge, build_prompt, rounds_room
from grounding.prompt_input import SEPARATOR, Tokens
from runtime.attachments import AttachmentContents
from runtime.billing import REPLY, BudgetExceeded, Spending, prompt_tokens
from runtime.delivery import ProgressReporter
from runtime.llm import Completion, Message, Model, ModelFailed, ModelUnavailable, StablePrefix, with_images
from runtime.stores import retry_until_stored
from runtime.turns import censors
from runtime.turns.checkpoint import Checkpoints
from runtime.turns.rounds import Round, merge_completions, text_of_rounds, with_rounds
from runtime.turns.tools import NO_TOOLS, OfferedTools, ToolContext, Tooling
from runtime.turns.turn_state import BuiltPrompt, Question, TurnState

LEAST_ROOM_TOKENS = 64
"""If a window has less room for tool results, the model must answer without more of them."""


class AgentLoop:
    """Asks the model and runs its tools until it answers. Keeps nothing between answers."""

    def __init__(
        self,
        settings: Settings,
        *,
        model: Model,
        tooling: Tooling,
        checkpoints: Checkpoints,
        spending: Spending,
        tokens: Tokens,
    ) -> None:
        self._max_rounds = settings.tool_max_rounds
        self._model = model
        self._tooling = tooling
        self._checkpoints = checkpoints
        self._spending = spending
        self._tokens = tokens

    async def run(
        self,
        state: TurnState,
        built: BuiltPrompt,
        question: Question,
        contents: AttachmentContents,
        progress: ProgressReporter,
    ) -> None:
        """Bring *state* from its prompt, or from the round that an interrupted attempt came to, to its completion.

        Raises `ModelFailed`, `runtime.billing.BudgetExceeded`, `connectors.message.Superseded` and
        `connectors.message.StoreUnavailable`.
        """
        offer = self._tooling.offered(built.context.tools, question)
        stream = _AnswerStream(progress, holds_back=censors.needs_check(built.context))
        await stream.show_again(text_of_rounds(state.rounds))
        if state.rounds and not state.rounds[-1].is_over:
            await self._run_tools(state, built, question, offer)
        while True:
            number = len(state.rounds)
            warned = number > 0 and bool(state.rounds[-1].completion.warned)
            is_last = number > 0 and (
                warned or number >= self._max_rounds or not offer.tools or self._room(state, built) < LEAST_ROOM_TOKENS
            )
            try:
                completion = await self._ask(state, built, contents, NO_TOOLS if is_last else offer, stream)
                if completion.tool_calls and (is_last or (completion.text.strip() and not offer.tools)):
                    completion = await self._without_calls(state, question, completion)
            except (ModelFailed, BudgetExceeded):
                if not warned:
                    raise
                completion = self._accept_draft(state)
            if not completion.tool_calls and await self._put_back(state, built, completion):
                continue
            if not completion.tool_calls:
                state.completion = completion
                await stream.show_checked(built, merge_completions(state.rounds, completion).text)
                return
            await self._save_round(state, completion)
            await stream.begin_round(text_of_rounds(state.rounds))
            await self._run_tools(state, built, question, offer)

    async def _ask(
        self,
        state: TurnState,
        built: BuiltPrompt,
        contents: AttachmentContents,
        offer: OfferedTools,
        stream: _AnswerStream,
    ) -> Completion:
        """Make the next call. Raises `ModelFailed` and `runtime.billing.BudgetExceeded`."""
        sent = prompt_tokens(built.prompt, len(contents.images)) + built.context.budgets.tools_tokens
        state.pending = reservation = await self._spending.estimate(sent + self._taken(state), first=state.first)
        try:
            await self._spending.reserve(state.payer, REPLY, reservation)
        except BudgetExceeded:
            state.pending = None
            raise
        narrow = _NarrowPrompt(state, built, contents, self._tokens)
        try:
            completion = await self._model.complete(
                with_rounds(with_images(built.prompt.messages, contents.images), state.rounds),
                on_delta=stream.show if stream.is_watched else None,
                on_restart=stream.restart if stream.is_watched and stream.progress.can_restart else None,
                tools=offer.schemas,
                first=state.first,
                stable_prefix=StablePrefix.of(built.prompt, state.batch.key),
                fit_prompt=narrow.fitted,
            )
        except ModelFailed as error:
            await self._spending.settle_failed(state.payer, reservation, error)
            state.pending = None
            raise
        if narrow.built is not None and not state.rounds:
            state.built = narrow.built
        return await self._spending.count_answer(completion, reservation)

    async def _put_back(self, state: TurnState, built: BuiltPrompt, completion: Completion) -> bool:
        """Put an answer that sets off warnings back to the model, once, if there is room for it; whether that was
        done."""
        objection = censors.objection(built.context.censors, merge_completions(state.rounds, completion).text)
        if not objection or any(one.completion.warned for one in state.rounds):
            return False
        draft = replace(completion, warned=objection)
        if self._room(state, built) < Round(draft).count(self._tokens) + LEAST_ROOM_TOKENS:
            return False
        await self._save_round(state, draft)
        return True

    async def _save_round(self, state: TurnState, completion: Completion) -> None:
        """Save *completion*, after which the model is asked again, and settle it. Raises
        `connectors.message.Superseded`."""
        batch, number = state.batch, len(state.rounds)
        state.has_checkpoint = True
        await retry_until_stored(lambda: self._checkpoints.save_answer(batch, number, completion))
        state.pending = None  # from now on the checkpoint says what the call took
        state.rounds.append(Round(completion))
        await retry_until_stored(lambda: self._spending.settle_answer(state.payer, completion))

    def _accept_draft(self, state: TurnState) -> Completion:
        """Take the draft as the answer after all, with what was said before it, if no other can be had: its call is
        paid for."""
        *before, draft = state.rounds
        whole = merge_completions(before, draft.completion)
        return replace(whole, warned="", usage=Usage(), first_token_ms=None, latency_ms=0, attempts=0, call="")

    async def _without_calls(self, state: TurnState, question: Question, completion: Completion) -> Completion:
        """Take *completion* as the answer without its calls. Raises `ModelFailed` if it says nothing besides."""
        self._tooling.refuse(question, completion.tool_calls)
        if completion.text.strip():
            return replace(completion, tool_calls=())
        await retry_until_stored(lambda: self._spending.settle_answer(state.payer, completion))
        state.pending = None
        raise ModelUnavailable(f"{completion.model}: wants tools and says nothing", why="empty", model=completion.model)

    async def _run_tools(self, state: TurnState, built: BuiltPrompt, question: Question, offer: OfferedTools) -> None:
        """Run those calls of the last round that have no result yet."""
        number = len(state.rounds) - 1
        this = state.rounds[number]
        known = {place: result for (of, place), result in state.known.items() if of == number}
        started = time.perf_counter()
        turn = ToolContext(state.batch, question, built.context, tuple(state.rounds[:number]))
        results = await self._tooling.run(turn, offer, this.completion.tool_calls, self._room(state, built), known)
        state.rounds[number] = replace(this, results=results, tools_ms=round((time.perf_counter() - started) * 1000))

    def _room(self, state: TurnState, built: BuiltPrompt) -> int:
        """Return the tokens that the window has left for rounds before the answer."""
        return max(0, rounds_room(built.context, built.prompt) - self._taken(state))

    def _taken(self, state: TurnState) -> int:
        return sum(one.count(self._tokens) for one in state.rounds)


class _NarrowPrompt:
    """Fits the prompt of *built* to fallback models with smaller windows. ``built`` is the last fitted prompt: if a
    fallback answered, it had that one."""

    def __init__(self, state: TurnState, built: BuiltPrompt, contents: AttachmentContents, tokens: Tokens) -> None:
        self.built: BuiltPrompt | None = None
        self._state = state
        self._whole = built
        self._contents = contents
        self._tokens = tokens

    async def fitted(self, window: int) -> tuple[Sequence[Message], StablePrefix] | None:
        """Return the messages for a *window*; see `runtime.llm.messages.FitPrompt`. It runs in a thread, because
        all blocks are cut and counted again."""
        built = self.built = await asyncio.to_thread(self._for, window)
        if built is None:
            return None
        messages = with_rounds(with_images(built.prompt.messages, self._contents.images), self._state.rounds)
        return messages, StablePrefix.of(built.prompt, self._state.batch.key)

    def _for(self, window: int) -> BuiltPrompt | None:
        whole = self._whole
        if window >= whole.context.budgets.window_tokens:
            return whole
        budgets = whole.context.budgets.model_copy(update={"window_tokens": window})
        context = whole.context.model_copy(update={"budgets": budgets})
        try:
            prompt = build_prompt(context, self._tokens)
        except ContextTooLarge:
            return None
        taken = sum(one.count(self._tokens) for one in self._state.rounds)
        return replace(whole, context=context, prompt=prompt) if rounds_room(context, prompt) >= taken else None


class _AnswerStream:
    """Shows the texts of an answer's rounds below each other while they come. If it *holds_back*, it shows the whole
    answer after the censors' check."""

    def __init__(self, progress: ProgressReporter, *, holds_back: bool = False) -> None:
        self.progress = progress
        self.is_watched = progress.is_watched and not holds_back
        self._waits = progress.is_watched and holds_back
        self._before = ""
        self._held = ""
        """The separator that is still to be shown before the first words of a round. A round without words shows
        nothing."""

    async def show_again(self, text: str) -> None:
        """Show *text*, which an interrupted attempt has shown before."""
        if text and self.is_watched:
            await self.progress.show(text)
        await self.begin_round(text)

    async def show_checked(self, built: BuiltPrompt, text: str) -> None:
        """Show all of an answer that was held back, unless a censor stops it."""
        if self._waits and censors.blocking_censor(built.context.censors, text) is None:
            await self.progress.show(text)
            await self.progress.flush()

    async def begin_round(self, text: str) -> None:
        """Begin a round whose text comes below *text*, which is shown already."""
        await self.progress.flush()
        self._before, self._held = text, SEPARATOR if text else ""

    async def show(self, delta: str) -> None:
        self._held += delta
        if delta.strip() or self.progress.text != self._before:
            shown, self._held = self._held, ""
            await self.progress.show(shown)

    async def restart(self) -> None:
        await self.progress.restart()
        if self._before:
            await self.progress.show(self._before)
        self._held = SEPARATOR if self._before else ""
