"""Facts and decisions that people state in so many words, without a model. Pure and deterministic.

Precision comes first: a record is shown for months. So a fact is kept only where its value is a name, a number or, in a
direct message, something of the person's own, and a decision only where it is called one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from grounding.memory.facts import Facts, corrects
from grounding.memory.records.confidential import looks_secret
from grounding.memory.records.port import NewRecord
from grounding.memory.records.record import Origin, Record, Type
from grounding.memory.records.said import GONE, Extracted, Window, extracted, latest, owned, settled
from grounding.memory.sentences import is_question, one_line, sentences
from grounding.sections import speaker
from grounding.transcript.entry import Entry

CONFIDENCE = 0.7
"""Patterns, not understanding."""
_OWN: Origin = "extraction"
"""A pattern finds a person's own words, whatever else their turn was shown."""
MAX_CHARACTERS = 2000
"""What of a message is looked at; nobody says more, it is pasted."""
_MAX_SUBJECT_WORDS = 5
_MAX_VALUE_WORDS = 14
_DECIDED = re.compile(
    r"\b(?:we(?:['’]ve| have)?(?: now| just| all| finally)? (?:decided|agreed|settled) (?:to|on|that|against)|"
    r"let['’]s go with|we(?:['’]re| are) going with|we(?:['’]ll| will) go with|"
    r"wir haben (?:uns )?(?:darauf geeinigt|(?:dafür|dagegen) entschieden)|wir einigen uns auf|"
    r"hemos (?:decidido|acordado)|decidimos|quedamos en que|"
    r"(?:on a|nous avons) (?:décidé|convenu)(?: de| que| d['’]))\b.{2,240}"
    r"|\bwir haben (?:uns )?.{2,200}?\b(?:entschieden|beschlossen)\b",
    re.IGNORECASE,
)
_I_DECIDED = re.compile(
    r"\b(?:I(?:['’]ve| have)?(?: now| just| finally)? decided (?:to|on|that|against)|ich habe (?:mich|beschlossen)|"
    r"he decidido|j['’]ai décidé)\b.{2,240}",
    re.IGNORECASE,
)
_PREFERS = re.compile(
    r"\b(?:I(?: really| much| always| generally)? prefer|I(?:['’]d| would) (?:much )?rather|ich bevorzuge|prefiero|"
    r"je préfère)\b.{2,160}",
    re.IGNORECASE,
)
_UNSURE = re.compile(
    r"\b(?:if|whether|unless|suppose|imagine|assuming|maybe|perhaps|might|should we|could we|wenn|falls|ob|vielleicht|"
    r"quizás|tal vez|peut-être)\b",
    re.IGNORECASE,
)
_PASSING = re.compile(
    r"\b(?:today|tonight|right now|at the moment|this (?:morning|afternoon|evening)|heute|gerade|hoy|ahora mismo|"
    r"aujourd['’]hui)\b",
    re.IGNORECASE,
)
_LABEL = re.compile(r"^[^:=→]{1,60}(?::|=|->|→)\s")
_NAME_OR_NUMBER = re.compile(r"\d|^[^\W\d_]*[A-ZÄÖÜÉÈÀÑ]|\s[A-ZÄÖÜÉ]|[/@_]|[^\x00-\u024f]")


def found_in(window: Window, known: Sequence[Record]) -> list[Extracted]:
    """What people state in *window*, given what is *known* of them: of a fact the latest value, in the place of the
    one before; what is known already in the words in which it is known."""
    of_owner = [one for one in owned(known, window.owner) if one.state not in GONE]
    facts, decisions = _Facts(window, of_owner), list[Extracted]()
    for entry in window.said:
        for sentence in sentences(entry.text[:MAX_CHARACTERS]):
            if is_question(sentence) or looks_secret(sentence):
                continue
            decided = _decision(sentence, is_private=bool(window.owner))
            if decided:
                new = settled(NewRecord(Type.DECISION, decided, confidence=CONFIDENCE), of_owner)
                decisions.append(extracted(new, entry, _OWN))
            else:
                facts.hear(entry, sentence)
    return latest([*decisions, *facts.found()], window.most)


def may_state(entries: Sequence[Entry]) -> bool:
    """Whether anything may be found in *entries*, whosever they are and whatever is known. Mostly nothing is: then
    nothing else has to be read."""
    window = Window("", tuple(entries), "anybody", {})
    return bool(found_in(window, ())) or any(
        corrects(sentence) for entry in window.said for sentence in sentences(entry.text[:MAX_CHARACTERS])
    )


def subject_of(text: str) -> str:
    """What a fact is about that was kept as ``subject: value``; empty for one in other words."""
    subject, separator, value = text.partition(": ")
    return subject.casefold().strip() if separator and value.strip() and "\n" not in subject else ""


class _Facts:
    """The facts that are stated in one window, over those that are known of this conversation or of this subject."""

    def __init__(self, window: Window, known: Collection[Record]) -> None:
        self._window = window
        self._known = [one for one in known if one.type is Type.FACT]
        here = [one for one in self._known if self._is_from_here(one)]
        self._facts = Facts.read("\n".join(one.text for one in sorted(here, key=lambda one: one.changed_at)))
        self._stated: dict[str, tuple[str, Entry]] = {}

    def _is_from_here(self, record: Record) -> bool:
        """A correction ("no, make it Friday") is about what was said here, never about what was said elsewhere."""
        return bool(subject_of(record.text)) and record.provenance.context_id == self._window.context_id

    def hear(self, entry: Entry, sentence: str) -> None:
        by, is_private = speaker(entry.author, ""), bool(self._window.owner)
        if is_private and (preferred := _PREFERS.search(sentence)) and not _UNSURE.search(sentence):
            text = one_line(preferred[0].rstrip(".!… "))
            self._stated[text] = (text, entry)
            return
        if _LABEL.match(sentence) or _PASSING.search(sentence):
            return
        for subject in self._facts.learn(sentence, by, is_group=not is_private):
            value = self._facts.known[subject]
            if self._is_lasting(subject, value, by):
                self._stated.pop(subject, None)
                self._stated[subject] = (f"{subject}: {value}", entry)

    def _is_lasting(self, subject: str, value: str, by: str) -> bool:
        if len(subject.split()) > _MAX_SUBJECT_WORDS or not 0 < len(value.split()) <= _MAX_VALUE_WORDS:
            return False
        is_own = subject.startswith(("user's ", f"{by}'s ")) if by else subject.startswith("user's ")
        return bool(self._window.owner) if is_own else bool(_NAME_OR_NUMBER.search(value))

    def found(self) -> Iterator[Extracted]:
        for subject, (text, entry) in self._stated.items():
            rivals = [one for one in self._known if subject_of(one.text) == subject.casefold() and not one.verbatim]
            before = max(rivals, key=lambda one: one.changed_at, default=None)
            new = settled(NewRecord(Type.FACT, text, confidence=CONFIDENCE), self._known, before)
            yield extracted(new, entry, _OWN)


def _decision(sentence: str, *, is_private: bool) -> str:
    """The decision that *sentence* tells of; empty where it tells of none, or of one that was not made."""
    match = _DECIDED.search(sentence) or (is_private and _I_DECIDED.search(sentence)) or None
    if not match or _UNSURE.search(sentence[: match.start()]):
        return ""
    return one_line(sentence[match.start() :].rstrip(".!… "))
