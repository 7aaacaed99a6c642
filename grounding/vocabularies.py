"""What a text takes at most of a model whose vocabulary is not ours.

Models take texts apart by vocabularies of their own; ours, cl100k_base, takes together what others do not: three
digits, rows of blanks, names of programming interfaces, Korean. For each of our tokens it was counted how many each of
four other vocabularies makes of its bytes, and the most of them is kept: SmolLM2's (the bundled model), Llama 2's (one
token for each byte that it does not know), Claude 2's and o200k_base. A text takes what its tokens take: a little less
where a vocabulary joins what ours parts, and hardly ever more.

Measured over 160 texts of sixty kinds (documentation, code of twelve languages, minified scripts, tables, keys, texts
of twenty-five languages, blanks, signs of all planes, and texts made of nothing but what each vocabulary is worst at):
of one of them a vocabulary takes more, by 2 %, for which there is `MARGIN`. Of English it is 1.25 times our tokens;
SmolLM2 takes 1.15 of it, Llama 2 1.18. Words in a row without blanks can be made to be taken apart elsewhere than each
by itself: of 12,000 of our tokens, each thirty times in a row, six take more than 1.93 times as much, the worst
(``objectsobjects…``) 2.78 times. A prompt made of nothing else may be more than a small window holds; most
providers refuse it, and whoever wrote is told that it is too long.
Made by ``python -m bench.vocabularies``.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

MARGIN = 1.03
JOINT = 1
"""Of a text: Llama 2 puts a blank in front of it."""
FILE = Path(__file__).with_name("vocabularies.zlib")


@cache
def most() -> bytes:
    """For each of our tokens how many tokens of another vocabulary it takes at most. Reads 22 KB."""
    return zlib.decompress(FILE.read_bytes())


def heaviest(tokens: Iterable[int]) -> int:
    """How many tokens of a model's own these of ours take together at most, as `most` has it."""
    return sum(map(most().__getitem__, tokens))


def with_margin(own: int) -> int:
    """What *own* tokens of a model, as `heaviest` has them, are reckoned with."""
    return math.ceil(own * MARGIN) + JOINT if own else 0
