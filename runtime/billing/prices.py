"""What a model's tokens cost, by LiteLLM's price list."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from runtime.llm import load_litellm


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars for one token; 0.0 where LiteLLM knows no price."""

    prompt: float = 0.0
    completion: float = 0.0

    def usd(self, prompt: int, completion: int) -> float:
        """What so many tokens cost."""
        return prompt * self.prompt + completion * self.completion


class Prices:
    """The prices of models, each looked up once."""

    def __init__(self) -> None:
        self._known: dict[str, Price] = {}

    async def of(self, model: str) -> Price:
        """The price of *model*. The first time it may wait for LiteLLM's import."""
        if model not in self._known:
            self._known[model] = await asyncio.to_thread(_listed, await load_litellm(), model)
        return self._known[model]


def _listed(litellm: Any, model: str) -> Price:
    try:
        listed = litellm.get_model_info(model)
    except Exception:  # noqa: BLE001 - it raises a bare Exception for every model it does not know
        return Price()
    return Price(float(listed.get("input_cost_per_token") or 0.0), float(listed.get("output_cost_per_token") or 0.0))
