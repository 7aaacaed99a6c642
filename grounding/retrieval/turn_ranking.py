"""Which earlier turns of a conversation a question recalls, and in which order. Pure.

`TurnFloor` says whether a turn bears on a message at all. `rank_turns` orders those that do: what somebody says in a
conversation is seldom whole. An answer says little without its question, and "the second one, please" nothing without
the turn before. So each turn is scored by its own hit and by the turns around it on the same day, the more the shorter
it is; by how well that day fits; by whether somebody asks in it or answers a question; by who says it; and by its
deeper vector, if it has one. The weights are those of a linear model, made by ``python -m bench.fit_recall`` on two
collections of long conversations, and stand in ``turn_weights.toml``. Figures: docs/decisions/12.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from grounding.retrieval.bm25 import term_set
from grounding.retrieval.index import Hit, Passage

ASSISTANT = "assistant"
_SPEAKER = re.compile(r"^(?! )([^:\n]{1,80}): ", re.MULTILINE)
"""The speaker at the beginning of a line of a turn; further lines of theirs are indented."""
_MONTHS = (
    "January February March April May June July August September October November December".split()  # noqa: SIM905
)


def searched_text(passage: Passage) -> str:
    """Return the text by whose words a turn is found: its day (UTC) as people name it, and what was said."""
    year, month, day = passage.said_at[:10].split("-")
    return f"{int(day)} {_MONTHS[int(month) - 1]} {year}\n{passage.text}"


def speakers(text: str) -> list[str]:
    """Return who speaks in (a part of) a turn, in order."""
    return _SPEAKER.findall(text)


# Whether a turn bears on a message


SAYING = term_set(
    "say said tell told talk discuss mention ask answer speak spoke remember remind recall conversation decide agree"
)
"""Words of a question about the conversation itself ("what did I tell you about the boat, as we discussed?"): whether a
turn says them too tells nothing."""
_OWN = re.compile(
    r"""\b(?:i|me|my|mine|myself|we|us|our|ours
    |ich|mich|mir|mein(?:e[mnrs]?)?|wir|uns|unser(?:e[mnrs]?)?
    |yo|mis?|nosotros|nuestr[oa]s?|je|j|moi|mon|ma|mes|nous|notre|nos)\b""",
    re.IGNORECASE | re.VERBOSE,
)
"""Words in which somebody speaks of themselves. Whoever asks about their own things asks about what they said of them:
"what is my dog called?", "we named the puppy Biscuit"."""


@dataclass(frozen=True, slots=True)
class TurnFloor:
    """Judges earlier turns by ``dense_weight`` × cosine + ``coverage_weight`` × coverage.

    Turns with a deeper vector are judged by ``deeper``, if there is that floor: with ``deep_weight`` × deeper cosine,
    and with ``own_weight`` if the message asks about the person's own and somebody speaks of their own in the turn,
    without asking.

    Nothing is recalled unless one turn reaches ``enough``; then those that reach ``minimum``, with the turns just
    before and after them. If the message does not say that it is about the conversation, one turn has to reach
    ``unasked``, or ``unasked_few`` if the message has at most ``few_terms`` terms and asks about nothing of the
    person's own ("who is my dentist?").
    """

    enough: float
    minimum: float
    unasked: float = math.inf
    unasked_few: float = math.inf
    few_terms: int = 1
    dense_weight: float = 1.0
    coverage_weight: float = 0.3
    deep_weight: float = 0.0
    own_weight: float = 0.0
    deeper: TurnFloor | None = None

    def sure_turns(self, query: str, hits: Sequence[Hit], *, asked_for: bool = True) -> set[str]:
        """Return the turns of *hits* that reach ``minimum``; none unless one reaches what the *query* needs. A hit
        without a cosine is judged by its words."""
        asked, of_own = term_set(query), _OWN.search(query) is not None
        turns: set[str] = set()
        is_sure = False
        for hit in hits:
            floor = self.deeper if self.deeper is not None and hit.deep is not None else self
            needed = floor._needed(asked, of_own, asked_for)
            most_wanted = floor.minimum if is_sure else max(needed, floor.minimum)
            relevance = floor._relevance_of(asked, of_own, hit, least=min(needed, floor.minimum), most=most_wanted)
            is_sure = is_sure or relevance >= needed
            if relevance >= floor.minimum:
                turns.add(hit.passage.source)
        return turns if is_sure else set()

    def relevance_of(self, query: str, hit: Hit) -> float:
        """Return how the turn of *hit* bears on *query*, by this floor whether or not it has a deeper vector."""
        return self._relevance_of(term_set(query), _OWN.search(query) is not None, hit, least=-math.inf, most=math.inf)

    def _relevance_of(self, asked: frozenset[str], of_own: bool, hit: Hit, *, least: float, most: float) -> float:
        """Return the relevance of *hit*; roughly, if it is below *least* or above *most* whatever the turn's words are,
        which take longer to read."""
        cosine = hit.dense.score if hit.dense is not None else 0.0
        relevance = self.deep_weight * max(hit.deep.score, 0.0) if hit.deep is not None else 0.0
        if self.own_weight and of_own and _tells_of_own(hit.passage.text):
            relevance += self.own_weight
        if relevance + self.relevance(asked, asked, cosine) < least:
            return -math.inf
        if relevance + self.relevance(asked, frozenset(), cosine) >= most:
            return math.inf
        return relevance + self.relevance(asked, term_set(searched_text(hit.passage)), cosine)

    def relevance(self, asked: frozenset[str], said: frozenset[str], cosine: float) -> float:
        """Return how a turn with the terms *said* bears on a question with the terms *asked*, with the *cosine* of
        their vectors; without what ``deeper`` adds."""
        subject = asked - SAYING or asked
        coverage = len(subject & said) / max(len(subject), 1)
        return self.dense_weight * max(cosine, 0.0) + self.coverage_weight * coverage

    def _needed(self, asked: frozenset[str], of_own: bool, asked_for: bool) -> float:
        if asked_for:
            return self.enough
        is_clear = len(asked - SAYING) > self.few_terms or (asked and of_own)
        return self.unasked if is_clear else self.unasked_few


def _tells_of_own(text: str) -> bool:
    """Return whether a person speaks of their own things in *text*, in a line without a question."""
    first, *pieces = _SPEAKER.split(text)
    lines = [first, *(line for name, line in zip(pieces[::2], pieces[1::2], strict=True) if name != ASSISTANT)]
    return any("?" not in line and _OWN.search(line) for line in lines)


def _read_floor(table: dict[str, Any]) -> TurnFloor:
    deeper = table.get("deeper")
    return TurnFloor(**(table | {"deeper": _read_floor(deeper) if deeper else None}))


_WEIGHTS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("turn_weights.toml").read_text(encoding="utf-8"))
_FLOORS = {model: _read_floor(table) for model, table in _WEIGHTS["floors"].items()}
"""By the name of the embedding model; an empty name is that of all others."""


def turn_floor_for(model: str) -> TurnFloor:
    """Return the floor for earlier turns that were embedded with *model*."""
    return _FLOORS.get(model, _FLOORS[""])


def with_adjacent(turns: Collection[str], passages: Iterable[Passage]) -> list[Passage]:
    """Return those of *passages* that are parts of *turns*, or of the turns just before and after them; each once."""
    known = {passage.id: passage for passage in passages}
    before = {passage.previous for passage in known.values() if passage.source in turns}
    return [one for one in known.values() if one.source in turns or one.source in before or one.previous in turns]


# The order of turns


STANDS_ALONE_CHARACTERS = 300
"""Longer turns lean less on their neighbours, in inverse proportion to their length."""
BEST_OF_A_DAY = 3
"""So many of a day's best turns say how well it fits."""
_SMALLEST_SPREAD = 1e-6


