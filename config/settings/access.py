"""Settings about who may talk and which workspace a message belongs to."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from config.settings.types import Place, Positive, UserIds, WorkspaceName


class AccessSettings(BaseModel):
    """Settings about who may talk and which workspace a message belongs to."""

    default_workspace: WorkspaceName = "default"
    """The workspace of every place that no route names. Unset, a place that had a workspace of its own keeps it until
    a route says otherwise. The terminal uses sample while this workspace has no documents."""
    workspace_per_place: bool = False
    """Whether each Slack team, Discord server and Telegram chat that no route names has a workspace of its own: for
    those who serve people who must not share documents."""
    routes: dict[Place, WorkspaceName] = {}
    """TOML table: which places belong to which workspace, e.g. "telegram:-10001" = "acme"."""
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
