"""Check which passages a reply cites, and which citations name nothing that the model was given. Pure.

A citation is a label in brackets (see `grounding.prompt.layers.label`), also in the forms that models make of it:
with other brackets or arrows, with several labels together, or with only the end of a heading. Links, code, footnotes
and prose in brackets are no citations. Invented citations are marked; nothing is removed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from grounding.prompt.layers import escape_label
from grounding.prompt_input import Passage

MARK = " ⚠ unverified"
"""Follows a cited name that the model was not given. With it the text is no label any more."""
LONGEST_CHARACTERS = 1000

_IN_PATH = r"\[(?:\[[^\[\]\s]{1,100}\]|[^\[\]\s]{1,100})\](?=[/.])"
"""A part of a path in brackets of its own: ``app/[id]/page.md``. Labels show it with round ones."""
_ARROWS = "›>»→⟩❯/#§|:–—-"
_BRACKETS = re.compile(
    rf"!?\[(?P<square>(?:[^\[\]]|{_IN_PATH}){{1,{LONGEST_CHARACTERS}}}+)\](?P<link>\(|:[ \t]*(?:<|\w{{1,10}}://|/|\#))?"
    rf"|【(?P<lenticular>[^【】]{{1,{LONGEST_CHARACTERS}}})】"
    rf"|(?<!\])\((?P<round>(?:[^()\[\]]|{_IN_PATH}){{1,{LONGEST_CHARACTERS}}}+)\)"
)
_TOGETHER = re.compile(r"[;；]|,(?=\s+[^\s,;]+\.(?:md|txt)\b)", re.IGNORECASE)
_FILE = re.compile(
    rf"(?P<path>[^\s{re.escape('›>»→⟩❯|;,')}][^›>»→⟩❯|;\n]{{0,250}}?\.(?:md|txt))"
    rf"(?P<rest>\s*[{re.escape(_ARROWS)},].*)?",
    re.IGNORECASE | re.DOTALL,
)
_ARROWED = re.compile(r"\s*[›>»→⟩❯]\s*|\s+->\s+")
_BEFORE = re.compile(r"(?:(?:sources?|see|from|cf\.?|quelle|siehe)\s*:?\s+|\d+(?::\d+)?†|\d+:\s+)", re.IGNORECASE)
_BEHIND = re.compile(r"†[^†]*$")
_DECORATION = re.compile(r"[`*\"“”„«»'’‘]")
_MARKS = re.compile(r"[*`]")
_WORD = re.compile(r"\w+")
_LIKE_A_LABEL = re.compile(r"\.(?:md|txt)|[›>»→⟩❯]", re.IGNORECASE)
_SLASHES = re.compile(r"[/\\]+")
_UPWARDS = re.compile(r"\A(?:\.{0,2}/)+")
_HEADING_LINE = re.compile(r"^[ \t]*#{1,6}[ \t]+(.+)$", re.MULTILINE)
_FENCE = re.compile(r"[ \t>]*(?:[-*+][ \t]+|\d{1,9}[.)][ \t]+)?(`{3,}|~{3,})")
_TICKS = re.compile(r"`+")


@dataclass(frozen=True, slots=True)
class CheckedReply:
    """A reply after the check.

    ``text`` has the invented citations marked. ``cited`` are the passages in the order of their first citation; a
    passage cited by a heading inside it carries that heading. ``invented`` is the number of invented labels.
    """

    text: str
    cited: tuple[Passage, ...] = ()
    invented: int = 0


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A passage in the forms by which a reply may name it."""

    passage: Passage
    source: str
    headings: tuple[str, ...]
    inside: Mapping[str, str]
    """The headings inside its text, by their folded form."""

    @classmethod
    def of(cls, passage: Passage) -> _Candidate:
        parts = tuple(part for part in map(_folded, passage.heading.split("›")) if part)
        inside = {
            _folded(match[1]): _MARKS.sub("", match[1]).strip(" \t#") for match in _HEADING_LINE.finditer(passage.text)
        }
        return cls(passage, _path(escape_label(passage.source)), parts, inside)

    def is_source(self, path: str) -> bool:
        """Say whether *path* is the source's path or its end, with or without ``docs/`` and the suffix."""
        stem = self.source.rpartition(".")[0] or self.source
        return any(f"/{known}".endswith(f"/{path}") for known in (self.source, stem))

    def is_below(self, heading: str) -> bool:
        """Say whether *heading* is the passage's own, with or without its parent headings."""
        return heading in (" ".join(self.headings[first:]) for first in range(len(self.headings)))

    def is_somewhere_below(self, heading: str) -> bool:
        """Say whether *heading* is a run of the headings above the passage."""
        parts = self.headings
        runs = (" ".join(parts[first:last]) for first in range(len(parts)) for last in range(first + 1, len(parts) + 1))
        return heading in runs

    def part_below(self, heading: str) -> Passage | None:
        """Return the passage with *heading* as its heading, if that heading is inside its text; else None.

        The parent headings may precede it.
        """
        for first in range(len(self.headings) + 1):
            above = " ".join(self.headings[first:])
            inner = heading.removeprefix(above).lstrip() if heading.startswith(above) else ""
            if inner in self.inside:
                return self.passage.model_copy(update={"heading": self.inside[inner]})
        return None


