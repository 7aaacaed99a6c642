"""The syntax of sigils (named sets of permission scopes) in the settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict

from config.matching import matching

SHIPPED_SIGILS: Mapping[str, tuple[str, ...]] = {
    "admin": ("*",),
    "member": ("*:read", "*:write"),
    "viewer": ("*:read",),
}
"""The permission scopes of the three roles. SIGILS and SIGIL_BINDINGS can override them."""


SigilName = Annotated[str, matching(r"[a-z0-9][a-z0-9_-]{0,63}", "a name of up to 64 of a-z, 0-9, _ and -")]
PermissionScope = Annotated[
    str,
    matching(
        r"\*|(\*|[a-z][a-z0-9-]*):(\*|[a-z]+)",
        "a scope written what:do, e.g. documents:read; * stands for any what, any do, or both",
    ),
]
SigilBinding = Annotated[
    str,
    matching(
        r"role:(admin|member|viewer)|(user|context):[a-z]+:.+",
        "role:admin, role:member, role:viewer, user:connector:user_id or context:connector:external_id",
    ),
]


class SigilSettings(BaseModel):
    """A named set of permission scopes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    scopes: tuple[PermissionScope, ...]
