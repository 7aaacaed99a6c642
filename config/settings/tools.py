"""Settings of tools, formatters, source trees, and sigils (named sets of permission scopes)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from config.settings.types import Natural, Positive, PositiveSeconds, WorkspaceName
from config.sigils import SigilBinding, SigilName, SigilSettings


class ToolSettings(BaseModel):
    """Settings of tools, formatters, source trees and sigils."""

    llm_tools: Literal["auto", "always", "never"] = "auto"
    """Whether models are offered tools: auto (where LiteLLM knows that the model calls functions), always (also where
    it does not know: an own server) or never. The bundled models are offered none."""
    tool_max_rounds: Natural = 4
    """How often the model may call tools in one turn before it must answer. 0: no tools."""
    tool_timeout_seconds: PositiveSeconds = 20.0
    """Time limit of one tool call."""
    tool_result_max_tokens: Positive = 1200
    """Tokens of one tool's result. Longer ones are cut, and marked as cut."""
    formatter_timeout_seconds: PositiveSeconds = 1.0
    """Time limit of a formatter (see formatters.md). Without its text the turn goes on."""
    source_trees: dict[WorkspaceName, Path] = {}
    """TOML table: a folder for a workspace, e.g. "acme" = "/srv/acme". The paths and sizes of its files stand in the
    workspace's prompts, as they were when the session began."""
    source_tree_max_tokens: Annotated[int, Field(ge=50, le=20_000)] = 1500
    """Tokens of a source tree."""
    sigils: dict[SigilName, SigilSettings] = {}
    """TOML tables: named sets of permission scopes, e.g. [sigils.reader] with scopes = ["documents:read"]. admin,
    member and viewer exist from the start and can be replaced; see sigils.md."""
    sigil_bindings: dict[SigilBinding, SigilName] = {}
    """TOML table: who has which sigil, e.g. "role:viewer" = "reader"; also "user:connector:user_id" and
    "context:connector:external_id" (with its threads). A user's binding goes before a context's, and that before a
    role's."""
