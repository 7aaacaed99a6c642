"""Answer a prompt by quoting from it, if no language model is set.

The procedure reads the messages that any model would get, splits their sources (passages, records, material, earlier
messages) into sentences, list items and table rows, scores each of these units against the question, and quotes the
best ones with their citations. Nothing is invented: a reply is quotations and one line that says so.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any

from grounding.extractive import wording
from grounding.extractive.quotable import Prompt, Unit, read_prompt, units_of
from grounding.retrieval import ASKING, STOP_WORDS, Embedder, EmbedderUnavailable, terms
from grounding.strategy import fold, is_question, without_courtesy, words_of

MOST_QUOTED = 3
MOST_CHARACTERS = 700
"""The most characters of all quotations in a reply."""
NEAR_WORD = 0.45
"""Two words are related from this cosine on."""
RELATED = 0.8
IN_LEAD, IN_HEADING, IN_TOPIC = 0.8, 0.9, 0.5
"""The weights of a word that is not in the quotation, but above it."""
BY_WORDS, BY_MEANING, BY_KIND, BY_RANK, BY_PAIRS, BY_TABLE = 0.6, 0.4, 0.08, 0.05, 0.1, 0.15
OTHER_KIND = 0.55
"""The factor for a unit without the wanted kind of answer, such as a number."""
UNKNOWN_NAME = 0.7
"""The factor on all scores for each name in the question that no source mentions."""
ENOUGH_WORDS, ENOUGH = 0.3, 0.46
"""The least share of the question's words, and the least score, of an answer."""
ALIKE = 0.75
"""If half of the units below a heading reach this share of the best score, all are quoted: the heading answers."""
ALSO, ALSO_OF_KEYWORDS = 0.85, 0.75
"""The share of the best score that another unit needs to be quoted beside it."""


async def reply(messages: Sequence[Mapping[str, Any]], embedder: Embedder | None) -> str:
    """Return the answer to *messages* (OpenAI's format). *embedder* compares meanings; without it only words count."""
    prompt = _read(messages)
    language = language_of(prompt.question)
    if talk := wording.small_talk(prompt.question, prompt.sources):
        return talk
    quoted = await _quotation(prompt, embedder)
    return f"{quoted}\n\n{wording.FRAMING[language]}" if quoted else wording.NOTHING[language]


async def quotation(messages: Sequence[Mapping[str, Any]], embedder: Embedder | None) -> str:
    """Return the quotations from *messages* that answer their question, with citations; empty if there are none."""
    return await _quotation(_read(messages), embedder)


def _read(messages: Sequence[Mapping[str, Any]]) -> Prompt:
    prompt = read_prompt(messages)
    return replace(prompt, question=without_courtesy(prompt.question, wording.ALL_CUES))


async def _quotation(prompt: Prompt, embedder: Embedder | None) -> str:
    found = await asyncio.to_thread(_answers, prompt)
    question = await asyncio.to_thread(Question, prompt.question, found)
    nearness = await _nearness(question, found, embedder)
    return _quoted(await asyncio.to_thread(choose, question, found, nearness))


def _answers(prompt: Prompt) -> list[Unit]:
    """Return the units of *prompt* without the question itself, also as it was asked before."""
    asked = words_of(prompt.question)
    return [
        unit
        for unit in units_of(prompt.sources)
        if words_of(unit.plain)[-len(asked) :] != asked
        and not (unit.label == "(conversation)" and unit.plain.endswith("?"))
    ]


def language_of(text: str) -> str:
    """Return the language of most function words in *text*; English if there are none."""
    words = words_of(text)
    counts = {language: sum(word in known for word in words) for language, known in wording.FUNCTION_WORDS.items()}
    english = sum(word in STOP_WORDS for word in words)
    best = max(counts, key=lambda language: counts[language])
    return best if counts[best] > english else "english"


