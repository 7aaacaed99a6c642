"""Find statements of fact in messages, as ``subject: value`` of which the latest holds. Pure.

Patterns match English sentences that say what something is or shall be. Questions, suppositions and doubts are no
facts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from grounding.memory.context_document.document import item
from grounding.memory.context_document.sentence import is_question, short_line

MAX_FACTS = 24
_SUBJECT = r"(?P<subject>[\w\-/#'’&.` ]{2,60}?)"
_VALUE = r"(?P<value>\S.{0,160})"
_LATER = r"(?:(?:now|actually|currently|still|called|named|be)\s+)*"
_WHOSE = r"(?P<whose>the|our|my|this)"
_IS = (
    r"is|are|was|were|will be|should be|became|equals|=|(?:has |have )?changed to|moved to|"
    r"(?:has|have|is|was|were|got)(?: been)? (?:now )?(?:moved|changed|renamed|set|pushed|postponed|raised|lowered) to"
)
_CHANGE = r"change|set|rename|switch|move|update|correct|make|push|postpone|raise|lower|bump"
_PATTERNS = (
    re.compile(
        rf"\b(?:{_CHANGE})\s+{_WHOSE}\s+{_SUBJECT}\s+(?:to|from .{{1,60}}? to)\s+{_LATER}{_VALUE}", re.IGNORECASE
    ),
    re.compile(rf"(?<![\w'’]){_WHOSE}\s+{_SUBJECT}\s+(?:{_IS})\s+{_LATER}{_VALUE}", re.IGNORECASE),
    re.compile(
        r"\b(?P<subject>(?!(?:It|That|This|What|Who|Let|There|Here|He|She|Where|How)['’])[A-Z]\w+['’]s [\w\- ]{2,40}?)"
        rf"\s+(?:is|are|was|will be)\s+{_LATER}{_VALUE}"
    ),
    re.compile(rf"^(?P<subject>[^\W\d_][\w\-/]*(?: [\w\-/#]+){{0,3}})\s*(?::|=|->|→)\s+{_VALUE}"),
)
_NAMED = re.compile(r"\b(?:call me|i am called|i['’]m called)\s+(?P<name>[^,;.!?\n]{1,60})", re.IGNORECASE)
_CORRECTS = re.compile(
    r"^(?:(?:(?:no|nope|actually|sorry|wait|hold on|correction|oops|scratch that|ah|oh|hm+|well)\b[\s,.:;!–—-]*)+"
    r"|(?=make (?:it|that)\b|i meant\b))"
    r"(?:(?:it|that)(?:['’]s| is| should be| must be| will be)|make (?:it|that)|i mean(?:t)?|back to|let['’]s make it)"
    rf"\s+{_LATER}{_VALUE}",
    re.IGNORECASE,
)
_CLAUSES = re.compile(r";\s+|(?<=\w)(?:,\s*|\s+)(?:and|but)\s+(?=(?:the|our|my)\s)", re.IGNORECASE)
_UNSURE = re.compile(
    r"\b(?:if|whether|unless|suppose|imagine|assuming|wonder\w*|not sure|unsure|maybe|perhaps|might|should we|"
    r"could we)\b",
    re.IGNORECASE,
)
_ASIDE = re.compile(
    r"[,.!:;]?\s+(?:but|because|so that|since|although|though|which|instead|rather than|unless|please|thanks|"
    r"as (?:we|i|you))\b.*$"
    r"|,\s*(?:not|no|so|right|ok(?:ay)?|if|when|and|by the way)\b.*$"
    r"|\s+and (?:it|he|she|they|i|we|you|that|there|then|please)\b.*$|\s+(?:[–—]|-{1,2})\s.*$",
    re.IGNORECASE,
)
_NOT_BUT = re.compile(r"^(?:not|no)\s+.{1,60}?,?\s+but\s+", re.IGNORECASE)
_TRAILING = re.compile(r"(?:\s+from now on|(?<!\bfrom)\s+now|\s+(?:instead|then|again))+$", re.IGNORECASE)
_NOT_FACTS = re.compile(
    r"^(?:question|problem|point|things?|whole|same|reason|idea|answer|only|best|worst|most|rest|other|way|trick|issue|"
    r"truth|fact)\b",
    re.IGNORECASE,
)
_LABELS_WITHOUT_SUBJECT = re.compile(
    r"(?:note|todo|to do|ps|fyi|error|warning|edit|update|example|re|from|to|cc|steps?|options?|hi|hello|hey|tip|hint|"
    r"e\.g|summary|tl;?dr|done|next|open|https?)",
    re.IGNORECASE,
)
"""Words before a colon that are no subject."""
_CLAUSE_WORDS = re.compile(r"\b(?:that|which|who|when|where|because|if|i|you|we|they|it)\b", re.IGNORECASE)
_NEWNESS = re.compile(r"^(?:new|current|updated|final|latest)\s+", re.IGNORECASE)


@dataclass
class Facts:
    """The known facts by subject, the latest statement last. Lines of another form are kept as they are."""

    known: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, body: str) -> Facts:
        """Return the facts in a section's *body*."""
        facts = cls()
        for line in body.splitlines():
            text = item(line)
            subject, separator, value = text.partition(": ")
            if separator and subject.strip() not in facts.known:
                facts.known[subject.strip()] = value.strip()
            elif text:  # a second line about a subject stays separate: its author wanted both
                facts.known[text] = ""
        return facts

    def items(self) -> list[str]:
        """Return the newest `MAX_FACTS` as lines, the latest statement last."""
        return [f"{subject}: {value}" if value else subject for subject, value in self.known.items()][-MAX_FACTS:]

    def learn(self, sentence: str, user: str = "", *, is_group: bool = False) -> list[str]:
        """Learn the facts that *sentence* states and return their subjects in `known`.

        *user* is the name of the speaker, or empty.
        """
        if is_question(sentence):
            return []
        stated = [self._state(*one) for one in _stated(sentence, user, is_group=is_group)]
        if stated:
            return stated
        if (corrected := _CORRECTS.match(sentence)) and (value := _value(corrected["value"])):
            about = self._about(value)
            return [self._state(about, value)] if about else []
        return []

    def _about(self, value: str) -> str:
        """Return the subject that a correction to *value* means: the last one whose value is of the same kind, else
        empty.

        "It's raining" corrects no date, and "it's Osprey" no amount.
        """
        return next(
            (
                subject
                for subject in reversed(self.known)
                if _kind_of_value(self.known[subject]) == _kind_of_value(value)
            ),
            "",
        )

    def _state(self, subject: str, value: str) -> str:
        """Set *subject* to *value* and return the name under which it is known, which may differ."""
        plain = _NEWNESS.sub("", subject)
        written = {other.casefold(): other for other in self.known}  # people vary the case of subjects
        for other in (subject, plain, f"{plain} name"):
            if (known_name := written.get(other.casefold())) is not None:
                subject = known_name
                break
        self.known.pop(subject, None)  # the corrected fact becomes the newest
        self.known[subject] = value
        return subject


