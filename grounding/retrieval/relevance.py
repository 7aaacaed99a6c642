"""How relevant a passage of a document is to a question, on a scale on which a limit can be set. Pure.

The score (`Hit.score`, made in `grounding.retrieval.ranking`) orders passages; the relevance decides: whether a message
gets documents, and which passages its prompt shows. A rank says which passage is best, never whether it is any good:
the best of nothing has rank 1. The relevance is the log-odds that a passage answers, at even odds beforehand: a
logistic regression on the figures of `features`. These are raw scores, so that hits must come from a search with
``scores=True`` or ``explain=True``. A passage that has a code of the question (`codes`) is relevant whatever else it
says.

The weights are in ``relevance.toml``, one table for each pair of models that was measured; ``bench.calibrate`` makes
that file. Figures: docs/decisions/08. For earlier turns of a conversation see `grounding.retrieval.turn_ranking`.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grounding.retrieval.bm25 import covered, term_set
from grounding.retrieval.index import Hit
from grounding.retrieval.languages import language_of

MEASURED_CHUNKS = 2416
"""The passages of the larger collection by which the constants below were fitted."""

SMALLEST_CHUNKS = 24
"""Smaller collections count as if they had so many passages: smaller ones match more by chance."""

ASKING = term_set("""
    much many long often quickly may must get cheapest longest shortest largest biggest smallest highest lowest fastest
    slowest
    wie viel viele wieviel wann welche welcher welches welchen warum wer wo ist sind gibt es ich wir haben habe darf
    muss kann bekomme der das den dem des ein eine einen einem einer und oder für auf mit von zu im bei unser unsere
    combien comment quand quel quelle quels quelles qui que où est sont nous vous je il elle avons avez ai puis le la
    les un une du et dans avec au aux ce cette
    cuánto cuántos cuánta cuántas cómo cuándo dónde qué cuál es hay tenemos puedo debo el los las una del y para por
    con en se
    de d l j m n s t qu c a au y o e hat die du sie mir mich uns sich wird werden kann können
