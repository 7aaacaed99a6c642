"""The nouns of the codex: material that is given to the model whole, or searched where it is too much. Pure.

Material belongs to a workspace or to one context in it. Each file has a path of its own; what belongs to a context is
shown below `HERE`, so that the paths of both never meet.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from connectors.message import AgentRuntimeError, Scope
from grounding.documents.library import checked

VERSION = 1
HERE = "here/"
"""What the paths of one conversation's own material begin with, where they are shown."""
MAX_FILES = 5000
_DIGITS = re.compile(r"[0-9]")

SAFETY = 1.15
"""Tokens of a model's own vocabulary per token that we count, in plain text. cl100k_base takes together what other
vocabularies take apart: the figures below are what must be added for that. Fitted to SmolLM2's vocabulary (49,000
words) over 126 files of nine kinds: the sum is enough for 97 of 100; for the worst, a C header, it is 5 % too small. On
average it is 1.12 times what the vocabulary takes, of Python's reference 1.2 times."""
_PER_DIGIT = 2 / 3
"""cl100k_base takes three digits together. Vocabularies that take each by itself (SmolLM2: a table of numbers 1.99
times as many tokens, hexadecimal digits 1.55 times) need two more for each three."""
_PER_WIDE = 0.6
"""Per character beyond ASCII: with `SAFETY` above what Japanese (1.64) and Russian (1.75) were measured to take."""
_PER_HANGUL = 1.0
_PER_THAI = 0.15
"""Per such character besides: Korean was measured to take 2.28 times as many, Thai 1.81 times."""
_PER_ACCENT = 3.0
"""Per Latin letter with an accent: German, which has one in 60 characters, was measured to take 1.37."""
_PER_UNDERSCORE = 0.5
_PER_SIGN = 0.5
"""Per further capital in a row of them, and per further mark of punctuation."""
_PER_INDENT = -0.6
"""Per row of blanks: other vocabularies take it together, too, while we count a token more for it."""
_LEAST = 1.05
_SIGNS = re.compile(r"[A-Z]{2,}|[^\w\s]{2,}", re.ASCII)
_INDENTS = re.compile(r"[ \t]{2,}")
_ACCENTS = re.compile(r"[\u00c0-\u024f]")
_HANGUL = re.compile(r"[\u1100-\u11ff\u3130-\u318f\uac00-\ud7af]")
_THAI = re.compile(r"[\u0e00-\u0e7f]")


class CodexFull(AgentRuntimeError):
    """There is no room for more material; the text says how much there may be."""


class CodexTooNew(AgentRuntimeError):
    """The material was put by a newer version."""


@dataclass(frozen=True, slots=True)
class Size:
    """What rendered material takes of a prompt: ``tokens`` as we count them, ``weight`` of a model's window, in tokens
    of its own vocabulary at most, ``characters``."""

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


def size_of(text: str, count: Callable[[str], int]) -> Size:
    """What *text*, which is rendered, takes, of which *count* gives our tokens. Takes time for a long one."""
    tokens, wide = count(text), 0 if text.isascii() else sum(1 for character in text if character > "\x7f")
    accents = len(_ACCENTS.findall(text)) if wide else 0
    signs = sum(found.end() - found.start() - 1 for found in _SIGNS.finditer(text) if found[0].isascii())
    more = _PER_DIGIT * len(_DIGITS.findall(text)) + _PER_UNDERSCORE * text.count("_") + _PER_SIGN * signs
    more += _PER_WIDE * (wide - accents) + _PER_ACCENT * accents
    if wide:
        more += _PER_HANGUL * len(_HANGUL.findall(text)) + _PER_THAI * len(_THAI.findall(text))
    more += _PER_INDENT * len(_INDENTS.findall(text))
    return Size(tokens, math.ceil(max(SAFETY * tokens + more, _LEAST * tokens)), len(text))


def _size(stored: Mapping[str, Any]) -> Size:
    return Size(int(stored["tokens"]), int(stored["weight"]), int(stored["characters"]))


def _read(text: str) -> Mapping[str, Any]:
    stored: Mapping[str, Any] = json.loads(text)
    if stored.get("v") != VERSION:
        raise CodexTooNew(f"the codex has format {stored.get('v')!r}, this version reads {VERSION}: upgrade it")
    return stored
