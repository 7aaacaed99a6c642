"""Counting tokens and cutting text to a budget, with tiktoken's vocabulary taken from disk."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import regex
import tiktoken

# ---- recent ----
#
# What was worked out of the last texts, so that it need not be worked out again.


K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[V]):
    """Remembers what was found of at most *most* texts. Of a text its hash and length are kept, not its words: SipHash
    with a secret of the process, 64 bits, for a third of what a digest costs. Any thread may ask: at worst two of them
    find the same."""

    def __init__(self, most: int) -> None:
        # Two generations: what is used moves to the younger one; when that is full, the older one is let go.
        self._half = most // 2
        self._young: dict[tuple[int, int], V] = {}
        self._old: dict[tuple[int, int], V] = {}

    def lacking(self, texts: Iterable[str]) -> list[str]:
        """Those of *texts* of which nothing was found lately, in their order."""
        young, old, lacking = self._young, self._old, []
        for text in texts:
            name = hash(text), len(text)
            if name not in young and name not in old:
                lacking.append(text)
        return lacking

    def of(self, text: str, find: Callable[[str], V]) -> V:
        """What *find* gives for *text*. It must give the same for the same text, and not None."""
        name = hash(text), len(text)
        known = self._young.get(name)
        if known is None:
            known = self._old.get(name)
            if known is None:
                known = find(text)
            if len(self._young) >= self._half:
                self._old, self._young = self._young, {}
            self._young[name] = known
        return known

    def of_all(self, texts: Iterable[str], find: Callable[[str], V]) -> list[V]:
        """As `of`, of each of *texts* in their order, for less where most of them are known."""
        found: list[V] = []
        young = self._young
        for text in texts:
            known = young.get((hash(text), len(text)))
            if known is None:
                known = self.of(text, find)
                young = self._young
            found.append(known)
        return found


class RecentObjects(Generic[K, V]):
    """As `Recent`, of objects, each known by what it is and not by what it holds: for those that many questions share.
    At most *most* of them are kept from being forgotten."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[int, tuple[K, V]] = {}

    def of(self, thing: K, find: Callable[[K], V]) -> V:
        """What *find* gives for *thing*. It must give the same for the same object, which never changes."""
        known = self._known.get(id(thing))
        if known is None or known[0] is not thing:
            if len(self._known) >= self._most:
                self._known.clear()
            known = self._known[id(thing)] = thing, find(thing)
        return known[1]


# ---- tokens ----


ENCODING = "cl100k_base"
"""Counts a little higher than newer vocabularies, so that a budget kept here is kept there."""

ELLIPSIS = " …"

_LONGEST_TOKEN_CHARACTERS = 128
_REMEMBERED_TEXTS = 512
_EDGES = (
    regex.compile(r"\n\s*\n"),
    regex.compile(r"\n"),
    regex.compile(r"(?<=[.!?…])\s+|(?<=[。！？])"),
    regex.compile(r"\s+"),
)
_GRAPHEME = regex.compile(r"\X")
_LINE_END = re.compile(r"\n(?=[!-~\w])")
"""An end of a line at which the vocabulary always parts its words: what follows is no white space."""


class Tokens(Protocol):
    """A way to count tokens."""

    def count(self, text: str) -> int:
        """Number of tokens in *text*."""

    def fits(self, text: str, limit: int) -> bool:
        """Whether *text* has at most *limit* tokens; cheap also where it is far longer."""


class TiktokenTokens:
    """Counts by tiktoken. Special-token syntax in a text is counted as the plain text that it is."""

    def __init__(self, encoding: tiktoken.Encoding) -> None:
        self._encoding = encoding

    def count(self, text: str) -> int:
        return len(self._encoding.encode_ordinary(text))

    def fits(self, text: str, limit: int) -> bool:
        if len(text) <= limit and utf8_length(text) <= limit:
            return True  # a token has at least one byte
        if len(text) > limit * _LONGEST_TOKEN_CHARACTERS:
            return False
        return self.count(text) <= limit


