"""All settings: type, unit, default and meaning, in the order of docs/settings.md. What people set first stands first.

The environment variable of a field is ``AGENT_RUNTIME_`` plus the field's name in upper case; the key in a
TOML file is the field's name. Names carry their units (``_seconds``, ``_tokens``, ``_bytes``).
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from config.setting_types import (
    BUNDLED_EMBEDDING_MODELS,
    BUNDLED_MODELS,
    EXTRACTIVE,
    MAX_DAYS,
    SMOLLM2,
    BudgetTokens,
    BudgetUsd,
    EmbeddingModel,
    LanguageModel,
    LanguageModels,
    List,
    Natural,
    Place,
    Positive,
    PositiveDays,
    PositiveSeconds,
    Rate,
    UserIds,
    WebUrl,
    WorkspaceName,
    prefixed_secret,
    url_validator,
)
from config.sigils import SigilBinding, SigilName, SigilSettings

__all__ = [
    "BUNDLED_EMBEDDING_MODELS",
    "BUNDLED_MODELS",
    "EXTRACTIVE",
    "GROUNDING_NUMBERS",
    "SECRETS",
    "SMOLLM2",
    "TOPICS",
    "Settings",
]

GROUNDING_PREFIX = "llm_grounding_"


class ModelSettings(BaseModel):
    """The models that answer, embed, rerank and transcribe."""

    llm_model: LanguageModel | None = None
    """Any LiteLLM model id, e.g. anthropic/…, openai/…, ollama/…, or bundled/smollm2 (a tiny model for tests). Unset:
    bundled/extractive, which is no language model: it quotes what it is given."""
    llm_api_key: SecretStr | None = None
    """The key of LLM_MODEL's provider. Unset: the provider's own variable, e.g. ANTHROPIC_API_KEY."""
    llm_api_base: WebUrl | None = None
    """The address of LLM_MODEL's server, if it is not the provider's own."""
    llm_fallback_models: LanguageModels = ()
    """LiteLLM ids, tried in order when the model does not answer. bundled/extractive as the last one still quotes."""
    llm_timeout_seconds: PositiveSeconds = 60.0
    """Time limit of one model call. A stream that is silent for half of it is given up."""
    llm_max_attempts: Positive = 3
    """Calls to one model before the next one is tried; fewer if its server refuses the connection for 3 seconds."""
    llm_max_output_tokens: Positive = 1024
    """Tokens reserved for the reply, and asked of the model."""
    llm_context_window_tokens: Positive | None = None
    """The model's window. Unset: what LiteLLM knows, else 8192; for an Ollama model at most 8192. Ollama reserves
    memory for the whole of it."""
    llm_prompt_caching: bool = True
    """Mark the stable beginning of prompts for the provider's cache: by cache marks for Anthropic's models (keeping
    costs a quarter more once, reading a tenth), by a key per conversation for OpenAI's."""
    llm_tools: Literal["auto", "always", "never"] = "auto"
    """Whether models are offered tools: auto (where LiteLLM or the model's Ollama server says that the model calls
    functions), always (also where nobody says so: an own server) or never. The bundled models are offered none."""
    embedding_model: EmbeddingModel | None = None
    """A LiteLLM embedding id, or bundled/wordllama, bundled/minilm (English; finds more, indexes slowly) or
    bundled/multilingual (finds English documents for a German question, say). Unset: bundled/wordllama. Another model
    makes another index; the former one answers until that is filled."""
    deep_embedding_model: Literal["bundled/minilm", "none"] = "bundled/minilm"
    """A second embedding model beside bundled/wordllama. Documents get its vectors in the background, and searches use
    them to put the best results in order. none: no second model."""
    query_translation: bool = True
    """Have LLM_MODEL translate a question before the documents are searched, if these are in another language. Bundled
    language models cannot; see EMBEDDING_MODEL."""
    rerank_model: str | None = None
    """A LiteLLM rerank id, e.g. cohere/…, jina_ai/…, hosted_vllm/…, infinity/…. It reads the question with each
    passage that was found and puts them in order. Unset: no reranking."""
    rerank_api_base: WebUrl | None = None
    """The address of RERANK_MODEL's server, if it is not the provider's own."""
    rerank_api_key: SecretStr | None = None
    """The key of RERANK_MODEL's provider. Unset: the provider's own variable, e.g. COHERE_API_KEY."""
    transcription_model: str | None = None
    """A LiteLLM transcription id, e.g. openai/whisper-1. Unset: voice messages are not understood, and people are told
    so."""
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


