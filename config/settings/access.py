"""Who may talk, and where messages go."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from config.settings.types import Place, Positive, UserIds, WorkspaceName


class AccessSettings(BaseModel):
    """Who may talk, and where messages go."""

    default_workspace: WorkspaceName | None = None
    """Where messages go that no route names. Unset: sample for terminal and HTTP, else one workspace per place."""
    routes: dict[Place, WorkspaceName] = {}
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
