"""The extractive model as a provider of LiteLLM. `grounding.extractive` answers its calls, in this process.

So a reply without a language model takes the same path as any other. This module imports LiteLLM.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from litellm import ModelResponse, Usage
from litellm.llms.custom_llm import CustomLLM
from litellm.types.llms.openai import ChatCompletionUsageBlock
from litellm.types.utils import GenericStreamingChunk

from config.settings import EXTRACTIVE
from grounding.extractive import reply, text_of
from grounding.prompt_input import load_tokens
from grounding.retrieval import WordLlamaEmbedder

PROVIDER = EXTRACTIVE.partition("/")[0]


class ExtractiveModel(CustomLLM):
    """Answers each call with quotations from its prompt. The options of a call change nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._embedder = WordLlamaEmbedder()

    async def acompletion(self, *_: Any, **request: Any) -> ModelResponse:
        text, (prompt, completion) = await self._answer(request["messages"])
        response: ModelResponse = request["model_response"]
        response.choices[0].message.content = text
        response.choices[0].finish_reason = "stop"
        response.model = request["model"]
        usage = Usage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion)
        response.usage = usage
        return response

    async def astreaming(  # type: ignore[override]  # LiteLLM iterates over it, whatever its signature says
        self, *_: Any, **request: Any
    ) -> AsyncIterator[GenericStreamingChunk]:
        text, (prompt, completion) = await self._answer(request["messages"])
        usage = ChatCompletionUsageBlock(
            prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion
        )
        yield GenericStreamingChunk(text=text, is_finished=False, finish_reason="", usage=None, index=0, tool_use=None)
        yield GenericStreamingChunk(
            text="", is_finished=True, finish_reason="stop", usage=usage, index=0, tool_use=None
        )

    async def _answer(self, messages: Sequence[Mapping[str, Any]]) -> tuple[str, tuple[int, int]]:
        """Return the reply, and the tokens (as we count them) of the prompt and of the reply."""
        text = await reply(messages, self._embedder)
        tokens = await asyncio.to_thread(load_tokens)
        prompt = sum(tokens.count(text_of(message)) for message in messages)
        return text, (prompt, tokens.count(text))


def register(litellm: Any) -> None:
    """Let *litellm* call `ExtractiveModel` for models of `PROVIDER`."""
    litellm.custom_provider_map = [{"provider": PROVIDER, "custom_handler": ExtractiveModel()}]
