"""Versions of directives and their stored format. Pure.

An entry is JSON: ``{"v": 1, "text", "author", "at", "origin", "sha256", "bytes", "restores"}``. If the version cleared
the slot, ``text`` is null and ``sha256`` is ``-``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from connectors.message import AgentRuntimeError
from promptpolicy.slot import Slot, digest

FORMAT = 1
CLEARED = "-"
Origin = Literal["file", "command", "api"]


class NoSuchVersion(AgentRuntimeError):
    """A slot has no version with this number."""

    user_text = "There is no such version."


class UnknownFormat(AgentRuntimeError):
    """A newer release wrote the stored value."""

    user_text = "A newer version of me has stored my instructions. Please tell an administrator."


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a slot. ``text`` is None if it cleared the slot.

    ``version`` counts from 1. ``bytes`` is the size of the text in UTF-8. ``restores`` is the version that a rollback
    restored.
    """

    slot: Slot
    version: int
    text: str | None
    author: str
    at: datetime
    origin: str
    sha256: str
    bytes: int
    restores: int | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """The next version of a slot before it is published. If ``text`` is None, it clears the slot."""

    text: str | None
    author: str
    origin: Origin
    restores: int | None = None

    @property
    def sha256(self) -> str:
        return CLEARED if self.text is None else digest(self.text)


def pack(draft: Draft, at: datetime) -> str:
    """Encode *draft*, published *at*, as an entry."""
    fields = {
        "v": FORMAT,
        "text": draft.text,
        "author": draft.author,
        "at": at.isoformat(),
        "origin": draft.origin,
        "sha256": draft.sha256,
        "bytes": len((draft.text or "").encode()),
        "restores": draft.restores,
    }
    return json.dumps(fields, ensure_ascii=False, sort_keys=True)


def read(slot: Slot, number: int, entry: str) -> Version:
    """Decode the entry of version *number* of *slot*. Raises `UnknownFormat`."""
    fields = json.loads(entry)
    if fields["v"] > FORMAT:
        raise UnknownFormat(
            f"version {number} of {slot.label} has format {fields['v']}, and this release reads up to {FORMAT}: "
            "start the newer release again"
        )
    at = datetime.fromisoformat(fields["at"])
    parts = (fields["text"], fields["author"], at, fields["origin"], fields["sha256"], fields["bytes"])
    return Version(slot, number, *parts, restores=fields["restores"])


def unpack(slot: Slot, packed: str) -> Version:
    """Decode the newest version of *slot* from its value in ``…:current``. Raises `UnknownFormat`."""
    number, _, entry = packed.split(" ", 2)
    return read(slot, int(number), entry)
