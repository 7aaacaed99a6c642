"""Split what was said into sentences of one line each, without code, quotes and list marks. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

MAX_MESSAGE_CHARACTERS = 2000
"""How much of a person's message is read; longer ones are pasted."""
MAX_ITEM_CHARACTERS = 190

_CODE = re.compile(r"(```|~~~).*?(?:\1|\Z)", re.DOTALL)
_MARK = re.compile(r"^\s*(?:[-*+•]\s+(?:\[[ xX]\]\s+)?|\d{1,3}[.)]\s+|#{1,6}\s+)")
_END = re.compile(r"[.!?…]+[\"'”’)\]*_]*(?=\s)|[。！？]+[」』]?")
_ABBREVIATED = re.compile(
    r"(?:^|[\s(])(?:[A-Za-z]|dr|mr|mrs|ms|prof|st|no|nr|vs|ca|approx|etc|e\.g|i\.e|z\.B|bzw|usw|apt|str|fig|ext|"
    r"jan|feb|mar|apr|jun|jul|aug|sep|sept|oct|nov|dec)\.$",
    re.IGNORECASE,
)
_DAY = re.compile(r"(?:^|\s)\d{1,2}\.$")
_MONTH = re.compile(r"\s+(?:jan|feb|mär|mrz|apr|mai|jun|jul|aug|sep|okt|nov|dez)\w*\b", re.IGNORECASE)
_ASKS = re.compile(r"[?？؟]+[\"'”’)\]*_\s]*$")


def sentences(text: str, most: int = MAX_ITEM_CHARACTERS) -> list[str]:
    """Return the sentences of *text*, each on one line and cut to *most* characters.

    Each list item is a sentence of its own. Fenced code and quoting lines (``>``) are left out. A period in a number, a
    name or an abbreviation ends no sentence.
    """
    found: list[str] = []
    for line in _spoken_lines(text):
        start = 0
        for end in _END.finditer(line):
            if _continues(line[start : end.end()], line[end.end() :]):
                continue
            found.append(line[start : end.end()])
            start = end.end()
        found.append(line[start:])
    return [folded for one in found if len(folded := short_line(one, most)) > 2]


def paragraphs(text: str) -> list[str]:
    """Return the `sentences` of *text*, with lists joined to the sentence that announces them: "Please buy: milk;
    bread"."""
    whole = _CODE.sub("\n", text)
    joined: list[str] = []
    for line in whole.splitlines():
        if joined and joined[-1].rstrip().endswith((":", "：", ";")) and _MARK.match(line):
            joined[-1] = f"{joined[-1].rstrip().rstrip(';')}{'' if joined[-1].rstrip().endswith((':', '：')) else ';'} "
            joined[-1] += _MARK.sub("", line).strip().rstrip(".;") + ";"
        else:
            joined.append(line)
    return sentences("\n".join(line.removesuffix(";") for line in joined))


def is_question(sentence: str) -> bool:
    """Say whether *sentence* ends with a question mark."""
    return bool(_ASKS.search(sentence))


def _continues(before: str, after: str) -> bool:
    """Say whether the period at the end of *before* belongs to an abbreviation or a day ("3. Dezember")."""
    return bool(_ABBREVIATED.search(before) or (_DAY.search(before) and _MONTH.match(after)))


def short_line(text: str, most: int = MAX_ITEM_CHARACTERS) -> str:
    """Return *text* without line breaks, cut to *most* characters."""
    folded = " ".join(text.split())
    return folded if len(folded) <= most else folded[: most - 1].rstrip() + "…"


def newest(lines: Iterable[str], limit: int) -> list[str]:
    """Return the last *limit* different lines, oldest first."""
    unique: dict[str, None] = {}
    for line in lines:
        if line:
            unique.pop(line, None)
            unique[line] = None
    return list(unique)[-limit:] if limit > 0 else []


def _spoken_lines(text: str) -> list[str]:
    lines = _CODE.sub("\n", text).splitlines()
    return [_MARK.sub("", line) for line in lines if not line.lstrip().startswith((">", "|"))]
