"""What each configured model can do, as it is set or as LiteLLM knows it; each is asked once."""

from __future__ import annotations

import asyncio

from config.settings import BUNDLED_MODELS, EXTRACTIVE, SMOLLM2, Settings
from runtime.caching import takes_marks
from runtime.credentials import credentials
from runtime.embedded.model_server import CONTEXT_TOKENS
from runtime.loading import loaded_litellm
from runtime.senses import calls_functions, sees_images
from runtime.windows import known_window

EXTRACTIVE_TOKENS = 32_768
"""What the extractive model reads at once; it takes milliseconds."""
_WINDOWS = {EXTRACTIVE: EXTRACTIVE_TOKENS, SMOLLM2: CONTEXT_TOKENS}


class Abilities:
    """Of models by their LiteLLM ids, or their names among `config.settings.BUNDLED_MODELS`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._windows: dict[str, int] = {}
        self._sighted: dict[str, bool] = {}
        self._calling: dict[str, bool] = {}
        self._marking: dict[str, bool] = {}

    async def window(self, name: str) -> int:
        """Its context window in tokens: as set, else as it is known (`runtime.windows`)."""
        if self._settings.llm_context_window_tokens is not None:
            return self._settings.llm_context_window_tokens
        if name in _WINDOWS:
            return _WINDOWS[name]
        if name not in self._windows:
            base = credentials(self._settings, name).get("api_base")
            self._windows[name] = await known_window(await loaded_litellm(), name, base)
        return self._windows[name]

    async def sees(self, name: str) -> bool:
        """Whether it can be shown pictures, as far as LiteLLM knows."""
        if name in BUNDLED_MODELS:
            return False
        if name not in self._sighted:
            self._sighted[name] = await sees_images(await loaded_litellm(), name)
        return self._sighted[name]

    async def calls(self, name: str) -> bool:
        """Whether it is offered tools: as LLM_TOOLS says, which by default asks LiteLLM. Bundled models never
        are."""
        if name in BUNDLED_MODELS or self._settings.llm_tools != "auto":
            return name not in BUNDLED_MODELS and self._settings.llm_tools == "always"
        if name not in self._calling:
            base = credentials(self._settings, name).get("api_base")
            self._calling[name] = await calls_functions(await loaded_litellm(), name, base)
        return self._calling[name]

    async def takes_marks(self, litellm_id: str) -> bool:
        """Whether its provider is told by marks in the prompt which beginning of it comes again."""
        if litellm_id not in self._marking:
            self._marking[litellm_id] = await asyncio.to_thread(takes_marks, await loaded_litellm(), litellm_id)
        return self._marking[litellm_id]
