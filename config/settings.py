"""Every setting, its type, its unit and its default, in one place.

The environment variable of a field is ``AGENT_RUNTIME_`` and the field's name in upper case; in a
TOML file it is the field's name. Units stand in the names (``_seconds``, ``_tokens``, ``_bytes``).
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
)

from config.sigils import SHIPPED_SIGILS, SigilBinding, SigilName, SigilSettings

Positive = Annotated[int, Field(gt=0)]
Natural = Annotated[int, Field(ge=0)]
Weight = Annotated[float, Field(ge=0, le=1)]
PositiveSeconds = Annotated[float, Field(gt=0)]
BudgetTokens = Annotated[int, Field(ge=0, le=10**12)]
BudgetUsd = Annotated[float, Field(ge=0, le=10**6)]
"""Counted in billionths of a dollar: up to here every sum of them is exact in Redis's numbers, too."""

GROUNDING_PREFIX = "llm_grounding_"


def _comma_separated(value: object) -> object:
    """A list setting is one comma-separated string in the environment, a list in TOML."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if isinstance(value, list):
        return tuple(value)
    return value


def _url_with_scheme(*schemes: str) -> BeforeValidator:
    def check(value: object) -> object:
        if isinstance(value, str):
            try:
                parts = urlsplit(value)
            except ValueError:
                # Its text may quote the user and password.
                raise ValueError("expected a URL; this one cannot be read") from None
            if parts.scheme not in schemes or not (parts.netloc or parts.path):
                raise ValueError(f"expected a URL starting with {' or '.join(s + '://' for s in schemes)}")
        return value

    return BeforeValidator(check)


def _prefixed_secret(prefix: str) -> BeforeValidator:
    def check(value: object) -> object:
        if isinstance(value, str) and not value.startswith(prefix):
            raise ValueError(f"expected a token starting with {prefix}")
        return value

    return BeforeValidator(check)


List = Annotated[tuple[str, ...], BeforeValidator(_comma_separated)]
UserIds = Annotated[tuple[Annotated[str, Field(pattern=r"^[a-z]+:.+$")], ...], BeforeValidator(_comma_separated)]
WorkspaceName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]

BUNDLED = "bundled/"
BUNDLED_EMBEDDING_MODELS = ("bundled/wordllama", "bundled/minilm")
"""Embedding models that run in this process. The first is the default."""


def _known_if_bundled(value: object) -> object:
    if isinstance(value, str) and value.startswith(BUNDLED) and value not in BUNDLED_EMBEDDING_MODELS:
        raise ValueError(f"expected {' or '.join(BUNDLED_EMBEDDING_MODELS)}, or a LiteLLM embedding id")
    return value


EmbeddingModel = Annotated[str, BeforeValidator(_known_if_bundled)]
WebUrl = Annotated[str, _url_with_scheme("http", "https")]


class Settings(BaseModel):
    """All settings of one process. Immutable; secrets print as ``**********``."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    # Where things are kept.
    data_dir: Path = Path("./data")
    """Everything that is kept on disk."""
    redis_url: Annotated[
        SecretStr | None, _url_with_scheme("redis", "rediss", "redis+cluster", "redis+sentinel", "unix")
    ] = None
    """A Redis server: redis://, rediss://, unix://, redis+cluster://host:port,… or
    redis+sentinel://host:port,…/service. Unset: an embedded server under DATA_DIR."""
    redis_timeout_seconds: PositiveSeconds = 5.0
    """One call to Redis."""
    qdrant_url: WebUrl | None = None
    """A Qdrant server or cluster. Unset: embedded under DATA_DIR."""
    qdrant_api_key: SecretStr | None = None
    """For QDRANT_URL."""
    qdrant_timeout_seconds: PositiveSeconds = 5.0
    """One call to Qdrant."""
    index_stale_seconds: PositiveSeconds = 10.0
    """How long a changed document may wait for the index before prompts say that what was found may be out of date."""
    index_keep_former_days: Annotated[float, Field(ge=0)] = 7.0
    """How many days the index of a former EMBEDDING_MODEL is kept after the last workspace has left it, so that going
    back is cheap. 0: it is dropped at once."""

    # The model.
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

    # The thirteen controls of grounding: ceilings, never raised silently.
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
    """Size of the tail."""
    llm_grounding_memory_summary_refresh_turns: Positive = 6
    """Turns between refreshes of the summary."""
    llm_grounding_memory_summary_max_items: Positive = 7
    """Items under one heading of the summary."""
    llm_grounding_memory_summary_source_max_lines: Positive = 120
    """Newest log entries that a refresh reads."""

    # The strategy.
    strategy_vocabulary: bool = True
    """A message without cues is looked up in the workspace's documents; what they speak of is retrieved. Off: cues
    alone decide."""
    strategy_vocabulary_timeout_seconds: PositiveSeconds = 0.5
    """What that look may take at most; then the cues' decision stands."""

    # Records that are shown.
    record_weight_similarity: Weight = 0.50
    """What a record's likeness to the message counts in its score; only those above the relevance floor have one."""
    record_weight_type: Weight = 0.15
    """What its type's priority in the frame counts."""
    record_weight_recency: Weight = 0.15
    """What it counts to be new; half of it after 30 days."""
    record_weight_outcome: Weight = 0.10
    """What its outcome counts (success, partial, failure, pending)."""
    record_weight_usage: Weight = 0.05
    """What it counts to have been followed often."""
    record_weight_confidence: Weight = 0.05
    """What its confidence counts."""
    record_relevance_floor: float | None = None
    """Log-odds that a record must reach to be shown; unset: as calibrated for the embedding model."""
    records_decisions_max_tokens: Natural = 2000
    """Tokens of decisions in the block of records; frame and message scale it, and what is left over flows."""
    records_facts_max_tokens: Natural = 1500
    """The same for facts."""
    records_procedures_max_tokens: Natural = 1500
    """The same for procedures."""
    records_episodes_max_tokens: Natural = 1000
    """The same for episodes."""
    records_items_max_tokens: Natural = 500
    """The same for items."""

    # The whole prompt.
    llm_grounding_layout: Literal["user_first", "prefix_stable"] = "prefix_stable"
    """user_first (message, summary, tail, passages, hint) or prefix_stable (what changes least first, the message
    last)."""
    context_max_tokens: Positive = 8000
    """Tokens of all blocks of the user message, whatever their own budgets."""
    policy_max_tokens: Positive = 3000
    """Tokens of the identity; more is an error when publishing."""
    frame_max_tokens: Positive = 500
    """Tokens of the current approach and its questions."""
    censors_max_tokens: Positive = 300
    """Tokens of the censors in force, as they are told to the model; those beyond act all the same."""
    global_context_max_tokens: Positive = 800
    """Tokens of the global context as it stands in a prompt; a line beyond is refused when it is written."""
    environment_max_tokens: Positive = 120
    """Tokens of what the model is told about the machine and its permissions."""
    karma_floor_max_tokens: Positive = 300
    """Tokens of the standing examples of what people marked as good."""
    karma_max_tokens: Positive = 300
    """Tokens of the examples that are chosen for a message."""
    now_max_tokens: Positive = 120
    """Tokens of today's date and of what changed since the session began."""
    global_context_approval: Literal["untrusted", "always", "never"] = "untrusted"
    """Which lines that the model writes wait until a person approves them: those written in a turn that was shown
    retrieved text, files or, in a group, what others said (untrusted), always, or never."""
    environment_sample_seconds: PositiveSeconds = 10.0
    """How often the machine is looked at: graphics memory, power, what is reached. A driver that takes longer counts as
    one that does not answer."""
    low_power: Literal["auto", "on", "off"] = "auto"
    """Whether the model is told that power is saved. auto: where the machine's profile says so, or a battery runs out.
    """
    codex_window_ratio: Annotated[float, Field(gt=0, le=1)] = 0.7
    """Part of the model's window up to which material (`codex`) is given whole; above it is searched."""
    prompt_max_characters: Positive = 96_000
    """Characters of system and user message together. What has to be said and does not fit is refused, and named."""
    history_max_turns: Positive = 20
    """Turns of the conversation that a prompt may show, each a whole pair of request and reply."""
    session_idle_seconds: Positive = 1800
    """A pause after which a conversation's next message begins a new session: the global context is renumbered, and
    what prompts showed of it, and of the context document, is taken anew."""
    records_extraction: bool = True
    """What people state in conversations is looked through for facts and decisions worth keeping. Off: records are made
    by tools and by people alone."""
    records_extraction_turns: Positive = 6
    """Turns between two looks of the model at a conversation for records. Without a model of its own the runtime looks
    for plain statements after every turn."""
    censor_block_activations: Positive = 3
    """A censor blocks once it has acted so often, and rightly."""
    censor_retired_false_positives: Positive = 3
    """A censor is retired once so many people said that it acted wrongly."""
    fact_core_confirmations: Positive = 3
    """A fact becomes core once it was said again so often."""
    procedure_judged_activations: Positive = 5
    """A procedure is called effective (over .6 of its outcomes a success) or ineffective (below .4) once it was
    followed so often."""
    episode_summarized_days: Positive = 30
    """After so long an episode counts as summarized."""
    episode_archived_days: Positive = 90
    """After so long only the summary of an episode is kept, unless it is verbatim."""

    # Platforms. A platform is on when its token is set.
    slack_bot_token: Annotated[SecretStr | None, _prefixed_secret("xoxb-")] = None
    """The app's Bot User OAuth Token. Set: Slack is on; it needs one of the next two as well."""
    slack_app_token: Annotated[SecretStr | None, _prefixed_secret("xapp-")] = None
    """An app-level token with connections:write. Set: events come by Socket Mode."""
    slack_signing_secret: SecretStr | None = None
    """Without SLACK_APP_TOKEN: events come over HTTP, at /slack/events, and are checked with this."""
    slack_api_base: WebUrl = "https://slack.com/api/"
    """Where the Web API is; it also says where Socket Mode connects to."""
    slack_timeout_seconds: PositiveSeconds = 20.0
    """One call to Slack."""
    telegram_bot_token: SecretStr | None = None
    """From @BotFather. Set: Telegram is on."""
    telegram_api_base: WebUrl = "https://api.telegram.org"
    """Where the Bot API is."""
    telegram_timeout_seconds: PositiveSeconds = 20.0
    """One call to Telegram."""
    telegram_poll_seconds: Positive = 30
    """How long one poll waits for something to happen."""
    telegram_webhook_secret: SecretStr | None = None
    """1 to 256 of A-Z, a-z, 0-9, _ and -. Set: updates are posted to /telegram/webhook, registered at HTTP_PUBLIC_URL.
    Unset: updates come by long polling."""
    discord_bot_token: SecretStr | None = None
    """From the Developer Portal, under Bot, where Message Content Intent has to be on. Set: Discord is on."""
    discord_api_base: WebUrl = "https://discord.com/api/v10"
    """Where the REST API is."""
    discord_gateway_url: Annotated[str, _url_with_scheme("ws", "wss")] = "wss://gateway.discord.gg/"
    """Where the gateway is; another than Discord's own is used for resuming, too."""
    discord_timeout_seconds: PositiveSeconds = 20.0
    """One request to Discord; a call may wait for rate limits besides."""

    # How the bot behaves on platforms.
    stream_replies: bool = True
    """Whether replies are shown while they are written, where the platform can."""
    acknowledgement_reaction: str = ""
    """An emoji that is put on a message while its answer is on its way, e.g. 👀. Unset: none."""
    answer_in_groups: Literal["addressed", "all", "never"] = "addressed"
    """In groups and channels: what is addressed to the bot, everything, or nothing. /answer changes it in a place."""
    answer_bots: bool = False
    """Whether messages of other bots are answered."""
    reply_max_parts: Positive = 5
    """A reply of more platform messages than this goes as its beginning and a file."""

    # Files that come with messages.
    attachment_max_bytes: Positive = 10_000_000
    """Size of one file that is read."""
    attachment_max_pages: Positive = 50
    """Pages, sheets or slides that are read of one file."""
    attachment_timeout_seconds: PositiveSeconds = 30.0
    """Fetching one file; also reading it."""

    # The HTTP face.
    http_host: str = "127.0.0.1"
    """Address to listen on."""
    http_port: Annotated[int, Field(ge=0, le=65535)] = 8420
    """Port to listen on; 0 takes a free one."""
    http_public_url: WebUrl | None = None
    """Where other machines reach this runtime; its host is served too. Telegram's webhook is registered there."""
    http_allowed_hosts: List = ()
    """Further values of the Host header that are served."""
    http_max_body_bytes: Positive = 1_000_000
    """Size of a message's request."""
    document_max_bytes: Positive = 2_000_000
    """Size of one document."""
    codex_file_max_bytes: Positive = 2_000_000
    """Size of one file of the material."""
    codex_max_bytes: Positive = 50_000_000
    """Size of all material of a workspace, and of each conversation's own."""
    context_document_max_bytes: Positive = 65_536
    """Size of a conversation's context document."""
    admin_token: SecretStr | None = None
    """Bearer token of the admin. Unset: generated into DATA_DIR/admin-token, mode 0600."""

    # Who may talk, and where messages go.
    default_workspace: WorkspaceName | None = None
    """Where messages go that no route names. Unset: sample for terminal and HTTP, else one workspace per place."""
    routes: dict[str, WorkspaceName] = {}
    """TOML table: which places belong to which workspace, e.g. "telegram:-10001" = "acme"."""
    access_policy: Literal["pairing", "allowlist", "open"] = "pairing"
    """pairing (strangers get a one-time code), allowlist or open."""
    access_allowlist: UserIds = ()
    """connector:user_id of people who may talk."""
    access_admins: UserIds = ()
    """connector:user_id of admins everywhere."""
    rate_limit_messages: Positive = 8
    """Messages per person and conversation in a window, and as many commands; admins are exempt."""
    rate_limit_window_seconds: Positive = 60
    """The window."""

    # What model calls may cost.
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

    # Tools.
    llm_tools: Literal["auto", "always", "never"] = "auto"
    """Whether models are offered tools: auto (where LiteLLM knows that the model calls functions), always (also where
    it does not know: an own server) or never. The small local model is offered none."""
    tool_max_rounds: Annotated[int, Field(ge=0)] = 4
    """How often in one turn the model may call tools before it has to answer; 0: no tools."""
    tool_timeout_seconds: PositiveSeconds = 20.0
    """One tool call."""
    tool_result_max_tokens: Positive = 1200
    """Tokens of one tool's answer; what is longer is cut, and marked as cut."""
    formatter_timeout_seconds: PositiveSeconds = 1.0
    """How long a formatter (see formatters.md) may take to make its text; without it the turn goes on."""
    source_trees: dict[WorkspaceName, Path] = {}
    """TOML table: a folder for a workspace, e.g. "acme" = "/srv/acme"; the paths and sizes of the files in it stand in
    the workspace's prompts, as they were when a session began."""
    source_tree_max_tokens: Annotated[int, Field(ge=50, le=20_000)] = 1500
    """Tokens of a source tree."""
    sigils: dict[SigilName, SigilSettings] = {}
    """TOML tables: named sets of permission scopes, e.g. [sigils.reader] with scopes = ["documents:read"]. admin,
    member and viewer are there from the start and may be set anew; see sigils.md."""
    sigil_bindings: dict[SigilBinding, SigilName] = {}
    """TOML table: whose sigil is which, e.g. "role:viewer" = "reader"; also "user:connector:user_id" and
    "context:connector:external_id" (with its threads). A user's goes before a context's, and that before a role's."""

    # Turns.
    queue_mode: Literal["collect", "interrupt", "followup"] = "collect"
    """What arrives while an answer is made: collect (answered together afterwards), interrupt (the answer begins
    again, with it) or followup (a turn for each message). /queue changes it in a place."""
    turn_collect_milliseconds: Annotated[int, Field(ge=0)] = 0
    """How long to wait for the rest of a message that looks unfinished; 0: 1500. Nothing else waits."""
    turn_max_attempts: Positive = 3
    """How often one turn is tried before it is given up: an apology, and a dead letter."""
    turn_lease_seconds: Positive = 15
    """How long a worker that tells nothing keeps its conversation; then another goes on with it."""
    delivery_ambiguous: Literal["skip", "resend"] = "skip"
    """A part of a reply whose sending was interrupted: skip or resend."""
    shutdown_grace_seconds: PositiveSeconds = 20.0
    """How long turns in hand may take when the process stops."""

    @field_validator("sigil_bindings")
    @classmethod
    def _bound_to_what_there_is(cls, bindings: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        known = {*SHIPPED_SIGILS, *info.data.get("sigils", bindings.values())}  # where those are wrong, that is said
        unknown = sorted(f"{bound} = {name}" for bound, name in bindings.items() if name not in known)
        if unknown:
            raise ValueError(f"no such sigil: {', '.join(unknown)}; expected one of {', '.join(sorted(known))}")
        return bindings

    @property
    def bundled_embedding_model(self) -> str | None:
        """Which of `BUNDLED_EMBEDDING_MODELS` embeds; None where a provider does."""
        name = self.embedding_model or BUNDLED_EMBEDDING_MODELS[0]
        return name if name in BUNDLED_EMBEDDING_MODELS else None

    @property
    def listens_beyond_loopback(self) -> bool:
        """Whether the HTTP face can be reached from other machines."""
        try:
            return not ipaddress.ip_address(self.http_host).is_loopback
        except ValueError:
            return self.http_host != "localhost"


GROUNDING_NUMBERS = tuple(
    name for name in Settings.model_fields if name.startswith(GROUNDING_PREFIX) and name != "llm_grounding_layout"
)
"""The thirteen numbers that fall back to their default instead of stopping the process."""

SECRETS = frozenset(name for name, field in Settings.model_fields.items() if "SecretStr" in str(field.annotation))
"""Names of the settings whose values are never shown."""
