"""Build a context document without a model, from questions, actions, open points and statements. Pure and
deterministic."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field

from grounding.memory.document import Line, bodies, item, render, with_kept
from grounding.memory.facts import Facts
from grounding.memory.sentences import is_question, newest, one_line, paragraphs, sentences
from grounding.sections import speaker
from grounding.strategy import choose
from grounding.transcript.entry import Entry, EntryRole

_PEOPLE = "People: "
_MAX_PEOPLE = 12
_MAX_CHARACTERS = 2000
"""How much of a message is read; longer ones are pasted."""
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
_NEXT = re.compile(
    r"\b(?:I['’]ll|I will|we['’]ll|we will|I['’]m going to|I am going to|next steps?|next up)\b|^next\s*:",
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
    r".{2,160}|\b(?:ich bevorzuge|ich mag|prefiero|me gusta|je préfère|j['’]aime)\b.{2,160}",
    re.IGNORECASE,
)
_DECISION = re.compile(
    r"\b(?:we|i)(?:['’]ve| have)? (?:decided|agreed|settled|chose|will go with|go with|went with)\b.{2,160}"
    r"|\blet['’]s go with\b.{2,160}|\b(?:wir haben (?:uns )?.{0,60}(?:entschieden|beschlossen)|hemos decidido|"
    r"decidimos|on a décidé|nous avons décidé).{0,160}",
    re.IGNORECASE,
)
_DONE_LABEL = re.compile(r"^done\s*:\s*", re.IGNORECASE)
_NEXT_STEP = re.compile(r"^(?:next steps?|next up|next)\s*:?\s*", re.IGNORECASE)


def document(previous: str, entries: Sequence[Entry], max_items: int, kept: Sequence[Line] = ()) -> str:
    """Return the document after *entries* (oldest first), given the *previous* one (may be empty).

    People's messages are evidence for intents, open questions and statements. The latest statement about a subject
    replaces earlier ones. *max_items* limits the items of each section except the facts. *kept* are lines of the
    previous document that people wrote themselves; they stay.
    """
    old = bodies(previous)
    told = _Messages(entries, old.get("Description", ""))
    noted = _Findings(Facts.read(old.get("Facts", "")), told)
    for entry in told.entries:
        if entry.role is EntryRole.OUTBOUND:
            noted.hear_assistant(entry)
        else:
            noted.hear(entry)
    active, said = newest(noted.intents, max_items), newest(noted.first_words, max_items)
    sections = dict(old)
    sections["Description"] = told.described(old.get("Description", ""))
    sections["Active Context"] = _items(active) or old.get("Active Context", "") or _items(said)
    sections["Progress"] = _progress(old.get("Progress", ""), noted, told, max_items)
    sections["Facts"] = _items(noted.facts.items())
    sections["Preferences"] = _merge(old.get("Preferences", ""), noted.preferences, max_items)
    sections["Decisions"] = _merge(old.get("Decisions", ""), noted.decisions, max_items)
    return with_kept(render(sections), kept)


@dataclass
class _Findings:
    """What was found in the messages, the newest last."""

    facts: Facts
    told: _Messages
    intents: list[str] = field(default_factory=list)
    first_words: list[str] = field(default_factory=list)
    preferences: list[str] = field(default_factory=list)
    decisions: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    following: list[str] = field(default_factory=list)

    def hear(self, entry: Entry) -> None:
        """Read a person's message. Sentences that only state something are no intents."""
        by, text = speaker(entry.author, ""), entry.text[:_MAX_CHARACTERS]
        stated: set[str] = set()
        for sentence in sentences(text):
            if is_question(sentence):
                continue
            if self._states(sentence, by):
                stated.add(sentence)
            elif done := _DONE.search(sentence) or _NEXT.search(sentence):
                stated.add(sentence)
                (self.done if done.re is _DONE else self.following).append(one_line(f"{by or 'user'}: {sentence}"))
        self.intents.append(self.told.attributed(by, _intent(text, stated)))
        self.first_words.append(self.told.attributed(by, next(iter(paragraphs(text)), one_line(text))))

    def _states(self, sentence: str, by: str) -> bool:
        """Record the facts, preferences and decisions of *sentence*; say whether there were any."""
        is_group = self.told.is_group
        found = False
        for pattern, section in ((_PREFERENCE, self.preferences), (_DECISION, self.decisions)):
            if match := pattern.search(sentence):
                said = one_line(match[0].rstrip(".!… "))
                section.append(f"{by}: {said}" if is_group and by else said)
                found = True
        return bool(self.facts.learn(sentence, by, is_group=is_group)) or found

    def hear_assistant(self, entry: Entry) -> None:
        """Read a reply of the assistant. It is evidence only for actions done and announced, not for facts."""
        for sentence in sentences(entry.text[:_MAX_CHARACTERS]):
            if is_question(sentence):
                continue
            if _DONE.search(sentence) and " " in sentence:
                self.done.append(_DONE_LABEL.sub("", sentence))
            elif _NEXT.search(sentence):
                self.following.append(_NEXT_STEP.sub("", sentence))


