"""The context document: eight sections of Markdown that stand for a conversation so far. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

SECTIONS = (
    "Description",
    "Active Context",
    "Progress",
    "Patterns",
    "Preferences",
    "Facts",
    "Timeline",
    "Decisions",
)

_HEADING = re.compile(r"^#{1,3}\s+(.+?)\s*#*\s*$")


@dataclass(frozen=True, slots=True)
class Part:
    """One section: its title (empty for text before the first heading) and its body."""

    title: str
    body: str


def parse(text: str) -> list[Part]:
    """The sections of *text* in their order. Only the eight known headings separate sections."""
    parts: list[Part] = []
    title, body = "", list[str]()
    for line in text.splitlines():
        match = _HEADING.match(line) if line.startswith("#") else None
        known = _known(match[1]) if match else None
        if known is None:
            body.append(line)
            continue
        parts.append(Part(title, "\n".join(body).strip("\n")))
        title, body = known, []
    parts.append(Part(title, "\n".join(body).strip("\n")))
    return [part for part in parts if part.title or part.body.strip()]


def render(bodies: dict[str, str]) -> str:
    """A document with the eight sections in their order; empty ones keep their heading."""
    return "\n\n".join(f"## {title}\n{bodies.get(title, '').strip()}".strip() for title in SECTIONS) + "\n"


def bodies(text: str) -> dict[str, str]:
    """The non-empty bodies of *text* by section title."""
    return {part.title: part.body.strip() for part in parse(text) if part.title and part.body.strip()}


def _known(heading: str) -> str | None:
    folded = heading.strip().strip("*:").casefold()
    return next((title for title in SECTIONS if title.casefold() == folded), None)
