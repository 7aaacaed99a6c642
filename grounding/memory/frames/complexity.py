"""Estimate the demands of a message from its form alone. Pure.

complexity = .35 length + .25 clauses + .20 questions + .20 particulars, each part between 0 and 1:

- length: words / `LONG_WORDS`;
- clauses: commas, semicolons, colons, line ends and joining words / `MANY_CLAUSES`;
- questions: question marks beyond the first / `MANY_QUESTIONS`;
- particulars: numbers, capitalised names inside sentences, code and quotes / `MANY_PARTICULARS`.

The flexible budgets are multiplied by `SMALLEST` + (`LARGEST` - `SMALLEST`) · complexity: .5 for "who?", 1.0 for a
message of some 40 words with a few clauses, 1.5 for a page. The weights are our choice. Only the message decides, and a
further word never makes a budget smaller.
"""

from __future__ import annotations

import re

LONG_WORDS = 120
MANY_CLAUSES = 10
MANY_QUESTIONS = 3
MANY_PARTICULARS = 8
SMALLEST, LARGEST = 0.5, 1.5
CONSIDERED_CHARACTERS = 20_000

_WORD = re.compile(r"[^\W_]+")
_CLAUSE = re.compile(
    r"[,;:\n、，；]|\b(?:and|or|but|because|if|when|while|although|unless|und|oder|aber|weil|wenn|falls|obwohl"
    r"|et|ou|mais|parce|si|quand|y|o|pero|porque|cuando|aunque)\b",
    re.IGNORECASE,
)
_QUESTION = re.compile(r"[?？؟]")
_PARTICULAR = re.compile(r"\d+(?:[.,:]\d+)*|(?<=[a-z,;] )[A-Z]\w+|`[^`\n]+`|\"[^\"\n]+\"|“[^”\n]+”")


def complexity(text: str) -> float:
    """Return the complexity, 0 to 1."""
    text = text[:CONSIDERED_CHARACTERS]
    return (
        0.35 * _part(_count(_WORD, text), LONG_WORDS)
        + 0.25 * _part(_count(_CLAUSE, text), MANY_CLAUSES)
        + 0.20 * _part(_count(_QUESTION, text) - 1, MANY_QUESTIONS)
        + 0.20 * _part(_count(_PARTICULAR, text), MANY_PARTICULARS)
    )


def scale(text: str) -> float:
    """Return the factor on the flexible budgets."""
    return SMALLEST + (LARGEST - SMALLEST) * complexity(text)


def _count(pattern: re.Pattern[str], text: str) -> int:
    return sum(1 for _ in pattern.finditer(text))


def _part(count: int, many: int) -> float:
    return min(max(count, 0) / many, 1.0)
