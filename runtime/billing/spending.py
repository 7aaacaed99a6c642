"""Pays for model calls: reserves the most that a call may cost, then settles its real cost.

A caller goes through `Spending.estimate`, `Spending.reserve`, the call itself, `Spending.count_answer` and one of the
``settle`` methods; `Spending.ask` does all of it for a call outside of a turn, and `Spending.ask_reserved` all but the
first two, for calls that are reserved together. The reservation of a call

- is replaced by its cost if the provider reports that, or if the whole answer can be counted here;
- is given back if the provider refused the call before any word of an answer;
- stands in all other cases: the call was stopped, interrupted, superseded, it broke off, or its process was killed.

A call is charged to the workspace and, if a person asked for it, to that person. It is counted once by its name,
however often it is settled.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from config.settings import BUNDLED_MODELS, SMOLLM2, Settings
from connectors.message import Scope, Usage
from connectors.redis_calls import RoundTrip
from grounding.prompt_input import Prompt, Tokens
from grounding.retrieval import RerankUnavailable
from runtime.billing.budgets import BudgetExceeded, Budgets, Cost
from runtime.billing.usage import UsageCounters
from runtime.llm import (
    LOCAL_MAX_OUTPUT_TOKENS,
    Completion,
    Message,
    Model,
    ModelFailed,
    Transcription,
    load_litellm,
)
from runtime.stores import retry_until_stored

if TYPE_CHECKING:
    from redis.asyncio import Redis

MESSAGE_TOKENS = 4
"""Tokens that a provider adds for each message: its role and its delimiters."""
IMAGE_TOKENS = 1600
"""Tokens of one picture: about what Anthropic counts for the largest that it does not shrink, and more than OpenAI."""
_COSTS = ("input_cost_per_token", "output_cost_per_token", "cache_read_input_token_cost")
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Payer:
    """Who pays for a call: a workspace and, if a person asked for it, that person's budget there."""

    scope: Scope
    user: str = ""


@dataclass(frozen=True, slots=True)
class Reservation:
    """The charge for a call that is not made yet. ``call`` is its name, ``model`` the one that is asked first."""

    call: str
    model: str
    usage: Usage


