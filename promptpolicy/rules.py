"""Find rules in a text, and the ones that a shorter version may have lost. Pure.

A rule is a sentence or list item with a word that commands, forbids, limits or sets a condition. The shorter text is
searched for sentences with the same content words; rare words count more. Such a sentence must still forbid, limit and
have the same condition. This compares words, not meanings, so it only tells a person where to look. It knows the words
of English and German, the most common ones of six more languages, and characters of Chinese, Japanese and Korean.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise

FOUND = 0.4
"""The weighted share of a rule's content words that a sentence, or two in a row, must have to contain the rule."""
AS_GOOD = 0.75
"""Sentences with at least this share of the best similarity also count as containing the rule."""
LONGEST_CHARACTERS = 60_000
"""Longer texts are not searched. No directive that can be published is that long."""
_SHOWN_CHARACTERS = 90
_LAST_LATIN_CHARACTER = "\u024f"
_STEM_CHARACTERS = 5
_MIN_STEM_CHARACTERS = 3

DENYING = frozenset((
    "never", "not", "no", "cannot", "nobody", "none", "nothing", "neither", "nor", "nowhere", "without", "avoid",
    "refuse", "forbidden", "prohibited", "refrain", "stop",
    "nie", "niemals", "nicht", "nichts", "niemand", "niemandem", "kein", "keine", "keinen", "keinem", "keiner",
    "keines", "ohne", "verboten", "vermeide", "vermeiden", "untersagt",
    "jamais", "pas", "sans", "aucun", "aucune", "rien", "nunca", "jamás", "ningún", "ninguna", "nada", "mai", "non",
    "senza", "nessun", "nessuno", "não", "sem", "nenhum", "nenhuma", "nooit", "niet", "geen", "zonder",
    "nigdy", "nie", "bez",
))  # fmt: skip
DENYING_ENDS = ("n't", "n’t")
_EXCEPTING = frozenset((
    "unless", "except", "excepting", "excluding", "außer".casefold(), "ausgenommen", "sauf", "salvo", "excepto",
    "exceto", "tranne", "behalve", "tenzij", "chyba",
))  # fmt: skip
_LIMITING = frozenset((
    "only", "solely", "exclusively", "nur", "ausschließlich".casefold(), "lediglich", "seulement", "uniquement", "solo",
    "sólo", "solamente", "soltanto", "somente", "apenas", "alleen", "tylko",
))  # fmt: skip
_CONDITIONING = frozenset((
    "if", "when", "whenever", "until", "before", "once", "while", "provided", "wenn", "falls", "sobald", "bevor", "bis",
    "solange", "sofern", "si", "quand", "lorsque", "avant", "cuando", "antes", "se", "quando", "prima", "als",
    "wanneer", "voordat", "totdat", "jeśli", "gdy", "zanim",
))  # fmt: skip
_COMMANDING = frozenset((
    "must", "shall", "always", "required", "mandatory", "muss", "müssen", "musst", "müsst", "immer", "stets", "doit",
    "dois", "doivent", "toujours", "debe", "debes", "deben", "siempre", "deve", "devi", "devono", "sempre", "devem",
    "moet", "moeten", "altijd", "musisz", "zawsze",
))  # fmt: skip
_WEAK = frozenset((
    "may", "might", "can", "could", "should", "try", "usually", "normally", "generally", "preferably", "ideally",
    "possible", "kann", "kannst", "darf", "darfst", "sollte", "solltest", "möglichst", "meistens", "normalerweise",
))  # fmt: skip
_SIGNS = {
    "denying": ("不", "勿", "别", "別", "禁", "没", "沒", "ない", "ません", "なし", "않", "못", "없", "마세요", "금지"),
    "excepting": ("除非", "除了", "以外", "を除", "제외", "외에"),
    "limiting": ("只", "仅", "僅", "だけ", "のみ", "しか", "만 ", "오직"),
    "conditioning": ("如果", "若", "当", "當", "之前", "なら", "場合", "とき", "前に", "경우", "면 ", "때", "전에"),
    "commanding": ("必须", "必須", "一定", "总是", "總是", "必ず", "なければ", "반드시", "항상"),
}  # fmt: skip
"""Words by kind, of scripts without spaces between words."""
_LIMITS = frozenset(("denying", "excepting", "limiting"))
"""Kinds of words without which a rule may mean the opposite. One can replace another (``never … but``, ``only if``)."""
_FILLING = """
    a an the and or of to in on at by for from with as is are be been being was were it its this that these those there
    here you your yours they them their we our us i me my he she his her who whom whose which what how why all any some
    each every both other others another such so too also then than just very really please kindly make makes sure
    ensure way somebody someone anybody anyone something anything everything ask asks asked asking want wants need needs
    have has had do does did will would get gets give given take takes let about into out up down over own more most
    much many case cases time times user users people person thing things keep use using used one ones tell tells say
    says talk speak important remember note instruction instructions rule rules assistant still even kind under ever
    simply first politely openly explicitly clearly circumstances whatsoever
    der die das den dem des ein eine einen einem einer eines und oder von zu zur zum im in an am auf für mit bei aus
    ist sind sein wird werden war es sie er wir du dein deine ihr ihre ihnen dich dir sich man bitte auch dann danach
    noch sehr alle alles jede jeder jedes jeden diese dieser dieses soll sollst hat haben darauf achte stelle sicher
    dass wie was wer
"""
_FILLER = frozenset(_FILLING.split())
"""Words that say nothing about the content of a rule."""
_WORD = re.compile(r"[^\W\d_](?:[\w’'-]*\w)?")
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_ITEM = re.compile(r"^\s*(?:[-*+•–]|\d+[.)])\s+")
_HEADING = re.compile(r"^\s*#")
_SENTENCE_END = re.compile(r"(?<=[.!?;])[\"'”»)]*\s+|(?<=[。！？；])")
_REASON = re.compile(
    r",? (?:because|since|so that|as we|weil|damit|denn|parce que|porque|perché)\b[^,;.!?]*(?=[,;.!?]|$)", re.I
)
_CONDITION = re.compile(
    r"\b(?:if|when|whenever|unless|except|until|before|once|while|provided|wenn|falls|sobald|bevor|solange|sofern|außer"
    r"|si|quand|lorsque|sauf|cuando|salvo|se|quando|tenzij|als|wanneer)\b(?P<what>[^,;.!?:]*)",
    re.IGNORECASE,
)
_IF_POSSIBLE = re.compile(
    r"\b(?:if|when|whenever|where|wherever|wenn|falls|si|se)\s+(?:(?:at all|irgend|c'est|è)\s+)?"
    r"(?=(?:possible|möglich|posible|possibile|possível)\b)",
    re.IGNORECASE,
)
"""Phrases like "if possible", which make a rule softer but are no condition. They are removed."""


