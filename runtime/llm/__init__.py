"""Calls language, embedding and reranking models through LiteLLM. No other package imports LiteLLM."""

from __future__ import annotations

from runtime.llm.capabilities import OLLAMA_PREFIXES, OLLAMA_URL, credentials, needs_litellm
from runtime.llm.client import LOCAL_MAX_OUTPUT_TOKENS, NEEDS_MODEL, Model
from runtime.llm.embeddings import (
    EMBEDDING_MODEL,
    EMBEDDING_SECONDS,
    IMPORT_SECONDS,
    RERANK_SECONDS,
    LiteLLMEmbedder,
    LiteLLMReranker,
    bundled_embedders,
    open_embedder,
)
from runtime.llm.errors import ModelFailed, ModelRefused, ModelUnavailable
from runtime.llm.loader import begin_loading, load_litellm
from runtime.llm.messages import Image, StablePrefix, Transcription, with_images
from runtime.llm.streaming import Completion, Message, ToolCall, replace_surrogates

__all__ = [
    "EMBEDDING_MODEL",
    "EMBEDDING_SECONDS",
    "IMPORT_SECONDS",
    "LOCAL_MAX_OUTPUT_TOKENS",
    "NEEDS_MODEL",
    "OLLAMA_PREFIXES",
    "OLLAMA_URL",
    "RERANK_SECONDS",
    "Completion",
    "Image",
    "LiteLLMEmbedder",
    "LiteLLMReranker",
    "Message",
    "Model",
    "ModelFailed",
    "ModelRefused",
    "ModelUnavailable",
    "StablePrefix",
    "ToolCall",
    "Transcription",
    "begin_loading",
    "bundled_embedders",
    "credentials",
    "load_litellm",
    "needs_litellm",
    "open_embedder",
    "replace_surrogates",
    "with_images",
]
