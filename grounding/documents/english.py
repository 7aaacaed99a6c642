"""Whether a text is one that a model for English can read. Pure.

Such a model cuts words of other languages into pieces that mean nothing to it, and its vectors of them are near to each
other for no reason. English that is mostly names or code looks like that, too, but has the small words of English.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

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
_WORD = re.compile(r"[^\W\d_]+")


def is_english(text: str, pieces: Sequence[str]) -> bool:
    """Whether a model of English words can read *text*, of which *pieces* are what its WordPiece tokenizer makes:
    ``##…`` goes on with a word, ``[UNK]`` is none, and single characters of other scripts are no words of English."""
    if not pieces:
        return False
    strange = sum(piece.startswith("##") or piece == "[UNK]" or not piece.isascii() for piece in pieces) / len(pieces)
    if strange <= FEW_PIECES:
        return True
    words = _WORD.findall(text.lower())
    return strange <= MANY_PIECES and sum(word in _SMALL_WORDS for word in words) >= SMALL_WORDS * len(words)