class Features(NamedTuple):
    """The figures of a turn. Scores are standard deviations above the mean of all hits, at least 0; those of other
    turns are scaled by how much the turn leans on them."""

    own: float
    next: float
    """The score of the next turn."""
    before_last: float
    after_next: float
    answers: float
    """The score of the turn before, if somebody asks in it."""
    day: float
    """The mean of the best scores of the day."""
    asks: float
    """1 if somebody asks and nobody answers within the turn."""
    named: float
    """1 if the question names the speaker."""
    person: float
    """1 if a person speaks, 0 if the assistant alone does."""
    deep: float
    """The deeper cosine, on the scale of the scores; 0 without one."""


WEIGHTS = Features(**_WEIGHTS["order"])
"""The weights of the fit, but for ``day``, ``named`` and ``person``: the fit wants more of what is the same for many
turns (0.8, 3.6 and 3.4), which gains less than the noise, and would lose in other conversations."""


class RankedPart(NamedTuple):
    """A part of a turn with its score."""

    passage: Passage
    score: float


class _Part(NamedTuple):
    """A part of a turn with its hit, if it was found itself, and what its words show."""

    passage: Passage
    hit: Hit | None
    score: float
    deep: float
    speakers: list[str]
    asks: bool


class _Turn(NamedTuple):
    """A turn with the score of its best part; ``asks`` if somebody asks in one of its parts."""

    previous: str
    day: str
    score: float
    asks: bool