class Remembered:
    """Counts each text once; for the length of one assembly, in which the same texts are counted again and again."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._counts: dict[str, int] = {}

    def count(self, text: str) -> int:
        known = self._counts.get(text)
        if known is None:
            known = self._counts[text] = self._tokens.count(text)
        return known

    def fits(self, text: str, limit: int) -> bool:
        if text in self._counts:
            return self._counts[text] <= limit
        if len(text) <= limit * 8:
            return (len(text) <= limit and utf8_length(text) <= limit) or self.count(text) <= limit
        return self._tokens.fits(text, limit)


class LineByLine:
    """Counts as *tokens* does, and each line only once in the life of a process: most lines of a prompt stood in the
    one before. The sum is exact, because no token reaches over the end of a line into a word of the next.

    Any thread may count.
    """

    def __init__(self, tokens: Tokens, remembered_lines: int = 16_384) -> None:
        self._tokens = tokens
        self._lines: Recent[int] = Recent(remembered_lines)
        self._texts: Recent[int] = Recent(_REMEMBERED_TEXTS)  # whole blocks, that of the directives before all

    def count(self, text: str) -> int:
        return self._texts.of(text, self._by_lines) if "\n" in text else self._lines.of(text, self._tokens.count)

    def _by_lines(self, text: str) -> int:
        *lines, last = _LINE_END.split(text)
        return sum(self._lines.of_all([*[line + "\n" for line in lines], last], self._tokens.count))

    def fits(self, text: str, limit: int) -> bool:
        if len(text) > limit * 8:  # perhaps too long to be counted at all
            return self._tokens.fits(text, limit)
        return (len(text) <= limit and utf8_length(text) <= limit) or self.count(text) <= limit


@cache
def load_tokens() -> TiktokenTokens:
    """The counter, read once per process (about 0.1 s: call it off the event loop)."""
    find_vocabularies()
    return TiktokenTokens(tiktoken.get_encoding(ENCODING))


def find_vocabularies() -> None:
    """Tell tiktoken where its files are: litellm ships them; its folder is found without importing it."""
    if "TIKTOKEN_CACHE_DIR" not in os.environ:
        spec = importlib.util.find_spec("litellm")
        if spec is not None and spec.submodule_search_locations:
            folder = Path(spec.submodule_search_locations[0]) / "litellm_core_utils" / "tokenizers"
            os.environ["TIKTOKEN_CACHE_DIR"] = str(folder)


def utf8_length(text: str) -> int:
    """Length of *text* in UTF-8 bytes."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def clip(text: str, tokens: Tokens, max_tokens: int, max_bytes: int | None = None) -> str:
    """The beginning of *text* within both limits, cut at a natural edge, with an ellipsis where cut.

    The edge is a paragraph, line, sentence or word, in this order, if one lies in the second half of
    what fits; else the cut is between two user-perceived characters. May be empty.
    """
    text = text.rstrip()
    if _fits(text, tokens, max_tokens, max_bytes):
        return text
    low, high = 0, min(len(text), max_tokens * _LONGEST_TOKEN_CHARACTERS, max_bytes or len(text))
    while low < high:  # the longest prefix that leaves room for the ellipsis
        middle = (low + high + 1) // 2
        if _fits(text[:middle] + ELLIPSIS, tokens, max_tokens, max_bytes):
            low = middle
        else:
            high = middle - 1
    while low > 0:
        cut = text[: _natural_edge(text, low)].rstrip()
        if not cut:
            return ""
        if _fits(cut + ELLIPSIS, tokens, max_tokens, max_bytes):
            return cut + ELLIPSIS
        low = len(cut) - 1  # token counts are not quite monotonic: step back
    return ""


def _fits(text: str, tokens: Tokens, max_tokens: int, max_bytes: int | None) -> bool:
    if max_bytes is not None and utf8_length(text) > max_bytes:
        return False
    return tokens.fits(text, max_tokens)


def _natural_edge(text: str, end: int) -> int:
    for edge in _EDGES:
        last = 0
        for match in edge.finditer(text, end // 2, end + 1):
            if match.start() <= end:
                last = match.start()
        if last > end // 2:
            return last
    return _character_edge(text, end)


def _character_edge(text: str, end: int) -> int:
    """The last boundary between user-perceived characters at or before *end*."""
    start = max(0, end - 64)
    boundary = start
    for match in _GRAPHEME.finditer(text, start):
        if match.end() > end:
            break
        boundary = match.end()
    return boundary if boundary > start or start == 0 else end
