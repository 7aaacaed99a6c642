"""The bundled model as the bot asks it: its own count of tokens that it had kept, and the time to its first word."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from bench.caches import Counted
from bench.prompts import Sent
from config import load
from grounding.prompt_input import ChatMessage
from runtime.embedded import local_model
from runtime.llm import Completion, Model

ANSWER_TOKENS = 4
"""What is measured is over with the first."""


@dataclasses.dataclass
class Timed:
    """Tokens, and milliseconds to the first word of each answer."""

    counted: Counted = dataclasses.field(default_factory=Counted)
    first_ms: list[int] = dataclasses.field(default_factory=list)


class Engine:
    """The running model. Made by `engine`."""

    def __init__(self, model: Model, http: httpx.AsyncClient) -> None:
        self._model = model
        self._http = http

    async def tokens(self, messages: Sequence[ChatMessage]) -> list[int]:
        """*messages* as the model reads them."""
        text = (await self._http.post("/apply-template", json={"messages": messages})).raise_for_status().json()
        body = {"content": text["prompt"], "parse_special": True}
        found: list[int] = (await self._http.post("/tokenize", json=body)).raise_for_status().json()["tokens"]
        return found

    async def ask(
        self, messages: Sequence[ChatMessage], tokens: int = ANSWER_TOKENS, temperature: float | None = None
    ) -> Completion:
        """Its answer of at most *tokens* tokens."""

        async def heard(delta: str) -> None:
            """What it says is of no interest, when it begins is."""

        return await self._model.complete(
            [dict(message) for message in messages], on_delta=heard, max_output_tokens=tokens, temperature=temperature
        )

    async def read(self, prompts: Iterable[Sent]) -> Timed:
        """*prompts* one after the other."""
        timed = Timed()
        for sent in prompts:
            completion = await self.ask(sent.messages)
            timed.counted.add(completion.usage.prompt, completion.usage.cached)
            timed.first_ms.append(completion.first_token_ms or completion.latency_ms)
        return timed


@asynccontextmanager
async def engine(folder: Path) -> AsyncIterator[Engine]:
    """A fresh one: nothing is kept of what others asked."""
    settings = load({}).settings.model_copy(
        update={"data_dir": folder, "llm_timeout_seconds": 600.0, "llm_max_attempts": 1}
    )
    async with local_model(folder) as server:
        model = Model(settings, server)
        await model.warm()
        endpoint = await server.endpoint()
        key = {"Authorization": f"Bearer {endpoint.api_key}"}
        root = endpoint.base_url.removesuffix("/v1")
        async with httpx.AsyncClient(base_url=root, headers=key, timeout=60.0) as http:
            yield Engine(model, http)
        await model.close()
