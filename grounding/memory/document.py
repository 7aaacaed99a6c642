"""The context document: eight sections of Markdown that stand for a conversation so far. Pure.

Programs may store any text as one. What is not under one of the eight headings belongs to no section; it is kept as it
is, and shown before the sections.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from grounding.recent import Recent
from grounding.sections import as_data

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

_SECTION_OF = {title.casefold(): title for title in SECTIONS}
_ITEM = re.compile(r"^\s*(?:[-*+•]\s+|\d{1,3}[.)]\s+)")
_LABELS = frozenset(("done", "next", "open", "blocked", "todo", "to do", "note", "update"))
"""What stands before a colon and says of what kind a line is, not what it is about."""
_NOTHING = frozenset(
    ("none", "nothing", "n/a", "na", "empty", "nothing yet", "none yet", "-", "–", "—", "tbd", "not specified")
)


@dataclass(frozen=True, slots=True)
class Part:
    """One section: its title (empty for text before the first heading) and its body."""

    title: str
    body: str


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a document as a person wrote it; *section* is empty where it stood under no known heading."""

    section: str
    text: str


def parse(text: str) -> Sequence[Part]:
    """The sections of *text* in their order. Only the eight known headings separate sections. Those of the last texts
    are remembered: a turn asks several times for those of two documents."""
    return _parsed.of(text, _parse)


def _parse(text: str) -> tuple[Part, ...]:
    parts: list[Part] = []
    title, body = "", list[str]()
    for line in text.removeprefix("\ufeff").splitlines():
        known = _known(line) if line.startswith("#") else None
        if known is None:
            body.append(line)
            continue
        parts.append(Part(title, "\n".join(body).strip("\n")))
        title, body = known, []
    parts.append(Part(title, "\n".join(body).strip("\n")))
    return tuple(part for part in parts if part.title or part.body.strip())


_parsed: Recent[tuple[Part, ...]] = Recent(64)


def render(bodies: Mapping[str, str]) -> str:
    """A document with the eight sections in their order; empty ones keep their heading."""
    return "\n\n".join(f"## {title}\n{bodies.get(title, '').strip()}".strip() for title in SECTIONS) + "\n"


def bodies(text: str) -> dict[str, str]:
    """The non-empty bodies of *text* by section title; those of one title together."""
    found: dict[str, str] = {}
    for part in parse(text):
        body = part.body.strip()
        if part.title and body:
            found[part.title] = f"{found[part.title]}\n{body}" if part.title in found else body
    return found


def section_named(wanted: str) -> str | None:
    """The title of the one section that *wanted* is, or begins; None where that is none, or several."""
    folded = " ".join(wanted.casefold().split())
    found = [title for title in SECTIONS if folded and title.casefold().startswith(folded)]
    return found[0] if len(found) == 1 else None


def says_nothing(body: str) -> bool:
    """Whether a section's *body* is empty, or only says that it is ("- None")."""
    lines = [_ITEM.sub("", line).strip().strip("()[]*_.").casefold() for line in body.splitlines()]
    return all(not line or line in _NOTHING for line in lines)


def lines(text: str) -> list[Line]:
    """What *text* says, line by line, without headings of sections and blank lines."""
    return [Line(part.title, line.rstrip()) for part in parse(text) for line in part.body.splitlines() if line.strip()]


def written(text: str, before: str, kept: Iterable[Line] = ()) -> tuple[Line, ...]:
    """The lines of *text* that a person wrote who changed it from *before*, with those of *kept*, written by people
    earlier, that are still in it."""
    old = {_folded(line.text) for line in lines(before)} - {_folded(line.text) for line in kept}
    return tuple(line for line in lines(text) if _folded(line.text) not in old)