""")
"""Words by which something is asked in English, German, French and Spanish. Whether a passage has them tells nothing;
`grounding.retrieval.bm25.STOP_WORDS` stay out anyway."""

NAMED_LOG_ODDS = 4.0
"""The relevance of a passage with a code of the question: about 50 to 1. Assumed, not measured: no question set here
has codes."""
SHOWN_LOG_ODDS = -2.1
"""A prompt that wants documents shows passages that are at least so relevant.
`grounding.strategy.strategy.MATCH_LOG_ODDS` is stricter: it decides whether documents are wanted at all."""
WEIGHTS_FILE = Path(__file__).with_name("relevance.toml")


@dataclass(frozen=True, slots=True)
class Weights:
    """The weight of each of `features`, and of ln(`MEASURED_CHUNKS` / passages), which is 0 in larger corpora: the best
    of few unrelated passages reaches less than the best of many."""

    constant: float
    coverage: float = 0.0
    rarity: float = 0.0
    dense: float = 0.0
    deep: float = 0.0
    earlier: float = 0.0
    conversation: float = 0.0
    size: float = 0.0


class Relevance:
    """Judges passages that were embedded with one model, and with a deeper one if that has vectors of its own."""

    def __init__(self, quick: Weights, deep: Weights | None = None, across: Weights | None = None) -> None:
        """*deep* are the weights for passages that were compared by their deeper vector, too; *across* those for
        passages in another language than the question, in which its words cannot be."""
        self._quick = quick
        self._deep = deep or quick
        self._across = across

    def of(self, query: str, hits: Sequence[Hit], corpus_size: int, earlier: Sequence[str] = ()) -> list[float]:
        """Return the relevance of each of *hits*, found among *corpus_size* passages for *query* after *earlier* turns.

        If none of them has a cosine, only words were searched, and words alone decide. A score that an arm did not give
        counts as 0.
        """
        query_codes, language = codes(query), language_of(query) if self._across else ""
        has_cosines = any(hit.dense is not None for hit in hits)
        smaller = math.log(MEASURED_CHUNKS / min(max(corpus_size, SMALLEST_CHUNKS), MEASURED_CHUNKS))

        def weights_for(hit: Hit, text: str) -> Weights:
            if not has_cosines:
                return _BY_WORDS
            if self._across and language and language_of(text) not in ("", language):
                return self._across
            return self._quick if hit.deep is None else self._deep

        def relevance_of(hit: Hit) -> float:
            text = _text(hit)
            if query_codes and query_codes & codes(text):
                return NAMED_LOG_ODDS
            weights, figures = weights_for(hit, text), features(query, hit, corpus_size, earlier)
            weighed: float = sum(getattr(weights, name) * value for name, value in figures.items())
            return weights.constant + weighed + weights.size * smaller

        return [relevance_of(hit) for hit in hits]

    def shown(self, query: str, hits: Sequence[Hit], relevances: Sequence[float]) -> list[Hit]:
        """Return those of *hits* that a prompt may show, in their order: those that are relevant enough, and those that
        have every word of *query*."""
        wanted = question_terms(query)
        return [
            hit
            for hit, relevance in zip(hits, relevances, strict=True)
            if relevance >= SHOWN_LOG_ODDS or covered(wanted, _text(hit)) == 1.0
        ]


def features(query: str, hit: Hit, corpus_size: int, earlier: Sequence[str] = ()) -> dict[str, float]:
    """Return the weighed figures, by the names of `Weights`.

    ``dense`` and ``deep`` are the cosines of the quick and the deeper vector (0 to 1), ``coverage`` the share of the
    question's terms that the passage has, and ``rarity`` its BM25 score in units of the rarest term that the corpus
    could have (mostly 0 to 4). After *earlier* turns ``conversation`` is 1, and ``earlier`` the largest share of the
    terms of one of them that the passage has: a follow-up leaves out what the passage must speak of, too.
    """
    text = _text(hit)
    return {
        "dense": max(hit.dense.score, 0.0) if hit.dense is not None else 0.0,
        "deep": max(hit.deep.score, 0.0) if hit.deep is not None else 0.0,
        "coverage": covered(question_terms(query), text),
        "rarity": hit.sparse.score / largest_idf(corpus_size) if hit.sparse is not None else 0.0,
        "earlier": max((covered(question_terms(turn), text) for turn in earlier), default=0.0),
        "conversation": float(bool(earlier)),
    }


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


def pair(model: str, deep: str | None = None) -> str:
    """Return the name of the table of a *model*, or of one with a *deep* model beside it."""
    return f"{model} + {deep}" if deep else model


_FITTED = {name: Weights(**table) for name, table in tomllib.loads(WEIGHTS_FILE.read_text(encoding="utf-8")).items()}
_BY_WORDS = _FITTED["words"]


def across_languages(model: str) -> str:
    """Return the name of the table of a *model* for passages in another language than the question."""
    return f"{model}, across languages"


def weights_of(model: str, deep: str | None = None) -> Weights:
    """Return the fitted weights for *model*, with *deep* beside it; those of words alone if nobody measured it."""
    return _FITTED.get(pair(model, deep), _BY_WORDS)


def relevance_for(model: str, deep: str | None = None) -> Relevance:
    """Return the judge of passages that were embedded with *model*, and with *deep* if that is given. By a model that
    nobody measured the words alone decide."""
    both = _FITTED.get(pair(model, deep)) if deep else None
    return Relevance(weights_of(model), both, _FITTED.get(across_languages(model)))


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
_HUMPS = re.compile(r"[a-z][A-Z][a-z]+[A-Z][a-z]")
_MOST_CHARACTERS = 64


def codes(text: str) -> frozenset[str]:
    """Return the codes of *text* in lower case.

    A code is a word, joined by ``-``, ``_``, ``.`` or ``#``, that begins with a letter and has two digits or an
    underscore, or that begins with three digits and ends in a letter or two, or that is put together of three words and
    more ("IngestQueueDeep"; with two it is mostly a brand, "JavaScript").
    """
    if not any(character.isdigit() or character == "_" for character in text) and not _HUMPS.search(text):
        return frozenset()
    words = (match[0] for match in _JOINED.finditer(text))
    return frozenset(word.casefold() for word in words if len(word) <= _MOST_CHARACTERS and _is_code(word))


def _is_code(word: str) -> bool:
    digits = sum(character.isdigit() for character in word)
    if word[0].isdigit():
        return digits >= LEAST_DIGITS_FIRST and _is_numbered(word)
    if "_" in word or _HUMPS.search(word):
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