def check_citations(reply: str, passages: Sequence[Passage], prompt: str) -> CheckedReply:
    """Check *reply*'s citations against *passages*. *prompt* is the user message as it was sent, which holds them.

    A label that is in *prompt* for another reason (an earlier turn cited it) is not invented. Takes time in proportion
    to the lengths of *reply* and *prompt*.
    """
    if not any(bracket in reply for bracket in "[【("):
        return CheckedReply(reply)
    candidates = [_Candidate.of(passage) for passage in passages]
    known: frozenset[str] | None = None
    named: dict[str, tuple[Passage, ...]] = {}
    cited: dict[Passage, None] = {}
    pieces: list[str] = []
    done = invented = 0
    for match in _outside_code(reply, frozenset(one.source for one in candidates)):
        for start, end in _parts(match, candidates):
            part = reply[start:end]
            if part not in named:
                named[part] = _named(part, candidates)
            found = named[part]
            cited.update(dict.fromkeys(found))
            if found or not _claims(part, in_round=match["round"] is not None):
                continue
            if known is None:
                known = _labels(prompt)
            if _folded(part) in known:
                continue
            invented += 1
            pieces += [reply[done:end], MARK]
            done = end
    return CheckedReply("".join((*pieces, reply[done:])), tuple(cited), invented)


def _outside_code(text: str, sources: frozenset[str]) -> Iterator[re.Match[str]]:
    """Yield the brackets that are no links, touch no code, and look like a label or name one of *sources*."""
    code = _code(text)
    number = 0
    for match in _BRACKETS.finditer(text):
        if match["link"] or match[0].startswith(("!", "[^")):
            continue
        if not _LIKE_A_LABEL.search(match[0]) and _path(_bare(match[match.lastgroup or 0])) not in sources:
            continue
        while number < len(code) and code[number][1] <= match.start():
            number += 1
        if number < len(code) and code[number][0] <= match.start():
            continue
        yield match


def _code(text: str) -> list[tuple[int, int]]:
    """Return the spans of code in Markdown *text*, fenced, indented, or between backticks, in order."""
    spans: list[tuple[int, int]] = []
    fence, fence_at, prose_at, at = "", 0, 0, 0
    was_blank, in_list = True, False
    for line in text.splitlines(keepends=True):
        opened = _FENCE.match(line)
        indented = line.startswith(("    ", "\t")) and was_blank and not in_list
        if fence:
            if opened and opened[1].startswith(fence) and not line[opened.end() :].strip():
                spans.append((fence_at, at + len(line)))
                fence, prose_at = "", at + len(line)
        elif opened:
            spans += _ticked(text, prose_at, at)
            fence, fence_at = opened[1], at
        elif indented and line.strip():
            spans += [*_ticked(text, prose_at, at), (at, at + len(line))]
            prose_at = at + len(line)
        elif line.strip():
            was_blank = False
            if not line[0].isspace():
                in_list = re.match(r"[-*+][ \t]|\d{1,9}[.)][ \t]", line) is not None
        else:
            was_blank = True
        at += len(line)
    return [*spans, (fence_at, at)] if fence else [*spans, *_ticked(text, prose_at, at)]


