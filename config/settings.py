"""Every setting, its type, its unit and its default, in one place.

The environment variable of a field is ``AGENT_RUNTIME_`` and the field's name in upper case; in a
TOML file it is the field's name. Units stand in the names (``_seconds``, ``_tokens``, ``_bytes``).
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

Positive = Annotated[int, Field(gt=0)]
PositiveSeconds = Annotated[float, Field(gt=0)]

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
            parts = urlsplit(value)
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
WebUrl = Annotated[str, _url_with_scheme("http", "https")]


class Settings(BaseModel):
    """All settings of one process. Immutable; secrets print as ``**********``."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    # Where things are kept.
    data_dir: Path = Path("./data")
    redis_url: Annotated[
        SecretStr | None, _url_with_scheme("redis", "rediss", "redis+cluster", "redis+sentinel", "unix")
    ] = None
    redis_timeout_seconds: PositiveSeconds = 5.0
    qdrant_url: WebUrl | None = None
    qdrant_api_key: SecretStr | None = None
    qdrant_timeout_seconds: PositiveSeconds = 5.0

    # The model.
    llm_model: str | None = None
    llm_api_base: WebUrl | None = None
    llm_api_key: SecretStr | None = None
    llm_fallback_models: List = ()
    llm_timeout_seconds: PositiveSeconds = 60.0
    llm_max_attempts: Positive = 3
    llm_max_output_tokens: Positive = 1024
    llm_context_window_tokens: Positive | None = None
    embedding_model: str | None = None
    embedding_timeout_seconds: PositiveSeconds = 20.0

    # The thirteen controls of grounding: ceilings, never raised silently.
    llm_grounding_top_k: Positive = 3
    llm_grounding_max_doc_excerpt_bytes: Positive = 1200
    llm_grounding_max_prompt_bytes: Positive = 8000
    llm_grounding_max_prompt_tokens: Positive = 2000
    llm_grounding_user_max_tokens: Positive = 650
    llm_grounding_memory_summary_max_tokens: Positive = 380
    llm_grounding_chat_tail_max_tokens: Positive = 300
    llm_grounding_qmd_max_tokens: Positive = 900
    llm_grounding_chat_tail_lines: Positive = 24
    llm_grounding_chat_tail_bytes: Positive = 1800
    llm_grounding_memory_summary_refresh_turns: Positive = 6
    llm_grounding_memory_summary_max_items: Positive = 7
    llm_grounding_memory_summary_source_max_lines: Positive = 120

    # The whole prompt.
    llm_grounding_layout: Literal["user_first", "prefix_stable"] = "user_first"
    context_max_tokens: Positive = 8000
    policy_max_tokens: Positive = 3000
    global_context_max_tokens: Positive = 800
    codex_window_ratio: Annotated[float, Field(gt=0, le=1)] = 0.7
    prompt_max_characters: Positive = 96_000
    history_max_turns: Positive = 20
    session_idle_seconds: Positive = 1800
    censor_block_activations: Positive = 3

    # Platforms. A platform is on when its token is set.
    slack_bot_token: Annotated[SecretStr | None, _prefixed_secret("xoxb-")] = None
    slack_app_token: Annotated[SecretStr | None, _prefixed_secret("xapp-")] = None
    slack_signing_secret: SecretStr | None = None
    slack_api_base: WebUrl = "https://slack.com/api/"
    telegram_bot_token: SecretStr | None = None
    telegram_api_base: WebUrl = "https://api.telegram.org"
    telegram_timeout_seconds: PositiveSeconds = 20.0
    telegram_poll_seconds: Positive = 30
    telegram_webhook_secret: SecretStr | None = None
    discord_bot_token: SecretStr | None = None
    discord_api_base: WebUrl = "https://discord.com/api/v10"
    discord_gateway_url: Annotated[str, _url_with_scheme("ws", "wss")] = "wss://gateway.discord.gg/"

    # The HTTP face.
    http_host: str = "127.0.0.1"
    http_port: Annotated[int, Field(ge=0, le=65535)] = 8420
    http_public_url: WebUrl | None = None
    http_allowed_hosts: List = ()
    http_max_body_bytes: Positive = 1_000_000
    document_max_bytes: Positive = 2_000_000
    context_document_max_bytes: Positive = 65_536
    admin_token: SecretStr | None = None

    # Who may talk, and where messages go.
    default_workspace: WorkspaceName | None = None
    routes: dict[str, WorkspaceName] = {}
    access_policy: Literal["pairing", "allowlist", "open"] = "pairing"
    access_allowlist: UserIds = ()
    access_admins: UserIds = ()
    rate_limit_messages: Positive = 8
    rate_limit_window_seconds: Positive = 60
    sigils: dict[str, dict[str, Any]] = {}
    sigil_bindings: dict[str, str] = {}

    # Turns.
    turn_collect_milliseconds: Annotated[int, Field(ge=0)] = 0
    turn_max_attempts: Positive = 3
    turn_lease_seconds: Positive = 15
    delivery_ambiguous: Literal["skip", "resend"] = "skip"
    shutdown_grace_seconds: PositiveSeconds = 20.0

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
