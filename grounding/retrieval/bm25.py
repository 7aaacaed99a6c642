"""BM25 as sparse vectors, computed here so that every index adapter ranks by the same numbers.

A text becomes terms (Unicode words, lower case, stemmed, without stop words), and each term an index of 32 bits; so
does each pair of terms that follow each other, for phrases. A document's value is BM25's saturated term frequency; a
query's value is how often the term occurs in it. Qdrant multiplies by the inverse document frequency when it searches
(``Modifier.IDF``), so that the product is BM25 (Robertson and Zaragoza, "The Probabilistic Relevance Framework", 2009).
"""

from __future__ import annotations

import hashlib
import re
import threading
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, pairwise

import snowballstemmer

from grounding.prompt_input import Recent

K1 = 1.2
B = 0.75
DOCUMENT_AVERAGE_TERMS = 120.0
"""The terms of an average chunk of 300 tokens, after stop words; the three measured document corpora had 100 to 200
(whole passages). Half or double moves nDCG by less than the noise."""
TURN_AVERAGE_TERMS = 60.0
"""The same for a chat turn. Turns have fewer (15 to 25 on average), but with more here short ones are preferred less,
which on long conversations is worth .02 of nDCG@10 and more."""
PAIR_BITS = 16
PAIR_INDICES = 1 << PAIR_BITS
"""All pairs share so many indices: nearly every pair is the only one of its kind, and a list for each would cost
several times what it holds. Chance collisions cost .001 of mean nDCG@10."""
PAIR_WEIGHT = 0.3
"""The weight in a question of two terms that follow each other, beside each of them: docs/decisions/07."""
KNUTH = 0x9E3779B1
"""2^32 / golden ratio, made odd (Knuth, The Art of Computer Programming 3, 6.4)."""

HEAD_TERMS = 15
HEAD_SHARE = 0.5
HEAD_COUNT = 2
"""The first terms of a chunk, at most so many and at most this share of it, count as if they occurred so many times
more: title and headings, or the beginning of a text, say what it is about (BM25F: Robertson, Zaragoza and Taylor,
"Simple BM25 extension to multiple weighted fields", CIKM 2004). Figures in docs/decisions/07."""

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?(?:_+[^\W_]+)*", re.UNICODE)
# Scripts written without spaces between words: overlapping pairs of characters stand in for words.
_UNSPACED = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]+"
)
_MAX_TERM_CHARACTERS = 64
_MOST_WORDS = 200_000

_FUNCTION_WORDS = """
    a about above after again against all am an and any are as at be because been before being below between both
    but by can could did do does doing down during each few for from further had has have having he her here hers
    herself him himself his how i if in into is it its itself just me more most my myself no nor not now of off on
    once only or other our ours ourselves out over own same she should so some such than that the their theirs them
    themselves then there these they this those through to too under until up very was we were what when where which
    while who whom why will with would you your yours yourself yourselves s t don ll re ve d m"""
STOP_WORDS = frozenset(_FUNCTION_WORDS.split())
"""English function words. Words of other languages are weighed down by their document frequency alone."""


@dataclass(frozen=True, slots=True)
class SparseVector:
    """Ascending 32-bit indices and their values, equally many."""

    indices: tuple[int, ...]
    values: tuple[float, ...]


# Words and terms


class _Stemmer(threading.local):
    """One for each thread: a stemmer holds the word at hand, and two threads would get each other's stems."""

    def __init__(self) -> None:
        self.stem: Callable[[str], str] = snowballstemmer.stemmer("english").stemWord


_stemmer = _Stemmer()
_term_sets: Recent[frozenset[str]] = Recent(1024)
"""Some 8 kB for each text of 120 terms."""


def terms(text: str) -> list[str]:
    """Return the terms of *text* in reading order, with repetitions."""
    words = _words(unicodedata.normalize("NFKC", text).lower())
    return [term for word in words if (term := _term(word[:_MAX_TERM_CHARACTERS]))]


def term_set(text: str) -> frozenset[str]:
    """Return the different terms of *text*. Those of the last texts are remembered by the texts' hashes: most passages
    that answer one question are found for the next one too."""
    return _term_sets.of(text, lambda text: frozenset(terms(text)))


