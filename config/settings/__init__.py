"""Every setting with its type, unit and default. Each topic has a module; `Settings` combines them.

The environment variable of a field is ``AGENT_RUNTIME_`` plus the field's name in upper case; the key in a
TOML file is the field's name. Names carry their units (``_seconds``, ``_tokens``, ``_bytes``).
"""

from __future__ import annotations

import ipaddress

from pydantic import ConfigDict

from config.settings.access import AccessSettings
from config.settings.grounding import GroundingSettings
from config.settings.http import HttpSettings
from config.settings.memory import MemorySettings
from config.settings.models import ModelSettings
from config.settings.platforms import PlatformSettings
from config.settings.spending import SpendingSettings
from config.settings.stores import StoreSettings
from config.settings.tools import ToolSettings
from config.settings.turns import TurnSettings
from config.settings.types import BUNDLED_EMBEDDING_MODELS, BUNDLED_MODELS, EXTRACTIVE, SMOLLM2

__all__ = [
    "BUNDLED_EMBEDDING_MODELS",
    "BUNDLED_MODELS",
    "EXTRACTIVE",
    "GROUNDING_NUMBERS",
    "SECRETS",
    "SMOLLM2",
    "Settings",
]

GROUNDING_PREFIX = "llm_grounding_"


class Settings(
    TurnSettings,
    ToolSettings,
    SpendingSettings,
    AccessSettings,
    HttpSettings,
    PlatformSettings,
    MemorySettings,
    GroundingSettings,
    ModelSettings,
    StoreSettings,
):
    """All settings of one process. Immutable; secrets print as ``**********``.

    pydantic orders the fields from the last base to the first, so docs/settings.md begins with the stores.
    """

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
