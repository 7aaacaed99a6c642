"""How relevant a passage is to a question, on a scale on which a floor can be set. Pure.

A fused rank says which passage is best, never whether it is any good: the best of nothing has rank 1.
For documents the scale is the log-odds that a passage answers, at even odds beforehand: a logistic regression
on the dense cosine, the share of the question's terms that the passage contains, and the passage's BM25 score in
units of the rarest term that the corpus could have. The best of few passages that have nothing to do with a message
reaches less than the best of many, so that what a passage of a small corpus reaches counts for more.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple, TypeVar

from grounding.prompt_input import Recent, RecentObjects
from grounding.retrieval.bm25 import codes, covered, term_set
from grounding.retrieval.index import Hit, Passage

# ---- recollection ----
#
# Which of the turns that a search found are told, by what stands beside them too. Pure.
#
# What somebody says in a conversation is seldom whole: an answer says little without its question, "the second one,
# please" nothing without what was said before. So each turn is judged by its own score and by those of the turns around
# it on the same day, the more the shorter it is; by how well that day fits; by whether somebody asks in it or answers
# what was asked; and by who says it. The weights are those of a linear model, made by ``python -m bench.fit_recall`` on
# two collections of long conversations. Figures: docs/decisions/12.


ASSISTANT = "assistant"
STANDS_ALONE_CHARACTERS = 300
"""Longer turns lean less on what is beside them, in inverse proportion to their length."""
BEST_OF_A_DAY = 3
"""The turns by which a day is judged."""
_SPEAKER = re.compile(r"^(?! )([^:\n]{1,80}): ", re.MULTILINE)
"""Who speaks in a line of a turn; further lines of theirs are indented."""
_SMALLEST_SPREAD = 1e-6
_MONTHS = (
    "January February March April May June July August September October November December".split()  # noqa: SIM905
)


class Features(NamedTuple):
    """What a turn is judged by. Scores are standard deviations above the mean of what was found, at least 0."""

    own: float
    next: float
    """The score of the next turn; like all scores of others, in parts that the turn's length leaves."""
    before_last: float
    after_next: float
    answers: float
    """The score of the turn before, where somebody asks in it."""
    day: float
    """The mean of the best scores of the day."""
    asks: float
    """1 where somebody asks and nobody answers within the turn."""
    named: float
    """1 where the question names who speaks."""
    person: float
    """1 where a person speaks, 0 where the assistant alone does."""


WEIGHTS = Features(
    own=1.0,
    next=0.3,
    before_last=0.4,
    after_next=0.25,
    answers=0.9,
    day=0.4,
    asks=-0.45,
    named=1.1,
    person=2.0,
)
"""Those that the fit gives, but for ``day``, ``named`` and ``person``: it wants more of what is the same for many turns
(0.8, 3.6 and 3.4), which gains less than the noise, and would lose where a conversation is another."""
_OWN, _NEXT, _BEFORE_LAST, _AFTER_NEXT, _ANSWERS, _DAY, _ASKS, _NAMED, _PERSON = WEIGHTS


class Recollection(NamedTuple):
    """A part of a turn with its score; ``hit`` is there where the search found it by itself."""

    passage: Passage
    score: float
    hit: Hit | None


@dataclass(frozen=True, slots=True)
class _Said:
    """What the words of a part of a turn show: who speaks, and whether somebody asks and nobody answers."""

    by: list[str]
    asks: bool
    question: frozenset[str] | None
    """The terms of what people say, where they only ask and the assistant answers them."""

    @classmethod
    def of(cls, text: str) -> _Said:
        """Those of the last texts are remembered: what is found for one question is mostly found for the next one."""
        return _said.of(text, cls._of)

    @classmethod
    def of_all(cls, texts: Iterable[str]) -> list[_Said]:
        """Of each of *texts*."""
        return _said.of_all(texts, cls._of)

    @classmethod
    def _of(cls, text: str) -> _Said:
        _, *pieces = _SPEAKER.split(text)
        by, said = pieces[::2], pieces[1::2]
        own = [one for name, one in zip(by, said, strict=True) if name != ASSISTANT]
        only_asks = 0 < len(own) < len(by) and all("?" in one for one in own)
        question = term_set("\n".join(own)) if only_asks else None
        return cls(by, "?" in text and by[-1:] != [ASSISTANT], question)