class Question:
    """A question: its terms with their weights among *units*, and the kinds of answers that it wants."""

    def __init__(self, question: str, units: Sequence[Unit]) -> None:
        self.text = question
        language = language_of(question)
        empty = wording.FUNCTION_WORDS.get(language, frozenset())
        asked = {term for word in words_of(question) if word not in empty for term in terms(word)}
        asked = asked - ASKING or asked
        within = [_term_set(f"{unit.plain} {unit.lead} {unit.heading}") for unit in units]
        df = Counter(term for one in within for term in asked if term in one)
        total = len(units) or 1
        most = math.log(1 + total)
        self.kinds = [kind for kind, pattern in wording.QUESTION_KINDS.items() if pattern.search(question.strip())]
        compares = [match[0] for match in wording.COMPARES.finditer(question)]
        self.compares = bool(compares)
        self.is_question = bool(is_question(question, wording.ALL_CUES))
        named = frozenset(term for kind in self.kinds for term in wording.KIND_TERMS.get(kind, ()))
        named |= _term_set(" ".join([*compares, *wording.PRICED.findall(question)]))
        amounts = frozenset(term for term in asked if term.isdigit() and not df[term])
        if amounts:
            named |= amounts | wording.KIND_TERMS["money"]
        self.weights = {
            term: (1 + math.log((total + 1) / (df[term] + 1)) / most)
            * (0.5 if term in wording.EMPTY_WORDS else 0.25 if term in named else 1.0)
            for term in sorted(asked)
        }
        names = _names_in(question) & set(self.weights)
        for term in names & {term for word in wording.IDENTIFIER.findall(question) for term in terms(word)}:
            self.weights[term] *= 2
        topics = _term_set(" ".join({unit.topic for unit in units}))
        self.known = UNKNOWN_NAME ** sum(1 for name in names if not df[name] and name not in topics)
        """The factor on all scores, below 1 if the question names something that no source mentions."""
        self.pairs = list(pairwise(terms(question)))

    def fits(self, unit: Unit) -> float:
        """Say whether *unit* has the kind of answer that the question wants: 1 or -1, or for a yes-or-no question 0.5.

        Returns 0 if the question wants no special kind.
        """
        text = unit.plain
        amount = bool(wording.NUMBER.search(text) or wording.COUNT_WORDS.search(text))
        span = bool(wording.SPAN.search(f"{text} {unit.lead}")) and amount
        other = wording.DATE.sub("", wording.PRICE.sub("", text))
        has = {
            "money": bool(wording.MONEY.search(text)),
            "count": bool(wording.NUMBER.search(other) or wording.COUNT_WORDS.search(other)),
            "span": span,
            "time": bool(wording.DATE.search(text)) or span,
            "weekday": bool(wording.WEEKDAY.search(text)),
            "measure": bool(wording.MEASURE.search(text)),
            "permission": bool(wording.PERMISSION.search(text)),
        }
        wanted = [
            kind for kind in self.kinds if kind != "permission" and (kind != "count" or "money" not in self.kinds)
        ]
        if wanted:
            return 1.0 if any(has[kind] for kind in wanted) else -1.0
        return 0.5 if "permission" in self.kinds and has["permission"] else 0.0


def _names_in(question: str) -> set[str]:
    """Return the terms of names in *question*: words with a capital inside a sentence, and identifiers."""
    capitals = wording.NAME.findall(question) if language_of(question) != "german" else []
    return {term for word in (*capitals, *wording.IDENTIFIER.findall(question)) for term in terms(word)}


@dataclass(frozen=True, slots=True)
class Nearness:
    """Similarities of meaning: of each unit to the question, and of the question's terms to words of the sources."""

    units: Sequence[float]
    words: Mapping[str, Mapping[str, float]]


async def _nearness(question: Question, units: Sequence[Unit], embedder: Embedder | None) -> Nearness | None:
    if embedder is None or not units:
        return None
    terms_asked = list(question.weights)
    originals = {term: word for word in words_of(question.text) for term in terms(word)}
    words = sorted(
        {word for unit in units for word in words_of(f"{unit.plain} {unit.lead} {unit.heading}") if len(word) > 2}
    )
    texts = [question.text, *(f"{unit.heading}. {unit.lead} {unit.plain}" for unit in units)]
    try:
        vectors = await embedder.embed_documents(texts)
        near = await embedder.embed_documents([*(originals.get(term, term) for term in terms_asked), *words])
    except EmbedderUnavailable:
        return None
    return await asyncio.to_thread(_compared, vectors, near, terms_asked, words)


def _compared(
    vectors: Sequence[Sequence[float]], near: Sequence[Sequence[float]], asked: Sequence[str], words: Sequence[str]
) -> Nearness:
    import numpy as np

    whole = np.asarray(vectors, dtype=np.float32)
    single = np.asarray(near, dtype=np.float32)
    alike = single[: len(asked)] @ single[len(asked) :].T
    table: dict[str, dict[str, float]] = {}
    for row, term in enumerate(asked):
        close = np.nonzero(alike[row] >= NEAR_WORD)[0]
        found = table.setdefault(term, {})
        for at in close.tolist():
            for stem in terms(words[at]):
                found[stem] = max(found.get(stem, 0.0), float(alike[row, at]))
    return Nearness((whole[1:] @ whole[0]).tolist(), table)


def _term_set(text: str) -> frozenset[str]:
    return frozenset(terms(fold(wording.CAMEL.sub(" ", text)))) | frozenset(terms(fold(text)))


@dataclass(frozen=True, slots=True)
class Scored:
    """The score of a unit. ``words`` is the share of the question's words in the unit and above it, ``own`` in the unit
    alone."""

    unit: Unit
    score: float
    words: float
    own: float


