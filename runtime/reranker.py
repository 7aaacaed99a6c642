"""Reranking by any model that LiteLLM knows, behind `grounding.documents.rerank.Reranker`."""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Sequence
from typing import Any, Protocol

import structlog

from config.settings import Settings
from connectors.message import Scope, StoreUnavailable
from connectors.message import Usage as Tokens
from grounding.documents.rerank import RerankUnavailable
from runtime.budget_terms import BudgetExceeded, Cost
from runtime.budgets import Budgets
from runtime.loading import loaded_litellm
from runtime.model_errors import judge
from runtime.usage import Usage

IMPORT_SECONDS = 20.0
"""What the first call of a process may wait for LiteLLM's import; the turn's answer waits for it as well."""
_log = structlog.get_logger()


class CountsCalls(Protocol):
    """Where calls are paid from."""

    async def check(self, scope: Scope) -> None:
        """Raises `BudgetExceeded` where nothing is left, and `StoreUnavailable`."""

    async def count(self, scope: Scope, model: str, tokens: Tokens) -> None:
        """Count one call. Raises `StoreUnavailable`."""


class RerankCosts:
    """Counts reranking for the workspace: no person asked for it."""

    def __init__(self, usage: Usage, budgets: Budgets) -> None:
        self._usage = usage
        self._budgets = budgets

    async def check(self, scope: Scope) -> None:
        await self._budgets.check(scope)

    async def count(self, scope: Scope, model: str, tokens: Tokens) -> None:
        call = uuid.uuid4().hex
        cost = Cost(tokens.prompt + tokens.completion, tokens.cost_usd)
        await asyncio.gather(
            self._usage.record(scope, call, model, tokens),
            self._budgets.settle(scope, call, cost),
        )


class LiteLLMReranker:
    """The model that ``RERANK_MODEL`` names, which must be set. Without *costs* nothing is counted."""

    def __init__(self, settings: Settings, costs: CountsCalls | None = None) -> None:
        assert settings.rerank_model is not None, "RERANK_MODEL is not set"
        self._settings = settings
        self._model = settings.rerank_model
        self._costs = costs

    @property
    def name(self) -> str:
        return self._model

    @property
    def candidates(self) -> int:
        return self._settings.rerank_candidates

    async def scores(self, scope: Scope, query: str, texts: Sequence[str]) -> list[float]:
        """See `grounding.documents.rerank.Reranker`. A budget that is used up is ``budget``."""
        if self._costs is not None:
            try:
                await self._costs.check(scope)
            except BudgetExceeded as error:
                raise RerankUnavailable(str(error), why="budget", retryable=False) from error
            except StoreUnavailable as error:
                raise RerankUnavailable(str(error), why="store_unavailable", retryable=True) from error
        response = await self._call(query, texts)
        await self._count(scope, response)
        scores = _scores(response, len(texts))
        if scores is None:
            said = f"{self._model} did not answer one score for each of {len(texts)} passages"
            raise RerankUnavailable(said, why="bad_response", retryable=True)
        return scores

    async def _call(self, query: str, texts: Sequence[str]) -> Any:
        seconds = self._settings.rerank_timeout_seconds
        request: dict[str, Any] = {
            "model": self._model,
            "query": query,
            # An empty passage is an error for some providers, and a space is not.
            "documents": [text or " " for text in texts],
            "top_n": len(texts),
            "return_documents": False,
            "timeout": seconds,
            "max_retries": 0,
        }
        try:
            litellm = await loaded_litellm()
            async with asyncio.timeout(seconds):
                return await litellm.arerank(**request, **_credentials(self._settings))
        except Exception as error:  # noqa: BLE001 - LiteLLM's adapters let all kinds through; each gets its verdict
            verdict = judge(error)
            why = f"{self._model}: {verdict.why} ({type(error).__name__})"
            # "from None": the provider's words may quote the question, and tracebacks are logged.
            raise RerankUnavailable(why, why=verdict.why, retryable=verdict.retry) from None

    async def _count(self, scope: Scope, response: Any) -> None:
        if self._costs is None:
            return
        try:
            await self._costs.count(scope, self._model, _tokens(response))
        except StoreUnavailable as error:
            _log.warning("rerank.uncounted", workspace_id=scope.workspace_id, model=self._model, why=str(error))


def _credentials(settings: Settings) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if settings.rerank_api_base is not None:
        options["api_base"] = settings.rerank_api_base
    if settings.rerank_api_key is not None:
        options["api_key"] = settings.rerank_api_key.get_secret_value()
    return options


def _scores(response: Any, count: int) -> list[float] | None:
    """The scores in the order of the texts; None where one is missing or no number."""
    found = {int(one["index"]): float(one["relevance_score"]) for one in response.results or ()}
    if set(found) != set(range(count)) or not all(map(math.isfinite, found.values())):
        return None
    return [found[at] for at in range(count)]


def _tokens(response: Any) -> Tokens:
    """What the provider counted, and LiteLLM's price for it; zeros where they do not say."""
    meta = response.meta or {}
    read = (meta.get("tokens") or {}).get("input_tokens") or (meta.get("billed_units") or {}).get("total_tokens")
    cost = response.hidden_params.get("response_cost")
    return Tokens(prompt=int(read or 0), cost_usd=float(cost or 0.0))