def _intent(text: str, used: Container[str] = ()) -> str:
    """Return the sentence of *text* that says what the person wants.

    It is the first question, with the sentence before it if the question is short, else the first sentence that is
    neither in *used* nor small talk.
    """
    lines = paragraphs(text)
    for place, line in enumerate(lines):
        if is_question(line):
            return one_line(f"{lines[place - 1]} {line}") if place and len(line.split()) <= _SHORT_WORDS else line
    return next((line for line in lines if line not in used and not choose(line).small_talk), "")


class _Messages:
    """The messages since the last document, and who wrote them."""

    def __init__(self, entries: Sequence[Entry], description: str) -> None:
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
        return one_line(f"{by}: {line}") if line and by and self.is_group else line

    def described(self, old: str) -> str:
        """Return the section Description with the people who have spoken."""
        rest = [line for line in old.splitlines() if not line.startswith(_PEOPLE)]
        people = [_PEOPLE + ", ".join(self.names[-_MAX_PEOPLE:])] if self.names else []
        return "\n".join([*rest, *people]).strip()

    def open_questions(self) -> list[str]:
        """Return people's questions without an answer, or with one that does not know, and a question that ends the
        conversation."""
        found: list[str] = []
        for place, entry in enumerate(self.entries):
            if entry.role is EntryRole.INBOUND:
                answer = self._answer(place, entry.turn_id)
                if answer is None or _DOES_NOT_KNOW.search(answer):
                    by = speaker(entry.author, "")
                    asked = _intent(entry.text)
                    found += [self.attributed(by, asked)] if is_question(asked) else []
        if self.entries and self.entries[-1].role is EntryRole.OUTBOUND:
            last = (sentences(self.entries[-1].text) or [""])[-1]
            found += [f"assistant: {last}"] if is_question(last) and not _OFFERS.search(last) else []
        return found

    def _answer(self, place: int, turn_id: str) -> str | None:
        """Return the assistant's answer to the entry at *place*, or None."""
        later = self.entries[place + 1 :]
        return next(
            (
                entry.text[:_MAX_CHARACTERS]
                for entry in later
                if entry.role is EntryRole.OUTBOUND and entry.turn_id == turn_id
            ),
            None,
        )


_OFFERS = re.compile(
    r"\b(?:anything else|help you|would you like|let me know|shall i|do you want|can i)\b", re.IGNORECASE
)
"""Polite closing questions of an assistant; they are no open questions."""


def _progress(old: str, noted: _Findings, told: _Messages, max_items: int) -> str:
    """Return the section Progress: actions done (the newest last), next steps and open questions.

    Old items stay unless newer ones replace them.
    """
    before: dict[str, list[str]] = {"Done: ": [], "Next: ": [], "Open: ": [], "": []}
    for line in old.splitlines():
        text = item(line)
        kind = next(kind for kind in before if text.startswith(kind))
        before[kind].append(text)
    open_ = newest((f"Open: {line}" for line in told.open_questions()), min(_MAX_OPEN, max_items)) or (
        [] if noted.intents else before["Open: "]
    )
    next_ = newest((f"Next: {line}" for line in noted.following), _MAX_OPEN) or ([] if noted.done else before["Next: "])
    room = max(1, max_items - len(open_) - len(next_))
    did = newest([*before["Done: "], *(f"Done: {line}" for line in noted.done)], room)
    return _items([*before[""], *did, *next_, *open_])


def _merge(old: str, new: list[str], max_items: int) -> str:
    lines = [item(line) for line in old.splitlines() if line.strip()]
    return _items(newest([*lines, *new], max_items))


def _items(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
