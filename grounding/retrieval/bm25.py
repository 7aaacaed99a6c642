"""BM25 as sparse vectors, computed here so that every index adapter ranks by the same numbers.

A text becomes terms (Unicode words, lower case, stemmed, without stop words), and each term an index of 32
bits; so does each pair of terms that follow each other, for phrases. A document's value is BM25's saturated
term frequency; a query's value is how often the term occurs in it. The inverse document frequency is applied
by Qdrant at query time (``Modifier.IDF``), so that the product is BM25 (Robertson and Zaragoza, "The
Probabilistic Relevance Framework", 2009).
"""

from __future__ import annotations

import hashlib
import re
import threading
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import snowballstemmer

from grounding.prompt_input import Recent

K1 = 1.2
B = 0.75
DOCUMENT_AVERAGE_TERMS = 120.0
"""Terms of an average chunk of 300 tokens, after stop words; the three document corpora measured had 100 to 200
(whole passages). Half or double moves nDCG by less than the noise."""
TURN_AVERAGE_TERMS = 60.0
"""Of a chat turn. They have fewer (15 to 25 on average); with more here short ones are not preferred that much, which
on long conversations is worth .02 of nDCG@10 and more."""
_PAIR_BITS = 16
PAIR_INDICES = 1 << _PAIR_BITS
"""So many indices are shared by all pairs: nearly every pair is the only one of its kind, and a list for each would
cost several times what it holds. What is met by chance costs .001 of mean nDCG@10."""
PAIR_WEIGHT = 0.3
"""What two terms that follow each other count in a question, beside each of them: docs/decisions/07."""

_KNUTH = 0x9E3779B1
"""2^32 / golden ratio, made odd (Knuth, The Art of Computer Programming 3, 6.4)."""

HEAD_TERMS = 15
HEAD_SHARE = 0.5
HEAD_COUNT = 2
"""The first terms of a chunk, at most so many and at most this share of it, count as if they occurred so many times
more: title and headings, or what a text begins with, say what it is about (BM25F: Robertson, Zaragoza and Taylor,
"Simple BM25 extension to multiple weighted fields", CIKM 2004). Figures in docs/decisions/07."""

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?(?:_+[^\W_]+)*", re.UNICODE)
# Scripts written without spaces between words: overlapping pairs of characters stand in for words.
_UNSPACED = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]+"
)
# The same in a text without underscores; the second where words have apostrophes.
_PLAIN_WORD = re.compile(r"[^\W_]+", re.UNICODE)
_SHORTENED_WORD = re.compile(r"([^\W_]+)(?:['’][^\W_]+)?", re.UNICODE)
_MAX_TERM_CHARACTERS = 64
_MOST_WORDS = 200_000
_MANY_TERMS = 16
"""From so many on a vector is made with numpy, to the last bit the same: for 117 terms in a third of the time, while of
few it would take longer."""

_FUNCTION_WORDS = """
    a about above after again against all am an and any are as at be because been before being below between both
    but by can could did do does doing down during each few for from further had has have having he her here hers
    herself him himself his how i if in into is it its itself just me more most my myself no nor not now of off on
    once only or other our ours ourselves out over own same she should so some such than that the their theirs them
    themselves then there these they this those through to too under until up very was we were what when where which
    while who whom why will with would you your yours yourself yourselves s t don ll re ve d m"""
STOP_WORDS = frozenset(_FUNCTION_WORDS.split())
"""English function words. Words of other languages are weighed down by their document frequency alone."""

_term_sets: Recent[frozenset[str]] = Recent(1024)
"""Some 8 kB for each text of 120 terms."""
_queries: Recent[SparseVector] = Recent(64)


class _Stemmer(threading.local):
    """One for each thread: it keeps the word at hand in itself, and two threads would get each other's stems."""

    def __init__(self) -> None:
        self.stem: Callable[[str], str] = snowballstemmer.stemmer("english").stemWord


_stemmer = _Stemmer()


@dataclass(frozen=True, slots=True)
class SparseVector:
    """Ascending 32-bit indices and their values, equally many."""

    indices: tuple[int, ...]
    values: tuple[float, ...]


def _stem(word: str) -> str:
    # The stemmer leaves a number as it is, after looking for the endings of words at it.
    return str(_stemmer.stem(word)) if word.isascii() and not word.isdigit() else word


class _Terms(dict[str, str]):
    """Of words their terms, empty of stop words. Any thread may ask: at worst two of them find the same."""

    def __missing__(self, word: str) -> str:
        if len(word) > _MAX_TERM_CHARACTERS:
            return self[word[:_MAX_TERM_CHARACTERS]]
        if len(self) >= _MOST_WORDS:
            self.clear()
        self[word] = term = "" if word in STOP_WORDS else _stem(word)
        return term


class _TermIndices(dict[str, int]):
    """Of words the indices of their terms, less than 0 of stop words. Any thread may ask, as above."""

    def __missing__(self, word: str) -> int:
        if len(word) > _MAX_TERM_CHARACTERS:
            return self[word[:_MAX_TERM_CHARACTERS]]
        if len(self) >= _MOST_WORDS:
            self.clear()
        term = _terms[word]
        self[word] = index = term_index(term) if term else -1
        return index