_said: Recent[_Said] = Recent(2048)


def met_first(texts: Iterable[str]) -> list[str]:
    """Those of *texts* whose words were not looked at lately: to look at the others again costs next to nothing."""
    return _said.lacking(texts)


_There = tuple[Passage, Hit | None, float, _Said]
"""What was found or stands beside that: the hit where it was found, its own score, and what its words show."""
_Turn = tuple[str, str, float, bool]
"""A turn among those that were found or stand beside them: the turn before, its day, its score, whether somebody asks.
A plain tuple, as `_Judged`: a question has a hundred of both, and to make one with names takes twice as long."""
_Judged = tuple[float, float, float, float, float, float, float, float, float]
"""`Features`."""


def recollect(
    query: str, hits: Sequence[Hit], beside: Sequence[Passage], told: Iterable[Passage] | None = None
) -> list[Recollection]:
    """*hits* of *query*, and the parts of turns *beside* them, the best first; of them those that are *told*, where
    that is given. Turns in which the same was asked of the assistant before come last: nothing is as like a question as
    itself, and what answers it stands elsewhere."""
    asked, passages = term_set(query), [hit.passage for hit in hits]
    passages += beside
    looked_at = _Said.of_all([one.text for one in passages])
    said = dict(zip([one.id for one in passages], looked_at, strict=True))
    repeated = {one.source for one, by in zip(passages, looked_at, strict=True) if by.question == asked and asked}
    found = [
        (passage.source in repeated, -_weighed(one), passage.source, passage.ordinal, number, passage, hit)
        for number, (passage, hit, one) in enumerate(_judged(query, hits, beside, repeated, said, told))
    ]
    found.sort()
    return [Recollection(passage, -score, hit) for _, score, _, _, _, passage, hit in found]


def candidates(
    query: str, hits: Sequence[Hit], beside: Sequence[Passage]
) -> list[tuple[Passage, Hit | None, Features]]:
    """Everything that may be told, each once, and what it is judged by."""
    said = {one.id: _Said.of(one.text) for one in (*(hit.passage for hit in hits), *beside)}
    return [(one, hit, Features(*judged)) for one, hit, judged in _judged(query, hits, beside, (), said, None)]


def _judged(
    query: str,
    hits: Sequence[Hit],
    beside: Sequence[Passage],
    repeated: Collection[str],
    said: Mapping[str, _Said],
    told: Iterable[Passage] | None,
) -> list[tuple[Passage, Hit | None, _Judged]]:
    """Everything that may be told, each once, and its `Features`; where they are given, only those that are *told*.
    What is *repeated* has no score of its own: it would lift what stands beside them, and make the same of all that is
    less like the question than itself. *said* is what the words of each passage show, by its id."""
    standard = iter(_standard([hit.score for hit in hits if hit.passage.source not in repeated]))
    there: dict[str, _There] = {}
    for hit in hits:
        passage = hit.passage
        score = 0.0 if passage.source in repeated else next(standard)
        there[passage.id] = passage, hit, score, said[passage.id]
    for passage in beside:
        if passage.id not in there:
            there[passage.id] = passage, None, 0.0, said[passage.id]
    turns = _turns(there.values())
    following = {previous: source for source, (previous, _, _, _) in turns.items() if previous}
    days = _days(turns)
    asked = term_set(query)
    speaking = set[str]().union(*[words.by for _, _, _, words in there.values()]) - {ASSISTANT}
    named = frozenset(name for name in speaking if term_set(name) & asked)
    judged = there if told is None else dict.fromkeys([passage.id for passage in told])
    found: list[tuple[Passage, Hit | None, _Judged]] = []
    for name in judged:
        passage, by_itself, score, words = there[name]
        beside_it = _beside(passage, turns, following)
        day = turns[passage.source][1]
        is_named = 0.0 if not named or named.isdisjoint(words.by) else 1.0
        is_person = 0.0 if words.by == [ASSISTANT] else 1.0
        features = (score, *beside_it, days[day], float(words.asks), is_named, is_person)
        found.append((passage, by_itself, features))
    return found


