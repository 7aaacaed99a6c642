"""The nouns of the codex: material that is given to the model whole, or searched where it is too much. Pure.

Material belongs to a workspace or to one context in it. Each file has a path of its own; what belongs to a context is
shown below `HERE`, so that the paths of both never meet.
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
"""What the paths of one conversation's own material begin with, where they are shown."""
MAX_FILES = 5000


class CodexFull(AgentRuntimeError):
    """There is no room for more material; the text says how much there may be."""


class CodexTooNew(AgentRuntimeError):
    """The material was put by a newer version."""


@dataclass(frozen=True, slots=True)
class Size:
    """What rendered material takes of a prompt: ``tokens`` as we count them, ``weight`` of a model's window, in tokens
    of its own vocabulary (`grounding.window.MATERIAL_SAFETY`), ``characters``."""

    tokens: int = 0
    weight: int = 0
    characters: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(self.tokens + other.tokens, self.weight + other.weight, self.characters + other.characters)


@dataclass(frozen=True, slots=True)
class CodexEntry:
    """What is known of one file. ``at`` is RFC 3339."""

    sha256: str
    size_bytes: int
    size: Size
    at: str

    def to_json(self) -> str:
        """As it is stored."""
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
        """The inverse of `to_json`. Raises `CodexTooNew`."""
        stored = _read(text)
        return cls(stored["sha256"], stored["bytes"], _size(stored), stored["at"])


@dataclass(frozen=True, slots=True)
class Held:
    """How much material a workspace, or a context, has by itself. ``revision`` is another one after each change."""

    revision: str = ""
    files: int = 0
    size_bytes: int = 0
    size: Size = Size()

    @classmethod
    def from_json(cls, text: str | None) -> Held:
        """As `grounding.codex.store` wrote it; nothing where it wrote nothing. Raises `CodexTooNew`."""
        if not text:
            return cls()
        stored = _read(text)
        return cls(stored["revision"], int(stored["files"]), int(stored["bytes"]), _size(stored))


def owner_of(scope: Scope) -> str:
    """Whose material the scope's is, within its workspace: ``*`` for the workspace's own, else the context's id."""
    return scope.context_id or "*"


def shown_path(scope: Scope, path: str) -> str:
    """How the file at *path* of the scope's own material is called before the model."""
    return HERE + path if scope.context_id else path


def check_path(path: str) -> str:
    """*path* itself, if material may have it. Raises `DocumentRefused` (``why`` = ``path``)."""
    rule = f"must not begin with {HERE!r}: what belongs to one conversation is shown so"
    return checked(path, rule, lambda path: not path.startswith(HERE))


def sha256_of(text: str) -> str:
    """Of *text* in UTF-8, in hexadecimal digits."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def size_of(text: str, tokens: Tokens) -> Size:
    """What *text*, which is rendered, takes. Takes time for a long one."""
    count = tokens.count(text)
    return Size(count, math.ceil(count * MATERIAL_SAFETY), len(text))


def _size(stored: Mapping[str, Any]) -> Size:
    return Size(int(stored["tokens"]), int(stored["weight"]), int(stored["characters"]))


def _read(text: str) -> Mapping[str, Any]:
    stored: Mapping[str, Any] = json.loads(text)
    if stored.get("v") != VERSION:
        raise CodexTooNew(f"the codex has format {stored.get('v')!r}, this version reads {VERSION}: upgrade it")
    return stored
