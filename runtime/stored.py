"""The frame of small stored values: JSON objects that carry the version of their format."""

from __future__ import annotations

import json
from typing import Any

from connectors.message import AgentRuntimeError


class NewerFormat(AgentRuntimeError):
    """A stored value was written by a newer version of this program than the one that reads it."""


def pack(version: int, **fields: Any) -> str:
    """*fields* as compact JSON with ``"v": version``; plain ASCII, so that any store takes it."""
    return json.dumps({"v": version, **fields}, separators=(",", ":"), sort_keys=True)


def unpack(text: str | bytes, newest: int, what: str) -> dict[str, Any]:
    """The fields of a value made by `pack`. Raises `NewerFormat` if its version is above *newest*."""
    fields: dict[str, Any] = json.loads(text)
    version = fields.pop("v")
    if version > newest:
        raise NewerFormat(
            f"{what} is stored in format {version}, and this version of Agent Runtime reads up to {newest}: "
            "run the newer version that wrote it"
        )
    return fields
