"""From hits to passages for a prompt. Pure.

`choose` drops near duplicates and joins hits of one document that lie close together into a run. `pack` lets each run
grow by its neighbours, those of its own section first, as long as its bytes and the tokens of all of them last; a
passage that is too long is cut at a natural edge. Passages of one document stand together, in reading order.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from grounding.prompt_input import Passage as PromptPassage
from grounding.prompt_input import Recent
from grounding.retrieval.bm25 import terms
from grounding.retrieval.index import Hit, Passage

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
"""So many beginnings are tried, so that one huge line of sentences costs no more than a page."""
_FENCE = re.compile(r"^[ \t]*(?:`{3,}|~{3,})", re.MULTILINE)
_BARE_HEADING = re.compile(r"(?:^|\n)(?:[ \t]*#{1,6}(?:[ \t][^\n]*)?|[^\n]*\n[=\-~^\"*+]{3,})[ \t]*$")
_TABLE_RULE = re.compile(r"[ \t]*\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-*:?[ \t]*)*")


def utf8(text: str) -> int:
    """Return the bytes of *text* in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def clip(text: str, query: str, max_bytes: int) -> str:
    """Return at most *max_bytes* bytes of *text*, from one natural edge to another: the window with most of *query*'s
    terms, or the earliest of equal ones. Never cuts a character."""
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
    """Return the beginning of *text* that fits into *max_bytes*, up to the best edge in its last quarter."""
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
    """Return as much of the beginning of *text* as fits, up to the end of a paragraph, an item or a sentence; empty if
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
    """Return *text* without headings at its end, under which nothing is left."""
    text = text.rstrip()
    while match := _BARE_HEADING.search(text, max(text.rfind("\n", 0, max(text.rfind("\n"), 0)), 0)):
        text = text[: match.start()].rstrip()
    return text


def table_head(text: str, start: int) -> str:
    """Return the first two lines of the table in whose rows the position *start* of *text* lies; else nothing."""
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


# Near duplicates


NEAR_DUPLICATE = 0.85
"""From this Jaccard similarity of two passages' words on, the lower one says nothing new."""

_WORD = re.compile(r"\w+")
_NEGATING = """
    no not never none nobody nothing nor without cannot
    nicht kein keine keinen nie ohne pas jamais sans ni non sin nunca"""
NEGATIONS = frozenset(_NEGATING.split())

_word_sets: Recent[frozenset[str]] = Recent(256)
"""Each passage is compared with every other one. Some 10 kB for each text of 150 words."""


def drop_near_duplicates(hits: Sequence[Hit]) -> list[Hit]:
    """Return *hits* without those that repeat a better one, in whichever document."""
    distinct: list[Hit] = []
    for hit in hits:
        if not says_nothing_new(hit.passage, (other.passage for other in distinct)):
            distinct.append(hit)
    return distinct


def says_nothing_new(passage: Passage, others: Iterable[Passage]) -> bool:
    """Return whether one of *others* has nearly the same words.

    Two that differ in a figure or in a negation do not say the same, however alike they are: they may be a policy and
    its former version, and the model should see both.
    """
    words = _word_sets.of(passage.text, _words)
    return any(_is_near(words, _word_sets.of(other.text, _words)) for other in others)


def _is_near(left: frozenset[str], right: frozenset[str]) -> bool:
    fewer, more = sorted((len(left), len(right)))
    shared = len(left & right)
    if shared < NEAR_DUPLICATE * (fewer + more - shared):
        return False
    return not any(word in NEGATIONS or any(map(str.isdigit, word)) for word in left ^ right)


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.casefold().replace("n't", " not").replace("n’t", " not")))


# Runs


REACH = 3
"""Hits of one document whose ordinals are at most so far apart become one passage, if it can hold them."""
BEFORE, AFTER = 2, 4
"""A passage may grow by so many neighbours on each side."""
LEAST_BYTES = 160
"""A neighbour is not cut to less than this."""
LEAST_TOKENS = 80
"""So many tokens a better passage leaves to each of those after it, if tokens are short."""
_BETWEEN_TOKENS = 4
"""The tokens of a label's brackets, and of the white space around a passage."""


@dataclass(frozen=True, slots=True)
class Room:
    """The room for passages: at most ``top_k`` of ``passage_bytes`` bytes (UTF-8) each and, together with their labels,
    ``tokens`` tokens as ``count`` counts them; None for any number."""

    top_k: int
    passage_bytes: int
    tokens: int | None = None
    count: Callable[[str], int] = len


@dataclass(slots=True)
class Run:
    """Touching passages of one source in reading order, on their way into a prompt. ``near`` are further hits that the
    run should reach, best first."""

    parts: list[Passage]
    score: float
    heading: str
    near: list[Hit] = field(default_factory=list)

    @classmethod
    def of(cls, hit: Hit) -> Run:
        return cls([hit.passage], hit.deciding_score, hit.passage.heading)

    @property
    def source(self) -> str:
        return self.parts[0].source

    @property
    def ordinals(self) -> range:
        return range(self.parts[0].ordinal, self.parts[-1].ordinal + 1)


