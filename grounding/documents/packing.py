"""From hits to passages that are worth their place in a prompt. Pure.

Near duplicates go, several hits of one document that touch become one passage in reading order, each grows
by its neighbours while its bytes last, and what is still too long is cut at a natural edge.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from grounding.documents.index import Hit, Passage
from grounding.documents.sparse import term_set, terms

NEAR_DUPLICATE = 0.85
"""Jaccard similarity of two passages' terms from which the lower one says nothing new."""

_EDGES = (re.compile(r"\n\s*\n"), re.compile(r"\n"), re.compile(r"[.!?…。！？][\"'”’)\]]*\s+"), re.compile(r"\s+"))


@dataclass(frozen=True, slots=True)
class Retrieved:
    """A passage for the prompt: one stretch of one document. ``score`` is the best fused one in it."""

    source: str
    heading: str
    text: str
    score: float
    first_line: int
    last_line: int
    chunk_ids: tuple[str, ...]


@dataclass(slots=True)
class Run:
    """Touching passages of one source in reading order, on their way into a prompt."""

    parts: list[Passage]
    score: float
    heading: str
    chunk_ids: list[str]

    @property
    def source(self) -> str:
        return self.parts[0].source

    @property
    def ordinals(self) -> range:
        return range(self.parts[0].ordinal, self.parts[-1].ordinal + 1)


def drop_near_duplicates(hits: Sequence[Hit]) -> list[Hit]:
    """*hits* without those that say what a better one says already."""
    kept: list[tuple[Hit, frozenset[str]]] = []
    for hit in hits:
        words = term_set(hit.passage.text)
        if not any(_jaccard(words, other) >= NEAR_DUPLICATE for _, other in kept):
            kept.append((hit, words))
    return [hit for hit, _ in kept]


def _jaccard(left: frozenset[str], right: frozenset[str]) -> float:
    union = len(left | right)
    return len(left & right) / union if union else 1.0


def group_runs(hits: Sequence[Hit]) -> list[Run]:
    """*hits* as runs: hits of one source whose ordinals touch belong together. Best run first."""
    runs: list[Run] = []
    for hit in sorted(hits, key=lambda item: (item.passage.source, item.passage.ordinal)):
        last = runs[-1] if runs else None
        if last and last.source == hit.passage.source and hit.passage.ordinal <= last.ordinals.stop:
            if hit.passage.ordinal == last.ordinals.stop:
                last.parts.append(hit.passage)
            last.chunk_ids.append(hit.passage.id)
            if hit.score > last.score:
                last.score, last.heading = hit.score, hit.passage.heading
        else:
            runs.append(Run([hit.passage], hit.score, hit.passage.heading, [hit.passage.id]))
    return sorted(runs, key=lambda run: (-run.score, run.source, run.parts[0].ordinal))


def neighbours_wanted(run: Run) -> tuple[int, ...]:
    """Ordinals beside *run*: the one before and the two after it."""
    first, last = run.ordinals.start, run.ordinals.stop - 1
    return tuple(ordinal for ordinal in (first - 1, last + 1, last + 2) if ordinal >= 0)


def grow(run: Run, neighbours: Mapping[int, Passage], max_bytes: int, taken: Iterable[int] = ()) -> None:
    """Add to *run* what follows it, then what comes before, as long as *max_bytes* hold. Ordinals that are
    *taken* belong to another run of the same source."""
    blocked = set(taken)
    first, last = run.ordinals.start, run.ordinals.stop - 1
    for ordinal, in_front in ((last + 1, False), (first - 1, True), (last + 2, False)):
        neighbour = neighbours.get(ordinal)
        touches = ordinal in (run.ordinals.start - 1, run.ordinals.stop)
        if neighbour is None or ordinal in blocked or not touches:
            continue
        parts = [neighbour, *run.parts] if in_front else [*run.parts, neighbour]
        if len(join(parts).encode()) <= max_bytes:
            run.parts = parts


def join(parts: Sequence[Passage]) -> str:
    """The text of touching passages, overlaps once. What lay between two chunks was white space."""
    first = parts[0]
    text, end = first.lead + first.text, first.end
    for part in parts[1:]:
        text += part.text[end - part.start :] if part.start < end else "\n" * _blank_lines(end, part) + part.text
        end = max(end, part.end)
    return text


def _blank_lines(end: int, part: Passage) -> int:
    return 1 if part.start - end <= 1 else 2


def finish(run: Run, query: str, max_bytes: int) -> Retrieved:
    """*run* as a passage of at most *max_bytes* bytes of UTF-8; too long a text keeps the stretch that has
    most of the question's terms."""
    text = join(run.parts)
    return Retrieved(
        source=run.source,
        heading=run.heading,
        text=clip(text, query, max_bytes),
        score=run.score,
        first_line=run.parts[0].first_line,
        last_line=run.parts[-1].last_line,
        chunk_ids=tuple(run.chunk_ids),
    )


def clip(text: str, query: str, max_bytes: int) -> str:
    """At most *max_bytes* bytes of *text*, from one natural edge to another: the window with most of *query*'s
    terms, the earliest where several are equal. Never cuts a character."""
    if len(text.encode("utf-8", "surrogatepass")) <= max_bytes:
        return text
    wanted = frozenset(terms(query))
    starts = [0, *sorted({match.end() for match in _EDGES[1].finditer(text)})]
    if len(starts) == 1:
        starts = [0, *sorted({match.end() for match in _EDGES[2].finditer(text)})]
    best, best_found = _fit(text, max_bytes), -1
    # At most 64 windows are tried, so that one huge line of sentences costs no more than a page.
    for start in starts[:: max(len(starts) // 64, 1)]:
        window = _fit(text[start : start + max_bytes], max_bytes)
        found = len(wanted & frozenset(terms(window)))
        if found > best_found:
            best, best_found = window, found
    return best.strip()


def _fit(text: str, max_bytes: int) -> str:
    """The beginning of *text* that fits, up to the best edge in its last quarter."""
    raw = text.encode("utf-8", "surrogatepass")
    if len(raw) <= max_bytes:
        return text
    whole = raw[:max_bytes].decode("utf-8", "ignore")
    for edge in _EDGES:
        ends = [match.start() if edge is not _EDGES[2] else match.end() for match in edge.finditer(whole)]
        fitting = [end for end in ends if end >= len(whole) * 3 // 4]
        if fitting:
            return whole[: fitting[-1]].rstrip()
    return whole
