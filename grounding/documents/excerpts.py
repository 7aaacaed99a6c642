"""Stretches of a text that fit, from one natural edge to another. Pure."""

from __future__ import annotations

import re
from bisect import bisect_left
from functools import cache

from grounding.documents.sparse import terms

_PARAGRAPH, _ITEM, _SENTENCE, _LINE, _SPACE = (
    re.compile(r"\n\s*\n"),
    re.compile(r"\n(?=[ \t]*(?:[-*+][ \t]|\d{1,9}[.)][ \t]|\||#))"),
    re.compile(r"[.!?…。！？][\"'”’)\]]*\s+|[。！？]"),
    re.compile(r"\n"),
    re.compile(r"\s+"),
)
"""Ends of paragraphs, of items and table rows, of sentences, of lines (anywhere, in wrapped prose), of words."""
_EDGES = (_PARAGRAPH, _ITEM, _SENTENCE, _LINE, _SPACE)
_WINDOWS = 64
"""How many beginnings are tried, so that one huge line of sentences costs no more than a page."""
_FENCE = re.compile(r"^[ \t]*(?:`{3,}|~{3,})", re.MULTILINE)
_BARE_HEADING = re.compile(r"(?:^|\n)(?:[ \t]*#{1,6}(?:[ \t][^\n]*)?|[^\n]*\n[=\-~^\"*+]{3,})[ \t]*$")
_TABLE_RULE = re.compile(r"[ \t]*\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-*:?[ \t]*)*")


def utf8(text: str) -> int:
    """Bytes of *text* in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def clip(text: str, query: str, max_bytes: int) -> str:
    """At most *max_bytes* bytes of *text*, from one natural edge to another: the window with most of *query*'s
    terms, the earliest where several are equal. Never cuts a character."""
    if utf8(text) <= max_bytes:
        return text
    wanted = frozenset(terms(query))
    starts = [0, *sorted({match.end() for match in _LINE.finditer(text)})]
    if len(starts) == 1:
        starts = [0, *sorted({match.end() for match in _SENTENCE.finditer(text)})]
    ends = [*starts[1:], len(text)]

    @cache
    def found_in(part: int) -> frozenset[str]:
        return wanted & frozenset(terms(text[starts[part] : min(ends[part], starts[part] + max_bytes)]))

    best, best_found = fit(text, max_bytes), -1
    for number in range(0, len(starts), max(len(starts) // _WINDOWS, 1)):
        start = starts[number]
        window = fit(text[start : start + max_bytes + 1], max_bytes)  # one more, so that it sees whether it ends
        last = bisect_left(starts, start + len(window), lo=number + 1)
        found = len(frozenset().union(*(found_in(part) for part in range(number, last))))
        if found > best_found:
            best, best_found = window, found
    return best.strip()


def fit(text: str, max_bytes: int) -> str:
    """The beginning of *text* that fits into *max_bytes*, up to the best edge in its last quarter."""
    if utf8(text) <= max_bytes:
        return text
    whole = text[:max_bytes].encode("utf-8", "surrogatepass")[: max(max_bytes, 0)].decode("utf-8", "ignore")
    for edge in _EDGES:
        ends = [match.start() if edge is not _SENTENCE else match.end() for match in edge.finditer(whole)]
        fitting = [end for end in ends if end >= len(whole) * 3 // 4]
        if fitting:
            return whole[: fitting[-1]].rstrip()
    return whole


def beginning(text: str, max_bytes: int) -> str:
    """As much of the beginning of *text* as fits, up to the end of a paragraph, an item or a sentence; empty where
    that says nothing: a heading alone, or code that was cut."""
    whole = text[:max_bytes].encode("utf-8", "surrogatepass")[: max(max_bytes, 0)].decode("utf-8", "ignore")
    ends = [
        match.end() if edge is _SENTENCE else match.start() for edge in _EDGES[:3] for match in edge.finditer(whole)
    ]
    cut = whole[: max(ends, default=0)]
    fences = list(_FENCE.finditer(cut))
    if len(fences) % 2:
        cut = cut[: fences[-1].start()]
    return without_bare_headings(cut)


def without_bare_headings(text: str) -> str:
    """*text* without headings at its end, under which nothing is left; empty where it was nothing else."""
    text = text.rstrip()
    while match := _BARE_HEADING.search(text, max(text.rfind("\n", 0, max(text.rfind("\n"), 0)), 0)):
        text = text[: match.start()].rstrip()
    return text


def table_head(text: str, start: int) -> str:
    """The first two lines of the table in whose rows the position *start* of *text* lies; else nothing."""
    if "|" not in text[start:].partition("\n")[0]:
        return ""
    above = text[:start].split("\n")[:-1]
    rows: list[str] = []
    for line in reversed(above):
        if "|" not in line:
            break
        rows.append(line)
    if len(rows) < 2 or not _TABLE_RULE.fullmatch(rows[-2]):
        return ""
    return f"{rows[-1]}\n{rows[-2]}\n"
