"""Tools, formatters, source trees, and who may do what: sigils."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from config.settings.types import Natural, Positive, PositiveSeconds, WorkspaceName
from config.sigils import SHIPPED_SIGILS, SigilBinding, SigilName, SigilSettings


class ToolSettings(BaseModel):
    """Tools, formatters, source trees and sigils."""

    llm_tools: Literal["auto", "always", "never"] = "auto"
    """Whether models are offered tools: auto (where LiteLLM knows that the model calls functions), always (also where
    it does not know: an own server) or never. The small local model is offered none."""
    tool_max_rounds: Natural = 4
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

    @field_validator("sigil_bindings")
    @classmethod
    def _bound_to_what_there_is(cls, bindings: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        known = {*SHIPPED_SIGILS, *info.data.get("sigils", bindings.values())}  # where those are wrong, that is said
        unknown = sorted(f"{bound} = {name}" for bound, name in bindings.items() if name not in known)
        if unknown:
            raise ValueError(f"no such sigil: {', '.join(unknown)}; expected one of {', '.join(sorted(known))}")
        return bindings
