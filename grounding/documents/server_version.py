"""What a Qdrant server of which version can do. Pure."""

from __future__ import annotations

import re

OLDEST = (1, 11)
"""Before it there are neither queries fused by scores nor indexes of tenants (release notes of 1.10 and 1.11)."""
WANTED = (1, 19)
"""Before it how rare a word is, is counted in the whole collection: the server passes over what it is asked
(https://github.com/qdrant/qdrant/pull/9661)."""


def version_of(told: str) -> tuple[int, int] | None:
    """Major and minor of a version as a server tells it (``1.19.2``); None where it is not one."""
    found = re.match(r"v?(\d+)\.(\d+)", told)
    return (int(found[1]), int(found[2])) if found else None


def cannot_be_used(told: str) -> str:
    """Why a server of that version cannot be used, as a person reads it; empty where it can."""
    version = version_of(told)
    return f"is of version {told}: upgrade it to {_named(WANTED)} or later" if version and version < OLDEST else ""


def too_old(told: str) -> str:
    """What a server of that version does otherwise than it is asked to, as a person reads it; empty where nothing."""
    version = version_of(told)
    if version is None or version >= WANTED:
        return ""
    return (
        f"the Qdrant server is of version {told}: how rare a word is, it counts over all workspaces; "
        f"from {_named(WANTED)} on, in the one that is searched"
    )


def _named(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
