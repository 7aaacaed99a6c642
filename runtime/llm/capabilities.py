"""What each model can do, its context window, and which address and key it gets."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from config.settings import BUNDLED_MODELS, EXTRACTIVE, SMOLLM2, Settings
from runtime.embedded import CONTEXT_TOKENS
from runtime.llm.loader import load_litellm

DEFAULT_WINDOW_TOKENS = 8192
LOOKUP_SECONDS = 5.0
"""For some models their server is asked what they can do."""
CONNECT_SECONDS = 1.0
"""An Ollama server that is away delays every turn by so much until it is there: a failed look-up is repeated."""
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


class OllamaModel(BaseModel):
    """What an Ollama server says about a model (``/api/show``); empty if nobody says anything."""

    model_config = ConfigDict(protected_namespaces=())

    model_info: dict[str, Any] | None = None
    template: str | None = None
    capabilities: list[str] | None = None

    @property
    def window_tokens(self) -> int:
        """The tokens for which the model was trained; `DEFAULT_WINDOW_TOKENS` if that is not known."""
        about = self.model_info or {}
        trained = next((value for name, value in about.items() if name.endswith(".context_length")), 0)
        return trained if isinstance(trained, int) and trained > 0 else DEFAULT_WINDOW_TOKENS

    @property
    def calls_tools(self) -> bool:
        """Whether the model calls tools. Old servers do not list what a model can do, but show its template."""
        if self.capabilities is not None:
            return "tools" in self.capabilities
        return "tools" in (self.template or "").lower()


class Capabilities:
    """Looks up what models can do, once for each. A model is named by its LiteLLM id or as in `BUNDLED_MODELS`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._windows: dict[str, int] = {}
        self._abilities: dict[tuple[str, str], bool] = {}
        self._ollama_models: dict[str, OllamaModel] = {}

    async def window_tokens(self, name: str) -> int:
        """Return the context window in tokens: as it is set, else as LiteLLM or the model's Ollama server knows it."""
        if self._settings.llm_context_window_tokens is not None:
            return self._settings.llm_context_window_tokens
        if name in _BUNDLED_WINDOWS:
            return _BUNDLED_WINDOWS[name]
        if is_served_by_ollama(name):
            # The model could read more, but the server reserves memory for the whole window when it loads the model.
            return min((await self._ask_ollama(name)).window_tokens, DEFAULT_WINDOW_TOKENS)
        if name not in self._windows:
            self._windows[name] = await _look_up_window(await load_litellm(), name)
        return self._windows[name]

    async def sees_images(self, name: str) -> bool:
        """Whether the model can be shown images. False if LiteLLM does not know."""
        if name in BUNDLED_MODELS:
            return False
        return await self._has("images", name, lambda litellm: _look_up(litellm.supports_vision, name))

    async def calls_tools(self, name: str) -> bool:
        """Whether tools are offered to the model: as LLM_TOOLS says, which by default asks LiteLLM, or the model's
        Ollama server. False if nobody knows, and for bundled models."""
        if name in BUNDLED_MODELS or self._settings.llm_tools != "auto":
            return name not in BUNDLED_MODELS and self._settings.llm_tools == "always"
        if is_served_by_ollama(name):
            return (await self._ask_ollama(name)).calls_tools
        return await self._has("tools", name, lambda litellm: _look_up(litellm.supports_function_calling, name))

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

    async def _ask_ollama(self, name: str) -> OllamaModel:
        """Return what a model's Ollama server says about it; nothing if the server is away, or does not have the model.

        LiteLLM would ask the same, but remembers "nothing", too: then a model whose server starts after this process
        would never be offered tools.
        """
        if name not in self._ollama_models:
            options = credentials(self._settings, name)
            base = options.get("api_base") or os.environ.get("OLLAMA_API_BASE") or OLLAMA_URL
            key = options.get("api_key") or os.environ.get("OLLAMA_API_KEY")
            try:
                self._ollama_models[name] = await _fetch_ollama_model(str(base), key, name.partition("/")[2])
            except (OSError, ValueError):
                return OllamaModel()  # the call that follows fails, and says why
        return self._ollama_models[name]


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


async def _look_up_window(litellm: Any, model: str) -> int:
    """Return the window of *model*; `DEFAULT_WINDOW_TOKENS` if nobody knows."""
    try:
        async with asyncio.timeout(LOOKUP_SECONDS):
            info: Mapping[str, Any] = await asyncio.to_thread(litellm.get_model_info, model)
        window = int(info.get("max_input_tokens") or 0)
    except Exception:  # noqa: BLE001 - it raises a bare Exception for every model that it does not know
        window = 0
    return window if window > 0 else DEFAULT_WINDOW_TOKENS


async def _look_up(supports: Callable[[str], Any], model: str) -> bool:
    try:
        async with asyncio.timeout(LOOKUP_SECONDS):
            return bool(await asyncio.to_thread(supports, model))
    except Exception:  # noqa: BLE001 - it raises a bare Exception for every model that it does not know
        return False


async def _fetch_ollama_model(base: str, key: str | None, model: str) -> OllamaModel:
    """Ask the Ollama server at *base* about *model*. Raises `OSError`, and `ValueError` for an answer of another
    form."""
    import httpx  # not at every start

    limits = httpx.Timeout(LOOKUP_SECONDS, connect=CONNECT_SECONDS)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        async with asyncio.timeout(LOOKUP_SECONDS):
            # In a thread: a client reads certificates.
            async with await asyncio.to_thread(lambda: httpx.AsyncClient(headers=headers, timeout=limits)) as http:
                answer = await http.post(f"{base.rstrip('/')}/api/show", json={"model": model})
        answer.raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise OSError(f"{base}: {type(error).__name__}") from None
    return OllamaModel.model_validate_json(answer.content)