def choose(hits: Sequence[Hit], top_k: int) -> list[Run]:
    """Return at most *top_k* runs from *hits*, which are in order of rank; best run first."""
    runs: list[Run] = []
    for hit in drop_near_duplicates(hits):
        reached = [run for run in runs if run.source == hit.passage.source and _distance(run, hit.passage) <= REACH]
        if reached:
            min(reached, key=lambda run: _distance(run, hit.passage)).near.append(hit)
        elif len(runs) < top_k:
            runs.append(Run.of(hit))
    return runs


def _distance(run: Run, passage: Passage) -> int:
    return min(abs(passage.ordinal - ordinal) for ordinal in _hits(run))


def _hits(run: Run) -> list[int]:
    return [run.parts[0].ordinal, *(hit.passage.ordinal for hit in run.near)]


def neighbours_wanted(run: Run) -> Iterator[int]:
    """Return the ordinals that *run* may grow by, those of its other hits included."""
    known = _hits(run)
    return (ordinal for ordinal in range(max(min(known) - BEFORE, 0), max(known) + AFTER + 1))


def pack(
    runs: Sequence[Run], around: Mapping[str, Mapping[int, Passage]], query: str, room: Room
) -> list[PromptPassage]:
    """Return *runs* as passages, grown by the passages *around* them (by source and ordinal), within *room*."""
    packing = _Packing(list(runs), around, query, room)
    packing.take_cores()
    packing.reach_hits()
    packing.grow()
    return packing.finished()


