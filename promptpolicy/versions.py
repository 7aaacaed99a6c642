"""One version of a directive, and how it is stored. Pure.

An entry is JSON: ``{"v": 1, "text", "author", "at", "origin", "sha256", "bytes", "restores"}``, its
``text`` null and its digest ``-`` where the slot was cleared.
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
    """A slot has no version of that number."""

    user_text = "There is no such version."


class UnknownFormat(AgentRuntimeError):
    """A stored value was written by a newer release."""

    user_text = "A newer version of me has stored my instructions. Please tell an administrator."


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a slot. ``text`` is None where the slot was cleared.

    ``version`` counts from 1; ``bytes`` is the text's size in UTF-8; ``restores`` is the version that
    a rollback brought back.
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
    """What is to become the next version of a slot; ``text`` None clears it."""

    text: str | None
    author: str
    origin: Origin
    restores: int | None = None

    @property
    def sha256(self) -> str:
        return CLEARED if self.text is None else digest(self.text)


def pack(draft: Draft, at: datetime) -> str:
    """*draft* as an entry that was published *at*."""
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
    """Version *number* of *slot* from its entry. Raises `UnknownFormat`."""
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
    """The newest version of *slot* from its current value. Raises `UnknownFormat`."""
    number, _, entry = packed.split(" ", 2)
    return read(slot, int(number), entry)