def with_kept(text: str, kept: Iterable[Line]) -> str:
    """*text* in canonical form with all of *kept*, what people wrote, in it.

    A line that is missing comes back at the end of its section (Description, where it stood in none), unless it has the
    form ``subject: value`` and *text* has a new value for that subject in the same section or under Facts: then it was
    corrected. Two lines of people about one subject do not correct each other, and what happened stays in the Timeline.
    """
    kept = tuple(kept)
    sections = {title: _as_written(body, kept) for title, body in bodies(text).items()}
    there = {_folded(line) for body in sections.values() for line in body.splitlines()}
    own = {_folded(line.text) for line in kept}
    said = {
        title: {_subject(line) for line in body.splitlines() if _folded(line) not in own} - {""}
        for title, body in sections.items()
    }
    for line in kept:
        corrections = () if line.section == "Timeline" else (line.section or "Description", "Facts")
        is_corrected = any(_subject(line.text) in said.get(title, ()) for title in corrections)
        if _folded(line.text) in there or is_corrected:
            continue
        title = line.section or "Description"
        body = sections.get(title, "")
        sections[title] = f"{body}\n{line.text}" if body else line.text
    return render(sections)


def _as_written(body: str, kept: Iterable[Line]) -> str:
    """*body* with those of *kept* as they are that a model gave back as it was shown them: without invisible
    characters, and with harmless brackets."""
    shown = {_folded(as_data(line.text)): line.text for line in kept if as_data(line.text) != line.text}
    return "\n".join(shown.get(_folded(line), line) for line in body.splitlines()) if shown else body


def surviving(text: str, kept: Iterable[Line]) -> tuple[Line, ...]:
    """Those of *kept* that *text* still holds, each in the section in which it stands now."""
    there = {_folded(line.text): line for line in lines(text)}
    return tuple(there[folded] for line in kept if (folded := _folded(line.text)) in there)


def same(text: str, other: str) -> bool:
    """Whether two documents say the same, however their headings and blank lines are written."""

    def said(document: str) -> list[tuple[str, str]]:
        return sorted((line.section, line.text.strip()) for line in lines(document))

    return said(text) == said(other)


def corrected(text: str, before: str) -> tuple[Line, ...]:
    """The lines ``subject: value`` of *text* whose subject had another value in the same section of *before* that it
    has no more: what the same person prefers besides, or decided next, corrects nothing."""
    return _corrections.of(f"{len(before)}\n{before}{text}", lambda _: _corrected(text, before))


_corrections: Recent[tuple[Line, ...]] = Recent(64)
"""A turn asks for those of the document that its session shows and the newest, as the turns before it did."""


def _corrected(text: str, before: str) -> tuple[Line, ...]:
    was = [(title, line) for title, body in bodies(before).items() for line in body.split("\n")]
    stays = {_folded(line) for body in bodies(text).values() for line in body.split("\n")}
    said = {_folded(line) for _, line in was}
    subjects = {(title, _subject(line)) for title, line in was if _folded(line) not in stays}
    return tuple(
        Line(title, item(line))
        for title, body in bodies(text).items()
        for line in body.split("\n")
        if _subject(line) and (title, _subject(line)) in subjects and _folded(line) not in said
    )


def item(line: str) -> str:
    """*line* without the mark that makes it one of a list's: "* Office: Oslo" is "Office: Oslo"."""
    return _ITEM.sub("", line, count=1).strip()


def _folded(line: str) -> str:
    return " ".join(item(line).casefold().split())


def _subject(line: str) -> str:
    """What *line* gives a value of; empty where it gives none. Of one day or label there may be many lines."""
    subject, separator, value = _folded(line).partition(": ")
    is_one = separator and value and len(subject) <= 80 and not subject[:1].isdigit() and subject not in _LABELS
    return subject if is_one else ""


def _known(line: str) -> str | None:
    """The section that *line* is the heading of, with up to three marks before it and any number behind."""
    name = line.lstrip("#")
    if len(line) - len(name) > 3 or not name[:1].isspace():
        return None
    folded = name.strip().rstrip("#").strip().strip("*:").casefold()
    return _SECTION_OF.get(folded)
