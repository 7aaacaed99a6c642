"""The codex: material that is given to the model in full, or searched if it is too large.

Material belongs to a workspace or to one context in it. A context's files are shown below `HERE`, so that they never
have the same path as a file of the workspace.

It is given in full (cache-augmented generation) if its tokens are below ``CODEX_WINDOW_RATIO`` of the model's window,
its characters fit into ``PROMPT_MAX_CHARACTERS``, both leave room for the rest of the prompt, and a model on this
machine has the memory for it. All but the search tool is pure.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

from connectors.message import AgentRuntimeError, Scope
from grounding.documents import check_relative_path
from grounding.lookup_tools import SearchQuery, check_query, found_passages
from grounding.prompt import passages_room
from grounding.prompt_input import MATERIAL_SAFETY, WINDOW_SAFETY, Passage, Tokens
from grounding.tools import Call, Evidence, Tool

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
class Totals:
    """The total of the material of one owner, a workspace or a context. ``revision`` differs after each change."""

    revision: str = ""
    files: int = 0
    size_bytes: int = 0
    size: Size = Size()

    @classmethod
    def from_json(cls, text: str | None) -> Totals:
        """Return what `grounding.codex.store` wrote, or an empty total. Raises `CodexTooNew`."""
        if not text:
            return cls()
        stored = _read(text)
        return cls(stored["revision"], int(stored["files"]), int(stored["bytes"]), _size(stored))


def owner_of(scope: Scope) -> str:
    """Return the owner of the scope's material within its workspace: ``*`` for the workspace, else the context's id."""
    return scope.context_id or "*"


def prompt_path(scope: Scope, path: str) -> str:
    """Return the path under which the model sees a file of the scope's own material."""
    return HERE + path if scope.context_id else path


def check_path(path: str) -> str:
    """Return *path* if material may have it. Raises `DocumentRefused` (``why`` = ``path``)."""
    rule = f"must not begin with {HERE!r}: what belongs to one conversation is shown so"
    return check_relative_path(path, rule, lambda path: not path.startswith(HERE))


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


# In full or searched

Mode = Literal["whole", "search"]
Why = Literal["below_line", "over_line", "over_budget", "over_window", "over_memory", "near_line"]

RETURN = 0.9
"""Hysteresis: searched material is given in full again only if it is below this share of each limit."""


@dataclass(frozen=True, slots=True)
class Room:
    """The space for material.

    ``window`` and ``output`` are in the model's own tokens. ``beside`` is the size, in our tokens, of the fixed rest of
    the prompt and of the smallest message. ``characters`` is the limit for a prompt's other characters. ``memory`` is
    the number of the model's tokens that fit into memory, None if unknown.
    """

    window: int
    output: int
    beside: int
    characters: int
    memory: int | None = None
    is_crowded: bool = False
    """Whether the parts of a prompt that are never cut were found to have no room next to material."""

    @property
    def left(self) -> int:
        """The part of the window that is left for material, in the model's own tokens."""
        return self._left(self.window)

    @property
    def left_in_memory(self) -> int:
        """The part of the memory that is left for material. It may be larger than `left`."""
        return self._left(self.window if self.memory is None else self.memory)

    def _left(self, tokens: int) -> int:
        return max(0, tokens - self.output - int(self.beside * WINDOW_SAFETY))


@dataclass(frozen=True, slots=True)
class Chosen:
    """The decision. ``limit`` is the number of tokens below which material may be given in full."""

    mode: Mode
    why: Why
    limit: int


def choose(size: Size, room: Room, ratio: float, before: Mode | None) -> Chosen:
    """Decide how a model gets material of *size*.

    *ratio* is its largest share of the window, *before* the last decision for such a window.
    """
    line = int(ratio * room.window)
    over = _over(size, room, line, 1.0)
    if over is not None:
        return Chosen("search", over, line)
    if before == "search" and _over(size, room, line, RETURN):
        return Chosen("search", "near_line", line)
    return Chosen("whole", "below_line", line)


def _over(size: Size, room: Room, line: int, part: float) -> Why | None:
    """Return the limit that *size* exceeds, if it may use *part* of each limit; None if it exceeds none."""
    if size.tokens >= line * part:
        return "over_line"
    if size.characters > room.characters * part:
        return "over_budget"
    if room.is_crowded or size.weight > room.left * part:
        return "over_window"
    return "over_memory" if size.weight > room.left_in_memory * part else None


# The search tool

SEARCH_CODEX = "search_codex"
SCOPE = "codex:read"
"""Without this permission scope material is neither searched nor shown."""
NOTHING_FOUND = "Nothing in the material speaks of this. Other words may find more."
INCOMPLETE = (
    "The material changed a moment ago and is not all searched yet. What is missing here may be there: say so if the "
    "answer depends on it."
)


class FindsMaterial(Protocol):
    """Searches material."""

    async def find(
        self, scope: Scope, query: str, top_k: int, excerpt_bytes: int, max_tokens: int
    ) -> tuple[list[Passage], bool]:
        """Return the best passages of the scope's workspace and context, and whether all material was searched.

        At most *top_k* passages, the best first, of at most *excerpt_bytes* bytes each and *max_tokens* tokens
        together. Raises `IndexUnavailable` and `EmbedderUnavailable`.
        """


def search_codex(
    material: FindsMaterial, tokens: Tokens, top_k: int, excerpt_bytes: int, max_tokens: int
) -> Tool[SearchQuery]:
    """Return the tool that finds at most *top_k* passages, of *excerpt_bytes* bytes each and *max_tokens* tokens
    together."""

    async def run(call: Call, arguments: SearchQuery) -> Evidence:
        check_query(arguments.query)
        room = passages_room(max_tokens)
        found, is_whole = await material.find(call.scope, arguments.query, top_k, excerpt_bytes, room)
        missing = "" if is_whole else INCOMPLETE
        return found_passages(found, tokens, excerpt_bytes, nothing=NOTHING_FOUND, missing=missing)

    return Tool(
        SEARCH_CODEX,
        "Search the material (files, code, documentation) that was given to this conversation to work with; it is too "
        "much to be shown whole. Returns passages, the best match first, each under a label in brackets by which to "
        "cite it. Use it for every question that the material may answer, and again with other words where it found "
        "nothing that helps.",
        SearchQuery,
        run,
        scopes=frozenset({SCOPE}),
        untrusted=True,
        together=True,
        repeatable=True,
    )
