"""Count tokens, and cut text to a budget. The vocabulary of tiktoken is read from disk."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import regex
import tiktoken

V = TypeVar("V")

ENCODING = "cl100k_base"
"""Counts a little higher than newer vocabularies, so that a budget kept here is kept there."""

ELLIPSIS = " …"

_LONGEST_TOKEN_CHARACTERS = 128
_EDGES = (
    regex.compile(r"\n\s*\n"),
    regex.compile(r"\n"),
    regex.compile(r"(?<=[.!?…])\s+|(?<=[。！？])"),
    regex.compile(r"\s+"),
)
_GRAPHEME = regex.compile(r"\X")
_LINE_END = re.compile(r"\n(?=[!-~\w])")
"""A line end at which the vocabulary always splits, because no white space follows."""


class Recent(Generic[V]):
    """Caches the results for at most *most* texts.

    Of a text only its hash and length are stored, not its words: SipHash with a secret of the process, 64 bits, for a
    third of the time of a digest. Any thread may ask: at worst two of them compute the same.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[tuple[int, int], V] = {}

    def of(self, text: str, find: Callable[[str], V]) -> V:
        """Return ``find(text)``. *find* must return the same for the same text, and not None."""
        name = hash(text), len(text)
        found = self._known.get(name)
        if found is None:
            if len(self._known) >= self._most:
                self._known.clear()
            found = self._known[name] = find(text)
        return found


class Tokens(Protocol):
    """A way to count tokens."""

    def count(self, text: str) -> int:
        """Return the number of tokens in *text*."""

    def fits(self, text: str, limit: int) -> bool:
        """Say whether *text* has at most *limit* tokens; cheap even if it is far longer."""


class TiktokenTokens:
    """Counts by tiktoken. Special-token syntax in a text is counted as plain text."""

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


class LineByLine:
    """Counts as *tokens* does, and caches the count of each line: most lines of a prompt were in the one before.

    The sum is exact, because no token reaches over the end of a line into a word of the next. Any thread may count.
    """

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._lines: Recent[int] = Recent(16_384)
        self._texts: Recent[int] = Recent(512)  # whole blocks, above all that of the directives

    def count(self, text: str) -> int:
        return self._texts.of(text, self._by_lines) if "\n" in text else self._lines.of(text, self._tokens.count)

    def fits(self, text: str, limit: int) -> bool:
        if len(text) > limit * 8:  # perhaps too long to be counted at all
            return self._tokens.fits(text, limit)
        return (len(text) <= limit and utf8_length(text) <= limit) or self.count(text) <= limit

    def _by_lines(self, text: str) -> int:
        *lines, last = _LINE_END.split(text)
        count = self._tokens.count
        return sum(self._lines.of(line + "\n", count) for line in lines) + self._lines.of(last, count)


@cache
def load_tokens() -> TiktokenTokens:
    """Return the counter, read once per process (about 0.1 s: call it off the event loop)."""
    _find_vocabularies()
    return TiktokenTokens(tiktoken.get_encoding(ENCODING))


def _find_vocabularies() -> None:
    """Tell tiktoken where its files are: litellm ships them; its folder is found without importing it."""
    if "TIKTOKEN_CACHE_DIR" not in os.environ:
        spec = importlib.util.find_spec("litellm")
        if spec is not None and spec.submodule_search_locations:
            folder = Path(spec.submodule_search_locations[0]) / "litellm_core_utils" / "tokenizers"
            os.environ["TIKTOKEN_CACHE_DIR"] = str(folder)


def utf8_length(text: str) -> int:
    """Return the length of *text* in UTF-8 bytes."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def clip(text: str, tokens: Tokens, max_tokens: int, max_bytes: int | None = None) -> str:
    """Return the beginning of *text* within both limits, cut at a natural edge, with an ellipsis if it was cut.

    The edge is a paragraph, line, sentence or word, in this order, if one lies in the second half of what fits; else
    the cut is between two user-perceived characters. May be empty.
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
    """Return the last boundary between user-perceived characters at or before *end*."""
    start = max(0, end - 64)
    boundary = start
    for match in _GRAPHEME.finditer(text, start):
        if match.end() > end:
            break
        boundary = match.end()
    return boundary if boundary > start or start == 0 else end
