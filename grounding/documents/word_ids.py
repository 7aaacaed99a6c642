"""The tokens of a text, of which each word is asked for once.

For vocabularies in which no token reaches over a blank into the word before, or over the end of a line, such as Llama
2's: a word with the blanks before it has the same tokens wherever it stands. Most words of a chunk stood in the chunks
before.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import Any

_MOST_WORDS = 16_384
"""That are remembered: English words take 4 MB."""
_LONGEST_WORD = 64
_WORD = re.compile(r" +[^ \n]*|[^ \n]+|\n")


class WordIds(dict[str, tuple[int, ...]]):
    """Of words with the blanks before them their tokens. Any thread may ask: at worst two of them find the same."""

    def __init__(self, tokenizer: Any) -> None:
        """*tokenizer* is one of ``tokenizers`` that puts a blank before a text, and itself adds nothing else."""
        super().__init__()
        self._tokenizer = tokenizer
        self._blank: int = tokenizer.token_to_id("▁")
        self._marks = ("▁", *(str(token.content) for token in tokenizer.get_added_tokens_decoder().values()))

    def of(self, text: str) -> list[int]:
        """What the tokenizer gives for *text*."""
        if not text or any(mark in text for mark in self._marks):  # which it reads as blanks, or puts some beside
            return self._encoded(text)
        return list(chain.from_iterable([self[word] for word in _WORD.findall(f" {text}")]))

    def __missing__(self, word: str) -> tuple[int, ...]:
        ids: tuple[int, ...]
        if word == " ":  # where a line or a text ends
            ids = (self._blank,)
        elif word.startswith(" "):  # the first of its blanks is the tokenizer's
            ids = tuple(self._encoded(word[1:]))
        else:  # those of the tokenizer's blank and of the end of a line are left out
            ids = tuple(self._encoded(f"\n{word}")[2:])
        if len(word) <= _LONGEST_WORD:
            if len(self) >= _MOST_WORDS:
                self.clear()
            self[word] = ids
        return ids

    def _encoded(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids
