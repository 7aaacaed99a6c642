"""Which of the turns that a search found are told, by what stands beside them too. Pure.

What somebody says in a conversation is seldom whole: an answer says little without its question, "the second one,
please" nothing without what was said before. So each turn is judged by its own score and by those of the turns around
it on the same day, the more the shorter it is; by how well that day fits; by whether somebody asks in it or answers
what was asked; and by who says it. The weights are those of a linear model, made by ``python -m bench.fit_recall`` on
two collections of long conversations. Figures: docs/decisions/12.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from grounding.documents.index import Hit, Passage
from grounding.documents.sparse import term_set
from grounding.recent import Recent

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