def coverage(query: str, text: str) -> float:
    """Return the share (0 to 1) of the different terms of *query* that occur in *text*; 0 for a query without terms."""
    return covered(term_set(query), text)


def covered(wanted: frozenset[str], text: str) -> float:
    """Return the share (0 to 1) of the terms *wanted* that occur in *text*; 0 if there are none."""
    return len(wanted & term_set(text)) / len(wanted) if wanted else 0.0


def _words(text: str) -> Iterator[str]:
    for whole in _WORD.findall(text):
        word = whole.partition("'")[0].partition("’")[0]
        if not word.isascii() and _UNSPACED.search(word):
            yield from _unspaced_words(word)
            continue
        yield word
        if "_" in word:
            # `redis_url` is found by its whole name and by its words.
            yield from (part for part in word.split("_") if part)


def _unspaced_words(word: str) -> Iterator[str]:
    for run in _UNSPACED.findall(word):
        if len(run) == 1:
            yield run
        yield from (run[i : i + 2] for i in range(len(run) - 1))
    yield from (part for part in _UNSPACED.split(word) if part)


@lru_cache(_MOST_WORDS)
def _term(word: str) -> str:
    """Return the term of *word*; empty for a stop word."""
    return "" if word in STOP_WORDS else _stem(word)


def _stem(word: str) -> str:
    return str(_stemmer.stem(word)) if word.isascii() else word


# Indices and vectors


@lru_cache(_MOST_WORDS)
def term_index(term: str) -> int:
    """Return the 32-bit index of *term*: the first four bytes of its BLAKE2b digest, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(term.encode("utf-8", "surrogatepass"), digest_size=4).digest(), "big")


def pair_index(first: int, second: int) -> int:
    """Return the index, below `PAIR_INDICES`, of two terms that follow each other, from their own indices, by
    multiplicative hashing (`KNUTH`). The other order has another index."""
    mixed = ((first * KNUTH) & 0xFFFFFFFF) ^ second
    return ((mixed * KNUTH) & 0xFFFFFFFF) * PAIR_INDICES >> 32


def encode_document(text: str, average_terms: float = DOCUMENT_AVERAGE_TERMS) -> SparseVector:
    """Return BM25's term frequency part of *text*, for its terms and its pairs of terms, with k1 = 1.2 and b = 0.75.

    *average_terms* is the length to which texts are compared; it is a constant, because a true average
    would change every stored vector whenever a document arrives.
    """
    return _saturated(_indices(text), average_terms)


def encode_chunk(text: str) -> SparseVector:
    """Return `encode_document` of a chunk with its title and headings above it; its first terms count for more, see
    `HEAD_TERMS`."""
    indices = _indices(text)
    return _saturated(indices, DOCUMENT_AVERAGE_TERMS, indices[: min(HEAD_TERMS, int(len(indices) * HEAD_SHARE))])


def encode_query(text: str) -> SparseVector:
    """Return how often each term occurs in *text*, and `PAIR_WEIGHT` for each time that two follow each other."""
    indices = _indices(text)
    pairs = ((index, PAIR_WEIGHT * count) for index, count in _pairs(indices).items())
    return _vector(chain(((index, float(count)) for index, count in Counter(indices).items()), pairs))


def _indices(text: str) -> list[int]:
    return [term_index(term) for term in terms(text)]


def _pairs(indices: Sequence[int]) -> Counter[int]:
    return Counter([pair_index(first, second) for first, second in pairwise(indices)])


def _saturated(indices: Sequence[int], average_terms: float, head: Sequence[int] = ()) -> SparseVector:
    norm = K1 * (1 - B + B * len(indices) / average_terms)
    words = Counter(indices)
    words.update(dict.fromkeys(head, HEAD_COUNT))
    counts = chain(words.items(), _pairs(indices).items())
    return _vector((index, count * (K1 + 1) / (count + norm)) for index, count in counts)


def _vector(weights: Iterable[tuple[int, float]]) -> SparseVector:
    """Sum up *weights*: a term may have the index of a pair."""
    summed: dict[int, float] = {}
    for index, weight in weights:
        summed[index] = summed.get(index, 0.0) + weight
    indices = sorted(summed)
    return SparseVector(tuple(indices), tuple([summed[index] for index in indices]))