_terms, _term_indices = _Terms(), _TermIndices()


def term_index(term: str) -> int:
    """The 32-bit index of *term*: the first four bytes of its BLAKE2b digest, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(term.encode("utf-8", "surrogatepass"), digest_size=4).digest(), "big")


def _words(text: str) -> list[str]:
    if "_" not in text and (text.isascii() or not _UNSPACED.search(text)):  # nearly every text
        return (_SHORTENED_WORD if "'" in text or "’" in text else _PLAIN_WORD).findall(text)
    return list(_any_words(text))


def _any_words(text: str) -> Iterator[str]:
    for whole in _WORD.findall(text):
        word = whole.partition("'")[0].partition("’")[0] if "'" in whole or "’" in whole else whole
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


def terms(text: str) -> list[str]:
    """The terms of *text* in reading order, with repetitions."""
    return [term for term in map(_terms.__getitem__, _words(_folded(text))) if term]


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).lower()


def pair_index(first: int, second: int) -> int:
    """The index, below `PAIR_INDICES`, of two terms that follow each other, of their own indices; the other way round
    it is another.

    By multiplicative hashing: see `_KNUTH`.
    """
    mixed = ((first * _KNUTH) & 0xFFFFFFFF) ^ second
    return ((mixed * _KNUTH) & 0xFFFFFFFF) * PAIR_INDICES >> 32


def _indices(text: str) -> list[int]:
    return [index for index in map(_term_indices.__getitem__, _words(_folded(text))) if index >= 0]


def _pairs(indices: Sequence[int]) -> Counter[int]:
    """How often two terms follow each other."""
    # `pair_index`, written out: a call for each pair would take twice as long as all the rest.
    return Counter(
        [
            ((((first * _KNUTH) & 0xFFFFFFFF) ^ second) * _KNUTH & 0xFFFFFFFF) * PAIR_INDICES >> 32
            for first, second in pairwise(indices)
        ]
    )


def _vector(weights: Iterable[tuple[int, float]]) -> SparseVector:
    summed: dict[int, float] = {}
    for index, weight in weights:
        summed[index] = summed.get(index, 0.0) + weight
    indices = sorted(summed)
    return SparseVector(tuple(indices), tuple([summed[index] for index in indices]))


def encode_document(text: str, average_terms: float = DOCUMENT_AVERAGE_TERMS) -> SparseVector:
    """BM25's term frequency part for *text*, of its terms and of its pairs of terms, with k1 = 1.2 and b = 0.75.

    *average_terms* is the length to which texts are compared; it is a constant, because a true average
    would change every stored vector whenever a document arrives.
    """
    return _saturated(_indices(text), average_terms, ())


def encode_chunk(text: str) -> SparseVector:
    """`encode_document` of a chunk with what stands above it: its first terms, see `HEAD_TERMS`, count for more."""
    indices = _indices(text)
    return _saturated(indices, DOCUMENT_AVERAGE_TERMS, indices[: min(HEAD_TERMS, int(len(indices) * HEAD_SHARE))])


def _saturated(indices: Sequence[int], average_terms: float, head: Sequence[int]) -> SparseVector:
    norm = K1 * (1 - B + B * len(indices) / average_terms)
    # A term may have the index of a pair, and the weights of both are added.
    if len(indices) < _MANY_TERMS or min(indices) < PAIR_INDICES:
        words = Counter(indices)
        words.update(dict.fromkeys(head, HEAD_COUNT))
        counts = chain(words.items(), _pairs(indices).items())
        return _vector([(index, count * (K1 + 1) / (count + norm)) for index, count in counts])
    import numpy as np

    length = len(indices)
    both = np.empty(2 * length - 1, dtype=np.uint32)
    both[:length] = indices
    words_of, pairs_of, factor = both[:length], both[length:], np.uint32(_KNUTH)
    np.multiply(words_of[:-1], factor, out=pairs_of)  # `pair_index` of all
    pairs_of ^= words_of[1:]
    pairs_of *= factor
    pairs_of >>= np.uint32(32 - _PAIR_BITS)
    first_terms = np.unique(words_of[: len(head)])
    both.sort()
    edges = np.empty(2 * length, dtype=np.bool_)
    edges[0] = edges[-1] = True
    np.not_equal(both[1:], both[:-1], out=edges[1:-1])
    at = edges.nonzero()[0]
    found, times = both[at[:-1]], at[1:] - at[:-1]
    times[found.searchsorted(first_terms)] += HEAD_COUNT
    weights = times * (K1 + 1) / (times + norm)
    return SparseVector(tuple(found.tolist()), tuple(weights.tolist()))


def encode_query(text: str) -> SparseVector:
    """How often each term occurs in *text*, and `PAIR_WEIGHT` for each time that two follow each other. Those of the
    last texts are remembered: a turn asks several searches the same."""
    return _queries.of(text, _encode_query)


def _encode_query(text: str) -> SparseVector:
    indices = _indices(text)
    weighted = ((index, PAIR_WEIGHT * count) for index, count in _pairs(indices).items())
    return _vector(chain(((index, float(count)) for index, count in Counter(indices).items()), weighted))


def term_set(text: str) -> frozenset[str]:
    """The different terms of *text*. Those of the last texts are remembered, by the texts' hashes: what is found
    for one question is mostly found for the next one, too."""
    return _term_sets.of(text, _term_set)


def _term_set(text: str) -> frozenset[str]:
    return frozenset(terms(text))


def coverage(query: str, text: str) -> float:
    """The share (0 to 1) of the different terms of *query* that occur in *text*; 0 for a query without terms."""
    return covered(term_set(query), text)


def covered(wanted: frozenset[str], text: str) -> float:
    """The share (0 to 1) of the terms *wanted* that occur in *text*; 0 where there are none."""
    return len(wanted & term_set(text)) / len(wanted) if wanted else 0.0


# ---- english ----
#
# Whether a text is one that a model for English can read. Pure.
#
# Such a model cuts words of other languages into pieces that mean nothing to it, and its vectors of them are near to
# each
# other for no reason. English that is mostly names or code looks like that, too, but has the small words of English.


FEW_PIECES = 0.15
MANY_PIECES = 0.4
SMALL_WORDS = 0.08
"""Up to the first share of pieces that are no English words a text is English, up to the second where it has at least
that share of `_SMALL_WORDS`. So are 96 to 100 % of the chunks and questions of four English collections; of messages of
a program in 23 other languages, eight together, none, of single ones of five words and more 3 %."""

_WORDS = """
    of
    about above after again against and any are aren because been before being below between both but by can could did
    does doing down during each few for from further having here hers herself himself how if into is it its itself just
    more myself nor not now off once only or other our ours out own same she should some such than that the their theirs
    them themselves then there these they this those through to too until up very was were what when where which while
    who whom why will with would you your yours"""
_SMALL_WORDS = frozenset(_WORDS.split())
"""Function words of English, most of which no other language writes so."""
_ENGLISH_WORD = re.compile(r"[^\W\d_]+")


def is_english(text: str, pieces: Sequence[str]) -> bool:
    """Whether a model of English words can read *text*, of which *pieces* are what its WordPiece tokenizer makes:
    ``##…`` goes on with a word, ``[UNK]`` is none, and single characters of other scripts are no words of English."""
    if not pieces:
        return False
    strange = sum(piece.startswith("##") or piece == "[UNK]" or not piece.isascii() for piece in pieces) / len(pieces)
    if strange <= FEW_PIECES:
        return True
    words = _ENGLISH_WORD.findall(text.lower())
    return strange <= MANY_PIECES and sum(word in _SMALL_WORDS for word in words) >= SMALL_WORDS * len(words)


