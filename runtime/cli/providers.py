"""Where models can be had: providers by name, and servers on this machine that answer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import httpx

from runtime.llm import OLLAMA_URL

LM_STUDIO_URL = "http://127.0.0.1:1234"
LOOK_SECONDS = 1.5


@dataclass(frozen=True)
class Provider:
    """A provider of models: its word, its LiteLLM prefix, a model to begin with, and the usual variable of its key."""

    name: str
    title: str
    prefix: str
    suggestion: str
    key_variable: str


PROVIDERS = (
    Provider("anthropic", "Anthropic", "anthropic/", "claude-sonnet-4-5", "ANTHROPIC_API_KEY"),
    Provider("openai", "OpenAI", "openai/", "gpt-5-mini", "OPENAI_API_KEY"),
    Provider("openrouter", "OpenRouter", "openrouter/", "anthropic/claude-sonnet-4.5", "OPENROUTER_API_KEY"),
    Provider("gemini", "Google Gemini", "gemini/", "gemini-2.5-flash", "GEMINI_API_KEY"),
    Provider("mistral", "Mistral", "mistral/", "mistral-small-latest", "MISTRAL_API_KEY"),
)
COMPATIBLE = "compatible"
"""Any server that speaks OpenAI's protocol."""
BUNDLED = "bundled"
"""No language model: answers are quotations."""
NAMES = (*(provider.name for provider in PROVIDERS), "ollama", "lmstudio", COMPATIBLE, BUNDLED)


@dataclass(frozen=True)
class LocalServer:
    """A model server and the models it has."""

    name: str
    title: str
    api_base: str
    models: tuple[str, ...]

    def model_id(self, model: str) -> str:
        """LiteLLM's id of *model*."""
        return f"ollama_chat/{model}" if self.name == "ollama" else f"openai/{model}"


async def find_local_servers(
    ollama_url: str = OLLAMA_URL, lm_studio_url: str = LM_STUDIO_URL, seconds: float = LOOK_SECONDS
) -> list[LocalServer]:
    """The model servers that answer on this machine within *seconds*. Raises nothing."""
    # A proxy that the environment names is not for this machine.
    async with httpx.AsyncClient(timeout=seconds, trust_env=False) as http:
        tags, models = await asyncio.gather(
            _names(http, f"{ollama_url}/api/tags", "models", "name"),
            _names(http, f"{lm_studio_url}/v1/models", "data", "id"),
        )
    found = []
    if tags is not None:
        found.append(LocalServer("ollama", "Ollama", ollama_url, tags))
    if models is not None:
        found.append(LocalServer("lmstudio", "LM Studio", f"{lm_studio_url}/v1", models))
    return found


async def find_models(address: str, key: str | None = None, seconds: float = LOOK_SECONDS) -> LocalServer | None:
    """The server at *address* that speaks OpenAI's protocol, with its models; None where it does not list them.

    Its address as clients want it ends in /v1, which people leave out. Raises nothing.
    """
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    base = address.rstrip("/")
    async with httpx.AsyncClient(timeout=seconds, headers=headers) as http:
        for api_base in (base, f"{base}/v1"):
            models = await _names(http, f"{api_base}/models", "data", "id")
            if models is not None:
                return LocalServer(COMPATIBLE, "the server", api_base, models)
    return None


async def _names(http: httpx.AsyncClient, url: str, items: str, name: str) -> tuple[str, ...] | None:
    """The values of *name* in the list *items* that *url* answers; None where nothing of the kind answers."""
    try:
        response = await http.get(url)
        return tuple(str(item[name]) for item in response.raise_for_status().json()[items])
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError):
        return None


def full_model_id(provider: str, model: str) -> str:
    """*model* as LiteLLM names it for *provider*; one that has the prefix keeps it."""
    prefix = next((known.prefix for known in PROVIDERS if known.name == provider), "")
    prefix = {"ollama": "ollama_chat/", "lmstudio": "openai/", COMPATIBLE: "openai/"}.get(provider, prefix)
    return model if model.startswith(prefix) else prefix + model