@dataclass(frozen=True, slots=True)
class _Sentence:
    """A sentence with the stems of its content words, its kinds of rule words and its conditions."""

    text: str
    stems: frozenset[str]
    kinds: Mapping[str, str]
    """The first word of each kind, by kind."""
    conditions: tuple[frozenset[str], ...]
    """The stems of each condition."""

    @property
    def is_rule(self) -> bool:
        return bool(self.kinds.keys() - {"weak"})


def lost(old: str, new: str) -> Iterator[str]:
    """Yield notes for a person: each rule of *old* that *new* may have lost or reversed, with its text.

    If the script is none of those whose words are known, yields only a note that says so.
    """
    if old != new and _is_unknown_script(old):
        yield "in this script no rules are looked for: compare both texts"
        return
    if max(len(old), len(new)) > LONGEST_CHARACTERS:
        return
    before, after = list(_sentences(old)), list(_sentences(new))
    counts = Counter(stem for sentence in before for stem in sentence.stems)
    weights = {stem: 1 / times for stem, times in counts.items()}
    for rule in before:
        if rule.is_rule and rule.stems and (loss := _find_loss(rule, after, weights)):
            yield f"{loss}: {_quote(rule.text)}"


def _is_unknown_script(text: str) -> bool:
    """Return whether most letters of *text* are neither Latin nor Chinese, Japanese or Korean."""
    letters = [char for char in text if char.isalpha()]
    return sum(1 for char in letters if char > _LAST_LATIN_CHARACTER and not _CJK.match(char)) * 2 > len(letters)


