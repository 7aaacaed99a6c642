"""The two look-up tools: search the workspace's documents, and read a section of the conversation's document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from pydantic import Field

from grounding.memory.context_document import SECTIONS, ContextDocuments, bodies
from grounding.pipeline import SearchesDocuments
from grounding.prompt import INCOMPLETE, passages_room, retrieval_section
from grounding.prompt_input import DegradedBlock, Passage, Tokens
from grounding.retrieval import PassageRoom
from grounding.tools import Arguments, Call, Evidence, Tool, ToolRefused

MAX_QUERY_CHARACTERS = 400
NOTHING_FOUND = "No document of the workspace speaks of this. Other words may find more."
SectionName = Literal[
    "Description", "Active Context", "Progress", "Patterns", "Preferences", "Facts", "Timeline", "Decisions"
]
assert get_args(SectionName) == SECTIONS


def check_query(query: str) -> None:
    """Raise `ToolRefused` if the query is empty."""
    if not query.strip():
        raise ToolRefused("the query is empty: say what to look for")


def found_passages(
    found: Sequence[Passage], tokens: Tokens, excerpt_bytes: int, *, nothing: str, missing: str
) -> Evidence:
    """Return *found* in the form of a prompt's passages, or the text *nothing*; the note *missing*, if any, comes
    first."""
    shown = retrieval_section(found, tokens, excerpt_bytes).pieces or (nothing,)
    return Evidence("\n\n".join((missing, *shown) if missing else shown), tuple(found))


class SearchQuery(Arguments):
    query: str = Field(
        min_length=1,
        max_length=MAX_QUERY_CHARACTERS,
        description="What to look for, in words that the text may use.",
    )


def search_documents(
    documents: SearchesDocuments, tokens: Tokens, top_k: int, excerpt_bytes: int, max_tokens: int
) -> Tool[SearchQuery]:
    """Return the tool that finds at most *top_k* passages, of *excerpt_bytes* bytes each and *max_tokens* tokens
    together."""

    async def run(call: Call, arguments: SearchQuery) -> Evidence:
        check_query(arguments.query)
        lost: list[DegradedBlock] = []
        await documents.awake(call.scope)
        looked = await documents.look(call.scope, arguments.query, top_k)
        room = PassageRoom(top_k, excerpt_bytes, passages_room(max_tokens))
        found = await documents.pack(call.scope, looked, room, lost=lost)
        missing = INCOMPLETE if any(one.block == "retrieved" for one in lost) else ""
        return found_passages(found, tokens, excerpt_bytes, nothing=NOTHING_FOUND, missing=missing)

    return Tool(
        "search_documents",
        "Search the documents of this workspace. Returns passages, the best match first, each under a label in "
        "brackets by which to cite it, like [refunds.md › Windows]. Use it where what you were given does not answer "
        "a question about the workspace, its people, rules or things, and again with other words where it found "
        "nothing that helps.",
        SearchQuery,
        run,
        scopes=frozenset({"documents:read"}),
        untrusted=True,
        together=True,
        repeatable=True,
    )


class ReadSection(Arguments):
    name: SectionName = Field(description="The section's heading.")


def read_section(contexts: ContextDocuments) -> Tool[ReadSection]:
    """Return the tool that reads a whole section of the context document of the conversation."""

    async def run(call: Call, arguments: ReadSection) -> str:
        document = await contexts.latest(call.key)
        if document is None:
            return "Nothing is kept of this conversation yet."
        sections = bodies(document.text)
        if arguments.name in sections:
            return sections[arguments.name]
        filled = [name for name in SECTIONS if name in sections]
        others = f" These are not: {', '.join(filled)}." if filled else ""
        return f"The section {arguments.name} is empty.{others}"

    return Tool(
        "read_section",
        "Read one section, whole, of the document that is kept of this conversation. Its summary in the prompt is "
        "shortened: use this where something that was said or decided earlier in this conversation is missing there.",
        ReadSection,
        run,
        scopes=frozenset({"context:read"}),
        together=True,
        repeatable=True,
    )
