"""Write a context document without a model, from questions, actions, open points and statements. Pure."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field

from grounding.memory.context_document.document import DocumentLine, bodies, item, render, with_kept
from grounding.memory.context_document.facts import Facts
from grounding.memory.context_document.sentence import (
    MAX_MESSAGE_CHARACTERS,
    is_question,
    newest,
    paragraphs,
    sentences,
    short_line,
)
from grounding.prompt_input import speaker
from grounding.strategy import choose
from grounding.transcript import EntryRole, TranscriptEntry

_PEOPLE = "People: "
_MAX_PEOPLE = 12
_OPEN = "Open: "
_MAX_OPEN = 2
_SHORT_WORDS = 3
"""A question of at most this many words ("Where is it?") is taken together with the sentence before it."""
_DID = (
    r"(?:booked|created|updated|approved|denied|completed|finished|scheduled|sent|added|removed|moved|deleted|changed|"
    r"fixed|merged|deployed|shipped|released|ordered|paid|signed|cancell?ed|renamed|invited|uploaded|filed|opened|closed|"
    r"published|installed|configured|migrated|reverted|submitted|postponed|resolved|written|wrote|prepared|drafted|"
    r"set up|reserved|bought|rolled back|reported)"
)
_DONE = re.compile(
    rf"\b(?:I|we)(?:['’]ve| have)?(?: just| now| already| also| successfully)* {_DID}\b"
    rf"|^(?:done[:,.!]?\s+)?{_DID}\b|\b(?:has|have)(?: just| now| already)? been {_DID}\b|\b(?:is|are) now {_DID}\b",
    re.IGNORECASE,
)
_DOES_NOT_KNOW = re.compile(
    r"\b(?:I (?:do not|don['’]t|cannot|can['’]t|could not|couldn['’]t) (?:know|find|tell|say|see)|(?:not|un)sure|"
    r"no idea|I(?:['’]ll| will) (?:check|ask|find out|look|get back)|let me (?:check|ask|look)|have to (?:check|ask)|"
    r"is not (?:known|clear)|nothing about)\b",
    re.IGNORECASE,
)
_PREFERENCE = re.compile(
    r"\bI (?:prefer|like|love|hate|dislike|always|never|don['’]t like|do not like|can['’]t stand|would rather)\b"
    r".{2,160}",
    re.IGNORECASE,
)
_DECISION = re.compile(
    r"\b(?:we|i)(?:['’]ve| have)? (?:decided|agreed|settled|chose|will go with|go with|went with)\b.{2,160}"
    r"|\blet['’]s go with\b.{2,160}",
    re.IGNORECASE,
)
_DONE_LABEL = re.compile(r"^done\s*:\s*", re.IGNORECASE)


def extract_document(
    previous: str, entries: Sequence[TranscriptEntry], max_items: int, kept: Sequence[DocumentLine] = ()
) -> str:
    """Return the document after *entries* (oldest first), given the *previous* one (may be empty).

    People's messages are evidence for intents, open questions and statements. The latest statement about a subject
    replaces earlier ones. *max_items* limits the items of each section except the facts. *kept* are lines of the
    previous document that people wrote themselves; they stay.
    """
    old = bodies(previous)
    messages = _Messages(entries, old.get("Description", ""))
    findings = _Findings(Facts.read(old.get("Facts", "")), messages)
    for entry in messages.entries:
        if entry.role is EntryRole.OUTBOUND:
            findings.hear_assistant(entry)
        else:
            findings.hear(entry)
    active, said = newest(findings.intents, max_items), newest(findings.first_words, max_items)
    sections = dict(old)
    sections["Description"] = messages.described(old.get("Description", ""))
    sections["Active Context"] = _items(active) or old.get("Active Context", "") or _items(said)
    sections["Progress"] = _progress(old.get("Progress", ""), findings, messages, max_items)
    sections["Facts"] = _items(findings.facts.items())
    sections["Preferences"] = _merge(old.get("Preferences", ""), findings.preferences, max_items)
    sections["Decisions"] = _merge(old.get("Decisions", ""), findings.decisions, max_items)
    return with_kept(render(sections), kept)


@dataclass
class _Findings:
    """What was found in the messages, the newest last."""

    facts: Facts
    messages: _Messages
    intents: list[str] = field(default_factory=list)
    first_words: list[str] = field(default_factory=list)
    preferences: list[str] = field(default_factory=list)
    decisions: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)

    def hear(self, entry: TranscriptEntry) -> None:
        """Read a person's message. Sentences that only state something are no intents."""
        by, text = speaker(entry.author, ""), entry.text[:MAX_MESSAGE_CHARACTERS]
        stated = {one for one in sentences(text) if not is_question(one) and self._states(one, by)}
        self.intents.append(self.messages.attributed(by, _intent(text, stated)))
        self.first_words.append(self.messages.attributed(by, next(iter(paragraphs(text)), short_line(text))))

    def _states(self, sentence: str, by: str) -> bool:
        """Record the facts, preferences and decisions of *sentence*; say whether there were any."""
        is_group = self.messages.is_group
        found = False
        for pattern, section in ((_PREFERENCE, self.preferences), (_DECISION, self.decisions)):
            if match := pattern.search(sentence):
                said = short_line(match[0].rstrip(".!… "))
                section.append(f"{by}: {said}" if is_group and by else said)
                found = True
        return bool(self.facts.learn(sentence, by, is_group=is_group)) or found

    def hear_assistant(self, entry: TranscriptEntry) -> None:
        """Read a reply of the assistant. It is evidence only for actions done, not for facts."""
        for sentence in sentences(entry.text[:MAX_MESSAGE_CHARACTERS]):
            if _DONE.search(sentence) and " " in sentence and not is_question(sentence):
                self.done.append(_DONE_LABEL.sub("", sentence))