class _Packing:
    """The state of one `pack`."""

    def __init__(self, runs: list[Run], around: Mapping[str, Mapping[int, Passage]], query: str, room: Room) -> None:
        self.runs = runs
        self.around = around
        self.query = query
        self.room = room
        self.left = room.tokens
        self.counts: dict[tuple[str, int, int], int] = {}

    def take_cores(self) -> None:
        """Cut each run's first hit to its bytes and a share of the tokens; drop runs without room."""
        taken: list[Run] = []
        for number, run in enumerate(self.runs):
            label = self.room.count(f"{run.source} › {run.heading}") + _BETWEEN_TOKENS if self.left is not None else 0
            core = self._fitting(run.parts[0], label, len(self.runs) - number - 1)
            if core is None:
                continue
            self._pay(label + self._tokens(core))
            run.parts = [core]
            taken.append(run)
        self.runs = taken

    def _fitting(self, core: Passage, label: int, later: int) -> Passage | None:
        """Return *core*, or the stretch with most of the question's terms if it is too long."""
        cut = _cut(core, self.query, self.room.passage_bytes)
        if self.left is None:
            return cut
        allowed = self.left - label - min(later * LEAST_TOKENS, self.left // 2)
        while cut is not None and (tokens := self._tokens(cut)) > allowed:
            if allowed < min(LEAST_TOKENS // 2, self.room.tokens or 0):
                return None
            cut = _cut(core, self.query, min(utf8(cut.text) - 1, utf8(cut.text) * allowed // tokens))
        return cut

    def reach_hits(self) -> None:
        """Grow runs to their further hits. A hit that stays out of reach becomes a run of its own, if a place is
        left."""
        for run in list(self.runs):
            for hit in run.near:
                passage = hit.passage
                is_reached = passage.ordinal in run.ordinals or self._reach(run, passage.ordinal)
                if not is_reached and len(self.runs) < self.room.top_k:
                    separate = Run.of(hit)
                    label = self.room.count(f"{run.source} › {separate.heading}") + _BETWEEN_TOKENS
                    core = self._fitting(passage, label, 0)
                    if core is not None:
                        self._pay(label + self._tokens(core))
                        separate.parts = [core]
                        self.runs.append(separate)

    def _reach(self, run: Run, ordinal: int) -> bool:
        first, last = run.ordinals.start, run.ordinals.stop - 1
        step = range(last + 1, ordinal + 1) if ordinal > last else range(first - 1, ordinal - 1, -1)
        parts = [part for one in step if (part := self._neighbour(run, one)) is not None]
        return len(parts) == len(step) and self._add(run, parts, in_front=ordinal < first)

    def grow(self) -> None:
        """Add neighbours, the best run's first: of its own section, then any, then the beginning of one that is too
        long to be added whole."""
        for same_section in (True, False):
            for run in self.runs:
                self._grow(run, same_section)
        for run in self.runs:
            self._grow_by_a_part(run)

    def _grow(self, run: Run, same_section: bool) -> None:
        sides = {False: AFTER, True: BEFORE}
        while any(sides.values()):
            for in_front in (False, True):
                if not sides[in_front]:
                    continue
                sides[in_front] -= 1
                part = self._neighbour(run, run.ordinals.start - 1 if in_front else run.ordinals.stop)
                if (
                    part is None
                    or (same_section and not part.heading.startswith(run.heading))
                    or says_nothing_new(part, self._elsewhere(run))
                    or not self._add(run, [part], in_front)
                ):
                    sides[in_front] = 0

    def _grow_by_a_part(self, run: Run) -> None:
        part = self._neighbour(run, run.ordinals.stop)
        last = run.parts[-1]
        if part is None or part.lead or says_nothing_new(part, self._elsewhere(run)):
            return
        new = part.text[max(last.end - part.start, 0) :]
        spare = self.room.passage_bytes - utf8(join(run.parts)) - 2
        while spare >= LEAST_BYTES:
            text = beginning(new, spare)
            if utf8(text) < LEAST_BYTES:
                return
            start = max(part.start, last.end)
            last_line = part.first_line + part.text.count("\n", 0, start - part.start) + text.count("\n")
            cut = replace(part, text=text, start=start, end=start + len(text), last_line=last_line)
            if self._add(run, [cut], in_front=False):
                return
            spare = min(spare, utf8(text)) * 3 // 4

    def _neighbour(self, run: Run, ordinal: int) -> Passage | None:
        """Return the passage at *ordinal* beside *run* unless another run has it. A run that was cut on that side has
        none there."""
        whole = self.around.get(run.source, {})
        edge = run.parts[0] if ordinal < run.ordinals.start else run.parts[-1]
        known = whole.get(edge.ordinal)
        if known is not None and (known.start, known.end) != (edge.start, edge.end):
            is_cut = edge.start > known.start if ordinal < run.ordinals.start else edge.end < known.end
            if is_cut:
                return None
        if any(other.source == run.source and ordinal in other.ordinals for other in self.runs if other is not run):
            return None
        return whole.get(ordinal)

    def _elsewhere(self, run: Run) -> Iterable[Passage]:
        return (part for other in self.runs if other is not run for part in other.parts)

    def _add(self, run: Run, parts: Sequence[Passage], in_front: bool) -> bool:
        """Add *parts*, nearest first, if there is room for them."""
        tokens = sum(map(self._tokens, parts)) if self.left is not None else 0
        grown = [*reversed(parts), *run.parts] if in_front else [*run.parts, *parts]
        if (self.left is not None and tokens > self.left) or utf8(join(grown)) > self.room.passage_bytes:
            return False
        self._pay(tokens)
        run.parts = grown
        return True

    def _tokens(self, part: Passage) -> int:
        if self.left is None:
            return 0
        key = (part.source, part.start, part.end)
        if key not in self.counts:
            self.counts[key] = self.room.count(part.lead + part.text) + 1
        return self.counts[key]

    def _pay(self, tokens: int) -> None:
        if self.left is not None:
            self.left -= tokens

    def finished(self) -> list[PromptPassage]:
        """Return the runs as passages: by rank, those of one document together and in reading order."""
        ends: dict[str, int] = {}
        best: dict[str, int] = {}
        for rank, run in enumerate(self.runs):
            best.setdefault(run.source, rank)
        passages: list[PromptPassage] = []
        for run in sorted(self.runs, key=lambda run: (best[run.source], run.parts[0].start, run.parts[0].ordinal)):
            text = without_bare_headings(join(_without_overlap(run.parts, ends.get(run.source, 0))))
            ends[run.source] = max(ends.get(run.source, 0), run.parts[-1].end)
            if text:
                passages.append(PromptPassage(source=run.source, heading=run.heading, text=text, score=run.score))
        return passages


def _without_overlap(parts: Sequence[Passage], end: int) -> list[Passage]:
    """Return *parts* without the text before *end*, which the passage before them has."""
    rest: list[Passage] = []
    for part in parts:
        if part.start >= end or part.end == part.start:
            rest.append(part)
        elif part.end > end:
            text = part.text[end - part.start :]
            fresh = text.lstrip()
            rest.append(replace(part, text=fresh, start=end + len(text) - len(fresh)))
    return rest


def _cut(core: Passage, query: str, max_bytes: int) -> Passage | None:
    """Return *core* within *max_bytes* bytes, with the head of a table if only rows are left; None if nothing is
    left."""
    if utf8(core.lead + core.text) <= max_bytes:
        return core
    lead = core.lead if utf8(core.lead) <= max_bytes // 2 else ""
    text = clip(core.text, query, max_bytes - utf8(lead))
    at = max(core.text.find(text), 0)
    head = "" if lead else table_head(core.text, at)
    if head and utf8(head) <= max_bytes // 2:
        lead, text = head, clip(core.text[at:], query, max_bytes - utf8(head))
        at = max(core.text.find(text, at), 0)
        head = table_head(core.text, at)
        lead = lead if head else ""
    if not text.strip():
        return None
    first = core.first_line + core.text.count("\n", 0, at)
    return replace(
        core,
        text=text,
        lead=lead,
        start=core.start + at,
        end=core.start + at + len(text),
        first_line=first,
        last_line=first + text.count("\n"),
    )


def join(parts: Sequence[Passage]) -> str:
    """Return the text of touching passages, overlaps once. Between two chunks there was only white space."""
    if not parts:
        return ""
    first = parts[0]
    text, end = first.lead + first.text, first.end
    for part in parts[1:]:
        text += part.text[end - part.start :] if part.start < end else "\n" * _blank_lines(end, part) + part.text
        end = max(end, part.end)
    return text


def _blank_lines(end: int, part: Passage) -> int:
    return 1 if part.start - end <= 1 else 2