class Spending:
    """Reserves and settles model calls. Every method raises `connectors.message.StoreUnavailable`."""

    def __init__(
        self, settings: Settings, redis: Redis, budgets: Budgets, usage: UsageCounters, model: Model, tokens: Tokens
    ) -> None:
        self._redis = redis
        self._max_output_tokens = settings.llm_max_output_tokens
        self._budgets = budgets
        self._usage = usage
        self._model = model
        self._tokens = tokens
        self._prices: dict[str, Price | None] = {}

    async def estimate(self, sent: int, *, first: str | None = None, output_tokens: int | None = None) -> Reservation:
        """Return the most that a call with about *sent* tokens to the model *first* may take, under a new name."""
        model = first or self._model.name
        output = output_tokens or self._max_output_tokens
        if model == SMOLLM2:
            output = min(output, LOCAL_MAX_OUTPUT_TOKENS)
        usd = await self._usd(model, sent, output)
        return Reservation(uuid.uuid4().hex, model, Usage(sent, 0, output, usd, estimated=True))

    async def reserve(self, payer: Payer, purpose: str, reservation: Reservation) -> None:
        """Charge *reservation*. Repeats until it is stored. Raises `BudgetExceeded`."""
        cost = Cost.of(reservation.usage)
        try:
            await retry_until_stored(lambda: self._budgets.reserve(payer.scope, reservation.call, cost, payer.user))
        except BudgetExceeded as error:
            _log_exceeded(error, purpose)
            raise

    async def reserve_all(self, payer: Payer, purpose: str, reservations: Sequence[Reservation]) -> None:
        """Charge all of *reservations*, or none of them. Raises `BudgetExceeded`."""
        try:
            for reservation in reservations:
                await self.reserve(payer, purpose, reservation)
        except BaseException:
            await self.release(payer, reservations)
            raise

    async def release(self, payer: Payer, reservations: Iterable[Reservation]) -> None:
        """Give back the charges for calls that were not made. Repeats until that is stored."""
        for reservation in reservations:
            await retry_until_stored(partial(self._budgets.release, payer.scope, reservation.call, payer.user))

    async def check(self, payer: Payer, purpose: str) -> None:
        """Raise `BudgetExceeded` if nothing is left. For calls whose cost cannot be estimated."""
        try:
            await self._budgets.check(payer.scope, payer.user)
        except BudgetExceeded as error:
            _log_exceeded(error, purpose)
            raise

    async def count_answer(self, completion: Completion, reservation: Reservation) -> Completion:
        """Name the call of *completion*, and count its tokens here if its provider reported none."""
        completion = replace(completion, call=reservation.call)
        reported, sent = completion.usage, reservation.usage.prompt
        if reported.prompt or reported.completion or not sent:
            return completion
        written = "\n".join([completion.text, *(call.name + call.arguments for call in completion.tool_calls)])
        output = await asyncio.to_thread(self._tokens.count, written)
        usd = await self._usd(completion.model, sent, output)
        return replace(completion, usage=Usage(sent, 0, output, usd, estimated=True))

    async def settle(self, payer: Payer, call: str, model: str, usage: Usage) -> None:
        """Charge *usage* for *call* in place of its reservation, and count it for *model*. Repeating is harmless."""
        trip = RoundTrip(self._redis)
        self._add_settling(trip, payer, call, model, usage)
        await trip.send()
        trip.check()

    async def settle_answer(self, payer: Payer, completion: Completion) -> None:
        """Settle the call that brought *completion*. An answer that came without a call costs nothing."""
        if completion.call:
            await self.settle(payer, completion.call, completion.model, completion.usage)

    def add_settling(self, trip: RoundTrip, payer: Payer, completion: Completion, *, is_reply: bool = False) -> None:
        """Add to *trip* what `settle_answer` stores. *is_reply*: it answered a turn."""
        if completion.call:
            self._add_settling(trip, payer, completion.call, completion.model, completion.usage, is_reply=is_reply)

    def _add_settling(
        self, trip: RoundTrip, payer: Payer, call: str, model: str, usage: Usage, *, is_reply: bool = False
    ) -> None:
        trip.add(self._usage.record_call(payer.scope, call, model, usage, is_reply=is_reply))
        trip.add(self._budgets.settle_call(payer.scope, call, Cost.of(usage), payer.user))

    async def settle_unknown(self, payer: Payer, reservation: Reservation) -> None:
        """Settle a call whose cost nobody reports: its reservation stands."""
        await self.settle(payer, reservation.call, reservation.model, reservation.usage)

    async def settle_failed(self, payer: Payer, reservation: Reservation, error: ModelFailed) -> None:
        """Settle a call that failed. Its reservation stands if a part of an answer came. Repeats until it is stored."""
        if error.shown:
            await retry_until_stored(lambda: self.settle_unknown(payer, reservation))
        else:
            await self.release(payer, [reservation])

    async def settle_transcription(self, payer: Payer, heard: Transcription) -> None:
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
        """Ask the model *messages*, and let the workspace pay. *purpose* names the call in events.

        Raises `BudgetExceeded`, `runtime.llm.ModelFailed` and `connectors.message.StoreUnavailable`.
        """
        payer, text = Payer(scope), "\n".join(str(message["content"]) for message in messages)
        sent = await asyncio.to_thread(self._tokens.count, text) + MESSAGE_TOKENS * len(messages)
        reservation = await self.estimate(sent, output_tokens=output_tokens)
        await self.reserve(payer, purpose, reservation)
        return await self.ask_reserved(payer, purpose, reservation, messages, output_tokens=output_tokens)

    async def ask_reserved(
        self,
        payer: Payer,
        purpose: str,
        reservation: Reservation,
        messages: Sequence[Message],
        *,
        output_tokens: int | None = None,
    ) -> Completion:
        """Ask the model of *reservation*, which is charged already, and settle the call. Raises
        `runtime.llm.ModelFailed`. If the call is cancelled, its reservation stands."""
        try:
            answer = await self._model.complete(
                messages, purpose=purpose, max_output_tokens=output_tokens, first=reservation.model
            )
        except ModelFailed as error:
            await self.settle_failed(payer, reservation, error)
            raise
        completion = await self.count_answer(answer, reservation)
        await retry_until_stored(lambda: self.settle_answer(payer, completion))
        return completion

    async def price(self, model: str) -> Price | None:
        """Return the price of *model* by LiteLLM's list; None if it is not listed. A bundled model costs nothing."""
        if model in BUNDLED_MODELS:
            return Price()
        if model not in self._prices:  # for some models LiteLLM asks their server, so each is looked up once
            self._prices[model] = await asyncio.to_thread(_list_price, await load_litellm(), model)
        return self._prices[model]

    async def _usd(self, model: str, prompt: int, completion: int) -> float:
        """Return the price of a call; 0.0 if it is not known."""
        price = await self.price(model)
        return prompt * price.prompt + completion * price.completion if price else 0.0


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars for one token. ``cached`` is for one that the provider reads from its cache."""

    prompt: float = 0.0
    completion: float = 0.0
    cached: float = 0.0


def _list_price(litellm: Any, model: str) -> Price | None:
    try:
        listed = litellm.get_model_info(model)
    except Exception:  # noqa: BLE001 - it raises a bare Exception for every model that it does not know
        return None
    prompt, completion, cached = (listed.get(name) for name in _COSTS)
    if prompt is None:
        return None
    return Price(float(prompt), float(completion or 0.0), float(prompt if cached is None else cached))


def prompt_tokens(prompt: Prompt, images: int) -> int:
    """Estimate how many tokens a provider will count for *prompt* and that many *images*. Pure."""
    system = sum(block.tokens for block in prompt.blocks if block.place.message == "system")
    return system + prompt.tokens_total + MESSAGE_TOKENS * len(prompt.messages) + IMAGE_TOKENS * images


def _log_exceeded(error: BudgetExceeded, purpose: str) -> None:
    term = error.term
    _log.warning(
        "budget.exceeded", scope=term.whose, what=term.what, period=term.period, limit=error.limit, purpose=purpose
    )


class RerankCosts:
    """Charges reranking to the workspace: no person asked for it."""

    def __init__(self, spending: Spending) -> None:
        self._spending = spending

    async def check(self, scope: Scope) -> None:
        """Raise `grounding.retrieval.RerankUnavailable` if the budget is used up."""
        try:
            await self._spending.check(Payer(scope), "rerank")
        except BudgetExceeded as error:
            raise RerankUnavailable(str(error), why="budget", retryable=False) from error

    async def count(self, scope: Scope, model: str, tokens: Usage) -> None:
        """Charge one call. Each costs, also if its turn is resumed and reranks again."""
        await self._spending.settle(Payer(scope), uuid.uuid4().hex, model, tokens)
