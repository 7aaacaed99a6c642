"""The data types of the codex: material that is given to the model in full, or searched if it is too large. Pure.

Material belongs to a workspace or to one context in it. A context's files are shown below `HERE`, so that they never
have the same path as a file of the workspace.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from connectors.message import AgentRuntimeError, Scope
from grounding.documents.library import checked
from grounding.tokens import Tokens
from grounding.window import MATERIAL_SAFETY

VERSION = 1
HERE = "here/"
"""The shown paths of a conversation's own material begin with this."""
MAX_FILES = 5000


class CodexFull(AgentRuntimeError):
    """There is no room for more material; the text names the limit."""


class CodexTooNew(AgentRuntimeError):
    """A newer version of the runtime wrote the material."""


@dataclass(frozen=True, slots=True)
class Size:
    """The size of rendered material in a prompt.

    ``tokens`` are ours, ``weight`` is an estimate in tokens of the model's own vocabulary, ``characters`` are
    Unicode characters.
    """

    tokens: int = 0
    weight: int = 0
    characters: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(self.tokens + other.tokens, self.weight + other.weight, self.characters + other.characters)


@dataclass(frozen=True, slots=True)
class CodexEntry:
    """What is stored about one file besides its text. ``at`` is RFC 3339."""

    sha256: str
    size_bytes: int
    size: Size
    at: str

    def to_json(self) -> str:
        """Return the stored form."""
        return json.dumps(
            {
                "v": VERSION,
                "sha256": self.sha256,
                "bytes": self.size_bytes,
                **asdict(self.size),
                "at": self.at,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> CodexEntry:
        """Return the entry stored as *text*. Raises `CodexTooNew`."""
        stored = _read(text)
        return cls(stored["sha256"], stored["bytes"], _size(stored), stored["at"])


@dataclass(frozen=True, slots=True)
class Held:
    """The total of the material of one owner, a workspace or a context. ``revision`` differs after each change."""

    revision: str = ""
    files: int = 0
    size_bytes: int = 0
    size: Size = Size()

    @classmethod
    def from_json(cls, text: str | None) -> Held:
        """Return what `grounding.codex.store` wrote, or an empty total. Raises `CodexTooNew`."""
        if not text:
            return cls()
        stored = _read(text)
        return cls(stored["revision"], int(stored["files"]), int(stored["bytes"]), _size(stored))


def owner_of(scope: Scope) -> str:
    """Return the owner of the scope's material within its workspace: ``*`` for the workspace, else the context's id."""
    return scope.context_id or "*"


def shown_path(scope: Scope, path: str) -> str:
    """Return the path under which the model sees a file of the scope's own material."""
    return HERE + path if scope.context_id else path


def check_path(path: str) -> str:
    """Return *path* if material may have it. Raises `DocumentRefused` (``why`` = ``path``)."""
    rule = f"must not begin with {HERE!r}: what belongs to one conversation is shown so"
    return checked(path, rule, lambda path: not path.startswith(HERE))


def sha256_of(text: str) -> str:
    """Return the SHA-256 of *text* in UTF-8, in hexadecimal."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def size_of(text: str, tokens: Tokens) -> Size:
    """Return the size of *text*, which is rendered. Takes time for a long text."""
    count = tokens.count(text)
    return Size(count, math.ceil(count * MATERIAL_SAFETY), len(text))


def _size(stored: Mapping[str, Any]) -> Size:
    return Size(int(stored["tokens"]), int(stored["weight"]), int(stored["characters"]))


def _read(text: str) -> Mapping[str, Any]:
    stored: Mapping[str, Any] = json.loads(text)
    if stored.get("v") != VERSION:
        raise CodexTooNew(f"the codex has format {stored.get('v')!r}, this version reads {VERSION}: upgrade it")
    return stored