def _weighed(one: _Judged) -> float:
    # `WEIGHTS` times *one*, summed in their order: written out it takes a third of the time.
    own, following, before_last, after_next, answers, day, asks, named, person = one
    return (
        _OWN * own
        + _NEXT * following
        + _BEFORE_LAST * before_last
        + _AFTER_NEXT * after_next
        + _ANSWERS * answers
        + _DAY * day
        + _ASKS * asks
        + _NAMED * named
        + _PERSON * person
    )


def _standard(scores: Sequence[float]) -> list[float]:
    """How many standard deviations each of *scores* is above their mean; 0 below it, and 1 where all are the same."""
    if not scores:
        return []
    mean = fmean(scores)
    spread = math.sqrt(math.fsum([(score - mean) ** 2 for score in scores]) / len(scores))
    if spread < _SMALLEST_SPREAD:
        return [1.0] * len(scores)
    return [(score - mean) / spread if score > mean else 0.0 for score in scores]


def _turns(there: Iterable[_There]) -> dict[str, _Turn]:
    """The turns of what is *there* by their names; a turn has the score of its best part."""
    turns: dict[str, _Turn] = {}
    for passage, _, score, words in there:
        source, asks = passage.source, words.asks
        if source in turns:
            _, _, other, asked = turns[source]
            score, asks = max(score, other), asks or asked
        turns[source] = passage.previous, passage.said_at[:10], score, asks
    return turns


def _days(turns: Mapping[str, _Turn]) -> dict[str, float]:
    scores: dict[str, list[float]] = {}
    for _, day, score, _ in turns.values():
        scores.setdefault(day, []).append(score)
    return {day: sum(sorted(found)[-BEST_OF_A_DAY:]) / BEST_OF_A_DAY for day, found in scores.items()}


def _beside(
    passage: Passage, turns: Mapping[str, _Turn], following: Mapping[str, str]
) -> tuple[float, float, float, float]:
    """What the turns around that of *passage* make of it: `Features` from ``next`` to ``answers``."""
    previous, day, _, _ = turns[passage.source]
    length = len(passage.text)
    lean = 1.0 if length <= STANDS_ALONE_CHARACTERS else STANDS_ALONE_CHARACTERS / length
    of_before = of_next = of_before_last = of_after_next = 0.0
    before, after = turns.get(previous), following.get(passage.source)
    if before is not None and before[1] == day:
        of_before = lean * before[2] if before[3] else 0.0
        before_last = turns.get(before[0])
        if before_last is not None and before_last[1] == day:
            of_before_last = lean * before_last[2]
    if after is not None and turns[after][1] == day:
        of_next = lean * turns[after][2]
        after_next = following.get(after)
        if after_next is not None and turns[after_next][1] == day:
            of_after_next = lean * turns[after_next][2]
    return of_next, of_before_last, of_after_next, of_before


def day_of(passage: Passage) -> str:
    """The day (UTC) on which it was said."""
    return passage.said_at[:10]


def searched_text(passage: Passage) -> str:
    """What words find a turn by: its day (UTC) as people name it, and what was said."""
    year, month, day = passage.said_at[:10].split("-")
    return f"{int(day)} {_MONTHS[int(month) - 1]} {year}\n{passage.text}"


def speakers(text: str) -> list[str]:
    """Who speaks in (a part of) a turn, in order."""
    return _SPEAKER.findall(text)


# ---- relevance ----


MEASURED_CHUNKS = 2416
"""Passages of the larger collection by which the constants below were fitted."""

ASKING = term_set("""
    much many long often quickly may must get cheapest longest shortest largest biggest smallest highest lowest fastest
    slowest
    wie viel viele wieviel wann welche welcher welches welchen warum wer wo ist sind gibt es ich wir haben habe darf
    muss kann bekomme der das den dem des ein eine einen einem einer und oder für auf mit von zu im bei unser unsere
    combien comment quand quel quelle quels quelles qui que où est sont nous vous je il elle avons avez ai puis le la
    les un une du et dans avec au aux ce cette
    cuánto cuántos cuánta cuántas cómo cuándo dónde qué cuál es hay tenemos puedo debo el los las una del y para por
    con en se
""")
"""Words by which something is asked in English, German, French and Spanish. Whether a passage has them tells nothing;
`grounding.retrieval.bm25.STOP_WORDS` stay out anyway."""