class PlatformSettings(BaseModel):
    """Platforms. Each is on if its token is set."""

    slack_bot_token: Annotated[SecretStr | None, prefixed_secret("xoxb-")] = None
    """The app's Bot User OAuth Token. Set: Slack is on; it needs one of the next two as well."""
    slack_app_token: Annotated[SecretStr | None, prefixed_secret("xapp-")] = None
    """An app-level token with connections:write. Set: events come by Socket Mode."""
    slack_signing_secret: SecretStr | None = None
    """Without SLACK_APP_TOKEN: events come over HTTP, at /slack/events, and are checked with this."""
    slack_api_base: WebUrl = "https://slack.com/api/"
    """Where the Web API is; it also says where Socket Mode connects to."""
    telegram_bot_token: SecretStr | None = None
    """From @BotFather. Set: Telegram is on."""
    telegram_webhook_secret: SecretStr | None = None
    """1 to 256 of A-Z, a-z, 0-9, _ and -. Set: updates are posted to /telegram/webhook, registered at HTTP_PUBLIC_URL.
    Unset: updates come by long polling."""
    telegram_api_base: WebUrl = "https://api.telegram.org"
    """Where the Bot API is."""
    telegram_poll_seconds: Positive = 30
    """How long one poll waits for updates."""
    telegram_sends_per_second: Rate = 30.0
    """Messages a second to all chats together, after a burst of four seconds' worth. Telegram allows 30, and more if
    you pay for broadcasts. 0: no limit of ours. Pauses that Telegram asks for are always kept."""
    discord_bot_token: SecretStr | None = None
    """From the Developer Portal, under Bot, where Message Content Intent has to be on. Set: Discord is on."""
    discord_api_base: WebUrl = "https://discord.com/api/v10"
    """Where the REST API is."""
    discord_gateway_url: Annotated[str, url_validator("ws", "wss")] = "wss://gateway.discord.gg/"
    """Where the gateway is; another than Discord's own is used for resuming, too."""
    answer_in_groups: Literal["addressed", "all", "never"] = "addressed"
    """Which messages in groups and channels are answered: addressed (mentions and replies), all, or never. /answer
    changes it in one place."""
    answer_bots: bool = False
    """Answer messages of other bots."""
    stream_replies: bool = True
    """Show replies while they are written, on platforms that can."""
    show_sources: bool = True
    """Whether replies on chat platforms end with the sources they used. /sources changes it in one place."""
    acknowledgement_reaction: str = ""
    """An emoji that is put on a message while it is being answered, e.g. 👀. Unset: none."""
    queue_mode: Literal["collect", "interrupt", "followup"] = "collect"
    """What happens to messages that arrive while an answer is made: collect (answered together afterwards), interrupt
    (the answer begins again and includes them) or followup (one turn each). /queue changes it in one place."""
    attachment_max_bytes: Positive = 10_000_000
    """Largest file that is read."""


