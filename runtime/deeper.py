"""Whether documents get the vectors of a second, deeper model, and why not."""

from __future__ import annotations

import importlib.util

from config.settings import BUNDLED_EMBEDDING_MODELS, Settings
from grounding.documents.minilm import WEIGHTS_PACKAGE

NONE = "none"


def why_not(settings: Settings) -> str:
    """Why there is no second model, as a person reads it; empty where there is one. Looks at what is installed."""
    if settings.deep_embedding_model == NONE:
        return "AGENT_RUNTIME_DEEP_EMBEDDING_MODEL is none"
    if settings.bundled_embedding_model != BUNDLED_EMBEDDING_MODELS[0]:
        return f"it only works with {BUNDLED_EMBEDDING_MODELS[0]}, but AGENT_RUNTIME_EMBEDDING_MODEL is another model"
    if not _has("onnxruntime") or not _has(WEIGHTS_PACKAGE.replace("-", "_")):
        return f"{settings.deep_embedding_model} is not installed: install agent-runtime[local] and deploy/models.lock"
    return ""


def _has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