NAMED_LOG_ODDS = 4.0
"""Of a passage with a code of the question: about 50 to 1. Assumed, not measured: no question set here has codes."""


@dataclass(frozen=True, slots=True)
class Floor:
    """Keeps hits with ``constant`` + ``dense_weight`` × cosine + ``coverage_weight`` × coverage + ``sparse_weight`` ×
    BM25 / largest IDF + ``size_weight`` × ln(`MEASURED_CHUNKS` / passages) ≥ ``minimum``; the last is 0 in corpora of
    more passages."""

    minimum: float
    dense_weight: float = 1.0
    coverage_weight: float = 0.3
    sparse_weight: float = 0.1
    constant: float = 0.0
    size_weight: float = 0.0

    def relevance(self, query: str, hit: Hit, corpus_size: int) -> float:
        """*hit* must carry its arms; an arm that did not offer it counts as 0. *corpus_size* is the number of
        passages that were searched. A passage with a code of the query has `NAMED_LOG_ODDS`, whatever else it says."""
        return self.relevances(query, [hit], corpus_size)[0]

    def relevances(self, query: str, hits: Sequence[Hit], corpus_size: int) -> list[float]:
        """The `relevance` of each of *hits*."""
        named, wanted, rarest = codes(query), asked_terms(query), largest_idf(corpus_size)
        smaller = MEASURED_CHUNKS / min(max(corpus_size, 1), MEASURED_CHUNKS)
        of_size, found = self.size_weight * math.log(smaller), []
        for hit in hits:
            shown = _shown(hit)
            if named and named & codes(shown):
                found.append(NAMED_LOG_ODDS)
                continue
            cosine, covering, rare = _features(wanted, shown, hit, rarest)
            weighed = self.dense_weight * cosine + self.coverage_weight * covering + self.sparse_weight * rare
            found.append(self.constant + weighed + of_size)
        return found

    def keep(self, query: str, hits: Sequence[Hit], corpus_size: int) -> list[Hit]:
        """Those of *hits* that reach the floor, or that have every word of *query*, in their order."""
        relevances, wanted = self.relevances(query, hits, corpus_size), asked_terms(query)
        return [
            hit
            for hit, reached in zip(hits, relevances, strict=True)
            if reached >= self.minimum or covered(wanted, _shown(hit)) == 1.0
        ]


SAYING = term_set(
    "say said tell told talk discuss mention ask answer speak spoke remember remind recall conversation decide agree"
)
"""What a question says of the conversation itself ("what did I tell you about the boat, as we discussed?"): whether a
turn says it, too, tells nothing."""


_RELEVANCE_OWN = re.compile(
    r"\b(?:my|our|mein(?:e[mnrs]?)?|unser(?:e[mnrs]?)?|mis?|nuestr[oa]s?|mon|ma|mes|notre|nos)\b", re.IGNORECASE
)
"""Whose something is, in a message: whoever asks about their own asks about what they said of it."""


