"""The block of the context document (the rolling summary): whole sections, the most useful kept longest."""

from __future__ import annotations

from grounding.memory.document import parse
from grounding.sections import Section, as_data

HEAD = "<conversation_summary>"
FOOT = "</conversation_summary>"
PRIORITY = (
    "Active Context",
    "Facts",
    "Preferences",
    "Decisions",
    "Progress",
    "Patterns",
    "Timeline",
    "Description",
)


def section(text: str) -> Section:
    """Return the sections of the document *text* in their own order, kept in the order of `PRIORITY`."""
    parts = [part for part in parse(text) if part.body.strip()]
    if not parts:
        return Section(HEAD, (as_data(text).strip(),) if text.strip() else (), FOOT)
    pieces = tuple(
        as_data(f"## {part.title}\n{part.body.strip()}" if part.title else part.body.strip()) for part in parts
    )
    rank = {title: number for number, title in enumerate(PRIORITY)}
    keep = sorted(range(len(parts)), key=lambda index: (rank.get(parts[index].title, len(rank)), index))
    return Section(HEAD, pieces, FOOT, keep=tuple(keep), cut="only")
