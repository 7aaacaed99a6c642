"""Facts and decisions that people state in so many words, without a model. Pure and deterministic.

Precision comes first: a record is shown for months. So a fact is kept only where its value is a name, a number or, in a
direct message, something of the person's own, and a decision only where it is called one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from itertools import product

from grounding.documents.sparse import terms
from grounding.memory.facts import Facts, corrects
from grounding.memory.records.confidential import looks_secret
from grounding.memory.records.port import NewRecord
from grounding.memory.records.record import Origin, Record, Type
from grounding.memory.records.said import (
    GONE,
    Extracted,
    Standing,
    Window,
    as_standing,
    extracted,
    latest,
    owned,
    settled,
)
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
_LIKED = re.compile(
    r"\b(?:I(?: really| much| always| generally)? prefer|ich bevorzuge|prefiero|je préfère)\b", re.IGNORECASE
)
_PREFERS = re.compile(_LIKED.pattern + r".{2,240}", re.IGNORECASE)
_TOLD = re.compile(r"\b(?:prefers?|bevorzugt?|prefiere|préfère)\b", re.IGNORECASE)
"""A preference in anybody's words, a model's too."""
_NOT_OWN = re.compile(
    r"[\"“„«‘]\s*$|^(?:(?:please|can you|could you|bitte),? )*(?:correct|draft|proofread|quote|rephrase|reply|rewrite|"
    r"send|tell|translate|write|schreibe?|sage?|übersetze?)\b"
    r"|(?<!\bI )(?<!\bI['’]ve )(?<!\bI['’]d )\b(?:said|says|saying|told|tells|wrote|writes|asked|asks|repl(?:ied|ies)|"
    r"claim(?:s|ed)|sagte?|schrieb|schreibt|meinte?|dijo|dice|escribió|(?:a|ont) (?:dit|écrit))\b"
    r"|\b(?:they|people|who|you|some|others) say\b|\b(?:do|did|does|should|would|could|can)\s*$"
    r"|(?:\b(?:not|never|no longer|used to|nicht|nie)|n['’]t)\b(?:(?!\b(?:and|but|so|because|since|as)\b)[^,;:.–—])*$",
    re.IGNORECASE,
)
"""What makes a preference that comes after it another's, a text to be worked on, denied, or asked for."""
_ONCE = re.compile(
    r"\b(?:tomorrow|this (?:one|time)|for now|the (?:former|latter)|"
    r"the (?:first|second|third|fourth|last|other) (?:one|option|version|variant|idea|plan|suggestion|draft))\b",
    re.IGNORECASE,
)
"""What is preferred only now, among what was just spoken of."""
_OPPOSITES = tuple(
    tuple(side.split() for side in pair.split(" / "))
    for pair in (
        "short shorter brief concise / long longer detailed verbose", "dark / light", "formal / casual informal",
        "early earlier / late later", "morning mornings / evening evenings", "more / fewer less", "simple / complex",
        "window / aisle", "metric / imperial", "celsius / fahrenheit", "cheap cheaper / expensive", "hot / cold",
        "kurze kürzere knappe / lange längere ausführliche", "du / sie", "dunkle / helle", "formelle / informelle",
        "cortas breves / largas detalladas", "courtes brèves / longues détaillées",
    )
)  # fmt: skip
_BESIDE = re.compile(
    r"(?:[,;:–—]|\s-)\s*(?:but|so|yet|though|although|can|could|would|will|what|how|is|are|am|do|does|did|which|who|where|maybe|"
    r"perhaps|please|right|ok(?:ay)?|you know|I|I['’]\w+|we['’]\w+|and (?:I|I['’]\w+|since|now|then|you|he|she|they)|"
    r"aber|weil|und ich|pero|y yo|mais|et je)\b.*$|\s+(?:but|so (?:that|can|could|I)|and (?:I|I['’]\w+|now|then))\b.*$",
    re.IGNORECASE,
)
"""What is said beside it: the rest of a long sentence, mostly what is asked about it."""
_WHAT_FOR = re.compile(r"\s+(?:to (?:fully )?\w+|because|since|for|due to|um|para|pour)\s.*$", re.IGNORECASE)
_BEGINS = re.compile(r"(?:^|[,;:–—])\s*(?:(?:and|so|but|since|because|und|y|et|weil)\s+)*$", re.IGNORECASE)
"""What stands before a clause that is a sentence of its own."""
_POINTS = re.compile(
    r"\b(?:it|its|them|those|these|that one|this one)\b"
    r"|\b(?:this|that)(?:\s+(?:approach|plan|way|option|idea|path|one|step))?$"
    r"|\bthat (?:approach|plan|way|option|idea|path)\b"
    r"|\bthis\b(?! (?:year|month|week|quarter|season|spring|summer|autumn|fall|winter|weekend"
    r"|january|february|march|april|may|june|july|august|september|october|november|december"
    r"|monday|tuesday|wednesday|thursday|friday|saturday|sunday)\b)",
    re.IGNORECASE,
)
"""What points to something that was said before: nobody knows to what in a month."""
_LASTING = re.compile(
    r"\b(?:favou?rite|preferred|usual|profession|occupation|role|title|hobby|hobbies|diet|allerg\w+|language|"
    r"size|major|time ?zone|pronouns|lieblings\w+|beruf|favorit[oa]|préférée?)\b",
    re.IGNORECASE,
)
"""What of a person does not pass, whatever its value."""
_MIN_WORDS = 2
"""What is decided or preferred has so many words of its own, at least."""
_DO = (
    r"add|address|answer|ask|avoid|begin|call|check|cite|confirm|convert|describe|double-check|end|explain|format|give|"
    r"greet|highlight|include|keep|list|maintain|make|mention|name|offer|order|prefer|present|propose|provide|quote|"
    r"recommend|remind|reply|respond|round|say|send|show|speak|specify|spell|start|state|suggest|summari[sz]e|tell|"
    r"translate|use|verify|warn|write"
)
_STANDING = re.compile(
    rf"^(?:please,? )?(?:(?:from now on|in future|in the future)\b|(?:always|never)\s+(?:{_DO})\s).{{4,240}}$"
    r"|^(?:bitte |por favor,? )?(?:ab jetzt|von jetzt an|a partir de ahora|désormais)\b.{4,240}$",
    re.IGNORECASE,
)
"""A rule for every answer to come."""
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
_NAME_OR_NUMBER = re.compile(
    r"\d|^(?:(?:the|an?|in|at|on|by|to|from|der|die|das|den|dem|am|im|el|la|los|las|en|le|les|à|au|près de|de)\s+)*"
    r"(?!I\b)[\"'“„«]?(?:[A-ZÄÖÜÉÈÀÑ]|[^\x00-\u024f])|[/@_]"
)
_TALK = re.compile(
    r"\b(?:I|I['’]m|me|my|mine|we|us|you|your|he|him|his|she|her|they|them|it|so|such|too|very)\b", re.IGNORECASE
)
"""What stands in chat, and in no value."""