def is_unsure(text: str) -> bool:
    """Say whether *text* only supposes or doubts what follows it."""
    return bool(_UNSURE.search(text))


def corrects(sentence: str) -> bool:
    """Say whether *sentence* may correct an earlier statement."""
    return bool(_CORRECTS.match(sentence))


def _kind_of_value(value: str) -> str:
    """Return the kind of a value: a number, a name, other words, or empty for no value."""
    if any(map(str.isdigit, value)):
        return "number"
    first = value[:1]
    return "name" if first.isupper() or (first.isalpha() and not first.islower()) else "words" if value else ""


def _stated(sentence: str, user: str, *, is_group: bool) -> list[tuple[str, str]]:
    """Return the facts of one sentence as pairs of subject and value."""
    if named := _NAMED.search(sentence):
        return [(f"{user}'s name" if is_group and user else "user's name", short_line(named["name"]).strip())]
    found: list[tuple[str, str]] = []
    for clause in _CLAUSES.split(sentence):
        match = next((match for pattern in _PATTERNS if (match := pattern.search(clause))), None)
        if match is None or is_unsure(clause[: match.end("subject")]):
            continue
        subject, value = _subject(match.groupdict(), user, is_group=is_group), _value(match["value"])
        if subject and value:
            found.append((subject, value))
    return found


def _subject(groups: Mapping[str, str | None], user: str, *, is_group: bool) -> str:
    """Return the subject of the fact; empty if it is nothing that can be named."""
    subject = short_line(groups["subject"] or "").strip()
    is_label = "whose" not in groups and "'" not in subject
    if (
        _NOT_FACTS.match(subject)
        or (is_label and _LABELS_WITHOUT_SUBJECT.fullmatch(subject))
        or _CLAUSE_WORDS.search(subject)
        or len(subject.split()) > 6
    ):
        return ""
    whose = (groups.get("whose") or "").casefold()
    if not re.match(r"[A-Z]\w+['’]s ", subject):
        subject = subject.casefold()
    if whose != "my":
        return subject
    return f"{'user' if subject == 'name' and not is_group else user or 'user'}'s {subject}"


def _value(text: str) -> str:
    """Return the value without asides."""
    value = _NOT_BUT.sub("", " ".join(text.split()))
    value = _ASIDE.sub("", value).strip().rstrip(".!…。！,;:")
    value = re.sub(rf"^{_LATER}", "", value, flags=re.IGNORECASE)
    value = _TRAILING.sub("", value).strip()
    if re.match(r"(?:that|what|how|why)\b", value, re.IGNORECASE):
        return ""
    return short_line(value)
