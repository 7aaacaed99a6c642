"""Settings of the models that answer, embed, rerank and transcribe, and of how retrieved passages are ranked."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field, SecretStr

from config.settings.types import (
    EmbeddingModel,
    LanguageModel,
    LanguageModels,
    Natural,
    Positive,
    PositiveSeconds,
    WebUrl,
)


class ModelSettings(BaseModel):
    """Settings of the models that answer, embed, rerank and transcribe."""

    llm_model: LanguageModel | None = None
    """Any LiteLLM model id, e.g. anthropic/…, openai/…, ollama/…, or bundled/smollm2 (a tiny model for tests). Unset:
    bundled/extractive, which is no language model: it quotes what it is given."""
    llm_api_base: WebUrl | None = None
    """Passed to LiteLLM, for models of LLM_MODEL's provider."""
    llm_api_key: SecretStr | None = None
    """Passed to LiteLLM, for models of LLM_MODEL's provider."""
    llm_fallback_models: LanguageModels = ()
    """LiteLLM ids, tried in order when the model does not answer. bundled/extractive as the last one still quotes."""
    llm_timeout_seconds: PositiveSeconds = 60.0
    """Time limit of one model call. A stream that is silent for half of it is given up."""
    llm_max_attempts: Positive = 3
    """Calls to one model before the next one is tried; fewer if its server refuses the connection for 3 seconds."""
    llm_max_output_tokens: Positive = 1024
    """Tokens reserved for the reply, and asked of the model."""
    llm_prompt_caching: bool = True
    """Mark the stable beginning of prompts for the provider's cache: by cache marks for Anthropic's models (keeping
    costs a quarter more once, reading a tenth), by a key per conversation for OpenAI's."""
    llm_context_window_tokens: Positive | None = None
    """The model's window. Unset: what LiteLLM knows, else 8192; for an Ollama model at most 8192. Ollama reserves
    memory for the whole of it."""
    model_memory_buffer_mib: Natural = 512
    """Memory that prompts leave free on the machine of a local model: graphics memory if there is any, else working
    memory."""
    llm_kv_layers: Positive | None = None
    """Number of layers of LLM_MODEL, if it runs on this machine and does not say it itself (Ollama's models do). Needs
    LLM_KV_HEADS and LLM_KV_HEAD_SIZE."""
    llm_kv_heads: Positive | None = None
    """Heads with keys and values in each layer (fewer than all heads with grouped-query attention)."""
    llm_kv_head_size: Positive | None = None
    """Numbers in the key of one head."""
    llm_kv_cache_type: Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"] = "f16"
    """Number format of the local model server's cache."""
    embedding_model: EmbeddingModel | None = None
    """A LiteLLM embedding id, or bundled/minilm (finds more, indexes slowly) or bundled/wordllama. Unset:
    bundled/wordllama. Another model makes another index; the former one answers until that is filled."""
    deep_embedding_model: Literal["bundled/minilm", "none"] = "bundled/minilm"
    """A second embedding model beside bundled/wordllama. Documents get its vectors in the background, and searches use
    them to put the best results in order. none: no second model."""
    embedding_timeout_seconds: PositiveSeconds = 20.0
    """Time limit of one embedding call."""
    rerank_model: str | None = None
    """A LiteLLM rerank id, e.g. cohere/…, jina_ai/…, hosted_vllm/…, infinity/…. It reads the question with each
    passage that was found and puts them in order. Unset: no reranking."""
    rerank_api_base: WebUrl | None = None
    """Passed to LiteLLM, for RERANK_MODEL."""
    rerank_api_key: SecretStr | None = None
    """Passed to LiteLLM, for RERANK_MODEL. Unset: the provider's own variable, e.g. COHERE_API_KEY."""
    rerank_timeout_seconds: PositiveSeconds = 3.0
    """Time limit of one rerank call. If it fails, the order of the search is used."""
    rerank_candidates: Annotated[int, Field(ge=2, le=100)] = 30
    """How many of the best passages are reranked."""
    transcription_model: str | None = None
    """A LiteLLM transcription id, e.g. openai/whisper-1. Unset: voice messages are not understood, and people are told
    so."""
