"""Find facts and decisions that people state explicitly, by patterns instead of a model. Pure and deterministic.

Precision matters more than recall, because prompts show a record for months. A fact is accepted only if its value is a
name, a number or, in a direct message, something personal. A decision is accepted only if the sentence calls it one.
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
"""Moderate, because patterns do not understand."""
_OWN: Origin = "extraction"
"""Patterns match only what a person wrote, whatever else the turn's prompt held."""
MAX_CHARACTERS = 2000
"""How much of a message is read; longer ones are pasted."""
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
_ANY_PREFERENCE = re.compile(r"\b(?:prefers?|bevorzugt?|prefiere|préfère)\b", re.IGNORECASE)
"""A preference in anybody's words, a model's too."""
_ANOTHERS = re.compile(
    r"[\"“„«‘]\s*$|^(?:(?:please|can you|could you|bitte),? )*(?:correct|draft|proofread|quote|rephrase|reply|rewrite|"
    r"send|tell|translate|write|schreibe?|sage?|übersetze?)\b"
    r"|(?<!\bI )(?<!\bI['’]ve )(?<!\bI['’]d )\b(?:said|says|saying|told|tells|wrote|writes|asked|asks|repl(?:ied|ies)|"
    r"claim(?:s|ed)|sagte?|schrieb|schreibt|meinte?|dijo|dice|escribió|(?:a|ont) (?:dit|écrit))\b"
    r"|\b(?:they|people|who|you|some|others) say\b|\b(?:do|did|does|should|would|could|can)\s*$"
    r"|(?:\b(?:not|never|no longer|used to|nicht|nie)|n['’]t)\b(?:(?!\b(?:and|but|so|because|since|as)\b)[^,;:.–—])*$",
    re.IGNORECASE,
)
"""Words before a preference that show that it is another person's, part of a text to be edited, denied, or asked for.
"""
_ONLY_NOW = re.compile(
    r"\b(?:tomorrow|this (?:one|time)|for now|the (?:former|latter)|"
    r"the (?:first|second|third|fourth|last|other) (?:one|option|version|variant|idea|plan|suggestion|draft))\b",
    re.IGNORECASE,
)
"""Words that limit a preference to the moment or to alternatives just mentioned."""
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
_ADDED_CLAUSE = re.compile(
    r"(?:[,;:–—]|\s-)\s*(?:but|so|yet|though|although|can|could|would|will|what|how|is|are|am|do|does|did|which|who|where|maybe|"
    r"perhaps|please|right|ok(?:ay)?|you know|I|I['’]\w+|we['’]\w+|and (?:I|I['’]\w+|since|now|then|you|he|she|they)|"
    r"aber|weil|und ich|pero|y yo|mais|et je)\b.*$|\s+(?:but|so (?:that|can|could|I)|and (?:I|I['’]\w+|now|then))\b.*$",
    re.IGNORECASE,
)
"""The rest of a long sentence after the statement itself, mostly a question about it."""
_PURPOSE = re.compile(r"\s+(?:to (?:fully )?\w+|because|since|for|due to|um|para|pour)\s.*$", re.IGNORECASE)
_CLAUSE_START = re.compile(r"(?:^|[,;:–—])\s*(?:(?:and|so|but|since|because|und|y|et|weil)\s+)*$", re.IGNORECASE)
"""Text that ends where a new clause can begin."""
_REFERENCES = re.compile(
    r"\b(?:it|its|them|those|these|that one|this one)\b"
    r"|\b(?:this|that)(?:\s+(?:approach|plan|way|option|idea|path|one|step))?$"
    r"|\bthat (?:approach|plan|way|option|idea|path)\b"
    r"|\bthis\b(?! (?:year|month|week|quarter|season|spring|summer|autumn|fall|winter|weekend"
    r"|january|february|march|april|may|june|july|august|september|october|november|december"
    r"|monday|tuesday|wednesday|thursday|friday|saturday|sunday)\b)",
    re.IGNORECASE,
)
"""Words that refer to an earlier message. Nobody can resolve them a month later."""
_LASTING = re.compile(
    r"\b(?:favou?rite|preferred|usual|profession|occupation|role|title|hobby|hobbies|diet|allerg\w+|language|"
    r"size|major|time ?zone|pronouns|lieblings\w+|beruf|favorit[oa]|préférée?)\b",
    re.IGNORECASE,
)
"""Attributes of a person that last, whatever their value."""
_MIN_WORDS = 2
"""A decision or a preference needs at least this many content words."""
_RULE_VERBS = (
    r"add|address|answer|ask|avoid|begin|call|check|cite|confirm|convert|describe|double-check|end|explain|format|give|"
    r"greet|highlight|include|keep|list|maintain|make|mention|name|offer|order|prefer|present|propose|provide|quote|"
    r"recommend|remind|reply|respond|round|say|send|show|speak|specify|spell|start|state|suggest|summari[sz]e|tell|"
    r"translate|use|verify|warn|write"
)
_STANDING = re.compile(
    rf"^(?:please,? )?(?:(?:from now on|in future|in the future)\b|(?:always|never)\s+(?:{_RULE_VERBS})\s).{{4,240}}$"
    r"|^(?:bitte |por favor,? )?(?:ab jetzt|von jetzt an|a partir de ahora|désormais)\b.{4,240}$",
    re.IGNORECASE,
)
"""A rule for all later answers."""
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
_CHAT_WORDS = re.compile(
    r"\b(?:I|I['’]m|me|my|mine|we|us|you|your|he|him|his|she|her|they|them|it|so|such|too|very)\b", re.IGNORECASE
)
"""Words of conversation that no value contains."""


