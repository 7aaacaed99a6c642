"""The tool with which the model searches material that is too large to give in full."""

from __future__ import annotations

from typing import Protocol

from pydantic import Field

from connectors.message import Scope
from grounding.layers import retrieval
from grounding.lookups import MAX_QUERY_CHARACTERS, check_query, found_passages
from grounding.run_context import Passage
from grounding.tokens import Tokens
from grounding.tools import Arguments, Call, Evidence, Tool

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


class SearchCodex(Arguments):
    query: str = Field(
        min_length=1,
        max_length=MAX_QUERY_CHARACTERS,
        description="What to look for, in words that the material may use.",
    )


def search_codex(
    material: FindsMaterial, tokens: Tokens, top_k: int, excerpt_bytes: int, max_tokens: int
) -> Tool[SearchCodex]:
    """Return the tool that finds at most *top_k* passages, of *excerpt_bytes* bytes each and *max_tokens* tokens
    together."""

    async def run(call: Call, arguments: SearchCodex) -> Evidence:
        check_query(arguments.query)
        room = retrieval.room(max_tokens)
        found, is_whole = await material.find(call.scope, arguments.query, top_k, excerpt_bytes, room)
        missing = "" if is_whole else INCOMPLETE
        return found_passages(found, tokens, excerpt_bytes, nothing=NOTHING_FOUND, missing=missing)

    return Tool(
        SEARCH_CODEX,
        "Search the material (files, code, documentation) that was given to this conversation to work with; it is too "
        "much to be shown whole. Returns passages, the best match first, each under a label in brackets by which to "
        "cite it. Use it for every question that the material may answer, and again with other words where it found "
        "nothing that helps.",
        SearchCodex,
        run,
        scopes=frozenset({SCOPE}),
        untrusted=True,
        together=True,
        repeatable=True,
    )
