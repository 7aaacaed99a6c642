"""Spends budgets on model calls: holds what a call may take before it is made, counts what it took after it.

What a call took is counted for the workspace and, where a person asked for it, for that person: of several messages
that are answered together, whoever wrote the last. It is counted by the name of the attempt that brought its answer
(`runtime.llm.Tries.name`), so that one of which nobody knows whether its answer was kept is counted once, as an answer
or as lost. The last call of a turn is counted once for its turn; one of another name beside it, which a worker
made that stood still for so long that its turn was taken up.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import structlog

from config.settings import BUNDLED_MODELS, SMOLLM2, Settings
from connectors.message import Scope, Superseded
from connectors.message import Usage as Tokens
from grounding.blocks import Prompt
from grounding.documents.rerank import RerankUnavailable
from grounding.tokens import Tokens as Counting
from runtime.budget_terms import BudgetExceeded, Cost
from runtime.budgets import Budgets
from runtime.envelopes import Batch
from runtime.journal import surely
from runtime.llm import LOCAL_MAX_OUTPUT_TOKENS, Completion, Message, Model, Transcription, Tries
from runtime.prices import Prices
from runtime.usage import REPLY, TRANSCRIPTION, Usage

MESSAGE_TOKENS = 4
"""What a provider adds for each message: its role and its ends."""
IMAGE_TOKENS = 1600
"""For one picture: about what Anthropic counts for the largest that it does not shrink, more than OpenAI does."""
RERANK = "rerank"
"""The purpose of reranking, in the figures of usage."""
Keep = Callable[[str, Tokens], Awaitable[None]]
"""What an attempt took, by its name."""
_log = structlog.get_logger()


class Spending:
    """What model calls may cost and did cost. Raises `connectors.message.StoreUnavailable` throughout."""

    def __init__(
        self, settings: Settings, budgets: Budgets, usage: Usage, model: Model, prices: Prices, counting: Counting
    ) -> None:
        self._max_output_tokens = settings.llm_max_output_tokens
        self._budgets = budgets
        self._usage = usage
        self._model = model
        self._prices = prices
        self._counting = counting

    async def reserve_reply(self, batch: Batch, sent: int, first: str | None) -> None:
        """Hold what the next call for *batch*, of about *sent* tokens, may take, in place of what was held for the one
        before it. Raises `BudgetExceeded`."""
        await self._reserve(batch.key.scope, batch.turn_id, REPLY, sent, first, user_of(batch))

    async def _reserve_background(
        self,
        scope: Scope,
        turn_id: str,
        purpose: str,
        messages: Sequence[Message],
        output_tokens: int | None,
    ) -> int:
        """Hold what asking *messages* may take; how many tokens they are."""
        text = "\n".join(str(message["content"]) for message in messages)
        tokens = await asyncio.to_thread(self._counting.count, text) + MESSAGE_TOKENS * len(messages)
        await self._reserve(scope, turn_id, purpose, tokens, None, "", output_tokens)
        return tokens

    async def check(self, batch: Batch, purpose: str) -> None:
        """Before calls whose cost nobody knows beforehand. Raises `BudgetExceeded` where nothing is left."""
        try:
            await self._budgets.check(batch.key.scope, user_of(batch))
        except BudgetExceeded as error:
            _told(error, purpose)
            raise

    async def _reserve(
        self,
        scope: Scope,
        turn_id: str,
        purpose: str,
        prompt: int,
        first: str | None,
        user: str,
        output_tokens: int | None = None,
    ) -> None:
        model = first or self._model.name
        output = output_tokens or self._max_output_tokens
        if model == SMOLLM2:
            output = min(output, LOCAL_MAX_OUTPUT_TOKENS)
        usd = await self._usd(model, prompt, output)
        try:
            await self._budgets.reserve(scope, _call(turn_id, purpose), Cost(prompt + output, usd), user)
        except BudgetExceeded as error:
            _told(error, purpose)
            raise

    async def release(self, scope: Scope, turn_id: str, purpose: str) -> None:
        """A call came to nothing."""
        await self._budgets.release(scope, _call(turn_id, purpose))

    async def settle(
        self,
        scope: Scope,
        turn_id: str,
        purpose: str,
        model: str,
        tokens: Tokens,
        user: str = "",
        *,
        held_as: str = "",
        call: str = "",
    ) -> bool:
        """Count a call, once per turn and *purpose*, as the provider did; False if it was counted before. What was held
        for it was *held_as* another purpose, where that is given. One whose name, *call*, is another than of what was
        counted is counted beside it."""
        cost = Cost(tokens.prompt + tokens.completion, tokens.cost_usd)
        is_new, _ = await asyncio.gather(
            self._usage.record(scope, turn_id, purpose, model, tokens, call=call),
            self._budgets.settle(
                scope, _call(turn_id, purpose), cost, user, held_as=_call(turn_id, held_as) if held_as else "", by=call
            ),
        )
        return is_new

    async def settle_lost(
        self, scope: Scope, turn_id: str, purpose: str, tries: Tries, user: str = "", keep: Keep | None = None
    ) -> list[Tokens]:
        """Count the attempts of a call that brought no answer, each as a call of its own, and once however often this
        is asked. *keep* is given each by its name as soon as it is counted. What each took.

        Raises `connectors.message.Superseded` where *keep* does, when all are counted."""
        found: list[Tokens] = []
        refused: Superseded | None = None
        while tries.lost:
            name = tries.oldest
            lost = await self.counted(tries.lost[0], tries.sent)
            told = lost.usage
            if await self.settle(scope, turn_id, f"{purpose}.{name}", lost.model, told, user):
                _log.info(
                    "model.paid_in_vain",
                    model=lost.model,
                    purpose=purpose,
                    tokens_prompt=told.prompt,
                    tokens_completion=told.completion,
                    cost_usd=told.cost_usd,
                    **({"tokens_estimated": True} if told.estimated else {}),
                )
            if keep is not None:
                try:
                    await keep(name, told)
                except Superseded as error:
                    refused = error  # by what it is counted nobody has to hold the turn
            found.append(told)
            tries.was_counted()
        if refused is not None:
            raise refused
        return found

    async def ask(
        self,
        scope: Scope,
        turn_id: str,
        purpose: str,
        messages: Sequence[Message],
        *,
        told_as: str = "",
        output_tokens: int | None = None,
    ) -> Completion:
        """The model's answer to *messages*, which no person asked for, paid for with all its attempts. Events call it
        *told_as*, or as its *purpose*.

        Raises `BudgetExceeded`, `runtime.llm.ModelFailed` and `connectors.message.StoreUnavailable`.
        """
        tries = Tries(await self._reserve_background(scope, turn_id, purpose, messages, output_tokens))
        is_settled = False
        try:
            completion = await self._model.complete(
                messages, purpose=told_as or purpose, max_output_tokens=output_tokens, tries=tries
            )
            done = await self.counted(completion, tries.sent)
            one = f"{purpose}.{done.call}"
            await surely(lambda: self.settle(scope, turn_id, one, done.model, done.usage, held_as=purpose))
            is_settled = True
            return done
        finally:
            if not is_settled:
                tries.cut_off()
                await self.release(scope, turn_id, purpose)
            await surely(lambda: self.settle_lost(scope, turn_id, purpose, tries))

    async def counted(self, completion: Completion, sent: int) -> Completion:
        """*completion* to a prompt of about *sent* tokens with our own count of both, marked as such, where its
        provider told none: its stream never ended, or it counts nothing."""
        told = completion.usage
        if told.prompt or told.completion or not sent:
            return completion
        written = "\n".join([completion.text, *(call.name + call.arguments for call in completion.tool_calls)])
        said = await asyncio.to_thread(self._counting.count, written)
        usd = await self._usd(completion.model, sent, said)
        return replace(completion, usage=Tokens(sent, 0, said, usd, estimated=True))

    async def settle_heard(self, batch: Batch, heard: Transcription) -> None:
        """Count the writing down of a recording of *batch*, once for each request that it took."""
        purpose = f"{TRANSCRIPTION}.{heard.call}"
        await self.settle(batch.key.scope, batch.turn_id, purpose, heard.model, heard.usage, user_of(batch))

    async def settle_reply(self, batch: Batch, completion: Completion, sent: int) -> None:
        """Count the call that answered *batch*. Of one that was stopped the provider says nothing: it is `counted`
        here. A stop between two calls (no attempt) costs nothing."""
        if completion.attempts:
            await self._settle_call(batch, REPLY, completion, sent, completion.call)
        else:
            await self.release(batch.key.scope, batch.turn_id, REPLY)

    async def answered_by(self, batch: Batch) -> str:
        """The name of the call that was counted as the one that answered *batch*; empty where none was."""
        return await self._usage.counted_by(batch.key.scope, batch.turn_id, REPLY)

    async def settle_round(self, batch: Batch, number: int, completion: Completion, sent: int) -> None:
        """Count the call of round *number* (from 0) that wanted tools. Of one that an earlier release has kept the
        attempt has no name: it is counted by its round."""
        name = completion.call or f"round.{len(batch.envelopes)}.{number}"
        await self._settle_call(batch, f"{REPLY}.{name}", completion, sent)

    async def _settle_call(self, batch: Batch, purpose: str, completion: Completion, sent: int, call: str = "") -> None:
        counted = await self.counted(completion, sent)
        scope, user = batch.key.scope, user_of(batch)
        await self.settle(scope, batch.turn_id, purpose, counted.model, counted.usage, user, call=call)

    async def _usd(self, model: str, prompt: int, completion: int) -> float:
        """By LiteLLM's price; 0.0 for the local model and those it has no price for."""
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
            self._usage.record(scope, call, RERANK, model, tokens),
            self._budgets.settle(scope, f"{call}/{RERANK}", cost),
        )


def prompt_tokens(prompt: Prompt, images: int) -> int:
    """Our estimate of what a provider will count for *prompt*. Pure."""
    system = sum(block.tokens for block in prompt.blocks if block.place.message == "system")
    return system + prompt.tokens_total + MESSAGE_TOKENS * len(prompt.messages) + IMAGE_TOKENS * images


def user_of(batch: Batch) -> str:
    """Whose budget a turn is paid from."""
    message = batch.envelopes[-1].message
    return message.author.user(message.connector)


def held_seconds(settings: Settings, models: int) -> float:
    """As long as a call may take, with all its attempts and fallbacks, and some more: then it died."""
    return settings.llm_timeout_seconds * settings.llm_max_attempts * models + 60.0


def _call(turn_id: str, purpose: str) -> str:
    return f"{turn_id}/{purpose}"


def _told(error: BudgetExceeded, purpose: str) -> None:
    term = error.term
    _log.warning(
        "budget.exceeded", scope=term.whose, what=term.what, period=term.period, limit=error.limit, purpose=purpose
    )