# ---- codes ----
#
# Codes in a text: part numbers, error codes, tickets, names of variables. Pure.
#
# A code says nothing by its meaning, so that no cosine finds it; but whoever writes one means exactly that. What begins
# with a digit is mostly a time, an amount or an ordinal ("10am", "500mb", "2nd", "24-hour"), and a word with a small
# number mostly a word of its own ("covid-19", "windows 11", "base64"): these count as none.


LEAST_DIGITS = 2
"""With one it is mostly a word of its own ("mp3", "B2B", "S3")."""
LEAST_DIGITS_FIRST = 3
"""Of what begins with a digit and goes on with a letter or two: "4711-A"."""
_JOINED = re.compile(r"(?<![\w.-])[^\W_]+(?:[-_.#][^\W_]+)*(?![\w-])")
_JOINT = re.compile(r"[-_.#]")
_WORD_AND_NUMBER = re.compile(r"[^\W\d_]{3,}[-.]?\d{1,2}")
_TICKET = re.compile(r"[A-Z]{3,4}-\d{1,2}")
"""In capitals, so that it is no word: "INC-12"."""
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_MOST_CHARACTERS = 64
_found: Recent[frozenset[str]] = Recent(512)


def codes(text: str) -> frozenset[str]:
    """The codes of *text* in lower case: words, joined by ``-``, ``_``, ``.`` or ``#``, that begin with a letter and
    have two digits, or an underscore; and such that begin with three digits and end in a letter or two. Those of the
    last texts are remembered: a question is compared with each passage, and a passage with each question."""
    return _found.of(text, _codes)


def _codes(text: str) -> frozenset[str]:
    if not any(character.isdigit() or character == "_" for character in text):
        return frozenset()
    found = (match[0] for match in _JOINED.finditer(text))
    return frozenset(one.casefold() for one in found if len(one) <= _MOST_CHARACTERS and _is_code(one))


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
    """Whether *word*, which begins with a digit, is a number with letters: not "1990s", "500-mb" or a day."""
    first, *rest = _JOINT.split(word)
    letters = "".join(character for character in "".join(rest) if not character.isdigit())
    if not first.isdigit() or not 1 <= len(letters) <= 2 or _DAY.match(word):
        return False
    return letters.isupper() or (len(letters) == 1 and len(first) > LEAST_DIGITS_FIRST)
