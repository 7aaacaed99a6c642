"""Rules in a text, and which of them a shorter one may have lost. Pure.

A rule is a sentence, or an item of a list, with a word that commands, forbids, limits or sets a condition. It is looked
for in the other text by the words that it is about, the rarer the more; there it has to forbid, to limit and to hold
under the same condition as before. What a text means is not understood by that: a person is shown what to look at. The
words are those of English and German, the commonest of six more languages, and signs of Chinese, Japanese and Korean.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise

FOUND = 0.4
"""Of what a rule is about, as much has to be in one sentence, or two in a row, for it to be there."""
AS_GOOD = 0.75
"""Of the best likeness: sentences that are so much like a rule are taken to tell it, too."""
LONGEST_CHARACTERS = 60_000
"""Longer texts are not looked through: no directive that can be published is."""
_SHOWN_CHARACTERS = 90
_LAST_LATIN = "\u024f"
_STEM_CHARACTERS = 5
_LEAST_STEM_CHARACTERS = 3

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
"""Of scripts that set no blanks between words."""
_LIMITS = frozenset(("denying", "excepting", "limiting"))
"""Kinds of words that turn a rule around where they are missing. They stand in for each other: never but, only if."""
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
"""Words that no rule is about."""
_WORD = re.compile(r"[^\W\d_](?:[\w’'-]*\w)?")
_WIDE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_ITEM = re.compile(r"^\s*(?:[-*+•–]|\d+[.)])\s+")
_HEADING = re.compile(r"^\s*#")
_ENDS = re.compile(r"(?<=[.!?;])[\"'”»)]*\s+|(?<=[。！？；])")
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
"""No condition, but a rule put softly: what is left says as much."""


@dataclass(frozen=True, slots=True)
class _Sentence:
    """One, with what it is about and which kinds of words of a rule it has, by kind."""

    text: str
    stems: frozenset[str]
    kinds: Mapping[str, str]
    """Each with the first word of it."""
    conditions: tuple[frozenset[str], ...]
    """What each of its conditions is about."""

    @property
    def is_rule(self) -> bool:
        return bool(self.kinds.keys() - {"weak"})


def lost(old: str, new: str) -> Iterator[str]:
    """What a person should look at: each rule of *old* that *new* may have lost or turned, as it was; and that nobody
    looked, where the script is of none of the languages whose words are known."""
    if old != new and _is_foreign(old):
        yield "in this script no rules are looked for: compare both texts"
        return
    if max(len(old), len(new)) > LONGEST_CHARACTERS:
        return
    before, after = list(_sentences(old)), list(_sentences(new))
    weights = {stem: 1 / times for stem, times in Counter(stem for one in before for stem in one.stems).items()}
    for rule in before:
        if rule.is_rule and rule.stems and (said := _lost(rule, after, weights)):
            yield f"{said}: {_shown(rule.text)}"


def _is_foreign(text: str) -> bool:
    """Whether most letters of *text* are neither Latin nor of the signs that are known."""
    letters = [char for char in text if char.isalpha()]
    return sum(1 for char in letters if char > _LAST_LATIN and not _WIDE.match(char)) * 2 > len(letters)


def _lost(rule: _Sentence, after: Sequence[_Sentence], weights: Mapping[str, float]) -> str:
    """What became of *rule*, in words; empty where it is still there."""
    alike = [_likeness(rule, one.stems, weights) for one in after]
    best = max(alike, default=0.0)
    if best < FOUND:
        pairs = (_likeness(rule, one.stems | other.stems, weights) for one, other in pairwise(after))
        return "" if max(pairs, default=0.0) >= FOUND else "this rule may be gone"
    turned = [
        _turned(rule, one, {stem for near in after[max(0, place - 1) : place + 2] for stem in near.stems})
        for place, one in enumerate(after)
        if alike[place] >= max(FOUND, AS_GOOD * best)
    ]
    return turned[0] if all(turned) else ""


def _turned(rule: _Sentence, other: _Sentence, near: Set[str]) -> str:
    """In which way *other*, which is like *rule*, says something else; empty where it does not. *near* is what it and
    its neighbours are about."""
    limits = [word for kind, word in rule.kinds.items() if kind in _LIMITS]
    if limits and not other.kinds.keys() & _LIMITS:
        return f"this rule may have lost its {limits[0]!r}"
    if any(len(one & near) * 2 < len(one) for one in rule.conditions):
        return "this rule may have lost its condition"
    if "conditioning" in rule.kinds and not rule.conditions and "conditioning" not in other.kinds:
        return "this rule may have lost its condition"
    if "commanding" in rule.kinds and "weak" in other.kinds.keys() - rule.kinds and "commanding" not in other.kinds:
        return f"this rule may be weaker without its {rule.kinds['commanding']!r}"
    if not limits and "denying" in other.kinds and other.stems <= rule.stems:
        return "this rule may say the opposite"
    return ""


def _likeness(rule: _Sentence, stems: Set[str], weights: Mapping[str, float]) -> float:
    """Which part of what *rule* is about is among *stems*, what few sentences are about counting for more."""
    there = rule.stems & stems
    return sum(map(weights.__getitem__, there)) / sum(map(weights.__getitem__, rule.stems)) if there else 0.0


def _sentences(text: str) -> Iterator[_Sentence]:
    for piece in _pieces(text):
        for sentence in _ENDS.split(piece):
            if _WORD.search(sentence):
                yield _sentence(sentence.strip())


def _pieces(text: str) -> Iterator[str]:
    """Items and paragraphs of *text*, each on one line; headings are left out."""
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
        if found := next((sign for sign in signs if sign in text), ""):
            kinds.setdefault(kind, found.strip())
    conditions = tuple(stems for found in _CONDITION.finditer(plain) if (stems := _stems(_WORD.findall(found["what"]))))
    return _Sentence(text, _stems(_WORD.findall(_REASON.sub("", plain))), kinds, conditions)


def _kind(word: str) -> str:
    """Which kind of word of a rule the casefolded *word* is."""
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
    """What *words* are about: their beginnings; of scripts without blanks, each two signs in a row."""
    found: set[str] = set()
    for word in words:
        folded = word.casefold()
        if _WIDE.search(folded):
            found.update(folded[place : place + 2] for place in range(max(1, len(folded) - 1)))
        elif folded not in _FILLER and not _kind(folded):
            for part in folded.replace("’", "'").split("'")[0].split("-"):
                if len(part) >= _LEAST_STEM_CHARACTERS:
                    found.add(part[:_STEM_CHARACTERS])
    return frozenset(found)


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…")