def _ticked(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """Return the spans between equal runs of backticks in ``text[start:end]``."""
    ticks = [(match.start(), match.end()) for match in _TICKS.finditer(text, start, end)]
    later: dict[int, list[int]] = {}
    for number in range(len(ticks) - 1, -1, -1):
        later.setdefault(ticks[number][1] - ticks[number][0], []).append(number)
    spans: list[tuple[int, int]] = []
    number = 0
    while number < len(ticks):
        first, last = ticks[number]
        same = later[last - first]
        while same and same[-1] <= number:
            same.pop()
        if same:
            spans.append((first, ticks[same[-1]][1]))
            number = same[-1]
        number += 1
    return spans


def _parts(match: re.Match[str], candidates: Sequence[_Candidate]) -> Iterator[tuple[int, int]]:
    """Yield the spans of the labels in a bracket. A bracket that is one label as a whole is not split, because headings
    may contain any separator."""
    start, end = match.span(match.lastgroup or 0)
    inside = match.string[start:end]
    cuts = [] if _exactly(inside, candidates) else [cut.span() for cut in _TOGETHER.finditer(inside)]
    firsts, lasts = [0, *(last for _, last in cuts)], [*(first for first, _ in cuts), len(inside)]
    for first, last in zip(firsts, lasts, strict=True):
        part = inside[first:last]
        if part.strip():
            yield start + first + len(part) - len(part.lstrip()), start + first + len(part.rstrip())


def _named(part: str, candidates: Sequence[_Candidate]) -> tuple[Passage, ...]:
    """Return the passages that *part* names by source and heading, or all passages of the source if it names no known
    heading."""
    path, _ = _split(part)
    if not path:
        bare = _path(_bare(part))
        return tuple(one.passage for one in candidates if one.source == bare)
    return _exactly(part, candidates) or tuple(one.passage for one in candidates if one.is_source(path))


def _exactly(part: str, candidates: Sequence[_Candidate]) -> tuple[Passage, ...]:
    """Return the passages whose source and heading *part* names.

    The heading is a passage's own, else one inside a passage, else one above it.
    """
    path, heading = _split(part)
    if not path or not heading:
        return ()
    of_source = [one for one in candidates if one.is_source(path)]
    return (
        tuple(one.passage for one in of_source if one.is_below(heading))
        or tuple(passage for one in of_source if (passage := one.part_below(heading)))
        or tuple(one.passage for one in of_source if one.is_somewhere_below(heading))
    )


def _split(part: str) -> tuple[str, str]:
    """Return the folded path and heading of a label; the path is empty if *part* is no label."""
    bare = _bare(part)
    if match := _FILE.fullmatch(bare):
        return _path(match["path"]), _folded(match["rest"] or "")
    first, *rest = _ARROWED.split(bare, maxsplit=1)
    return (_path(first), _folded(rest[0])) if rest else ("", "")


def _bare(part: str) -> str:
    text = escape_label(" ".join(_DECORATION.sub("", part).split()))
    return _BEHIND.sub("", _BEFORE.sub("", text, count=1)).strip()


def _claims(part: str, *, in_round: bool) -> bool:
    """Say whether *part* has the form of a label. In round brackets, which prose uses too, it needs a heading."""
    if part.endswith(MARK.strip()):
        return False
    match = _FILE.fullmatch(_bare(part))
    return (
        match is not None
        and " " not in match["path"]
        and (not in_round or re.match(r"\s*[›»→⟩❯]", match["rest"] or "") is not None)
    )


def _labels(prompt: str) -> frozenset[str]:
    """Return everything in square brackets in *prompt*, folded."""
    found = [match["square"] for match in _BRACKETS.finditer(prompt) if match["square"]]
    return frozenset(_folded(part) for inside in found for part in (inside, *_TOGETHER.split(inside)))


def _path(text: str) -> str:
    """Return *text* in the form in which sources are compared. Links between documents begin with ``../``."""
    return _UPWARDS.sub("", _SLASHES.sub("/", text.strip().casefold())).removeprefix("docs/")


def _folded(text: str) -> str:
    return " ".join(_WORD.findall(text.casefold()))