@dataclass(frozen=True, slots=True)
class TurnFloor:
    """Judges earlier turns by ``dense_weight`` × cosine + ``coverage_weight`` × coverage. Nothing is recalled unless
    one reaches ``enough``; then those that reach ``minimum``, and what was said just before and after them. Where the
    message does not say that it is about the conversation one has to reach ``unasked``, or ``unasked_few`` where the
    message has at most ``few_terms`` terms and asks about nothing of the person's own ("who is my dentist?")."""

    enough: float
    minimum: float
    unasked: float = math.inf
    unasked_few: float = math.inf
    few_terms: int = 1
    dense_weight: float = 1.0
    coverage_weight: float = 0.3

    def told(
        self, query: str, hits: Sequence[Hit], beside: Sequence[Passage] = (), *, asked_for: bool = True
    ) -> list[Passage]:
        """The passages of *hits*, and those *beside* them, that are told; each once, in no order that says anything.
        What the search itself did not find has to stand beside what is sure."""
        scores: dict[str, float] = {}
        asked, least = term_set(query), min(self.enough, self.minimum)
        weight, words = self.dense_weight, self.coverage_weight
        for passage, _, dense, *_ in hits:
            cosine = dense.score if dense is not None else 0.0
            if weight * max(cosine, 0.0) + words >= least:  # else no words make it enough
                score, source = self.relevance(asked, _said_in(passage), cosine), passage.source
                if score > scores.get(source, -math.inf):
                    scores[source] = score
        if max(scores.values(), default=-math.inf) < self._enough(query, asked, asked_for):
            return []
        sure = {source for source, score in scores.items() if score >= self.minimum}
        passages = {hit.passage.id: hit.passage for hit in hits}
        for passage in beside:
            passages.setdefault(passage.id, passage)
        wanted = sure | {one.previous for one in passages.values() if one.source in sure}
        return [one for one in passages.values() if one.source in wanted or one.previous in sure]

    def is_sure(self, query: str, hits: Sequence[Hit]) -> bool:
        """Whether one of *hits* reaches what is told unasked. The words are looked at of those alone that
        `could_be_sure`."""
        asked = term_set(query)
        enough = self._enough(query, asked, asked_for=False)
        return any(self._reached(asked, hit) >= enough for hit in hits)

    def could_be_sure(self, query: str, hits: Sequence[Hit]) -> list[Hit]:
        """Those of *hits* that reach it if they say all that *query* says; none of their words is looked at."""
        enough = self._enough(query, term_set(query), asked_for=False)
        if self.coverage_weight >= enough:
            return list(hits)
        weight, words = self.dense_weight, self.coverage_weight
        return [hit for hit in hits if hit.dense is not None and weight * max(hit.dense.score, 0.0) + words >= enough]

    def _reached(self, asked: frozenset[str], hit: Hit) -> float:
        return self.relevance(asked, _said_in(hit.passage), hit.dense.score if hit.dense is not None else 0.0)

    def _enough(self, query: str, asked: frozenset[str], asked_for: bool) -> float:
        if asked_for:
            return self.enough
        is_clear = len(asked - SAYING) > self.few_terms or (asked and _RELEVANCE_OWN.search(query))
        return self.unasked if is_clear else self.unasked_few

    def relevance(self, asked: frozenset[str], said: frozenset[str], cosine: float) -> float:
        """How a turn of the terms *said* bears on a question of the terms *asked*, their vectors having that
        *cosine*."""
        subject = asked - SAYING or asked
        covered = len(subject & said) / max(len(subject), 1)
        return self.dense_weight * max(cosine, 0.0) + self.coverage_weight * covered


def _said_in(passage: Passage) -> frozenset[str]:
    """The terms that words find a turn by. Any thread may ask: at worst two of them find the same."""
    return _terms_said.of(passage, _terms_of)


def _terms_of(passage: Passage) -> frozenset[str]:
    return term_set(searched_text(passage))


_terms_said: RecentObjects[Passage, frozenset[str]] = RecentObjects(1024)
"""Turns that are held in memory are the same objects for every question."""


def features(query: str, hit: Hit, corpus_size: int) -> tuple[float, float, float]:
    """What is weighed: the cosine (0 to 1), the coverage (0 to 1), and BM25 / largest IDF (mostly 0 to 4)."""
    return _features(asked_terms(query), _shown(hit), hit, largest_idf(corpus_size))


def asked_terms(query: str) -> frozenset[str]:
    """The terms of *query* that say what is asked; all of them where nothing else would be left."""
    wanted = term_set(query)
    return wanted - ASKING or wanted


def _features(wanted: frozenset[str], shown: str, hit: Hit, rarest: float) -> tuple[float, float, float]:
    cosine = max(hit.dense.score, 0.0) if hit.dense is not None else 0.0
    rare = hit.sparse.score / rarest if hit.sparse is not None else 0.0
    return cosine, covered(wanted, shown), rare


