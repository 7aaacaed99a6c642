"""Both answers of a comparison: what a model says to the prompt before, and what it says to the prompt after.

All calls are reserved before the first is made, so that the budget holds the whole cost. No tools are called. Answers
are stored nowhere, sent to nobody, and nothing is remembered of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from connectors.message import Usage
from grounding.pipeline import first_error
from grounding.prompt_input import Prompt
from runtime.billing import Payer, Reservation, Spending, prompt_tokens
from runtime.llm import Model, ModelFailed
from runtime.preview.comparison import PromptComparison
from runtime.preview.replay import Progress, no_progress

PURPOSE = "preview"
CALLS_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """Two prompts and the *model* that answers both, by its name in the settings; another name means the first
    model."""

    comparison: PromptComparison
    model: str = ""


@dataclass(frozen=True, slots=True)
class AnswerEstimate:
    """The most that answers may take. ``usd`` is None if the price of a model is not known."""

    calls: int
    tokens: int
    usd: float | None
    models: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PreviewAnswer:
    """A model's answer. ``problem`` says why there is none."""

    text: str
    model: str
    usage: Usage
    problem: str = ""

    def row(self) -> dict[str, Any]:
        """Return the answer as JSON values, for people's interfaces."""
        usage = self.usage
        return {
            "text": self.text,
            "model": self.model,
            "usage": {
                "prompt": usage.prompt,
                "cached": usage.cached,
                "completion": usage.completion,
                "cost_usd": usage.cost_usd,
            },
            "problem": self.problem,
        }


@dataclass(frozen=True, slots=True)
class AnswerPair:
    """The answers to both prompts; the same one if the prompts are the same."""

    before: PreviewAnswer
    after: PreviewAnswer


class PreviewAnswers:
    """Asks models for both answers. Every method raises `connectors.message.StoreUnavailable`."""

    def __init__(self, model: Model, spending: Spending) -> None:
        self._model = model
        self._spending = spending

    async def estimate(self, requests: Sequence[AnswerRequest]) -> AnswerEstimate:
        """Return the most that the answers to *requests* may take. Nothing is charged."""
        calls = await self._calls(requests)
        reservations = [reservation for _, reservation in calls]
        models = tuple(dict.fromkeys(reservation.model for reservation in reservations))
        is_priced = all([await self._spending.price(model) is not None for model in models])
        return AnswerEstimate(
            len(calls),
            sum(one.usage.prompt + one.usage.completion for one in reservations),
            sum(one.usage.cost_usd for one in reservations) if is_priced else None,
            models,
        )

    async def answer(
        self, payer: Payer, requests: Sequence[AnswerRequest], progress: Progress = no_progress
    ) -> list[AnswerPair]:
        """Return both answers to each of *requests*. A model that fails is named in its answer's ``problem``.

        Raises `runtime.billing.BudgetExceeded` before any call if the budget has no room for all of them. If it is
        cancelled, calls that were not begun cost nothing, and the reservations of those that run stand.
        """
        calls = await self._calls(requests)
        waiting = {reservation.call: reservation for _, reservation in calls}
        await self._spending.reserve_all(payer, PURPOSE, list(waiting.values()))
        places, answers = asyncio.Semaphore(CALLS_AT_ONCE), dict[str, PreviewAnswer]()

        async def ask(prompt: Prompt, reservation: Reservation) -> None:
            async with places:
                del waiting[reservation.call]
                answers[reservation.call] = await self._ask(payer, prompt, reservation)
                progress(len(answers), len(calls))

        progress(0, len(calls))
        try:
            async with asyncio.TaskGroup() as asking:
                for prompt, reservation in calls:
                    asking.create_task(ask(prompt, reservation))
        except BaseExceptionGroup as several:
            raise first_error(several) from several
        finally:
            await self._spending.release(payer, list(waiting.values()))
        in_order = iter([answers[reservation.call] for _, reservation in calls])
        pairs: list[AnswerPair] = []
        for request in requests:
            before = next(in_order)
            pairs.append(AnswerPair(before, before if request.comparison.is_same else next(in_order)))
        return pairs

    async def _calls(self, requests: Sequence[AnswerRequest]) -> list[tuple[Prompt, Reservation]]:
        """Return the prompts to send, each with the most that its answer may take."""
        names = self._model.names
        calls = [
            (prompt, request.model if request.model in names else self._model.name)
            for request in requests
            for prompt in (request.comparison.before, request.comparison.after)[
                : 1 if request.comparison.is_same else 2
            ]
        ]
        return [
            (prompt, await self._spending.estimate(prompt_tokens(prompt, 0), first=model)) for prompt, model in calls
        ]

    async def _ask(self, payer: Payer, prompt: Prompt, reservation: Reservation) -> PreviewAnswer:
        try:
            completion = await self._spending.ask_reserved(payer, PURPOSE, reservation, prompt.messages)
        except ModelFailed as error:
            return PreviewAnswer("", reservation.model, Usage(), str(error))
        return PreviewAnswer(completion.text, completion.model, completion.usage)
