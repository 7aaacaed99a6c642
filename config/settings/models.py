"""The models: which answers, embeds, reranks and transcribes, what they may take, and how found passages are ranked."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field, SecretStr

from config.settings.types import EmbeddingModel, List, Natural, Positive, PositiveSeconds, WebUrl


class ModelSettings(BaseModel):
    """The model that answers, and those that embed, rerank and transcribe."""

    llm_model: str | None = None
    """Any LiteLLM model id, e.g. anthropic/…, openai/…, ollama/…. Unset: the small local model."""
    llm_api_base: WebUrl | None = None
    """Passed to LiteLLM, for models of LLM_MODEL's provider."""
    llm_api_key: SecretStr | None = None
    """Passed to LiteLLM, for models of LLM_MODEL's provider."""
    llm_fallback_models: List = ()
    """LiteLLM ids, tried in order when the model does not answer."""
    llm_timeout_seconds: PositiveSeconds = 60.0
    """One model call; also how long a stream may stall."""
    llm_max_attempts: Positive = 3
    """Calls to one model before the next is tried."""
    llm_max_output_tokens: Positive = 1024
    """Reserved for the reply, and asked for."""
    llm_prompt_caching: bool = True
    """Whether providers are told which beginning of a prompt comes again: by marks for Anthropic's models (what is kept
    costs a quarter more once, and a tenth from then on), by a key per conversation for OpenAI's."""
    llm_context_window_tokens: Positive | None = None
    """The model's window. Unset: as LiteLLM knows it, else 8192; of an Ollama model at most 8192. Ollama is told it, as
    it sets memory aside for the whole of it, and would cut longer prompts unsaid."""
    model_memory_buffer_mib: Natural = 512
    """Memory that prompts leave free on the machine that a local model runs on: graphics memory where there is any,
    else working memory."""
    llm_kv_layers: Positive | None = None
    """Layers of LLM_MODEL, where it runs on this machine and does not say itself what its attention cache takes (the
    bundled model does, and Ollama's). With LLM_KV_HEADS and LLM_KV_HEAD_SIZE."""
    llm_kv_heads: Positive | None = None
    """Heads with keys and values in each of its layers (with grouped-query attention fewer than heads)."""
    llm_kv_head_size: Positive | None = None
    """Numbers in the key of one head."""
    llm_kv_cache_type: Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"] = "f16"
    """How a local model's server keeps the cache."""
    embedding_model: EmbeddingModel | None = None
    """A LiteLLM embedding id, or bundled/minilm (finds more, indexes slowly) or bundled/wordllama. Unset:
    bundled/wordllama. Another model makes another index; the former one answers until that is filled."""
    deep_embedding_model: Literal["bundled/minilm", "none"] = "bundled/minilm"
    """A second model beside bundled/wordllama, in a process of its own: documents and material get its vectors in the
    background, after they can be found, and searches put the best in order by them. none: there is no second model."""
    embedding_timeout_seconds: PositiveSeconds = 20.0
    """One embedding call."""
    rerank_model: str | None = None
    """A LiteLLM rerank id, e.g. cohere/…, jina_ai/…, hosted_vllm/…, infinity/…. It reads each question with the
    passages that the search found and puts them in order. Unset: the order of the search stands."""
    rerank_api_base: WebUrl | None = None
    """Passed to LiteLLM, for RERANK_MODEL."""
    rerank_api_key: SecretStr | None = None
    """Passed to LiteLLM, for RERANK_MODEL. Unset: the provider's own variable, e.g. COHERE_API_KEY."""
    rerank_timeout_seconds: PositiveSeconds = 3.0
    """One rerank call. When it is over, or the call fails, the order of the search stands."""
    rerank_candidates: Annotated[int, Field(ge=2, le=100)] = 30
    """Passages that are reranked, the best of the search."""
    retrieval_fusion: Literal["dbsf", "rrf"] = "dbsf"
    """How the rankings by meaning and by words become one: by scores on a common scale, or by weighted ranks."""
    retrieval_rrf_k: Positive = 2
    """Rank constant of `rrf`."""
    retrieval_rrf_dense_weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Weight of the ranking by meaning in `rrf`."""
    retrieval_rrf_sparse_weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.5
    """Weight of the ranking by words in `rrf`."""
    retrieval_candidates: Positive = 300
    """Passages that each ranking offers."""
    retrieval_centring: Annotated[float, Field(ge=0, le=1)] = 0.75
    """Share of what all passages of a workspace (or turns of a chat) have in common that is taken from a question."""
    transcription_model: str | None = None
    """A LiteLLM transcription id, e.g. openai/whisper-1. Unset: voice messages are not heard."""