class AccessSettings(BaseModel):
    """Who may talk, how much, and in which workspace."""

    access_policy: Literal["pairing", "allowlist", "open"] = "pairing"
    """pairing (strangers get a one-time code), allowlist or open."""
    access_allowlist: UserIds = ()
    """connector:user_id of people who may talk."""
    access_admins: UserIds = ()
    """connector:user_id of admins everywhere."""
    rate_limit_messages: Positive = 8
    """Messages of one person in one conversation within the window, and as many commands. Admins are exempt."""
    rate_limit_window_seconds: Positive = 60
    """Length of that window."""
    default_workspace: WorkspaceName = "default"
    """The workspace of every place that no route names. Unset, a place that had a workspace of its own keeps it until
    a route says otherwise. The terminal uses sample while this workspace has no documents."""
    workspace_per_place: bool = False
    """Whether each Slack team, Discord server and Telegram chat that no route names has a workspace of its own: for
    those who serve people who must not share documents."""
    routes: dict[Place, WorkspaceName] = {}
    """TOML table: which places belong to which workspace, e.g. "telegram:-10001" = "acme"."""
    sigils: dict[SigilName, SigilSettings] = {}
    """TOML tables: named sets of permission scopes, e.g. [sigils.reader] with scopes = ["documents:read"]. admin,
    member and viewer exist from the start and can be replaced; see sigils.md."""
    sigil_bindings: dict[SigilBinding, SigilName] = {}
    """TOML table: who has which sigil, e.g. "role:viewer" = "reader"; also "user:connector:user_id" and
    "context:connector:external_id" (with its threads). A user's binding goes before a context's, and that before a
    role's."""


class BudgetSettings(BaseModel):
    """What model calls may cost."""

    budget_workspace_tokens_per_day: BudgetTokens | None = None
    """Tokens (prompt and completion) that a whole workspace may use in a day (UTC); 0: none. Unset, here and
    below: unlimited. Admins may set another limit for a workspace."""
    budget_workspace_tokens_per_month: BudgetTokens | None = None
    """Tokens (prompt and completion) that a whole workspace may use in a month (UTC)."""
    budget_workspace_usd_per_day: BudgetUsd | None = None
    """US dollars, by LiteLLM's prices, that a whole workspace may cost in a day (UTC)."""
    budget_workspace_usd_per_month: BudgetUsd | None = None
    """US dollars, by LiteLLM's prices, that a whole workspace may cost in a month (UTC)."""
    budget_user_tokens_per_day: BudgetTokens | None = None
    """Tokens (prompt and completion) that one person in a workspace may use in a day (UTC)."""
    budget_user_tokens_per_month: BudgetTokens | None = None
    """Tokens (prompt and completion) that one person in a workspace may use in a month (UTC)."""
    budget_user_usd_per_day: BudgetUsd | None = None
    """US dollars, by LiteLLM's prices, that one person in a workspace may cost in a day (UTC)."""
    budget_user_usd_per_month: BudgetUsd | None = None
    """US dollars, by LiteLLM's prices, that one person in a workspace may cost in a month (UTC)."""


class StoreSettings(BaseModel):
    """Where data is kept. Several processes need a Redis and a Qdrant server."""

    data_dir: Path = Path("./data")
    """Everything that is kept on disk."""
    redis_url: Annotated[
        SecretStr | None, url_validator("redis", "rediss", "redis+cluster", "redis+sentinel", "unix")
    ] = None
    """A Redis server: redis://, rediss://, unix://, redis+cluster://host:port,… or
    redis+sentinel://host:port,…/service. Unset: an embedded server under DATA_DIR."""
    redis_timeout_seconds: PositiveSeconds = 5.0
    """Time limit of one call to Redis."""
    qdrant_url: WebUrl | None = None
    """A Qdrant server or cluster. Unset: embedded under DATA_DIR."""
    qdrant_api_key: SecretStr | None = None
    """API key for QDRANT_URL."""
    qdrant_timeout_seconds: PositiveSeconds = 5.0
    """Time limit of one call to Qdrant."""
    index_keep_former_days: Annotated[float, Field(ge=0, le=MAX_DAYS)] = 7.0
    """After another EMBEDDING_MODEL is set, the old index is kept for this many days, so that going back is cheap. 0:
    it is deleted at once."""