def _intent(text: str, used: Container[str] = ()) -> str:
    """Return the sentence of *text* that says what the person wants.

    It is the first question, with the sentence before it if the question is short, else the first sentence that is
    neither in *used* nor small talk.
    """
    lines = paragraphs(text)
    for place, line in enumerate(lines):
        if is_question(line):
            return short_line(f"{lines[place - 1]} {line}") if place and len(line.split()) <= _SHORT_WORDS else line
    return next((line for line in lines if line not in used and not choose(line).small_talk), "")


class _Messages:
    """The messages since the last document, and who wrote them."""

    def __init__(self, entries: Sequence[TranscriptEntry], description: str) -> None:
        self.entries = [
            entry
            for entry in entries
            if entry.role is EntryRole.OUTBOUND
            or (entry.role is EntryRole.INBOUND and not choose(entry.text).small_talk)
        ]
        known = next((line for line in description.splitlines() if line.startswith(_PEOPLE)), "").removeprefix(_PEOPLE)
        names = [name.strip() for name in known.split(",") if name.strip()]
        names += [speaker(entry.author, "").replace(",", " ") for entry in entries if entry.role is EntryRole.INBOUND]
        self.names = [name for name in dict.fromkeys(names) if name]
        self.is_group = len(self.names) > 1

    def attributed(self, by: str, line: str) -> str:
        return short_line(f"{by}: {line}") if line and by and self.is_group else line

    def described(self, old: str) -> str:
        """Return the section Description with the people who have spoken."""
        rest = [line for line in old.splitlines() if not line.startswith(_PEOPLE)]
        people = [_PEOPLE + ", ".join(self.names[-_MAX_PEOPLE:])] if self.names else []
        return "\n".join([*rest, *people]).strip()

    def open_questions(self) -> list[str]:
        """Return people's questions without an answer, or with one that does not know."""
        found: list[str] = []
        for place, entry in enumerate(self.entries):
            if entry.role is EntryRole.INBOUND:
                answer = self._answer(place, entry.turn_id)
                if answer is None or _DOES_NOT_KNOW.search(answer):
                    by = speaker(entry.author, "")
                    asked = _intent(entry.text)
                    found += [self.attributed(by, asked)] if is_question(asked) else []
        return found

    def _answer(self, place: int, turn_id: str) -> str | None:
        """Return the assistant's answer to the entry at *place*, or None."""
        later = self.entries[place + 1 :]
        return next(
            (
                entry.text[:MAX_MESSAGE_CHARACTERS]
                for entry in later
                if entry.role is EntryRole.OUTBOUND and entry.turn_id == turn_id
            ),
            None,
        )


def _progress(old: str, findings: _Findings, messages: _Messages, max_items: int) -> str:
    """Return the section Progress: actions done (the newest last), then open questions.

    Old items stay while there is room; old questions, until somebody asks for something else.
    """
    before = [item(line) for line in old.splitlines() if line.strip()]
    asked = [line for line in before if line.startswith(_OPEN)]
    open_ = newest((f"{_OPEN}{line}" for line in messages.open_questions()), min(_MAX_OPEN, max_items))
    open_ = open_ or ([] if findings.intents else asked)
    done = [line for line in before if line not in asked] + [f"Done: {line}" for line in findings.done]
    return _items([*newest(done, max(1, max_items - len(open_))), *open_])


def _merge(old: str, new: list[str], max_items: int) -> str:
    lines = [item(line) for line in old.splitlines() if line.strip()]
    return _items(newest([*lines, *new], max_items))


def _items(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