def rank_turns(
    query: str, hits: Sequence[Hit], neighbours: Sequence[Passage], only: Collection[Passage] | None = None
) -> list[RankedPart]:
    """Return the parts of turns in *hits* and *neighbours*, or those *only*, best first.

    Turns in which the assistant was asked the same before come last: nothing is as like a question as itself, and its
    answer stands elsewhere.
    """
    repeated = _repeated_turns(query, (*(hit.passage for hit in hits), *neighbours))
    ranked = [
        RankedPart(part.passage, sum(weight * value for weight, value in zip(WEIGHTS, features, strict=True)))
        for part, features in _features(query, hits, neighbours, repeated)
    ]
    if only is not None:
        wanted = {passage.id for passage in only}
        ranked = [part for part in ranked if part.passage.id in wanted]
    return sorted(
        ranked,
        key=lambda part: (part.passage.source in repeated, -part.score, part.passage.source, part.passage.ordinal),
    )


def turn_features(
    query: str, hits: Sequence[Hit], neighbours: Sequence[Passage]
) -> list[tuple[Passage, Hit | None, Features]]:
    """Return each part of a turn in *hits* and *neighbours* once, with its hit if it has one, and its figures."""
    return [(part.passage, part.hit, features) for part, features in _features(query, hits, neighbours, ())]


def _repeated_turns(query: str, passages: Sequence[Passage]) -> set[str]:
    """Return the turns in which people only ask what *query* asks, and the assistant answers."""
    asked = term_set(query)
    if not asked:
        return set()
    return {passage.source for passage in passages if _question_terms(passage.text) == asked}


def _question_terms(text: str) -> frozenset[str] | None:
    """Return the terms of what people say in *text* if they only ask and the assistant answers."""
    if "?" not in text:
        return None
    _, *pieces = _SPEAKER.split(text)
    names, lines = pieces[::2], pieces[1::2]
    own = [line for name, line in zip(names, lines, strict=True) if name != ASSISTANT]
    if not 0 < len(own) < len(names) or not all("?" in line for line in own):
        return None
    return term_set("\n".join(own))


