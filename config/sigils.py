"""The syntax of sigils (named sets of permission scopes) in the settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict


def match_validator(pattern: str, expected: str) -> AfterValidator:
    """Return a validator for texts that match all of *pattern*.

    The error for any other text is "expected " followed by *expected*.
    """

    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(f"expected {expected}")
        return value

    return AfterValidator(check)


SHIPPED_SIGILS: Mapping[str, tuple[str, ...]] = {
    "admin": ("*",),
    "member": ("*:read", "*:write"),
    "viewer": ("*:read",),
}
"""The permission scopes of the three roles. SIGILS and SIGIL_BINDINGS can override them."""


SigilName = Annotated[str, match_validator(r"[a-z0-9][a-z0-9_-]{0,63}", "a name of up to 64 of a-z, 0-9, _ and -")]
PermissionScope = Annotated[
    str,
    match_validator(
        r"\*|(\*|[a-z][a-z0-9-]*):(\*|[a-z]+)",
        "a scope written what:do, e.g. documents:read; * stands for any what, any do, or both",
    ),
]
SigilBinding = Annotated[
    str,
    match_validator(
        r"role:(admin|member|viewer)|(user|context):[a-z]+:.+",
        "role:admin, role:member, role:viewer, user:connector:user_id or context:connector:external_id",
    ),
]


class SigilSettings(BaseModel):
    """A named set of permission scopes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    scopes: tuple[PermissionScope, ...]
