"""Checks that the embedded parts which the settings need are installed."""

from __future__ import annotations

import importlib.util

from config.settings import SMOLLM2, Settings
from connectors.message import AgentRuntimeError
from grounding.retrieval import MINILM_PACKAGE, MULTILINGUAL_MODULE
from runtime.embedded import INSTALL, WEIGHTS_PACKAGE, NoRedisServer, find_binary


class NotInstalled(AgentRuntimeError):
    """The settings need an embedded part that is not installed. ``exit_code`` 2: they must be changed."""

    exit_code = 2


def check_installed(settings: Settings) -> None:
    """Raise `NotInstalled` with all settings that must be changed."""
    unset = missing(settings)
    if unset:
        raise NotInstalled(
            "\n  ".join(["this installation lacks embedded parts that the settings ask for; set:", *unset])
        )


def missing(settings: Settings) -> list[str]:
    """Return a line for each variable that must be set, and to what."""
    wanted = []
    if settings.redis_url is None and not _has_redis():
        wanted.append("AGENT_RUNTIME_REDIS_URL        a Redis server, such as redis://localhost:6379")
    if settings.qdrant_url is None and not _has("qdrant_edge"):
        wanted.append("AGENT_RUNTIME_QDRANT_URL       a Qdrant server, such as http://localhost:6333")
    if settings.llm_model == SMOLLM2 and not (_has("xllamacpp") and _has(WEIGHTS_PACKAGE)):
        wanted.append(f"AGENT_RUNTIME_LLM_MODEL        another model than {SMOLLM2}, or {INSTALL}")
    if not _has_embedding_model(settings):
        wanted.append("AGENT_RUNTIME_EMBEDDING_MODEL  a LiteLLM embedding id, such as openai/text-embedding-3-small")
    return wanted


def _has_embedding_model(settings: Settings) -> bool:
    if settings.bundled_embedding_model == "bundled/minilm":
        return _has("onnxruntime") and _has(MINILM_PACKAGE.replace("-", "_"))
    if settings.bundled_embedding_model == "bundled/multilingual":
        return _has(MULTILINGUAL_MODULE)
    return settings.bundled_embedding_model is None or _has("wordllama")


def _has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _has_redis() -> bool:
    try:
        find_binary()
    except NoRedisServer:
        return False
    return True