def _features(
    query: str, hits: Sequence[Hit], neighbours: Sequence[Passage], repeated: Collection[str]
) -> list[tuple[_Part, Features]]:
    """Return each part once with its figures. *repeated* turns get no score of their own: it would lift the turns
    around them, and level all that is less like the question."""
    parts = _parts(hits, neighbours, repeated)
    turns = _turns(parts)
    following = {turn.previous: name for name, turn in turns.items() if turn.previous}
    days = _days(turns.values())
    asked = term_set(query)
    people = {name for part in parts for name in part.speakers} - {ASSISTANT}
    named = {name for name in people if term_set(name) & asked}
    return [
        (
            part,
            Features(
                part.score,
                *_around(part.passage, turns, following),
                days[turns[part.passage.source].day],
                float(part.asks),
                float(not named.isdisjoint(part.speakers)),
                float(part.speakers != [ASSISTANT]),
                part.deep,
            ),
        )
        for part in parts
    ]


def _parts(hits: Sequence[Hit], neighbours: Sequence[Passage], repeated: Collection[str]) -> list[_Part]:
    counted = [hit for hit in hits if hit.passage.source not in repeated]
    scores = _standardise({hit.passage.id: hit.score for hit in counted})
    deep = _standardise({hit.passage.id: hit.deep.score for hit in counted if hit.deep is not None})

    def part(passage: Passage, hit: Hit | None) -> _Part:
        names, place = speakers(passage.text), passage.id
        asks = "?" in passage.text and names[-1:] != [ASSISTANT]
        return _Part(passage, hit, scores.get(place, 0.0), deep.get(place, 0.0), names, asks)

    found = {hit.passage.id: part(hit.passage, hit) for hit in hits}
    return [*found.values(), *(part(passage, None) for passage in _once(neighbours) if passage.id not in found)]


def _once(passages: Iterable[Passage]) -> Iterable[Passage]:
    return {passage.id: passage for passage in passages}.values()


def _standardise(scores: Mapping[str, float]) -> dict[str, float]:
    """Return how many standard deviations each of *scores* is above their mean; 0 below it, and 1 if all are equal."""
    if not scores:
        return {}
    mean = fmean(scores.values())
    spread = math.sqrt(math.fsum([(score - mean) ** 2 for score in scores.values()]) / len(scores))
    if spread < _SMALLEST_SPREAD:
        return dict.fromkeys(scores, 1.0)
    return {name: (score - mean) / spread if score > mean else 0.0 for name, score in scores.items()}


def _turns(parts: Iterable[_Part]) -> dict[str, _Turn]:
    turns: dict[str, _Turn] = {}
    for passage, _, score, _, _, asks in parts:
        other = turns.get(passage.source)
        if other is not None:
            score, asks = max(score, other.score), asks or other.asks
        turns[passage.source] = _Turn(passage.previous, passage.said_at[:10], score, asks)
    return turns


def _days(turns: Iterable[_Turn]) -> dict[str, float]:
    scores: dict[str, list[float]] = {}
    for turn in turns:
        scores.setdefault(turn.day, []).append(turn.score)
    return {day: sum(sorted(found)[-BEST_OF_A_DAY:]) / BEST_OF_A_DAY for day, found in scores.items()}


def _around(
    passage: Passage, turns: Mapping[str, _Turn], following: Mapping[str, str]
) -> tuple[float, float, float, float]:
    """Return the figures of *passage* that other turns of its day give it: `Features` from ``next`` to ``answers``."""
    own = turns[passage.source]
    lean = min(1.0, STANDS_ALONE_CHARACTERS / max(len(passage.text), 1))

    def turn_of_the_day(name: str | None) -> _Turn | None:
        turn = turns.get(name) if name else None
        return turn if turn is not None and turn.day == own.day else None

    def score(turn: _Turn | None) -> float:
        return lean * turn.score if turn is not None else 0.0

    before = turn_of_the_day(own.previous)
    next_name = following.get(passage.source)
    after = turn_of_the_day(next_name)
    before_last = turn_of_the_day(before.previous) if before is not None else None
    after_next = turn_of_the_day(following.get(next_name)) if next_name and after is not None else None
    return (
        score(after),
        score(before_last),
        score(after_next),
        score(before) if before is not None and before.asks else 0.0,
    )