def _find_loss(rule: _Sentence, after: Sequence[_Sentence], weights: Mapping[str, float]) -> str:
    """Describe how *rule* may have been lost; an empty text if it is still there."""
    similarities = [_similarity(rule, sentence.stems, weights) for sentence in after]
    best = max(similarities, default=0.0)
    if best < FOUND:
        pairs = (_similarity(rule, first.stems | second.stems, weights) for first, second in pairwise(after))
        return "" if max(pairs, default=0.0) >= FOUND else "this rule may be gone"
    differences = [
        _find_difference(rule, sentence, {stem for near in after[max(0, index - 1) : index + 2] for stem in near.stems})
        for index, sentence in enumerate(after)
        if similarities[index] >= max(FOUND, AS_GOOD * best)
    ]
    return differences[0] if all(differences) else ""


def _find_difference(rule: _Sentence, other: _Sentence, near: Set[str]) -> str:
    """Describe how *other*, a similar sentence, differs from *rule*; an empty text if it does not.

    *near* has the stems of *other* and its neighbours.
    """
    limits = [word for kind, word in rule.kinds.items() if kind in _LIMITS]
    if limits and not other.kinds.keys() & _LIMITS:
        return f"this rule may have lost its {limits[0]!r}"
    if any(len(condition & near) * 2 < len(condition) for condition in rule.conditions):
        return "this rule may have lost its condition"
    if "conditioning" in rule.kinds and not rule.conditions and "conditioning" not in other.kinds:
        return "this rule may have lost its condition"
    if "commanding" in rule.kinds and "weak" in other.kinds.keys() - rule.kinds and "commanding" not in other.kinds:
        return f"this rule may be weaker without its {rule.kinds['commanding']!r}"
    if not limits and "denying" in other.kinds and other.stems <= rule.stems:
        return "this rule may say the opposite"
    return ""


def _similarity(rule: _Sentence, stems: Set[str], weights: Mapping[str, float]) -> float:
    """Return the weighted share of the rule's stems that are among *stems*, from 0 to 1."""
    common = rule.stems & stems
    return sum(map(weights.__getitem__, common)) / sum(map(weights.__getitem__, rule.stems)) if common else 0.0


def _sentences(text: str) -> Iterator[_Sentence]:
    for piece in _pieces(text):
        for sentence in _SENTENCE_END.split(piece):
            if _WORD.search(sentence):
                yield _sentence(sentence.strip())


def _pieces(text: str) -> Iterator[str]:
    """Yield the list items and paragraphs of *text*, each on one line. Leaves out headings."""
    piece: list[str] = []
    for line in text.splitlines():
        if not line.strip() or _HEADING.match(line) or _ITEM.match(line):
            if piece:
                yield " ".join(piece)
            piece = []
        if line.strip() and not _HEADING.match(line):
            piece.extend(_ITEM.sub("", line).split())
    if piece:
        yield " ".join(piece)


def _sentence(text: str) -> _Sentence:
    plain = _IF_POSSIBLE.sub("", text)
    kinds: dict[str, str] = {}
    for folded in map(str.casefold, _WORD.findall(plain)):
        if kind := _kind(folded):
            kinds.setdefault(kind, folded)
    for kind, signs in _SIGNS.items():
        if sign := next((sign for sign in signs if sign in text), ""):
            kinds.setdefault(kind, sign.strip())
    conditions = tuple(stems for match in _CONDITION.finditer(plain) if (stems := _stems(_WORD.findall(match["what"]))))
    return _Sentence(text, _stems(_WORD.findall(_REASON.sub("", plain))), kinds, conditions)


def _kind(word: str) -> str:
    """Return the kind of a casefolded rule word, or an empty text for any other word."""
    if word in DENYING or word.endswith(DENYING_ENDS):
        return "denying"
    for kind, words in (
        ("excepting", _EXCEPTING), ("limiting", _LIMITING), ("conditioning", _CONDITIONING),
        ("commanding", _COMMANDING), ("weak", _WEAK),
    ):  # fmt: skip
        if word in words:
            return kind
    return ""


def _stems(words: Iterable[str]) -> frozenset[str]:
    """Return the stems of the content words among *words*.

    A stem is the first characters of a word. In scripts without spaces, each pair of neighbouring characters is one.
    """
    stems: set[str] = set()
    for word in words:
        folded = word.casefold()
        if _CJK.search(folded):
            stems.update(folded[index : index + 2] for index in range(max(1, len(folded) - 1)))
        elif folded not in _FILLER and not _kind(folded):
            for part in folded.replace("’", "'").split("'")[0].split("-"):
                if len(part) >= _MIN_STEM_CHARACTERS:
                    stems.add(part[:_STEM_CHARACTERS])
    return frozenset(stems)


def _quote(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…")
