"""What each model can do, its context window, and which address and key it gets."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from config.settings import BUNDLED_MODELS, EXTRACTIVE, SMOLLM2, Settings
from runtime.embedded import CONTEXT_TOKENS
from runtime.llm.loader import load_litellm

DEFAULT_WINDOW_TOKENS = 8192
LOOKUP_SECONDS = 5.0
"""For some models LiteLLM asks their server what they can do."""
OLLAMA_PREFIXES = ("ollama/", "ollama_chat/")
OLLAMA_URL = "http://127.0.0.1:11434"
"""The address of an Ollama server, unless another one is set."""
_BUNDLED_WINDOWS = {EXTRACTIVE: 32_768, SMOLLM2: CONTEXT_TOKENS}
"""The extractive model has no limit of its own; so many tokens take it milliseconds."""
_NAMES_WITHOUT_PROVIDER = {
    "openai": (
        "gpt-", "chatgpt-", "o1", "o3", "o4", "ft:", "text-embedding-", "whisper-", "tts-", "omni-", "computer-use-",
        "codex-", "davinci-", "babbage-",
    ),
    "anthropic": ("claude-",),
    "cohere": ("command", "embed-", "rerank-"),
}  # fmt: skip
"""The beginnings of model names that LiteLLM accepts without a provider, too."""


class Capabilities:
    """Looks up what models can do, once for each. A model is named by its LiteLLM id or as in `BUNDLED_MODELS`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._windows: dict[str, int] = {}
        self._abilities: dict[tuple[str, str], bool] = {}

    async def window_tokens(self, name: str) -> int:
        """Return the context window in tokens: as it is set, else as LiteLLM or the model's Ollama server knows it."""
        if self._settings.llm_context_window_tokens is not None:
            return self._settings.llm_context_window_tokens
        if name in _BUNDLED_WINDOWS:
            return _BUNDLED_WINDOWS[name]
        if name not in self._windows:
            base = credentials(self._settings, name).get("api_base")
            self._windows[name] = await _look_up_window(await load_litellm(), name, base)
        return self._windows[name]

    async def sees_images(self, name: str) -> bool:
        """Whether the model can be shown images. False if LiteLLM does not know."""
        if name in BUNDLED_MODELS:
            return False
        return await self._has("images", name, lambda litellm: _look_up(litellm.supports_vision, name))

    async def calls_tools(self, name: str) -> bool:
        """Whether tools are offered to the model: as LLM_TOOLS says, which by default asks LiteLLM. False if nobody
        knows, and for bundled models."""
        if name in BUNDLED_MODELS or self._settings.llm_tools != "auto":
            return name not in BUNDLED_MODELS and self._settings.llm_tools == "always"
        base = credentials(self._settings, name).get("api_base")
        return await self._has("tools", name, lambda litellm: _look_up_tool_calls(litellm, name, base))

    async def takes_cache_marks(self, litellm_id: str) -> bool:
        """Whether the provider wants marks in the prompt that say what to cache: Anthropic's models do."""
        if "claude" not in litellm_id.lower():
            return False
        return await self._has(
            "cache", litellm_id, lambda litellm: _look_up(litellm.utils.supports_prompt_caching, litellm_id)
        )

    async def _has(self, ability: str, name: str, look_up: Callable[[Any], Awaitable[bool]]) -> bool:
        if (ability, name) not in self._abilities:
            self._abilities[ability, name] = await look_up(await load_litellm())
        return self._abilities[ability, name]


def needs_litellm(settings: Settings) -> bool:
    """Whether a model is set that LiteLLM calls."""
    models = (settings.model_name, *settings.llm_fallback_models)
    others = (settings.rerank_model, settings.transcription_model)
    has_own_embedder = settings.bundled_embedding_model is not None
    return any(model != EXTRACTIVE for model in models) or any(others) or not has_own_embedder


def is_served_by_ollama(model: str) -> bool:
    """Whether *model* belongs to an Ollama server."""
    return model.startswith(OLLAMA_PREFIXES)


def credentials(settings: Settings, model: str) -> dict[str, Any]:
    """Return the configured address and key as LiteLLM's arguments.

    They are for models of ``LLM_MODEL``'s provider only: no other provider may see them.
    """
    if _provider(model) != _provider(settings.llm_model or ""):
        return {}
    options: dict[str, Any] = {}
    if settings.llm_api_base is not None:
        options["api_base"] = settings.llm_api_base
    if settings.llm_api_key is not None:
        options["api_key"] = settings.llm_api_key.get_secret_value()
    elif settings.llm_api_base is not None and _provider(model) == "openai":
        options["api_key"] = "none"  # a private server needs none, but the client insists on one
    return options


def has_own_server() -> bool:
    """Whether the environment sends LiteLLM to another server than OpenAI's."""
    return any(os.environ.get(name) for name in ("OPENAI_BASE_URL", "OPENAI_API_BASE"))


def _provider(model: str) -> str:
    """Return the part before the first slash, else the provider that the name implies, else the name itself.

    So an unknown model shares its key with no other.
    """
    if "/" in model:
        return model.partition("/")[0]
    if not model:
        return "openai"
    return next((provider for provider, names in _NAMES_WITHOUT_PROVIDER.items() if model.startswith(names)), model)


async def _look_up_window(litellm: Any, model: str, api_base: str | None) -> int:
    """Return the window of *model*; `DEFAULT_WINDOW_TOKENS` if nobody knows.

    For an Ollama model it is at most `DEFAULT_WINDOW_TOKENS`: the model could read more, but the server reserves memory
    for the whole window when it loads the model.
    """
    is_ollama = is_served_by_ollama(model)
    options = {"api_base": api_base} if is_ollama else {}
    try:
        async with asyncio.timeout(LOOKUP_SECONDS):
            info: Mapping[str, Any] = await asyncio.to_thread(litellm.get_model_info, model, **options)
        window = int(info.get("max_input_tokens") or 0)
    except Exception:  # noqa: BLE001 - it raises a bare Exception for every model that it does not know
        window = 0
    if window <= 0:
        return DEFAULT_WINDOW_TOKENS
    return min(window, DEFAULT_WINDOW_TOKENS) if is_ollama else window


async def _look_up_tool_calls(litellm: Any, model: str, api_base: str | None) -> bool:
    if not is_served_by_ollama(model):
        return await _look_up(litellm.supports_function_calling, model)

    def supports(name: str) -> Any:  # `supports_function_calling` takes no address and asks a server on this machine
        return litellm.get_model_info(name, api_base=api_base).get("supports_function_calling")

    return await _look_up(supports, model)


async def _look_up(supports: Callable[[str], Any], model: str) -> bool:
    try:
        async with asyncio.timeout(LOOKUP_SECONDS):
            return bool(await asyncio.to_thread(supports, model))
    except Exception:  # noqa: BLE001 - it raises a bare Exception for every model that it does not know
        return False