class HttpSettings(BaseModel):
    """The HTTP interface and its limits."""

    http_host: str = "127.0.0.1"
    """Address to listen on."""
    http_port: Annotated[int, Field(ge=0, le=65535)] = 8420
    """Port to listen on; 0 takes a free one."""
    admin_token: SecretStr | None = None
    """Token of the administrator. Unset: one is generated into DATA_DIR/admin-token, readable by you alone."""
    audit_key: Annotated[SecretStr | None, Field(min_length=16)] = None
    """Key that signs the audit log. Unset: one is generated into DATA_DIR/audit-key. Machines that share a Redis need
    the same."""
    http_public_url: WebUrl | None = None
    """Where other machines reach this runtime; its host is served too. Telegram's webhook is registered there."""
    http_allowed_hosts: List = ()
    """Further values of the Host header that are accepted."""
    http_max_body_bytes: Positive = 1_000_000
    """Largest request of a message."""
    document_max_bytes: Positive = 2_000_000
    """Largest document, and largest file of the codex."""
    codex_max_bytes: Positive = 50_000_000
    """Size of all material of a workspace, and of each conversation's own."""
    context_document_max_bytes: Positive = 65_536
    """Largest context document (summary) of a conversation."""


class GroundingSettings(BaseModel):
    """What goes into a prompt."""

    llm_grounding_top_k: Positive = 3
    """Passages in a prompt."""
    llm_grounding_max_doc_excerpt_bytes: Positive = 1200
    """Size of one passage."""
    llm_grounding_max_prompt_bytes: Positive = 8000
    """Size of message, summary, tail and passages together."""
    llm_grounding_max_prompt_tokens: Positive = 2000
    """Tokens of message, summary, tail and passages together."""
    llm_grounding_user_max_tokens: Positive = 650
    """Tokens of the message itself."""
    llm_grounding_memory_summary_max_tokens: Positive = 380
    """Tokens of the summary."""
    llm_grounding_chat_tail_max_tokens: Positive = 300
    """Tokens of the tail."""
    llm_grounding_qmd_max_tokens: Positive = 900
    """Tokens of all passages."""
    llm_grounding_chat_tail_lines: Positive = 24
    """Lines of the tail."""
    llm_grounding_chat_tail_bytes: Positive = 1800
    """Size of the tail in bytes (UTF-8); the oldest lines are dropped."""
    llm_grounding_memory_summary_refresh_turns: Positive = 6
    """Turns between refreshes of the summary."""
    llm_grounding_memory_summary_max_items: Positive = 7
    """Items under one heading of the summary."""
    llm_grounding_memory_summary_source_max_lines: Positive = 120
    """Newest log entries that a refresh reads."""
    llm_grounding_layout: Literal["user_first", "prefix_stable"] = "prefix_stable"
    """Order of the user message: prefix_stable (what changes least first, the message last) or user_first (message,
    summary, tail, passages, hint)."""
    strategy_vocabulary: bool = True
    """Search the documents and the earlier conversation for every message that is not small talk, and use what is
    relevant. Off: only cues decide."""
    context_max_tokens: Positive = 8000
    """Tokens of all blocks of the user message together."""
    policy_max_tokens: Positive = 3000
    """Tokens of the identity (all directives together). Publishing more is refused."""
    global_context_max_tokens: Positive = 800
    """Tokens of the global context. A line that does not fit is refused when it is written."""
    global_context_approval: Literal["untrusted", "always", "never"] = "untrusted"
    """Which lines that the model writes wait for a person's approval: untrusted (those written in a turn that was
    shown retrieved text, files or, in a group, other people's words), always, or never."""
    codex_window_ratio: Annotated[float, Field(gt=0, le=1)] = 0.7
    """Share of the model's window up to which material (codex) is given whole. Above it, material is searched."""
    prompt_max_characters: Positive = 96_000
    """Characters of system and user message together. If you set it, material (codex) counts too; unset, it does not.
    A prompt that cannot be cut to this is refused."""
    history_max_turns: Positive = 20
    """Turns of the conversation that a prompt may show, each a whole pair of request and reply."""
    session_idle_seconds: Positive = 1800
    """A pause after which the next message begins a new session: the global context is numbered anew, and the summary
    is read anew."""


