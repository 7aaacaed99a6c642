"""The context document: a summary of a conversation in eight Markdown sections. Pure.

Programs may store any text as a document. Text under none of the eight headings belongs to no section; it is kept
unchanged and shown before the sections.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from grounding.prompt_input import as_data

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
"""The sections, the most useful first. If there is too little room, the last one yields first."""

_HEADINGS = {f"## {title}": title for title in SECTIONS}
_SECTION_OF = {title.casefold(): title for title in SECTIONS}
_ITEM = re.compile(r"^\s*(?:[-*+•]\s+|\d{1,3}[.)]\s+)")
_LABELS = frozenset(("done", "next", "open", "blocked", "todo", "to do", "note", "update"))
"""Labels before a colon that name the kind of a line, not its subject."""
_NOTHING = frozenset(
    ("none", "nothing", "n/a", "na", "empty", "nothing yet", "none yet", "-", "–", "—", "tbd", "not specified")
)


@dataclass(frozen=True, slots=True)
class Part:
    """One section: its title (empty for text before the first heading) and its body."""

    title: str
    body: str


@dataclass(frozen=True, slots=True)
class DocumentLine:
    """One line of a document as a person wrote it. *section* is empty if it stood under no known heading."""

    section: str
    text: str


def parse(text: str) -> tuple[Part, ...]:
    """Return the sections of *text* in their order. Only the eight known headings separate sections."""
    parts: list[Part] = []
    title, body = "", list[str]()
    for line in text.removeprefix("\ufeff").splitlines():
        known = (_HEADINGS.get(line) or _heading_of(line)) if line.startswith("#") else None
        if known is None:
            body.append(line)
            continue
        parts.append(Part(title, "\n".join(body).strip("\n")))
        title, body = known, []
    parts.append(Part(title, "\n".join(body).strip("\n")))
    return tuple([part for part in parts if part.title or part.body.strip()])


def render(bodies: Mapping[str, str]) -> str:
    """Return a document with the eight sections in their order. Empty ones keep their heading."""
    return "\n\n".join(f"## {title}\n{bodies.get(title, '').strip()}".strip() for title in SECTIONS) + "\n"


def bodies(text: str) -> dict[str, str]:
    """Return the non-empty bodies of *text* by section title. Bodies of the same title are joined."""
    found: dict[str, str] = {}
    for part in parse(text):
        body = part.body.strip()
        if part.title and body:
            found[part.title] = f"{found[part.title]}\n{body}" if part.title in found else body
    return found


def section_named(wanted: str) -> str | None:
    """Return the title that *wanted* equals or abbreviates; None if no title or several match."""
    folded = " ".join(wanted.casefold().split())
    found = [title for title in SECTIONS if folded and title.casefold().startswith(folded)]
    return found[0] if len(found) == 1 else None


def says_nothing(body: str) -> bool:
    """Say whether a section's *body* is empty or only says so ("- None")."""
    lines = [_ITEM.sub("", line).strip().strip("()[]*_.").casefold() for line in body.splitlines()]
    return all(not line or line in _NOTHING for line in lines)


def lines(text: str) -> list[DocumentLine]:
    """Return the non-blank lines of *text* with their sections, without section headings."""
    return [
        DocumentLine(part.title, line.rstrip())
        for part in parse(text)
        for line in part.body.splitlines()
        if line.strip()
    ]


def lines_by_people(text: str, before: str, kept: Iterable[DocumentLine] = ()) -> tuple[DocumentLine, ...]:
    """Return the lines of *text* that people wrote: those that are new since *before*, and those of *kept* still in it.

    *kept* are the lines that people had written earlier.
    """
    old = {_folded(line.text) for line in lines(before)} - {_folded(line.text) for line in kept}
    return tuple(line for line in lines(text) if _folded(line.text) not in old)