def found_in(window: Window, known: Sequence[Record]) -> list[Extracted]:
    """Return the facts and decisions that people state in *window*.

    *known* are the stored records about the same people. The latest value of a fact supersedes the one before; a known
    statement takes the words of its record.
    """
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
    """Say whether *entries* can contain a statement, whoever owns them and whatever is known.

    Mostly they do not, and then nothing else must be read.
    """
    window = Window("", tuple(entries), "anybody", {})
    return bool(found_in(window, ())) or any(
        corrects(sentence) for entry in window.said for sentence in sentences(entry.text[:MAX_CHARACTERS])
    )


def subject_of(text: str) -> str:
    """Return the subject of a fact that was stored as ``subject: value``; empty for other wordings."""
    subject, separator, value = text.partition(": ")
    return subject.casefold().strip() if separator and value.strip() and "\n" not in subject else ""


def standing(sentence: str) -> Standing | None:
    """Say whether *sentence* states a rule for all later answers, or a preference."""
    if _STANDING.match(sentence):
        return "rule"
    return "preference" if _preference(sentence) else None


def opposed(text: str, other: str) -> bool:
    """Say whether two preferences contradict each other.

    They do if they differ only in one word and its opposite ("dark mode", "light mode"), or if they hold the same words
    in another order ("tea to coffee", "coffee to tea"). "Short answers" and "German answers" are compatible.
    """
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
    """The facts that one window states, given the known facts of this conversation and of these subjects."""

    def __init__(self, window: Window, known: Collection[Record]) -> None:
        self._window = window
        self._known = [one for one in known if one.type is Type.FACT]
        here = [one for one in self._known if self._is_from_here(one)]
        self._facts = Facts.read("\n".join(one.text for one in sorted(here, key=lambda one: one.changed_at)))
        self._statement: dict[str, tuple[str, Entry]] = {}

    def _is_from_here(self, record: Record) -> bool:
        """A correction ("no, make it Friday") refers to this conversation, never to another."""
        return bool(subject_of(record.text)) and record.provenance.context_id == self._window.context_id

    def hear(self, entry: Entry, sentence: str) -> None:
        by, is_private = speaker(entry.author, ""), self._window.is_private
        if is_private and (text := _preference(sentence) or _statement(sentence, _STANDING)):
            for former in [one for one in self._statement if opposed(text, one)]:
                del self._statement[former]
            self._statement[text] = (text, entry)
            return
        if _LABEL.match(sentence) or _PASSING.search(sentence):
            return
        for subject in self._facts.learn(sentence, by, is_group=not is_private):
            value = self._facts.known[subject]
            if self._is_lasting(subject, value, by):
                self._statement.pop(subject, None)
                self._statement[subject] = (f"{subject}: {value}", entry)

    def _is_lasting(self, subject: str, value: str, by: str) -> bool:
        if len(subject.split()) > _MAX_SUBJECT_WORDS or not 0 < len(value.split()) <= _MAX_VALUE_WORDS:
            return False
        is_own = subject.startswith(("user's ", f"{by}'s ")) if by else subject.startswith("user's ")
        if _CHAT_WORDS.search(value) or _CHAT_WORDS.search(subject):
            return False
        is_certain = len(value) > 1 and bool(_NAME_OR_NUMBER.search(value))
        return self._window.is_private and (is_certain or bool(_LASTING.search(subject))) if is_own else is_certain

    def found(self) -> Iterator[Extracted]:
        stands: list[str] = []
        for subject, (text, entry) in self._statement.items():
            rivals = [one for one in self._known if _is_superseded(one, subject, text)]
            before = max(rivals, key=lambda one: one.changed_at, default=None)
            new = settled(NewRecord(Type.FACT, text, confidence=CONFIDENCE), self._known, before)
            if of := standing(text):
                stands.append(new.text)
                new = as_standing(new, of, self._known, stands)
            yield extracted(new, entry, _OWN)