class MemorySettings(BaseModel):
    """Records: facts, decisions and the like, kept from conversations."""

    records_extraction: bool = True
    """Look in conversations for facts and decisions worth keeping. Off: only tools and people make records."""
    records_extraction_turns: Positive = 6
    """Turns between two looks of the model for records. Without a language model, plain statements are looked for
    after every turn."""
    censor_block_activations: Positive = 3
    """A censor blocks after it has acted rightly this often."""
    episode_archived_days: PositiveDays = 90
    """Days after which only the summary of an episode is kept, unless it is verbatim."""


class TurnSettings(BaseModel):
    """Turns, their retries and their delivery."""

    turn_collect_milliseconds: Natural = 0
    """How long to wait for the rest of a message that looks unfinished. 0: 1500. Other messages never wait."""
    turn_max_attempts: Positive = 3
    """How often one turn may fail before it is given up: an apology, and a dead letter. A crash of the process is no
    failure of the turn."""
    turn_max_crashes: Positive = 10
    """How many crashes of its process one turn may go through before it is given up, too: it may be what causes them.
    From the third on, it waits before it is tried again, longer each time."""
    turn_lease_seconds: Positive = 15
    """If a worker gives no sign for this long, another one continues its conversation."""
    delivery_ambiguous: Literal["skip", "resend"] = "resend"
    """A part of a reply of which nobody can find out whether it arrived: skip or resend."""
    shutdown_grace_seconds: PositiveSeconds = 20.0
    """How long running turns may take when the process stops."""


class ToolSettings(BaseModel):
    """Tools, formatters and source trees."""

    tool_max_rounds: Natural = 4
    """How often the model may call tools in one turn before it must answer. 0: no tools."""
    formatter_timeout_seconds: PositiveSeconds = 1.0
    """Time limit of a formatter (see formatters.md). Without its text the turn goes on."""
    source_trees: dict[WorkspaceName, Path] = {}
    """TOML table: a folder for a workspace, e.g. "acme" = "/srv/acme". The paths and sizes of its files stand in the
    workspace's prompts, as they were when the session began."""


class Settings(
    ModelSettings,
    PlatformSettings,
    AccessSettings,
    BudgetSettings,
    StoreSettings,
    HttpSettings,
    GroundingSettings,
    MemorySettings,
    TurnSettings,
    ToolSettings,
):
    """All settings of one process. Immutable; secrets print as ``**********``."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    @property
    def model_name(self) -> str:
        """The language model that answers, before any fallback model."""
        return self.llm_model or EXTRACTIVE

    @property
    def has_provider_model(self) -> bool:
        """Whether a provider runs the first model. `BUNDLED_MODELS` run here and cannot write summaries."""
        return self.model_name not in BUNDLED_MODELS

    @property
    def bundled_embedding_model(self) -> str | None:
        """The one of `BUNDLED_EMBEDDING_MODELS` that embeds, or None if a provider embeds."""
        name = self.embedding_model or BUNDLED_EMBEDDING_MODELS[0]
        return name if name in BUNDLED_EMBEDDING_MODELS else None

    @property
    def listens_beyond_loopback(self) -> bool:
        """Whether other machines can reach the HTTP interface."""
        try:
            return not ipaddress.ip_address(self.http_host).is_loopback
        except ValueError:
            return self.http_host != "localhost"


GROUNDING_NUMBERS = tuple(
    name for name in Settings.model_fields if name.startswith(GROUNDING_PREFIX) and name != "llm_grounding_layout"
)
"""The thirteen numbers that fall back to their default instead of stopping the process."""

SECRETS = frozenset(name for name, field in Settings.model_fields.items() if "SecretStr" in str(field.annotation))
"""Names of the settings whose values are never printed."""

TOPICS = Settings.__bases__
"""The groups of settings, in the order of docs/settings.md. A group's docstring is its heading."""
