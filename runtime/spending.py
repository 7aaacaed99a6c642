"""Pays for model calls: reserves what a call may take before it is made, settles what it took after it.

One rule: a call is charged its reservation when it begins, which is an upper bound. If its provider reports what it
took, or its whole answer can be counted here, that replaces the reservation. If its provider refused it before any word
of an answer, the reservation is given back. In all other cases it stands: the call was stopped, interrupted,
superseded, it broke off, or its process was killed.

A call is charged to the workspace and, if a person asked for it, to that person. Each call has a name of its own, by
which it is counted once, however often it is settled.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

import structlog

from config.settings import BUNDLED_MODELS, SMOLLM2, Settings
from connectors.message import Scope
from connectors.message import Usage as Tokens
from grounding.blocks import Prompt
from grounding.documents.rerank import RerankUnavailable
from grounding.tokens import Tokens as Counting
from runtime.budget_terms import BudgetExceeded, Cost
from runtime.budgets import Budgets
from runtime.llm import LOCAL_MAX_OUTPUT_TOKENS, Completion, Message, Model, ModelFailed, Transcription
from runtime.prices import Prices
from runtime.store_retry import retry_until_stored
from runtime.usage import Usage

MESSAGE_TOKENS = 4
"""What a provider adds for each message: its role and its ends."""
IMAGE_TOKENS = 1600
"""For one picture: about what Anthropic counts for the largest that it does not shrink, more than OpenAI does."""
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Payer:
    """Who pays for a call: a workspace and, if a person asked for it, that person's budget there."""

    scope: Scope
    user: str = ""


@dataclass(frozen=True, slots=True)
class Reservation:
    """What a call was charged before it was made. ``call`` is its name, ``model`` the one that is asked first."""

    call: str
    model: str
    usage: Tokens


class Spending:
    """Reserves and settles model calls. Raises `connectors.message.StoreUnavailable` throughout."""

    def __init__(
        self, settings: Settings, budgets: Budgets, usage: Usage, model: Model, prices: Prices, counting: Counting
    ) -> None:
        self._max_output_tokens = settings.llm_max_output_tokens
        self._budgets = budgets
        self._usage = usage
        self._model = model
        self._prices = prices
        self._counting = counting

    async def estimate(self, sent: int, *, first: str | None = None, output_tokens: int | None = None) -> Reservation:
        """Estimate what a call that sends about *sent* tokens may take at most, under a new name."""
        model = first or self._model.name
        output = output_tokens or self._max_output_tokens
        if model == SMOLLM2:
            output = min(output, LOCAL_MAX_OUTPUT_TOKENS)
        usd = await self._usd(model, sent, output)
        return Reservation(uuid.uuid4().hex, model, Tokens(sent, 0, output, usd, estimated=True))

    async def reserve(self, payer: Payer, purpose: str, reservation: Reservation) -> None:
        """Charge *reservation*. Repeats until the store has it. Raises `BudgetExceeded`."""
        most = reservation.usage
        cost = Cost(most.prompt + most.completion, most.cost_usd)
        try:
            await retry_until_stored(lambda: self._budgets.reserve(payer.scope, reservation.call, cost, payer.user))
        except BudgetExceeded as error:
            _log_exceeded(error, purpose)
            raise

    async def check(self, payer: Payer, purpose: str) -> None:
        """Check before calls whose cost nobody knows. Raises `BudgetExceeded` if nothing is left."""
        try:
            await self._budgets.check(payer.scope, payer.user)
        except BudgetExceeded as error:
            _log_exceeded(error, purpose)
            raise

    async def settle(self, payer: Payer, call: str, model: str, tokens: Tokens, *, is_reply: bool = False) -> None:
        """Charge *tokens* for *call* in place of its reservation, and count it for *model*. Again does no harm."""
        cost = Cost(tokens.prompt + tokens.completion, tokens.cost_usd)
        await asyncio.gather(
            self._usage.record(payer.scope, call, model, tokens, is_reply=is_reply),
            self._budgets.settle(payer.scope, call, cost, payer.user),
        )

    async def settle_answer(self, payer: Payer, completion: Completion, *, is_reply: bool = False) -> None:
        """Settle the call that brought *completion*. An answer that no call brought costs nothing."""
        if completion.call:
            await self.settle(payer, completion.call, completion.model, completion.usage, is_reply=is_reply)

    async def settle_unknown(self, payer: Payer, reservation: Reservation) -> None:
        """Settle a call whose cost nobody reports: its reservation stands."""
        await self.settle(payer, reservation.call, reservation.model, reservation.usage)

    async def settle_failed(self, payer: Payer, reservation: Reservation, error: ModelFailed) -> None:
        """Settle a call that brought no answer. Its reservation stands if a part of an answer came. Repeats until the
        store has it."""
        if error.shown:
            await retry_until_stored(lambda: self.settle_unknown(payer, reservation))
        else:
            await retry_until_stored(lambda: self._budgets.release(payer.scope, reservation.call, payer.user))

    async def settle_heard(self, payer: Payer, heard: Transcription) -> None:
        """Settle the transcription of a recording."""
        await self.settle(payer, heard.call, heard.model, heard.usage)

    async def ask(
        self,
        scope: Scope,
        purpose: str,
        messages: Sequence[Message],
        *,
        output_tokens: int | None = None,
    ) -> Completion:
        """Ask the model *messages* for nobody in particular, and pay for it. Events call it *purpose*.

        Raises `BudgetExceeded`, `runtime.llm.ModelFailed` and `connectors.message.StoreUnavailable`.
        """
        payer, text = Payer(scope), "\n".join(str(message["content"]) for message in messages)
        sent = await asyncio.to_thread(self._counting.count, text) + MESSAGE_TOKENS * len(messages)
        reservation = await self.estimate(sent, output_tokens=output_tokens)
        await self.reserve(payer, purpose, reservation)
        try:
            answer = await self._model.complete(messages, purpose=purpose, max_output_tokens=output_tokens)
        except ModelFailed as error:
            await self.settle_failed(payer, reservation, error)
            raise
        completion = await self.count_answer(answer, reservation)
        await retry_until_stored(lambda: self.settle_answer(payer, completion))
        return completion

    async def count_answer(self, completion: Completion, reservation: Reservation) -> Completion:
        """Name the call that brought *completion*, and count its tokens here if its provider reported none."""
        completion = replace(completion, call=reservation.call)
        reported, sent = completion.usage, reservation.usage.prompt
        if reported.prompt or reported.completion or not sent:
            return completion
        written = "\n".join([completion.text, *(call.name + call.arguments for call in completion.tool_calls)])
        output = await asyncio.to_thread(self._counting.count, written)
        usd = await self._usd(completion.model, sent, output)
        return replace(completion, usage=Tokens(sent, 0, output, usd, estimated=True))

    async def _usd(self, model: str, prompt: int, completion: int) -> float:
        """Give LiteLLM's price; 0.0 for the local model and for those without one."""
        return 0.0 if model in BUNDLED_MODELS else (await self._prices.of(model)).usd(prompt, completion)


class RerankCosts:
    """Counts reranking for the workspace: no person asked for it."""

    def __init__(self, usage: Usage, budgets: Budgets) -> None:
        self._usage = usage
        self._budgets = budgets

    async def check(self, scope: Scope) -> None:
        """Raises `grounding.documents.rerank.RerankUnavailable` if the budget is used up."""
        try:
            await self._budgets.check(scope)
        except BudgetExceeded as error:
            raise RerankUnavailable(str(error), why="budget", retryable=False) from error

    async def count(self, scope: Scope, model: str, tokens: Tokens) -> None:
        """Count one call. Each call costs, also that of a turn that is taken up again."""
        call = uuid.uuid4().hex
        cost = Cost(tokens.prompt + tokens.completion, tokens.cost_usd)
        await asyncio.gather(
            self._usage.record(scope, call, model, tokens),
            self._budgets.settle(scope, call, cost),
        )


def prompt_tokens(prompt: Prompt, images: int) -> int:
    """Estimate what a provider will count for *prompt*. Pure."""
    system = sum(block.tokens for block in prompt.blocks if block.place.message == "system")
    return system + prompt.tokens_total + MESSAGE_TOKENS * len(prompt.messages) + IMAGE_TOKENS * images


def _log_exceeded(error: BudgetExceeded, purpose: str) -> None:
    term = error.term
    _log.warning(
        "budget.exceeded", scope=term.whose, what=term.what, period=term.period, limit=error.limit, purpose=purpose
    )