def other_lines(text: str, kept: Iterable[DocumentLine]) -> dict[str, list[str]]:
    """Return the lines of *text* without *kept*, the lines that people wrote, by section; empty sections are left out.

    A model may have repeated a line of *kept* as it was shown to it: without invisible characters and with harmless
    brackets. Lines under no heading belong to Description.
    """
    by_people = {_folded(shown) for line in kept for shown in (line.text, as_data(line.text))}
    found: dict[str, list[str]] = {}
    for line in lines(text):
        if _folded(line.text) not in by_people:
            found.setdefault(line.section or "Description", []).append(line.text)
    return found


def with_kept(text: str, kept: Iterable[DocumentLine]) -> str:
    """Return *text* in canonical form with all of *kept*, the lines that people wrote, in it.

    A missing line is added at the end of its section (of Description, if it had none). It is not added if it was
    corrected: it has the form ``subject: value``, and *text* has a new value for that subject in the same section or
    under Facts. Two lines by people about one subject do not correct each other, and lines of the Timeline stay.
    """
    kept = tuple(kept)
    sections = bodies(text)
    present = {_folded(line) for body in sections.values() for line in body.splitlines()}
    own = {_folded(line.text) for line in kept}
    said = {
        title: {_subject(line) for line in body.splitlines() if _folded(line) not in own} - {""}
        for title, body in sections.items()
    }
    for line in kept:
        corrections = () if line.section == "Timeline" else (line.section or "Description", "Facts")
        is_corrected = any(_subject(line.text) in said.get(title, ()) for title in corrections)
        if _folded(line.text) in present or is_corrected:
            continue
        title = line.section or "Description"
        body = sections.get(title, "")
        sections[title] = f"{body}\n{line.text}" if body else line.text
    return render(sections)


def kept_lines(text: str, kept: Iterable[DocumentLine]) -> tuple[DocumentLine, ...]:
    """Return the lines of *kept* that *text* still holds, each with its present section."""
    present = {_folded(line.text): line for line in lines(text)}
    return tuple(present[folded] for line in kept if (folded := _folded(line.text)) in present)


def has_same_lines(text: str, other: str) -> bool:
    """Say whether two documents have the same lines, however their headings and blank lines are written."""

    def said(document: str) -> list[tuple[str, str]]:
        return sorted((line.section, line.text.strip()) for line in lines(document))

    return said(text) == said(other)


def corrections(text: str, before: str) -> tuple[DocumentLine, ...]:
    """Return the lines ``subject: value`` of *text* that correct a line of *before*.

    A line corrects another of the same section and subject if the other one is gone. An additional preference of the
    same person, or a later decision, corrects nothing.
    """
    stays = {_folded(line) for body in bodies(text).values() for line in body.split("\n")}
    old = [(title, line, _folded(line)) for title, body in bodies(before).items() for line in body.split("\n")]
    said = {folded for _, _, folded in old}
    gone = {(title, _subject(line)) for title, line, folded in old if folded not in stays}
    return tuple(
        DocumentLine(title, item(line))
        for title, body in bodies(text).items()
        for line in body.split("\n")
        if _folded(line) not in said and (subject := _subject(line)) and (title, subject) in gone
    )


def item(line: str) -> str:
    """Return *line* without its list mark: "* Office: Oslo" is "Office: Oslo"."""
    return _ITEM.sub("", line, count=1).strip()


def _folded(line: str) -> str:
    return " ".join(item(line).casefold().split())


def _subject(line: str) -> str:
    """Return the subject if *line* is ``subject: value``, else empty. Days and labels, which may recur, are no
    subjects."""
    subject, separator, value = _folded(line).partition(": ")
    is_one = separator and value and len(subject) <= 80 and not subject[:1].isdigit() and subject not in _LABELS
    return subject if is_one else ""


def _heading_of(line: str) -> str | None:
    """Return the section whose heading *line* is, with one to three marks before the title and any number behind."""
    name = line.lstrip("#")
    if len(line) - len(name) > 3 or not name[:1].isspace():
        return None
    folded = name.strip().rstrip("#").strip().strip("*:").casefold()
    return _SECTION_OF.get(folded)
