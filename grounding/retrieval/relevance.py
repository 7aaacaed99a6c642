"""How relevant a passage of a document is to a question, on a scale on which a floor can be set. Pure.

The score (`Hit.score`, made in `grounding.retrieval.ranking`) orders passages; the relevance decides whether a prompt
shows one. A rank says which passage is best, never whether it is any good: the best of nothing has rank 1. The
relevance is the log-odds that a passage answers, at even odds beforehand: a logistic regression on the dense cosine,
the share of the question's terms that the passage contains, and the passage's BM25 score in units of the rarest term
that the corpus could have. These are raw scores, so that hits must come from a search with ``scores=True`` or
``explain=True``. The best of few unrelated passages reaches less than the best of many, so that the same figures count
for more in a small corpus. A passage that has a code of the question (`codes`) is relevant whatever else it says.

For earlier turns of a conversation see `grounding.retrieval.turn_ranking`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from grounding.retrieval.bm25 import covered, term_set
from grounding.retrieval.index import Hit
from grounding.retrieval.languages import language_of

MEASURED_CHUNKS = 2416
"""The passages of the larger collection by which the constants below were fitted."""

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
"""The relevance of a passage with a code of the question: about 50 to 1. Assumed, not measured: no question set here
has codes."""


@dataclass(frozen=True, slots=True)
class Floor:
    """Keeps hits whose relevance reaches ``minimum``.

    The relevance is ``constant`` + ``dense_weight`` × cosine + ``coverage_weight`` × coverage + ``sparse_weight`` ×
    BM25 / largest IDF + ``size_weight`` × ln(`MEASURED_CHUNKS` / passages); the last term is 0 in larger corpora.

    Two limits stand on this scale. ``minimum`` (-1.0 in the fitted floors) decides which passages a prompt shows, once
    documents are wanted. `grounding.strategy.strategy.MATCH_LOG_ODDS` (1.7) is stricter: it decides whether a message
    without cues wants documents at all.
    """

    minimum: float
    dense_weight: float
    coverage_weight: float
    sparse_weight: float
    constant: float = 0.0
    size_weight: float = 0.0
    across: Floor | None = None
    """The floor for passages in another language than the question, in which its words cannot be; None if that does not
    matter, because the model does not bring languages together either."""

    def relevance(self, query: str, hit: Hit, corpus_size: int) -> float:
        """Return the relevance of *hit*, which must carry its raw scores, found among *corpus_size* passages."""
        return self.relevances(query, [hit], corpus_size)[0]

    def relevances(self, query: str, hits: Sequence[Hit], corpus_size: int) -> list[float]:
        """Return the `relevance` of each of *hits*. A score that an arm did not give counts as 0."""
        query_codes, language = codes(query), language_of(query) if self.across else ""
        smaller = MEASURED_CHUNKS / min(max(corpus_size, 1), MEASURED_CHUNKS)
        of_size = self.size_weight * math.log(smaller)

        def relevance_of(hit: Hit) -> float:
            text = _text(hit)
            if query_codes and query_codes & codes(text):
                return NAMED_LOG_ODDS
            floor = self.across if self.across and language and language_of(text) not in ("", language) else self
            cosine, coverage, rarity = features(query, hit, corpus_size)
            weighed = floor.dense_weight * cosine + floor.coverage_weight * coverage + floor.sparse_weight * rarity
            return floor.constant + weighed + of_size

        return [relevance_of(hit) for hit in hits]

    def keep(self, query: str, hits: Sequence[Hit], corpus_size: int) -> list[Hit]:
        """Return those of *hits* that reach the floor, or that have every word of *query*, in their order."""
        relevances, wanted = self.relevances(query, hits, corpus_size), question_terms(query)
        return [
            hit
            for hit, relevance in zip(hits, relevances, strict=True)
            if relevance >= self.minimum or covered(wanted, _text(hit)) == 1.0
        ]


def features(query: str, hit: Hit, corpus_size: int) -> tuple[float, float, float]:
    """Return the weighed figures: the cosine (0 to 1), the coverage (0 to 1), and BM25 / largest IDF (mostly 0 to
    4)."""
    cosine = max(hit.dense.score, 0.0) if hit.dense is not None else 0.0
    rarity = hit.sparse.score / largest_idf(corpus_size) if hit.sparse is not None else 0.0
    return cosine, covered(question_terms(query), _text(hit)), rarity


def question_terms(query: str) -> frozenset[str]:
    """Return the terms of *query* that say what is asked; all of them if nothing else would be left."""
    wanted = term_set(query)
    return wanted - ASKING or wanted


def largest_idf(corpus_size: int) -> float:
    """Return the inverse document frequency of a term in none of *corpus_size* passages, by Qdrant's formula
    ln((N - n + 0.5) / (n + 0.5) + 1)."""
    return math.log((corpus_size + 0.5) / 0.5 + 1)


def _text(hit: Hit) -> str:
    passage = hit.passage
    return "\n".join((passage.title, passage.heading, passage.lead, passage.text))


# The fitted floors


_DOCUMENTS: dict[str, Floor] = {
    # By bench.calibrate on two collections (2,416 and 1,602 chunks) and 750 messages that neither answers: AUC .91 to
    # 1.00, .90 to 1.00 where the group had no part in the fit; figures in docs/decisions/08. At -1.0 from .91 to
    # all of the answerable keep a passage, of the others .02 to .34. That side is generous: the strategy has already
    # decided that documents are wanted. The weight of the size by bench.calibrate --sizes: at 1.7 corpora of 24
    # chunks and more take up 0 to .04 of the messages that they do not answer, the largest .03.
    "wordllama-l2-supercat": Floor(
        -1.0, dense_weight=9.8, coverage_weight=4.7, sparse_weight=1.45, constant=-9.0, size_weight=0.5
    ),
    # The same: AUC .92 to 1.00, left out too. At -1.0 from .93 to all of the answerable keep a passage, of the others
    # none to .28. Corpora of 24 chunks and more take up 0 to .02 of the messages that they do not answer.
    "all-minilm-l6-v2-8bit": Floor(
        -1.0, dense_weight=12.9, coverage_weight=3.7, sparse_weight=0.83, constant=-8.3, size_weight=0.5
    ),
    # The same: AUC .91 to 1.00, left out too. Across languages the cosine alone decides: AUC .86 to 1.00, measured in
    # English without the words.
    "use-multilingual-v3": Floor(
        -1.0,
        dense_weight=13.3,
        coverage_weight=5.0,
        sparse_weight=1.4,
        constant=-9.1,
        size_weight=0.5,
        across=Floor(-1.0, dense_weight=20.2, coverage_weight=0.0, sparse_weight=0.0, constant=-6.2),
    ),
}
_BY_WORDS = Floor(-1.0, dense_weight=0.0, coverage_weight=6.2, sparse_weight=2.4, constant=-8.3, size_weight=0.2)
"""For models whose cosines nobody measured: the words alone decide. Same source."""


def floor_for(model: str) -> Floor:
    """Return the floor for passages of documents that were embedded with *model*."""
    return _DOCUMENTS.get(model, _BY_WORDS)


def floor_for_hits(floor: Floor, hits: Sequence[Hit]) -> Floor:
    """Return *floor*, or the floor for words alone if none of *hits* has a cosine: then only words were searched."""
    return floor if any(hit.dense is not None for hit in hits) else _BY_WORDS


# Codes: part numbers, error codes, tickets, names of variables
#
# A code says nothing by its meaning, so that no cosine finds it; but whoever writes one means exactly that. A word that
# begins with a digit is mostly a time, an amount or an ordinal ("10am", "500mb", "2nd", "24-hour"), and a word with a
# small number mostly a word of its own ("covid-19", "windows 11", "base64"): these are no codes.


LEAST_DIGITS = 2
"""A word with one digit is mostly a word of its own ("mp3", "B2B", "S3")."""
LEAST_DIGITS_FIRST = 3
"""The same for a word that begins with a digit and ends in a letter or two: "4711-A"."""
_JOINED = re.compile(r"(?<![\w.-])[^\W_]+(?:[-_.#][^\W_]+)*(?![\w-])")
_JOINT = re.compile(r"[-_.#]")
_WORD_AND_NUMBER = re.compile(r"[^\W\d_]{3,}[-.]?\d{1,2}")
_TICKET = re.compile(r"[A-Z]{3,4}-\d{1,2}")
"""In capitals, so that it is no word: "INC-12"."""
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_MOST_CHARACTERS = 64


def codes(text: str) -> frozenset[str]:
    """Return the codes of *text* in lower case.

    A code is a word, joined by ``-``, ``_``, ``.`` or ``#``, that begins with a letter and has two digits or an
    underscore, or that begins with three digits and ends in a letter or two.
    """
    if not any(character.isdigit() or character == "_" for character in text):
        return frozenset()
    words = (match[0] for match in _JOINED.finditer(text))
    return frozenset(word.casefold() for word in words if len(word) <= _MOST_CHARACTERS and _is_code(word))


def _is_code(word: str) -> bool:
    digits = sum(character.isdigit() for character in word)
    if word[0].isdigit():
        return digits >= LEAST_DIGITS_FIRST and _is_numbered(word)
    if "_" in word:
        return True
    if digits < LEAST_DIGITS:
        return False
    return _WORD_AND_NUMBER.fullmatch(word) is None or _TICKET.fullmatch(word) is not None


def _is_numbered(word: str) -> bool:
    """Return whether *word*, which begins with a digit, is a number with letters: not "1990s", "500-mb" or a day."""
    first, *rest = _JOINT.split(word)
    letters = "".join(character for character in "".join(rest) if not character.isdigit())
    if not first.isdigit() or not 1 <= len(letters) <= 2 or _DAY.match(word):
        return False
    return letters.isupper() or (len(letters) == 1 and len(first) > LEAST_DIGITS_FIRST)
