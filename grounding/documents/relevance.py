"""How relevant a passage is to a question, on a scale on which a floor can be set. Pure.

A fused rank says which passage is best, never whether it is any good: the best of nothing has rank 1.
For documents the scale is the log-odds that a passage answers, at even odds beforehand: a logistic regression
on the dense cosine, the share of the question's terms that the passage contains, and the passage's BM25 score in
units of the rarest term that the corpus could have. The best of few passages that have nothing to do with a message
reaches less than the best of many, so that what a passage of a small corpus reaches counts for more.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from grounding.documents.codes import codes
from grounding.documents.index import Hit, Passage
from grounding.documents.recollection import searched_text
from grounding.documents.sparse import covered, term_set
from grounding.recent import RecentObjects

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
`grounding.documents.sparse.STOP_WORDS` stay out anyway."""

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


_OWN = re.compile(
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
        is_clear = len(asked - SAYING) > self.few_terms or (asked and _OWN.search(query))
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
