"""Which address and key go with which model: one provider's are not another's to see."""

from __future__ import annotations

import os
from typing import Any

from config.settings import Settings

_WITHOUT_SLASH = {
    "openai": (
        "gpt-", "chatgpt-", "o1", "o3", "o4", "ft:", "text-embedding-", "whisper-", "tts-", "omni-", "computer-use-",
        "codex-", "davinci-", "babbage-",
    ),
    "anthropic": ("claude-",),
    "cohere": ("command", "embed-", "rerank-"),
}  # fmt: skip
"""What the names of models begin with that LiteLLM takes without their provider, too."""


def credentials(settings: Settings, model: str) -> dict[str, Any]:
    """The configured address and key as LiteLLM's arguments, for models of ``LLM_MODEL``'s own provider only."""
    if _provider(model) != _provider(settings.llm_model or ""):
        return {}  # one provider's key is not another's to see
    options: dict[str, Any] = {}
    if settings.llm_api_base is not None:
        options["api_base"] = settings.llm_api_base
    if settings.llm_api_key is not None:
        options["api_key"] = settings.llm_api_key.get_secret_value()
    elif settings.llm_api_base is not None and _provider(model) == "openai":
        options["api_key"] = "none"  # servers of one's own need none, but the client insists
    return options


def has_own_server() -> bool:
    """Whether the environment sends LiteLLM elsewhere than to OpenAI."""
    return any(os.environ.get(name) for name in ("OPENAI_BASE_URL", "OPENAI_API_BASE"))


def _provider(model: str) -> str:
    """What stands before the first slash; where nothing does, whose model it is by its name, and else the name: what
    nobody knows shares its key with nothing."""
    if "/" in model:
        return model.partition("/")[0]
    if not model:
        return "openai"
    return next((provider for provider, names in _WITHOUT_SLASH.items() if model.startswith(names)), model)
