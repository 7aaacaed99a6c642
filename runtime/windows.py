"""How much a model reads at once, and who has to be told. Imports no LiteLLM itself."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

DEFAULT_WINDOW_TOKENS = 8192
SECONDS_TO_ASK = 5.0
"""For Ollama's models LiteLLM asks the server."""
OLLAMA_PREFIXES = ("ollama/", "ollama_chat/")
OLLAMA_URL = "http://127.0.0.1:11434"
"""Where an Ollama server answers if nothing else is said."""


def served_by_ollama(model: str) -> bool:
    """Whether *model* is one of an Ollama server."""
    return model.startswith(OLLAMA_PREFIXES)


async def known_window(litellm: Any, model: str, api_base: str | None) -> int:
    """The window of *model* in tokens as LiteLLM knows it, or the Ollama server at *api_base*;
    `DEFAULT_WINDOW_TOKENS` where nobody says.

    Of an Ollama model at most `DEFAULT_WINDOW_TOKENS`: it could read what it was trained for, but the server sets
    memory aside for the whole of a window as it loads the model.
    """
    is_ollamas = served_by_ollama(model)
    where = {"api_base": api_base} if is_ollamas else {}
    try:
        async with asyncio.timeout(SECONDS_TO_ASK):
            about: Mapping[str, Any] = await asyncio.to_thread(litellm.get_model_info, model, **where)
        found = int(about.get("max_input_tokens") or 0)
    except Exception:  # noqa: BLE001 - it raises a bare Exception for every model it does not know
        found = 0
    if found <= 0:
        return DEFAULT_WINDOW_TOKENS
    return min(found, DEFAULT_WINDOW_TOKENS) if is_ollamas else found