def _decision(sentence: str, *, is_private: bool) -> str:
    """Return the decision that *sentence* states; empty if it states none or only considers one."""
    return _statement(sentence, _DECIDED) or (_statement(sentence, _I_DECIDED) if is_private else "")


def _is_superseded(known: Record, subject: str, text: str) -> bool:
    """Say whether a new statement supersedes *known*. Of verbatim records only preferences can be superseded."""
    if known.verbatim:
        return is_heard_preference(known) and opposed(text, known.text)
    return subject_of(known.text) == subject.casefold() or opposed(text, known.text)


def is_heard_preference(record: Record) -> bool:
    """Say whether *record* is a preference that was overheard and stored verbatim although nobody asked for that."""
    return (
        record.provenance.origin == _OWN
        and not _STANDING.match(record.text)
        and bool(_ANY_PREFERENCE.search(record.text))
    )


def _preference(sentence: str) -> str:
    """Return the lasting preference that the speaker states in *sentence*; empty if it is another's or only for now."""
    match, clause = _PREFERS.search(sentence), _statement(sentence, _PREFERS)
    if match is None or not clause or _ANOTHERS.search(before := sentence[: match.start()]):
        return ""
    return "" if any(one.search(f"{before}{clause}") for one in (_PASSING, _ONLY_NOW)) else clause


def _statement(sentence: str, pattern: re.Pattern[str]) -> str:
    """Return the clause of *sentence* that matches *pattern*; empty if it is hypothetical or a question.

    An added question ("I prefer tea, can you order some?") does not make the statement a question.
    """
    match = pattern.search(sentence)
    if match is None or _UNSURE.search(before := sentence[: match.start()]):
        return ""
    clause = _clause(match[0])
    if is_question(sentence) and not (_CLAUSE_START.search(before) and _ADDED_CLAUSE.search(match[0])):
        return ""
    return clause


def _clause(text: str) -> str:
    """Return *text* without added clauses, and without a purpose that refers elsewhere ("long proofs to grasp it").

    Empty if it still refers elsewhere, says too little, or was cut.
    """
    clause = one_line(_ADDED_CLAUSE.sub("", text).strip().rstrip(".!,;: "))
    if _REFERENCES.search(clause):
        clause = _PURPOSE.sub("", clause)
    if clause.endswith("…") or _REFERENCES.search(clause) or len(terms(clause)) < _MIN_WORDS + 1:
        return ""
    return clause