def found_in(window: Window, known: Sequence[Record]) -> list[Extracted]:
    """What people state in *window*, given what is *known* of them: of a fact the latest value, in the place of the
    one before; what is known already in the words in which it is known."""
    of_owner = [one for one in owned(known, window.owner) if one.state not in GONE]
    facts, decisions = _Facts(window, of_owner), list[Extracted]()
    for entry in window.said:
        for sentence in sentences(entry.text[:MAX_CHARACTERS]):
            if looks_secret(sentence):
                continue
            decided = _decision(sentence, is_private=window.is_private)
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


def standing(sentence: str) -> Standing | None:
    """Whether *sentence* says a rule for every answer to come, or what somebody prefers."""
    if _STANDING.match(sentence):
        return "rule"
    return "preference" if _preferred(sentence) else None


def opposed(text: str, other: str) -> bool:
    """Whether two preferences cannot both hold: the same but for one word and its opposite ("dark mode", "light mode"),
    or turned around ("tea to coffee", "coffee to tea"). "Short answers" and "German answers" both do."""
    one, before = _LIKED.search(text), _LIKED.search(other)
    if one is None or before is None:
        return False
    first, second = _words(text[one.end() :]), _words(other[before.end() :])
    if len(first) != len(second) or len(first) < _MIN_WORDS or first == second:
        return False
    differing = [pair for pair in zip(first, second, strict=True) if pair[0] != pair[1]]
    is_opposite = any(set(differing[0]) == {one, other} for sides in _OPPOSITES for one, other in product(*sides))
    return (len(differing) == 1 and is_opposite) or sorted(first) == sorted(second)


