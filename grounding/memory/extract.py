"""A context document without a model: what was asked, done, left open and stated. Pure and deterministic."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from grounding.memory.document import bodies, render
from grounding.strategy import choose
from grounding.transcript.entry import Entry, EntryRole

MAX_ITEM_CHARACTERS = 190
_MAX_FACTS = 24

_ACTION = re.compile(
    r"\b(?:i'll|i will|i have|i've|created|updated|approved|denied|completed|finished|scheduled|sent|added|removed|"
    r"next step)\b",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"[^.!?\n]+[.!?]?")
_VALUE = r"(?P<value>[^.,;!?\n]{1,80})"
_SUBJECT = r"(?P<subject>[\w\-/# ]{2,50}?)"
_STATEMENTS = (
    re.compile(
        rf"\b(?:change|set|rename|switch|move|update|correct|make)\s+(?:the|our|my)\s+{_SUBJECT}\s+to\s+(?:be\s+)?{_VALUE}",
        re.IGNORECASE,
    ),
    re.compile(
        rf"\b(?P<whose>the|our|my)\s+{_SUBJECT}\s+(?:is|are|was|were|will be|has changed to|changed to|=)\s+"
        rf"(?:now\s+|actually\s+|called\s+|named\s+)*{_VALUE}",
        re.IGNORECASE,
    ),
    re.compile(r"\b(?:call me|i am called|i'm called)\s+(?P<name>[^.,;!?\n]{1,60})", re.IGNORECASE),
)
_PREFERENCE = re.compile(
    r"\bI (?:prefer|like|love|hate|dislike|always|never|don't like|do not like)\b[^.!?\n]{2,160}", re.IGNORECASE
)
_DECISION = re.compile(
    r"\b(?:we|i)(?:'ve| have)? (?:decided|agreed|settled|chose|will go with|go with)\b[^.!?\n]{2,160}", re.IGNORECASE
)
_NOT_FACTS = re.compile(r"^(?:question|problem|point|thing|same|reason|idea|answer|only|best|most)\b", re.IGNORECASE)


def document(previous: str, entries: Sequence[Entry], max_items: int) -> str:
    """The document after *entries* (oldest first), given the *previous* one (may be empty).

    Users' messages are evidence: their intents, open questions, statements. Of a statement about the
    same thing the latest holds. *max_items* bounds the items of each section but the facts.
    """
    said = [entry for entry in entries if entry.role is EntryRole.INBOUND and not choose(entry.text).small_talk]
    done = [entry for entry in entries if entry.role is EntryRole.OUTBOUND]
    old = bodies(previous)
    questions = [line for entry in said for line in _sentences(entry.text) if line.endswith("?")]
    actions = [line for entry in done for line in _sentences(entry.text) if _ACTION.search(line)]
    statements = [line for entry in said for line in _sentences(entry.text) if not line.endswith("?")]
    sections = dict(old)
    intents = _items(_newest((_first(entry.text) for entry in said), max_items))
    sections["Active Context"] = intents or old.get("Active Context", "")
    progress = [f"Done: {line}" for line in _newest(actions, max_items)]
    progress += [f"Open: {line}" for line in _newest(questions[-1:], 1)]
    sections["Progress"] = _items(progress) or old.get("Progress", "")
    sections["Facts"] = _items(_facts(old.get("Facts", ""), statements))
    sections["Preferences"] = _merge(old.get("Preferences", ""), _found(_PREFERENCE, statements), max_items)
    sections["Decisions"] = _merge(old.get("Decisions", ""), _found(_DECISION, statements), max_items)
    return render(sections)


def _facts(old: str, statements: Iterable[str]) -> list[str]:
    """``subject: value`` lines; a later value replaces an earlier one of the same subject."""
    facts: dict[str, str] = {}
    for line in old.splitlines():
        subject, separator, value = line.removeprefix("- ").partition(": ")
        if separator:
            facts[subject.strip()] = value.strip()
    for statement in statements:
        for pattern in _STATEMENTS:
            for match in pattern.finditer(statement):
                subject, value = _subject_and_value(match)
                if subject and value and not _NOT_FACTS.match(subject):
                    facts.pop(subject, None)  # the corrected fact is also the newest
                    facts[subject] = value
    return [f"{subject}: {value}" for subject, value in list(facts.items())[-_MAX_FACTS:]]


def _subject_and_value(match: re.Match[str]) -> tuple[str, str]:
    groups = match.groupdict()
    if groups.get("name"):
        return "user's name", _one_line(groups["name"])
    subject = _one_line(groups["subject"]).casefold()
    if subject == "name" and (groups.get("whose") or "").casefold() == "my":
        subject = "user's name"
    value = re.sub(r"^(?:now|actually)\s+", "", _one_line(groups["value"]))
    return subject, re.sub(r"\s+(?:now|instead|from now on)$", "", value)


def _found(pattern: re.Pattern[str], statements: Iterable[str]) -> list[str]:
    return [_one_line(match[0]) for line in statements for match in pattern.finditer(line)]


def _merge(old: str, new: list[str], max_items: int) -> str:
    lines = [line.removeprefix("- ") for line in old.splitlines() if line.strip()]
    return _items(_newest([*lines, *new], max_items))


def _sentences(text: str) -> list[str]:
    return [line for line in (_one_line(match) for match in _SENTENCE.findall(text)) if len(line) > 2]


def _first(text: str) -> str:
    """The sentence that says what is wanted: the first question, else the first sentence."""
    sentences = _sentences(text) or [_one_line(text)]
    return next((line for line in sentences if line.endswith("?")), sentences[0])


def _newest(lines: Iterable[str], limit: int) -> list[str]:
    """The last *limit* different lines, oldest first."""
    unique: dict[str, None] = {}
    for line in lines:
        if line:
            unique.pop(line, None)
            unique[line] = None
    return list(unique)[-limit:]


def _items(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _one_line(text: str) -> str:
    folded = " ".join(text.split())
    return folded if len(folded) <= MAX_ITEM_CHARACTERS else folded[: MAX_ITEM_CHARACTERS - 1].rstrip() + "…"