def _shown(hit: Hit) -> str:
    passage = hit.passage
    return "\n".join((passage.title, passage.heading, passage.lead, passage.text))


def largest_idf(corpus_size: int) -> float:
    """The inverse document frequency of a term in none of *corpus_size* passages, by Qdrant's formula
    ln((N - n + 0.5) / (n + 0.5) + 1)."""
    return math.log((corpus_size + 0.5) / 0.5 + 1)


_DOCUMENTS: dict[str, Floor] = {
    # By bench.calibrate on two collections (2,416 and 1,602 chunks) and 750 messages that neither answers: AUC .91 to
    # 1.00, .90 to 1.00 where the group had no part in the fit; figures in docs/decisions/08. At -1.0 from .91 to
    # all of the answerable keep a passage, of the others .02 to .34. That side is generous: the strategy has already
    # decided that documents are wanted. The weight of the size by bench.small_corpora: at 1.7 corpora of 24
    # chunks and more take up 0 to .04 of the messages that they do not answer, the largest .03.
    "wordllama-l2-supercat": Floor(
        -1.0, dense_weight=9.8, coverage_weight=4.7, sparse_weight=1.45, constant=-9.0, size_weight=0.5
    ),
    # The same: AUC .92 to 1.00, left out too. At -1.0 from .93 to all of the answerable keep a passage, of the others
    # none to .28. Corpora of 24 chunks and more take up 0 to .02 of the messages that they do not answer.
    "all-minilm-l6-v2-8bit": Floor(
        -1.0, dense_weight=12.9, coverage_weight=3.7, sparse_weight=0.83, constant=-8.3, size_weight=0.5
    ),
}
_TURNS: dict[str, TurnFloor] = {
    # Questions put to the conversation that they are about and to another one, as `eval memory` does: figures in
    # docs/decisions/12.
    "wordllama-l2-supercat": TurnFloor(0.5, 0.35, unasked=0.6, unasked_few=0.75),
    "all-minilm-l6-v2-8bit": TurnFloor(0.5, 0.35, unasked=0.6, unasked_few=0.75),
}
_BY_WORDS = Floor(-1.0, dense_weight=0.0, coverage_weight=6.2, sparse_weight=2.4, constant=-8.3, size_weight=0.2)
"""For documents under models whose cosines nobody measured: the words alone decide. Same source."""
_TURNS_BY_WORDS = TurnFloor(0.5, 0.3, dense_weight=0.0, coverage_weight=1.0, unasked=0.7, few_terms=2)
"""The same for turns."""


def floor_for(model: str) -> Floor:
    """The floor for passages of documents that were embedded with *model*."""
    return _DOCUMENTS.get(model, _BY_WORDS)


def turn_floor_for(model: str) -> TurnFloor:
    """The floor for earlier turns that were embedded with *model*."""
    return _TURNS.get(model, _TURNS_BY_WORDS)


def fitting(floor: Floor, hits: Sequence[Hit]) -> Floor:
    """*floor*, or where none of *hits* was found by its vector (words alone were searched) that of words."""
    return floor if any(hit.dense is not None for hit in hits) else floor_for("")


# ---- judging ----
#
# Passages judged by their words: on the event loop where their words were looked at before, else on a thread.


T = TypeVar("T")

FEW_PASSAGES = 2
JUDGED_REMEMBERED = 512
"""Fewer than the texts that `grounding.retrieval.bm25` remembers the terms of."""


class Judging:
    """Remembers which passages were judged. The words of more than *few* others take milliseconds: off the loop."""

    def __init__(self, few: int = FEW_PASSAGES) -> None:
        self._few = few
        self._known: set[str] = set()

    async def of(self, hits: Sequence[Hit], judge: Callable[[], T]) -> T:
        """What *judge* says, which looks at the words of *hits*."""
        new = {hit.passage.id for hit in hits} - self._known
        if len(self._known) + len(new) > JUDGED_REMEMBERED:
            self._known.clear()
        self._known |= new
        return judge() if len(new) <= self._few else await asyncio.to_thread(judge)