def _words(text: str) -> list[str]:
    return text.casefold().strip(" .!").split()


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
        by, is_private = speaker(entry.author, ""), self._window.is_private
        if is_private and (text := _preferred(sentence) or _stated(sentence, _STANDING)):
            for former in [one for one in self._stated if opposed(text, one)]:
                del self._stated[former]
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
        if _TALK.search(value) or _TALK.search(subject):
            return False
        is_certain = len(value) > 1 and bool(_NAME_OR_NUMBER.search(value))
        return self._window.is_private and (is_certain or bool(_LASTING.search(subject))) if is_own else is_certain

    def found(self) -> Iterator[Extracted]:
        stands: list[str] = []
        for subject, (text, entry) in self._stated.items():
            rivals = [one for one in self._known if _gives_way(one, subject, text)]
            before = max(rivals, key=lambda one: one.changed_at, default=None)
            new = settled(NewRecord(Type.FACT, text, confidence=CONFIDENCE), self._known, before)
            if of := standing(text):
                stands.append(new.text)
                new = as_standing(new, of, self._known, stands)
            yield extracted(new, entry, _OWN)


def _decision(sentence: str, *, is_private: bool) -> str:
    """The decision that *sentence* tells of; empty where it tells of none, or of one that was not made."""
    return _stated(sentence, _DECIDED) or (_stated(sentence, _I_DECIDED) if is_private else "")


def _gives_way(known: Record, subject: str, text: str) -> bool:
    """Whether what is stated now takes the place of *known*; of what is kept word for word only preferences do."""
    if known.verbatim:
        return is_heard_preference(known) and opposed(text, known.text)
    return subject_of(known.text) == subject.casefold() or opposed(text, known.text)


def is_heard_preference(record: Record) -> bool:
    """Whether *record* is kept word for word as somebody was heard to prefer it: nobody asked for that."""
    return record.provenance.origin == _OWN and not _STANDING.match(record.text) and bool(_TOLD.search(record.text))


def _preferred(sentence: str) -> str:
    """What people say in *sentence* that they prefer, not only now; empty where they do not, or tell what others do."""
    match, clause = _PREFERS.search(sentence), _stated(sentence, _PREFERS)
    if match is None or not clause or _NOT_OWN.search(before := sentence[: match.start()]):
        return ""
    return "" if any(one.search(f"{before}{clause}") for one in (_PASSING, _ONCE)) else clause


def _stated(sentence: str, pattern: re.Pattern[str]) -> str:
    """What *sentence* states by *pattern*, in its own words; empty where it is supposed, or asked. What is asked beside
    it ("I prefer tea, can you order some?") does not make a question of it."""
    match = pattern.search(sentence)
    if match is None or _UNSURE.search(before := sentence[: match.start()]):
        return ""
    clause = _clause(match[0])
    if is_question(sentence) and not (_BEGINS.search(before) and _BESIDE.search(match[0])):
        return ""
    return clause


def _clause(text: str) -> str:
    """*text* without what is said beside it, and without what for where that points elsewhere ("long proofs to grasp
    it"); empty where it still does, says too little, or was cut."""
    clause = one_line(_BESIDE.sub("", text).strip().rstrip(".!,;: "))
    if _POINTS.search(clause):
        clause = _WHAT_FOR.sub("", clause)
    if clause.endswith("…") or _POINTS.search(clause) or len(terms(clause)) < _MIN_WORDS + 1:
        return ""
    return clause