def score(question: Question, units: Sequence[Unit], nearness: Nearness | None) -> list[Scored]:
    """Return all *units* with their scores, in their order."""
    total = sum(question.weights.values()) or 1.0
    scored = []
    for number, unit in enumerate(units):
        own, lead, heading, topic = (_term_set(text) for text in (unit.plain, unit.lead, unit.heading, unit.topic))
        words = alone = 0.0
        for term, weight in question.weights.items():
            related = nearness.words.get(term, {}) if nearness else {}
            here = _match(term, own, related)
            above = max(
                IN_LEAD * _match(term, lead, related),
                IN_HEADING * _match(term, heading, related),
                IN_TOPIC * _match(term, topic, related),
            )
            words += weight * max(here, above)
            alone += weight * here
        words, alone = words / total, alone / total
        meaning = nearness.units[number] if nearness else words
        fits = question.fits(unit)
        value = BY_WORDS * words + BY_MEANING * max(meaning, 0.0) + BY_KIND * max(fits, 0)
        value += BY_RANK / (1 + unit.source)
        value += BY_TABLE * (question.compares and unit.form == "row")
        shown = frozenset(chain(pairwise(terms(unit.plain)), pairwise(terms(unit.lead)), pairwise(terms(unit.heading))))
        value += BY_PAIRS * min(2, sum(pair in shown for pair in question.pairs)) / 2
        if fits < 0:
            value *= OTHER_KIND
        value *= question.known
        if unit.plain.endswith("?") or wording.POINTER.search(unit.text):
            value *= 0.6  # a question answers nothing, and a link to a document is not its content
        scored.append(Scored(unit, value, words, alone))
    return scored


def _match(term: str, among: frozenset[str], related: Mapping[str, float]) -> float:
    if term in among:
        return 1.0
    if not term.isalpha():
        return 0.0  # numbers and identifiers are equal or different, never related
    best = max((related[one] for one in among if one in related), default=0.0)
    if len(term) >= 5 and any(_same_beginning(term, one) for one in among):
        best = max(best, 1.0)
    return RELATED * best


def _same_beginning(one: str, other: str) -> bool:
    shared = 0
    for first, second in zip(one, other, strict=False):
        if first != second:
            break
        shared += 1
    return shared >= 5 and shared >= 0.7 * max(len(one), len(other))


def choose(question: Question, units: Sequence[Unit], nearness: Nearness | None) -> list[Unit]:
    """Return the units to quote, in the order of the sources; empty if nothing answers."""
    scored = score(question, units, nearness)
    best = max(scored, key=lambda one: one.score, default=None)
    if wording.SUM.search(question.text) or not any(len(term) > 2 for term in question.weights):
        return []
    if best is None or best.words < ENOUGH_WORDS or best.score < ENOUGH:
        return []
    group = [one for one in scored if _place(one.unit) == _place(best.unit)]
    ranked = sorted(scored, key=lambda one: -one.score)
    as_good = sum(one.score >= ALIKE * best.score for one in group)
    also = ALSO if question.is_question else ALSO_OF_KEYWORDS
    if question.compares and best.unit.form == "row":
        chosen = [one for one in group if one.unit.header == best.unit.header]
    elif len(group) > 1 and best.own <= best.words / 2 and as_good * 2 >= len(group):
        chosen = group
    else:
        chosen = [one for one in ranked if one.score >= also * best.score and one.words >= ENOUGH_WORDS][:MOST_QUOTED]
    kept: set[int] = set()
    for one in [best, *(other for other in chosen if other is not best)]:
        at = scored.index(one)
        whole = {at - 1, at} if _leans_on_the_one_before(units, at) else {at}
        if sum(len(units[place].text) for place in kept | whole) <= MOST_CHARACTERS or not kept:
            kept |= whole
    return [units[at] for at in sorted(kept)]


def _leans_on_the_one_before(units: Sequence[Unit], at: int) -> bool:
    """Say whether the sentence begins with a pronoun for something in the sentence before."""
    unit = units[at]
    return (
        unit.form == "prose"
        and at > 0
        and (units[at - 1].form, _place(units[at - 1])) == ("prose", _place(unit))
        and wording.PRONOUN.match(unit.plain) is not None
    )


def _place(unit: Unit) -> tuple[int, int]:
    return unit.source, unit.section


def _quoted(units: Sequence[Unit]) -> str:
    """Return *units* as text, each table with its header, each source followed by its citation."""
    pieces: list[str] = []
    for number, unit in enumerate(units):
        before = units[number - 1] if number else None
        same = before is not None and before.label == unit.label
        is_next_row = same and before is not None and before.header == unit.header
        text = f"{unit.header}\n{unit.text}" if unit.header and not is_next_row else unit.text
        joint = "\n\n"
        if before and same and before.form == unit.form != "code":
            joint = " " if unit.form == "prose" else "\n"
        pieces.append((joint if pieces else "") + text)
        after = units[number + 1] if number + 1 < len(units) else None
        if unit.label and (after is None or after.label != unit.label):
            pieces.append((" " if unit.form == "prose" else "\n\n") + unit.label)
    return "".join(pieces)
